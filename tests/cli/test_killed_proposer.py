"""An agent that is killed and started again, as systemd and `meup up` do (PROTOCOL 4.2)."""

import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.processes import TERMINATE, Running, running
from tests.cli.test_siblings import Scene, open_scene

AGENTS = """
import anyio
from meup_agent import Agent, Context, Proposal

files, paula, reviewer = Agent("files"), Agent("paula"), Agent("reviewer")


@files.tool
async def write(ctx: Context) -> None:
    print("writes", flush=True)
    try:
        await anyio.sleep_forever()
    finally:
        print("ends because of", ctx.reason, flush=True)


@paula.tool
async def ask(ctx: Context) -> None:
    async with ctx.space.propose("files", "write") as proposal:
        await proposal.outcome()


@reviewer.on_proposal
async def review(proposal: Proposal) -> None:
    await proposal.fulfill()
"""


@pytest.fixture
def scene(tmp_path: Path) -> Generator[Scene]:
    with open_scene(tmp_path, AGENTS) as scene:
        yield scene


def begun(process: Running, name: str) -> Running:
    process.until(f"as '{name}'", stream="err")
    return process


@pytest.mark.rule("4.2.new_process")
def test_what_runs_for_a_killed_agent_ends_as_it_starts_again(scene: Scene, tmp_path: Path) -> None:
    paula = ("run", "agents:paula")
    its = scene.variables("paula")
    with scene.agent("files") as files, scene.agent("reviewer"):
        with running(*paula, cwd=tmp_path, variables=its) as killed:
            begun(killed, "paula")  # before she is asked: who is away gets no request
            asked = ("call", "paula", "ask", "--as", "alice")
            with running(*asked, variables=scene.variables("alice")) as asking:
                files.until("writes")
                assert killed.end(signal.SIGKILL) == -signal.SIGKILL
                assert "ends because of" not in files.out
                with running(*paula, cwd=tmp_path, variables=its) as again:
                    begun(again, "paula")
                    files.until("ends because of no_longer_needed")
                    asking.end(TERMINATE)
                    again.end(TERMINATE)
