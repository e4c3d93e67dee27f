"""The connections in a space, by their place, and the gateway's own words to them (PROTOCOL 3).

A participant has one connection that answers, and several beside it, which take part as well. An
observer gets what all get, and sends nothing but questions. It is no member: it is not announced,
and counts for no wait. Neither takes over the connection of its participant, which may have a
running agent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import msgspec

from meup_agent.protocol.capability import Capabilities
from meup_agent.protocol.dialects import DEFAULT_DIALECT, encode
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.space.decisions import Decision
from meup_agent.protocol.space.fanout import DeliveryRecorder, Fanout
from meup_agent.protocol.space.journal import Entry, Fact, Journal, ProposalChange
from meup_agent.protocol.space.subscriber import Place, Subscriber
from meup_agent.protocol.timestamps import rfc3339

CROWDED_CODE: Final = 1013
"""Close code for a connection of a participant that has as many in that place as it may."""


class Member(Subscriber, Protocol):
    """A participant's connection at the gateway."""

    @property
    def participant(self) -> str:
        """The participant whose connection it is."""
        ...

    @property
    def last_seen(self) -> int | None:
        """The number of the last envelope that it got before; ``None``: it does not resume."""
        ...

    @property
    def place(self) -> Place:
        """Its part in the space."""
        ...


class Backpressure(Protocol):
    """Tells senders to wait while queues of slow readers are filling."""

    @property
    def filling(self) -> bool:
        """True while a queue is filling that is worth waiting for."""
        ...

    @property
    def patience(self) -> float:
        """Seconds for which senders wait for one reader at most."""
        ...

    def wait(self, sender: str) -> float:
        """Seconds for which a heavy sender waits before it asks again; 0: it need not."""
        ...


class Recorder(DeliveryRecorder, Protocol):
    """Records what passes through a space, where a gateway is asked to."""

    def decided(
        self,
        space: str,
        participant: str,
        frame: bytes,
        decision: Decision,
        capabilities: Capabilities,
        transport: str,
    ) -> None:
        """Record a frame of a member, and what was decided about it."""


class _NoBackpressure:
    """No sender waits: full queues are closed."""

    filling = False
    patience = 0.0

    def wait(self, sender: str) -> float:
        return 0.0


NO_BACKPRESSURE: Final[Backpressure] = _NoBackpressure()


class ConnectionGroups:
    """Connections in one place, of which a participant may have several.

    Args:
        what: Them, for the participant that may have no more.
        limit: The most of one participant.
        name: The name of that limit.
    """

    def __init__(self, what: str, limit: int, name: str) -> None:
        self.limit: Final = limit
        self.crowded: Final = f"the participant has {limit} {what}, as many as it may have ({name})"
        """The reason for which one more connection of a participant is turned away."""
        self._by_participant: dict[str, dict[int, Member]] = {}
        # By identity: several connections of a participant are equal in everything else.
        self._numbers: dict[int, int] = {}
        self._added = 0

    def __len__(self) -> int:
        """The number of connections."""
        return len(self._numbers)

    def __contains__(self, member: Member) -> bool:
        """True for a connection that is one of them."""
        return id(member) in self._numbers

    @property
    def all(self) -> tuple[Member, ...]:
        """Every connection."""
        return tuple(each for group in self._by_participant.values() for each in group.values())

    def of(self, participant: str) -> tuple[Member, ...]:
        """The connections of one participant, the oldest first."""
        return tuple(self._by_participant.get(participant, {}).values())

    def is_crowded(self, participant: str) -> bool:
        """True if a participant has as many as it may."""
        return len(self._by_participant.get(participant, ())) >= self.limit

    def number_of(self, member: Member) -> int | None:
        """The number of a connection, which no other one ever gets; ``None``: it is not here."""
        return self._numbers.get(id(member))

    def add(self, member: Member) -> None:
        """Add one."""
        self._added += 1
        self._numbers[id(member)] = self._added
        self._by_participant.setdefault(member.participant, {})[self._added] = member

    def remove(self, member: Member) -> int | None:
        """Remove one; its number, ``None`` if it was not there."""
        number = self._numbers.pop(id(member), None)
        if number is not None:
            group = self._by_participant[member.participant]
            del group[number]
            if not group:
                del self._by_participant[member.participant]
        return number

    def clear(self) -> tuple[Member, ...]:
        """Remove all; the ones that were there."""
        removed = self.all
        self._by_participant.clear()
        self._numbers.clear()
        return removed


@dataclass(slots=True, eq=False)
class Announcer:
    """Sends drafts of the gateway, welcomes say, each with an id and a time of its own."""

    _space: str
    _journal: Journal
    _fanout: Fanout
    _new_id: Callable[[], str]
    _now: Callable[[], int]
    _is_here: Callable[[Member], bool]

    def stamp(self, draft: Envelope, at: int | None = None) -> Envelope:
        """A draft as an envelope, with its time, and with an id where it has none."""
        at = self._now() if at is None else at
        return msgspec.structs.replace(draft, id=draft.id or self._new_id(), ts=rfc3339(at))

    def broadcast(
        self,
        draft: Envelope,
        at: int,
        facts: tuple[Fact, ...] = (),
        then: Callable[[Entry], None] | None = None,
        changes: tuple[ProposalChange, ...] = (),
    ) -> None:
        """Send to all: the only way there is, through the journal; with facts that hold now.

        ``at`` is the time of the decision that it follows from. ``then`` is called in place of the
        delivery.
        """
        envelope = self.stamp(draft, at)
        # Encoded here, so that the journal and the fanout do not both encode it.
        frame = encode(envelope, DEFAULT_DIALECT)
        envelope = msgspec.structs.replace(envelope, protocol=DEFAULT_DIALECT, frame=frame)
        deliver = then or self._fanout.deliver
        self._journal.append(self._space, at, envelope, facts, deliver, changes)

    def notify(self, member: Member, draft: Envelope) -> None:
        """Send to one member, after everything that was decided before.

        A connection that takes over meanwhile does not get it: nothing may come before its welcome,
        and that was decided later.
        """
        self._journal.call_when_kept(partial(self.notify_now, member, self.stamp(draft)))

    def notify_now(self, member: Member, envelope: Envelope) -> None:
        """Deliver a stamped envelope to one member, if it is still here."""
        if self._is_here(member):
            self._fanout.deliver_to(member, envelope)
