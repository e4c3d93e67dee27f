"""Withdraws, cancels, rejects and responses that are sent again (PROTOCOL 4.14)."""

from __future__ import annotations

import pytest

from tests.protocol.exchange.peer import Peer, said
from tests.tables import Key


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
