"""Rows: lines of styled text, and JSON values as rows in which nothing of them is hidden."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, cast

from rich.cells import cell_len, chop_cells

from meup_agent.protocol.shown_text import segments

MAX_SHOWN: Final = 256 * 1024
"""Characters of a call that a screen shows; what is longer is not approved there."""

MAX_DEPTH: Final = 12
"""Levels of a value that get rows of their own; what is deeper stands on one line."""

MAX_ROWS: Final = 20_000
"""Rows of a value: a list of numbers has one for each."""

GUTTER: Final = "│ "
"""Before each line of a text: no line of a stranger's begins where one of ours does."""


class Part(NamedTuple):
    """A part of a row, printable, in one style; its name is looked up in a theme."""

    text: str
    style: str = ""


class CardRow(NamedTuple):
    """A line; what does not fit goes on below, behind the indent."""

    parts: tuple[Part, ...] = ()
    indent: int = 0

    @property
    def plain(self) -> str:
        """The line without its styles."""
        return " " * self.indent + "".join(part.text for part in self.parts)


def row(*parts: Part | str, indent: int = 0) -> CardRow:
    """A row of parts; a text alone has no style."""
    made = (Part(each) if isinstance(each, str) else each for each in parts)
    return CardRow(tuple(each for each in made if each.text), indent)


def theirs(text: str, style: str = "", *, is_name: bool = False) -> Iterator[Part]:
    """The text of a stranger, with what hides or deceives in the style ``mark``."""
    for each in segments(text, is_name=is_name):
        yield Part(each.text, "mark" if each.mark else style)


class ShownValue:
    """A JSON value as rows; ``is_whole`` tells whether all of it has been shown.

    Args:
        room: Characters that are shown; ``None``: all.
    """

    def __init__(self, room: int | None = MAX_SHOWN) -> None:
        self.is_whole = True
        self._room = sys.maxsize if room is None else room
        self._rows = sys.maxsize if room is None else MAX_ROWS

    def members(self, values: dict[str, Any], indent: int, depth: int = 0) -> Iterator[CardRow]:
        """The members of an object, a row for each and more for what is in it."""
        for name, value in values.items():
            if not self._has_room(len(name)):
                yield self._cut(indent)
                return
            head = (*theirs(_escaped(name), "key", is_name=True), Part(": ", "dim"))
            yield from self._value(head, value, indent, depth)

    def _value(
        self, head: tuple[Part, ...], value: object, indent: int, depth: int
    ) -> Iterator[CardRow]:
        if isinstance(value, str) and "\n" in value.rstrip("\n"):
            yield from self._text(head, value, indent)
        elif isinstance(value, dict) and value and depth < MAX_DEPTH:
            yield CardRow(head, indent)
            yield from self.members(cast("dict[str, Any]", value), indent + 2, depth + 1)
        elif isinstance(value, list) and _wants_rows(cast("list[object]", value)):
            yield from self._items(head, cast("list[object]", value), indent, depth)
        else:
            yield CardRow((*head, *self._inline(value)), indent)  # pyright: ignore[reportUnknownArgumentType] - it is any JSON

    def _items(
        self, head: tuple[Part, ...], values: list[object], indent: int, depth: int
    ) -> Iterator[CardRow]:
        if depth >= MAX_DEPTH:
            yield CardRow((*head, *self._inline(values)), indent)
            return
        yield CardRow(head, indent)
        for value in values:
            if not self._has_room(1):
                yield self._cut(indent + 2)
                return
            yield from self._value((Part("- ", "dim"),), value, indent + 2, depth + 1)

    def _text(self, head: tuple[Part, ...], text: str, indent: int) -> Iterator[CardRow]:
        shown = text[: self._room]
        lines = shown.split("\n")
        end = "" if lines[-1] else ", the last one ended"
        count = text.count("\n") + bool(text) - (not lines[-1])
        yield CardRow((*head, Part(f"text of {count:,} lines{end}", "dim")), indent)
        for line in lines if lines[-1] else lines[:-1]:
            if not self._has_room(len(line) + 1):
                yield self._cut(indent + 2)
                return
            yield CardRow((Part(GUTTER, "dim"), *_line(line)), indent + 2)
        if len(shown) < len(text):
            yield self._cut(indent + 2)

    def _inline(self, value: object) -> Iterator[Part]:
        """A value on one line, as JSON."""
        is_text = isinstance(value, str)
        said = value if isinstance(value, str) else _dumped(value)
        shown = said[: max(self._room, 0)]
        self._has_room(len(said))
        style = "string" if is_text else "" if isinstance(value, dict | list) else "number"
        mark = [Part('"', style)] if is_text else []
        yield from mark
        yield from theirs(_escaped(shown) if is_text else shown, style)
        yield from mark
        if len(shown) < len(said):
            self.is_whole = False
            yield Part(f" and {len(said) - len(shown):,} more characters", "danger")

    def _has_room(self, characters: int) -> bool:
        self._room -= characters
        self._rows -= 1
        return self._room >= 0 and self._rows >= 0

    def _cut(self, indent: int) -> CardRow:
        self.is_whole = False
        return row(Part("… the rest is not shown here", "danger"), indent=indent)


def _wants_rows(values: list[object]) -> bool:
    """True if a list is too long for one line, or has more than numbers and short words in it."""
    short = all(not isinstance(each, dict | list) for each in values)
    if not short or not values:
        return bool(values)
    return any(isinstance(each, str) and "\n" in each for each in values) or (
        sum(len(str(each)[:60]) + 4 for each in values[:20]) > 60
    )


def _escaped(text: str) -> str:
    """A text as it stands between the quotation marks of JSON."""
    if text.isalnum():
        return text
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _dumped(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "nested too deeply to be shown"


def _line(line: str) -> tuple[Part, ...]:
    """A line of a text; columns stay, everything else that does not print is written out."""
    parts = tuple(theirs(line.removesuffix("\r").expandtabs(4), "string"))
    if line.endswith("\r"):
        parts = (*parts, Part("\\r", "mark"))
    if line.endswith((" ", "\t")):
        parts = (*parts, Part("⏎", "dim"))
    return parts


# --- wrapping ---


def wrapped(rows: Iterable[CardRow], width: int) -> Iterator[list[Part]]:
    """Rows as lines of a width, with every character of them."""
    for each in rows:
        yield from _wrap(each, max(width, 16))


def _wrap(each: CardRow, width: int) -> Iterator[list[Part]]:
    indent = min(each.indent, width // 2)
    gutter = each.parts[:1] if each.parts and each.parts[0].text == GUTTER else ()
    line: list[Part] = [Part(" " * indent)] if indent else []
    used = indent
    for part in each.parts:
        rest = part.text
        while rest:
            room, is_new = width - used, False
            if room <= 0:
                yield line
                below = indent if gutter else min(indent + 2, width // 2)
                line, used = [Part(" " * below), *gutter], below + len(GUTTER) * bool(gutter)
                room, is_new = width - used, True
            taken, rest = _split_to_fit(rest, room)
            if not taken and not is_new:  # a wide character that has no room here
                used = width
                continue
            if not taken:  # nor anywhere, as it is counted; without it no line would be the last
                taken, rest = rest[0], rest[1:]
            line.append(Part(taken, part.style))
            used += cell_len(taken)
    yield line


def _split_to_fit(text: str, room: int) -> tuple[str, str]:
    """The beginning of a text that has room, at a space if it has one near, and the rest."""
    if text.isascii():
        if len(text) <= room:
            return text, ""
        at = text.rfind(" ", max(room - 20, 1), room + 1)
        at = at if at > 0 else room
        return text[:at], text[at:]
    if len(text) <= room * 4 and cell_len(text) <= room:
        return text, ""
    begin = text[: room + 1]
    # Nothing is chopped of characters that take no room.
    first = next(iter(chop_cells(begin, max(room, 1))), begin)
    if cell_len(first) > room:
        return "", text
    return first, text[len(first) :]
