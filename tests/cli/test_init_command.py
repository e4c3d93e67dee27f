"""`meup init` writes a file that `meup up` runs."""

import os
import pty
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from meup_agent.gateway import load_config
from tests.cli.commands import exit_codes
from tests.cli.conftest import assert_fails
from tests.cli.processes import COMMAND, INTERRUPT, environment, meup, running
from tests.patience import PATIENCE


def test_without_a_terminal_defaults_make_a_file(tmp_path: Path, state: dict[str, str]) -> None:
    folder = tmp_path / "har bour"
    folder.mkdir()
    (folder / "mcp.json").write_text('{"mcpServers": {"she": {"command": "sh"}}}')
    done = meup("init", cwd=folder, variables=state)
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")
    assert "Start it: meup up\n" in done.stdout
    for name in ("agent.token", "you.token"):
        token = folder / name
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert token.read_text().strip() not in (folder / "space.yaml").read_text()
    (space,) = load_config(folder / "space.yaml", needs_tokens=False).spaces
    assert (space.id, [*space.participants]) == ("har bour", ["you", "agent", "she"])
    assert space.participants["she"].starts
    with running("up", "--port", "0", cwd=folder, variables=state) as process:
        process.until('eval "$(meup env you --port ')
        process.until("listening at ws://", stream="err")
        assert process.end(INTERRUPT) == exit_codes.OK
    assert "she" in process.out
    assert "Traceback" not in process.err


def test_options_answer_the_questions(tmp_path: Path, state: dict[str, str]) -> None:
    arguments = ("--name", "on", "--servers", "-", "--agent", "echo 'I am' here")
    done = meup("init", *arguments, cwd=tmp_path, variables=state)
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")
    written = yaml.safe_load((tmp_path / "space.yaml").read_text())
    (space,) = written["spaces"].values()
    assert [*written["spaces"]] == ["on"]
    assert space["participants"]["agent"]["command"] == ["echo", "I am", "here"]
    with running("up", "--port", "0", cwd=tmp_path, variables=state) as process:
        process.until("agent | I am here\n")
        assert process.end(INTERRUPT) == exit_codes.OK


def test_rules_decide_in_a_space_made_with_a_policy(tmp_path: Path, state: dict[str, str]) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"reviewer": {"command": "sh"}}}')
    (tmp_path / "rules.yaml").write_text("rules:\n  - allow: {tool: add}\nend: true\n")
    done = meup("init", "--policy", "rules.yaml", cwd=tmp_path, variables=state)
    assert done.returncode == exit_codes.OK
    assert "the server reviewer is left out" in done.stderr
    with running("up", "--port", "0", cwd=tmp_path, variables=state) as process:
        process.until("'reviewer' in '", stream="err")
        process.until("as 'reviewer'")
        assert process.end(INTERRUPT) == exit_codes.OK
    (tmp_path / "space.yaml").unlink()
    (tmp_path / "rules.yaml").write_text("rules:\n  - allwo: {tool: add}\nend: true\n")
    done = meup("init", "--policy", "rules.yaml", cwd=tmp_path, variables=state)
    assert_fails(done, exit_codes.USAGE, "allwo")
    assert not (tmp_path / "space.yaml").exists()


def test_a_missing_policy_is_written_and_asks(tmp_path: Path, state: dict[str, str]) -> None:
    done = meup("init", "--policy", "rules.yaml", cwd=tmp_path, variables=state)
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")
    assert "rules.yaml is written: its rule asks about every call.\n" in done.stdout
    assert (tmp_path / "rules.yaml").read_text().splitlines()[-1].startswith("end: true")
    assert meup("policy", "check", "rules.yaml", cwd=tmp_path).returncode == exit_codes.OK
    explained = meup("policy", "explain", "rules.yaml", "a_tool", cwd=tmp_path)
    assert explained.stdout.endswith("ask: it matches rules[0]\n")
    (tmp_path / "space.yaml").unlink()
    before = (tmp_path / "rules.yaml").read_text().replace("ask:", "deny:")
    (tmp_path / "rules.yaml").write_text(before)
    assert meup("init", "--policy", "rules.yaml", cwd=tmp_path, variables=state).returncode == 0
    assert (tmp_path / "rules.yaml").read_text() == before


def test_at_a_terminal_it_asks_three_questions(tmp_path: Path, state: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"quay\n\necho hi\n")
        done = subprocess.run(
            [*COMMAND, "init"],
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            cwd=tmp_path,
            env=environment(state),
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == exit_codes.OK
    assert done.stderr.count("]: ") == 3
    (space,) = load_config(tmp_path / "space.yaml", needs_tokens=False).spaces
    assert space.id == "quay"
    assert space.participants["agent"].command == ("echo", "hi")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["there.yaml"], exit_codes.FAILED, "there.yaml is there already"),
        (["nowhere/space.yaml"], exit_codes.USAGE, "there is no folder"),
        (["--name", "a\nb"], exit_codes.USAGE, "the name of a space is 1 to"),
        (["--servers", "none.json"], exit_codes.USAGE, "none.json cannot be read"),
        (["--agent", "'open"], exit_codes.USAGE, "the agent's command cannot be split"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    arguments: list[str], code: int, said: str, tmp_path: Path, state: dict[str, str]
) -> None:
    (tmp_path / "there.yaml").write_text("")
    assert_fails(meup("init", *arguments, cwd=tmp_path, variables=state), code, f"meup: {said}")
    assert not list(tmp_path.glob("*.token"))
