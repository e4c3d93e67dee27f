"""The form of a tool: all of it but its name and the texts that are known as texts.

Texts are for a model, the form decides which calls there are. A text may change from day to day,
as one with the time zone in it, so each is compared apart from the other. A field that is not
known, as one of a later version of MCP, may mean anything: it is of the form.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import takewhile, zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from meup_agent.errors import printable
from meup_agent.protocol.payloads import META, PREFIX, as_list, as_object

if TYPE_CHECKING:
    from meup_agent.protocol.payloads import JsonObject

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
"""Keywords with a schema under each name: a property called `title` is no text."""

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
    if not isinstance(schema, dict):
        return schema
    fields, known = cast("JsonObject", schema), as_object(accepted)
    found = _texts_of(known)
    for key, value in fields.items():
        if _is_text(key, value):
            continue
        old = known.get(key)
        if key in _MAPS and isinstance(value, dict):
            named, of = cast("JsonObject", value), as_object(old)
            found[key] = {name: _replace_texts(each, of.get(name)) for name, each in named.items()}
        elif key in _INNER and isinstance(value, list):
            listed = cast("list[object]", value)
            pairs = zip_longest(listed, as_list(old)[: len(listed)])
            found[key] = [_replace_texts(*both) for both in pairs]
        else:
            found[key] = _replace_texts(value, old) if key in _INNER else value
    return found


def _replace_own(fields: Any, accepted: JsonObject) -> Any:
    """An object with the texts of its own that the accepted one has."""
    if not isinstance(fields, dict):
        return fields
    own = cast("JsonObject", fields)
    bare = {key: value for key, value in own.items() if not _is_text(key, value)}
    return _texts_of(accepted) | bare


def _texts_of(fields: JsonObject) -> JsonObject:
    return {key: value for key, value in fields.items() if _is_text(key, value)}


def _is_text(key: str, value: Any) -> bool:
    if key == "examples" and isinstance(value, list):
        # An object or a boolean may be a schema that a `$ref` elsewhere names.
        listed = cast("list[object]", value)
        return all(isinstance(each, str | None) or type(each) in (int, float) for each in listed)
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
    elif _differ(before, after):
        yield Difference(path, before, after, most)


def _differ(before: Any, after: Any) -> bool:
    """True if two values, of which one at the most is an object or a list, are not the same JSON.

    To Python 1, 1.0 and true are equal, and 0.0 and −0.0.
    """
    return type(before) is not type(after) or before != after or repr(before) != repr(after)


def _members(value: Any) -> dict[str | int, Any] | None:
    """The members of an object by name, of a list by place; ``None`` for any other value."""
    if isinstance(value, list):
        return {**dict(enumerate(cast("list[object]", value)))}
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
