"""Streams between agents at a gateway, in memory and over real sockets."""

from functools import partial

import anyio
import pytest

from meup_agent import Agent, CallScope, Context, StreamReader
from meup_agent.errors import StreamEnded, UsageError
from meup_agent.testing import FaultPlan, Faults, FaultyConnector
from tests.interaction.people import QUICK, Meeting, Notes, gathered, join, until
from tests.interaction.views import run_within, session_of


def recorder(notes: Notes, name: str = "second") -> Agent:
    """An agent that notes every frame, and how each stream ended."""
    agent = Agent(name)

    @agent.on_stream
    async def read(stream: StreamReader) -> None:
        notes("reads")
        async for frame in stream:
            notes(frame)
        notes(str(stream.ended))

    return agent


async def test_frames_go_to_the_targets_alone_and_whole(meeting: Meeting, notes: Notes) -> None:
    others = Notes()
    everybody = ("reviewer", recorder(notes), recorder(others, "deep"))
    async with gathered(meeting, *everybody) as (space, second, _):
        async with space.streams.open(to="second", about="m", format="raw") as out:
            await until(lambda: len(second.streams) == 1)
            [info] = second.streams
            assert (info.owner, info.targets, info.about) == ("reviewer", ("second",), ("m",))
            assert info.fields["format"] == "raw"
            for frame in (b"\xff\x00", b"", b"#x#", b"y" * 100_000):
                await out.send(frame)
        await notes.until("complete")
        assert notes.all == ["reads", b"\xff\x00", b"", b"#x#", b"y" * 100_000, "complete"]
        assert others.all == []


async def test_a_stream_for_all_is_read_by_newcomers(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, "reviewer") as (space,):
        async with space.streams.open(metadata={"n": 1}) as out:
            async with join(meeting, recorder(notes)) as later:
                await notes.until("reads")
                assert later.streams[0].fields["metadata"] == {"n": 1}
                await out.send(b"late")
                await notes.until(b"late")
        assert notes.all[-1] == "disconnected: the agent shuts down"


async def test_a_tool_streams_beside_its_answer(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.tool
    async def draft(ctx: Context) -> str:
        async with ctx.stream() as out:
            for word in ("one", "two"):
                await out.send(word)
        return "one two"

    async def show(stream: StreamReader) -> None:
        notes([each async for each in stream] == [b"one", b"two"])
        notes(str(stream.ended))

    async with gathered(meeting, tools, "reviewer") as (_, caller):
        assert await caller.call("tools", "draft", on_stream=show) == "one two"
        assert notes.all == [True, "complete"]


async def test_a_cancel_ends_the_stream_with_the_reason(meeting: Meeting, notes: Notes) -> None:
    tools, scope = Agent("tools"), CallScope()

    @tools.tool
    async def endless(ctx: Context) -> None:
        async with ctx.stream() as out:
            await out.send("begun")
            await anyio.sleep_forever()

    async def show(stream: StreamReader) -> None:
        notes(await anext(stream))

    async with gathered(meeting, tools, "reviewer") as (space, caller):
        async with anyio.create_task_group() as tasks:
            call = partial(caller.call, "tools", "endless", on_stream=show)
            tasks.start_soon(run_within, scope, call)
            await notes.until(b"begun")
            with caller.streams.read(caller.streams[0]) as stream:
                scope.cancel("disagree", text="seen enough")
                assert [each async for each in stream] == []
                assert stream.ended is not None
                assert stream.ended.by == "tools"
                assert str(stream.ended) == "cancelled: disagree: seen enough"
        await until(lambda: not session_of(space).table.running)


async def test_a_reader_may_be_let_to_write(meeting: Meeting, notes: Notes) -> None:
    everybody = ("reviewer", "second", recorder(notes, "deep"))
    async with gathered(meeting, *everybody) as (owner, writer, _), owner.streams.open() as out:
        await until(lambda: len(writer.streams) == 1)
        with pytest.raises(UsageError, match="has not let us"), writer.streams.write(out.id):
            raise AssertionError("it is not ours")
        await out.grant_write("second")
        await until(lambda: "second" in writer.streams[0].writers)
        with writer.streams.write(out.id) as also:
            await also.send(b"from another")
            await notes.until(b"from another")
            await out.revoke_write("second")
            await until(lambda: also.ended is not None)
            with pytest.raises(StreamEnded, match="revoked"):
                await also.send(b"no more")
        with writer.streams.read(out.id):
            pass  # it goes on without us
        await out.send(b"ours")
        await notes.until(b"ours")


@pytest.mark.rule("8.once")
async def test_a_cut_loses_no_frame_silently(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, recorder(notes)) as (second,):
        plan = FaultPlan(outgoing=Faults(cut_after=8))
        cut = FaultyConnector(meeting.connector("reviewer"), [plan])
        agent = Agent("reviewer")
        async with agent.join(cut, token=meeting.token("reviewer"), settings=QUICK) as space:
            async with space.streams.open(to="second") as out:
                for number in range(20):
                    await out.send(b"%d" % number)
                await until(lambda: out.gaps == 1)
                await out.send(b"after")
            await notes.until("complete")
        frames = [each for each in notes.all if isinstance(each, bytes)]
        assert frames[-1] == b"after"
        numbers = [int(each) for each in frames[:-1]]
        assert numbers == sorted(set(numbers))
        assert cut.dialled == 2
        assert second.connected


async def test_a_reader_that_comes_back_reads_on(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, "reviewer") as (space,):
        async with join(meeting, recorder(notes)) as second:
            async with space.streams.open() as out:
                await out.send(b"before")
                await notes.until(b"before")
                meeting.drop("second")
                await until(lambda: session_of(second).connections == 2 and second.connected)
                [buffer] = session_of(second).table.streams.buffers.of(out.id)
                await until(lambda: buffer.gaps == 1)
                # While it reads what it missed, the gateway may still leave frames out (8.9).
                while b"after" not in notes.all:
                    await out.send(b"after")
                    await second.offers.tools("reviewer", refresh=True)
            await notes.until("complete")
    assert notes.all[:3] == ["reads", b"before", b"after"]


async def test_streams_end_with_a_gateway_that_forgets_them(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, "reviewer", recorder(notes)) as (space, _):
        async with space.streams.open() as out:
            await notes.until("reads")
            meeting.kill()
            meeting.restart()
            await until(lambda: out.ended is not None)
            with pytest.raises(StreamEnded, match="after a reconnect"):
                await out.send(b"more")
        await notes.until("disconnected: the gateway no longer had it after a reconnect")
