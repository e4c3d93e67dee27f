"""Malicious MCP servers behind a bridge: each harms its own calls alone."""

import json
from typing import Any

import pytest

from meup_agent import Progress, Space
from meup_agent.client.schema_check import check_schema
from meup_agent.errors import RequestError
from meup_agent.mcp.bridge.offered_tools import MAX_TOOL_DEPTH
from tests.mcp.bridge.stage import BRIDGE, LogLines, bridged, stdio

RESULT = '{"jsonrpc": "2.0", "id": $ID, "result": {"content": [], "structuredContent": {"a": %s}}}'
ERROR = '{"jsonrpc": "2.0", "id": $ID, "error": {"code": %s, "message": "no"}}'
PROGRESS = (
    '{"jsonrpc": "2.0", "method": "notifications/progress",'
    ' "params": {"progressToken": $TOKEN, "progress": %s, "total": %s}}'
)
PING = '{"jsonrpc": "2.0", "id": "the same", "method": "ping"}'


async def do(space: Space, *lines: str, **more: Any) -> Any:
    """Call the server, which says these lines before its answer."""
    params = {"name": "do", "arguments": {"lines": list(lines), **more}}
    return await space.request(BRIDGE, "tools/call", params)


def text_of(result: Any) -> str:
    return str(result["content"][0]["text"])


async def test_a_flood_on_standard_error_stops_nothing_else(log_lines: LogLines) -> None:
    """Three writers are faster than one reader, so that the pipe never runs dry."""
    async with bridged(stdio("hostile")) as stage:
        assert text_of(await do(stage.caller, stderr=True)) == "done"
        assert text_of(await do(stage.caller)) == "done"


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "9" * 400])
async def test_a_number_that_json_has_not_is_an_error_that_says_so(number: str) -> None:
    async with bridged(stdio("hostile")) as stage:
        result = await do(stage.caller, RESULT % number)
        assert result["isError"]
        assert "cannot be passed on: " in text_of(result)
        assert text_of(await do(stage.caller)) == "done"


async def test_an_error_with_a_code_beyond_every_double_is_answered() -> None:
    """The gateway refuses such a number, and the caller would wait for its answer."""
    async with bridged(stdio("hostile")) as stage:
        with pytest.raises(RequestError, match="no"):
            await do(stage.caller, ERROR % ("9" * 400))


async def test_progress_without_a_number_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Progress] = []
    lines = [PROGRESS % each for each in (("NaN", "1"), ("1e999", "1"), ("1", "NaN"))]
    params = {"name": "do", "arguments": {"lines": lines}}
    async with bridged(stdio("hostile")) as stage:
        await stage.caller.request(BRIDGE, "tools/call", params, on_progress=seen.append)
    assert [(each.done, each.total) for each in seen] == [(1, None)]
    assert "progress callback raised" not in caplog.text


@pytest.mark.thorough
async def test_a_server_that_asks_without_taking_answers_is_ended() -> None:
    """Each question that waits for its answer's way out is a task."""
    async with bridged(stdio("hostile")) as stage:
        result = await do(stage.caller, PING, times=50_000)
        assert "asked 256 times without taking an answer" in text_of(result)
        assert text_of(await do(stage.caller)) == "done"  # started again


def tools(**schemas: Any) -> dict[str, str]:
    """An environment in which the server has such tools."""
    listed = [{"name": name, "inputSchema": schema} for name, schema in schemas.items()]
    listed.append({"name": "do", "inputSchema": {"type": "object"}})
    # As it is, for what an environment may hold.
    return {"TOOLS": json.dumps(listed, ensure_ascii=False)}


async def test_tools_that_no_message_can_carry_do_not_spoil_the_list(log_lines: LogLines) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(MAX_TOOL_DEPTH):
        deep = {"x": deep}
    env = tools(nan={"type": "object", "default": float("nan")})
    listed = json.loads(env["TOOLS"])
    listed.append({"name": "deep", "inputSchema": {"type": "object"}, "_meta": deep})
    async with bridged(stdio("hostile", env={"TOOLS": json.dumps(listed)})) as stage:
        assert [tool["name"] for tool in await stage.caller.offers.tools(BRIDGE)] == ["do"]
    for name in ("nan", "deep"):
        assert log_lines.with_text(f"the tool '{name}' is left out: ")


async def test_slow_schemas_are_passed_on_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking these properties takes ten seconds, and compiling this expression minutes."""
    checked = list[Any]()

    def check(validator: Any, schema: Any) -> None:
        checked.append(schema)
        check_schema(validator, schema)

    monkeypatch.setattr("meup_agent.mcp.bridge.offered_tools.check_schema", check)
    wide = {"type": "object", "properties": {f"p{at}": {} for at in range(5_000)}}
    slow = {
        "type": "object",
        "properties": {"a": {"pattern": "(?i)" + "[\u0100-\U0010fff0]" * 4_999}},
    }
    async with bridged(
        stdio("hostile", env=tools(wide=wide, slow={"type": "object", **slow}))
    ) as stage:
        listed = await stage.caller.request(BRIDGE, "tools/list", {})
    assert [tool["name"] for tool in listed["tools"]] == ["wide", "slow", "do"]
    assert wide not in checked
