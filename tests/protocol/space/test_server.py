"""A space with its members, without a loop."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.properties.hosted import Seat
from tests.properties.late_journal import File, LateJournal
from tests.protocol.frames import frame_by
from tests.spaces import FrameFormat, Place, SpaceServer, ignore, member_capabilities, space_server
from tests.wire import kinds


class Listener:
    last_seen: int | None = None
    place: Place = Place.ANSWERING

    def __init__(self, participant: str, pack: Callable[[bytes], bytes] = bytes) -> None:
        self.participant = participant
        self.form = FrameFormat("meup/v0.1", pack=pack)
        self.frames: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.label = participant
        self.order: list[str] = []

    def deliver(self, packed: bytes) -> None:
        self.frames.append(packed)
        self.order.append(self.label)

    def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    def ready(self, then: Callable[[], None]) -> None:
        then()

    def heard(self) -> list[tuple[str, Any]]:
        """Kind and payload of each frame since the last call."""
        frames, self.frames = self.frames, []
        return [(said["kind"], said["payload"]) for said in map(json.loads, frames)]


def host_with(
    *names: str, pack: Callable[[bytes], bytes] = bytes
) -> tuple[SpaceServer, list[Listener]]:
    may = {name: [{"kind": "chat"}] for name in names}
    host = space_server(may, lambda: 1_735_689_600_000_000)
    members = [Listener(name, pack) for name in names]
    for member in members:
        host.join(member)
    for member in members:
        member.frames.clear()
    return host, members


def joins(host: SpaceServer, participant: str, place: Place = Place.ANSWERING) -> Listener:
    listener = Listener(participant)
    listener.place = place
    host.join(listener)
    return listener


def chat(sender: str, number: int = 1) -> bytes:
    return frame_by(sender, "chat", {"message": "hi"}, id=f"{number}")


def test_accepted_envelope_goes_to_everybody_packed_once() -> None:
    packed: list[bytes] = []

    def pack(frame: bytes) -> bytes:
        packed.append(frame)
        return b"<" + frame + b">"

    host, members = host_with("alice", "bob", "carol", pack=pack)
    packed.clear()
    host.receive(members[0], chat("alice"))
    assert packed == [chat("alice")]
    assert [member.frames for member in members] == [[b"<" + chat("alice") + b">"]] * 3
    assert (host.counters.frames_in, host.counters.accepted) == (1, 1)


def test_older_connection_is_not_listened_to() -> None:
    host, (older, bob) = host_with("alice", "bob")
    joins(host, "alice")
    bob.frames.clear()
    host.receive(older, chat("alice"))
    assert bob.frames == []


def test_closing_tells_nobody_that_the_others_leave() -> None:
    host, members = host_with("alice", "bob")
    host.close(1012, "restart")
    assert [member.closed for member in members] == [(1012, "restart")] * 2
    for member in members:
        host.leave(member)
    assert [member.frames for member in members] == [[], []]


def test_those_whom_an_envelope_names_get_it_first() -> None:
    host, members = host_with("alice", "bob", "carol", "dave")
    host.owner.grants.configure("erin", member_capabilities([]))
    order: list[str] = []
    for member in members:
        member.order = order

    host.receive(members[0], frame_by("alice", "chat", to=["dave", "erin", "bob", "dave"]))

    assert order == ["dave", "bob", "alice", "carol"]


def late(*names: str) -> tuple[SpaceServer, LateJournal]:
    """A space whose journal keeps what it is given when it is told to."""
    journal = LateJournal(File(), lambda: 1)
    return space_server(dict.fromkeys(names, ()), lambda: 1, journal=journal), journal


@pytest.mark.rule("6.resume.order")
def test_nothing_is_told_to_a_newer_connection_before_its_welcome() -> None:
    host, journal = late("alice")
    older, newer = Seat("alice", None, "meup/v0.1"), Seat("alice", None, "meup/v0.1")
    host.join(older)
    host.receive(older, chat("alice"))  # is refused, when what came before is kept
    host.join(newer)
    journal.commit(10)
    assert json.loads(newer.wire[0])["kind"] == "system.welcome"


@pytest.mark.rule("3.manage.kick")
def test_who_is_removed_and_at_once_invited_again_keeps_the_new_connection() -> None:
    host, journal = late("alice", "lead")
    host.owner.grants.configure("lead", member_capabilities([{"kind": "space/*"}]))

    def manage(kind: str) -> None:
        frame = frame_by("lead", kind, {"participant_id": "alice"}, id=kind)
        host.owner.receive_as("lead", frame, "meup/v0.1", ignore)

    older, newer = Seat("alice", None, "meup/v0.1"), Seat("alice", None, "meup/v0.1")
    host.join(older)
    manage("space.kick")
    manage("space.invite")
    host.join(newer)
    journal.commit(10)
    assert older.closed is not None
    assert newer.closed is None
    assert host.delivery.member("alice") is newer


@pytest.mark.rule("3.manage.kick")
def test_who_is_removed_between_the_door_and_the_space_stays_out() -> None:
    host, (lead,) = host_with("lead")
    host.owner.grants.configure("lead", member_capabilities([{"kind": "space/kick"}]))
    host.owner.grants.configure("alice", member_capabilities([]))
    alice = Listener("alice")  # let in at the door
    host.receive(lead, frame_by("lead", "space.kick", {"participant_id": "alice"}))
    host.join(alice)
    assert alice.closed is not None
    assert alice.closed[0] == 4403
    assert alice.frames == []
    assert "alice" not in host.owner
    host.leave(alice)


@pytest.mark.rule("6.resume.once")
def test_what_was_accepted_is_so_when_it_is_sent_again_whatever_was_revoked_since() -> None:
    host, (alice,) = host_with("alice")
    answers: list[Any] = []
    host.owner.receive_as("alice", chat("alice"), "meup/v0.1", answers.append)
    host.owner.grants.configure("alice", member_capabilities([]))
    host.owner.receive_as("alice", chat("alice"), "meup/v0.1", answers.append)
    host.owner.receive_as("alice", chat("alice", 2), "meup/v0.1", answers.append)
    first, again, new = answers
    assert first.seq == again.seq
    assert new.code == "capability_violation"
    assert len(alice.frames) == 2  # and the second for alice alone


@pytest.mark.rule("4.7.logged")
def test_each_cancel_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    host, (alice,) = host_with("alice")
    caplog.set_level("DEBUG", "meup_agent.gateway")
    for params in (
        {"requestId": "r\n1", "reason": "\x1b[2Jno" + "!" * 500},
        {"requestId": 7},
        {"requestId": [7], "reason": {"a": 1}},
    ):
        cancel = frame_by("alice", "mcp.request", {"method": kinds.CANCELLED, "params": params})
        host.receive(alice, cancel)
    assert [record.getMessage() for record in caplog.records] == [
        "in 'demo' 'alice' cancels request 'r\\n1' of 'alice': '\\x1b[2Jno" + "!" * 194 + "'",
        "in 'demo' 'alice' cancels request '7' of 'alice': ''",
        "in 'demo' 'alice' cancels request '' of 'alice': ''",
    ]
    caplog.clear()
    caplog.set_level("INFO", "meup_agent.gateway")
    host.receive(alice, cancel)
    assert caplog.records == []
