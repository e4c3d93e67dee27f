"""Approval: rules that decide proposals, and leave to people what they should decide.

Owns policies: what they say, how they are read from a file, and how an agent decides by one; and
inboxes: what waits for a person. A proposal comes in; a fulfillment or a rejection with the name of
its rule goes out, or nothing, where people decide, until one does. A policy itself is a pure
function, without clock, tasks or connection. It never decides on arguments that do not fit the
tool's schema, and never allows a call that an earlier rule denies or asks about. An inbox never
decides anything by itself, and silence is none of its decisions.
"""

from __future__ import annotations

from meup_agent.approval.inbox.inbox import Inbox
from meup_agent.approval.inbox.item import (
    ApprovalOutcome,
    DecidedItem,
    Departure,
    InboxChange,
    InboxChanges,
    InboxItem,
    InboxRenewed,
    ItemArrived,
    ItemChanged,
    ItemLeft,
    ProposerRecord,
    SimilarCall,
    Verb,
)
from meup_agent.approval.policy.decider import Policy
from meup_agent.approval.policy.file import load_policy
from meup_agent.approval.policy.rules import (
    AllowRule,
    AskRule,
    DenyRule,
    History,
    LimitRule,
    PolicyDecision,
    PolicyRule,
    QuorumRule,
    Verdict,
)
from meup_agent.approval.policy.suggest import (
    DecisionLog,
    Judgement,
    LoggedDecision,
    Suggestion,
    suggest_rules,
)
from meup_agent.approval.reviewer.methods import InboxRule, ToolFacts
from meup_agent.approval.reviewer.reviewer import Reviewer

__all__ = [
    "AllowRule",
    "ApprovalOutcome",
    "AskRule",
    "DecidedItem",
    "DecisionLog",
    "DenyRule",
    "Departure",
    "History",
    "Inbox",
    "InboxChange",
    "InboxChanges",
    "InboxItem",
    "InboxRenewed",
    "InboxRule",
    "ItemArrived",
    "ItemChanged",
    "ItemLeft",
    "Judgement",
    "LimitRule",
    "LoggedDecision",
    "Policy",
    "PolicyDecision",
    "PolicyRule",
    "ProposerRecord",
    "QuorumRule",
    "Reviewer",
    "SimilarCall",
    "Suggestion",
    "ToolFacts",
    "Verb",
    "Verdict",
    "load_policy",
    "suggest_rules",
]
