"""The arguments of a tool as fields of a form, as far as its schema says so simply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from meup_agent.gateway.console.template_environment import editable, hides_something
from meup_agent.protocol.payloads import as_list, as_object

MAX_SCHEMA_FIELDS: Final = 40
"""Fields of a form; a tool with more is edited as JSON."""

MAX_FIELD_CHARS: Final = 20_000
"""Characters of a field; longer ones are edited as JSON."""

PREFIX: Final = "field-"

TYPES: Final = frozenset({"text", "switch", "choice", "json"})
"""Types of fields; beside a field its form says its type, which may depend on the value."""


class SchemaField(NamedTuple):
    """One argument."""

    name: str
    number: int  # its place: in the form its name stands nowhere but as text
    type: str  # text, switch, choice or json
    text: str  # its value as the form shows it
    title: str
    about: str
    required: bool
    given: bool  # True: the call has it, be it empty
    choices: tuple[str, ...] = ()
    default: str = ""  # its schema's, as JSON; empty: none is said

    @property
    def key(self) -> str:
        """Its name in the form."""
        return f"{PREFIX}{self.number}"


class TypedFields(NamedTuple):
    """Fields as they were typed, and what they come to."""

    fields: list[SchemaField]
    arguments: dict[str, Any]
    problems: dict[str, str]  # by the key of a field


def read_fields(
    fields: list[SchemaField], form: Mapping[str, str], arguments: Mapping[str, Any]
) -> TypedFields:
    """Read a form: an argument whose field is empty is left out, unless it was an empty text.

    Args:
        fields: The fields that the form was made of, perhaps with other values.
        form: Its values; beside each stands the type by which it is read.
        arguments: The proposed arguments; those without a field stay.
    """
    read, problems = dict(arguments), dict[str, str]()
    typed: list[SchemaField] = []
    for each in fields:
        kind = form.get(f"{each.key}-here")
        if kind not in TYPES:
            typed.append(each)
            continue
        # A browser ends lines of its own accord with both.
        said = form.get(each.key, "").replace("\r\n", "\n")
        typed.append(each._replace(text=said, type=kind))
        if not said and not (kind == "text" and each.given):
            read.pop(each.name, None)
            continue
        try:
            read[each.name] = said if kind == "text" else json.loads(said)
        except (ValueError, RecursionError) as error:
            problems[each.key] = f"it is no JSON yet: {error}"
    return TypedFields(typed, read, problems)


def fields_of(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[SchemaField]:
    """The fields of a schema, with the proposed values; none where JSON serves better."""
    properties = as_object(schema.get("properties"))
    if not 0 < len(properties) <= MAX_SCHEMA_FIELDS:
        return []
    required = set(map(str, as_list(schema.get("required"))))
    fields: list[SchemaField] = []
    for number, (name, each) in enumerate(properties.items()):
        described = as_object(each)
        given = name in arguments
        value = arguments.get(name)
        kind, choices = _kind(described, value, given)
        text = value if isinstance(value, str) and kind == "text" else editable(value)
        text = text if given else ""
        if len(text) > MAX_FIELD_CHARS:
            return []
        fields.append(
            SchemaField(
                name,
                number,
                kind,
                text,
                _said(described.get("title")),
                _said(described.get("description")),
                name in required,
                given,
                choices,
                editable(described["default"]) if "default" in described else "",
            )
        )
    return fields


def _kind(described: Mapping[str, Any], value: object, given: bool) -> tuple[str, tuple[str, ...]]:
    type_, choices = described.get("type"), as_list(described.get("enum"))
    if 0 < len(choices) <= MAX_SCHEMA_FIELDS:
        texts = tuple(map(editable, choices))
        if not given or editable(value) in texts:
            return "choice", texts
    if type_ == "boolean" and (not given or isinstance(value, bool)):
        return "switch", ()
    if type_ == "string" and (not given or (isinstance(value, str) and not hides_something(value))):
        return "text", ()
    return "json", ()


def _said(value: object) -> str:
    return value if isinstance(value, str) else ""
