"""The time in which nothing is accepted when a gateway, or a server of NATS, dies under work.

Three gateways and three servers of NATS are programs of their own, and much was said before:
each chat is a message of its stream. Members in this process talk all the time, through all
gateways, and note when each chat was accepted. At the end, what each said and heard is compared
with the stream.
"""

import math
import statistics
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import anyio
import msgspec
from anyio.abc import TaskStatus
from nats import connect
from nats.aio.msg import Msg

from meup_agent import Agent
from meup_agent.cli.cluster.checker import LogReader, RunChecker, Stall
from meup_agent.cli.cluster.members import (
    COUNTER,
    REVIEWER,
    SETTINGS,
    AgentGroup,
    ClusterConnector,
    Record,
    say,
)
from meup_agent.cli.cluster.programs import PREFIX, SPACE, Cluster, cluster, start_all
from meup_agent.gateway.cluster.membership import SILENT_SECONDS
from meup_agent.gateway.cluster.placement import NodeHeartbeat, owner_of, preferred_owner
from meup_agent.gateway.cluster.signing import Signer
from meup_agent.gateway.config import NatsConfig
from meup_agent.transport.base import background_tasks
from tests.bench.figures import Figure, Program
from tests.bench.figures import say as tell
from tests.cluster.chaos import Chaos
from tests.nats_logs import write_log

GATEWAYS = 3
SAID_BEFORE = 40_000
TIMES = 10
TALKER = "talker-0"
PEOPLE = (REVIEWER, COUNTER, TALKER, "talker-1", "talker-2")
PACE = 0.02
"""Seconds between two chats of each, so that a stall is known that well."""

SPACES = 100
PACE_OF_MANY = 0.5

LEAST_SCALE = 0.1

PAUSED_SECONDS = 3.0
"""For at least so long the owner is paused: it is to be replaced."""

PATIENCE = 90.0


@asynccontextmanager
async def servers(folder: Path, names: Sequence[str]) -> AsyncGenerator[tuple[Cluster, NatsConfig]]:
    """Servers of NATS, for a cluster with some participants; where its logs are."""
    async with cluster(folder, names) as made:
        made.add_servers(3)
        await start_all(made.servers.values())
        yield made, NatsConfig(servers=made.nats_urls, prefix=PREFIX, replicas=3)


def so_many(count: int, scale: float) -> int:
    """Of what there is beforehand: all of it also where less is done."""
    return max(3, round(count * min(1.0, 4 * scale)))


async def settled(nats: NatsConfig, names: Sequence[str]) -> None:
    """Wait until each space is where it is to be, and another gateway follows its log."""
    client, said = await connect(list(nats.servers)), dict[str, tuple[float, NodeHeartbeat]]()
    read, signer = msgspec.msgpack.Decoder(NodeHeartbeat).decode, Signer("")

    async def hear(message: Msg) -> None:
        heartbeat = read(signer.read(message.data).body)
        said[heartbeat.nonce] = anyio.current_time(), heartbeat

    def is_settled() -> bool:
        recent = anyio.current_time() - SILENT_SECONDS
        here = [heartbeat for at, heartbeat in said.values() if at > recent]
        follows = {name for each in here for name in each.follows if name not in each.spaces}
        return len(here) == GATEWAYS and all(
            name in follows and owner_of(name, here) is preferred_owner(name, here)
            for name in names
        )

    try:
        await client.subscribe(f"{nats.prefix}.beat", cb=hear)
        with anyio.fail_after(PATIENCE):
            while not is_settled():  # noqa: ASYNC110 - nobody is told of it
                await anyio.sleep(0.1)
    finally:
        await client.close()


# --- one space ---


async def paused(chaos: Chaos, cause: str) -> Stall:
    """The stall when the owner is paused."""
    owner = await chaos.owner()
    since = anyio.current_time()
    owner.pause()
    try:
        await anyio.sleep(PAUSED_SECONDS)
        return await chaos.checker.goes_on(cause, since, PATIENCE)
    finally:
        owner.go_on()


async def ended(chaos: Chaos, cause: str, which: str, way: str) -> Stall:
    """The stall when a program is killed, or stopped in order; it is started again."""
    program = await getattr(chaos, which)()
    since = anyio.current_time()
    await getattr(program, way)()
    stall = await chaos.checker.goes_on(cause, since, PATIENCE)
    await chaos.start_again(program.name)
    return stall


FAULTS = (
    ("owner killed", partial(ended, which="owner", way="kill"), 1.0, 0.5),
    ("owner paused", paused, 0.5, 2.0),
    ("owner stopped in order", partial(ended, which="owner", way="stop"), 0.5, 0.2),
    ("leader of NATS killed", partial(ended, which="leader", way="kill"), 0.3, 10.0),
)
"""Each failure, its share of the times, and seconds that nothing may be accepted then."""


async def one_space(folder: Path, scale: float) -> list[Figure]:
    """The stalls of one space, and what was wrong at the end."""
    figures: list[Figure] = []
    back: list[float] = []
    async with servers(folder, PEOPLE) as (made, nats), AsyncExitStack() as stack:
        await write_log(nats, SPACE, so_many(SAID_BEFORE, scale), sender=TALKER)
        made.add_gateways(GATEWAYS)
        await start_all(made.gateways.values())
        reader = LogReader(made.nats_urls)
        stack.callback(reader.close)
        await reader.open()
        async with background_tasks() as tasks:
            checker = RunChecker(reader, AgentGroup(made, PACE))
            await checker.agents.join(tasks, PEOPLE)
            chaos = Chaos(made, checker, (), Random(0), 0.0)
            # Where it is only tried whether this measures, one of them is enough.
            for cause, do, share, goal in FAULTS if scale >= LEAST_SCALE else FAULTS[:1]:
                stalls: list[Stall] = []
                for _ in range(math.ceil(TIMES * share * scale)):
                    rests = anyio.current_time()
                    await settled(nats, [SPACE])
                    stall = await checker.goes_on("back", rests, PATIENCE)
                    back.append(stall.pause)
                    stalls.append(await do(chaos, cause))
                    tell(f"  {cause}: {stalls[-1].pause:.2f} s; back before: {stall.pause:.2f} s")
                pauses = sorted(each.pause for each in stalls)
                longest = max(each.longest for each in stalls)
                name = f"{cause}, {len(pauses)} times"
                figures += [
                    Figure(f"{name}: median", statistics.median(pauses), "s"),
                    Figure(f"{name}: longest", pauses[-1], "s", goal),
                    Figure(f"{name}: longest wait of one chat", longest, "s"),
                ]
            await chaos.start_again("")
            found = await checker.settle(PATIENCE)
            wrong = [each for mistakes in found.mistakes.values() for each in mistakes]
            figures += [
                Figure("one that ended or was paused comes back: longest", max(back), "s"),
                Figure("what was lost, doubled or in another order", len(wrong), "", 0),
            ]
    return figures


# --- many spaces ---


async def talk(
    made: Cluster, space: str, record: Record, first: int, *, task_status: TaskStatus[None]
) -> None:
    """Say something all the time in a space."""
    connector = ClusterConnector(made.urls, first, record, space)
    async with Agent(TALKER).join(
        connector,
        space=space,
        token=made.token(TALKER, space),
        participant=TALKER,
        settings=SETTINGS,
        grace=0.0,
    ) as joined:
        task_status.started()
        while True:
            await say(joined, record, "on and on")
            await anyio.sleep(PACE_OF_MANY)


async def all_go_on(records: Sequence[Record], since: float) -> list[float]:
    """Wait until in each space something is accepted that was said since then; how long it took."""

    def moments(record: Record) -> list[float]:
        return [at for id_, at in record.accepted.items() if record.said[id_] >= since]

    with anyio.fail_after(PATIENCE):
        while not all(map(moments, records)):  # noqa: ASYNC110 - many tasks bring it about
            await anyio.sleep(0.02)
    return sorted(min(moments(record)) - since for record in records)


async def many_spaces(folder: Path, scale: float) -> list[Figure]:
    """The time until many spaces are decided again when one of three gateways has died."""
    names = [f"space-{number}" for number in range(so_many(SPACES, scale))]
    before = math.ceil(so_many(SAID_BEFORE, scale) / len(names))
    async with servers(folder, [TALKER]) as (made, nats):
        for name in names:
            await write_log(nats, name, before, sender=TALKER)
        made.add_gateways(GATEWAYS, spaces=names)
        await start_all(made.gateways.values())
        async with background_tasks() as tasks:
            records = [Record(TALKER) for _ in names]
            for number, (name, record) in enumerate(zip(names, records, strict=True)):
                await tasks.start(talk, made, name, record, number)
            await all_go_on(records, anyio.current_time())
            await settled(nats, names)
            killed = anyio.current_time()
            await made.gateways["gateway-1"].kill()
            took = await all_go_on(records, killed)
    text = f"{len(names)} spaces, one of three gateways killed: "
    return [
        Figure(f"{text}half of them go on after", statistics.median(took), "s"),
        Figure(f"{text}all go on after", took[-1], "s", 5.0),
    ]


def measure(scale: float = 1.0) -> Iterator[Figure]:
    for once in (one_space, many_spaces):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield from anyio.run(once, Path(folder), scale)


PROGRAM = Program(
    "gateway_faults", "Nothing is accepted: after a gateway or a server of NATS dies", measure
)
