"""A space in one process: its owner and its delivery, joined by plain calls.

The road of a frame: an edge calls :meth:`SpaceServer.receive`, the :class:`SpaceOwner` decides and
appends to the journal, the :class:`SpaceDelivery` hands what was kept to each connection's queue.
"""

from __future__ import annotations

from typing import Any, Final

from meup_agent.protocol.space.delivery import Member, SpaceDelivery
from meup_agent.protocol.space.owner import SpaceFold, SpaceOwner, SpaceParameters
from meup_agent.protocol.space.state.verdicts import stamp


class SpaceServer:
    """A space and its members; every call takes effect in its order."""

    def __init__(self, parameters: SpaceParameters) -> None:
        self.name = parameters.name
        self.counters = parameters.counters
        self.journal = parameters.journal
        fold = parameters.fold or SpaceFold(parameters)
        self.now: Final = fold.clock
        """The gateway's clock, in microseconds since 1970."""
        self.delivery: Final = SpaceDelivery(
            parameters.name,
            parameters.journal,
            parameters.counters,
            parameters.allowance,
            lambda draft: stamp(draft, parameters.new_id, self.now()),
            parameters.recorder,
        )
        self.fanout: Final = self.delivery.fanout
        """Delivers what was accepted."""
        self.owner: Final = SpaceOwner(parameters, fold, self.delivery.take)

    def join(self, member: Member) -> None:
        """Add a member; see :meth:`SpaceOwner.join`."""
        connection = self.delivery.add(member)
        if connection is not None:
            self.owner.join(connection)

    def leave(self, member: Member) -> None:
        """Remove a member; one that was taken over, or has left, changes nothing."""
        connection = self.delivery.remove(member)
        if connection is not None:
            self.owner.leave(connection)

    def receive(self, member: Member, frame: bytes) -> float:
        """Decide about a frame of a member; see :meth:`SpaceOwner.receive`."""
        connection = self.delivery.find(member)
        return 0.0 if connection is None else self.owner.receive(connection, frame)

    def refuse_frame(self, member: Member, code: str, message: str, **details: Any) -> None:
        """Tell a member that a message was refused before it was a frame, for its size say."""
        connection = self.delivery.find(member)
        if connection is not None:
            self.owner.refuse_frame(connection, code, message, **details)

    def close(self, code: int, reason: str) -> None:
        """Close every connection; no member is told that the others leave."""
        self.owner.close()
        self.delivery.close(code, reason)
