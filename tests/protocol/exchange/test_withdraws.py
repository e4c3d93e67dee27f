"""Withdraws: whose count, until when, and what they end (PROTOCOL 4.1, 4.2, 4.13)."""

from __future__ import annotations

import pytest

from meup_agent import ProposalState, Withdrawal
from tests.protocol.exchange.peer import (
    CALL,
    Peer,
    cancelled,
    dropped,
    said,
    started,
    woken,
)
from tests.tables import ProposalKey

PROPOSAL = ProposalKey("alice", "p1")


@pytest.mark.rule("4.1.no_answer")
def test_withdraw_and_reject_are_never_answered(me: Peer) -> None:
    me.proposal("alice", "p1", to=("me",))
    for effects in (
        me.withdraw("alice", "p1"),
        me.withdraw("alice", "p1"),
        me.withdraw("alice", "unknown"),
        me.reject("bob", "p1"),
        me.reject("bob", "unknown"),
    ):
        assert said(effects) == []


@pytest.mark.rule("4.1.no_answer")
@pytest.mark.parametrize("kind", ["withdraw", "reject", "response"])
def test_what_names_nothing_is_counted(me: Peer, kind: str) -> None:
    me.proposal("alice", "p1", to=("me",))
    key = me.begins_proposal(to=("alice",))
    effects = me.hears(f"mcp/{kind}", {"reason": "busy"}, sender="alice", id="w1", to=("me",))
    assert dropped(effects) == [f"malformed_{kind}"]
    assert me.record("alice", "p1").state is ProposalState.PENDING
    assert me.own(key).state is ProposalState.PENDING


@pytest.mark.rule("4.2.withdrawal_wins_until_response")
def test_a_withdrawal_wins_until_the_response_is_there(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    me.withdraw("alice", "p1", "policy")
    me.response("tool", "b1", to=("bob",))
    record = me.record("alice", "p1")
    assert (record.state, record.reason, record.decided_by) == ("withdrawn", "policy", "alice")


@pytest.mark.rule("4.2.withdrawal_wins_until_response")
def test_a_withdrawal_after_the_response_is_ignored(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    me.response("tool", "b1", to=("bob",))
    assert dropped(me.withdraw("alice", "p1")) == ["late_withdraw"]
    assert me.record("alice", "p1").state == "fulfilled"


@pytest.mark.rule("4.14.no_harm_twice")
@pytest.mark.parametrize("again", ["w1", "w2"], ids=["same_id", "new_id"])
def test_a_withdraw_that_comes_twice_ends_its_handler_once(me: Peer, again: str) -> None:
    (handler,) = started(me.proposal("alice", "p1"))
    assert list(cancelled(me.withdraw("alice", "p1", "policy", id="w1"))) == [handler]
    copy = me.withdraw("alice", "p1", "unsafe", id=again)
    assert (dropped(copy), cancelled(copy), said(copy)) == (["late_withdraw"], {}, [])
    assert me.record("alice", "p1").reason == "policy"


@pytest.mark.rule("4.2.withdrawn_stays_visible")
def test_a_withdrawn_proposal_stays_visible_with_its_history(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.reject("bob", "p1", "busy")
    me.request("tool", "t1", to=("bob",), fulfills="p1")
    me.withdraw("alice", "p1")
    me.passes(600)
    (record,) = me.table.proposal_store.records(me.now)
    assert (record.key, record.state) == (PROPOSAL, "withdrawn")
    assert record.rejections["bob"].reason == "busy"
    assert [item.by for item in record.fulfillments] == ["tool"]
    assert record.call.params == CALL


@pytest.mark.rule("4.2.gateway_order")
@pytest.mark.parametrize("first", ["response", "withdraw"])
def test_where_two_events_cross_the_gateways_order_decides(me: Peer, first: str) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    (withdraw,) = said(me.gives_up(key))
    assert me.own(key).state == "in_progress"
    if first == "response":
        me.response("tool", "b1", to=("bob",))
        me.echo(withdraw)
    else:
        me.echo(withdraw)
        me.response("tool", "b1", to=("bob",))
    assert me.own(key).state == ("fulfilled" if first == "response" else "withdrawn")


@pytest.mark.rule("4.2.gateway_order")
@pytest.mark.parametrize("first", ["response", "withdraw"])
@pytest.mark.parametrize("ended", ["expired", "rejected"])
def test_the_gateways_order_decides_however_our_wait_ended(
    me: Peer, first: str, ended: str
) -> None:
    key = me.begins_proposal(to=("alice",), deadline=60.0)
    effects = me.passes(60) if ended == "expired" else me.reject("alice", key.id)
    (withdraw,) = said(effects)
    assert me.own(key).state == ended
    if first == "withdraw":
        me.echo(withdraw)
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.response("tool", "b1", to=("bob",))
    if first == "response":
        me.echo(withdraw)
    assert me.own(key).state == ("fulfilled" if first == "response" else ended)
    assert (
        me.own(key).decided_by
        == {
            "response": "bob",
            "withdraw": "me" if ended == "expired" else "alice",
        }[first]
    )


@pytest.mark.rule("4.13.returns_at_once")
def test_a_caller_that_gives_up_returns_at_once(me: Peer) -> None:
    key = me.begins_proposal()
    assert isinstance(woken(me.gives_up(key))[key], Withdrawal)
    assert me.own(key).state == "pending"


@pytest.mark.rule("4.13.without_echoes")
@pytest.mark.parametrize("echoed", [True, False])
def test_without_echoes_what_we_saw_first_decides(me: Peer, echoed: bool) -> None:
    key = me.begins_proposal(sent=echoed)
    me.did(me.table.sent(key.id, me.now))
    me.gives_up(key, "policy")
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.response("tool", "b1", to=("bob", "me"))
    assert me.own(key).state == ("fulfilled" if echoed else "withdrawn")


@pytest.mark.rule("5.who.withdraw", "4.1.only_the_proposer")
def test_a_withdraw_by_another_participant_is_dropped(me: Peer) -> None:
    me.proposal("alice", "p1")
    effects = me.withdraw("bob", "p1")
    assert dropped(effects) == ["withdraw_by_another"]
    assert cancelled(effects) == {}
    assert me.record("alice", "p1").state == "pending"


@pytest.mark.rule("5.who.withdraw", "4.1.only_the_proposer")
def test_a_withdraw_of_our_proposal_by_another_participant_is_dropped(me: Peer) -> None:
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


@pytest.mark.rule("5.tombstone")
def test_a_withdraw_before_its_proposal_keeps_the_handler_from_starting(me: Peer) -> None:
    assert said(me.withdraw("alice", "p1", "policy")) == []
    effects = me.proposal("alice", "p1", to=("me",))
    assert started(effects) == []
    assert said(effects) == []
    assert dropped(effects) == ["withdrawn_before"]
    record = me.record("alice", "p1")
    assert (record.state, record.reason) == ("withdrawn", "policy")


@pytest.mark.rule("5.tombstone.before_fulfillment")
def test_a_withdraw_takes_an_unsent_fulfillment_out_of_the_outbox(me: Peer) -> None:
    me.proposal("alice", "p1")
    key = me.begins_request(fulfills=PROPOSAL, sent=False)
    effects = me.withdraw("alice", "p1")
    assert not me.table.is_open(key)
    assert said(effects) == []
