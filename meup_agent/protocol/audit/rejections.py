"""The rejection that a proposer takes for an answer, as others see it."""

from __future__ import annotations

from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.proposal_store import ProposalEntry
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.outcomes import Rejection
from meup_agent.protocol.reasons import Reason, read_reason


def accepted_rejection(record: ProposalEntry, withdraw: Envelope) -> Rejection | None:
    """The rejection that a withdrawal says its proposer takes for an answer.

    Only the proposer knows which one ends its wait; it then withdraws the proposal, and gives no
    reason of its own (PROTOCOL 4.5, 4.12).

    Args:
        record: The proposal, before the withdrawal.
        withdraw: The withdrawal.
    """
    reason = read_reason(withdraw.payload_object.get("reason"))
    if withdraw.sender != record.key.proposer or reason != Reason.NO_LONGER_NEEDED:
        return None
    if record.state is not ProposalState.PENDING:
        return None
    said = list(record.rejections.values())
    found = [each for each in said if each.by in record.envelope.to] or said
    return found[-1] if found else None
