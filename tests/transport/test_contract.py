"""The promises of `transport.base`, kept by every transport on every loop."""

from contextlib import suppress

import anyio
import pytest
from anyio.lowlevel import checkpoint

from meup_agent.errors import TransportClosed
from tests.gateways import CloseInfo, Transport
from tests.patience import PATIENCE
from tests.transport.peers import MemoryLink, Peer, SocketLink, TransportPair, linked
from tests.wire import MAX_FRAME_BYTES

# Seconds without progress after which a peer that does not read counts as full. Too short a time
# makes these tests easier, not wrong.
STUCK = 0.1


@pytest.fixture(params=["memory", "websocket", "websocket with TLS"])
def link(request: pytest.FixtureRequest) -> TransportPair:
    if request.param == "memory":
        return MemoryLink()
    if request.param == "websocket":
        return SocketLink(request.getfixturevalue("server"))
    return SocketLink(request.getfixturevalue("tls_server"), tls=True)


async def rest(transport: Transport) -> list[bytes]:
    return [frame async for frame in transport]


async def send_until_stuck(transport: Transport, size: int) -> int:
    """Sends to a peer that does not read, until no more fits; how many went out."""
    sent = 0
    while True:
        with anyio.move_on_after(STUCK) as waiting:
            await transport.send(sent.to_bytes(4, "big") + bytes(size))
        if waiting.cancelled_caught:
            return sent
        sent += 1


async def test_messages_go_both_ways_in_order(link: TransportPair) -> None:
    frames = [b'{"n":%d}' % n for n in range(50)]
    async with linked(link) as (transport, peer):
        assert transport.response_headers["meup-protocol"] == "meup/v0.1"
        await send_all(transport, frames)
        assert [await peer.receive() for _ in frames] == frames
        await send_all(peer, frames)
        assert [await anext(transport) for _ in frames] == frames
        assert transport.closed is None


async def test_largest_message_goes_both_ways(link: TransportPair) -> None:
    frame = b"x" * MAX_FRAME_BYTES
    async with linked(link) as (transport, peer):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(transport.send, frame)
            assert await peer.receive() == frame
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.send, frame)
            assert await anext(transport) == frame


async def test_too_large_a_message_from_the_peer_ends_with_1009(link: TransportPair) -> None:
    async with linked(link) as (transport, peer):
        await peer.send(b"before")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.send, b"x" * (MAX_FRAME_BYTES + 1))
            assert await rest(transport) == [b"before"]
        assert transport.closed is not None
        assert (transport.closed.code, transport.closed.local) == (1009, True)
        code, _ = await peer.end()
        assert code == 1009


async def test_too_large_a_message_of_ours_ends_with_1009(link: TransportPair) -> None:
    async with linked(link) as (transport, peer):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.end)
            # On a socket the send may notice that its bytes are refused, in memory it cannot.
            with suppress(TransportClosed):
                await transport.send(b"x" * (MAX_FRAME_BYTES + 1))
            assert await rest(transport) == []
        assert transport.closed is not None
        # With TLS a server cannot half-close: it resets what it has not read, and the reset
        # may overtake its close frame.
        codes = (1009, 1006) if isinstance(link, SocketLink) and link.tls else (1009,)
        assert transport.closed.code in codes
        assert not transport.closed.local


@pytest.mark.parametrize("text", [True, False], ids=["text", "binary"])
async def test_bytes_that_are_no_utf8_cost_no_connection(link: TransportPair, text: bool) -> None:
    async with linked(link) as (transport, peer):
        await peer.send(b'{"\xff"', text=text)
        await peer.send(b"after")
        assert [await anext(transport), await anext(transport)] == [b'{"\xff"', b"after"]


async def test_peer_closes_with_code_and_reason(link: TransportPair) -> None:
    async with linked(link) as (transport, peer):
        await peer.send(b"last")
        await peer.close(4409, "taken over")
        assert await rest(transport) == [b"last"]
        assert transport.closed == CloseInfo(4409, "taken over")
        with pytest.raises(TransportClosed) as caught:
            await transport.send(b"late")
        assert (caught.value.code, caught.value.reason) == (4409, "taken over")
        assert await rest(transport) == []


async def test_peer_vanishes(link: TransportPair) -> None:
    async with linked(link) as (transport, peer):
        await peer.vanish()
        assert await rest(transport) == []
        assert transport.closed == CloseInfo(1006)
        with pytest.raises(TransportClosed) as caught:
            await transport.send(b"late")
        assert caught.value.code == 1006


@pytest.mark.parametrize(
    ("reason", "told"), [("done", "done"), ("ü" * 100, "ü" * 61)], ids=["short", "cut"]
)
async def test_closing_says_why_once(link: TransportPair, reason: str, told: str) -> None:
    async with linked(link) as (transport, peer):
        for code in (0, 999, 1004, 1005, 1006, 1015, 2999, 5000):
            with pytest.raises(ValueError, match=str(code)):
                await transport.aclose(code)
            assert transport.closed is None
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(transport.aclose, 4000, reason)
        await transport.aclose(1001, "again")
        assert transport.closed == CloseInfo(4000, told, local=True)
        assert await peer.end() == (4000, told)
        assert await rest(transport) == []
        with pytest.raises(TransportClosed, match="4000"):
            await transport.send(b"late")


async def test_aborting_sends_no_close_frame(link: TransportPair) -> None:
    async with linked(link) as (transport, peer):
        await transport.abort()
        await transport.abort()
        assert transport.closed == CloseInfo(1006)
        assert await peer.end() == (1006, "")
        assert await rest(transport) == []
        with pytest.raises(TransportClosed, match="1006"):
            await transport.send(b"late")


@pytest.mark.parametrize("way", ["left", "cancelled", "cancelled with words of its own"])
async def test_end_of_the_block_closes_politely(link: TransportPair, way: str) -> None:
    own = way.endswith("own")
    with anyio.fail_after(PATIENCE):
        with anyio.CancelScope() as scope:
            async with linked(link) as (transport, peer):
                if way != "left":
                    scope.cancel()
                try:
                    await checkpoint()
                finally:
                    if own:
                        await transport.aclose(1001, "shutting down")
        assert scope.cancelled_caught is (way != "left")
        told = CloseInfo(1001, "shutting down") if own else CloseInfo(1000)
        assert transport.closed == CloseInfo(told.code, told.reason, local=True)
        assert await peer.end() == (told.code, told.reason)


async def test_what_the_block_raises_leaves_it_as_it_was(link: TransportPair) -> None:
    for problem in (KeyError("mine"), ExceptionGroup("mine too", [KeyError(), ValueError()])):
        with pytest.raises(type(problem)) as caught:
            async with linked(link):
                raise problem
        assert caught.value is problem
        assert problem.__context__ is None


async def test_error_while_cancelled_leaves_as_it_was(link: TransportPair) -> None:
    with anyio.CancelScope() as scope:
        with pytest.raises(KeyError):  # noqa: PT012 - the block is what is tested
            async with linked(link):
                scope.cancel()
                try:
                    await checkpoint()
                finally:
                    raise KeyError


async def test_cancelled_wait_loses_no_message(link: TransportPair) -> None:
    async with linked(link) as (transport, peer):
        received: list[bytes] = []

        async def read(scope: anyio.CancelScope) -> None:
            with scope:
                async for frame in transport:
                    received.append(frame)  # noqa: PERF401 - one by one: it is cancelled

        for n in range(20):
            scope = anyio.CancelScope()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, scope)
                await checkpoint()
                await peer.send(b"%d" % n)
                scope.cancel()
            if len(received) == n:
                received.append(await anext(transport))
        assert received == [b"%d" % n for n in range(20)]


async def test_second_reader_is_refused_and_the_end_wakes_the_first(link: TransportPair) -> None:
    async with linked(link) as (transport, peer), anyio.create_task_group() as tasks:
        tasks.start_soon(rest, transport)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await anext(transport)
        await peer.vanish()


async def test_cancelled_send_leaves_no_half_message(link: TransportPair) -> None:
    size = 100_000
    async with linked(link) as (transport, peer):
        sent = await send_until_stuck(transport, size)
        received = [await peer.receive() for _ in range(sent)]
        if transport.closed is None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(transport.send, b"end")
                while not received or received[-1] != b"end":
                    received.append(await peer.receive())
            received.pop()
        assert len(received) in (sent, sent + 1)
        assert received == [n.to_bytes(4, "big") + bytes(size) for n in range(len(received))]


async def test_send_that_was_cancelled_in_time_sends_nothing(link: TransportPair) -> None:
    async with linked(link) as (transport, peer):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await checkpoint()
            await transport.send(b"never")
        await transport.send(b"after")
        assert await peer.receive() == b"after"


@pytest.mark.parametrize("politely", [True, False])
async def test_closing_wakes_a_blocked_sender_in_time(link: TransportPair, politely: bool) -> None:
    async with linked(link) as (transport, _):
        failed = anyio.Event()

        async def send() -> None:
            with suppress(TransportClosed):
                while True:
                    await transport.send(bytes(100_000))
            failed.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            with anyio.move_on_after(STUCK):
                await failed.wait()
            assert not failed.is_set()
            await (transport.aclose() if politely else transport.abort())
            assert transport.closed is not None
            assert politely or transport.closed == CloseInfo(1006)


async def test_sender_cancelled_before_its_turn_disturbs_nobody(link: TransportPair) -> None:
    frames = [n.to_bytes(4, "big") + bytes(100_000) for n in range(200)]
    async with linked(link) as (transport, peer):
        done = anyio.Event()

        async def send() -> None:
            await send_all(transport, frames)
            done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            with anyio.move_on_after(STUCK):
                await done.wait()
            assert not done.is_set()
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(transport.send, b"other")
                await anyio.wait_all_tasks_blocked()
                waiting.cancel_scope.cancel()
            received: list[bytes] = []
            while len(received) < len(frames):
                frame = await peer.receive()
                if frame != b"other":
                    received.append(frame)
        assert received == frames
        assert transport.closed is None


async def test_unread_messages_do_not_hold_up_a_cancelled_block(link: TransportPair) -> None:
    with anyio.fail_after(PATIENCE):
        with anyio.CancelScope() as scope:
            async with linked(link) as (transport, _):
                # Not before: connecting takes as long as it takes.
                scope.deadline = anyio.current_time() + STUCK
                while True:
                    await transport.send(bytes(100_000))
        assert transport.closed is not None


async def test_unread_messages_do_not_hold_up_the_end(link: TransportPair) -> None:
    async with linked(link) as (_, peer):

        async def send() -> None:
            for _ in range(1_000):
                await peer.send(bytes(1_000))

        with anyio.move_on_after(STUCK):
            await send()


async def test_concurrent_senders_keep_their_messages_whole(link: TransportPair) -> None:
    # Larger than what a socket takes at once: a frame is written in several steps.
    count, times = 40, 20_000
    async with linked(link) as (transport, peer):

        async def send(name: bytes) -> None:
            for n in range(count):
                await transport.send(b"%s %d %s" % (name, n, name * times))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, b"left")
            tasks.start_soon(send, b"right")
            received = [await peer.receive() for _ in range(2 * count)]
        for name in (b"left", b"right"):
            assert [frame for frame in received if frame.startswith(name)] == [
                b"%s %d %s" % (name, n, name * times) for n in range(count)
            ]


async def test_what_is_sent_in_one_go_keeps_its_order(link: TransportPair) -> None:
    sizes = (1, 100, 40_000, 1, 20_000, 20_000, 0, 3, 100_000, 7)
    frames = [b"%d " % number + bytes(size) for number, size in enumerate(sizes)]
    async with linked(link) as (transport, peer):
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send_all, transport, frames)
                assert [await peer.receive() for _ in frames] == frames


async def test_what_was_sent_just_before_the_end_still_arrives(link: TransportPair) -> None:
    frames = [b"%d" % number for number in range(20)]
    async with linked(link) as (transport, peer):
        await send_all(transport, frames)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(transport.aclose)
            assert [await peer.receive() for _ in frames] == frames


async def send_all(transport: Transport | Peer, frames: list[bytes]) -> None:
    for frame in frames:
        await transport.send(frame)
