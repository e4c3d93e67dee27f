"""The roster: the facts that are kept of each participant."""

from typing import Any

import pytest

from meup_agent.protocol.exchange.roster import MAX_SHARED_CHARS, read_participant


def said(name: str, capabilities: list[Any]) -> dict[str, Any]:
    return {"id": name, "capabilities": capabilities}


def test_agents_that_hear_of_the_same_participant_share_its_record() -> None:
    first = read_participant(said("alice", [{"kind": "chat"}]))
    assert first is read_participant(said("alice", [{"kind": "chat"}]))
    assert first is not read_participant(said("bob", [{"kind": "chat"}]))
    assert first is not read_participant(said("alice", [{"kind": "mcp/*"}]))


def test_large_announcements_are_kept_by_who_heard_them_alone() -> None:
    large = [{"kind": "x" * MAX_SHARED_CHARS}]
    first, second = (read_participant(said("alice", large)) for _ in range(2))
    assert first == second
    assert first is not second


@pytest.mark.parametrize(
    "capabilities",
    [[1], [True], [1.0], [None], [float("inf")], ["\ud800"], [{"kind": "chat", "payload": {}}]],
    ids=repr,
)
def test_a_shared_record_says_exactly_what_was_announced(capabilities: list[Any]) -> None:
    participant = read_participant(said("alice", capabilities))
    assert participant is not None
    assert repr(participant.capabilities) == repr(tuple(capabilities))
