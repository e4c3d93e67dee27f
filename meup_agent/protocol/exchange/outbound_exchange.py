"""One request or proposal of our own, and how it can end."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from enum import StrEnum

import msgspec

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.effects import Key
from meup_agent.protocol.exchange.proposal_store import ProposalEntry, ProposalKey
from meup_agent.protocol.exchange.roster import Roster
from meup_agent.protocol.lifecycle import OutboundState, ProposalState
from meup_agent.protocol.outcomes import Ending, Expiry, Rejection, Unknown


class Wait(StrEnum):
    """Which rejection ends the wait for a proposal (PROTOCOL 4.5)."""

    ADDRESSED = "addressed"
    """One from a participant that it was addressed to; of a broadcast one, all who could."""
    FIRST = "first"
    """Anybody's."""
    DEADLINE = "deadline"
    """Nobody's: only the deadline."""


class OutboundExchange(msgspec.Struct):
    """A request or proposal of our own.

    Attributes:
        key: Its name.
        draft: The envelope that began it.
        deadline: When the wait ends by itself.
        parent: The handler that it is part of.
        wait: Which rejection ends the wait.
        idempotent: It may be sent again after a reconnect.
        fulfills: The proposal that this request carries out.
        record: The proposal that it is, or carries out, as the proposal_store has it.
        state: Where it stands.
        ending: How it ended, for the one who waits.
        lost: A connection was lost since it was sent, and what came since has not been read.
        missed: Something that came since it was sent will never be read.
        echoed: The gateway has ordered it.
        progress: The last value reported.
        late: A result came after its end.
        expires: When the proposer gives up what it fulfills, by the proposer's clock.
        nobody_since: Since when nobody is present who may fulfill a broadcast proposal.
        patience: Seconds from each progress until the wait ends by itself; ``None``: progress
            changes nothing.
        latest: When the wait ends, however often progress comes.
    """

    key: Key
    draft: Envelope
    deadline: float | None
    parent: Key | None
    wait: Wait
    idempotent: bool
    fulfills: ProposalKey | None
    record: ProposalEntry | None = None
    state: OutboundState = OutboundState.UNSENT
    ending: Ending | None = None
    lost: bool = False
    missed: bool = False
    echoed: bool = False
    progress: float = float("-inf")
    late: bool = False
    expires: datetime | None = None
    nobody_since: float | None = None
    patience: float | None = None
    latest: float = float("inf")

    def advanced(self, done: float, now: float) -> None:
        """Progress was reported: its deadline counts from here, up to the latest."""
        self.progress = done
        if self.patience is not None and self.deadline is not None:
            self.deadline = max(self.deadline, min(now + self.patience, self.latest))

    @property
    def is_proposal(self) -> bool:
        """Whether it is a proposal; otherwise it is a request."""
        return self.draft.kind == kinds.MCP_PROPOSAL

    @property
    def proposal(self) -> ProposalEntry | None:
        """Our proposal, where it is one."""
        return self.record if self.is_proposal else None

    @property
    def is_open(self) -> bool:
        """Whether somebody waits for it."""
        return self.state in (OutboundState.UNSENT, OutboundState.WAITING)

    @property
    def is_answered(self) -> bool:
        """Whether it has had its response, in time or not; any further one is a duplicate."""
        return self.state is OutboundState.DONE or self.late

    @property
    def call(self) -> payloads.Call:
        """The call that is requested or proposed."""
        return payloads.read_call(self.draft.payload)

    def expiry(self) -> Ending:
        """How it ends at its deadline."""
        if self.lost or self.missed:
            return Unknown(
                "the connection was lost while it was open, and nothing came until its deadline"
            )
        begun_by = None if self.proposal is None else self.proposal.in_progress_by
        sent = self.state is not OutboundState.UNSENT
        return Expiry(self.key.id, sent=sent, begun_by=begun_by or "")

    def answerable_by(self, envelope: Envelope, me: str) -> bool:
        """Whether a response or progress for this request is meant for it (PROTOCOL 5).

        Another requester may have used the same id with the same executor.
        """
        return envelope.concerns(me) and (not self.draft.to or envelope.sender in self.draft.to)


def may_fulfill(record: ProposalEntry, roster: Roster) -> set[str]:
    """Those present whose announced capabilities allow the request that fulfills a proposal."""
    request = payloads.request(record.call.method, record.call.params, "")
    return {
        each.id
        for each in roster.participants()
        if each.id != roster.me and roster.is_allowed(each.id, kinds.MCP_REQUEST, request)
    }


def verdict(exchange: OutboundExchange, record: ProposalEntry, roster: Roster) -> Rejection | None:
    """The rejection that ends the wait for a proposal of ours, if there is one (PROTOCOL 4.5).

    While somebody's fulfilling request is out, rejections are only recorded (PROTOCOL 4.4).
    """
    if record.state is not ProposalState.PENDING or exchange.wait is Wait.DEADLINE:
        return None
    said = list(record.rejections.values())
    if exchange.wait is Wait.ADDRESSED and exchange.draft.to:
        said = [rejection for rejection in said if rejection.by in exchange.draft.to]
    elif exchange.wait is Wait.ADDRESSED:
        able = may_fulfill(record, roster)
        said = [rejection for rejection in said if rejection.by in able]
        if len(said) < len(able):
            return None
    return replace(said[-1], counts=True) if said else None
