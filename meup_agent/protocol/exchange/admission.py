"""Every path on which a handler of ours can start, and what must hold for it to start.

There is one list of paths, one entry a role, and each is looked at twice in the same way: when
something comes, and when its turn has come, since it may have waited in the queue (for a place, or
until we have read what we missed) while it was taken back. However a message was addressed, in
whatever dialect, over whatever connection of whoever: nothing starts that did not go through here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from meup_agent.protocol import payloads
from meup_agent.protocol.envelope import Envelope, encode_json
from meup_agent.protocol.exchange.effects import Role
from meup_agent.protocol.exchange.inbound_exchange import InboundExchange
from meup_agent.protocol.exchange.proposal_store import FulfillingRequest, ProposalEntry
from meup_agent.protocol.exchange.resolution import (
    MAX_NAMED,
    Doubt,
    carries_out,
    claimed_proposer,
)
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.lifecycle import ProposalState


class Denial(NamedTuple):
    """Why a handler does not start.

    Attributes:
        why: A short code, the counter's name.
        answer: What a requester is told (PROTOCOL 5, ``refused``); empty: nothing.
        expected: It happens among correct participants.
    """

    why: str
    answer: str = ""
    expected: bool = False


class Admission:
    """Decides whether what came, or waited, may start a handler."""

    def __init__(self, context: TableContext) -> None:
        self._context = context

    def denial(self, exchange: InboundExchange, now: float) -> Denial | None:
        """Why something starts no handler now; ``None``: it may.

        Args:
            exchange: What came, or has waited.
            now: The time.
        """
        return PATHS[exchange.work.role](self, exchange, now)

    # --- one for each path ---

    def of_request(self, exchange: InboundExchange, now: float) -> Denial | None:
        """A request: what it carries out must be somebody else's, pending, and nobody else's to do.

        Any other request is its sender's own, which the gateway has let through.
        """
        refusal = self._refusal(exchange, now)
        return None if refusal is None else Denial("fulfillment_refused", refusal)

    def of_proposal(self, exchange: InboundExchange, now: float) -> Denial | None:
        """A proposal: it must be pending, in time, and the first that we know under its id."""
        record = exchange.record
        if record is None:
            return None
        if record.copied:
            return Denial("id_in_use")
        if record.state is ProposalState.WITHDRAWN:
            return Denial("withdrawn_before", expected=True)
        if not record.state.is_pending:
            return Denial("decided_before", expected=True)
        if self._context.is_past(record.call.expires_at):
            return Denial("expired_before", expected=True)
        return None

    def of_notice(self, exchange: InboundExchange, now: float) -> Denial | None:
        """What we are told of: nobody waits for it, and it carries nothing out."""
        del exchange, now
        return None

    # --- fulfillments ---

    def _refusal(self, exchange: InboundExchange, now: float) -> str | None:
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
            return self._refusal_of_unknown(exchange, call, now)
        return None

    def _refusal_of_known(self, exchange: InboundExchange, record: ProposalEntry) -> str | None:
        proposal, ours = f"proposal {record.key.id}", exchange.fulfillment
        if record.key.proposer == exchange.key.sender:
            return f"{proposal} is the requester's own, and nobody fulfills their own"
        if ours is None:
            return f"{proposal} has more fulfillments than are followed"
        if record.declined:
            return f"{proposal} was rejected here"
        for item in record.fulfillments:
            if item is not ours and (item.running or item.carried_out):
                return f"{proposal} is fulfilled by {item.by!r}"
        if record.state is ProposalState.FULFILLED:
            return f"{proposal} is fulfilled already"
        if not record.state.is_pending:
            return f"{proposal} was withdrawn"
        if self._context.is_past(record.call.expires_at):
            return f"{proposal} is expired"
        first = record.in_progress
        if first is not None and first is not ours:
            return f"{proposal} is being fulfilled by {first.by!r}"
        return None

    def _refusal_of_unknown(
        self, exchange: InboundExchange, call: payloads.Call, now: float
    ) -> str | None:
        """A request may come before its proposal, or where we do not see that at all.

        It counts as a fulfillment where it, or a request before it, says whose proposal that is.
        """
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
    """What is remembered of a request that names what we do not know: all but its arguments.

    Args:
        request: The request.
        call: What it asks for.
    """
    proposer = claimed_proposer(call)
    meta = {} if proposer is None else {payloads.META: {payloads.PROPOSER: proposer}}
    said = payloads.request(call.method, {"name": call.name, **meta}, call.rpc_name or request.id)
    kept = request.replace(raw_payload=encode_json(said), added=())
    return FulfillingRequest(kept, request.to, early=True)


def is_early(item: FulfillingRequest, record: ProposalEntry) -> bool:
    """Whether a request that came before a proposal carries it out.

    Args:
        item: The request.
        record: The proposal.
    """
    call = payloads.read_call(item.envelope.payload)
    return (
        item.early
        and (item.running or item.carried_out)
        and item.by != record.key.proposer
        and claimed_proposer(call) in (None, record.key.proposer)
        and carries_out(record, call)
    )


def _is_rival(item: FulfillingRequest, call: payloads.Call, proposer: str | None) -> bool:
    """Whether two requests, of which we know only what they say, carry out one proposal."""
    if not (item.running or item.carried_out):
        return False
    other = payloads.read_call(item.envelope.payload)
    said = {name for name in (proposer, claimed_proposer(other)) if name is not None}
    return len(said) == 1 and (call.method, call.name) == (other.method, other.name)


PATHS: Final[Mapping[Role, Callable[[Admission, InboundExchange, float], Denial | None]]] = {
    Role.REQUEST: Admission.of_request,
    Role.PROPOSAL: Admission.of_proposal,
    Role.REJECT: Admission.of_notice,
    Role.WITHDRAW: Admission.of_notice,
    Role.CONFLICT: Admission.of_notice,
    Role.CHAT: Admission.of_notice,
    Role.JOIN: Admission.of_notice,
    Role.LEAVE: Admission.of_notice,
    Role.GAP: Admission.of_notice,
    Role.GRANT: Admission.of_notice,
    Role.REVOKE: Admission.of_notice,
    Role.KIND: Admission.of_notice,
}
"""Every path on which a handler can start. Watchers (``on()``) are told of a message, and carry
nothing out: theirs is a notice, too."""
