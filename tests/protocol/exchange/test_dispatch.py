"""Envelopes that reach a handler, and those that are refused at the door (PROTOCOL 4.4, 5)."""

from __future__ import annotations

import pytest

from tests.protocol.exchange.peer import (
    Peer,
    dropped,
    said,
    started,
)
from tests.tables import Key, Role

P1 = Key("in", "alice", "p1")


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


@pytest.mark.rule("5.who.system", "4.10.only_the_gateway")
@pytest.mark.parametrize("kind", ["system/welcome", "system/presence", "system/error"])
def test_system_messages_from_other_participants_are_dropped(me: Peer, kind: str) -> None:
    key = me.begins_request()
    payload = {
        "you": {"id": "mallory"},
        "participants": [],
        "event": "leave",
        "participant": {"id": "tool"},
        "error": "refused",
    }
    effects = me.system(kind, payload, sender="bob", correlation=(key.id,))
    assert dropped(effects) == ["forged_system"]
    assert me.table.me == "me"
    assert "tool" in me.table.roster
    assert me.is_waiting(key)


@pytest.mark.rule("5.who.system")
@pytest.mark.parametrize("name", ["system:gateway", "gateway", "system"])
def test_the_gateway_has_three_names(me: Peer, name: str) -> None:
    me.system("system/presence", {"event": "leave", "participant": {"id": "tool"}}, sender=name)
    assert "tool" not in me.table.roster
