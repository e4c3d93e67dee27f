"""``meup cluster demo``: kills one of each while agents work, and shows what was lost."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import TaskGroup
from rich import box
from rich.table import Table
from rich.text import Text

from meup_agent.cli.cluster.checker import CheckResult, LogReader, NoProgress, RunChecker
from meup_agent.cli.cluster.members import COUNTER, REVIEWER, AgentGroup, AgentProcess, Record
from meup_agent.cli.cluster.programs import Cluster, ClusterProgram, cluster, start_all
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


class Demo:
    """The demo, in its folder."""

    def __init__(self, output: Output, made: Cluster, killed_agent: str) -> None:
        self._output = output
        self._cluster = made
        self._began = anyio.current_time()
        self._killed_agent = killed_agent

    _separate: AgentProcess
    _checker: RunChecker

    async def play(self) -> CheckResult:
        """Play all of it, and show it."""
        made = self._cluster
        await self._say(
            f"{SERVERS} servers of NATS and {GATEWAYS} gateways start, on loopback alone"
        )
        await start_all(made.servers.values())
        await start_all(made.gateways.values())
        reader = LogReader(made.nats_urls)
        try:
            await reader.open()
            owner = await reader.owner()
            others = " and ".join(each for each in made.gateways if each != owner)
            await self._say(f"{owner} owns the space; {others} let agents in, too")
            async with background_tasks() as tasks:
                self._checker = RunChecker(reader, AgentGroup(made, PACE))
                names = [each for each in made.tokens if each != self._killed_agent]
                await self._checker.agents.join(tasks, names)
                await self._start_separate(tasks)
                await self._say(f"{len(made.tokens)} agents are in the space, and work")
                await self._work()
                await self._kill_gateway()
                await self._kill_leader()
                await self._kill_agent(tasks)
                await self._separate.program.kill()
                await self._say("the agents stop; what they said and read is compared")
                found = await self._checker.settle(GOES_ON_SECONDS)
                await self._show(found)
                return found
        except NoProgress as stuck:
            raise Failure(f"{stuck}; try it again on a machine that does less meanwhile") from None
        finally:
            reader.close()

    # --- the kills ------------------------------------------------------------------------------

    async def _kill_gateway(self) -> None:
        owner = await self._checker.reader.owner()
        await self._kill(self._cluster.gateways[owner], "which owns the space", "gateway")
        await self._work(f"{await self._checker.reader.owner()} has taken over")

    async def _kill_leader(self) -> None:
        leader = await self._checker.reader.leader()
        await self._kill(self._cluster.servers[leader], "which leads the stream", "NATS")
        await self._work(f"{await self._checker.reader.leader()} leads now")

    async def _kill_agent(self, tasks: TaskGroup) -> None:
        await self._kill(self._separate.program, "an agent in a process of its own", "agent")
        await self._start_separate(tasks)
        await self._work(f"{self._killed_agent} is back")

    async def _kill(self, program: ClusterProgram, what: str, kind: str) -> None:
        """Kill a program, and wait until all that was said before is accepted."""
        await self._say(f"kill -9 {program.name}, {what}", "bold red")
        killed = anyio.current_time()
        await program.kill()
        await self._checker.goes_on(f"{program.name} ({kind})", killed, GOES_ON_SECONDS)

    async def _start_separate(self, tasks: TaskGroup) -> None:
        record = Record(self._killed_agent)
        self._checker.others.append(record)
        self._separate = AgentProcess(self._cluster, self._killed_agent, record, PACE)
        try:
            with anyio.fail_after(GOES_ON_SECONDS):
                await tasks.start(self._separate.run)
        except TimeoutError:
            raise NoProgress(f"{self._killed_agent} does not join") from None

    async def _work(self, since_kill: str = "") -> None:
        if since_kill:
            stall = self._checker.stalls[-1]
            said = f"{since_kill}: nothing was accepted for {stall.pause:.2f} s"
            await self._say(said, "green")
        await self._checker.works(ENOUGH, GOES_ON_SECONDS)
        count = len(self._checker.agents.calls.answered)
        await self._say(
            f"{self._checker.accepted} chats accepted, {count} calls approved and carried out"
        )

    # --- what is shown --------------------------------------------------------------------------

    async def _say(self, text: str, style: str = "") -> None:
        seconds = anyio.current_time() - self._began
        await self._output.show(Text(f"{seconds:5.1f} s  ", style="dim") + Text(text, style))

    async def _show(self, found: CheckResult) -> None:
        table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
        table.add_column()
        table.add_column(justify="right")
        fewest, most = min(found.seen), max(found.seen)
        table.add_row("chats said", str(found.said))
        table.add_row("accepted", str(found.accepted))
        if found.accepted < found.said:
            table.add_row("    of the killed agent, not accepted", str(found.said - found.accepted))
        table.add_row("in the stream, with calls and joins", str(found.entries))
        table.add_row("read by each agent since it joined", f"{fewest} to {most}")
        for name, wrong in found.mistakes.items():
            table.add_row(Text(name, "bold red" if wrong else ""), str(len(wrong)))
        for stall in self._checker.stalls:
            table.add_row(f"kill -9 {stall.cause}: nothing accepted for", f"{stall.pause:.2f} s")
            table.add_row("    longest wait of one chat", f"{stall.longest:.2f} s")
        await self._output.show(table)
        for name, wrong in found.mistakes.items():
            for each in wrong[:NAMED]:
                await self._output.show(Text(f"{name}: {each}", "red"))
        verdict = "Nothing was lost." if found.is_right else "Not all is as it should be."
        await self._output.show(Text(verdict, "bold"))


async def perform(output: Output) -> bool:
    """Play the demo in a temporary folder; true if nothing was lost."""
    names = [REVIEWER, COUNTER, *(f"agent-{number:02}" for number in range(1, AGENTS - 1))]
    with tempfile.TemporaryDirectory(prefix="meup-cluster-", ignore_cleanup_errors=True) as folder:
        async with cluster(Path(folder), names) as made:
            made.add_servers(SERVERS)
            made.add_gateways(GATEWAYS)
            found = await Demo(output, made, names[-1]).play()
            return found.is_right
