"""Envelopes that reach a handler, and those that are refused at the door (PROTOCOL 4.4, 4.10)."""

import pytest

from tests.protocol.exchange.peer import CALL, Peer, started
from tests.tables import Key
from tests.wire import draft, payloads


@pytest.mark.rule("4.4.handlers_see")
@pytest.mark.parametrize(
    ("to", "seen"), [((), True), (("me",), True), (("bob", "me"), True), (("bob",), False)]
)
def test_handlers_see_what_is_broadcast_or_addressed_to_us(
    me: Peer, to: tuple[str, ...], seen: bool
) -> None:
    assert (started(me.proposal("alice", "p1", to=to)) == [Key("in", "alice", "p1")]) is seen
    assert me.record("alice", "p1").state == "pending"


@pytest.mark.rule("4.10.any_context")
def test_messages_are_handled_whatever_their_context(me: Peer) -> None:
    call = payloads.request("tools/call", CALL, "a1")
    request = draft("mcp/request", call, id="a1", sender="alice", to=("me",), context="elsewhere")
    assert started(me.receives(request)) == [Key("in", "alice", "a1")]
