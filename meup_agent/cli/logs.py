"""The log of a command on standard error: one line a record, safe for a terminal."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final

from meup_agent.cli.render.escape import visible
from meup_agent.uncaught import debugging

FORMAT: Final = "%(asctime)s %(levelname)-7s %(message)s"

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class SafeFormatter(logging.Formatter):
    """Escapes text of strangers; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The record's line, without its traceback."""
        return visible(super().formatMessage(record))

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802
        """The traceback, each of its lines made safe."""
        lines = super().formatException(ei).splitlines()
        return "\n".join(visible(line) for line in lines)


def log_to_stderr(level: str) -> None:
    """Log from some level on.

    Args:
        level: The level's name.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter(FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def log_nothing() -> None:
    """Log nothing, unless the user wants to see everything: the timeline says it better."""
    if debugging():
        log_to_stderr("debug")
    else:
        logging.getLogger("meup_agent").addHandler(logging.NullHandler())
