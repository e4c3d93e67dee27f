"""`meup acp` between an editor and an agent on the ACP SDK, as programs of their own."""

import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.cli.processes import environment
from tests.doors.hooked import Hooked, permitted_after_a_restart, proposed
from tests.doors.hosts.cases import ACP_CASES, ACP_VERSION, Case
from tests.doors.hosts.check_doors import (
    BROKEN_POLICY,
    FAKED,
    OTHER_TOKEN,
    SIGNALS,
    assert_recorded,
    broken,
    deciding,
)
from tests.doors.test_acp import AGENT, Editor, sdk, terminal
from tests.patience import PATIENCE
from tests.programs import ROOT

pytestmark = pytest.mark.anyio


class RunningEditor(Editor):
    """An editor that runs the command of a terminal."""

    async def create_terminal(
        self, session_id: str, command: str, args: Any = None, **more: Any
    ) -> Any:
        await anyio.run_process([command, *(args or ())])
        return await super().create_terminal(session_id, command, args, **more)


def test_the_sdk_is_that_of_the_page() -> None:
    assert version("agent-client-protocol") == ACP_VERSION


def agent_process(mark: Path) -> int:
    """The process of the agent, which has its mark as an argument."""
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (each / "cmdline").read_bytes().split(b"\0")
            if words[1:3] == [str(AGENT).encode(), str(mark).encode()]:
                return int(each.name)
    raise AssertionError("there is no agent")


async def happen(
    case: Case, at: Hooked, cancel: Callable[[], Awaitable[object]], mark: Path
) -> None:
    """Let happen to a call that waits what the case says."""
    match case.what:
        case "gateway killed":
            await proposed(at.space)
            at.kill()
        case "gateway restarted midway":
            await permitted_after_a_restart(at)
        case "interrupted by its own API" | "answered too late":
            await proposed(at.space)
            await cancel()
        case _ if case.what in SIGNALS:
            await proposed(at.space)
            os.kill(agent_process(mark), SIGNALS[case.what])
        case _:
            pass


@pytest.mark.parametrize("case", ACP_CASES, ids=lambda case: case.what)
async def test_it_does_what_the_page_says(case: Case, tmp_path: Path) -> None:
    mark, editor = tmp_path / "mark", RunningEditor()
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(2 * PATIENCE))
        at: Hooked | None = None
        token, ttl = "none", 60.0
        if case.what in FAKED:
            url, ttl = stack.enter_context(broken(case.what)).replace("http", "ws"), 3.0
        elif case.what == "refused connection":
            url, ttl = "ws://127.0.0.1:9", 3.0
        else:
            decided_here = deciding(case, mark, tmp_path)
            at, url, token = await stack.enter_async_context(decided_here)
        if case.what in ("time-out", "gateway killed", BROKEN_POLICY):
            ttl = 8.0
        where = ["acp", "--url", url, "--space", "demo", "--ttl", f"{ttl:g}"]
        agent = [sys.executable, str(AGENT), str(mark)]
        peers: Any = sdk().spawn_agent_process(
            editor,
            sys.executable,
            *("-m", "meup_agent.cli", *where, "--", *agent),
            env=environment({"MEUP_TOKEN": token}),
            cwd=ROOT,
            transport_kwargs={"limit": 1 << 20, "stderr": None, "shutdown_timeout": PATIENCE},
        )
        connection, _ = await stack.enter_async_context(peers)
        if case.what == OTHER_TOKEN and at is not None:
            with pytest.raises(ConnectionError):  # it ends, and starts no agent
                await connection.initialize(protocol_version=1)
            assert len(at.space.proposals) == 0
            return
        await connection.initialize(protocol_version=1)
        session = (await connection.new_session(cwd=str(tmp_path))).session_id

        async def ask() -> None:
            with suppress(ConnectionError, sdk().RequestError):
                steps = json.dumps([terminal("touch", args=[str(mark)])])
                await connection.prompt(session_id=session, prompt=[sdk().text_block(steps)])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            if at is not None:
                await happen(case, at, partial(connection.cancel, session_id=session), mark)
        assert case.told in str(editor.told)
        if at is not None:
            await assert_recorded(case, at)
    assert mark.exists() is case.ran
