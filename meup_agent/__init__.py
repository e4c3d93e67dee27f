"""Write agents that propose, decide, call tools and stop when they are told to.

The names here are what the author of an agent types; exceptions are in :mod:`meup_agent.errors`,
events in :mod:`meup_agent.events`. Importing the package starts nothing and configures nothing.
Each name is loaded when it is first used, so that a gateway loads no agent and no pydantic.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing for that takes longer than all the rest
if TYPE_CHECKING:  # the names of _PUBLIC, for type checkers; tests/test_exports.py compares both
    from meup_agent.agent.agent import Agent as Agent
    from meup_agent.agent.context import Context as Context
    from meup_agent.agent.decorators import handlers as handlers
    from meup_agent.agent.middleware import CallNext as CallNext
    from meup_agent.agent.middleware import InboundMessage as InboundMessage
    from meup_agent.agent.middleware import OutboundMessage as OutboundMessage
    from meup_agent.agent.observers import Counters as Counters
    from meup_agent.agent.observers import log_events as log_events
    from meup_agent.client.call_scope import CallScope as CallScope
    from meup_agent.client.management import Invitation as Invitation
    from meup_agent.client.messages import Chat as Chat
    from meup_agent.client.messages import Progress as Progress
    from meup_agent.client.messages import Request as Request
    from meup_agent.client.proposal import Proposal as Proposal
    from meup_agent.client.proposal import ProposalRecord as ProposalRecord
    from meup_agent.client.proposal_handle import ProposalHandle as ProposalHandle
    from meup_agent.client.space import Space as Space
    from meup_agent.protocol.envelope import Envelope as Envelope
    from meup_agent.protocol.exchange import Conflict as Conflict
    from meup_agent.protocol.exchange import Gap as Gap
    from meup_agent.protocol.exchange import Limits as Limits
    from meup_agent.protocol.exchange import Mode as Mode
    from meup_agent.protocol.exchange import Participant as Participant
    from meup_agent.protocol.exchange import Wait as Wait
    from meup_agent.protocol.guarantees import Guarantees as Guarantees
    from meup_agent.protocol.lifecycle import ProposalState as ProposalState
    from meup_agent.protocol.management_payloads import Grant as Grant
    from meup_agent.protocol.management_payloads import Revocation as Revocation
    from meup_agent.protocol.outcomes import Expiry as Expiry
    from meup_agent.protocol.outcomes import Fulfillment as Fulfillment
    from meup_agent.protocol.outcomes import Gone as Gone
    from meup_agent.protocol.outcomes import Outcome as Outcome
    from meup_agent.protocol.outcomes import Rejection as Rejection
    from meup_agent.protocol.outcomes import Withdrawal as Withdrawal
    from meup_agent.protocol.payloads import Change as Change
    from meup_agent.reasons import Cause as Cause
    from meup_agent.reasons import CauseStep as CauseStep
    from meup_agent.reasons import Reason as Reason
    from meup_agent.session import Backoff as Backoff
    from meup_agent.session import Settings as Settings
else:  # or every name would pass for one of ours
    _PUBLIC = {
        "agent.agent": "Agent",
        "agent.context": "Context",
        "agent.decorators": "handlers",
        "agent.middleware": "CallNext InboundMessage OutboundMessage",
        "agent.observers": "Counters log_events",
        "client.proposal": "Proposal ProposalRecord",
        "client.call_scope": "CallScope",
        "client.management": "Invitation",
        "client.messages": "Chat Progress Request",
        "client.proposal_handle": "ProposalHandle",
        "client.space": "Space",
        "protocol.envelope": "Envelope",
        "protocol.exchange": "Conflict Gap Limits Mode Participant Wait",
        "protocol.guarantees": "Guarantees",
        "protocol.lifecycle": "ProposalState",
        "protocol.management_payloads": "Grant Revocation",
        "protocol.outcomes": "Expiry Fulfillment Gone Outcome Rejection Withdrawal",
        "protocol.payloads": "Change",
        "reasons": "Cause CauseStep Reason",
        "session": "Backoff Settings",
    }
    """Module of this package → the public names in it."""

    _MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}

    _RENAMED = {
        "Expired": "Expiry",
        "Fulfilled": "Fulfillment",
        "Link": "CauseStep",
        "OwnProposal": "ProposalHandle",
        "Rejected": "Rejection",
        "Withdrawn": "Withdrawal",
    }
    """Names of version 0.1 → names of today."""

    __all__ = sorted(_MODULES)

    def __getattr__(name: str) -> object:
        """A public name, loaded when it is first used (PEP 562)."""
        import importlib

        module = _MODULES.get(name)
        if module is None:
            _check_moved(name)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        except BaseException as error:
            from meup_agent.uncaught import report_briefly, was_interrupted

            if was_interrupted(error):  # by Ctrl-C in the first moment of a program
                report_briefly()
            raise
        globals()[name] = value
        return value

    def _check_moved(name: str) -> None:
        """Raise an error that says where a name is now, if it was here once.

        An ImportError: of an AttributeError ``from meup_agent import …`` would hide the words.
        """
        if name in _RENAMED:
            raise ImportError(f"meup_agent.{name} is called meup_agent.{_RENAMED[name]} now")
        if name[:1].isupper():
            from meup_agent import errors, events

            for module in (errors, events):
                if hasattr(module, name):
                    home = module.__name__
                    raise ImportError(f"{name} is in {home} now: from {home} import {name}")

    def __dir__() -> list[str]:
        """Every name, loaded or not."""
        return sorted({*globals(), *_MODULES})


del TYPE_CHECKING  # which is no public name
