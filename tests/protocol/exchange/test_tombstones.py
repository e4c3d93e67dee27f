"""Withdraws and cancels that come before what they name: how long, and how many."""

from __future__ import annotations

import pytest

from tests.protocol.exchange.peer import Peer, started
from tests.tables import Key, Tombstones


@pytest.mark.rule("5.tombstone.limits")
def test_a_tombstone_is_kept_for_five_minutes(me: Peer) -> None:
    me.cancel("alice", "a1")
    me.cancel("alice", "a2")
    me.passes(299)
    assert started(me.request("alice", "a1")) == []
    me.passes(1)
    assert started(me.request("alice", "a2")) == [Key("in", "alice", "a2")]


@pytest.mark.rule("5.tombstone.limits")
def test_a_sender_has_a_thousand_tombstones_of_its_own(me: Peer) -> None:
    me.cancel("bob", "b1")
    for number in range(1001):
        me.cancel("alice", f"a{number}")
    assert started(me.request("alice", "a0")) != []
    assert started(me.request("alice", "a1")) == []
    assert started(me.request("bob", "b1")) == []


@pytest.mark.rule("5.tombstone.limits")
def test_tombstones_are_bounded_in_bytes_and_senders() -> None:
    tombstones = Tombstones()
    for number in range(100):
        tombstones.put("cancelled", "alice", f"{number}" + "x" * 10_000, "other", 0.0)
    assert len(tombstones) < 30
    for number in range(2000):
        tombstones.put("withdrawn", f"sender{number}", "p", "other", 0.0)
    assert len(tombstones) == Tombstones.SENDERS
