"""The rules of the lifecycle, as one participant keeps them (PROTOCOL 4)."""

from __future__ import annotations

from typing import Any

import pytest

from meup_agent.errors import AlreadyDecided, AlreadyInProgress
from meup_agent.protocol import payloads
from meup_agent.protocol.envelope import draft
from meup_agent.protocol.exchange import Key, Progressed, ProposalKey, Role, Start, Wait
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.outcomes import Expiry, Fulfillment, Gone, LostRace, Rejection, Withdrawal
from meup_agent.reasons import MAX_CHAIN, Cause, CauseStep
from tests.protocol.exchange.peer import (
    CALL,
    EXCHANGES,
    MAY_PROPOSE,
    Peer,
    cancelled,
    cancels_said,
    dropped,
    of,
    said,
    started,
    woken,
)

A1 = Key("in", "alice", "a1")
P1 = Key("in", "alice", "p1")
PROPOSAL = ProposalKey("alice", "p1")


# --- 4.1: withdraw and reject are fire-and-forget ---


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


# --- 4.2: the states of a proposal ---


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


@pytest.mark.rule("4.2.in_progress")
def test_a_proposal_whose_fulfilling_request_was_cancelled_waits_again(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    me.cancel("bob", "b1", to=("tool",))
    assert me.record("alice", "p1").state == "pending"
    me.begins_request(fulfills=PROPOSAL)


@pytest.mark.rule("4.2.in_progress")
def test_a_proposal_with_two_requests_waits_again_after_the_last(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "1", to=("tool",), fulfills="p1")
    me.request("tool", "1", to=("tool",), fulfills="p1")
    me.cancel("bob", "1", to=("tool",))
    assert me.record("alice", "p1").in_progress_by == "tool"
    me.cancel("tool", "1", to=("tool",))
    assert me.record("alice", "p1").state == "pending"


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


@pytest.mark.rule("4.2.refusal_completes_nothing")
def test_a_refusal_of_the_executor_completes_nothing(me: Peer) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    refusal = {"code": -32000, "message": "refused: no", "data": {"reason": "refused"}}
    me.response("tool", "b1", to=("bob",), error=refusal)
    assert me.is_waiting(key)
    assert me.own(key).state == "pending"


@pytest.mark.rule("4.2.cancel_crosses_response")
def test_a_result_that_crossed_the_cancel_of_its_request_fulfills(me: Peer) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.cancel("bob", "b1", to=("tool",))
    me.response("tool", "b1", to=("bob",))
    assert isinstance(me.ending(key), Fulfillment)
    assert me.own(key).state == "fulfilled"


@pytest.mark.rule("4.2.cancel_crosses_response")
def test_an_error_for_a_cancelled_request_only_confirms_the_cancel(me: Peer) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.cancel("bob", "b1", to=("tool",))
    me.response("tool", "b1", to=("bob",), error={"code": 0, "message": "Request cancelled"})
    assert me.is_waiting(key)
    assert me.own(key).state == "pending"


@pytest.mark.rule("4.2.refusal_completes_nothing")
def test_an_executor_refuses_what_was_withdrawn(me: Peer) -> None:
    me.proposal("alice", "p1", to=("bob",))
    me.withdraw("alice", "p1")
    effects = me.request("bob", "b1", fulfills="p1")
    (response,) = said(effects)
    assert response.payload["error"]["data"] == {"reason": "refused"}
    assert response.payload["error"]["code"] == -32000
    assert started(effects) == []
    assert said(me.request("bob", "b1", fulfills="p1")) == [response]


@pytest.mark.rule("4.2.refusal_completes_nothing")
@pytest.mark.parametrize("answered", [False, True])
def test_an_executor_carries_a_proposal_out_once(me: Peer, answered: bool) -> None:
    me.proposal("alice", "p1", to=("bob",))
    me.request("bob", "1", fulfills="p1")
    key = Key("in", "bob", "1")
    if answered:
        (answer,) = said(me.returns(key))
        me.echo(answer)
    effects = me.request("tool", "1", fulfills="p1")
    assert started(effects) == []
    (response,) = said(effects)
    assert response.to == ("tool",)
    assert "bob" in response.payload["error"]["message"]


@pytest.mark.rule("4.2.refusal_completes_nothing")
def test_an_executor_may_run_it_when_the_first_fulfillment_was_cancelled(me: Peer) -> None:
    me.proposal("alice", "p1", to=("bob",))
    me.request("bob", "b1", fulfills="p1")
    me.cancel("bob", "b1")
    me.returns(Key("in", "bob", "b1"))
    assert started(me.request("tool", "t1", fulfills="p1")) == [Key("in", "tool", "t1")]


@pytest.mark.rule("4.2.refusal_completes_nothing")
def test_an_executor_that_proposed_it_refuses_it_after_its_own_end(me: Peer) -> None:
    key = me.begins_proposal(to=("alice",))
    me.reject("alice", key.id)
    (response,) = said(me.request("bob", "b1", fulfills=key.id))
    assert response.payload["error"]["data"] == {"reason": "refused"}


# --- 4.3: reasons ---


@pytest.mark.rule("4.3.unknown_survive")
def test_unknown_reasons_survive_unchanged(me: Peer) -> None:
    key = me.begins_proposal(to=("bob",))
    me.reject("bob", key.id, "quota/exceeded")
    ending = me.ending(key)
    assert isinstance(ending, Rejection)
    assert ending.reason == "quota/exceeded"
    me.proposal("alice", "p1")
    assert cancelled(me.withdraw("alice", "p1", "changed_my_mind"))[P1].code == "changed_my_mind"


# --- 4.4: who decides, and how it is fulfilled ---


@pytest.mark.rule("4.4.handlers_see")
@pytest.mark.parametrize(
    ("to", "seen"), [((), True), (("me",), True), (("bob", "me"), True), (("bob",), False)]
)
def test_handlers_see_what_is_broadcast_or_addressed_to_us(
    me: Peer, to: tuple[str, ...], seen: bool
) -> None:
    assert (started(me.proposal("alice", "p1", to=to)) == [P1]) is seen
    assert me.record("alice", "p1").state == "pending"


@pytest.mark.rule("4.4.incapable")
@pytest.mark.parametrize(("to", "answered"), [((), False), (("me",), True), (("bob",), False)])
def test_what_no_handler_matches_is_rejected_only_if_addressed_to_us(
    to: tuple[str, ...], answered: bool
) -> None:
    me = Peer(roles=[Role.REQUEST])
    me.welcomed("alice", "bob")
    rejects = said(me.proposal("alice", "p1", to=to))
    assert [reject.payload for reject in rejects] == ([{"reason": "incapable"}] if answered else [])


@pytest.mark.rule("4.4.incapable")
def test_a_proposal_without_a_method_is_rejected_as_invalid(me: Peer) -> None:
    effects = me.hears("mcp/proposal", {"x": 1}, sender="alice", id="p1", to=("me",))
    assert [reject.payload for reject in said(effects)] == [{"reason": "invalid"}]


@pytest.mark.rule("4.4.already_in_progress")
def test_after_somebodys_request_our_fulfill_raises(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    with pytest.raises(AlreadyInProgress, match="'bob'"):
        me.begins_request(fulfills=PROPOSAL)
    assert me.table.waiting == 0


@pytest.mark.rule("4.4.already_in_progress")
@pytest.mark.parametrize("sent", [True, False])
def test_after_our_own_request_our_fulfill_raises(me: Peer, sent: bool) -> None:
    me.proposal("alice", "p1")
    me.begins_request(fulfills=PROPOSAL, sent=sent)
    with pytest.raises(AlreadyInProgress, match="'me'"):
        me.begins_request(fulfills=PROPOSAL)


@pytest.mark.rule("4.4.already_in_progress")
def test_what_is_decided_is_not_fulfilled(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    me.response("tool", "b1", to=("bob",))
    with pytest.raises(AlreadyDecided, match="fulfilled"):
        me.begins_request(fulfills=PROPOSAL)


@pytest.mark.rule("4.4.recorded_in_progress")
def test_while_a_request_is_out_rejections_are_only_recorded(me: Peer) -> None:
    key = me.begins_proposal(to=("bob",), wait=Wait.FIRST)
    me.request("alice", "a1", to=("tool",), fulfills=key.id)
    assert said(me.reject("bob", key.id, "unsafe")) == []
    assert me.is_waiting(key)
    assert me.own(key).rejections["bob"].reason == "unsafe"
    me.response("tool", "a1", to=("alice",))
    assert isinstance(me.ending(key), Fulfillment)


@pytest.mark.rule("4.4.recorded_in_progress")
def test_a_recorded_rejection_counts_when_the_request_comes_to_nothing(me: Peer) -> None:
    key = me.begins_proposal(to=("bob",))
    me.request("alice", "a1", to=("tool",), fulfills=key.id)
    me.reject("bob", key.id, "unsafe")
    effects = me.cancel("alice", "a1", to=("tool",))
    ending = woken(effects)[key]
    assert isinstance(ending, Rejection)
    assert (ending.by, ending.reason) == ("bob", "unsafe")
    assert len(said(effects, "mcp/withdraw")) == 1


@pytest.mark.rule("4.4.follow")
def test_what_was_changed_is_told(me: Peer) -> None:
    params = {"name": "write", "arguments": {"path": "a", "n": 1}, "_meta": {payloads.TARGET: "x"}}
    key = me.begins_proposal(params=params)
    edited = {"name": "write", "arguments": {"path": "b", "n": 1.0}, "_meta": {"other": 1}}
    me.request("bob", "b1", to=("tool",), fulfills=key.id, params=edited)
    me.response("tool", "b1", to=("bob",))
    ending = me.ending(key)
    assert isinstance(ending, Fulfillment)
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


# --- 4.5: which rejection ends the wait ---


@pytest.mark.rule("4.5.addressed")
def test_one_rejection_from_one_it_was_addressed_to_ends_the_wait(me: Peer) -> None:
    key = me.begins_proposal(to=("alice", "bob"))
    me.reject("tool", key.id)
    assert me.is_waiting(key)
    me.reject("bob", key.id, "policy")
    assert isinstance(me.ending(key), Rejection)


@pytest.mark.rule("4.5.broadcast")
def test_a_broadcast_needs_every_present_participant_who_could() -> None:
    me = Peer()
    me.welcomed("alice", "bob", "tool")
    me.joined("restricted", MAY_PROPOSE)
    key = me.begins_proposal()
    for name in ("alice", "restricted", "bob"):
        me.reject(name, key.id, name)
        assert me.is_waiting(key)
    me.reject("tool", key.id, "busy")
    ending = me.ending(key)
    assert isinstance(ending, Rejection)
    assert (ending.by, ending.reason) == ("tool", "busy")


@pytest.mark.rule("4.5.broadcast")
def test_a_broadcast_does_not_wait_for_who_has_left(me: Peer) -> None:
    key = me.begins_proposal()
    me.reject("alice", key.id)
    me.left("bob")
    me.reject("tool", key.id)
    assert isinstance(me.ending(key), Rejection)


@pytest.mark.rule("4.5.broadcast")
def test_a_broadcast_that_nobody_could_fulfill_waits_for_the_deadline() -> None:
    me = Peer()
    me.welcomed("alice", capabilities=MAY_PROPOSE)
    key = me.begins_proposal(deadline=60.0)
    me.reject("alice", key.id)
    assert me.is_waiting(key)
    me.passes(60)
    assert me.ending(key) == Expiry(key.id)


@pytest.mark.rule("4.5.broadcast")
def test_a_narrow_capability_counts_only_for_what_it_allows() -> None:
    me = Peer()
    me.welcomed("alice")
    narrow = {"kind": "mcp/request", "payload": {"params": {"name": "read"}}}
    me.joined("reader", [narrow])
    key = me.begins_proposal(params={"name": "write"})
    me.reject("alice", key.id)
    assert isinstance(me.ending(key), Rejection)


@pytest.mark.rule("4.5.choice")
@pytest.mark.parametrize("to", [(), ("alice",)])
def test_the_caller_can_choose_the_first_rejection(me: Peer, to: tuple[str, ...]) -> None:
    key = me.begins_proposal(to=to, wait=Wait.FIRST)
    me.reject("bob", key.id)
    assert isinstance(me.ending(key), Rejection)


@pytest.mark.rule("4.5.choice")
@pytest.mark.parametrize("to", [(), ("alice",)])
def test_the_caller_can_choose_the_deadline(me: Peer, to: tuple[str, ...]) -> None:
    key = me.begins_proposal(to=to, wait=Wait.DEADLINE)
    for name in ("alice", "bob", "tool"):
        me.reject(name, key.id)
    assert me.is_waiting(key)
    me.passes(60)
    assert me.ending(key) == Expiry(key.id)


@pytest.mark.rule("4.5.withdraw_follows")
@pytest.mark.parametrize("ends", ["rejection", "deadline", "unknown"])
def test_a_wait_that_ends_so_sends_a_withdraw_and_keeps_its_own_record(me: Peer, ends: str) -> None:
    key = me.begins_proposal(to=("bob",), deadline=20.0)
    onlooker = Peer("onlooker")
    onlooker.welcomed("me", "bob")
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


@pytest.mark.rule("4.5.told")
def test_each_rejection_of_a_proposal_that_waits_is_told() -> None:
    me = Peer(roles=EXCHANGES | {Role.REJECT})
    me.welcomed("alice", "bob")
    key = me.begins_proposal(to=("bob",))
    subjects = []
    for name in ("alice", "bob"):
        (start,) = of(me.reject(name, key.id, "policy", id=f"r-{name}"), Start)
        subjects.append(start.work.subject)
    assert [(s.by, s.id, s.counts) for s in subjects] == [  # type: ignore[union-attr]
        ("alice", "r-alice", False),
        ("bob", "r-bob", True),
    ]


# --- 4.6: everybody who was asked has gone ---


@pytest.mark.rule("4.6.gone")
def test_the_wait_ends_when_all_have_been_absent_for_half_a_minute(me: Peer) -> None:
    key = me.begins_request(to=("alice", "bob"), deadline=None)
    me.left("alice")
    me.passes(100)
    assert me.is_waiting(key)
    me.left("bob")
    me.passes(29)
    assert me.is_waiting(key)
    me.passes(1)
    assert me.ending(key) == Gone(key.id, ("alice", "bob"))


@pytest.mark.rule("4.6.gone")
def test_one_who_comes_back_in_time_is_not_gone(me: Peer) -> None:
    key = me.begins_request(to=("alice",), deadline=None)
    me.left("alice")
    me.passes(29)
    me.joined("alice")
    me.passes(100)
    assert me.is_waiting(key)


@pytest.mark.rule("4.6.from_our_welcome")
def test_absence_is_counted_anew_from_our_own_welcome(me: Peer) -> None:
    key = me.begins_request(to=("alice",), deadline=None)
    me.left("alice")
    me.passes(25)
    me.loses_connection()
    me.passes(100)
    assert me.is_waiting(key)
    me.welcomed("bob")
    me.passes(29)
    assert me.is_waiting(key)
    me.passes(1)
    assert me.ending(key) == Gone(key.id, ("alice",))


@pytest.mark.rule("4.6.from_our_welcome")
def test_a_second_welcome_is_an_update_and_no_new_beginning(me: Peer) -> None:
    key = me.begins_request(to=("alice",), deadline=None)
    me.left("alice")
    me.passes(20)
    me.welcomed("bob")
    me.passes(10)
    assert me.ending(key) == Gone(key.id, ("alice",))


@pytest.mark.rule("4.6.gone")
def test_one_who_was_never_there_is_gone_half_a_minute_after_our_welcome(me: Peer) -> None:
    me.passes(10)
    key = me.begins_request(to=("nobody",), deadline=None)
    me.passes(19)
    assert me.is_waiting(key)
    me.passes(1)
    assert me.ending(key) == Gone(key.id, ("nobody",))


@pytest.mark.rule("4.6.gone")
def test_what_was_sent_after_they_left_ends_too(me: Peer) -> None:
    me.left("alice")
    me.passes(25)
    key = me.begins_request(to=("alice",), deadline=None, sent=False)
    me.passes(100)
    assert me.is_waiting(key)
    me.did(me.table.sent(key.id, me.now))
    me.passes(0)
    assert me.ending(key) == Gone(key.id, ("alice",))


@pytest.mark.rule("4.6.gone")
def test_of_a_proposal_in_progress_the_fulfiller_must_stay(me: Peer) -> None:
    key = me.begins_proposal(to=("alice",), deadline=None)
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.left("alice")
    me.passes(100)
    assert me.is_waiting(key)
    me.left("bob")
    effects = me.passes(30)
    assert me.ending(key) == Gone(key.id, ("bob",))
    (withdraw,) = said(effects)
    assert withdraw.to == ("alice", "bob")


@pytest.mark.rule("4.6.gone")
def test_nobody_is_gone_while_we_are_not_connected(me: Peer) -> None:
    key = me.begins_request(to=("alice",), deadline=None)
    me.left("alice")
    me.loses_connection()
    me.passes(1000)
    assert me.is_waiting(key)


# --- 4.7: cancellation ---


@pytest.mark.rule("4.7.ignored")
def test_cancels_that_name_nothing_are_ignored_and_counted(me: Peer) -> None:
    me.request("alice", "a1")
    me.returns(A1)
    me.effects.clear()
    for request_id, why in [
        ("unknown", "unknown_cancel"),
        ("a1", "late_cancel"),
        (None, "malformed_cancel"),
        (True, "malformed_cancel"),
        ({"a": 1}, "malformed_cancel"),
        (1.5, "malformed_cancel"),
    ]:
        effects = me.cancel("alice", request_id)
        assert dropped(effects) == [why]
        assert len(effects) == 1


@pytest.mark.rule("4.7.initialize")
def test_initialize_is_never_cancelled(me: Peer) -> None:
    me.request("alice", "a1", method="initialize", params={"x": 1})
    effects = me.cancel("alice", "a1")
    assert cancelled(effects) == {}
    assert dropped(effects) == ["initialize_is_not_cancelled"]
    me.cancel("bob", "b1")
    assert started(me.request("bob", "b1", method="initialize")) != []
    ours = me.begins_request(method="initialize")
    assert said(me.gives_up(ours)) == []


@pytest.mark.rule("4.7.no_response")
def test_a_cancelled_request_gets_no_response_and_a_late_one_is_ignored(me: Peer) -> None:
    me.request("alice", "a1")
    me.cancel("alice", "a1")
    assert said(me.returns(A1)) == []
    key = me.begins_request()
    me.gives_up(key)
    assert said(me.response("tool", key.id)) == []
    assert isinstance(me.ending(key), Withdrawal)


@pytest.mark.rule("4.7.optional_reason")
@pytest.mark.parametrize(
    ("params", "code", "text"),
    [
        ({}, "no_longer_needed", ""),
        ({"reason": "busy"}, "busy", ""),
        ({"reason": "unsafe: it deletes"}, "unsafe", "it deletes"),
        ({"reason": "User pressed stop"}, "other", "User pressed stop"),
        ({"reason": 5}, "no_longer_needed", ""),
    ],
)
def test_the_reason_of_a_cancel_is_optional(
    me: Peer, params: dict[str, Any], code: str, text: str
) -> None:
    me.request("alice", "a1")
    cause = cancelled(me.cancel("alice", "a1", **params))[A1]
    assert (cause.code, cause.text) == (code, text)
    assert cause.chain == (CauseStep("alice", "a1", code, text),)


# --- 4.8: whose id it is ---


@pytest.mark.rule("4.8.request_id")
@pytest.mark.parametrize("request_id", [7, "7"], ids=["number", "string"])
def test_request_id_is_the_json_rpc_id_compared_as_a_string(me: Peer, request_id: Any) -> None:
    me.request("alice", "a1", rpc_id=7)
    assert list(cancelled(me.cancel("alice", request_id))) == [A1]


@pytest.mark.rule("4.8.request_id")
def test_request_id_may_be_the_envelope_id(me: Peer) -> None:
    me.request("alice", "a1", rpc_id=7)
    assert list(cancelled(me.cancel("alice", "a1"))) == [A1]


@pytest.mark.rule("4.8.request_id")
def test_a_cancel_names_a_fulfilling_request_by_a_number(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "b1", rpc_id=7, to=("tool",), fulfills="p1")
    assert me.record("alice", "p1").state == "in_progress"
    me.cancel("bob", 7, to=("tool",))
    assert me.record("alice", "p1").state == "pending"


@pytest.mark.rule("4.8.key_by_sender")
def test_two_participants_may_both_use_the_same_id(me: Peer) -> None:
    me.request("alice", "1", rpc_id=1)
    me.request("bob", "1", rpc_id=1)
    alices, bobs = Key("in", "alice", "1"), Key("in", "bob", "1")
    assert list(cancelled(me.cancel("alice", 1))) == [alices]
    assert said(me.returns(alices)) == []
    (response,) = said(me.returns(bobs))
    assert response.to == ("bob",)


@pytest.mark.rule("4.8.our_cancel")
def test_our_cancel_goes_to_the_requests_to_and_correlates_to_it(me: Peer) -> None:
    me.proposal("alice", "p1")
    key = me.begins_request(to=("tool",), fulfills=PROPOSAL)
    (cancel,) = cancels_said(me.gives_up(key))
    assert (cancel.to, cancel.correlation) == (("tool",), (key.id,))
    assert cancel.payload["params"]["requestId"] == key.id


# --- 4.9: progress ---


@pytest.mark.rule("4.9.increases")
def test_progress_only_increases(me: Peer) -> None:
    key = me.begins_request()
    told = [
        effect.done
        for done in (1, 3, 3, 2, 3.5, True, "4", None, 10**400, 4)
        for effect in of(me.progress("tool", key.id, done), Progressed)
    ]
    assert told == [1.0, 3.0, 3.5, 4.0]


@pytest.mark.rule("4.9.none_after_completion")
def test_there_is_no_progress_after_completion(me: Peer) -> None:
    key = me.begins_request()
    me.response("tool", key.id)
    assert me.progress("tool", key.id, 5) == []


# --- 4.10: messages addressed to a participant are handled whatever their context ---


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


# --- 4.11: echoes ---


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


# --- 4.12: reasons that nobody chose, and the chain ---


@pytest.mark.rule("4.12.unchosen")
def test_reasons_that_nobody_chose(me: Peer) -> None:
    expiring = me.begins_proposal(deadline=1.0)
    (withdraw,) = said(me.passes(1))
    assert (withdraw.correlation, withdraw.payload["reason"]) == ((expiring.id,), "timeout")
    left = me.begins_proposal(to=("bob",))
    me.left("bob")
    (withdraw,) = said(me.passes(30))
    assert (withdraw.correlation, withdraw.payload["reason"]) == ((left.id,), "no_longer_needed")


@pytest.mark.rule("4.12.cascade", "6.cause")
def test_a_cascade_keeps_its_code_and_tells_its_chain_over_three_hops() -> None:
    proposer, fulfiller, tool, fourth = Peer("p"), Peer("f"), Peer("t"), Peer("x")
    for peer in (proposer, fulfiller, tool, fourth):
        peer.welcomed("p", "f", "t", "x")
    proposal = proposer.begins_proposal(to=("f",))
    fulfiller.proposal("p", proposal.id, to=("f",))
    deciding = Key("in", "p", proposal.id)
    request = fulfiller.begins_request(
        ("t",), parent=deciding, fulfills=ProposalKey("p", proposal.id)
    )
    tool.request("f", request.id, to=("t",))
    working = Key("in", "f", request.id)
    further = tool.begins_request(("x",), parent=working)
    fourth.request("t", further.id, to=("x",))

    (withdraw,) = said(proposer.gives_up(proposal, "policy"))
    at_fulfiller = fulfiller.receives(withdraw)
    at_tool = tool.receives(cancels_said(at_fulfiller)[0])
    at_fourth = fourth.receives(cancels_said(at_tool)[0])

    first = CauseStep("p", proposal.id, "policy")
    second = CauseStep("f", request.id, "policy")
    third = CauseStep("t", further.id, "policy")
    assert cancelled(at_fulfiller)[deciding].chain == (first,)
    assert cancelled(at_tool)[working].chain == (second, first)
    cause = cancelled(at_fourth)[Key("in", "t", further.id)]
    assert cause.chain == (third, second, first)
    assert (cause.code, cause.by, cause.id) == ("policy", "t", further.id)


@pytest.mark.rule("6.cause")
def test_a_chain_has_at_most_eight_links_and_the_cancel_goes_on_without_it(me: Peer) -> None:
    chain = tuple(CauseStep(f"n{number}", f"r{number}", "policy") for number in range(MAX_CHAIN))
    for length, carried in [(MAX_CHAIN - 1, True), (MAX_CHAIN, False)]:
        key = me.begins_request()
        cause = Cause("policy", "n0", "", "r0", 0.0, chain[:length])
        (cancel,) = said(me.did(me.table.give_up(key, cause, me.now)))
        params = cancel.payload["params"]
        assert params["reason"] == "policy"
        if carried:
            links = params["_meta"][payloads.CAUSE]
            assert len(links) == MAX_CHAIN
            assert links[0] == {"by": "me", "id": key.id, "reason": "policy", "text": ""}
        else:
            assert "_meta" not in params


@pytest.mark.rule("6.cause")
def test_a_withdraw_carries_no_chain(me: Peer) -> None:
    key = me.begins_proposal()
    cause = Cause("policy", "x", "", "y", 0.0, (CauseStep("x", "y", "policy"),))
    (withdraw,) = said(me.did(me.table.give_up(key, cause, me.now)))
    assert withdraw.payload == {"reason": "policy"}


# --- 4.13: a caller that gives up ---


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


# --- 4.14: what is said again ---


def endings(me: Peer) -> dict[str, str]:
    """A withdraw, a cancel, a rejection and a response; which id concerns whom."""
    me.proposal("alice", "p1")
    withdrawn = me.begins_proposal(to=("bob",))
    cancelled_one = me.begins_request(to=("tool",))
    me.request("carol", "c1")
    (withdraw,) = said(me.gives_up(withdrawn))
    (cancel,) = said(me.gives_up(cancelled_one))
    reject = me.rejects("alice", "p1")
    (response,) = said(me.returns(Key("in", "carol", "c1")))
    return {"bob": withdraw.id, "tool": cancel.id, "alice": reject.id, "carol": response.id}


@pytest.mark.rule("4.14.on_join")
@pytest.mark.parametrize("who", ["alice", "bob", "carol", "tool"])
def test_endings_are_said_again_to_those_they_concern_when_they_join(me: Peer, who: str) -> None:
    ids = endings(me)
    assert [again.id for again in said(me.joined(who))] == [ids[who]]
    assert [again.id for again in said(me.joined(who))] == [ids[who]]
    assert said(me.joined("stranger")) == []


@pytest.mark.rule("4.14.on_join")
def test_endings_are_said_again_when_we_come_back(me: Peer) -> None:
    ids = endings(me)
    me.loses_connection()
    assert {again.id for again in said(me.welcomed("alice", "tool"))} == {ids["alice"], ids["tool"]}


@pytest.mark.rule("4.14.on_join")
def test_a_withdraw_of_a_broadcast_concerns_whoever_joins(me: Peer) -> None:
    key = me.begins_proposal()
    (withdraw,) = said(me.gives_up(key))
    assert said(me.joined("newcomer")) == [withdraw]


@pytest.mark.rule("4.14.on_join")
def test_a_withdraw_concerns_the_fulfiller_in_progress(me: Peer) -> None:
    key = me.begins_proposal(to=("bob",))
    me.request("alice", "a1", to=("tool",), fulfills=key.id)
    (withdraw,) = said(me.gives_up(key))
    assert withdraw.to == ("bob", "alice")
    assert said(me.joined("alice")) == [withdraw]


@pytest.mark.rule("4.14.on_join")
def test_what_we_said_to_ourselves_is_said_again_when_we_come_back(me: Peer) -> None:
    cancelled_one, answered = me.begins_request(to=("me",)), me.begins_request(to=("me",))
    (cancel,) = said(me.gives_up(cancelled_one))
    (response,) = said(me.returns(Key("in", "me", answered.id)))
    me.loses_connection()
    assert said(me.welcomed()) == [cancel, response]


@pytest.mark.rule("4.14.on_join")
def test_nothing_is_said_again_at_the_first_welcome_or_an_update(me: Peer) -> None:
    endings(me)
    assert said(me.welcomed("alice", "bob", "tool")) == []


@pytest.mark.rule("4.14.on_join")
def test_an_update_that_shows_somebody_new_is_as_a_join(me: Peer) -> None:
    ids = endings(me)
    assert [again.id for again in said(me.welcomed("alice", "bob", "tool", "carol"))] == [
        ids["carol"]
    ]


@pytest.mark.rule("4.14.limits")
def test_endings_are_remembered_for_five_minutes(me: Peer) -> None:
    me.gives_up(me.begins_proposal(to=("bob",)))
    me.passes(299)
    assert len(said(me.joined("bob"))) == 1
    me.passes(1)
    assert said(me.joined("bob")) == []


@pytest.mark.rule("4.14.limits")
def test_at_most_a_thousand_endings_are_remembered(me: Peer) -> None:
    for number in range(1001):
        me.rejects("bob", f"p{number}")
    again = said(me.joined("bob"))
    assert len(again) == 1000
    assert again[0].correlation == ("p1",)


@pytest.mark.rule("4.14.limits")
def test_at_most_sixteen_mebibytes_of_endings_are_remembered(me: Peer) -> None:
    for number in range(5):
        me.request("alice", f"a{number}")
        me.returns(Key("in", "alice", f"a{number}"), {"text": "x" * (4 * 1024 * 1024)})
    assert len(said(me.joined("alice"))) == 3


@pytest.mark.rule("4.14.no_harm_twice")
def test_endings_that_come_twice_do_no_harm() -> None:
    me = Peer(roles=EXCHANGES | {Role.WITHDRAW, Role.REJECT})
    me.welcomed("alice", "bob", "tool")
    me.proposal("alice", "p1")
    me.request("alice", "a1")
    mine, asked = me.begins_proposal(to=("bob", "tool")), me.begins_request()
    seen = []
    for ts in ("2026-01-01T00:00:00.000Z", "2026-01-01T00:00:09.000Z"):
        for kind, payload, sender, names in [
            ("mcp/withdraw", {"reason": "busy"}, "alice", "p1"),
            ("mcp/reject", {"reason": "busy"}, "bob", mine.id),
            ("mcp/response", {"result": {}}, "tool", asked.id),
            ("mcp/request", payloads.notification("notifications/cancelled", {"requestId": "a1"}),
             "alice", "a1"),
        ]:  # fmt: skip
            effects = me.hears(
                kind, payload, sender=sender, id=f"{kind}-1", correlation=(names,), ts=ts
            )
            seen.append((len(cancelled(effects)), len(woken(effects)), len(started(effects))))
    first, second = seen[:4], seen[4:]
    assert first == [(1, 0, 0), (0, 1, 1), (0, 1, 0), (1, 0, 0)]
    assert second == [(0, 0, 0)] * 4


def test_losing_the_race_is_told_apart(me: Peer) -> None:
    me.proposal("alice", "p1")
    key = me.begins_request(fulfills=PROPOSAL, sent=False)
    me.request("bob", "b1", to=("tool",), fulfills="p1")
    assert me.ending(key) == LostRace("bob")


@pytest.mark.rule("4.5.broadcast")
def test_a_broadcast_ends_when_only_those_are_left_who_have_rejected_it() -> None:
    me = Peer()
    me.welcomed("alice", "bob")
    key = me.begins_proposal()
    me.reject("alice", key.id)
    assert me.is_waiting(key)
    me.left("bob")
    assert isinstance(me.ending(key), Rejection)


@pytest.mark.rule("4.11.echo")
def test_the_echo_of_what_waited_long_for_a_connection_is_known(me: Peer) -> None:
    key = me.begins_request(deadline=None, sent=False)
    (draft,) = said(me.effects)
    me.passes(601)
    me.did(me.table.sent(key.id, me.now))
    assert dropped(me.echo(draft)) == []
