"""Edits of proposed arguments: read from a form, checked against the tool's schema, compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from anyio import to_thread

from meup_agent.client.schema_check import ArgumentChecker, SchemaViolation
from meup_agent.errors import printable
from meup_agent.gateway.console.schema_form import SchemaField, fields_of, read_fields
from meup_agent.gateway.console.template_environment import editable
from meup_agent.protocol.payloads import Call, Change
from meup_agent.protocol.payloads import changes as changes_between

if TYPE_CHECKING:
    from meup_agent.approval import InboxItem

WHOLE: Final = "arguments"
"""The field of all arguments as JSON."""

MAX_EDITED_BYTES: Final = 128 * 1024
"""Bytes of a call, or characters of arguments, up to which they are edited on a page: laying them
out and comparing them takes some microseconds each, while others wait."""

FIELDS: Final = "fields"
"""Key of the problems of a form with fields that are none field's own."""


@dataclass
class Edit:
    """An edit as it was typed: what it would send, or what keeps it from being sent."""

    text: str
    fields: list[SchemaField]
    arguments: dict[str, Any] | None = None
    changes: tuple[Change, ...] = ()
    problems: dict[str, str] = field(default_factory=dict[str, str])  # by the key of a field

    @property
    def is_ready(self) -> bool:
        """True if it can be sent once its changes were seen."""
        return self.arguments is not None and not self.problems

    @property
    def problem(self) -> str:
        """Its problems in one sentence."""
        if not self.problems:
            return ""
        return "This edit cannot be sent yet: " + "; ".join(dict.fromkeys(self.problems.values()))


def can_be_edited(item: InboxItem) -> bool:
    """True if a call is small enough to be edited on a page."""
    return len(item.envelope.raw_payload) <= MAX_EDITED_BYTES


def schema_of(item: InboxItem) -> Mapping[str, Any]:
    """The schema of a proposed call's tool; empty where none is known."""
    facts = item.tool_facts
    return {} if facts is None else facts.schema


async def read_edit(item: InboxItem, form: Mapping[str, str]) -> Edit:
    """The edit that a form has, of the tool's fields or as JSON."""
    if not can_be_edited(item) or sum(map(len, form.values())) > 2 * MAX_EDITED_BYTES:
        return Edit(form.get(WHOLE, ""), [], problems={WHOLE: _TOO_LARGE})
    fields = fields_of(schema_of(item), item.arguments)
    if WHOLE in form:
        edit = Edit(form[WHOLE], fields)
        try:
            found = json.loads(form[WHOLE])
        except (ValueError, RecursionError) as error:
            edit.problems[WHOLE] = f"it is no JSON yet: {error}"
            return edit
        if not isinstance(found, dict):
            edit.problems[WHOLE] = "it must be a JSON object, in braces"
            return edit
        edit.arguments = cast("dict[str, Any]", found)
        edit.fields = fields_of(schema_of(item), edit.arguments)
    else:
        typed = read_fields(fields, form, item.arguments)
        edit = Edit(editable(item.arguments), typed.fields, None, (), typed.problems)
        if edit.problems:
            return edit
        edit.arguments = typed.arguments
    edit.text = editable(edit.arguments)
    call = Call(item.method, {**item.call.params, "arguments": edit.arguments})
    edit.changes = tuple(changes_between(item.call, call, item.target))
    for each in await check_arguments(item, edit.arguments):
        place = WHOLE if WHOLE in form else _place(each, edit.fields)
        said = str(each) if place in (WHOLE, FIELDS) else _below(each)
        before = edit.problems.get(place)
        edit.problems[place] = said if before is None else f"{before}; {said}"
    return edit


async def check_arguments(item: InboxItem, arguments: dict[str, Any]) -> list[SchemaViolation]:
    """Problems of arguments by the tool's schema; none where no schema is known."""
    schema = schema_of(item)
    if not schema:
        return []

    def check() -> list[SchemaViolation]:
        checker = ArgumentChecker(schema, f"{item.tool} of {item.target}", exact=True)
        return checker.problems(arguments) or []

    # In a thread: a stranger's schema may take it a quarter of a second.
    return await to_thread.run_sync(check)


_TOO_LARGE: Final = (
    f"a page takes {MAX_EDITED_BYTES:,} characters of arguments; use meup fulfill or meup inbox"
)


def _place(violation: SchemaViolation, fields: list[SchemaField]) -> str:
    """The key of the field that a problem belongs to."""
    argument = violation.argument
    for each in sorted(fields, key=lambda each: -len(each.name)):
        name = printable(each.name)
        if argument == name or argument.startswith((f"{name}.", f"{name}[")):
            return each.key
    return FIELDS


def _below(violation: SchemaViolation) -> str:
    """A problem beside its field: the name is said there already, unless it lies deeper."""
    deeper = any(each in violation.argument for each in ".[")
    return str(violation) if deeper else f"it {violation.problem}"
