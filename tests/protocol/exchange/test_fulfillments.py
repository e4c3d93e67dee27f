"""Fulfilling requests: what they carry out, and which of several counts (PROTOCOL 4.2, 4.4)."""

from typing import Any

import pytest

from meup_agent import Fulfillment
from meup_agent.errors import AlreadyDecided, AlreadyInProgress
from tests.protocol.exchange.peer import Peer, said, started
from tests.tables import Key, ProposalKey
from tests.wire import JsonObject, draft, payloads

PROPOSAL = ProposalKey("alice", "p1")


@pytest.mark.rule("4.2.in_progress")
def test_a_proposal_with_two_requests_waits_again_after_the_last(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "1", to=("tool",), fulfills="p1")
    me.request("tool", "1", to=("tool",), fulfills="p1")
    me.cancel("bob", "1", to=("tool",))
    assert me.record("alice", "p1").in_progress_by == "tool"
    me.cancel("tool", "1", to=("tool",))
    assert me.record("alice", "p1").state == "pending"


@pytest.mark.rule("4.2.refusal_completes_nothing")
def test_an_executor_that_proposed_it_refuses_it_after_its_own_end(me: Peer) -> None:
    key = me.begins_proposal(to=("alice",))
    me.reject("alice", key.id)
    (response,) = said(me.request("bob", "b1", fulfills=key.id))
    assert response.payload["error"]["data"] == {"reason": "refused"}


@pytest.mark.rule("4.4.already_in_progress", "5.tombstone.before_fulfillment")
def test_after_anothers_request_or_a_withdraw_our_fulfill_raises(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    with pytest.raises(AlreadyInProgress, match="'bob'"):
        me.begins_request(fulfills=PROPOSAL)
    me.withdraw("alice", "p2")  # of what we never saw
    with pytest.raises(AlreadyDecided, match="withdrawn"):
        me.begins_request(fulfills=ProposalKey("alice", "p2"))
    assert me.table.waiting == 0


@pytest.mark.rule("4.4.follow")
def test_what_was_changed_is_told(me: Peer) -> None:
    params = {"name": "write", "arguments": {"path": "a", "n": 1}, "_meta": {payloads.TARGET: "x"}}
    key = me.begins_proposal(params=params)
    edited = {"name": "write", "arguments": {"path": "b", "n": 1.0}, "_meta": {"other": 1}}
    me.request("bob", "b1", to=("tool",), fulfills=key.id, params=edited)
    me.response("tool", "b1", to=("bob",))
    ending = me.ended(key, Fulfillment)
    assert ending.edited
    assert ending.changes == (
        payloads.Change("target", "x", "tool"),
        payloads.Change("arguments.path", "a", "b"),
    )


@pytest.mark.rule("4.4.follow")
@pytest.mark.parametrize(
    ("proposed", "fulfilled", "same"),
    [
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": [0]}, {"a": [False]}, False),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1.0}]}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": None}, {}, False),
        ({"a": {}}, {"a": []}, False),
    ],
)
def test_what_counts_as_a_change(
    proposed: dict[str, Any], fulfilled: dict[str, Any], same: bool
) -> None:
    calls = payloads.Call("m", proposed), payloads.Call("m", fulfilled)
    assert (payloads.changes(*calls, "tool") == ()) is same


@pytest.mark.rule("4.4.all_correlation_ids")
def test_all_correlation_ids_are_looked_at(me: Peer) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    relay = draft(
        "mcp/response",
        payloads.result("b1", {"content": []}),
        id="b2",
        sender="bob",
        to=("me",),
        correlation=("elsewhere", "b1"),
    )
    me.did(me.table.receive(relay, me.now))
    assert isinstance(me.ending(key), Fulfillment)


@pytest.mark.rule("5.who.fulfill")
@pytest.mark.parametrize(
    ("method", "params"), [("tools/list", {}), ("ping", {}), ("tools/call", {"name": "read"})]
)
def test_a_request_for_something_else_fulfills_nothing(method: str, params: JsonObject) -> None:
    me = Peer.among("alice", "bob", "mallory")
    own = me.begins_proposal()
    me.request("mallory", "m1", to=("mallory",), method=method, params=params, fulfills=own.id)
    me.response("mallory", "m1", to=("mallory",))
    assert me.is_waiting(own)
    assert me.own(own).state == "pending"


@pytest.mark.rule("5.who.fulfill")
def test_a_request_for_something_else_does_not_lock_the_executor(me: Peer) -> None:
    me.proposal("alice", "p1", to=("bob",))
    me.request("mallory", "m1", method="ping", params={}, fulfills="p1")
    me.returns(Key("in", "mallory", "m1"))
    assert started(me.request("bob", "b1", fulfills="p1")) == [Key("in", "bob", "b1")]
    assert me.record("alice", "p1").in_progress_by == "bob"
