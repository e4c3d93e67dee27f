"""Handlers of MCP requests by method, the verbs that reach them, and cancels with a reason."""

from typing import Any

import anyio
import mcp_types
import pytest

from meup_agent import Agent, CallScope, Context, Reason, Request
from meup_agent.errors import RequestError
from tests.interaction.cast import sleep_until_stopped
from tests.interaction.people import Meeting, Notes, gathered, join, until
from tests.interaction.views import is_, is_request, is_response, is_withdraw, run_within, taped
from tests.wire import kinds, payloads


def library(notes: Notes, asked: list[Any] | None = None) -> Agent:
    """Resources and prompts in two pages, and what is asked for by hand."""
    agent, asked = Agent("tools"), [] if asked is None else asked

    @agent.on_request("resources/**", "prompts/**", "completion/complete")
    async def answer(request: Request, ctx: Context) -> Any:
        notes(request.method)
        asked.append(request.params)
        match request.method:
            case "resources/list":
                if "cursor" in request.params:
                    return {"resources": [{"uri": "file:///b", "name": "b"}]}
                return {"resources": [{"uri": "file:///a", "name": "a"}], "nextCursor": "2"}
            case "resources/templates/list":
                return {"resourceTemplates": [{"uriTemplate": "file:///{name}", "name": "any"}]}
            case "resources/read":
                return {"contents": [{"uri": request.params["uri"], "text": "words", "x": None}]}
            case "prompts/list":
                return mcp_types.ListPromptsResult(prompts=[mcp_types.Prompt(name="greet")])
            case "prompts/get":
                text = {"type": "text", "text": f"Hello {request.params['arguments']['name']}"}
                return {"messages": [{"role": "user", "content": text}]}
            case "completion/complete":
                return {"completion": {"values": ["one", "two"]}}
            case method:
                raise RequestError(payloads.METHOD_NOT_FOUND, f"no {method} here")

    return agent


async def test_resources_and_prompts_are_read_by_verbs(meeting: Meeting, notes: Notes) -> None:
    asked: list[Any] = []
    async with gathered(meeting, library(notes, asked)), join(meeting, "second") as space:
        listed = await space.offers.resources("tools")
        assert [each["uri"] for each in listed] == ["file:///a", "file:///b"]
        assert (await space.offers.resource_templates("tools"))[0][
            "uriTemplate"
        ] == "file:///{name}"
        [content] = await space.offers.read_resource("tools", "file:///a")
        assert content == {"uri": "file:///a", "text": "words", "x": None}
        assert [each["name"] for each in await space.offers.prompts("tools")] == ["greet"]
        prompt = await space.offers.prompt("tools", "greet", {"name": "Ada"})
        assert prompt["messages"][0]["content"]["text"] == "Hello Ada"
        ref = {"type": "ref/prompt", "name": "greet"}
        values = await space.offers.complete("tools", ref, "name", "o", known={"other": "1"})
        assert values == ["one", "two"]
    assert asked[-1] == {
        "ref": ref,
        "argument": {"name": "name", "value": "o"},
        "context": {"arguments": {"other": "1"}},
    }


async def test_error_of_a_request_handler_is_answered(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, library(notes)), join(meeting, "second") as space:
        with pytest.raises(RequestError, match="no resources/eat here") as raised:
            await space.request("tools", "resources/eat")
        assert raised.value.code == payloads.METHOD_NOT_FOUND
        with pytest.raises(RequestError) as unknown:
            await space.request("tools", "roots/list")
        assert unknown.value.code == payloads.METHOD_NOT_FOUND


@pytest.mark.parametrize("given", [None, 5, ["list"]])
async def test_result_that_is_no_object_is_an_error(meeting: Meeting, given: Any) -> None:
    agent = Agent("tools")

    @agent.on_request("resources/list")
    async def answer(request: Request) -> Any:
        return given

    async with gathered(meeting, agent), join(meeting, "second") as space:
        with pytest.raises(RequestError, match="a result is an object"):
            await space.request("tools", "resources/list")


async def test_too_large_result_is_an_error(meeting: Meeting) -> None:
    agent = Agent("tools")

    @agent.on_request("resources/read")
    async def answer(request: Request) -> Any:
        return {"contents": [{"text": "x" * (5 * 1024 * 1024)}]}

    async with gathered(meeting, agent), join(meeting, "second") as space:
        with pytest.raises(RequestError, match="bytes; at most"):
            await space.offers.read_resource("tools", "file:///a")


async def test_request_handler_comes_before_tools(meeting: Meeting) -> None:
    agent = Agent("tools")

    @agent.tool
    async def write() -> str:
        return "tool"

    @agent.on_request("tools/call")
    async def answer(request: Request) -> Any:
        return {"content": [{"type": "text", "text": "handler"}], "newer": 1}

    async with gathered(meeting, agent), join(meeting, "second") as space:
        result = await space.request("tools", "tools/call", {"name": "write", "arguments": {}})
        assert result == {"content": [{"type": "text", "text": "handler"}], "newer": 1}
        assert [each["name"] for each in await space.offers.tools("tools")] == ["write"]


async def test_broadcast_request_starts_where_it_may(meeting: Meeting, notes: Notes) -> None:
    def of(agent: Agent, ours: str) -> Agent:
        def is_ours(request: Request) -> bool:
            return request.params.get("name") == ours

        @agent.on_request("tools/call", broadcast=is_ours)
        async def answer(request: Request) -> Any:
            notes((ours, request.params["name"]))
            return {"content": []}

        @agent.on_request("tools/call")
        async def never(request: Request) -> Any:
            notes("wrong")
            return {"content": []}

        return agent

    first, second = of(Agent("tools"), "read"), of(Agent("deep"), "write")
    async with gathered(meeting, first, second), join(meeting, "second") as space:
        async with taped(space) as tape:
            params = {"name": "write", "arguments": {}}
            await space.send(kinds.MCP_REQUEST, payloads.request("tools/call", params, "1"))
            await tape.until(is_response)
    assert notes.all == [("write", "write")]


async def test_call_scope_cancels_with_its_reason(meeting: Meeting, notes: Notes) -> None:
    agent = Agent("tools")

    @agent.on_request("tools/call")
    async def answer(request: Request, ctx: Context) -> Any:
        await sleep_until_stopped(notes, ctx)

    async with (
        gathered(meeting, agent, "second") as (_, space),
        taped(space) as tape,
        anyio.create_task_group() as tasks,
    ):
        scope, call = CallScope(), {"name": "wait"}
        tasks.start_soon(run_within, scope, space.request, "tools", "tools/call", call)
        await notes.until("runs")
        scope.cancel(Reason.TIMEOUT, text="stopped by the user")
        scope.cancel("later")
        await notes.until(("second", "timeout: stopped by the user"))
        await tape.until(is_request, 2)
        params = tape.calls(kinds.CANCELLED)[0].payload["params"]
        assert params["reason"] == "stopped by the user"
        assert [each["reason"] for each in params["_meta"]["dev.meup/cause"]] == ["timeout"]
    assert scope.cancelled
    assert len(notes.all) == 2


async def test_call_scope_withdraws_with_its_reason(meeting: Meeting) -> None:
    async with join(meeting, "proposer") as space, taped(space) as tape:
        with CallScope() as scope:
            async with space.propose("tools", "write") as proposal:
                await tape.until(is_(proposal.id))
                scope.cancel("unsafe")
                await proposal.outcome()
        withdrawn = await tape.until(is_withdraw)
        assert withdrawn.payload_object["reason"] == "unsafe"


async def test_innermost_cancelled_scope_gives_the_reason(meeting: Meeting) -> None:
    async with join(meeting, "proposer") as space, taped(space) as tape:
        with CallScope() as outer, CallScope() as inner:
            async with space.propose("tools", "write") as proposal:
                await tape.until(is_(proposal.id))
                outer.cancel("busy")
                inner.cancel("invalid")
        assert (await tape.until(is_withdraw)).payload_object["reason"] == "invalid"
        with CallScope() as outer, CallScope():
            async with space.propose("tools", "write") as second:
                await tape.until(is_(second.id))
                outer.cancel("busy")
        assert (await tape.until(is_withdraw, 2)).payload_object["reason"] == "busy"


async def test_request_says_whose_proposal_it_carries_out(meeting: Meeting, notes: Notes) -> None:
    agent = Agent("tools")

    @agent.on_request("tools/call")
    async def answer(request: Request) -> Any:
        notes((request.sender, request.proposer, request.proposal))
        return {"content": []}

    async with (
        gathered(meeting, agent, "second", "proposer") as (_, fulfiller, space),
        space.propose("tools", "write") as proposal,
    ):
        await until(lambda: bool(fulfiller.proposals))
        await fulfiller.proposals.get(fulfiller.proposals[0]).fulfill()
        await proposal.outcome()
        assert notes.all == [("second", "proposer", proposal.id)]


@pytest.mark.rule("5.reviewers.bridge")
async def test_a_method_of_our_own_is_taken_by_its_whole_name_alone(meeting: Meeting) -> None:
    agent, asked = Agent("tools"), list[str]()

    @agent.on_request("**", "dev.meup/*", "/.*/", broadcast=lambda _: True)
    async def pass_on(request: Request) -> dict[str, Any]:
        asked.append(request.method)
        return {}

    @agent.on_request("dev.meup/vote")
    async def vote() -> dict[str, Any]:
        return {"own": True}

    async with gathered(meeting, agent), join(meeting, "second") as space:
        assert await space.request("tools", "dev.meup/vote") == {"own": True}
        for method in ("dev.meup/judge", "dev.meup/waiting", "dev.meup/"):
            with pytest.raises(RequestError) as unknown:
                await space.request("tools", method)
            assert unknown.value.code == payloads.METHOD_NOT_FOUND
        assert await space.request("tools", "dev.meup") == {}
    assert asked == ["dev.meup"]
