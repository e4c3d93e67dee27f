"""The paths of existing gateways, for what watches over a space that exists."""

from __future__ import annotations

import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from meup_agent.gateway.admission import FORBIDDEN
from meup_agent.gateway.config import REFERENCE_DIALECT
from meup_agent.gateway.edge.http.context import Json, Problem, authenticate
from meup_agent.gateway.network import is_loopback
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.transport.request_headers import host_name, is_forwarded

FEATURES: Final = ("capabilities", "context", "validation", "http-io")
"""The features that existing gateways name."""


async def get_health(runtime: GatewayRuntime, request: Request) -> Response:
    """The gateway runs, with numbers that tell nothing of anyone."""
    return Json(
        {
            "status": "ok",
            "spaces": len(runtime.spaces),
            "clients": sum(len(space.owner) for space in runtime.spaces.values()),
            "uptime": round(time.monotonic() - runtime.began, 3),
            "features": list(FEATURES),
        }
    )


async def list_participants(runtime: GatewayRuntime, request: Request) -> Response:
    """The members of the space that is asked for, else of the caller's or the only one."""
    wanted = request.query_params.get("space")
    if "authorization" in request.headers or not _is_local(runtime, request):
        identity = authenticate(runtime, request)
        if wanted not in (None, identity.space):
            raise Problem(FORBIDDEN, "forbidden", "the token is for another space")
        wanted = identity.space
    elif wanted is None and len(runtime.spaces) == 1:
        wanted = next(iter(runtime.spaces))
    space = runtime.spaces.get(wanted or "")
    present = [] if space is None else space.owner.described(REFERENCE_DIALECT)
    return Json({"participants": [{**each, "connected": True} for each in present]})


def _is_local(runtime: GatewayRuntime, request: Request) -> bool:
    """True if the caller is on this machine, and not another's browser or proxy on it.

    A page in a browser can make its own name lead here, and names it in ``Host``.
    """
    asked = host_name(request.headers.get("host", ""))
    forwarded = is_forwarded(request.headers.keys())
    return runtime.local_http and is_loopback(asked) and not forwarded
