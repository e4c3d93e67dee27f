"""Tools that changed since they were accepted: form, mark in a list, and methods.

A bridge with pinned tools marks what its server offers otherwise than it was accepted (PROTOCOL 5).
Whoever decides reads the mark, and a person accepts the difference by the methods here. They are
methods of their own, so that the gateway lets only those send them that may.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import takewhile, zip_longest
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast

import msgspec

from meup_agent.client.messages import write_params
from meup_agent.errors import RequestError, printable
from meup_agent.protocol.wire.kinds import ACCEPT_TOOLS
from meup_agent.protocol.wire.payloads import (
    INTERNAL_ERROR,
    MAX_NAME_CHARS,
    META,
    PREFIX,
    JsonObject,
    as_list,
    as_object,
    is_list,
    is_object,
)

if TYPE_CHECKING:
    from meup_agent.client.space import Space


# --- the form of a tool ---
# All of it but its name and the texts that are known as texts.
#
# Texts are for a model, the form decides which calls there are. A text may change from day to day,
# as one with the time zone in it, so each is compared apart from the other. A field that is not
# known, as one of a later version of MCP, may mean anything: it is of the form.

MAX_TEXT_CHARS: Final = 4_000
"""Characters of a text, before and after, in a difference that a person reads."""

MAX_VALUE_CHARS: Final = 300
"""Characters of any other value in a difference."""

MAX_KEY_CHARS: Final = 64
"""Characters of each key in the path to a difference."""

SHOWN_BEFORE_CHARS: Final = 40
"""Characters that two texts have in common and that are shown before their difference."""

_MISSING: Final = object()
_NAME: Final = "name"
_SCHEMAS: Final = ("inputSchema", "outputSchema")
_WITH_TEXTS: Final = (*_SCHEMAS, "annotations")
_TEXTS: Final = ("title", "description", "$comment")

_MAPS: Final = (
    *("properties", "patternProperties", "$defs", "definitions"),
    *("dependentSchemas", "dependencies"),
)
"""Keywords with a schema under each name: a property called `title` is not text."""

_INNER: Final = (
    *("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"),
    *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
)
"""Keywords whose value is a schema, or a list of schemas."""


def canonical(value: Any) -> bytes:
    """JSON in which the order of members is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def approved_parts(tool: Mapping[str, Any]) -> JsonObject:
    """The parts of a tool that are approved with it: all but its name, and marks that are ours."""
    parts = {part: value for part, value in tool.items() if part not in (_NAME, META)}
    given = as_object(tool.get(META))
    meta = {key: value for key, value in given.items() if not key.startswith(PREFIX)}
    return {**parts, META: meta} if meta else parts


def with_accepted_texts(tool: Mapping[str, Any], accepted: JsonObject | None) -> JsonObject:
    """A tool with the texts of the accepted one wherever there are any, and without others."""
    known = accepted or {}
    found = _texts_of(known) | {
        key: value
        for key, value in tool.items()
        if key not in _WITH_TEXTS and not _is_text(key, value)
    }
    for part in _WITH_TEXTS:
        if part not in tool:
            continue
        value, old = tool[part], known.get(part)
        found[part] = (
            _replace_texts(value, old) if part in _SCHEMAS else _replace_own(value, as_object(old))
        )
    return found


def form_of(tool: Mapping[str, Any]) -> JsonObject:
    """The parts of a tool by which its calls are judged."""
    bare = approved_parts(with_accepted_texts(tool, None))
    parts = [*_WITH_TEXTS, *(part for part in bare if part not in _WITH_TEXTS)]
    return {part: bare[part] for part in parts if bare.get(part) is not None}


def digest_of_form(tool: Mapping[str, Any]) -> str:
    """SHA-256, hex, of a tool's form."""
    return hashlib.sha256(canonical(form_of(tool))).hexdigest()


class Difference(NamedTuple):
    """A place at which a tool is not as it was accepted; :class:`str` gives it in words.

    Attributes:
        path: Keys and places that lead there; empty: the tool itself is new.
        before: The value that was accepted there.
        after: The value of now.
        most: Characters of each that are shown.
    """

    path: tuple[str | int, ...]
    before: Any
    after: Any
    most: int

    def __str__(self) -> str:
        """The place, and both values."""
        if not self.path:
            return "it is new"
        path = "".join(
            f"[{key}]" if isinstance(key, int) else f".{_shown(key, MAX_KEY_CHARS)}"
            for key in self.path
        ).removeprefix(".")
        before, after, most = self.before, self.after, self.most
        if before is _MISSING:
            return f"{path} is new: {_value(after, most)}"
        if after is _MISSING:
            return f"{path} is gone: {_value(before, most)}"
        # Of long texts the same beginning would hide the rest.
        same = _common_start(before, after) if isinstance(before, str) else 0
        return f"{path} was {_value(before, most, same)}, and is {_value(after, most, same)}"


def form_differences(tool: JsonObject, accepted: JsonObject | None) -> Iterator[Difference]:
    """The differences of a tool's form from the accepted one's."""
    if accepted is None:
        yield Difference((), _MISSING, tool, MAX_VALUE_CHARS)
    yield from _differences(
        {} if accepted is None else form_of(accepted), form_of(tool), (), MAX_VALUE_CHARS
    )


def text_differences(tool: JsonObject, accepted: JsonObject | None) -> Iterator[Difference]:
    """The differences of a tool's texts from the accepted ones."""
    before, after = map(approved_parts, (with_accepted_texts(tool, accepted), tool))
    yield from _differences(before, after, (), MAX_TEXT_CHARS)


def _replace_texts(schema: Any, accepted: Any) -> Any:
    """A schema with the texts of the accepted one where there are any, and without others."""
    if not is_object(schema):
        return schema
    known = as_object(accepted)
    found = _texts_of(known)
    for key, value in schema.items():
        if _is_text(key, value):
            continue
        old = known.get(key)
        if key in _MAPS and is_object(value):
            of = as_object(old)
            found[key] = {name: _replace_texts(each, of.get(name)) for name, each in value.items()}
        elif key in _INNER and is_list(value):
            pairs = zip_longest(value, as_list(old)[: len(value)])
            found[key] = [_replace_texts(*both) for both in pairs]
        else:
            found[key] = _replace_texts(value, old) if key in _INNER else value
    return found


def _replace_own(fields: Any, accepted: JsonObject) -> Any:
    """An object with the texts of its own that the accepted one has."""
    if not is_object(fields):
        return fields
    bare = {key: value for key, value in fields.items() if not _is_text(key, value)}
    return _texts_of(accepted) | bare


def _texts_of(fields: JsonObject) -> JsonObject:
    return {key: value for key, value in fields.items() if _is_text(key, value)}


def _is_text(key: str, value: Any) -> bool:
    if key == "examples" and is_list(value):
        # An object or a boolean may be a schema that a `$ref` elsewhere names.
        return all(isinstance(each, str | None) or type(each) in (int, float) for each in value)
    return key in _TEXTS and isinstance(value, str)


def _differences(
    before: Any, after: Any, path: tuple[str | int, ...], most: int
) -> Iterator[Difference]:
    """The places at which two JSON values differ."""
    old, new = _members(before), _members(after)
    if old is not None and new is not None and isinstance(before, dict) == isinstance(after, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            one, other = old.get(key, _MISSING), new.get(key, _MISSING)
            yield from _differences(one, other, (*path, key), most)
    # At most one of them is an object or a list. To Python 1, 1.0 and true are equal, 0.0 and −0.0.
    elif type(before) is not type(after) or before != after or repr(before) != repr(after):
        yield Difference(path, before, after, most)


def _members(value: Any) -> dict[str | int, Any] | None:
    """The members of an object by name, of a list by place; ``None`` for any other value."""
    if is_list(value):
        return {**dict(enumerate(value))}
    return cast("dict[str | int, Any]", value) if isinstance(value, dict) else None


def _common_start(before: str, after: Any) -> int:
    """Characters of the same beginning of two texts that need not be shown."""
    pairs = zip(before, after, strict=False) if isinstance(after, str) else ()
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return max(same - SHOWN_BEFORE_CHARS, 0)


def _value(value: Any, most: int, skip: int = 0) -> str:
    if skip:
        return f"…{_shown(json.dumps(value[skip:], ensure_ascii=False), most)}"
    return _shown(json.dumps(value, ensure_ascii=False), most)


def _shown(text: str, most: int) -> str:
    cut = text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
    return printable(cut)


# --- tools that changed since they were accepted ---

TOOL_CHANGES: Final = f"{PREFIX}tool_changes"
"""Tells how a server's tools differ from the accepted ones."""

ACCEPT_CALL: Final = f"{PREFIX}accept_call"
"""Lets the sender carry out one proposal with a tool of a form that was not accepted."""

CHANGED: Final = f"{PREFIX}changed"
"""In the ``_meta`` of a listed tool: it differs from the accepted one."""

MAX_MARKED_LINES: Final = 8
"""Differences of a form that a mark has; a person decides by few, and the rest is counted."""

MAX_LINE_CHARS: Final = 300
"""Characters of a difference in a mark."""

CHANGES_SECONDS: Final = 15.0
"""Wait for a bridge to tell of its tools, or to accept them: a server may have to list them."""

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]


class ToolMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The difference of a listed tool from the accepted one.

    Attributes:
        form: Digest of its form, where that is not the accepted one: then no rule allows its calls.
        difference: The differences of the form, in words, as many as have room.
        texts: Its texts are not the accepted ones, which the list has in their place.
    """

    form: str = ""
    difference: tuple[str, ...] = ()
    texts: bool = False


class ChangedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that is not as it was accepted.

    Attributes:
        name: Its name.
        form: Differences of its form, in words: all but its texts.
        texts: Differences of its texts, in words.
    """

    name: str
    form: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


class ToolDifference(msgspec.Struct, frozen=True):
    """The difference of a server's tools from the accepted ones.

    Attributes:
        server: The server's name.
        digest: Digest of the tools as they are now, by which they are accepted.
        tools: The tools that differ; none: they are as they were accepted.
        omitted: The number of differences that had no room.
    """

    server: str
    digest: str
    tools: tuple[ChangedTool, ...] = ()
    omitted: int = 0


class AcceptToolsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of an acceptance.

    Attributes:
        digest: Digest of the tools that were looked at.
    """

    digest: str


class AcceptCallParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of the acceptance for one call.

    Attributes:
        proposal: The id of the proposal that the sender is about to carry out.
        proposer: Its proposer.
        tool: The tool.
        form: Digest of the form that was looked at.
    """

    proposal: _Name
    proposer: _Name
    tool: str
    form: str


def read_mark(tool: Mapping[str, Any]) -> ToolMark | None:
    """The mark of a listed tool; ``None``: it is as it was accepted, or nobody pins it.

    A mark that cannot be read marks a form that nobody has accepted.
    """
    written = as_object(tool.get(META)).get(CHANGED)
    if written is None:
        return None
    try:
        mark = msgspec.convert(written, ToolMark)
    except msgspec.ValidationError:
        return ToolMark(form="unreadable")
    lines = tuple(each[:MAX_LINE_CHARS] for each in mark.difference[: MAX_MARKED_LINES + 1])
    return msgspec.structs.replace(mark, difference=lines)


async def read_difference(space: Space, participant: str) -> ToolDifference:
    """The difference of a participant's tools from the accepted ones.

    Raises:
        MeupError: As :meth:`Space.request`; −32601: it pins no tools.
    """
    said = await space.request(participant, TOOL_CHANGES, {}, timeout=CHANGES_SECONDS)
    try:
        return msgspec.convert(said, ToolDifference)
    except msgspec.ValidationError:
        raise RequestError(
            INTERNAL_ERROR, f"{participant!r} does not tell how its tools have changed"
        ) from None


async def accept_tools(space: Space, participant: str, digest: str) -> None:
    """Accept a participant's tools as they were seen.

    Raises:
        MeupError: As :meth:`Space.request`; an error says that they have changed since.
    """
    params = write_params(AcceptToolsParams(digest))
    await space.request(participant, ACCEPT_TOOLS, params, timeout=CHANGES_SECONDS)


async def accept_call(space: Space, participant: str, accepted: AcceptCallParams) -> None:
    """Accept a tool's form for one call, which is to be made next.

    Raises:
        MeupError: As :meth:`Space.request`; an error says that it has changed since.
    """
    await space.request(participant, ACCEPT_CALL, write_params(accepted), timeout=CHANGES_SECONDS)
