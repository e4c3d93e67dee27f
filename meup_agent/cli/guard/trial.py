"""Trials of a guarded agent: its real program, a model of ours, and a gateway that denies.

Nothing of the person's is used or changed: the program gets a home, a folder and an environment of
its own, which go with the trial, and of its settings our hooks alone. The model asks for one
command that leaves a mark, and that the settings of the trial allow.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio

from meup_agent.agent.agent import Agent
from meup_agent.approval import DenyRule, Policy
from meup_agent.cli.guard.agents import SWITCH, CodingAgent, HookProgram, starts_hook
from meup_agent.cli.guard.files import read_settings, read_toml
from meup_agent.cli.up.endpoints import HOOKS_PATH, HookEndpoint
from meup_agent.doors.codex_server import app_server
from meup_agent.doors.model_api import ModelApi
from meup_agent.gateway.config import ROLES, HttpConfig, first_token, one_space_config
from meup_agent.gateway.server import serve
from meup_agent.processes.guarded import GuardedProcess
from meup_agent.protocol.wire.payloads import as_object, objects_in
from meup_agent.transport.base import background_tasks
from meup_agent.transport.urls import socket_url
from meup_agent.transport.websocket import SpaceConnector

TRIAL_SECONDS: Final = 60.0
"""Time for an agent's program to start, to ask its model twice, and to end."""

END_SECONDS: Final = 5.0
"""Time for a program to be gone after it was told to."""

MAX_OUTPUT_CHARS: Final = 300
"""Last characters of a program's output that are told."""

DENIAL: Final = "a trial of meup doctor"
"""The words with which the gateway of a trial denies."""

Started = tuple[list[str], dict[str, str]]
"""A command line, and the variables beside those of every trial."""


class TrialResult(NamedTuple):
    """The outcome of a trial.

    Attributes:
        has_run: The command ran.
        told: The model's last news of it; ``None``: it heard of none, and nothing was tried.
        output: The end of what the program printed.
        has_ended: It ended within its time.
    """

    has_run: bool
    told: str | None
    output: str
    has_ended: bool


@asynccontextmanager
async def denying_gateway(name: str) -> AsyncGenerator[tuple[str, str]]:
    """A gateway whose policy denies every call; its address, and the token of an agent."""
    roles = {name: ROLES["proposer"], "policy": ROLES["fulfiller"]}
    config = replace(one_space_config("trial", roles), http=HttpConfig(), host="127.0.0.1", port=0)
    hooks, policy = HookEndpoint(), Agent("policy")
    policy.use(Policy([DenyRule(tool="*", explain=DENIAL)]))
    async with serve(config, routes={HOOKS_PATH: hooks}) as running:
        assert running.http_url is not None, "it is on loopback"
        async with background_tasks() as tasks:
            tasks.start_soon(hooks.run, running)
            where = SpaceConnector(running.url, "trial")
            async with policy.join(where, token=first_token(config, "policy")):
                yield running.http_url, first_token(config, name)
            tasks.cancel_scope.cancel()


async def try_hook(
    agent: CodingAgent, program: str, hook: HookProgram, folder: Path, at: tuple[str, str] | None
) -> TrialResult:
    """Let an agent's program ask for one command.

    Args:
        agent: The agent.
        program: The path of its program.
        hook: The hook that its settings have.
        folder: A folder for this trial alone.
        at: Address and token of the gateway that is asked; ``None``: none can be reached.
    """
    url, token = at or (socket_url(str(folder / "gone.sock")), "none")
    token_file, mark, cwd = folder / "token", folder / "mark", folder / "project"
    token_file.write_text(token, encoding="ascii")
    cwd.mkdir()
    asks = {"command": f"touch {mark}", "description": "leave a mark"}
    with ModelApi("Bash", asks) as model:
        asked = hook._replace(url=url, token_file=token_file)
        words, variables = _STARTS[agent.name](agent, asked, folder, model.url)
        env = _environment(folder) | variables
        has_ended, output = await _run([program, *words], env, cwd, folder / "output")
        told = model.results
    return TrialResult(mark.exists(), told[-1] if told else None, output, has_ended)


def _environment(folder: Path) -> dict[str, str]:
    kept = {each: os.environ[each] for each in ("PATH", "LANG") if each in os.environ}
    return {**kept, "HOME": str(folder), "TMPDIR": str(folder)}


async def _run(
    command: list[str], env: Mapping[str, str], cwd: Path, log: Path
) -> tuple[bool, str]:
    """Run a program to its end, or for so long; whether it ended, and the end of its output."""
    with log.open("wb") as output:
        process = GuardedProcess(
            command,
            env,
            cwd,
            stdin=subprocess.DEVNULL,
            stdout=output.fileno(),
            stderr=output.fileno(),
        )
    has_ended = False
    try:
        with anyio.move_on_after(TRIAL_SECONDS):
            await process.wait_ended()
            has_ended = True
    finally:
        process.kill()
        process.leave()
        with anyio.move_on_after(END_SECONDS, shield=True):
            await process.wait_gone()
        process.has_gone()
    said = await anyio.Path(log).read_text(encoding="utf-8", errors="replace")
    return has_ended, said.strip()[-MAX_OUTPUT_CHARS:]


# --- each agent ---


def _start_claude(agent: CodingAgent, hook: HookProgram, folder: Path, model: str) -> Started:
    home = folder / "claude"
    home.mkdir()
    settings: dict[str, Any] = json.loads(agent.edit(None, home / "settings.json", hook))
    settings["permissions"] = {"allow": ["Bash"]}
    (home / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    return ["-p", "go"], {
        "ANTHROPIC_BASE_URL": model,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CONFIG_DIR": str(home),
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


CODEX_SETTINGS: Final = """\
model = "test"
model_provider = "fake"
approval_policy = "never"
sandbox_mode = "danger-full-access"

[analytics]
enabled = false

[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
supports_websockets = false
request_max_retries = 0
"""
"""The settings of Codex that let a model of ours run any command."""


def _start_codex(agent: CodingAgent, hook: HookProgram, folder: Path, model: str) -> Started:
    home = folder / "codex"
    home.mkdir()
    text = CODEX_SETTINGS.format(url=model) + _features(agent)
    (home / "config.toml").write_text(agent.edit(text, home, hook), encoding="utf-8")
    # Whether the person's own hook is trusted is another question, which its settings answer.
    flags = ["--json", "--skip-git-repo-check", "--dangerously-bypass-hook-trust"]
    return ["exec", *flags, "go"], {"CODEX_HOME": str(home), "FAKE_KEY": "none"}


def _features(agent: CodingAgent) -> str:
    """The switches of the person's own settings: one of them turns hooks off."""
    path = agent.settings()
    given = as_object(read_toml(read_settings(path) or "", path).get("features"))
    switches = [
        f"{json.dumps(name)} = {str(value).lower()}"
        for name, value in given.items()
        if isinstance(value, bool)
    ]
    return "\n".join(["", "[features]", *switches, ""]) if switches else ""


_STARTS: Final[Mapping[str, Callable[[CodingAgent, HookProgram, Path, str], Started]]] = {
    "claude-code": _start_claude,
    "codex": _start_codex,
}


# --- Codex's trust ---


async def hook_trust(agent: CodingAgent, program: str, folder: Path) -> bool | None:
    """True if Codex trusts the hook that asks before a call; ``None``: it does not say.

    Codex says what it knows a hook by, of a copy of its settings; the settings themselves have what
    the person has trusted.

    Raises:
        ConfigurationError: Its settings cannot be read.
        CannotConnect: It cannot be started.
    """
    path = agent.settings()
    copy, env = _codex_copy(agent, folder)
    hooks: list[dict[str, Any]] = []
    with anyio.move_on_after(TRIAL_SECONDS):
        async with app_server(program, env) as server:
            about = {"name": "meup", "title": "meup doctor", "version": "1"}
            await server.send(_request(1, "initialize", {"clientInfo": about}))
            await server.send(b'{"method": "initialized"}')
            await server.send(_request(2, "hooks/list", {"cwds": [str(folder)]}))
            async for message in server.messages():
                said = as_object(json.loads(message))
                if said.get("id") == 2:
                    data = objects_in(as_object(said.get("result")).get("data"))
                    hooks = [each for place in data for each in objects_in(place.get("hooks"))]
                    break
    asks = [
        each
        for each in hooks
        if each.get("eventName") == "preToolUse" and starts_hook(each.get("command"), agent.name)
    ]
    if not asks:
        return None
    return all(each.get("isManaged") is True or _is_trusted(each, copy, path) for each in asks)


def _is_trusted(hook: dict[str, Any], copy: Path, path: Path) -> bool:
    place = str(hook.get("key", "")).removeprefix(str(copy.resolve())).removeprefix(str(copy))
    hooks = as_object(read_toml(read_settings(path) or "", path).get("hooks"))
    state = as_object(hooks.get("state"))
    known = (as_object(state.get(f"{each}{place}")) for each in (path, path.resolve()))
    return any(
        each.get("trusted_hash") == hook.get("currentHash") and each.get("enabled") is not False
        for each in known
    )


def _codex_copy(agent: CodingAgent, folder: Path) -> tuple[Path, dict[str, str]]:
    """A copy of Codex's settings, and the environment in which it reads that one."""
    home = folder / "copy"
    home.mkdir(exist_ok=True)
    copy = home / "config.toml"
    copy.write_text(read_settings(agent.settings()) or "", encoding="utf-8")
    return copy, _environment(folder) | {"CODEX_HOME": str(home)}


async def opens_terminals(agent: CodingAgent, program: str, folder: Path) -> bool | None:
    """True if Codex opens terminals with its settings; ``None``: it knows no such switch.

    Raises:
        ConfigurationError: Its settings cannot be read.
        OSError: It cannot be started.
    """
    _, env = _codex_copy(agent, folder)
    said = b""
    with anyio.move_on_after(TRIAL_SECONDS):
        command = [program, "features", "list"]
        said = (await anyio.run_process(command, env=env, cwd=folder, check=False)).stdout
    for line in said.decode(errors="replace").splitlines():
        words = line.split()
        if words[:1] == [SWITCH]:
            return words[-1] != "false"
    return None


def _request(number: int, method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"id": number, "method": method, "params": params}).encode()
