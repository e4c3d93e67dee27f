"""Everything that a server of the SDK offers, over each transport and era that it speaks."""

from dataclasses import replace
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Request, Space
from meup_agent.errors import RequestError
from meup_agent.mcp import Ask
from tests.mcp.bridge.stage import AT_ONCE, BRIDGE, LogLines, bridged, over

ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28"}


def answering() -> Agent:
    """A participant that answers what a server may ask."""
    agent = Agent("caller")

    @agent.on_request("elicitation/create")
    async def name(request: Request) -> dict[str, Any]:
        assert request.params["message"] == "Your name?"
        assert "name" in request.params["requestedSchema"]["properties"]
        assert set(request.params["_meta"]) == {"dev.meup/request"}
        return {"action": "accept", "content": {"name": "Ann"}}

    @agent.on_request("sampling/createMessage")
    async def model(request: Request) -> dict[str, Any]:
        assert request.params["messages"][0]["content"]["text"] == "2+2?"
        return {"role": "assistant", "content": {"type": "text", "text": "4"}, "model": "ours"}

    @agent.on_request("roots/list")
    async def roots(request: Request) -> dict[str, Any]:
        return {"roots": [{"uri": "file:///home"}]}

    return agent


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("way", "mode"),
    [
        ("stdio", "legacy"),
        ("stdio", "auto"),
        ("http", "legacy"),
        ("http", "auto"),
        ("json", "legacy"),
        ("sse", "legacy"),
    ],
)
async def test_an_sdk_server_is_a_participant(way: str, mode: str, log_lines: LogLines) -> None:
    settings = replace(AT_ONCE, mode=mode)
    async with over(way, "offers") as server:
        async with bridged(server, settings=settings, caller=answering()) as stage:
            await check_offers(stage.caller, mode)
            if way == "json":
                # An answer that is one piece of JSON has no room for a question.
                with pytest.raises(RequestError, match="no back-channel"):
                    await stage.caller.call(BRIDGE, "greet", {})
                return
            await check_questions(stage.caller, mode)
            await check_log(stage.caller, log_lines)
            await check_news(stage.caller, mode)


async def check_offers(space: Space, mode: str) -> None:
    described = await space.request(BRIDGE, "initialize", {})
    assert described["protocolVersion"] == ERAS[mode]
    assert described["serverInfo"]["name"] == "offers"
    assert described["instructions"] == "Offers one of each."
    assert await space.request(BRIDGE, "ping", {}) == {}
    assert [each["uri"] for each in await space.offers.resources(BRIDGE)] == ["note://first"]
    templates = await space.offers.resource_templates(BRIDGE)
    assert [each["uriTemplate"] for each in templates] == ["note://{name}/copy"]
    (first,) = await space.offers.read_resource(BRIDGE, "note://first")
    (copy,) = await space.offers.read_resource(BRIDGE, "note://second/copy")
    assert (first["text"], copy["text"]) == ("remember the milk", "a copy of second")
    assert [each["name"] for each in await space.offers.prompts(BRIDGE)] == ["review"]
    prompt = await space.offers.prompt(BRIDGE, "review", {"subject": "this"})
    assert prompt["messages"][0]["content"]["text"] == "Please review this."
    ref = {"type": "ref/prompt", "name": "review"}
    values = await space.offers.complete(BRIDGE, ref, "subject", "th", known={"tone": "kind"})
    assert values == ["th!", "kind"]


async def check_questions(space: Space, mode: str) -> None:
    greeted = await space.call(BRIDGE, "greet", {})
    assert greeted[0]["text"] == "hello Ann"
    if mode == "legacy":
        assert (await space.call(BRIDGE, "sample", {}))[0]["text"] == "ours: 4"
        assert (await space.call(BRIDGE, "folders", {}))[0]["text"] == "file:///home"


async def check_log(space: Space, log_lines: LogLines) -> None:
    await space.call(BRIDGE, "announce", {})
    line = await log_lines.wait_for("of the server")
    assert line == "INFO server: a line\\x1b[31m of the server"


async def check_news(space: Space, mode: str) -> None:
    with space.watch() as envelopes:
        wanted = {"notifications/tools/list_changed"}
        if mode == "auto":
            await space.request(BRIDGE, "resources/subscribe", {"uri": "note://first"})
            wanted.add("notifications/resources/updated")
        await space.call(BRIDGE, "grow", {})
        await space.call(BRIDGE, "touch", {})
        async for envelope in envelopes:
            payload = envelope.payload_object
            if envelope.sender == BRIDGE and payload.get("method") in wanted:
                wanted.remove(payload["method"])
                if payload["method"].endswith("updated"):
                    assert payload["params"] == {"uri": "note://first"}
                    assert envelope.to == ("caller",)
            if not wanted:
                break
    assert "extra" in [tool["name"] for tool in await space.offers.tools(BRIDGE)]


async def test_a_handler_can_answer_in_place_of_the_caller() -> None:
    asked: list[Ask] = []

    async def answer(ask: Ask) -> dict[str, Any]:
        asked.append(ask)
        return {"action": "accept", "content": {"name": "the handler"}}

    async with over("stdio", "offers") as server, bridged(server, on_ask=answer) as stage:
        assert (await stage.caller.call(BRIDGE, "greet", {}))[0]["text"] == "hello the handler"
    (ask,) = asked
    assert (ask.server, ask.method) == (BRIDGE, "elicitation/create")
    assert (ask.participant, ask.proposal) == ("caller", None)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_participant_that_cannot_answer_makes_it_an_error(mode: str) -> None:
    settings = replace(AT_ONCE, mode=mode)
    async with over("stdio", "offers") as server, bridged(server, settings=settings) as stage:
        with pytest.raises(RequestError) as raised:
            await stage.caller.call(BRIDGE, "greet", {})
        assert "elicitation/create" in raised.value.message


async def test_calls_of_two_participants_over_http_ask_each_their_own() -> None:
    """The stream tells which call a question belongs to, also of an older server."""
    both = anyio.Event()
    asked: list[str] = []

    def named(name: str) -> Agent:
        agent = Agent(name)

        @agent.on_request("elicitation/create")
        async def answer(request: Request) -> dict[str, Any]:
            asked.append(name)
            if len(asked) == 2:
                both.set()
            await both.wait()
            return {"action": "accept", "content": {"name": name}}

        return agent

    legacy = replace(AT_ONCE, mode="legacy")
    async with over("http", "offers") as server:
        async with bridged(server, settings=legacy, caller=named("caller")) as stage:
            other = await stage.join("other", named("other"))
            greeted: dict[str, str] = {}

            async def greet(name: str, space: Any) -> None:
                greeted[name] = (await space.call(BRIDGE, "greet", {}))[0]["text"]

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(greet, "caller", stage.caller)
                tasks.start_soon(greet, "other", other)
            assert greeted == {"caller": "hello caller", "other": "hello other"}
