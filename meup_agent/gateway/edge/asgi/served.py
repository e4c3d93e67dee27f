"""What the HTTP API needs of the gateway behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from meup_agent.gateway.config import Limits
from meup_agent.gateway.edge.asgi.problems import UNAVAILABLE, Problem
from meup_agent.gateway.hub import Hub
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.server import SpaceServer

JOURNAL_SECONDS: Final = 10.0
"""How long a request waits for the journal: a disk that takes longer does not answer any more."""

T = TypeVar("T")


class Served(Protocol):
    """The gateway, as the HTTP API sees it."""

    @property
    def hub(self) -> Hub:
        """The spaces."""
        ...

    @property
    def limits(self) -> Limits:
        """What is taken and waited for."""
        ...

    @property
    def listening(self) -> bool:
        """Whether members can join at this moment."""
        ...

    @property
    def open_connections(self) -> int:
        """Members' connections, those that have not joined yet included."""
        ...


async def told(ask: Callable[[Callable[[T], None]], object]) -> T:
    """Ask for something that is told by a callback, and wait for it.

    Args:
        ask: Takes the callback.

    Raises:
        Problem: The journal does not answer.
    """
    found: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def tell(value: T) -> None:
        if not found.done():
            found.set_result(value)

    ask(tell)
    try:
        async with asyncio.timeout(JOURNAL_SECONDS):
            return await found
    except TimeoutError:
        raise Problem(
            UNAVAILABLE,
            "journal_unavailable",
            "the journal does not answer, and whether this was kept is not known; ask again later",
        ) from None


async def read(host: SpaceServer, *, after: int, until: int, limit: int) -> tuple[Entry, ...]:
    """Entries of a space's journal, oldest first; see :meth:`Journal.read`."""
    journal = host.journal
    return await told(
        lambda tell: journal.read(host.name, after=after, until=until, limit=limit, then=tell)
    )
