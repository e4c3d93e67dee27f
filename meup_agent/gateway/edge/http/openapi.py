"""The OpenAPI document, made of the table of endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from meup_agent.gateway.edge.http import bodies
from meup_agent.gateway.edge.http.operations import OPERATIONS, Operation

_REF: Final = "#/components/schemas/{model}"
_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {"type": "string"},
        "retry": {"type": ["integer", "string"]},
    },
}
"""One event of a stream, as its reader sees it."""

_OF_EVERY_CALLER: Final = (401, 403, 429)


def document() -> dict[str, Any]:
    """The OpenAPI document of the HTTP API."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
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
            "schemas": _schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    statuses = set(operation.problems)
    if not operation.open:
        statuses.update(_OF_EVERY_CALLER)
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
                str(status): {**_answer(bodies.ErrorBody), "description": HTTPStatus(status).phrase}
                for status in sorted(statuses)
            },
        },
        "security": [] if operation.open else [{"token": []}],
    }
    if operation.body is not None:
        schema = {"$ref": _REF.format(model=operation.body.__name__)}
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return found


def _answer(answer: type[BaseModel] | str) -> dict[str, Any]:
    if isinstance(answer, str):
        schema = _EVENT if answer == "text/event-stream" else {"type": "string"}
        return {"description": "OK", "content": {answer: {"schema": schema}}}
    named = {"$ref": _REF.format(model=answer.__name__)}
    return {"description": "OK", "content": {"application/json": {"schema": named}}}


def _schemas() -> dict[str, Any]:
    _, schemas = models_json_schema(
        [(model, "validation") for model in _models()], ref_template=_REF
    )
    return cast("dict[str, Any]", schemas["$defs"])


def _models() -> Iterable[type[BaseModel]]:
    found: dict[type[BaseModel], None] = {bodies.ErrorBody: None}
    for operation in OPERATIONS:
        for each in (operation.answer, operation.body):
            if isinstance(each, type):
                found[each] = None
    return found
