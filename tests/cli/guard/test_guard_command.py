"""`meup guard` puts hooks into the settings of coding agents, and takes them out."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from meup_agent.cli.guard.files import FileChange, write_change
from meup_agent.errors import ConfigurationError
from tests.cli.commands import exit_codes
from tests.cli.conftest import assert_fails
from tests.cli.guard.homes import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "Jörg's home")


SETTINGS = {
    "model": "opus",
    "hooks": {
        "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "mine"}]}]
    },
}
CALL = {
    "hook_event_name": "PreToolUse",
    "session_id": "s",
    "tool_use_id": "t",
    "tool_name": "Bash",
    "tool_input": {"command": "rm x"},
}
FILES = {
    ".claude/settings.json": json.dumps(SETTINGS, indent=4) + "\n",
    ".codex/config.toml": 'model = "o"  # mine\n\n[mcp_servers.x]\ncommand = "y"\n',
    ".cursor/hooks.json": '{"version": 1, "hooks": {"stop": [{"command": "mine"}]}}',
    ".gemini/settings.json": "{}",
    ".copilot/hooks/meup.json": '{"version": 1, "hooks": {}}',
}


@pytest.fixture
def full(home: Home) -> Home:
    for name, text in FILES.items():
        home.write(name, text)
    return home


def entries(home: Home, name: str) -> Iterator[dict[str, Any]]:
    """The entries of ours in a settings file."""
    for event, listed in home.json(name)["hooks"].items():
        for each in listed:
            for entry in each.get("hooks", [each]):
                said = entry.get("command", entry.get("bash", ""))
                if "meup-hook" in said:
                    yield {**entry, "event": event, "line": said}


def test_each_agent_gets_a_hook_that_fails_closed(full: Home) -> None:
    done = full.guard("--yes", "--no-start")
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")
    claude = {each["event"]: each for each in entries(full, ".claude/settings.json")}
    asks = claude["PreToolUse"]
    assert (asks["type"], asks["onFailure"]) == ("command", "block")
    assert asks["timeout"] > 3_600
    assert {"PostToolUse", "PostToolUseFailure"} < claude.keys()
    assert full.json(".claude/settings.json")["hooks"]["PreToolUse"][0]["matcher"] == "Bash"
    codex = tomllib.loads((full.path / ".codex/config.toml").read_text())
    line = codex["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    assert line.endswith("|| { echo 'meup did not answer' >&2; exit 2; }")
    assert codex["mcp_servers"]["x"]["command"] == "y"
    cursor = {each["event"]: each for each in entries(full, ".cursor/hooks.json")}
    assert cursor["preToolUse"]["failClosed"] is True
    assert "beforeReadFile" not in cursor  # of which it asks by preToolUse, too
    gemini = {each["event"]: each for each in entries(full, ".gemini/settings.json")}
    assert gemini["BeforeTool"]["timeout"] > 3_600_000
    copilot = {each["event"]: each for each in entries(full, ".copilot/hooks/meup.json")}
    assert copilot["preToolUse"]["timeoutSec"] > 3_600
    # Also where meup-hook cannot begin: a host may run the call then.
    env = {"PATH": "/bin:/usr/bin"}
    for entry, code in ((gemini["BeforeTool"], 2), (copilot["preToolUse"], 0)):
        line = f"false || {entry['line'].partition(' || ')[2]}"
        ended = subprocess.run(["sh", "-c", line], env=env, capture_output=True, check=False)
        assert ended.returncode == code
        assert b"meup did not answer" in (ended.stdout if code == 0 else ended.stderr)
        assert code or json.loads(ended.stdout)["permissionDecision"] == "deny"
    words = shlex.split(asks["line"])
    assert Path(words[0]).name == "meup-hook"
    assert words[1:3] == ["claude-code", "--url"]
    token = Path(words[words.index("--token-file") + 1])
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert "/hooks" in done.stdout  # Codex has to be told to trust it
    assert "--bare" in done.stdout


def test_twice_is_once_and_remove_leaves_what_was_there(full: Home) -> None:
    full.guard("--yes", "--no-start")
    once = {name: (full.path / name).read_text() for name in FILES}
    done = full.guard("--yes", "--no-start")
    assert {name: (full.path / name).read_text() for name in FILES} == once
    assert "stays as it is" in done.stdout
    removed = full.guard("remove", "--yes")
    assert (removed.returncode, removed.stderr) == (exit_codes.OK, "")
    assert (full.path / ".claude/settings.json").read_text() == FILES[".claude/settings.json"]
    assert (full.path / ".codex/config.toml").read_text() == FILES[".codex/config.toml"]
    assert not [*full.path.rglob("*.before-meup*")]
    assert f"for you to delete: {full.state}" in removed.stdout
    for name in (".cursor/hooks.json", ".gemini/settings.json"):
        left, before = full.json(name), json.loads(FILES[name])
        assert {**left, "hooks": left.get("hooks", {})} == {
            **before,
            "hooks": before.get("hooks", {}),
        }
    assert "no agent has a hook" in full.guard("remove").stdout


def test_remove_leaves_no_file_where_there_was_none(home: Home) -> None:
    home.write(".codex/config.toml", "")
    names = (".claude/settings.json", ".codex/config.toml", ".cursor/hooks.json")
    home.guard("claude-code", "codex", "cursor", "--no-start")
    home.guard("claude-code", "codex", "cursor", "--no-start")
    assert all((home.path / name).is_file() for name in names)
    done = home.guard("remove", "--yes")
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")
    assert not any((home.path / name).exists() for name in names)
    assert not [*(home.path / ".claude").glob("settings.json*")]
    assert "no agent has a hook" in home.guard("remove").stdout


@pytest.mark.parametrize("changed", [False, True])
def test_remove_finds_the_folder_that_a_variable_named(home: Home, *, changed: bool) -> None:
    home.variables["CLAUDE_CONFIG_DIR"] = str(home.path / "work")
    path = home.write("work/settings.json", '{"model": "a"}')
    home.guard("claude-code", "--no-start")
    assert "meup-hook" in path.read_text()
    if changed:  # by Claude Code, so it is not put back as a whole
        home.write("work/settings.json", path.read_text().replace('"a"', '"b"'))
    home.variables["CLAUDE_CONFIG_DIR"] = ""
    home.guard("remove", "claude-code")
    assert json.loads(path.read_text()) == {"model": "b" if changed else "a"}


def test_what_codex_adds_to_our_block_stays(home: Home) -> None:
    """It writes before the last comment of its file: into our block, at its end."""
    name = ".codex/config.toml"
    home.write(name, FILES[name])
    home.guard("codex", "--no-start")
    state = '\n[hooks.state."x"]\ntrusted_hash = "y"\n'
    guarded = (home.path / name).read_text().replace("# <<<", f"{state}# <<<")
    home.write(name, guarded)
    assert "stays as it is" in home.guard("codex", "--no-start").stdout
    home.guard("codex", "--watch", "--no-start")
    watched = tomllib.loads((home.path / name).read_text())
    assert watched["hooks"]["state"] == {"x": {"trusted_hash": "y"}}
    assert len(watched["hooks"]["PreToolUse"]) == 1
    home.guard("remove", "codex")
    assert (home.path / name).read_text() == f"{FILES[name]}{state}"
    # Where somebody else wrote between our lines, nothing is guessed.
    changed = guarded.replace('matcher = "*"', 'matcher = "Bash"\n# mine', 1)
    home.write(name, changed)
    assert_fails(home.guard("remove", "codex"), exit_codes.USAGE, "take that out yourself")
    assert (home.path / name).read_text() == changed


def test_a_hook_that_was_put_beside_ours_stays(home: Home) -> None:
    home.write(".claude/settings.json", "{}")
    home.guard("claude-code", "--no-start")
    settings = home.json(".claude/settings.json")
    mine = {"type": "command", "command": "mine"}
    settings["hooks"]["PreToolUse"][0]["hooks"].append(mine)
    home.write(".claude/settings.json", json.dumps(settings))
    home.guard("claude-code", "--no-start")
    asked = home.json(".claude/settings.json")["hooks"]["PreToolUse"]
    assert asked[0]["hooks"] == [mine]
    assert "meup-hook" in asked[1]["hooks"][0]["command"]
    home.guard("remove", "claude-code")
    assert home.json(".claude/settings.json") == {
        "hooks": {"PreToolUse": [{"matcher": "*", "hooks": [mine]}]}
    }


def test_a_file_that_changed_meanwhile_is_left(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")
    change = FileChange(path, "{}", '{"hooks": {}}')
    path.write_text('{"model": "x"}')
    with pytest.raises(ConfigurationError, match="changed by another program"):
        write_change(change)
    assert path.read_text() == '{"model": "x"}'
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigurationError):
        write_change(FileChange(path, None, "{}"))
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_an_agent_that_is_watched_waits_for_nobody_until_it_is_guarded_again(full: Home) -> None:
    done = full.guard("claude-code", "--watch", "--no-start")
    assert "waits for nobody" in done.stdout
    (asks,) = (e for e in entries(full, ".claude/settings.json") if e["event"] == "PreToolUse")
    assert asks["line"].endswith(" --watch")
    assert "onFailure" not in asks  # nor does it hold a call back by its own failure
    full.guard("claude-code", "--no-start")
    (asks,) = (e for e in entries(full, ".claude/settings.json") if e["event"] == "PreToolUse")
    assert "--watch" not in asks["line"]
    assert asks["onFailure"] == "block"
    done = full.guard("remove", "--watch")
    assert_fails(done, exit_codes.USAGE, "are for guarding")


def test_a_call_waits_for_a_day_or_as_long_as_is_chosen(full: Home) -> None:
    for given, waits in (((), 86_400), (("--ttl", "1209600"), 1_209_600), ((), 1_209_600)):
        full.guard("claude-code", "--no-start", *given)
        (asks,) = (e for e in entries(full, ".claude/settings.json") if e["event"] == "PreToolUse")
        assert f" --ttl {waits} " in asks["line"]
        # It hears of the end before the agent gives it up.
        assert asks["timeout"] == waits + 60
    done = full.guard("claude-code", "--ttl", "9999999", "--no-start")
    assert_fails(done, exit_codes.USAGE, "--ttl")


def test_a_dry_run_changes_nothing_and_shows_the_difference(full: Home) -> None:
    done = full.guard("claude-code", "--dry-run")
    assert done.returncode == exit_codes.OK
    assert '"onFailure": "block"' in done.stdout
    assert (full.path / ".claude/settings.json").read_text() == FILES[".claude/settings.json"]
    assert not full.state.exists()


def test_what_it_was_is_kept_beside_it(full: Home) -> None:
    settings = full.path / ".claude/settings.json"
    settings.chmod(0o640)
    full.guard("claude-code", "--no-start")
    beside = settings.with_name("settings.json.before-meup")
    assert beside.read_text() == FILES[".claude/settings.json"]
    assert stat.S_IMODE(settings.stat().st_mode) == 0o640
    # What it was at first is never replaced; a later change keeps its own.
    guarded = settings.read_text()
    assert "before-meup-last" in full.guard("claude-code", "--watch", "--no-start").stdout
    assert beside.read_text() == FILES[".claude/settings.json"]
    assert settings.with_name("settings.json.before-meup-last").read_text() == guarded


def test_a_folder_that_a_link_leads_to_is_written_and_named(home: Home) -> None:
    kept = home.write("dotfiles/claude/settings.json", "{}").parent
    (home.path / ".claude").symlink_to(kept)
    done = home.guard("claude-code", "--no-start")
    assert f"{kept / 'settings.json'}, to which a link leads" in done.stdout
    assert "meup-hook" in (kept / "settings.json").read_text()


def test_a_folder_that_cannot_be_written_is_said() -> None:
    path = Path("/proc/self/settings.json")  # not by root either
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_change(FileChange(path, None, "{}"))


@pytest.mark.parametrize("says", ["echo '2.1.294 (Claude Code)'", "exit 1", "echo hello"])
def test_a_claude_that_cannot_fail_closed_is_refused(home: Home, says: str) -> None:
    home.write(".claude/settings.json", "{}")
    home.program("claude", says)
    assert_fails(home.guard("claude-code", "--no-start"), exit_codes.USAGE, "2.1.295")
    assert home.json(".claude/settings.json") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{oops", "not JSON"),
        ("// mine\n{}", "not JSON"),
        ('{"a": 1, "a": 2}', "a key stands in it twice"),
        ("[]", "not a JSON object"),
        ('{"hooks": []}', "hooks are not an object"),
        ('{"hooks": {"PreToolUse": {}}}', "not a list"),
        ('{"disableAllHooks": true}', "disableAllHooks"),
    ],
)
def test_settings_that_are_not_what_it_reads_are_left(home: Home, text: str, said: str) -> None:
    path = home.write(".claude/settings.json", text)
    assert_fails(home.guard("claude-code", "--no-start"), exit_codes.USAGE, said)
    assert path.read_text() == text
    assert [each.name for each in path.parent.iterdir()] == ["settings.json"]


def test_a_folder_in_its_place_is_left(home: Home) -> None:
    (home.path / ".claude/settings.json").mkdir(parents=True)
    assert_fails(home.guard("claude-code", "--no-start"), exit_codes.USAGE, "is not a file")


def test_one_that_could_not_write_all_is_run_again_and_put_back(home: Home) -> None:
    text = '{"model":"opus"}'
    path = home.write(".claude/settings.json", text)
    (path.parent / "settings.json.before-meup").mkdir()  # so that nothing is put beside it
    (path.parent / "settings.json.before-meup-last").mkdir()
    assert home.guard("claude-code", "--no-start").stderr.endswith("(is a directory)\n")
    assert path.read_text() == text
    for each in path.parent.glob("*.before*"):
        each.rmdir()
    assert home.guard("claude-code", "--watch", "--no-start").returncode == exit_codes.OK
    home.guard("remove", "claude-code")
    assert path.read_text() == text


def test_a_link_is_left(home: Home) -> None:
    other = home.write("dotfiles/settings.json", "{}")
    (home.path / ".claude").mkdir()
    (home.path / ".claude/settings.json").symlink_to(other)
    assert_fails(home.guard("claude-code", "--no-start"), exit_codes.USAGE, "symbolic link")
    assert other.read_text() == "{}"
    home.write(".cursor/hooks.json", "oops")
    home.write(".gemini/settings.json", "{}")
    assert home.guard("gemini", "--no-start").returncode == exit_codes.OK
    assert "Gemini CLI asks no more" in home.guard("remove").stdout


def test_one_that_is_not_understood_leaves_the_others_too(full: Home) -> None:
    full.write(".gemini/settings.json", "oops")
    assert_fails(full.guard("--yes", "--no-start"), exit_codes.USAGE, "not JSON")
    assert (full.path / ".claude/settings.json").read_text() == FILES[".claude/settings.json"]


def test_without_a_terminal_the_agents_are_named(full: Home) -> None:
    assert_fails(full.guard(), exit_codes.USAGE, "claude-code, codex, cursor")
    assert_fails(full.guard("emacs"), exit_codes.USAGE, "emacs is not known")


def test_the_gateway_runs_with_a_participant_for_each_agent(full: Home) -> None:
    full.write("policy.yaml", "rules:\n  - deny: {tool: Bash, shell: 'rm *'}\nend: true\n")
    done = full.guard("claude-code", "codex", "--policy", "policy.yaml", "--port", "0")
    assert_fails(done, exit_codes.USAGE, "--port")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
    done = full.guard("claude-code", "codex", "--policy", "policy.yaml", "--port", port)
    assert (done.returncode, "the gateway runs at" in done.stdout) == (exit_codes.OK, True), done
    [lock] = (full.state / "up").glob("*.lock")
    owner = json.loads(lock.read_text())
    try:
        assert {"claude-code", "codex"} <= owner["token_files"].keys()
        assert 'eval "$(meup env you)"\n  meup inbox\n' in done.stdout
        line = next(entries(full, ".claude/settings.json"))["line"]
        assert owner["socket"] in line
        asked = subprocess.run(
            line, shell=True, input=json.dumps(CALL), capture_output=True, text=True, check=True
        )
        said = json.loads(asked.stdout)["hookSpecificOutput"]
        assert (said["permissionDecision"], asked.stderr) == ("deny", "")
        again = full.guard("codex")
        assert (again.returncode, "anew" in again.stdout) == (exit_codes.OK, False)
        full.write("other.yaml", "rules:\n  - allow: {tool: Bash, shell: 'rm *'}\nend: true\n")
        stricter = full.guard("codex", "--policy", "other.yaml")
        assert "the gateway is started anew, with --policy " in stricter.stdout, stricter
        asked = subprocess.run(
            line, shell=True, input=json.dumps(CALL), capture_output=True, text=True, check=True
        )
        said = json.loads(asked.stdout)["hookSpecificOutput"]
        assert said["permissionDecision"] == "allow"
        full.write(".gemini/settings.json", '{"mcpServers": {"files": {"command": "sh"}}}')
        other = full.guard("gemini")
        assert "started anew, with gemini, its MCP servers\n" in other.stdout, other
        [lock] = (full.state / "up").glob("*.lock")
        owner = json.loads(lock.read_text())
        assert {"claude-code", "codex", "gemini"} <= owner["token_files"].keys()
        assert "copilot" not in owner["token_files"]
        assert "still runs" in full.guard("remove", "gemini", "codex").stdout
        removed = full.guard("remove").stdout
        assert "is stopped\n" in removed
        assert f"for you to delete: {full.state / 'up'}" in removed
        assert ".journal.db, " in removed
        with pytest.raises(ProcessLookupError):
            os.kill(owner["process"], 0)
    finally:
        with suppress(ProcessLookupError):
            os.kill(owner["process"], signal.SIGTERM)


@pytest.mark.parametrize(
    "before",
    [
        "",
        'model = "o"',
        'x = """\n[features]\n"""\n\n[features] # mine\nmulti_agent = true\n\n[tui]\nx = 1\n',
        "[features]\nunified_exec_tty = false\n",
    ],
)
def test_codex_opens_no_terminal_whose_input_no_hook_sees(home: Home, before: str) -> None:
    name = ".codex/config.toml"
    path = home.write(name, before)
    assert home.guard("codex", "--no-start").returncode == exit_codes.OK
    guarded = path.read_text()
    features = tomllib.loads(before).get("features", {})
    assert tomllib.loads(guarded)["features"] == {**features, "unified_exec_tty": False}
    assert "stays as it is" in home.guard("codex", "--no-start").stdout
    path.write_text(guarded + "z = 1\n")  # so that it is not put back whole
    home.guard("remove", "codex")
    assert path.read_text().rstrip("\n") == f"{before.rstrip()}\nz = 1".lstrip()


def test_a_switch_that_codex_adds_to_our_table_stays(home: Home) -> None:
    name = ".codex/config.toml"
    path = home.write(name, "")
    home.guard("codex", "--no-start")
    off = "unified_exec_tty = false  # meup"
    path.write_text(path.read_text().replace(off, f"hooks = true\n{off}"))
    home.guard("remove", "codex")
    assert path.read_text() == "[features]\nhooks = true\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("features.unified_exec_tty = true\n", "sets features.unified_exec_tty"),
        ("features.hooks = true\n", "write unified_exec_tty = false into its features yourself"),
    ],
)
def test_codex_is_not_guarded_with_terminals(home: Home, text: str, said: str) -> None:
    path = home.write(".codex/config.toml", text)
    assert_fails(home.guard("codex", "--no-start"), exit_codes.USAGE, said)
    assert path.read_text() == text


def test_claude_s_terminal_is_asked_as_well_until_it_is_guarded_again(full: Home) -> None:
    done = full.guard("claude-code", "codex", "--prefer", "terminal", "--no-start")
    assert done.returncode == exit_codes.OK
    claude = {each["event"]: each for each in entries(full, ".claude/settings.json")}
    assert " --prefer terminal" in claude["PreToolUse"]["line"]
    assert claude["PermissionRequest"]["onFailure"] == "block"
    assert "--prefer" not in (full.path / ".codex/config.toml").read_text()
    full.guard("claude-code", "--defer-after", "60", "--no-start")
    claude = {each["event"]: each for each in entries(full, ".claude/settings.json")}
    assert claude["PreToolUse"]["line"].endswith(" --defer-after 60")
    assert "PermissionRequest" not in claude
    for given in (("codex", "--prefer", "terminal"), ("claude-code", "--watch", "--defer-after=9")):
        assert_fails(full.guard(*given, "--no-start"), exit_codes.USAGE, "--defer-after")


def test_other_hooks_that_may_change_a_call_are_told(home: Home) -> None:
    path = home.path / ".claude"
    path.mkdir()
    other = {"type": "command", "command": "mine"}
    text = json.dumps({"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [other]}]}})
    assert "other hooks" not in home.guard("claude-code", "--no-start").stdout
    (path / "settings.json").write_text(text)
    assert "other hooks" in home.guard("claude-code", "--no-start").stdout
