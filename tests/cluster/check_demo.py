"""`meup cluster demo`, played to its end: nothing is lost, and nothing stays."""

import sys
from pathlib import Path

from tests.cli.commands import exit_codes
from tests.cli.processes import running

MEUP = (sys.executable, "-W", "error::ResourceWarning", "-m", "meup_agent.cli")
"""Started as a user's is: what it starts is its own then, and can be killed."""


def test_nothing_is_lost_and_nothing_stays(tmp_path: Path) -> None:
    with running("cluster", "demo", command=MEUP, variables={"TMPDIR": str(tmp_path)}) as demo:
        code = demo.end()
    assert (code, demo.err) == (exit_codes.OK, ""), demo
    assert demo.out.count("kill -9 ") == 6, demo.out
    assert demo.out.splitlines()[-1] == "Nothing was lost."
    assert list(tmp_path.iterdir()) == []
