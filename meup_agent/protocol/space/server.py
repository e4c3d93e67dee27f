"""A space in one process: its owner and its delivery, joined by plain calls.

The road of a frame: an edge calls :meth:`SpaceServer.receive`, the :class:`SpaceOwner` decides and
appends to the journal, the :class:`SpaceDelivery` hands what was kept to each connection's queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from meup_agent.protocol.capability import Capabilities
from meup_agent.protocol.space.allowance import Allowance, SpaceCounters
from meup_agent.protocol.space.delivery import Member, SpaceDelivery
from meup_agent.protocol.space.journal import Journal
from meup_agent.protocol.space.owner import Backpressure, CallLater, SpaceClock, SpaceOwner
from meup_agent.protocol.space.state.decisions import ProposalTracer, Recorder, stamp
from meup_agent.protocol.space.state.management import InviteIssuer


class SpaceServer:
    """A space and its members; every call takes effect in its order."""

    def __init__(
        self,
        name: str,
        *,
        participants: Mapping[str, Capabilities],
        journal: Journal,
        new_id: Callable[[], str],
        now: Callable[[], int],
        counters: SpaceCounters,
        allowance: Allowance | None = None,
        invites: InviteIssuer | None = None,
        announce_withdrawals: bool = False,
        backpressure: Backpressure | None = None,
        recorder: Recorder | None = None,
        tracer: ProposalTracer | None = None,
        call_later: CallLater | None = None,
        takes_published: bool = False,
    ) -> None:
        self.name = name
        self.counters = counters
        self.journal = journal
        self.now: Final = SpaceClock(now)
        """The gateway's clock, in microseconds since 1970."""
        allowance = allowance or Allowance()
        self.delivery: Final = SpaceDelivery(
            name,
            journal,
            counters,
            allowance,
            lambda draft: stamp(draft, new_id, self.now()),
            recorder,
        )
        self.fanout: Final = self.delivery.fanout
        """Delivers what was accepted."""
        self.owner: Final = SpaceOwner(
            name,
            participants=participants,
            journal=journal,
            new_id=new_id,
            now=self.now,
            counters=counters,
            hand_on=self.delivery.take,
            allowance=allowance,
            invites=invites,
            announce_withdrawals=announce_withdrawals,
            backpressure=backpressure,
            recorder=recorder,
            tracer=tracer,
            call_later=call_later,
            takes_published=takes_published,
        )

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
