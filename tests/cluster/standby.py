"""Chaos for gateways of which one is at work: their journal is in PostgreSQL.

The same is done to them as to a cluster on NATS, and to the server. The books are compared with the
tables themselves.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import anyio.to_thread
import psycopg

from meup_agent.cli.cluster.checker import LogOwner, LogReader, RunChecker
from meup_agent.cli.cluster.members import COUNTER, REVIEWER, AgentGroup, ReadEntry
from meup_agent.cli.cluster.programs import cluster, start_all
from meup_agent.protocol.dialects import decode
from meup_agent.transport.base import background_tasks
from tests.cluster.chaos import PACE, Chaos, Fault, cut, killed, paused, stopped
from tests.cluster.proxies import FaultProxy
from tests.patience import PATIENCE
from tests.postgres_servers import USER, PostgresServer

SCHEMA = "chaos"

TALKERS = 4


class TableReader(LogReader):
    """Reads the tables of a space, each entry of it, and owns nothing."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._at = 0
        self.entries = []
        self.owners = []
        self.foreign = []

    async def open(self) -> None:
        """Nothing: each reading has a connection of its own."""

    def close(self) -> None:
        """Nothing, as well."""

    async def read(self) -> None:
        await anyio.to_thread.run_sync(self._read_now)

    def _read_now(self) -> None:
        with psycopg.connect(self._server.url) as connection:
            try:
                (owner,) = connection.execute(f"SELECT epoch, node FROM {SCHEMA}.owner").fetchall()
            except psycopg.errors.UndefinedTable:
                return
            epoch, node = owner[0], owner[1].decode()
            if node and (not self.owners or self.owners[-1].sequence != epoch):
                self.owners.append(LogOwner(epoch, node))
            query = f"SELECT seq, frame FROM {SCHEMA}.entry WHERE seq > %s ORDER BY seq"
            for seq, frame in connection.execute(query.encode(), (self._at,)):
                said = decode(frame)
                self.entries.append(
                    ReadEntry(seq, said.id, said.sender, said.kind, said.correlation)
                )
                self._at = seq


class StandbyChaos(Chaos):
    """Two gateways and a server that things are done to."""

    server: PostgresServer
    sizes: dict[Path, int]

    async def start_again(self, expected: str) -> None:
        programs = self.made.programs.values()
        self.sizes = {each.log: each.log.stat().st_size for each in programs if not each.is_running}
        await super().start_again(expected)

    async def begun(self) -> None:
        """Wait until gateways that were started are at work, or wait.

        They listen before, and end if the server goes meanwhile, as at any start.
        """
        for log, size in self.sizes.items():
            with anyio.fail_after(PATIENCE):
                while not any(  # noqa: ASYNC110 - nobody is told of it
                    each in log.read_bytes()[size:] for each in _BEGUN
                ):
                    await anyio.sleep(0.05)


_BEGUN = (b"this one waits", b"this gateway is at work")


def _once_begun(fault: Fault) -> Fault:
    async def do(chaos: Chaos) -> str:
        assert isinstance(chaos, StandbyChaos)
        await chaos.begun()
        return await fault.do(chaos)

    return fault._replace(do=do)


async def _restart(chaos: Chaos) -> str:
    assert isinstance(chaos, StandbyChaos)
    await anyio.to_thread.run_sync(chaos.server.stop)
    await chaos.rest()
    await anyio.to_thread.run_sync(chaos.server.start)
    return ""


async def _stand_still(chaos: Chaos) -> str:
    assert isinstance(chaos, StandbyChaos)
    chaos.server.pause()
    try:
        await chaos.rest(0.3, chaos.longest)
    finally:
        chaos.server.go_on()
    return ""


_FAULTS = (
    Fault("gateway: at work, killed", killed("owner"), 2),
    Fault("gateway: at work, paused", paused("owner"), 2),
    Fault("gateway: at work, stopped in order", stopped("owner")),
    Fault("gateway: standby killed", killed("standby")),
    Fault("PostgreSQL: killed", _restart),
    Fault("PostgreSQL: paused", _stand_still),
    Fault("link: gateway to PostgreSQL cut", cut(False, "gateway")),
    Fault("link: gateway to PostgreSQL silent", cut(True, "gateway")),
)

FAULTS = tuple(map(_once_begun, _FAULTS))


@asynccontextmanager
async def joined(folder: Path, random: Random, longest: float) -> AsyncGenerator[Chaos]:
    """Two gateways, whose agents work."""
    names = [REVIEWER, COUNTER, *(f"talker-{number}" for number in range(TALKERS))]
    async with cluster(folder, names) as made, AsyncExitStack() as stack:
        server = await anyio.to_thread.run_sync(PostgresServer)
        stack.callback(server.close)
        made.add_gateways(2)
        proxies: list[FaultProxy] = []
        for name in made.gateways:
            proxy, port = FaultProxy(name, "postgres", server.port), made.port()
            await proxy.open(port)
            stack.callback(proxy.close)
            proxies.append(proxy)
            file = folder / f"{name}.yaml"
            settings = json.loads(file.read_text("utf-8"))
            place = {"url": server.url_at(port, USER), "schema": SCHEMA, "node": name}
            file.write_text(json.dumps(settings | {"journal": {"postgres": place}}), "utf-8")
        await start_all(made.gateways.values())
        reader = TableReader(server)
        await reader.owner()
        async with background_tasks() as tasks:
            checker = RunChecker(reader, AgentGroup(made, PACE))
            await checker.agents.join(tasks, names)
            chaos = StandbyChaos(made, checker, proxies, random, longest)
            chaos.server, chaos.sizes = server, {each.log: 0 for each in made.gateways.values()}
            yield chaos
