"""The watch over expiries, by a clock that does not move."""

import math
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from meup_agent import Envelope, ProposalState
from meup_agent.cli.render import timeline

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NO_SPACE: Any = None
PROPOSAL = Envelope(id="p1", sender="alice", kind="mcp/proposal")


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The space's record of a proposal whose time was over long ago."""
    found = SimpleNamespace(state=ProposalState.PENDING, expires_at=0)
    feed = SimpleNamespace(get=lambda _: found, now=0.0, time_of_day=NOW)
    monkeypatch.setattr(timeline, "ProposalFeed", lambda _: feed)
    return found


@pytest.mark.parametrize("first", ["envelope", "expiry"])
def test_an_expiry_is_told_whichever_came_first(record: Any, first: str) -> None:
    watch = timeline.ExpiryWatch(NO_SPACE)
    if first == "expiry":
        record.state = ProposalState.EXPIRED
    watch.add(PROPOSAL)
    record.state = ProposalState.EXPIRED
    assert watch.pop() == [record]
    assert watch.pop() == []


def test_what_was_decided_is_not_told(record: Any) -> None:
    watch = timeline.ExpiryWatch(NO_SPACE)
    record.state = ProposalState.FULFILLED
    watch.add(PROPOSAL)
    assert watch.next_look == math.inf
