"""A space with its members: what it decides is carried out here, whatever carries the frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from meup_agent.protocol.capability import Capabilities
from meup_agent.protocol.dialects import encode
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.space.counters import Counters
from meup_agent.protocol.space.space import Accepted, Dropped, Refused, Space, refusal

TAKEN_OVER: Final = 4409
"""Close code for a connection that a newer one of the same participant replaced (PROTOCOL 3)."""


class Member(Protocol):
    """A participant's connection at the gateway."""

    @property
    def participant(self) -> str:
        """Whose connection it is."""
        ...

    @property
    def dialect(self) -> str:
        """The dialect it speaks."""
        ...

    def deliver(self, packed: bytes) -> None:
        """Take a frame, packed once for all members. Never raises, and never calls the host."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Close the connection. Never raises, and never calls the host."""
        ...


class SpaceHost:
    """A :class:`Space` and the members in it; every call takes effect before it returns.

    Args:
        name: The space's name.
        new_id: Makes the ids of the gateway's own envelopes.
        clock: Tells the time as it stands in ``ts`` (RFC 3339).
        counters: Where to count.
        pack: Makes of a frame what members take: done once, however many they are.
    """

    def __init__(
        self,
        name: str,
        *,
        new_id: Callable[[], str],
        clock: Callable[[], str],
        counters: Counters,
        pack: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self.name = name
        self.counters = counters
        self._new_id = new_id
        self._clock = clock
        self._pack = pack
        self._space = Space()
        self._members: dict[str, Member] = {}

    @property
    def members(self) -> tuple[Member, ...]:
        """Every member at this moment."""
        return tuple(self._members.values())

    def member(self, participant: str) -> Member | None:
        """A participant's connection, if it is in the space."""
        return self._members.get(participant)

    def join(self, member: Member, capabilities: Capabilities) -> None:
        """Take a member in; an older connection of the same participant is closed with 4409."""
        participant = member.participant
        older = self._members.get(participant)
        self._members[participant] = member
        self.counters.joined += 1
        if older is not None:
            self.counters.taken_over += 1
            older.close(TAKEN_OVER, "a newer connection of the same participant took over")
        joined = self._space.join(participant, capabilities)
        self._tell(member, joined.welcome)
        self._publish(self._stamped(joined.presence))

    def leave(self, member: Member) -> None:
        """Take a member out; one that was taken over, or has left, changes nothing."""
        if self._members.get(member.participant) is not member:
            return
        del self._members[member.participant]
        self.counters.left += 1
        self._publish(self._stamped(self._space.leave(member.participant)))

    def receive(self, member: Member, frame: bytes) -> None:
        """Take a frame from a member, and do what is decided about it.

        A frame of a connection that has been taken over is ignored: its participant speaks
        through the newer one.
        """
        if self._members.get(member.participant) is not member:
            return
        self.counters.frames_in += 1
        decision = self._space.receive(member.participant, frame, member.dialect)
        match decision:
            case Accepted(envelope):
                self.counters.accepted += 1
                self._publish(envelope)
            case Refused():
                self.refuse(member, decision)
            case Dropped():
                self.counters.dropped += 1

    def refuse(self, member: Member, refused: Refused) -> None:
        """Tell a member that a frame of its was refused."""
        self.counters.refused[refused.code] += 1
        self._tell(member, refused.error)

    def refuse_frame(self, member: Member, code: str, message: str) -> None:
        """Tell a member that a message was refused before it was a frame, for its size say."""
        self.counters.frames_in += 1
        self.refuse(member, refusal(member.participant, code, message))

    def close(self, code: int, reason: str) -> None:
        """Close every member; nobody is told that the others leave."""
        members, self._members = self.members, {}
        for member in members:
            member.close(code, reason)

    def _publish(self, envelope: Envelope) -> None:
        """The one place where an envelope goes to everybody, in the order that all see.

        Those that it names come first: somebody waits for them, and not for the onlookers.
        """
        packed: dict[str, bytes] = {}
        for member in self._named_first(envelope.to):
            dialect = member.dialect
            if dialect not in packed:
                packed[dialect] = self._pack(encode(envelope, dialect))
            member.deliver(packed[dialect])
        self.counters.delivered += len(self._members)

    def _named_first(self, named: tuple[str, ...]) -> Iterable[Member]:
        """Every member, those with the names first."""
        if not named:
            return self._members.values()
        others = dict(self._members)
        first = [others.pop(name) for name in dict.fromkeys(named) if name in others]
        return (*first, *others.values())

    def _tell(self, member: Member, draft: Envelope) -> None:
        member.deliver(self._pack(encode(self._stamped(draft), member.dialect)))
        self.counters.delivered += 1

    def _stamped(self, draft: Envelope) -> Envelope:
        return msgspec.structs.replace(draft, id=self._new_id(), ts=self._clock())
