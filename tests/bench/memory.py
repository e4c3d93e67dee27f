"""The memory of an idle member in a gateway, and of an idle agent in its process.

It needs Linux.

What only that process has (private pages) is read before and after some more have joined. The
gateway's members are bare sockets; the agents are real ones, all in one process.
"""

import asyncio
import gc
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

from meup_agent import Agent
from tests.bench.figures import Figure, Program
from tests.bench.gateway_fanout import dial, empty
from tests.bench.processes import Address, ask, gateway, join, on_uvloop, own_memory, process

MEMBERS = (100, 900)
"""Members that the gateway has before and after; below its limit of connections."""

AGENTS = (20, 220)
SPACE_SIZE = 20
"""Members of each space: each agent keeps a list of who is there."""

PONG = b"\x8a\x80\x00\x00\x00\x00"

CHAT: list[dict[str, Any]] = [{"kind": "chat"}]


def spaces(count: int) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Spaces for so many members."""
    return {
        f"s{first}": {f"p{n}": CHAT for n in range(first, min(first + SPACE_SIZE, count))}
        for first in range(0, count, SPACE_SIZE)
    }


def welcomed(members: int) -> int:
    """Frames that a gateway has delivered when so many have joined, space after space."""
    full, rest = divmod(members, SPACE_SIZE)
    return members + full * SPACE_SIZE * (SPACE_SIZE + 1) // 2 + rest * (rest + 1) // 2


def agents(pipe: Connection, address: Address) -> None:
    """Agents in one process: takes how many there shall be, and tells the memory then."""

    async def join_all() -> None:
        loop = asyncio.get_running_loop()
        names = iter(address.tokens)
        joined = 0
        async with AsyncExitStack() as stack:
            while True:
                wanted = await loop.run_in_executor(None, pipe.recv)
                for _ in range(wanted - joined):
                    space, name = next(names)
                    await stack.enter_async_context(join(address, space, Agent(name)))
                joined = wanted
                pipe.send("joined")
                await loop.run_in_executor(None, pipe.recv)
                gc.collect()
                pipe.send(own_memory())

    on_uvloop(join_all())


@contextmanager
def members(
    pipe: Connection, before: int, after: int
) -> Iterator[tuple[list[socket.socket], float]]:
    """Bare sockets that have joined, and the gateway's bytes for each of those that came last."""
    address: Address = pipe.recv()
    memory: list[int] = []
    with ExitStack() as opened:
        socks: list[socket.socket] = []
        for (space, _), token in address.tokens.items():
            socks.append(opened.enter_context(dial(address.port, space, token)))
            if len(socks) in (before, after):
                ask(pipe, welcomed(len(socks)))
                for sock in socks:
                    empty(sock)
                    # Joining so many takes long enough for the first to be pinged.
                    sock.sendall(PONG)
                memory.append(ask(pipe).memory)
        yield socks, (memory[-1] - memory[0]) / (after - before)


def of_members(before: int, after: int) -> float:
    """Bytes of the gateway for one idle member."""
    with process(gateway, spaces(after)) as pipe, members(pipe, before, after) as (_, memory):
        return memory


def of_agents(before: int, after: int) -> float:
    """Bytes of their process for one idle agent."""
    with process(gateway, spaces(after)) as middle:
        address: Address = middle.recv()
        with process(agents, address) as pipe:
            memory = []
            for count in (before, after):
                pipe.send(count)
                pipe.recv()
                # Everything that they are told has been sent to them.
                ask(middle, welcomed(count))
                pipe.send("and now")
                memory.append(pipe.recv())
    return float(memory[1] - memory[0]) / (after - before)


def measure(scale: float = 1.0) -> Iterator[Figure]:
    def scaled(counts: tuple[int, int]) -> tuple[int, int]:
        before, after = (max(1, round(count * scale)) for count in counts)
        return before, max(after, before + 1)

    yield Figure("an idle member, in the gateway", of_members(*scaled(MEMBERS)) / 1024, "KiB", 40)
    yield Figure("an idle agent, in its process", of_agents(*scaled(AGENTS)) / 1024, "KiB", 60)


PROGRAM = Program("memory", "Memory of who only listens", measure)
