"""Gateways and participants that exist, and our answer to what they do (PROTOCOL 1, 2 and 4.13)."""

from __future__ import annotations

from typing import Any

import pytest

from meup_agent import Withdrawal
from meup_agent.protocol.exchange.effects import Drop
from meup_agent.protocol.exchange.inbound_exchange import SETTLED_A_SENDER
from meup_agent.types import Conflict, Guarantees
from tests.protocol.exchange.peer import (
    CALL,
    EXCHANGES,
    Peer,
    cancelled,
    dropped,
    of,
    said,
    started,
    woken,
)
from tests.tables import Role, Start
from tests.wire import Responded, decode, kinds, payloads


def existing(gives: Guarantees, *, roles: frozenset[Role] = EXCHANGES) -> Peer:
    peer = Peer(roles=roles, dialect="mew/v0.4")
    peer.welcomed("alice", "bob", "tool", gives=gives)
    peer.effects.clear()
    return peer


# --- what only a gateway may say ---


@pytest.mark.rule("2.second_welcome", "4.10.only_the_gateway")
def test_a_forged_second_welcome_changes_neither_our_name_nor_what_the_gateway_gives() -> None:
    me = Peer(dialect="mew/v0.4")
    me.welcomed("alice")
    before = me.table.roster.guarantees
    forged = {
        "you": {"id": "mallory", "capabilities": [{"kind": "*"}]},
        "participants": [],
        "dev.meup/guarantees": {"identity_checked": True, "echo": True},
    }
    assert dropped(me.system(kinds.SYSTEM_WELCOME, forged)) == ["malformed_welcome"]
    assert "alice" in me.table.roster
    forged["you"] = {"id": me.name, "capabilities": []}
    me.system(kinds.SYSTEM_WELCOME, forged, to=(me.name,))
    assert me.table.me == me.name
    assert me.table.roster.guarantees == before == Guarantees(echo=True)
    assert me.table.roster.may_evict


@pytest.mark.rule("2.second_welcome")
def test_a_grant_changes_what_we_may_do_and_nothing_else() -> None:
    me = existing(Guarantees(echo=True), roles=EXCHANGES | {Role.JOIN, Role.LEAVE})
    key = me.begins_request(("gone",))
    me.passes(20)
    granted = {
        "you": {"id": me.name, "capabilities": [{"kind": "chat"}]},
        "participants": [{"id": name, "capabilities": []} for name in ("alice", "bob", "tool")],
    }
    effects = me.system(kinds.SYSTEM_WELCOME, granted, to=(me.name,))
    assert started(effects) == []
    assert said(effects) == []
    assert not me.table.roster.is_allowed(me.name, kinds.MCP_REQUEST, {})
    assert me.table.roster.is_allowed(me.name, kinds.CHAT, {})
    me.passes(11)
    assert not me.is_waiting(key), "the absence of whom we asked was counted anew"


@pytest.mark.rule("2.heartbeat", "5.who.system")
@pytest.mark.parametrize(
    ("kind", "expected"),
    [("system/heartbeat", True), ("system/register", True), (kinds.SYSTEM_PRESENCE, False)],
)
def test_heartbeats_of_others_make_no_noise(me: Peer, kind: str, expected: bool) -> None:
    (drop,) = of(me.system(kind, {"event": "leave"}, sender="bob"), Drop)
    assert (drop.why, drop.expected) == ("forged_system", expected)


@pytest.mark.rule("1.lenient")
def test_an_error_without_id_time_or_sender_is_the_gateways(me: Peer) -> None:
    frame = b'{"kind":"system/error","payload":{"error":"Bad","code":"VALIDATION_ERROR"}}'
    (drop,) = of(me.did(me.table.receive(decode(frame), me.now)), Drop)
    assert drop.why == "refused_by_gateway"


@pytest.mark.rule("1.lenient")
def test_unknown_presence_events_mean_nothing(me: Peer) -> None:
    invited = {"event": "invited", "participant": {"id": "carol", "capabilities": []}}
    assert me.system(kinds.SYSTEM_PRESENCE, invited) == []
    assert "carol" not in me.table.roster


# --- answers that are none, or look strange ---


@pytest.mark.rule("2.answered_notification")
def test_an_answer_to_a_notification_of_ours_is_left_out_without_noise(me: Peer) -> None:
    key = me.begins_request()
    (cancel,) = said(me.gives_up(key))
    error = {"code": -32601, "message": "Method not found"}
    (drop,) = of(me.response("tool", cancel.id, error=error), Drop)
    assert (drop.why, drop.expected) == ("unknown_response", True)


@pytest.mark.rule("2.answered_notification")
def test_an_answer_to_nothing_of_ours_is_logged(me: Peer) -> None:
    (drop,) = of(me.response("tool", "never-said"), Drop)
    assert (drop.why, drop.expected) == ("unknown_response", False)


@pytest.mark.rule("2.answered_notification")
def test_notifications_are_never_answered(me: Peer) -> None:
    for method in (kinds.CANCELLED, kinds.PROGRESS, "notifications/initialized"):
        body = payloads.notification(method, {})
        effects = me.hears(kinds.MCP_REQUEST, body, sender="bob", id=method, to=("me",))
        assert said(effects) == []


@pytest.mark.rule("1.lenient")
@pytest.mark.parametrize(
    ("payload", "result", "error"),
    [
        (5, 5, None),
        ("text", "text", None),
        ({}, {}, None),
        ({"result": 5}, 5, None),
        ({"error": "NOT_FOUND"}, None, {"code": "error", "message": "NOT_FOUND"}),
        ({"error": {"code": "E", "message": "m"}}, None, {"code": "E", "message": "m"}),
    ],
)
def test_responses_are_read_as_they_are_met(
    me: Peer, payload: Any, result: Any, error: Any
) -> None:
    key = me.begins_request()
    effects = me.hears(
        kinds.MCP_RESPONSE, payload, sender="tool", id="x", to=("me",), correlation=(key.id,)
    )
    assert woken(effects)[key] == Responded("tool", result, error)


# --- order without echoes ---


@pytest.mark.rule("4.13.without_echoes")
def test_without_echoes_what_we_gave_up_is_withdrawn_at_once() -> None:
    me = existing(Guarantees(), roles=EXCHANGES | {Role.CONFLICT})
    body = payloads.proposal("tools/call", CALL)
    key = me.begins_proposal(("bob",), sent=False)
    assert body["params"] == CALL
    me.did(me.table.sent(key.id, me.now))
    me.gives_up(key)
    assert isinstance(me.ending(key), Withdrawal)
    assert me.own(key).state == "withdrawn"
    me.request("bob", "r1", to=("tool",), fulfills=key.id)
    (start,) = of(me.response("tool", "r1"), Start)
    assert isinstance(start.work.subject, Conflict)
    assert me.own(key).state == "withdrawn"


@pytest.mark.rule("4.13.without_echoes")
def test_without_echoes_a_response_that_we_saw_first_wins() -> None:
    me = existing(Guarantees())
    key = me.begins_proposal(("bob",), sent=False)
    me.did(me.table.sent(key.id, me.now))
    me.request("bob", "r1", to=("tool",), fulfills=key.id)
    me.response("tool", "r1")
    assert said(me.gives_up(key)) == []
    assert me.own(key).state == "fulfilled"


@pytest.mark.rule("4.2.gateway_order")
def test_with_echoes_the_gateway_says_which_came_first() -> None:
    me = existing(Guarantees(echo=True))
    key = me.begins_proposal(("bob",), sent=False)
    me.did(me.table.sent(key.id, me.now))
    me.gives_up(key)
    assert me.own(key).state == "pending"


# --- our own rejection, where it does not come back ---


@pytest.mark.rule("5.proposal.told_of_withdraw")
def test_without_echoes_the_withdraw_that_follows_our_rejection_is_not_told() -> None:
    me = existing(Guarantees(), roles=EXCHANGES | {Role.WITHDRAW})
    (key,) = started(me.proposal("alice", "p1", to=("me",)))
    me.rejects("alice", "p1")
    me.returns(key)
    effects = me.withdraw("alice", "p1")
    assert (started(effects), cancelled(effects)) == ([], {})


# --- shares ---


@pytest.mark.rule("5.memory.bounded", "4.14.no_harm_twice")
def test_one_who_asks_a_lot_has_no_request_of_another_run_twice(me: Peer) -> None:
    (key,) = started(me.request("bob", "b1"))
    me.returns(key)
    for number in range(SETTLED_A_SENDER + 1):
        (key,) = started(me.request("alice", f"a{number}"))
        me.returns(key)
    assert dropped(me.request("bob", "b1")) == ["duplicate_request"]
    assert len(started(me.request("alice", "a0"))) == 1


@pytest.mark.rule("2.routing", "4.4.incapable")
@pytest.mark.parametrize(
    ("to", "target", "rejects"),
    [
        (("bob", "me"), "me", False),
        (("bob", "me"), "tool", True),
        (("me",), "me", True),
        (("bob", "me"), None, True),
    ],
)
def test_who_is_addressed_to_see_what_it_is_to_carry_out_rejects_nothing(
    to: tuple[str, ...], target: str | None, rejects: bool
) -> None:
    me = existing(Guarantees(hidden_targets=True), roles=frozenset({Role.REQUEST}))
    meta = {} if target is None else {"_meta": {payloads.TARGET: target}}
    effects = me.proposal("alice", "p1", to=to, params={**CALL, **meta})
    assert [envelope.kind for envelope in said(effects)] == [kinds.MCP_REJECT] * rejects
    assert me.record("alice", "p1").state == "pending"
