"""A space as a timeline: one line an envelope, for ``meup tail`` and ``meup demo`` alike.

::

    09:41:07  4f2a       proposer → reviewer  proposal  files.read_file(path="a.md")       pending
    09:41:07  4f2a/9c01  reviewer → files     request   read_file(path="a.md")         in progress
    09:41:07  4f2a/9c01  files → reviewer     response  "# Harbour…"                     fulfilled

A proposal, its requests and their responses share the first id (of the proposal), and its colour;
the second is the request's. Lines hold no markup and no control character of a stranger's; they
say everything without colour.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
from rich.cells import cell_len
from rich.text import Text

from meup_agent.cli.escape import visible
from meup_agent.cli.onlooker import AGAIN, FOLLOWED_SECONDS, Onlooker, Sight
from meup_agent.cli.wording import MAX_NAME, Progressed, Wording, in_words
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.memory import Memory

WIDE: Final = 100
"""Columns from which the time has milliseconds and everything more room."""

NARROW: Final = 76
"""Columns below which what is said gets a line of its own."""

BESIDE_NAMES: Final = 41
"""Columns of everything else on a narrow terminal's line, the longest states included."""

LONGEST: Final = 200
"""Characters of what is said where there is no terminal whose width would tell."""

NARROWEST: Final = 12
"""Columns that names and what is said get at least; a narrower terminal wraps the line."""

SHORT_ID: Final = 4
"""Characters of an id that are shown, more where another one begins alike."""

WHOLE_ID: Final = 9
"""Ids up to this long are shown whole: people made them."""

MAX_IDS: Final = 10_000
"""Ids whose short form is remembered."""

UNREADABLE: Final = "its payload cannot be read"

BAR: Final = 10
"""Columns of a progress bar."""

_COLOURS: Final = ("cyan", "magenta", "bright_blue", "green")
"""Of ids, in turn: an exchange keeps its colour. Readable on dark and light backgrounds."""

_STATES: Final = {
    "pending": "dim",
    "in progress": "bright_blue",
    "fulfilled": "bold green",
    "rejected": "bold red",
    "withdrawn": "bold yellow",
    "cancelled": "yellow",
}

_NOUNS: Final = {
    "proposal": "bold",
    "reject": "red",
    "withdraw": "yellow",
    "cancel": "yellow",
    "refused": "bold red",
    "progress": "dim",
    "join": "dim",
    "leave": "dim",
    "welcome": "dim",
}


class Glyphs:
    """The few characters that not every output has.

    Args:
        encoding: The encoding of the output.
    """

    def __init__(self, encoding: str) -> None:
        fancy = ("→", "…", "━", "╌", "✓", "✗")
        try:
            "".join(fancy).encode(encoding)
        except (UnicodeEncodeError, LookupError):
            self.arrow, self.ellipsis, self.done, self.left = "->", "...", "#", "-"
            self.yes, self.no = "yes", "NO"
        else:
            self.arrow, self.ellipsis, self.done, self.left, self.yes, self.no = fancy

    def fit(self, text: Text, width: int) -> None:
        """Make a text exactly so many columns wide."""
        surplus = text.cell_len > width
        text.truncate(width - (cell_len(self.ellipsis) if surplus else 0), pad=not surplus)
        if surplus:
            text.append(self.ellipsis)
            text.align("left", width)


@dataclass(frozen=True, slots=True)
class Columns:
    """How wide the columns are.

    Attributes:
        said: Of what is said; ``None`` where there is no terminal to fit into.
        below: What is said stands on a line of its own below, since there is no room beside.
    """

    time: int
    names: int
    gap: int
    said: int | None
    ids: int = 9
    noun: int = 8
    below: bool = False

    @property
    def before_said(self) -> int:
        """Where what is said begins; below, under the names."""
        before_names = self.time + self.ids + 2 * self.gap
        return before_names if self.below else before_names + self.names + self.noun + 2 * self.gap

    @classmethod
    def of(cls, width: int | None) -> Columns:
        """The columns for a terminal of some width."""
        if width is None:
            return cls(12, 23, 2, None)
        if width < NARROW:
            names = min(max(width - BESIDE_NAMES, NARROWEST), 19)
            columns = cls(8, names, 1, None, below=True)
        else:
            columns = cls(12, 23, 2, None) if width >= WIDE else cls(8, 19, 1, None)
        return replace(columns, said=max(width - columns.before_said, NARROWEST))


class Look(NamedTuple):
    """An envelope that was looked at.

    Attributes:
        envelope: The envelope.
        sight: What it is to an onlooker.
        words: What it says.
        ids: The ids that are shown of its exchange.
        colour: The colour of its exchange.
    """

    envelope: Envelope
    sight: Sight
    words: Wording
    ids: str
    colour: str


class Timeline:
    """Makes the lines.

    Args:
        width: Tells the terminal's width in columns; ``None`` where there is no terminal.
        glyphs: The characters that the output can show.
        now: Tells the time of day, in the user's zone.
    """

    def __init__(
        self,
        width: Callable[[], int | None],
        glyphs: Glyphs,
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        self._width = width
        self._glyphs = glyphs
        self._now = now
        self._onlooker = Onlooker()
        self._short_ids = ShortIds()

    def envelope(self, envelope: Envelope, at: float) -> Text:
        """The line for an envelope: :meth:`look` at it, and show it."""
        return self.line(self.look(envelope, at))

    def look(self, envelope: Envelope, at: float) -> Look:
        """Take an envelope in, whether or not it is shown.

        Args:
            envelope: The next envelope, in the gateway's order.
            at: Seconds of a clock that only goes forward.
        """
        try:
            sight, words = self._onlooker.see(envelope, at), in_words(envelope)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            # Not every gateway checks what it lets through.
            sight = Sight(envelope.id)
            words = Wording(
                visible(envelope.sender, MAX_NAME), "", visible(envelope.kind, MAX_NAME), UNREADABLE
            )
        return Look(envelope, sight, words, *self._short_ids.of(sight, at))

    def line(self, look: Look) -> Text:
        """The line for an envelope."""
        _, sight, words, ids, colour = look
        columns = Columns.of(self._width())
        names = f"{words.who} {self._glyphs.arrow} {words.whom}" if words.whom else words.who
        style = "dim" if sight.state == AGAIN else _NOUNS.get(words.noun, "")
        noun, text = words.noun, words.said
        if columns.said is not None and cell_len(noun) > columns.noun:
            # A kind that has no noun of its own, and whose beginning says less than its end.
            noun, text = noun.rpartition("/")[2], f"{noun} {text}".rstrip()
        line = self._head(columns, names, noun, style, ids, colour)
        said = Text(text, style="red" if words.failed else "")
        if sight.state == AGAIN:
            said.stylize("dim")
        if words.progress is not None:
            said = Text.assemble(self._bar(words.progress), " ", said)
        state = Text(sight.state, style=_STATES.get(sight.state, "dim"))
        return self._with_state(line, said, state, columns)

    def note(self, who: str, noun: str, said: str, *, style: str = "dim") -> Text:
        """A line, or more, about what is no envelope: a connection, a handler, a file.

        Args:
            who: Whom it is about.
            noun: What it is, in one word.
            said: What happened; escaped by the caller where a stranger wrote it.
            style: How the word looks.
        """
        columns = Columns.of(self._width())
        line = self._head(columns, who, noun, style)
        if columns.said is None:
            return line.append(said)
        lines = textwrap.wrap(said, columns.said) or [""]
        start = "\n" + " " * columns.before_said
        if columns.below:
            line.rstrip()
            line.append(start)
        return line.append(start.join(lines))

    def _head(
        self, columns: Columns, names: str, noun: str, style: str, ids: str = "", colour: str = ""
    ) -> Text:
        """Time, ids, participants and noun: the columns on the left."""
        gap = " " * columns.gap
        line = Text(no_wrap=True)
        now = self._now()
        milliseconds = f".{now.microsecond // 1000:03d}"
        line.append(f"{now:%H:%M:%S}{milliseconds}"[: columns.time] + gap, style="dim")
        for text, width, look in (
            (ids, columns.ids, colour),
            (names, columns.names, ""),
            (noun, columns.noun, style),
        ):
            cell = Text(text, style=look)
            if columns.said is None:
                cell.align("left", max(width, cell.cell_len))
            else:
                self._glyphs.fit(cell, width)
            line.append_text(cell).append(gap)
        return line

    def _with_state(self, line: Text, said: Text, state: Text, columns: Columns) -> Text:
        """Add what is said and, at the right edge, the state."""
        if columns.below:
            return self._with_said_below(line, said, state, columns)
        if columns.said is None:
            said.truncate(LONGEST)
        else:
            room = columns.said - (state.cell_len + 2 if state else 0)
            self._glyphs.fit(said, max(room, NARROWEST))
        line.append_text(said)
        if state:
            line.append("  ").append_text(state)
        line.rstrip()
        return line

    def _with_said_below(self, line: Text, said: Text, state: Text, columns: Columns) -> Text:
        """The same on a narrow terminal, in two lines."""
        width = columns.before_said + (columns.said or 0)
        line.append(" " * (width - line.cell_len - state.cell_len)).append_text(state)
        line.rstrip()
        if said:
            self._glyphs.fit(said, columns.said or 0)
            said.rstrip()
            line.append("\n" + " " * columns.before_said).append_text(said)
        return line

    def _bar(self, progress: Progressed) -> Text:
        """A progress as a bar and in figures."""
        if progress.total is None or progress.total <= 0:
            return Text(f"{progress.done:g}")
        share = min(max(progress.done / progress.total, 0.0), 1.0)
        done = round(share * BAR)
        bar = Text(self._glyphs.done * done, style="green")
        bar.append(self._glyphs.left * (BAR - done), style="dim")
        return bar.append(f" {progress.done:g}/{progress.total:g}", style="")


class ShortIds:
    """Short forms of ids that differ where the ids do, and a colour for each exchange."""

    def __init__(self) -> None:
        self._shorts: Memory[str, str] = Memory(count=MAX_IDS, seconds=FOLLOWED_SECONDS)
        self._taken: Memory[str, str] = Memory(count=MAX_IDS, seconds=FOLLOWED_SECONDS)
        self._colours: Memory[str, str] = Memory(count=MAX_IDS, seconds=FOLLOWED_SECONDS)
        self._next = 0

    def of(self, sight: Sight, at: float) -> tuple[str, str]:
        """The ids of an exchange and of its request, shortened, and the exchange's colour."""
        if not sight.exchange:
            return "", ""
        ids = "/".join(self._short(name, at) for name in (sight.exchange, sight.part) if name)
        return ids, self._colour(sight.exchange, at)

    def _short(self, name: str, at: float) -> str:
        known = self._shorts.get(name, at)
        if known is not None:
            return known
        shown = visible(name, MAX_NAME)
        length = len(shown) if len(shown) <= WHOLE_ID else SHORT_ID
        while length < len(shown) and self._taken.get(shown[:length], at) is not None:
            length += 1
        short = shown[:length]
        self._shorts.put(name, short, at)
        self._taken.put(short, name, at)
        return short

    def _colour(self, exchange: str, at: float) -> str:
        colour = self._colours.get(exchange, at)
        if colour is None:
            colour = _COLOURS[self._next % len(_COLOURS)]
            self._next += 1
            self._colours.put(exchange, colour, at)
        return colour
