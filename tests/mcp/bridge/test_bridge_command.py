"""`meup bridge` as a user runs it."""

import json
import re
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from meup_agent import Agent, Space
from meup_agent.gateway import Gateway
from tests.cli.processes import meup
from tests.patience import PATIENCE
from tests.programs import ROOT, Program, program

pytestmark = pytest.mark.anyio

SCRIPTED = (sys.executable, "-m", "tests.mcp.servers.scripted", "2025-06-18")

MAY = [{"kind": "mcp/response"}, {"kind": "chat"}, {"kind": "mcp/request"}]

PARTICIPANTS = {"one": MAY, "two-b": MAY, "caller": [{"kind": "*"}]}


@asynccontextmanager
async def space() -> AsyncGenerator[tuple[Gateway, Space]]:
    with anyio.fail_after(PATIENCE):
        async with Gateway(participants=PARTICIPANTS) as gateway:
            token = gateway.token("caller")
            async with Agent("caller").join(gateway.url, space="demo", token=token) as caller:
                yield gateway, caller


def variables(gateway: Gateway, **tokens: str) -> dict[str, str]:
    return {"MEUP_URL": gateway.url, "MEUP_SPACE": "demo", **tokens}


async def stopped(bridge: Program) -> int:
    return await anyio.to_thread.run_sync(bridge.stop)


async def echoed(caller: Space, participant: str) -> str:
    """The answer of a scripted server, once it is there."""
    await caller.present(participant)
    (content,) = await caller.call(participant, "do", {"way": "x"})
    return str(content["text"])


async def test_a_command_becomes_the_participant_of_the_token() -> None:
    async with space() as (gateway, caller):
        environment = variables(gateway, MEUP_TOKEN=gateway.token("one"))
        with program(["-m", "meup_agent.cli", "bridge", "--", *SCRIPTED], environment) as bridge:
            assert await echoed(caller, "one") == "done: x"
            assert await stopped(bridge) == 0
        (line,) = bridge.wait_for("speaks MCP 2025-06-18")
        assert "python" in line
        # A server gets none of our tokens.
        assert gateway.token("one") not in str(bridge)


async def test_several_servers_of_a_file_are_a_participant_each(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    command = {"command": SCRIPTED[0], "args": [*SCRIPTED[1:]], "env": {"PYTHONPATH": "${HERE}"}}
    broken = {**command, "args": [*SCRIPTED[1:], "quits"]}
    servers = {"one": command, "two-b": command, "broken": broken}
    path.write_text(json.dumps({"mcpServers": servers}), "utf-8")
    async with space() as (gateway, caller):
        environment = variables(
            gateway,
            HERE=str(ROOT),
            MEUP_TOKEN_ONE=gateway.token("one"),
            MEUP_TOKEN_TWO_B=gateway.token("two-b"),
            MEUP_TOKEN_BROKEN="never used",
            MEUP_PARTICIPANT="another",  # as `meup env another` says it: of no server here
        )
        arguments = ["-m", "meup_agent.cli", "bridge", "--servers", str(path)]
        with program(arguments, environment) as bridge:
            assert await echoed(caller, "one") == "done: x"
            assert await echoed(caller, "two-b") == "done: x"
            (line,) = bridge.wait_for("the MCP server 'broken' ended before it answered")
            assert "ERROR" in line
            assert await stopped(bridge) == 0


async def test_a_server_that_fails_its_first_start_is_started_again(tmp_path: Path) -> None:
    path, there = tmp_path / "mcp.json", tmp_path / "there"
    command = {"command": SCRIPTED[0], "args": [*SCRIPTED[1:]], "env": {"PYTHONPATH": str(ROOT)}}
    wait = f"import os, sys; os.path.exists({str(there)!r}) or sys.exit(3)"
    late = {
        **command,
        "args": [
            "-c",
            f"{wait}; os.execv(sys.executable, [sys.executable, *{list(SCRIPTED[1:])!r}])",
        ],
    }
    path.write_text(json.dumps({"mcpServers": {"one": command, "two-b": late}}), "utf-8")
    async with space() as (gateway, caller):
        environment = variables(
            gateway, MEUP_TOKEN_ONE=gateway.token("one"), MEUP_TOKEN_TWO_B=gateway.token("two-b")
        )
        arguments = ["-m", "meup_agent.cli", "bridge", "--servers", str(path)]
        with program(arguments, environment) as bridge:
            assert await echoed(caller, "one") == "done: x"
            bridge.wait_for("two-b: it is started again in")
            there.touch()
            assert await echoed(caller, "two-b") == "done: x"
            assert await stopped(bridge) == 0


async def test_tokens_of_a_development_gateway_are_found(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    command = {"command": SCRIPTED[0], "args": [*SCRIPTED[1:]], "env": {"PYTHONPATH": str(ROOT)}}
    path.write_text(json.dumps({"mcpServers": {"tools": command}}), "utf-8")
    state = {"MEUP_STATE_DIR": str(tmp_path / "state")}
    with program(["-m", "meup_agent.cli", "gateway", "--dev", "--port", "0"], state) as gateway:
        gateway.wait_for("Their tokens are kept")
        (line,) = gateway.wait_for("ws://")
        found = re.search(r"ws://[0-9.]+:\d+", line)
        assert found
        environment = {"MEUP_URL": found[0], "MEUP_SPACE": "demo", **state}
        arguments = ["-m", "meup_agent.cli", "bridge", "--servers", str(path)]
        with program(arguments, environment) as bridge:
            bridge.wait_for("tools: is 'tools' in the space 'demo'")
            assert await stopped(bridge) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give one of: a command behind `--`, --http URL, or --servers FILE"),
        (("--http", "http://x", "--", "y"), "give only one of: a command behind `--`, --http"),
        (("--http", "x"), "the address of an MCP server begins with http:// or https://"),
        (("--confirm", "--", "x"), "--confirm goes with --pin, which names the file"),
        (("--env", "NOT_THERE", "--", "x"), "the environment variable NOT_THERE is not set"),
        (("--header", "A=B", "--", "x"), "--header goes with --http"),
        (("--http", "http://x", "--header", "A"), "--header takes NAME=VARIABLE"),
        (("--http", "http://x", "--header", "A=NOT_THERE"), "variable NOT_THERE is not set"),
        (("--http", "http://x", "--env", "A=B"), "--env is for a command"),
        (("--servers", "no-such-file"), "no-such-file"),
        (("--servers", "x", "--name", "y"), "--header, --env and --name are for one server"),
        (("--log-level", "loud", "--", "x"), "'loud' is not one of"),
        (("--", "no-such-one"), "'no-such-one' cannot be spoken with: there is no command 'no-"),
        (("--http", "http://127.0.0.1:9/mcp"), "cannot be spoken with: "),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    where = {"MEUP_URL": "ws://127.0.0.1:9", "MEUP_SPACE": "demo", "MEUP_TOKEN": "secret-token"}
    done = meup("bridge", *arguments, variables=where)
    assert done.returncode != 0
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert "secret-token" not in done.stderr


@pytest.mark.parametrize(
    ("servers", "given", "sentence"),
    [
        ({"a": {"comand": "x"}}, {}, "has the unknown key 'comand'; did you mean 'command'?"),
        (
            {"x-y": {"command": "x"}, "z": {"command": "x"}},
            {"MEUP_TOKEN_Z": "t"},
            "the token of the participant for the server 'x-y' is missing, set MEUP_TOKEN_X_Y",
        ),
        (
            {"x-y": {"command": "x"}, "x_y": {"command": "x"}},
            {},
            "would both have their token in MEUP_TOKEN_X_Y; rename one",
        ),
        (
            {"a": {"command": "x", "env": {"KEY": "${NOT_THERE}"}}},
            {"MEUP_TOKEN_A": "t"},
            "mcpServers.a.env.KEY needs the environment variable NOT_THERE, which is not set",
        ),
    ],
)
def test_a_wrong_configuration_is_one_sentence(
    tmp_path: Path, servers: object, given: Mapping[str, str], sentence: str
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}), "utf-8")
    where = {"MEUP_URL": "ws://127.0.0.1:9", "MEUP_SPACE": "demo", **given}
    done = meup("bridge", "--servers", str(path), variables=where)
    assert done.returncode != 0
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["MEUP_URL", "MEUP_SPACE", "MEUP_TOKEN"])
def test_a_missing_variable_is_named(missing: str) -> None:
    where = {"MEUP_URL": "ws://127.0.0.1:9", "MEUP_SPACE": "demo", "MEUP_TOKEN": "t"}
    del where[missing]
    done = meup("bridge", "--", *SCRIPTED, variables=where)
    assert done.returncode != 0
    assert missing in done.stderr
    assert "Traceback" not in done.stderr
