"""Outcomes that a fulfiller sends on, because the gateway hides its request (PROTOCOL 2)."""

from typing import Any

import pytest

from meup_agent import Envelope, Expiry, Fulfillment, Reason
from meup_agent.errors import AlreadyDecided
from meup_agent.protocol.exchange.effects import Progressed
from meup_agent.types import Cause, Conflict, Guarantees
from tests.protocol.exchange.peer import (
    CALL,
    EXCHANGES,
    MAY_PROPOSE,
    Peer,
    dropped,
    of,
    said,
    woken,
)
from tests.tables import Effect, FulfillmentTarget, Key, ProposalKey, Role, Start
from tests.wire import OURS, draft, kinds, payloads

HIDES = Guarantees(hidden_targets=True)
SHOWS = Guarantees(echo=True)
P1 = ProposalKey("alice", "p1")
CONTENT = {"content": [{"type": "text", "text": "done"}]}


def present(gives: Guarantees, *, roles: frozenset[Role] = EXCHANGES) -> Peer:
    peer = Peer.among("alice", "bob", "tool", gives=gives, roles=roles, dialect="meup/v0.2")
    peer.joined("mallory", MAY_PROPOSE)
    peer.effects.clear()
    return peer


@pytest.fixture
def hidden() -> Peer:
    """A participant of a gateway that shows an envelope to its addressees alone."""
    return present(HIDES)


def relay(
    me: Peer,
    proposal: str,
    *,
    sender: str = "bob",
    ids: tuple[str, ...] = ("r1",),
    body: dict[str, Any] | None = None,
    to: tuple[str, ...] = ("me",),
) -> list[Effect]:
    """The outcome of a proposal, sent on by its fulfiller."""
    said = {"jsonrpc": "2.0", "id": proposal, **(body or {"result": CONTENT})}
    return me.hears(
        kinds.MCP_RESPONSE,
        said,
        sender=sender,
        id=me.table.new_id(),
        to=to,
        correlation=(proposal, *ids),
    )


def fulfilling(me: Peer, *, meta: dict[str, Any] | None = None) -> Key:
    """We fulfill alice's proposal."""
    asked = {**CALL, "_meta": {"progressToken": "t1"}}
    me.proposal("alice", "p1", to=("me",), params=asked)
    params = CALL if meta is None else {**CALL, "_meta": meta}
    request_id = me.table.new_id()
    request = draft(
        kinds.MCP_REQUEST,
        payloads.request("tools/call", params, request_id),
        id=request_id,
        sender=me.name,
        to=("tool",),
        correlation=("p1",),
    )
    key, effects = me.table.open(
        request, now=me.now, deadline=me.now + 60, fulfills=FulfillmentTarget(P1)
    )
    me.did(effects)
    me.did(me.table.sent(key.id, me.now))
    me.effects.clear()
    return key


def relayed_by(effects: list[Effect]) -> Envelope:
    (sent,) = said(effects, kinds.MCP_RESPONSE)
    return sent


@pytest.mark.rule("2.relay.sent")
def test_the_response_to_our_fulfillment_is_sent_on_to_the_proposer(hidden: Peer) -> None:
    key = fulfilling(hidden, meta={payloads.DIGEST: "d"})
    sent = relayed_by(hidden.response("tool", key.id, result=CONTENT))
    assert (sent.to, sent.correlation) == (("alice",), ("p1", key.id))
    assert sent.payload == {
        "jsonrpc": "2.0",
        "id": "p1",
        "result": {**CONTENT, "_meta": {payloads.DIGEST: "d"}},
    }


@pytest.mark.rule("4.2.in_progress", "4.2.fulfilled_by_response", "4.4.already_in_progress")
def test_what_we_fulfill_unseen_is_in_progress_and_then_fulfilled(hidden: Peer) -> None:
    key = fulfilling(hidden)
    record = hidden.table.proposal_store.get(P1, hidden.now)
    assert record is not None
    assert record.in_progress_by == hidden.name
    hidden.response("tool", key.id, result=CONTENT)
    assert record.state == "fulfilled"
    with pytest.raises(AlreadyDecided):
        fulfilling(hidden)


@pytest.mark.parametrize("end", ["given up", "refused"])
def test_what_we_fulfill_unseen_and_in_vain_is_pending_again(hidden: Peer, end: str) -> None:
    key = fulfilling(hidden)
    if end == "refused":
        hidden.refused(key.id)
    else:
        hidden.did(hidden.table.give_up(key, Cause(Reason.TIMEOUT), hidden.now))
    record = hidden.table.proposal_store.get(P1, hidden.now)
    assert record is not None
    assert (record.state, record.in_progress_by) == ("pending", None)
    again = fulfilling(hidden)
    hidden.response("tool", key.id, result=CONTENT)  # too late, and carried out all the same
    assert hidden.table.is_open(again)


@pytest.mark.rule("2.relay.edits")
def test_it_is_not_the_executor_who_says_whether_something_was_changed(hidden: Peer) -> None:
    key = fulfilling(hidden, meta={payloads.DIGEST: "d"})
    said = {payloads.DIGEST: "another", payloads.EDITED: True, "note": 1}
    sent = relayed_by(hidden.response("tool", key.id, result={**CONTENT, "_meta": said}))
    assert sent.payload["result"]["_meta"] == {payloads.DIGEST: "d", "note": 1}


@pytest.mark.rule("2.relay.sent")
def test_an_error_and_a_bare_result_are_sent_on_as_they_are(hidden: Peer) -> None:
    key = fulfilling(hidden)
    failed = {"code": "NOT_FOUND", "message": "no such tool"}
    sent = relayed_by(hidden.response("tool", key.id, error=failed))
    assert sent.payload["error"] == failed
    bare = present(HIDES)
    key = fulfilling(bare)
    assert relayed_by(bare.response("tool", key.id, result=5)).payload["result"] == 5


@pytest.mark.rule("2.relay.sent", "4.14.on_join")
def test_it_is_sent_on_once_and_again_when_the_proposer_joins(hidden: Peer) -> None:
    key = fulfilling(hidden)
    first = relayed_by(hidden.response("tool", key.id))
    assert said(hidden.response("tool", key.id)) == []
    hidden.left("alice")
    (again,) = said(hidden.joined("alice"))
    assert again == first


@pytest.mark.rule("2.relay.sent")
def test_a_result_that_crossed_the_cancel_is_sent_on_and_a_confirmed_cancel_is_not(
    hidden: Peer,
) -> None:
    key = fulfilling(hidden)
    hidden.withdraw("alice", "p1")
    assert relayed_by(hidden.response("tool", key.id)).correlation == ("p1", key.id)
    other = present(HIDES)
    key = fulfilling(other)
    other.withdraw("alice", "p1")
    assert said(other.response("tool", key.id, error={"code": 1, "message": "cancelled"})) == []


@pytest.mark.rule("2.relay.sent")
def test_a_refusal_is_not_sent_on(hidden: Peer) -> None:
    key = fulfilling(hidden)
    refusal = {"code": -32000, "message": "no", "data": {"reason": "refused"}}
    assert said(hidden.response("tool", key.id, error=refusal)) == []


@pytest.mark.rule("2.relay.sent")
@pytest.mark.parametrize("gives", [SHOWS, OURS])
def test_nothing_is_sent_on_where_everybody_sees_it(gives: Guarantees) -> None:
    me = present(gives)
    key = fulfilling(me)
    assert said(me.progress("tool", key.id, 1)) == []
    assert said(me.response("tool", key.id)) == []


@pytest.mark.rule("2.relay.progress")
def test_progress_is_sent_on_to_a_proposer_who_asked_for_it(hidden: Peer) -> None:
    key = fulfilling(hidden)
    (sent,) = said(hidden.progress("tool", key.id, 1))
    assert (sent.to, sent.correlation) == (("alice",), ("p1", key.id))
    assert sent.payload["params"]["progressToken"] == "t1"
    assert said(hidden.progress("tool", key.id, 1)) == [], "it does not increase"


@pytest.mark.rule("2.relay.accepted")
def test_a_broadcast_proposal_is_fulfilled_by_whoever_could_have_made_the_request(
    hidden: Peer,
) -> None:
    key = hidden.begins_proposal()
    (ending,) = woken(relay(hidden, key.id)).values()
    assert isinstance(ending, Fulfillment)
    assert (ending.by, ending.executor, ending.response) == ("bob", "", CONTENT)
    assert (ending.changes, ending.edited, ending.knows_edits) == ((), False, False)
    assert hidden.own(key).state == "fulfilled"


@pytest.mark.rule("2.relay.accepted", "5.who.response")
@pytest.mark.parametrize(
    ("sender", "to"), [("mallory", "me"), ("stranger", "me"), ("me", "me"), ("bob", "alice")]
)
def test_nothing_else_fulfills_a_broadcast_proposal(hidden: Peer, sender: str, to: str) -> None:
    key = hidden.begins_proposal()
    assert woken(relay(hidden, key.id, sender=sender, to=(to,))) == {}
    assert hidden.own(key).state == "pending"


@pytest.mark.rule("2.relay.accepted", "5.who.response")
def test_an_addressed_proposal_is_fulfilled_by_whom_it_was_addressed_to(hidden: Peer) -> None:
    key = hidden.begins_proposal(("mallory", "absent"))
    assert woken(relay(hidden, key.id, sender="bob")) == {}
    assert woken(relay(hidden, key.id, sender="absent")).keys() == {key}
    other = hidden.begins_proposal(("mallory",))
    assert woken(relay(hidden, other.id, sender="mallory")).keys() == {other}


@pytest.mark.rule("2.relay.accepted")
def test_where_names_are_checked_those_addressed_need_the_capability_too() -> None:
    me = present(OURS)
    key = me.begins_proposal(("mallory", "bob"))
    assert woken(relay(me, key.id, sender="mallory")) == {}
    assert woken(relay(me, key.id, sender="bob")).keys() == {key}


@pytest.mark.rule("2.relay.accepted")
def test_where_the_request_was_seen_only_what_is_about_it_counts() -> None:
    me = present(SHOWS)
    key = me.begins_proposal()
    me.request("bob", "r1", to=("tool",), fulfills=key.id)
    assert woken(relay(me, key.id, sender="alice", ids=())) == {}
    assert woken(relay(me, key.id, sender="bob")).keys() == {key}


@pytest.mark.rule("2.relay.accepted", "5.own.once")
def test_a_second_copy_wakes_no_caller() -> None:
    me = present(SHOWS)
    key = me.begins_proposal()
    me.request("bob", "r1", to=("tool",), fulfills=key.id)
    assert woken(me.response("tool", "r1")).keys() == {key}
    effects = relay(me, key.id)
    assert woken(effects) == {}
    assert dropped(effects) == ["duplicate_response"]
    hidden = present(HIDES)
    key = hidden.begins_proposal()
    relay(hidden, key.id)
    assert dropped(relay(hidden, key.id, sender="alice")) == ["duplicate_response"]


@pytest.mark.rule("2.relay.accepted")
def test_a_refusal_that_is_sent_on_decides_nothing(hidden: Peer) -> None:
    key = hidden.begins_proposal()
    refusal = {"code": -32000, "message": "no", "data": {"reason": "refused"}}
    assert woken(relay(hidden, key.id, body={"error": refusal})) == {}
    assert hidden.own(key).state == "pending"


@pytest.mark.rule("2.relay.edits")
@pytest.mark.parametrize(
    ("said_of_it", "edited", "known", "executor"),
    [
        ({payloads.DIGEST: "mine"}, False, True, "tool"),
        ({payloads.DIGEST: "another"}, True, True, ""),
        ({payloads.DIGEST: "another", payloads.EDITED: True}, True, True, ""),
        ({}, False, False, ""),
    ],
)
def test_a_relay_says_whether_something_was_changed(
    hidden: Peer, said_of_it: dict[str, Any], edited: bool, known: bool, executor: str
) -> None:
    meta = {payloads.DIGEST: "mine", payloads.TARGET: "tool"}
    key = hidden.begins_proposal(params={**CALL, "_meta": meta})
    ending = woken(relay(hidden, key.id, body={"result": {**CONTENT, "_meta": said_of_it}}))[key]
    assert isinstance(ending, Fulfillment)
    assert (ending.edited, ending.knows_edits, ending.executor) == (edited, known, executor)
    assert ending.as_proposed == (known and not edited)


@pytest.mark.rule("2.relay.accepted", "4.13.loser_is_reported")
def test_a_relay_after_the_deadline_is_a_conflict() -> None:
    me = present(HIDES, roles=EXCHANGES | {Role.CONFLICT})
    key = me.begins_proposal(("bob",), deadline=10)
    me.passes(11)
    assert isinstance(me.ending(key), Expiry)
    (start,) = of(relay(me, key.id), Start)
    assert isinstance(start.work.subject, Conflict)
    assert isinstance(start.work.subject.outcome, Fulfillment)
    assert of(relay(me, key.id), Start) == []


@pytest.mark.rule("2.relay.progress", "5.who.progress")
def test_progress_that_is_sent_on_reaches_the_proposal(hidden: Peer) -> None:
    key = hidden.begins_proposal(("bob",))
    notification = payloads.progress(key.id, 1, 2, "half")

    def hears(sender: str, id: str) -> list[Progressed]:
        effects = hidden.hears(
            kinds.MCP_REQUEST,
            notification,
            sender=sender,
            id=id,
            to=("me",),
            correlation=(key.id, "r1"),
        )
        return of(effects, Progressed)

    assert hears("alice", "n1") == []
    (progressed,) = hears("bob", "n2")
    assert (progressed.key, progressed.done, progressed.message) == (key, 1, "half")
