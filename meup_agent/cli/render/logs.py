"""The log of a command on standard error: one line for each record, as text or as JSON."""

from __future__ import annotations

import logging
import sys
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
