"""Open proposals follow the welcome of a newcomer that may decide them (PROTOCOL 4.6)."""

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from meup_agent.protocol.space.indexes import MAX_CANCELLED_BYTES
from meup_agent.protocol.space.presence import MAX_REPLAY_BYTES
from tests.spaces import (
    MAX_REPLAYED,
    TAKEN_OVER,
    Allowance,
    FrameFormat,
    MemoryJournal,
    Place,
    SpaceCounters,
    SpaceServer,
    member_capabilities,
)

NOW = 1_735_689_600_000_000
CALL = {"method": "tools/call", "params": {"name": "write"}}
MARK = "dev.meup/replayed"

Said = dict[str, Any]

MAY: dict[str, list[Said]] = {
    "ann": [{"kind": "*"}],
    "eve": [{"kind": "*"}],
    "tools": [{"kind": "*"}],
    "reviewer": [{"kind": "mcp/*"}],
    "writer": [{"kind": "mcp/request", "payload": {"params": {"name": "write"}}}],
    "censor": [{"kind": "mcp/reject"}],
    "guest": [{"kind": "chat"}, {"kind": "mcp/proposal"}],
}


class Member:
    """A member that keeps what it gets."""

    place = Place.ANSWERING

    def __init__(
        self,
        participant: str,
        *,
        seen: int | None = None,
        dialect: str = "meup/v0.1",
        resumes: bool = True,
    ) -> None:
        self.participant = participant
        self.last_seen = seen
        self.form = FrameFormat(dialect, resumes)
        self.heard: list[Said] = []

    def deliver(self, packed: bytes) -> None:
        self.heard.append(json.loads(packed))

    def close(self, code: int, reason: str) -> None:
        assert code == TAKEN_OVER

    def ready(self, then: Callable[[], None]) -> None:
        then()

    @property
    def replayed(self) -> list[tuple[str, bool]]:
        """Each replay's id, and whether its proposal is in progress."""
        return [(said["id"], said[MARK]["in_progress"]) for said in self.heard if MARK in said]


class Room:
    """A host with participants who say things."""

    def __init__(self, *, entries: int = 100_000) -> None:
        ids = count(1)
        self.now = NOW
        self.allowance = Allowance()
        self.journal = MemoryJournal(lambda: self.now, max_entries=entries)
        self.new_id: Callable[[], str] = lambda: f"g{next(ids)}"
        self.restart()

    def restart(self) -> None:
        self.host = SpaceServer(
            "demo",
            participants={name: member_capabilities(listed) for name, listed in MAY.items()},
            journal=self.journal,
            new_id=self.new_id,
            now=lambda: self.now,
            counters=SpaceCounters(),
            allowance=self.allowance,
        )

    def say(self, sender: str, kind: str, payload: Said, id: str, **header: Any) -> None:
        frame = {
            "protocol": "meup/v0.1",
            "id": id,
            "from": sender,
            "kind": kind,
            "payload": payload,
            **header,
        }
        refused: list[Any] = []
        self.host.owner.receive_as(sender, json.dumps(frame).encode(), "meup/v0.1", refused.append)
        assert hasattr(refused[0], "seq"), refused

    def propose(self, sender: str, id: str, *, tool: str = "write", **header: Any) -> None:
        call = {"method": "tools/call", "params": {"name": tool}}
        self.say(sender, "mcp.proposal", header.pop("payload", call), id, **header)

    def request(self, sender: str, id: str, proposal: str) -> None:
        self.say(
            sender, "mcp.request", {**CALL, "id": id}, id, correlationId=proposal, to=["tools"]
        )

    def cancel(self, sender: str, request: str) -> None:
        cancel = {"method": "notifications/cancelled", "params": {"requestId": request}}
        self.say(sender, "mcp.request", cancel, f"c{request}", to=["tools"])

    def respond(self, request: str) -> None:
        self.say("tools", "mcp.response", {"result": {}}, f"re-{request}", correlationId=request)

    def withdraw(self, sender: str, proposal: str) -> None:
        self.say(
            sender, "mcp.withdraw", {"reason": "other"}, f"w{proposal}", correlationId=proposal
        )

    def joins(self, name: str, **how: Any) -> Member:
        member = Member(name, **how)
        self.host.join(member)
        return member


@pytest.mark.rule("4.6.replays")
@pytest.mark.parametrize("restarted", [False, True])
def test_open_proposals_follow_the_welcome_in_order(room: Room, restarted: bool) -> None:
    for name, id in (("ann", "p1"), ("eve", "p2"), ("ann", "p3"), ("ann", "gone")):
        room.propose(name, id, odd=[1])
    room.withdraw("ann", "gone")
    if restarted:
        room.restart()
    reviewer = room.joins("reviewer")
    kinds = [said["kind"] for said in reviewer.heard]
    assert kinds == ["system.welcome", *["mcp.proposal"] * 3, "system.presence"]
    assert reviewer.replayed == [("p1", False), ("p2", False), ("p3", False)]
    welcome, first = reviewer.heard[:2]
    assert first["seq"] == welcome["seq"] == welcome["payload"]["until"]
    assert (first["odd"], first["payload"], first["from"]) == ([1], CALL, "ann")
    room.propose("ann", "new")
    assert MARK not in reviewer.heard[-1]


@pytest.mark.rule("4.6.replays")
def test_a_proposal_in_progress_comes_with_its_requests(room: Room) -> None:
    room.propose("ann", "p")
    room.request("reviewer", "r", "p")
    room.propose("ann", "done")
    room.request("reviewer", "s", "done")
    room.respond("s")
    assert room.joins("eve").replayed == [("p", True), ("r", True)]


@pytest.mark.rule("4.6.replays.cancelled")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_proposal_comes_with_the_requests_that_were_cancelled(
    room: Room, restarted: bool
) -> None:
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
    late = room.joins("writer")
    assert late.replayed == [
        ("p", False),
        ("rp", False),
        ("refused", False),
        ("again", True),
        ("ragain", True),
        ("s", True),
    ]
    cancelled = [said["id"] for said in late.heard if said.get(MARK, {}).get("cancelled")]
    assert cancelled == ["rp", "ragain"]


@pytest.mark.rule("4.6.replays.cancelled")
def test_cancelled_requests_are_bounded_and_go_with_their_proposal(room: Room) -> None:
    room.propose("ann", "p")
    for nth in range(2_000):
        room.now += 1_000_000  # within the pace of a participant
        room.request("reviewer", f"r{nth}", "p")
        room.cancel("reviewer", f"r{nth}")
    (proposal,) = room.host.owner.in_flight
    assert 100 < len(proposal.cancelled) < 1_000
    assert sum(each.size for each in proposal.cancelled.values()) <= MAX_CANCELLED_BYTES
    room.withdraw("ann", "p")
    assert not proposal.cancelled


@pytest.mark.rule("4.6.replays")
@pytest.mark.parametrize("cancelled", [False, True])
def test_many_requests_for_one_proposal_keep_nobody_from_the_others(
    room: Room, cancelled: bool
) -> None:
    room.propose("ann", "p")
    room.propose("eve", "q")
    for nth in range(200):
        room.now += 1_000_000
        room.request("reviewer", f"r{nth}", "q")
        if cancelled:
            room.cancel("reviewer", f"r{nth}")
    told = [id for id, _ in room.joins("writer").replayed]
    assert told[:2] == ["p", "q"]
    assert told[2:] == [f"r{nth}" for nth in (range(196, 200) if cancelled else range(4))]


@pytest.mark.rule("4.6.replays")
@pytest.mark.parametrize(
    ("name", "replayed"),
    [
        ("writer", ["p"]),
        ("censor", ["p", "q"]),
        ("guest", []),
        ("ann", []),
        ("reviewer", ["p", "q"]),
    ],
)
def test_only_who_may_decide_is_told(room: Room, name: str, replayed: list[str]) -> None:
    room.propose("ann", "p")
    room.propose("ann", "q", tool="read")
    assert [id for id, _ in room.joins(name).replayed] == replayed


@pytest.mark.rule("4.6.replays")
@pytest.mark.parametrize("dialect", ["meup/v0.1", "meup/v0.2", "mew/v0.4", "mcpx/v0.1"])
def test_who_does_not_resume_hears_nothing_twice(room: Room, dialect: str) -> None:
    room.propose("ann", "p")
    assert room.joins("reviewer", dialect=dialect, resumes=False).replayed == []
    assert room.joins("reviewer", dialect=dialect).replayed == [("p", False)]


@pytest.mark.rule("4.6.replays")
def test_who_resumes_reads_what_it_missed_once(room: Room) -> None:
    before = room.joins("reviewer")
    room.host.leave(before)
    room.propose("ann", "p")
    back = room.joins("reviewer", seen=before.heard[-1]["seq"])
    assert [said["id"] for said in back.heard].count("p") == 1
    assert back.replayed == []


@pytest.mark.rule("4.6.replays")
def test_after_a_gap_what_is_still_open_is_told() -> None:
    room = Room(entries=3)
    before = room.joins("reviewer")
    room.host.leave(before)
    room.propose("ann", "p")
    for number in range(5):
        room.say("ann", "chat", {"message": "hi"}, f"c{number}")
    back = room.joins("reviewer", seen=before.heard[-1]["seq"])
    assert back.heard[0]["payload"]["gap"]
    assert back.replayed == [("p", False)]


@pytest.mark.rule("4.6.replays.again")
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("read", [1, 2])
def test_who_was_lost_while_it_was_told_is_told_again(
    room: Room, read: int, restarted: bool
) -> None:
    for id in ("p1", "p2", "p3"):
        room.propose("ann", id)
    before = room.joins("reviewer")
    room.host.leave(before)
    room.propose("ann", "p4")
    room.withdraw("ann", "p1")
    if restarted:
        room.restart()
    back = room.joins("reviewer", seen=before.heard[:read][-1]["seq"])
    assert back.heard[0]["payload"] | {"resumed": True, "gap": False} == back.heard[0]["payload"]
    assert [id for id, _ in back.replayed] == ["p2", "p3", "p4"]
    missed = [said["id"] for said in back.heard if MARK not in said]
    assert "p4" in missed
    assert "wp1" in missed
    room.host.leave(back)
    assert room.joins("reviewer", seen=back.heard[-1]["seq"]).replayed == []


@pytest.mark.rule("4.6.replays.again")
def test_who_was_lost_behind_a_gap_is_told_again() -> None:
    room = Room(entries=4)
    room.propose("ann", "p")
    before = room.joins("reviewer")
    room.host.leave(before)
    for number in range(6):
        room.say("ann", "chat", {"message": "hi"}, f"c{number}")
    late = room.joins("reviewer", seen=before.heard[-1]["seq"])
    assert late.heard[0]["payload"]["gap"]
    room.host.leave(late)
    back = room.joins("reviewer", seen=late.heard[0]["seq"] + 1)
    assert back.replayed == [("p", False)]


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
    reviewer = room.joins("reviewer")
    told = [said[MARK].get("proposer_left") for said in reviewer.heard if MARK in said]
    # One that was here as the gateway ended has left with it.
    ended = "2025-01-01T00:00:04.000Z" if restarted else None
    assert told == ["2025-01-01T00:00:01.000Z", ended, None]
    room.joins("eve", seen=0)
    again = room.joins("tools")
    told = [said[MARK].get("proposer_left") for said in again.heard if MARK in said]
    assert told == ["2025-01-01T00:00:01.000Z", None, None]


@pytest.mark.rule("4.6.replays")
def test_what_has_certainly_expired_is_left_out(room: Room) -> None:
    params = {"name": "write", "_meta": {"dev.meup/expires_at": "2025-01-01T00:00:10Z"}}
    room.propose("ann", "p", payload={"method": "tools/call", "params": params})
    room.now += 70_000_000
    assert room.joins("reviewer").replayed == [("p", False)]
    room.now += 1
    assert room.joins("reviewer").replayed == []


@pytest.mark.rule("4.6.replays")
def test_a_newcomer_is_told_when_a_foreign_ttl_ends(room: Room) -> None:
    room.propose("ann", "p", payload={**CALL, "ttl": 10_000})
    room.now += 40 * 1_000_000
    late = room.joins("reviewer")
    (mark,) = [said[MARK] for said in late.heard if MARK in said]
    assert mark == {"in_progress": False, "expires_at": "2025-01-01T00:00:10.000Z"}


@pytest.mark.rule("4.6.replays")
def test_of_too_many_each_proposer_has_its_newest_told(room: Room) -> None:
    room.propose("ann", "hers")
    for number in range(3 * MAX_REPLAYED):
        room.propose("eve", f"flood{number}")
    told = [id for id, _ in room.joins("reviewer").replayed]
    assert len(told) == MAX_REPLAYED
    assert told[0] == "hers"
    assert told[-1] == f"flood{3 * MAX_REPLAYED - 1}"


@pytest.mark.rule("4.6.replays")
def test_what_is_large_keeps_nobody_from_the_others(room: Room) -> None:
    room.propose("ann", "hers")
    for number in range(12):
        params = {"name": "write", "text": "x" * MAX_REPLAY_BYTES}
        room.propose("eve", f"p{number}", payload={"method": "tools/call", "params": params})
    assert room.joins("reviewer").replayed == [("hers", False)]


@pytest.mark.rule("4.6.replays")
def test_the_mark_is_the_gateways(room: Room) -> None:
    forged: Said = {MARK: {"in_progress": True}, "seq": 1}
    room.propose("ann", "p", **forged)
    reviewer = room.joins("reviewer")
    assert reviewer.replayed == [("p", False)]
    assert reviewer.heard[1]["seq"] == reviewer.heard[0]["seq"]
