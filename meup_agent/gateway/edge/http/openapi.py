"""The OpenAPI document, and what it is made of: bodies of requests and answers, and endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.dialects import ALSO_READ, DIALECTS
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
    """What a message did to the grants of its space."""

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


# --- endpoints ---

Endpoint = Callable[[GatewayRuntime, Request], Awaitable[Response]]
Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of an endpoint, in its ``path``, ``query`` or ``header``."""

    name: str
    where: str
    about: str
    schema: Schema


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
            "200": _answer(operation.answer),
            **{
                str(status): {**_answer(ErrorBody), "description": HTTPStatus(status).phrase}
                for status in sorted(problems)
            },
        },
        "security": [] if operation.open else [{"token": []}],
    }
    if operation.body is not None:
        found["requestBody"] = {"required": True, **_content(operation.body)}
    return found


def _answer(answer: type[BaseModel] | str) -> dict[str, Any]:
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
