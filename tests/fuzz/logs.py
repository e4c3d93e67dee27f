"""Whatever is logged is one printable line, and no token is in it."""

import logging
from collections.abc import Generator
from contextlib import contextmanager


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(1)
        self.lines: list[str] = []
        self.unexpected: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if record.exc_info is not None or record.levelno >= logging.ERROR:
            self.unexpected.append(self.format(record))


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
    assert not handler.unexpected, handler.unexpected[0]
    for line in handler.lines:
        assert line.isprintable(), f"logged as it came: {line!r}"
        assert not any(secret in line for secret in secrets), f"a token is logged: {line!r}"
