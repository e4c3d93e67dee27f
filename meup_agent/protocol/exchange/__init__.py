"""The exchange table: PROTOCOL 4 and 5 as code, without I/O."""

from __future__ import annotations

from meup_agent.protocol.exchange.concurrency_limiter import Limits
from meup_agent.protocol.exchange.effects import (
    Cancel,
    CaughtUp,
    Conflict,
    Drop,
    Effect,
    Gap,
    Key,
    Priority,
    Progressed,
    Role,
    Send,
    Start,
    Unsend,
    Wake,
    Work,
)
from meup_agent.protocol.exchange.outbound_exchange import Wait
from meup_agent.protocol.exchange.proposal_store import ProposalEntry, ProposalKey
from meup_agent.protocol.exchange.roster import Participant
from meup_agent.protocol.exchange.table import ExchangeTable
from meup_agent.protocol.exchange.table_context import Mode

__all__ = [
    "Cancel",
    "CaughtUp",
    "Conflict",
    "Drop",
    "Effect",
    "ExchangeTable",
    "Gap",
    "Key",
    "Limits",
    "Mode",
    "Participant",
    "Priority",
    "Progressed",
    "ProposalEntry",
    "ProposalKey",
    "Role",
    "Send",
    "Start",
    "Unsend",
    "Wait",
    "Wake",
    "Work",
]
