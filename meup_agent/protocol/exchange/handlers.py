"""The handlers of an agent: queued, admitted, started, cancelled, ended (PROTOCOL 5).

The first and second table of PROTOCOL 5 are carried out here, for requests, proposals and notices
alike; the one :class:`Start` of the package is made here.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import msgspec

from meup_agent.causes import Cause, CauseStep, Reason, declines
from meup_agent.errors import NotExpressible
from meup_agent.protocol.exchange.effects import (
    CONTROL_ROLES,
    INBOUND,
    Cancel,
    InboundAction,
    InboundEvent,
    InboundState,
    Key,
    Priority,
    Role,
    Start,
    StreamBuffer,
    Subject,
    Work,
)
from meup_agent.protocol.exchange.outbound import OutboundTracker
from meup_agent.protocol.exchange.table_context import ABSENCE_SECONDS, TableContext
from meup_agent.protocol.proposals import (
    MAX_NAMED,
    Doubt,
    FulfillingRequest,
    ProposalEntry,
    ProposalKey,
    ProposalState,
    claimed_proposer,
    fingerprint_of,
    look_up,
    resolve,
)
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, FrozenStruct, encode_json, encode_leniently
from meup_agent.protocol.wire.outcomes import Expiry, Withdrawal
from meup_agent.protocol.wire.payloads import Call, JsonObject
from meup_agent.protocol.wire.ttl_map import FairTTLMap, PerSenderTTLMap

SETTLED_A_SENDER = 1000
"""Ended requests of one sender, to recognize late and repeated messages."""

SETTLED_SENDERS = 256
"""Senders of such requests."""

SETTLED_SECONDS = 300.0
"""Settled requests that are remembered, for cancels that come late and requests that come twice.
Each sender has a share, so that one that asks a lot does not have another's request run twice."""

MAX_QUOTED_CHARS = 100
"""Characters of a stranger's words that an error repeats."""

FAILED_WORDS = "its handler failed"
"""Words for a proposer; what the handler raised stays in its own log."""

Name = tuple[str, str]
"""A sender, and an id of its own."""


class InboundExchange(msgspec.Struct):
    """A request, a proposal or a notice that a handler of ours is for."""

    key: Key
    work: Work
    addressed: bool = True  # it names us; otherwise it is for everybody
    record: ProposalEntry | None = None
    # The proposal that a request carries out, as far as we know it.
    fulfills: ProposalEntry | None = None
    fulfillment: FulfillingRequest | None = None  # that request, as the store has it
    # The reason for which it cannot be told which proposal a request carries out.
    doubt: Doubt | None = None
    state: InboundState = InboundState.QUEUED
    cause: Cause | None = None
    withdrawal: Cause | None = None  # the cause of its proposal's withdrawal while its handler ran
    expired: bool = False  # its proposal expired while its handler ran
    sender_left_at: float | None = None  # the time since which its sender has been away
    unattended: bool = False  # its sender was not present as it came, as over HTTP
    outlasts_sender: bool = False  # its handler goes on although its sender has left
    answer_id: str | None = None  # the id of our response, once there is one
    rejected: bool = False  # we have rejected the proposal
    superseded: bool = False  # its sender used its id again, for something else
    droppable: bool = False  # it is left out where there is no room
    # A request by its envelope id, and by its JSON-RPC id where that is another (PROTOCOL 4.8).
    names: tuple[Name, Name | None] = (("", ""), None)

    @property
    def is_request(self) -> bool:
        """True if an answer is owed."""
        return self.work.role is Role.REQUEST

    @property
    def is_proposal(self) -> bool:
        """True if it is another participant's proposal."""
        return self.work.role is Role.PROPOSAL

    @property
    def proposal_key(self) -> ProposalKey:
        """The proposal's name, for one."""
        return ProposalKey(self.key.sender, self.key.id)


def cause_of_end(by: str, exchange_id: str, reason: str, text: str, now: float) -> Cause:
    return Cause(reason, by, text, exchange_id, now, (CauseStep(by, exchange_id, reason, text),))


class Settled(FrozenStruct):
    """A request that has ended: its fingerprint, and the id of its answer, if it got one."""

    fingerprint: int
    answer_id: str | None


class RequestIndex:
    """Requests that are open or have lately been, by the names that their senders use."""

    def __init__(self) -> None:
        self._by_id: dict[Name, InboundExchange] = {}
        self._by_rpc_id: dict[Name, InboundExchange] = {}
        self._settled: PerSenderTTLMap[str, Settled] = PerSenderTTLMap(
            senders=SETTLED_SENDERS, count=SETTLED_A_SENDER, seconds=SETTLED_SECONDS
        )
        self._settled_rpc_ids: PerSenderTTLMap[str, bool] = PerSenderTTLMap(
            senders=SETTLED_SENDERS, count=SETTLED_A_SENDER, seconds=SETTLED_SECONDS
        )
        # Approvals whose id their sender used for another request since (PROTOCOL 6).
        self.replaced: PerSenderTTLMap[int, bool] = PerSenderTTLMap(
            senders=SETTLED_SENDERS, count=SETTLED_A_SENDER, seconds=SETTLED_SECONDS
        )

    def add(self, exchange: InboundExchange) -> None:
        """Enter a request that is taken up."""
        name, by_rpc_id = exchange.names
        self._by_id[name] = exchange
        if by_rpc_id is not None:
            self._by_rpc_id[by_rpc_id] = exchange

    def settle(self, exchange: InboundExchange, now: float) -> None:
        """Remember a request that has ended, or was never taken up."""
        if exchange.superseded:
            return
        self.remove(exchange)
        name, by_rpc_id = exchange.names
        fingerprint = fingerprint_of(exchange.work.envelope)
        self._settled.put(*name, Settled(fingerprint, exchange.answer_id), now)
        if by_rpc_id is not None:
            self._settled_rpc_ids.put(*by_rpc_id, True, now)

    def remove(self, exchange: InboundExchange) -> None:
        """Take a request out: its names mean another one, or none, from here on."""
        name, by_rpc_id = exchange.names
        if self._by_id.get(name) is exchange:
            del self._by_id[name]
        if by_rpc_id is not None and self._by_rpc_id.get(by_rpc_id) is exchange:
            del self._by_rpc_id[by_rpc_id]

    def find(self, name: Name, now: float) -> InboundExchange | Settled | None:
        """The request under an envelope id, open or ended lately."""
        return self._by_id.get(name) or self._settled.get(*name, now)

    def find_named(self, name: Name) -> InboundExchange | None:
        """The open request that a ``requestId`` names, by either id (PROTOCOL 4.8)."""
        return self._by_rpc_id.get(name) or self._by_id.get(name)

    def has_ended(self, name: Name, now: float) -> bool:
        """True if a ``requestId`` names one that has ended."""
        return (
            self._settled_rpc_ids.get(*name, now) is not None
            or self._settled.get(*name, now) is not None
        )

    def is_anothers(self, name: Name) -> bool:
        """True if a ``requestId`` names an open request of another sender."""
        sender, request_id = name
        return any(
            each == request_id and by != sender for by, each in (*self._by_id, *self._by_rpc_id)
        )

    def answered_by(self, response: Envelope) -> list[InboundExchange]:
        """The open requests that a response answers."""
        return [
            exchange
            for (sender, envelope_id), exchange in self._by_id.items()
            if envelope_id in response.correlation and response.concerns(sender)
        ]

    def open(self) -> list[InboundExchange]:
        return list(self._by_id.values())


class ResponseWriter:
    """Makes responses, at most one a request, and rejections, only where one is owed."""

    def __init__(self, context: TableContext) -> None:
        self._context = context

    # --- responses ---

    def failure(self, exchange: InboundExchange, code: int, message: str, data: Any) -> None:
        """Answer with an error; ``data`` is left out where JSON has no form for it."""
        # Without characters that UTF-8 has no form for.
        text = message.encode("utf-8", "replace").decode()
        error: JsonObject = {"code": code, "message": text}
        if data is not None:
            with suppress(NotExpressible):
                error["data"] = msgspec.Raw(encode_json(data))
        self.respond(exchange, "error", encode_leniently(error))

    def exchange_error(self, exchange: InboundExchange, reason: str, message: str) -> None:
        """Answer ``busy``, ``cancelled`` or ``refused`` (PROTOCOL 5)."""
        self.failure(exchange, payloads.EXCHANGE_ERROR, f"{reason}: {message}", {"reason": reason})

    def unknown_method(self, exchange: InboundExchange, method: str) -> None:
        """Answer that we have no such method, or that none was named."""
        if not method:
            self.invalid(exchange, "the request has no method")
            return
        message = f"there is no method {method[:MAX_QUOTED_CHARS]!r} here"
        self.failure(exchange, payloads.METHOD_NOT_FOUND, message, None)

    def invalid(self, exchange: InboundExchange, why: str) -> None:
        """Answer that the request is malformed."""
        self.failure(exchange, payloads.INVALID_REQUEST, why, None)

    def respond(
        self,
        exchange: InboundExchange,
        field: Literal["result", "error"],
        raw: bytes | msgspec.Raw,
    ) -> None:
        """Send a response, with the JSON of a result or an error: the one place that does."""
        call = exchange.work.call
        if exchange.answer_id is not None or call is None:
            return
        rpc_id = call.rpc_id if call.rpc_name is not None else exchange.key.id
        # Put together, not encoded: the result may be long, and is JSON already.
        payload = b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (
            encode_leniently(rpc_id),
            field.encode(),
            raw,
        )
        # The proposer follows the response to a fulfillment, too.
        proposal = exchange.fulfills
        proposer = () if proposal is None else (proposal.key.proposer,)
        response = self._context.envelope_sender.send(
            kinds.MCP_RESPONSE,
            payload,
            priority=Priority.ANSWER,
            to=(exchange.key.sender,),
            correlation=(exchange.key.id,),
            concerned=(exchange.key.sender, *proposer),
        )
        exchange.answer_id = response.id

    # --- responses or rejections ---

    def busy(self, exchange: InboundExchange, *, held: bool = False) -> None:
        """Say that nothing more is taken; of proposals, to those that were addressed to us."""
        closing = self._context.closing
        why = "shutdown" if closing else "paused" if held else "overflow"
        self._context.drop(why, exchange.work.envelope, expected=closing or held)
        if exchange.is_request:
            said = "paused for now" if held else "too much to do at the moment"
            self.exchange_error(exchange, "busy", said)
        elif exchange.is_proposal:
            self.rejection(exchange, Reason.BUSY)

    def cancelled(self, exchange: InboundExchange, fulfillment_sent: bool, why: str) -> None:
        """Say that our own end, or a restart of ours, ended it."""
        if exchange.is_request:
            self.exchange_error(exchange, "cancelled", why)
        elif exchange.is_proposal and not fulfillment_sent:
            self.rejection(exchange, Reason.BUSY)

    # --- rejections ---

    def rejection(self, exchange: InboundExchange, reason: str) -> None:
        """Reject on our own account: only what was addressed to us, and is not decided."""
        record = exchange.record
        pending = record is None or record.state.is_pending
        if exchange.addressed and pending and not exchange.rejected:
            exchange.rejected = True
            self.reject(exchange.proposal_key, reason)

    def told_failure(self, exchange: InboundExchange) -> None:
        """Tell the proposer of what all may decide that our handler failed: others still may."""
        record, envelope, context = exchange.record, exchange.work.envelope, self._context
        if record is None or not record.state.is_pending or record.refused:
            return
        said = payloads.tell_proposer(envelope, payloads.HANDLER_FAILED, FAILED_WORDS)
        to = (record.proposer,)
        if context.roster.is_allowed(context.me, kinds.MCP_REQUEST, said, to):
            context.envelope_sender.send(
                kinds.MCP_REQUEST,
                said,
                priority=Priority.TALK,
                to=to,
                correlation=(envelope.id,),
                concerned=to,
            )

    def reject(
        self,
        proposal: ProposalKey,
        reason: str,
        *,
        meta: JsonObject | None = None,
    ) -> Envelope:
        """Reject a proposal; nor do we carry it out for another, if that decides it (4.4)."""
        record = self._context.proposal_store.get(proposal, self._context.now)
        if record is not None:
            record.refused = True
            if declines(reason):  # not every gateway echoes it
                record.declined_by.add(self._context.me)
        return self._context.envelope_sender.send(
            kinds.MCP_REJECT,
            payloads.build_end(reason, meta),
            priority=Priority.END,
            to=(proposal.proposer,),
            correlation=(proposal.id,),
            concerned=(proposal.proposer,),
        )


# --- admission ---
# How many handlers of ours run, and every path on which one can start.
#
# A request, a proposal and a notice are its three paths, and each is checked twice in the same
# way: on arrival, and when its turn has come, since it may have waited in the queue (for a slot,
# or for the end of a replay) while it was taken back. However a message was addressed, in any
# dialect, over any connection of any participant: nothing starts that did not go through here.


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one agent.

    Attributes:
        handlers: Handlers that run at once; one that awaits an exchange does not count meanwhile.
        queued: Requests, proposals and notices that wait for a slot.
        awaiting: Handlers that may await exchanges besides these; more would be memory that any
            sender can make us use.
    """

    handlers: int = 64
    queued: int = 256
    awaiting: int = 1024


MAX_URGENT: Final = 64
"""Handlers of control messages that run or wait at once: they need no slot, and each comes from a
participant that may send it."""


class ConcurrencyLimiter:
    """Counts the handlers that run and queues those that wait, first come first served."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._running: dict[Key, int] = {}
        self._busy = 0
        self._queue: OrderedDict[Key, bool] = OrderedDict()
        self._urgent: OrderedDict[Key, bool] = OrderedDict()
        self._urgent_running: set[Key] = set()
        self.is_held = False
        """We are paused: no handler begins but those that are urgent."""
        self.is_shut = False
        """No handler begins any more."""
        self.is_paused = False
        """No handler begins for now; slots that stay free lengthen the queue meanwhile."""

    @property
    def is_full(self) -> bool:
        """True if the queue takes no more."""
        limits = self._limits
        waits = self.is_paused or self.is_held
        free = limits.handlers - self._busy if waits else 0
        return len(self._queue) >= limits.queued + free

    @property
    def running(self) -> int:
        """Handlers that have begun and not ended, awaiting or not."""
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        """True if no handler runs or waits, urgent ones included."""
        return not (self._running or self._urgent_running or self._queue or self._urgent)

    @property
    def queued(self) -> int:
        """Handlers that wait for a slot."""
        return len(self._queue)

    @property
    def takes_urgent(self) -> bool:
        return len(self._urgent) + len(self._urgent_running) < MAX_URGENT

    def add(self, key: Key, *, droppable: bool) -> None:
        """Put a handler at the end of the queue."""
        self._queue[key] = droppable

    def add_urgent(self, key: Key) -> None:
        """Put a handler before the queue: it needs no free slot, and begins also in a pause."""
        self._urgent[key] = False

    def oldest_droppable(self) -> Key | None:
        """The first in the queue that may be left out."""
        return next((key for key, droppable in self._queue.items() if droppable), None)

    def remove(self, key: Key) -> None:
        """Take a handler out of the queue, or free the slot of one that has ended."""
        self._queue.pop(key, None)
        self._urgent.pop(key, None)
        self._urgent_running.discard(key)
        if self._running.pop(key, None) == 0:
            self._busy -= 1

    def next(self) -> Key | None:
        """Give a free slot to the first in the queue, if there is one."""
        if self._urgent and not self.is_shut and not self.is_paused:
            key, _ = self._urgent.popitem(last=False)
            self._urgent_running.add(key)
            return key
        limits = self._limits
        too_many = len(self._running) >= limits.handlers + limits.awaiting
        if self.is_shut or self.is_paused or self.is_held or too_many:
            return None
        if not self._queue or self._busy >= limits.handlers:
            return None
        key, _ = self._queue.popitem(last=False)
        self._running[key] = 0
        self._busy += 1
        return key

    def count_waits(self, key: Key, change: int) -> None:
        """Free the slot of a handler that begins (+1) its first wait; take it back after (−1)."""
        before = self._running.get(key)
        if before is None:
            return
        self._running[key] = after = before + change
        if before == 0 and after > 0:
            self._busy -= 1
        elif before > 0 and after == 0:
            self._busy += 1


class Denial(NamedTuple):
    """The reason for which a handler does not start."""

    why: str  # a short code, the counter's name
    answer: str = ""  # the text for a requester (PROTOCOL 5, ``refused``); empty: it gets no answer
    expected: bool = False  # it happens among correct participants


@dataclass
class Admission:
    """Decides whether an exchange may start its handler."""

    _context: TableContext

    def denial(self, exchange: InboundExchange) -> Denial | None:
        """The reason for which an exchange starts no handler now; ``None``: it may."""
        match exchange.work.role:
            case Role.REQUEST:
                return self._of_request(exchange)
            case Role.PROPOSAL:
                return self._of_proposal(exchange)
            case (
                Role.REJECT
                | Role.WITHDRAW
                | Role.EXPLANATION
                | Role.EXPIRE
                | Role.CONFLICT
                | Role.CHAT
                | Role.ACKNOWLEDGE
                | Role.JOIN
                | Role.LEAVE
                | Role.GAP
                | Role.GRANT
                | Role.REVOKE
                | Role.PAUSE
                | Role.RESUME
                | Role.STATUS_REQUEST
                | Role.STATUS
                | Role.FORGET
                | Role.COMPACT
                | Role.COMPACT_DONE
                | Role.CLEAR
                | Role.RESTART
                | Role.SHUTDOWN
                | Role.STREAM
                | Role.KIND
            ):
                # A notice owes no answer, and carries nothing out: a watcher (``on()``), too. Each
                # is named, so that the type checker asks about a new one.
                return None

    def _of_request(self, exchange: InboundExchange) -> Denial | None:
        """Check a request: what it carries out must be another's, pending, and not begun."""
        if not exchange.work.envelope.correlation:
            return None  # it carries nothing out
        self._bind(exchange)
        refusal = self._refusal(exchange)
        return None if refusal is None else Denial("fulfillment_refused", refusal)

    def _of_proposal(self, exchange: InboundExchange) -> Denial | None:
        """Check a proposal: pending, in time, not ours to decide again, the first of its id."""
        record = exchange.record
        if record is None:
            return None
        if record.copied:
            return Denial("id_in_use")
        if self._context.has_declined(record):
            return Denial("rejected_before", expected=True)
        if record.state is ProposalState.WITHDRAWN:
            return Denial("withdrawn_before", expected=True)
        if self._context.state_of(record) is ProposalState.EXPIRED:
            return Denial("expired_before", expected=True)
        if not record.state.is_pending:
            return Denial("decided_before", expected=True)
        return None

    # --- fulfillments ---

    def _bind(self, exchange: InboundExchange) -> None:
        """Find the proposal of a request that came before it, and waited meanwhile."""
        now = self._context.now
        item = exchange.fulfillment
        if exchange.fulfills is not None or item is None or not item.early:
            return
        store = self._context.proposal_store
        means = resolve(exchange.work.envelope, store, now)
        exchange.fulfills, exchange.doubt = means.record, means.doubt
        if means.record is not None:
            means.record.holders += 1
            if means.record.key.proposer != item.by:
                store.requested(means.record, item, now)

    def _refusal(self, exchange: InboundExchange) -> str | None:
        match exchange.doubt:
            case Doubt.AMBIGUOUS:
                return (
                    "its id is that of several proposals, and the request does not tell which it"
                    f" carries out; say it in {payloads.PROPOSER} and {payloads.DIGEST}"
                )
            case Doubt.SEVERAL:
                return "it names more than one proposal; a request carries out one"
            case Doubt.TOO_MANY:
                return f"it names more than {MAX_NAMED} ids; a request carries out one proposal"
            case None:
                pass
        record, call = exchange.fulfills, exchange.work.call
        refusal = None if record is None else self._refusal_of_known(exchange, record)
        if refusal is not None or call is None:
            return refusal
        if record is None or claimed_proposer(call) not in (None, record.key.proposer):
            # Another's copy of what we have not seen must not stand in for it.
            return self._refusal_of_unknown(exchange, call)
        return None

    def _refusal_of_known(self, exchange: InboundExchange, record: ProposalEntry) -> str | None:
        proposal, ours = f"proposal {record.key.id}", exchange.fulfillment
        if record.key.proposer == exchange.key.sender:
            return f"{proposal} is the requester's own; another participant fulfills it"
        if ours is None:
            return f"{proposal} has more fulfillments than are followed"
        if self._context.has_declined(record):
            return f"{proposal} was rejected here"
        if exchange.key.sender in record.declined_by:  # in another tab, say
            return f"{proposal} was rejected by {exchange.key.sender!r} itself"
        for item in record.fulfillments:
            if item is not ours and (item.running or item.carried_out):
                return f"{proposal} is fulfilled by {item.by!r}"
        if record.state is ProposalState.FULFILLED:
            return f"{proposal} is fulfilled already"
        if not record.state.is_pending:
            return f"{proposal} is {record.state}"
        first = record.in_progress
        if first is not None and first is not ours:
            return f"{proposal} is being fulfilled by {first.by!r}"
        return None

    def _refusal_of_unknown(self, exchange: InboundExchange, call: payloads.Call) -> str | None:
        """Check a request whose proposal has not come, or is hidden; it may say whose it is."""
        now = self._context.now
        tombstones = self._context.tombstones
        proposer = claimed_proposer(call)
        for name in exchange.work.envelope.correlation:
            if proposer is None and tombstones.has_any("withdrawn", name, now):
                return f"proposal {name} was withdrawn"
            if proposer is not None and tombstones.get("withdrawn", proposer, name, now):
                return f"proposal {name} was withdrawn"
            for item in self._context.proposal_store.early(name, now):
                if item is not exchange.fulfillment and _is_rival(item, call, proposer):
                    return f"proposal {name} is fulfilled by {item.by!r}"
        return None


def early_fulfillment(request: Envelope, call: payloads.Call) -> FulfillingRequest:
    """The record of a request that names a proposal we do not know: all but its arguments."""
    proposer = claimed_proposer(call)
    meta = {} if proposer is None else {payloads.META: {payloads.PROPOSER: proposer}}
    body = payloads.request(call.method, {"name": call.name, **meta}, call.rpc_name or request.id)
    kept = request.replace(raw_payload=encode_json(body), added=())
    return FulfillingRequest(kept, request.to, early=True)


def is_early(item: FulfillingRequest, record: ProposalEntry) -> bool:
    """True if a request that came before a proposal carries it out."""
    call = payloads.read_call(item.envelope.payload)
    return (
        item.early
        and (item.running or item.carried_out)
        and item.by != record.key.proposer
        and claimed_proposer(call) in (None, record.key.proposer)
        and record.called == call.called
    )


def _is_rival(item: FulfillingRequest, call: payloads.Call, proposer: str | None) -> bool:
    """True if two requests, known only by their own word, carry out one proposal."""
    if not (item.running or item.carried_out):
        return False
    other = payloads.read_call(item.envelope.payload)
    claimed = {name for name in (proposer, claimed_proposer(other)) if name is not None}
    return len(claimed) == 1 and (call.method, call.name) == (other.method, other.name)


# --- the handlers of an agent ---

MAX_UNDECIDED: Final = 1_000
"""Proposals that wait for the return of their proposers, whose absence ended the handlers. The
proposer with the most loses its oldest first."""

_DROPPABLE: Final = frozenset(
    {
        Role.CHAT,
        Role.EXPLANATION,
        Role.JOIN,
        Role.LEAVE,
        Role.KIND,
        Role.GRANT,
        Role.REVOKE,
        Role.STATUS,
        Role.ACKNOWLEDGE,
        Role.COMPACT_DONE,
        Role.STREAM,
    }
)
"""The roles whose handlers are dropped where the queue is full: news, for which no participant
waits.

A request, a proposal and a control message are answered, and the end of an exchange (a rejection, a
withdrawal, an expiry, a conflict, a gap) must not be missed.
"""


class HandlerScheduler:
    """Queues, starts and ends the handlers of requests, proposals and notices."""

    def __init__(self, context: TableContext, outbound: OutboundTracker, limits: Limits) -> None:
        self._context = context
        self._outbound = outbound
        self.limiter = ConcurrencyLimiter(limits)
        self._open: dict[Key, InboundExchange] = {}
        self._by_proposal: dict[ProposalKey, InboundExchange] = {}
        self.requests = RequestIndex()
        self.responses = ResponseWriter(context)
        self.admission = Admission(context)
        self._undecided: FairTTLMap[ProposalKey, ProposalEntry] = FairTTLMap(
            owner=lambda key: key.proposer, count=MAX_UNDECIDED, seconds=math.inf
        )
        # Set by the part that obeys control messages: called when the handler of one has ended,
        # with what it returned, and, while we close, when any has.
        self.on_control_end: Callable[[InboundExchange, object], None]
        self.on_idle: Callable[[], None]

    def find(self, key: Key) -> InboundExchange | None:
        return self._open.get(key)

    def find_proposal(self, proposal: ProposalKey) -> InboundExchange | None:
        return self._by_proposal.get(proposal)

    # --- in ---

    def new_exchange(
        self, role: Role, envelope: Envelope, call: Call, handler: object
    ) -> InboundExchange:
        """A request or proposal, not yet queued."""
        key = Key("in", envelope.sender, envelope.id)
        while key in self._open:
            key = key._replace(again=key.again + 1)
        work = Work(role, envelope, call=call, handler=handler)
        unattended = envelope.sender not in self._context.roster
        addressed = self._context.me in envelope.to
        by_rpc_id = None
        if call.rpc_name is not None and call.rpc_name != envelope.id:
            by_rpc_id = (envelope.sender, call.rpc_name)
        names = ((envelope.sender, envelope.id), by_rpc_id)
        return InboundExchange(key, work, addressed, unattended=unattended, names=names)

    def notify(
        self,
        role: Role,
        envelope: Envelope,
        subject: Subject = None,
        *,
        droppable: bool = False,
        handler: object = None,
    ) -> bool:
        """Queue a notice, which owes no answer; ``False``: left out, most for want of room."""
        if not self._context.mode.answers or self.limiter.is_shut:
            return False
        handler = handler or self._context.find_handler(role, envelope, None)
        if not handler:
            return False
        droppable = droppable or role in _DROPPABLE
        if droppable and not self.make_room():
            self._context.drop("overflow", envelope, expected=self._context.closing)
            return False
        self.enqueue(self._new_notice(Work(role, envelope, subject, handler=handler), droppable))
        return True

    def notify_control(self, role: Role, envelope: Envelope, subject: Subject) -> bool:
        """Start the handler of a control message before all others; ``False``: there is none."""
        handler = self._context.find_handler(role, envelope, None)
        if not handler or self.limiter.is_shut or self._context.closing:
            return False
        if not self.limiter.takes_urgent:
            self._context.drop("overflow", envelope)
            return False
        notice = self._new_notice(Work(role, envelope, subject, handler=handler))
        self._open[notice.key] = notice
        self.limiter.add_urgent(notice.key)
        self._start_next()
        return True

    def _new_notice(self, work: Work, droppable: bool = False) -> InboundExchange:
        name = f"{work.role}:{self._context.envelope_sender.new_id()}"
        return InboundExchange(Key("job", work.envelope.sender, name), work, droppable=droppable)

    def turns_away(self, exchange: InboundExchange) -> bool:
        """True if a request or proposal is not taken: it names us in a pause, or has no room.

        What names no participant waits for the end of a pause, since no answer tells its sender.
        """
        return (self.limiter.is_held and exchange.addressed) or not self.make_room()

    def make_room(self) -> bool:
        """True if one more is taken; if need be, the oldest chat or presence is left out for it."""
        if self._context.closing:
            return False
        if not self.limiter.is_full:
            return True
        key = self.limiter.oldest_droppable()
        if key is None:
            return False
        dropped = self._open.pop(key)
        self.limiter.remove(key)
        _stop_reading(dropped)
        self._context.drop("overflow", dropped.work.envelope)
        return True

    def enqueue(self, exchange: InboundExchange) -> None:
        """Queue a handler, and start it if there is a free slot."""
        if exchange.is_request:
            self.requests.add(exchange)
        elif exchange.record is not None:
            exchange.record.holders += 1
            self._by_proposal[exchange.record.key] = exchange
        self._open[exchange.key] = exchange
        self.limiter.add(exchange.key, droppable=exchange.droppable)
        self._start_next()

    def _start_next(self) -> None:
        while (key := self.limiter.next()) is not None:
            exchange = self._open[key]
            denial = self.admission.denial(exchange)
            if denial is None:
                self._apply(exchange, InboundEvent.START)
            else:
                self.deny(exchange, denial)
                self._remove(exchange)

    def deny(self, exchange: InboundExchange, denial: Denial, *, answered: bool = True) -> None:
        """Drop what may start no handler, and say why where an answer is owed."""
        self._context.drop(denial.why, exchange.work.envelope, expected=denial.expected)
        self._note_not_carried_out(exchange)
        if exchange.is_request and denial.answer and answered:
            self.responses.exchange_error(exchange, payloads.REFUSED, denial.answer)

    def _note_not_carried_out(self, exchange: InboundExchange) -> None:
        if exchange.fulfills is not None and exchange.fulfillment is not None:
            # At once: not every gateway echoes our refusal.
            self._context.proposal_store.not_carried_out(exchange.fulfills, exchange.fulfillment)

    # --- cancelled ---

    def cancel(self, exchange: InboundExchange, cause: Cause) -> None:
        self._apply(exchange, InboundEvent.CANCEL, cause)

    def withdraw(self, exchange: InboundExchange, cause: Cause) -> None:
        """Cancel the handler of a proposal that was withdrawn; it is told of that when it ends."""
        if exchange.state in (InboundState.RUNNING, InboundState.CANCELLING):
            exchange.withdrawal = cause
        self.cancel(exchange, cause)

    def settle_rejected(self, exchange: InboundExchange) -> None:
        """Settle what its handler rejects: the withdraw that follows cancels it no more."""
        exchange.rejected = True
        if exchange.state is InboundState.QUEUED:
            self._close(exchange)
        elif exchange.state is InboundState.RUNNING:
            self._apply(exchange, InboundEvent.REJECTED)

    def end_rejected(self, record: ProposalEntry, reason: str) -> None:
        """End the handler of what another process of ours has rejected (PROTOCOL 5).

        Unless it is fulfilling it already: its request may have been ordered first.
        """
        if not record.state.is_pending or self._outbound.open_fulfillments(record.key):
            return
        record.refused = True
        if declines(reason):  # others may have rejected it more often than is noted
            record.declined_by.add(self._context.me)
        exchange = self._by_proposal.get(record.key)
        if exchange is not None and not exchange.rejected:
            exchange.rejected = True
            text = "another process of ours rejected it"
            cause = cause_of_end(self._context.me, record.key.id, reason, text, self._context.now)
            self.cancel(exchange, cause)

    def notify_withdrawn(self, record: ProposalEntry, cause: Cause) -> None:
        """Tell handlers that a proposal was withdrawn; of one that we rejected it is not news."""
        if not record.refused:
            subject = Withdrawal(record.key.id, record.key.proposer, cause)
            self.notify(Role.WITHDRAW, record.envelope, subject)

    def chats(self, ids: tuple[str, ...]) -> list[InboundExchange]:
        """The handlers of chats with these ids, that run or wait."""
        return [
            exchange
            for exchange in self._open.values()
            if exchange.work.role is Role.CHAT and exchange.work.envelope.id in ids
        ]

    # --- expired ---

    def expire(self) -> list[ProposalEntry]:
        """End the proposals whose time is over, and what is begun about them (PROTOCOL 4.2)."""
        expired = self._context.expired()
        for record in expired:
            if self._outbound.expire_own(record):
                continue
            cause = Cause(
                Reason.TIMEOUT, "", "the proposal expired", record.key.id, self._context.now
            )
            self.end_expired(record, cause)
        self._context.watch_expiries()
        return expired

    def end_expired(self, record: ProposalEntry, cause: Cause) -> None:
        """Cancel the handler of an expired proposal; it is told of that when it ends."""
        exchange = self._by_proposal.get(record.key)
        if exchange is None or exchange.record is not record:
            self.notify_expired(record)
        elif not exchange.rejected:
            exchange.expired = exchange.state is not InboundState.QUEUED
            self.cancel(exchange, cause)

    def notify_expired(self, record: ProposalEntry) -> None:
        if record.handled and not record.refused:
            self.notify(Role.EXPIRE, record.envelope, Expiry(record.key.id))

    # --- presence and connection ---

    def pause(self, *, paused: bool) -> None:
        """Begin nothing during a replay: what comes in it may have been taken back long ago."""
        self.limiter.is_paused = paused
        self._start_next()

    def hold(self, *, held: bool) -> None:
        """Begin nothing but what is urgent while we are paused."""
        self.limiter.is_held = held
        self._start_next()

    def participant_left(self, participant: str) -> None:
        """Begin the grace of what a participant began and left."""
        for exchange in self._begun_by_others():
            if exchange.key.sender == participant:
                self._sender_left(exchange)

    def participant_joined(self, participant: str) -> None:
        """End the grace of what a participant began: it is back."""
        for exchange in self._begun_by_others():
            if exchange.key.sender == participant:
                exchange.sender_left_at = None

    def connection_lost(self) -> None:
        """Let run what runs: no participant's absence can be seen now."""
        for exchange in self._begun_by_others():
            exchange.sender_left_at = None
            self._apply(exchange, InboundEvent.LOST)

    def welcomed(self) -> None:
        """Begin the grace of what was begun by participants that the welcome no longer lists."""
        for exchange in self._begun_by_others():
            if not exchange.unattended and exchange.key.sender not in self._context.roster:
                self._sender_left(exchange)

    def check_absence(self, key: Key) -> None:
        """Cancel a handler whose sender has been away for the whole grace period."""
        now = self._context.now
        exchange = self._open.get(key)
        if exchange is None or exchange.sender_left_at is None or exchange.outlasts_sender:
            return
        until = exchange.sender_left_at + ABSENCE_SECONDS
        if now < until:
            self._context.look_again(until, key)
            return
        text = "its sender left the space"
        cause = cause_of_end(key.sender, key.id, Reason.NO_LONGER_NEEDED, text, now)
        is_running = exchange.state is InboundState.RUNNING
        if is_running and exchange.is_request and not exchange.work.envelope.correlation:
            # A sender that comes back without a gap would wait for ever. One that carries out a
            # proposal waits no longer than that, which an answer would decide.
            self.responses.cancelled(exchange, fulfillment_sent=False, why=text)
        self._apply(exchange, InboundEvent.SENDER_ABSENT, cause)
        record = exchange.record if exchange.is_proposal else None
        if is_running and record is not None and not self._fulfillment_sent(exchange):
            self._undecided.put(record.key, record, now)

    def take_undecided(self, proposer: str) -> list[ProposalEntry]:
        """Take the proposals of a participant whose handlers its absence ended: it is back."""
        found = [
            each
            for each in self._undecided.values(self._context.now)
            if each.key.proposer == proposer
        ]
        for record in found:
            self._undecided.pop(record.key)
            record.handled = False  # no handler has come to a decision
        return found

    def _sender_left(self, exchange: InboundExchange) -> None:
        if exchange.sender_left_at is None:
            exchange.sender_left_at = self._context.now
            self._apply(exchange, InboundEvent.SENDER_LEFT)

    def _begun_by_others(self) -> list[InboundExchange]:
        return [exchange for exchange in self._open.values() if exchange.key.side == "in"]

    # --- our own shutdown ---

    def shutdown(self) -> None:
        """Answer ``busy`` to what is queued."""
        for exchange in list(self._open.values()):
            if exchange.state is InboundState.QUEUED:
                self._turn_away(exchange)

    def _turn_away(self, exchange: InboundExchange) -> None:
        """End what is queued, with an answer where one is owed."""
        if exchange.key.side == "in":
            self._apply(exchange, InboundEvent.SHUTDOWN)
        else:
            self._close(exchange)

    def shutdown_over(self) -> None:
        """Cancel what still runs after the grace, and answer so."""
        self.limiter.is_shut = True
        for exchange in list(self._open.values()):
            if exchange.state is InboundState.QUEUED:
                self._close(exchange)
                continue
            cause = self._own_cause(exchange, "the agent shuts down")
            self._apply(exchange, InboundEvent.SHUTDOWN_OVER, cause)

    def restart(self, cause: Cause) -> None:
        """End everything that runs or waits, with an answer where one is owed."""
        for exchange in list(self._open.values()):
            if exchange.work.role in CONTROL_ROLES:
                continue
            if exchange.state is not InboundState.QUEUED:
                self._apply(exchange, InboundEvent.SHUTDOWN_OVER, cause)
            else:
                self._turn_away(exchange)

    # --- the handler ---

    def count_waits(self, key: Key, change: int) -> None:
        """Count a wait that a handler begins (+1) or ends (−1); its slot is free meanwhile."""
        self.limiter.count_waits(key, change)
        self._start_next()

    def returned(self, key: Key, result: object) -> None:
        """End a handler that returned; a result that JSON cannot hold raises NotExpressible."""
        exchange = self._open.get(key)
        if exchange is None:
            return
        if exchange.work.role in CONTROL_ROLES:
            self.on_control_end(exchange, result)
        owes = exchange.is_request and exchange.state is InboundState.RUNNING
        answer = None
        if owes:  # raw JSON was checked as it was encoded
            answer = result if isinstance(result, msgspec.Raw) else encode_json(result)
        self._apply(exchange, InboundEvent.RETURNED)
        if answer is not None:
            self.responses.respond(exchange, "result", answer)
            if exchange.fulfillment is not None:
                exchange.fulfillment.carried_out = True
        self._close(exchange)

    def raised(
        self, key: Key, code: int, message: str, data: object, *, begun: bool = True
    ) -> None:
        """End a handler that raised, stopped because it was cancelled, or never began."""
        exchange = self._open.get(key)
        if exchange is None:
            return
        if exchange.work.role in CONTROL_ROLES:
            self.on_control_end(exchange, None)
        if self._apply(exchange, InboundEvent.RAISED) is InboundAction.RESPOND_ERROR:
            if exchange.is_request:
                self.responses.failure(exchange, code, message, data)
                if not begun:
                    self._note_not_carried_out(exchange)
                elif exchange.fulfillment is not None:
                    exchange.fulfillment.carried_out = True
            elif exchange.is_proposal and not self._fulfillment_sent(exchange):
                if exchange.addressed:
                    self.responses.rejection(exchange, Reason.OTHER)
                elif begun:
                    self.responses.told_failure(exchange)
        self._close(exchange)

    # --- the lifecycle ---

    def _apply(
        self, exchange: InboundExchange, event: InboundEvent, cause: Cause | None = None
    ) -> InboundAction:
        """Step an exchange through the lifecycle, and carry out all but the answer at its end."""
        exchange.state, action = look_up(INBOUND, exchange.state, event, "an incoming exchange")
        match action:
            case InboundAction.START:
                if exchange.record is not None:
                    exchange.record.handled = True
                self._context.effects.append(Start(exchange.key, exchange.work))
                if exchange.sender_left_at is not None:
                    self._begin_grace(exchange)
            case InboundAction.BEGIN_GRACE:
                self._begin_grace(exchange)
            case InboundAction.ANSWER_BUSY:
                self.responses.busy(exchange)
                self._close(exchange)
            case InboundAction.CANCEL_SCOPE:
                self._cancel_scope(exchange, cause)
            case InboundAction.CANCEL_SCOPE_AND_ANSWER:
                assert cause is not None
                is_sent = self._fulfillment_sent(exchange)
                self.responses.cancelled(exchange, is_sent, cause.text)
                self._cancel_scope(exchange, cause)
            case InboundAction.DROP:
                self._context.drop("cancelled_in_queue", exchange.work.envelope, expected=True)
                self._close(exchange)
            case InboundAction.COUNT_LATE:
                self._context.drop("late_withdraw", exchange.work.envelope, expected=True)
            case _:  # the answer is the caller's, and the others change nothing
                pass
        return action

    def _begin_grace(self, exchange: InboundExchange) -> None:
        assert exchange.sender_left_at is not None
        self._context.look_again(exchange.sender_left_at + ABSENCE_SECONDS, exchange.key)

    def _cancel_scope(self, exchange: InboundExchange, cause: Cause | None) -> None:
        """Cancel the handler, and in the same step what it has open elsewhere."""
        assert cause is not None
        exchange.cause = cause
        self._context.effects.append(Cancel(exchange.key, cause))
        self._outbound.give_up_children(exchange.key, cause)

    def _close(self, exchange: InboundExchange) -> None:
        self._remove(exchange)
        self._start_next()

    def _remove(self, exchange: InboundExchange) -> None:
        key = exchange.key
        del self._open[key]
        self.limiter.remove(key)
        if exchange.is_request:
            self.requests.settle(exchange, self._context.now)
        elif key.side == "job":
            _stop_reading(exchange)
        if exchange.fulfillment is not None:
            exchange.fulfillment.running = False
            if exchange.fulfills is not None:
                exchange.fulfills.holders -= 1
        if exchange.record is not None:
            exchange.record.holders -= 1
            if self._by_proposal.get(exchange.record.key) is exchange:
                del self._by_proposal[exchange.record.key]
        if len(self._outbound):  # usually nothing is open, and no cause has to be made
            leftover = exchange.cause or self._own_cause(exchange, "")
            self._outbound.give_up_children(key, leftover)
        if exchange.withdrawal is not None and exchange.record is not None:
            self.notify_withdrawn(exchange.record, exchange.withdrawal)
        elif exchange.expired and exchange.record is not None:
            self.notify_expired(exchange.record)
        if self._context.closing:
            self.on_idle()

    def _own_cause(self, exchange: InboundExchange, text: str) -> Cause:
        return Cause(
            Reason.NO_LONGER_NEEDED, self._context.me, text, exchange.key.id, self._context.now
        )

    def _fulfillment_sent(self, exchange: InboundExchange) -> bool:
        """True if we fulfill, or have fulfilled, a proposal: here, or in another process."""
        out = None if exchange.record is None else exchange.record.in_progress
        sender = self._context.envelope_sender
        by_sibling = out is not None and sender.is_from_sibling((out.envelope.id,))
        return by_sibling or self._outbound.has_fulfilled(exchange.proposal_key)


@dataclass
class TablePart:
    """A part of the table that reads envelopes, with what all of these share."""

    _context: TableContext
    _outbound: OutboundTracker
    _scheduler: HandlerScheduler


def _stop_reading(exchange: InboundExchange) -> None:
    """Take no more frames for a handler of a stream."""
    if isinstance(exchange.work.subject, StreamBuffer):
        exchange.work.subject.close()
