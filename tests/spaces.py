"""A space at its gateway: what decides, what is kept, what is counted and audited.

Tests reach the inside of the package through this module: a name that moves is changed here.
"""

from __future__ import annotations

from meup_agent.protocol.audit import Audit, Ignored, ProposalAudit, StepKind, proposal_as_json
from meup_agent.protocol.proposals.deadlines import SPARE_DEADLINES
from meup_agent.protocol.space import fanout
from meup_agent.protocol.space.allowance import Allowance
from meup_agent.protocol.space.counters import SpaceCounters
from meup_agent.protocol.space.decisions import (
    Acceptance,
    Answer,
    Broadcast,
    Decision,
    Discard,
    Refusal,
    Repetition,
    TokenIssued,
)
from meup_agent.protocol.space.grants import member_capabilities
from meup_agent.protocol.space.indexes import MAX_ORIGINS
from meup_agent.protocol.space.inflight import OPEN_SECONDS
from meup_agent.protocol.space.journal import (
    MAX_PAGE_BYTES,
    Entry,
    Fact,
    FoldBegin,
    Journal,
    MemoryJournal,
    NumberRange,
    ProposalChange,
    Recovered,
    ignore,
)
from meup_agent.protocol.space.owner import TAKEN_OVER
from meup_agent.protocol.space.presence import AbsenceTracker, JoinState
from meup_agent.protocol.space.recovery import SpaceClock, recover_state
from meup_agent.protocol.space.rules import Rules
from meup_agent.protocol.space.server import SpaceServer
from meup_agent.protocol.space.state import SpaceState
from meup_agent.protocol.space.streams import GRACE_SECONDS
from meup_agent.protocol.space.subscriber import FrameFormat, Place
from meup_agent.protocol.space.tool_owners import MAX_LISTED_TOOLS
