"""Asks and log messages during a call reach the MCP client that made it."""

from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client import ClientRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import FileUrl

from meup_agent import Agent, Context
from meup_agent.errors import RequestError
from tests.mcp.client import client_beside
from tests.mcp.conftest import ANYTHING, PROPOSES, served, staged
from tests.mcp.server.test_tool_calls import MODES, reviewer, text

FORM = {"type": "object", "properties": {"city": {"type": "string"}}}


async def ask(ctx: Context, method: str, params: dict[str, Any], **meta: str) -> Any:
    """Ask the client of a call what it does not say."""
    meta = {"dev.meup/request": ctx.envelope.id, **meta}
    return await ctx.space.request(ctx.sender, method, {**params, "_meta": meta})


def asker() -> Agent:
    """An agent whose tools ask their callers."""
    agent = Agent("asker")

    @agent.tool
    async def weather(ctx: Context) -> str:
        params = {"message": "Where are you?", "requestedSchema": FORM, "mode": "form"}
        answer = await ask(ctx, "elicitation/create", params)
        return f"{answer['action']}: {answer['content']['city']}"

    @agent.tool
    async def summary(ctx: Context) -> str:
        message = {"role": "user", "content": {"type": "text", "text": "Say hello"}}
        params = {"messages": [message], "maxTokens": 10}
        answer = await ask(ctx, "sampling/createMessage", params)
        return str(answer["content"]["text"])

    @agent.tool
    async def folders(ctx: Context) -> str:
        answer = await ask(ctx, "roots/list", {})
        return str(answer["roots"][0]["uri"])

    @agent.tool
    async def both(ctx: Context) -> str:
        answers: list[str] = []

        async def one(message: str) -> None:
            params = {"message": message, "requestedSchema": FORM, "mode": "form"}
            answer = await ask(ctx, "elicitation/create", params)
            answers.append(answer["content"]["city"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, "From where?")
            tasks.start_soon(one, "To where?")
        return " and ".join(sorted(answers))

    @agent.tool
    async def logs(ctx: Context) -> str:
        for level in ("debug", "warning"):
            said: dict[str, Any] = {"level": level, "data": f"a {level}", "_meta": {}}
            said["_meta"] = {"dev.meup/request": ctx.envelope.id}
            payload = {"method": "notifications/message", "params": said}
            await ctx.space.send("mcp/request", payload, to=ctx.sender)
        return "done"

    return agent


async def elicited(
    _: ClientRequestContext, params: types.ElicitRequestParams
) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"city": params.message.split()[0]})


async def sampled(
    _: ClientRequestContext, params: types.CreateMessageRequestParams
) -> types.CreateMessageResult:
    said = types.TextContent(type="text", text=f"hello, {len(params.messages)} message")
    return types.CreateMessageResult(role="assistant", content=said, model="m")


async def rooted(_: ClientRequestContext) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri=FileUrl("file:///home/alice"))])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("weather", "accept: Where"),
        ("summary", "hello, 1 message"),
        ("folders", "file:///home/alice"),
        ("both", "From and To"),
    ],
)
async def test_a_calls_question_reaches_its_client(mode: str, tool: str, expected: str) -> None:
    async with client_beside(
        asker(),
        mode=mode,
        elicitation_callback=elicited,
        sampling_callback=sampled,
        list_roots_callback=rooted,
    ) as client:
        result = await client.call_tool(f"asker_{tool}")
    assert text(result) == expected


@pytest.mark.parametrize("mode", MODES)
async def test_a_question_during_a_proposed_call_reaches_its_proposer(mode: str) -> None:
    agent = Agent("asker")

    @agent.tool
    async def weather(ctx: Context) -> str:
        (proposal,) = ctx.envelope.correlation
        params = {
            "message": "Where?",
            "requestedSchema": FORM,
            "mode": "form",
            "_meta": {"dev.meup/request": ctx.envelope.id, "dev.meup/proposal": proposal},
        }
        answer = await ctx.space.request("alice", "elicitation/create", params)
        return str(answer["content"]["city"])

    async with client_beside(
        agent, reviewer(), may=PROPOSES, mode=mode, elicitation_callback=elicited
    ) as client:
        result = await client.call_tool("asker_weather")
    assert text(result) == "Where?"


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_cannot_answer_is_not_asked(mode: str) -> None:
    agent = Agent("asker")
    errors: list[RequestError] = []

    @agent.tool
    async def folders(ctx: Context) -> str:
        try:
            await ask(ctx, "roots/list", {})
        except RequestError as error:
            errors.append(error)
        return "none"

    async with client_beside(agent, mode=mode) as client:
        assert text(await client.call_tool("asker_folders")) == "none"
    assert str(errors[0].message) == "the MCP client of this call has no roots"


async def test_only_who_carries_out_a_call_may_ask_and_only_then() -> None:
    agent = Agent("asker")
    calls: list[str] = []
    hold, called = anyio.Event(), anyio.Event()

    @agent.tool
    async def wait(ctx: Context) -> str:
        calls.append(ctx.envelope.id)
        called.set()
        await hold.wait()
        return "done"

    async with staged(asker=ANYTHING, alice=ANYTHING, mallory=ANYTHING) as stage:
        asker_space = await stage.join("asker", agent)
        mallory = await stage.join("mallory")
        async with (
            served(stage, own="alice") as server,
            server.client(mode="legacy", list_roots_callback=rooted) as client,
        ):
            meta: dict[str, Any] = {}
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "asker_wait")
                await called.wait()
                meta["_meta"] = {"dev.meup/request": calls[0]}
                for space, params in ((mallory, meta), (asker_space, {})):
                    with pytest.raises(RequestError, match="only during a call"):
                        await space.request("alice", "roots/list", params)
                hold.set()
            with pytest.raises(RequestError, match="only during a call"):
                await asker_space.request("alice", "elicitation/create", meta)
            # Its roots tell nothing of a call, and a server may ask for them when they change.
            assert "roots" in await asker_space.request("alice", "roots/list", meta)
            with pytest.raises(RequestError, match="only during a call"):
                await mallory.request("alice", "roots/list", meta)


@pytest.mark.parametrize("mode", MODES)
async def test_log_messages_of_a_call_reach_its_client(mode: str) -> None:
    heard: list[tuple[str, Any]] = []

    async def logged(params: types.LoggingMessageNotificationParams) -> None:
        heard.append((params.level, params.data))

    async with client_beside(asker(), mode=mode, logging_callback=logged) as client:
        if mode == "legacy":
            await client.session.send_request(
                types.SetLevelRequest(params=types.SetLevelRequestParams(level="info")),
                types.EmptyResult,
            )
            await client.call_tool("asker_logs")
        else:
            meta: Any = {"io.modelcontextprotocol/logLevel": "info"}
            await client.call_tool("asker_logs", meta=meta)
            await client.call_tool("asker_logs")  # says nothing of a level: none
    assert heard == [("warning", "a warning")]


def asking_by_result(*methods: str) -> Agent:
    """An agent whose tool asks for several things by its result."""
    agent = Agent("asker")
    asked = {method: {"method": method, "params": PARAMS.get(method, {})} for method in methods}

    @agent.on_request("tools/list")
    async def list_tools() -> dict[str, Any]:
        return {"tools": [{"name": "several", "inputSchema": {"type": "object"}}]}

    @agent.on_request("tools/call")
    async def call() -> dict[str, Any]:
        return {"resultType": "input_required", "inputRequests": asked, "requestState": "mine"}

    return agent


async def decline(
    context: ClientRequestContext, params: types.ElicitRequestParams
) -> types.ElicitResult:
    return types.ElicitResult(action="decline")


PARAMS: dict[str, dict[str, Any]] = {
    "elicitation/create": {"message": "Where?", "requestedSchema": FORM}
}


async def test_a_result_asks_only_what_its_client_answers() -> None:
    agent = asking_by_result("roots/list", "elicitation/create")
    async with client_beside(agent, elicitation_callback=decline) as client:
        result = await client.session.call_tool("asker_several", {}, allow_input_required=True)
    assert isinstance(result, types.InputRequiredResult)
    assert list(result.input_requests or {}) == ["elicitation/create"]
    assert result.request_state == "mine"


async def test_a_result_that_asks_only_what_its_client_does_not_answer_is_an_error() -> None:
    async with client_beside(asking_by_result("roots/list")) as client:
        with pytest.raises(MCPError, match="has no roots") as refused:
            await client.call_tool("asker_several")
    assert refused.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY
    assert refused.value.data == {"requiredCapabilities": {"roots": {}}}
