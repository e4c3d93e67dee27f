"""An incoming proposal: each cell of the second table of PROTOCOL 5.

It is the first one with *valid withdraw* for cancel, and no response is owed.
"""

from collections.abc import Callable

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
from tests.tables import Effect, Key, ProposalKey, Role, Start

P1 = Key("in", "alice", "p1")
P2 = Key("in", "alice", "p2")
PROPOSAL = ProposalKey("alice", "p1")


def busy_peer() -> Peer:
    """A participant whose only place is taken by ``p1``, so that ``p2`` waits for it."""
    peer = Peer.among(
        "alice",
        "bob",
        "tool",
        limits=Limits(handlers=1, queued=4),
        roles=EXCHANGES | {Role.WITHDRAW},
    )
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


@pytest.mark.rule("5.proposal.queued.sender_leaves", "5.proposal.queued.connection_lost")
@pytest.mark.parametrize(
    "happens",
    [lambda me: me.left("alice"), lambda me: me.loses_connection()],
    ids=["sender_leaves", "connection_lost"],
)
def test_queued_it_is_kept(happens: Callable[[Peer], list[Effect]]) -> None:
    me = busy_peer()
    assert happens(me) == []
    assert started(me.returns(P1)) == [P2]


@pytest.mark.rule("5.proposal.queued.shutdown", "5.proposal.overflow")
def test_queued_shutdown_rejects_as_busy_what_was_addressed_to_us() -> None:
    me = busy_peer()
    me.proposal("alice", "p3")
    (reject,) = said(me.shuts_down())
    assert (reject.kind, reject.correlation, reject.to) == ("mcp/reject", ("p2",), ("alice",))
    assert reject.payload == {"reason": "busy"}


@pytest.mark.rule("5.proposal.running.raises")
@pytest.mark.parametrize(
    ("before", "rejects"),
    [
        (lambda me: None, True),
        (lambda me: me.begins_request(parent=P1, fulfills=PROPOSAL, sent=False), True),
        (lambda me: me.refused(me.begins_request(parent=P1, fulfills=PROPOSAL).id), True),
        (lambda me: me.rejects("alice", "p1", "unsafe"), False),
    ],
    ids=["undecided", "unsent", "refused by the gateway", "rejected"],
)
def test_running_raises_rejects_what_was_addressed_to_us(
    me: Peer, before: Callable[[Peer], object], rejects: bool
) -> None:
    key = running(me)
    before(me)
    found = said(me.raises(key), "mcp/reject")
    expected = [(("p1",), {"reason": "other"})] if rejects else []
    assert [(each.correlation, each.payload) for each in found] == expected


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


@pytest.mark.rule("5.proposal.fulfillment_out")
@pytest.mark.parametrize("in_handler", [True, False])
def test_withdraw_cancels_our_fulfilling_request(me: Peer, in_handler: bool) -> None:
    key = running(me)
    if not in_handler:
        me.returns(key)
    request = me.begins_request(parent=key if in_handler else None, fulfills=PROPOSAL)
    (cancel,) = cancels_said(me.withdraw("alice", "p1"))
    assert (cancel.to, cancel.correlation) == (("tool",), (request.id,))
    assert me.ending(request).cause.by == "alice"  # type: ignore[union-attr]


@pytest.mark.rule("5.proposal.running.connection_lost")
def test_running_connection_lost_keeps_it(me: Peer) -> None:
    key = running(me)
    assert me.loses_connection() == []
    assert cancelled(me.passes(1000)) == {}
    me.welcomed("bob")
    assert list(cancelled(me.passes(30))) == [key]


@pytest.mark.rule("5.proposal.running.shutdown")
@pytest.mark.parametrize(("to", "said_so"), [(("me",), [{"reason": "busy"}]), ((), [])])
def test_running_shutdown_waits_for_the_grace_then_cancels_and_rejects(
    me: Peer, to: tuple[str, ...], said_so: list[object]
) -> None:
    key = running(me, to=to)
    assert me.shuts_down() == []
    effects = me.ends_grace()
    assert list(cancelled(effects)) == [key]
    assert [reject.payload for reject in said(effects)] == said_so


@pytest.mark.rule("5.proposal.cancelling.returns", "5.proposal.cancelling.raises")
@pytest.mark.parametrize("ends", [Peer.returns, Peer.raises])
def test_cancelling_its_end_says_nothing(
    me: Peer, ends: Callable[[Peer, Key], list[Effect]]
) -> None:
    key = withdrawn(me)
    assert said(ends(me, key)) == []
    assert not me.table.is_open(key)


@pytest.mark.rule(
    "5.proposal.cancelling.withdraw",
    "5.proposal.cancelling.sender_leaves",
    "5.proposal.cancelling.shutdown",
)
@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lambda me: me.withdraw("alice", "p1"), ["late_withdraw"]),
        (lambda me: me.left("alice") + me.passes(100), []),
        (lambda me: me.shuts_down() + me.ends_grace(), []),
    ],
    ids=["withdraw", "sender_leaves", "shutdown"],
)
def test_cancelling_nothing_else_counts(
    me: Peer, happens: Callable[[Peer], list[Effect]], why: list[str]
) -> None:
    withdrawn(me)
    effects = happens(me)
    assert (cancelled(effects), said(effects), dropped(effects)) == ({}, [], why)


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


@pytest.fixture
def told() -> Peer:
    """A participant that wants to be told of withdrawals."""
    peer = Peer.among("alice", "bob", "tool", roles=EXCHANGES | {Role.WITHDRAW})
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
