"""Event streams of browsers: bounded in number and in bytes, and ended with their session."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
from anyio.abc import SocketStream, TaskGroup

from meup_agent.gateway import Gateway
from meup_agent.gateway.console import Console
from meup_agent.gateway.console.event_queue import (
    FRESH,
    MAX_QUEUED_BYTES,
    NOTHING_NEW,
    PIECE_BYTES,
    EventQueue,
    pack,
)
from meup_agent.gateway.console.pages.events import MAX_EVENT_STREAMS
from meup_agent.gateway.console.templating import key_of
from meup_agent.gateway.console.timeline import SpaceFeed, SpaceFeeds
from meup_agent.gateway.edge.connection import ChunkWriter
from tests.gateway.console.conftest import Browser, Site, two_spaces
from tests.gateways import GatewayRuntime
from tests.no_tls import ALONE
from tests.patience import PATIENCE
from tests.protocol.space.test_server import chat, host_with
from tests.spaces import member_capabilities
from tests.wire import draft, encode, payloads


@asynccontextmanager
async def opened(browser: Browser, version: str) -> AsyncGenerator[tuple[SocketStream, bytes]]:
    """The socket of a stream, its head and first event."""
    place = browser.origin.removeprefix("http://")
    host, port = place.split(":")
    cookie = "; ".join(f"{name}={value}" for name, value in browser.client.cookies.items())
    head = f"GET /console/events?topics=inbox HTTP/{version}\r\nHost: {place}\r\nCookie: {cookie}"
    async with await anyio.connect_tcp(host, int(port)) as sock:
        await sock.send(f"{head}\r\n\r\n".encode())
        heard = b""
        while not ((b"event: hello" in heard and heard.endswith(b"\n")) or b"HTTP/1.1 4" in heard):
            heard += await sock.receive()
        yield sock, heard


@asynccontextmanager
async def stream(browser: Browser) -> AsyncGenerator[bytes]:
    """The head and the first event of a stream, which is open for the length of a block."""
    async with opened(browser, "1.1") as (_, heard):
        yield heard


async def test_stream_of_another_participant_is_refused(site: Site) -> None:
    you, boss = await site.browser("you"), await site.browser("boss")
    shown = (await you.get("/inbox")).text.partition('data-as="')[2].partition('"')[0]
    assert shown
    answer = await boss.get(f"/events?topics=inbox&as={shown}")
    assert answer.status_code == 409
    assert "Another tab of this browser signed in" in answer.text
    other = await site.browser("you", "elsewhere")
    assert f'data-as="{shown}"' not in (await other.get("/inbox")).text


async def test_queue_hands_over_what_waits_in_parts() -> None:
    queue = EventQueue(["inbox"])
    for _ in range(3):
        queue.put(b"x" * (PIECE_BYTES // 2))
    queue.put(b"y" * (2 * PIECE_BYTES))
    taken = [len(await queue.take()) for _ in range(3)]
    assert taken == [PIECE_BYTES, PIECE_BYTES // 2, 2 * PIECE_BYTES]


async def test_unread_queue_keeps_the_word_that_something_was_missed() -> None:
    queue, event = EventQueue(["inbox"]), b"x" * 1_000
    for _ in range(10 * MAX_QUEUED_BYTES // len(event)):
        queue.put(event)
    first, waiting = b"", 0
    with anyio.move_on_after(0):
        while True:
            piece = await queue.take()
            first, waiting = first or piece, waiting + len(piece)
    assert first.startswith(FRESH)
    assert waiting <= MAX_QUEUED_BYTES


async def test_event_is_pushed_where_nothing_waits_before_it() -> None:
    queue, pushed, taken = EventQueue(["inbox"]), list[bytes](), list[bytes]()
    came, takes = anyio.Event(), True

    def push(chunk: bytes) -> bool:
        if takes:
            pushed.append(chunk)
        return takes

    async def read() -> None:
        nonlocal came
        while True:
            taken.append(await queue.take())
            came.set()
            came = anyio.Event()

    queue.push = push
    queue.put(b"first")
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await came.wait()
            queue.put(b"second")
            takes = False
            queue.put(b"third")
            takes = True
            queue.put(b"fourth")
            await came.wait()
            queue.put(b"fifth", b"made for all")
            tasks.cancel_scope.cancel()
    assert taken == [b"first", b"thirdfourth"]
    assert pushed == [b"6\r\nsecond\r\n", b"made for all"]


async def test_queue_is_kept_alive_only_where_nothing_was_sent() -> None:
    queue = EventQueue(["inbox"])
    queue.put(b"something")
    queue.beat()
    assert await queue.take() == b"something"
    queue.beat()
    assert await queue.take() == NOTHING_NEW


async def test_one_person_holds_so_many_streams(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 8
    assert most < MAX_EVENT_STREAMS
    monkeypatch.setattr("meup_agent.gateway.console.pages.events.MAX_EVENT_STREAMS", most)
    browser, other = await site.browser("you"), await site.browser("other")
    heard: list[bytes] = []
    closing = anyio.Event()

    async def listen() -> None:
        async with stream(browser) as first:
            heard.append(first)
            await closing.wait()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            # All at once, as a script would open them.
            for _ in range(5 * most):
                tasks.start_soon(listen)
            while len(heard) < 5 * most:
                await anyio.lowlevel.checkpoint()
            assert sum(b" 200 " in each[:20] for each in heard) == most
            assert sum(b" 429 " in each[:20] for each in heard) == 4 * most
            async with stream(other) as first:
                assert b" 200 " in first[:20]
            closing.set()


@asynccontextmanager
async def signed_in(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[tuple[Browser, list[SpaceFeeds]]]:
    made: list[SpaceFeeds] = []

    class Feeds(SpaceFeeds):
        def __init__(self, runtime: GatewayRuntime, tasks: TaskGroup) -> None:
            super().__init__(runtime, tasks)
            made.append(self)

    monkeypatch.setattr("meup_agent.gateway.console.console.SpaceFeeds", Feeds)
    async with (
        Gateway(config=two_spaces(), page=Console()) as gateway,
        httpx.AsyncClient(base_url=gateway.http_url, **ALONE) as client,
    ):
        browser = Browser(client, gateway.http_url)
        await browser.sign_in(gateway.token("you"))
        yield browser, made


async def test_a_stream_is_kept_alive_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.gateway.console.timeline.KEEP_ALIVE_SECONDS", 0.01)
    with anyio.fail_after(PATIENCE):
        async with signed_in(monkeypatch) as (browser, _), opened(browser, "1.0") as (sock, heard):
            while heard.count(NOTHING_NEW) < 2:
                heard += await sock.receive()


async def test_unread_stream_ends_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async with signed_in(monkeypatch) as (browser, made), stream(browser):
        queues = made[0].of("demo").queues
        (queue,) = queues
        # More than its socket and its queue take, so that the gateway waits for the browser.
        for _ in range(4 * MAX_QUEUED_BYTES // PIECE_BYTES):
            queue.put(b"x" * PIECE_BYTES)
        with anyio.fail_after(PATIENCE):
            await browser.submit("/inbox", "/sign-out")
            while len(queues):
                queue.beat()
                await anyio.lowlevel.checkpoint()


async def test_space_is_followed_while_a_browser_shows_it() -> None:
    host, (alice,) = host_with("alice")
    feed = SpaceFeed(host)
    inbox, both = EventQueue(["inbox"]), EventQueue(["inbox", "space"])
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.follow)
            before = host.counters.delivered
            with feed.queues.holding(inbox):
                host.receive(alice, chat("alice", 1))
                assert host.counters.delivered == before + 1
                with feed.queues.holding(both):
                    host.receive(alice, chat("alice", 2))
                    assert host.counters.delivered == before + 3
                    assert b"event: space" in await both.take()
                host.receive(alice, chat("alice", 3))
                assert host.counters.delivered == before + 4
            tasks.cancel_scope.cancel()


async def test_proposal_of_before_a_browser_came_is_followed() -> None:
    host, (alice,) = host_with("alice")
    host.owner.grants.configure("alice", member_capabilities([{"kind": "*"}]))
    feed, queue = SpaceFeed(host), EventQueue(["space"])
    call = payloads.proposal("tools/call", {"name": "add"})
    host.receive(alice, encode(draft("mcp/proposal", call, id="p", sender="alice"), "meup/v0.1"))
    with anyio.fail_after(PATIENCE), feed.queues.holding(queue):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.follow)
            withdraw = draft("mcp/withdraw", {}, id="w", sender="alice", correlation=("p",))
            host.receive(alice, encode(withdraw, "meup/v0.1"))
            assert b'"touched": {"%b": ["withdrawn", "withdrawn"]}' % key_of(
                "alice", "p"
            ).encode() in (await queue.take())
            tasks.cancel_scope.cancel()


async def test_stream_tells_nothing_of_what_comes_after_its_session(site: Site) -> None:
    browser = await site.browser("you")
    proposer = await site.proposer()
    heard = b""
    async with browser.client.stream("GET", "/console/events?topics=inbox,space") as answer:
        chunks = answer.aiter_bytes()
        while b"hello" not in heard:
            heard += await anext(chunks)
        await browser.submit("/inbox", "/sign-out")
        await site.propose(proposer, {"path": "secret-plan.md"})
        async for chunk in chunks:
            heard += chunk
    assert b"event: gone" in heard
    assert b"proposer" not in heard


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_browser_gets_what_all_get(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[bytes] = []
    write = ChunkWriter.write

    def note(self: ChunkWriter, chunk: bytes) -> bool:
        if b"number" in chunk:
            pushed.append(chunk)
        return write(self, chunk)

    monkeypatch.setattr(ChunkWriter, "write", note)
    async with signed_in(monkeypatch) as (browser, made), opened(browser, version) as (sock, heard):
        with anyio.fail_after(PATIENCE):
            queues = made[0].of("demo").queues
            queues.publish("inbox", pack("inbox", {"number": 1}))
            queues.publish("inbox", pack("inbox", {"number": 2}))
            await browser.submit("/inbox", "/sign-out")
            queues.publish("inbox", pack("inbox", {"number": 3}))
            while b"event: gone" not in heard:
                heard += await sock.receive()
    body = heard[heard.index(b"\r\n\r\n") + 4 :]
    if version == "1.1":
        plain, ends = b"", False
        while not ends and body:
            size, _, rest = body.partition(b"\r\n")
            ends, plain = size == b"0", plain + rest[: int(size, 16)]
            body = rest[int(size, 16) + 2 :]
        body = plain
    events = [each.splitlines()[-1] for each in body.split(b"\n\n") if b"number" in each]
    assert events == [b'data: {"number": 1}', b'data: {"number": 2}']
    assert len(pushed) == (2 if version == "1.1" else 0)
