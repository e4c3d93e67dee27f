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
