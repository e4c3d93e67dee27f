"""Proposals that expire: for everybody alike, by the gateway's clock (PROTOCOL 4.2)."""

from datetime import UTC, datetime, timedelta
from typing import Any

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


HANDLER = Key("in", "alice", "p1")


def ours(*, roles: frozenset[Role] = EXCHANGES | {Role.EXPIRE}) -> Peer:
    """A peer whose own clock is wrong, at a gateway that checks names and says its time."""
    others = ("alice", "bob", "tool")
    return Peer.among(*others, gives=OURS, ts=stamp(0), roles=roles, wall_clock=lambda: WRONG)


def proposed(me: Peer, *, seconds: float = 10) -> None:
    meta = {payloads.EXPIRES_AT: stamp(seconds)}
    me.proposal("alice", "p1", params={**CALL, "_meta": meta})


def state(me: Peer) -> ProposalState:
    return me.record("alice", "p1").state


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
@pytest.mark.parametrize("returned", [False, True])
def test_a_handler_that_looked_at_it_is_told_and_cancelled_if_it_runs(returned: bool) -> None:
    me = ours()
    proposed(me)
    if returned:
        me.returns(HANDLER)
    effects = me.passes(80)
    assert list(cancelled(effects)) == ([] if returned else [HANDLER])
    (start,) = of(effects if returned else me.raises(HANDLER), Start)
    assert (start.work.role, start.work.subject) == (Role.EXPIRE, Expiry("p1"))


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
            me.returns(HANDLER)
    elif ended == "withdrawn":
        me.withdraw("alice", "p1")
    elif ended == "requested":
        me.request("bob", "b1", to=("tool",), fulfills="p1")
    me.effects.clear()
    assert of(me.passes(100), Start) == []


@pytest.mark.rule("4.2.expiry.accepted_before")
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_was_asked_for_in_time_completes_unless_it_is_cancelled(is_cancelled: bool) -> None:
    me = ours()
    proposed(me)
    me.passes(74)  # it comes later than the gateway took it
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    me.passes(1000)
    assert state(me) is ProposalState.IN_PROGRESS
    if is_cancelled:
        me.cancel("bob", "b1", to=("tool",))
        me.passes(0.01)
    else:
        me.response("tool", "b1", to=("bob",))
    assert state(me) is (ProposalState.EXPIRED if is_cancelled else ProposalState.FULFILLED)


@pytest.mark.rule("4.2.expiry.accepted_before")
def test_nothing_expires_before_what_was_missed_is_read() -> None:
    me = ours()
    proposed(me)
    me.did(me.table.connection_lost(me.now))
    me.passes(1000)
    assert state(me) is ProposalState.PENDING
    me.welcomed("alice", "bob", "tool", gives=OURS, ts=stamp(1000))
    assert state(me) is ProposalState.EXPIRED


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
    clock = [NOON]
    me = Peer.among("alice", gives=OURS, ts=ts, wall_clock=lambda: clock[0])
    proposed(me)
    clock[0] += timedelta(seconds=76)
    me.passes(76)
    assert state(me) is ProposalState.EXPIRED


NO_TTL = [(ttl, None) for ttl in list[Any]((0, -5, True, "30000", None, [], {}))]


@pytest.mark.rule("6.ttl")
@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [(30_000, 30), (1500.5, 1.5005), (1, 0.001), (10**300, payloads.MAX_TTL), *NO_TTL],
)
def test_a_foreign_ttl_counts_from_the_acceptance_in_milliseconds(
    ttl: object, seconds: float | None
) -> None:
    me = ours()
    said_so = {"method": "tools/call", "ttl": ttl, "params": CALL}
    me.hears(kinds.MCP_PROPOSAL, said_so, sender="alice", id="p1")
    expires_at = me.record("alice", "p1").expires_at
    left = None if expires_at is None else (moment_of(expires_at) - NOON) / timedelta(seconds=1)
    assert left == seconds
    assert said(me.effects, kinds.MCP_REJECT) == []
    if seconds is None:
        me.passes(10_000)
    assert state(me) is ProposalState.PENDING


@pytest.mark.rule("5.memory.bounded")
def test_deadlines_of_what_is_forgotten_are_forgotten() -> None:
    store = ProposalStore(count=256)
    me = Peer.among("alice", "bob", gives=OURS, ts=stamp(0), roles=(), proposal_store=store)
    params = {**CALL, "_meta": {payloads.EXPIRES_AT: "9999-01-01T00:00:00Z"}}
    for number in range(3 * 256 + 2 * SPARE_DEADLINES):
        me.proposal("alice", f"p{number}", to=("bob",), params=params)
    assert 0 < len(store.records(me.now)) <= 256
    assert len(store._deadlines._heap) < 3 * len(store.records(me.now)) + SPARE_DEADLINES


@pytest.mark.rule("6.expires_at.hint")
@pytest.mark.parametrize(
    "expires_at", [stamp(-60), stamp(0), stamp(86_400), "2026-01-01T00:00:00", "yesterday", 5, None]
)
def test_a_proposal_that_may_not_be_expired_is_handled(expires_at: object) -> None:
    me = Peer.among("alice", "bob", "tool", wall_clock=lambda: NOON)
    params = {"name": "write", "_meta": {payloads.EXPIRES_AT: expires_at}}
    assert started(me.proposal("alice", "p1", to=("me",), params=params)) == [HANDLER]
