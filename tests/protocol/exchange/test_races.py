"""The races that the protocol names: each is a sequence of calls on one table."""

from typing import Any

import pytest

from meup_agent import Fulfillment, Rejection
from tests.protocol.exchange.peer import Peer, cancelled, dropped, said, started, unsent, woken
from tests.tables import Key, ProposalKey
from tests.wire import LostRace, Responded

P1 = Key("in", "alice", "p1")
A1 = Key("in", "alice", "a1")
PROPOSAL = ProposalKey("alice", "p1")


@pytest.mark.rule("race.two_fulfillers")
@pytest.mark.parametrize("is_sent", [True, False])
def test_the_fulfiller_whose_request_is_ordered_second_cancels_it(me: Peer, is_sent: bool) -> None:
    me.proposal("alice", "p1", to=("me",))
    key = me.begins_request(parent=P1, fulfills=PROPOSAL, sent=False)
    if is_sent:
        me.did(me.table.sent(key.id, me.now)[1])
    effects = me.request("bob", "b1", to=("tool",), fulfills="p1")
    assert woken(effects) == {key: LostRace("bob")}
    assert unsent(effects) == ([] if is_sent else [key.id])
    cancels = [(each.correlation, each.payload["params"]["reason"]) for each in said(effects)]
    assert cancels == ([((key.id,), "duplicate")] if is_sent else [])
    assert len(said(me.raises(P1), "mcp/reject")) == (0 if is_sent else 1)


@pytest.mark.rule("race.two_fulfillers")
def test_the_proposer_takes_the_first_response(me: Peer) -> None:
    key = me.begins_proposal()
    me.request("bob", "1", to=("tool",), fulfills=key.id)
    me.request("alice", "1", to=("tool",), fulfills=key.id)
    refusal = {"code": -32000, "message": "refused", "data": {"reason": "refused"}}
    me.response("tool", "1", to=("alice",), error=refusal)
    assert me.is_waiting(key)
    assert me.own(key).in_progress_by == "bob"
    me.response("tool", "1", to=("bob",))
    assert me.ended(key, Fulfillment).by == "bob"


@pytest.mark.rule("race.same_id")
def test_a_withdraw_of_ones_own_proposal_that_is_still_to_come(me: Peer) -> None:
    me.proposal("alice", "1")
    me.withdraw("bob", "1")
    assert me.record("alice", "1").state == "pending"
    assert started(me.proposal("bob", "1")) == []


@pytest.mark.rule("race.same_id")
def test_a_rejection_says_whose_proposal_it_means(me: Peer) -> None:
    me.proposal("alice", "1")
    me.proposal("bob", "1")
    me.hears(
        "mcp/reject", {"reason": "busy"}, sender="tool", id="r", to=("bob",), correlation=("1",)
    )
    assert set(me.record("bob", "1").rejections) == {"tool"}
    assert me.record("alice", "1").rejections == {}


@pytest.mark.rule("race.restarted_peer")
@pytest.mark.parametrize(
    "other", [{"params": {"name": "two"}}, {"ts": "2026-01-01T00:01:00.000Z"}], ids=["call", "time"]
)
def test_another_request_under_a_settled_id_is_not_answered_from_memory(
    me: Peer, other: dict[str, Any]
) -> None:
    me.request("alice", "a1", ts="2026-01-01T00:00:00.000Z")
    me.returns(A1, {"content": [1]})
    effects = me.request("alice", "a1", **{"ts": "2026-01-01T00:00:00.000Z", **other})
    assert (started(effects), said(effects)) == ([A1], [])
    (response,) = said(me.returns(A1, {"content": [2]}))
    assert response.payload["result"] == {"content": [2]}


@pytest.mark.rule("race.restarted_peer", "5.memory.once")
def test_the_same_request_again_is_answered_from_memory(me: Peer) -> None:
    me.request("alice", "a1")
    assert dropped(me.request("alice", "a1")) == ["duplicate_request"]
    (response,) = said(me.returns(A1))
    effects = me.request("alice", "a1")
    assert said(effects) == [response]
    assert started(effects) == []


@pytest.mark.rule("race.restarted_peer")
def test_another_request_under_the_id_of_one_that_runs_ends_the_first(me: Peer) -> None:
    two: dict[str, Any] = {"params": {"name": "two"}, "rpc_id": 2}
    me.request("alice", "a1", params={"name": "one"}, rpc_id=1)
    effects = me.request("alice", "a1", **two)
    second = A1._replace(again=1)
    assert list(cancelled(effects)) == [A1]
    assert started(effects) == [second]
    assert list(cancelled(me.cancel("alice", 1))) == []
    (response,) = said(me.returns(second, {"content": [2]}))
    assert response.payload == {"jsonrpc": "2.0", "id": 2, "result": {"content": [2]}}
    assert said(me.returns(A1)) == []
    assert said(me.request("alice", "a1", **two)) == [response], "the older made nothing forgotten"
    assert dropped(me.cancel("alice", "a1")) == ["late_cancel"]


@pytest.mark.rule("race.restarted_peer")
@pytest.mark.parametrize("decided", [True, False])
def test_another_proposal_under_the_same_id_is_a_new_one(me: Peer, decided: bool) -> None:
    me.proposal("alice", "p1", params={"name": "one"})
    if decided:
        me.withdraw("alice", "p1")
    effects = me.proposal("alice", "p1", params={"name": "two"})
    second = P1._replace(again=1)
    assert started(effects) == [second]
    assert list(cancelled(effects)) == ([] if decided else [P1])
    assert me.record("alice", "p1").state == "pending"
    me.raises(P1)
    assert list(cancelled(me.withdraw("alice", "p1"))) == [second]


@pytest.mark.rule("race.answer_before_sent")
def test_an_answer_for_what_we_believe_unsent(me: Peer) -> None:
    key = me.begins_request(sent=False)
    me.response("tool", key.id)
    assert isinstance(me.ending(key), Responded)
    proposal = me.begins_proposal(to=("bob",), sent=False)
    effects = me.reject("bob", proposal.id)
    assert isinstance(me.ending(proposal), Rejection)
    assert len(said(effects, "mcp/withdraw")) == 1
    refused = me.begins_request(sent=False)
    me.refused(refused.id)
    assert not me.is_waiting(refused)
