"""A gateway that slept, or whose connection broke unseen, asks before it suspects another."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest

from meup_agent.gateway.cluster.membership import ClusterMembership
from meup_agent.gateway.journal.nats.link import Link
from tests.gateway.journal.conftest import nats_config
from tests.gateway.journal.conftest import path as path
from tests.gateway.journal.test_nats import Wire
from tests.gateway.journal.test_nats import wire as wire
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio

HOUR = 3_600.0


class LateClock:
    """A loop whose clock jumps when it is told to, or with each look at it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.ahead = 0.0
        self.step = 0.0
        self.looks = 0

    def time(self) -> float:
        self.looks += 1
        self.ahead += self.step
        return self._loop.time() + self.ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@asynccontextmanager
async def member(path: Path, node: str, url: str = "") -> AsyncGenerator[ClusterMembership]:
    config = nats_config(path)
    link = Link(replace(config, servers=(url,)) if url else config)
    await anyio.to_thread.run_sync(link.open)
    membership = ClusterMembership(link, config.prefix, node, {}, "127.0.0.1:1", "secret")
    try:
        await membership.join()
        yield membership
    finally:
        membership.end()
        await anyio.to_thread.run_sync(link.close)


@asynccontextmanager
async def two(path: Path, url: str = "") -> AsyncGenerator[tuple[ClusterMembership, ...]]:
    """One, whose connection goes by an address, and another one; each knows the other."""
    async with member(path, "one", url) as one, member(path, "other") as other:
        await until(one, lambda: other.nonce in one.nodes)
        await until(other, lambda: one.nonce in other.nodes)
        yield one, other


async def until(membership: ClusterMembership, condition: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():
            with anyio.move_on_after(0.1):
                await membership.changed.wait()


async def heard(membership: ClusterMembership, other: ClusterMembership, since: float) -> None:
    await until(membership, lambda: membership._others[other.nonce].heard > since)


def clock_of(membership: ClusterMembership) -> LateClock:
    clock = LateClock(membership._loop)
    membership._loop = cast("asyncio.AbstractEventLoop", clock)
    return clock


def lost_by(membership: ClusterMembership, patch: pytest.MonkeyPatch) -> list[str]:
    """The others that it takes to be gone from here on, with the reasons."""
    lost, lose = list[str](), membership._lose

    def note(nonce: str, why: str) -> None:
        lost.append(why)
        lose(nonce, why)

    patch.setattr(membership, "_lose", note)
    return lost


@pytest.mark.thorough
async def test_one_that_slept_for_an_hour_finds_the_other_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(path) as (one, other):
        clock, lost = clock_of(one), lost_by(one, monkeypatch)
        for _ in range(3):
            clock.ahead += HOUR
            await heard(one, other, clock.time() + 0.5)
        assert lost == []


async def test_one_that_slept_for_an_hour_learns_that_the_other_has_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        one, other = await stack.enter_async_context(two(path))
        clock, lost = clock_of(one), lost_by(one, monkeypatch)
        other.end()
        clock.ahead += HOUR
        await until(one, lambda: other.nonce not in one.nodes)
        assert lost == ["has ended"]


@pytest.mark.thorough
async def test_one_that_hears_nothing_not_even_itself_suspects_nobody(
    path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection broke while the machine slept, and nobody has said so yet."""
    async with two(path, wire.url) as (one, other):
        clock, lost = clock_of(one), lost_by(one, monkeypatch)
        await anyio.to_thread.run_sync(wire.hold)
        clock.step = 0.1
        begin = clock.looks
        await until(one, lambda: clock.looks > begin + 200)
        assert one.link.is_connected
        assert lost == []
        clock.step = 0.0
        await anyio.to_thread.run_sync(wire.let_go)
        await heard(one, other, clock.time())
        assert lost == []
