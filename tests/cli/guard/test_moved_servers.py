"""`meup guard` moves the MCP servers of agents behind the gateway, and puts them back."""

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from meup_agent.cli.up.state import guard_lock
from tests.cli.commands import exit_codes
from tests.cli.conftest import assert_fails
from tests.cli.guard.homes import Home

CLAUDE = ".claude.json"
ENTRY: dict[str, Any] = {"command": "sh", "args": ["-c", "cat"], "env": {"KEY": "secret"}}
OFF = {"command": "sh", "disabled": True}
OTHER = {"command": "sh", "args": ["other"]}
FILES = {
    ".claude/settings.json": '{"model": "opus"}',
    CLAUDE: json.dumps({"numStartups": 3, "mcpServers": {"files": ENTRY, "off": OFF}}),
    ".codex/config.toml": (
        'model = "o"  # mine\n\n[mcp_servers.files]\ncommand = "sh" # mine\n'
        'args = [\n  "other",\n]\n'
        'startup_timeout_sec = 20\n\n[mcp_servers.files.env]\nA = "b"\n\n[tui]\nx = 1\n'
    ),
    ".cursor/hooks.json": '{"version": 1, "hooks": {}}',
    ".cursor/mcp.json": json.dumps({"mcpServers": {"files": ENTRY, "odd": {"command": "no-such"}}}),
    ".gemini/settings.json": json.dumps(
        {"mcpServers": {"g": ENTRY, "t": {**ENTRY, "trust": True}}}
    ),
    ".config/Code/User/mcp.json": json.dumps({"servers": {"code": OTHER}, "inputs": []}),
    ".config/zed/settings.json": (
        '// mine\n{\n  "agent_servers": {\n'
        '    "Gemini": {"command": "gemini", "args": ["--acp"]},\n'
        '    "Claude": {"type": "registry"},\n  },\n}\n'
    ),
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "Jörg's home")
    home.variables["XDG_CONFIG_HOME"] = ""
    for name, text in FILES.items():
        home.write(name, text)
    return home


def texts(home: Home) -> dict[str, str]:
    return {name: (home.path / name).read_text() for name in FILES}


def at_gateway(home: Home) -> dict[str, Any]:
    path = home.state / "guard" / "mcp.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    servers: dict[str, Any] = json.loads(path.read_text())["mcpServers"]
    return servers


def test_servers_are_moved_and_put_back_as_they_were(home: Home) -> None:
    done = home.guard("--yes", "--no-start")
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")
    assert "--project" not in done.stdout  # in the home folder its files are the user's
    assert at_gateway(home) == {
        "files": ENTRY,
        "files-codex": {"command": "sh", "args": ["other"], "env": {"A": "b"}},
        "g": ENTRY,
        "code": OTHER,
    }
    claude = home.json(CLAUDE)
    assert claude["numStartups"] == 3
    assert claude["mcpServers"].keys() == {"off", "meup"}
    ours = claude["mcpServers"]["meup"]
    assert ours["args"][:2] == ["mcp", "--token-file"]
    assert ours["env"]["MEUP_PARTICIPANT"] == "claude-code"
    codex = tomllib.loads((home.path / ".codex/config.toml").read_text())
    assert codex["mcp_servers"].keys() == {"meup"}
    assert codex["mcp_servers"]["meup"]["env"]["MEUP_PARTICIPANT"] == "codex"
    assert codex["tui"] == {"x": 1}
    assert home.json(".gemini/settings.json")["mcpServers"].keys() == {"t", "meup"}
    assert home.json(".config/Code/User/mcp.json")["servers"].keys() == {"meup"}
    assert "odd" in done.stdout
    assert "there is no command 'no-such'" in done.stdout
    assert "it is disabled" in done.stdout
    assert '"KEY": "…"' in done.stdout
    assert "secret" not in done.stdout
    zed = (home.path / ".config/zed/settings.json").read_text()
    assert zed.startswith("// mine")
    assert '"--participant",' in zed
    assert '"--",' in zed

    once = texts(home)
    home.guard("--yes", "--no-start")
    assert texts(home) == once
    assert len(at_gateway(home)) == 4

    removed = home.guard("remove", "--yes")
    assert (removed.returncode, removed.stderr) == (exit_codes.OK, "")
    assert "secret" not in removed.stdout
    assert texts(home) == FILES
    assert at_gateway(home) == {}
    assert "no agent has" in home.guard("remove").stdout


def test_what_was_written_since_stays(home: Home) -> None:
    home.guard("claude-code", "codex", "zed", "--no-start")
    claude = home.json(CLAUDE)
    claude["numStartups"] = 4
    claude["mcpServers"]["files"] = {"command": "mine"}
    home.write(CLAUDE, json.dumps(claude))
    zed = home.path / ".config/zed/settings.json"
    zed.write_text(zed.read_text().replace("// mine", "// still mine"))
    done = home.guard("remove", "--yes")
    assert f"for you to delete: {home.path / CLAUDE}.before-meup, " in done.stdout
    assert home.json(CLAUDE) == {
        "numStartups": 4,
        "mcpServers": {"files": {"command": "mine"}, "off": OFF},
    }
    assert "// still mine" in zed.read_text()
    assert '"command": "gemini"' in zed.read_text()
    assert "meup" not in zed.read_text()


def test_servers_that_are_not_to_move_stay(home: Home) -> None:
    home.write("work/.mcp.json", json.dumps({"mcpServers": {"evil": ENTRY}}))
    before = (home.path / CLAUDE).read_text()
    work = home.path / "work"
    done = home.guard("claude-code", "--no-start", "--no-servers")
    assert (home.path / CLAUDE).read_text() == before
    done = home.meup("guard", "claude-code", "--no-start", cwd=work)
    assert "--project moves them" in done.stdout
    assert "evil" not in at_gateway(home)
    home.meup("guard", "claude-code", "--no-start", "--project", cwd=work)
    assert at_gateway(home)["evil"] == {**ENTRY, "cwd": str(work)}
    assert json.loads((work / ".mcp.json").read_text()) == {"mcpServers": {}}
    home.guard("remove", "claude-code")
    assert json.loads((work / ".mcp.json").read_text()) == {"mcpServers": {"evil": ENTRY}}


def test_a_server_that_a_project_has_of_ours_stays(home: Home) -> None:
    own = {"command": "meup", "args": ["mcp", "--token-file", "mine"]}
    path = home.write(
        "work/.cursor/mcp.json", json.dumps({"mcpServers": {"a": ENTRY, "meup": own}})
    )
    before = path.read_text()
    home.meup("guard", "cursor", "--no-start", "--project", cwd=path.parent.parent)
    assert json.loads(path.read_text()) == {"mcpServers": {"meup": own}}
    home.guard("remove", "cursor")
    assert path.read_text() == before


def test_a_server_of_our_name_that_is_another_one_is_left(home: Home) -> None:
    text = json.dumps({"mcpServers": {"files": ENTRY, "meup": OTHER}})
    home.write(CLAUDE, text)
    assert_fails(home.guard("claude-code", "--no-start"), exit_codes.USAGE, "rename yours")
    assert (home.path / CLAUDE).read_text() == text
    assert (home.path / ".claude/settings.json").read_text() == FILES[".claude/settings.json"]
    text = '[mcp_servers.meup]\ncommand = "other"\n\n[mcp_servers.a]\ncommand = "sh"\n'
    path = home.write(".codex/config.toml", text)
    done = home.guard("codex", "--no-start")
    assert_fails(done, exit_codes.USAGE, f"{path} has an MCP server meup that meup guard has not")
    assert path.read_text() == text


QUOTED = (
    'x = """\n# >>> meup guard >>>\n# <<< meup guard <<<\n#meup# mine\n[mcp_servers.a]\n"""\n'
    '[mcp_servers.a]\ncommand = "sh"\nargs = ["""\n[x]\n""", "\u2028end"]\n'
)


def test_what_only_looks_like_ours_in_a_text_stays(home: Home) -> None:
    name = ".codex/config.toml"
    path = home.write(name, QUOTED)
    home.guard("codex", "--no-start")
    guarded = path.read_text()
    assert tomllib.loads(guarded)["x"] == tomllib.loads(QUOTED)["x"]
    assert at_gateway(home).keys() == {"a"}
    home.guard("codex", "--no-start")
    assert path.read_text() == guarded
    path.write_text(guarded + "y = 1\n")  # so that it is not put back whole
    home.guard("remove", "codex")
    assert path.read_text() == f"{QUOTED}y = 1\n"


def test_no_secret_is_shown_nor_kept_where_others_can_read_it(home: Home) -> None:
    secrets = {
        "args": ["--api-key", "one-1", "--token=two-2", "--token-file", "shown-file"],
        "env": {"KEY": 'three"3ä'},
    }
    far = {"url": "http://u:four-4@h/mcp?key=five-5", "headers": {"Authorization": "six-6"}}
    servers = {"files": {**ENTRY, **secrets}, "far": {"type": "http", **far}}
    path = home.write(CLAUDE, json.dumps({"primaryApiKey": "seven-7", "mcpServers": servers}))
    path.chmod(0o644)
    for words in (("claude-code", "--no-start"), ("remove", "claude-code")):
        done = home.guard(*words)
        for each in ("one-1", "two-2", "three", "four-4", "five-5", "six-6", "seven-7"):
            assert each not in done.stdout
        assert "shown-file" in done.stdout
        assert "claude-code" in done.stdout
    kept = [*home.state.rglob("*"), *home.path.glob(".claude.json.before*")]
    assert len(kept) > 4
    assert [each for each in kept if each.stat().st_mode & 0o077] == []


def test_two_at_once_do_not_lose_what_one_has_moved(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.guard("claude-code", "--no-start")
    monkeypatch.setenv("MEUP_STATE_DIR", str(home.state))
    before = texts(home)
    with guard_lock():
        for words in (("codex", "--no-start"), ("remove", "--yes")):
            assert_fails(home.guard(*words), exit_codes.USAGE, "another meup guard is at work")
        assert home.guard("codex", "--dry-run").returncode == exit_codes.OK
    assert texts(home) == before
