"""Withdraws: whose count, until when, and what they end (PROTOCOL 4.1, 4.2, 4.13)."""

import pytest

from tests.protocol.exchange.peer import Peer, cancelled, dropped, said, started


@pytest.mark.rule("4.2.withdrawal_wins_until_response")
def test_a_withdrawal_wins_until_the_response_is_there(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    me.withdraw("alice", "p1", "policy")
    me.response("tool", "b1", to=("bob",))
    record = me.record("alice", "p1")
    assert (record.state, record.reason, record.decided_by) == ("withdrawn", "policy", "alice")


@pytest.mark.rule("4.14.no_harm_twice")
@pytest.mark.parametrize("again", ["w1", "w2"], ids=["same_id", "new_id"])
def test_a_withdraw_that_comes_twice_ends_its_handler_once(me: Peer, again: str) -> None:
    (handler,) = started(me.proposal("alice", "p1"))
    assert list(cancelled(me.withdraw("alice", "p1", "policy", id="w1"))) == [handler]
    copy = me.withdraw("alice", "p1", "unsafe", id=again)
    assert (dropped(copy), cancelled(copy), said(copy)) == (["late_withdraw"], {}, [])
    assert me.record("alice", "p1").reason == "policy"


@pytest.mark.rule("4.13.without_echoes")
@pytest.mark.parametrize("echoed", [True, False])
def test_without_echoes_what_we_saw_first_decides(me: Peer, echoed: bool) -> None:
    key = me.begins_proposal(sent=echoed)
    me.did(me.table.sent(key.id, me.now)[1])
    me.gives_up(key, "policy")
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.response("tool", "b1", to=("bob", "me"))
    assert me.own(key).state == ("fulfilled" if echoed else "withdrawn")
