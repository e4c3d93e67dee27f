"""The HTTP API: every endpoint, in one table, of which routes and OpenAPI document are made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cache, partial
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from meup_agent.gateway.auth import (
    FORBIDDEN,
    TOO_MANY,
    UNAUTHORIZED,
    UNAVAILABLE,
    NotAdmitted,
)
from meup_agent.gateway.edge.handshake import MAX_SEQ_DIGITS
from meup_agent.gateway.edge.http import openapi
from meup_agent.gateway.edge.http.context import (
    ABOUT,
    Json,
    Problem,
    not_admitted,
    on_failure,
    on_http_exception,
)
from meup_agent.gateway.edge.http.history import (
    MAX_QUERY_CHARS,
    MAX_SKIP,
    OVER,
    get_history,
    post_seen,
)
from meup_agent.gateway.edge.http.messages import (
    MAX_PAGE,
    PAGE,
    get_events,
    get_messages,
    post_message,
)
from meup_agent.gateway.edge.http.openapi import (
    TEXT,
    Endpoint,
    Operation,
    Parameter,
    Schema,
    document,
)
from meup_agent.gateway.edge.http.views import (
    get_alive,
    get_health,
    get_me,
    get_metrics,
    get_participants,
    get_proposals,
    get_ready,
    list_participants,
)
from meup_agent.gateway.logs import quote
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.dialects import ALSO_READ, DIALECTS
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.space.decisions import SORT_KEYS

_SEQ: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 10**MAX_SEQ_DIGITS - 1}
_PARTICIPANT: Final = Parameter(
    "participant", "path", "The participant, which must be the token's.", TEXT
)
_SPACE: Final = Parameter("space", "path", "The space, which must be the token's.", TEXT)
_DIALECT: Final = Parameter(
    "dialect",
    "query",
    "The dialect of the envelopes; else the participant's.",
    {"type": "string", "enum": [*DIALECTS, *ALSO_READ]},
)
_SEARCHED: Final[Schema] = {"type": "string", "maxLength": MAX_QUERY_CHARS}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_LIMIT: Final = Parameter(
    "limit",
    "query",
    f"How many at most: up to {MAX_PAGE}; without it, {PAGE}.",
    {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": PAGE},
)

OPERATIONS: Final = (
    Operation(
        "POST",
        "/participants/{participant}/messages",
        "postMessage",
        "Say something, as a message by WebSocket would: the same rules hold. The answer comes"
        " when it is kept. What is left out of the header is filled in.",
        post_message,
        openapi.Accepted,
        (400, 403, 404, 408, 409, 413, 415, 503),
        (_PARTICIPANT,),
        openapi.NewEnvelope,
    ),
    Operation(
        "GET",
        "/participants/{participant}/messages",
        "getMessages",
        "What was said in the token's space, oldest first, page by page.",
        get_messages,
        openapi.Messages,
        (400, 403, 503),
        (
            _PARTICIPANT,
            Parameter(
                "since",
                "query",
                "The `seq` of the last envelope that is known already, or a time. Without it:"
                " everything that is kept.",
                {"anyOf": [_SEQ, {"type": "string", "format": "date-time"}]},
            ),
            _LIMIT,
            _DIALECT,
        ),
    ),
    Operation(
        "GET",
        "/me",
        "getMe",
        "Whom the token belongs to, and what they may send.",
        get_me,
        openapi.Me,
    ),
    Operation(
        "GET",
        "/spaces/{space}/participants",
        "getParticipants",
        "Who is in the space, and what they may send.",
        get_participants,
        openapi.Participants,
        (403, 404, 503),
        (_SPACE,),
    ),
    Operation(
        "GET",
        "/spaces/{space}/proposals",
        "getProposals",
        "The latest proposals of the space, oldest first: their state, who decided them and why.",
        get_proposals,
        openapi.ProposalsBody,
        (400, 403, 404, 503),
        (
            _SPACE,
            Parameter(
                "id",
                "query",
                "Only those with this id, or the beginning of it.",
                TEXT,
            ),
            Parameter(
                "state",
                "query",
                "Only those in this state.",
                {"type": "string", "enum": list(ProposalState)},
            ),
            Parameter(
                "before", "query", "Only those with a lower `seq`: the page before that.", _SEQ
            ),
            Parameter(
                "timeline", "query", "With every step.", {"type": "boolean", "default": False}
            ),
            _LIMIT,
        ),
    ),
    Operation(
        "GET",
        "/spaces/{space}/history",
        "getHistory",
        "What was decided and what expired, from the journal's table of decisions: who decided it,"
        " by which rule, when, and how long it waited.",
        get_history,
        openapi.HistoryBody,
        (400, 403, 404, 503),
        (
            _SPACE,
            Parameter(
                "search",
                "query",
                "Only those with this text in the tool, the proposer, the decider, the rule, the"
                " reason or the id.",
                _SEARCHED,
            ),
            Parameter(
                "state",
                "query",
                "Only those in this state; may be given several times.",
                {"type": "string", "enum": list(OVER)},
            ),
            Parameter("tool", "query", "Only calls of this tool.", _SEARCHED),
            Parameter("proposer", "query", "Only what this participant proposed.", _SEARCHED),
            Parameter("by", "query", "Only what this participant decided.", _SEARCHED),
            Parameter(
                "sort",
                "query",
                "The order; after a minus sign the other way round.",
                {
                    "type": "string",
                    "enum": [f"{sign}{each}" for each in SORT_KEYS for sign in ("", "-")],
                    "default": "-when",
                },
            ),
            Parameter("until", "query", "Only what had ended by then.", _TIME),
            Parameter(
                "skip",
                "query",
                "Leave out so many, as `next` says.",
                {"type": "integer", "minimum": 0, "maximum": MAX_SKIP, "default": 0},
            ),
            _LIMIT,
        ),
    ),
    Operation(
        "POST",
        "/spaces/{space}/history/seen",
        "markSeen",
        "Mark what had expired at a time as seen by the caller.",
        post_seen,
        openapi.SeenBody,
        (400, 403, 404, 503),
        (_SPACE, Parameter("until", "query", "The time; else now.", _TIME)),
    ),
    Operation(
        "GET",
        "/spaces/{space}/events",
        "getEvents",
        "What is said in the space, as it is said: server-sent events, whose id is the envelope's"
        " `seq`. An event of the type `gap` says that some of what was asked for is not known any"
        " more. With the header `MEUP-Observe: 1` the first event is a welcome, as an observer gets"
        " it by WebSocket, and the last one, of the type `close`, says `code` and `reason`.",
        get_events,
        "text/event-stream",
        (400, 403, 404, 503),
        (
            _SPACE,
            Parameter("Last-Event-ID", "header", "The last `seq` that is known already.", _SEQ),
            Parameter("since", "query", "The same, where no header can be sent.", _SEQ),
            Parameter(
                "MEUP-Observe",
                "header",
                "`1`: read as an observer of the space.",
                {"type": "string", "enum": ["1"]},
            ),
            Parameter(
                "follow",
                "query",
                "`false`: end when everything up to now has been read.",
                {"type": "boolean", "default": True},
            ),
            _DIALECT,
        ),
    ),
    Operation(
        "GET",
        "/participants",
        "listParticipants",
        "Who is in the space of the token, as existing gateways say it. A caller on this machine"
        " needs no token where no other machine reaches the gateway.",
        list_participants,
        openapi.Participants,
        (401, 403),
        (Parameter("space", "query", "The space; else the only one.", TEXT),),
        open=True,
    ),
    Operation(
        "GET",
        "/health",
        "getHealth",
        "The process answers, as existing gateways say it.",
        get_health,
        openapi.Health,
        open=True,
    ),
    Operation(
        "GET", "/healthz", "getAlive", "The process answers.", get_alive, openapi.Health, open=True
    ),
    Operation(
        "GET",
        "/readyz",
        "getReady",
        "Members can join, and what they say is kept.",
        get_ready,
        openapi.Health,
        (503,),
        open=True,
    ),
    Operation(
        "GET",
        "/metrics",
        "getMetrics",
        "What the gateway has counted, for Prometheus.",
        get_metrics,
        "text/plain",
        open=True,
    ),
)


def http_app(
    find: Callable[[], GatewayRuntime],
    *more: BaseRoute,
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
) -> Starlette:
    """The HTTP API of a gateway, and further routes.

    The gateway is found for each request anew: a mounted one begins later than its routes.
    """

    async def get_openapi(request: Request) -> Response:
        # Relative to where it is mounted.
        servers = [{"url": str(request.scope.get("root_path", "")) or "/"}]
        return Json({**_document(), "servers": servers})

    routes: list[BaseRoute] = [
        *more,  # first: a hook waits for each comparison, and comes a hundred times a second
        Route("/openapi.json", get_openapi, methods=["GET"]),
        *_routes(find),
    ]
    return Starlette(
        routes=routes,
        exception_handlers={HTTPException: on_http_exception, Exception: on_failure},
        lifespan=lifespan,
    )


@cache
def _document() -> dict[str, Any]:
    """The OpenAPI document, made when it is first asked for: most gateways are never asked."""
    return document(OPERATIONS)


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
            runtime.pending_requests[scope] = lambda: request.scope.get(ABOUT)
            try:
                return await endpoints[method](runtime, request)
            finally:
                del runtime.pending_requests[scope]
        raise Problem(
            UNAVAILABLE,
            "unavailable",
            "the space stops here, and whether this was kept is not known; ask again later",
        )
    except (Problem, NotAdmitted) as refused:
        problem = not_admitted(refused) if isinstance(refused, NotAdmitted) else refused
    if problem.status in (UNAUTHORIZED, FORBIDDEN, TOO_MANY):
        # The path as the API has it: what a stranger wrote there may be a token.
        said = "HTTP: %s %s was refused with %d: %s"
        runtime.refusals.info(said, method, path, problem.status, quote(str(problem)))
    return Json(problem.body, problem.status, problem.headers)
