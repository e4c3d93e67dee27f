"""The HTTP API as an ASGI application."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from meup_agent.gateway.edge.http.openapi import Endpoint, document
from meup_agent.gateway.edge.http.operations import OPERATIONS
from meup_agent.gateway.edge.http.problems import (
    UNAVAILABLE,
    Json,
    Problem,
    log_refusal,
    on_failure,
    on_http_exception,
    on_problem,
)
from meup_agent.gateway.runtime import GatewayRuntime


def http_app(
    find: Callable[[], GatewayRuntime],
    *more: BaseRoute,
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
) -> Starlette:
    """The HTTP API of a gateway, and further routes.

    The gateway is found for each request anew: a mounted one begins later than its routes.
    """
    openapi = document(OPERATIONS)

    async def get_openapi(request: Request) -> Response:
        # Relative to where it is mounted.
        servers = [{"url": str(request.scope.get("root_path", "")) or "/"}]
        return Json({**openapi, "servers": servers})

    routes: list[BaseRoute] = [
        Route("/openapi.json", get_openapi, methods=["GET"]),
        *_routes(find),
        *more,
    ]
    return Starlette(
        routes=routes,
        exception_handlers={
            Problem: on_problem,
            HTTPException: on_http_exception,
            Exception: on_failure,
        },
        lifespan=lifespan,
    )


def _routes(find: Callable[[], GatewayRuntime]) -> list[BaseRoute]:
    """One route for each path: two would answer 404 and not 405 to what the first does not take."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation.endpoint
    return [
        Route(path, partial(_answer, find, path, endpoints), methods=list(endpoints))
        for path, endpoints in by_path.items()
    ]


async def _answer(
    find: Callable[[], GatewayRuntime], path: str, endpoints: dict[str, Endpoint], request: Request
) -> Response:
    method = "GET" if request.method == "HEAD" else request.method
    runtime = find()
    try:
        with anyio.CancelScope() as scope:
            runtime.pending_requests.add(scope)
            try:
                return await endpoints[method](runtime, request)
            finally:
                runtime.pending_requests.discard(scope)
        raise Problem(
            UNAVAILABLE,
            "unavailable",
            "the gateway ends, and whether this was kept is not known; ask again later",
        )
    except Problem as problem:
        log_refusal(runtime.refusals, method, path, problem)
        raise
