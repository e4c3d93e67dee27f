"""Every endpoint of the HTTP API, the bodies that they take and give, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, cast

import anyio
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import models_json_schema
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
from meup_agent.gateway.edge.http.context import (
    ABOUT,
    Json,
    Problem,
    not_admitted,
    on_failure,
    on_http_exception,
)
from meup_agent.gateway.edge.http.messages import (
    MAX_PAGE,
    PAGE,
    get_events,
    get_messages,
    post_message,
)
from meup_agent.gateway.edge.http.views import (
    MAX_QUERY_CHARS,
    MAX_SKIP,
    OVER,
    get_alive,
    get_health,
    get_history,
    get_me,
    get_metrics,
    get_participants,
    get_proposals,
    get_ready,
    list_participants,
    post_seen,
)
from meup_agent.gateway.logs import quote
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.dialects import ALSO_READ, DIALECTS
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.space.journal import SORT_KEYS
from meup_agent.protocol.space.state.rules import MAX_ID_CHARS, MAX_NAMED

_PRINTABLE: Final = r"[ \p{L}\p{M}\p{N}\p{P}\p{S}]"

Name = Annotated[
    str, WithJsonSchema({"type": "string", "pattern": f"^{_PRINTABLE}{{1,{MAX_ID_CHARS}}}$"})
]
"""An id, a name or a kind: printable characters, of the classes that Unicode counts as such."""

NameOrNone = Annotated[
    str | None,
    WithJsonSchema({"type": ["string", "null"], "pattern": f"^{_PRINTABLE}{{0,{MAX_ID_CHARS}}}$"}),
]
"""The same, where it may be missing."""

Ids = Annotated[list[NameOrNone], Field(max_length=MAX_NAMED)] | NameOrNone


class _ExtensibleBody(BaseModel):
    """An object that may have further fields."""

    model_config = ConfigDict(extra="allow")


class NewEnvelope(_ExtensibleBody):
    """An envelope to send, in any dialect. What is left out of its header is filled in."""

    kind: Name = Field(examples=["chat"])
    payload: dict[str, Any]
    id: NameOrNone = Field(
        None, description="Sent again within 10 minutes, the same is not delivered twice."
    )
    protocol: Literal[*DIALECTS, *ALSO_READ, ""] | None = Field(  # type: ignore[valid-type]  # from a table
        None, description="The dialect; else the participant's."
    )
    ts: str | None = None
    sender: NameOrNone = Field(None, alias="from", description="Must be the caller.")
    to: Ids = None
    correlation_id: Ids = None
    correlationId: Ids = None  # noqa: N815 - the name on the wire
    context: str | None = None


class Accepted(_ExtensibleBody):
    """An envelope was taken."""

    id: str
    status: Literal["accepted", "answered", "dropped", "created", "restored"] = Field(
        description="Accepted: kept, and sent to every member. Dropped: no member reads this kind."
        " Answered: a question, with the answer to the caller alone."
        " Created and restored: an invitation, with the token that was made for it."
    )
    seq: int | None = Field(description="Its number in the journal; none if it is not kept.")
    timestamp: str


class ErrorBody(_ExtensibleBody):
    """A request that was not done."""

    error: str = Field(description="In a word, for programs.")
    message: str = Field(description="In a sentence, for people.")


class EnvelopeBody(_ExtensibleBody):
    """An envelope of the space, in the caller's dialect, with its number."""

    kind: str
    seq: int


class GrantsBody(_ExtensibleBody):
    """Changes that a message made to the grants of its space."""

    rests_on: list[str] = Field(
        description="The grants to its granter that a grant rests on; none: the configuration."
    )
    ended: list[str] = Field(description="The grants that are in force no more by it.")


class Messages(_ExtensibleBody):
    """A page of what was said in a space."""

    messages: list[EnvelopeBody]
    times: list[str] = Field(
        description="When each of them was accepted, by the gateway's clock (RFC 3339)."
    )
    grants: dict[str, GrantsBody] = Field(
        description="What those of them that are about grants did, by their `seq`."
    )
    next: int | None = Field(description="The `since` of the next page; none: this is the last.")
    gap: bool = Field(description="Some of what was asked for may not be known any more.")
    damaged: list[tuple[int, int]] = Field(
        description="The numbers that damage of the journal's file took, each range by its first"
        " and its last. Those of other spaces are among them."
    )
    now: str = Field(description="The gateway's time (RFC 3339), by which proposals expire.")


class ParticipantBody(_ExtensibleBody):
    """A participant, and the envelopes that it may send."""

    id: str
    capabilities: list[dict[str, Any]]


class Me(_ExtensibleBody):
    """The participant of a token."""

    id: str
    space: str
    dialect: str
    capabilities: list[dict[str, Any]]


class Participants(_ExtensibleBody):
    """The members of a space, in the order in which they came."""

    participants: list[ParticipantBody]


class ProposalsBody(_ExtensibleBody):
    """The proposals of a space, oldest first."""

    proposals: list[dict[str, Any]]
    before: int | None = Field(
        description="The `before` of the page with the next older ones; null: there are none."
    )
    gap: bool = Field(
        description="Some of what was said was forgotten before it could be followed."
    )


class HistoryBody(_ExtensibleBody):
    """Decisions and expiries, the newest first unless `sort` says otherwise."""

    decisions: list[dict[str, Any]]
    next: dict[str, str] | None = Field(
        description="The parameters of the next page, beside those of this one; null: there is"
        " none. A page may have fewer decisions than asked for, or none, and yet have a next one."
    )
    unseen: int = Field(description="Expiries that the caller has not marked as seen; at most 100.")
    now: str = Field(description="The time up to which it looked (RFC 3339).")


class SeenBody(_ExtensibleBody):
    """The number of expiries that are not marked as seen."""

    unseen: int


class Health(_ExtensibleBody):
    """The state of the gateway."""

    status: Literal["ok", "unavailable"]


# --- rows ---

Endpoint = Callable[[GatewayRuntime, Request], Awaitable[Response]]
Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of an endpoint, in its ``path``, ``query`` or ``header``."""

    name: str
    about: str
    schema: Schema
    where: str = "query"


@dataclass(frozen=True)
class Operation:
    """An endpoint, with the body or media type of its answer; it needs a token unless it is open.

    Its ``problems`` are the statuses that say that something is wrong, besides those of every
    endpoint.
    """

    method: str
    path: str
    name: str
    about: str
    endpoint: Endpoint
    answer: type[BaseModel] | str
    problems: tuple[int, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: type[BaseModel] | None = None
    open: bool = False


# --- the document ---

_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "id": TEXT,
        "event": TEXT,
        "data": TEXT,
        "retry": {"type": ["integer", "string"]},
    },
}
"""One event of a stream, as its reader sees it."""

_OF_EVERY_CALLER: Final = (401, 403, 429)


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The OpenAPI document of the HTTP API."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "meup gateway",
            "version": "1",
            "description": "Say and read the envelopes of a space without a connection.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(operations),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    problems = {*operation.problems, *(() if operation.open else _OF_EVERY_CALLER)}
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.about,
        "parameters": [
            {
                "name": each.name,
                "in": each.where,
                "required": each.where == "path",
                "description": each.about,
                "schema": each.schema,
            }
            for each in operation.parameters
        ],
        "responses": {
            "200": _describe_answer(operation.answer),
            **{
                str(status): {
                    **_describe_answer(ErrorBody),
                    "description": HTTPStatus(status).phrase,
                }
                for status in sorted(problems)
            },
        },
        "security": [] if operation.open else [{"token": []}],
    }
    if operation.body is not None:
        found["requestBody"] = {"required": True, **_content(operation.body)}
    return found


def _describe_answer(answer: type[BaseModel] | str) -> dict[str, Any]:
    if isinstance(answer, type):
        return {"description": "OK", **_content(answer)}
    schema = _EVENT if answer == "text/event-stream" else TEXT
    return {"description": "OK", "content": {answer: {"schema": schema}}}


def _content(model: type[BaseModel]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"content": {"application/json": {"schema": schema}}}


def _schemas(operations: Sequence[Operation]) -> dict[str, Any]:
    models: dict[type[BaseModel], None] = {ErrorBody: None}
    for operation in operations:
        for each in (operation.answer, operation.body):
            if isinstance(each, type):
                models[each] = None
    _, schemas = models_json_schema(
        [(each, "validation") for each in models], ref_template="#/components/schemas/{model}"
    )
    return cast("dict[str, Any]", schemas["$defs"])


# --- endpoints ---

_SEQ: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 10**MAX_SEQ_DIGITS - 1}
_PARTICIPANT: Final = Parameter(
    "participant", "The participant, which must be the token's.", TEXT, "path"
)
_SPACE: Final = Parameter("space", "The space, which must be the token's.", TEXT, "path")
_DIALECT: Final = Parameter(
    "dialect",
    "The dialect of the envelopes; else the participant's.",
    {"type": "string", "enum": [*DIALECTS, *ALSO_READ]},
)
_SEARCHED: Final[Schema] = {"type": "string", "maxLength": MAX_QUERY_CHARS}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_LIMIT: Final = Parameter(
    "limit",
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
        Accepted,
        (400, 403, 404, 408, 409, 413, 415, 503),
        (_PARTICIPANT,),
        NewEnvelope,
    ),
    Operation(
        "GET",
        "/participants/{participant}/messages",
        "getMessages",
        "What was said in the token's space, oldest first, page by page.",
        get_messages,
        Messages,
        (400, 403, 503),
        (
            _PARTICIPANT,
            Parameter(
                "since",
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
        Me,
    ),
    Operation(
        "GET",
        "/spaces/{space}/participants",
        "getParticipants",
        "Who is in the space, and what they may send.",
        get_participants,
        Participants,
        (403, 404, 503),
        (_SPACE,),
    ),
    Operation(
        "GET",
        "/spaces/{space}/proposals",
        "getProposals",
        "The latest proposals of the space, oldest first: their state, who decided them and why.",
        get_proposals,
        ProposalsBody,
        (400, 403, 404, 503),
        (
            _SPACE,
            Parameter(
                "id",
                "Only those with this id, or the beginning of it.",
                TEXT,
            ),
            Parameter(
                "state",
                "Only those in this state.",
                {"type": "string", "enum": list(ProposalState)},
            ),
            Parameter("before", "Only those with a lower `seq`: the page before that.", _SEQ),
            Parameter("timeline", "With every step.", {"type": "boolean", "default": False}),
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
        HistoryBody,
        (400, 403, 404, 503),
        (
            _SPACE,
            Parameter(
                "search",
                "Only those with this text in the tool, the proposer, the decider, the rule, the"
                " reason or the id.",
                _SEARCHED,
            ),
            Parameter(
                "state",
                "Only those in this state; may be given several times.",
                {"type": "string", "enum": list(OVER)},
            ),
            Parameter("tool", "Only calls of this tool.", _SEARCHED),
            Parameter("proposer", "Only what this participant proposed.", _SEARCHED),
            Parameter("by", "Only what this participant decided.", _SEARCHED),
            Parameter(
                "sort",
                "The order; after a minus sign the other way round.",
                {
                    "type": "string",
                    "enum": [f"{sign}{each}" for each in SORT_KEYS for sign in ("", "-")],
                    "default": "-when",
                },
            ),
            Parameter("until", "Only what had ended by then.", _TIME),
            Parameter(
                "skip",
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
        SeenBody,
        (400, 403, 404, 503),
        (_SPACE, Parameter("until", "The time; else now.", _TIME)),
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
            Parameter("Last-Event-ID", "The last `seq` that is known already.", _SEQ, "header"),
            Parameter("since", "The same, where no header can be sent.", _SEQ),
            Parameter(
                "MEUP-Observe",
                "`1`: read as an observer of the space.",
                {"type": "string", "enum": ["1"]},
                "header",
            ),
            Parameter(
                "follow",
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
        Participants,
        (401, 403),
        (Parameter("space", "The space; else the only one.", TEXT),),
        open=True,
    ),
    Operation(
        "GET",
        "/health",
        "getHealth",
        "The process answers, as existing gateways say it.",
        get_health,
        Health,
        open=True,
    ),
    Operation("GET", "/healthz", "getAlive", "The process answers.", get_alive, Health, open=True),
    Operation(
        "GET",
        "/readyz",
        "getReady",
        "Members can join, and what they say is kept.",
        get_ready,
        Health,
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
        Route("/openapi.json", get_openapi),
        *_routes(find),
    ]
    return Starlette(
        routes=routes,
        exception_handlers={HTTPException: on_http_exception, Exception: on_failure},
        lifespan=lifespan,
    )


_document: Final = cache(partial(document, OPERATIONS))
"""The OpenAPI document, made when it is first asked for: most gateways are never asked."""


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
    # Starlette hands a HEAD to the route of the GET, and the server leaves the body out.
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
