"""Chats that are acknowledged, and taken back (PROTOCOL 4.19)."""

from typing import Any

import pytest

from meup_agent import Limits, Mode
from tests.protocol.exchange.peer import Peer, cancelled, dropped, said, started
from tests.tables import Effect, Role
from tests.wire import OURS, kinds

V04 = "mew/v0.4"


def chat(me: Peer, id: str, *, sender: str = "alice", to: tuple[str, ...] = ("me",)) -> list[str]:
    """Let a chat arrive; the statuses by which it is acknowledged."""
    effects = me.hears(kinds.CHAT, {"text": "hello"}, sender=sender, id=id, to=to)
    return [each.payload["status"] for each in said(effects, kinds.CHAT_ACKNOWLEDGE)]


def cancel(me: Peer, *chats: str, sender: str = "alice") -> list[Effect]:
    payload = {"reason": "handled elsewhere"}
    name = f"cancel of {chats} by {sender}, {len(me.effects)}"
    return me.hears(kinds.CHAT_CANCEL, payload, sender=sender, id=name, correlation=chats)


def a_chatter(**options: Any) -> Peer:
    me = Peer.among("alice", "bob", gives=OURS, roles={Role.CHAT, Role.ACKNOWLEDGE}, **options)
    return me


@pytest.mark.rule("4.19.cancelled")
def test_cancelled_chat_that_waits_starts_no_handler() -> None:
    me = a_chatter(limits=Limits(handlers=1))
    for each in ("c1", "c2", "c3"):
        chat(me, each)
    (first,) = started(me.effects)
    cancel(me, "c2")
    me.effects.clear()
    me.did(me.table.returned(first, None, me.now))
    assert len(started(me.effects)) == 1
    assert me.table.queued == 0


@pytest.mark.rule("4.19.own")
def test_only_its_sender_cancels_a_chat() -> None:
    me = a_chatter()
    chat(me, "c1")
    effects = cancel(me, "c1", sender="bob")
    assert dropped(effects) == ["chat_cancel_by_another"]
    # Of two chats under one id, each sender takes back its own.
    chat(me, "c1", sender="bob")
    bobs = started(me.effects)[-1]
    me.effects.clear()
    cancel(me, "c1", sender="bob")
    assert cancelled(me.effects).keys() == {bobs}
    assert dropped(cancel(me)) == ["malformed_chat_cancel"]


@pytest.mark.rule("4.19.acknowledged")
def test_chat_is_acknowledged_in_the_dialect_that_has_it() -> None:
    me = a_chatter(dialect=V04)
    assert chat(me, "c1") == ["received"]
    assert chat(me, "c1") == []  # it came before
    assert chat(me, "c2", to=()) == []  # to everybody
    assert chat(me, "c3", to=("bob",)) == []
    silent = a_chatter()
    assert chat(silent, "c1") == []
    for mode in (Mode.OBSERVING, Mode.BESIDE):
        assert chat(a_chatter(dialect=V04, mode=mode), "c1") == []


@pytest.mark.rule("4.19.acknowledged")
def test_acknowledgement_is_told() -> None:
    me = a_chatter()
    effects = me.hears(
        kinds.CHAT_ACKNOWLEDGE, {"status": "read"}, sender="bob", id="a", correlation=("c1",)
    )
    assert [key.id.partition(":")[0] for key in started(effects)] == ["acknowledge"]
