"""Whether the gateway is alive, and whether it can work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from meup_agent.gateway.edge.asgi.metrics import registry
from meup_agent.gateway.edge.asgi.problems import UNAVAILABLE, Json, Problem
from meup_agent.gateway.edge.asgi.served import Served, told


async def get_alive(served: Served, request: Request) -> Response:
    """The process answers."""
    return Json({"status": "ok"})


async def get_ready(served: Served, request: Request) -> Response:
    """Members can join, and the journal keeps what they say."""
    if not served.listening:
        raise Problem(UNAVAILABLE, "unavailable", "the gateway does not listen")
    journal = served.hub.journal

    def ask(tell: Callable[[bool], None]) -> None:
        journal.after(partial(tell, True))

    await told(ask)
    return Json({"status": "ok"})


async def get_metrics(served: Served, request: Request) -> Response:
    """Everything that is counted, in Prometheus' form."""
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry(served)), media_type=media_type)
