"""Codex at a terminal by `meup codex`: its own program, with the space and the person's keys."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent.doors.model_api import ModelApi
from meup_agent.errors import MeupError
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.doors.hooked import Hooked, permitted_after_a_restart, proposed
from tests.doors.hosts.cases import APP_SERVER_CASES, Case
from tests.doors.hosts.check_doors import (
    BROKEN_POLICY,
    FAKED,
    JUDGE,
    OTHER_TOKEN,
    SIGNALS,
    McpModelApi,
    assert_recorded,
    broken,
    deciding,
)
from tests.doors.hosts.check_terminal import Terminal, press
from tests.doors.hosts.programs import CODEX
from tests.interaction.people import until
from tests.patience import PATIENCE
from tests.programs import ROOT

pytestmark = pytest.mark.anyio

ASKS = ("Wouldyouliketorunthefollowingcommand", "AllowthejudgeMCPservertoruntool")
"""Codex's own questions, as :attr:`Terminal.text` has them."""

MCP_APPROVAL = "codex-mcp-approval"
LARGE = "too large a message"

CONFIG = """
model = "fake"
model_provider = "fake"
approval_policy = "on-request"
sandbox_mode = "read-only"

[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
supports_websockets = false
request_max_retries = 0

[analytics]
enabled = false

[projects."{project}"]
trust_level = "trusted"

[mcp_servers.judge]
command = {python}
args = {judge}
"""


class EscalatingApi(ModelApi):
    """A model that asks to run its command outside of the sandbox."""

    def responses(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for event in super().responses(body):
            item = event.get("item", {})
            if item.get("type") == "function_call":
                wanted = {"sandbox_permissions": "require_escalated", "justification": "to see"}
                item["arguments"] = json.dumps({**json.loads(item["arguments"]), **wanted})
            yield event


SMALL = (
    "import meup_agent.doors.codex_server as server; server.MAX_MESSAGE_BYTES = 64;"
    " from meup_agent.cli import main; main()"
)
"""A program that reads no message of the length that they have."""


def codex(home: Path, url: str, token: str, api: str, ttl: float, *program: str) -> Terminal:
    """`meup codex` in a terminal of its own, as a program of Python."""
    programs, settings, project = home / "bin", home / "codex", home / "project"
    for each in (programs, settings, project):
        each.mkdir()
    (programs / "codex").symlink_to(CODEX)
    (settings / "config.toml").write_text(
        CONFIG.format(
            url=api,
            project=project,
            python=json.dumps(sys.executable),
            judge=json.dumps([str(JUDGE), "allow", ""]),
        )
    )
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(home),
        "CODEX_HOME": str(settings),
        "FAKE_KEY": "none",
        "TERM": "xterm-256color",
        "COLUMNS": "120",
        "LINES": "40",
        "MEUP_TOKEN": token,
        "PYTHONPATH": str(ROOT),
    }
    at = ["--url", url, "--space", "demo", "--ttl", f"{ttl:g}"]
    return Terminal([sys.executable, *program, "codex", *at, "--", "go"], env, project)


def app_server(settings: Path) -> int:
    """The process of the app-server that `meup codex` has started."""
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "cmdline").read_bytes().split(b"\0")
            home = (each / "environ").read_bytes()
        except OSError:
            continue
        is_server = b"app-server" in words and words[0] == b"codex"
        if is_server and f"CODEX_HOME={settings}\0".encode() in home:
            return int(each.name)
    raise AssertionError("there is no app-server")


async def answer(terminal: Terminal, key: bytes, at: Hooked) -> None:
    """Answer Codex's own question."""
    await until(lambda: any(each in terminal.text for each in ASKS))
    await press(terminal, key, lambda: not at.space.proposals[0].state.is_pending)


async def happen(case: Case, at: Hooked, terminal: Terminal, mark: Path) -> None:
    """Let happen to a call that waits, or runs, what the case says."""
    match case.what:
        case "gateway killed":
            await proposed(at.space)
            at.kill()
        case "interrupted by its own API" | "no at the terminal" | "answered too late":
            await proposed(at.space)
            await answer(terminal, b"\x1b", at)
        case "yes at the terminal":
            await proposed(at.space)
            # Of a call of an MCP server it asks by a list, whose first line is a yes.
            await answer(terminal, b"\r" if case.door == MCP_APPROVAL else b"y", at)
        case "gateway restarted midway":
            await permitted_after_a_restart(at)
        case "interrupted by INT" | "interrupted by TERM":
            await proposed(at.space)
            os.kill(app_server(mark.with_name("codex")), SIGNALS[case.what])
            await at.space.proposals.get(at.space.proposals[0]).reject("unsafe")
        case "interrupted by KILL":
            await proposed(at.space)
            os.kill(app_server(mark.with_name("codex")), signal.SIGKILL)
        case "meup codex killed as it waits":
            await proposed(at.space)
            server = Path("/proc", str(app_server(mark.with_name("codex"))))
            terminal.kill()
            await until(lambda: not server.exists())
            # Nobody is left that could take it.
            with pytest.raises(MeupError):
                await at.space.proposals.get(at.space.proposals[0]).fulfill()
        case "meup codex killed as it runs":
            await until(mark.exists)
            terminal.kill()
        case _:
            pass


@pytest.mark.parametrize("case", APP_SERVER_CASES, ids=lambda case: f"{case.door}-{case.what}")
async def test_it_does_what_the_page_says(case: Case, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(2 * PATIENCE))
        command_line = f"touch {mark}"
        if case.what == "meup codex killed as it runs":
            command_line += "; sleep 60"
        model = McpModelApi if case.door == MCP_APPROVAL else EscalatingApi
        api = stack.enter_context(model("Bash", {"command": command_line}))
        at: Hooked | None = None
        token, ttl = "none", 60.0
        if case.what in FAKED:
            url, ttl = stack.enter_context(broken(case.what)).replace("http", "ws"), 3.0
        elif case.what == "refused connection":
            url, ttl = "ws://127.0.0.1:9", 3.0
        else:
            decided_here = deciding(case, mark, tmp_path)
            at, url, token = await stack.enter_async_context(decided_here)
        if case.what in ("time-out", "gateway killed", BROKEN_POLICY):
            ttl = 8.0
        program = ("-c", SMALL) if case.what == LARGE else ("-m", "meup_agent.cli")
        terminal = codex(tmp_path, url, token, api.url, ttl, *program)
        stack.callback(terminal.close)
        if at is not None:
            await happen(case, at, terminal, mark)
        if case.what == LARGE:
            await until(lambda: "startmeupcodexagain" in terminal.text)
        if case.what == OTHER_TOKEN and at is not None:
            await until(lambda: terminal.has_ended)
            assert "refusedthetoken" in terminal.text
            assert len(at.space.proposals) == 0
        if case.told:
            await until(lambda: case.told in " ".join(api.results))
        if case.ran:
            await until(mark.exists)
        if at is not None:
            await assert_recorded(case, at)
    assert mark.exists() is case.ran
    assert not mark.with_suffix(".edited").exists()
