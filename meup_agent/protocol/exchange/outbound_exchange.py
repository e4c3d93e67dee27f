"""One request or proposal of our own: its state, its ends, and its check.

One of them is for want of a participant that could answer (PROTOCOL 4.6): :class:`AbsenceWatch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from meup_agent.causes import Cause, Reason
from meup_agent.errors import AlreadyDecided, AlreadyInProgress, AmbiguousProposal, ParticipantGone
from meup_agent.protocol.exchange.effects import Key, Priority
from meup_agent.protocol.exchange.lifecycle import OutboundState
from meup_agent.protocol.exchange.table_context import (
    ABSENCE_SECONDS,
    EnvelopeSender,
    TableContext,
)
from meup_agent.protocol.proposals.lifecycle import ProposalEvent, ProposalState
from meup_agent.protocol.proposals.record import FulfillingRequest, ProposalEntry, ProposalKey
from meup_agent.protocol.proposals.resolution import MAX_NAMED, resolve
from meup_agent.protocol.roster import Roster
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.outcomes import (
    Ending,
    Expiry,
    GatewayRefused,
    Gone,
    MissingCaller,
    Rejection,
    Unknown,
    Unwanted,
    Withdrawal,
    find_missing,
)
from meup_agent.protocol.wire.ttl_map import TTLMap

# --- one request or proposal of our own ---

ENDED_COUNT = 1000
"""Ended exchanges of our own, to recognize late answers."""

ENDED_SECONDS = 300.0
"""Time for which they are kept."""

ENDED_SIZE = 64 * 1024 * 1024
"""Ended exchanges that are remembered, for answers that come late."""


class Wait(StrEnum):
    """The rejection that ends the wait for a proposal (PROTOCOL 4.5)."""

    ADDRESSED = "addressed"
    """One from a participant that it was addressed to; of a broadcast one, all who could."""
    FIRST = "first"
    """The first one, of any participant."""
    ALL = "all"
    """Those of all participants that it was addressed to; of a broadcast one, of all who could.

    One that is away for half a minute, and has not rejected it, is not waited for."""
    LATER = "later"
    """The first one, of any participant, those included that are still to come.

    That none is present that could fulfill it does not end the wait."""
    DEADLINE = "deadline"
    """None: only the deadline does."""


_ANY_REJECTION: Final = (Wait.FIRST, Wait.LATER)
"""Waits that the first rejection ends, of whichever participant."""


class FulfillmentTarget(NamedTuple):
    """A fulfilling request of ours: the proposal that it carries out, and on which conditions."""

    proposal: ProposalKey
    record: ProposalEntry | None = None  # that proposal, as its decider has seen it
    even_if_gone: bool = False  # it is wanted also where its proposer has left
    follows: bool = False  # its deadline is the proposal's, and moves with that


class OutboundExchange(msgspec.Struct):
    """A request or proposal of our own."""

    key: Key
    draft: Envelope
    deadline: float | None  # the time at which the wait ends by itself
    parent: Key | None
    wait: Wait
    idempotent: bool  # it may be sent again after a reconnect
    fulfilling: FulfillmentTarget | None  # the proposal that this request carries out
    # Seconds from each progress until the wait ends by itself; ``None``: progress changes nothing.
    patience: float | None
    latest: float  # the time at which the wait ends, however often progress comes
    ttl: float | None  # of a proposal that depends on others: seconds from its offer on
    # The proposal that it is, or carries out, as the store has it.
    record: ProposalEntry | None = None
    state: OutboundState = OutboundState.UNSENT
    ending: Ending | None = None  # its ending, for the caller that waits
    # A connection was lost since it was sent, and what came since has not been read.
    lost: bool = False
    missed: bool = False  # something that came since it was sent will never be read
    echoed: bool = False  # the gateway has ordered it
    progress: float = float("-inf")  # the last value reported
    late: bool = False  # a result came after its end
    kept: bool = False  # a proposal that stays open when we leave
    # The time since which no participant is present that may fulfill the broadcast proposal.
    unanswerable_since: float | None = None

    def note_progress(self, done: float, now: float) -> None:
        self.progress = done
        if self.patience is not None and self.deadline is not None:
            self.deadline = max(self.deadline, min(now + self.patience, self.latest))

    @property
    def fulfills(self) -> ProposalKey | None:
        """The proposal that this request carries out."""
        return None if self.fulfilling is None else self.fulfilling.proposal

    @property
    def is_proposal(self) -> bool:
        """True if it is a proposal; otherwise it is a request."""
        return self.draft.kind == kinds.MCP_PROPOSAL

    @property
    def proposal(self) -> ProposalEntry | None:
        return self.record if self.is_proposal else None

    @property
    def is_open(self) -> bool:
        return self.state in (OutboundState.BLOCKED, OutboundState.UNSENT, OutboundState.WAITING)

    @property
    def is_blocked(self) -> bool:
        """True while what it depends on has not been fulfilled: no participant has seen it."""
        return self.state is OutboundState.BLOCKED

    @property
    def is_answered(self) -> bool:
        """True if it has had its response, in time or not; each further one is a duplicate."""
        return self.state is OutboundState.DONE or self.late

    @property
    def call(self) -> payloads.Call:
        """The call that is requested or proposed."""
        return payloads.read_call(self.draft.payload)

    def expiry(self) -> Ending:
        """The ending at its deadline."""
        if self.lost or self.missed:
            return Unknown(
                "the connection was lost while it was open, and nothing came until its deadline"
            )
        sent = self.state is not OutboundState.UNSENT
        if self.proposal is None:
            return Expiry(self.key.id, sent=sent)
        begun_by, failed = self.proposal.in_progress_by, self.proposal.failed
        return Expiry(self.key.id, sent=sent, begun_by=begun_by or "", failed=failed)

    def answerable_by(self, envelope: Envelope, me: str) -> bool:
        """True if a response or progress is meant for this request, not for one of the same id."""
        return envelope.concerns(me) and (not self.draft.to or envelope.sender in self.draft.to)


class OutboundIndex:
    """The requests and proposals of our own that are open, or have ended lately."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._open: dict[str, OutboundExchange] = {}
        self._ended: TTLMap[str, OutboundExchange] = TTLMap(
            count=ENDED_COUNT, seconds=ENDED_SECONDS, size=ENDED_SIZE
        )

    def __len__(self) -> int:
        """The number of open ones."""
        return len(self._open)

    def find(self, exchange_id: str) -> OutboundExchange | None:
        return self._open.get(exchange_id) or self._ended.get(exchange_id, self._context.now)

    def find_open(self, exchange_id: str) -> OutboundExchange | None:
        return self._open.get(exchange_id)

    def find_own_proposal(self, record: ProposalEntry) -> OutboundExchange | None:
        """Our wait for a proposal's outcome, open or ended lately; ``None`` if it is not ours."""
        exchange = self.find(record.key.id)
        return exchange if exchange is not None and exchange.proposal is record else None

    def open_fulfillments(self, proposal: ProposalKey) -> list[OutboundExchange]:
        return [exchange for exchange in self._open.values() if exchange.fulfills == proposal]

    def open_proposals(self) -> list[OutboundExchange]:
        """The proposals that are open, oldest first; blocked ones, too."""
        return [exchange for exchange in self._open.values() if exchange.is_proposal]

    def knows(self, envelope_id: str) -> bool:
        return self.find(envelope_id) is not None


def able_to_fulfill(record: ProposalEntry, roster: Roster) -> set[str]:
    """The present participants whose announced capabilities allow the fulfilling request."""
    request, to = payloads.fulfilling_request(record.call)
    return {
        each.id
        for each in roster.participants()
        if each.id != roster.me and roster.is_allowed(each.id, kinds.MCP_REQUEST, request, to)
    }


def deciding_rejection(
    exchange: OutboundExchange, record: ProposalEntry, roster: Roster
) -> Rejection | None:
    """The rejection that ends our wait, if there is one, and no fulfillment is out (4.4, 4.5)."""
    if record.state is not ProposalState.PENDING or exchange.wait is Wait.DEADLINE:
        return None
    counted = list(record.rejections.values())
    takes_any = exchange.wait in _ANY_REJECTION
    if not takes_any and exchange.draft.to:
        counted = [rejection for rejection in counted if rejection.by in exchange.draft.to]
        if exchange.wait is Wait.ALL and undecided_addressees(exchange, record):
            return None
    elif not takes_any:
        able = able_to_fulfill(record, roster)
        counted = [rejection for rejection in counted if rejection.by in able]
        if not able <= {rejection.by for rejection in counted} | record.failed_handlers:
            return None
    return replace(counted[-1], counts=True) if counted else None


def undecided_addressees(exchange: OutboundExchange, record: ProposalEntry) -> tuple[str, ...]:
    decided = {exchange.key.sender, *record.rejections}  # no participant decides its own proposal
    return tuple(name for name in exchange.draft.to if name not in decided)


def rejection_without_the_absent(
    exchange: OutboundExchange, record: ProposalEntry
) -> Rejection | None:
    """The rejection that ends a wait for all, when those that have not rejected are gone."""
    # Of one in progress the fulfiller may still answer.
    if exchange.wait is not Wait.ALL or record.state is not ProposalState.PENDING:
        return None
    by = [name for name in record.rejections if name in exchange.draft.to]
    return replace(record.rejections[by[-1]], counts=True) if by else None


def cause_of(ending: Ending | None) -> Cause:
    """The cause of an end, where the caller chose none (PROTOCOL 4.12)."""
    match ending:
        case Withdrawal():
            return ending.cause
        case Expiry() | Unknown():
            return Cause(Reason.TIMEOUT)
        case Gone():
            return Cause(Reason.NO_LONGER_NEEDED, text=str(ending))
        case _:
            return Cause(Reason.NO_LONGER_NEEDED)


def record_end(exchange: OutboundExchange, ending: Ending | None, *, echo: bool = True) -> None:
    """Step the record of our own proposal.

    A proposal that was given up after it left becomes withdrawn when our withdraw comes back, or at
    once where the gateway sends no echo (PROTOCOL 4.13). One that never left, or was refused, will
    not be ordered by any gateway.
    """
    record = exchange.proposal
    if record is None:
        return
    was_pending = record.state.is_pending
    match ending:
        case Rejection():
            record.step(ProposalEvent.REJECTION, ending.by, ending.reason)
        case Expiry() | Unknown():
            record.step(ProposalEvent.EXPIRY, "", Reason.TIMEOUT)
        case GatewayRefused():
            record.step(ProposalEvent.WITHDRAWAL, record.proposer, Reason.NO_LONGER_NEEDED)
        case _ if exchange.state is OutboundState.UNSENT or not (echo or exchange.echoed):
            record.step(ProposalEvent.WITHDRAWAL, record.proposer, cause_of(ending).code)
        case _:
            pass
    if was_pending and isinstance(ending, Rejection | Expiry | Unknown):
        is_sent = exchange.state is not OutboundState.UNSENT
        record.unordered = is_sent and (echo or exchange.echoed)


def send_end(
    sender: EnvelopeSender,
    exchange: OutboundExchange,
    ending: Ending | None,
    cause: Cause,
) -> None:
    """Send the withdraw of a proposal, or the cancel of a request (PROTOCOL 4.8)."""
    request = exchange.draft
    if exchange.is_proposal:
        by = ending.by if isinstance(ending, Rejection) else ""
        send_withdraws(sender, [exchange], cause, rejected_by=by)
    elif (call := exchange.call).method != "initialize":
        name = str(call.rpc_id if call.rpc_id is not None else request.id)
        sender.send(
            kinds.MCP_REQUEST,
            payloads.cancelled(name, cause.ended(sender.me, request.id, sender.now)),
            priority=Priority.END,
            to=request.to,
            correlation=(request.id,),
            concerned=request.to,
        )


def send_withdraws(
    sender: EnvelopeSender,
    exchanges: Sequence[OutboundExchange],
    cause: Cause,
    *,
    rejected_by: str = "",
) -> None:
    """Send one withdraw of some proposals, to all that these concern.

    Args:
        sender: Sends it.
        exchanges: The proposals.
        cause: The cause.
        rejected_by: The participant whose rejection ended the wait; empty: none did.
    """
    to: dict[str, None] = {}
    for exchange in exchanges:
        found = exchange.record.fulfillments if exchange.record is not None else []
        to.update(dict.fromkeys([*exchange.draft.to, *(item.by for item in found)]))
    addressed = tuple(to) if all(exchange.draft.to for exchange in exchanges) else ()
    sender.send(
        kinds.MCP_WITHDRAW,
        payloads.build_end(cause.code, _rejection_meta(exchanges, cause.code, rejected_by)),
        priority=Priority.END,
        to=addressed,
        correlation=tuple(exchange.draft.id for exchange in exchanges),
        concerned=addressed,
    )


def _rejection_meta(
    exchanges: Sequence[OutboundExchange], reason: str, rejected_by: str
) -> payloads.JsonObject | None:
    """The word on which rejection ended the wait, where readers would take it for another."""
    records = [each.record for each in exchanges if each.record is not None]
    if reason != Reason.NO_LONGER_NEEDED or all(
        each.inferred_rejection == rejected_by for each in records
    ):
        return None
    return {payloads.REJECTED_BY: rejected_by or None}


def together(
    exchanges: Sequence[OutboundExchange], *, by_audience: bool
) -> list[list[OutboundExchange]]:
    """The proposals that one withdraw takes back each; by audience, where a gateway has some."""
    groups: dict[tuple[str, ...], list[OutboundExchange]] = {}
    for exchange in exchanges:
        groups.setdefault(exchange.draft.to if by_audience else (), []).append(exchange)
    return [
        group[first : first + MAX_NAMED]
        for group in groups.values()
        for first in range(0, len(group), MAX_NAMED)
    ]


def _is_question(request: Envelope) -> bool:
    """True if a request is part of an exchange of its addressee's."""
    meta = payloads.read_call(request.payload).meta
    return bool(payloads.exchanges_of(request.correlation, meta))


@dataclass
class AbsenceWatch:
    """Tells when the wait for a request or proposal of ours ends, and how, if none is there."""

    _context: TableContext

    def gone_at(self, exchange: OutboundExchange) -> float | None:
        """The time at which it ends for want of a participant that could answer (PROTOCOL 4.6)."""
        context = self._context
        if exchange.state is not OutboundState.WAITING or not context.connected:
            return None
        record = exchange.proposal
        if record is None:
            to = exchange.draft.to
            at = context.absent_for_good(to, to_answer=True)
            if at is None or not self._is_for_beside(exchange):
                return at
            # The connection beside that began what it is about answers it (PROTOCOL 3).
            return context.absent_for_good(to, to_answer=False)
        awaited = self._awaited(exchange, record)
        waits = exchange.wait in (Wait.DEADLINE, Wait.LATER)
        if awaited or waits or record.in_progress_by is not None:
            return context.absent_for_good(awaited, to_answer=False)
        if self._has_able_participant(record):
            exchange.unanswerable_since = None
            return context.now if self._failed(record) else None
        if exchange.unanswerable_since is None:
            exchange.unanswerable_since = context.now
        return exchange.unanswerable_since + ABSENCE_SECONDS

    def _has_able_participant(self, record: ProposalEntry) -> bool:
        """True if a participant is present that may fulfill a broadcast proposal."""
        roster = self._context.roster
        others = (each for each in roster.participants() if each.id != roster.me)
        # Not every gateway announces what its participants may send.
        return any(not each.capabilities for each in others) or bool(
            able_to_fulfill(record, roster)
        )

    def _failed(self, record: ProposalEntry) -> tuple[str, ...]:
        """The participants whose handlers failed, if none is present that may still decide."""
        roster, failed = self._context.roster, record.failed_handlers
        others = (each for each in roster.participants() if each.id != roster.me)
        if not failed or any(not each.capabilities for each in others):
            return ()
        able = able_to_fulfill(record, roster)
        return tuple(sorted(failed & able)) if able <= failed | record.rejections.keys() else ()

    def _is_for_beside(self, exchange: OutboundExchange) -> bool:
        """True if a connection beside may answer a request: a question, or one that is a permit."""
        if exchange.fulfilling is None:
            return _is_question(exchange.draft)
        record = exchange.fulfilling.record
        return record is not None and record.asks_permit

    def _awaited(self, exchange: OutboundExchange, record: ProposalEntry) -> tuple[str, ...]:
        """The participants that could answer a proposal; of one in progress, its fulfillers.

        A fulfiller that asks over HTTP is not present at all: its executors stand in for it.
        """
        if record.in_progress_by is not None:
            live = [item for item in record.fulfillments if item.live]
            stays = ((item.executors if item.unattended else (item.by,)) for item in live)
            return tuple(dict.fromkeys(chain.from_iterable(stays)))
        if exchange.wait is Wait.ALL:
            return undecided_addressees(exchange, record)
        return exchange.draft.to

    def ending(self, exchange: OutboundExchange) -> Gone | Rejection:
        """The ending for want of such a participant; of a broadcast, with what is missing."""
        record = exchange.proposal
        if record is None:
            return Gone(exchange.key.id, exchange.draft.to)
        rejection = rejection_without_the_absent(exchange, record)
        if rejection is not None:
            return rejection
        awaited = self._awaited(exchange, record)
        if not awaited and (failed := self._failed(record)):
            return Gone(exchange.key.id, failed=failed)
        return Gone(exchange.key.id, awaited, None if awaited else self._find_missing(record))

    def expiry(self, exchange: OutboundExchange) -> Ending:
        """The ending at its deadline; of a broadcast that none may fulfill, with what is missing.

        A caller that waits for less than the wait of rule 4.6 hears of it, too.
        """
        ending, record = exchange.expiry(), exchange.proposal
        if isinstance(ending, Expiry) and record and exchange.unanswerable_since is not None:
            return msgspec.structs.replace(ending, missing=self._find_missing(record))
        return ending

    def _find_missing(self, record: ProposalEntry) -> MissingCaller:
        roster = self._context.roster
        present = ((each.id, each.capabilities) for each in roster.participants())
        return find_missing(record.call, present, me=roster.me)


# --- fulfillment check ---
# Check of a fulfilling request of ours, as it is made and again as it leaves (PROTOCOL 4.4).


@dataclass
class FulfillmentCheck:
    """Refuses a fulfilling request whose proposal is not wanted any more."""

    _context: TableContext
    _index: OutboundIndex

    def check(
        self, exchange: OutboundExchange, fulfilling: FulfillmentTarget
    ) -> ProposalEntry | None:
        """Check that a proposal may be fulfilled: pending, in time, and waited for; its record.

        What its decider has seen counts, also where it is long forgotten (PROTOCOL 4.4).
        """
        now = self._context.now
        context, proposal = self._context, fulfilling.proposal
        means = resolve(exchange.draft, context.proposal_store, now)
        record = means.record or context.proposal_store.get(proposal, now) or fulfilling.record
        if means.doubt is not None or (record is not None and record.key != proposal):
            raise AmbiguousProposal(proposal.id, [each.key.proposer for each in means.named])
        if record is not None:
            declined = ProposalState.REJECTED if context.has_declined(record) else None
            state = declined or context.state_of(record)
            if not state.is_pending:
                raise AlreadyDecided(proposal.id, state)
            request = record.in_progress
            if request is not None and not _is_of(request, exchange):
                raise AlreadyInProgress(proposal.id, request.by)
        if context.tombstones.get("withdrawn", *proposal, now) is not None:
            raise AlreadyDecided(proposal.id, ProposalState.WITHDRAWN)
        if any(other is not exchange for other in self._index.open_fulfillments(proposal)):
            raise AlreadyInProgress(proposal.id, context.me)
        if not fulfilling.even_if_gone and self._has_left(proposal, record):
            raise ParticipantGone(
                f"proposal {proposal.id} was not fulfilled: {proposal.proposer!r}, whose it is,"
                " has left the space; even_if_gone=True (meup fulfill --even-if-gone) carries it"
                " out all the same"
            )
        return record

    def _has_left(self, proposal: ProposalKey, record: ProposalEntry | None) -> bool:
        """True if a proposer was seen to leave after it proposed, half a minute ago or more."""
        now = self._context.now
        left_at = self._context.roster.left_at(proposal.proposer, now)
        if record is None or left_at is None or record.call.outlives:
            return False
        return record.seen_at <= left_at <= now - ABSENCE_SECONDS

    def unwanted(self, exchange: OutboundExchange, fulfilling: FulfillmentTarget) -> Ending | None:
        """The ending of a fulfilling request that is not wanted any more as it is to leave."""
        try:
            self.check(exchange, fulfilling)
        except (
            AlreadyDecided,
            AlreadyInProgress,
            AmbiguousProposal,
            ParticipantGone,
        ) as error:
            return Unwanted(error)
        return None


def _is_of(request: FulfillingRequest, exchange: OutboundExchange) -> bool:
    """True if a request that is out is this exchange, sent before."""
    return (request.by, request.envelope.id) == (exchange.key.sender, exchange.key.id)
