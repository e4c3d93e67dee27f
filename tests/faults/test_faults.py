"""The faults themselves: as planned, the same each time, and on a contract that holds otherwise."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.errors import TransportClosed
from meup_agent.testing import FaultPlan, Faults, FaultyConnector
from meup_agent.testing.faults import FaultyTransport, Lane, faulty
from tests.gateways import CloseInfo, MemoryTransport, Transport, memory_connector, memory_pair
from tests.patience import PATIENCE

FRAMES = [b"%d" % n for n in range(1, 41)]

shares = st.floats(0, 1)
faults = st.builds(Faults, drop=shares, duplicate=shares, reorder=st.integers(0, 5))


@asynccontextmanager
async def linked(plan: FaultPlan) -> AsyncGenerator[tuple[FaultyTransport, MemoryTransport]]:
    """A connection with these faults, and its other end, for a block that may not hang."""
    inner, peer = memory_pair()
    with anyio.fail_after(PATIENCE):
        async with faulty(inner, plan) as transport:
            yield transport, peer


def passed(lane: Lane, frames: list[bytes]) -> list[bytes]:
    return [out for frame in frames for out in lane.feed(frame)] + lane.flush()


async def read(transport: Transport, count: int) -> list[bytes]:
    return [await anext(transport) for _ in range(count)]


async def rest(transport: Transport) -> list[bytes]:
    return [frame async for frame in transport]


def test_without_faults_everything_passes() -> None:
    assert passed(Lane(Faults(), Random(0)), FRAMES) == FRAMES


@given(plan=faults, seed=st.integers())
def test_same_seed_does_the_same(plan: Faults, seed: int) -> None:
    assert passed(Lane(plan, Random(seed)), FRAMES) == passed(Lane(plan, Random(seed)), FRAMES)


@given(count=st.integers(0, 5), seed=st.integers())
def test_reordering_loses_nothing_and_stays_within_its_bound(count: int, seed: int) -> None:
    out = passed(Lane(Faults(reorder=count), Random(seed)), FRAMES)
    assert sorted(out) == sorted(FRAMES)
    for place, frame in enumerate(out):
        assert sum(int(earlier) > int(frame) for earlier in out[:place]) <= count


@given(plan=faults, seed=st.integers())
def test_no_frame_comes_from_nowhere(plan: Faults, seed: int) -> None:
    out = passed(Lane(plan, Random(seed)), FRAMES)
    assert all(out.count(frame) <= 2 for frame in FRAMES)
    assert set(out) <= set(FRAMES)


def test_reordering_does_reorder() -> None:
    assert passed(Lane(Faults(reorder=3), Random(1)), FRAMES) != FRAMES


def test_frames_are_dropped_by_number_and_by_share() -> None:
    assert passed(Lane(Faults(drop_at=frozenset({2})), Random(0)), FRAMES[:3]) == [b"1", b"3"]
    assert passed(Lane(Faults(drop=1), Random(0)), FRAMES) == []
    some = passed(Lane(Faults(drop=0.5), Random(0)), FRAMES)
    assert 0 < len(some) < len(FRAMES)


def test_frames_are_doubled_by_number_and_by_share() -> None:
    doubled = passed(Lane(Faults(duplicate_at=frozenset({2})), Random(0)), FRAMES[:3])
    assert doubled == [b"1", b"2", b"2", b"3"]
    assert len(passed(Lane(Faults(duplicate=1), Random(0)), FRAMES)) == 2 * len(FRAMES)


def test_one_fault_does_not_change_which_frames_another_hits() -> None:
    alone = passed(Lane(Faults(drop=0.5), Random(7)), FRAMES)
    together = passed(Lane(Faults(drop=0.5, duplicate=0.5, reorder=4), Random(7)), FRAMES)
    assert set(alone) == set(together)


@pytest.mark.parametrize("wrong", [{"drop": 1.5}, {"duplicate": -0.1}, {"reorder": -1}])
def test_plan_that_means_nothing_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="give 0"):
        Faults(**wrong)  # type: ignore[arg-type]


async def test_faults_apply_to_their_direction() -> None:
    plan = FaultPlan(
        outgoing=Faults(drop_at=frozenset({1})), incoming=Faults(duplicate_at=frozenset({1}))
    )
    async with linked(plan) as (transport, peer):
        await transport.send(b"one")
        await transport.send(b"two")
        assert await anext(peer) == b"two"
        await peer.send(b"three")
        assert await read(transport, 2) == [b"three", b"three"]


@pytest.mark.parametrize("seed", range(2))
async def test_held_frames_go_on_when_nothing_follows(seed: int) -> None:
    plan = FaultPlan(seed, Faults(reorder=5), Faults(reorder=5))
    async with linked(plan) as (transport, peer):
        for turn in FRAMES[:5]:
            await transport.send(turn)
            assert await anext(peer) == turn
            await peer.send(turn)
            assert await anext(transport) == turn


async def test_held_frames_come_before_the_end() -> None:
    async with linked(FaultPlan(1, incoming=Faults(reorder=9))) as (transport, peer):
        for frame in FRAMES[:10]:
            await peer.send(frame)
        await peer.aclose()
        assert sorted(await rest(transport)) == sorted(FRAMES[:10])


async def test_connection_is_cut_in_place_of_an_outgoing_frame() -> None:
    async with linked(FaultPlan(outgoing=Faults(cut_after=2))) as (transport, peer):
        await transport.send(b"1")
        await transport.send(b"2")
        assert await read(peer, 2) == [b"1", b"2"]
        with pytest.raises(TransportClosed, match="1006"):
            await transport.send(b"3")
        assert await rest(peer) == []
        assert await rest(transport) == []
        assert (transport.closed, peer.closed) == (CloseInfo(1006), CloseInfo(1006))


async def test_connection_is_cut_in_place_of_an_incoming_frame() -> None:
    async with linked(FaultPlan(incoming=Faults(cut_after=1))) as (transport, peer):
        await peer.send(b"1")
        await peer.send(b"2")
        assert await rest(transport) == [b"1"]
        assert await rest(transport) == []
        assert (transport.closed, peer.closed) == (CloseInfo(1006), CloseInfo(1006))


async def test_stalled_frames_wait_for_the_release() -> None:
    plan = FaultPlan(outgoing=Faults(stall_after=1), incoming=Faults(stall_after=1))
    async with linked(plan) as (transport, peer), anyio.create_task_group() as tasks:
        received: list[bytes] = []

        async def receive() -> None:
            received.extend(await read(transport, 2))

        async def send() -> None:
            await transport.send(b"1")
            await transport.send(b"2")

        await peer.send(b"1")
        await peer.send(b"2")
        tasks.start_soon(receive)
        tasks.start_soon(send)
        await transport.stalled.wait()
        await anyio.wait_all_tasks_blocked()
        assert await anext(peer) == b"1"
        assert received == []
        transport.release()
        assert await anext(peer) == b"2"
        assert received == [b"1", b"2"]


async def test_cancelled_wait_for_a_stalled_frame_loses_nothing() -> None:
    async with linked(FaultPlan(incoming=Faults(stall_after=0))) as (transport, peer):
        await peer.send(b"1")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rest, transport)
            await transport.stalled.wait()
            tasks.cancel_scope.cancel()
        transport.release()
        assert await anext(transport) == b"1"


async def test_closing_wakes_a_stalled_sender() -> None:
    async with linked(FaultPlan(outgoing=Faults(stall_after=0))) as (transport, _):

        async def send() -> None:
            with pytest.raises(TransportClosed, match="4000"):
                await transport.send(b"1")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await transport.stalled.wait()
            await transport.aclose(4000)
        assert transport.closed == CloseInfo(4000, local=True)


async def test_connections_after_the_last_plan_have_no_faults() -> None:
    ends: list[MemoryTransport] = []

    async def accept(end: MemoryTransport, headers: object) -> None:
        assert headers == {"Authorization": "Bearer t"}
        ends.append(end)

    connector = FaultyConnector(
        memory_connector(accept),
        [FaultPlan(outgoing=Faults(drop=1)), FaultPlan(outgoing=Faults(duplicate=1))],
    )
    assert connector.dialled == 0
    with anyio.fail_after(PATIENCE):
        for expected in ([], [b"1", b"1", b"2", b"2"], [b"1", b"2"], [b"1", b"2"]):
            async with connector({"Authorization": "Bearer t"}) as transport:
                assert connector.current is transport
                await transport.send(b"1")
                await transport.send(b"2")
            received = await rest(ends.pop())
            assert received == expected
    assert connector.dialled == 4


async def test_faulty_connection_leaves_errors_plain() -> None:
    async def accept(end: MemoryTransport, headers: object) -> None:
        pass

    connector = FaultyConnector(
        memory_connector(accept), [FaultPlan(outgoing=Faults(reorder=1, duplicate=1))]
    )
    with pytest.raises(KeyError):
        async with connector({}):
            raise KeyError
