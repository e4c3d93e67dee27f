"""Write agents that propose, decide, call tools and stop when they are told to.

The names here are the public ones. Importing the package starts nothing and configures nothing;
each name is loaded when it is first used, so that a gateway loads no agent and no pydantic.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing for that takes longer than all the rest
if TYPE_CHECKING:
    from meup_agent.agent.agent import Agent
    from meup_agent.agent.context import Context
    from meup_agent.agent.decorators import handlers
    from meup_agent.agent.observers import Counters, log_events
    from meup_agent.agent.scope import HandlerCancelled
    from meup_agent.client.chat import Chat
    from meup_agent.client.deciding import Proposal
    from meup_agent.client.managing import Invitation
    from meup_agent.client.progress import Progress
    from meup_agent.client.proposing import ProposalHandle
    from meup_agent.client.space import Space
    from meup_agent.errors import (
        AlreadyDecided,
        AlreadyInProgress,
        AmbiguousProposal,
        CannotConnect,
        CannotObserve,
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
        ObservingOnly,
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
        WrongParticipant,
    )
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import (
        Conflict,
        Gap,
        Limits,
        Mode,
        Participant,
        ProposalEntry,
        Wait,
    )
    from meup_agent.protocol.guarantees import Guarantees
    from meup_agent.protocol.lifecycle import ProposalState
    from meup_agent.protocol.management_payloads import Grant, Revocation
    from meup_agent.protocol.outcomes import (
        Expiry,
        Fulfillment,
        Gone,
        Outcome,
        Rejection,
        Withdrawal,
    )
    from meup_agent.protocol.payloads import Change
    from meup_agent.protocol.reasons import Cause, CauseStep, Reason
    from meup_agent.session import Backoff, Settings
    from meup_agent.session.events import (
        Connected,
        Disconnected,
        Dropped,
        Event,
        ExchangeBegan,
        ExchangeEnded,
        HandlerEvent,
        HandlerFailed,
        HandlerFinished,
        HandlerStarted,
        HandlerStopped,
        HandlerStopping,
        Left,
        Observer,
        Resumed,
        Retrying,
    )

__all__ = [
    "Agent",
    "AlreadyDecided",
    "AlreadyInProgress",
    "AmbiguousProposal",
    "Backoff",
    "CannotConnect",
    "CannotObserve",
    "Cause",
    "CauseStep",
    "Change",
    "Chat",
    "ConfigurationError",
    "Conflict",
    "Connected",
    "ConnectionFailed",
    "Context",
    "Counters",
    "Disconnected",
    "Dropped",
    "Envelope",
    "Event",
    "ExchangeBegan",
    "ExchangeEnded",
    "Expiry",
    "Fulfillment",
    "Gap",
    "Gone",
    "Grant",
    "Guarantees",
    "HandlerCancelled",
    "HandlerDefinitionError",
    "HandlerEvent",
    "HandlerFailed",
    "HandlerFinished",
    "HandlerStarted",
    "HandlerStopped",
    "HandlerStopping",
    "HandshakeRefused",
    "IllegalStep",
    "InvalidArguments",
    "InvalidEnvelope",
    "InvalidPattern",
    "Invitation",
    "Kicked",
    "Left",
    "Limits",
    "MeupError",
    "Mode",
    "NoSuchSpace",
    "NotExpressible",
    "NotSent",
    "Observer",
    "ObservingOnly",
    "Outcome",
    "OutcomeUnknown",
    "Participant",
    "ParticipantGone",
    "PeerError",
    "Progress",
    "Proposal",
    "ProposalEdited",
    "ProposalEntry",
    "ProposalExpired",
    "ProposalHandle",
    "ProposalRejected",
    "ProposalState",
    "ProposalWithdrawn",
    "Reason",
    "Refused",
    "Rejection",
    "RequestError",
    "RequestTimeout",
    "Resumed",
    "Retrying",
    "Revocation",
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
    "WrongParticipant",
    "handlers",
    "log_events",
]

_NAMES = {
    "agent.agent": ("Agent",),
    "agent.context": ("Context",),
    "agent.decorators": ("handlers",),
    "agent.observers": ("Counters", "log_events"),
    "agent.scope": ("HandlerCancelled",),
    "client.chat": ("Chat",),
    "client.deciding": ("Proposal",),
    "client.managing": ("Invitation",),
    "client.progress": ("Progress",),
    "client.proposing": ("ProposalHandle",),
    "client.space": ("Space",),
    "errors": (
        "AlreadyDecided",
        "AlreadyInProgress",
        "AmbiguousProposal",
        "CannotConnect",
        "CannotObserve",
        "ConfigurationError",
        "ConnectionFailed",
        "HandlerDefinitionError",
        "HandshakeRefused",
        "IllegalStep",
        "InvalidArguments",
        "InvalidEnvelope",
        "InvalidPattern",
        "Kicked",
        "MeupError",
        "NoSuchSpace",
        "NotExpressible",
        "NotSent",
        "ObservingOnly",
        "OutcomeUnknown",
        "ParticipantGone",
        "PeerError",
        "ProposalEdited",
        "ProposalExpired",
        "ProposalRejected",
        "ProposalWithdrawn",
        "Refused",
        "RequestError",
        "RequestTimeout",
        "SessionEnded",
        "TakenOver",
        "TokenRefused",
        "ToolError",
        "TransportClosed",
        "TransportError",
        "UsageError",
        "WrongParticipant",
    ),
    "protocol.envelope": ("Envelope",),
    "protocol.exchange": (
        "Conflict",
        "Gap",
        "Limits",
        "Mode",
        "Participant",
        "ProposalEntry",
        "Wait",
    ),
    "protocol.guarantees": ("Guarantees",),
    "protocol.lifecycle": ("ProposalState",),
    "protocol.management_payloads": ("Grant", "Revocation"),
    "protocol.outcomes": (
        "Expiry",
        "Fulfillment",
        "Gone",
        "Outcome",
        "Rejection",
        "Withdrawal",
    ),
    "protocol.payloads": ("Change",),
    "protocol.reasons": (
        "Cause",
        "CauseStep",
        "Reason",
    ),
    "session": (
        "Backoff",
        "Settings",
    ),
    "session.events": (
        "Connected",
        "Disconnected",
        "Dropped",
        "Event",
        "ExchangeBegan",
        "ExchangeEnded",
        "HandlerEvent",
        "HandlerFailed",
        "HandlerFinished",
        "HandlerStarted",
        "HandlerStopped",
        "HandlerStopping",
        "Left",
        "Observer",
        "Resumed",
        "Retrying",
    ),
}
"""Module of this package → the public names that it defines."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # or every name would pass for one of ours

    def __getattr__(name: str) -> object:
        """A public name, loaded when it is first used (PEP 562)."""
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            import importlib

            value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        except BaseException as error:
            from meup_agent.uncaught import report_briefly, was_interrupted

            if was_interrupted(error):  # by Ctrl-C in the first moment of a program
                report_briefly()
            raise
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Every name, loaded or not."""
    return sorted({*globals(), *_MODULES})


del TYPE_CHECKING  # which is no public name
