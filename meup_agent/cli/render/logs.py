"""The log of a command on standard error: one line for each record, as text or as JSON."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Final

from meup_agent.escape import as_json_line, visible
from meup_agent.uncaught import wants_tracebacks

FORMAT: Final = "%(asctime)s %(levelname)-7s %(message)s"
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

log = logging.getLogger("meup_agent.cli")

PARTICIPANT: Final = "participant"
"""Attribute of a record that is a line of a participant's program: its name."""


class SafeFormatter(logging.Formatter):
    """Escapes text of strangers; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The record's line, without its traceback."""
        return visible(super().formatMessage(record))

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802
        lines = super().formatException(ei).splitlines()
        return "\n".join(visible(line) for line in lines)


class JsonFormatter(logging.Formatter):
    """A JSON object on one line for each record, in ASCII, so that it is safe to print, too."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line: its time in UTC, level, logger and message, and a traceback."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if participant := getattr(record, PARTICIPANT, None):
            said[PARTICIPANT] = participant
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return as_json_line(said).rstrip("\n")


def log_to_stderr(level: str, *, as_json: bool = False, ours_alone: bool = False) -> None:
    """Log to standard error.

    Args:
        level: The least level that is logged.
        as_json: Each line is a JSON object.
        ours_alone: Of other packages only warnings are logged.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else SafeFormatter(FORMAT))
    root = "WARNING" if ours_alone else level.upper()
    logging.basicConfig(level=root, handlers=[handler])
    logging.getLogger("meup_agent").setLevel(level.upper())


def logs_json() -> bool:
    """True if the log is written as JSON."""
    return any(isinstance(each.formatter, JsonFormatter) for each in logging.getLogger().handlers)


def log_nothing() -> None:
    """Log nothing but warnings about the way to the gateway: the timeline says the rest better.

    A user that wants to see everything does.
    """
    if wants_tracebacks():
        log_to_stderr("debug")
        return
    logging.getLogger("meup_agent").addHandler(logging.NullHandler())
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("meup: warning: %(message)s"))
    handler.setLevel(logging.WARNING)
    logging.getLogger("meup_agent.transport").handlers = [handler]


def write_failure(sentence: str) -> None:
    """Write the sentence with which a command fails, as the log is written."""
    if logs_json():
        log.error("%s", sentence.removeprefix("meup: "))
    else:
        sys.stderr.write(f"{sentence}\n")


# --- lines of the SDK of MCP, which a stranger at its other end can cause without an end ---

SDK_LOGGERS: Final = ("mcp", "client", "httpx2", "httpcore2", "uvicorn", "asyncio")
"""Loggers of the SDK and of what it uses; ``client`` is its own for streams of events."""

LINES_PER_SECOND: Final = 10
"""Log lines of the SDK in a second; what is left out is counted."""


class PacedLines(logging.Filter):
    """Lets so many lines of some loggers through in a second, and says how many it left out."""

    def __init__(self, names: tuple[str, ...], per_second: int = LINES_PER_SECOND) -> None:
        super().__init__()
        self._names = frozenset(names)
        self._per_second = per_second
        self._second = 0
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """True if a line is to be written."""
        if record.name.partition(".")[0] not in self._names:
            return True
        second = int(time.monotonic())
        if second != self._second:
            left_out = self._count - self._per_second
            self._second, self._count = second, 0
            if left_out > 0:
                record.msg = f"({left_out} more lines were left out) {record.getMessage()}"
                record.args = ()
        self._count += 1
        return self._count <= self._per_second


def pace_sdk_logs() -> None:
    """Bound what the SDK logs; a filter of a logger would not see its children's lines."""
    paced = PacedLines(SDK_LOGGERS)
    for handler in logging.getLogger().handlers:
        handler.addFilter(paced)


def silence_sdk_logs() -> None:
    """Leave out what the SDK logs: a traceback for each line of a server that is not a message."""
    for name in ("mcp", "client", "httpx2"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
