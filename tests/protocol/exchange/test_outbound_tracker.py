"""Our own requests and proposals: each cell of the third table of PROTOCOL 5."""

from collections.abc import Callable
from typing import Any

import pytest

from meup_agent import Expiry, Fulfillment, Gone, Rejection, Withdrawal
from meup_agent.types import Cause, Conflict, FailedFulfillment
from tests.protocol.exchange.peer import EXCHANGES, Peer, dropped, of, said, started, unsent, woken
from tests.tables import Effect, Key, Role, Start
from tests.wire import OURS, Ending, Responded, Unknown, Unsent, kinds


@pytest.mark.rule("5.own.unsent.deadline", "5.own.unsent.gives_up")
@pytest.mark.parametrize("begins", ["begins_request", "begins_proposal"])
@pytest.mark.parametrize("ends", ["deadline", "gives_up"])
def test_unsent_its_end_drops_it(me: Peer, begins: str, ends: str) -> None:
    key: Key = getattr(me, begins)(deadline=5.0, sent=False)
    effects = me.passes(5) if ends == "deadline" else me.gives_up(key, "busy")
    assert (unsent(effects), said(effects)) == ([key.id], [])
    if ends == "deadline":
        assert woken(effects) == {key: Expiry(key.id, sent=False)}
        return
    assert isinstance(me.ending(key), Withdrawal)
    if begins == "begins_proposal":
        assert (me.own(key).state, me.own(key).reason) == ("withdrawn", "busy")


@pytest.mark.rule("5.own.unsent.connection_lost")
def test_unsent_connection_lost_stays_in_the_outbox_and_its_outcome_is_known(me: Peer) -> None:
    key = me.begins_request(sent=False, deadline=60.0)
    assert me.loses_connection() == []
    assert said(me.welcomed("tool")) == []
    me.did(me.table.sent(key.id, me.now)[1])
    assert me.is_waiting(key)
    me.passes(60)
    assert me.ending(key) == Expiry(key.id, sent=True)


def test_unsent_only_no_further_connection_ends_it(me: Peer) -> None:
    key = me.begins_request(to=("nobody",), sent=False, deadline=None)
    me.passes(1000)
    assert me.is_waiting(key)
    effects = me.did(me.table.stopped("kicked", me.now))
    assert woken(effects) == {key: Unsent("kicked")}
    assert unsent(effects) == [key.id]


@pytest.mark.rule("5.own.waiting.response")
@pytest.mark.parametrize(
    ("said_so", "read"),
    [
        ({"error": {"code": 1, "message": "busy"}}, (None, {"code": 1, "message": "busy"})),
        ({"error": "no_such_thing"}, (None, {"code": "error", "message": "no_such_thing"})),
        (5, (5,)),
    ],
)
def test_waiting_a_response_of_any_form_is_read(me: Peer, said_so: object, read: Any) -> None:
    key = me.begins_request()
    me.hears("mcp/response", said_so, sender="tool", id="t1", to=("me",), correlation=(key.id,))
    assert me.ending(key) == Responded("tool", *read)


@pytest.mark.rule("5.own.waiting.rejection")
def test_waiting_rejection_that_counts_ends_it_with_a_withdraw(me: Peer) -> None:
    key = me.begins_proposal(to=("bob",))
    effects = me.reject("bob", key.id, "unsafe", id="r1")
    assert woken(effects) == {key: Rejection(key.id, "unsafe", "bob", "r1", counts=True)}
    (withdraw,) = said(effects)
    assert (withdraw.kind, withdraw.correlation) == ("mcp/withdraw", (key.id,))
    assert withdraw.payload == {"reason": "no_longer_needed"}


@pytest.mark.rule("5.own.waiting.refused")
def test_a_refusal_that_is_for_another_participant_is_not_ours(me: Peer) -> None:
    key = me.begins_request()
    me.system("system/error", {"error": "x"}, to=("bob",), correlation=(key.id,))
    assert me.is_waiting(key)


def _gone(me: Peer, key: Key) -> list[Effect]:
    me.left("tool")
    assert me.passes(29) == []
    return me.passes(1)


def _late(me: Peer, key: Key) -> list[Effect]:
    assert me.passes(44.5) == []
    return me.passes(0.5)


@pytest.mark.rule("5.own.waiting.gone", "5.own.waiting.deadline", "5.own.waiting.gives_up")
@pytest.mark.parametrize(
    ("ends", "ending", "reason"),
    [
        (_gone, lambda id: Gone(id, ("tool",)), "no_longer_needed: tool left the space"),
        (_late, Expiry, "timeout"),
        (
            lambda me, key: me.gives_up(key, "policy"),
            lambda id: Withdrawal(id, "me", Cause("policy", "me")),
            "policy",
        ),
    ],
    ids=["gone", "deadline", "gives_up"],
)
@pytest.mark.parametrize("begins", ["begins_request", "begins_proposal"])
def test_waiting_its_end_is_told_to_its_addressees(
    me: Peer,
    begins: str,
    ends: Callable[[Peer, Key], list[Effect]],
    ending: Callable[[str], Ending],
    reason: str,
) -> None:
    key: Key = getattr(me, begins)(to=("tool",), deadline=45.0)
    effects = ends(me, key)
    assert woken(effects) == {key: ending(key.id)}
    (word,) = said(effects)
    assert (word.to, word.correlation) == (("tool",), (key.id,))
    if begins == "begins_proposal":
        code = reason.partition(": ")[0]
        assert (word.kind, word.payload) == ("mcp/withdraw", {"reason": code})
    else:
        assert word.payload["method"] == kinds.CANCELLED
        params = word.payload["params"]
        code, _, text = reason.partition(": ")
        assert (params["requestId"], params["reason"]) == (key.id, text or code)
        assert params["_meta"]["dev.meup/cause"][0]["reason"] == code


@pytest.mark.rule("5.own.waiting.deadline")
def test_what_expires_in_progress_names_its_fulfiller(me: Peer) -> None:
    key = me.begins_proposal(deadline=5.0)
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    assert woken(me.passes(5)) == {key: Expiry(key.id, begun_by="bob")}


REFUSED = {"code": -32000, "message": "not at night", "data": {"reason": "refused"}}


def refused_by_tool(me: Peer, proposal: str) -> FailedFulfillment:
    me.response("tool", "b1", to=("bob",), error=REFUSED)
    return FailedFulfillment("bob", Cause("refused", "tool", "not at night"), refused=True)


def cancelled_by_bob(me: Peer, proposal: str) -> FailedFulfillment:
    step = {"by": "bob", "id": "b1", "reason": "timeout", "text": "too slow"}
    meta = {"dev.meup/cause": [step, step]}
    me.cancel("bob", "b1", to=("tool",), reason="timeout: too slow", _meta=meta)
    return FailedFulfillment("bob", Cause("timeout", "bob", "too slow"))


def cancelled_for_bob(me: Peer, proposal: str) -> FailedFulfillment:
    meta = {"dev.meup/begun_by": "bob"}
    me.cancel(kinds.GATEWAY, "b1", to=("tool",), reason="no_longer_needed", _meta=meta)
    return FailedFulfillment("bob", Cause("no_longer_needed", kinds.GATEWAY))


def cancelled_after_its_refusal(me: Peer, proposal: str) -> FailedFulfillment:
    failed = refused_by_tool(me, proposal)
    me.cancel("bob", "b1", to=("tool",), reason="no_longer_needed")
    return failed


def cancelled_after_another(me: Peer, proposal: str) -> FailedFulfillment:
    refused_by_tool(me, proposal)
    me.request("bob", "b2", to=("tool",), fulfills=proposal)
    me.cancel("bob", "b2", to=("tool",))
    return FailedFulfillment("bob", Cause("no_longer_needed", "bob"))


@pytest.mark.rule("4.2.expiry.tried")
@pytest.mark.parametrize(
    "fails",
    [
        refused_by_tool,
        cancelled_by_bob,
        cancelled_for_bob,
        cancelled_after_its_refusal,
        cancelled_after_another,
    ],
)
def test_expiry_tells_of_the_last_fulfillment_that_failed(
    fails: Callable[[Peer, str], FailedFulfillment],
) -> None:
    me = Peer.among("bob", "tool", gives=OURS)
    key = me.begins_proposal(deadline=5.0)
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    failed = fails(me, key.id)
    assert me.own(key).state == "pending"
    assert woken(me.passes(5)) == {key: Expiry(key.id, failed=failed)}


@pytest.mark.rule("4.2.expiry.tried")
def test_cancel_of_another_changes_nothing(me: Peer) -> None:
    key = me.begins_proposal(deadline=5.0)
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.cancel("mallory", "b1", to=("tool",))
    me.response("mallory", "b1", to=("bob",), error=REFUSED)
    assert woken(me.passes(5)) == {key: Expiry(key.id, begun_by="bob")}


@pytest.mark.rule("5.own.waiting.connection_lost")
def test_waiting_what_was_sent_again_has_no_unknown_outcome(me: Peer) -> None:
    key = me.begins_request(idempotent=True, deadline=50.0)
    me.loses_connection()
    me.welcomed("alice", "tool")
    me.did(me.table.sent(key.id, me.now)[1])
    me.passes(50)
    assert me.ending(key) == Expiry(key.id)


def test_waiting_no_further_connection_leaves_the_outcome_unknown(me: Peer) -> None:
    key = me.begins_proposal()
    assert woken(me.did(me.table.stopped("kicked", me.now))) == {key: Unknown("kicked")}
    assert me.own(key).state == "pending"


@pytest.mark.rule("5.own.given_up.response", "4.13.loser_is_reported")
@pytest.mark.parametrize("ends", ["withdrawn", "rejected", "expired"])
def test_given_up_late_response_to_a_proposal_is_a_conflict(ends: str) -> None:
    me = Peer.among("alice", "bob", "tool", roles=EXCHANGES | {Role.CONFLICT})
    key = me.begins_proposal(to=("bob",), deadline=10.0)
    if ends == "withdrawn":
        me.gives_up(key)
    elif ends == "rejected":
        me.reject("bob", key.id)
    else:
        me.passes(10)
    after = me.ending(key)
    me.request("alice", "a1", to=("tool",), fulfills=key.id)
    effects = me.response("tool", "a1", to=("alice",), result={"content": [3]})
    assert dropped(effects) == ["late_response"]
    (start,) = of(effects, Start)
    assert start.work.subject == Conflict(
        key.id, Fulfillment(key.id, "alice", "tool", {"content": [3]}), after
    )
    again = me.response("tool", "a1", to=("alice",), result={"content": [3]})
    assert started(again) == []


@pytest.mark.rule("5.own.given_up.rejection", "5.own.given_up.other")
def test_given_up_nothing_else_matters() -> None:
    me = Peer.among("alice", "bob", roles=EXCHANGES | {Role.REJECT})
    key = me.begins_proposal(to=("bob", "alice"))
    me.reject("bob", key.id)
    assert me.reject("alice", key.id, "policy") == []
    assert set(me.own(key).rejections) == {"bob", "alice"}
    me.did(me.table.sent(key.id, me.now)[1])
    assert me.refused(key.id) == me.gives_up(key) == []
    me.left("alice")
    me.left("bob")
    assert me.passes(1000) == []
    assert isinstance(me.ending(key), Rejection)


@pytest.mark.rule("5.own.once")
def test_closing_gives_up_everything_of_our_own(me: Peer) -> None:
    request, proposal = me.begins_request(), me.begins_proposal()
    unsent_key = me.begins_request(sent=False)
    effects = me.did(me.table.close(Cause("no_longer_needed", "me"), me.now))
    assert set(woken(effects)) == {request, proposal, unsent_key}
    assert unsent(effects) == [unsent_key.id]
    assert len(said(effects)) == 2
