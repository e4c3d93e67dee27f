"""Processes to measure, a pipe to each, and a gateway in one of them."""

import asyncio
import multiprocessing
import os
import resource
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from meup_agent import Agent, Settings, Space
from meup_agent.gateway.auth import new_token
from meup_agent.gateway.config import Config, JournalConfig, SpaceConfig, participant
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.server import Gateway

PYTHON = [sys.executable]
"""The command line of Python, where a program is measured as a user starts it."""

BYTECODE = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": ""}
"""Variables of a process that is measured with bytecode that is there."""

START = "spawn"
"""Start of processes: as a program starts, so that each has memory of its own alone."""

Spaces = Mapping[str, Mapping[str, list[dict[str, Any]]]]
"""Space → participant → capabilities."""


class Address(NamedTuple):
    """The address of a gateway, and the tokens by space and participant."""

    url: str
    port: int
    tokens: dict[tuple[str, str], str]


class Usage(NamedTuple):
    """The use of a process so far: CPU in seconds, and its memory now, in bytes."""

    cpu: float
    memory: int
    delivered: int = 0


@contextmanager
def process(role: Callable[..., None], *arguments: object) -> Generator[Connection]:
    """Run a role in a process of its own, which is killed at the end; the pipe to it."""
    ours, theirs = multiprocessing.Pipe()
    context: Any = multiprocessing.get_context(START)
    child = context.Process(target=_play, args=(role, theirs, *arguments), daemon=True)
    child.start()
    theirs.close()
    try:
        yield ours
    finally:
        child.kill()
        child.join()
        ours.close()


def result_of(role: Callable[..., None], *arguments: object) -> Any:
    """Run a role in a process of its own until it has told something; that."""
    with process(role, *arguments) as pipe:
        return pipe.recv()


def _play(role: Callable[..., None], *arguments: object) -> None:
    """Play a role, but not for longer than the process lives that wants it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    role(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def on_uvloop(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def usage(delivered: int = 0) -> Usage:
    """The use of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(used.ru_utime + used.ru_stime, own_memory(), delivered)


def own_memory() -> int:
    """Bytes of memory that only this process has (Linux)."""
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    return sum(
        int(line.split()[1]) * 1024
        for line in rollup.splitlines()
        if line.startswith(("Private_Clean:", "Private_Dirty:"))
    )


async def answer(pipe: Connection, question: Callable[[Any], Any]) -> None:
    """Answer what is asked through the pipe, until the process is killed."""
    loop = asyncio.get_running_loop()
    loop.add_reader(pipe.fileno(), lambda: pipe.send(question(pipe.recv())))
    await asyncio.Event().wait()


UNBOUNDED = GatewayLimits(
    max_connections=20_000,
    max_members=20_000,
    messages_per_second=1e9,
    messages_burst=10**9,
    # Beyond half of it senders wait for a reader that does not read.
    max_queued_frames=50_000,
    # Readers that count bytes would take a ping for a part of a message.
    ping_interval=3600.0,
)
"""Limits of a gateway that is measured, not protected."""

IN_MEMORY = JournalConfig()


def gateway(
    pipe: Connection,
    spaces: Spaces,
    before: Address | None = None,
    journal: JournalConfig = IN_MEMORY,
) -> None:
    """A gateway: tells its :class:`Address`, then its :class:`Usage` whenever it is asked.

    With the address of one that ran `before`, it takes its place: its port and its tokens.
    """

    def token(space: str, name: str) -> str:
        return before.tokens[space, name] if before else new_token()

    config = Config(
        tuple(
            SpaceConfig(
                space,
                {
                    name: participant(name, may, (token(space, name),))
                    for name, may in members.items()
                },
            )
            for space, members in spaces.items()
        ),
        port=before.port if before else 0,
        limits=UNBOUNDED,
        journal=journal,
    )

    async def main() -> None:
        async with Gateway(config=config, port=config.port) as it:
            tokens = {
                (space, name): it.token(name, space)
                for space, members in spaces.items()
                for name in members
            }
            pipe.send(Address(it.url, it.port, tokens))
            await answer(pipe, lambda _: usage(it.counters.delivered))

    on_uvloop(main())


def ask(pipe: Connection, delivered: int = 0) -> Usage:
    """A gateway's usage once so many frames have been delivered, and are on their way."""
    enough = False
    while True:
        pipe.send("usage")
        used: Usage = pipe.recv()
        # What was delivered in a turn of the loop is written at its end.
        if enough or not delivered:
            return used
        enough = used.delivered >= delivered


def join(
    address: Address, space: str, agent: Agent, settings: Settings | None = None
) -> AbstractAsyncContextManager[Space]:
    """Join an agent under its name."""
    token = address.tokens[space, agent.name]
    return agent.join(address.url, space=space, token=token, settings=settings)


def serve(
    pipe: Connection, address: Address, space: str, agent: Agent, settings: Settings | None = None
) -> None:
    """Be in a space until the process is killed."""

    async def stay() -> None:
        async with join(address, space, agent, settings):
            pipe.send("ready")
            await answer(pipe, lambda _: None)

    on_uvloop(stay())


def adder(pipe: Connection, address: Address, space: str) -> None:
    """The agent with the tool that is called."""
    agent = Agent("tools")

    @agent.tool
    async def add(a: int, b: int) -> int:
        return a + b

    serve(pipe, address, space, agent)
