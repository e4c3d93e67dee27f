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

import heapq
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from itertools import count, cycle
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from rich.cells import cell_len
from rich.text import Text

from meup_agent.causes import Reason
from meup_agent.cli.render.formatting import (
    EXPIRY,
    MAX_FOLLOWED,
    NARROW,
    NARROWEST,
    NOUNS,
    STATE_STYLES,
    FormattedEnvelope,
    Glyphs,
    IdPrefixes,
    ProgressFigures,
    RowBuilder,
    counted,
    folded,
    format_envelope,
)
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.protocol.audit import IGNORED_DROPS, Ignored
from meup_agent.protocol.capability import compile_kind
from meup_agent.protocol.exchange import Drop, ExchangeTable
from meup_agent.protocol.proposals import (
    UNPERMITTED,
    Folded,
    ProposalEntry,
    ProposalEvent,
    ProposalKey,
    ProposalState,
    last_moment,
)
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import TRANSIT_SECONDS, Envelope, microseconds
from meup_agent.protocol.wire.outcomes import Rejection
from meup_agent.protocol.wire.payloads import (
    EDITED,
    PROGRESS_TOKEN,
    changes,
    is_failure,
    is_refusal,
    read_call,
)
from meup_agent.protocol.wire.ttl_map import TTLMap
from meup_agent.wording import FAILED, IGNORED, STATES, shown_name, state_name

if TYPE_CHECKING:
    from meup_agent.client.space import Space


# --- exchange observer ---
# The exchange and the state of each envelope, as `meup tail` shows them.
#
# An exchange table decides what each does to a proposal, as in every participant. Added here are
# requests without a proposal, which no record keeps, and envelopes that were sent again.

FOLLOWED_SECONDS: Final = 3600.0
"""Time for which they are: as long as the exchange table remembers a proposal."""

AGAIN: Final = IGNORED[Ignored.AGAIN]
TOO_LATE: Final = IGNORED[Ignored.LATE]
REFUSED: Final = "refused"
REJECTED: Final = "rejected"

_ENDS: Final = (kinds.MCP_RESPONSE, kinds.MCP_REJECT, kinds.MCP_WITHDRAW)
"""Kinds that end something, and are sent again with other ids."""


def recent() -> TTLMap[Any, Any]:
    """A map that remembers what a person still follows."""
    return TTLMap(count=MAX_FOLLOWED, seconds=FOLLOWED_SECONDS)


class Observation(NamedTuple):
    """An envelope in its exchange."""

    exchange: str = ""  # the id of the proposal, where there is one
    part: str = ""  # the id of the request; empty where that is the exchange itself
    state: str = ""  # of the exchange now; empty where there is nothing to say
    edited: bool = False  # it requests something else than was proposed, or says so
    rejection: Rejection | None = None  # that a withdrawal takes for an answer


class ExchangeObserver:
    """Places every envelope of a space, in the gateway's order."""

    def __init__(self) -> None:
        ids = count()
        self._table = ExchangeTable(
            new_id=lambda: f"observer-{next(ids)}",
            find_handler=lambda _role, _envelope, _call: None,
        )
        # Where each envelope belongs, and each request by the JSON-RPC id of its sender.
        self._parts: TTLMap[str, Observation] = recent()
        self._calls: TTLMap[tuple[str, str], Observation] = recent()
        self._seen: TTLMap[tuple[str, str, int], bool] = recent()
        self._open: TTLMap[tuple[str, str], bool] = recent()

    def observe(self, envelope: Envelope, now: float) -> Observation:
        """Take the next envelope in."""
        self._table.expire(now)
        drops = (each for each in self._table.receive(envelope, now) if isinstance(each, Drop))
        found = (IGNORED_DROPS[each.why] for each in drops if each.why in IGNORED_DROPS)
        folded, ignored = self._table.folded, next(found, None)
        place = self._place(envelope, now)
        part = place.part
        shown = place._replace(part="" if part == place.exchange else part)
        if self._was_seen(envelope, now):
            return shown._replace(state=AGAIN)
        if ignored is None or ignored in (Ignored.AGAIN, Ignored.REFUSED):
            state = self._state(envelope, part, folded, now)  # those two are told by their content
        else:
            state = IGNORED[ignored]
        is_edited = _is_edited(envelope, folded)
        return shown._replace(state=state, edited=is_edited, rejection=folded.rejection)

    def expire(self, proposal: ProposalKey, now: float) -> Observation:
        """Note that a proposal has expired, of which no envelope tells."""
        record = self._table.proposal_store.get(proposal, now)
        if record is not None and record.state is ProposalState.PENDING:
            record.step(ProposalEvent.EXPIRY, "", Reason.TIMEOUT)
        known = self._parts.get(proposal.id, now)
        exchange = proposal.id if known is None else known.exchange
        return Observation(exchange, state=STATES[ProposalState.EXPIRED])

    # --- which exchange ---

    def _was_seen(self, envelope: Envelope, now: float) -> bool:
        """True if an envelope repeats an earlier one, as after a reconnect (PROTOCOL 4.14).

        What begins something is sent again under its id, which some senders use again for something
        else; ends are sent again under ids of their own.
        """
        is_end = envelope.kind in _ENDS or _is_cancel(envelope)
        content = hash((envelope.kind, envelope.correlation, envelope.raw_payload))
        mark = (envelope.sender, "" if is_end else envelope.id, content)
        if not envelope.id or self._seen.get(mark, now) is None:
            self._seen.put(mark, True, now)
            return False
        return True

    def _place(self, envelope: Envelope, now: float) -> Observation:
        """The exchange that an envelope belongs to, and its request."""
        if envelope.kind in (kinds.SYSTEM_WELCOME, kinds.SYSTEM_PRESENCE):
            return Observation()
        refers_to = _refers_to(envelope)
        found = next(filter(None, (self._parts.get(name, now) for name in refers_to)), None)
        if found is None and refers_to and not envelope.correlation:
            # A cancel names the request by the JSON-RPC id of its sender (PROTOCOL 4.8).
            found = self._calls.get((envelope.sender, refers_to[0]), now)
        if found is None:
            found = Observation(refers_to[0] if refers_to else envelope.id)
        if envelope.kind == kinds.MCP_REQUEST and not _is_notification(envelope):
            found = found._replace(part=envelope.id)
            rpc_name = read_call(envelope.payload).rpc_name
            if rpc_name is not None:
                self._calls.put((envelope.sender, rpc_name), found, now)
        self._parts.put(envelope.id, found, now)
        return found

    # --- its state ---

    def _state(self, envelope: Envelope, part: str, folded: Folded, now: float) -> str:
        key = (envelope.sender, part)
        match envelope.kind:
            case kinds.MCP_REQUEST if _is_notification(envelope):
                return self._end(key, "cancelled", now) if _is_cancel(envelope) else ""
            case kinds.MCP_REQUEST:
                self._open.put(key, True, now)
                return _state_of(folded.record)
            case kinds.MCP_RESPONSE:
                return self._state_after_response(envelope, part, folded, now)
            case kinds.MCP_REJECT:
                return REJECTED if folded.was_pending else TOO_LATE
            case kinds.MCP_PROPOSAL | kinds.MCP_WITHDRAW | kinds.MCP_REPORT:
                return _state_of(folded.record)
            case _:
                return ""

    def _end(self, request: tuple[str, str], how: str, now: float) -> str:
        """End a request; the word for it, empty for a request that was never seen."""
        was_open = self._open.get(request, now)
        if was_open is None:
            return ""
        self._open.put(request, False, now)
        return how if was_open else TOO_LATE

    def _state_after_response(
        self, response: Envelope, part: str, folded: Folded, now: float
    ) -> str:
        ends = [self._end((name, part), "", now) for name in response.to]
        record = folded.record
        if record is not None and folded.was_pending and not record.state.is_pending:
            return _state_of(record)
        if is_refusal(response.payload):
            return REFUSED
        if TOO_LATE in ends:
            return TOO_LATE
        return FAILED if is_failure(response.payload) else _state_of(record)


def _state_of(record: ProposalEntry | None) -> str:
    if record is None:
        return ""
    ran_anyway = record.report is not None and record.state in UNPERMITTED
    return state_name(record.state, failed=record.has_failed, ran_anyway=ran_anyway)


def _is_edited(envelope: Envelope, folded: Folded) -> bool:
    if envelope.kind != kinds.MCP_REQUEST or _is_notification(envelope):
        return False
    call = read_call(envelope.payload)
    if call.meta.get(EDITED) is True:
        return True
    if folded.record is None or folded.fulfillment is None:
        return False
    executor = envelope.to[0] if len(envelope.to) == 1 else None
    return bool(changes(folded.record.call, call, executor))


def _refers_to(envelope: Envelope) -> tuple[str, ...]:
    """The ids that an envelope refers to; a cancel may say it in its payload only."""
    if envelope.context:  # as a thought has
        return (*envelope.correlation, envelope.context)
    if envelope.correlation or not _is_notification(envelope):
        return envelope.correlation
    params = read_call(envelope.payload).params
    named = params.get("requestId", params.get(PROGRESS_TOKEN))
    return (str(named),) if isinstance(named, int | str) else ()


def _is_cancel(envelope: Envelope) -> bool:
    return _is_notification(envelope) and read_call(envelope.payload).method == kinds.CANCELLED


def _is_notification(envelope: Envelope) -> bool:
    return envelope.kind == kinds.MCP_REQUEST and read_call(envelope.payload).is_notification


# --- expiries on a timeline ---
# No envelope tells of them, the gateway's clock does (PROTOCOL 4.2).

MAX_WATCHED: Final = 10_000
"""Proposals whose expiry is waited for; of more, those with the latest deadlines are left out."""

LOOK_SECONDS: Final = 1.0
"""Until the next look at one that should have expired: what was missed may still be read."""


class ExpiryWatch:
    """The proposals that a timeline has shown, and the time at which the next may have expired.

    The space's own record says whether one has: it knows what is still to be read.
    """

    def __init__(self, space: Space) -> None:
        self._feed = ProposalFeed(space)
        self._waiting: list[tuple[float, int, ProposalEntry]] = []
        self._order = count()

    def add(self, envelope: Envelope) -> None:
        """Take note of a proposal."""
        if envelope.kind == kinds.MCP_PROPOSAL:
            record = self._feed.get(ProposalKey(envelope.sender, envelope.id))
            if record is not None:
                self._look_later(record, 0.0)

    def _look_later(self, record: ProposalEntry, least: float) -> None:
        # The space may have seen it expire before its envelope was shown.
        is_open = record.state.is_pending or record.state is ProposalState.EXPIRED
        if record.expires_at is None or not is_open:
            return
        left = last_moment(record.expires_at) - microseconds(self._feed.time_of_day)
        seconds = max(left / 1_000_000 + TRANSIT_SECONDS, least)
        if len(self._waiting) >= MAX_WATCHED:
            self._waiting.remove(max(self._waiting))
            heapq.heapify(self._waiting)
        heapq.heappush(self._waiting, (self._feed.now + seconds, next(self._order), record))

    @property
    def next_look(self) -> float:
        """The time of the loop's clock at which :meth:`pop` has something to do."""
        return self._waiting[0][0] if self._waiting else math.inf

    def pop(self) -> list[ProposalEntry]:
        """The proposals that have expired since the last call."""
        expired: list[ProposalEntry] = []
        while self._waiting and self._waiting[0][0] <= self._feed.now:
            _, _, record = heapq.heappop(self._waiting)
            if record.state is ProposalState.EXPIRED:
                expired.append(record)
            else:
                # Renewed, in progress, or what was missed is still being read.
                self._look_later(record, LOOK_SECONDS)
        return expired


# --- a space as a timeline ---

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
        self._ids = IdPrefixes(SHORT_ID, WHOLE_ID)
        self._colours: TTLMap[str, str] = recent()
        self._next_colours = cycle(_COLOURS)

    def observe(self, envelope: Envelope, at: float) -> TimelineEntry:
        """Take the next envelope in, in the gateway's order, whether or not it is shown."""
        try:
            observation, words = self._observer.observe(envelope, at), format_envelope(envelope)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            # Not every gateway checks what it lets through.
            observation = Observation(envelope.id)
            kind, who = shown_name(envelope.kind), shown_name(envelope.sender)
            words = FormattedEnvelope(kind, UNREADABLE, who=who)
        if envelope.context and envelope.kind in REASONING:
            words = self._counted(envelope, words, at)
        return self._entry(envelope, observation, words, at)

    def _entry(
        self, envelope: Envelope, observation: Observation, words: FormattedEnvelope, at: float
    ) -> TimelineEntry:
        """The entry, with the short ids of its exchange and request, and the exchange's colour."""
        exchange = observation.exchange
        if not exchange:
            return TimelineEntry(envelope, observation, words, "", "")
        names = [shown_name(each) for each in (exchange, observation.part) if each]
        # One after the other: what the first is called is settled when the second comes.
        ids = "/".join(self._ids.of([each])[each] for each in names)
        colour = self._colours.get(exchange, at) or next(self._next_colours)
        self._colours.put(exchange, colour, at)
        return TimelineEntry(envelope, observation, words, ids, colour)

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
        return self._entry(proposal, observation, words, at)

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
        """A line, or more, about what is not an envelope; ``said`` was escaped by the caller."""
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
            shown_name(each) for each in (observation.rejection.by, observation.rejection.reason)
        )
        return f"{said}, since {by} rejected it: {why}"
    return said


# --- timeline filter ---
# The filter of `meup tail`: by kind, by participant, or all of one exchange.
#
# Everything is looked at first, and only then left out, so that an exchange is followed also
# through envelopes that are not shown.

GATEWAY: Final = "gateway"  # the gateway in a filter, as on the timeline, whatever it calls itself

PATTERN: Final = frozenset("*?[{!()|^$\\")
"""Characters of patterns; what has none of them is meant as it stands."""


def suggest_kinds(words: Iterable[str]) -> list[str]:
    """Remarks on kinds that are unknown, but close to one that is known."""
    known = [*NOUNS, *kinds.KINDS, *map(kinds.dotted, kinds.KINDS)]
    strange = [word for word in words if word not in known and not PATTERN.intersection(word)]
    return [
        f"no kind is called {shown_name(word)!r}, as far as is known (did you mean {name}?)"
        for word in strange
        for name in get_close_matches(word, known, n=1)
    ]


class TimelineFilter:
    """Lets the envelopes through that fit every choice that was made.

    A kind is a pattern as in capabilities, or a word of the timeline such as ``cancel``; ``who``
    sends, is addressed, comes or goes; ``about`` is what an :class:`ExchangeFilter` wants. With
    ``fold``, thoughts are shown only where their kind or their exchange was asked for: the end of
    a line of thought counts them.
    """

    def __init__(
        self,
        *,
        kind: Iterable[str] = (),
        sender: Iterable[str] = (),
        to: Iterable[str] = (),
        who: Iterable[str] = (),
        about: str | None = None,
        fold: bool = False,
    ) -> None:
        self._fold = fold
        self._words = frozenset(kind)
        self._kinds = [compile_kind(pattern, place="--kind") for pattern in self._words]
        self._sender, self._to, self._who = frozenset(sender), frozenset(to), frozenset(who)
        self.chain = None if about is None else ExchangeFilter(about)

    def shows(self, entry: TimelineEntry) -> bool:
        """True if an envelope is shown; to be asked once for each, in the gateway's order."""
        envelope, noun = entry.envelope, entry.words.noun
        is_thought = envelope.kind == kinds.REASONING_THOUGHT and envelope.context is not None
        if self._fold and self.chain is None and not self._kinds and is_thought:
            return False
        sender, to = {envelope.sender}, {*envelope.to}
        if envelope.sender in kinds.GATEWAY_NAMES:
            sender.add(GATEWAY)
        who = sender | to
        if envelope.kind == kinds.SYSTEM_PRESENCE:
            who.add(entry.words.who)  # that came or went
        return (
            (self.chain is None or self.chain.holds(entry.observation))
            and (
                not self._kinds
                or noun in self._words
                or any(fits(envelope.kind) for fits in self._kinds)
            )
            and (not self._sender or bool(self._sender & sender))
            and (not self._to or bool(self._to & to))
            and (not self._who or bool(self._who & who))
        )


@dataclass(slots=True)
class ExchangeFilter:
    """All of one exchange.

    Wanted by how its id begins, or that of a request in it; or by both, with a slash in between,
    as the timeline has them.
    """

    wanted: str
    exchange: str = ""
    other: str = ""  # the first other one that fits

    def holds(self, observation: Observation) -> bool:
        """True if an envelope belongs to it; the first that fits decides on the exchange."""
        if not observation.exchange:
            return False
        if observation.exchange != self.exchange:
            if self.wanted in (observation.exchange, observation.part):
                self.exchange = observation.exchange  # the whole id: no other can be meant
            elif self._begins(observation):
                if self.exchange:
                    self.other = self.other or observation.exchange
                else:
                    self.exchange = observation.exchange
        return observation.exchange == self.exchange

    def _begins(self, observation: Observation) -> bool:
        if observation.exchange.startswith(self.wanted) or observation.part.startswith(self.wanted):
            return True
        exchange, _, part = self.wanted.partition("/")
        return bool(part) and (
            observation.exchange.startswith(exchange) and observation.part.startswith(part)
        )
