"""Resources, prompts, completions and subscriptions of a space, and changes of its lists."""

import logging
from typing import Any

import anyio
import anyio.lowlevel
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from meup_agent import Agent, Proposal, Reason, Request
from meup_agent.errors import RequestError
from meup_agent.mcp.sdk.naming import exposed_name
from meup_agent.mcp.server import catalog
from tests.mcp.client import client_beside
from tests.mcp.conftest import ANYTHING, served, staged
from tests.mcp.server.test_cancellation import session
from tests.mcp.server.test_tool_calls import MODES
from tests.patience import PATIENCE


class Library:
    def __init__(self, name: str, *uris: str) -> None:
        self.uris = list(uris)
        self.templates = [f"{name}://shelf/{{id}}"]
        self.tools: list[dict[str, Any]] = []
        self.asked: list[Request] = []
        self.subscribed: list[str] = []
        self.changed = anyio.Event()
        self.agent = Agent(name)
        self.agent.on_request("resources/**", "prompts/*", "completion/*")(self.answer)
        self.agent.on_request("tools/list")(self.list_tools)

    async def list_tools(self, _: Request) -> dict[str, Any]:
        return {"tools": self.tools}

    async def answer(self, request: Request) -> dict[str, Any]:
        self.asked.append(request)
        uri = str(request.params.get("uri"))
        match request.method:
            case "resources/list":
                return {"resources": [{"uri": each, "name": each} for each in self.uris]}
            case "resources/templates/list":
                each = self.templates[0]
                return {"resourceTemplates": [{"uriTemplate": each, "name": each}]}
            case "resources/read":
                contents = {"uri": uri, "text": f"{self.agent.name}: {uri}"}
                return {"contents": [contents], "_meta": {"dev.example/x": 1}}
            case "prompts/list":
                return {"prompts": [{"name": "hello", "arguments": [{"name": "who"}]}]}
            case "prompts/get":
                text = f"Hello, {request.params['arguments']['who']}!"
                content = {"type": "text", "text": text}
                return {"messages": [{"role": "user", "content": content}]}
            case "completion/complete":
                return {"completion": {"values": [str(request.params["ref"])]}}
            case "resources/subscribe" | "resources/unsubscribe":
                what = request.method.removeprefix("resources/")
                self.subscribed.append(f"{what} {uri}")
                self.changed.set()
                return {}
            case method:
                raise RequestError(-32601, f"no {method} here")


def contents(result: types.ReadResourceResult) -> tuple[str, str]:
    (content,) = result.contents
    assert isinstance(content, types.TextResourceContents)
    return str(content.uri), content.text


LISTS: list[dict[str, Any]] = [
    {"kind": "mcp/request", "payload": {"method": ["*/list", "resources/templates/list"]}},
    {"kind": "mcp/proposal"},
]


@pytest.mark.parametrize("mode", MODES)
async def test_what_may_not_be_read_is_proposed(mode: str) -> None:
    """An approved read gives its answer, a rejected or changed one the words for it."""
    reviewer = Agent("reviewer")

    @reviewer.on_proposal(method="**")
    async def decide(proposal: Proposal) -> None:
        params = proposal.envelope.payload_object["params"]
        if params.get("uri") == "file:///secret":
            await proposal.reject(Reason.POLICY, explain="nobody reads that")
        else:
            eve = proposal.arguments.get("who") == "Eve"
            await proposal.fulfill({"who": "Bob"} if eve else None)

    library = Library("left", "file:///a", "file:///secret")
    async with client_beside(library.agent, reviewer, may=LISTS, mode=mode) as client:
        assert contents(await client.read_resource("file:///a")) == ("file:///a", "left: file:///a")
        prompt = await client.get_prompt("left_hello", {"who": "Ann"})
        assert prompt.messages[0].content.text == "Hello, Ann!"  # type: ignore[union-attr]
        with pytest.raises(MCPError, match=r"file:///secret\" was rejected as policy by reviewer"):
            await client.read_resource("file:///secret")
        with pytest.raises(MCPError, match=r"reviewer changed .*prompts/get.*Bob.* is left out"):
            await client.get_prompt("left_hello", {"who": "Eve"})
    assert {each.sender for each in library.asked if "list" not in each.method} == {"reviewer"}


@pytest.mark.parametrize("mode", MODES)
async def test_resources_of_one_participant_stay_as_they_are(mode: str) -> None:
    left, right = Library("left", "file:///a", "file:///both"), Library("right", "file:///both")
    async with client_beside(left.agent, right.agent, mode=mode) as client:
        listed = [str(each.uri) for each in (await client.list_resources()).resources]
        assert listed == [
            "file:///a",
            "meup://participant/left/file%3A%2F%2F%2Fboth",
            "meup://participant/right/file%3A%2F%2F%2Fboth",
        ]
        read = await client.read_resource("file:///a")
        assert contents(read) == ("file:///a", "left: file:///a")
        assert read.meta is not None
        assert read.meta["dev.example/x"] == 1
        assert contents(await client.read_resource(listed[2])) == (listed[2], "right: file:///both")
        with pytest.raises(MCPError, match="Several participants have file:///both; ask for"):
            await client.read_resource("file:///both")
        with pytest.raises(MCPError, match="Resource not found: file:///c"):
            await client.read_resource("file:///c")


@pytest.mark.parametrize("mode", MODES)
async def test_templates_prompts_and_completions(mode: str) -> None:
    left = Library("left")
    async with client_beside(left.agent, mode=mode) as client:
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "left://shelf/{id}"
        read = await client.read_resource("left://shelf/7")
        assert contents(read) == ("left://shelf/7", "left: left://shelf/7")
        (prompt,) = (await client.list_prompts()).prompts
        assert prompt.name == "left_hello"
        got = await client.get_prompt("left_hello", {"who": "Ada"})
        (message,) = got.messages
        assert isinstance(message.content, types.TextContent)
        assert message.content.text == "Hello, Ada!"
        completed = await client.complete(
            types.PromptReference(type="ref/prompt", name="left_hello"),
            {"name": "who", "value": "A"},
        )
        assert completed.completion.values == ["{'type': 'ref/prompt', 'name': 'hello'}"]
        completed = await client.complete(
            types.ResourceTemplateReference(type="ref/resource", uri=template.uri_template),
            {"name": "id", "value": "7"},
        )
        assert completed.completion.values == [
            "{'type': 'ref/resource', 'uri': 'left://shelf/{id}'}"
        ]
        with pytest.raises(MCPError, match="Unknown prompt: left_bye"):
            await client.get_prompt("left_bye")


async def test_a_template_of_two_participants_names_each() -> None:
    left, right = Library("left"), Library("right")
    right.templates = left.templates
    async with client_beside(left.agent, right.agent) as client:
        found = (await client.list_resource_templates()).resource_templates
        uri = found[1].uri_template.replace("{id}", "a%2Fb")
        assert contents(await client.read_resource(uri)) == (uri, "right: left://shelf/a%2Fb")


async def announce(space: Any, method: str, **params: Any) -> None:
    await space.send("mcp/request", {"jsonrpc": "2.0", "method": method, "params": params})


async def test_subscriptions_by_session() -> None:
    left = Library("left", "file:///a")
    heard: list[str] = []
    told = anyio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            heard.append(str(message.params.uri))
            told.set()

    async with staged(left=ANYTHING, alice=ANYTHING) as stage:
        space = await stage.join("left", left.agent)
        async with served(stage, own="alice") as server:
            async with server.client(mode="legacy", message_handler=hear) as client:
                with pytest.warns(MCPDeprecationWarning):
                    await client.subscribe_resource("file:///a")
                assert left.subscribed == ["subscribe file:///a"]
                while not told.is_set():  # its own stream opens by and by
                    await announce(space, "notifications/resources/updated", uri="file:///a")
                    await announce(space, "notifications/resources/updated", uri="file:///b")
                    await space.offers.tools("alice", refresh=True)
                with pytest.warns(MCPDeprecationWarning):
                    await client.unsubscribe_resource("file:///a")
                while len(left.subscribed) < 2:
                    await anyio.lowlevel.checkpoint()
    assert set(heard) == {"file:///a"}
    assert left.subscribed == ["subscribe file:///a", "unsubscribe file:///a"]


async def test_subscriptions_by_listening() -> None:
    left = Library("left", "file:///a")
    async with staged(left=ANYTHING, alice=ANYTHING) as stage:
        space = await stage.join("left", left.agent)
        async with served(stage, own="alice") as server, server.client() as client:
            async with client.listen(
                tools_list_changed=True, resource_subscriptions=["file:///a"]
            ) as events:
                assert left.subscribed == ["subscribe file:///a"]
                await announce(space, "notifications/resources/updated", uri="file:///b")
                await announce(space, "notifications/resources/updated", uri="file:///a")
                assert "file:///a" in str(await anext(events))
                await announce(space, "notifications/tools/list_changed")
                assert "Tools" in type(await anext(events)).__name__
            while len(left.subscribed) < 2:
                await anyio.lowlevel.checkpoint()
    assert left.subscribed[-1] == "unsubscribe file:///a"


async def test_a_participant_that_joins_or_leaves_changes_the_lists() -> None:
    left, right = Library("left"), Agent("right")

    @right.tool
    async def echo(text: str) -> str:
        return text

    async with staged(left.agent, right=ANYTHING, alice=ANYTHING) as stage:
        async with served(stage, own="alice") as server, server.client() as client:
            assert (await client.list_tools()).tools == []
            async with client.listen(tools_list_changed=True) as events:
                async with right.join(stage.gateway.url, space="demo", token=stage.token("right")):
                    await anext(events)
                    (tool,) = (await client.list_tools(cache_mode="refresh")).tools
                    assert tool.name == "right_echo"
                await anext(events)
                assert (await client.list_tools(cache_mode="refresh")).tools == []


LOOP: dict[str, Any] = {"type": "object", "properties": {"a": {"$ref": "#"}}}


@pytest.mark.parametrize("mode", MODES)
async def test_a_bad_tool_alone_is_left_out(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "meup_agent.mcp")
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(20):
        deep = {"type": "object", "properties": {"a": deep}}
    left = Library("left")
    left.tools = [
        {"name": "good", "inputSchema": {"type": "object"}},
        {"name": "good", "inputSchema": {"type": "object"}, "description": "another"},
        {"name": "loop", "inputSchema": LOOP},
        {"name": "deep", "inputSchema": deep},
        {"name": "text", "inputSchema": "nothing"},
        {"name": "array", "inputSchema": {"type": "array"}},
        {"name": "none"},
        {"inputSchema": {"type": "object"}},
        {"name": "forbidden name!", "inputSchema": {"type": "object"}},
        {"name": "described", "inputSchema": {"type": "object"}, "description": 7},
    ]
    async with client_beside(left.agent, mode=mode) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
    forbidden = exposed_name("left", "forbidden name!")
    assert names == ["left_good", "left_loop", "left_deep", forbidden]
    said = [each.getMessage() for each in caplog.records]
    assert "'left' lists 'good' twice; the first one counts" in said
    assert any("'text' of 'left' is left out" in each for each in said)


async def test_a_participant_that_answers_rubbish_does_not_spoil_the_list() -> None:
    good, bad = Library("good"), Agent("bad")
    good.tools = [{"name": "one", "inputSchema": {"type": "object"}}]

    @bad.on_request("tools/list")
    async def rubbish(_: Request) -> dict[str, Any]:
        return {"tools": {"name": "no list"}}

    @bad.on_request("resources/list", "prompts/list")
    async def fails(_: Request) -> dict[str, Any]:
        raise RequestError(-1, "no")

    async with client_beside(good.agent, bad) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["good_one"]
        assert len((await client.list_prompts()).prompts) == 1


async def test_a_result_that_is_none_is_a_clear_error() -> None:
    bad = Agent("bad")

    @bad.on_request("tools/list")
    async def listed(_: Request) -> dict[str, Any]:
        return {"tools": [{"name": "one", "inputSchema": {"type": "object"}}]}

    @bad.on_request("tools/call")
    async def called(_: Request) -> dict[str, Any]:
        return {"neither": "content nor anything"}

    async with client_beside(bad) as client:
        result = await client.call_tool("bad_one")
    assert result.is_error
    assert "not a result of MCP" in str(result.content)


async def test_a_participant_that_does_not_answer_delays_no_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent, asked = Agent("silent"), anyio.Event()
    left = Library("left")
    left.tools = [{"name": "one", "inputSchema": {"type": "object"}}]

    @silent.on_request("**")
    async def never(_: Request) -> dict[str, Any]:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    @left.agent.on_request("tools/call")
    async def called(_: Request) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "done"}]}

    async with staged(left.agent, silent=ANYTHING, alice=ANYTHING) as stage:
        async with served(stage, own="alice") as server, session(server) as client:
            listing = {"id": 1, "method": "tools/list", "params": {}}
            call = {"id": 2, "method": "tools/call", "params": {"name": "left_one"}}
            assert "left_one" in (await client.post(listing)).text
            # The list of the other one is known by now.
            monkeypatch.setattr(catalog, "LIST_SECONDS", 0.2)
            token = stage.token("silent")
            async with silent.join(stage.gateway.url, space="demo", token=token):
                assert "done" in (await client.post(call)).text
                assert not asked.is_set()
                assert "left_one" in (await client.post(listing)).text
                assert asked.is_set()


async def test_a_silent_participant_does_not_hold_up_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog, "LIST_SECONDS", 10 * PATIENCE)
    silent, left, answers = Agent("silent"), Library("left"), anyio.Event()
    left.tools = [{"name": "one", "inputSchema": {"type": "object"}}]

    @silent.on_request("tools/list")
    async def late(_: Request) -> dict[str, Any]:
        await answers.wait()
        return {"tools": [{"name": "two", "inputSchema": {"type": "object"}}]}

    async with (
        staged(left.agent, silent, alice=ANYTHING) as stage,
        served(stage, own="alice") as server,
        session(server) as client,
    ):
        listing = {"id": 1, "method": "tools/list", "params": {}}
        with anyio.fail_after(PATIENCE):
            said = (await client.post(listing)).text
            assert "left_one" in said
            assert "silent_two" not in said
            answers.set()
            while "silent_two" not in said:
                said = (await client.post(listing)).text
