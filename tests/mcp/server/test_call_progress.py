"""Progress of a call on its way to a client, by a task that does not outlive the call."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from meup_agent import Progress
from meup_agent.mcp.server.client_calls import ClientCall
from tests.patience import PATIENCE


class Client:
    """A client's session, which is told of progress."""

    def __init__(self, error: Exception | None = None) -> None:
        self.told: list[float] = []
        self.taking = anyio.Event()
        self.error = error

    async def report_progress(self, done: float, total: float | None, message: str | None) -> None:
        await self.taking.wait()
        if self.error is not None:
            raise self.error
        self.told.append(done)


def call_of(client: Client, start_soon: Callable[..., object]) -> ClientCall:
    ctx: Any = SimpleNamespace(session=client, meta=None, protocol_version="2025-11-25")
    return ClientCall("tools", ctx, "debug", start_soon)


async def test_notes_are_told_in_order_before_the_end() -> None:
    client = Client()
    async with anyio.create_task_group() as tasks:
        call = call_of(client, tasks.start_soon)
        for done in (1.0, 2.0):
            call.put_progress(Progress(done, None, ""))
        client.taking.set()
        await call.finish_notes()
        assert client.told == [1.0, 2.0]
        call.put_progress(Progress(3.0, None, ""))
        await call.finish_notes()
        call.end()
        call.put_progress(Progress(4.0, None, ""))
    assert client.told == [1.0, 2.0, 3.0]


async def test_a_client_that_takes_nothing_holds_no_task_after_the_call() -> None:
    client = Client()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            call = call_of(client, tasks.start_soon)
            call.put_progress(Progress(1.0, None, ""))
            await anyio.lowlevel.checkpoint()
            call.end()
    assert client.told == []


async def test_a_client_that_cannot_be_told_is_the_calls_failure() -> None:
    client = Client(ConnectionError("gone"))
    client.taking.set()
    async with anyio.create_task_group() as tasks:
        call = call_of(client, tasks.start_soon)
        call.put_progress(Progress(1.0, None, ""))
        with pytest.raises(ConnectionError):
            await call.finish_notes()
