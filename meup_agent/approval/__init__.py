"""Approval: rules that decide proposals, and leave to people what they should decide.

Owns policies: what they say, how they are read from a file, and how an agent decides by one. A
proposal comes in; a fulfillment or a rejection with the name of its rule goes out, or nothing,
where people decide. A policy itself is a pure function, without clock, tasks or connection. It
never decides on arguments that do not fit the tool's schema, and never allows a call that an
earlier rule denies or asks about.
"""

from __future__ import annotations

from meup_agent.approval.policy import History, Policy, PolicyDecision
from meup_agent.approval.policy_file import load_policy
from meup_agent.approval.rules import (
    AllowRule,
    AskRule,
    DenyRule,
    LimitRule,
    PolicyRule,
    QuorumRule,
    Verdict,
)

__all__ = [
    "AllowRule",
    "AskRule",
    "DenyRule",
    "History",
    "LimitRule",
    "Policy",
    "PolicyDecision",
    "PolicyRule",
    "QuorumRule",
    "Verdict",
    "load_policy",
]
