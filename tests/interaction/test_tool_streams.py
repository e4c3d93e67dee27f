"""A tool that streams its partial result beside its answer, and the caller that reads it."""

from functools import partial
from typing import Any

import anyio
import pytest

from meup_agent import Agent, CallScope, Context, Envelope, StreamReader
from meup_agent.errors import ToolError
from tests.interaction.people import Notes, until
from tests.interaction.stream_gateway import (
    close_stream,
    frames,
    heard,
    joined,
    open_stream,
    put,
    refuse,
    requested,
    stream_of,
)
from tests.interaction.views import run_within, session_of
from tests.session.gate import ME, Caller, End, Gate
from tests.wire import decode, kinds, payloads


def writer(notes: Notes) -> Agent:
    agent = Agent(ME)

    @agent.tool
    async def draft(ctx: Context) -> str:
        async with ctx.stream(format="text") as out:
            await out.send("half")
            notes("half")
            await out.send("whole")
        return f"done, {out.ended}"

    @agent.tool
    async def endless(ctx: Context) -> None:
        async with ctx.stream() as out:
            await out.send("begun")
            await anyio.sleep_forever()

    return agent


async def call(end: End, tool: str, **more: Any) -> str:
    return await end.request("tools/call", sender="bob", name=tool, arguments={}, **more)


async def accept(end: End, id: str = "s-1") -> Envelope:
    asked = await requested(end)
    info = stream_of(ME, id, fields=asked.payload, about=asked.correlation)
    await open_stream(end, info, asked.id)
    return asked


@pytest.mark.rule("8.beside")
async def test_a_tool_streams_to_its_caller_before_it_answers(gate: Gate, notes: Notes) -> None:
    async with joined(gate, writer(notes), "bob") as (_, end):
        request = await call(end, "draft")
        asked = await accept(end)
        assert (asked.correlation, asked.payload["target"]) == ((request,), ["bob"])
        assert await frames(end, 2) == [b"#s-1#half", b"#s-1#whole"]
        left = [decode(await anext(end.transport)) for _ in range(2)]
        assert [each.kind for each in left] == [kinds.STREAM_CLOSE, kinds.MCP_RESPONSE]
        assert left[1].payload["result"]["content"][0]["text"] == "done, complete"


async def test_the_answer_does_not_depend_on_the_stream(gate: Gate, notes: Notes) -> None:
    async with joined(gate, writer(notes), "bob") as (_, end):
        await call(end, "draft")
        await refuse(end, {"error": "target_not_found", "message": "no bob"})
        response = await heard(end, kinds.MCP_RESPONSE)
        text = response.payload["result"]["content"][0]["text"]
        assert text.startswith("done, error: the gateway refused a stream: target_not_found")


async def test_a_caller_that_ends_the_stream_gets_its_answer_all_the_same(gate: Gate) -> None:
    agent, ended = Agent(ME), anyio.Event()

    @agent.tool
    async def draft(ctx: Context) -> str:
        async with ctx.stream() as out:
            await ended.wait()
            await until(lambda: out.ended is not None)
            await out.send("goes nowhere")
        return str(out.ended)

    async with joined(gate, agent, "bob") as (_, end):
        await call(end, "draft")
        await accept(end)
        await close_stream(end, "s-1", "cancelled", "bob")
        ended.set()
        response = await heard(end, kinds.MCP_RESPONSE)
        assert response.payload["result"]["content"][0]["text"] == "cancelled"


@pytest.mark.rule("8.beside")
async def test_a_stream_goes_to_the_proposer_too(gate: Gate, notes: Notes) -> None:
    async with joined(gate, writer(notes), "bob", "carol") as (_, end):
        params: dict[str, Any] = {"name": "draft", "arguments": {}}
        proposed = payloads.proposal("tools/call", params)
        await end.say(kinds.MCP_PROPOSAL, proposed, sender="carol", id="p-1")
        params |= {"_meta": {payloads.PROPOSER: "carol"}}
        payload = payloads.request("tools/call", params, "r-1")
        await end.say(
            kinds.MCP_REQUEST, payload, sender="bob", id="r-1", to=(ME,), correlation=("p-1",)
        )
        asked = await accept(end)
        assert asked.payload["target"] == ["bob", "carol"]
        assert asked.correlation == ("r-1", "p-1")
        await heard(end, kinds.MCP_RESPONSE)


async def answer(end: End, *chunks: bytes, close: bool = True, fails: bool = False) -> None:
    """A tool of the other end that streams, and answers."""
    request = await heard(end, kinds.MCP_REQUEST)
    info = stream_of("bob", targets=(ME,), about=(request.id,))
    await open_stream(end, info, "r-1")
    await put(end, "s-1", *chunks)
    if close:
        await close_stream(end, "s-1", "complete", "bob")
    result = {"content": [{"type": "text", "text": "whole"}], "isError": fails}
    await end.respond(request, result, sender="bob")


@pytest.mark.parametrize("close", [True, False])
async def test_a_call_reads_all_before_its_answer(gate: Gate, notes: Notes, close: bool) -> None:
    agent = Agent(ME)

    @agent.on_stream
    async def another(stream: StreamReader) -> None:
        notes("a handler")

    async def show(stream: StreamReader) -> None:
        async for chunk in stream:
            notes(chunk)
        notes(str(stream.ended))

    async with joined(gate, agent, "bob") as (space, end), anyio.create_task_group() as tasks:
        tasks.start_soon(partial(answer, end, b"a", b"b", close=close))
        result = await space.call("bob", "draft", on_stream=show)
        assert result == [{"type": "text", "text": "whole"}]
        ending = "complete" if close else "disconnected: the call has ended"
        assert notes.all == [b"a", b"b", ending]
        assert len(session_of(space).table.streams.buffers) == 0


async def test_a_call_that_fails_has_read_what_came(gate: Gate, notes: Notes) -> None:
    async def show(stream: StreamReader) -> None:
        notes(tuple([chunk async for chunk in stream]))

    async with joined(gate, None, "bob") as (space, end), anyio.create_task_group() as tasks:
        tasks.start_soon(partial(answer, end, b"a", fails=True))
        with pytest.raises(ToolError, match="whole"):
            await space.call("bob", "draft", on_stream=show)
        assert notes.all == [(b"a",)]


async def test_a_reader_that_raises_cancels_the_call(gate: Gate) -> None:
    async def show(stream: StreamReader) -> None:
        raise LookupError("mine")

    async with joined(gate, None, "bob") as (space, end), anyio.create_task_group() as tasks:
        caller = Caller()
        tasks.start_soon(caller.run, partial(space.call, "bob", "draft", on_stream=show))
        request = await heard(end, kinds.MCP_REQUEST)
        await open_stream(end, stream_of("bob", about=(request.id,)), "r-1")
        cancel = await heard(end, kinds.MCP_REQUEST)
        assert payloads.read_call(cancel.payload).method == kinds.CANCELLED
        await until(lambda: caller.error is not None)
        assert isinstance(caller.error, LookupError)


async def test_a_caller_that_gives_up_ends_its_readers(gate: Gate, notes: Notes) -> None:
    async def show(stream: StreamReader) -> None:
        notes("reads")
        try:
            await anyio.sleep_forever()
        finally:
            notes("ended")

    async with joined(gate, None, "bob") as (space, end), anyio.create_task_group() as tasks:
        scope = CallScope()
        tasks.start_soon(run_within, scope, partial(space.call, "bob", "draft", on_stream=show))
        request = await heard(end, kinds.MCP_REQUEST)
        await open_stream(end, stream_of("bob", about=(request.id,)), "r-1")
        await notes.until("reads")
        scope.cancel()
        await notes.until("ended")


async def test_a_proposed_call_reads_its_streams(gate: Gate, notes: Notes) -> None:
    async def show(stream: StreamReader) -> None:
        notes(tuple([chunk async for chunk in stream]))

    async with joined(gate, None, "bob") as (space, end):
        you = {"id": ME, "capabilities": [{"kind": "mcp/proposal"}]}
        welcome = {"you": you, "participants": [{"id": "bob"}]}
        await end.say(kinds.SYSTEM_WELCOME, welcome, sender=kinds.GATEWAY, to=(ME,))
        await until(lambda: not space.may(kinds.MCP_REQUEST, {}))
        async with anyio.create_task_group() as calls:
            calls.start_soon(partial(space.call, "bob", "draft", on_stream=show))
            proposal = await heard(end, kinds.MCP_PROPOSAL)
            await open_stream(end, stream_of("bob", about=("r-1", proposal.id)), "r-2")
            await put(end, "s-1", b"half")
            await close_stream(end, "s-1", "complete", "bob")
            await notes.until((b"half",))
            calls.cancel_scope.cancel()
