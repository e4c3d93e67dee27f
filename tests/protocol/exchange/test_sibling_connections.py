"""Another process acts under our name while we run (PROTOCOL 5).

The gateway checks names. Where it does not, see ``test_echoes``.
"""

from __future__ import annotations

import pytest

from meup_agent import Fulfillment, Limits, Withdrawal
from meup_agent.errors import AlreadyDecided, AlreadyInProgress
from meup_agent.types import Conflict
from tests.protocol.exchange.peer import (
    EXCHANGES,
    Peer,
    cancelled,
    cancels_said,
    dropped,
    of,
    said,
    started,
    unsent,
)
from tests.tables import Key, ProposalKey, Role, Start
from tests.wire import OURS, LostRace, Responded, kinds

pytestmark = pytest.mark.rule("5.who.me.beside")

A1 = Key("in", "alice", "a1")
P1 = Key("in", "alice", "p1")
PROPOSAL = ProposalKey("alice", "p1")


@pytest.fixture
def me() -> Peer:
    """A participant at a gateway that checks who speaks."""
    return welcomed(Peer())


def welcomed(peer: Peer) -> Peer:
    peer.welcomed("alice", "bob", "tool", gives=OURS)
    peer.effects.clear()
    return peer


# --- our own proposals and requests ---


def test_what_is_withdrawn_of_a_sibling_ends_our_wait(me: Peer) -> None:
    key = me.begins_proposal()
    effects = me.withdraw("me", key.id, "policy")
    ending = me.ending(key)
    assert isinstance(ending, Withdrawal)
    assert (ending.reason, ending.cause.by, ending.cause.id) == ("policy", "me", key.id)
    assert (me.own(key).state, me.own(key).reason) == ("withdrawn", "policy")
    assert said(effects) == []
    assert dropped(effects) == []
    assert said(me.gives_up(key)) == []


def test_what_is_fulfilled_before_is_not_withdrawn(me: Peer) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.response("tool", "b1", to=("bob",))
    assert dropped(me.withdraw("me", key.id)) == ["late_withdraw"]
    assert isinstance(me.ending(key), Fulfillment)
    assert me.own(key).state == "fulfilled"


def test_a_result_that_comes_after_a_withdrawal_of_a_sibling_is_a_conflict() -> None:
    me = welcomed(Peer(roles=EXCHANGES | {Role.CONFLICT}))
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.withdraw("me", key.id)
    effects = me.response("tool", "b1", to=("bob",))
    (start,) = of(effects, Start)
    assert isinstance(start.work.subject, Conflict)
    assert isinstance(start.work.subject.after, Withdrawal)
    assert me.own(key).state == "withdrawn"


def test_what_we_withdrew_ourselves_is_not_ended_twice(me: Peer) -> None:
    key = me.begins_proposal()
    me.gives_up(key, "busy")
    me.withdraw("me", key.id, "policy")
    ending = me.ending(key)
    assert isinstance(ending, Withdrawal)
    assert ending.reason == "busy"


def test_a_withdrawal_ends_what_a_broken_connection_took_along(me: Peer) -> None:
    key = me.begins_proposal(sent=False)
    me.loses_connection()
    welcomed(me)
    me.withdraw("me", key.id)
    assert isinstance(me.ending(key), Withdrawal)


def test_a_withdrawal_does_not_cancel_a_request_of_its_id(me: Peer) -> None:
    key = me.begins_request()
    me.withdraw("me", key.id)
    assert me.is_waiting(key)


def test_what_is_cancelled_of_a_sibling_ends_our_wait(me: Peer) -> None:
    key = me.begins_request(to=("tool",))
    effects = me.cancel("me", key.id, to=("tool",), reason="policy: not now")
    ending = me.ending(key)
    assert isinstance(ending, Withdrawal)
    assert (ending.reason, ending.cause.text, ending.cause.by) == ("policy", "not now", "me")
    assert said(effects) == []
    assert dropped(effects) == []
    assert dropped(me.response("tool", key.id)) == ["late_response"]


@pytest.mark.rule("4.7.initialize")
def test_initialize_is_not_cancelled_of_a_sibling_either(me: Peer) -> None:
    key = me.begins_request(to=("tool",), method="initialize")
    me.cancel("me", key.id, to=("tool",))
    assert me.is_waiting(key)


def test_a_cancel_does_not_withdraw_a_proposal_of_its_id(me: Peer) -> None:
    key = me.begins_proposal()
    me.cancel("me", key.id, to=("tool",))
    assert me.is_waiting(key)


def test_a_cancel_that_names_nothing_ends_nothing(me: Peer) -> None:
    key = me.begins_request(to=("tool",))
    me.cancel("me", None, to=("tool",))
    me.cancel("me", True, to=("tool",))
    assert me.is_waiting(key)


def test_a_cancel_of_our_fulfillment_of_a_sibling_leaves_the_proposal_pending(me: Peer) -> None:
    me.proposal("alice", "p1", to=("me",))
    key = me.begins_request(to=("tool",), parent=P1, fulfills=PROPOSAL)
    me.cancel("me", key.id, to=("tool",))
    assert isinstance(me.ending(key), Withdrawal)
    assert me.record("alice", "p1").state == "pending"
    assert me.begins_request(to=("tool",), parent=P1, fulfills=PROPOSAL) != key


def test_a_request_of_ours_to_ourselves_is_cancelled_of_a_sibling_at_both_ends(me: Peer) -> None:
    key = me.begins_request(to=("me",))
    (running,) = started(me.effects)
    effects = me.cancel("me", key.id)
    assert cancelled(effects)[running].by == "me"
    assert isinstance(me.ending(key), Withdrawal)
    assert said(me.raises(running)) == []


# --- others' proposals ---


def test_what_is_rejected_of_a_sibling_ends_our_handler(me: Peer) -> None:
    me.proposal("alice", "p1", to=("me",))
    effects = me.reject("me", "p1", "unsafe")
    (cause,) = cancelled(effects).values()
    assert list(cancelled(effects)) == [P1]
    assert (cause.code, cause.by, cause.id) == ("unsafe", "me", "p1")
    assert dropped(effects) == []
    assert said(effects + me.raises(P1)) == []
    assert me.table.running == 0


def test_what_the_handler_has_open_ends_with_it(me: Peer) -> None:
    me.proposal("alice", "p1", to=("me",))
    child = me.begins_request(to=("tool",), parent=P1)
    effects = me.reject("me", "p1", "unsafe")
    assert [cancel.correlation for cancel in cancels_said(effects)] == [(child.id,)]
    assert isinstance(me.ending(child), Withdrawal)


def test_what_is_rejected_of_a_sibling_is_not_begun(me: Peer) -> None:
    me = welcomed(Peer(limits=Limits(handlers=1)))
    me.request("bob", "b1")
    me.proposal("alice", "p1", to=("me",))
    me.reject("me", "p1")
    effects = me.returns(Key("in", "bob", "b1"))
    assert started(effects) == []
    assert said(effects, kinds.MCP_REJECT) == []


def test_the_withdrawal_that_answers_a_rejection_of_a_sibling_is_no_news() -> None:
    me = welcomed(Peer(roles=EXCHANGES | {Role.WITHDRAW}))
    me.proposal("alice", "p1", to=("me",))
    me.reject("me", "p1")
    me.raises(P1)
    assert started(me.withdraw("alice", "p1")) == []


def test_a_handler_that_rejected_by_itself_goes_on(me: Peer) -> None:
    me.proposal("alice", "p1", to=("me",))
    me.rejects("alice", "p1", "busy")
    assert me.reject("me", "p1", "unsafe") == []
    assert said(me.returns(P1)) == []


def test_a_rejection_of_a_sibling_is_only_recorded_while_we_fulfill(me: Peer) -> None:
    me.proposal("alice", "p1", to=("me",))
    key = me.begins_request(to=("tool",), parent=P1, fulfills=PROPOSAL)
    assert cancelled(me.reject("me", "p1")) == {}
    assert me.is_waiting(key)
    assert "me" in me.record("alice", "p1").rejections


def test_a_rejection_of_a_sibling_of_what_is_decided_ends_no_exchange(me: Peer) -> None:
    me.proposal("alice", "p1", to=("me",))
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    me.response("tool", "b1", to=("bob",))
    assert cancelled(me.reject("me", "p1")) == {}


@pytest.mark.rule("4.4.already_in_progress")
def test_what_is_fulfilled_of_a_sibling_we_do_not_fulfill(me: Peer) -> None:
    me.proposal("alice", "p1", to=("me",))
    effects = me.request("me", "x1", to=("tool",), fulfills="p1")
    assert (dropped(effects), cancelled(effects)) == ([], {})
    assert me.record("alice", "p1").in_progress_by == "me"
    with pytest.raises(AlreadyInProgress) as raised:
        me.begins_request(to=("tool",), parent=P1, fulfills=PROPOSAL)
    assert raised.value.by == "me"
    me.response("tool", "x1")
    assert me.record("alice", "p1").state == "fulfilled"
    with pytest.raises(AlreadyDecided):
        me.begins_request(to=("tool",), parent=P1, fulfills=PROPOSAL)


def test_a_handler_that_fails_while_it_is_fulfilled_of_a_sibling_does_not_reject(me: Peer) -> None:
    me.proposal("alice", "p1", to=("me",))
    me.request("me", "x1", to=("tool",), fulfills="p1")
    assert said(me.raises(P1)) == []


def test_a_handler_that_fails_after_that_was_cancelled_rejects(me: Peer) -> None:
    me.proposal("alice", "p1", to=("me",))
    me.request("me", "x1", to=("tool",), fulfills="p1")
    me.cancel("me", "x1", to=("tool",))
    assert [reject.kind for reject in said(me.raises(P1))] == [kinds.MCP_REJECT]


def test_of_two_fulfillments_of_ours_the_first_in_the_gateways_order_wins(me: Peer) -> None:
    me.proposal("alice", "p1", to=("me",))
    key = me.begins_request(to=("tool",), parent=P1, fulfills=PROPOSAL, sent=False)
    me.did(me.table.sent(key.id, me.now))
    effects = me.request("me", "x1", to=("tool",), fulfills="p1")
    assert me.ending(key) == LostRace("me")
    assert [cancel.correlation for cancel in cancels_said(effects)] == [(key.id,)]


def test_a_fulfillment_of_ours_that_came_first_goes_on(me: Peer) -> None:
    me.proposal("alice", "p1", to=("me",))
    key = me.begins_request(to=("tool",), parent=P1, fulfills=PROPOSAL)
    assert said(me.request("me", "x1", to=("tool",), fulfills="p1")) == []
    assert me.is_waiting(key)


# --- requests and proposals of theirs ---


def test_what_is_requested_of_a_sibling_is_not_ours_to_settle(me: Peer) -> None:
    effects = me.request("me", "x1", to=("tool",))
    effects += me.progress("tool", "x1", 1, correlation=("x1",))
    effects += me.response("tool", "x1")
    assert effects == []


def test_a_revocation_of_what_is_requested_of_a_sibling_is_theirs(me: Peer) -> None:
    me.request("me", "x1", to=("tool",))
    assert dropped(me.refused("x1", "revoked")) == []
    assert dropped(me.refused("x2", "revoked")) == ["refused_by_gateway"]


@pytest.mark.rule("4.11.self_request")
def test_a_request_to_us_is_for_our_handler_whoever_of_us_sent_it(me: Peer) -> None:
    key = Key("in", "me", "x1")
    assert started(me.request("me", "x1", to=("me",))) == [key]
    (response,) = said(me.returns(key))
    assert (response.to, response.correlation) == (("me",), ("x1",))
    assert me.echo(response) == []
    assert dropped(me.request("me", "x1", to=("me",))) == ["duplicate_request"]


def test_a_request_to_us_is_cancelled_by_who_sent_it(me: Peer) -> None:
    key = Key("in", "me", "x1")
    me.request("me", "x1", to=("me",))
    assert list(cancelled(me.cancel("me", "x1"))) == [key]


@pytest.mark.rule("4.11.echo")
def test_what_is_proposed_of_a_sibling_reaches_no_handler_of_ours(me: Peer) -> None:
    assert me.proposal("me", "x1") == []
    assert me.proposal("me", "x2", to=("me",)) == []
    assert me.record("me", "x1").state == "pending"
    me.request("bob", "b1", to=("tool",), fulfills="x1")
    assert me.record("me", "x1").state == "in_progress"
    assert me.response("tool", "b1", to=("bob",)) == []
    assert me.record("me", "x1").state == "fulfilled"
    assert me.reject("bob", "x2") == []
    assert me.withdraw("me", "x2") == []
    assert me.record("me", "x2").state == "withdrawn"


def test_what_else_is_said_of_a_sibling_is_no_forgery(me: Peer) -> None:
    assert me.hears(kinds.CHAT, {"message": "hello"}, sender="me", id="c1") == []


@pytest.mark.parametrize("kind", [kinds.MCP_WITHDRAW, kinds.MCP_REJECT, kinds.MCP_RESPONSE])
def test_what_names_nothing_is_left_out(me: Peer, kind: str) -> None:
    effects = me.hears(kind, {}, sender="me", id="c1")
    assert dropped(effects) == [f"malformed_{kind.removeprefix('mcp/')}"]


# --- others' requests ---


@pytest.mark.rule("5.who.response")
def test_what_is_answered_of_a_sibling_we_do_not_answer(me: Peer) -> None:
    me.request("alice", "a1")
    effects = me.response("me", "a1", to=("alice",))
    (cause,) = cancelled(effects).values()
    assert (cause.code, cause.by, cause.id) == ("no_longer_needed", "me", "a1")
    assert said(effects + me.raises(A1)) == []
    assert dropped(effects) == []


def test_an_answer_to_another_with_the_same_id_ends_no_exchange(me: Peer) -> None:
    me.request("alice", "a1")
    assert cancelled(me.response("me", "a1", to=("bob",))) == {}


def test_a_request_of_ours_to_ourselves_may_be_answered_of_a_sibling(me: Peer) -> None:
    key = me.begins_request(to=("me",))
    (running,) = started(me.effects)
    effects = me.response("me", key.id, result={"content": [1]})
    assert me.ending(key) == Responded("me", {"content": [1]})
    assert list(cancelled(effects)) == [running]


# --- echoes that come late ---


def test_our_own_words_of_long_ago_do_no_harm(me: Peer) -> None:
    me.proposal("alice", "p1", to=("me",))
    key = me.begins_proposal()
    rejected = me.rejects("alice", "p1")
    withdrawn, *_ = said(me.gives_up(key))
    me.returns(P1)
    me.passes(24 * 3600)
    me.effects.clear()
    for again in (rejected, withdrawn, rejected):
        me.echo(again)
    assert me.effects == [] or set(dropped(me.effects)) <= {"unknown_reject", "duplicate_reject"}
    assert unsent(me.effects) == []
