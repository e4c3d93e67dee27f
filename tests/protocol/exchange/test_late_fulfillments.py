"""Fulfillments that wait in the outbox too long to leave (PROTOCOL 4.4)."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from meup_agent.errors import AlreadyDecided, AlreadyInProgress, ParticipantGone
from meup_agent.protocol.wire.outcomes import Unwanted
from tests.protocol.exchange.peer import CALL, Peer, said, started, unsent
from tests.tables import ProposalKey
from tests.wire import kinds, payloads, raise_for

P1 = ProposalKey("alice", "p1")


NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    at = NOW

    def __call__(self) -> datetime:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def me(clock: Clock) -> Peer:
    return Peer.among("alice", "bob", "tool", wall_clock=clock)


def proposed(me: Peer, *, seconds: float) -> None:
    expires = (NOW + timedelta(seconds=seconds)).isoformat()
    me.proposal("alice", "p1", params={**CALL, "_meta": {payloads.EXPIRES_AT: expires}})


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


@pytest.mark.rule("4.4.before_it_is_sent", "4.4.even_if_gone")
def test_nothing_is_fulfilled_for_a_proposer_who_has_left_unless_it_is_wanted_anyway(
    me: Peer,
) -> None:
    me.proposal("alice", "p1")
    me.left("alice")
    me.passes(29)
    for cancel in said(me.gives_up(me.begins_request(fulfills=P1))):
        me.echo(cancel)
    me.passes(2)
    with pytest.raises(ParticipantGone, match=r"'alice'.*even_if_gone"):
        me.begins_request(fulfills=P1)
    me.joined("alice")
    for cancel in said(me.gives_up(me.begins_request(fulfills=P1))):
        me.echo(cancel)
    me.left("alice")
    me.passes(5 * 3600)
    key = me.begins_request(fulfills=P1, even_if_gone=True, deadline=None)
    assert me.table.is_open(key)


def _leaves_for_good(me: Peer) -> None:
    me.left("alice")
    me.passes(31)


def _leaves_unnoticed(me: Peer) -> None:
    me.left("alice")
    me.now += 31  # no timer is looked at before the request leaves


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


@pytest.mark.rule("4.4.before_it_is_sent")
@pytest.mark.parametrize(
    ("happens", "raised"),
    [
        (lambda me: me.request("bob", "b1", to=("tool",), fulfills="p1"), AlreadyInProgress),
        (lambda me: me.rejects("alice", "p1"), AlreadyDecided),
        (_leaves_for_good, ParticipantGone),
        (_leaves_unnoticed, ParticipantGone),
        (lambda me: me.proposal("carol", "p1", params={"name": "other"}), None),
        (lambda me: None, None),
    ],
    ids=["requested", "rejected", "left", "left just now", "copied", "nothing"],
)
def test_what_was_decided_while_it_waited_for_a_connection_does_not_leave(
    me: Peer, happens: Callable[[Peer], object], raised: type[Exception] | None
) -> None:
    me.proposal("alice", "p1")
    key = me.begins_request(fulfills=P1, sent=False, deadline=None)
    happens(me)
    me.did(me.table.sent(key.id, me.now)[1])
    assert me.table.is_open(key) is (raised is None)
    if raised is not None:
        with pytest.raises(raised):
            raise_for(me.ending(key))
        assert unsent(me.effects) == [key.id]


@pytest.mark.rule("4.4.even_if_gone")
@pytest.mark.parametrize("even_if_gone", [True, False])
def test_its_handler_goes_on_when_the_proposer_leaves(me: Peer, even_if_gone: bool) -> None:
    (handler,) = started(me.proposal("alice", "p1"))
    key = me.begins_request(fulfills=P1, even_if_gone=even_if_gone, parent=handler, deadline=None)
    me.left("alice")
    me.passes(31)
    assert me.table.is_open(key) is even_if_gone


@pytest.mark.rule("4.4.before_it_is_sent", "4.2.expiry")
def test_what_was_held_for_hours_is_looked_at_the_same(me: Peer, clock: Clock) -> None:
    proposed(me, seconds=12 * 3600)
    clock.at = NOW + timedelta(hours=12, seconds=60)
    me.passes(12 * 3600 + 60)
    key = me.begins_request(fulfills=P1, sent=False, deadline=None)
    clock.at = NOW + timedelta(hours=12, seconds=61)
    effects = me.did(me.table.sent(key.id, me.now)[1])
    assert isinstance(me.ending(key), Unwanted)
    assert unsent(effects) == [key.id]
    assert not me.table.is_open(key)
    with pytest.raises(AlreadyDecided, match="expired"):
        me.begins_request(fulfills=P1)
