"""Chaos: something is done to a cluster at random, again and again, while its agents work.

What is done: gateways and servers of NATS are killed, paused, and stopped in order, the one that
owns the space and those that wait, the one that leads the stream and those that follow; routes
between any two are cut, or silent; a server of NATS can write nothing more. After each the space
has to go on; at the end all logs are compared, as ``meup cluster demo`` does.
"""

import resource
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import anyio

from meup_agent.cli.cluster.checker import CheckResult, LogReader, RunChecker, Stall
from meup_agent.cli.cluster.members import COUNTER, REVIEWER, AgentGroup
from meup_agent.cli.cluster.programs import Cluster, ClusterProgram, cluster, start_all
from meup_agent.transport.base import background_tasks
from tests.cluster.proxies import FaultProxy

TALKERS = 6
PACE = 0.1
"""Seconds between two chats of each."""

PATIENCE = 90.0
"""Seconds for the space to go on: beside other programs an election takes several tries."""


class Fault(NamedTuple):
    """Something that is done to a cluster, and undone after a while.

    What it does says the name of the program that it has ended; empty: none.
    """

    cause: str
    do: Callable[["Chaos"], Awaitable[str]]
    weight: int = 1


@dataclass
class Report:
    """What came of a run."""

    seed: int
    seconds: float
    stalls: Sequence[Stall]
    result: CheckResult
    owners: int
    ended: list[str] = field(default_factory=list[str])

    @property
    def is_right(self) -> bool:
        return self.result.is_right and not self.ended


class Chaos:
    """A cluster that things are done to.

    Args:
        made: The cluster.
        checker: The records of the run, and the stream.
        routes: The routes between its programs.
        random: Chooses.
        longest: Seconds for which something is paused, at most.
    """

    def __init__(
        self,
        made: Cluster,
        checker: RunChecker,
        routes: Sequence[FaultProxy],
        random: Random,
        longest: float,
    ) -> None:
        self.made = made
        self.checker = checker
        self.routes = routes
        self.random = random
        self.longest = longest
        self.ended: list[str] = []

    async def owner(self) -> ClusterProgram:
        return self.made.gateways[await self.checker.reader.owner()]

    async def standby(self) -> ClusterProgram:
        owner = await self.checker.reader.owner()
        others = [each for name, each in self.made.gateways.items() if name != owner]
        return self.random.choice(others)

    async def leader(self) -> ClusterProgram:
        return self.made.servers[await self.checker.reader.leader()]

    async def follower(self) -> ClusterProgram:
        leader = await self.checker.reader.leader()
        others = [each for name, each in self.made.servers.items() if name != leader]
        return self.random.choice(others)

    async def rest(self, least: float = 0.3, most: float = 2.0) -> None:
        """Let some time pass."""
        await anyio.sleep(self.random.uniform(least, most))

    async def start_again(self, expected: str) -> None:
        """Start what has ended, and note what did so by itself."""
        ended = [each for each in self.made.programs.values() if not each.is_running]
        for each in ended:
            if each.name != expected:
                *_, last = each.log.read_text(errors="replace").splitlines() or [""]
                self.ended.append(f"{each.name}: {last}")
        await start_all(ended)


def killed(which: str) -> Callable[[Chaos], Awaitable[str]]:
    async def do(chaos: Chaos) -> str:
        program: ClusterProgram = await getattr(chaos, which)()
        await program.kill()
        await chaos.rest()
        return program.name

    return do


def stopped(which: str) -> Callable[[Chaos], Awaitable[str]]:
    async def do(chaos: Chaos) -> str:
        program: ClusterProgram = await getattr(chaos, which)()
        await program.stop()
        await chaos.rest()
        return program.name

    return do


def paused(which: str) -> Callable[[Chaos], Awaitable[str]]:
    async def do(chaos: Chaos) -> str:
        program: ClusterProgram = await getattr(chaos, which)()
        program.pause()
        try:
            # Mostly short: around what it takes to be replaced.
            await anyio.sleep(0.3 + chaos.random.random() ** 3 * (chaos.longest - 0.3))
        finally:
            program.go_on()
        return ""

    return do


def cut(is_silent: bool, between: str) -> Callable[[Chaos], Awaitable[str]]:
    async def do(chaos: Chaos) -> str:
        routes = [each for each in chaos.routes if each.source.startswith(between)]
        if between == "gateway":
            source = (await chaos.owner()).name
            routes = [each for each in routes if each.source == source]
        route = chaos.random.choice(routes)
        # Both ways between two servers, each of which dials the other.
        both = [
            each for each in routes if {each.source, each.target} == {route.source, route.target}
        ]
        for each in both:
            each.silence() if is_silent else each.cut()
        try:
            await chaos.rest(0.5, min(6.0, chaos.longest))
        finally:
            for each in both:
                each.mend()
        return ""

    return do


async def _full(chaos: Chaos) -> str:
    """A server of NATS whose files may not grow any more, as on a disk that is full."""
    program = await (chaos.leader if chaos.random.random() < 0.5 else chaos.follower)()
    pid = program.process.pid
    assert pid is not None
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4_096, hard))
    try:
        await chaos.rest(1.0, 3.0)
    finally:
        # As an operator does: room is made, and the server is started again.
        await program.kill()
    return program.name


FAULTS = (
    Fault("gateway: owner killed", killed("owner"), 3),
    Fault("gateway: owner paused", paused("owner"), 3),
    Fault("gateway: owner stopped in order", stopped("owner"), 2),
    Fault("gateway: standby killed", killed("standby")),
    Fault("gateway: standby paused", paused("standby")),
    Fault("gateway: standby stopped in order", stopped("standby")),
    Fault("NATS: leader killed", killed("leader")),
    Fault("NATS: leader paused", paused("leader")),
    Fault("NATS: leader stopped in order", stopped("leader")),
    Fault("NATS: follower killed", killed("follower")),
    Fault("NATS: follower paused", paused("follower")),
    Fault("NATS: follower stopped in order", stopped("follower")),
    Fault("NATS: disk full", _full),
    Fault("link: owner to NATS cut", cut(False, "gateway")),
    Fault("link: owner to NATS silent", cut(True, "gateway")),
    Fault("link: NATS to NATS cut", cut(False, "nats")),
    Fault("link: NATS to NATS silent", cut(True, "nats")),
)


def drawn(random: Random, faults: Sequence[Fault]) -> Generator[Fault]:
    """Faults without end: each kind once in random order, as often as it weighs, and again."""
    while True:
        deck = [fault for fault in faults for _ in range(fault.weight)]
        random.shuffle(deck)
        yield from deck


@asynccontextmanager
async def _joined(folder: Path, random: Random, longest: float) -> AsyncGenerator[Chaos]:
    names = [REVIEWER, COUNTER, *(f"talker-{number}" for number in range(TALKERS))]
    routes: list[tuple[FaultProxy, int]] = []
    async with cluster(folder, names) as made, AsyncExitStack() as stack:

        def route(source: str, target: str, port: int) -> int:
            own = made.port()
            routes.append((FaultProxy(source, target, port), own))
            return own

        made.add_servers(3, route=route)
        made.add_gateways(3, route=route)
        for each, port in routes:
            await each.open(port)
            stack.callback(each.close)
        await start_all(made.servers.values())
        await start_all(made.gateways.values())
        reader = LogReader(made.nats_urls)
        stack.callback(reader.close)
        await reader.open()
        await reader.owner()
        async with background_tasks() as tasks:
            checker = RunChecker(reader, AgentGroup(made, PACE))
            await checker.agents.join(tasks, names)
            yield Chaos(made, checker, [each for each, _ in routes], random, longest)


Joined = Callable[[Path, Random, float], AbstractAsyncContextManager[Chaos]]
"""Makes a cluster in a folder, whose agents work; what is random, and the longest pause."""


async def run(
    folder: Path,
    seed: int,
    seconds: float,
    *,
    longest: float = 6.0,
    tell: bool = False,
    joined: Joined = _joined,
    faults: Sequence[Fault] = FAULTS,
) -> Report:
    """Do things to a cluster for so many seconds, at least; what came of it."""
    random = Random(seed)
    async with joined(folder, random, longest) as chaos:
        checker = chaos.checker
        began = anyio.current_time()
        for fault in drawn(random, faults):
            if anyio.current_time() - began > seconds:
                break
            since = anyio.current_time()
            await chaos.start_again(await fault.do(chaos))
            stall = await checker.goes_on(fault.cause, since, PATIENCE)
            if tell:
                at = anyio.current_time() - began
                sys.stdout.write(f"{at:6.1f} s  {fault.cause}: {stall.pause:.2f} s\n")
                sys.stdout.flush()
            await checker.works(20, PATIENCE)
        await chaos.start_again("")
        result = await checker.settle(PATIENCE)
        return Report(
            seed,
            anyio.current_time() - began,
            tuple(checker.stalls),
            result,
            len(checker.reader.owners),
            chaos.ended,
        )
