"""Open exchanges of a space, followed from what is accepted."""

import json
import tracemalloc
from typing import Any

import pytest

from meup_agent import Envelope, ProposalState
from meup_agent.protocol.space.state.inflight import MAX_OPEN_BYTES, MAX_OPEN_REQUESTS, InFlight
from tests.wire import draft

CALL: dict[str, Any] = {"method": "tools/call", "params": {"name": "write"}}


class Following:
    def __init__(self) -> None:
        self.open = InFlight()

    def say(
        self, kind: str, sender: str, id: str, payload: dict[str, Any], **header: Any
    ) -> Envelope:
        envelope = draft(kind, payload, id=id, sender=sender, **header)
        self.open.track(envelope, payload, 0)
        return envelope

    def request(self, id: str, *fulfills: str, tool: str = "write") -> None:
        payload = {"method": "tools/call", "params": {"name": tool}, "id": id}
        self.say("mcp/request", "bob", id, payload, to=("tools",), correlation=fulfills)

    def state(self, proposer: str) -> ProposalState:
        (proposal,) = self.open.of(proposer)
        return proposal.state

    def ids(self, participant: str) -> list[str]:
        return [item.envelope.id for item in self.open.of(participant)]


@pytest.fixture
def following() -> Following:
    return Following()


def test_the_oldest_request_is_forgotten_first_and_no_notification_is_open(
    following: Following,
) -> None:
    following.say("mcp/request", "bob", "n", {"method": "notifications/progress", "params": {}})
    for number in range(MAX_OPEN_REQUESTS + 1):
        following.request(f"r{number}")
    expected = [f"r{number}" for number in range(1, MAX_OPEN_REQUESTS + 1)]
    assert following.ids("bob") == expected


def test_payloads_are_kept_as_long_as_there_is_room(following: Following) -> None:
    half = {**CALL, "text": "x" * (MAX_OPEN_BYTES // 2)}
    for number in (1, 2):
        following.say("mcp/proposal", "ann", f"p{number}", half)
    first, second = following.open.of("ann")
    assert (first.whole, second.whole) == (True, False)
    assert first.envelope.payload == half
    assert second.envelope.payload == {}
    for number in (1, 2):
        following.say("mcp/withdraw", "ann", "w", {}, correlation=(f"p{number}",))
    following.say("mcp/proposal", "ann", "p3", half)
    (third,) = following.open.of("ann")
    assert third.whole


@pytest.mark.parametrize("field", ["method", "tool", "target", "cursor"])
@pytest.mark.parametrize("kind", ["mcp/proposal", "mcp/request"])
def test_long_names_are_not_kept_beside_the_payloads(
    following: Following, kind: str, field: str
) -> None:
    count, long = 4, "x" * MAX_OPEN_BYTES
    payload = {
        "method": {"method": long, "cursor": "tools/list"}.get(field, "tools/call"),
        "params": {
            "name": long if field == "tool" else "write",
            "cursor": long if field == "cursor" else "",
            "_meta": {"dev.meup/target": long if field == "target" else "tools"},
        },
    }
    text = json.dumps(payload)
    tracemalloc.start()
    try:
        for number in range(count):
            following.say(kind, "ann", f"p{number}", json.loads(text))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(following.open.of("ann")) == count
    assert kept < MAX_OPEN_BYTES


def test_a_long_name_is_another_than_one_that_begins_like_it(following: Following) -> None:
    long = "x" * MAX_OPEN_BYTES
    call = {"method": "tools/call", "params": {"name": f"{long}1"}}
    following.say("mcp/proposal", "ann", "p", call)
    following.request("r1", "p", tool=f"{long}2")
    assert following.state("ann") is ProposalState.PENDING
    following.request("r2", "p", tool=f"{long}1")
    assert following.state("ann") is ProposalState.IN_PROGRESS
