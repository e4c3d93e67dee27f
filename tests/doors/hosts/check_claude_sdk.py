"""The Claude Agent SDK with its own Claude Code: what `interrupt()` leaves of a call that waits."""

import importlib
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent.doors.model_api import ModelApi
from meup_agent.doors.permit import Door
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.doors.hosts.programs import CLAUDE, INSTALLED
from tests.interaction.people import EVERYTHING, PROPOSALS, InMemory, join, until
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio


async def test_an_interrupted_call_is_withdrawn_and_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(INSTALLED / "claude")  # pyright: ignore[reportUnknownMemberType]
    sdk: Any = importlib.import_module("claude_agent_sdk")
    adapter: Any = importlib.import_module("meup_agent.adapters.claude_agent")
    mark = tmp_path / "mark"
    meeting = InMemory({"coder": PROPOSALS, "ann": EVERYTHING})
    command = {"command": f"touch {mark}", "description": "leave a mark"}
    with ModelApi("Bash", command) as api, anyio.fail_after(2 * PATIENCE):
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "ANTHROPIC_BASE_URL": api.url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        async with (
            join(meeting, "ann") as space,
            Door().join(meeting.connector("coder"), token=meeting.token("coder")) as door,
            sdk.ClaudeSDKClient(
                sdk.ClaudeAgentOptions(
                    can_use_tool=adapter.can_use_tool(door),
                    cli_path=str(CLAUDE),
                    cwd=str(tmp_path),
                    env=env,
                    setting_sources=[],
                )
            ) as claude,
        ):
            await claude.query("go")
            await until(lambda: len(space.proposals) == 1)
            await claude.interrupt()
            await until(lambda: space.proposals[0].state == "withdrawn")
            async for _ in claude.receive_response():
                pass
    assert not mark.exists()
