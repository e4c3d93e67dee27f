"""Connections that look on: they hear what everybody hears, and say nothing (PROTOCOL 3).

An observer is no member: it is not announced, counts for nobody's wait, and takes over no
connection of its participant, which may have a running agent.
"""

from __future__ import annotations

from typing import Final

from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.guarantees import OBSERVING
from meup_agent.protocol.space.decisions import Refused, refusal
from meup_agent.protocol.space.fanout import Member
from meup_agent.protocol.space.inbound import decode_inbound

CROWDED_CODE: Final = 1013
"""Close code for an observer of a participant that has as many as it may."""


class Observers:
    """The observers of a space, by participant.

    Args:
        limit: How many each participant may have at once.
    """

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit
        # By identity: several connections of a participant are equal in everything else.
        self._by_participant: dict[str, dict[int, Member]] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many there are at this moment."""
        return self._count

    def __contains__(self, member: Member) -> bool:
        """Whether a connection is one of them."""
        return id(member) in self._by_participant.get(member.participant, ())

    @property
    def all(self) -> tuple[Member, ...]:
        """Every observer."""
        return tuple(each for group in self._by_participant.values() for each in group.values())

    def of(self, participant: str) -> tuple[Member, ...]:
        """The observers of one participant."""
        return tuple(self._by_participant.get(participant, {}).values())

    def is_crowded(self, participant: str) -> bool:
        """Whether a participant has as many as it may."""
        return len(self._by_participant.get(participant, ())) >= self.limit

    def add(self, member: Member) -> None:
        """Take one in."""
        self._by_participant.setdefault(member.participant, {})[id(member)] = member
        self._count += 1

    def remove(self, member: Member) -> bool:
        """Take one out; ``False`` if it was not in."""
        group = self._by_participant.get(member.participant, {})
        if group.pop(id(member), None) is None:
            return False
        self._count -= 1
        if not group:
            del self._by_participant[member.participant]
        return True

    def clear(self) -> tuple[Member, ...]:
        """Take everyone out; who that was."""
        removed = self.all
        self._by_participant.clear()
        self._count = 0
        return removed


def crowded(limit: int) -> str:
    """The reason for which one more observer of a participant is turned away."""
    return f"the participant has {limit} observers, as many as it may have (max_observers)"


def refuse_observer(participant: str, frame: bytes, dialect: str) -> Refused:
    """The refusal of a frame that an observer sent, valid or not.

    Args:
        participant: Whose observer it is.
        frame: The frame, as it came.
        dialect: The dialect that it is in.
    """
    try:
        about: str | None = decode_inbound(frame, dialect, 0).envelope.id
    except InvalidEnvelope as invalid:
        about = invalid.envelope_id
    message = "an observer says nothing: connect without the header MEUP-Observe to take part"
    return refusal(participant, OBSERVING, message, about=about)
