"""Claude Code and Codex as `meup guard` sets them up: `meup doctor` proves that a no holds."""

import json
import os
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meup_agent.doors.model_api import ModelApi
from tests.cli.guard.homes import Home
from tests.doors.hosts.programs import CLAUDE, CODEX
from tests.patience import PATIENCE

TERMINALS = "features.unified_exec_tty=true"
PROVED = ["hook", "gateway", "denied call", "gateway gone"]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home with both, guarded, and a gateway that runs."""
    home = Home(tmp_path / "Jörg's home")
    for name, program in (("claude", CLAUDE), ("codex", CODEX)):
        home.program(name, f'exec {program} "$@"')
    home.write(".claude/settings.json", "{}")
    home.write(".codex/config.toml", 'model = "mine"\n')
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
    done = home.guard("claude-code", "codex", "--port", port)
    assert done.returncode == 0, done
    try:
        yield home
    finally:
        home.guard("remove", "--yes")  # ends it, too


def checks(home: Home) -> tuple[dict[str, Any], dict[str, Any]]:
    """The checks of Claude Code's hook and of Codex's, by their names."""
    done = home.meup("doctor", "--json", "--timeout", f"{PATIENCE:g}")
    doors = {each["agent"]: each for each in json.loads(done.stdout)["doors"]}
    claude, codex = (
        {check["name"]: check for check in doors[agent]["checks"]}
        for agent in ("claude-code", "codex")
    )
    return claude, codex


def test_a_no_holds_and_a_host_that_goes_past_the_hook_is_found(home: Home) -> None:
    before = {path: path.read_bytes() for path in home.path.glob(".c*/*")}
    claude, codex = checks(home)
    assert {name: claude[name]["ok"] for name in PROVED} == dict.fromkeys(PROVED, True), claude
    assert "--bare" in claude["open"]["said"]
    assert {name: codex[name]["ok"] for name in PROVED} == dict.fromkeys(PROVED, True), codex
    assert "skips it in silence" in codex["trust"]["said"]
    assert "with a hook that it trusts" in codex["denied call"]["said"]
    assert codex["terminals"]["ok"]
    assert {path: path.read_bytes() for path in home.path.glob(".c*/*")} == before

    home.program("claude", f'exec {CLAUDE} --bare "$@"')
    home.program("codex", f'exec {CODEX} -c features.hooks=false -c {TERMINALS} "$@"')
    claude, codex = checks(home)
    assert not codex["terminals"]["ok"]
    for each in (claude, codex):
        assert (each["denied call"]["ok"], each["gateway gone"]["ok"]) == (False, False), each
        assert "RAN the command" in each["denied call"]["said"]
    assert tomllib.loads((home.path / ".codex/config.toml").read_text())["model"] == "mine"


def test_a_call_waits_until_a_person_has_said_yes(home: Home, tmp_path: Path) -> None:
    [lock] = (home.state / "up").glob("*.lock")
    owner = json.loads(lock.read_text())
    you = ("--url", owner["socket"], "--space", "mcp", "--token-file", owner["token_files"]["you"])
    mark, work = tmp_path / "mark", tmp_path / "work"
    work.mkdir()
    with ModelApi("Bash", {"command": f"touch {mark}", "description": "leave a mark"}) as api:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home.path),
            "ANTHROPIC_BASE_URL": api.url,
            "ANTHROPIC_API_KEY": "none",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        command = [str(CLAUDE), "-p", "go", "--allowedTools", "Bash"]
        with subprocess.Popen(
            command, env=env, cwd=work, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as claude:
            try:
                waiting: list[dict[str, Any]] = []
                while not waiting and claude.poll() is None:
                    listed = home.meup("inbox", "list", "--json", *you)
                    waiting = json.loads(listed.stdout)["proposals"]
                assert [each["arguments"]["command"] for each in waiting] == [f"touch {mark}"]
                assert waiting[0]["proposer"] == "claude-code"
                assert not mark.exists()
                done = home.meup("inbox", "approve", waiting[0]["proposal"], "--yes", *you)
                assert done.returncode == 0, done
                assert claude.wait(PATIENCE) == 0
            finally:
                claude.kill()
        assert mark.exists()
        assert api.results


def test_remove_leaves_what_was_there(home: Home) -> None:
    assert home.guard("remove", "--yes").returncode == 0
    assert (home.path / ".claude/settings.json").read_text() == "{}"
    assert (home.path / ".codex/config.toml").read_text() == 'model = "mine"\n'
