"""Renewals: more time for a pending proposal, from its proposer alone (PROTOCOL 4.17)."""

from datetime import timedelta
from typing import Any

import pytest

from meup_agent import Expiry, ProposalState
from meup_agent.errors import AlreadyDecided, UsageError
from meup_agent.protocol.proposals import MAX_RENEWAL_SECONDS, MAX_RENEWALS
from tests.protocol.exchange.peer import CALL, Peer, dropped
from tests.protocol.exchange.test_expiry import NOON, P1, ours, proposed, stamp, state
from tests.tables import Key, ProposalKey
from tests.wire import OURS, kinds, moment_of, payloads


def renews(me: Peer, until: Any, *, sender: str = "alice", names: Any = ("p1",)) -> list[str]:
    payload = {"expires_at": stamp(until) if isinstance(until, int | float) else until}
    me.effects.clear()
    me.hears(kinds.MCP_RENEW, payload, sender=sender, id=me._new_id(), correlation=names)
    return dropped(me.effects)


def deadline(me: Peer) -> timedelta | None:
    expires_at = me.record("alice", "p1").expires_at
    return None if expires_at is None else moment_of(expires_at) - NOON


@pytest.mark.rule("4.17.renew")
def test_what_was_renewed_expires_later_and_is_the_same_call() -> None:
    me = ours()
    proposed(me, seconds=10)
    before = me.record("alice", "p1").envelope
    assert renews(me, 100) == []
    me.passes(120)
    assert state(me) is ProposalState.PENDING
    assert me.record("alice", "p1").envelope is before
    me.passes(50)
    assert state(me) is ProposalState.EXPIRED


@pytest.mark.rule("4.17.bounds")
@pytest.mark.parametrize(
    ("renewal", "why"),
    [
        ({"until": 100, "sender": "bob"}, "renew_by_another"),
        ({"until": 100, "names": ("other",)}, "unknown_renew"),
        ({"until": 100, "names": ()}, "malformed_renew"),
        ({"until": 100, "names": ("p1", "p2")}, "malformed_renew"),
        ({"until": "soon"}, "malformed_renew"),
        ({"until": "2026-01-01T13:00:00"}, "malformed_renew"),
        ({"until": 10}, "late_renew"),
        ({"until": 5}, "late_renew"),
    ],
)
def test_what_is_no_renewal_changes_nothing(renewal: dict[str, Any], why: str) -> None:
    me = ours()
    proposed(me, seconds=10)
    assert renews(me, renewal.pop("until"), **renewal) == [why]
    assert deadline(me) == timedelta(seconds=10)


@pytest.mark.rule("4.17.bounds")
@pytest.mark.parametrize("ended", ["withdrawn", "expired", "fulfilled", "endless"])
def test_what_is_not_pending_or_has_no_deadline_is_not_renewed(ended: str) -> None:
    me = ours()
    if ended == "endless":
        me.proposal("alice", "p1")
    else:
        proposed(me, seconds=10)
    if ended == "withdrawn":
        me.withdraw("alice", "p1")
    elif ended == "fulfilled":
        me.sees_fulfilled("p1")
    elif ended == "expired":
        me.passes(80)
    before = deadline(me)
    assert renews(me, 100) == ["late_renew"]
    assert deadline(me) == before


@pytest.mark.rule("4.17.bounds")
def test_a_million_renewals_cost_no_more_than_a_thousand() -> None:
    me = ours()
    proposed(me, seconds=10)
    for number in range(MAX_RENEWALS):
        assert renews(me, 11 + number) == []
    assert renews(me, 50_000) == ["late_renew"]
    store = me.table.proposal_store
    assert len(store._deadlines._heap) <= 1 + MAX_RENEWALS


@pytest.mark.rule("4.17.renew")
def test_one_in_progress_is_renewed_and_our_fulfillment_waits_on() -> None:
    me = ours()
    proposed(me, seconds=10)
    request = me.begins_request(fulfills=P1, follows=True, deadline=70)
    assert renews(me, 100) == []
    me.passes(80)
    assert me.is_waiting(request)
    me.passes(90)
    assert not me.is_waiting(request)


def proposing() -> tuple[Peer, Key]:
    me = Peer.among("alice", "bob", gives=OURS, ts=stamp(0))
    params = {**CALL, "_meta": {payloads.EXPIRES_AT: stamp(60)}}
    return me, me.begins_proposal(params=params, deadline=60)


@pytest.mark.rule("4.17.bounds")
def test_a_renewal_that_is_refused_leaves_the_deadline_as_it_was() -> None:
    me, key = proposing()
    renewal, effects = me.table.renew(key, 100.0, me.now)
    me.did(effects)
    me.refused(renewal.id, "not_renewed")
    me.passes(61)
    assert me.ending(key) == Expiry(key.id)


@pytest.mark.rule("4.17.bounds")
def test_ours_is_not_renewed_after_its_end_or_for_less_or_for_ever() -> None:
    me, key = proposing()
    for seconds in (1.0, MAX_RENEWAL_SECONDS + 100):
        with pytest.raises(UsageError, match="renew"):
            me.table.renew(key, seconds, me.now)
    me.passes(61)
    with pytest.raises(AlreadyDecided, match="expired"):
        me.table.renew(key, 100.0, me.now)
    endless = Peer.among("alice", wall_clock=lambda: NOON)
    with pytest.raises(UsageError, match="no deadline"):
        endless.table.renew(endless.begins_proposal(deadline=None), 5.0, endless.now)
    assert ProposalKey(me.name, key.id) in [each.key for each in me.table.proposal_store.records(0)]
