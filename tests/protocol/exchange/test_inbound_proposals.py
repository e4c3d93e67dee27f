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
    assert started(me.proposal("alice", "p1", to=to)) == [P1]
    return P1


def withdrawn(me: Peer) -> Key:
    running(me)
    me.withdraw("alice", "p1")
    return P1


@pytest.mark.rule("5.proposal.queued.withdraw", "4.4.at_its_start")
@pytest.mark.parametrize("rejected", [False, True])
def test_queued_what_is_decided_starts_no_handler_and_tells_none(rejected: bool) -> None:
    me = busy_peer()
    if rejected:  # by our user
        me.rejects("alice", "p2")
    effects = me.withdraw("alice", "p2")
    assert said(effects) == []
    assert dropped(effects) == ([] if rejected else ["cancelled_in_queue"])
    assert started(me.returns(P1)) == []
    assert me.record("alice", "p2").state == "withdrawn"


@pytest.mark.rule("5.proposal.queued.sender_leaves", "5.proposal.queued.connection_lost")
@pytest.mark.parametrize("happens", [lambda me: me.left("alice"), Peer.loses_connection])
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
        (lambda me: me.begins_request(parent=P1, fulfills=PROPOSAL), False),
        (lambda me: me.rejects("alice", "p1", "unsafe"), False),
    ],
    ids=["undecided", "unsent", "refused by the gateway", "sent", "rejected"],
)
def test_running_raises_rejects_what_was_addressed_to_us(
    me: Peer, before: Callable[[Peer], object], rejects: bool
) -> None:
    key = running(me)
    sent = before(me)
    effects = me.raises(key)
    expected = [(("p1",), {"reason": "other"})] if rejects else []
    found = said(effects, "mcp/reject")
    assert [(each.correlation, each.payload) for each in found] == expected
    cancels = [(sent.id,)] if isinstance(sent, Key) and not rejects else []
    assert [each.correlation for each in cancels_said(effects)] == cancels


@pytest.mark.rule("5.proposal.running.raises")
def test_running_raises_on_a_broadcast_rejects_nothing_and_tells_the_proposer(me: Peer) -> None:
    [told] = said(me.raises(running(me, to=())))
    assert (told.kind, told.to, told.correlation) == ("mcp/request", ("alice",), ("p1",))
    params = {"progressToken": "p1", "progress": 0, "_meta": {"dev.meup/failed": True}}
    params["message"] = "its handler failed"
    assert told.payload["params"] == params


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
def test_a_handler_that_has_rejected_goes_on_till_its_own_end_or_ours(me: Peer) -> None:
    key = running(me)
    me.rejects("alice", "p1")
    effects = me.withdraw("alice", "p1")  # the answer to our rejection
    assert (cancelled(effects), dropped(effects)) == ({}, ["late_withdraw"])
    assert me.record("alice", "p1").state == "withdrawn"
    me.left("alice")
    assert cancelled(me.passes(31) + me.shuts_down()) == {}
    assert me.table.is_open(key)
    effects = me.ends_grace()
    assert (list(cancelled(effects)), said(effects)) == ([key], [])
    assert cancelled(me.ends_grace()) == {}


@pytest.mark.rule("5.proposal.settled.rejected")
@pytest.mark.parametrize("ends", [Peer.returns, Peer.raises])
@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_the_end_of_a_handler_that_has_rejected_says_nothing(
    me: Peer, is_withdrawn: bool, ends: Callable[[Peer, Key], list[Effect]]
) -> None:
    key = running(me)
    me.rejects("alice", "p1")
    if is_withdrawn:
        me.withdraw("alice", "p1")
    else:
        me.left("alice")
    assert said(ends(me, key)) == []
    assert not me.table.is_open(key)


@pytest.mark.rule("5.proposal.told_of_withdraw")
@pytest.mark.parametrize("returned", [False, True])
def test_a_withdrawal_is_told_after_the_handler_has_ended(returned: bool) -> None:
    me = Peer.among("alice", "bob", "tool", roles=EXCHANGES | {Role.WITHDRAW})
    key = running(me)
    if returned:  # undecided
        me.returns(key)
    effects = me.withdraw("alice", "p1", "policy")
    assert len(started(effects, Role.WITHDRAW)) == returned
    (start,) = of(effects if returned else me.raises(key), Start)
    assert isinstance(start.work.subject, Withdrawal)
    assert (start.work.subject.proposal_id, start.work.subject.cause.code) == ("p1", "policy")
    assert started(me.withdraw("alice", "p1"), Role.WITHDRAW) == []
