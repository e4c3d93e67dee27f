"""Proposals that expire: for everybody alike, by the gateway's clock (PROTOCOL 4.2)."""

from datetime import UTC, datetime, timedelta

import pytest

from meup_agent import Expiry, ProposalState
from meup_agent.errors import AlreadyDecided
from tests.protocol.exchange.peer import CALL, EXCHANGES, Peer, cancelled, of, said, started
from tests.spaces import SPARE_DEADLINES
from tests.tables import Key, ProposalKey, ProposalStore, Role, Start
from tests.wire import OURS, kinds, moment_of, payloads

P1 = ProposalKey("alice", "p1")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WRONG = NOON - timedelta(days=400)


def stamp(seconds: float) -> str:
    return (NOON + timedelta(seconds=seconds)).isoformat()


def ours(*, roles: frozenset[Role] = EXCHANGES | {Role.EXPIRE}) -> Peer:
    """A peer whose own clock is wrong, at a gateway that checks names and says its time."""
    me = Peer.among(
        "alice", "bob", "tool", gives=OURS, ts=stamp(0), roles=roles, wall_clock=lambda: WRONG
    )
    me.effects.clear()
    return me


def proposed(me: Peer, *, seconds: float = 10, **said: object) -> None:
    meta = {payloads.EXPIRES_AT: stamp(seconds)}
    me.proposal("alice", "p1", params={**CALL, "_meta": meta})


def state(me: Peer) -> ProposalState:
    record = me.table.proposal_store.get(P1, me.now)
    assert record is not None
    return record.state


@pytest.mark.rule("4.2.expiry")
def test_the_gateways_clock_counts_and_not_the_readers() -> None:
    me = ours()
    proposed(me)
    me.passes(74.9)
    # What the gateway took in time may still be on its way: it is carried out, and decided here by
    # nobody any more.
    assert state(me) is ProposalState.PENDING
    with pytest.raises(AlreadyDecided, match="expired"):
        me.begins_request(fulfills=P1)
    me.passes(0.2)
    assert state(me) is ProposalState.EXPIRED


@pytest.mark.rule("4.2.expiry.told")
def test_a_handler_that_looked_at_it_is_cancelled_and_told() -> None:
    me = ours()
    proposed(me)
    me.effects.clear()
    me.passes(80)
    assert list(cancelled(me.effects)) == [Key("in", "alice", "p1")]
    (start,) = of(me.raises(Key("in", "alice", "p1")), Start)
    assert (start.work.role, start.work.subject) == (Role.EXPIRE, Expiry("p1"))


@pytest.mark.rule("4.2.expiry.told")
def test_it_is_told_when_its_handler_has_returned_long_ago() -> None:
    me = ours()
    proposed(me)
    me.returns(Key("in", "alice", "p1"))
    me.effects.clear()
    (start,) = of(me.passes(80), Start)
    assert start.work.role is Role.EXPIRE


@pytest.mark.rule("4.2.expiry.told")
@pytest.mark.parametrize(
    "ended", ["rejected", "rejected and left", "withdrawn", "requested", "unseen"]
)
def test_it_is_not_told_of_what_did_not_expire_here(ended: str) -> None:
    me = ours(roles=EXCHANGES - {Role.PROPOSAL} | {Role.EXPIRE}) if ended == "unseen" else ours()
    proposed(me)
    if ended.startswith("rejected"):
        me.did(me.table.reject(P1, "unsafe", me.now)[1])
        if ended == "rejected and left":
            me.returns(Key("in", "alice", "p1"))
    elif ended == "withdrawn":
        me.withdraw("alice", "p1")
    elif ended == "requested":
        me.request("bob", "b1", to=("tool",), fulfills="p1")
    me.effects.clear()
    assert of(me.passes(100), Start) == []


@pytest.mark.rule("4.2.expiry.accepted_before")
def test_what_was_asked_for_in_time_completes() -> None:
    me = ours()
    proposed(me)
    me.passes(74)  # it comes later than the gateway took it
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    me.passes(1000)
    assert state(me) is ProposalState.IN_PROGRESS
    me.response("tool", "b1", to=("bob",))
    assert state(me) is ProposalState.FULFILLED


@pytest.mark.rule("4.2.expiry.accepted_before")
def test_a_request_that_is_cancelled_too_late_leaves_it_expired() -> None:
    me = ours()
    proposed(me)
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    me.passes(1000)
    me.cancel("bob", "b1", to=("tool",))
    me.passes(0.01)
    assert state(me) is ProposalState.EXPIRED


@pytest.mark.rule("4.2.expiry.accepted_before")
def test_nothing_expires_before_what_was_missed_is_read() -> None:
    me = ours()
    proposed(me)
    me.did(me.table.connection_lost(me.now))
    me.passes(1000)
    assert state(me) is ProposalState.PENDING


@pytest.mark.rule("4.2.expiry")
def test_a_withdraw_after_it_is_late_and_an_earlier_one_wins() -> None:
    me = ours()
    proposed(me)
    me.passes(80)
    me.withdraw("alice", "p1")
    assert state(me) is ProposalState.EXPIRED
    other = ours()
    proposed(other)
    other.withdraw("alice", "p1")
    other.passes(80)
    assert state(other) is ProposalState.WITHDRAWN


@pytest.mark.rule("4.2.expiry")
@pytest.mark.parametrize("ts", [None, "yesterday", "2026-01-01T12:00:00"])
def test_without_the_gateways_time_the_readers_counts(ts: str | None) -> None:
    begun, time = 1000.0, [1000.0]
    me = Peer.among(
        "alice", gives=OURS, ts=ts, wall_clock=lambda: NOON + timedelta(seconds=time[0] - begun)
    )
    proposed(me)
    time[0] += 76
    me.passes(76)
    assert state(me) is ProposalState.EXPIRED


@pytest.mark.rule("6.ttl")
@pytest.mark.parametrize(
    ("ttl", "seconds"), [(30_000, 30), (1500.5, 1.5005), (1, 0.001), (10**300, payloads.MAX_TTL)]
)
def test_a_foreign_ttl_counts_from_the_acceptance_in_milliseconds(
    ttl: float, seconds: float
) -> None:
    me = ours()
    me.hears(
        kinds.MCP_PROPOSAL,
        {"method": "tools/call", "ttl": ttl, "params": CALL},
        sender="alice",
        id="p1",
    )
    record = me.table.proposal_store.get(P1, me.now)
    assert record is not None
    assert record.expires_at is not None
    assert moment_of(record.expires_at) - NOON == timedelta(seconds=seconds)
    assert said(me.effects, kinds.MCP_REJECT) == []


@pytest.mark.rule("6.ttl")
@pytest.mark.parametrize("ttl", [0, -5, True, "30000", None, [], {}])
def test_what_is_no_ttl_is_left_out(ttl: object) -> None:
    me = ours()
    me.hears(
        kinds.MCP_PROPOSAL,
        {"method": "tools/call", "ttl": ttl, "params": CALL},
        sender="alice",
        id="p1",
    )
    me.passes(10_000)
    assert state(me) is ProposalState.PENDING


@pytest.mark.rule("5.memory.bounded")
def test_deadlines_of_what_is_forgotten_are_forgotten() -> None:
    me = Peer.among(
        "alice",
        "bob",
        "tool",
        gives=OURS,
        ts=stamp(0),
        roles=(),
        proposal_store=ProposalStore(count=256),
    )
    for number in range(3 * 256 + 2 * SPARE_DEADLINES):
        meta = {payloads.EXPIRES_AT: "9999-01-01T00:00:00Z"}
        me.proposal("alice", f"p{number}", to=("bob",), params={**CALL, "_meta": meta})
    store = me.table.proposal_store
    assert 0 < len(store.records(me.now)) <= 256
    assert len(store._deadlines._heap) < 3 * len(store.records(me.now)) + SPARE_DEADLINES


@pytest.mark.rule("6.expires_at.hint")
@pytest.mark.parametrize(
    "expires_at", [stamp(-60), stamp(0), stamp(86_400), "2026-01-01T00:00:00", "yesterday", 5, None]
)
def test_a_proposal_that_may_not_be_expired_is_handled(expires_at: object) -> None:
    me = Peer.among("alice", "bob", "tool", wall_clock=lambda: NOON)
    params = {"name": "write", "_meta": {payloads.EXPIRES_AT: expires_at}}
    assert started(me.proposal("alice", "p1", to=("me",), params=params)) == [
        Key("in", "alice", "p1")
    ]
