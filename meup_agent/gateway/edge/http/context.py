"""The start of each endpoint: the caller's identity, and what it waits for of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from starlette.requests import HTTPConnection

from meup_agent.gateway.admission import TOKEN_REFUSED, NotAdmitted
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.edge.handshake import bearer
from meup_agent.gateway.edge.http.problems import (
    FORBIDDEN,
    UNAVAILABLE,
    Problem,
    not_admitted,
)
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.server import SpaceServer

JOURNAL_SECONDS: Final = 10.0
"""Seconds that a request waits for the journal: a slower disk does not answer any more."""

T = TypeVar("T")


async def await_callback(ask: Callable[[Callable[[T], None]], object]) -> T:
    """Wait for the value that a callback gets; a :exc:`Problem` if the journal does not answer."""
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


async def read_journal(
    host: SpaceServer, *, after: int, until: int, limit: int
) -> tuple[Entry, ...]:
    """Entries of a space's journal, oldest first; see :meth:`Journal.read`."""
    journal = host.journal
    return await await_callback(
        lambda tell: journal.read(host.name, after=after, until=until, limit=limit, then=tell)
    )


def authenticate(runtime: GatewayRuntime, request: HTTPConnection) -> Identity:
    """The identity of the header's token; one in the address counts not, since that is logged."""
    authorization = request.headers.get("authorization")
    try:
        if authorization is None:
            raise NotAdmitted(TOKEN_REFUSED, "send the header Authorization: Bearer <token>")
        address = request.client.host if request.client is not None else ""
        return runtime.identify(bearer(authorization), address)
    except NotAdmitted as refused:
        runtime.counters.not_admitted[refused.status] += 1
        raise not_admitted(refused) from None


def authorize_space(
    runtime: GatewayRuntime, request: HTTPConnection
) -> tuple[Identity, SpaceServer]:
    """The caller, and the space in the path, which must be that of its token."""
    identity = authenticate(runtime, request)
    space: str = request.path_params["space"]
    if space not in runtime.spaces:
        raise Problem(404, "no_such_space", "no space here has this name")
    if identity.space != space:
        raise Problem(FORBIDDEN, "forbidden", "the token is for another space")
    return identity, _entered(runtime, identity)


def authorize_participant(
    runtime: GatewayRuntime, request: HTTPConnection
) -> tuple[Identity, SpaceServer]:
    """The caller, which must be the participant in the path, and its space."""
    identity = authenticate(runtime, request)
    if identity.participant != request.path_params["participant"]:
        raise Problem(FORBIDDEN, "forbidden", "the token is another participant's")
    return identity, _entered(runtime, identity)


def _entered(runtime: GatewayRuntime, identity: Identity) -> SpaceServer:
    """The space of a participant, unless it was removed or the gateway ends with its journal."""
    if not runtime.accepting:
        raise Problem(UNAVAILABLE, "unavailable", "the gateway stops; come back soon")
    host = runtime.spaces[identity.space]
    if host.is_kicked(identity.participant):
        raise Problem(FORBIDDEN, "kicked", "you were removed from the space")
    return host
