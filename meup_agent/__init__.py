"""Write agents that propose, decide, call tools and stop when they are told to.

The names here are the public ones. Importing the package starts nothing and configures nothing.
"""

from __future__ import annotations

from meup_agent.agent.agent import Agent
from meup_agent.agent.context import Context
from meup_agent.agent.injectables import handlers
from meup_agent.agent.scope import HandlerCancelled
from meup_agent.client.chat import Chat
from meup_agent.client.deciding import Proposal
from meup_agent.client.progress import Progress
from meup_agent.client.proposing import OwnProposal
from meup_agent.client.space import Space
from meup_agent.errors import (
    AlreadyDecided,
    AlreadyInProgress,
    CannotConnect,
    ConfigurationError,
    ConnectionFailed,
    HandlerDefinitionError,
    HandshakeRefused,
    IllegalStep,
    InvalidArguments,
    InvalidEnvelope,
    InvalidPattern,
    Kicked,
    MeupError,
    NoSuchSpace,
    NotExpressible,
    NotSent,
    OutcomeUnknown,
    ParticipantGone,
    PeerError,
    ProposalEdited,
    ProposalExpired,
    ProposalRejected,
    ProposalWithdrawn,
    Refused,
    RequestError,
    RequestTimeout,
    SessionEnded,
    TakenOver,
    TokenRefused,
    ToolError,
    TransportClosed,
    TransportError,
    UsageError,
)
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange import (
    Conflict,
    Limits,
    Participant,
    ProposalRecord,
    Rejection,
    Wait,
    Withdrawal,
)
from meup_agent.protocol.guarantees import Guarantees
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.outcomes import Expired, Fulfilled, Gone, Outcome, Rejected, Withdrawn
from meup_agent.protocol.payloads import Change
from meup_agent.protocol.reasons import Cause, Link, Reason
from meup_agent.session import Backoff, Settings

__all__ = [
    "Agent",
    "AlreadyDecided",
    "AlreadyInProgress",
    "Backoff",
    "CannotConnect",
    "Cause",
    "Change",
    "Chat",
    "ConfigurationError",
    "Conflict",
    "ConnectionFailed",
    "Context",
    "Envelope",
    "Expired",
    "Fulfilled",
    "Gone",
    "Guarantees",
    "HandlerCancelled",
    "HandlerDefinitionError",
    "HandshakeRefused",
    "IllegalStep",
    "InvalidArguments",
    "InvalidEnvelope",
    "InvalidPattern",
    "Kicked",
    "Limits",
    "Link",
    "MeupError",
    "NoSuchSpace",
    "NotExpressible",
    "NotSent",
    "Outcome",
    "OutcomeUnknown",
    "OwnProposal",
    "Participant",
    "ParticipantGone",
    "PeerError",
    "Progress",
    "Proposal",
    "ProposalEdited",
    "ProposalExpired",
    "ProposalRecord",
    "ProposalRejected",
    "ProposalState",
    "ProposalWithdrawn",
    "Reason",
    "Refused",
    "Rejected",
    "Rejection",
    "RequestError",
    "RequestTimeout",
    "SessionEnded",
    "Settings",
    "Space",
    "TakenOver",
    "TokenRefused",
    "ToolError",
    "TransportClosed",
    "TransportError",
    "UsageError",
    "Wait",
    "Withdrawal",
    "Withdrawn",
    "handlers",
]
