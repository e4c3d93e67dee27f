"""Rows of columns for a terminal of any width: what does not fit goes on below, and is never cut.

What goes on below begins under its own column, so that no text of a stranger's can look like the
beginning of another row.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from rich.cells import cell_len
from rich.text import Text

MAX_FOLLOWED: Final = 10_000
"""Ids that are remembered to be shown again alike: more than a person follows."""

NARROW: Final = 76  # columns below which what is said gets a line of its own

NARROWEST: Final = 12
"""Columns that names and what is said get at least; a narrower terminal wraps the line."""

STATE_STYLES: Final = {
    "pending": "dim",
    "in progress": "bright_blue",
    "fulfilled": "bold green",
    "failed": "bold red",
    "refused": "bold red",
    "rejected": "bold red",
    "withdrawn": "bold yellow",
    "expired": "bold yellow",
    "cancelled": "yellow",
}
"""Readable on dark and light backgrounds; the words tell it without them."""


class Glyphs:
    """The few characters that not every output has."""

    def __init__(self, encoding: str) -> None:
        fancy = ("→", "━", "╌", "✓", "✗")
        try:
            "".join(fancy).encode(encoding)
        except (UnicodeEncodeError, LookupError):
            fancy = ("->", "#", "-", "yes", "NO")
        self.arrow, self.done, self.left, self.yes, self.no = fancy


class RowBuilder:
    """One row, which is filled from the left to the right; without a width it is a single line."""

    def __init__(self, width: int | None) -> None:
        self._width = width
        self._done = Text(no_wrap=True)
        self._line = Text()

    @property
    def used(self) -> int:
        """Columns of the last line that are used."""
        return self._line.cell_len

    def put(self, text: Text, column: int) -> None:
        """Put a text at a column: on the next line where that is taken, and on more if need be."""
        if not text.plain.strip():
            return
        if self._width is None:
            self._pad(column)
            self._line.append_text(text)
            return
        has_room = self._width - column >= min(text.cell_len, NARROWEST)
        if self.used > column or (self.used and not has_room):
            self.end_line()
        self._pad(column)
        room = max(self._width - column, NARROWEST)
        for number, part in enumerate(folded(text, room)):
            if number:
                self.end_line()
                self._pad(column)
            self._line.append_text(part)

    def put_right(self, text: Text) -> None:
        """Put a text at the right edge, on the next line where there is no room for it."""
        if not text:
            return
        if self._width is None:
            self._line.append("  ").append_text(text)
            return
        gap = self._width - self.used - text.cell_len
        if gap < min(self.used, 1):
            self.end_line()
            gap = max(self._width - text.cell_len, 0)
        self._pad(self.used + gap)
        self._line.append_text(text)

    def end_line(self) -> None:
        """Go on below."""
        self._line.rstrip()
        self._done.append_text(self._line).append("\n")
        self._line = Text()

    def text(self) -> Text:
        """All of it."""
        self._line.rstrip()
        return self._done.append_text(self._line)

    def _pad(self, column: int) -> None:
        self._line.append(" " * (column - self.used))


def folded(text: Text, room: int, first: int | None = None) -> Iterator[Text]:
    """A text in lines, with every character of it; they end at spaces where that wastes little.

    ``first`` is the room on the first line, where that is another.
    """
    offsets = list(_breaks(text.plain, room, room if first is None else first))
    yield from text.divide(offsets) if offsets else (text,)


def fold(text: str, room: int) -> list[str]:
    """A plain text in lines, likewise; without the spaces that a line ends with."""
    offsets = [0, *_breaks(text, room, room), len(text)]
    return [text[begin:end].rstrip() for begin, end in pairwise(offsets)]


def hang(text: str, width: int | None, indent: int, narrowest: int = NARROWEST) -> str:
    """A text behind an indent, below which it goes on; on one line where there is no terminal."""
    lines = [text] if width is None else fold(text, max(width - indent, narrowest))
    return ("\n" + " " * indent).join(lines)


def _breaks(text: str, room: int, first: int) -> Iterator[int]:
    begin, space, room_now = 0, 0, first
    at = 0
    while at < len(text):
        if cell_len(text[begin : at + 1]) > room_now and at > begin:
            begin = space if space > begin + room_now // 2 else at
            yield begin
            room_now, space, at = room, begin, begin
        elif text[at] == " ":
            space = at + 1
        at += 1
