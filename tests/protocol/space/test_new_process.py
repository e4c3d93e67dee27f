"""The joins that end what a participant has open, and what they leave open (PROTOCOL 4.2)."""

from typing import Any

import pytest

from tests.protocol.frames import frame_by
from tests.protocol.space.room import CALL, Member, Room
from tests.protocol.space.scene import CutOff
from tests.spaces import Allowance, MemoryJournal, Place

pytestmark = pytest.mark.rule("4.2.new_process")


def says(room: Room, member: Member, kind: str, payload: Any, id: str, **header: Any) -> None:
    said = {"id": id, "protocol": member.form.dialect, **header}
    room.host.receive(member, frame_by(member.participant, kind, payload, **said))


def begins(room: Room, **how: Any) -> Member:
    """A process of ann that has proposed p and asked for r."""
    process = room.joins("ann", **how)
    propose(room, process)
    says(room, process, "mcp.request", {**CALL, "id": "r"}, "r", to=["tools"])
    return process


def propose(room: Room, process: Member) -> None:
    says(room, process, "mcp.proposal", CALL, "p")


def fulfills(room: Room, *requests: str) -> None:
    """A process of reviewer makes requests for p, which a process of ann has proposed."""
    propose(room, room.joins("ann"))
    fulfiller = room.joins("reviewer")
    for name in requests:
        call = {**CALL, "id": name}
        says(room, fulfiller, "mcp.request", call, name, to=["tools"], correlationId="p")


def ended(room: Room) -> list[tuple[str, str, str]]:
    """What the gateway has ended by itself: by kind, its id, and who had begun it."""
    found: list[tuple[str, str, str]] = []
    for entry in room.journal.recover("demo", since=0, limit=1_000).entries:
        envelope = entry.envelope
        if envelope.sender == "system:gateway" and envelope.kind.startswith("mcp/"):
            payload = envelope.payload_object
            meta = payload.get("_meta") or payload["params"]["_meta"]
            found.append((envelope.kind, envelope.correlation[0], meta["dev.meup/begun_by"]))
    return found


ALL_OF_ANN = [("mcp/request", "r", "ann"), ("mcp/withdraw", "p", "ann")]


@pytest.mark.parametrize("before", ["is there", "has left", "left with the gateway"])
def test_a_new_process_ends_what_the_one_before_had_open(room: Room, before: str) -> None:
    process = begins(room)
    if before == "has left":
        room.host.leave(process)
    elif before == "left with the gateway":
        room.restart()
    assert ended(room) == []
    room.joins("ann")
    assert ended(room) == ALL_OF_ANN
    assert room.host.owner.in_flight == ()
    room.joins("ann")
    assert ended(room) == ALL_OF_ANN  # once


def test_a_process_that_resumes_or_has_a_gap_ends_nothing(room: Room) -> None:
    process = begins(room)
    seen = room.journal.latest("demo")
    room.host.leave(process)
    room.joins("ann", seen=seen)
    room.joins("ann", seen=1)  # which the journal does not reach
    assert ended(room) == []
    assert len(room.host.owner.in_flight) == 2


def test_a_gap_over_a_restart_without_a_journal_ends_nothing(room: Room) -> None:
    begins(room)
    room.journal = MemoryJournal(lambda: room.now)
    room.restart()
    process = room.joins("ann", seen=5)
    propose(room, process)
    room.joins("ann", seen=7)
    assert ended(room) == []


@pytest.mark.parametrize("dialect", ["meup/v0.1", "mew/v0.4"])
def test_a_member_that_cannot_resume_ends_nothing(room: Room, dialect: str) -> None:
    begins(room)
    room.joins("ann", resumes=False, dialect=dialect)
    assert ended(room) == []


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_said_over_http_is_of_no_process(
    room: Room, is_away: bool, restarted: bool
) -> None:
    process = room.joins("ann")
    if is_away:
        room.host.leave(process)
    room.propose("ann", "p")
    room.say("ann", "mcp.request", {**CALL, "id": "r"}, "r", to=["tools"])
    room.propose("eve", "q")
    for _ in range(2):
        if restarted:
            room.restart()
        assert ended(room) == []
        room.joins("ann")
    assert ended(room) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_said_beside_outlives_a_new_process(room: Room, restarted: bool) -> None:
    room.joins("ann")
    beside = Member("ann")
    beside.place = Place.BESIDE
    room.host.join(beside)
    propose(room, beside)
    if restarted:
        room.restart()
    room.joins("ann")
    assert ended(room) == []


def test_what_runs_for_a_proposal_of_a_dead_process_is_cancelled(room: Room) -> None:
    fulfills(room, "x")
    room.joins("ann")
    assert ended(room) == [("mcp/withdraw", "p", "ann"), ("mcp/request", "x", "reviewer")]


@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_dead_process_fulfills_goes_on_until_its_proposer_withdraws(
    room: Room, restarted: bool
) -> None:
    fulfills(room, "x", "y")
    room.joins("reviewer")
    room.propose("eve", "q")
    if restarted:
        room.restart()
    assert ended(room) == []
    room.say("ann", "mcp.withdraw", {"reason": "other"}, "w", correlationId=["p"] * 64)
    assert ended(room) == [("mcp/request", "x", "reviewer"), ("mcp/request", "y", "reviewer")]


def test_what_a_withdraw_cancels_counts_in_the_pace_of_its_requester(room: Room) -> None:
    fulfills(room, *(f"x{number}" for number in range(500)))
    room.joins("reviewer")
    room.now += 60_000_000  # it may say as much at once as ever
    room.withdraw("ann", "p")
    passed = 0
    while room.host.owner.check_rate("reviewer", 0) is None:
        passed += 1
    assert passed == Allowance().messages_burst - 500


def test_a_request_of_a_live_fulfiller_is_left_to_it(room: Room) -> None:
    fulfills(room, "x")
    room.withdraw("ann", "p")
    assert ended(room) == []


def test_initialize_is_never_cancelled(room: Room) -> None:
    process = room.joins("ann")
    says(room, process, "mcp.request", {"method": "initialize", "id": "r"}, "r", to=["tools"])
    room.joins("ann")
    assert ended(room) == []
    assert room.host.owner.in_flight == ()


def test_a_gateway_that_was_killed_before_it_had_ended_all_does_so_as_it_starts() -> None:
    room = Room()
    room.journal = journal = CutOff(lambda: room.now)
    room.restart()
    begins(room)
    journal.left = 1  # the presence
    room.joins("ann")
    assert ended(room) == []
    journal.left = None
    for _ in range(2):
        room.restart()
        assert ended(room) == ALL_OF_ANN


@pytest.mark.rule("3.open.ghosts")
def test_who_began_anew_before_a_restart_has_room_after_it() -> None:
    room = Room()
    room.journal = journal = CutOff(lambda: room.now)
    room.restart()
    most = 1_000
    process = room.joins("ann")
    for number in range(most):
        room.now += 100_000
        says(room, process, "mcp.proposal", CALL, f"p{number}")
    journal.left = 1
    room.joins("ann")
    journal.left = None
    room.restart()
    propose(room, room.joins("ann"))
    assert [item.envelope.id for item in room.host.owner.in_flight] == ["p"]
