"""Clients that try what is another client's: its state, its tasks, its questions, its sessions."""

import json
import logging
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from meup_agent import Agent, Proposal
from meup_agent.mcp.server import cancellation
from tests.mcp.conftest import ANYTHING, BOTH, OLD, PROPOSES, hello, served, staged
from tests.mcp.server.test_asks import asker, elicited
from tests.mcp.server.test_cancellation import Session, session
from tests.mcp.server.test_identity import HELLO
from tests.mcp.server.test_tool_calls import MODES, text

ASKS = hello(elicitation={})


async def test_the_state_of_a_call_is_worth_nothing_to_another_participant() -> None:
    async with staged(asker(), alice=ANYTHING, bob=ANYTHING) as stage:
        async with (
            served(stage, own="alice") as server,
            server.client(elicitation_callback=elicited) as alice,
            server.client(stage.token("bob"), elicitation_callback=elicited) as bob,
        ):
            asked = await alice.session.call_tool("asker_weather", {}, allow_input_required=True)
            assert isinstance(asked, types.InputRequiredResult)
            stolen = types.ElicitResult(action="accept", content={"city": "stolen"})
            answers: types.InputResponses = dict.fromkeys(asked.input_requests or {}, stolen)
            given: dict[str, Any] = {"request_state": asked.request_state}
            with pytest.raises(MCPError, match="waits no longer"):
                await bob.session.call_tool("asker_weather", {}, input_responses=answers, **given)
            own = types.ElicitResult(action="accept", content={"city": "home"})
            answers = dict.fromkeys(asked.input_requests or {}, own)
            result = await alice.session.call_tool(
                "asker_weather", {}, input_responses=answers, **given
            )
    assert text(result) == "accept: home"


async def test_a_question_is_answered_by_its_own_session_alone() -> None:
    """Another participant, and another session of the same one, guess the id of the question."""
    async with staged(asker(), alice=ANYTHING, bob=ANYTHING) as stage:
        async with served(stage, own="alice") as server, server.http() as http:
            opened = await http.post(server.url, json=ASKS, headers=BOTH)
            mine = Session(http, server.url, OLD[-1], opened.headers["mcp-session-id"])
            await mine.post({"method": "notifications/initialized"})
            call = {
                "jsonrpc": "2.0",
                "id": 7,
                "method": "tools/call",
                "params": {"name": "asker_weather", "arguments": {}},
            }
            request = http.build_request("POST", server.url, json=call, headers=mine.headers)
            stream = await http.send(request, stream=True)
            lines = stream.aiter_lines()
            question: dict[str, Any] = {}
            while question.get("method") != "elicitation/create":
                line = await anext(lines)
                if line.startswith("data: {"):
                    question = json.loads(line.removeprefix("data: "))

            def answer(city: str) -> dict[str, Any]:
                result = {"action": "accept", "content": {"city": city}}
                return {"id": question["id"], "result": result}

            for token in (None, stage.token("bob")):
                async with session(server, token=token) as other:
                    await other.post(answer("stolen"))
            await mine.post(answer("home"))
            rest = "".join([line async for line in lines])
    assert "accept: home" in rest
    assert "stolen" not in rest


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_that_two_approve_is_carried_out_once(mode: str) -> None:
    tool, runs = Agent("tool"), 0
    both = anyio.Event()

    @tool.tool
    async def pay() -> str:
        nonlocal runs
        runs += 1
        return "paid"

    async with staged(tool, alice=PROPOSES, r1=ANYTHING, r2=ANYTHING) as stage:
        decided: list[str] = []
        for name in ("r1", "r2"):
            reviewer = Agent(name)

            @reviewer.on_proposal
            async def decide(proposal: Proposal) -> None:
                try:
                    await proposal.fulfill()
                finally:
                    decided.append(proposal.id)
                    if len(decided) == 2:
                        both.set()

            await stage.join(name, reviewer)
        async with served(stage, own="alice") as server, server.client(mode=mode) as client:
            assert text(await client.call_tool("tool_pay")) == "paid"
            await both.wait()
    assert runs == 1


async def test_a_body_that_comes_slowly_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "BODY_SECONDS", 0.05)
    async with staged(alice=ANYTHING) as stage, served(stage, own="alice") as server:
        port = int(server.url.split(":")[2].split("/")[0])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(
                b"POST /mcp HTTP/1.1\r\nhost: localhost\r\naccept: application/json, "
                b"text/event-stream\r\ncontent-type: application/json\r\n"
                b"content-length: 100\r\n\r\n{"
            )
            answer = await stream.receive()
    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("sized", [True, False])
async def test_a_body_that_is_too_large_is_refused(sized: bool) -> None:
    body = b"[" + b" " * (5 << 20) + b"]"

    async def parts() -> Any:
        for at in range(0, len(body), 65_536):
            yield body[at : at + 65_536]

    async with staged(alice=ANYTHING) as stage, served(stage, own="alice") as server:
        async with server.http() as http:
            headers = {**BOTH, "content-type": "application/json"}
            answer = await http.post(
                server.url, content=body if sized else parts(), headers=headers
            )
            assert answer.status_code == 413
            assert (await http.post(server.url, json=HELLO, headers=BOTH)).status_code == 200


async def test_a_token_is_in_no_log_and_in_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpcore2").setLevel(logging.WARNING)  # the client's own
    async with staged(alice=ANYTHING, bob=ANYTHING, admin=ANYTHING) as stage:
        admin = await stage.join("admin")
        token, wrong = stage.token("bob"), "wrong-token-of-a-client"
        async with served(stage, own="alice") as server:
            async with session(server, token=token) as client:
                await client.post({"id": 1, "method": "tools/list"})
                async with server.http(wrong) as http:
                    refused = await http.post(server.url, json=HELLO, headers=BOTH)
                await admin.members.kick("bob", reason="gone")
                answer = await client.post({"id": 2, "method": "ping"})
    logged = "\n".join(f"{each.name} {each.getMessage()}" for each in caplog.records)
    for secret in (token, wrong, stage.token("alice")):
        assert secret not in logged
        assert secret not in refused.text + answer.text


async def calls_lost_in(mode: str, *, proposed: bool) -> str:
    """The text for a call whose gateway is killed, and started again without what it knew."""
    tool, began = Agent("tool"), anyio.Event()

    @tool.tool
    async def wait() -> str:
        began.set()
        await anyio.sleep_forever()
        raise AssertionError

    may = PROPOSES if proposed else ANYTHING
    async with staged(tool=ANYTHING, alice=may, reviewer=ANYTHING) as stage:
        reviewer, texts = await stage.join("reviewer"), list[str]()
        with reviewer.watch() as envelopes:
            async with (
                served(stage, own="alice", ttl=3.0) as server,
                server.client(mode=mode) as client,
            ):
                joined, leave = anyio.Event(), anyio.Event()

                async def serve() -> None:
                    url, token = stage.gateway.url, stage.token("tool")
                    async with tool.join(url, space="demo", token=token, grace=0) as there:
                        with there.watch(lambda each: each.kind == "system/welcome") as welcomes:
                            joined.set()
                            await leave.wait()
                            await anext(welcomes)  # else nobody would hear its answer

                async def call() -> None:
                    try:
                        texts.append(text(await client.call_tool("tool_wait")))
                    except MCPError as error:
                        texts.append(f"error: {error}")

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(serve)
                    await joined.wait()
                    tasks.start_soon(call)
                    if proposed:
                        async for envelope in envelopes:
                            if envelope.kind == "mcp/proposal":
                                break
                    else:
                        await began.wait()
                    await stage.gateway.restart()
                    leave.set()
                assert (await client.list_tools()).tools is not None
    return texts[0]


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
async def test_calls_whose_gateway_is_started_again_end_in_words(mode: str) -> None:
    assert "tool_wait" in await calls_lost_in(mode, proposed=True)
    said = await calls_lost_in(mode, proposed=False)
    assert "shuts down" in said or "left" in said
