"""TLS handshakes that fail: anybody can make them fail, so one line in the log is enough."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import aiofastnet

from meup_agent.gateway.edge.listening import address_of
from meup_agent.gateway.hub import wall_clock
from meup_agent.gateway.refusal_log import RefusalLog

FAILED: Final = "SSL handshake failed"
"""What aiofastnet says then."""


@contextmanager
def briefly_told() -> Generator[None]:
    """For the length of a block, log in one line whoever goes away in the middle of a handshake.

    A health check that only opens a connection is enough for that. aiofastnet hands it to the
    loop's exception handler, with a class in place of an exception, over which logging breaks.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    refusals = RefusalLog(wall_clock)

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        wire = context.get("transport")
        if isinstance(wire, aiofastnet.Transport) and context["message"] == FAILED:
            refusals.info(
                "%s ended before its TLS handshake did", address_of(wire) or "a connection"
            )
        elif before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        # Somebody who set another one meanwhile goes on with theirs.
        if loop.get_exception_handler() is handle:
            loop.set_exception_handler(before)
