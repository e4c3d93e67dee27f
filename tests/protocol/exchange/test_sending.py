"""What is looked at as a fulfillment leaves, and who a broadcast proposal waits for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meup_agent.errors import AlreadyDecided, ParticipantGone
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.exchange import ProposalKey, Wait
from meup_agent.protocol.outcomes import Expiry, Gone
from tests.protocol.exchange.peer import (
    CALL,
    MAY_CALL,
    MAY_PROPOSE,
    Peer,
    said,
    unsent,
)

P1 = ProposalKey("alice", "p1")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A time of day that a test sets."""

    def __init__(self) -> None:
        self.at = NOW

    def __call__(self) -> datetime:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def me(clock: Clock) -> Peer:
    peer = Peer(wall_clock=clock)
    peer.welcomed("alice", "bob", "tool")
    return peer


def proposed(me: Peer, *, seconds: float) -> None:
    """Somebody's proposal comes that waits so long from now."""
    expires = (NOW + timedelta(seconds=seconds)).isoformat()
    me.proposal("alice", "p1", params={**CALL, "_meta": {payloads.EXPIRES_AT: expires}})


# --- the fulfiller ---


@pytest.mark.rule("4.4.before_it_is_sent", "6.expires_at")
@pytest.mark.parametrize(("late", "is_sent"), [(59, True), (61, False)])
def test_what_has_certainly_expired_is_not_fulfilled(
    me: Peer, clock: Clock, late: float, is_sent: bool
) -> None:
    proposed(me, seconds=10)
    clock.at = NOW + timedelta(seconds=10 + late)
    if is_sent:
        me.begins_request(fulfills=P1)
        return
    with pytest.raises(AlreadyDecided, match="expired"):
        me.begins_request(fulfills=P1)
    assert said(me.effects, kinds.MCP_REQUEST) == []


@pytest.mark.rule("4.4.before_it_is_sent")
def test_what_expires_in_the_outbox_does_not_leave(me: Peer, clock: Clock) -> None:
    proposed(me, seconds=10)
    key = me.begins_request(fulfills=P1, sent=False, deadline=None)
    clock.at = NOW + timedelta(seconds=71)
    effects = me.did(me.table.sent(key.id, me.now))
    assert me.ending(key) == Expiry(key.id, sent=False)
    assert unsent(effects) == [key.id]
    assert not me.table.is_open(key)


@pytest.mark.rule("4.4.before_it_is_sent")
def test_nothing_is_fulfilled_for_a_proposer_who_has_left(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.left("alice")
    me.passes(29)
    for cancel in said(me.gives_up(me.begins_request(fulfills=P1))):
        me.echo(cancel)
    me.passes(2)
    with pytest.raises(ParticipantGone, match="'alice'"):
        me.begins_request(fulfills=P1)
    me.joined("alice")
    me.begins_request(fulfills=P1)


@pytest.mark.rule("4.4.before_it_is_sent")
def test_what_waits_in_the_outbox_for_a_proposer_who_left_does_not_leave(me: Peer) -> None:
    me.proposal("alice", "p1")
    key = me.begins_request(fulfills=P1, sent=False, deadline=None)
    me.left("alice")
    me.passes(31)
    me.did(me.table.sent(key.id, me.now))
    assert me.ending(key) == Gone(key.id, ("alice",))


@pytest.mark.rule("4.4.before_it_is_sent")
def test_who_is_never_present_may_propose_all_the_same(me: Peer) -> None:
    """Over HTTP, say."""
    me.joined("carol")
    me.left("carol")
    me.passes(100)
    me.proposal("carol", "p1")
    me.proposal("dora", "p1x")
    me.passes(100)
    me.begins_request(fulfills=ProposalKey("carol", "p1"))
    me.begins_request(fulfills=ProposalKey("dora", "p1x"))


# --- a broadcast proposal ---


@pytest.mark.rule("4.6.nobody_may")
def test_a_broadcast_proposal_that_nobody_present_may_fulfill_ends() -> None:
    me = Peer()
    me.welcomed("alice", capabilities=MAY_PROPOSE)
    key = me.begins_proposal(deadline=300)
    me.passes(29)
    assert me.is_waiting(key)
    effects = me.passes(1)
    assert me.ending(key) == Gone(key.id, ())
    assert len(said(effects, kinds.MCP_WITHDRAW)) == 1


@pytest.mark.rule("4.6.nobody_may")
def test_it_is_counted_anew_with_each_who_joins_and_from_the_last_who_leaves() -> None:
    me = Peer()
    me.welcomed("alice", capabilities=MAY_PROPOSE)
    key = me.begins_proposal(deadline=300)
    me.passes(20)
    me.joined("carol", MAY_PROPOSE)
    me.passes(20)
    me.joined("bob", MAY_CALL)
    me.passes(100)
    me.left("bob")
    me.passes(20)
    me.left("carol")
    me.passes(9)
    assert me.is_waiting(key)
    me.passes(1)
    assert me.ending(key) == Gone(key.id, ())


@pytest.mark.rule("4.6.nobody_may")
@pytest.mark.parametrize(
    ("wait", "listed"),
    [(Wait.DEADLINE, list(MAY_PROPOSE)), (Wait.ADDRESSED, list[dict[str, Any]]())],
    ids=["the caller says so", "the gateway announces nothing"],
)
def test_it_waits_for_its_deadline(wait: Wait, listed: list[dict[str, Any]]) -> None:
    me = Peer()
    me.welcomed("alice", capabilities=listed)
    key = me.begins_proposal(deadline=300, wait=wait)
    me.passes(299)
    assert me.is_waiting(key)
    me.passes(1)
    assert isinstance(me.ending(key), Expiry)


@pytest.mark.rule("4.6.nobody_may")
def test_while_it_is_carried_out_its_fulfiller_is_waited_for() -> None:
    me = Peer()
    me.welcomed("bob", "tool")
    key = me.begins_proposal(deadline=300)
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.joined("bob", MAY_PROPOSE)
    me.joined("tool", MAY_PROPOSE)
    me.passes(100)
    assert me.is_waiting(key)
