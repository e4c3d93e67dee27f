"""JSON Schema as tools announce it."""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

JsonObject = dict[str, Any]

_DEFINITION = "#/$defs/"


class _ToolSchema(GenerateJsonSchema):
    """Without titles that only repeat a field's name: a model reads every word of a tool list."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        # A default that JSON cannot show still works: the function gets it.
        if kind != "non-serializable-default":
            raise ValueError(detail)


def json_schema(
    of: type[BaseModel] | TypeAdapter[Any], *, mode: Literal["validation", "serialization"]
) -> JsonObject:
    """The schema of a model or type, with a root that says what it is instead of a reference.

    Raises:
        PydanticUserError: The type has no JSON Schema.
        ValueError: Its schema would not tell the whole truth.
    """
    if isinstance(of, TypeAdapter):
        schema = of.json_schema(mode=mode, schema_generator=_ToolSchema)
    else:
        schema = of.model_json_schema(mode=mode, schema_generator=_ToolSchema)
        schema.pop("title", None)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(_DEFINITION):
        # A type that contains itself: its references stay, MCP wants "type" at the root.
        definition = schema["$defs"][reference.removeprefix(_DEFINITION)]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**definition, **rest}
    return schema


def wrapped(schema: JsonObject) -> JsonObject:
    """An object schema with the given one as its only member, ``result``."""
    inner = dict(schema)
    outer: JsonObject = {
        "type": "object",
        "properties": {"result": inner},
        "required": ["result"],
    }
    definitions = cast("JsonObject | None", inner.pop("$defs", None))
    if definitions:
        outer["$defs"] = definitions
    return outer
