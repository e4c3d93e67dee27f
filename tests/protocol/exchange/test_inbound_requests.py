"""An incoming request: each cell of the first table of PROTOCOL 5."""

from collections.abc import Callable

import pytest

from meup_agent import Limits, Withdrawal
from meup_agent.errors import IllegalStep, NotExpressible
from tests.protocol.exchange.peer import (
    Peer,
    cancelled,
    cancels_said,
    dropped,
    said,
    started,
    unsent,
)
from tests.tables import Effect, Key

A1 = Key("in", "alice", "a1")
A2 = Key("in", "alice", "a2")


def busy_peer() -> Peer:
    """A participant whose only place is taken by ``a1``, so that ``a2`` waits for it."""
    peer = Peer.among("alice", "bob", "tool", limits=Limits(handlers=1, queued=4))
    peer.request("alice", "a1")
    assert started(peer.effects) == [A1]
    assert started(peer.request("alice", "a2")) == []
    assert peer.table.queued == 1
    peer.effects.clear()
    return peer


def running(me: Peer) -> Key:
    assert started(me.request("alice", "a1")) == [A1]
    return A1


def cancelling(me: Peer) -> Key:
    running(me)
    me.cancel("alice", "a1")
    return A1


@pytest.mark.rule("5.request.queued.sender_leaves", "5.request.queued.connection_lost")
@pytest.mark.parametrize("happens", [lambda me: me.left("alice"), Peer.loses_connection])
def test_queued_it_is_kept(happens: Callable[[Peer], list[Effect]]) -> None:
    me = busy_peer()
    assert happens(me) == []
    assert me.table.is_open(A2)
    assert started(me.returns(A1)) == [A2]
    assert me.table.queued == 0


@pytest.mark.rule("5.request.queued.sender_leaves")
def test_queued_sender_left_counts_its_grace_from_when_it_left() -> None:
    me = busy_peer()
    me.left("alice")
    me.passes(20)
    assert started(me.returns(A1)) == [A2]
    assert cancelled(me.passes(9)) == {}
    assert list(cancelled(me.passes(1))) == [A2]


@pytest.mark.rule("5.request.queued.shutdown")
def test_queued_shutdown_answers_busy() -> None:
    me = busy_peer()
    (response,) = said(me.shuts_down())
    assert (response.to, response.correlation) == (("alice",), ("a2",))
    assert response.payload["error"]["code"] == -32000
    assert response.payload["error"]["data"] == {"reason": "busy"}
    assert (me.table.is_open(A1), me.table.is_open(A2)) == (True, False)


@pytest.mark.rule("5.request.running.returns")
def test_running_returns_responds(me: Peer) -> None:
    (response,) = said(me.returns(running(me), {"content": [1]}))
    header = (response.kind, response.to, response.correlation)
    assert header == ("mcp/response", ("alice",), ("a1",))
    assert response.payload == {"jsonrpc": "2.0", "id": "a1", "result": {"content": [1]}}
    assert (me.table.is_open(A1), me.table.running) == (False, 0)


@pytest.mark.rule("5.request.running.raises")
def test_running_raises_responds_with_the_error(me: Peer) -> None:
    (response,) = said(me.raises(running(me), -32602, {"argument": "path"}))
    assert response.payload["error"] == {
        "code": -32602,
        "message": "the handler failed",
        "data": {"argument": "path"},
    }
    assert response.correlation == ("a1",)


@pytest.mark.rule("5.request.running.cancel")
def test_running_valid_cancel_ends_the_scope_without_a_response(me: Peer) -> None:
    key = running(me)
    effects = me.cancel("alice", "a1", reason="policy: not today")
    cause = cancelled(effects)[key]
    assert (cause.code, cause.text, cause.by, cause.id) == ("policy", "not today", "alice", "a1")
    assert said(effects) == []
    assert me.table.is_open(key)


@pytest.mark.rule("5.request.running.sender_leaves")
def test_running_sender_leaves_keeps_it_for_the_grace_then_cancels(me: Peer) -> None:
    key = running(me)
    me.left("alice")
    me.passes(29)
    me.joined("alice")  # in time, which loses nothing
    assert cancelled(me.passes(100)) == {}
    assert cancelled(me.left("alice")) == {}
    assert cancelled(me.passes(20)) == {}
    me.left("alice")  # a second time, which prolongs nothing
    assert cancelled(me.passes(9.5)) == {}
    effects = me.passes(0.5)
    assert cancelled(effects)[key].by == "alice"
    (answer,) = said(effects)  # for alice, should it come back and have missed nothing
    assert (answer.to, answer.payload["error"]["data"]) == (("alice",), {"reason": "cancelled"})
    assert said(me.returns(key)) == []


@pytest.mark.rule("5.request.running.sender_leaves")
def test_one_for_a_proposal_ends_without_an_answer_which_would_decide_that(me: Peer) -> None:
    (key,) = started(me.request("alice", "a1", fulfills="p1"))
    me.left("alice")
    effects = me.passes(30)
    assert cancelled(effects)[key].by == "alice"
    assert said(effects) == []


@pytest.mark.rule("5.request.running.connection_lost", "4.6.unattended")
@pytest.mark.parametrize(("present", "goes_on"), [("alice", True), ("bob", False)])
def test_after_the_welcome_a_sender_who_is_not_there_has_left(
    me: Peer, present: str, goes_on: bool
) -> None:
    key = running(me)
    me.request("carol", "c1")  # who was never there, and has not left
    me.left("alice")
    me.passes(10)
    me.loses_connection()
    me.passes(500)
    me.welcomed(present)
    assert cancelled(me.passes(29)) == {}
    assert list(cancelled(me.passes(1))) == ([] if goes_on else [key])
    assert cancelled(me.passes(100)) == {}
    assert me.table.is_open(key)


@pytest.mark.rule("5.request.running.shutdown")
def test_running_shutdown_waits_for_the_grace_then_cancels_and_answers(me: Peer) -> None:
    key = running(me)
    assert me.shuts_down() == []
    effects = me.ends_grace()
    (response,) = said(effects)
    assert response.payload["error"]["data"] == {"reason": "cancelled"}
    assert response.payload["error"]["code"] == -32000
    assert cancelled(effects)[key].text == "the agent shuts down"
    assert said(me.returns(key)) == []


@pytest.mark.rule("5.request.cancelling.returns", "5.request.cancelling.raises")
@pytest.mark.parametrize("ends", [Peer.returns, Peer.raises])
def test_cancelling_its_end_is_discarded(
    me: Peer, ends: Callable[[Peer, Key], list[Effect]]
) -> None:
    key = cancelling(me)
    assert said(ends(me, key)) == []
    assert (me.table.is_open(key), me.table.running) == (False, 0)


@pytest.mark.rule(
    "5.request.cancelling.cancel",
    "5.request.cancelling.sender_leaves",
    "5.request.cancelling.shutdown",
)
@pytest.mark.parametrize(
    "happens",
    [
        lambda me: me.cancel("alice", "a1"),
        lambda me: me.left("alice") + me.passes(100),
        lambda me: me.shuts_down() + me.ends_grace(),
        lambda me: me.loses_connection(),
    ],
    ids=["cancel", "sender_leaves", "shutdown", "connection_lost"],
)
def test_cancelling_nothing_else_counts(me: Peer, happens: Callable[[Peer], list[Effect]]) -> None:
    key = cancelling(me)
    effects = happens(me)
    assert (said(effects), cancelled(effects)) == ([], {})
    assert me.table.is_open(key)


@pytest.mark.rule("5.request.settled.cancel")
def test_settled_cancel_is_counted_as_late_and_leaves_no_tombstone(me: Peer) -> None:
    me.request("alice", "a1", rpc_id=5)
    me.returns(A1)
    effects = me.cancel("alice", 5)
    assert (dropped(effects), cancelled(effects), said(effects)) == (["late_cancel"], {}, [])
    assert started(me.request("alice", "a2", rpc_id=5)) == [A2]


@pytest.mark.rule("5.request.settled.connection_lost")
def test_settled_connection_lost_does_not_take_the_response_back(me: Peer) -> None:
    me.returns(running(me))
    me.effects.clear()
    me.loses_connection()
    assert me.effects == []
    again = said(me.welcomed("alice"))
    assert [envelope.correlation for envelope in again] == [("a1",)]


@pytest.mark.rule("5.request.first_event_wins")
def test_a_handler_that_ended_or_never_began_cannot_end(me: Peer) -> None:
    key = running(me)
    assert len(said(me.returns(key))) == 1
    assert me.returns(key) == []
    assert me.raises(key) == []
    me = busy_peer()
    with pytest.raises(IllegalStep):
        me.returns(A2)
    assert me.table.is_open(A2)


@pytest.mark.rule("5.request.first_event_wins")
def test_a_result_that_json_cannot_say_changes_nothing(me: Peer) -> None:
    key = running(me)
    with pytest.raises(NotExpressible):
        me.returns(key, object())
    assert me.table.is_open(key)
    # And data of an error that it cannot say is left out.
    (response,) = said(me.raises(key, data=object()))
    assert response.payload["error"] == {"code": -32603, "message": "the handler failed"}


@pytest.mark.rule("5.codes")
def test_a_request_without_a_method_is_invalid(me: Peer) -> None:
    (response,) = said(me.hears("mcp/request", {"id": "a1"}, sender="alice", id="a1", to=("me",)))
    assert response.payload["error"]["code"] == -32600


@pytest.mark.rule("5.codes")
@pytest.mark.parametrize("wanted", [True, False])
def test_a_notification_is_never_answered(wanted: bool) -> None:
    me = Peer.among("alice", find_handler=lambda *_: wanted)
    effects = me.request("alice", "a1", method="notifications/roots/list_changed")
    assert said(effects) == []
    assert not me.table.is_open(A1)


@pytest.mark.rule("5.children")
def test_what_a_handler_has_open_ends_with_it(me: Peer) -> None:
    key = running(me)
    request = me.begins_request(parent=key)
    proposal = me.begins_proposal(parent=key)
    other = me.begins_request()
    effects = me.returns(key)
    assert [cancel.correlation for cancel in cancels_said(effects)] == [(request.id,)]
    (withdraw,) = said(effects, "mcp/withdraw")
    assert withdraw.correlation == (proposal.id,)
    assert me.is_waiting(other)
    waiting = me.table.waiting
    with pytest.raises(IllegalStep, match="has ended"):
        me.begins_request(parent=key)
    assert me.table.waiting == waiting


@pytest.mark.rule("5.children")
def test_what_a_handler_begins_while_it_is_cancelled_is_not_sent(me: Peer) -> None:
    key = running(me)
    cause = cancelled(me.cancel("alice", key.id))[key]
    request = me.begins_request(parent=key, sent=False)
    proposal = me.begins_proposal(parent=key, sent=False)
    assert me.ending(request) == Withdrawal(request.id, "me", cause)
    assert me.ending(proposal) == Withdrawal(proposal.id, "me", cause)
    assert unsent(me.effects) == [request.id, proposal.id]
    assert me.table.waiting == 0
    me.begins_request()
    assert me.table.waiting == 1
