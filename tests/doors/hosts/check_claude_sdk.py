"""The Claude Agent SDK with its own Claude Code, which asks a space by `can_use_tool`."""

import importlib
import os
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent.doors.model_api import ModelApi
from meup_agent.doors.permit import Door
from meup_agent.errors import TokenRefused
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.doors.hooked import Hooked, permitted_after_a_restart, proposed
from tests.doors.hosts.cases import SDK_CASES, Case
from tests.doors.hosts.check_doors import (
    BROKEN_POLICY,
    OTHER_TOKEN,
    SIGNALS,
    assert_recorded,
    deciding,
)
from tests.doors.hosts.programs import CLAUDE, INSTALLED
from tests.gateways import websocket_connector
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio


def claude_process(config: Path) -> int:
    """The process of Claude Code, by its folder of settings."""
    wanted = f"CLAUDE_CONFIG_DIR={config}\0".encode()
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (each / "cmdline").read_bytes().split(b"\0")
            if words[0] == str(CLAUDE).encode() and wanted in (each / "environ").read_bytes():
                return int(each.name)
    raise AssertionError("there is no Claude Code")


async def happen(case: Case, at: Hooked, claude: Any, config: Path) -> None:
    """Let happen to a call that waits what the case says."""
    match case.what:
        case "gateway killed":
            await proposed(at.space)
            at.kill()
        case "gateway restarted midway":
            await permitted_after_a_restart(at)
        case "interrupted by its own API" | "answered too late":
            await proposed(at.space)
            await claude.interrupt()
        case _ if case.what in SIGNALS:
            await proposed(at.space)
            os.kill(claude_process(config), SIGNALS[case.what])
        case _:
            pass


@pytest.mark.parametrize("case", SDK_CASES, ids=lambda case: case.what)
async def test_it_does_what_the_page_says(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(INSTALLED / "claude")  # pyright: ignore[reportUnknownMemberType]
    sdk: Any = importlib.import_module("claude_agent_sdk")
    adapter: Any = importlib.import_module("meup_agent.adapters.claude_agent")
    mark, config = tmp_path / "mark", tmp_path / "claude"
    command = {"command": f"touch {mark}", "description": "leave a mark"}
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(2 * PATIENCE))
        api = stack.enter_context(ModelApi("Bash", command))
        at, url, token = await stack.enter_async_context(deciding(case, mark, tmp_path))
        connector = websocket_connector(url, space="demo")
        if case.what == OTHER_TOKEN:
            with pytest.raises(TokenRefused):
                await stack.enter_async_context(Door().join(connector, token=token))
            assert len(at.space.proposals) == 0
            return  # its program starts no agent
        door = await stack.enter_async_context(Door().join(connector, token=token))
        ttl = 8.0 if case.what in ("time-out", "gateway killed", BROKEN_POLICY) else 60.0
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "ANTHROPIC_BASE_URL": api.url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CONFIG_DIR": str(config),
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        options = sdk.ClaudeAgentOptions(
            can_use_tool=adapter.can_use_tool(door, ttl=ttl),
            cli_path=str(CLAUDE),
            cwd=str(tmp_path),
            env=env,
            setting_sources=[],
        )
        async with sdk.ClaudeSDKClient(options) as claude:
            await claude.query("go")
            await happen(case, at, claude, config)
            with suppress(sdk.ClaudeSDKError if case.what in SIGNALS else KeyError):
                async for _ in claude.receive_response():
                    pass
        assert case.told in " ".join(api.results)
        await assert_recorded(case, at)
    edited = mark.with_suffix(".edited").exists()
    assert (mark.exists() or edited, edited) == (case.ran, case.what == "edit")
