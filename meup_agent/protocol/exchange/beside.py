"""What another process of ours says under our name while we run (PROTOCOL 5).

Where the gateway checks who speaks, it can be nobody else: a person acts over HTTP with our token,
or it is what a process before us said. Everybody else takes it for ours, and so do we.
"""

from __future__ import annotations

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.incoming import Incoming
from meup_agent.protocol.exchange.ledger import ProposalKey
from meup_agent.protocol.exchange.outgoing import Outgoing
from meup_agent.protocol.exchange.resolution import resolve
from meup_agent.protocol.exchange.situation import Situation
from meup_agent.protocol.reasons import Cause, cause_of_cancel, read_reason


class Beside:
    """Ends here what was decided there; of whatever else is said there, nothing is left to do."""

    def __init__(self, situation: Situation, outgoing: Outgoing, incoming: Incoming) -> None:
        self._situation = situation
        self._outgoing = outgoing
        self._incoming = incoming

    def begins(self, envelope: Envelope, now: float) -> None:
        """Something was said there: what others answer to it is not for us.

        A proposal is entered among those that we know; unlike our own here, nobody waits for it.
        """
        self._situation.voice.heard_beside(envelope.id, now)
        ledger, key = self._situation.ledger, ProposalKey(envelope.sender, envelope.id)
        if envelope.kind == kinds.MCP_PROPOSAL and ledger.get(key, now) is None:
            ledger.add(envelope, now)

    def ends(self, envelope: Envelope, now: float) -> None:
        """What was said there has been entered; see whether it ends something here."""
        match envelope.kind:
            case kinds.MCP_WITHDRAW:
                reason = read_reason(envelope.payload_object.get("reason"))
                for name in envelope.correlation:
                    cause = Cause(reason, by=envelope.sender, id=name, at=now)
                    self._outgoing.ended_beside(name, kinds.MCP_PROPOSAL, cause, now)
            case kinds.MCP_REJECT:
                record = resolve(envelope, self._situation.ledger, now).record
                if record is not None:
                    reason = read_reason(envelope.payload_object.get("reason"))
                    self._incoming.rejected_beside(record, reason, now)
            case kinds.MCP_RESPONSE:
                self._incoming.answered_beside(envelope, now)
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
            self._outgoing.ended_beside(name, kinds.MCP_REQUEST, cause, now)
