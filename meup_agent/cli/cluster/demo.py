"""``meup cluster demo``: one of each is killed while work goes on, and the books are shown."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import anyio
from anyio.abc import TaskGroup
from rich import box
from rich.table import Table
from rich.text import Text

from meup_agent.cli.cluster.books import Balance, LogReader, balance
from meup_agent.cli.cluster.members import CLERK, COUNTER, Crew, Loner, Record
from meup_agent.cli.cluster.programs import Cluster, cluster, start_all
from meup_agent.cli.failures import Failure
from meup_agent.cli.render.output import Output
from meup_agent.transport.base import background_tasks

SERVERS: Final = 3
GATEWAYS: Final = 3
AGENTS: Final = 20

PACE: Final = 0.5
"""Seconds between two chats of an agent: twenty of them are heard by a person's machine easily."""

ENOUGH: Final = 60
"""Chats that are accepted between two kills."""

GOES_ON_SECONDS: Final = 40.0
"""For the space to accept again after a kill; NATS itself takes about six to elect a leader."""

NAMED: Final = 3
"""Mistakes of one kind that are shown."""


class Stall(NamedTuple):
    """What a kill did to those who talked, in seconds."""

    killed: str
    pause: float  # in which nothing of anybody was accepted
    longest: float  # that one chat waited


class Demo:
    """The demo, in its folder."""

    def __init__(self, output: Output, made: Cluster, lone: str) -> None:
        self._output = output
        self._cluster = made
        self._began = anyio.current_time()
        self._crew = Crew(made, PACE)
        self._lone = lone
        self._lone_records: list[Record] = []
        self._stalls: list[Stall] = []

    _loner: Loner
    _reader: LogReader

    async def play(self) -> Balance:
        """Play all of it, and show it."""
        made = self._cluster
        await self._say(
            f"{SERVERS} servers of NATS and {GATEWAYS} gateways start, on loopback alone"
        )
        await start_all(made.servers.values())
        await start_all(made.gateways.values())
        self._reader = LogReader(made.nats_urls)
        try:
            await self._reader.open()
            owner = await self._owner()
            others = " and ".join(each for each in made.gateways if each != owner)
            await self._say(f"{owner} owns the space; {others} stand by, and let agents in")
            async with background_tasks() as tasks:
                names = [each for each in made.tokens if each != self._lone]
                await self._crew.join(tasks, names)
                await self._start_loner(tasks)
                await self._say(f"{len(made.tokens)} agents are in the space, and work")
                await self._work()
                await self._kill_gateway()
                await self._kill_leader()
                await self._kill_agent(tasks)
                await self._settle()
        finally:
            self._reader.close()
        found = balance(self._reader, self._records, self._crew.calls)
        await self._show(found)
        return found

    # --- the kills ------------------------------------------------------------------------------

    async def _kill_gateway(self) -> None:
        owner = await self._owner()
        await self._say(f"kill -9 {owner}, which owns the space", "bold red")
        killed = anyio.current_time()
        await self._cluster.gateways[owner].kill()
        await self._goes_on(f"{owner} (gateway)", killed)
        await self._say(f"{await self._owner()} has taken over: {self._last_stall}", "green")
        await self._work()

    async def _kill_leader(self) -> None:
        leader = await self._reader.leader()
        await self._say(f"kill -9 {leader}, which leads the stream", "bold red")
        killed = anyio.current_time()
        await self._cluster.servers[leader].kill()
        await self._goes_on(f"{leader} (NATS)", killed)
        await self._say(f"{await self._reader.leader()} leads now: {self._last_stall}", "green")
        await self._work()

    async def _kill_agent(self, tasks: TaskGroup) -> None:
        await self._say(f"kill -9 {self._lone}, an agent in a process of its own", "bold red")
        killed = anyio.current_time()
        await self._loner.program.kill()
        await self._goes_on(f"{self._lone} (agent)", killed)
        await self._start_loner(tasks)
        await self._say(f"{self._lone} is back: {self._last_stall}", "green")
        await self._work()

    async def _start_loner(self, tasks: TaskGroup) -> None:
        record = Record(self._lone)
        self._lone_records.append(record)
        self._loner = Loner(self._cluster, self._lone, record, PACE)
        await tasks.start(self._loner.run)

    # --- what is waited for ---------------------------------------------------------------------

    async def _work(self) -> None:
        until = self._accepted + ENOUGH
        await _until(lambda: self._accepted >= until, "nothing is accepted any more")
        calls = self._crew.calls
        await self._say(
            f"{self._accepted} chats accepted, {len(calls.answered)} calls approved and carried out"
        )

    async def _goes_on(self, what: str, killed: float) -> None:
        """Wait until all that was said before a kill is accepted, and note how long nothing was."""
        waiting = set(self._crew.unaccepted)
        until = self._accepted + 1

        def goes_on() -> bool:
            return self._accepted >= until and not waiting & set(self._crew.unaccepted)

        await _until(goes_on, f"nothing is accepted since {what} was killed")
        self._stalls.append(self._stall(what, killed))

    def _stall(self, what: str, killed: float) -> Stall:
        waits = [
            (moment, moment - record.said[id_])
            for record in self._records
            for id_, moment in record.accepted.items()
            if moment >= killed and id_ in record.said
        ]
        moments = sorted(moment for moment, _ in waits)
        pauses = (after - before for before, after in pairwise([killed, *moments]))
        return Stall(what, max(pauses), max(wait for _, wait in waits))

    async def _settle(self) -> None:
        """Have all agents end their work, and read the stream when nothing is on its way."""
        await self._loner.program.kill()
        self._crew.is_working = False
        await _until(
            lambda: not self._crew.unaccepted and not self._crew.calls.open,
            "some of what was said is not accepted",
        )
        await self._say("the agents rest; the books are compared with the stream itself")
        while True:
            await self._reader.read()
            last = self._reader.entries[-1].seq
            behind = [each for each in self._crew.records.values() if each.heard[-1].seq < last]
            if not behind:
                break
            await anyio.sleep(0.05)

    @property
    def _records(self) -> list[Record]:
        return [*self._crew.records.values(), *self._lone_records]

    @property
    def _accepted(self) -> int:
        return sum(len(each.said.keys() & each.accepted.keys()) for each in self._records)

    async def _owner(self) -> str:
        with anyio.fail_after(GOES_ON_SECONDS):
            while not (owner := await self._reader.owner()):  # noqa: ASYNC110 - it is far away
                await anyio.sleep(0.05)
        return owner

    # --- what is shown --------------------------------------------------------------------------

    @property
    def _last_stall(self) -> str:
        return f"nothing was accepted for {self._stalls[-1].pause:.2f} s"

    async def _say(self, text: str, style: str = "") -> None:
        seconds = anyio.current_time() - self._began
        await self._output.show(Text(f"{seconds:5.1f} s  ", style="dim") + Text(text, style))

    async def _show(self, found: Balance) -> None:
        table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
        table.add_column()
        table.add_column(justify="right")
        fewest, most = min(found.seen), max(found.seen)
        table.add_row("chats said", str(found.said))
        table.add_row("accepted", str(found.accepted))
        table.add_row("in the log, with calls and arrivals", str(found.entries))
        table.add_row("seen by each agent, all since it came", f"{fewest} to {most}")
        for name, wrong in found.mistakes.items():
            table.add_row(Text(name, "bold red" if wrong else ""), str(len(wrong)))
        for stall in self._stalls:
            table.add_row(f"kill -9 {stall.killed}: nothing accepted for", f"{stall.pause:.2f} s")
            table.add_row("    longest wait of one chat", f"{stall.longest:.2f} s")
        await self._output.show(table)
        for name, wrong in found.mistakes.items():
            for each in wrong[:NAMED]:
                await self._output.show(Text(f"{name}: {each}", "red"))
        verdict = "Nothing was lost." if found.is_right else "That is not as it should be."
        await self._output.show(Text(verdict, "bold"))


async def _until(condition: Callable[[], bool], otherwise: str) -> None:
    """Wait until something holds; a :exc:`Failure` if it does not for too long."""
    with anyio.move_on_after(GOES_ON_SECONDS):
        while not condition():  # noqa: ASYNC110 - many tasks bring it about
            await anyio.sleep(0.02)
        return
    raise Failure(f"{otherwise}; try it again on a machine that does less meanwhile")


async def perform(output: Output) -> bool:
    """Play the demo in a temporary folder; true if nothing was lost."""
    names = [CLERK, COUNTER, *(f"agent-{number:02}" for number in range(1, AGENTS - 1))]
    with tempfile.TemporaryDirectory(prefix="meup-cluster-", ignore_cleanup_errors=True) as folder:
        async with cluster(Path(folder), names) as made:
            made.add_servers(SERVERS)
            made.add_gateways(GATEWAYS)
            found = await Demo(output, made, names[-1]).play()
            return found.is_right
