"""The gateway's log: one line for each event of a connection, and never a token."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from meup_agent.protocol.space.allowance import TokenBucket

log: Final = logging.getLogger("meup_agent.gateway")

MAX_SHOWN_CHARS: Final = 80
"""Characters of a stranger's text in the log."""


def quote(text: str) -> str:
    """A stranger's text as it may stand in a log: quoted, escaped and cut."""
    cut = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
    # Line ends, escapes of terminals and marks of direction would forge or hide what is read.
    return ascii(cut)


LINES_BURST: Final = 50
"""Lines about refusals at once: as many as a person reads."""

LINES_PER_SECOND: Final = 1.0
"""Lines about refusals in the long run: a gateway under attack writes some 8 MB a day."""


class RefusalLog:
    """Logs refusals at a bounded rate, and how many lines were left out."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._bucket = TokenBucket(LINES_PER_SECOND, LINES_BURST)
        self._left_out = 0

    def info(self, said: str, *values: object) -> None:
        """Log a line, unless there were too many lately."""
        if not self._bucket.try_consume(self._now()):
            self._left_out += 1
            return
        self.tell_left_out()
        log.info(said, *values)

    def tell_left_out(self) -> None:
        """Log how many lines were left out since the last one."""
        if self._left_out:
            log.warning("%d lines about refused connections were left out here", self._left_out)
            self._left_out = 0


class PicowsLog(logging.LoggerAdapter[logging.Logger]):
    """Lets through what went wrong.

    The rest would be a second line for each event that the gateway reports itself; and at its
    lowest level picows writes whole handshakes, tokens included.
    """

    def __init__(self, logger: logging.Logger, refusals: RefusalLog) -> None:
        super().__init__(logger, {})
        self._refusals = refusals

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name of the standard library
        """True for errors only."""
        return level >= logging.ERROR and super().isEnabledFor(level)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log what is an error; what a stranger's frame caused only at INFO."""
        if isinstance(msg, str) and msg.startswith("WS parser error"):
            self._refusals.info("a connection broke the rules of WebSocket: %s", *args)
        else:
            super().log(level, msg, *args, **kwargs)


class UvicornLog(logging.LoggerAdapter[logging.Logger]):
    """Lets through what went wrong; its warnings are about what strangers send."""

    level: Final = logging.WARNING

    def __init__(self, logger: logging.Logger, refusals: RefusalLog) -> None:
        super().__init__(logger, {})
        self._refusals = refusals

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log what is an error; a warning only at INFO."""
        if level == logging.WARNING:
            self._refusals.info("HTTP: %s", msg)
        else:
            super().log(level, msg, *args, **kwargs)
