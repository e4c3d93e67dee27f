"""Echoes, requests to ourselves, and forgeries in our name (PROTOCOL 4.10, 4.11, 5)."""

from __future__ import annotations

import pytest

from meup_agent import Fulfillment
from meup_agent.types import Guarantees
from tests.protocol.exchange.peer import (
    CALL,
    Peer,
    cancelled,
    cancels_said,
    dropped,
    said,
    started,
    woken,
)
from tests.tables import Key, ProposalKey, Role
from tests.wire import draft, payloads

A1 = Key("in", "alice", "a1")


PROPOSAL = ProposalKey("alice", "p1")


@pytest.mark.rule("4.10.any_context")
def test_messages_are_handled_whatever_their_context(me: Peer) -> None:
    request = draft(
        "mcp/request",
        payloads.request("tools/call", CALL, "a1"),
        id="a1",
        sender="alice",
        to=("me",),
        context="somewhere/else",
    )
    assert started(me.receives(request)) == [A1]


@pytest.mark.rule("4.11.echo")
def test_our_own_envelopes_reach_no_handler_of_ours() -> None:
    me = Peer(roles=set(Role) - {Role.KIND})
    me.welcomed("alice")
    key = me.begins_proposal()
    request = me.begins_request(to=())
    chat, effects = me.table.send("chat", {"message": "hi"}, now=me.now)
    me.did(effects)
    me.echo(chat)
    assert started(me.effects) == []
    assert me.own(key).state == "pending"
    assert me.is_waiting(request)


@pytest.mark.rule("4.11.self_request")
def test_a_request_to_ourselves_is_handled_and_answered(me: Peer) -> None:
    key = me.begins_request(to=("me",))
    handled = Key("in", "me", key.id)
    assert started(me.effects) == [handled]
    (response,) = said(me.returns(handled, {"content": [1]}))
    me.echo(response)
    assert woken(me.effects)[key].result == {"content": [1]}  # type: ignore[union-attr]


@pytest.mark.rule("4.11.self_request")
def test_a_request_to_ourselves_can_be_cancelled(me: Peer) -> None:
    key = me.begins_request(to=("me",))
    (cancel,) = cancels_said(me.gives_up(key))
    effects = me.echo(cancel)
    assert list(cancelled(effects)) == [Key("in", "me", key.id)]


@pytest.mark.rule("4.11.self_request")
def test_a_fulfiller_may_be_the_executor(me: Peer) -> None:
    me.proposal("alice", "p1")
    key = me.begins_request(to=("me",), fulfills=PROPOSAL)
    (response,) = said(me.returns(Key("in", "me", key.id)))
    me.echo(response)
    assert me.record("alice", "p1").state == "fulfilled"
    assert not me.is_waiting(key)


@pytest.mark.rule("4.11.self_request")
def test_a_proposer_may_be_the_executor(me: Peer) -> None:
    key = me.begins_proposal(to=("bob",))
    me.request("bob", "b1", to=("me",), fulfills=key.id)
    (response,) = said(me.returns(Key("in", "bob", "b1")))
    assert me.is_waiting(key)
    me.echo(response)
    ending = me.ending(key)
    assert isinstance(ending, Fulfillment)
    assert (ending.by, ending.executor) == ("bob", "me")


@pytest.mark.rule("4.11.echo")
def test_the_echo_of_what_waited_long_for_a_connection_is_known(me: Peer) -> None:
    key = me.begins_request(deadline=None, sent=False)
    (draft,) = said(me.effects)
    me.passes(601)
    me.did(me.table.sent(key.id, me.now))
    assert dropped(me.echo(draft)) == []


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
def test_where_names_are_not_checked_our_name_ends_nothing(gives: Guarantees | None) -> None:
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
