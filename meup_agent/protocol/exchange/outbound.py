"""Requests and proposals of our own: their states, their ends, and their checks.

One of them is for want of a participant that could answer (PROTOCOL 4.6): :class:`AbsenceWatch`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from meup_agent.causes import Cause, Reason
from meup_agent.errors import (
    AlreadyDecided,
    AlreadyInProgress,
    AmbiguousProposal,
    ParticipantGone,
    UsageError,
)
from meup_agent.protocol.exchange.effects import (
    OUTBOUND,
    Key,
    OutboundAction,
    OutboundEvent,
    OutboundState,
    Priority,
    Unsend,
    Wake,
)
from meup_agent.protocol.exchange.table_context import ABSENCE_SECONDS, EnvelopeSender, TableContext
from meup_agent.protocol.proposals import (
    MAX_NAMED,
    MAX_PROPOSALS,
    FulfillingRequest,
    ProposalEntry,
    ProposalEvent,
    ProposalKey,
    ProposalState,
    executors_of,
    look_up,
    resolve,
)
from meup_agent.protocol.roster import Roster
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, encode_json, moment_of
from meup_agent.protocol.wire.outcomes import (
    Ending,
    Expiry,
    Fulfillment,
    GatewayRefused,
    Gone,
    MissingCaller,
    Rejection,
    Unknown,
    Unsent,
    Unwanted,
    Withdrawal,
    find_missing,
)
from meup_agent.protocol.wire.payloads import JsonObject, with_expiry
from meup_agent.protocol.wire.ttl_map import TTLMap, size_of

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
    """One from a participant that it was addressed to; of a broadcast one, of all who could.

    Who leaves it to others, as a policy that asks people, is not waited for."""
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


def able_to_fulfill(record: ProposalEntry, roster: Roster) -> Iterator[str]:
    """The present participants whose announced capabilities allow the fulfilling request."""
    request, to = payloads.fulfilling_request(record.call)
    return (
        each.id
        for each in roster.participants()
        if each.id != roster.me and roster.is_allowed(each.id, kinds.MCP_REQUEST, request, to)
    )


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
        able = {*able_to_fulfill(record, roster)}
        counted = [rejection for rejection in counted if rejection.by in able]
        rejected = {rejection.by for rejection in counted}
        if not able <= rejected | record.failed_handlers | record.left_by:
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
) -> JsonObject | None:
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
        return any(not each.capabilities for each in others) or any(able_to_fulfill(record, roster))

    def _failed(self, record: ProposalEntry) -> tuple[str, ...]:
        """The participants whose handlers failed, if none is present that may still decide."""
        roster, failed = self._context.roster, record.failed_handlers
        others = (each for each in roster.participants() if each.id != roster.me)
        if not failed or any(not each.capabilities for each in others):
            return ()
        able = {*able_to_fulfill(record, roster)}
        return tuple(sorted(failed & able)) if able <= failed | record.rejections.keys() else ()

    def _is_for_beside(self, exchange: OutboundExchange) -> bool:
        """True if a connection beside may answer a request: a question, or one that is a permit."""
        if exchange.fulfilling is None:
            return bool(payloads.exchanges_of(exchange.draft.correlation, exchange.call.meta))
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
    _index: OutboundTracker

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
            own = (exchange.key.sender, exchange.key.id)  # sent before
            if request is not None and (request.by, request.envelope.id) != own:
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
        except (AlreadyDecided, AlreadyInProgress, AmbiguousProposal, ParticipantGone) as error:
            return Unwanted(error)
        return None


# --- dependencies ---
# Proposals of ours that wait for others of ours to be fulfilled (PROTOCOL 4.15).
#
# No participant hears of a proposal before all that it depends on is fulfilled, so one that ends
# otherwise takes back nothing that another could be at work on. Each depends on earlier ones
# alone, so there is no cycle, and each ends once, so a chain of any length does.

MAX_DEPENDENCIES: Final = 64
"""Proposals that one depends on: as many as an envelope may name."""

MAX_BLOCKED: Final = 1_000
"""Proposals that wait for others; as many as a participant may have open at our gateway."""


class DependencyTracker:
    """Tells which blocked proposals to offer, and which to withdraw, as others have ended."""

    def __init__(self, context: TableContext, index: OutboundTracker) -> None:
        self._context = context
        self._index = index
        self._awaited: dict[str, set[str]] = {}  # by blocked proposal, what it still waits for
        self._dependents: dict[str, list[str]] = {}

    @property
    def any_blocked(self) -> bool:
        return bool(self._awaited)

    def check(self, proposal: str, depends_on: Mapping[str, Ending | None]) -> None:
        """Raise UsageError for a proposal that must not depend on these."""
        if len(depends_on) > MAX_DEPENDENCIES:
            raise UsageError(
                f"the proposal depends on {len(depends_on)} others; at most {MAX_DEPENDENCIES} are "
                "taken, so let it depend on one that depends on some of them"
            )
        if len(self._awaited) >= MAX_BLOCKED:
            raise UsageError(
                f"{MAX_BLOCKED} proposals wait already for those that they depend on; propose more "
                "when some of these have ended"
            )
        # An id that is used again can make a cycle; most often no other proposal waits for it.
        if proposal in depends_on or proposal in self._dependents:
            self._check_cycle(proposal, list(depends_on))
        for name, ending in depends_on.items():
            if ending is None:
                self._ending(name)

    def _check_cycle(self, proposal: str, names: list[str]) -> None:
        seen: set[str] = set()
        while names:
            name = names.pop()
            if name == proposal:
                raise UsageError(f"proposal {proposal} would depend on itself")
            if name not in seen:
                seen.add(name)
                names.extend(self._awaited.get(name, ()))

    def open(
        self, proposal: str, depends_on: Mapping[str, Ending | None]
    ) -> list[tuple[str, Cause | None]]:
        """Block a proposal until these are fulfilled; as :meth:`settle`, if they have ended."""
        awaited: set[str] = set()
        for name, known in depends_on.items():
            ending = known or self._ending(name)
            if ending is None:
                awaited.add(name)
            elif not is_fulfilled(ending):
                return [(proposal, cause_of_dependent(name, ending, self._context))]
        if not awaited:
            return [(proposal, None)]
        self._awaited[proposal] = awaited
        for name in awaited:
            self._dependents.setdefault(name, []).append(proposal)
        return []

    def _ending(self, proposal: str) -> Ending | None:
        """The ending of a proposal of ours; ``None`` while it is open."""
        exchange = self._index.find(proposal)
        if exchange is None or not exchange.is_proposal:
            raise UsageError(
                f"no proposal {proposal!r} of ours is open here, or has ended lately; depends_on "
                "takes proposals that this program has made in this space"
            )
        return exchange.ending

    def offer(self, exchange: OutboundExchange) -> None:
        """Send a proposal, whose time begins now."""
        context, ttl = self._context, exchange.ttl
        exchange.draft = context.envelope_sender.date(exchange.draft.replace(ts=None))
        moment = context.moment()
        if ttl is not None:
            exchange.deadline = context.now + ttl
            if moment is not None:
                expires = moment_of(moment) + timedelta(seconds=ttl)
                payload = with_expiry(exchange.draft.payload_object, expires)
                exchange.draft = exchange.draft.replace(raw_payload=encode_json(payload))
        exchange.record = context.proposal_store.add(exchange.draft, context.now, holders=1)
        context.envelope_sender.transmit(exchange.draft, Priority.OPEN)
        context.look_again(exchange.deadline, exchange.key)

    def remove(self, proposal: str) -> None:
        """Forget a blocked proposal that has ended."""
        for name in self._awaited.pop(proposal, ()):
            dependents = self._dependents[name]
            dependents.remove(proposal)
            if not dependents:
                del self._dependents[name]

    def settle(self, needed: str, ending: Ending) -> list[tuple[str, Cause | None]]:
        """The proposals to offer now that one has ended, or to withdraw, with the cause of that.

        Oldest first.
        """
        if not is_fulfilled(ending):
            cause = cause_of_dependent(needed, ending, self._context)
            return [(name, cause) for name in self._dependents.get(needed, ())]
        released: list[tuple[str, Cause | None]] = []
        for name in self._dependents.pop(needed, ()):
            self._awaited[name].discard(needed)
            if not self._awaited[name]:
                del self._awaited[name]
                released.append((name, None))
        return released


def is_fulfilled(ending: Ending) -> bool:
    """True if a proposal was carried out and did not fail, so that its dependents may follow."""
    return isinstance(ending, Fulfillment) and not ending.is_error


def cause_of_dependent(needed: str, ending: Ending, context: TableContext) -> Cause:
    """The cause that withdraws a dependent: the code that the cascade began with (4.12)."""
    code: str = Reason.NO_LONGER_NEEDED
    match ending:
        case Withdrawal():
            return ending.cause.ended(context.me, needed, context.now)
        case Rejection():
            code, what = ending.reason, f"rejected by {ending.by}"
        case Expiry():
            code, what = Reason.TIMEOUT, "not fulfilled in time"
        case Fulfillment():
            what = "carried out, and failed"
        case Gone():
            what = f"not decided: {ending}"
        case _:
            what = "not carried out"
    text = f"proposal {needed}, which it depends on, was {what}"
    return Cause(code, text=text).ended(context.me, needed, context.now)


# --- renewals of our own proposals ---
# More time for each, and for what waits on it (PROTOCOL 4.17).

RENEWAL_COUNT: Final = 1_000
"""Renewals of our own proposals, to take back those that are refused."""

RENEWAL_SECONDS: Final = 300.0
"""Renewals that are remembered, to take back those that the gateway refuses."""


class OutboundRenewals:
    """Moves the deadlines of our own proposals, and of what waits on renewed ones."""

    def __init__(self, context: TableContext, index: OutboundTracker) -> None:
        self._context = context
        self._index = index
        # Renewals that the gateway may refuse, each with the deadlines before it.
        self._renewals: TTLMap[str, tuple[OutboundExchange, float, int]] = TTLMap(
            count=RENEWAL_COUNT, seconds=RENEWAL_SECONDS
        )

    def renew(self, key: Key, seconds: float) -> Envelope:
        """Give a proposal of ours more time from now on; raises as :meth:`ExchangeTable.renew`."""
        now = self._context.now
        context, exchange = self._context, self._index.find_open(key.id)
        record = None if exchange is None else exchange.proposal
        if exchange is not None and record is None and exchange.is_proposal:
            raise UsageError(
                f"proposal {key.id} waits for those that it depends on; its time has not begun"
            )
        if exchange is None or record is None:
            known = context.proposal_store.get(ProposalKey(context.me, key.id), now)
            state = ProposalState.EXPIRED if known is None else context.state_of(known)
            raise AlreadyDecided(key.id, ProposalState.EXPIRED if state.is_pending else state)
        moment, before, deadline = context.moment(), record.expires_at, exchange.deadline
        until = None if moment is None else (moment // 1_000 + round(seconds * 1_000)) * 1_000
        if before is None or deadline is None or until is None:
            raise UsageError(
                f"proposal {key.id} has no deadline, and waits as long as it takes; propose it with"
                " a ttl to renew it"
            )
        problem = context.proposal_store.renew(record, until, moment)
        if problem:
            raise UsageError(f"proposal {key.id} was not renewed: {problem}")
        exchange.deadline = now + seconds
        context.look_again(exchange.deadline, key)
        renewal = context.envelope_sender.send(
            kinds.MCP_RENEW,
            payloads.build_renewal(until),
            priority=Priority.ANSWER,
            to=exchange.draft.to,
            correlation=(key.id,),
        )
        self._renewals.put(renewal.id, (exchange, deadline, before), now)
        return renewal

    def take_back(self, envelope_id: str) -> bool:
        """Return to the deadline before a renewal that the gateway refused; true if it was one."""
        found = self._renewals.pop(envelope_id)
        if found is None:
            return False
        exchange, deadline, expires_at = found
        if exchange.is_open and exchange.proposal is not None:
            exchange.deadline = deadline
            self._context.proposal_store.set_deadline(exchange.proposal, expires_at)
            self._context.look_again(max(deadline, self._context.now), exchange.key)
        return True

    def postpone(self, record: ProposalEntry, seconds: float) -> None:
        """Let what waits for a proposal wait longer: it was renewed, perhaps beside us."""
        own = self._index.find_own_proposal(record)
        waiting = self._index.open_fulfillments(record.key) if own is None else [own]
        for each in waiting:
            follows = each.fulfilling is None or each.fulfilling.follows
            if each.is_open and each.deadline is not None and follows:
                each.deadline += seconds
                self._context.look_again(each.deadline, each.key)


# --- outbound tracker ---


class OutboundTracker:
    """Tracks every request and proposal of our own that is open, or has ended lately."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._open: dict[str, OutboundExchange] = {}
        self._ended: TTLMap[str, OutboundExchange] = TTLMap(
            count=ENDED_COUNT, seconds=ENDED_SECONDS, size=ENDED_SIZE
        )
        self._dependents = DependencyTracker(context, self)
        self._settled: deque[tuple[str, Ending]] = deque()  # those whose dependents are looked at
        self._check = FulfillmentCheck(context, self)
        self.renewals = OutboundRenewals(context, self)
        self._absence = AbsenceWatch(context)
        self._withdrawn: list[OutboundExchange] | None = None  # those to be withdrawn together
        self._fulfilled: TTLMap[ProposalKey, bool] = TTLMap(
            count=MAX_PROPOSALS, seconds=float("inf")
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

    def _open_and_offered(self, exchange_id: str) -> OutboundExchange | None:
        exchange = self._open.get(exchange_id)
        return None if exchange is None or exchange.is_blocked else exchange

    def has_fulfilled(self, proposal: ProposalKey) -> bool:
        """True if a fulfilling request of ours has left, and the gateway let it through."""
        return self._fulfilled.get(proposal, self._context.now) is not None

    # --- begun and ended by ourselves ---

    def open(
        self,
        exchange: OutboundExchange,
        depends_on: Mapping[str, Ending | None] | None = None,
    ) -> None:
        """Begin a request or proposal; raises as :meth:`ExchangeTable.open`."""
        if depends_on:
            exchange.state = OutboundState.BLOCKED
            self._dependents.check(exchange.key.id, depends_on)
            self._open[exchange.key.id] = exchange
            self._offer_or_withdraw(self._dependents.open(exchange.key.id, depends_on))
            return
        if exchange.fulfilling is not None:
            exchange.record = self._check.check(exchange, exchange.fulfilling)
            if exchange.record is not None:
                exchange.record.holders += 1
        elif exchange.is_proposal:
            accepted = self._context.moment()
            exchange.record = self._context.proposal_store.add(
                exchange.draft, self._context.now, holders=1, accepted=accepted
            )
        self._open[exchange.key.id] = exchange
        self._context.envelope_sender.transmit(exchange.draft, Priority.OPEN)
        self._context.look_again(exchange.deadline, exchange.key)

    def sent(self, envelope_id: str) -> bool:
        """Note that the transport takes an envelope now; ``False``: it is not to leave any more.

        A fulfillment is looked at again here, however long it waited for a connection.
        """
        exchange = self._open.get(envelope_id)
        if exchange is not None and exchange.fulfilling is not None:
            unwanted = self._check.unwanted(exchange, exchange.fulfilling)
            if unwanted is not None:
                self.apply(exchange, OutboundEvent.DEADLINE, unwanted)
                return False
        self._context.envelope_sender.note_sent(envelope_id)
        if exchange is None:
            return False
        self.apply(exchange, OutboundEvent.SENT)
        return True

    def expire_own(self, record: ProposalEntry) -> bool:
        """End our wait for a proposal that expired before our deadline, as when a clock is set."""
        own = self.find_own_proposal(record)
        if own is not None and own.is_open:
            self.apply(own, OutboundEvent.DEADLINE, self._absence.expiry(own))
        return own is not None

    def give_up(self, key: Key, cause: Cause) -> None:
        """End the wait for one: its caller gave up."""
        exchange = self._open.get(key.id)
        if exchange is not None:
            self.apply(exchange, OutboundEvent.GIVE_UP, Withdrawal(key.id, self._context.me, cause))

    def end_by_sibling(self, exchange_id: str, kind: str, cause: Cause) -> None:
        """End what another process under our name has withdrawn or cancelled."""
        exchange = self._open_and_offered(exchange_id)
        if exchange is None or exchange.draft.kind != kind or exchange.call.method == "initialize":
            return
        self.note_left(exchange)
        self.apply(
            exchange,
            OutboundEvent.ENDED_BY_SIBLING,
            Withdrawal(exchange_id, self._context.me, cause),
        )

    def withdraw_all(self, keys: Iterable[Key], cause: Cause, *, joint: bool) -> None:
        """Withdraw proposals; ``joint``: as many in one envelope as it may name."""
        ended = self._withdrawn = []
        try:
            for key in keys:
                self.give_up(key, cause)
        finally:
            self._withdrawn = None
        guarantees, sender = self._context.roster.guarantees, self._context.envelope_sender
        by_one = together(ended, by_audience=guarantees.hidden_targets)
        for group in by_one if joint else [[exchange] for exchange in ended]:
            send_withdraws(sender, group, cause)

    def give_up_all(self, cause: Cause) -> None:
        """End everything that is open, but for proposals that outlive us: we leave."""
        for exchange in list(self._open.values()):
            if not exchange.kept:
                self.give_up(exchange.key, cause)

    def keep(self, key: Key) -> bool:
        """Leave a proposal open when we leave; ``False``: it does not say that it outlives us."""
        exchange = self._open.get(key.id)
        if exchange is None or not exchange.is_proposal:
            return True  # it has ended
        exchange.kept = payloads.read_proposal(exchange.draft.payload).outlives
        return exchange.kept

    def give_up_children(self, parent: Key, cause: Cause) -> None:
        """End what a handler has open: it has been cancelled, or has ended."""
        for exchange in [item for item in self._open.values() if item.parent == parent]:
            self.give_up(exchange.key, cause)

    # --- the connection ---

    def connection_lost(self) -> None:
        """Note for every wait that envelopes may be missed."""
        for exchange in list(self._open.values()):
            self.apply(exchange, OutboundEvent.LOST)

    def welcomed(self) -> None:
        """Send again what is idempotent, and count absence anew."""
        for exchange in list(self._open.values()):
            exchange.missed |= exchange.lost
            self.apply(exchange, OutboundEvent.WELCOME)
        self.presence_changed()

    def caught_up(self) -> None:
        """Take what the gateway had echoed for uninterrupted: we have read all that we missed."""
        for exchange in list(self._open.values()):
            # What it has not taken is sent again, and is so from then on.
            exchange.lost = exchange.lost and not exchange.echoed
        self.presence_changed()

    def presence_changed(self, *, joined: bool = True, begun: str = "") -> None:
        """See whose rejection is missing and whose absence counts, after a join or a leave.

        ``begun``: the participant of which a new process came, which looks at each proposal anew.
        """
        for exchange in list(self._open.values()):
            if exchange.proposal is not None and not exchange.draft.to:
                if joined:  # a newcomer may decide it, or be followed by one that does
                    exchange.unanswerable_since = None
                exchange.proposal.failed_handlers -= {begun}
                exchange.proposal.left_by -= {begun}
                self.reconsider(exchange, exchange.proposal)
            self.watch_absence(exchange)

    def stopped(self, why: str) -> None:
        """End every wait: there will be no further connection."""
        for exchange in list(self._open.values()):
            if not exchange.is_open:  # it depended on one of those before it
                continue
            ending = Unknown(why) if exchange.state is OutboundState.WAITING else Unsent(why)
            self.apply(exchange, OutboundEvent.STOPPED, ending)

    def check_deadline(self, key: Key) -> None:
        """End what has passed its deadline, or has been without a participant for too long."""
        now = self._context.now
        exchange = self._open.get(key.id)
        if exchange is None:
            return
        if exchange.deadline is not None and now >= exchange.deadline:
            self.apply(exchange, OutboundEvent.DEADLINE, self._absence.expiry(exchange))
            return
        gone_at = self._absence.gone_at(exchange)
        if gone_at is not None and now >= gone_at:
            ending = self._absence.ending(exchange)
            is_gone = isinstance(ending, Gone)
            event = OutboundEvent.GONE if is_gone else OutboundEvent.REJECTION
            self.apply(exchange, event, ending)
        else:
            self._context.look_again(gone_at, key)
            self._context.look_again(exchange.deadline, key)  # progress may have moved it

    def watch_absence(self, exchange: OutboundExchange) -> None:
        """Look again when the wait would end for want of a participant that could answer."""
        self._context.look_again(self._absence.gone_at(exchange), exchange.key)

    # --- ended by others ---

    def note_echo(self, envelope_id: str) -> None:
        """Note that the gateway has ordered an envelope of ours."""
        exchange = self._open.get(envelope_id) or self._ended.peek(envelope_id)
        if exchange is not None:
            exchange.echoed = True

    def refused(self, envelope_id: str, payload: dict[str, object]) -> bool:
        """End what the gateway refused; true if it is a request or proposal of ours."""
        exchange = self._open_and_offered(envelope_id)
        if exchange is None:
            is_renewal = self.renewals.take_back(envelope_id)
            return is_renewal or self._ended.get(envelope_id, self._context.now) is not None
        self.note_left(exchange)
        names = [each.id for each in self._context.roster.participants()]
        refusal = GatewayRefused.read(payload, f"{exchange.draft.kind} {envelope_id}", names)
        self.apply(exchange, OutboundEvent.REFUSAL, refusal)
        return True

    def end_by_gateway(self, by: str, exchange_id: str, reason: str) -> None:
        """End what the gateway ended in our place; its error may have been lost."""
        if by == self._context.me:
            self.refused(exchange_id, {"error": reason})

    def note_left(self, exchange: OutboundExchange) -> None:
        """Take for sent what others speak of: a connection that broke had taken it along."""
        if exchange.state is OutboundState.UNSENT:
            self.apply(exchange, OutboundEvent.SENT)

    def reconsider(self, exchange: OutboundExchange, record: ProposalEntry) -> bool:
        """End the wait if the rejections so far do that; true if they do."""
        ending = deciding_rejection(exchange, record, self._context.roster)
        if ending is not None:
            self.apply(exchange, OutboundEvent.REJECTION, ending)
        return ending is not None

    # --- the lifecycle ---

    def apply(
        self,
        exchange: OutboundExchange,
        event: OutboundEvent,
        ending: Ending | None = None,
        *,
        cause: Cause | None = None,
    ) -> None:
        """Step an exchange through the lifecycle; a cause given is sent, else the ending's."""
        now = self._context.now
        state, action = look_up(OUTBOUND, exchange.state, event, "an exchange of our own")
        match action:
            case OutboundAction.OFFER:
                self._dependents.offer(exchange)
            case (
                OutboundAction.KEEP
                | OutboundAction.IGNORE
                | OutboundAction.LATE
                | OutboundAction.RESULT
                | OutboundAction.UNKNOWN
            ):
                pass
            case OutboundAction.NOTE_SENT:
                exchange.lost = False
                if exchange.fulfilling is not None:
                    self._fulfilled.put(exchange.fulfilling.proposal, True, now)
                    self._note_unseen(exchange)
            case OutboundAction.NOTE_LOST:
                exchange.lost = True
            case OutboundAction.SEND_AGAIN:
                if exchange.idempotent:
                    exchange.lost = exchange.missed = False
                    self._context.envelope_sender.transmit(
                        exchange.draft, Priority.OPEN, again=True
                    )
            case OutboundAction.DROP | OutboundAction.DROP_TIMEOUT | OutboundAction.NOT_SENT:
                self._context.effects.append(Unsend(exchange.key.id))
                record_end(exchange, ending)
            case OutboundAction.REFUSED:
                record_end(exchange, ending)
                if exchange.fulfilling is not None:
                    self._fulfilled.pop(exchange.fulfilling.proposal)
                    self._note_unseen(exchange, ended=True)
            case (
                OutboundAction.END
                | OutboundAction.REJECTED_AND_END
                | OutboundAction.GONE_AND_END
                | OutboundAction.EXPIRED_AND_END
            ):
                guarantees = self._context.roster.guarantees
                record_end(exchange, ending, echo=guarantees.echo)
                if self._withdrawn is not None and exchange.is_proposal:
                    self._withdrawn.append(exchange)
                else:
                    why = cause or cause_of(ending)
                    send_end(self._context.envelope_sender, exchange, ending, why)
                self._note_unseen(exchange, ended=True)
        exchange.state = state
        if action is OutboundAction.NOTE_SENT:
            self.watch_absence(exchange)
        if not exchange.is_open and exchange.ending is None:
            self._close(exchange, ending)

    def _note_unseen(self, exchange: OutboundExchange, *, ended: bool = False) -> None:
        """Enter our own fulfilling request, or its end, where the gateway hides it from us, too.

        Elsewhere its echo does that, in the gateway's order. Without either the proposal would seem
        to be pending for good, and could be fulfilled a second time.
        """
        now = self._context.now
        if exchange.fulfilling is None or not self._context.roster.guarantees.hidden_targets:
            return
        proposal_store, record = self._context.proposal_store, exchange.record
        if ended:
            proposal_store.request_cancelled(self._context.me, exchange.key.id, now)
        elif (
            record is not None and record.fulfillment(exchange.key.sender, exchange.key.id) is None
        ):
            request = exchange.draft.replace()
            proposal_store.requested(
                record, FulfillingRequest(request, executors_of(record, request)), now
            )

    def _close(self, exchange: OutboundExchange, ending: Ending | None) -> None:
        assert ending is not None
        exchange.ending = ending
        if exchange.record is not None:
            exchange.record.holders -= 1
        del self._open[exchange.key.id]
        self._ended.put(exchange.key.id, exchange, self._context.now, size=size_of(exchange.draft))
        self._context.effects.append(Wake(exchange.key, ending))
        if exchange.is_proposal and self._dependents.any_blocked:
            self._settle_dependents(exchange.key.id, ending)

    # --- proposals that depend on others ---

    def _settle_dependents(self, proposal: str, ending: Ending) -> None:
        """Offer, or withdraw, what depends on a proposal that has ended."""
        self._dependents.remove(proposal)
        self._settled.append((proposal, ending))
        if len(self._settled) > 1:
            return  # the loop below takes it: a chain may be longer than the stack
        try:
            while self._settled:
                self._offer_or_withdraw(self._dependents.settle(*self._settled[0]))
                self._settled.popleft()
        finally:
            self._settled.clear()

    def _offer_or_withdraw(self, proposals: list[tuple[str, Cause | None]]) -> None:
        """Offer blocked proposals; those with a cause are withdrawn."""
        for name, cause in proposals:
            exchange = self._open[name]
            if cause is None:
                self.apply(exchange, OutboundEvent.OFFERED)
            else:
                self.give_up(exchange.key, cause)
