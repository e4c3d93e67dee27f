"""Whatever is logged is one printable line, and no token is in it."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(1)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert record.exc_info is None, "something was not expected"
        self.lines.append(record.getMessage())


@contextmanager
def checked_log(*secrets: str) -> Generator[None]:
    """Check what the package logs in a block, at every level."""
    logger = logging.getLogger("meup_agent")
    handler, level, propagate = _Lines(), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(1)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
    for line in handler.lines:
        assert line.isprintable(), f"logged as it came: {line!r}"
        assert not any(secret in line for secret in secrets), f"a token is logged: {line!r}"
