"""Streams that an agent writes, to a gateway played by hand: frames, ends, refusals, reconnects."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest

from meup_agent import Agent, CallScope, Chat, Space, StreamWriter
from meup_agent.errors import (
    Kicked,
    NotSent,
    Refused,
    RejectMessage,
    RequestTimeout,
    StreamEnded,
    UsageError,
)
from meup_agent.types import CallNext, OutboundMessage
from tests.interaction.people import Notes, until
from tests.interaction.stream_gateway import (
    close_stream,
    frames,
    heard,
    joined,
    open_stream,
    refuse,
    requested,
    stream_of,
    welcomed,
)
from tests.interaction.views import session_of
from tests.session.gate import ME, Caller, End, Gate
from tests.wire import MAX_FRAME_BYTES, StreamInfo, kinds


async def accept(end: End, id: str = "s-1") -> StreamInfo:
    """Open the next stream that is requested."""
    asked = await requested(end)
    fields = asked.payload
    targets = tuple(fields.get("target", ()))
    info = stream_of(ME, id, fields=fields, targets=targets, about=asked.correlation)
    await open_stream(end, info, asked.id)
    return info


class Writing:
    """A stream that is written beside the test, until it is told to stop."""

    out: StreamWriter

    def __init__(self) -> None:
        self.opened = anyio.Event()
        self.stop = anyio.Event()
        self.fail: Exception | None = None
        self.scope = CallScope()
        self.caller = Caller()

    async def run(self, space: Space) -> None:
        with self.scope:
            async with space.streams.open() as self.out:
                self.opened.set()
                await self.stop.wait()
                if self.fail is not None:
                    raise self.fail


@asynccontextmanager
async def writing(gate: Gate, *present: str) -> AsyncGenerator[tuple[Space, End, Writing]]:
    """An open stream of an agent in a space."""
    async with joined(gate, None, *present) as (space, end), anyio.create_task_group() as tasks:
        writes = Writing()
        tasks.start_soon(accept, end)
        tasks.start_soon(writes.caller.run, writes.run, space)
        await writes.opened.wait()
        try:
            yield space, end, writes
        finally:
            writes.stop.set()


@asynccontextmanager
async def accepting(gate: Gate, *present: str) -> AsyncGenerator[tuple[Space, End]]:
    """An agent in a space whose gateway opens a stream."""
    async with joined(gate, None, *present) as (space, end), anyio.create_task_group() as tasks:
        tasks.start_soon(accept, end)
        yield space, end


async def test_a_block_opens_a_stream_sends_frames_and_closes_it(gate: Gate) -> None:
    async with accepting(gate, "bob") as (space, end):
        async with space.streams.open(to="bob", about="m-1", format="jsonl") as out:
            assert out.info is not None
            assert (out.id, out.info.targets, out.info.about) == ("s-1", ("bob",), ("m-1",))
            assert (out.info.fields["format"], out.ended) == ("jsonl", None)
            assert [each.id for each in space.streams] == ["s-1"]
            await out.send(b"\xff#raw")
            await out.send("text")
        assert await frames(end, 2) == [b"#s-1#\xff#raw", b"#s-1#text"]
        closed = await heard(end, kinds.STREAM_CLOSE)
        assert closed.payload == {"stream_id": "s-1", "reason": "complete"}
        assert tuple(space.streams) == ()


async def test_what_the_gateway_refuses_raises_with_its_code(gate: Gate) -> None:
    async with joined(gate) as (space, end), anyio.create_task_group() as tasks:
        error = {"error": "target_not_found", "message": "no carol", "targets": ["carol"]}
        tasks.start_soon(refuse, end, error)
        with pytest.raises(Refused, match="no carol") as raised:
            async with space.streams.open(to="carol"):
                raise AssertionError("it is not open")
        assert raised.value.error == "target_not_found"
        assert raised.value.details["targets"] == ["carol"]


async def test_a_stream_that_opens_too_late_is_closed_at_once(gate: Gate) -> None:
    async with joined(gate) as (space, end):
        with pytest.raises(RequestTimeout, match="did not open"):
            async with space.streams.open(timeout=0.01):
                raise AssertionError("it is not open")
        await accept(end)
        closed = await heard(end, kinds.STREAM_CLOSE)
        assert closed.payload["stream_id"] == "s-1"
        assert tuple(space.streams) == ()


async def test_a_dialect_without_streams_is_told_before_anything_is_sent(gate: Gate) -> None:
    gate.dialect = "meup/v0.2"
    async with joined(gate) as (space, _):
        with pytest.raises(NotSent, match=r"meup/v0\.2 has none"):
            async with space.streams.open():
                raise AssertionError("it is not open")


async def test_a_frame_that_no_one_takes_is_the_callers_mistake(gate: Gate) -> None:
    async with accepting(gate) as (space, _), space.streams.open() as out:
        with pytest.raises(UsageError, match="in parts"):
            await out.send(b"x" * MAX_FRAME_BYTES)


@pytest.mark.rule("8.ends_with_block")
@pytest.mark.parametrize(
    ("how", "reason", "text"),
    [
        ("returns", "complete", None),
        ("raises", "error", None),
        ("is cancelled", "cancelled", "disagree: stopped by the user"),
    ],
)
async def test_the_end_of_the_block_is_the_end_of_the_stream(
    gate: Gate, how: str, reason: str, text: str | None
) -> None:
    async with writing(gate) as (_, end, writes):
        if how == "is cancelled":
            writes.scope.cancel("disagree", text="stopped by the user")
        else:
            writes.fail = ValueError("mine") if how == "raises" else None
            writes.stop.set()
        closed = await heard(end, kinds.STREAM_CLOSE)
        assert (closed.payload["reason"], closed.payload.get("text")) == (reason, text)
        await until(lambda: writes.caller.error is not None or how != "raises")
        assert isinstance(writes.caller.error, ValueError) is (how == "raises")


async def test_a_stream_that_another_ends_takes_no_more_frames(gate: Gate) -> None:
    async with writing(gate, "bob") as (space, end, writes):
        await close_stream(end, "s-1", "cancelled", "bob", text="enough\n")
        await until(lambda: not space.streams)
        with pytest.raises(StreamEnded, match=r"'?bob'?: cancelled: enough\\n") as raised:
            await writes.out.send(b"more")
        assert (raised.value.reason, raised.value.by) == ("cancelled", "bob")
        assert writes.out.ended is not None


@pytest.mark.parametrize("error", ["unauthorized_stream_write", "stream_not_found"])
async def test_a_refused_frame_ends_the_stream(gate: Gate, error: str) -> None:
    async with writing(gate) as (_, end, writes):
        out = writes.out
        await out.send(b"first")
        payload = {"error": error, "stream_id": "s-1", "message": "not yours"}
        await end.say(kinds.SYSTEM_ERROR, payload, sender=kinds.GATEWAY, to=(ME,))
        await until(lambda: out.ended is not None)
        with pytest.raises(StreamEnded, match="not yours"):
            await out.send(b"second")


async def test_send_waits_for_a_slow_connection_and_the_end_wakes_it(gate: Gate) -> None:
    sent, ended = 0, anyio.Event()
    async with writing(gate) as (space, end, writes), anyio.create_task_group() as tasks:

        async def pour() -> None:
            nonlocal sent
            with suppress(StreamEnded):
                while True:
                    await writes.out.send(b"x")
                    sent += 1
            ended.set()

        tasks.start_soon(pour)
        outbox = session_of(space).outbox
        await until(lambda: not outbox.has_frame_room)
        stuck = sent
        await anyio.wait_all_tasks_blocked()
        assert sent == stuck  # it waits
        await frames(end, 100)
        await until(lambda: sent > stuck)  # and goes on when there is room
        await close_stream(end, "s-1", "revoked")
        await ended.wait()


async def test_frames_leave_in_order_with_what_is_said_between(gate: Gate) -> None:
    async with accepting(gate) as (space, end):
        async with space.streams.open() as out:
            await out.send("before")
            await space.chat("between")
            await out.send("after")
        left = [await anext(end.transport) for _ in range(4)]
        assert [each[:5] == b"#s-1#" for each in left] == [True, False, True, False]


@pytest.mark.rule("8.reconnect")
async def test_a_stream_goes_on_after_a_reconnect_where_it_is_still_listed(gate: Gate) -> None:
    async with joined(gate) as (space, end), anyio.create_task_group() as tasks:
        infos: list[StreamInfo] = []

        async def open_and_drop() -> None:
            infos.append(await accept(end))
            await frames(end, 1)
            end.drop()

        tasks.start_soon(open_and_drop)
        async with space.streams.open() as out:
            await out.send(b"one")
            again = await welcomed(gate, streams=tuple(infos))
            await until(lambda: out.gaps == 1)
            await out.send(b"two")
            assert await frames(again, 1) == [b"#s-1#two"]
            assert out.ended is None


@pytest.mark.rule("8.reconnect")
@pytest.mark.parametrize("listed", ["none", "of another"])
async def test_a_stream_that_does_not_survive_a_reconnect_says_so(gate: Gate, listed: str) -> None:
    async with writing(gate) as (space, end, writes):
        end.drop()
        other, out = stream_of("bob", "s-1"), writes.out
        await welcomed(gate, "bob", streams=(other,) if listed == "of another" else ())
        await until(lambda: out.ended is not None)
        with pytest.raises(StreamEnded, match="after a reconnect") as raised:
            await out.send(b"more")
        assert raised.value.reason == "disconnected"
        assert [each.owner for each in space.streams] == ["bob"] * (listed == "of another")


@pytest.mark.rule("8.reconnect")
@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "queued"])
async def test_a_stream_that_was_closed_before_a_reconnect_stays_closed(
    gate: Gate, is_lost: bool
) -> None:
    async with joined(gate) as (space, end), anyio.create_task_group() as tasks:
        infos: list[StreamInfo] = []

        async def open_one() -> None:
            infos.append(await accept(end))

        tasks.start_soon(open_one)
        async with space.streams.open():
            if not is_lost:
                end.drop()
                await until(lambda: not space.connected)
        if is_lost:
            await heard(end, kinds.STREAM_CLOSE)
            end.drop()  # the gateway has not read it
        again = await welcomed(gate, streams=tuple(infos))
        closed = await heard(again, kinds.STREAM_CLOSE)
        assert closed.payload == {"stream_id": "s-1", "reason": "complete"}
        assert list(space.streams) == []


@pytest.mark.rule("8.reconnect")
async def test_a_request_whose_answer_was_lost_is_found_or_made_again(gate: Gate) -> None:
    async with joined(gate) as (space, end), anyio.create_task_group() as tasks:
        asked: list[StreamInfo] = []

        async def lose() -> None:
            request = await requested(end)
            asked.append(stream_of(ME, "s-9", fields=request.payload))
            end.drop()
            again = await welcomed(gate)  # it has not heard of the request
            await requested(again)
            again.drop()
            await welcomed(gate, streams=tuple(asked))  # it has opened it

        tasks.start_soon(lose)
        async with space.streams.open(format="once") as out:
            assert out.id == "s-9"


async def test_the_end_of_the_session_ends_the_streams(gate: Gate) -> None:
    outs: list[StreamWriter] = []
    try:
        async with writing(gate) as (_, end, writes):
            outs.append(writes.out)
            await end.close(4403, "removed")
            await anyio.sleep_forever()
    except* Kicked:
        pass
    assert [each.ended is not None for each in outs] == [True]


async def test_writers_are_let_in_and_put_out_by_the_owner(gate: Gate) -> None:
    async with accepting(gate, "bob") as (space, end), anyio.create_task_group() as tasks:
        async with space.streams.open() as out:
            for verb, kind, name in (
                (out.grant_write, kinds.STREAM_GRANT_WRITE, "participant_id"),
                (out.revoke_write, kinds.STREAM_REVOKE_WRITE, "participant_id"),
                (out.transfer, kinds.STREAM_TRANSFER_OWNERSHIP, "new_owner"),
            ):
                tasks.start_soon(verb, "bob")
                said = await heard(end, kind)
                assert said.payload == {"stream_id": "s-1", name: "bob"}
                await end.echo(said)


async def test_a_stream_that_was_transferred_does_not_end_with_our_block(gate: Gate) -> None:
    async with accepting(gate, "bob") as (space, end):
        async with space.streams.open():
            said = {
                "stream_id": "s-1",
                "previous_owner": ME,
                "new_owner": "bob",
                "authorized_writers": [ME, "bob"],
            }
            await end.say(kinds.STREAM_OWNERSHIP_TRANSFERRED, said, sender=kinds.GATEWAY)
            await until(lambda: space.streams[0].owner == "bob")
        marker = await space.chat("the next that is said")
        assert (await heard(end, kinds.CHAT)).id == marker
        assert not any(each.kind == kinds.STREAM_CLOSE for each in end.heard)
        assert [each.owner for each in space.streams] == ["bob"]


@pytest.mark.rule("8.ends_with_block")
async def test_a_stream_ends_with_the_handler_that_opened_it(gate: Gate, notes: Notes) -> None:
    agent = Agent(ME)

    @agent.on_chat
    async def pour(chat: Chat, space: Space) -> None:
        async with space.streams.open(about=chat.id):
            notes("open")
            await anyio.sleep_forever()

    async with joined(gate, agent, "bob") as (space, end):
        chat = await end.say(kinds.CHAT, {"text": "go"}, sender="bob")
        info = await accept(end)
        assert info.about == (chat,)
        await notes.until("open")
        session = session_of(space)
        session.apply(session.table.shutdown_over(session.now()))
        closed = await heard(end, kinds.STREAM_CLOSE)
        assert closed.payload["reason"] == "cancelled"
        assert "shuts down" in closed.payload["text"]


async def test_a_stream_passes_the_middleware_as_what_is_sent(gate: Gate) -> None:
    agent = Agent(ME)

    @agent.middleware
    async def watch(message: OutboundMessage, call_next: CallNext) -> object:
        if message.payload.get("format") == "secret":
            raise RejectMessage("policy")
        payload = {**message.payload, "description": "seen"}
        return await call_next(message.replace(payload=payload))

    async with joined(gate, agent) as (space, end), anyio.create_task_group() as tasks:
        with pytest.raises(RejectMessage):
            async with space.streams.open(format="secret"):
                raise AssertionError("it is not open")
        tasks.start_soon(accept, end)
        async with space.streams.open(format="plain") as out:
            assert out.info is not None
            assert out.info.fields["description"] == "seen"
