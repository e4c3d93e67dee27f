"""Delivery: the connections in a space, and what each of them is handed (PROTOCOL 3).

A participant has one connection that answers, and several beside it, which take part as well. An
observer gets what all get, and sends nothing but questions. It is no member: it is not announced,
and counts for no wait. Neither takes over the connection of its participant, which may have a
running agent.

Nothing is decided here: what is handed to whom comes as messages of the space's owner
(:mod:`~meup_agent.protocol.space.link`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol

from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.space.allowance import Allowance
from meup_agent.protocol.space.counters import SpaceCounters
from meup_agent.protocol.space.decisions import Recorder
from meup_agent.protocol.space.fanout import Fanout
from meup_agent.protocol.space.journal import Entry, Journal
from meup_agent.protocol.space.link import (
    CloseMessage,
    Connection,
    DirectMessage,
    EchoMessage,
    FrameMessage,
    LinkMessage,
    StreamEndMessage,
    WelcomeMessage,
)
from meup_agent.protocol.space.subscriber import Place, Subscriber

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


class SpaceDelivery:
    """The connections in a space."""

    def __init__(
        self,
        space: str,
        journal: Journal,
        counters: SpaceCounters,
        allowance: Allowance,
        stamp: Callable[[Envelope], Envelope],
        recorder: Recorder | None = None,
    ) -> None:
        self.fanout: Final = Fanout(space, journal, counters, allowance, stamp, recorder)
        """Hands on to subscribers, which are not all members."""
        self._limits = {
            Place.BESIDE: (allowance.max_beside, "connections beside", "max_beside"),
            Place.OBSERVING: (allowance.max_observers, "observers", "max_observers"),
        }
        self._numbers = count(1)
        self._members: dict[int, Member] = {}
        # By identity: several connections of a participant are equal in everything else.
        self._connections: dict[int, Connection] = {}
        self._answering: dict[str, Member] = {}
        self._counts = Counter[tuple[str, Place]]()

    @property
    def members(self) -> tuple[Member, ...]:
        """Every connection that takes part at this moment."""
        here = self._members.values()
        return tuple([each for each in here if each.place is not Place.OBSERVING])

    @property
    def observers(self) -> int:
        """The number of observers."""
        return len(self._members) - len(self.members)

    def member(self, participant: str) -> Member | None:
        """The connection that answers for a participant, if there is one."""
        return self._answering.get(participant)

    def crowding(self, participant: str, place: Place) -> str:
        """The reason for which a participant gets no more connections in a place; empty: none."""
        most, what, name = self._limits.get(place, (None, "", ""))
        if most is None or self._counts[participant, place] < most:
            return ""
        return f"the participant has {most} {what}, as many as it may have ({name})"

    # --- coming and going -----------------------------------------------------------------

    def add(self, member: Member) -> Connection | None:
        """Take in a connection, or close it: its participant has as many as it may.

        An edge refuses it before; this is for those that pass the edge at one time.
        """
        participant, place, form = member.participant, member.place, member.form
        if crowding := self.crowding(participant, place):
            member.close(CROWDED_CODE, crowding)
            return None
        connection = Connection(
            next(self._numbers),
            participant,
            place,
            form.dialect,
            form.numbered,
            form.pack_frame is not None,
            member.last_seen,
        )
        self._members[connection.number] = member
        self._connections[id(member)] = connection
        self._counts[participant, place] += 1
        if place is Place.ANSWERING:
            self._answering[participant] = member
        return connection

    def find(self, member: Member) -> Connection | None:
        """The connection of a member; ``None``: it is not here."""
        return self._connections.get(id(member))

    def remove(self, member: Member) -> Connection | None:
        """Deliver nothing more to a member; its connection, ``None`` if it was not here."""
        connection = self._connections.pop(id(member), None)
        if connection is None:
            return None
        key = participant, _ = connection.participant, connection.place
        del self._members[connection.number]
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
        if self._answering.get(participant) is member:
            del self._answering[participant]
        self.fanout.remove(member)
        return connection

    def close(self, code: int, reason: str) -> None:
        """Close every connection."""
        everything = (*self._members.values(), *self.fanout.clear())
        for group in (self._members, self._connections, self._answering, self._counts):
            group.clear()
        for subscriber in everything:
            subscriber.close(code, reason)

    # --- what the owner hands on ----------------------------------------------------------

    def take(self, message: LinkMessage) -> None:
        """Carry out a message of the space's owner."""
        if isinstance(message, Entry):  # most are
            self.fanout.deliver(message)
            return
        match message:
            case FrameMessage():
                self.fanout.frames.deliver(message)
            case StreamEndMessage(stream):
                self.fanout.frames.close(stream)
            case DirectMessage(connections, envelope):
                for number in connections:
                    if (member := self._members.get(number)) is not None:
                        self.fanout.deliver_to(member, envelope)
            case WelcomeMessage(number, welcome, join_state):
                if (member := self._members.get(number)) is not None:
                    self.fanout.welcome(member, welcome, join_state)
            case EchoMessage(number, entry):
                if (member := self._members.get(number)) is not None:
                    self.fanout.deliver_again(member, entry)
            case CloseMessage(number, code, reason):
                if (member := self._members.get(number)) is not None:
                    self.remove(member)
                    member.close(code, reason)
