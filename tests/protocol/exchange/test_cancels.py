"""Cancels: whose count, by which id, and what they never end (PROTOCOL 4.7, 4.8)."""

from __future__ import annotations

from typing import Any

import pytest

from meup_agent import Withdrawal
from meup_agent.types import CauseStep
from tests.protocol.exchange.peer import (
    Peer,
    cancelled,
    cancels_said,
    dropped,
    said,
    started,
)
from tests.tables import Key, ProposalKey

A1 = Key("in", "alice", "a1")


PROPOSAL = ProposalKey("alice", "p1")


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


P1 = Key("in", "alice", "p1")


@pytest.mark.rule("5.who.cancel", "4.7.same_sender")
def test_a_cancel_by_another_participant_is_dropped(me: Peer) -> None:
    me.request("alice", "a1")
    effects = me.cancel("bob", "a1")
    assert dropped(effects) == ["cancel_by_another"]
    assert cancelled(effects) == {}
    assert len(said(me.returns(A1))) == 1


@pytest.mark.rule("5.tombstone")
def test_a_cancel_before_its_request_keeps_the_handler_from_starting(me: Peer) -> None:
    me.cancel("alice", "a1")
    effects = me.request("alice", "a1")
    assert started(effects) == []
    assert said(effects) == []
    assert dropped(effects) == ["cancelled_before"]


@pytest.mark.rule("5.tombstone", "4.8.request_id")
def test_a_cancel_before_its_request_may_use_the_json_rpc_id(me: Peer) -> None:
    me.cancel("alice", 7)
    assert started(me.request("alice", "a1", rpc_id=7)) == []
    assert started(me.request("bob", "b1", rpc_id=7)) == [Key("in", "bob", "b1")]


@pytest.mark.rule("5.tombstone")
def test_a_cancel_is_no_withdraw(me: Peer) -> None:
    me.cancel("alice", "p1")
    assert started(me.proposal("alice", "p1")) == [P1]
    assert cancelled(me.cancel("alice", "p1")) == {}
    me.withdraw("alice", "a1")
    assert started(me.request("alice", "a1")) == [A1]
