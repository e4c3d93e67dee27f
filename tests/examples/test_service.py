"""The unit for systemd: as systemd reads it, where it is installed."""

import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

from tests.programs import ROOT

UNIT = ROOT / "examples" / "meup.service"


def test_the_unit_is_what_systemd_and_meup_understand(tmp_path: Path) -> None:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read_string(UNIT.read_text())
    command = unit["Service"]["ExecStart"].split()
    assert command[1:] == ["up", "space.yaml"]
    assert unit["Service"]["KillMode"] == "mixed"
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        copy = tmp_path / UNIT.name
        # It looks for the command, which is not where the unit has it.
        copy.write_text(UNIT.read_text().replace(command[0], sys.executable))
        done = subprocess.run(
            [analyze, "verify", copy], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
