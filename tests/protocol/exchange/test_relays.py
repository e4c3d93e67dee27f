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
from tests.tables import Effect, Key, ProposalKey, Role, Start
from tests.wire import OURS, kinds, payloads

HIDES = Guarantees(hidden_targets=True)
SHOWS = Guarantees(echo=True)
P1 = ProposalKey("alice", "p1")
CONTENT = {"content": [{"type": "text", "text": "done"}]}


def present(gives: Guarantees, **options: Any) -> Peer:
    peer = Peer.among("alice", "bob", "tool", gives=gives, dialect="meup/v0.2", **options)
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
    asked = {**CALL, "_meta": {"progressToken": "t1"}}
    me.proposal("alice", "p1", to=("me",), params=asked)
    key = me.begins_request(fulfills=P1, sent=False, meta=meta)
    me.did(me.table.sent(key.id, me.now)[1])
    me.effects.clear()
    return key


def relayed_by(effects: list[Effect]) -> Envelope:
    (sent,) = said(effects, kinds.MCP_RESPONSE)
    return sent


@pytest.mark.rule("2.relay.sent", "2.relay.edits", "4.14.on_join")
def test_the_response_to_our_fulfillment_is_sent_on_to_the_proposer(hidden: Peer) -> None:
    key = fulfilling(hidden, meta={payloads.DIGEST: "d"})
    # It is not the executor who says whether something was changed.
    meta = {payloads.DIGEST: "another", payloads.EDITED: True, "note": 1}
    sent = relayed_by(hidden.response("tool", key.id, result={**CONTENT, "_meta": meta}))
    assert (sent.to, sent.correlation) == (("alice",), ("p1", key.id))
    result = {**CONTENT, "_meta": {payloads.DIGEST: "d", "note": 1}}
    assert sent.payload == {"jsonrpc": "2.0", "id": "p1", "result": result}
    assert said(hidden.response("tool", key.id)) == []
    hidden.left("alice")
    assert said(hidden.joined("alice")) == [sent]


@pytest.mark.rule("4.2.in_progress", "4.2.fulfilled_by_response", "4.4.already_in_progress")
def test_what_we_fulfill_unseen_is_in_progress_and_then_fulfilled(hidden: Peer) -> None:
    key = fulfilling(hidden)
    record = hidden.record("alice", "p1")
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
    record = hidden.record("alice", "p1")
    assert (record.state, record.in_progress_by) == ("pending", None)
    again = fulfilling(hidden)
    hidden.response("tool", key.id, result=CONTENT)  # too late, and carried out all the same
    assert hidden.table.is_open(again)


REFUSED = {"error": {"code": -32000, "message": "no", "data": {"reason": "refused"}}}
NOT_FOUND = {"error": {"code": "NOT_FOUND", "message": "no such tool"}}
CONFIRMED = {"error": {"code": 1, "message": "cancelled"}}


@pytest.mark.rule("2.relay.sent")
@pytest.mark.parametrize(
    ("answer", "withdrawn", "sent_on"),
    [
        (NOT_FOUND, False, True),
        ({"result": 5}, False, True),
        (REFUSED, False, False),
        ({"result": {"content": [], "_meta": {}}}, True, True),  # it crossed the cancel
        (CONFIRMED, True, False),
    ],
)
def test_an_answer_is_sent_on_as_it_is_unless_nothing_came_of_it(
    hidden: Peer, answer: dict[str, Any], withdrawn: bool, sent_on: bool
) -> None:
    key = fulfilling(hidden)
    if withdrawn:
        hidden.withdraw("alice", "p1")
    relayed = said(hidden.response("tool", key.id, **answer), kinds.MCP_RESPONSE)
    told = [(each.correlation, each.payload) for each in relayed]
    payload = {"jsonrpc": "2.0", "id": "p1", **answer}
    assert told == ([(("p1", key.id), payload)] if sent_on else [])


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


@pytest.mark.rule("2.relay.accepted", "5.who.response")
@pytest.mark.parametrize(
    "foreign",
    [
        *({"sender": name} for name in ("mallory", "stranger", "me")),
        {"to": ("alice",)},
        {"body": REFUSED},
    ],
)
def test_nothing_else_fulfills_a_broadcast_proposal(hidden: Peer, foreign: dict[str, Any]) -> None:
    key = hidden.begins_proposal()
    assert woken(relay(hidden, key.id, **foreign)) == {}
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
    body = payloads.progress(key.id, 1, 2, "half")
    for sender, told in (("alice", []), ("bob", [(key, 1, "half")])):
        header: dict[str, Any] = {"to": ("me",), "correlation": (key.id, "r1"), "id": sender}
        effects = hidden.hears(kinds.MCP_REQUEST, body, sender=sender, **header)
        assert [(each.key, each.done, each.message) for each in of(effects, Progressed)] == told
