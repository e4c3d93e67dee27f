"""Connections that are told of: when one is made, when it ends, and when none can be made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from meup_agent.errors import CannotConnect, TransportError
from meup_agent.transport.base import ABNORMAL, CloseInfo, Connector, Transport


@dataclass(frozen=True, slots=True)
class Made:
    """A connection is made; the welcome is still to come."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A connection has ended, and not because we left."""

    info: CloseInfo


@dataclass(frozen=True, slots=True)
class Failed:
    """A connection could not be made; the next attempt follows."""

    error: TransportError


ConnectionEvent = Made | Ended | Failed

Tell = Callable[[ConnectionEvent], Awaitable[None]]
"""Told of each event; the connection waits until it returns."""


class FirstAttemptFailed(Exception):
    """The very first attempt to connect failed, and nobody wants to wait for another."""

    def __init__(self, error: TransportError) -> None:
        super().__init__(str(error))


def telling(connector: Connector, tell: Tell, *, patient: bool = True) -> Connector:
    """A connector that tells what becomes of its connections.

    Args:
        connector: Makes the connections.
        tell: Told of each event.
        patient: ``False``: where the first attempt fails, do not go on trying.
    """
    made = patient

    @asynccontextmanager
    async def dial(headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
        nonlocal made
        async with AsyncExitStack() as stack:
            try:
                transport = await stack.enter_async_context(connector(headers))
            except CannotConnect as error:
                if not made:
                    raise FirstAttemptFailed(error) from error
                await tell(Failed(error))
                raise
            made = True
            await tell(Made())
            yield transport
            info = transport.closed
            if info is not None and not info.local:
                await tell(Ended(info))

    return dial


def in_words(info: CloseInfo) -> str:
    """How a connection ended, for a person; the reason is a stranger's text."""
    if info.code == ABNORMAL:
        return "dropped without a close frame"
    return f"closed with code {info.code}" + (f": {info.reason}" if info.reason else "")
