"""Completion by the Tab key, in each shell's own form and in a real shell."""

import os
import subprocess
from pathlib import Path

import pytest

from meup_agent import Reason
from meup_agent.cli.options import complete_kind
from tests.cli.commands import run
from tests.cli.processes import COMMAND, environment
from tests.patience import PATIENCE

NAMED = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
"""The shell is named, and not found out: a test has processes of its own between itself and one."""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ta"], {"tail"}),
        (["doc"], {"doctor"}),
        (["run", "--backend", ""], {"asyncio", "trio"}),
        (
            ["tail", "--kind", "mcp.re"],
            {"mcp.request", "mcp.response", "mcp.reject", "mcp.renew", "mcp.report"},
        ),
        (["tail", "--kind", "pro"], {"proposal", "progress"}),
        (["reject", "4f2a", "--reason", "un"], {"unsafe"}),
        (["withdraw", "4f2a", "--reason", ""], set(Reason)),
        # Nothing of ours: then the shell completes files.
        (["gateway", "--config", "spa"], set()),
        (["run", "bots/e"], set()),
    ],
)
def test_each_shell_gets_what_may_follow(
    shell: str,
    words: list[str],
    expected: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = " ".join(["meup", *words])
    monkeypatch.setenv("_MEUP_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    with pytest.raises(SystemExit) as ended:
        run([])
    said = capsys.readouterr()
    assert (ended.value.code, said.err) == (0, "")
    if shell == "zsh":
        values = {part for part in said.out.split('"') if part in expected or part.islower()}
        assert expected <= values
        assert expected or said.out == "_files\n"
    else:
        assert {each.partition("\t")[0] for each in said.out.split("\n") if each} == expected


def in_bash(script: str, home: Path) -> "subprocess.CompletedProcess[str]":
    """Run a script in a shell that finds `meup`, and whose startup files are in a folder."""
    program = home / "bin" / "meup"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=environment({"HOME": str(home), "PATH": path, **NAMED}),
    )


def test_bash_completes_with_what_is_shown(tmp_path: Path) -> None:
    done = in_bash(
        'eval "$(meup --show-completion bash)"\n'
        "COMP_WORDS=(meup reject 4f2a --reason dis) COMP_CWORD=4\n"
        "_meup_completion meup\n"
        'echo "${COMPREPLY[@]}"; complete -p meup\n',
        tmp_path,
    )
    assert done.stderr == ""
    assert done.stdout == "disagree\ncomplete -o default -F _meup_completion meup\n"


def test_bash_gets_it_installed(tmp_path: Path) -> None:
    done = in_bash("meup --install-completion bash", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "bash completion installed in" in done.stdout
    assert ".bash_completions/meup.sh" in (tmp_path / ".bashrc").read_text()
    installed = (tmp_path / ".bash_completions" / "meup.sh").read_text()
    assert "_MEUP_COMPLETE=complete_bash" in installed


def test_kinds_are_those_of_the_protocol() -> None:
    assert "capability/grant" in complete_kind("capability/")
    assert complete_kind("chat") == ["chat", "chat.acknowledge", "chat.cancel"]
