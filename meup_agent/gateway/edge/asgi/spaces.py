"""Who is in a space, who calls, and what was proposed."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from meup_agent.gateway.edge.asgi.callers import caller, space_of
from meup_agent.gateway.edge.asgi.problems import Json
from meup_agent.gateway.edge.asgi.served import Served


async def get_me(served: Served, request: Request) -> Response:
    """Whom the token belongs to."""
    identity = caller(served, request)
    host = served.hub.spaces[identity.space]
    return Json(
        {
            "id": identity.participant,
            "space": identity.space,
            "dialect": served.hub.dialect(identity),
            "capabilities": list(host.capabilities(identity.participant).patterns),
        }
    )


async def get_participants(served: Served, request: Request) -> Response:
    """Who is in the space, as a welcome says it."""
    _, host = space_of(served, request)
    return Json({"participants": host.present})
