"""JSON Schema as tools announce it, from the types that pydantic reads."""

from __future__ import annotations

import sys
import types
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    cast,
    get_args,
    get_origin,
)

import typing_extensions
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

JsonObject = dict[str, Any]

_DEFINITION = "#/$defs/"


class _ToolSchema(GenerateJsonSchema):
    """Leaves out titles that only repeat a field's name: a model reads every word of a list."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        # A default that JSON cannot show still works: the function gets it.
        if kind != "non-serializable-default":
            raise ValueError(detail)


def json_schema(
    of: type[BaseModel] | TypeAdapter[Any], *, mode: Literal["validation", "serialization"]
) -> JsonObject:
    """The schema of a model or type, with a root that says what it is instead of a reference."""
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


def wrap_schema(schema: JsonObject) -> JsonObject:
    """An object schema with the given one as its only member, ``result``."""
    inner = dict(schema)
    outer: JsonObject = {"type": "object", "properties": {"result": inner}, "required": ["result"]}
    definitions = cast("JsonObject | None", inner.pop("$defs", None))
    if definitions:
        outer["$defs"] = definitions
    return outer


_NEEDED = sys.version_info < (3, 12)


def pydantic_hint(hint: Any) -> Any:
    """The annotation with each ``typing.TypedDict`` in it replaced by one that pydantic takes.

    Those inside the fields of models and dataclasses are not reached; pydantic says so.
    """
    return _pydantic_hint(hint, ()) if _NEEDED else hint


def _pydantic_hint(hint: Any, inside: tuple[Any, ...]) -> Any:
    if typing_extensions.is_typeddict(hint) and type(hint).__module__ == "typing":
        return _rebuilt(hint, inside)
    arguments = get_args(hint)
    replaced = tuple(_pydantic_hint(argument, inside) for argument in arguments)
    if all(new is old for new, old in zip(replaced, arguments, strict=True)):
        return hint
    origin = get_origin(hint)
    if origin is Annotated:
        return Annotated[(replaced[0], *hint.__metadata__)]
    if origin is types.UnionType:
        return Union[replaced]  # noqa: UP007 - there is no other spelling for a tuple of types
    return origin[replaced] if isinstance(hint, types.GenericAlias) else hint.copy_with(replaced)


def _rebuilt(typed_dict: Any, inside: tuple[Any, ...]) -> Any:
    name = typed_dict.__name__
    if typed_dict in inside:
        raise TypeError(f"{name} contains itself; use typing_extensions.TypedDict for it")
    hints = typing_extensions.get_type_hints(typed_dict, include_extras=True)
    fields: dict[str, Any] = {}
    for key, hint in hints.items():
        origin: Any = get_origin(hint)
        if origin is Required or origin is NotRequired:
            (hint,) = get_args(hint)
        presence: Any = Required if key in typed_dict.__required_keys__ else NotRequired
        fields[key] = presence[_pydantic_hint(hint, (*inside, typed_dict))]
    functional: Any = typing_extensions.TypedDict
    rebuilt = functional(name, fields)
    rebuilt.__doc__ = typed_dict.__doc__
    rebuilt.__module__ = typed_dict.__module__
    return rebuilt
