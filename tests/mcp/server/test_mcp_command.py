"""`meup mcp` as an MCP client starts it."""

import json
import os
import signal
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from anyio.abc import Process
from mcp import StdioServerParameters
from mcp.client import ClientRequestContext
from mcp.client.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

from meup_agent import Agent, Context, Proposal
from tests.cli.processes import environment, meup, running
from tests.forkserver import launched
from tests.interaction.people import files
from tests.mcp.conftest import ANYTHING, Stage, staged
from tests.mcp.server.test_asks import FORM, ask
from tests.mcp.server.test_cancellation import OLD
from tests.mcp.server.test_tool_calls import text
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE
from tests.programs import ROOT

pytestmark = pytest.mark.anyio

CERTIFICATE = ROOT / "tests" / "transport" / "localhost.pem"
ECHO = ROOT / "tests" / "mcp" / "server" / "echo_agent.py"


def variables(stage: Stage, participant: str) -> dict[str, str]:
    """The variables that make a process a participant."""
    return {
        "MEUP_URL": stage.gateway.url,
        "MEUP_SPACE": "demo",
        "MEUP_TOKEN": stage.token(participant),
    }


def command(*arguments: str, env: dict[str, str] | None = None) -> StdioServerParameters:
    """The command by which a client starts it."""
    program, *others = launched("-m", "meup_agent.cli", "mcp", *arguments)
    return StdioServerParameters(command=program, args=others, env=environment(env), cwd=ROOT)


async def test_a_space_over_stdio() -> None:
    async with staged(files=ANYTHING, alice=ANYTHING) as stage:
        await stage.join("files", files())
        server = command(env=variables(stage, "alice"))
        async with Client(stdio_client(server)) as client:
            tools = (await client.list_tools()).tools
            result = await client.call_tool("files_add", {"a": 1, "b": 2})
    assert [tool.name for tool in tools] == ["files_add"]
    assert result.structured_content == {"result": 3}


async def test_one_agent_without_a_gateway() -> None:
    with anyio.fail_after(PATIENCE):
        async with Client(stdio_client(command(f"{ECHO}:agent")), mode="legacy") as client:
            tools = (await client.list_tools()).tools
            result = await client.call_tool("echo", {"text": "hello"})
    assert [tool.name for tool in tools] == ["echo"]
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert content.text == "hello"


@asynccontextmanager
async def wire(*arguments: str, env: dict[str, str]) -> AsyncGenerator[tuple[Process, "Lines"]]:
    """The process, and what it writes."""
    started = command(*arguments, env=env)
    process = await anyio.open_process(
        [started.command, *started.args], env=started.env, cwd=started.cwd
    )
    try:
        yield process, Lines(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()


class Lines:
    """Messages to and from a process."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout
        self._rest = b""

    async def send(self, **message: Any) -> None:
        """Write a message."""
        await self._in.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def next(self) -> dict[str, Any]:
        """Read a message."""
        while b"\n" not in self._rest:
            self._rest += await self._out.receive()
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(json.loads(line))

    async def hello(self, version: str) -> dict[str, Any]:
        """Shake hands."""
        info = {"name": "wire", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
        await self.send(id=0, method="initialize", params=params)
        answer = await self.next()
        await self.send(method="notifications/initialized")
        return answer


async def test_a_client_that_dies_while_its_call_waits_withdraws_it() -> None:
    waiting, withdrawn = anyio.Event(), anyio.Event()
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def wait(proposal: Proposal) -> None:
        waiting.set()
        try:
            await anyio.sleep_forever()
        finally:
            withdrawn.set()

    may_propose = [{"kind": "mcp/proposal"}, {"kind": "mcp/withdraw"}]
    lists = {"kind": "mcp/request", "payload": {"method": "tools/list"}}
    async with staged(files=ANYTHING, reviewer=ANYTHING, alice=[*may_propose, lists]) as stage:
        await stage.join("files", files())
        await stage.join("reviewer", reviewer)
        started = command(env=variables(stage, "alice"))
        reads, writes = os.pipe()
        async with await anyio.open_process(
            [started.command, *started.args], env=started.env, cwd=ROOT, stdout=writes
        ) as process:
            os.close(writes)
            assert process.stdin is not None
            assert process.stderr is not None
            info = {"name": "wire", "version": "1"}
            hello = {"protocolVersion": OLD[-1], "capabilities": {}, "clientInfo": info}
            call: dict[str, Any] = {
                "name": "files_add",
                "arguments": {"a": 1, "b": 2},
                "_meta": {"progressToken": 1},
            }
            for message in (
                {"id": 0, "method": "initialize", "params": hello},
                {"method": "notifications/initialized"},
                {"id": 1, "method": "tools/call", "params": call},
            ):
                line = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
                await process.stdin.send(line)
            await waiting.wait()
            os.close(reads)
            await process.stdin.aclose()
            said = b"".join([chunk async for chunk in process.stderr])
            await withdrawn.wait()
            assert await process.wait() == 0
    assert b"meup: " not in said
    assert b"Traceback" not in said


async def test_a_cancel_over_stdio_keeps_the_silence_and_the_reason() -> None:
    agent, began, ended = Agent("slow"), anyio.Event(), anyio.Event()
    reasons: list[str] = []

    @agent.tool
    async def wait(ctx: Context) -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            reasons.append(str(ctx.reason))
            ended.set()

    async with staged(slow=ANYTHING, alice=ANYTHING) as stage:
        await stage.join("slow", agent)
        async with wire(env=variables(stage, "alice")) as (process, lines):
            await lines.hello(OLD[-1])
            call = {"name": "slow_wait", "arguments": {}}
            await lines.send(id=1, method="tools/call", params=call)
            await began.wait()
            params = {"requestId": 1, "reason": "enough"}
            await lines.send(method="notifications/cancelled", params=params)
            await ended.wait()
            await lines.send(id=2, method="ping")
            assert (await lines.next())["id"] == 2
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    assert reasons == ["no_longer_needed: enough"]


@pytest.mark.rule("3.beside.own")
async def test_two_clients_with_one_configuration_each_answer_what_they_are_asked() -> None:
    agent = Agent("asker")

    @agent.tool
    async def weather(ctx: Context) -> str:
        params = {"message": "Where are you?", "requestedSchema": FORM, "mode": "form"}
        return str((await ask(ctx, "elicitation/create", params))["content"]["city"])

    async with staged(alice=ANYTHING, asker=ANYTHING) as stage:
        await stage.join("asker", agent)
        start, towns = command(env=variables(stage, "alice")), dict[str, str]()

        async def run(town: str, both: anyio.Event, done: anyio.Event) -> None:
            async def answer(
                context: ClientRequestContext, params: types.ElicitRequestParams
            ) -> types.ElicitResult:
                return types.ElicitResult(
                    action="accept", content={"city": town if params.message else ""}
                )

            async with Client(stdio_client(start), elicitation_callback=answer) as client:
                await client.list_tools()
                both.set()
                await other_is_there[town].wait()
                for _ in range(3):
                    towns[town] = text(await client.call_tool("asker_weather"))
                done.set()
                await other_is_done[town].wait()

        there = {"Oslo": anyio.Event(), "Rome": anyio.Event()}
        done = {"Oslo": anyio.Event(), "Rome": anyio.Event()}
        other_is_there = {"Oslo": there["Rome"], "Rome": there["Oslo"]}
        other_is_done = {"Oslo": done["Rome"], "Rome": done["Oslo"]}
        async with anyio.create_task_group() as tasks:
            for town in there:
                tasks.start_soon(run, town, there[town], done[town])
        assert towns == {"Oslo": "Oslo", "Rome": "Rome"}


def test_http_elsewhere_needs_tls_or_a_word() -> None:
    env = {"MEUP_URL": "ws://127.0.0.1:1", "MEUP_SPACE": "demo", "MEUP_TOKEN": "x"}
    ended = meup("mcp", "--http", "0.0.0.0:0", variables=env)
    assert ended.returncode == 2
    assert ended.stderr == (
        "meup: listening at 0.0.0.0 without TLS would show tokens and messages to everyone on the"
        " path; give a certificate and its key (tls), or allow it (insecure)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--http", "8430"], "--http takes HOST:PORT, for example 127.0.0.1:8430, not 8430"),
        (["--insecure"], "TLS, --insecure and --anonymous are for --http"),
        (["--anonymous"], "TLS, --insecure and --anonymous are for --http"),
        ([], "the url, the space and the token are missing"),
        (["--http", "127.0.0.1:0"], "the url and the space are missing"),
        (
            [f"{ECHO}:agent", "--http", "127.0.0.1:0"],
            "one agent's tools have no tokens over HTTP; let every program on this machine call",
        ),
        (
            [f"{ECHO}:agent", "--http", "0.0.0.0:0", "--insecure", "--anonymous"],
            "--anonymous is for clients on this machine, and others could call at 0.0.0.0;",
        ),
        (["nowhere:agent"], "there is no module 'nowhere'"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(arguments: list[str], said: str) -> None:
    ended = meup("mcp", *arguments)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"meup: {said}")
    assert ended.stderr.count("\n") == 1


async def call_as(token: str, url: str) -> None:
    """Call a tool as the participant of a token."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, verify=NO_TLS, timeout=PATIENCE) as http:
        async with Client(streamable_http_client(url, http_client=http)) as client:
            result = await client.call_tool("files_add", {"a": 1, "b": 2})
    assert result.structured_content == {"result": 3}


async def test_a_space_over_http() -> None:
    async with staged(files=ANYTHING, alice=ANYTHING, bob=ANYTHING) as stage:
        await stage.join("files", files())
        named = {"MEUP_PARTICIPANT": "alice"}  # as `meup env alice` sets it
        async with http_server(stage, "--http", "127.0.0.1:0", **named) as address:
            await call_as(stage.token("bob"), address)


@asynccontextmanager
async def http_server(stage: Stage, *options: str, **environment: str) -> AsyncGenerator[str]:
    """`meup mcp --http`, until it is told to stop; its address."""
    where = {**variables(stage, "alice"), **environment}
    address: list[str] = []
    ready, done = anyio.Event(), anyio.Event()

    def start() -> None:
        with running("mcp", *options, variables=where) as process:
            said = process.until("/mcp\n")
            address.append(said.removeprefix("listens at ").strip())
            anyio.from_thread.run_sync(ready.set)
            anyio.from_thread.run(done.wait)
            assert process.end(signal.SIGINT) == 0
            assert "Traceback" not in process.err

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, start)
        with anyio.fail_after(PATIENCE):
            await ready.wait()
        try:
            yield address[0]
        finally:
            done.set()


async def test_a_client_may_send_the_token_of_the_process() -> None:
    async with staged(files=ANYTHING, alice=ANYTHING) as stage:
        await stage.join("files", files())
        async with http_server(stage, "--http", "127.0.0.1:0") as address:
            await call_as(stage.token("alice"), address)


async def test_a_space_over_tls() -> None:
    async with staged(files=ANYTHING, alice=ANYTHING, bob=ANYTHING) as stage:
        await stage.join("files", files())
        pem = str(CERTIFICATE)
        options = ("--http", "127.0.0.1:0", "--tls-certificate", pem, "--tls-key", pem)
        async with http_server(stage, *options) as address:
            assert address.startswith("https://127.0.0.1:")
            trusted = ssl.create_default_context(cafile=pem)
            headers = {"authorization": f"Bearer {stage.token('bob')}"}
            url = address.replace("127.0.0.1", "localhost")
            async with httpx2.AsyncClient(
                verify=trusted, headers=headers, timeout=PATIENCE
            ) as http:
                async with Client(streamable_http_client(url, http_client=http)) as client:
                    result = await client.call_tool("files_add", {"a": 1, "b": 2})
            async with httpx2.AsyncClient(verify=NO_TLS, timeout=PATIENCE) as stranger:
                with pytest.raises(httpx2.ConnectError):
                    await stranger.get(url)
                with pytest.raises(httpx2.RemoteProtocolError):
                    await stranger.get(url.replace("https", "http"))
    assert result.structured_content == {"result": 3}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--http", "8430"), "--http takes HOST:PORT"),
        (("--http", "127.0.0.1:99999"), "--http takes HOST:PORT"),
        (("--http", "0.0.0.0:0"), "listening at 0.0.0.0 without TLS would show tokens"),
        (("--http", "127.0.0.1:0", "--tls-key", "x"), "both --tls-certificate and --tls-key"),
        (
            ("--http", "127.0.0.1:0", "--tls-certificate", "no.pem", "--tls-key", "no.pem"),
            "no.pem cannot be read",
        ),
        (("--insecure",), "TLS, --insecure and --anonymous are for --http"),
        (("--ttl", "0"), "greater than or equal to 1"),
        (("no_such_module:agent",), "no_such_module"),
        (("--http", "0.0.0.0:0", "--insecure", f"{ECHO}:agent"), "have no tokens"),
        (("--http", "0.0.0.0:0", "--insecure", "--anonymous"), "others could call at 0.0.0.0"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    where = {"MEUP_URL": "ws://127.0.0.1:9", "MEUP_SPACE": "demo", "MEUP_TOKEN": "secret-token"}
    done = meup("mcp", *arguments, variables=where)
    assert done.returncode != 0
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert "secret-token" not in done.stderr


@pytest.mark.parametrize("missing", ["MEUP_URL", "MEUP_SPACE", "MEUP_TOKEN"])
def test_a_missing_variable_is_named(missing: str) -> None:
    where = {"MEUP_URL": "ws://127.0.0.1:9", "MEUP_SPACE": "demo", "MEUP_TOKEN": "t"}
    del where[missing]
    done = meup("mcp", variables=where)
    assert done.returncode != 0
    assert missing in done.stderr
    assert "Traceback" not in done.stderr


def test_its_help_names_each_way_to_a_client() -> None:
    said = meup("mcp", "--help").stdout
    for each in ("--http", "--anonymous", "--to", "--ttl", "--tls-certificate", "--insecure"):
        assert each in said
    assert "MODULE:AGENT" in said


async def test_a_token_that_the_gateway_refuses_is_one_sentence() -> None:
    async with staged(alice=ANYTHING) as stage:
        where = {**variables(stage, "alice"), "MEUP_TOKEN": "wrong-token"}
        for options in ((), ("--http", "127.0.0.1:0")):
            start = partial(meup, "mcp", *options, variables=where)
            done = await anyio.to_thread.run_sync(start)
            assert done.returncode != 0
            assert "meup: the gateway" in done.stderr
            for each in ("TaskGroup", "Traceback", "wrong-token"):
                assert each not in done.stderr
