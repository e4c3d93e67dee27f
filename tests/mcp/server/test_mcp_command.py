"""`meup mcp` as an MCP client starts it."""

import json
import os
import signal
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from subprocess import PIPE
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

from meup_agent import Agent, Proposal
from tests.cli.processes import environment, meup, running
from tests.forkserver import launched
from tests.interaction.people import files
from tests.mcp.conftest import ANYTHING, PROPOSES, Stage, hello, refusal, staged
from tests.mcp.server.test_asks import asker
from tests.mcp.server.test_cancellation import Slow
from tests.mcp.server.test_tool_calls import text
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE
from tests.programs import ROOT

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
    async with (
        staged(files(), alice=ANYTHING) as stage,
        Client(stdio_client(command(env=variables(stage, "alice")))) as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["files_add"]
        result = await client.call_tool("files_add", {"a": 1, "b": 2})
    assert result.structured_content == {"result": 3}


async def test_one_agent_without_a_gateway() -> None:
    with anyio.fail_after(PATIENCE):
        async with Client(stdio_client(command(f"{ECHO}:agent")), mode="legacy") as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["echo"]
            assert text(await client.call_tool("echo", {"text": "hello"})) == "hello"


@asynccontextmanager
async def wire(
    *arguments: str, env: dict[str, str], stdout: int = PIPE
) -> AsyncGenerator[tuple[Process, "Lines"]]:
    """The process, and what it writes."""
    started = command(*arguments, env=env)
    process = await anyio.open_process(
        [started.command, *started.args], env=started.env, cwd=started.cwd, stdout=stdout
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
        self._in, self._out = process.stdin, process.stdout
        self._rest = b""

    async def send(self, **message: Any) -> None:
        """Write a message."""
        await self._in.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def next(self) -> dict[str, Any]:
        """Read a message."""
        assert self._out is not None
        while b"\n" not in self._rest:
            self._rest += await self._out.receive()
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(json.loads(line))

    async def call(self, tool: str, arguments: dict[str, Any], **more: Any) -> None:
        """Shake hands as message 0, and call a tool by message 1."""
        await self.send(**hello())
        await self.send(method="notifications/initialized")
        params = {"name": tool, "arguments": arguments, **more}
        await self.send(id=1, method="tools/call", params=params)


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

    async with staged(files(), reviewer, alice=PROPOSES) as stage:
        reads, writes = os.pipe()
        async with wire(env=variables(stage, "alice"), stdout=writes) as (process, lines):
            os.close(writes)
            await lines.call("files_add", {"a": 1, "b": 2}, _meta={"progressToken": 1})
            await waiting.wait()
            os.close(reads)
            assert process.stdin is not None
            assert process.stderr is not None
            await process.stdin.aclose()
            said = b"".join([chunk async for chunk in process.stderr])
            await withdrawn.wait()
            assert await process.wait() == 0
    assert b"meup: " not in said
    assert b"Traceback" not in said


async def test_a_cancel_over_stdio_keeps_the_silence_and_the_reason() -> None:
    slow = Slow()
    async with (
        staged(slow.agent, alice=ANYTHING) as stage,
        wire(env=variables(stage, "alice")) as (process, lines),
    ):
        await lines.call("slow_wait", {})
        assert (await lines.next())["id"] == 0
        await slow.began.wait()
        cancelled = {"requestId": 1, "reason": "enough"}
        await lines.send(method="notifications/cancelled", params=cancelled)
        await slow.ended.wait()
        await lines.send(id=2, method="ping")
        assert (await lines.next())["id"] == 2
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert slow.reason == "no_longer_needed: enough"


@pytest.mark.rule("3.beside.own")
async def test_two_clients_with_one_configuration_each_answer_what_they_are_asked() -> None:
    async with staged(asker(), alice=ANYTHING) as stage:
        start, towns = command(env=variables(stage, "alice")), dict[str, str]()
        there = {"Oslo": anyio.Event(), "Rome": anyio.Event()}
        done = {"Oslo": anyio.Event(), "Rome": anyio.Event()}

        async def run(town: str, other: str) -> None:
            async def answer(
                context: ClientRequestContext, params: types.ElicitRequestParams
            ) -> types.ElicitResult:
                return types.ElicitResult(action="accept", content={"city": town})

            async with Client(stdio_client(start), elicitation_callback=answer) as client:
                await client.list_tools()
                there[town].set()
                await there[other].wait()
                for _ in range(3):
                    towns[town] = text(await client.call_tool("asker_weather"))
                done[town].set()
                await done[other].wait()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, "Oslo", "Rome")
            tasks.start_soon(run, "Rome", "Oslo")
    assert towns == {"Oslo": "accept: Oslo", "Rome": "accept: Rome"}


ALL = ("MEUP_URL", "MEUP_SPACE", "MEUP_TOKEN")


@pytest.mark.parametrize(
    ("lacks", "arguments", "said"),
    [
        ((), ("--http", "8430"), "--http takes HOST:PORT, for example 127.0.0.1:8430, not 8430"),
        ((), ("--http", "127.0.0.1:99999"), "--http takes HOST:PORT"),
        (
            (),
            ("--http", "0.0.0.0:0"),
            "listening at 0.0.0.0 without TLS would show tokens and messages to everyone on the"
            " path; give a certificate and its key (tls), or allow it (insecure)",
        ),
        (
            (),
            ("--http", "127.0.0.1:0", "--tls-key", "x"),
            "TLS needs both --tls-certificate and --tls-key",
        ),
        (
            (),
            ("--http", "127.0.0.1:0", "--tls-certificate", "no.pem", "--tls-key", "no.pem"),
            "tls.certificate: no.pem cannot be read",
        ),
        ((), ("--insecure",), "TLS, --insecure and --anonymous are for --http"),
        (ALL, ("--anonymous",), "TLS, --insecure and --anonymous are for --http"),
        ((), ("--ttl", "0"), "Invalid value for '--ttl': Input should be greater than or equal"),
        (ALL, ("nowhere:agent",), "there is no module 'nowhere'"),
        (
            (),
            ("--http", "0.0.0.0:0", "--insecure", f"{ECHO}:agent"),
            "one agent's tools have no tokens over HTTP; let every program on this machine call",
        ),
        (ALL, (f"{ECHO}:agent", "--http", "127.0.0.1:0"), "one agent's tools have no tokens over"),
        (
            (),
            ("--http", "0.0.0.0:0", "--insecure", "--anonymous"),
            "--anonymous is for clients on this machine, and others could call at 0.0.0.0;",
        ),
        (
            ALL,
            (f"{ECHO}:agent", "--http", "0.0.0.0:0", "--insecure", "--anonymous"),
            "--anonymous is for clients on this machine, and others could call at 0.0.0.0;",
        ),
        (ALL, (), "the url, the space and the token are missing"),
        (ALL, ("--http", "127.0.0.1:0"), "the url and the space are missing"),
        (("MEUP_URL",), (), "the url is missing; give --url or set MEUP_URL"),
        (("MEUP_SPACE",), (), "the space is missing; give --space or set MEUP_SPACE"),
        (("MEUP_TOKEN",), (), "the token is missing; set MEUP_TOKEN,"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    lacks: tuple[str, ...], arguments: tuple[str, ...], said: str
) -> None:
    assert refusal("mcp", *arguments, lacks=lacks).startswith(said)


async def call_as(token: str, url: str, trusted: ssl.SSLContext | bool = NO_TLS) -> None:
    """Call a tool as the participant of a token."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, verify=trusted, timeout=PATIENCE) as http:
        async with Client(streamable_http_client(url, http_client=http)) as client:
            result = await client.call_tool("files_add", {"a": 1, "b": 2})
    assert result.structured_content == {"result": 3}


async def test_a_space_over_http() -> None:
    async with staged(files(), alice=ANYTHING, bob=ANYTHING) as stage:
        named = {"MEUP_PARTICIPANT": "alice"}  # as `meup env alice` sets it
        async with http_server(stage, "--http", "127.0.0.1:0", **named) as address:
            for name in ("bob", "alice"):  # the token of the process, too
                await call_as(stage.token(name), address)


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
        await ready.wait()
        try:
            yield address[0]
        finally:
            done.set()


async def test_a_space_over_tls() -> None:
    async with staged(files(), alice=ANYTHING, bob=ANYTHING) as stage:
        pem = str(CERTIFICATE)
        options = ("--http", "127.0.0.1:0", "--tls-certificate", pem, "--tls-key", pem)
        async with http_server(stage, *options) as address:
            assert address.startswith("https://127.0.0.1:")
            url = address.replace("127.0.0.1", "localhost")
            await call_as(stage.token("bob"), url, ssl.create_default_context(cafile=pem))
            async with httpx2.AsyncClient(verify=NO_TLS, timeout=PATIENCE) as stranger:
                with pytest.raises(httpx2.ConnectError):
                    await stranger.get(url)
                with pytest.raises(httpx2.RemoteProtocolError):
                    await stranger.get(url.replace("https", "http"))


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
