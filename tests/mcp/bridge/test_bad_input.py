"""A server that does what it should not: each is one clear error, and the space goes on."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Request, Space
from meup_agent.errors import RequestError, RequestTimeout, ToolError
from meup_agent.mcp import Bridge
from meup_agent.mcp.bridge.connection import ServerGone
from tests.mcp.bridge.stage import AT_ONCE, BRIDGE, LogLines, bridged, stdio
from tests.patience import PATIENCE

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")


async def do(space: Space, way: str) -> str:
    """The text that the scripted server gives for a way."""
    (content,) = await space.call(BRIDGE, "do", {"way": way})
    return str(content["text"])


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_call_in_each_revision_byte_by_byte(revision: str, log_lines: LogLines) -> None:
    """A message that the SDK cannot be made to say is pinned by what the server gets."""
    async with bridged(stdio("scripted", revision)) as stage:
        assert await do(stage.caller, "x") == "done: x"
        described = await stage.caller.request(BRIDGE, "initialize", {})
        assert described["protocolVersion"] == revision
    got = [
        json.loads(line.partition(": got ")[2])
        for line in log_lines.with_text(": got ")
        if "more lines" not in line
    ]
    methods = [message["method"] for message in got]
    modern = revision == "2026-07-28"
    handshake = [] if modern else ["initialize", "notifications/initialized", "logging/setLevel"]
    assert methods == ["server/discover", *handshake, "tools/list", "tools/call"]
    params = got[-1]["params"]
    assert (params["name"], params["arguments"]) == ("do", {"way": "x"})
    version = params.get("_meta", {}).get("io.modelcontextprotocol/protocolVersion")
    assert version == (revision if modern else None)


async def test_a_server_that_names_no_revision_of_mcp_is_spoken_with(log_lines: LogLines) -> None:
    """Those of existing spaces name versions of their own, which their bridges do not look at."""
    async with bridged(stdio("scripted", "0.1.0")) as stage:
        assert await do(stage.caller, "x") == "done: x"
        described = await stage.caller.request(BRIDGE, "initialize", {})
        assert described["protocolVersion"] == "2024-11-05"
    assert len(log_lines.with_text("'0.1.0', which MCP never had; taken for 2024-11-05")) == 1


async def test_unknown_fields_and_meta_survive_both_ways() -> None:
    async with bridged(stdio("scripted", "2025-11-25")) as stage:
        (tool,) = await stage.caller.offers.tools(BRIDGE)
        assert tool["x-ours"] == 1
        meta = {"traceparent": "00-1", "dev.meup/digest": "ours", "progressToken": "p"}
        params: dict[str, Any] = {"name": "do", "arguments": {"way": "meta"}, "_meta": meta}
        params["more"] = [None, {}]
        result = await stage.caller.request(BRIDGE, "tools/call", params)
        assert result["unknown"] == {"a": [1]}
        sent = result["_meta"]["x.y/z"]
        # The token of the way here is not that of the way on, and ours are no affair of a server.
        assert sent["traceparent"] == "00-1"
        assert set(sent) == {"traceparent", "progressToken"}
        assert sent["progressToken"] != "p"


async def test_rubbish_and_a_second_answer_are_left_out(log_lines: LogLines) -> None:
    async with bridged(stdio("scripted", "2025-06-18")) as stage:
        assert await do(stage.caller, "rubbish") == "after the rubbish"
        await log_lines.wait_for("sent what is not a message", 2)
        assert await do(stage.caller, "twice") == "the first"
        assert await do(stage.caller, "x") == "done: x"


async def test_a_result_that_is_too_large_is_an_error_of_the_tool() -> None:
    async with bridged(stdio("scripted", "2025-06-18")) as stage:
        with pytest.raises(ToolError, match=r"has 50000\d\d bytes; a message takes \d+. Ask for"):
            await do(stage.caller, "large")
        with pytest.raises(ToolError, match="sent a message of more than 8388608 bytes"):
            await do(stage.caller, "huge")
        assert await do(stage.caller, "x") == "done: x"


async def test_a_call_without_an_answer_ends_with_its_callers_time() -> None:
    async with bridged(stdio("scripted", "2025-06-18")) as stage:
        with pytest.raises(RequestTimeout, match="tools/call"):
            await stage.caller.call(BRIDGE, "do", {"way": "wait"}, timeout=0.1)
        assert await do(stage.caller, "x") == "done: x"


async def test_an_invalid_result_and_a_wild_error_are_errors() -> None:
    async with bridged(stdio("scripted", "2025-06-18")) as stage:
        with pytest.raises(RequestError, match="answered tools/call with no valid result: "):
            await do(stage.caller, "invalid")
        with pytest.raises(RequestError) as raised:
            await do(stage.caller, "error")
        assert (raised.value.code, raised.value.message) == (-32000, "no\x1b[31m\nway")
        assert await do(stage.caller, "x") == "done: x"


async def test_pages_on_standard_error_are_paced(log_lines: LogLines) -> None:
    async with bridged(stdio("scripted", "2025-06-18")) as stage:
        assert await do(stage.caller, "flood") == "flooded"
    assert 1 <= len(log_lines.with_text("flood ")) <= 100
    assert log_lines.with_text("more lines were left out")


async def test_unusable_tools_are_left_out_with_a_line(tmp_path: Path, log_lines: LogLines) -> None:
    plain = {"type": "object"}
    tree = {"type": "object", "properties": {"inner": {"$ref": "#"}}}
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep}}
    tools: list[Any] = [
        {"name": "good", "inputSchema": plain},
        {"name": "tree", "inputSchema": tree},
        {"name": "good", "inputSchema": plain, "description": "another one"},
        {"name": "wrong", "inputSchema": {"type": "object", "properties": {"a": {"type": 7}}}},
        {"name": "list", "inputSchema": []},
        {"name": "none"},
        {"name": "loop", "inputSchema": {"type": "object", "$ref": "#"}},
        {"name": "deep", "inputSchema": deep},
        {"name": "", "inputSchema": plain},
        {"name": "n" * 200, "inputSchema": plain},
        {"name": "b\x1b[31mad", "inputSchema": 5},
        "no object",
    ]
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(tools), "utf-8")
    async with bridged(stdio("scripted", "2025-06-18", f"TOOLS={path}")) as stage:
        assert [tool["name"] for tool in await stage.caller.offers.tools(BRIDGE)] == [
            "good",
            "tree",
        ]
    lines = log_lines.with_text("left out")
    for name in ("wrong", "list", "none", "loop", "deep"):
        assert len([line for line in lines if f"the tool '{name}' is left out: " in line]) == 1
    assert len([line for line in lines if "'good' is listed twice" in line]) == 1
    assert not [line for line in lines if "\x1b" in line]


async def test_a_revision_that_nobody_knows_is_one_clear_error() -> None:
    bridge = Bridge(BRIDGE, stdio("scripted", "1999-01-01"), settings=AT_ONCE)
    with anyio.fail_after(PATIENCE), pytest.raises(ServerGone, match="1999-01-01"):
        async with bridge.running():
            raise AssertionError("it has not started")


SAMPLE = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
ANSWER = {"role": "assistant", "content": {"type": "text", "text": "4"}, "model": "ours"}
ASK = json.dumps(SAMPLE)


async def test_what_cannot_be_answered_is_refused_at_once() -> None:
    """Over standard input and output a question does not say which of two calls it belongs to."""
    asked: list[Request] = []
    agent = Agent("caller")

    @agent.on_request("sampling/createMessage")
    async def answer(request: Request) -> dict[str, Any]:
        asked.append(request)
        return ANSWER

    async with bridged(stdio("scripted", "2025-06-18"), caller=agent) as stage:
        space = stage.caller
        other = await stage.join("other")
        assert json.loads(await do(space, ASK)) == ANSWER
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(do, other, "wait")
            await anyio.lowlevel.checkpoint()
            assert await do(other, "x") == "done: x"  # so the other call has arrived
            error = json.loads(await do(space, ASK))
            assert error["message"].startswith("this cannot be answered: calls of several part")
            tasks.cancel_scope.cancel()
        ask = json.dumps({"method": "tools/list", "params": {}})
        assert json.loads(await do(space, ask))["code"] == -32601
    assert len(asked) == 1


@pytest.mark.thorough
async def test_a_server_that_asks_without_an_end_is_refused() -> None:
    agent = Agent("caller")

    @agent.on_request("roots/list")
    async def roots(request: Request) -> dict[str, Any]:
        return {"roots": []}

    async with bridged(stdio("scripted", "2025-06-18"), caller=agent) as stage:
        # Of forty questions during one call, thirty-two are passed on.
        assert await do(stage.caller, "nag") == "8"
    async with bridged(stdio("scripted", "2026-07-28")) as stage:
        with pytest.raises(RequestError, match="asked for more input after 10 rounds"):
            await do(stage.caller, "more")
