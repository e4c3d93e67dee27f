"""The message port, driven by another WebSocket implementation and by hand."""

import asyncio
import contextlib
import struct

import anyio
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import Frame, Opcode

from meup_agent.errors import ConfigurationError
from meup_agent.gateway import Gateway
from tests.gateway.conftest import envelope
from tests.gateway.dialing import close_code, dial, limited, pair, read, refused, undisturbed
from tests.gateway.dialing import gateway as gateway
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateway.raw_client import masked, said_close, shaken
from tests.patience import PATIENCE


async def test_fragments_and_binary_messages_are_joined(gateway: Gateway) -> None:
    async with pair(gateway) as (alice, bob):
        sent = envelope("alice", payload={"message": "ä" * 50}).decode()
        await alice.send([sent[:10], sent[10:20], "", sent[20:]])
        await alice.ping()
        await alice.send(sent.encode())
        await alice.send([sent.encode()[:155], sent.encode()[155:]])
        for member in (alice, bob):
            for _ in range(3):
                with anyio.fail_after(PATIENCE):
                    assert await member.recv() == sent


async def test_messages_arrive_in_frames_with_each_form_of_head() -> None:
    bare = len(envelope("alice", payload={"message": ""}))
    async with limited(max_message_bytes=100_000) as gateway, pair(gateway) as (alice, bob):
        for number, size in enumerate((125, 126, 65_535, 65_536)):
            text = {"message": "x" * (size - bare)}
            sent = envelope("alice", id=f"e{number}", payload=text).decode()
            await alice.send(sent)
            for member in (alice, bob):
                with anyio.fail_after(PATIENCE):
                    assert await member.recv() == sent


async def test_much_too_large_a_frame_is_not_even_read(gateway: Gateway) -> None:
    async with pair(gateway) as (_, bob), shaken(gateway) as (reader, writer):
        writer.write(b"\x81\xff" + struct.pack("!Q", 1 << 40) + b"mask")
        assert await said_close(reader) == 1009
        await undisturbed(bob)


# What picows finds, and what it leaves to us.
@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\x81\x02{}", id="not masked"),
        pytest.param(masked(0x83), id="unknown opcode"),
        pytest.param(masked(0xC1, b"{}"), id="as if compressed"),
        pytest.param(masked(0x80, b"{}"), id="continues nothing"),
        pytest.param(masked(0x01, b"{") + masked(0x81, b"}"), id="message within a message"),
        pytest.param(masked(0x09), id="fragmented ping"),
        pytest.param(b"\x00" * 200, id="zeros"),
        pytest.param(b"\xff" * 200, id="ones"),
    ],
)
async def test_garbage_closes_its_connection_only(gateway: Gateway, garbage: bytes) -> None:
    async with pair(gateway) as (_, bob), shaken(gateway) as (reader, writer):
        writer.write(garbage)
        assert await said_close(reader) == 1002
        await undisturbed(bob)
        while gateway.counters.left == 0:
            await read(bob)
        assert gateway.counters.closed == {1002: 1}


@pytest.mark.parametrize(
    ("said", "answer"),
    [(None, 1000), *((code, code) for code in (1000, 1001, 3000, 4999)),
     *((code, 1002) for code in (1006, 5000, 65_535))],
)  # fmt: skip
async def test_close_is_answered(gateway: Gateway, said: int | None, answer: int) -> None:
    async with shaken(gateway) as (reader, writer):
        writer.write(masked(0x88, b"" if said is None else struct.pack("!H", said)))
        assert await said_close(reader) == answer


@pytest.mark.limit("ping_interval", "ping_deadline")
async def test_silent_client_is_pinged_and_lost() -> None:
    async with limited(ping_interval=0.5, ping_deadline=0.5) as gateway:
        async with dial(gateway, "bob") as bob, shaken(gateway) as (reader, _):
            await read(bob, 3)
            # This end never answers a ping; the other, a real client, does and stays.
            assert await said_close(reader) == 1001
            assert (await read(bob))[0]["payload"]["event"] == "leave"
            await undisturbed(bob)


async def test_lively_turn_is_no_slow_reader() -> None:
    async with limited(max_queued_frames=8) as gateway, pair(gateway) as (alice, bob):
        frames = [Frame(Opcode.TEXT, envelope("alice", id=str(n))) for n in range(100)]
        alice.transport.write(b"".join(frame.serialize(mask=True) for frame in frames))
        for member in (alice, bob):
            assert [each["id"] for each in await read(member, 100)] == [str(n) for n in range(100)]


async def test_slow_reader_is_closed_and_the_others_are_not() -> None:
    async with (
        limited(max_queued_bytes=200_000) as gateway,
        pair(gateway) as (alice, bob),
        shaken(gateway, "carol", small=True) as (reader, _),
    ):
        text = "x" * 20_000
        number = 0
        while not gateway.counters.closed:
            await alice.send(envelope("alice", id=str(number), payload={"message": text}))
            for member in (alice, bob):
                heard = await read(member)
                while heard[0]["kind"] == "system.presence":
                    heard = await read(member)
                assert heard[0]["id"] == str(number)
            number += 1
        assert gateway.counters.closed == {1013: 1}
        await undisturbed(bob)
        # What had reached the socket can still be read, and then why it ended.
        assert await said_close(reader) == 1013


@pytest.mark.limit("close_timeout")
async def test_slow_reader_that_never_reads_is_dropped() -> None:
    async with limited(
        max_queued_bytes=200_000, close_timeout=0.05, ping_interval=3_600, ping_deadline=3_600
    ) as gateway:
        runtime = gateway._gateway.runtime
        async with pair(gateway) as (alice, bob), shaken(gateway, "carol", small=True):
            while not gateway.counters.closed:
                await alice.send(envelope("alice", payload={"message": "x" * 20_000}))
                await alice.recv()
                await bob.recv()
            with anyio.fail_after(PATIENCE):
                while gateway.counters.left == 0:
                    await read(bob)
                # It has left; its socket is there until the time for its last messages is over.
                while runtime.open_connections > 2:
                    await anyio.lowlevel.checkpoint()
            await undisturbed(bob)


async def test_graceful_stop_closes_with_1012() -> None:
    codes: list[int | None] = []

    async def watch(client: ClientConnection) -> None:
        codes.append(await close_code(client))

    async with contextlib.AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        async with limited() as gateway:
            for who, path in [("alice", "/ws?space=demo"), ("bob", "/ws?space=demo"), ("", "/")]:
                tasks.start_soon(watch, await stack.enter_async_context(dial(gateway, who, path)))
    assert codes == [1012] * 3


@pytest.mark.limit("stop_timeout")
async def test_stop_does_not_wait_for_who_does_not_answer() -> None:
    hung_up = anyio.Event()

    async def hang_up(writer: asyncio.StreamWriter) -> None:
        await anyio.sleep(PATIENCE)
        hung_up.set()
        writer.transport.abort()

    async with contextlib.AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        async with limited(
            stop_timeout=0.05, close_timeout=3_600, ping_interval=3_600, ping_deadline=3_600
        ) as gateway:
            reader, writer = await stack.enter_async_context(shaken(gateway))
            # Its stop cannot be cancelled: one that waited for this end would wait for this.
            tasks.start_soon(hang_up, writer)
        assert not hung_up.is_set()
        assert await said_close(reader) == 1012
        tasks.cancel_scope.cancel()


async def test_cancelled_program_stops_its_gateway_in_order() -> None:
    running: list[Gateway] = []
    begun = anyio.Event()

    async def program(scope: anyio.CancelScope) -> None:
        with scope:
            async with limited() as gateway:
                running.append(gateway)
                begun.set()
                await anyio.sleep_forever()

    scope = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(program, scope)
        await begun.wait()
        url = running[0].url
        async with dial(running[0], "alice") as alice:
            scope.cancel()
            assert await close_code(alice) == 1012
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await connect(url, open_timeout=PATIENCE)


async def test_kill_drops_sockets_and_restart_takes_the_port_at_once(gateway: Gateway) -> None:
    port = gateway.port
    for _ in range(5):
        async with pair(gateway) as (alice, bob), dial(gateway, path="/") as stranger:
            gateway.kill()
            await gateway.restart()
            assert gateway.port == port
            for client in (alice, bob, stranger):
                assert await close_code(client) == 1006
    async with pair(gateway) as (_, bob):
        await undisturbed(bob)


async def test_port_in_use_is_told_in_a_sentence(gateway: Gateway) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot listen at 127.0.0.1:{gateway.port}: "):
        async with Gateway(port=gateway.port):
            pass


async def test_host_that_is_not_found_is_told_in_a_sentence() -> None:
    with pytest.raises(ConfigurationError) as raised:
        async with Gateway(port=0, host="nowhere.invalid"):
            pass
    assert "unknown error" not in str(raised.value)
    assert "Errno" not in str(raised.value)


async def test_what_goes_wrong_inside_is_told_to_nobody_who_dials(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("what only the log may have")

    monkeypatch.setattr("meup_agent.gateway.edge.handshake.read_handshake", broken)
    answer = await refused(gateway, path="")
    assert (answer.status_code, answer.body) == (500, b"internal error")
    assert "what only the log may have" in caplog.text
