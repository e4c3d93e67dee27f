"""The time until an inbox of 10,000 open proposals is on the screen, and one more of them.

The gateway is in memory. The first screen is counted from a space that knows the proposals to the
text that goes to the terminal with the first of them in it, without the start of textual itself; a
new one from the frame that leaves its proposer, over the gateway, to the screen that shows it. Both
with textual drawing 120 by 40 characters. Beside the wall clock stands the processor's time, which
other programs on the machine do not add to; the gateway and three participants share it.
"""

import asyncio
import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import NamedTuple

from textual.drivers.headless_driver import HeadlessDriver

from meup_agent import Agent, Space
from meup_agent.approval import Inbox
from meup_agent.cli.render.screen import InboxApp
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.testing.memory import MemorySpace
from tests.bench.figures import Figure, Program

PROPOSALS = 10_000
OF_A_PROPOSER = 1_000
NEW = 20

EVERYTHING = [{"kind": "*"}]
LIMITS = GatewayLimits(
    messages_burst=200_000,
    messages_per_second=100_000,
    bytes_burst=1 << 30,
    max_queued_frames=100_000,
    max_queued_bytes=1 << 30,
)


async def propose(space: Space, number: int, deadline: str) -> None:
    """Propose without waiting for an end, as thousands of agents would."""
    arguments = {"path": f"docs/{number}.md", "content": "a line\n" * 5}
    params = {
        "name": "write_file",
        "arguments": arguments,
        payloads.META: {payloads.TARGET: "tools", payloads.EXPIRES_AT: deadline},
    }
    await space.send(kinds.MCP_PROPOSAL, payloads.proposal("tools/call", params))


class Stopwatch:
    """Milliseconds since it was made, by the wall and by the processor."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return (time.perf_counter() - self._wall) * 1e3, (time.process_time() - self._cpu) * 1e3


class Shown(NamedTuple):
    """Milliseconds by the wall and by the processor."""

    listed: tuple[float, float]
    first: tuple[float, float]
    new: list[tuple[float, float]]


class Terminal(HeadlessDriver):
    """A terminal in memory that is written to, and knows when a proposal was first on it."""

    begun: Stopwatch
    first: tuple[float, float] | None = None

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        if self.first is None and "a line" in data:
            self.first = self.begun.read()


class Watched(InboxApp):
    """The screen, whose first drawing is measured from its mounting."""

    def on_mount(self) -> None:
        # textual calls the method of each class of an app: that of the screen comes next.
        terminal = self._driver
        assert isinstance(terminal, Terminal)
        terminal.begun = Stopwatch()
        self.terminal = terminal


async def measured(count: int, new: int) -> Shown:
    """Milliseconds to the items, to the first screen, and to each new one on the screen."""
    names = [f"bot{number}" for number in range(-(-count // OF_A_PROPOSER) + 1)]
    everybody = dict.fromkeys(["tools", "lead", *names], EVERYTHING)
    meeting = MemorySpace(participants=everybody, limits=LIMITS)
    async with AsyncExitStack() as stack:

        async def join(name: str) -> Space:
            joining = Agent(name).join(meeting.connector(name), token=meeting.token(name))
            return await stack.enter_async_context(joining)

        await join("tools")
        lead = await join("lead")
        before = await stack.enter_async_context(Inbox(lead))
        for name in names[:-1]:
            # What it has proposed waits on when it has left, and it takes no time of the processor.
            async with Agent(name).join(meeting.connector(name), token=meeting.token(name)) as bot:
                known = len(before)
                some = min(count, OF_A_PROPOSER)
                for number in range(some):
                    await propose(bot, number, f"2030-01-01T00:{number % 60:02}:00+00:00")
                while len(before) < known + some:  # noqa: ASYNC110 - no event tells of a number
                    await asyncio.sleep(0.01)
        last = await join(names[-1])
        await before.settle(60)
        # A person's process has one participant, and not the gateway's memory beside it.
        gc.collect()
        gc.freeze()
        watch = Stopwatch()
        inbox = await stack.enter_async_context(Inbox(lead))
        listed = watch.read()
        app = Watched(inbox, where="lead")
        app.driver_class = Terminal
        async with app.run_test(headless=False, size=(120, 40)) as pilot:
            await pilot.pause()
            assert app.terminal.first is not None
            wall, cpu = app.terminal.first
            await inbox.settle(60)
            assert len(inbox) == count
            taken: list[tuple[float, float]] = []
            for number in range(new):
                sent, watch = time.perf_counter(), Stopwatch()
                # Before all others, so that the queue shows it on its first line.
                await propose(last, number, f"2029-01-01T00:00:{59 - number:02}+00:00")
                while len(inbox) == count + number or app.drawn_at < sent:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                taken.append(watch.read())
    gc.unfreeze()
    return Shown(listed, (listed[0] + wall, listed[1] + cpu), taken)


def measure(scale: float = 1.0) -> Iterator[Figure]:
    count = max(20, round(PROPOSALS * scale))
    new = max(2, round(NEW * scale))
    shown = asyncio.run(measured(count, new))
    walls, cpus = zip(*shown.new, strict=True)
    yield Figure("10,000 open proposals: their items, in order", shown.listed[0], "ms")
    yield Figure("10,000 open proposals: first screen", shown.first[0], "ms", 100)
    yield Figure("the same, of the processor", shown.first[1], "ms")
    yield Figure("a new one on the screen after its frame, p50", statistics.median(walls), "ms", 50)
    yield Figure("a new one on the screen after its frame, slowest", max(walls), "ms")
    yield Figure("the same, p50, of the processor", statistics.median(cpus), "ms")


PROGRAM = Program("inbox", "The inbox of a person", measure)
