"""`meup up --install`: a unit that the user's service manager understands, and its end."""

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meup_agent.cli.up.autostart import ServiceUnit
from tests.cli.commands import exit_codes
from tests.cli.processes import meup

ODD = 'a b%h $HOME "x" \\ c'
"""A folder's name with all that a unit would read otherwise."""

needs_systemd = pytest.mark.skipif(sys.platform != "linux", reason="systemd is on Linux alone")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """A home with a service manager that notes what it is told."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tmp_path / "state").mkdir(mode=0o700)
    control = tools / "systemctl"
    control.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/told\ntest ! -e {tmp_path}/broken\n')
    control.chmod(0o755)
    return {
        "PATH": f"{tools}:/usr/bin:/bin",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "MEUP_STATE_DIR": str(tmp_path / "state"),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / ODD
    folder.mkdir()
    (folder / "space.yaml").write_text("space: {id: harbour}\nparticipants: {ann: {}}\n")
    return folder


def units(home: dict[str, str]) -> list[Path]:
    return [*Path(home["XDG_CONFIG_HOME"]).glob("systemd/user/*")]


@needs_systemd
def test_a_unit_is_written_started_and_taken_out(
    tmp_path: Path, folder: Path, home: dict[str, str]
) -> None:
    for _ in range(2):  # the second time it is another command line's
        done = meup("up", "--install", "--port", "8431", cwd=folder, variables=home)
        assert done.returncode == exit_codes.OK, done
        assert "journalctl --user -u meup-" in done.stdout
    (unit,) = units(home)
    assert unit.stat().st_mode & 0o777 == 0o600
    text = unit.read_text()
    assert '"meup_agent.cli" "up" "--port" "8431"\n' in text
    analyze = shutil.which("systemd-analyze")
    assert analyze, "systemd-analyze checks the unit: install it, as by apt-get install systemd"
    variables = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [analyze, "--user", "verify", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert (said.returncode, said.stderr) == (0, "")
    done = meup("up", "--uninstall", cwd=folder, variables=home)
    assert (done.returncode, units(home)) == (exit_codes.OK, [])
    name = unit.name
    started = ["--user daemon-reload", f"--user enable {name}", f"--user restart {name}"]
    stopped = [f"--user disable --now {name}", "--user daemon-reload"]
    assert (tmp_path / "told").read_text().splitlines() == [*started, *started, *stopped]
    done = meup("up", "--uninstall", cwd=folder, variables=home)
    assert (done.returncode, "there is no unit" in done.stderr) == (exit_codes.FAILED, True)


@needs_systemd
def test_what_is_wrong_is_said_and_nothing_is_set_up(
    tmp_path: Path, folder: Path, home: dict[str, str]
) -> None:
    both = meup("up", "--install", "--uninstall", cwd=folder, variables=home)
    assert both.returncode == exit_codes.USAGE
    (folder / "space.yaml").write_text("space: [")
    wrong = meup("up", "--install", cwd=folder, variables=home)
    assert (wrong.returncode, units(home)) == (exit_codes.USAGE, [])
    (folder / "space.yaml").write_text("space: {id: harbour}\nparticipants: {ann: {}}\n")
    (tmp_path / "broken").touch()
    failed = meup("up", "--install", cwd=folder, variables=home)
    assert (failed.returncode, units(home)) == (exit_codes.FAILED, [])
    assert "`systemctl --user daemon-reload` failed: exit code 1" in failed.stderr


def test_the_property_list_of_launchd_starts_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MEUP_GATEWAY_PORT", "1")
    unit = ServiceUnit.of_command_line(folder / "space.yaml", ["up", "--install", "--lan"])
    listed = plistlib.loads(unit.launchd_text())
    assert listed["ProgramArguments"][1:] == ["-m", "meup_agent.cli", "up", "--lan"]
    assert listed["WorkingDirectory"] == str(folder)
    assert listed["EnvironmentVariables"]["MEUP_GATEWAY_PORT"] == "1"
    assert listed["KeepAlive"] == {"SuccessfulExit": False}
