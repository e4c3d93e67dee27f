"""The unit for systemd: as meup and systemd read it."""

import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.programs import ROOT

UNIT = ROOT / "examples" / "meup.service"
COMMAND = "/usr/local/bin/meup"


def test_the_unit_is_what_meup_understands() -> None:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read_string(UNIT.read_text())
    assert unit["Service"]["ExecStart"].split() == [COMMAND, "up", "space.yaml"]
    # It ends its programs itself, in order.
    assert unit["Service"]["KillMode"] == "mixed"


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is on Linux alone")
def test_the_unit_is_what_systemd_understands(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    assert analyze, "systemd-analyze checks the unit: install it, as by apt-get install systemd"
    # It looks for the command, which is not where the unit has it.
    unit = UNIT.read_text().replace(COMMAND, sys.executable)
    misspelt = unit.replace("NoNewPrivileges", "NoNewPrivilege")
    said: list[str] = []
    for name, text in (("meup", unit), ("misspelt", misspelt)):
        copy = tmp_path / f"{name}.service"
        copy.write_text(text)
        done = subprocess.run(
            [analyze, "verify", copy], capture_output=True, text=True, check=False
        )
        said.append(done.stderr)
        assert done.returncode == 0 or name == "misspelt", done.stderr
    assert said[0] == ""
    assert "NoNewPrivilege" in said[1]
