"""The time of a withdrawal: from its sending to the first line of the tool's `finally`.

Proposer → gateway → fulfiller → gateway → executor, each in a process of its own on uvloop. The
clock (CLOCK_MONOTONIC) is the same in all of them.
"""

import statistics
from collections.abc import Iterator
from multiprocessing.connection import Connection
from time import monotonic_ns
from typing import Any

import anyio

from meup_agent import Agent, Context, Proposal
from meup_agent.protocol.wire import kinds
from meup_agent.session.session import EnvelopeStream
from tests.bench.figures import Figure, Program
from tests.bench.processes import Address, gateway, join, on_uvloop, process, result_of, serve

WITHDRAWALS = 300
WARM_UP = 10

SPACE = "demo"
PARTICIPANTS: dict[str, list[dict[str, Any]]] = {
    "proposer": [{"kind": "mcp/proposal"}],
    "fulfiller": [{"kind": "mcp/*"}],
    "executor": [{"kind": "chat"}],
}


def fulfiller(pipe: Connection, address: Address) -> None:
    """Fulfills everything."""
    agent = Agent("fulfiller")

    @agent.on_proposal
    async def review(proposal: Proposal) -> None:
        await proposal.fulfill()

    serve(pipe, address, SPACE, agent)


def executor(pipe: Connection, address: Address) -> None:
    """Has a tool that works until it is cancelled, and tells when that was."""
    agent = Agent("executor")

    @agent.tool
    async def work(ctx: Context) -> None:
        try:
            await ctx.space.chat("started", to="proposer")
            await anyio.sleep_forever()
        finally:
            stopped = monotonic_ns()
            async with ctx.cleanup(5):
                await ctx.space.chat(str(stopped), to="proposer")

    serve(pipe, address, SPACE, agent)


async def said(heard: EnvelopeStream) -> str:
    """The text of the next chat message."""
    async for envelope in heard:
        if envelope.kind == kinds.CHAT:
            return str(envelope.payload_object["message"])
    raise AssertionError("the executor said nothing")


def proposer(pipe: Connection, address: Address, count: int) -> None:
    """Proposes, withdraws when the tool has started, and hears when it stopped."""

    async def withdraw_all() -> None:
        async with join(address, SPACE, Agent("proposer")) as space:
            took: list[int] = []
            with space.watch() as heard:
                for _ in range(WARM_UP + count):
                    async with space.propose("executor", "work", to=["fulfiller"]) as proposal:
                        assert await said(heard) == "started"
                        sent = monotonic_ns()
                        await proposal.withdraw()
                    took.append(int(await said(heard)) - sent)
            pipe.send([nanoseconds * 1e-9 for nanoseconds in took[WARM_UP:]])

    on_uvloop(withdraw_all())


def measure(scale: float = 1.0) -> Iterator[Figure]:
    with process(gateway, {SPACE: PARTICIPANTS}) as middle:
        address = middle.recv()
        with process(fulfiller, address) as second, process(executor, address) as third:
            second.recv()
            third.recv()
            took: list[float] = result_of(proposer, address, max(2, round(WITHDRAWALS * scale)))
    yield Figure("median", statistics.median(took) * 1e3, "ms", 1.5)
    yield Figure("of 100, the second slowest", statistics.quantiles(took, n=100)[97] * 1e3, "ms")


PROGRAM = Program("withdraw", "From a withdrawal to the tool's `finally`, over three hops", measure)
