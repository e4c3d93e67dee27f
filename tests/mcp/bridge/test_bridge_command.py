"""`meup bridge` as a user runs it."""

import json
import re
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from meup_agent import Space
from meup_agent.gateway import Gateway
from tests.mcp.conftest import refusal, staged
from tests.programs import ROOT, Program, program

SCRIPTED = (sys.executable, "-m", "tests.mcp.servers.scripted", "2025-06-18")

MAY = [{"kind": "mcp/response"}, {"kind": "chat"}, {"kind": "mcp/request"}]

COMMAND: dict[str, Any] = {
    "command": SCRIPTED[0],
    "args": [*SCRIPTED[1:]],
    "env": {"PYTHONPATH": str(ROOT)},
}

PARTICIPANTS = {"one": MAY, "two-b": MAY, "caller": [{"kind": "*"}]}


@asynccontextmanager
async def space() -> AsyncGenerator[tuple[Gateway, Space]]:
    async with staged(**PARTICIPANTS) as stage:
        yield stage.gateway, await stage.join("caller")


def variables(gateway: Gateway, *names: str) -> dict[str, str]:
    """The variables of servers by these names."""
    tokens = {f"MEUP_TOKEN_{name.upper().replace('-', '_')}": gateway.token(name) for name in names}
    return {"MEUP_URL": gateway.url, "MEUP_SPACE": "demo", **tokens}


def servers_file(folder: Path, **servers: dict[str, Any]) -> tuple[str, str]:
    """The option for a file of servers; two-b is written `two_b`."""
    path = folder / "mcp.json"
    named = {name.replace("_", "-"): server for name, server in servers.items()}
    path.write_text(json.dumps({"mcpServers": named}), "utf-8")
    return "--servers", str(path)


@contextmanager
def bridging(*arguments: str, **environment: str) -> Generator[Program]:
    """`meup bridge`, which ends well when it is asked to."""
    with program(["-m", "meup_agent.cli", "bridge", *arguments], environment) as bridge:
        yield bridge
        assert bridge.stop() == 0


async def echoed(caller: Space, participant: str) -> str:
    """The answer of a scripted server, once it is there."""
    await caller.present(participant)
    (content,) = await caller.call(participant, "do", {"way": "x"})
    return str(content["text"])


async def test_a_command_becomes_the_participant_of_the_token() -> None:
    async with space() as (gateway, caller):
        token = gateway.token("one")
        with bridging("--", *SCRIPTED, **variables(gateway), MEUP_TOKEN=token) as bridge:
            assert await echoed(caller, "one") == "done: x"
        (line,) = bridge.wait_for("speaks MCP 2025-06-18")
        assert "python" in line
        # A server gets none of our tokens.
        assert token not in str(bridge)


async def test_several_servers_of_a_file_are_a_participant_each(tmp_path: Path) -> None:
    one = {**COMMAND, "env": {"PYTHONPATH": "${HERE}"}}
    broken = {**one, "args": [*SCRIPTED[1:], "quits"]}
    file = servers_file(tmp_path, one=one, two_b=one, broken=broken)
    more = {
        "HERE": str(ROOT),
        "MEUP_TOKEN_BROKEN": "never used",
        "MEUP_PARTICIPANT": "another",  # as `meup env another` says it: of no server here
    }
    async with space() as (gateway, caller):
        with bridging(*file, **variables(gateway, "one", "two-b"), **more) as bridge:
            assert await echoed(caller, "one") == "done: x"
            assert await echoed(caller, "two-b") == "done: x"
            (line,) = bridge.wait_for("the MCP server 'broken' ended before it answered")
            assert "ERROR" in line


async def test_a_server_that_fails_its_first_start_is_started_again(tmp_path: Path) -> None:
    there = tmp_path / "there"
    code = (
        f"import os, sys; os.path.exists({str(there)!r}) or sys.exit(3);"
        f" os.execv(sys.executable, [sys.executable, *{list(SCRIPTED[1:])!r}])"
    )
    file = servers_file(tmp_path, one=COMMAND, two_b={**COMMAND, "args": ["-c", code]})
    async with space() as (gateway, caller):
        with bridging(*file, **variables(gateway, "one", "two-b")) as bridge:
            assert await echoed(caller, "one") == "done: x"
            bridge.wait_for("two-b: it is started again in")
            there.touch()
            assert await echoed(caller, "two-b") == "done: x"


async def test_tokens_of_a_development_gateway_are_found(tmp_path: Path) -> None:
    file = servers_file(tmp_path, tools=COMMAND)
    state = {"MEUP_STATE_DIR": str(tmp_path / "state")}
    with program(["-m", "meup_agent.cli", "gateway", "--dev", "--port", "0"], state) as gateway:
        gateway.wait_for("Their tokens are kept")
        (line,) = gateway.wait_for("ws://")
        found = re.search(r"ws://[0-9.]+:\d+", line)
        assert found
        with bridging(*file, MEUP_URL=found[0], MEUP_SPACE="demo", **state) as bridge:
            bridge.wait_for("tools: is 'tools' in the space 'demo'")


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
    assert sentence in refusal("bridge", *arguments)


X = {"command": "x"}


@pytest.mark.parametrize(
    ("servers", "given", "sentence"),
    [
        ({"a": {"comand": "x"}}, {}, "has the unknown key 'comand'; did you mean 'command'?"),
        (
            {"x-y": X, "z": X},
            {"MEUP_TOKEN_Z": "t"},
            "the token of the participant for the server 'x-y' is missing, set MEUP_TOKEN_X_Y",
        ),
        ({"x-y": X, "x_y": X}, {}, "would both have their token in MEUP_TOKEN_X_Y; rename one"),
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
    said = refusal("bridge", "--servers", str(path), lacks=("MEUP_TOKEN",), **given)
    assert sentence in said


@pytest.mark.parametrize("missing", ["MEUP_URL", "MEUP_SPACE", "MEUP_TOKEN"])
def test_a_missing_variable_is_named(missing: str) -> None:
    assert missing in refusal("bridge", "--", *SCRIPTED, lacks=(missing,))
