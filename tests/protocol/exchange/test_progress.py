"""Progress: whose counts, and until when (PROTOCOL 4.9)."""

from __future__ import annotations

import pytest

from tests.protocol.exchange.peer import Peer, dropped, of
from tests.tables import Progressed


@pytest.mark.rule("4.9.increases")
def test_progress_only_increases(me: Peer) -> None:
    key = me.begins_request()
    told = [
        effect.done
        for done in (1, 3, 3, 2, 3.5, True, "4", None, 10**400, 4)
        for effect in of(me.progress("tool", key.id, done), Progressed)
    ]
    assert told == [1.0, 3.0, 3.5, 4.0]


@pytest.mark.rule("5.who.progress")
def test_progress_from_another_participant_is_dropped(me: Peer) -> None:
    key = me.begins_request(to=("tool",))
    assert dropped(me.progress("bob", key.id, 3)) == ["foreign_progress"]


@pytest.mark.rule("5.who.progress")
def test_progress_of_the_fulfillment_reaches_the_proposer(me: Peer) -> None:
    key = me.begins_proposal()
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    effects = me.progress("tool", "b1", 1, to=("bob",), correlation=("b1",))
    assert of(effects, Progressed) == [Progressed(key, 1.0, 10.0, "")]
    assert me.progress("alice", "b1", 2, to=("bob",), correlation=("b1",)) == []


@pytest.mark.rule("5.who.progress", "4.8.key_by_sender")
def test_progress_for_another_requester_with_our_id_is_not_ours(me: Peer) -> None:
    key = me.begins_request(to=("tool",))
    assert me.progress("tool", key.id, 1, to=("bob",)) == []
