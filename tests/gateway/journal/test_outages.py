"""Journals whose server goes away and comes back."""

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
import pytest

from meup_agent.gateway import Gateway, JournalConfig
from tests.gateway.conftest import envelope
from tests.gateway.journal.conftest import (
    NOW,
    Clock,
    chat,
    ids,
    kept,
    nats_config,
    postgres_config,
    read,
    settled,
)
from tests.gateway.journal.test_gateway import config_with, dial, hear_chats
from tests.gateways import ENGINES
from tests.nats_servers import NatsServer
from tests.patience import PATIENCE, wait_until
from tests.postgres_servers import PostgresServer
from tests.spaces import Entry

pytestmark = pytest.mark.anyio


class Outage(NamedTuple):
    """A server of a test's own, how it crashes, and what is told of that."""

    engine: str
    config: JournalConfig
    crash: Callable[[], None]
    start: Callable[[], None]
    problem: str
    warning: str


@pytest.fixture
def outage(request: pytest.FixtureRequest, path: Path) -> Generator[Outage]:
    if request.param == "nats":
        with closing(NatsServer()) as nats:
            config = JournalConfig(nats=nats_config(path, nats))
            yield Outage(
                "nats", config, nats.kill, nats.start, "cannot be reached", "; it is tried again"
            )
    else:
        with closing(PostgresServer()) as postgres:
            config = JournalConfig(postgres=postgres_config(path, postgres))
            yield Outage(
                "postgres",
                config,
                postgres.stop,
                postgres.start,
                "refused",
                "{}; it is tried again",
            )


@pytest.mark.parametrize("outage", ["nats", "postgres"], indirect=True)
async def test_what_waits_while_the_server_is_away_is_kept_once(
    outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    journal: Any = ENGINES[outage.engine].open(outage.config, clock)
    try:
        told = list[Entry]()
        await kept(journal, chat(0))
        outage.crash()
        for number in range(1, 1_000):
            journal.append("demo", NOW, chat(number), (), told.append)
        await wait_until(lambda: outage.problem in journal.problem)
        assert "cannot be reached" in journal.problem
        warning = outage.warning.format(journal.problem)
        assert told == []
        outage.start()
        await settled(journal)
        assert warning in caplog.text
        assert journal.problem == ""
        assert ids(tuple(told)) == [str(number) for number in range(1, 1_000)]
        assert ids(await read(journal)) == [str(number) for number in range(1_000)]
    finally:
        await journal.aclose()


@pytest.mark.parametrize(
    "outage", ["nats", pytest.param("postgres", marks=pytest.mark.thorough)], indirect=True
)
async def test_members_stay_while_the_server_is_away(outage: Outage, path: Path) -> None:
    async with (
        Gateway(config=replace(config_with(path), journal=outage.config)) as gateway,
        httpx.AsyncClient(timeout=PATIENCE) as client,
        dial(gateway, gateway.token("alice")) as alice,
    ):
        await alice.send(envelope("alice", id="1"))
        await hear_chats(alice, 1)
        ready = f"{gateway.http_url}/readyz"
        assert (await client.get(ready)).status_code == 200
        outage.crash()
        with anyio.fail_after(PATIENCE):
            answer = await client.get(ready)
            while answer.status_code == 200:
                answer = await client.get(ready)
        assert answer.json()["retry_after"] > 0
        await alice.send(envelope("alice", id="2"))
        outage.start()
        assert [said["id"] for said in await hear_chats(alice, 1)] == ["2"]
        assert (await client.get(ready)).status_code == 200
