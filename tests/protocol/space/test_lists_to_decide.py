"""Open proposals that a newcomer may decide, which it asks for as it comes (PROTOCOL 4.6)."""

from typing import Any

import pytest

from meup_agent.protocol.space.state.indexes import MAX_CANCELLED_BYTES
from meup_agent.protocol.space.state.inflight import MAX_READ_BYTES, MAX_SHARED_BYTES
from meup_agent.protocol.wire.membership import MAX_LISTED
from tests.protocol.space.room import CALL, Room


def told(room: Room, name: str, **query: Any) -> list[str]:
    return [each["envelope"]["id"] for each in room.list_for(name, **query)]


@pytest.mark.rule("4.6.newcomers")
@pytest.mark.parametrize("restarted", [False, True])
def test_open_proposals_are_told_in_the_order_of_their_acceptance(
    room: Room, restarted: bool
) -> None:
    for name, id in (("ann", "p1"), ("eve", "p2"), ("ann", "p3"), ("ann", "gone")):
        room.propose(name, id)
    room.withdraw("ann", "gone")
    if restarted:
        room.restart()
    assert told(room, "reviewer") == ["p1", "p2", "p3"]
    assert told(room, "reviewer", proposer="eve") == ["p2"]
    assert told(room, "reviewer", limit=2) == ["p2", "p3"]


@pytest.mark.rule("4.6.newcomers")
@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("writer", ["p"]),
        ("censor", ["p", "q"]),
        ("guest", []),
        ("ann", []),
        ("reviewer", ["p", "q"]),
    ],
)
def test_only_what_the_asker_may_decide_is_told(room: Room, name: str, may: list[str]) -> None:
    room.propose("ann", "p")
    room.propose("ann", "q", tool="read")
    assert told(room, name) == may


@pytest.mark.rule("4.6.newcomers.cancelled")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_proposal_comes_with_its_requests_cancelled_ones_too(room: Room, restarted: bool) -> None:
    for id in ("p", "refused", "done", "again"):
        room.propose("ann", id)
        room.request("reviewer", f"r{id}", id)
    for id in ("p", "done", "again"):
        room.cancel("reviewer", f"r{id}")
    refusal = {"error": {"code": -32000, "message": "no", "data": {"reason": "refused"}}}
    room.say("tools", "mcp.response", refusal, "no", correlationId="rrefused")
    room.respond("rdone")
    room.request("eve", "s", "again")
    if restarted:
        room.restart()
    found = {
        each["envelope"]["id"]: {
            request["envelope"]["id"]: request.get("cancelled", False)
            for request in each.get("requests", [])
        }
        for each in room.list_for("writer")
    }
    assert found == {"p": {"rp": True}, "refused": {}, "again": {"ragain": True, "s": False}}


@pytest.mark.thorough
@pytest.mark.rule("4.6.newcomers.cancelled")
def test_cancelled_requests_are_bounded_and_go_with_their_proposal(room: Room) -> None:
    room.propose("ann", "p")
    for nth in range(2_000):
        room.now += 1_000_000  # within the pace of a participant
        room.request("reviewer", f"r{nth}", "p")
        room.cancel("reviewer", f"r{nth}")
    (proposal,) = room.host.owner.in_flight
    assert 100 < len(proposal.cancelled) < 1_000
    assert sum(each.size for each in proposal.cancelled.values()) <= MAX_CANCELLED_BYTES
    (listed,) = room.list_for("writer")
    assert [each["envelope"]["id"] for each in listed["requests"]] == [
        f"r{nth}" for nth in range(1_996, 2_000)
    ]
    room.withdraw("ann", "p")
    assert not proposal.cancelled


@pytest.mark.rule("4.6.newcomers")
def test_many_requests_for_one_proposal_keep_nobody_from_the_others(room: Room) -> None:
    room.propose("ann", "p")
    room.propose("eve", "q")
    for nth in range(200):
        room.now += 1_000_000
        room.request("reviewer", f"r{nth}", "q")
    first, second = room.list_for("writer")
    assert first["envelope"]["id"] == "p"
    assert [each["envelope"]["id"] for each in second["requests"]] == [f"r{n}" for n in range(4)]


@pytest.mark.rule("4.6.newcomers")
@pytest.mark.parametrize("size", [0, MAX_SHARED_BYTES, MAX_SHARED_BYTES - 1_000])
def test_of_too_much_each_proposer_has_its_newest_told(room: Room, size: int) -> None:
    room.propose("ann", "hers")
    call = {"method": "tools/call", "params": {"name": "write", "text": "x" * size}}
    flood = MAX_READ_BYTES // MAX_SHARED_BYTES - 2 if size else 3 * MAX_LISTED
    for number in range(flood):
        room.propose("eve", f"flood{number}", payload=call)
    found = told(room, "reviewer")
    assert "hers" in found
    if not size:
        assert len(found) == MAX_LISTED
        assert (found[0], found[-1]) == ("hers", f"flood{flood - 1}")


@pytest.mark.rule("4.6.newcomers")
@pytest.mark.parametrize("seconds", [70, 70.000001])
def test_what_has_certainly_expired_is_left_out(room: Room, seconds: float) -> None:
    params = {"name": "write", "_meta": {"dev.meup/expires_at": "2025-01-01T00:00:10Z"}}
    room.propose("ann", "p", payload={"method": "tools/call", "params": params})
    room.propose("ann", "q", payload={**CALL, "ttl": 10_000})
    room.now += round(seconds * 1_000_000)
    listed = room.list_for("reviewer")
    assert [each["envelope"]["id"] for each in listed] == (["p", "q"] if seconds == 70 else [])
    if listed:
        assert listed[1]["expires_at"] == "2025-01-01T00:00:10.000Z"


@pytest.mark.rule("4.6.proposer_left")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_newcomer_is_told_when_a_proposer_left(room: Room, restarted: bool) -> None:
    for name in ("ann", "eve"):
        member = room.joins(name)
        room.propose(name, f"of {name}")
        if name == "ann":
            room.now += 1_000_000
            room.host.leave(member)
    room.propose("guest", "of guest")  # over HTTP, where it is never present
    room.now += 3_000_000
    if restarted:
        room.restart()
    left = "2025-01-01T00:00:01.000Z"
    # One that was here as the gateway ended has left with it.
    ended = "2025-01-01T00:00:04.000Z" if restarted else None
    found = [each.get("proposer_left") for each in room.list_for("reviewer")]
    assert found == [left, ended, None]
    room.joins("eve", seen=0)
    found = [each.get("proposer_left") for each in room.list_for("tools")]
    assert found == [left, None, None]
