"""`meup doctor` and the hooks that `meup guard` has set up, where no agent's program can be had."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import exit_codes
from tests.cli.conftest import assert_fails
from tests.cli.guard.homes import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "Jörg's home")


def test_what_could_not_be_tried_is_said_and_never_good(home: Home) -> None:
    for name in (".claude/settings.json", ".gemini/settings.json"):
        home.write(name, "{}")
    home.write("work/.claude/settings.local.json", '{"disableAllHooks": true}')
    home.guard("--yes", "--no-start")
    # A program that starts, and asks no model.
    done = home.meup("doctor", "--json")
    assert (done.returncode, done.stderr) == (exit_codes.FAILED, "")
    claude, gemini = json.loads(done.stdout)["doors"]
    said = {check["name"]: check for check in claude["checks"]}
    assert said["hook"]["ok"] is True
    assert said["gateway"]["ok"] is False
    assert "no call runs" in said["gateway"]["said"]
    assert said["denied call"]["ok"] is False
    assert "nothing is proved: 2.1.331" in said["denied call"]["said"]
    assert "--bare" in said["open"]["said"]
    said = {check["name"]: check for check in gemini["checks"]}
    assert said["denied call"]["ok"] is None
    assert "nothing was run" in said["denied call"]["said"]


def test_settings_that_hold_no_call_back_are_told(home: Home) -> None:
    path = home.write(".cursor/hooks.json", "{}")
    home.guard("cursor", "--no-start")
    guarded = path.read_text()
    path.write_text(guarded.replace('"failClosed": true', '"failClosed": false'))
    done = home.meup("doctor", "--doors")
    assert done.returncode == exit_codes.FAILED
    assert "is not as meup guard writes it" in done.stdout
    assert "run `meup guard cursor` again" in done.stdout
    path.write_text(guarded)
    (home.path / "bin" / "meup-hook").unlink()
    assert "which is not there: no call runs" in home.meup("doctor", "--doors").stdout
    path.write_text("{oops")
    assert "not JSON" in home.meup("doctor", "--doors").stdout


def test_without_a_hook_there_is_no_door_to_look_at(home: Home) -> None:
    assert_fails(home.meup("doctor", "--doors"), exit_codes.FAILED, "no coding agent here")
    assert_fails(home.meup("doctor"), exit_codes.USAGE, "the url is missing")
    assert_fails(home.meup("doctor", "ws://x", "--doors"), exit_codes.USAGE, "leave the url out")


OWN = {"command": "/x/meup", "args": ["mcp", "--token-file", "/x/token"]}


@pytest.mark.parametrize(
    ("agent", "name", "settings", "failed"),
    [
        ("vscode", ".config/Code/User/mcp.json", {"servers": {"meup": OWN}}, {}),
        (
            "vscode",
            ".config/Code/User/mcp.json",
            {"servers": {"meup": OWN, "files\x1b": {"command": "f"}}},
            {"MCP servers": "files"},
        ),
        (
            "zed",
            ".config/zed/settings.json",
            {
                "agent_servers": {
                    "a": {"command": "/x/meup", "args": ["acp", "--", "a"]},
                    "b": {"type": "registry"},
                },
                "context_servers": {"c": {}},
                "agent": {"tool_permissions": {"default": "allow"}},
            },
            {"agents": "without `meup acp`: b", "MCP servers": ": c", "own tools": "every tool"},
        ),
    ],
)
def test_editors_are_read_and_not_run(
    home: Home, agent: str, name: str, settings: object, failed: dict[str, str]
) -> None:
    home.write(name, "// mine\n" + json.dumps(settings))
    done = home.meup("doctor", "--json")
    assert done.returncode == (exit_codes.FAILED if failed else exit_codes.OK)
    [door] = json.loads(done.stdout)["doors"]
    assert door["agent"] == agent
    bad = {each["name"]: each["said"] for each in door["checks"] if each["ok"] is False}
    assert bad.keys() == failed.keys()
    assert all(words in bad[check] for check, words in failed.items())
    assert {"denied call", "open"} <= {each["name"] for each in door["checks"]}


@pytest.mark.parametrize(
    "settings",
    [
        {"hooksConfig": {"disabled": ["meup"]}},
        {"hooksConfig": {"enabled": False}},
        {"hooks": {"disabled": ["meup"]}},
    ],
)
def test_a_gemini_whose_project_turns_hooks_off_is_found(home: Home, settings: object) -> None:
    home.write(".gemini/settings.json", "{}")
    home.guard("gemini", "--no-start")
    work = home.write("work/.gemini/settings.json", json.dumps(settings)).parents[1]
    done = home.meup("doctor", "--doors", cwd=work)
    assert "turns the hook off: Gemini CLI RUNS every call" in " ".join(done.stdout.split())
