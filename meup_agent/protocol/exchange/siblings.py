"""What another process of ours says under our name while we run (PROTOCOL 5).

Where the gateway checks who speaks, it can be nobody else: a person acts over HTTP with our token,
or it is what a process before us said. Everybody else takes it for ours, and so do we.
"""

from __future__ import annotations

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.handler_scheduler import HandlerScheduler
from meup_agent.protocol.exchange.outbound_tracker import OutboundTracker
from meup_agent.protocol.exchange.proposal_store import ProposalKey
from meup_agent.protocol.exchange.resolution import resolve
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.reasons import Cause, cause_of_cancel, read_reason


class SiblingConnections:
    """Ends here what was decided there; of whatever else is said there, nothing is left to do."""

    def __init__(
        self, context: TableContext, outbound: OutboundTracker, scheduler: HandlerScheduler
    ) -> None:
        self._context = context
        self._outbound = outbound
        self._scheduler = scheduler

    def begins(self, envelope: Envelope, now: float) -> None:
        """Something was said there: what others answer to it is not for us.

        A proposal is entered among those that we know; unlike our own here, nobody waits for it.
        """
        self._context.envelope_sender.note_sibling(envelope.id, now)
        proposal_store, key = (
            self._context.proposal_store,
            ProposalKey(envelope.sender, envelope.id),
        )
        if envelope.kind == kinds.MCP_PROPOSAL and proposal_store.get(key, now) is None:
            proposal_store.add(envelope, now)

    def ends(self, envelope: Envelope, now: float) -> None:
        """What was said there has been entered; see whether it ends something here."""
        match envelope.kind:
            case kinds.MCP_WITHDRAW:
                reason = read_reason(envelope.payload_object.get("reason"))
                for name in envelope.correlation:
                    cause = Cause(reason, by=envelope.sender, id=name, at=now)
                    self._outbound.ended_by_sibling(name, kinds.MCP_PROPOSAL, cause, now)
            case kinds.MCP_REJECT:
                record = resolve(envelope, self._context.proposal_store, now).record
                if record is not None:
                    reason = read_reason(envelope.payload_object.get("reason"))
                    self._scheduler.rejected_by_sibling(record, reason, now)
            case kinds.MCP_RESPONSE:
                self._scheduler.answered_by_sibling(envelope, now)
            case kinds.MCP_REQUEST:
                self._cancelled(envelope, now)
            case _:
                pass

    def _cancelled(self, envelope: Envelope, now: float) -> None:
        call = payloads.read_call(envelope.payload)
        request_id = call.params.get("requestId")
        if call.method == kinds.CANCELLED and isinstance(request_id, int | str):
            name = str(request_id)
            cause = cause_of_cancel(call.params, by=envelope.sender, exchange_id=name, at=now)
            self._outbound.ended_by_sibling(name, kinds.MCP_REQUEST, cause, now)
