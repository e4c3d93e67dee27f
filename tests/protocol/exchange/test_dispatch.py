"""Envelopes that reach a handler, and those that are refused at the door (PROTOCOL 4.4, 5)."""

from __future__ import annotations

import pytest

from tests.protocol.exchange.peer import (
    Peer,
    started,
)
from tests.tables import Key

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
