"""Approvals of a space for the tools of the Claude Agent SDK, with its own Claude Code."""

import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient

from meup_agent import Agent, Proposal, Space
from meup_agent.adapters.claude_agent import Door, can_use_tool
from meup_agent.doors.model_api import DONE, ModelApi
from meup_agent.gateway import Gateway
from tests.adapters.test_contract import anyio_backend
from tests.interaction.people import EVERYTHING, PROPOSALS, InMemory, OverSockets, join, until
from tests.patience import PATIENCE
from tests.programs import ROOT

__all__ = ["anyio_backend"]

EXAMPLE = ROOT / "examples" / "frameworks" / "claude_agent_approvals.py"


def environment(folder: Path, api: ModelApi) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": api.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CONFIG_DIR": str(folder / "config"),
        "HOME": str(folder),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "PATH": os.environ["PATH"],
    }


@asynccontextmanager
async def claude(
    folder: Path, decide: Callable[[Proposal], Any] | None
) -> AsyncGenerator[tuple[ClaudeSDKClient, Space, ModelApi]]:
    """Claude, whose model asks to make the file `mark`, and a person who decides."""
    meeting, person = InMemory({"coder": PROPOSALS, "ann": EVERYTHING}), Agent("ann")
    if decide is not None:
        person.on_proposal(tool="*")(decide)
    arguments = {"command": f"touch {folder / 'mark'}", "description": "make it"}
    with anyio.fail_after(PATIENCE), ModelApi("Bash", arguments) as api:
        async with (
            join(meeting, person) as space,
            Door().join(meeting.connector("coder"), token=meeting.token("coder")) as door,
        ):
            options = ClaudeAgentOptions(
                can_use_tool=can_use_tool(door),
                cwd=folder,
                setting_sources=[],
                env=environment(folder, api),
            )
            async with ClaudeSDKClient(options) as client:
                await client.query("go")
                yield client, space, api


async def read(client: ClaudeSDKClient) -> None:
    async for _ in client.receive_response():
        pass


async def test_a_yes_runs_what_was_fulfilled(tmp_path: Path) -> None:
    async def edit(proposal: Proposal) -> None:
        command = f"touch {tmp_path / 'another'}"
        await proposal.fulfill({**proposal.arguments, "command": command})

    async with claude(tmp_path, edit) as (client, space, _):
        await read(client)
        assert space.proposals[0].tool == "Bash"
    assert (tmp_path / "another").exists()
    assert not (tmp_path / "mark").exists()


async def test_a_no_runs_nothing_and_tells_the_model_why(tmp_path: Path) -> None:
    async def refuse(proposal: Proposal) -> None:
        await proposal.reject("unsafe", explain="not in this folder")

    async with claude(tmp_path, refuse) as (client, _, api):
        await read(client)
        assert any("not in this folder" in each for each in api.results)
    assert not (tmp_path / "mark").exists()


async def test_an_interrupt_withdraws(tmp_path: Path) -> None:
    async with claude(tmp_path, None) as (client, space, _), anyio.create_task_group() as tasks:
        tasks.start_soon(read, client)
        await until(lambda: len(space.proposals) == 1)
        await client.interrupt()
        await until(lambda: space.proposals[0].state == "withdrawn")
    assert not (tmp_path / "mark").exists()


async def test_the_example_runs_what_a_person_allows(tmp_path: Path) -> None:
    person = Agent("ann")

    @person.on_proposal
    async def allow(proposal: Proposal) -> None:
        await proposal.fulfill()

    arguments = {"command": "touch made.txt", "description": "make it"}
    with (
        anyio.fail_after(PATIENCE),
        Gateway(participants={"coder": PROPOSALS, "ann": EVERYTHING}).in_thread() as gateway,
        ModelApi("Bash", arguments) as api,
    ):
        where = {
            "MEUP_URL": gateway.url,
            "MEUP_SPACE": "demo",
            "MEUP_TOKEN": gateway.token("coder"),
        }
        async with join(OverSockets(gateway), person):
            done = await anyio.run_process(
                [sys.executable, str(EXAMPLE)],
                cwd=tmp_path,
                env={**environment(tmp_path, api), **where, "PYTHONPATH": str(ROOT)},
            )
    assert done.stdout.decode().strip() == DONE
    assert (tmp_path / "made.txt").exists()
