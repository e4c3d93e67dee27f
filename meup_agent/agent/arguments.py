"""A tool's arguments: one pydantic model, its JSON Schema, and the words for wrong ones."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, cast, get_args, get_origin

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from meup_agent.agent.schema import JsonObject, json_schema, pydantic_hint
from meup_agent.agent.source import Source, clip, first_line, format_path, type_name
from meup_agent.errors import InvalidArguments

MAX_PROBLEMS = 8
"""Problems that an error tells of; the sender of a thousand wrong arguments needs no full list."""
MAX_PROBLEM_CHARS = 200
"""Length of one problem: a validator may quote the value, and the value may be huge."""
MAX_NAME_CHARS = 80
"""Length of an argument's name in a message: unknown names come from the sender."""

_ANNOTATED: Any = Annotated  # type checkers take it only with types written out
_NOT_GIVEN = inspect.Parameter.empty
_FIELD_PREFIX = "arg_"
"""Fields are named apart from parameters: pydantic keeps ``schema``, ``copy``, ``model_…`` and
leading underscores for itself. The parameter's own name is the field's alias."""


class ToolArguments(msgspec.Struct, frozen=True):
    """The arguments of one tool: their model, the parameter of each field, and its schema."""

    model: type[BaseModel]
    parameters: Mapping[str, str]
    schema: JsonObject

    def bind(self, tool: str, arguments: object) -> dict[str, Any]:
        """Validated keyword arguments, defaults included.

        Values are converted as pydantic does by default: ``"5"`` is taken for an ``int``,
        ``"five"`` is not.
        """
        none: dict[str, Any] = {}
        given = none if arguments is None else arguments
        if not isinstance(given, Mapping):
            raise InvalidArguments(
                f"tool {tool!r} takes its arguments as an object, not as "
                f'{_json_type(given)}; send {{"name": value}}'
            )
        try:
            model = self.model.__pydantic_validator__.validate_python(
                dict(cast("Mapping[str, Any]", given))
            )
        except ValidationError as error:
            raise self._invalid(tool, error) from None
        return {name: getattr(model, field) for field, name in self.parameters.items()}

    def _invalid(self, tool: str, error: ValidationError) -> InvalidArguments:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        problems = [
            {
                "argument": clip(format_path(problem["loc"]), MAX_NAME_CHARS),
                "problem": clip(_expectation(problem["type"], problem["msg"]), MAX_PROBLEM_CHARS),
            }
            for problem in found[:MAX_PROBLEMS]
        ]
        said = "; ".join(f"{each['argument']!r} {each['problem']}" for each in problems)
        more = f"; and {len(found) - MAX_PROBLEMS} more" if len(found) > MAX_PROBLEMS else ""
        return InvalidArguments(
            f"tool {tool!r} does not take these arguments: {said}{more}", problems
        )


def build_arguments(parameters: Mapping[str, tuple[Any, Any]], source: Source) -> ToolArguments:
    """The model of a tool's arguments, of each parameter's annotation and default."""
    try:
        model, schema = _build(parameters)
    except Exception as error:  # types are the author's own: their hooks may raise anything
        name, why = _culprit(parameters, error)
        if name is None:
            raise source.error(f"its arguments have no JSON Schema: {why}") from error
        raise source.error(
            f"parameter {name!r} is {type_name(parameters[name][0])}, which cannot be an argument "
            f"of a tool: {why}; use a type that pydantic reads from JSON"
        ) from error
    if len(schema["properties"]) < len(parameters):
        raise source.error("two parameters have the same alias; give each argument its own name")
    return ToolArguments(
        model, MappingProxyType({_FIELD_PREFIX + name: name for name in parameters}), schema
    )


def _build(parameters: Mapping[str, tuple[Any, Any]]) -> tuple[type[BaseModel], JsonObject]:
    fields: dict[str, Any] = {
        _FIELD_PREFIX + name: _field(name, hint, default)
        for name, (hint, default) in parameters.items()
    }
    model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
    schema = json_schema(model, mode="validation")
    schema.setdefault("properties", {})
    return model, schema


def _field(name: str, hint: Any, default: Any) -> Any:
    hint = pydantic_hint(hint)
    value, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    # Ours comes first: of two aliases the later one counts, and that is the author's.
    annotated = _ANNOTATED[(value, Field(alias=name), *metadata)]
    return annotated if default is _NOT_GIVEN else (annotated, default)


def _culprit(parameters: Mapping[str, tuple[Any, Any]], error: Exception) -> tuple[str | None, str]:
    """The parameter that makes the model fail, and why."""
    for name, parameter in parameters.items():
        try:
            _build({name: parameter})
        except Exception as own_error:  # as above
            return name, first_line(own_error)
    return None, first_line(error)


def _expectation(kind: str, message: str) -> str:
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return "is not an argument of this tool"
    message = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message.removeprefix("Input ") or "is not valid"


def _json_type(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    return "a string" if isinstance(value, str) else "an array"
