"""Admission: how many handlers of ours run, and every path on which one can start.

A request, a proposal and a notice are its three paths, and each is checked twice in the same way:
on arrival, and when its turn has come, since it may have waited in the queue (for a slot, or for
the end of a replay) while it was taken back. However a message was addressed, in any dialect, over
any connection of any participant: nothing starts that did not go through here.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from meup_agent.protocol import payloads
from meup_agent.protocol.envelope import Envelope, encode_json
from meup_agent.protocol.exchange.effects import Key, Role
from meup_agent.protocol.exchange.inbound_exchange import InboundExchange
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.proposals.record import FulfillingRequest, ProposalEntry
from meup_agent.protocol.proposals.resolution import (
    MAX_NAMED,
    Doubt,
    claimed_proposer,
    resolve,
)


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
        """True if one more handler can be urgent."""
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


class Admission:
    """Decides whether an exchange may start its handler."""

    def __init__(self, context: TableContext) -> None:
        self._context = context

    def denial(self, exchange: InboundExchange) -> Denial | None:
        """The reason for which an exchange starts no handler now; ``None``: it may."""
        match exchange.work.role:
            case Role.REQUEST:
                return self._of_request(exchange)
            case Role.PROPOSAL:
                return self._of_proposal(exchange)
            case _:
                # A notice owes no answer, and carries nothing out: a watcher (``on()``), too.
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
        record, call = exchange.fulfills, exchange.call
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
        and record.is_carried_out_by(call)
    )


def _is_rival(item: FulfillingRequest, call: payloads.Call, proposer: str | None) -> bool:
    """True if two requests, known only by their own word, carry out one proposal."""
    if not (item.running or item.carried_out):
        return False
    other = payloads.read_call(item.envelope.payload)
    claimed = {name for name in (proposer, claimed_proposer(other)) if name is not None}
    return len(claimed) == 1 and (call.method, call.name) == (other.method, other.name)
