"""From `interrupt()` of the Claude Agent SDK until a call that waits is withdrawn.

`python -m tests.bench.claude_interrupt`, after `make .venv/doors.stamp`, which most programs of
this folder do not need. Claude Code as its maker ships it asks by `can_use_tool`, and is
interrupted half a second after its call has come; in turns with a callback that only waits.
"""

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio

from meup_agent import Space
from meup_agent.doors.model_api import ModelApi
from meup_agent.doors.permit import Door
from tests.bench.figures import Figure, Program, main
from tests.bench.timing import percentile
from tests.doors.hooked import hooked, proposed
from tests.doors.hosts.programs import CLAUDE, INSTALLED
from tests.gateways import websocket_connector

TIMES = 20
WAITS_SECONDS = 0.5
GOAL_MS = 50.0

Callback = Callable[..., Awaitable[Any]]


async def interrupt(callback: Callback, asked: Callable[[], Awaitable[None]], api: str) -> float:
    """Interrupt a call that a callback is asked about; seconds until that has ended."""
    sdk: Any = importlib.import_module("claude_agent_sdk")
    ended = 0.0

    async def timed(*call: Any) -> Any:
        nonlocal ended
        try:
            return await callback(*call)
        finally:
            ended = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "ANTHROPIC_BASE_URL": api,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CONFIG_DIR": f"{folder}/claude",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        options = sdk.ClaudeAgentOptions(
            can_use_tool=timed, cli_path=str(CLAUDE), cwd=folder, env=env, setting_sources=[]
        )
        async with sdk.ClaudeSDKClient(options) as claude:
            await claude.query("go")
            await asked()
            await anyio.sleep(WAITS_SECONDS)
            begun = time.perf_counter()
            await claude.interrupt()
            async for _ in claude.receive_response():
                pass
        assert not await anyio.Path(folder, "mark").exists()
    return ended - begun


async def ours(api: str) -> float:
    adapter: Any = importlib.import_module("meup_agent.adapters.claude_agent")
    async with hooked() as at:
        connector = websocket_connector(at.gateway.url, space="demo")
        async with Door().join(connector, token=at.tokens["coder"]) as door:

            async def asked(space: Space = at.space) -> None:
                await proposed(space)

            took = await interrupt(adapter.can_use_tool(door, ttl=60.0), asked, api)
        assert at.space.proposals[0].state == "withdrawn"
    return took


async def waiting(api: str) -> float:
    asked = anyio.Event()

    async def wait(*_: Any) -> None:
        asked.set()
        await anyio.sleep_forever()

    return await interrupt(wait, asked.wait, api)


def measure(scale: float = 1.0) -> Iterator[Figure]:
    sys.path.insert(0, str(INSTALLED / "claude"))
    took: dict[Callable[[str], Awaitable[float]], list[float]] = {ours: [], waiting: []}
    for _ in range(max(1, round(TIMES * scale))):
        for which, seconds in took.items():
            with ModelApi("Bash", {"command": "touch mark", "description": "mark"}) as api:
                seconds.append(anyio.run(which, api.url))
    yield Figure("interrupt() ends can_use_tool", percentile(took[ours], 0.5) * 1e3, "ms", GOAL_MS)
    yield Figure("the same: p95", percentile(took[ours], 0.95) * 1e3, "ms")
    alone = took[waiting]
    yield Figure("a callback that only waits", percentile(alone, 0.5) * 1e3, "ms")
    yield Figure("that one: p95", percentile(alone, 0.95) * 1e3, "ms")


PROGRAM = Program("claude_interrupt", "An interrupt of the Claude Agent SDK", measure)

if __name__ == "__main__":
    main((PROGRAM,), sys.argv[1:])
