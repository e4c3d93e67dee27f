"""Streams in a space, decided and handed on without a loop."""

import json
from typing import Any

import pytest

from meup_agent.protocol.space.owner import MAX_WAITING_BYTES
from meup_agent.protocol.space.state.streams import MAX_WRITERS
from tests.properties.late_journal import File, LateJournal
from tests.protocol.space.stream_scene import SECOND, Reader, StreamScene
from tests.spaces import GRACE_SECONDS, MemoryJournal, Place, member_capabilities
from tests.wire import StreamFrame, write_frame


@pytest.fixture
def scene() -> StreamScene:
    scene = StreamScene()
    scene.join("ann", "bob", "cid")
    return scene


def streams_of(reader: Reader) -> Any:
    (welcome,) = [said for said in reader.heard() if said[0] == "system/welcome"]  # type: ignore[index]
    return welcome[1]["active_streams"]  # type: ignore[index]


def closed(stream: str, reason: str = "owner_left") -> Any:
    return ("stream/close", {"stream_id": stream, "reason": reason})


@pytest.mark.rule("8.close")
def test_owner_and_only_target_close_and_no_other(scene: StreamScene) -> None:
    for name in ("ann", "bob"):
        stream = scene.open("ann", "bob")
        scene.say("cid", "stream/close", {"stream_id": stream})
        assert scene.error("cid") == "unauthorized"
        scene.host.owner.grants.configure(name, member_capabilities([]))  # no capability is needed
        scene.say(name, "stream/close", {"stream_id": stream})
        assert scene.host.owner.streams == ()
        scene.join(name)
        scene.host.owner.grants.configure(name, scene.host.owner.grants["cid"])
    stream = scene.open("ann", "bob", "cid")
    scene.say("bob", "stream/close", {"stream_id": stream})
    assert scene.error("bob") == "unauthorized"


@pytest.mark.rule("8.close")
def test_close_may_name_what_opened_the_stream(scene: StreamScene) -> None:
    for by, which in (("ann", "request"), ("ann", "open"), ("bob", "open")):
        scene.forget()
        scene.open("ann", "bob")
        request, said = (json.loads(packed) for packed in scene.readers["bob"].waiting)
        about = request["id"] if which == "request" else said["id"]
        scene.say("cid", "stream/close", {}, correlation_id=[about])
        assert scene.error("cid") == ("stream_not_found" if which == "request" else "unauthorized")
        scene.say(by, "stream/close", {}, correlation_id=["x", about])
        assert scene.host.owner.streams == ()


@pytest.mark.rule("8.owner_left")
def test_owner_has_a_time_to_come_back(scene: StreamScene) -> None:
    stream = scene.open("ann")
    scene.leave("ann")
    scene.at += round(GRACE_SECONDS * SECOND) - 1
    scene.host.owner.expire()
    scene.join("ann")
    assert [each["stream_id"] for each in streams_of(scene.readers["ann"])] == [stream]
    scene.write("ann", stream)
    scene.leave("ann")
    scene.forget()
    # A gateway's loop calls it when it is due, and as often as it takes.
    scene.at += round(GRACE_SECONDS * SECOND)
    seconds, expire = scene.later.pop()
    assert seconds == pytest.approx(GRACE_SECONDS)
    assert scene.later == []
    expire()
    assert scene.readers["bob"].heard() == [closed(stream)]
    assert scene.host.owner.streams == ()


@pytest.mark.rule("8.owner_left", "8.http")
def test_owner_that_writes_over_http_is_not_away(scene: StreamScene) -> None:
    stream = scene.open("ann")
    scene.leave("ann")
    for _ in range(3):
        scene.at += round(GRACE_SECONDS * SECOND) - 1
        assert scene.host.owner.relay_as("ann", write_frame(stream, b"data")) is None
        scene.host.owner.expire()
    assert [each.id for each in scene.host.owner.streams] == [stream]
    scene.at += round(GRACE_SECONDS * SECOND)
    scene.host.owner.expire()
    assert scene.host.owner.streams == ()


@pytest.mark.rule("8.owner_left")
@pytest.mark.parametrize("left_before", [True, False])
def test_new_process_of_the_owner_ends_the_streams_of_the_old(
    scene: StreamScene, left_before: bool
) -> None:
    stream = scene.open("ann")
    if left_before:
        scene.leave("ann")
    scene.forget()
    assert streams_of(scene.join("ann", resumes=True)) == []
    assert closed(stream) in scene.readers["bob"].heard()


def join_beside(scene: StreamScene, *, seen: int | None = None) -> None:
    """Another connection of ann, by which the scene goes on."""
    scene.readers["ann"] = reader = Reader("ann", resumes=True)
    reader.place, reader.last_seen = Place.BESIDE, seen
    scene.host.join(reader)


def wait_for_the_absent(scene: StreamScene) -> None:
    scene.at += round(GRACE_SECONDS * SECOND)
    scene.host.owner.expire()


@pytest.mark.rule("8.owner_left")
def test_a_stream_opened_beside_ends_after_its_connection(scene: StreamScene) -> None:
    for comes_back in (True, False):
        join_beside(scene)
        stream = scene.open("ann")
        scene.leave("ann")
        if comes_back:
            join_beside(scene, seen=scene.host.journal.latest("demo"))
            wait_for_the_absent(scene)
            assert [each.id for each in scene.host.owner.streams] == [stream]
            scene.leave("ann")
        join_beside(scene)  # one that has just begun
        scene.forget()
        wait_for_the_absent(scene)
        assert scene.readers["bob"].heard() == [closed(stream)]
    assert "ann" in scene.host.owner


@pytest.mark.rule("8.owner_left")
def test_a_connection_beside_keeps_no_stream_of_an_agent_that_is_gone(scene: StreamScene) -> None:
    stream = scene.open("ann")
    scene.leave("ann")
    join_beside(scene)
    own = scene.open("ann")
    wait_for_the_absent(scene)
    assert [each.id for each in scene.host.owner.streams] == [own]
    assert stream != own


@pytest.mark.rule("8.owner_left", "8.writer_left")
def test_connection_that_takes_over_goes_on_writing(scene: StreamScene) -> None:
    stream = scene.open("ann")
    scene.say("ann", "stream/grant-write", {"stream_id": stream, "participant_id": "bob"})
    older = [scene.readers["ann"], scene.readers["bob"]]
    scene.join("ann", "bob")
    scene.forget()
    for name in ("ann", "bob"):
        scene.write(name, stream)
    for reader in older:
        scene.host.receive(reader, f"#{stream}#stale".encode())
    assert scene.frames("cid") == [b"x", b"x"]


@pytest.mark.rule("8.removed")
def test_removed_owner_takes_its_streams_along(scene: StreamScene) -> None:
    stream = scene.open("ann")
    other = scene.open("bob")
    scene.say("bob", "stream/grant-write", {"stream_id": other, "participant_id": "ann"})
    scene.forget()
    kicked = scene.readers["ann"]
    scene.say("cid", "space/kick", {"participant_id": "ann"})
    assert kicked.closed
    for name in (stream, other):
        scene.host.receive(kicked, f"#{name}#x".encode())
    heard = scene.readers["bob"].heard()
    assert closed(stream, "revoked") in heard
    assert not any(isinstance(said, StreamFrame) for said in heard)
    (left,) = scene.host.owner.streams
    assert left.writers == ("bob",)


@pytest.mark.rule("8.removed")
def test_capability_that_is_revoked_closes_what_it_allowed(scene: StreamScene) -> None:
    scene.join("dan")
    scene.host.owner.grants.configure("dan", member_capabilities([]))
    allowed = {"kind": "stream/request", "payload": {"format": "a"}}
    grant = scene.say("ann", "capability/grant", {"recipient": "dan", "capabilities": [allowed]})
    scene.say("dan", "stream/request", {"format": "b"})
    assert scene.error("dan") == "capability_violation"
    stream = scene.open("dan", format="a")
    scene.open("ann", format="a")
    scene.say("ann", "capability/revoke", {"recipient": "dan", "grant_id": grant})
    assert closed(stream, "revoked") in scene.readers["bob"].heard()
    assert len(scene.host.owner.streams) == 1


@pytest.mark.rule("8.paused")
def test_paused_writer_writes_nothing(scene: StreamScene) -> None:
    stream = scene.open("ann")
    scene.say("bob", "participant/pause", {}, to=["ann"])
    scene.forget()
    scene.write("ann", stream)
    assert scene.error("ann") == "paused"
    scene.say("bob", "participant/resume", {}, to=["ann"])
    scene.write("ann", stream)
    assert scene.frames("cid") == [b"x"]


@pytest.mark.rule("8.bounds")
@pytest.mark.limit("max_open_streams", "max_space_streams")
def test_streams_and_writers_are_bounded() -> None:
    scene = StreamScene(max_open_streams=2, max_space_streams=3)
    scene.join("ann", "bob", "cid")
    given = scene.open("ann")
    scene.say("ann", "stream/transfer-ownership", {"stream_id": given, "new_owner": "bob"})
    scene.open("ann")
    scene.say("ann", "stream/request", {})
    assert scene.error("ann") == "limit_exceeded"
    own = scene.open("bob")
    scene.say("cid", "stream/request", {})
    assert scene.error("cid") == "limit_exceeded"
    for number in range(MAX_WRITERS - 1):
        name = f"writer{number}"
        scene.host.owner.grants.configure(name, scene.host.owner.grants["ann"])
        scene.join(name)
        scene.say("bob", "stream/grant-write", {"stream_id": own, "participant_id": name})
    assert len(next(each for each in scene.host.owner.streams if each.id == own).writers) == 64
    scene.say("bob", "stream/grant-write", {"stream_id": own, "participant_id": "cid"})
    assert scene.error("bob") == "invalid_operation"


@pytest.mark.rule("8.ids", "8.not_journaled")
def test_streams_end_with_the_gateway_and_their_ids_are_not_given_again() -> None:
    at = [0]
    journal = MemoryJournal(lambda: at[0])
    scene = StreamScene(journal=journal)
    scene.join("ann")
    old = scene.open("ann")
    kept = journal.latest("demo")
    scene.write("ann", old)
    assert journal.latest("demo") == kept
    again = StreamScene(journal=journal, at=scene.at + 1)
    assert streams_of(again.join("ann")) == []
    again.write("ann", old)
    assert again.error("ann") == "unauthorized_stream_write"


@pytest.mark.rule("8.lost", "8.bounds")
@pytest.mark.limit("max_stream_queued_frames")
def test_slow_reader_loses_frames_and_is_told_how_many() -> None:
    scene = StreamScene(max_stream_queued_frames=2)
    scene.join("ann", "bob", "cid")
    one, two = scene.open("ann"), scene.open("ann")
    scene.forget()
    bob = scene.readers["bob"]
    bob.paused = True
    for number in range(5):
        scene.write("ann", one, b"%d" % number)
    scene.write("ann", two, b"a")
    scene.say("ann", "chat", {"text": "hi"})
    assert len(scene.frames("cid")) == 6  # the others lose nothing
    assert [said for said in bob.heard() if isinstance(said, StreamFrame)] == [
        StreamFrame(one, b"0"),
        StreamFrame(one, b"1"),
        StreamFrame(two, b"a"),
    ]
    scene.say("ann", "stream/close", {"stream_id": two})  # nothing of it was lost
    bob.catch_up()
    scene.write("ann", one, b"5")
    assert [said for said in bob.heard() if isinstance(said, StreamFrame) or said[0] != "chat"] == [
        ("stream/close", {"stream_id": two}),
        ("stream/lost", {"stream_id": one, "frames": 3, "bytes": 3 * len(f"#{one}#0")}),
        StreamFrame(one, b"5"),
    ]
    assert (scene.counters.stream_frames, scene.counters.stream_frames_lost) == (7, 3)
    assert not bob.closed


@pytest.mark.rule("8.lost", "8.bounds")
@pytest.mark.limit("max_stream_queued_bytes")
def test_bytes_that_wait_for_a_slow_reader_are_bounded_and_a_loss_is_told_before_the_end() -> None:
    scene = StreamScene(max_stream_queued_bytes=1_000)
    scene.join("ann", "bob")
    stream = scene.open("ann")
    scene.forget()
    bob = scene.readers["bob"]
    bob.paused = True
    for _ in range(5):
        scene.write("ann", stream, b"x" * 400)
    assert [type(said) for said in bob.heard()] == [StreamFrame, StreamFrame]
    assert scene.counters.stream_frames_lost == 3
    scene.say("ann", "stream/close", {"stream_id": stream})
    bob.catch_up()
    assert [said[0] for said in bob.heard()] == ["stream/lost", "stream/close"]  # type: ignore[index]


@pytest.mark.rule("8.order", "8.bounds")
def test_frames_keep_their_place_while_the_journal_is_behind() -> None:
    journal = LateJournal(File(), lambda: 0)
    scene = StreamScene(journal=journal)
    scene.join("ann", "bob")
    journal.commit(100)
    stream = scene.open("ann")
    journal.commit(100)
    scene.forget()
    scene.say("ann", "chat", {"text": "hi"})
    scene.write("ann", stream, b"1")
    large = b"x" * (MAX_WAITING_BYTES // 2)
    for _ in range(3):
        scene.write("ann", stream, large)
    scene.say("ann", "stream/close", {"stream_id": stream})
    assert scene.readers["bob"].heard() == []
    journal.commit(100)
    heard = scene.readers["bob"].heard()
    frames = [said for said in heard if isinstance(said, StreamFrame)]
    assert heard[0] == ("chat", {"text": "hi"})
    assert heard[1] == StreamFrame(stream, b"1")
    assert len(frames) < 4
    assert heard[-1][0] == "stream/close"  # type: ignore[index]
    assert scene.counters.stream_frames_lost
