"""What picows says, in the gateway's log."""

from __future__ import annotations

import logging
from typing import Any

from meup_agent.gateway.refusal_log import RefusalLog


class PicowsLog(logging.LoggerAdapter[logging.Logger]):
    """Lets through what went wrong.

    The rest would be a second line for each event that the gateway reports itself; and at its
    lowest level picows writes whole handshakes, tokens included.

    Args:
        logger: Where to.
        refusals: Where to log what strangers can cause without end.
    """

    def __init__(self, logger: logging.Logger, refusals: RefusalLog) -> None:
        super().__init__(logger, {})
        self._refusals = refusals

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name of the standard library
        """Only what is an error."""
        return level >= logging.ERROR and super().isEnabledFor(level)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log what is an error; what a stranger's frame caused only at INFO."""
        if isinstance(msg, str) and msg.startswith("WS parser error"):
            self._refusals.info("a connection broke the rules of WebSocket: %s", *args)
        else:
            super().log(level, msg, *args, **kwargs)
