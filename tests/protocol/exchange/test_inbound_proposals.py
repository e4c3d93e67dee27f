"""An incoming proposal: each cell of the second table of PROTOCOL 5.

It is the first one with *valid withdraw* for cancel, and no response is owed.
"""

from __future__ import annotations

import pytest

from meup_agent import Limits, Withdrawal
from tests.protocol.exchange.peer import (
    EXCHANGES,
    Peer,
    cancelled,
    cancels_said,
    dropped,
    of,
    said,
    started,
)
from tests.tables import Key, ProposalKey, Role, Start

P1 = Key("in", "alice", "p1")
P2 = Key("in", "alice", "p2")
PROPOSAL = ProposalKey("alice", "p1")


def busy_peer() -> Peer:
    """A participant whose only place is taken by ``p1``, so that ``p2`` waits for it."""
    peer = Peer(limits=Limits(handlers=1, queued=4), roles=EXCHANGES | {Role.WITHDRAW})
    peer.welcomed("alice", "bob", "tool")
    assert started(peer.proposal("alice", "p1", to=("me",))) == [P1]
    assert started(peer.proposal("alice", "p2", to=("me",))) == []
    peer.effects.clear()
    return peer


def running(me: Peer, *, to: tuple[str, ...] = ("me",)) -> Key:
    """``p1`` is being decided."""
    assert started(me.proposal("alice", "p1", to=to)) == [P1]
    return P1


def withdrawn(me: Peer) -> Key:
    """``p1`` was withdrawn, and its handler has not ended yet."""
    running(me)
    me.withdraw("alice", "p1")
    return P1


# --- queued ---


@pytest.mark.rule("5.proposal.queued.withdraw")
def test_queued_valid_withdraw_drops_it_and_tells_no_handler() -> None:
    me = busy_peer()
    effects = me.withdraw("alice", "p2")
    assert said(effects) == []
    assert dropped(effects) == ["cancelled_in_queue"]
    assert started(me.returns(P1)) == []
    assert me.record("alice", "p2").state == "withdrawn"


@pytest.mark.rule("4.4.at_its_start")
def test_queued_rejected_by_our_user_starts_no_handler() -> None:
    me = busy_peer()
    me.rejects("alice", "p2")
    assert started(me.returns(P1)) == []
    assert me.withdraw("alice", "p2") == []


@pytest.mark.rule("5.proposal.queued.sender_leaves")
def test_queued_sender_leaves_keeps_it() -> None:
    me = busy_peer()
    assert me.left("alice") == []
    assert started(me.returns(P1)) == [P2]


@pytest.mark.rule("5.proposal.queued.connection_lost")
def test_queued_connection_lost_keeps_it() -> None:
    me = busy_peer()
    assert me.loses_connection() == []
    assert started(me.returns(P1)) == [P2]


@pytest.mark.rule("5.proposal.queued.shutdown", "5.proposal.overflow")
def test_queued_shutdown_rejects_as_busy_what_was_addressed_to_us() -> None:
    me = busy_peer()
    me.proposal("alice", "p3")
    (reject,) = said(me.shuts_down())
    assert (reject.kind, reject.correlation, reject.to) == ("mcp/reject", ("p2",), ("alice",))
    assert reject.payload == {"reason": "busy"}


# --- running ---


@pytest.mark.rule("5.proposal.running.returns")
def test_running_returns_undecided_says_nothing(me: Peer) -> None:
    assert said(me.returns(running(me))) == []
    assert me.record("alice", "p1").state == "pending"


@pytest.mark.rule("5.proposal.running.raises")
def test_running_raises_rejects_what_was_addressed_to_us(me: Peer) -> None:
    (reject,) = said(me.raises(running(me)))
    assert (reject.kind, reject.correlation) == ("mcp/reject", ("p1",))
    assert reject.payload == {"reason": "other"}


@pytest.mark.rule("5.proposal.running.raises")
def test_running_raises_on_a_broadcast_says_nothing(me: Peer) -> None:
    assert said(me.raises(running(me, to=()))) == []


@pytest.mark.rule("5.proposal.running.raises")
def test_running_raises_after_its_fulfilling_request_was_sent_says_nothing(me: Peer) -> None:
    key = running(me)
    request = me.begins_request(parent=key, fulfills=PROPOSAL)
    effects = me.raises(key)
    assert said(effects, "mcp/reject") == []
    assert [cancel.correlation for cancel in cancels_said(effects)] == [(request.id,)]


@pytest.mark.rule("5.proposal.running.raises")
def test_running_raises_before_its_fulfilling_request_was_sent_rejects(me: Peer) -> None:
    key = running(me)
    me.begins_request(parent=key, fulfills=PROPOSAL, sent=False)
    assert len(said(me.raises(key), "mcp/reject")) == 1


@pytest.mark.rule("5.proposal.running.raises")
def test_running_raises_after_the_gateway_refused_its_request_rejects(me: Peer) -> None:
    key = running(me)
    request = me.begins_request(parent=key, fulfills=PROPOSAL)
    me.refused(request.id)
    assert len(said(me.raises(key), "mcp/reject")) == 1


@pytest.mark.rule("5.proposal.running.raises")
def test_running_raises_after_it_rejected_does_not_reject_again(me: Peer) -> None:
    key = running(me)
    me.rejects("alice", "p1", "unsafe")
    assert said(me.raises(key)) == []


@pytest.mark.rule("5.proposal.running.withdraw")
def test_running_valid_withdraw_ends_the_scope(me: Peer) -> None:
    key = running(me)
    effects = me.withdraw("alice", "p1", "policy")
    cause = cancelled(effects)[key]
    assert (cause.code, cause.by, cause.id) == ("policy", "alice", "p1")
    assert said(effects) == []
    assert said(me.raises(key)) == []


@pytest.mark.rule("5.proposal.fulfillment_out")
def test_running_withdraw_cancels_our_fulfilling_request(me: Peer) -> None:
    key = running(me)
    request = me.begins_request(parent=key, fulfills=PROPOSAL)
    effects = me.withdraw("alice", "p1")
    (cancel,) = cancels_said(effects)
    assert cancel.correlation == (request.id,)
    assert cancel.to == ("tool",)
    assert me.ending(request).cause.by == "alice"  # type: ignore[union-attr]


@pytest.mark.rule("5.proposal.fulfillment_out")
def test_a_withdraw_cancels_a_fulfilling_request_that_no_handler_has(me: Peer) -> None:
    me.returns(running(me))
    request = me.begins_request(fulfills=PROPOSAL)
    (cancel,) = cancels_said(me.withdraw("alice", "p1"))
    assert cancel.correlation == (request.id,)


@pytest.mark.rule("5.proposal.running.sender_leaves")
def test_running_sender_leaves_keeps_it_for_the_grace_then_cancels(me: Peer) -> None:
    key = running(me)
    me.left("alice")
    assert cancelled(me.passes(29)) == {}
    effects = me.passes(1)
    assert list(cancelled(effects)) == [key]
    assert said(effects) == []


@pytest.mark.rule("5.proposal.running.connection_lost")
def test_running_connection_lost_keeps_it(me: Peer) -> None:
    key = running(me)
    assert me.loses_connection() == []
    assert cancelled(me.passes(1000)) == {}
    me.welcomed("bob")
    assert list(cancelled(me.passes(30))) == [key]


@pytest.mark.rule("5.proposal.running.shutdown")
def test_running_shutdown_waits_for_the_grace_then_cancels_and_rejects(me: Peer) -> None:
    key = running(me)
    assert me.shuts_down() == []
    effects = me.ends_grace()
    assert list(cancelled(effects)) == [key]
    (reject,) = said(effects)
    assert reject.payload == {"reason": "busy"}


@pytest.mark.rule("5.proposal.running.shutdown")
def test_running_shutdown_of_a_broadcast_rejects_nothing(me: Peer) -> None:
    key = running(me, to=())
    me.shuts_down()
    effects = me.ends_grace()
    assert list(cancelled(effects)) == [key]
    assert said(effects) == []


# --- cancelling ---


@pytest.mark.rule("5.proposal.cancelling.returns")
def test_cancelling_returns_says_nothing(me: Peer) -> None:
    key = withdrawn(me)
    assert said(me.returns(key)) == []
    assert not me.table.is_open(key)


@pytest.mark.rule("5.proposal.cancelling.raises")
def test_cancelling_raises_says_nothing(me: Peer) -> None:
    assert said(me.raises(withdrawn(me))) == []


@pytest.mark.rule("5.proposal.cancelling.withdraw")
def test_cancelling_a_second_withdraw_is_ignored(me: Peer) -> None:
    withdrawn(me)
    effects = me.withdraw("alice", "p1")
    assert cancelled(effects) == {}
    assert dropped(effects) == ["late_withdraw"]


@pytest.mark.rule("5.proposal.cancelling.sender_leaves")
def test_cancelling_sender_leaves_is_ignored(me: Peer) -> None:
    withdrawn(me)
    me.left("alice")
    assert me.passes(100) == []


@pytest.mark.rule("5.proposal.cancelling.shutdown")
def test_cancelling_shutdown_is_ignored(me: Peer) -> None:
    withdrawn(me)
    assert me.shuts_down() == []
    assert me.ends_grace() == []


# --- settled ---


@pytest.mark.rule("5.proposal.settled.withdraw")
def test_a_withdraw_after_the_handler_ended_still_counts_and_reaches_no_handler(me: Peer) -> None:
    me.returns(running(me))
    effects = me.withdraw("alice", "p1")
    assert cancelled(effects) == {}
    assert said(effects) == []
    assert me.record("alice", "p1").state == "withdrawn"


@pytest.mark.rule("5.proposal.settled.rejected")
def test_the_withdraw_that_answers_our_rejection_cancels_no_handler(me: Peer) -> None:
    key = running(me)
    me.rejects("alice", "p1")
    effects = me.withdraw("alice", "p1")
    assert cancelled(effects) == {}
    assert dropped(effects) == ["late_withdraw"]
    assert me.record("alice", "p1").state == "withdrawn"
    assert me.table.is_open(key)
    assert said(me.returns(key)) == []
    assert not me.table.is_open(key)


@pytest.mark.rule("5.proposal.settled.rejected")
def test_a_handler_that_has_rejected_is_left_alone_when_its_proposer_leaves(me: Peer) -> None:
    key = running(me)
    me.rejects("alice", "p1")
    me.left("alice")
    me.passes(31)
    assert me.table.is_open(key)
    assert said(me.raises(key)) == []


@pytest.mark.rule("5.proposal.settled.rejected")
def test_a_handler_that_has_rejected_ends_with_us(me: Peer) -> None:
    key = running(me)
    me.rejects("alice", "p1")
    assert cancelled(me.shuts_down()) == {}
    effects = me.ends_grace()
    assert list(cancelled(effects)) == [key]
    assert said(effects) == []
    assert cancelled(me.ends_grace()) == {}


# --- on_withdraw ---


@pytest.fixture
def told() -> Peer:
    """A participant that wants to be told of withdrawals."""
    peer = Peer(roles=EXCHANGES | {Role.WITHDRAW})
    peer.welcomed("alice", "bob", "tool")
    return peer


@pytest.mark.rule("5.proposal.told_of_withdraw")
def test_a_withdrawal_is_told_after_the_handler_has_ended(told: Peer) -> None:
    key = running(told)
    assert started(told.withdraw("alice", "p1", "policy")) == []
    (start,) = of(told.raises(key), Start)
    assert isinstance(start.work.subject, Withdrawal)
    assert start.work.subject.proposal_id == "p1"
    assert start.work.subject.cause.code == "policy"


@pytest.mark.rule("5.proposal.told_of_withdraw")
def test_a_withdrawal_is_told_when_the_handler_had_returned_undecided(told: Peer) -> None:
    told.returns(running(told))
    assert len(started(told.withdraw("alice", "p1"), Role.WITHDRAW)) == 1
    assert started(told.withdraw("alice", "p1"), Role.WITHDRAW) == []


@pytest.mark.rule("5.proposal.told_of_withdraw")
def test_a_withdrawal_of_what_never_began_is_not_told() -> None:
    me = busy_peer()
    assert started(me.withdraw("alice", "p2")) == []


@pytest.mark.rule("5.proposal.told_of_withdraw")
def test_the_withdraw_that_follows_our_own_rejection_is_not_told(told: Peer) -> None:
    key = running(told)
    told.echo(told.rejects("alice", "p1"))
    told.returns(key)
    assert started(told.withdraw("alice", "p1")) == []
