"""Agents as MCP servers: the official client on the other end, and what it would never send."""

import logging
from typing import Any, Literal

import anyio
import anyio.lowlevel
import mcp_types
import pytest
from mcp import MCPError
from pydantic import BaseModel

from meup_agent import Agent, Context
from meup_agent.agent.tool import MAX_RESULT_BYTES
from meup_agent.errors import RequestError, ToolError
from tests.interaction.cast import sleep_until_stopped
from tests.interaction.mcp_client import mcp_client
from tests.interaction.people import Meeting, Notes, gathered, raw, until
from tests.interaction.views import is_idle, lines, taped
from tests.wire import kinds, payloads


class Place(BaseModel):
    city: str
    degrees: float


def weather() -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def forecast(city: str, days: Literal[1, 2, 3] = 1) -> Place:
        """Tell the weather."""
        return Place(city=city, degrees=days * 10.5)

    @agent.tool
    def count(words: list[str]) -> int:
        return len(words)

    @agent.tool
    async def fail() -> None:
        raise LookupError("the station is closed")

    @agent.tool
    async def plain(ctx: Context):  # type: ignore[no-untyped-def]
        return "text only"

    return agent


async def test_the_official_client_gets_on_with_an_agent(meeting: Meeting) -> None:
    async with gathered(meeting, weather()), mcp_client(meeting, "second", "tools") as client:
        hello = await client.initialize()
        assert hello.protocol_version == "2025-06-18"
        assert hello.server_info.name == "tools"
        assert hello.capabilities.tools is not None
        await client.send_ping()

        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == ["forecast", "count", "fail", "plain"]
        forecast = listed[0]
        assert forecast.input_schema["required"] == ["city"]
        assert forecast.output_schema is not None
        assert listed[3].output_schema is None

        # The client checks structured content against the schema that it was told.
        told = await client.call_tool("forecast", {"city": "Oslo", "days": 2})
        assert told.structured_content == {"city": "Oslo", "degrees": 21.0}
        assert not told.is_error
        counted = await client.call_tool("count", {"words": ["a", "b"]})
        assert counted.structured_content == {"result": 2}
        plain = await client.call_tool("plain", {})
        assert [block.text for block in plain.content if block.type == "text"] == ["text only"]

        failed = await client.call_tool("fail", {})
        assert failed.is_error
        (block,) = failed.content
        assert isinstance(block, mcp_types.TextContent)
        assert block.text == "LookupError: the station is closed"


async def test_the_official_client_is_told_what_is_wrong(meeting: Meeting) -> None:
    async with gathered(meeting, weather()), mcp_client(meeting, "second", "tools") as client:
        await client.initialize()
        wrong_ones: list[tuple[dict[str, Any], str]] = [
            ({}, "'city' is required"),
            ({"city": 5}, "'city'"),
            ({"city": "Oslo", "days": 9}, "'days'"),
            ({"city": "Oslo", "wind": 1}, "'wind'"),
        ]
        for arguments, named in wrong_ones:
            with pytest.raises(MCPError, match=named) as wrong:
                await client.call_tool("forecast", arguments)
            assert wrong.value.error.code == mcp_types.INVALID_PARAMS
        with pytest.raises(MCPError, match="no tool 'nothing'") as unknown:
            await client.call_tool("nothing", {})
        assert unknown.value.error.code == mcp_types.INVALID_PARAMS
        with pytest.raises(MCPError) as method:
            await client.list_prompts()
        assert method.value.error.code == mcp_types.METHOD_NOT_FOUND


async def test_an_official_client_hears_progress(meeting: Meeting, notes: Notes) -> None:
    agent = Agent("tools")

    @agent.tool
    async def work(ctx: Context) -> str:
        ctx.progress(1, 3, "begun")
        ctx.progress(3, 3)
        return "done"

    @agent.tool
    async def forever(ctx: Context) -> None:
        await sleep_until_stopped(notes, ctx)

    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with (
        gathered(meeting, agent) as (tools,),
        mcp_client(meeting, "second", "tools") as client,
    ):
        await client.initialize()
        result = await client.call_tool("work", {}, progress_callback=on_progress)
        assert result.structured_content == {"result": "done"}
        await until(lambda: len(seen) == 2)
        assert seen == [(1, 3, "begun"), (3, 3, None)]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "forever", {})
            await notes.until("runs")
            tasks.cancel_scope.cancel()
        await until(lambda: len(notes.all) == 2)
        await until(lambda: is_idle(tools))
        assert notes.all[-1][0] == "second"


@pytest.mark.rule("4.8.request_id")
async def test_ids_come_back_as_they_were(meeting: Meeting) -> None:
    async with gathered(meeting, weather()), raw(meeting) as mallory:
        rpc_ids: list[str | int] = ["a", 7, 0, -1, ""]
        for number, rpc_id in enumerate(rpc_ids):
            await mallory.request("tools", "ping", {}, id=f"e{number}", rpc_id=rpc_id)
            response = await mallory.response(f"e{number}")
            assert response.payload == {"jsonrpc": "2.0", "id": rpc_id, "result": {}}
            assert response.to == ("mallory",)
        await mallory.say(kinds.MCP_REQUEST, {"method": "ping"}, id="no-id", to=("tools",))
        assert (await mallory.response("no-id")).payload["id"] == "no-id"


@pytest.mark.rule("5.codes")
async def test_notifications_get_no_answer(meeting: Meeting) -> None:
    async with (
        gathered(meeting, weather()) as (tools,),
        raw(meeting) as mallory,
        taped(tools) as tape,
    ):
        for number, method in enumerate(["initialized", "roots/list_changed", "unknown"]):
            payload = payloads.notification(f"notifications/{method}", {})
            await mallory.say(kinds.MCP_REQUEST, payload, id=f"n{number}", to=("tools",))
        # One that has an id all the same is a notification still.
        await mallory.request("tools", "notifications/initialized", {}, id="n9")
        await mallory.request("tools", "ping", {}, id="p")
        await mallory.response("p")
        await tape.all_said(tools)
        assert len(tape.of(kinds.MCP_RESPONSE)) == 1


BAD_REQUESTS: list[tuple[Any, int]] = [
    ({"params": {}}, payloads.INVALID_REQUEST),
    ({"method": 5}, payloads.INVALID_REQUEST),
    ({"method": "tools/unknown"}, payloads.METHOD_NOT_FOUND),
    (
        {"method": "tools/call", "params": {"name": "count", "arguments": {"words": [1]}}},
        payloads.INVALID_PARAMS,
    ),
]


@pytest.mark.rule("5.codes")
async def test_bad_requests_get_the_protocol_s_errors(meeting: Meeting) -> None:
    async with gathered(meeting, weather()), raw(meeting) as mallory:
        for number, (payload, code) in enumerate(BAD_REQUESTS):
            await mallory.say(kinds.MCP_REQUEST, payload, id=f"b{number}", to=("tools",))
            answer = (await mallory.response(f"b{number}")).payload
            assert answer["error"]["code"] == code, payload
            mcp_types.JSONRPCError.model_validate(answer)


async def test_of_a_broadcast_request_only_what_one_has_is_answered(meeting: Meeting) -> None:
    async with (
        gathered(meeting, weather(), Agent("deep"), "observer") as (_, _, observer),
        taped(observer) as tape,
        raw(meeting) as mallory,
    ):
        for method in ("ping", "initialize", "unknown", "tools/list"):
            payload = payloads.request(method, {}, method)
            await mallory.say(kinds.MCP_REQUEST, payload, id=method)
        call = payloads.request("tools/call", {"name": "nothing"}, "c")
        await mallory.say(kinds.MCP_REQUEST, call, id="c")
        await mallory.request("tools", "ping", {}, id="p1")
        await mallory.request("deep", "ping", {}, id="p2")
        await tape.until(lambda e: e.correlation == ("p1",))
        await tape.until(lambda e: e.correlation == ("p2",))
        answers = [(e.sender, e.correlation[0]) for e in tape.of(kinds.MCP_RESPONSE)]
        assert sorted(answers) == [("deep", "p2"), ("tools", "p1"), ("tools", "tools/list")]


async def test_a_tool_that_raises_tells_no_traceback_and_the_log_has_it(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    async with gathered(meeting, weather(), "second") as (_, caller):
        with pytest.raises(ToolError) as failed:
            await caller.call("tools", "fail")
    assert "Traceback" not in str(failed.value.result)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)
    assert "'fail' for 'second'" in record.getMessage()


async def test_a_handler_may_choose_its_error(meeting: Meeting) -> None:
    agent = Agent("tools")

    @agent.tool
    async def find(name: str, data: Any = None) -> None:
        raise RequestError(-32002, f"no {name}", data)

    @agent.tool
    async def bad_data() -> None:
        raise RequestError(-32002, "no \udcff", object())

    async with gathered(meeting, agent, "second") as (_, caller):
        with pytest.raises(RequestError, match="no key") as error:
            await caller.call("tools", "find", {"name": "key", "data": {"a": 1}})
        assert (error.value.code, error.value.data) == (-32002, {"a": 1})
        with pytest.raises(RequestError, match=r"no \?") as error:
            await caller.call("tools", "bad_data")
        assert error.value.data is None


async def test_odd_results_are_errors(meeting: Meeting, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent("tools")

    @agent.tool
    async def number() -> int:
        return "five"  # type: ignore[return-value]

    @agent.tool
    async def thing() -> Any:
        return object()

    @agent.tool
    async def large() -> str:
        return "x" * (MAX_RESULT_BYTES + 1)

    @agent.tool
    def forgot_async() -> Any:
        return anyio.lowlevel.checkpoint()

    async with gathered(meeting, agent, "second") as (tools, caller):
        said = {"number": "'number'", "thing": "'thing'", "large": "at most"}
        for tool, words in {**said, "forgot_async": "async def"}.items():
            with pytest.raises(ToolError, match=words):
                await caller.call("tools", tool)
        assert is_idle(tools)
        assert await caller.request("tools", "ping") == {}
    assert len([line for line in lines(caplog, logging.ERROR) if "failed" in line]) == 3


async def test_surrogates_harm_nothing(meeting: Meeting, caplog: pytest.LogCaptureFixture) -> None:
    """Names of files may hold bytes that are not UTF-8; Python makes lone surrogates of them."""
    # The log would hold the text of the exception as it is, which no test report can.
    caplog.set_level(logging.CRITICAL, logger="meup_agent.agent")
    agent = Agent("tools")

    @agent.tool
    async def name() -> str:
        return "caf\udce9.txt"

    @agent.tool
    async def read() -> str:
        raise FileNotFoundError("caf\udce9.txt")

    async with gathered(meeting, agent, "second") as (_, caller):
        with pytest.raises(ToolError, match=r"'name'.*surrogates not allowed"):
            await caller.call("tools", "name")
        with pytest.raises(ToolError, match=r"caf\\udce9\.txt"):
            await caller.call("tools", "read")
        assert await caller.request("tools", "ping") == {}
