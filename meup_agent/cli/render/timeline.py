"""A space as a timeline: one line an envelope, for ``meup tail`` and ``meup demo`` alike.

::

    09:41:07  4f2a       proposer → reviewer  proposal  files.read_file(path="a.md")       pending
    09:41:07  4f2a/9c01  reviewer → files     request   read_file(path="a.md")         in progress
    09:41:07  4f2a/9c01  files → reviewer     response  "# Harbour…"                     fulfilled

A proposal, its requests and their responses share the first id (of the proposal), and its colour;
the second is the request's. Lines hold no markup and no control character of a stranger's; they
say everything without colour. What has no room on a line goes on below, and is not cut.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
from rich.cells import cell_len
from rich.text import Text

from meup_agent.cli.render.exchange_observer import (
    AGAIN,
    REJECTED,
    ExchangeObserver,
    Observation,
    recent,
)
from meup_agent.cli.render.formatting import (
    EXPIRY,
    FormattedEnvelope,
    ProgressFigures,
    counted,
    format_envelope,
)
from meup_agent.cli.render.layout import NARROW, NARROWEST, STATE_STYLES, Glyphs, RowBuilder, folded
from meup_agent.escape import visible
from meup_agent.protocol import kinds
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.proposals.record import ProposalKey
from meup_agent.protocol.ttl_map import TTLMap
from meup_agent.wording import MAX_NAME

WIDE: Final = 100  # columns from which the time has milliseconds and everything more room

HANGING: Final = 48
"""Columns from which on what is said is folded beside the rest, and not below it."""

BESIDE_NAMES: Final = 41
"""Columns of everything else on a narrow terminal's line, the longest states included."""

IDS: Final = 9  # columns of the ids
NOUN: Final = 8  # columns of the noun
SHORT_ID: Final = 4  # characters of an id that are shown, more where another one begins alike
WHOLE_ID: Final = 9  # ids up to this long are shown whole: people made them
UNREADABLE: Final = "its payload cannot be read"
BAR: Final = 10  # columns of a progress bar

REASONING: Final = (
    kinds.REASONING_THOUGHT,
    kinds.REASONING_CONCLUSION,
    kinds.REASONING_CANCEL,
)
"""Kinds of what belongs to a line of thought."""

_COLOURS: Final = ("cyan", "magenta", "bright_blue", "green")
"""Of ids, in turn: an exchange keeps its colour. Readable on dark and light backgrounds."""

_NOUNS: Final = {
    "proposal": "bold",
    "reject": "red",
    "withdraw": "yellow",
    EXPIRY: "yellow",
    "cancel": "yellow",
    "refused": "bold red",
    "progress": "dim",
    "thought": "dim",
    "stopped": "yellow",
    "join": "dim",
    "leave": "dim",
    "welcome": "dim",
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The places of the columns."""

    time: int  # the width of the time
    gap: int
    names: int  # also of what is folded below the rest
    noun: int
    said: int  # where it stands beside the rest
    width: int | None  # the terminal's; None: there is none

    @property
    def ids(self) -> int:
        """The column of the ids."""
        return self.time + self.gap

    @property
    def room(self) -> int:
        """Columns for what is said, beside the rest; 0: it stands below."""
        if self.width is None:
            return sys.maxsize
        return 0 if self.width < NARROW else self.width - self.said

    @classmethod
    def of(cls, width: int | None) -> Columns:
        """The columns for a terminal of some width."""
        if width is not None and width < NARROW:
            time, names, gap = 8, min(max(width - BESIDE_NAMES, NARROWEST), 19), 1
        else:
            time, names, gap = (12, 23, 2) if width is None or width >= WIDE else (8, 21, 1)
        at_names = time + IDS + 2 * gap
        at_noun = at_names + names + gap
        return cls(time, gap, at_names, at_noun, at_noun + NOUN + gap, width)


class TimelineEntry(NamedTuple):
    """An envelope with its exchange and its words."""

    envelope: Envelope
    observation: Observation
    words: FormattedEnvelope
    ids: str  # as they are shown
    colour: str


class Timeline:
    """Makes the lines."""

    def __init__(
        self,
        width: Callable[[], int | None],
        glyphs: Glyphs,
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        self._width = width
        self._glyphs = glyphs
        self._now = now
        self._observer = ExchangeObserver()
        self._thoughts: TTLMap[tuple[str, str], int] = recent()
        self._short_ids = ShortIds()

    def observe(self, envelope: Envelope, at: float) -> TimelineEntry:
        """Take the next envelope in, in the gateway's order, whether or not it is shown."""
        try:
            observation, words = self._observer.observe(envelope, at), format_envelope(envelope)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            # Not every gateway checks what it lets through.
            observation = Observation(envelope.id)
            kind, who = visible(envelope.kind, MAX_NAME), visible(envelope.sender, MAX_NAME)
            words = FormattedEnvelope(kind, UNREADABLE, who=who)
        if envelope.context and envelope.kind in REASONING:
            words = self._counted(envelope, words, at)
        return TimelineEntry(envelope, observation, words, *self._short_ids.of(observation, at))

    def _counted(
        self, envelope: Envelope, words: FormattedEnvelope, at: float
    ) -> FormattedEnvelope:
        """Count the thoughts of a line of thought; its end says how many there were."""
        assert envelope.context is not None
        key = (envelope.sender, envelope.context)
        count = self._thoughts.get(key, at) or 0
        if envelope.kind == kinds.REASONING_THOUGHT:
            self._thoughts.put(key, count + 1, at)
            return words
        told = f"({counted(count, 'thought')})" if count else ""
        return words._replace(said=f"{words.said} {told}".strip())

    def expiry(self, proposal: Envelope, at: float) -> TimelineEntry:
        """A proposal that has expired, of which no envelope tells."""
        key = ProposalKey(proposal.sender, proposal.id)
        observation = self._observer.expire(key, at)
        words = format_envelope(proposal)._replace(noun=EXPIRY)
        return TimelineEntry(proposal, observation, words, *self._short_ids.of(observation, at))

    def line(self, entry: TimelineEntry) -> Text:
        """The line for an envelope, or the lines where it has no room on one."""
        _, observation, words, ids, colour = entry
        columns = Columns.of(self._width())
        names = f"{words.who} {self._glyphs.arrow} {words.whom}" if words.whom else words.who
        style = "dim" if observation.state == AGAIN else _NOUNS.get(words.noun, "")
        noun, text = words.noun, _with_what_happened(words.said, observation)
        if columns.width is not None and cell_len(noun) > NOUN:
            # A kind that has no noun of its own, and whose beginning says less than its end.
            noun, text = noun.rpartition("/")[2], f"{noun} {text}".rstrip()
        said = Text(text, style="red" if words.failed else "")
        if observation.state == AGAIN:
            said.stylize("dim")
        if words.progress is not None:
            said = Text.assemble(self._bar(words.progress), " ", said)
            said.rstrip()
        state = Text(observation.state, style=STATE_STYLES.get(observation.state, "dim"))
        row = self._head(columns, names, noun, style, ids, colour)
        _put_said(row, said, state, columns)
        return row.text()

    def note(self, who: str, noun: str, said: str, *, style: str = "dim") -> Text:
        """A line, or more, about what is no envelope; ``said`` was escaped by the caller."""
        columns = Columns.of(self._width())
        row = self._head(columns, who, noun, style)
        _put_said(row, Text(said), Text(), columns)
        return row.text()

    def _head(
        self, columns: Columns, names: str, noun: str, style: str, ids: str = "", colour: str = ""
    ) -> RowBuilder:
        """Time, ids, participants and noun: the columns on the left."""
        row = RowBuilder(columns.width)
        now = self._now()
        milliseconds = f".{now.microsecond // 1000:03d}"
        row.put(Text(f"{now:%H:%M:%S}{milliseconds}"[: columns.time], style="dim"), 0)
        row.put(Text(ids, style=colour), columns.ids)
        beside_ids = max(columns.names, row.used + columns.gap)
        fits = beside_ids + cell_len(names) + columns.gap <= columns.noun
        row.put(Text(names), beside_ids if fits or columns.width is None else columns.names)
        row.put(Text(noun, style=style), max(columns.noun, _after(row, columns)))
        return row

    def _bar(self, progress: ProgressFigures) -> Text:
        """A progress as a bar and in figures."""
        if progress.total is None or progress.total <= 0:
            return Text(f"{progress.done:g}")
        share = min(max(progress.done / progress.total, 0.0), 1.0)
        done = round(share * BAR)
        bar = Text(self._glyphs.done * done, style="green")
        bar.append(self._glyphs.left * (BAR - done), style="dim")
        return bar.append(f" {progress.done:g}/{progress.total:g}", style="")


def _after(row: RowBuilder, columns: Columns) -> int:
    """The next column on a line that never ends."""
    return row.used + columns.gap if columns.width is None else 0


def _put_said(row: RowBuilder, said: Text, state: Text, columns: Columns) -> None:
    """Put what is said beside the rest where it has room there, else below; and the state."""
    room = columns.room
    with_state = said.cell_len + (state.cell_len + 2 if state else 0)
    if with_state <= room:
        row.put(said, max(columns.said, _after(row, columns)))
        row.put_right(state)
        return
    if room < HANGING:
        row.put_right(state)
        if said:
            row.end_line()
            row.put(said, columns.names)
        return
    beside, *below = folded(said, room, first=room - (state.cell_len + 2 if state else 0))
    row.put(beside, columns.said)
    row.put_right(state)
    for part in below:
        row.end_line()
        row.put(part, columns.said)


def _with_what_happened(said: str, observation: Observation) -> str:
    """An envelope in words, with the meaning that earlier envelopes give it."""
    if observation.edited:
        return f"{said} (edited)"
    if observation.rejection is not None and observation.state == REJECTED:
        by, why = (
            visible(each, MAX_NAME)
            for each in (observation.rejection.by, observation.rejection.reason)
        )
        return f"{said}, since {by} rejected it: {why}"
    return said


class ShortIds:
    """Short forms of ids that differ where the ids do, and a colour for each exchange."""

    def __init__(self) -> None:
        self._shorts: TTLMap[str, str] = recent()
        self._taken: TTLMap[str, str] = recent()
        self._colours: TTLMap[str, str] = recent()
        self._next = 0

    def of(self, observation: Observation, at: float) -> tuple[str, str]:
        """The ids of an exchange and of its request, shortened, and the exchange's colour."""
        if not observation.exchange:
            return "", ""
        ids = "/".join(
            self._short(name, at) for name in (observation.exchange, observation.part) if name
        )
        return ids, self._colour(observation.exchange, at)

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
