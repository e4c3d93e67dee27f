"""Records that handlers are given and verbs give back: names for annotations.

The names that the author of every agent types are in :mod:`meup_agent`; these are for those who
write a middleware, manage a space, control participants, or keep what a verb gave back.
"""

from __future__ import annotations

from meup_agent.agent.middleware import CallNext, InboundMessage, OutboundMessage
from meup_agent.causes import Cause, CauseStep
from meup_agent.client.control import Invitation
from meup_agent.client.messages import DecisionReceipt
from meup_agent.client.offers import FoundTool
from meup_agent.client.proposal import ProposalRecord
from meup_agent.protocol.exchange import Conflict
from meup_agent.protocol.wire.membership import Guarantees
from meup_agent.protocol.wire.outcomes import FailedFulfillment
from meup_agent.protocol.wire.payloads import (
    Acknowledgement,
    Change,
    Clear,
    Compact,
    CompactDone,
    Forget,
    Grant,
    ParticipantStatus,
    Pause,
    Restart,
    Resumption,
    Revocation,
    Shutdown,
    StatusRequest,
)

__all__ = [
    "Acknowledgement",
    "CallNext",
    "Cause",
    "CauseStep",
    "Change",
    "Clear",
    "Compact",
    "CompactDone",
    "Conflict",
    "DecisionReceipt",
    "FailedFulfillment",
    "Forget",
    "FoundTool",
    "Grant",
    "Guarantees",
    "InboundMessage",
    "Invitation",
    "OutboundMessage",
    "ParticipantStatus",
    "Pause",
    "ProposalRecord",
    "Restart",
    "Resumption",
    "Revocation",
    "Shutdown",
    "StatusRequest",
]
