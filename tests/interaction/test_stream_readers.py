"""Streams that an agent reads, from a gateway played by hand: handlers, slow readers, ends."""

from typing import Any

import anyio
import pytest

from meup_agent import Agent, Chat, Context, Limits, Settings, Space, StreamReader
from meup_agent.errors import UsageError
from meup_agent.protocol.wire.streams import StreamOrigin
from tests.interaction.people import Notes, until
from tests.interaction.stream_gateway import (
    close_stream,
    joined,
    open_stream,
    put,
    stream_of,
    welcomed,
)
from tests.interaction.views import lines, session_of
from tests.session.gate import ME, Gate
from tests.tables import MAX_UNREAD_BYTES, MAX_UNREAD_FRAMES
from tests.wire import kinds


def reading(notes: Notes, *, hold: anyio.Event | None = None) -> Agent:
    """An agent that notes the frames of each stream, and its end."""
    agent = Agent(ME)

    @agent.on_stream
    async def read(stream: StreamReader) -> None:
        notes(f"{stream.id} of {stream.sender}")
        if hold is not None:
            await hold.wait()
        count = 0
        async for frame in stream:
            count += 1
            if len(frame) < 100:
                notes(frame)
        notes((stream.id, count, stream.lost, stream.gaps))
        notes(f"{stream.id} ended, {stream.ended}")

    return agent


async def test_a_handler_reads_a_stream_to_its_end(gate: Gate, notes: Notes) -> None:
    agent = Agent(ME)

    @agent.on_stream
    async def read(stream: StreamReader, ctx: Context) -> None:
        notes((stream.info.fields["format"], stream.about, ctx.sender, repr(stream)))
        notes(tuple([each async for each in stream]))
        notes(str(stream.ended))

    async with joined(gate, agent, "bob") as (_, end):
        info = stream_of("bob", fields={"direction": "upload", "format": "raw"}, about=("m",))
        await open_stream(end, info, "r-1")
        await put(end, "s-1", b"one", b"", b"th#ree")
        await close_stream(end, "s-1", "cancelled", "bob", text="no_longer_needed")
        await notes.until("cancelled: no_longer_needed")
        first = ("raw", "m", kinds.GATEWAY, "<StreamReader s-1 of 'bob'>")
        assert notes.all[:2] == [first, (b"one", b"", b"th#ree")]


async def test_streams_open_before_are_read_from_here_on(gate: Gate, notes: Notes) -> None:
    ours, theirs = stream_of(ME, "ours"), stream_of("bob", "theirs", targets=("carol",))
    to_us, for_all = stream_of("bob", "to-us", targets=("carol", ME)), stream_of("bob", "for-all")
    listed = (ours, theirs, to_us, for_all)
    async with joined(gate, reading(notes), "bob", streams=listed) as (space, end):
        await notes.until("to-us of bob", "for-all of bob")
        assert tuple(space.streams) == listed
        await put(end, "to-us", b"frame")
        await notes.until(b"frame")
        assert len(notes.all) == 3


@pytest.mark.rule("8.close")
async def test_a_close_names_its_stream_by_what_opened_it(gate: Gate, notes: Notes) -> None:
    """Another's request under the same id is another's, before our join and after it."""
    listed = tuple(
        stream_of(name, f"{name}s", origin=StreamOrigin(name, "1", f"{name}-opened"))
        for name in ("bob", "carol")
    )
    async with joined(gate, reading(notes), "bob", "carol", streams=listed) as (space, end):
        for stream, id in (("late", "opened"), ("other", "2nd")):
            await open_stream(end, stream_of("bob", stream), f"request-{id}", id)
        await notes.until(*(f"{each} of bob" for each in ("bobs", "late", "other")))
        for sender, about, left in (
            ("carol", "1", ["bobs", "late", "other"]),
            ("bob", "opened", ["bobs", "other"]),
            ("carol", "unknown", ["bobs", "other"]),
            ("bob", "request-2nd", ["bobs"]),
            ("bob", "bob-opened", []),
        ):
            await end.say(kinds.STREAM_CLOSE, {"reason": "x"}, sender=sender, correlation=(about,))
            await until_open(space, left)


async def until_open(space: Space, ids: list[str]) -> None:
    await until(lambda: [each.id for each in space.streams] == ids)


async def test_a_stream_without_handlers_is_read_by_its_id(gate: Gate) -> None:
    async with joined(gate, None, "bob", streams=(stream_of("bob"),)) as (space, end):
        with space.streams.read("s-1") as first, space.streams.read(space.streams[0]) as second:
            await put(end, "s-1", b"one")
            assert [await anext(first), await anext(second)] == [b"one", b"one"]
            await close_stream(end, "s-1", "complete", "bob")
            assert [each async for each in first] == []
            assert first.ended is not None
            assert first.ended.is_complete
        with pytest.raises(UsageError, match=r"is not open; see those in space\.streams"):
            space.streams.read("s-1").__enter__()


@pytest.mark.rule("8.behind")
async def test_a_reader_that_is_too_slow_loses_the_oldest_frames_and_is_told(
    gate: Gate, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    hold = anyio.Event()
    async with joined(gate, reading(notes, hold=hold), "bob") as (space, end):
        await open_stream(end, stream_of("bob"), "r-1")
        await notes.until("s-1 of bob")
        for number in range(MAX_UNREAD_FRAMES + 7):
            await put(end, "s-1", b"%d" % number)
        lost = {"stream_id": "s-1", "frames": 5, "bytes": 50}
        await end.say(kinds.STREAM_LOST, lost, sender=kinds.GATEWAY, to=(ME,))
        await close_stream(end, "s-1", "complete", "bob")
        await until(lambda: not space.streams)
        hold.set()
        await notes.until(("s-1", MAX_UNREAD_FRAMES, 12, 0))
        assert notes.all[1] == b"7"
        said = [each for each in lines(caplog) if "faster than its reader" in each]
        assert len(said) == 1


async def test_large_frames_are_bounded_by_their_bytes(gate: Gate, notes: Notes) -> None:
    hold = anyio.Event()
    async with joined(gate, reading(notes, hold=hold), "bob") as (space, end):
        await open_stream(end, stream_of("bob"), "r-1")
        await put(end, "s-1", *[b"x" * (MAX_UNREAD_BYTES // 2)] * 5)
        await close_stream(end, "s-1", "complete", "bob")
        await until(lambda: not space.streams)
        hold.set()
        await notes.until(("s-1", 2, 3, 0))


async def test_each_of_several_handlers_reads_every_frame(gate: Gate, notes: Notes) -> None:
    agent = Agent(ME)

    @agent.on_stream
    async def one(stream: StreamReader) -> None:
        notes(("one", *[each async for each in stream]))

    @agent.on_stream
    async def two(stream: StreamReader) -> None:
        notes(("two", *[each async for each in stream]))

    @agent.on_stream
    async def none() -> None:
        notes("none")

    async with joined(gate, agent, "bob") as (space, end):
        await open_stream(end, stream_of("bob"), "r-1")
        await put(end, "s-1", b"a", b"b")
        await close_stream(end, "s-1", "complete", "bob")
        await notes.until(("one", b"a", b"b"), ("two", b"a", b"b"), "none")
        await until(lambda: not session_of(space).table.running)
        assert len(session_of(space).table.streams.buffers) == 0


async def test_a_handler_that_reads_leaves_its_place(gate: Gate, notes: Notes) -> None:
    agent = reading(notes)

    @agent.on_chat
    async def chat(chat: Chat) -> None:
        notes(chat.text)

    async with joined(gate, agent, "bob", settings=Settings(limits=Limits(handlers=1))) as (_, end):
        await open_stream(end, stream_of("bob"), "r-1")
        await notes.until("s-1 of bob")
        await end.say(kinds.CHAT, {"message": "beside"}, sender="bob")
        await notes.until("beside")
        await put(end, "s-1", b"still read")
        await notes.until(b"still read")


async def test_frames_of_streams_that_no_handler_reads_go_nowhere(gate: Gate, notes: Notes) -> None:
    async with joined(gate, reading(notes), "bob") as (space, end):
        await put(end, "never-opened", b"x")
        await open_stream(end, stream_of("bob"), "r-1")
        await close_stream(end, "s-1", "complete", "bob")
        await put(end, "s-1", b"late")
        for malformed in (b"#", b"##x", b"#" + b"x" * 1000, b"#\xff#x"):
            await end.raw(malformed)
        await open_stream(end, stream_of("bob", "s-2"), "r-2")
        await put(end, "s-2", b"fine")
        await notes.until(b"fine")
        assert session_of(space).counters["invalid_stream_frame"] == 4
        assert b"late" not in notes.all


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (kinds.STREAM_OPEN, {"stream_id": "s-9", "owner": "bob"}),
        (kinds.STREAM_LOST, {"stream_id": "s-1", "frames": 5, "bytes": 5}),
        (
            kinds.STREAM_WRITE_GRANTED,
            {"stream_id": "s-1", "participant_id": "mallory", "authorized_writers": ["mallory"]},
        ),
    ],
)
async def test_only_the_gateway_says_what_becomes_of_streams(
    gate: Gate, notes: Notes, kind: str, payload: dict[str, Any]
) -> None:
    listed = (stream_of("bob"),)
    async with joined(gate, reading(notes), "bob", streams=listed) as (space, end):
        await end.say(kind, payload, sender="mallory", correlation=("r-9",))
        await until(lambda: session_of(space).counters["forged_stream"] == 1)
        assert tuple(space.streams) == listed


async def test_what_is_told_of_a_stream_later_is_waited_for(gate: Gate, notes: Notes) -> None:
    agent = Agent(ME)

    @agent.on_stream
    async def read(stream: StreamReader) -> None:
        notes((stream.id, stream.info.fields.get("format"), stream.about))

    bare = {"encoding": "text", "owner": "bob", "authorized_writers": ["bob"]}
    asked = {"direction": "upload", "format": "jsonl"}
    async with joined(gate, agent, "bob") as (_, end):

        async def opens(stream: str, request: str) -> None:
            said = {**bare, "stream_id": stream}
            await end.say(kinds.STREAM_OPEN, said, sender="gateway", correlation=(request,))

        await opens("later", "r-1")
        await end.say(kinds.STREAM_REQUEST, asked, sender="bob", id="r-1", correlation=("m",))
        await notes.until(("later", "jsonl", "m"))
        await end.say(kinds.STREAM_REQUEST, asked, sender="bob", id="r-2")
        await opens("before", "r-2")
        await notes.until(("before", "jsonl", None))
        await opens("never", "r-3")
        await put(end, "never", b"a frame")
        await notes.until(("never", None, None))


@pytest.mark.rule("8.reconnect")
async def test_after_a_reconnect_reading_goes_on_or_ends(gate: Gate, notes: Notes) -> None:
    goes_on, ends, new = (stream_of("bob", name) for name in ("goes-on", "ends", "new"))
    async with joined(gate, reading(notes), "bob", streams=(goes_on, ends)) as (_, end):
        await put(end, "goes-on", b"one")
        await notes.until(b"one", "ends of bob")
        end.drop()
        again = await welcomed(gate, "bob", streams=(goes_on, new))
        text = "the gateway no longer had it after a reconnect"
        await notes.until(f"ends ended, disconnected: {text}", "new of bob")
        await put(again, "goes-on", b"two")
        await close_stream(again, "goes-on", "complete", "bob")
        await notes.until(("goes-on", 2, 0, 1))


async def test_an_agent_that_stops_ends_the_reading(gate: Gate, notes: Notes) -> None:
    async with joined(gate, reading(notes), "bob") as (_, end):
        await open_stream(end, stream_of("bob"), "r-1")
        await notes.until("s-1 of bob")
    assert notes.all[-1] == "s-1 ended, disconnected: the agent shuts down"


async def test_an_agent_ends_what_no_gateway_ends(gate: Gate, notes: Notes) -> None:
    gate.gives = {}
    gate.dialect = "mew/v0.4"
    async with joined(gate, reading(notes), "bob", streams=(stream_of("bob"),)) as (_, end):
        await notes.until("s-1 of bob")
        await end.presence("leave", "bob")
        await notes.until("s-1 ended, owner_left")
