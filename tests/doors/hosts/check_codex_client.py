"""Codex itself, at a fake model: a client beside its terminal's answers for it."""

import itertools
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection, unix_connect

from meup_agent import Agent, Proposal, Space
from meup_agent.doors.codex import CodexClient
from meup_agent.doors.codex_server import app_server
from meup_agent.doors.model_api import ModelApi
from meup_agent.doors.permit import Door
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.doors.hosts.programs import CODEX
from tests.interaction.people import EVERYTHING, PROPOSALS, InMemory, join, until
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio

COMMAND = "item/commandExecution/requestApproval"

CONFIG = """
model = "fake"
model_provider = "fake"
approval_policy = "on-request"
sandbox_mode = "read-only"

[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
supports_websockets = false
request_max_retries = 0

[analytics]
enabled = false
"""


class EscalatingApi(ModelApi):
    """A model that asks to run its command outside of the sandbox."""

    def responses(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for event in super().responses(body):
            item = event.get("item", {})
            if item.get("type") == "function_call":
                wanted = {"sandbox_permissions": "require_escalated", "justification": "to see"}
                item["arguments"] = json.dumps({**json.loads(item["arguments"]), **wanted})
            yield event


class Terminal:
    """The client that a person's terminal would be."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.seen: list[dict[str, Any]] = []
        self.ids = itertools.count(1)

    async def read(self) -> None:
        async for message in self.connection:
            self.seen.append(json.loads(message))

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self.ids)
        await self.connection.send(json.dumps({"id": number, "method": method, "params": params}))
        await until(lambda: any(e.get("id") == number and "method" not in e for e in self.seen))
        return dict(next(e for e in self.seen if e.get("id") == number and "method" not in e))

    def told(self, method: str) -> list[dict[str, Any]]:
        return [each for each in self.seen if each.get("method") == method]

    async def turn(self, folder: Path) -> tuple[str, str]:
        about = {"name": "t", "title": "t", "version": "1"}
        await self.call("initialize", {"clientInfo": about})
        await self.connection.send('{"method":"initialized"}')
        started = await self.call("thread/start", {"cwd": str(folder)})
        thread = started["result"]["thread"]["id"]
        prompt = [{"type": "text", "text": "go"}]
        begun = await self.call("turn/start", {"threadId": thread, "input": prompt})
        return thread, begun["result"]["turn"]["id"]


@asynccontextmanager
async def codex(
    folder: Path, decide: Callable[[Proposal], Any] | None = None
) -> AsyncGenerator[tuple[Terminal, Space, ModelApi]]:
    meeting, person = InMemory({"coder": PROPOSALS, "ann": EVERYTHING}), Agent("ann")
    if decide is not None:
        person.on_proposal(tool="*")(decide)
    home = folder / "home"
    home.mkdir()
    command = {"command": f"touch {folder / 'mark'}"}
    with anyio.fail_after(PATIENCE), EscalatingApi("Bash", command) as api:
        (home / "config.toml").write_text(CONFIG.format(url=api.url))
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "CODEX_HOME": str(home),
            "FAKE_KEY": "none",
        }
        async with (
            join(meeting, person) as space,
            Door().join(meeting.connector("coder"), token=meeting.token("coder")) as door,
            app_server(str(CODEX), env) as server,
            anyio.create_task_group() as tasks,
            unix_connect(server.address.removeprefix("unix://"), "ws://localhost/") as connection,
        ):
            client = CodexClient(door.ask, server.send, door.report)
            tasks.start_soon(client.run, server.messages())
            terminal = Terminal(connection)
            tasks.start_soon(terminal.read)
            yield terminal, space, api
            tasks.cancel_scope.cancel()


async def test_a_yes_runs_it_and_its_end_is_reported(tmp_path: Path) -> None:
    async def allow(proposal: Proposal) -> None:
        assert proposal.tool == "Bash"
        assert "touch" in proposal.arguments["command"]
        await proposal.fulfill()

    async with codex(tmp_path, allow) as (terminal, space, _):
        await terminal.turn(tmp_path)
        await until(lambda: bool(terminal.told("turn/completed")))
        await until(lambda: space.proposals[0].report is not None)
    assert (tmp_path / "mark").exists()


async def test_a_no_runs_nothing(tmp_path: Path) -> None:
    async def refuse(proposal: Proposal) -> None:
        await proposal.reject("unsafe")

    async with codex(tmp_path, refuse) as (terminal, _, api):
        await terminal.turn(tmp_path)
        await until(lambda: bool(terminal.told("turn/completed")))
        assert "rejected by user" in api.results[0]
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("how", ["interrupted", "answered at the terminal"])
async def test_what_was_settled_elsewhere_is_withdrawn(tmp_path: Path, how: str) -> None:
    async with codex(tmp_path) as (terminal, space, _):
        thread, turn = await terminal.turn(tmp_path)
        await until(lambda: len(space.proposals) == 1)
        if how == "interrupted":
            await terminal.call("turn/interrupt", {"threadId": thread, "turnId": turn})
        else:
            await until(lambda: bool(terminal.told(COMMAND)))
            asked = terminal.told(COMMAND)[0]
            answer = {"id": asked["id"], "result": {"decision": "decline"}}
            await terminal.connection.send(json.dumps(answer))
        await until(lambda: space.proposals[0].state == "withdrawn")
    assert not (tmp_path / "mark").exists()
