"""The time of day: dates, and the deadlines that proposers name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meup_agent import Limits
from tests.protocol.exchange.peer import Peer, of, started
from tests.tables import Key, Send
from tests.wire import payloads

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class WallClock:
    def __init__(self) -> None:
        self.time = NOON

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


def peer(clock: WallClock, limits: Limits | None = None) -> Peer:
    me = Peer(wall_clock=clock, limits=limits)
    me.welcomed("alice", "bob", "tool")
    me.effects.clear()
    return me


def call(expires_at: Any) -> dict[str, Any]:
    params = {"name": "write", "_meta": {payloads.EXPIRES_AT: expires_at}}
    return {"method": "tools/call", "params": params}


def proposed(me: Peer, expires_at: Any, id: str = "p1") -> list[Any]:
    return me.hears("mcp/proposal", call(expires_at), sender="alice", id=id, to=("me",))


@pytest.mark.rule("6.expires_at.hint")
@pytest.mark.parametrize(
    "expires_at",
    [
        (NOON - timedelta(seconds=60)).isoformat(),
        NOON.isoformat(),
        (NOON + timedelta(days=1)).isoformat(),
        "2026-01-01T00:00:00",
        "yesterday",
        5,
        None,
    ],
)
def test_a_proposal_that_may_not_be_expired_is_handled(clock: WallClock, expires_at: Any) -> None:
    assert started(proposed(peer(clock), expires_at)) == [Key("in", "alice", "p1")]


@pytest.mark.rule("4.14.proposer_follows")
def test_the_response_to_a_fulfillment_is_sent_again_to_its_proposer(clock: WallClock) -> None:
    me = peer(clock)
    me.proposal("alice", "p1", to=("bob",))
    me.request("bob", "r1", fulfills="p1")
    (first,) = of(me.returns(Key("in", "bob", "r1")), Send)
    me.left("alice")
    (again,) = of(me.joined("alice"), Send)
    assert again.draft.id == first.draft.id
