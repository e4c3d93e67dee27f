"""The example that reads a journal, on the journal of a gateway that runs."""

import subprocess
import sys
from pathlib import Path

from tests.cli.audited import past
from tests.cli.processes import environment
from tests.patience import PATIENCE
from tests.programs import ROOT


def test_read_a_journal(tmp_path: Path) -> None:
    with past(tmp_path) as found:
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "read_a_journal.py"), found.journal, "demo"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=environment(),
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "p-fulfilled alice fulfilled bob",
        "p-rejected alice rejected bob",
        "p-withdrawn alice withdrawn alice",
        "p-twice carol in_progress nobody yet",
        "p-twice alice pending nobody yet",
    ]
