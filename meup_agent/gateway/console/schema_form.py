"""The arguments of a tool as fields of a form, as far as its schema says so simply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from meup_agent.gateway.console.rendering import editable, hides_something
from meup_agent.protocol.payloads import as_object

MAX_SCHEMA_FIELDS: Final = 40
"""Fields of a form; a tool with more is edited as JSON."""

MAX_FIELD_CHARS: Final = 20_000
"""Characters of a field; longer ones are edited as JSON."""

PREFIX: Final = "field-"


class SchemaField(NamedTuple):
    """One argument."""

    name: str
    number: int  # its place: in the form its name stands nowhere but as text
    type: str  # text, number, switch, choice or json
    text: str  # its value as the form shows it
    about: str
    required: bool
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its name in the form."""
        return f"{PREFIX}{self.number}"

    def is_given(self, form: Mapping[str, str]) -> bool:
        """True if the form has a value for it: an argument that is left out and empty has none."""
        return f"{self.key}-here" in form and bool(form.get(self.key, "") or self.type == "switch"
                                                   or self.text or self.required)  # fmt: skip

    def read(self, form: Mapping[str, str]) -> Any:
        """Its value in a form; ValueError if it is none."""
        said = form.get(self.key, "")
        if self.type == "switch":
            return said == "true"
        if self.type == "text":
            # A browser ends lines of its own accord with both.
            return said.replace("\r\n", "\n")
        return json.loads(said)


def fields_of(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[SchemaField]:
    """The fields of a schema, with the proposed values; none where JSON serves better."""
    properties = as_object(schema.get("properties"))
    if not 0 < len(properties) <= MAX_SCHEMA_FIELDS:
        return []
    required = set(map(str, _listed(schema.get("required"))))
    fields: list[SchemaField] = []
    for number, (name, each) in enumerate(properties.items()):
        described = as_object(each)
        given = name in arguments
        value = arguments.get(name)
        kind, choices = _kind(described, value, given)
        text = value if isinstance(value, str) and kind == "text" else _json(value)
        text = text if given else ""
        if len(text) > MAX_FIELD_CHARS:
            return []
        about = described.get("description")
        fields.append(
            SchemaField(
                name,
                number,
                kind,
                text,
                about if isinstance(about, str) else "",
                name in required,
                choices,
            )
        )
    return fields


def _kind(described: Mapping[str, Any], value: object, given: bool) -> tuple[str, tuple[str, ...]]:
    type_, choices = described.get("type"), _listed(described.get("enum"))
    if 0 < len(choices) <= MAX_SCHEMA_FIELDS:
        texts = tuple(map(_json, choices))
        if not given or _json(value) in texts:
            return "choice", texts
    if type_ == "boolean" and (not given or isinstance(value, bool)):
        return "switch", ()
    if type_ == "string" and (not given or (isinstance(value, str) and not hides_something(value))):
        return "text", ()
    return "json", ()


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _json(value: object) -> str:
    return editable(value)
