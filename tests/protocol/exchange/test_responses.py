"""Responses and progress: whose count, which of several, and until when (PROTOCOL 4.2, 4.9, 5)."""

from typing import Any

import pytest

from meup_agent import Fulfillment
from meup_agent.protocol.exchange.effects import Drop
from tests.protocol.exchange.peer import Peer, dropped, of
from tests.tables import Progressed
from tests.wire import Responded


@pytest.mark.rule("4.2.fulfilled_by_response")
@pytest.mark.parametrize("error", [None, {"code": -32603, "message": "it broke"}])
def test_a_proposal_is_fulfilled_when_the_response_arrives(me: Peer, error: Any) -> None:
    me.proposal("alice", "p1")
    assert me.record("alice", "p1").state == "pending"
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    assert me.record("alice", "p1").state == "in_progress"
    assert me.record("alice", "p1").in_progress_by == "bob"
    me.response("tool", "b1", to=("bob",), error=error)
    assert me.record("alice", "p1").state == "fulfilled"
    assert me.record("alice", "p1").decided_by == "bob"


@pytest.mark.rule("4.2.cancel_crosses_response")
@pytest.mark.parametrize(
    ("error", "state"), [(None, "fulfilled"), ({"code": 0, "message": "cancelled"}, "pending")]
)
def test_a_result_that_crossed_the_cancel_of_its_request_fulfills_and_an_error_does_not(
    me: Peer, error: Any, state: str
) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.cancel("bob", "b1", to=("tool",))
    me.response("tool", "b1", to=("bob",), error=error)
    assert me.own(key).state == state
    assert me.is_waiting(key) is (state == "pending")


@pytest.mark.rule("5.who.response", "4.4.sender_at_each_step", "4.8.key_by_sender")
def test_a_response_from_who_was_not_asked_or_to_another_with_our_id_is_not_ours(me: Peer) -> None:
    key = me.begins_request(to=("tool",))
    assert dropped(me.response("bob", key.id)) == ["foreign_response"]
    me.response("tool", key.id, to=("bob",))
    assert me.is_waiting(key)
    me.response("tool", key.id)
    assert isinstance(me.ending(key), Responded)


@pytest.mark.rule("5.who.response", "4.4.sender_at_each_step")
def test_the_fulfiller_may_relay_the_outcome_and_a_copy_is_a_duplicate(me: Peer) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    assert "unknown_response" in dropped(me.response("alice", "b1", to=("bob", "me")))
    assert me.is_waiting(key)
    assert me.own(key).state == "in_progress"
    me.response("bob", key.id, result={"content": [4]})
    assert me.ending(key) == Fulfillment(key.id, "bob", "tool", {"content": [4]})
    key = me.begins_proposal()
    me.sees_fulfilled(key.id, "b2")
    assert dropped(me.response("bob", key.id)) == ["duplicate_response"]
    assert isinstance(me.ending(key), Fulfillment)


@pytest.mark.rule("4.9.increases")
def test_progress_only_increases(me: Peer) -> None:
    key = me.begins_request()
    told = [
        effect.done
        for done in (1, 3, 3, 2, 3.5, True, "4", None, 10**400, 4)
        for effect in of(me.progress("tool", key.id, done), Progressed)
    ]
    assert told == [1.0, 3.0, 3.5, 4.0]


@pytest.mark.rule("5.who.progress", "4.8.key_by_sender")
def test_progress_from_another_participant_or_for_another_is_not_ours(me: Peer) -> None:
    key = me.begins_request(to=("tool",))
    assert dropped(me.progress("bob", key.id, 3)) == ["foreign_progress"]
    assert me.progress("tool", key.id, 1, to=("bob",)) == []


@pytest.mark.rule("5.who.progress")
def test_progress_of_the_fulfillment_reaches_the_proposer(me: Peer) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    effects = me.progress("tool", "b1", 1, to=("bob",), correlation=("b1",))
    assert of(effects, Progressed) == [Progressed(key, 1.0, 10.0, "")]
    assert me.progress("alice", "b1", 2, to=("bob",), correlation=("b1",)) == []


@pytest.mark.rule("2.answered_notification", "5.who.response")
def test_an_answer_to_nothing_of_ours_is_logged(me: Peer) -> None:
    (drop,) = of(me.response("tool", "never-said"), Drop)
    assert (drop.why, drop.expected) == ("unknown_response", False)
