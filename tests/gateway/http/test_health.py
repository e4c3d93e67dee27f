"""Two checks of health: a gateway is alive, and it can work."""

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import anyio.lowlevel
import httpx
import pytest

from meup_agent.gateway import JournalConfig, RunningGateway, serve
from meup_agent.gateway.edge.http import context
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.gateway.http.conftest import config
from tests.gateway.journal.conftest import fill_disk
from tests.no_tls import ALONE
from tests.patience import PATIENCE

CHAT = {"kind": "chat", "payload": {"message": "x" * 1_000}}


class Asked:
    """A gateway with a journal in a file, and a client that asks how it is."""

    def __init__(self, gateway: RunningGateway, path: Path, token: str) -> None:
        assert gateway.http_url is not None
        self.gateway = gateway
        self.path = path
        self.header = {"Authorization": f"Bearer {token}"}
        self.client = httpx.AsyncClient(base_url=gateway.http_url, headers=self.header, **ALONE)

    async def states(self) -> tuple[int, int]:
        """Alive, and ready."""
        alive, ready = [await self.client.get(path) for path in ("/healthz", "/readyz")]
        return alive.status_code, ready.status_code

    async def say(self) -> int:
        answer = await self.client.post("/participants/alice/messages", json=CHAT)
        return answer.status_code


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncGenerator[Asked]:
    path = tmp_path / "journal.db"
    settings = replace(config(), port=0, journal=JournalConfig(path))
    token = settings.spaces[0].participants["alice"].tokens[0]
    async with serve(settings) as gateway:
        asked = Asked(gateway, path, token)
        async with asked.client:
            yield asked


@asynccontextmanager
async def hanging_disk(path: Path) -> AsyncGenerator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def test_disk_that_hangs(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await asked.states() == (200, 200)
    async with hanging_disk(asked.path):
        monkeypatch.setattr(context, "JOURNAL_SECONDS", 0.1)
        # Whether this was kept cannot be said.
        assert await asked.say() == 503
        assert await asked.states() == (200, 503)
    monkeypatch.undo()
    assert await asked.states() == (200, 200)


async def test_disk_that_is_full(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "JOURNAL_SECONDS", 300.0)
    fill_disk(asked.gateway.runtime.journals[0])
    with anyio.fail_after(PATIENCE):
        while (status := await asked.say()) == 200:
            pass
        assert status == 503
        await asked.gateway.failed.wait()
        assert await asked.states() == (200, 503)
        # Nor does anybody wait for what cannot come.
        assert await asked.say() == 503


async def test_who_waits_for_a_disk_that_hangs_while_the_gateway_is_cut_off_is_let_go(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(context, "JOURNAL_SECONDS", 300.0)
    async with hanging_disk(asked.path):
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:

                async def say() -> None:
                    with pytest.raises(httpx.TransportError):
                        await asked.say()

                tasks.start_soon(say)
                while not asked.gateway.runtime.pending_requests:
                    await anyio.lowlevel.checkpoint()
                asked.gateway.abort()
            while asked.gateway.runtime.pending_requests:
                await anyio.lowlevel.checkpoint()
    assert "Exception in ASGI application" not in caplog.text
