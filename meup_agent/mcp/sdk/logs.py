"""The SDK's own log lines, which a stranger at the other end can cause without an end."""

from __future__ import annotations

import logging
import time
from typing import Final

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
