"""Who calls: the bearer token says it, as in a WebSocket handshake (PROTOCOL 3)."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from meup_agent.gateway.admission import TOKEN_REFUSED, NotAdmitted, bearer, identify
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.edge.asgi.problems import (
    FORBIDDEN,
    UNAVAILABLE,
    Problem,
    not_admitted,
)
from meup_agent.gateway.edge.asgi.served import Served
from meup_agent.protocol.space.server import SpaceServer


def caller(served: Served, request: HTTPConnection) -> Identity:
    """Whose token the request has. A token in its address is not looked at: addresses are logged.

    Raises:
        Problem: It has none, or nobody's.
    """
    authorization = request.headers.get("authorization")
    try:
        if authorization is None:
            raise NotAdmitted(TOKEN_REFUSED, "send the header Authorization: Bearer <token>")
        address = request.client.host if request.client is not None else ""
        return identify(served.hub.tokens_at(address), bearer(authorization))
    except NotAdmitted as refused:
        served.hub.counters.not_admitted[refused.status] += 1
        raise not_admitted(refused) from None


def space_of(served: Served, request: HTTPConnection) -> tuple[Identity, SpaceServer]:
    """Who calls, and the space in the path, which must be that of the token.

    Raises:
        Problem: As :func:`caller`, or it is another space.
    """
    identity = caller(served, request)
    space: str = request.path_params["space"]
    if space not in served.hub.spaces:
        raise Problem(404, "no_such_space", "no space here has this name")
    if identity.space != space:
        raise Problem(FORBIDDEN, "forbidden", "the token is for another space")
    return identity, _entered(served, identity)


def participant_of(served: Served, request: HTTPConnection) -> tuple[Identity, SpaceServer]:
    """Who calls, which must be the participant in the path, and its space.

    Raises:
        Problem: As :func:`caller`, or it is somebody else.
    """
    identity = caller(served, request)
    if identity.participant != request.path_params["participant"]:
        raise Problem(FORBIDDEN, "forbidden", "the token is another participant's")
    return identity, _entered(served, identity)


def _entered(served: Served, identity: Identity) -> SpaceServer:
    """The space of somebody who was not removed from it.

    Raises:
        Problem: They were, or the gateway ends, whose journal may answer no more.
    """
    if not served.listening:
        raise Problem(UNAVAILABLE, "unavailable", "the gateway stops; come back soon")
    host = served.hub.spaces[identity.space]
    if host.is_kicked(identity.participant):
        raise Problem(FORBIDDEN, "kicked", "you were removed from the space")
    return host
