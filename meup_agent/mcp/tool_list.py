"""The tools that a server offers: what is unusable is left out, and what changed is named."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from meup_agent.client.schema_check import MAX_SCHEMA_OBJECTS, check_schema, objects_of
from meup_agent.client.tool_form import approved_parts, canonical
from meup_agent.errors import NotExpressible, printable
from meup_agent.protocol import payloads
from meup_agent.protocol.envelope import encode_json

if TYPE_CHECKING:
    from meup_agent.protocol.payloads import JsonObject

log = logging.getLogger("meup_agent.mcp")

MAX_TOOLS: Final = 1_000
"""Tools of one server; a model reads them all, and the largest servers have a tenth of it."""

MAX_PAGES: Final = 100
"""Pages of a list that are read; a server that gives more does not end."""

MAX_LIST_BYTES: Final = 3 * 1024 * 1024
"""Of a list of tools as JSON: it has to fit one message of the space."""

MAX_TOOL_NAME_CHARS: Final = 128
"""Characters of a tool's name: MCP allows no more."""

MAX_SCHEMA_DEPTH: Final = 64
"""Levels of a schema; checking it recurses."""

MAX_TOOL_DEPTH: Final = 80
"""Levels of a tool: a message of the space has a hundred."""

MAX_CHECKED_OBJECTS: Final = 4_096
"""Objects in the schemas of one list that are checked, of which each takes a millisecond; what is
beyond is passed on as it is."""

MAX_NAMED: Final = 20
"""Tools that an announcement names."""


@dataclass(frozen=True, slots=True)
class ToolChanges:
    """The difference between two lists of tools.

    Attributes:
        added: Names of the new tools.
        removed: Names of those that are gone.
        changed: Name of a tool → the parts that are not what they were.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __bool__(self) -> bool:
        """True if there is a difference."""
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        """The difference in words, safe to print."""
        parts = [
            _named(
                "changed", (f"{_shown(name)} ({', '.join(what)})" for name, what in self.changed)
            ),
            _named("added", map(_shown, self.added)),
            _named("removed", map(_shown, self.removed)),
        ]
        return "; ".join(part for part in parts if part)


def compare_tools(before: Iterable[JsonObject], after: Iterable[JsonObject]) -> ToolChanges:
    """The difference between two lists of tools."""
    old, new = ({str(tool["name"]): tool for tool in tools} for tools in (before, after))
    changed = [
        (name, what)
        for name in old
        if name in new and (what := _find_differences(old[name], new[name]))
    ]
    return ToolChanges(
        tuple(name for name in new if name not in old),
        tuple(name for name in old if name not in new),
        tuple(changed),
    )


def digest_of_tools(tools: Iterable[JsonObject]) -> str:
    """SHA-256, hex, of the parts of several tools that are approved with them."""
    parts = {str(tool["name"]): approved_parts(tool) for tool in tools}
    return hashlib.sha256(canonical(parts)).hexdigest()


def remove_unusable(result: JsonObject, version: str, warn: Callable[[str], None]) -> None:
    """Take the tools that no participant could use out of the result of a ``tools/list``.

    It takes seconds for a list that is made for that: call it in a thread.

    Args:
        result: The result; its list is replaced.
        version: The revision that the server speaks.
        warn: Told of each that is taken out.
    """
    if not isinstance(result.get("tools"), list):
        return
    tools = cast("list[Any]", result["tools"])
    kept: list[Any] = []
    budget = _Budget()
    for tool in tools[:MAX_TOOLS]:
        problem = _problem(tool, result, version, budget)
        if problem is None:
            kept.append(tool)
        else:
            name = payloads.as_object(tool).get("name")
            shown = _shown(name) if isinstance(name, str) else "without a name"
            warn(f"the tool {shown} is left out: {problem}")
    if len(tools) > MAX_TOOLS:
        warn(f"{len(tools) - MAX_TOOLS} tools are left out: {MAX_TOOLS} are taken at most")
    result["tools"] = kept


def merge_pages(pages: Iterable[JsonObject], warn: Callable[[str], None]) -> list[JsonObject]:
    """The tools of several pages, none of them twice, as many as fit one message."""
    merged: dict[str, JsonObject] = {}
    size = 0
    for tool in (each for page in pages for each in payloads.objects_in(page.get("tools"))):
        name = str(tool["name"])
        if name in merged:
            warn(f"the tool {_shown(name)} is listed twice, and the second one is left out")
            continue
        size += len(json.dumps(tool))
        if size > MAX_LIST_BYTES or len(merged) >= MAX_TOOLS:
            warn(f"the tools from {_shown(name)} on are left out: there are too many")
            break
        merged[name] = tool
    return [*merged.values()]


class _Budget:
    """The schemas of one list that are still checked, counted by their objects."""

    def __init__(self) -> None:
        self._left = MAX_CHECKED_OBJECTS

    def takes(self, schema: Any) -> bool:
        """True if a schema is to be checked: its cost is then taken."""
        cost = sum(1 for _ in islice(objects_of(schema), MAX_SCHEMA_OBJECTS + 1))
        if cost > min(self._left, MAX_SCHEMA_OBJECTS):
            return False
        self._left -= cost
        return True


def _problem(tool: Any, result: JsonObject, version: str, budget: _Budget) -> str | None:
    """The reason for which a tool cannot be used; ``None`` if it can."""
    if not isinstance(tool, dict):
        return "it is no object"
    fields = cast("JsonObject", tool)
    if _depth(fields, MAX_TOOL_DEPTH) > MAX_TOOL_DEPTH:
        return f"it nests deeper than {MAX_TOOL_DEPTH} levels"
    try:
        encode_json(fields)
    except NotExpressible as error:
        return printable(str(error))[:200]
    try:
        validate_server_result(payloads.TOOL_LIST, version, {**result, "tools": [fields]})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"][-3:])
        return printable(f"{place}: {first['msg']}")[:200]
    except (KeyError, ValueError):
        pass  # a revision without such a check
    name = fields.get("name")
    if not isinstance(name, str) or not name or len(name) > MAX_TOOL_NAME_CHARS:
        return f"a name has 1 to {MAX_TOOL_NAME_CHARS} characters"
    for part in ("inputSchema", "outputSchema"):
        schema = fields.get(part)
        if schema is not None and (why := _schema_problem(schema, budget)) is not None:
            return f"its {part} is no JSON Schema: {why}"
    return None


def _schema_problem(schema: Any, budget: _Budget) -> str | None:
    if _depth(schema, MAX_SCHEMA_DEPTH) > MAX_SCHEMA_DEPTH:
        return f"it nests deeper than {MAX_SCHEMA_DEPTH} levels"
    if _is_endless(schema):
        return "it refers to itself and to nothing else"
    if not budget.takes(schema):
        return None
    # It carries no types.
    jsonschema: Any = import_module("jsonschema")
    validator_for = jsonschema.validators.validator_for
    try:
        check_schema(validator_for(schema, default=jsonschema.Draft202012Validator), schema)
    except jsonschema.SchemaError as error:
        return printable(str(error.message))[:200]
    except Exception as error:  # of a schema that breaks the check itself
        return type(error).__name__
    return None


def _depth(value: Any, limit: int) -> int:
    """Levels of objects and lists, counted up to one more than a limit."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    deep = 0
    while level and deep <= limit:
        inner: list[Any] = []
        for each in level:
            inner += each.values() if isinstance(each, dict) else each
        level = [each for each in inner if isinstance(each, dict | list)]
        deep += 1
    return deep


def _is_endless(schema: Any) -> bool:
    """True if following the schema's ``$ref`` leads back to where it began, without a step inside.

    A schema that refers to itself from inside a property is a tree, and fine.
    """
    seen: set[str] = set()
    at = payloads.as_object(schema)
    while isinstance(ref := at.get("$ref"), str) and ref.startswith("#"):
        if ref in seen:
            return True
        seen.add(ref)
        target: Any = schema
        for part in ref.lstrip("#").strip("/").split("/") if ref.strip("#/") else ():
            target = payloads.as_object(target).get(part.replace("~1", "/").replace("~0", "~"))
        at = payloads.as_object(target)
    return False


def _find_differences(old: JsonObject, new: JsonObject) -> tuple[str, ...]:
    before, after = approved_parts(old), approved_parts(new)
    parts = dict.fromkeys((*after, *before))
    return tuple(
        part for part in parts if canonical(before.get(part)) != canonical(after.get(part))
    )


def _named(verb: str, names: Iterable[str]) -> str:
    every = list(names)
    if not every:
        return ""
    more = f" and {len(every) - MAX_NAMED} more" if len(every) > MAX_NAMED else ""
    return f"{verb} {', '.join(every[:MAX_NAMED])}{more}"


def _shown(name: str) -> str:
    return repr(name[:64])
