"""What the parts of an exchange table have in common."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from datetime import datetime

import msgspec

from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.effects import Drop, Effect, Key, Role
from meup_agent.protocol.exchange.envelope_sender import EnvelopeSender
from meup_agent.protocol.exchange.mode import Mode
from meup_agent.protocol.exchange.proposal_store import ProposalStore
from meup_agent.protocol.exchange.resume_cursor import ResumeCursor
from meup_agent.protocol.exchange.roster import Roster
from meup_agent.protocol.exchange.ttl_map import Tombstones
from meup_agent.protocol.payloads import Call
from meup_agent.protocol.timestamps import CLOCK_DIFFERENCE

ABSENCE_SECONDS = 30.0
"""How long somebody may be away before what they began or were to answer ends (PROTOCOL 4.6)."""

FindHandler = Callable[[Role, Envelope, Call | None], object]
"""Finds the handler for an envelope in a role, once a message; something false: there is none.

The call is a request's or proposal's. What is found is opaque to the table: it comes back in
``Work.handler``."""


class TableContext(msgspec.Struct):
    """What every part of the table knows and writes to.

    Attributes:
        envelope_sender: Makes our envelopes.
        find_handler: Finds the handler for an envelope in a role.
        effects: What is to be done, in order.
        wall_clock: Tells the time of day in UTC.
        mode: How much of the table is at work.
        roster: Who is present.
        proposal_store: The proposals seen.
        tombstones: Ends that came before what they name.
        cursor: How far we have read what the gateway numbers.
        timers: When to look at which exchange again, as a heap.
        next_looks: When each of these is looked at next.
        connected: Whether we have been welcomed on the present connection.
        closing: Whether we take nothing new.
        since: The time of day when we began, in UTC.
    """

    envelope_sender: EnvelopeSender
    find_handler: FindHandler
    effects: list[Effect]
    wall_clock: Callable[[], datetime] | None = None
    mode: Mode = Mode.PARTICIPATING
    roster: Roster = msgspec.field(default_factory=Roster)
    proposal_store: ProposalStore = msgspec.field(default_factory=ProposalStore)
    tombstones: Tombstones = msgspec.field(default_factory=Tombstones)
    cursor: ResumeCursor = msgspec.field(default_factory=ResumeCursor)
    timers: list[tuple[float, Key]] = msgspec.field(default_factory=list[tuple[float, Key]])
    next_looks: dict[Key, float] = msgspec.field(default_factory=dict[Key, float])
    connected: bool = False
    closing: bool = False
    since: datetime | None = None

    def __post_init__(self) -> None:
        """Note when we began."""
        self.since = None if self.wall_clock is None else self.wall_clock()

    def drop(self, why: str, envelope: Envelope, *, expected: bool = False) -> None:
        """Leave something out: counted, and logged if it should not happen."""
        self.effects.append(Drop(why, envelope, expected))

    @property
    def me(self) -> str:
        """Our own name in the space."""
        return self.roster.me

    def is_past(self, moment: datetime | None) -> bool:
        """Whether a moment of somebody else's clock has certainly passed (PROTOCOL 6)."""
        if moment is None or self.wall_clock is None:
            return False
        return self.wall_clock() - moment > CLOCK_DIFFERENCE

    def is_older_than_us(self, envelope: Envelope) -> bool:
        """Whether an envelope says that it was sent before we began; others' clocks may differ."""
        try:
            sent = datetime.fromisoformat(envelope.ts or "")
        except ValueError:
            return False
        return self.since is not None and sent.tzinfo is not None and sent < self.since

    def look_again(self, at: float | None, key: Key) -> None:
        """Look at an exchange when its time has come.

        Looking too early does no harm: it sees the later time, and asks for another look then.
        """
        if at is not None and at < self.next_looks.get(key, math.inf):
            self.next_looks[key] = at
            heapq.heappush(self.timers, (at, key))

    def due(self, now: float) -> Key | None:
        """The next exchange to look at, if its time has come."""
        if not self.timers or self.timers[0][0] > now:
            return None
        at, key = heapq.heappop(self.timers)
        if self.next_looks.get(key) == at:
            del self.next_looks[key]
        return key

    def absent_for_good(self, participants: tuple[str, ...], now: float) -> float | None:
        """When all of these will have been away too long; ``None`` while one is present."""
        ends: list[float] = []
        for participant in participants:
            since = self.roster.absent_since(participant, now)
            if since is None:
                return None
            ends.append(since + ABSENCE_SECONDS)
        return max(ends) if ends else None
