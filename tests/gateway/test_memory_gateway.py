"""Scenes for a gateway in memory alone: virtual time, and a reader that stands still."""

import json
import subprocess
import sys
import time

import anyio
import pytest
from trio.testing import MockClock

from meup_agent.errors import CannotConnect, HandshakeRefused, TransportClosed
from meup_agent.gateway import GatewayLimits
from meup_agent.testing import MemorySpace
from tests.gateway.conftest import PARTICIPANTS, envelope, hear, hear_end


@pytest.fixture
def space() -> MemorySpace:
    return MemorySpace(participants=PARTICIPANTS, limits=GatewayLimits(max_queued_frames=8))


async def test_message_is_with_everybody_when_send_returns(space: MemorySpace) -> None:
    async with space.connector("alice")({}) as alice, space.connector("bob")({}) as bob:
        await alice.send(envelope("alice"))
        # Two welcomes, three presences, one chat for two.
        assert space.counters.delivered == 7
        for kind in ("system.welcome", "system.presence", "chat"):
            await hear(bob, kind)


async def test_slow_reader_is_closed_with_what_it_has_not_read(space: MemorySpace) -> None:
    async with space.connector("alice")({}) as alice, space.connector("bob")({}) as bob:
        for _ in range(3):
            await anext(alice)
        for number in range(7):
            await alice.send(envelope("alice", id=str(number)))
            await hear(alice, "chat")
        # Welcome, presence and six chats are what bob's queue holds.
        assert bob.closed is not None
        assert bob.closed.code == 1013
        assert (await hear(alice, "system.presence"))["payload"]["event"] == "leave"
        with pytest.raises(TransportClosed):
            await bob.send(envelope("bob"))
        assert len([frame async for frame in bob]) == 8
        assert space.counters.closed == {1013: 1}


async def test_queue_is_bounded_by_bytes_too() -> None:
    space = MemorySpace(participants=PARTICIPANTS, limits=GatewayLimits(max_queued_bytes=2_000))
    async with space.connector("alice")({}) as alice, space.connector("bob")({}) as bob:
        for _ in range(3):
            await anext(alice)
        await alice.send(envelope("alice", payload={"message": "x" * 1_400}))
        assert alice.closed is None
        assert bob.closed is not None
        assert bob.closed.code == 1013


async def test_what_was_read_makes_room(space: MemorySpace) -> None:
    async with space.connector("alice")({}) as alice:
        await anext(alice)
        await anext(alice)
        for _ in range(100):
            await alice.send(envelope("alice"))
            await hear(alice, "chat")


async def test_stopped_gateway_closes_with_1012(space: MemorySpace) -> None:
    async with space.connector("alice")({}) as alice:
        await anext(alice)
        await anext(alice)
        space.stop()
        assert await hear_end(alice) == 1012
        with pytest.raises(CannotConnect):
            async with space.connector("alice")({}):
                pass


async def test_closing_twice_is_closing_once(space: MemorySpace) -> None:
    async with space.connector("alice")({}) as alice, space.connector("bob")({}) as bob:
        for _ in range(2):
            await anext(bob)
        await alice.aclose(4000, "done")
        await alice.aclose()
        assert alice.closed is not None
        assert (alice.closed.code, alice.closed.local) == (4000, True)
        assert (await hear(bob, "system.presence"))["payload"]["event"] == "leave"
        await bob.abort()
        assert await hear_end(bob) == 1006
        assert space.counters.left == 2


async def test_waiting_reader_is_woken(space: MemorySpace) -> None:
    async with space.connector("alice")({}) as alice, anyio.create_task_group() as tasks:
        await anext(alice)
        await anext(alice)

        async def read() -> None:
            assert await hear_end(alice) == 1006

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        space.drop("alice")


async def test_handshake_without_a_token_is_refused(space: MemorySpace) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        async with space.connector()({}):
            pass
    assert refused.value.status == 401


async def test_restart_leaves_nothing_of_open_connections(space: MemorySpace) -> None:
    async with space.connector("alice")({}) as older:
        space.restart()
        async with space.connector("alice")({}) as newer:
            await hear(newer, "system.welcome")
            await hear(newer, "system.presence")
            await older.aclose()
            await newer.send(envelope("alice"))
            await hear(newer, "chat")
        assert space.counters.taken_over == 0


@pytest.mark.parametrize(
    "anyio_backend", [pytest.param(("trio", {"clock": MockClock(autojump_threshold=0)}), id="trio")]
)
async def test_an_hour_takes_no_time(space: MemorySpace) -> None:
    began = time.monotonic()
    async with space.connector("alice")({}) as alice, anyio.create_task_group() as tasks:
        first = await hear(alice, "system.welcome")
        await hear(alice, "system.presence")

        async def later() -> None:
            await anyio.sleep(3600)
            await alice.send(envelope("bob"))

        tasks.start_soon(later)
        frame = await anext(alice)
        assert b"identity_mismatch" in frame
        assert first["ts"] == "2025-01-01T00:00:00.000Z"
        assert b'"ts":"2025-01-01T01:00:00.000Z"' in frame
    assert time.monotonic() - began < 3600


@pytest.mark.parametrize(
    "anyio_backend", [pytest.param(("trio", {"clock": MockClock(autojump_threshold=0)}), id="trio")]
)
async def test_who_speaks_too_fast_is_made_to_wait() -> None:
    limits = GatewayLimits(messages_per_second=2, messages_burst=3)
    space = MemorySpace(participants=PARTICIPANTS, limits=limits)
    async with space.connector("alice")({}) as alice, space.connector("bob")({}) as bob:
        began = anyio.current_time()
        for number in range(7):
            await alice.send(envelope("alice", id=str(number)))
        # Three at once, and two a second from then on: in virtual time, which is exact.
        assert anyio.current_time() - began == pytest.approx(2.0)
        heard = [await anext(bob) for _ in range(9)]
        assert b"".join(heard).count(b'"kind": "chat"') == 7
        kinds = [json.loads(await anext(alice))["kind"] for _ in range(11)]
        assert kinds.count("system.error") == 1


def test_memory_space_needs_no_extra() -> None:
    code = (
        "import sys\nimport meup_agent.testing.memory\n"
        "print({'picows', 'yaml', 'uvloop', 'trio'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
