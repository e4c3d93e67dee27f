"""State that the parts of an exchange table share: mode, clocks, timers, resume cursor."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meup_agent.protocol.exchange.effects import (
    Drop,
    Effect,
    Gap,
    Key,
    Priority,
    Role,
    Send,
    Unsend,
)
from meup_agent.protocol.proposals import (
    NOTHING,
    Folded,
    ProposalEntry,
    ProposalFold,
    ProposalState,
    ProposalStore,
    state_at,
)
from meup_agent.protocol.roster import Roster
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import (
    TRANSIT_SECONDS,
    Envelope,
    FrozenStruct,
    draft,
    microseconds,
    read_moment,
)
from meup_agent.protocol.wire.payloads import Call, JsonObject
from meup_agent.protocol.wire.ttl_map import Tombstones, TTLMap, size_of

if TYPE_CHECKING:
    from meup_agent.protocol.wire.membership import Missed


# --- our own envelopes ---
# Made and sent, told from forgeries, and sent again (PROTOCOL 4.14).

RESEND_SECONDS = 300.0
"""Time for which what may have to be sent again after a reconnect is kept."""

RESEND_COUNT = 1000
"""Withdrawals, cancellations, rejections and responses kept to send again after a reconnect."""

RESEND_SIZE = 16 * 1024 * 1024
"""Bytes of them."""

MAX_COPIES = 8
"""Copies of a rejection or withdraw that its words name: those that missed it know a copy alone."""

OWN_IDS = 10_000
"""Ids of our own that are remembered, to tell an echo from a forgery."""

OWN_ID_SECONDS = 600.0
"""Time that an echo may take; longer than any reconnect that is still useful."""


class Resendable(FrozenStruct):
    """An envelope that may have to be sent again."""

    envelope: Envelope
    priority: Priority
    concerned: frozenset[str]  # the participants that need it when they join; empty: each that does
    repeated: bool = False  # it was sent once more because the gateway had thrown us out
    words: Envelope | None = None  # the chat that explains it
    copies: tuple[str, ...] = ()  # the ids under which it was sent again, the latest ones


class EnvelopeSender:
    """Makes this participant's envelopes and sends them, also again; without a clock, undated."""

    def __init__(
        self,
        new_id: Callable[[], str],
        wall_clock: Callable[[], datetime] | None,
        effects: list[Effect],
    ) -> None:
        self.new_id = new_id
        self._wall_clock = wall_clock
        self.me = ""
        self.now = 0.0  # the time of the present event
        self.copies_get_new_ids = False
        """A gateway that resumes delivers no id twice, so what is sent again needs another one."""
        self._effects = effects
        # What ends or answers something, by its first id; and that id by those of its copies.
        self._kept: TTLMap[str, Resendable] = TTLMap(
            count=RESEND_COUNT, seconds=RESEND_SECONDS, size=RESEND_SIZE
        )
        self._copies: TTLMap[str, str] = TTLMap(count=RESEND_COUNT, seconds=RESEND_SECONDS)
        self._own: TTLMap[str, bool] = TTLMap(count=OWN_IDS, seconds=OWN_ID_SECONDS)
        self._siblings: TTLMap[str, bool] = TTLMap(count=OWN_IDS, seconds=OWN_ID_SECONDS)

    # --- once ---

    def send(
        self,
        kind: str,
        payload: Any,
        *,
        priority: Priority,
        to: Iterable[str] = (),
        correlation: Iterable[str] = (),
        concerned: Iterable[str] | None = None,
        context: str | None = None,
    ) -> Envelope:
        """Make an envelope and send it; again when one that it ``concerned``, or any, joins."""
        about = tuple(correlation)
        explained = self._explained(about) if kind == kinds.CHAT else None
        if explained is not None:  # by each id under which it may be known
            about = (*about, *explained.copies)
        envelope = draft(
            kind,
            payload,
            id=self.new_id(),
            sender=self.me,
            to=tuple(to),
            correlation=about,
            context=context,
            ts=self._timestamp(),
        )
        self.transmit(envelope, priority)
        if concerned is not None:
            self._keep(Resendable(envelope, priority, frozenset(concerned)))
        if explained is not None and explained.words is None:
            self._keep(msgspec.structs.replace(explained, words=envelope))
        return envelope

    def _explained(self, about: tuple[str, ...]) -> Resendable | None:
        """The rejection or withdraw of ours that a chat explains, while it may be sent again."""
        item = self._kept.get(about[0], self.now) if len(about) == 1 else None
        return item if item and item.envelope.kind in kinds.DECISIONS else None

    def transmit(self, envelope: Envelope, priority: Priority, *, again: bool = False) -> None:
        self._own.put(envelope.id, True, self.now)
        self._effects.append(Send(envelope, priority, again))

    def date(self, envelope: Envelope) -> Envelope:
        """The envelope with the time of day, which it keeps when it is sent again."""
        ts = None if envelope.ts is not None else self._timestamp()
        return envelope if ts is None else envelope.replace(ts=ts)

    def _timestamp(self) -> str | None:
        if self._wall_clock is None:
            return None
        # UTC, whose offset is written as six characters: a slice costs less than a search.
        return self._wall_clock().isoformat(timespec="milliseconds")[:-6] + "Z"

    # --- ids under our name ---

    def note_sent(self, envelope_id: str) -> None:
        """Count the time of an echo from here: the envelope may have waited long to leave."""
        self._own.put(envelope_id, True, self.now)

    def is_own(self, envelope_id: str) -> bool:
        return self._own.get(envelope_id, self.now) is not None

    def note_sibling(self, envelope: Envelope) -> None:
        """Remember an envelope that another process sent under our name."""
        self._siblings.put(envelope.id, envelope.kind in kinds.BEGINNINGS, self.now)

    def is_from_sibling(self, names: Iterable[str]) -> bool:
        """True if one of these envelopes was sent by another process under our name."""
        return any(self._siblings.get(name, self.now) is not None for name in names)

    def is_begun_by_sibling(self, names: Iterable[str]) -> bool:
        """True if one of these is a request or proposal of another process under our name."""
        return any(self._siblings.get(name, self.now) for name in names)

    # --- again ---

    def _keep(self, item: Resendable) -> None:
        words = 0 if item.words is None else size_of(item.words)
        self._kept.put(item.envelope.id, item, self.now, size=size_of(item.envelope) + words)

    def resend_to(self, participants: Iterable[str]) -> None:
        """Send what concerns these participants once more, oldest first."""
        joined = frozenset(participants)
        for item in self._kept.values(self.now) if joined else ():
            if not item.concerned or item.concerned & joined:
                self._resend(item)

    def resend(self, envelope_id: str) -> None:
        """Send one envelope once more, if it is still kept."""
        item = self._kept.get(envelope_id, self.now)
        if item is not None:
            self._resend(item)

    def _resend(self, item: Resendable) -> None:
        envelope = item.envelope
        if self.copies_get_new_ids:
            envelope = envelope.replace(id=self.new_id())
            if item.copies:
                # Connections that end before it leaves would else queue one copy each.
                self.take_back(item.copies[-1])
            self._copies.put(envelope.id, item.envelope.id, self.now)
            copies = (*item.copies, envelope.id)[-MAX_COPIES:]
            self._keep(msgspec.structs.replace(item, copies=copies))
        self.transmit(envelope, item.priority, again=True)
        words = item.words
        if words is not None:  # who missed it has missed them, too
            if self.copies_get_new_ids:
                about = (envelope.id, item.envelope.id)
                words = words.replace(id=self.new_id(), correlation=about)
            self.transmit(words, Priority.TALK, again=True)

    def take_back(self, envelope_id: str) -> None:
        """Do not send an envelope that has not left, or may have been lost: another replaces it."""
        self._effects.append(Unsend(envelope_id))

    def resend_once(self, envelope_id: str) -> bool:
        """Send again what the gateway refused as it threw us out; once only, not for ever."""
        item = self._kept.get(envelope_id, self.now)
        if item is None or item.repeated:
            return False
        self._keep(msgspec.structs.replace(item, repeated=True))
        self.transmit(item.envelope, item.priority, again=True)
        return True

    def forget(self, envelope_id: str) -> Envelope | None:
        """Do not send an envelope, or what it copies, again; that, if it was kept."""
        item = self._kept.pop(self._copies.peek(envelope_id) or envelope_id)
        return None if item is None else item.envelope


# --- table context ---

ABSENCE_SECONDS = 30.0
"""Absence of a participant after which its requests, and waits for it, end (PROTOCOL 4.6)."""

EXPIRIES: Final = Key("job", "", "expiries")
"""Stands among the exchanges to look at again for the deadlines of all proposals."""

CONTROL: Final = Key("job", "", "control")
"""Stands there for the end of a pause, and of the grace of a shutdown."""

_SHORTEST: Final = 0.001
# Seconds until an expiry is looked at again: two clocks may round a moment otherwise.

FindHandler = Callable[[Role, Envelope, Call | None], object]
"""Finds the handler for an envelope in a role, once a message; something false: there is none.

The call is a request's or proposal's. The result is opaque to the table: it comes back in
``Work.handler``."""


class Mode(Enum):
    """The part that a session takes in its space (PROTOCOL 3)."""

    PARTICIPATING = "participating"
    BESIDE = "beside"
    """It sends, and answers what it is asked about its own exchanges; else it starts no handler."""
    OBSERVING = "observing"
    """It reads what is for all, and sends nothing."""

    @property
    def answers(self) -> bool:
        """True if it answers for its participant: starts handlers, rejects, acknowledges."""
        return self is Mode.PARTICIPATING


class ResumeCursor:
    """Our position in the order of a gateway that numbers its envelopes (PROTOCOL 6)."""

    def __init__(self) -> None:
        # The number of the last envelope that we have read; ``None``: none has had any.
        self.seq: int | None = None
        self.at = 0.0  # the time at which that was
        self.away = 0.0  # seconds from then to the welcome of this connection
        # The last number of what we missed; ``None``: we have read it.
        self.until: int | None = None
        self.complete = False  # this connection continues what we had read, and nothing is lost
        self.gap: Gap | None = None  # the gap on this connection, if there is one
        self.missed = 0  # envelopes that came on this connection for what we missed

    def begin(
        self, missed: Missed | None, seq: int | None, now: float, wall: datetime | None
    ) -> None:
        """Begin a connection by its welcome; without ``missed`` the gateway does not resume."""
        before, self.until, self.gap, self.missed = self.seq, None, None, 0
        self.away, self.complete = now - self.at, False
        if missed is None or seq is None:
            self.seq = None
        elif not missed.resumed or before is None:
            # The welcome is for us alone, and has the number of the last envelope before it.
            self.seq, self.at = seq, now
        else:
            if missed.gap:
                since = None if wall is None else wall - timedelta(seconds=self.away)
                self.gap = Gap(since, self.away, before)
            # The replay follows the number that the welcome has.
            self.seq, self.complete = seq, self.gap is None
            if missed.until > seq:
                self.until = missed.until

    def advance(self, seq: int, now: float) -> bool:
        """Note the number of an envelope; ``False`` if we have read that before."""
        last = self.seq
        if last is None:
            return True
        if seq <= last:
            return False
        self.seq, self.at = seq, now
        if self.until is not None and seq <= self.until:
            self.missed += 1
        return True


class TableContext(msgspec.Struct):
    """The state that every part of the table reads and writes."""

    envelope_sender: EnvelopeSender
    find_handler: FindHandler
    effects: list[Effect]  # the effects of the present event, in order
    proposal_store: ProposalStore
    tombstones: Tombstones  # withdraws and cancels that came before what they name
    fold: ProposalFold  # it takes envelopes into the store
    wall_clock: Callable[[], datetime] | None = None
    mode: Mode = Mode.PARTICIPATING
    me: str = ""  # our own name in the space
    roster: Roster = msgspec.field(default_factory=Roster)
    # Our position in what the gateway numbers.
    cursor: ResumeCursor = msgspec.field(default_factory=ResumeCursor)
    # Exchanges to look at again, as a heap by time.
    timers: list[tuple[float, Key]] = []
    # The earliest of these times, by exchange.
    next_looks: dict[Key, float] = {}
    now: float = 0.0  # the time of the present event, in seconds of a clock that only goes forward
    connected: bool = False  # we have been welcomed on the present connection
    # The present envelope has a number that we have not read. Our gateway gives none to a copy, but
    # for a client that does not resume, which means what it says a second time (PROTOCOL 6).
    is_new: bool = False
    # The effect of the present envelope on the proposals.
    folded: Folded = NOTHING
    closing: bool = False  # we take nothing new
    inboxes: int = 0  # inboxes from which a person decides what no handler does
    since: int | None = None  # the time of day when we began, in microseconds since 1970 (UTC)
    # Seconds from our clock to the gateway's, where the gateway is one that says it for certain.
    ahead: float | None = None
    transit: float = TRANSIT_SECONDS

    def __post_init__(self) -> None:
        """Note when we began."""
        self.since = self.moment()

    def drop(self, why: str, envelope: Envelope, *, expected: bool = False) -> None:
        """Leave an envelope out: counted, and logged if it should not happen."""
        self.effects.append(Drop(why, envelope, expected))

    def time_of_day(self) -> datetime | None:
        """The time of day in UTC, where there is a clock."""
        return None if self.wall_clock is None else self.wall_clock()

    # --- the gateway's clock ---

    def read_clock(self, stamped: Envelope) -> None:
        """Take the gateway's time from an envelope of its own that came just now.

        What is replayed was stamped long ago. Where the gateway checks no names, a participant may
        have stamped it, and our own clock is as good.
        """
        said = read_moment(stamped.ts) if self.roster.guarantees.identity_checked else None
        self.ahead = None if said is None else said / 1_000_000 - self.now

    def moment(self) -> int | None:
        """The gateway's time in microseconds since 1970, else our own; ``None``: no clock."""
        if self.ahead is not None:
            return round((self.now + self.ahead) * 1_000_000)
        wall = self.time_of_day()
        return None if wall is None else microseconds(wall)

    def state_of(self, record: ProposalEntry) -> ProposalState:
        return state_at(record.state, record.expires_at, self.moment())

    def has_declined(self, record: ProposalEntry) -> bool:
        """True if we have decided to reject a proposal, in this or another process (4.4)."""
        return self.me in record.declined_by

    @property
    def is_behind(self) -> bool:
        """True while there is more to read that the gateway has decided before this moment."""
        is_current = self.connected and self.cursor.until is None
        return self.roster.guarantees.resume and not is_current

    def watch_expiries(self) -> None:
        """Look again when the next proposal may have expired."""
        self.proposal_store.watches_more = False
        due, moment = self.proposal_store.next_expiry, self.moment()
        if due is not None and moment is not None and not self.is_behind:
            seconds = (due - moment) / 1_000_000 + self.transit
            self.look_again(self.now + max(seconds, _SHORTEST), EXPIRIES)

    def expired(self) -> list[ProposalEntry]:
        """Step the proposals that have expired, once no request that was in time is to be read.

        Where the gateway decides which request came in time, it may still be on its way to us, or
        among what we missed.
        """
        moment = self.moment()
        if moment is None or self.is_behind:
            return []
        return self.proposal_store.expire(moment - round(self.transit * 1_000_000))

    def is_older_than_us(self, envelope: Envelope) -> bool:
        """True if an envelope says that it was sent before we began; its clock may be wrong."""
        sent = read_moment(envelope.ts)
        return self.since is not None and sent is not None and sent < self.since

    def on_behalf_of(self, envelope: Envelope, payload: JsonObject) -> str:
        """The participant that an end is for: its sender, or whom a gateway that is it names."""
        checked = self.roster.guarantees.identity_checked
        return payloads.on_behalf_of(envelope.sender, payload) if checked else envelope.sender

    # --- timers ---

    def look_again(self, at: float | None, key: Key) -> None:
        """Look at an exchange at a time; too early does no harm, so no timer is taken back."""
        if at is not None and at < self.next_looks.get(key, math.inf):
            self.next_looks[key] = at
            heapq.heappush(self.timers, (at, key))

    def due(self) -> Key | None:
        """Take the next exchange off the heap, if its time has come."""
        if not self.timers or self.timers[0][0] > self.now:
            return None
        at, key = heapq.heappop(self.timers)
        if self.next_looks.get(key) == at:
            del self.next_looks[key]
        return key

    def forget_timers(self, is_open: Callable[[Key], bool]) -> None:
        """Drop the timers of exchanges that have ended."""
        self.timers[:] = sorted(timer for timer in self.timers if is_open(timer[1]))  # still a heap
        self.next_looks = {key: at for at, key in reversed(self.timers)}

    def absent_for_good(self, participants: tuple[str, ...], *, to_answer: bool) -> float | None:
        """The time at which all of these will have been away too long; ``None``: one is present."""
        ends: list[float] = []
        for participant in participants:
            since = self.roster.absent_since(participant, self.now, to_answer=to_answer)
            if since is None:
                return None
            ends.append(since + ABSENCE_SECONDS)
        return max(ends) if ends else None
