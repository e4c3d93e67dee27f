"""The wire of each revision of MCP, byte by byte, over streamable HTTP.

The SDK's client asks for 2025-11-25 and 2026-07-28 alone; so the others are spoken by hand here,
and these two beside them, to be compared.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest

from meup_agent import Agent, Context, Request
from meup_agent.gateway import Gateway
from tests.mcp.conftest import ANYTHING, BOTH, OLD, ServedSpace, Stage, hello, served

NEW = "2026-07-28"
ALL = [*OLD, NEW]

JsonObject = dict[str, Any]

PIXEL = "iVBORw0KGgo="

TOOL: JsonObject = {
    "name": "show",
    "title": "Show",
    "description": "Shows one of everything.",
    "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}},
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
    "icons": [{"src": "https://example.com/icon.png"}],
    "execution": {"taskSupport": "optional"},
    "_meta": {"example.com/kind": "test"},
    "unheardOf": True,
}

KNOWN: dict[str, set[str]] = {
    **dict.fromkeys(OLD, {*TOOL} - {"unheardOf"}),
    NEW: {*TOOL} - {"unheardOf", "execution"},
}
"""The fields of a tool that a client of each revision gets.

The SDK writes one form for all revisions with a handshake: their clients pass over what is newer.
"""

CONTENTS: dict[str, JsonObject] = {
    "text": {"type": "text", "text": "hello"},
    "image": {"type": "image", "data": PIXEL, "mimeType": "image/png"},
    "audio": {"type": "audio", "data": PIXEL, "mimeType": "audio/wav"},
    "resource": {
        "type": "resource",
        "resource": {"uri": "test://one", "mimeType": "text/plain", "text": "one"},
    },
    "resource_link": {"type": "resource_link", "uri": "test://one", "name": "one"},
}


def shower() -> Agent:
    agent = Agent("shower")

    @agent.on_request("tools/list")
    async def list_tools() -> JsonObject:
        return {"tools": [TOOL]}

    @agent.on_request("tools/call")
    async def call(request: Request, context: Context) -> JsonObject:
        what = request.params["arguments"]["what"]
        if what == "progress":
            await context.progress(1, 2, "half of it")
            return {"content": [CONTENTS["text"]]}
        if what == "structure":
            return {"content": [CONTENTS["text"]], "structuredContent": {"said": "hello"}}
        return {"content": [CONTENTS[what]]}

    return agent


class Wire:
    """A client that writes messages by hand."""

    def __init__(self, http: httpx2.AsyncClient, url: str, version: str) -> None:
        self.http = http
        self.url = url
        self.version = version
        self.headers = dict(BOTH)

    async def post(self, message: Any, **headers: str) -> httpx2.Response:
        return await self.http.post(self.url, json=message, headers={**self.headers, **headers})

    async def ask(self, method: str, **params: Any) -> list[JsonObject]:
        """A request; the messages of its answer, the last of which is the response."""
        message: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers: dict[str, str] = {}
        if self.version == NEW:
            envelope = {
                "io.modelcontextprotocol/protocolVersion": NEW,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            params["_meta"] = {**params.get("_meta", {}), **envelope}
            headers = {"mcp-protocol-version": NEW, "mcp-method": method}
            if "name" in params:
                headers["mcp-name"] = params["name"]
        return messages(await self.post(message, **headers))

    async def result(self, method: str, **params: Any) -> JsonObject:
        response = (await self.ask(method, **params))[-1]
        assert "result" in response, response
        result: JsonObject = response["result"]
        return result

    async def shake_hands(self) -> JsonObject:
        """Begin a session, as the revisions before 2026-07-28 do; the server's side of it."""
        answer = await self.post(hello(self.version))
        result: JsonObject = messages(answer)[-1]["result"]
        self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        # Earlier ones have no such header; the server takes what was agreed on.
        if self.version >= "2025-06-18":
            self.headers["mcp-protocol-version"] = result["protocolVersion"]
        begun = await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert begun.status_code == 202
        return result


def messages(answer: httpx2.Response) -> list[JsonObject]:
    """The messages of an answer: JSON, or a stream of events."""
    if answer.headers["content-type"].startswith("application/json"):
        return [answer.json()]
    lines = answer.text.replace("\r\n", "\n").split("\n")
    data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    return [json.loads(each) for each in data if each]


@pytest.fixture(scope="module")
async def server() -> AsyncGenerator[ServedSpace]:
    """One for all: none of the tests changes it."""
    people = {"shower": ANYTHING, "alice": ANYTHING}
    async with Gateway(participants=people) as gateway, AsyncExitStack() as stack:
        stage = Stage(gateway, stack)
        await stage.join("shower", shower())
        async with served(stage, own="alice") as server:
            yield server


@asynccontextmanager
async def speaking(server: ServedSpace, version: str) -> AsyncGenerator[Wire]:
    """A client of a revision, whose session has begun."""
    async with server.http() as http:
        wire = Wire(http, server.url, version)
        if version != NEW:
            await wire.shake_hands()
        yield wire


@pytest.mark.parametrize("version", OLD)
async def test_handshakes_agree_on_the_clients_revision(server: ServedSpace, version: str) -> None:
    async with server.http() as http:
        agreed = await Wire(http, server.url, version).shake_hands()
    assert agreed["protocolVersion"] == version
    assert agreed["serverInfo"]["name"] == "meup"
    assert agreed["capabilities"]["tools"] == {"listChanged": True}
    assert "extensions" not in agreed["capabilities"]


@pytest.mark.parametrize("version", ["1999-01-01", "2099-01-01", "newest"])
async def test_the_handshake_replaces_unknown_revisions(server: ServedSpace, version: str) -> None:
    async with server.http() as http:
        agreed = await Wire(http, server.url, version).shake_hands()
    assert agreed["protocolVersion"] == OLD[-1]


async def test_the_newest_revision_discovers_without_a_handshake(server: ServedSpace) -> None:
    async with speaking(server, NEW) as wire:
        found = await wire.result("server/discover")
    assert found["supportedVersions"] == [NEW]
    assert "io.modelcontextprotocol/tasks" in found["capabilities"]["extensions"]


async def test_an_unknown_revision_without_a_handshake_is_one_error(server: ServedSpace) -> None:
    unknown = "2099-01-01"
    async with server.http() as http:
        wire = Wire(http, server.url, unknown)
        envelope = {
            "io.modelcontextprotocol/protocolVersion": unknown,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": envelope}}
        headers = {"mcp-protocol-version": unknown, "mcp-method": "tools/list"}
        answer = await wire.post(message, **headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["data"] == {"supported": [NEW], "requested": unknown}


@pytest.mark.parametrize("version", ALL)
async def test_a_list_has_the_fields_of_the_revision(server: ServedSpace, version: str) -> None:
    async with speaking(server, version) as wire:
        ours, tool = (await wire.result("tools/list"))["tools"]
    assert ours["name"] == "meup_result"
    assert tool["name"] == "shower_show"
    assert set(tool) == KNOWN[version]
    assert {name: tool[name] for name in tool if name != "name"} == {
        name: TOOL[name] for name in tool if name != "name"
    }


@pytest.mark.parametrize("version", ALL)
async def test_content_and_structure_come_as_they_are(server: ServedSpace, version: str) -> None:
    async with speaking(server, version) as wire:
        for kind, content in CONTENTS.items():
            result = await wire.result("tools/call", name="shower_show", arguments={"what": kind})
            assert result["content"] == [content]
            assert result.get("resultType") == ("complete" if version == NEW else None)
        given = {"what": "structure"}
        result = await wire.result("tools/call", name="shower_show", arguments=given)
    assert result["content"] == [CONTENTS["text"]]
    assert result["structuredContent"] == {"said": "hello"}


@pytest.mark.parametrize("version", ALL)
async def test_progress_comes_before_the_result(server: ServedSpace, version: str) -> None:
    async with speaking(server, version) as wire:
        *before, response = await wire.ask(
            "tools/call",
            name="shower_show",
            arguments={"what": "progress"},
            _meta={"progressToken": "p"},
        )
    assert response["result"]["content"] == [CONTENTS["text"]]
    (progress,) = [each for each in before if each["method"] == "notifications/progress"]
    assert progress["params"]["progressToken"] == "p"
    assert (progress["params"]["progress"], progress["params"]["total"]) == (1, 2)


@pytest.mark.parametrize("version", ALL)
async def test_a_ping_is_for_the_revisions_that_have_it(server: ServedSpace, version: str) -> None:
    async with speaking(server, version) as wire:
        response = (await wire.ask("ping"))[-1]
    if version == NEW:
        assert response["error"]["code"] == -32601
    else:
        assert response["result"] == {}


@pytest.mark.parametrize("version", ALL)
async def test_several_messages_in_one_are_refused(server: ServedSpace, version: str) -> None:
    async with speaking(server, version) as wire:
        batch = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in (1, 2)]
        headers = {"mcp-protocol-version": NEW, "mcp-method": "ping"} if version == NEW else {}
        answer = await wire.post(batch, **headers)
        assert answer.status_code == 400
        assert "error" in answer.json()
        assert (await wire.result("tools/list"))["tools"]


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_session_keeps_its_revision(server: ServedSpace, version: str) -> None:
    async with speaking(server, version) as wire:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        answer = await wire.post(message, **{"mcp-protocol-version": "1999-01-01"})
    assert answer.status_code == 400
    assert "error" in answer.json()
