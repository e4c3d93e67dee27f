"""Rejects: which are recorded, and which end the wait (PROTOCOL 4.3 to 4.5)."""

import pytest

from meup_agent import Expiry, Fulfillment, Gone, Rejection, Wait
from meup_agent.protocol.exchange.responses import (
    EXPLANATION_COUNT,
    EXPLANATION_SECONDS,
    ExplanationStore,
)
from tests.protocol.exchange.peer import EXCHANGES, MAY_PROPOSE, Peer, dropped, said, started
from tests.tables import EXPLANATION_CHARS, Role
from tests.wire import draft, kinds


@pytest.mark.rule("4.4.recorded_in_progress")
@pytest.mark.parametrize(("wait", "completes"), [(Wait.FIRST, True), (Wait.ADDRESSED, False)])
def test_while_a_request_is_out_rejections_are_only_recorded(
    me: Peer, wait: Wait, completes: bool
) -> None:
    key = me.begins_proposal(to=("bob",), wait=wait)
    me.request("alice", "a1", to=("tool",), fulfills=key.id)
    assert said(me.reject("bob", key.id, "unsafe")) == []
    assert me.is_waiting(key)
    assert me.own(key).rejections["bob"].reason == "unsafe"
    if completes:
        me.response("tool", "a1", to=("alice",))
        assert isinstance(me.ending(key), Fulfillment)
        return
    effects = me.cancel("alice", "a1", to=("tool",))  # so it counts
    ending = me.ended(key, Rejection)
    assert (ending.by, ending.reason) == ("bob", "unsafe")
    assert len(said(effects, "mcp/withdraw")) == 1


@pytest.mark.rule("4.5.broadcast", "4.5.all")
@pytest.mark.parametrize("wait", [Wait.ADDRESSED, Wait.ALL])
def test_a_broadcast_needs_every_present_participant_who_could(me: Peer, wait: Wait) -> None:
    me.joined("restricted", MAY_PROPOSE)
    me.joined("reader", [{"kind": "mcp/request", "payload": {"params": {"name": "read"}}}])
    key = me.begins_proposal(wait=wait)
    for name in ("alice", "restricted", "bob"):
        me.reject(name, key.id, name)
        assert me.is_waiting(key)
    me.reject("tool", key.id, "busy")
    ending = me.ended(key, Rejection)
    assert (ending.by, ending.reason) == ("tool", "busy")


@pytest.mark.rule("4.5.broadcast")
def test_a_broadcast_that_no_participant_could_fulfill_waits_for_the_deadline() -> None:
    me = Peer.among("alice", capabilities=MAY_PROPOSE)
    key = me.begins_proposal(deadline=60.0)
    me.reject("alice", key.id)
    assert me.is_waiting(key)
    me.passes(60)
    assert isinstance(me.ending(key), Expiry)


@pytest.mark.rule("4.5.all")
def test_the_caller_can_wait_for_all_that_it_was_addressed_to(me: Peer) -> None:
    key = me.begins_proposal(to=("alice", "bob"), wait=Wait.ALL)
    me.reject("alice", key.id, "unsafe")
    me.reject("alice", key.id, "policy")
    me.reject("tool", key.id)
    assert me.is_waiting(key)
    effects = me.reject("bob", key.id, "busy")
    ending = me.ended(key, Rejection)
    assert (ending.by, ending.reason, ending.counts) == ("bob", "busy", True)
    assert len(said(effects, kinds.MCP_WITHDRAW)) == 1


@pytest.mark.rule("4.5.all")
def test_of_all_an_addressee_that_is_gone_is_not_waited_for_unless_it_is_back(me: Peer) -> None:
    key = me.begins_proposal(to=("alice", "bob"), wait=Wait.ALL, deadline=300.0)
    me.left("bob")
    me.passes(29)
    me.joined("bob")
    me.left("bob")
    me.passes(5)
    me.reject("alice", key.id, "unsafe")
    me.passes(24)
    assert me.is_waiting(key)
    me.passes(1)
    ending = me.ended(key, Rejection)
    assert (ending.by, ending.counts) == ("alice", True)


@pytest.mark.rule("4.5.all")
def test_of_all_an_addressee_that_is_back_in_time_decides(me: Peer) -> None:
    key = me.begins_proposal(to=("alice", "bob"), wait=Wait.ALL, deadline=300.0)
    me.reject("alice", key.id, "unsafe")
    me.left("bob")
    me.passes(29)
    me.joined("bob")
    me.passes(100)
    assert me.is_waiting(key)
    me.sees_fulfilled(key.id)
    assert isinstance(me.ending(key), Fulfillment)


@pytest.mark.rule("4.5.all")
def test_of_all_without_a_rejection_it_is_gone_when_they_are(me: Peer) -> None:
    key = me.begins_proposal(to=("alice", "bob"), wait=Wait.ALL, deadline=300.0)
    me.left("alice")
    me.left("bob")
    me.passes(30)
    assert me.ending(key) == Gone(key.id, ("alice", "bob"))


@pytest.mark.rule("4.5.all")
def test_of_all_what_one_carries_out_is_not_ended_by_the_others(me: Peer) -> None:
    key = me.begins_proposal(to=("alice", "bob"), wait=Wait.ALL, deadline=300.0)
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.reject("alice", key.id, "unsafe")
    me.passes(60)
    assert me.is_waiting(key)
    me.cancel("bob", "b1", to=("tool",))
    me.left("bob")
    me.passes(30)
    assert isinstance(me.ending(key), Rejection)


@pytest.mark.rule("4.5.withdraw_follows")
@pytest.mark.parametrize("ends", ["rejection", "deadline", "unknown"])
def test_a_wait_that_ends_so_sends_a_withdraw_and_keeps_its_own_record(me: Peer, ends: str) -> None:
    key = me.begins_proposal(to=("bob",), deadline=20.0)
    onlooker = Peer.among("me", "bob", name="onlooker")
    onlooker.proposal("me", key.id, to=("bob",))
    if ends == "rejection":
        me.reject("bob", key.id, "unsafe")
    elif ends == "unknown":
        me.loses_connection()
        me.welcomed("bob")
    me.passes(20)
    (withdraw,) = said(me.effects, "mcp/withdraw")
    me.echo(withdraw)
    onlooker.receives(withdraw)
    assert me.own(key).state == ("rejected" if ends == "rejection" else "expired")
    assert onlooker.record("me", key.id).state == "withdrawn"


@pytest.mark.rule("4.5.broadcast")
def test_a_broadcast_ends_when_only_those_are_left_who_have_rejected_it() -> None:
    me = Peer.among("alice", "bob")
    key = me.begins_proposal()
    me.reject("alice", key.id)
    assert me.is_waiting(key)
    me.left("bob")
    assert isinstance(me.ending(key), Rejection)


@pytest.mark.rule("5.who.reject")
def test_each_participant_but_the_proposer_may_reject_and_it_is_recorded(me: Peer) -> None:
    me.proposal("alice", "p1", to=("bob",))
    me.reject("tool", "p1", "my_own_reason")
    assert dropped(me.reject("alice", "p1")) == ["reject_of_own_proposal"]
    record = me.record("alice", "p1")
    assert {by: each.reason for by, each in record.rejections.items()} == {"tool": "my_own_reason"}
    assert record.state == "pending"


@pytest.mark.rule("5.who.reject")
def test_a_second_rejection_of_the_same_participant_is_a_copy() -> None:
    me = Peer.among("alice", "bob", "tool", roles=EXCHANGES | {Role.REJECT})
    key = me.begins_proposal(to=("alice",))
    assert len(started(me.reject("bob", key.id, "busy"))) == 1
    assert dropped(me.reject("bob", key.id, "unsafe")) == ["duplicate_reject"]
    assert me.own(key).rejections["bob"].reason == "busy"


@pytest.mark.rule("4.3.explained_later")
def test_explanations_are_bounded_and_no_participant_takes_the_room_of_another() -> None:
    store = ExplanationStore()
    store.expect("bob", "b1", ("p1",), 0.0)
    for number in range(5 * EXPLANATION_COUNT):
        store.expect("mallory", f"m{number}", ("p1",), 1.0)
    assert len(store) == EXPLANATION_COUNT
    chat = draft(kinds.CHAT, {"message": "x" * 9_000}, id="c", sender="bob", correlation=("b1",))
    (explanation,) = store.read(chat, 2.0)
    assert (explanation.by, len(explanation.text)) == ("bob", EXPLANATION_CHARS)
    for number in range(5 * EXPLANATION_COUNT):
        assert store.read(chat.replace(id=f"c{number}"), 3.0) == []
    every = tuple(f"m{number}" for number in range(5 * EXPLANATION_COUNT))
    mallory = chat.replace(sender="mallory", correlation=every[-EXPLANATION_COUNT:])
    assert len(store.read(mallory, 4.0)) <= EXPLANATION_COUNT
    assert store.get("bob", "b1", 5.0) == "x" * EXPLANATION_CHARS
    # An hour later no words count any more.
    store.expect("bob", "b2", ("p2",), 10.0)
    late = chat.replace(id="late", correlation=("b2",))
    assert store.read(late, 10.0 + EXPLANATION_SECONDS + 1) == []
    assert store.get("bob", "b1", 10.0 + EXPLANATION_SECONDS + 1) == ""
