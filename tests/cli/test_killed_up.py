"""`kill -9` of `meup up` and `meup bridge`: nothing of what they have started is left."""

import json
import os
import select
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from meup_agent.gateway import Gateway
from tests.cli.participants import variables_of
from tests.cli.processes import INTERRUPT, Running, is_there, running, up
from tests.cli.servers import mcp_server
from tests.cli.test_up_command import ENDS, STUBBORN, WAITS, process_of, python, write
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux lets a process adopt orphans, and tells of its end"
)

LEAVES = (
    "import subprocess, sys, time;"
    f"[subprocess.Popen({python(STUBBORN)!r}, start_new_session=alone) for alone in (False, True)]"
)
"""Starts two programs that heed no signal, one of which is not in its group."""

STAYS = f"{LEAVES}; {WAITS}"

SERVER = f"""
import json, os, pathlib, signal, subprocess, sys, time

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(600)"],
                         start_new_session=True, stdin=subprocess.DEVNULL)

def tools():
    pathlib.Path("deaf").write_text(f"{{os.getpid()}} {{child.pid}}")
    print("ready", file=sys.stderr, flush=True)
    return [{{"name": "add", "inputSchema": {{"type": "object"}}}}]
{mcp_server("tools()")}
while True:  # it does not heed the end of its input either
    try:
        os.write(1, b"x" * 4_096) if "writes" in sys.argv else time.sleep(600)
    except OSError:
        pass
"""
"""An MCP server without the SDK, which heeds nothing, and writes on where it is told to."""


def descendants(process: int) -> set[int]:
    """A process's children, and theirs."""
    found: set[int] = set()
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, path.read_text(encoding="ascii").split()):
            found |= {child, *descendants(child)}
    return found


class Ends:
    """The ends of processes, told by the system: a number may be another's by then."""

    def __init__(self, processes: Iterable[int]) -> None:
        self._left = {os.pidfd_open(each): each for each in processes}

    def wait(self) -> None:
        """Wait until all have ended."""
        while self._left:
            ended, _, _ = select.select(list(self._left), [], [], PATIENCE)
            assert ended, f"still there: {sorted(self._left.values())}"
            for descriptor in ended:
                os.close(descriptor)
                del self._left[descriptor]


def kill(process: Running) -> None:
    process.process.kill()
    assert process.process.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.thorough
def test_killed_up_leaves_no_program_or_children(tmp_path: Path, state: dict[str, str]) -> None:
    write(
        tmp_path,
        ann={"command": python(WAITS)},
        deaf={"command": python(STUBBORN)},
        parent={"command": python(STAYS)},
        shell={"command": ["sh", "-c", f'{sys.executable} -IS -c "{WAITS}" & wait']},
        gone={"command": python(ENDS)},
    )
    with up(tmp_path, state) as process:
        process.until(" | ready", count=7)
        process.until("gone has ended", stream="err")
        told = {int(each.split()[0]) for each in process.out.split(" | ready ")[1:]}
        everything = descendants(process.process.pid)
        assert told <= everything
        ends = Ends(everything)
        kill(process)
        ends.wait()
    assert not any(map(is_there, told))


def server(folder: Path, way: str) -> dict[str, Any]:
    """The entry of a server that heeds nothing, below a program that has started it."""
    (folder / "server.py").write_text(SERVER)
    started = f"{sys.executable} -IS server.py {way}; exit"
    return {"command": "sh", "args": ["-c", started], "cwd": str(folder)}


def kill_all(process: Running, folder: Path) -> None:
    """Kill what runs the server, whose processes all end."""
    process.until("deaf: ready", stream="err")
    told = set(map(int, (folder / "deaf").read_text().split()))
    everything = descendants(process.process.pid)
    assert told <= everything
    ends = Ends(everything)
    kill(process)
    ends.wait()


@pytest.mark.parametrize("way", ["waits", "writes"])
def test_killed_up_leaves_no_server_either(way: str, tmp_path: Path, state: dict[str, str]) -> None:
    (tmp_path / "policy.yaml").write_text("rules: [{allow: {tool: add}}]\nend: true\n")
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"deaf": server(tmp_path, way)}}))
    with up(tmp_path, state, "--servers", "mcp.json", "--policy", "policy.yaml") as process:
        process.until("policy.yaml decides calls of these MCP servers")
        process.until("reviewer is started (process ", stream="err")
        kill_all(process, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["waits", "writes"])
def test_killed_bridge_leaves_no_server(way: str, tmp_path: Path) -> None:
    entry = server(tmp_path, way)
    with Gateway(participants={"deaf": [{"kind": "*"}]}).in_thread() as gateway:
        arguments = ("bridge", "--name", "deaf", "--", entry["command"], *entry["args"])
        with running(*arguments, cwd=tmp_path, variables=variables_of(gateway, "deaf")) as process:
            kill_all(process, tmp_path)


@pytest.mark.parametrize("code", [WAITS, STUBBORN], ids=["waits", "stubborn"])
def test_a_killed_guard_ends_its_program(tmp_path: Path, state: dict[str, str], code: str) -> None:
    write(tmp_path, robot={"command": python(code)})
    with up(tmp_path, state) as process:
        first = process_of("robot", process)
        (guard,) = (each for each in descendants(process.process.pid) if first in descendants(each))
        ends = Ends((guard, first))
        os.kill(guard, signal.SIGKILL)
        ends.wait()
        process.until("robot was ended by SIGKILL; it is started again in", stream="err")
        process.until("robot | ready", count=2)
        process.process.send_signal(INTERRUPT)
        process.until("stopping what runs beside the gateway", stream="err")
    for line in process.out.split(" | ready ")[1:]:
        assert not is_there(int(line.split()[0]))


@pytest.mark.thorough
def test_nothing_is_left_where_up_is_killed_stopping(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path, deaf={"command": python(STUBBORN)}, gone={"command": python(ENDS)})
    with up(tmp_path, state) as process:
        process.until(" | ready", count=2)
        process.until("gone has ended", stream="err")
        ends = Ends(descendants(process.process.pid))
        process.process.send_signal(INTERRUPT)
        process.until("stopping what runs beside the gateway", stream="err")
        kill(process)
        ends.wait()
