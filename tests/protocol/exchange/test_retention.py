"""Retention: what is remembered, for how long, and that nothing open is forgotten."""

from typing import Any

import pytest

from meup_agent import Fulfillment
from meup_agent.errors import AlreadyDecided
from meup_agent.protocol.exchange.table import SPARE_TIMERS
from meup_agent.protocol.wire.payloads import INVALID_REQUEST, MAX_RPC_ID_CHARS
from tests.protocol.exchange.peer import Peer, cancelled, cancels_said, dropped, of, said, started
from tests.tables import MAX_FULFILLMENTS, MAX_PROPOSALS, Key, ProposalKey, Send, Tombstones
from tests.wire import decode, draft, encode, kinds

A1 = Key("in", "alice", "a1")
P1 = Key("in", "alice", "p1")


@pytest.mark.rule("5.memory.open_is_kept")
def test_a_flood_of_proposals_pushes_nothing_out_that_is_open(me: Peer) -> None:
    me.proposal("alice", "p1")
    own = me.begins_proposal(deadline=None)
    for number in range(MAX_PROPOSALS + 10):
        me.proposal("bob", f"b{number}", to=("tool",))
    assert len(me.table.proposal_store.records(me.now)) == MAX_PROPOSALS
    me.passes(7200)
    assert list(cancelled(me.withdraw("alice", "p1"))) == [P1]
    me.sees_fulfilled(own.id)
    assert isinstance(me.ending(own), Fulfillment)


@pytest.mark.rule("5.memory.open_is_kept")
def test_a_withdraw_reaches_a_fulfillment_of_what_the_store_has_forgotten(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.returns(P1)
    me.table.proposal_store.forget(ProposalKey("alice", "p1"))
    key = me.begins_request(fulfills=ProposalKey("alice", "p1"))
    (cancel,) = cancels_said(me.withdraw("alice", "p1"))
    assert cancel.correlation == (key.id,)


@pytest.mark.rule("5.memory.bounded")
def test_old_proposals_that_nothing_of_ours_is_about_are_forgotten(me: Peer) -> None:
    me.proposal("alice", "p1", to=("bob",))
    me.withdraw("alice", "p1")
    me.passes(3600)
    assert me.table.proposal_store.records(me.now) == []
    me.passes(1)
    assert len(started(me.proposal("mallory", "p1"))) == 1, "its id is nobody's"


@pytest.mark.rule("4.4.before_it_is_sent")
def test_what_is_pending_is_known_for_as_long_as_it_is(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.returns(P1)
    me.passes(24 * 3600)
    me.withdraw("alice", "p1")
    me.passes(3000)
    with pytest.raises(AlreadyDecided, match="withdrawn"):
        me.begins_request(fulfills=ProposalKey("alice", "p1"))


@pytest.mark.thorough
@pytest.mark.rule("5.memory.bounded")
def test_large_proposals_and_their_fulfillments_are_bounded_in_bytes(me: Peer) -> None:
    large = {"name": "write", "arguments": {"text": "x" * (1024 * 1024)}}
    for number in range(80):
        me.proposal("alice", f"p{number}", to=("bob",), params=large)
    records = me.table.proposal_store.records(me.now)
    assert len(records) == 63
    for number in range(10):
        me.request("bob", f"b{number}", to=("tool",), params=large, fulfills="p79")
    assert len(me.table.proposal_store.records(me.now)) == 53
    for number in range(MAX_FULFILLMENTS):
        me.request("bob", f"c{number}", to=("tool",), fulfills="p79")
    assert len(me.record("alice", "p79").fulfillments) == MAX_FULFILLMENTS


@pytest.mark.rule("5.memory.bounded")
def test_names_that_are_never_used_are_not_remembered(me: Peer) -> None:
    assert dropped(me.request("alice", "a" * 257)) == ["name_too_long"]
    assert dropped(me.request("a" * 257, "a1")) == ["name_too_long"]


def test_a_welcome_that_does_not_say_who_we_are_is_no_welcome() -> None:
    me = Peer()
    assert dropped(me.system("system/welcome", {"participants": []})) == ["malformed_welcome"]
    assert not me.table.connected
    me.welcomed("alice")
    foreign = me.system("system/welcome", {"you": {"id": "bob"}}, to=("bob",))
    assert dropped(foreign) == ["foreign_welcome"]
    assert me.table.roster.me == "me"


def test_our_own_leave_is_an_older_connections(me: Peer) -> None:
    assert me.left("me") == []
    assert "me" in me.table.roster


@pytest.mark.rule("5.memory.bounded")
def test_timers_of_what_has_ended_are_forgotten(me: Peer) -> None:
    kept = me.begins_request(deadline=5.0)
    for _ in range(3 * SPARE_TIMERS):
        me.gives_up(me.begins_request(deadline=60.0))
    assert len(me.table._context.timers) <= SPARE_TIMERS + 8
    assert me.table.next_deadline() == me.now + 5.0
    me.passes(5.0)
    assert not me.table.is_open(kept)


@pytest.mark.thorough
@pytest.mark.rule("5.memory.open_is_kept")
def test_proposals_that_are_handled_push_out_nothing_new_of_our_own(me: Peer) -> None:
    large: dict[str, Any] = {"name": "write", "arguments": {"text": "x" * 4_150_000}}
    smaller: dict[str, Any] = {"name": "write", "arguments": {"text": "x" * 1_000_000}}
    for number in range(16):
        me.proposal("alice", f"p{number}", params=large)
    assert me.table.running == 16
    own = me.begins_proposal(params=smaller)
    me.sees_fulfilled(own.id)
    assert isinstance(me.ending(own), Fulfillment)
    (reject,) = said(me.proposal("alice", "too-much", to=("me",), params=smaller))
    assert reject.payload == {"reason": "busy"}
    assert me.table.running == 16


@pytest.mark.rule("5.memory.bounded")
def test_what_no_dialect_knows_counts_for_what_is_kept(me: Peer) -> None:
    unknown = b',"unknown":"%b"}' % (b"x" * (1024 * 1024))
    for number in range(80):
        header: dict[str, Any] = {"id": f"p{number}", "sender": "alice", "to": ("bob",)}
        frame = encode(draft(kinds.MCP_PROPOSAL, {"method": "ping"}, **header), me.dialect)
        me.did(me.table.receive(decode(frame[:-1] + unknown), me.now))
    assert len(me.table.proposal_store.records(me.now)) == 63


@pytest.mark.rule("5.memory.bounded")
@pytest.mark.parametrize("rpc_id", ["x" * (MAX_RPC_ID_CHARS + 1), 10**MAX_RPC_ID_CHARS])
def test_a_json_rpc_id_that_is_too_long_is_not_remembered(me: Peer, rpc_id: int | str) -> None:
    (response,) = said(me.request("alice", "a1", rpc_id=rpc_id))
    assert response.payload["error"]["code"] == INVALID_REQUEST
    assert response.payload["id"] == "a1"
    me.proposal("alice", "p1", to=("bob",))
    me.request("bob", "b1", rpc_id=rpc_id, to=("tool",), fulfills="p1")
    (fulfillment,) = me.record("alice", "p1").fulfillments
    assert fulfillment.names == {"b1"}
    assert said(me.request("bob", "b2", rpc_id=rpc_id, to=())) == []
    longest = "x" * MAX_RPC_ID_CHARS
    assert len(started(me.request("alice", "a2", rpc_id=longest))) == 1


@pytest.mark.rule("5.memory.bounded")
def test_who_comes_and_goes_leaves_no_timers_behind(me: Peer) -> None:
    key = me.begins_request(to=("tool",), deadline=None)
    me.request("alice", "a1")
    for _ in range(100):
        for who in ("tool", "alice"):
            me.left(who)
            me.joined(who)
            me.left("bob")
            me.passes(0.01)
    assert len(me.table._context.timers) <= 2
    me.left("tool")
    me.left("alice")
    me.passes(30.0)
    assert not me.is_waiting(key)
    assert A1 in cancelled(me.effects)


@pytest.mark.rule("5.tombstone.limits")
def test_a_sender_has_a_thousand_tombstones_of_its_own(me: Peer) -> None:
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


@pytest.mark.rule("4.14.limits", "5.tombstone.limits")
def test_endings_and_tombstones_are_kept_for_five_minutes(me: Peer) -> None:
    me.gives_up(me.begins_proposal(to=("bob",)))
    me.cancel("alice", "a1")
    me.cancel("alice", "a2")
    me.passes(299)
    assert len(said(me.joined("bob"))) == 1
    assert started(me.request("alice", "a1")) == []
    me.passes(1)
    assert said(me.joined("bob")) == []
    assert started(me.request("alice", "a2")) == [Key("in", "alice", "a2")]


@pytest.mark.rule("4.14.limits")
def test_endings_are_remembered_up_to_a_thousand_and_sixteen_mebibytes(me: Peer) -> None:
    for number in range(1001):
        me.rejects("bob", f"p{number}")
    again = said(me.joined("bob"))
    assert len(again) == 1000
    assert again[0].correlation == ("p1",)
    for number in range(5):
        me.request("alice", f"a{number}")
        me.returns(Key("in", "alice", f"a{number}"), {"text": "x" * (4 * 1024 * 1024)})
    assert len(said(me.joined("alice"))) == 3


@pytest.mark.rule("4.14.proposer_follows")
def test_the_response_to_a_fulfillment_is_sent_again_to_its_proposer(me: Peer) -> None:
    me.proposal("alice", "p1", to=("bob",))
    me.request("bob", "r1", fulfills="p1")
    (first,) = of(me.returns(Key("in", "bob", "r1")), Send)
    me.left("alice")
    (again,) = of(me.joined("alice"), Send)
    assert again.draft.id == first.draft.id
