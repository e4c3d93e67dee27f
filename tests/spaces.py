"""A space at its gateway: what decides, what is kept, what is counted and audited.

Tests reach the inside of the package through this module: a name that moves is changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

from meup_agent.protocol.audit import Audit, AuditRecord, Ignored, StepKind, proposal_as_json
from meup_agent.protocol.proposals import SPARE_DEADLINES, ProposalKey, ProposalState
from meup_agent.protocol.space import delivery
from meup_agent.protocol.space.allowance import Allowance, SpaceCounters
from meup_agent.protocol.space.journal import (
    MAX_PAGE_BYTES,
    SORT_KEYS,
    DecisionRow,
    Entry,
    Fact,
    FoldBegin,
    HistoryPage,
    HistoryQuery,
    Journal,
    MemoryJournal,
    NumberRange,
    ProposalChange,
    Recovered,
    ignore,
    select_decisions,
)
from meup_agent.protocol.space.link import FrameFormat, Place
from meup_agent.protocol.space.owner import TAKEN_OVER, SpaceFold, SpaceParameters, SpaceServer
from meup_agent.protocol.space.state.grants import member_capabilities
from meup_agent.protocol.space.state.indexes import (
    MAX_ORIGINS,
    Acceptance,
    Answer,
    Broadcast,
    Discard,
    FrameVerdict,
    OpenItem,
    Refusal,
    Repetition,
    TokenIssued,
)
from meup_agent.protocol.space.state.inflight import MAX_LISTED_TOOLS, OPEN_SECONDS
from meup_agent.protocol.space.state.rules import Rules
from meup_agent.protocol.space.state.state import SpaceState
from meup_agent.protocol.space.state.streams import GRACE_SECONDS, AbsenceTracker, JoinState


def space_server(
    may: Mapping[str, Iterable[Mapping[str, Any]]],
    now: Callable[[], int] = lambda: 0,
    **options: Any,
) -> SpaceServer:
    """A space of participants with these capabilities, whose gateway counts its ids."""
    ids = count(1)
    if "journal" not in options:
        options["journal"] = MemoryJournal(now)
    usual: dict[str, Any] = {
        "name": "demo",
        "participants": {name: member_capabilities(each) for name, each in may.items()},
        "new_id": lambda: f"g{next(ids)}",
        "now": now,
        "counters": SpaceCounters(),
    }
    return SpaceServer(SpaceParameters(**{**usual, **options}))
