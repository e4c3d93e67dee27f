"""The exchange table of one participant, and what it is asked and asks for.

Tests reach the inside of the package through this module: a name that moves is changed here.
"""

from __future__ import annotations

from meup_agent.protocol.exchange import (
    Cancel,
    CaughtUp,
    Drop,
    Effect,
    ExchangeTable,
    FulfillmentTarget,
    Key,
    Priority,
    Progressed,
    ProposalEntry,
    ProposalKey,
    Role,
    Send,
    Start,
    Unsend,
    Wake,
    Work,
)
from meup_agent.protocol.exchange.effects import MAX_UNREAD_BYTES, MAX_UNREAD_FRAMES
from meup_agent.protocol.exchange.handlers import Admission
from meup_agent.protocol.exchange.responses import EXPLANATION_CHARS
from meup_agent.protocol.proposals import MAX_FULFILLMENTS, MAX_PROPOSALS, ProposalStore
from meup_agent.protocol.wire.ttl_map import Tombstones
