"""Who may do what to an exchange, and what comes before what it names (PROTOCOL 5)."""

from __future__ import annotations

import pytest

from meup_agent.errors import AlreadyDecided
from meup_agent.protocol.exchange import Key, Progressed, ProposalKey, Role
from meup_agent.protocol.exchange.ttl_map import Tombstones
from meup_agent.protocol.guarantees import Guarantees
from meup_agent.protocol.outcomes import Fulfillment, Responded
from meup_agent.protocol.payloads import JsonObject
from tests.protocol.exchange.peer import (
    EXCHANGES,
    Peer,
    cancelled,
    dropped,
    of,
    said,
    started,
)

A1 = Key("in", "alice", "a1")
P1 = Key("in", "alice", "p1")
PROPOSAL = ProposalKey("alice", "p1")


# --- withdraw ---


@pytest.mark.rule("5.who.withdraw", "4.1.only_the_proposer")
def test_a_withdraw_by_somebody_else_is_dropped(me: Peer) -> None:
    me.proposal("alice", "p1")
    effects = me.withdraw("bob", "p1")
    assert dropped(effects) == ["withdraw_by_another"]
    assert cancelled(effects) == {}
    assert me.record("alice", "p1").state == "pending"


@pytest.mark.rule("5.who.withdraw", "4.1.only_the_proposer")
def test_a_withdraw_of_our_proposal_by_somebody_else_is_dropped(me: Peer) -> None:
    key = me.begins_proposal()
    assert dropped(me.withdraw("bob", key.id)) == ["withdraw_by_another"]
    assert me.is_waiting(key)


@pytest.mark.rule("5.who.withdraw", "4.1.no_answer")
def test_a_withdraw_of_what_is_decided_is_dropped_in_silence(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    me.response("tool", "b1", to=("bob",))
    effects = me.withdraw("alice", "p1")
    assert dropped(effects) == ["late_withdraw"]
    assert said(effects) == []
    assert cancelled(effects) == {}
    assert me.record("alice", "p1").state == "fulfilled"


# --- cancel ---


@pytest.mark.rule("5.who.cancel", "4.7.same_sender")
def test_a_cancel_by_somebody_else_is_dropped(me: Peer) -> None:
    me.request("alice", "a1")
    effects = me.cancel("bob", "a1")
    assert dropped(effects) == ["cancel_by_another"]
    assert cancelled(effects) == {}
    assert len(said(me.returns(A1))) == 1


# --- response ---


@pytest.mark.rule("5.who.response", "4.4.sender_at_each_step")
def test_a_response_from_somebody_who_was_not_asked_is_dropped(me: Peer) -> None:
    key = me.begins_request(to=("tool",))
    assert dropped(me.response("bob", key.id)) == ["foreign_response"]
    assert me.is_waiting(key)
    me.response("tool", key.id)
    assert isinstance(me.ending(key), Responded)


@pytest.mark.rule("5.who.response", "4.4.sender_at_each_step")
def test_a_response_for_a_proposal_from_a_stranger_is_dropped(me: Peer) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    assert "unknown_response" in dropped(me.response("alice", "b1", to=("bob", "me")))
    assert me.is_waiting(key)
    assert me.own(key).state == "in_progress"


@pytest.mark.rule("5.who.response")
def test_the_fulfiller_may_relay_the_outcome(me: Peer) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.response("bob", key.id, result={"content": [4]})
    assert me.ending(key) == Fulfillment(key.id, "bob", "tool", {"content": [4]})


@pytest.mark.rule("5.who.response")
def test_the_first_valid_response_wins(me: Peer) -> None:
    key = me.begins_request()
    me.response("tool", key.id, result={"content": [1]})
    assert dropped(me.response("tool", key.id, result={"content": [2]})) == ["duplicate_response"]
    assert me.ending(key) == Responded("tool", {"content": [1]})


@pytest.mark.rule("5.who.response")
def test_the_copy_that_the_fulfiller_relays_is_a_duplicate(me: Peer) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.response("tool", "b1", to=("bob",))
    assert dropped(me.response("bob", key.id)) == ["duplicate_response"]
    assert isinstance(me.ending(key), Fulfillment)


@pytest.mark.rule("5.who.response")
def test_a_request_to_everybody_takes_anybodys_response(me: Peer) -> None:
    key = me.begins_request(to=())
    me.response("bob", key.id)
    assert me.ending(key) == Responded("bob", {"content": []})


@pytest.mark.rule("5.who.response", "4.8.key_by_sender")
def test_a_response_to_another_requester_with_our_id_is_not_ours(me: Peer) -> None:
    key = me.begins_request(to=("tool",))
    me.response("tool", key.id, to=("bob",))
    assert me.is_waiting(key)


@pytest.mark.rule("5.who.response")
def test_a_response_to_nothing_is_counted(me: Peer) -> None:
    assert dropped(me.response("tool", "nothing")) == ["unknown_response"]


# --- progress ---


@pytest.mark.rule("5.who.progress", "4.9.token")
def test_progress_from_the_one_who_was_asked_is_told(me: Peer) -> None:
    key = me.begins_request(to=("tool",))
    effects = me.progress("tool", key.id, 3)
    assert effects == [Progressed(key, 3.0, 10.0, "")]


@pytest.mark.rule("5.who.progress")
def test_progress_from_somebody_else_is_dropped(me: Peer) -> None:
    key = me.begins_request(to=("tool",))
    assert dropped(me.progress("bob", key.id, 3)) == ["foreign_progress"]


@pytest.mark.rule("5.who.progress")
def test_progress_of_the_fulfillment_reaches_the_proposer(me: Peer) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    effects = me.progress("tool", "b1", 1, to=("bob",), correlation=("b1",))
    assert of(effects, Progressed) == [Progressed(key, 1.0, 10.0, "")]
    assert me.progress("alice", "b1", 2, to=("bob",), correlation=("b1",)) == []


@pytest.mark.rule("5.who.progress", "4.8.key_by_sender")
def test_progress_for_another_requester_with_our_id_is_not_ours(me: Peer) -> None:
    key = me.begins_request(to=("tool",))
    assert me.progress("tool", key.id, 1, to=("bob",)) == []


# --- reject ---


@pytest.mark.rule("5.who.reject")
def test_anybody_may_reject_and_it_is_recorded(me: Peer) -> None:
    me.proposal("alice", "p1", to=("bob",))
    me.reject("tool", "p1", "my_own_reason")
    assert me.record("alice", "p1").rejections["tool"].reason == "my_own_reason"
    assert me.record("alice", "p1").state == "pending"


@pytest.mark.rule("5.who.reject")
def test_the_proposer_does_not_reject_its_own(me: Peer) -> None:
    me.proposal("alice", "p1")
    assert dropped(me.reject("alice", "p1")) == ["reject_of_own_proposal"]
    assert me.record("alice", "p1").rejections == {}


@pytest.mark.rule("5.who.reject")
def test_a_second_rejection_of_the_same_participant_is_a_copy() -> None:
    me = Peer(roles=EXCHANGES | {Role.REJECT})
    me.welcomed("alice", "bob", "tool")
    key = me.begins_proposal(to=("alice",))
    assert len(started(me.reject("bob", key.id, "busy"))) == 1
    assert dropped(me.reject("bob", key.id, "unsafe")) == ["duplicate_reject"]
    assert me.own(key).rejections["bob"].reason == "busy"


# --- system, and our own name ---


@pytest.mark.rule("5.who.system", "4.10.only_the_gateway")
@pytest.mark.parametrize("kind", ["system/welcome", "system/presence", "system/error"])
def test_system_messages_from_anybody_else_are_dropped(me: Peer, kind: str) -> None:
    key = me.begins_request()
    payload = {
        "you": {"id": "mallory"},
        "participants": [],
        "event": "leave",
        "participant": {"id": "tool"},
        "error": "refused",
    }
    effects = me.system(kind, payload, sender="bob", correlation=(key.id,))
    assert dropped(effects) == ["forged_system"]
    assert me.table.me == "me"
    assert "tool" in me.table.roster
    assert me.is_waiting(key)


@pytest.mark.rule("5.who.system")
@pytest.mark.parametrize("name", ["system:gateway", "gateway", "system"])
def test_the_gateway_has_three_names(me: Peer, name: str) -> None:
    me.system("system/presence", {"event": "leave", "participant": {"id": "tool"}}, sender=name)
    assert "tool" not in me.table.roster


@pytest.mark.rule("5.who.me")
def test_what_this_connection_did_not_send_in_our_name_is_logged(me: Peer) -> None:
    key = me.begins_proposal()
    effects = me.withdraw("me", key.id)
    assert dropped(effects) == ["not_ours"]
    assert me.is_waiting(key)
    assert me.own(key).state == "pending"
    assert started(me.request("me", "x1", to=("me",))) == []


@pytest.mark.rule("5.who.me")
@pytest.mark.parametrize("gives", [None, Guarantees(echo=True), Guarantees(resume=True)])
def test_where_nobody_checks_who_speaks_our_name_ends_nothing(gives: Guarantees | None) -> None:
    me = Peer()
    me.welcomed("alice", "tool", gives=gives)
    key = me.begins_request(to=("tool",))
    me.request("alice", "a1")
    me.proposal("alice", "p1", to=("me",))
    forged = [
        me.cancel("me", key.id, to=("tool",)),
        me.response("me", "a1", to=("alice",)),
        me.reject("me", "p1"),
        me.request("me", "x1", to=("tool",), fulfills="p1"),
        me.proposal("me", "x2"),
    ]
    for effects in forged:
        assert dropped(effects) == ["not_ours"]
        assert len(effects) == 1
    assert me.is_waiting(key)
    assert (me.table.running, me.record("alice", "p1").state) == (2, "pending")
    assert me.table.proposal_store.get(ProposalKey("me", "x2"), me.now) is None
    assert len(said(me.returns(A1))) == 1


# --- tombstones ---


@pytest.mark.rule("5.tombstone")
def test_a_withdraw_before_its_proposal_keeps_the_handler_from_starting(me: Peer) -> None:
    assert said(me.withdraw("alice", "p1", "policy")) == []
    effects = me.proposal("alice", "p1", to=("me",))
    assert started(effects) == []
    assert said(effects) == []
    assert dropped(effects) == ["withdrawn_before"]
    record = me.record("alice", "p1")
    assert (record.state, record.reason) == ("withdrawn", "policy")


@pytest.mark.rule("5.tombstone")
def test_a_cancel_before_its_request_keeps_the_handler_from_starting(me: Peer) -> None:
    me.cancel("alice", "a1")
    effects = me.request("alice", "a1")
    assert started(effects) == []
    assert said(effects) == []
    assert dropped(effects) == ["cancelled_before"]


@pytest.mark.rule("5.tombstone", "4.8.request_id")
def test_a_cancel_before_its_request_may_use_the_json_rpc_id(me: Peer) -> None:
    me.cancel("alice", 7)
    assert started(me.request("alice", "a1", rpc_id=7)) == []
    assert started(me.request("bob", "b1", rpc_id=7)) == [Key("in", "bob", "b1")]


@pytest.mark.rule("5.tombstone.before_fulfillment")
def test_a_fulfillment_is_not_sent_after_a_withdraw(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.withdraw("alice", "p1")
    with pytest.raises(AlreadyDecided, match="withdrawn"):
        me.begins_request(fulfills=PROPOSAL)


@pytest.mark.rule("5.tombstone.before_fulfillment")
def test_a_fulfillment_of_what_we_never_saw_is_not_sent_after_its_withdraw(me: Peer) -> None:
    me.withdraw("alice", "p1")
    with pytest.raises(AlreadyDecided, match="withdrawn"):
        me.begins_request(fulfills=PROPOSAL)
    assert me.table.waiting == 0


@pytest.mark.rule("5.tombstone.before_fulfillment")
def test_a_withdraw_takes_an_unsent_fulfillment_out_of_the_outbox(me: Peer) -> None:
    me.proposal("alice", "p1")
    key = me.begins_request(fulfills=PROPOSAL, sent=False)
    effects = me.withdraw("alice", "p1")
    assert not me.table.is_open(key)
    assert said(effects) == []


@pytest.mark.rule("5.tombstone.limits")
def test_a_tombstone_is_kept_for_five_minutes(me: Peer) -> None:
    me.cancel("alice", "a1")
    me.cancel("alice", "a2")
    me.passes(299)
    assert started(me.request("alice", "a1")) == []
    me.passes(1)
    assert started(me.request("alice", "a2")) == [Key("in", "alice", "a2")]


@pytest.mark.rule("5.tombstone.limits")
def test_a_sender_has_a_thousand_tombstones_and_nobody_elses(me: Peer) -> None:
    me.cancel("bob", "b1")
    for number in range(1001):
        me.cancel("alice", f"a{number}")
    assert started(me.request("alice", "a0")) != []
    assert started(me.request("alice", "a1")) == []
    assert started(me.request("bob", "b1")) == []


@pytest.mark.rule("5.tombstone.limits")
def test_tombstones_are_bounded_in_bytes_and_senders() -> None:
    tombstones = Tombstones()
    for number in range(100):
        tombstones.put("cancelled", "alice", f"{number}" + "x" * 10_000, "other", 0.0)
    assert len(tombstones) < 30
    for number in range(2000):
        tombstones.put("withdrawn", f"sender{number}", "p", "other", 0.0)
    assert len(tombstones) == Tombstones.SENDERS


@pytest.mark.rule("5.tombstone")
def test_a_cancel_is_no_withdraw(me: Peer) -> None:
    me.cancel("alice", "p1")
    assert started(me.proposal("alice", "p1")) == [P1]
    assert cancelled(me.cancel("alice", "p1")) == {}
    me.withdraw("alice", "a1")
    assert started(me.request("alice", "a1")) == [A1]


# --- fulfillment ---


@pytest.mark.rule("5.who.fulfill")
@pytest.mark.parametrize(
    ("method", "params"), [("tools/list", {}), ("ping", {}), ("tools/call", {"name": "read"})]
)
def test_a_request_for_something_else_fulfills_nothing(method: str, params: JsonObject) -> None:
    me = Peer()
    me.welcomed("alice", "bob", "mallory")
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


@pytest.mark.rule("5.who.fulfill")
def test_a_proposal_without_a_method_is_fulfilled_by_what_names_it(me: Peer) -> None:
    me.proposal("alice", "p1", method="", to=("bob",))
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    assert me.record("alice", "p1").in_progress_by == "bob"
