"""The journal on NATS: its fence, what it makes of foreign hands, and a server that goes away."""

import asyncio
import re
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import anyio.lowlevel
import httpx
import msgspec
import nats
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from websockets.exceptions import InvalidStatus

from meup_agent.errors import ConfigurationError
from meup_agent.gateway import Config, Gateway, JournalConfig, RunningGateway, serve
from meup_agent.gateway.cluster.shared import SharedValues
from meup_agent.gateway.config import NatsConfig
from meup_agent.gateway.console import Console
from meup_agent.gateway.journal.nats import link, records
from meup_agent.gateway.journal.nats import log as nats_log
from meup_agent.gateway.journal.nats.follower import LogFollower, NoFold
from meup_agent.gateway.journal.nats.journal import NatsJournal
from meup_agent.gateway.journal.nats.link import NatsClient, NoAnswer, Publisher
from meup_agent.gateway.journal.nats.log import SpaceLog
from meup_agent.gateway.journal.nats.records import encode_batch, token_of
from tests.gateway.conftest import envelope
from tests.gateway.console.conftest import Browser
from tests.gateway.journal.conftest import (
    NOW,
    Clock,
    chat,
    failure_of,
    ids,
    kept,
    nats_config,
    read,
    settled,
)
from tests.gateway.journal.test_gateway import config_with, dial, hear_chats, rest
from tests.gateway.websocket_client import open_websocket
from tests.gateways import ENGINES, first_token, one_space_config
from tests.nats_servers import NatsServer, shared_server
from tests.patience import PATIENCE, wait_until
from tests.programs import ROOT
from tests.protocol.space.scene import Scene
from tests.spaces import Entry, Fact

pytestmark = pytest.mark.anyio


class Wire:
    """The way to a server, which can stop to carry anything; it has a thread of its own."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._open = asyncio.Event()
        self._open.set()
        self.url = ""

    @asynccontextmanager
    async def listening(self, server: NatsServer) -> AsyncGenerator[None]:
        port = int(server.url.rpartition(":")[2])

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", port)
            with suppress(OSError):
                await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            listening.close()

    def hold(self) -> None:
        self._portal.call(self._open.clear)

    def let_go(self) -> None:
        self._portal.call(self._open.set)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self._open.wait()
                writer.write(data)
        finally:
            writer.close()


@pytest.fixture
def wire() -> Generator[Wire]:
    """A way to the tests' server."""
    with start_blocking_portal("asyncio") as portal:
        wire = Wire(portal)
        with portal.wrap_async_context_manager(wire.listening(shared_server())):
            yield wire
            wire.let_go()


@asynccontextmanager
async def journal_at(config: NatsConfig, clock: Clock, **more: Any) -> AsyncGenerator[NatsJournal]:
    journal = NatsJournal(JournalConfig(nats=config, **more), clock)
    try:
        yield journal
    finally:
        await journal.aclose()


class Seen:
    """The ids of entries that were taken."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def apply(self, entry: Entry) -> None:
        self.ids.append(entry.envelope.id)


class Follower:
    """Reads the log of a space as a gateway does that may own it later."""

    def __init__(self, journal: NatsJournal) -> None:
        self.journal = journal

    async def comes(self, name: str) -> list[str]:
        """Wait until an entry is read; the ids of all that were."""
        with anyio.fail_after(PATIENCE):
            while True:
                await self.journal.follow("demo", Seen)
                seen = self.follower.fold.ids
                if name in seen:
                    return seen
                await self.journal.wait_for_more()

    @property
    def follower(self) -> LogFollower[Seen]:
        follower = self.journal._follower
        assert follower is not None
        return follower

    def is_handed_over(self) -> bool:
        """True if NATS says by itself what is new."""
        tail = self.follower.log.tail
        return tail is not None and not tail.has_ended


@asynccontextmanager
async def following(config: NatsConfig, clock: Clock) -> AsyncGenerator[Follower]:
    async with journal_at(config, clock) as journal:
        yield Follower(journal)
        journal.abandon()


@pytest.mark.thorough
async def test_what_is_new_is_handed_over_and_asked_for_after_a_break(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = nats_config(path)
    asked = list[str]()
    ask = link.Link.ask

    async def ask_noted(self: link.Link, subject: str, question: object = None) -> dict[str, Any]:
        if self is follower.journal.link:
            asked.append(subject.partition(".STREAM")[0])
        return await ask(self, subject, question)

    async with journal_at(config, clock) as owner, following(config, clock) as follower:
        await kept(owner, chat(1))
        await follower.comes("1")
        assert follower.is_handed_over()
        monkeypatch.setattr(link.Link, "ask", ask_noted)
        for number in range(2, 9):
            await kept(owner, chat(number))
            await follower.comes(f"{number}")
        assert asked == []
        server = await nats.connect(config.servers[0])
        jetstream = server.jetstream()
        stream = f"{config.prefix}-demo"
        for number in (9, 10):
            (consumer,) = await jetstream.consumers_info(stream)
            assert consumer.config.inactive_threshold == nats_log.FORGOTTEN_SECONDS
            await jetstream.delete_consumer(stream, consumer.name)
            await wait_until(lambda: not follower.is_handed_over())
            await kept(owner, chat(number))
            seen = await follower.comes(f"{number}")
            assert seen == [f"{each}" for each in range(1, number + 1)]
            with anyio.fail_after(PATIENCE):
                while not follower.is_handed_over():
                    await follower.journal.wait_for_more()
                    await follower.journal.follow("demo", Seen)
        await server.close()


async def test_who_is_told_nothing_asks_again(
    wire: Wire, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_log, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(nats_log, "TAIL_SILENT_SECONDS", 0.6)
    config = nats_config(path)
    there = replace(config, servers=(wire.url,))
    async with journal_at(config, clock) as owner, following(there, clock) as follower:
        await kept(owner, chat(1))
        await follower.comes("1")
        wire.hold()
        await wait_until(lambda: not follower.is_handed_over())
        await kept(owner, chat(2))
        wire.let_go()
        assert await follower.comes("2") == ["1", "2"]


async def test_a_takeover_that_fails_ends_what_is_handed_over_in_its_thread(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, ended = nats_config(path), list[str]()
    end = nats_log.LogTail.end

    def end_noted(self: nats_log.LogTail) -> None:
        ended.append(threading.current_thread().name)
        end(self)

    async with journal_at(config, clock) as owner, following(config, clock) as follower:
        await kept(owner, chat(1))
        await follower.comes("1")
        assert follower.is_handed_over()
        monkeypatch.setattr(nats_log.LogTail, "end", end_noted)
        refused = patch.object(SpaceLog, "open", side_effect=ConfigurationError("refused"))
        with refused, pytest.raises(ConfigurationError, match="refused"):
            await follower.journal.open("demo", Seen)
        follower.journal.abandon()
        await wait_until(lambda: not follower.is_handed_over())
        await follower.journal.link.insisted(partial(asyncio.sleep, 0))  # behind both calls
    assert {*ended} == {"meup-journal-nats"}


async def test_an_owner_that_wakes_appends_nothing(wire: Wire, path: Path, clock: Clock) -> None:
    """Also where another has written fewer messages than it had on their way."""
    config, told = nats_config(path), list[Entry]()
    async with journal_at(replace(config, servers=(wire.url,)), clock) as first:
        before = ids(tuple(await kept(first, *map(chat, range(5)))))
        wire.hold()
        for number in range(100, 120):
            first.append("demo", NOW, chat(number), (), told.append)
            await anyio.lowlevel.checkpoint()  # so that each is handed over by itself
        async with journal_at(config, clock) as second:
            for number in range(200, 214):
                before += ids(tuple(await kept(second, chat(number))))
            wire.let_go()
            assert "has taken over space 'demo'" in await failure_of(first)
            before += ids(tuple(await kept(second, chat(300))))
            assert ids(await read(second)) == before
            assert ids(second.recover("demo", since=0, limit=100).entries) == before
    assert told == []


async def test_a_new_owner_goes_on_where_the_log_ends(path: Path, clock: Clock) -> None:
    config = nats_config(path)
    async with journal_at(config, clock) as first, journal_at(config, clock) as second:
        (one,) = await kept(first, chat(1), facts=(Fact("grant/a", {"n": 1}),))
        (two,) = await kept(second, chat(2))
        assert two.seq > one.seq
        assert await read(second) == (one, two)
        assert second.recover("demo", since=0, limit=9).facts == {"grant/a": {"n": 1}}
        first.append("demo", NOW, chat(3), (), lambda _: pytest.fail("it is not kept"))
        assert "has taken over" in await failure_of(first)


async def test_answer_that_got_lost_is_read_from_the_log(
    wire: Wire, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is there, its acknowledgement is not."""
    async with journal_at(replace(nats_config(path), servers=(wire.url,)), clock) as journal:
        (first,) = await kept(journal, chat(1))
        publish, lost = Publisher.publish, 0

        async def publish_and_lose(publisher: Publisher, *arguments: Any) -> int:
            nonlocal lost
            sequence = await publish(publisher, *arguments)
            if lost == 0:
                lost = sequence
                raise NoAnswer("the answer is lost")
            return sequence

        monkeypatch.setattr(Publisher, "publish", publish_and_lose)
        second, third = await kept(journal, chat(2), chat(3))
        assert lost
        assert await read(journal) == (first, second, third)


async def test_a_connection_that_is_silent_is_not_waited_for_by_each(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is to be kept goes over the other one."""
    async with journal_at(nats_config(path), clock) as journal:
        (first,) = await kept(journal, chat(1))
        sent = list[bytes]()

        async def send_nothing(_: NatsClient, command: bytes) -> None:
            sent.append(command)

        monkeypatch.setattr(NatsClient, "send", send_nothing)
        second, third = [*await kept(journal, chat(2)), *await kept(journal, chat(3))]
        assert await read(journal) == (first, second, third)
        assert len(sent) == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [(b"hello", "was not written by"), (encode_batch(1, []), "did not own the space")],
    ids=["a stranger's", "of a stale epoch"],
)
async def test_a_message_of_no_owner_ends_it(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, body: bytes, why: str
) -> None:
    config = nats_config(path)
    async with journal_at(config, clock) as journal:
        await kept(journal, chat(0))
    async with journal_at(config, clock) as journal:
        await kept(journal, chat(1))
        stranger = await nats.connect(config.servers[0])
        written = await stranger.jetstream().publish(f"{config.prefix}.log.demo", body)
        await stranger.close()
        journal.append("demo", NOW, chat(2), (), lambda _: pytest.fail("it is not kept"))
        assert f"something else wrote message {written.seq}" in await failure_of(journal)
    with pytest.raises(ConfigurationError, match=f"message {written.seq} .*{why}"):
        async with journal_at(config, clock) as journal:
            journal.recover("demo", since=0, limit=9)
    assert "are lost" not in caplog.text  # its senders were told


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("found", ["ends with message 0", "is not there any more"])
async def test_a_log_that_loses_its_end_ends_it(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, says: bool, found: str
) -> None:
    """Also where nothing is said, and however much is written there by others later."""
    monkeypatch.setattr("meup_agent.gateway.journal.nats.log.INSIST_SECONDS", 0)
    config = nats_config(path)
    async with journal_at(config, clock) as journal:
        await kept(journal, chat(1))
        client = await nats.connect(config.servers[0])
        stream, kept_there = client.jetstream(), f"{config.prefix}-demo"
        info = await stream.stream_info(kept_there)
        await stream.delete_stream(kept_there)
        if "0" in found:
            await stream.add_stream(info.config)
        await client.close()
        if says:
            journal.append("demo", NOW, chat(2), (), lambda _: pytest.fail("it is not kept"))
        assert f"{found}, and had 2" in await failure_of(journal)


async def test_what_waits_at_the_end_is_counted(
    wire: Wire, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with patch("meup_agent.gateway.journal.nats.journal.CLOSE_SECONDS", 0.01):
        async with journal_at(replace(nats_config(path), servers=(wire.url,)), clock) as journal:
            await kept(journal, chat(1))
            wire.hold()
            for number in range(2, 5):
                journal.append("demo", NOW, chat(number), (), lambda _: pytest.fail("it hangs"))
    assert "hangs; 3 messages that waited for it are lost" in caplog.text


async def test_a_later_release_may_say_more(path: Path, clock: Clock) -> None:
    """Fields that are not known here are left out, and another format is refused with its place."""
    config = nats_config(path)
    async with journal_at(config, clock) as journal:
        (first,) = await kept(journal, chat(1))
    stranger = await nats.connect(config.servers[0])

    async def write(*content: object) -> int:
        place = f"{config.prefix}.log.demo"
        body = msgspec.msgpack.encode(content)
        return (await stranger.jetstream().publish(place, body)).seq

    epoch = await write("meup/own/1", "later", "nonce", "9.9", NOW, {}, "more")
    entry = [NOW, chat(2).frame, (), b"", (), "more"]
    await write("meup/batch/1", epoch, [entry], "more")
    async with journal_at(config, clock) as journal:
        (third,) = await kept(journal, chat(3))
        assert ids(await read(journal)) == ["1", "2", "3"]
        assert (await read(journal))[0] == first
        assert (await read(journal))[2] == third
    sequence = await write("meup/own/2", {"node": "later"})
    await stranger.close()
    later = f"message {sequence} has the format 'meup/own/2', of a later version: upgrade"
    with pytest.raises(ConfigurationError, match=later):
        async with journal_at(config, clock) as journal:
            journal.recover("demo", since=0, limit=9)


class LaterBatch(records.Batch, array_like=True, tag="meup/batch/2"):
    """A batch of a format that the next release writes."""


async def test_an_owner_writes_what_every_gateway_reads(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = nats_config(path)
    async with journal_at(config, clock) as owner:
        with monkeypatch.context() as later:
            later.setitem(records.BATCHES, 2, LaterBatch)
            owner.format = lambda: 1  # an older gateway is there
            await kept(owner, chat(1))
            async with following(config, clock) as follower:
                assert await follower.comes("1") == ["1"]
            owner.format = lambda: 3  # all others are newer
            await kept(owner, chat(2))
    with pytest.raises(ConfigurationError, match=r"message 3 .* 'meup/batch/2', of a later"):
        async with following(config, clock) as follower:
            await follower.comes("2")


@pytest.mark.parametrize("space", ["a.b", "*", ">", "ü", "A", "a", "x" * 256, "\U0001f600" * 256])
async def test_any_name_has_a_log_of_its_own(path: Path, clock: Clock, space: str) -> None:
    async with journal_at(nats_config(path), clock) as journal:
        (said,) = await kept(journal, chat(1), space=space)
        await kept(journal, chat(2), space=space + "b")
        assert await read(journal, space) == (said,)
        assert len(token_of(space)) <= 120


async def test_facts_outlive_the_entries_that_made_them(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meup_agent.gateway.journal.nats.journal.CHECKPOINT_ENTRIES", 2)
    config = nats_config(path)
    async with journal_at(config, clock, max_bytes=20_000) as journal:
        await kept(journal, chat(1), facts=(Fact("grant/a", {"n": 1}), Fact("grant/b", {"n": 2})))
        await kept(journal, chat(2), facts=(Fact("grant/b", None),))
        journal.mark_seen("demo", "alice", NOW + 7)
        start = journal.floor("demo")
        for number in range(3, 100):
            await kept(journal, chat(number, message="x" * 1_000))
    async with journal_at(config, clock, max_bytes=20_000) as journal:
        assert journal.floor("demo") > start
        recovered = journal.recover("demo", since=0, limit=1_000)
        assert recovered.facts == {"grant/a": {"n": 1}}
        assert ids(recovered.entries)[-1] == "99"
        assert len(recovered.entries) < 30
        assert journal.seen("demo", "alice") == NOW + 7
        assert journal.resume_from("demo", start) == journal.floor("demo")


def with_another_space(config: Config) -> Config:
    (space,) = config.spaces
    (other,) = one_space_config("other", {"alice": [{"kind": "chat"}]}).spaces
    return replace(config, spaces=(space, other))


async def said_at_last(gateway: RunningGateway, token: str, number: str) -> None:
    """Say something in the first space, as soon as a member may."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                async with dial(gateway, token) as alice:
                    await alice.send(envelope("alice", id=number))
                    assert [said["id"] for said in await hear_chats(alice, 1)] == [number]
                    return
            except InvalidStatus:
                pass  # it is not there at the moment
            await anyio.sleep(0.05)


@pytest.mark.thorough
async def test_one_space_that_fails_stops_alone_and_goes_on_later(path: Path, clock: Clock) -> None:
    config = with_another_space(on_nats(path))
    place = config.journal.nats
    assert place is not None
    async with serve(config) as gateway, httpx.AsyncClient(timeout=PATIENCE) as client:
        token = first_token(config, "alice", "demo")
        other = f"{gateway.url}/ws?space=other"
        async with open_websocket(other, first_token(config, "alice", "other")) as stays:
            async with dial(gateway, token) as alice:
                # One that does not say that it is there.
                async with journal_at(place, clock) as second:
                    second.floor("demo")
                    await rest(alice)
                assert alice.close_code == 1012
            await said_at_last(gateway, token, "1")
            assert not gateway.runtime.stopped
            stranger = await nats.connect(place.servers[0])
            stream = stranger.jetstream()
            await stream.publish(f"{place.prefix}.log.demo", b"hello")
            await wait_until(lambda: gateway.runtime.stopped)
            ready = (await client.get(f"{gateway.http_url}/readyz")).json()
            assert ready["status"] == "ok"
            assert ready["stopped"][0].startswith("space 'demo': ")
            # Whoever put it there takes it away.
            await stream.delete_stream(f"{place.prefix}-demo")
            await stranger.close()
            await said_at_last(gateway, token, "2")
            assert (await client.get(f"{gateway.http_url}/readyz")).json() == {"status": "ok"}
            await stays.send(envelope("alice", id="3"))
            assert [said["id"] for said in await hear_chats(stays, 1)] == ["3"]


async def test_facts_of_a_later_owner_stay(path: Path, clock: Clock) -> None:
    """A gateway that was replaced writes down late what held when it was."""
    config = nats_config(path)
    async with journal_at(config, clock) as first, journal_at(config, clock) as second:
        await kept(first, chat(1), facts=(Fact("grant/a", {}),))
        late = first._checkpoint(first._spaces["demo"])
        await kept(second, chat(2), facts=(Fact("grant/a", None), Fact("grant/b", {})))
        space = second._spaces["demo"]
        second._link.wait(space.log.write_checkpoint(second._checkpoint(space)))
        first._link.wait(first._spaces["demo"].log.write_checkpoint(late))
        assert second._link.wait(space.log.read_checkpoint()).facts == {"grant/b": {}}


async def test_facts_that_are_written_down_while_a_log_is_looked_at_are_read(
    path: Path, clock: Clock
) -> None:
    """They may go further than the end that it had a moment before."""
    config = nats_config(path)
    async with journal_at(config, clock) as owner, journal_at(config, clock) as other:
        await kept(owner, chat(1))
        follower = other._follower_of("demo", NoFold)
        assert other._link.wait(follower.log.find())
        await kept(owner, chat(2), facts=(Fact("grant/a", {"n": 1}),))
        log = owner._spaces["demo"].log
        owner._link.wait(log.write_checkpoint(owner._checkpoint(owner._spaces["demo"])))
        assert other._link.wait(follower.log.read_checkpoint()).facts == {"grant/a": {"n": 1}}
        await follower.look()
        assert follower.known.facts == {"grant/a": {"n": 1}}


async def test_where_nothing_was_said_nothing_is_lost(path: Path, clock: Clock) -> None:
    """Its gateways' own messages are forgotten as others are."""
    for _ in range(6):
        async with journal_at(nats_config(path), clock, max_bytes=500) as journal:
            assert journal.recover("demo", since=0, limit=9).entries == ()
            first = journal._spaces["demo"].log.first
    assert first > 2


async def test_facts_that_are_not_what_was_written_down_are_refused(
    path: Path, clock: Clock
) -> None:
    """Also where they can be read: a part of those of another time, say."""
    config = nats_config(path)
    async with journal_at(config, clock) as journal:
        await kept(journal, chat(1), facts=(Fact("grant/a", {"n": 1}),))
    client = await nats.connect(config.servers[0])
    bucket = await client.jetstream().key_value(f"{config.prefix}-facts")
    (part,) = [each for each in await bucket.keys() if each != "demo"]
    said = (await bucket.get(part)).value
    assert said is not None
    await bucket.put(part, said.replace(b'"n":1', b'"n":7'))
    await client.close()
    with pytest.raises(ConfigurationError, match=r"damaged \(they are not what was written down\)"):
        async with journal_at(config, clock) as journal:
            journal.recover("demo", since=0, limit=9)


async def test_facts_that_are_lost_are_not_passed_over(path: Path, clock: Clock) -> None:
    config = nats_config(path)
    async with journal_at(config, clock, max_bytes=20_000) as journal:
        await kept(journal, chat(1), facts=(Fact("grant/a", {"n": 1}),))
        for number in range(2, 100):
            await kept(journal, chat(number, message="x" * 1_000))
        journal.abandon()  # as a killed gateway: its facts are in the log alone
    with pytest.raises(ConfigurationError, match="grants between them are not known"):
        async with journal_at(config, clock, max_bytes=20_000) as journal:
            journal.recover("demo", since=0, limit=9)
    async with journal_at(config, clock, max_bytes=20_000, accept_damage=True) as journal:
        assert journal.recover("demo", since=0, limit=9).facts == {}


async def test_facts_of_a_log_that_lost_its_end_are_not_passed_over(
    path: Path, clock: Clock
) -> None:
    config = nats_config(path)
    async with journal_at(config, clock) as journal:
        for number in range(9):
            await kept(journal, chat(number), facts=(Fact("grant/a", {"n": number}),))
    client = await nats.connect(config.servers[0])
    await client.jetstream().delete_stream(f"{config.prefix}-demo")
    await client.close()
    with pytest.raises(ConfigurationError, match=r"its facts were written down up to \d+: it was"):
        async with journal_at(config, clock) as journal:
            journal.floor("demo")
    async with journal_at(config, clock, accept_damage=True) as journal:
        await kept(journal, chat(1), facts=(Fact("grant/a", None),))
        journal.abandon()  # as a killed gateway: what holds is in the log alone
    async with journal_at(config, clock, accept_damage=True) as journal:
        assert journal.recover("demo", since=0, limit=9).facts == {}


async def test_clocks_a_minute_apart(path: Path, clock: Clock) -> None:
    config = nats_config(path)
    times: list[int] = []
    for at in (100.0, 40.0):
        async with journal_at(config, clock) as journal:
            scene = Scene({"alice": [{"kind": "chat"}]}, journal=journal, at=at)
            scene.say("alice", "chat", {"message": "hi"}, id=str(at))
            await settled(journal)
            times = [entry.at for entry in await read(journal)]
    assert times == sorted(times)
    assert len(times) == 2


def on_nats(path: Path, server: NatsServer | None = None) -> Config:
    return replace(config_with(path), journal=JournalConfig(nats=nats_config(path, server)))


async def test_console_says_that_nats_is_away(path: Path) -> None:
    with closing(NatsServer()) as server:
        async with (
            Gateway(config=on_nats(path, server), page=Console()) as gateway,
            httpx.AsyncClient(base_url=gateway.http_url or "", timeout=PATIENCE) as client,
        ):
            assert gateway.http_url is not None
            bob = Browser(client, gateway.http_url)
            assert (await bob.sign_in(gateway.token("bob"))).status_code == 303
            server.kill()
            with anyio.fail_after(PATIENCE):
                while (await client.get("/readyz")).status_code == 200:
                    pass
            page = await bob.get("/inbox")
            assert page.status_code == 503
            assert "cannot reach its journal" in page.text
            server.start()
            with anyio.fail_after(PATIENCE):
                while (await bob.get("/inbox")).status_code == 503:
                    pass


async def test_messages_that_do_not_fit_are_refused_at_the_start(path: Path) -> None:
    with closing(NatsServer(max_payload="1MB")) as server:
        config = on_nats(path, server)
        with pytest.raises(ConfigurationError, match="or raise max_payload on each server"):
            async with Gateway(config=config):
                pass
        with pytest.raises(ConfigurationError, match="the journal takes 983040"):
            ENGINES["nats"].check(config.journal, 4_194_304)
        assert ENGINES["nats"].check(config.journal, 983_040).startswith("NATS at nats://127.0.0.1")


def test_servers_that_are_not_there_are_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "CONNECT_SECONDS", 0.5)
    config = replace(nats_config(path), servers=("nats://me:secret@127.0.0.1:1",))
    with pytest.raises(ConfigurationError, match="cannot be reached") as raised:
        ENGINES["nats"].check(JournalConfig(nats=config), 1)
    assert "secret" not in str(raised.value)


@pytest.mark.thorough
def test_nobody_is_told_who_we_are_without_tls_that_is_wanted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "CONNECT_SECONDS", 3.0)
    here = nats_config(path, user="me", password="secret")
    config = replace(here, servers=(here.servers[0].replace("nats://", "tls://"),))
    with pytest.raises(ConfigurationError, match="it does not ask for TLS"):
        ENGINES["nats"].check(JournalConfig(nats=config), 1)


@pytest.mark.thorough
async def test_listed_permissions_are_all_that_it_needs(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    page = (ROOT / "docs" / "how-to" / "keep-the-journal-on-nats.md").read_text()
    listed = re.search(r"```text\n(publish: .*?)```", page, re.DOTALL)
    assert listed
    user = f"{{ user: gateway, password: secret, permissions: {{ {listed[1]} }} }}"
    server = NatsServer(settings=f"authorization {{ users: [ {user} ] }}")
    here = nats_config(path, server, user="gateway", password="secret")
    config = replace(here, prefix="meup")
    try:
        for number in range(2):
            async with journal_at(config, clock, max_age=3_600 + number) as journal:
                await kept(journal, chat(number), facts=(Fact(f"grant/{number}", {}),))
                assert len(await read(journal)) == number + 1
                assert len(journal.recover("demo", since=0, limit=9).facts) == number + 1
        async with journal_at(config, clock) as journal:
            for name in ("sessions", "links", "facts"):
                values = SharedValues(journal.link, config, name, 0 if name == "facts" else 600)
                assert await values.add("==a", b"1") == b"1"
                assert await values.add("==a", b"2") == b"1"
                await values.put("==a", b"3")
                assert await values.get("==a") == b"3"
                if name != "facts":
                    assert await values.take("==a")
                    assert not await values.take("==a")
                    assert await values.get("==a") is None
                    values.put_later("==b", b"4")
                    values.remove_later("==b")
                    while values._writing:
                        await anyio.lowlevel.checkpoint()
        async with journal_at(config, clock) as journal, following(config, clock) as follower:
            await kept(journal, chat(7))
            await follower.comes("7")
            assert follower.is_handed_over()
        first = replace(on_nats(path), journal=JournalConfig(nats=replace(config, node="here")))
        limits = replace(first.limits, max_open_proposals=7)
        async with serve(first) as gateway:
            await said_at_last(gateway, first_token(first, "alice", "demo"), "1")
            with pytest.raises(ConfigurationError, match="the gateway here has another"):
                async with serve(replace(first, limits=limits)):
                    pass
        with pytest.raises(ConfigurationError, match="correct the address or the user"):
            ENGINES["nats"].check(JournalConfig(nats=replace(config, password="other")), 1)
        assert "cannot be written" not in caplog.text
    finally:
        server.close()


async def test_too_few_servers_are_named_with_what_to_do(path: Path, clock: Clock) -> None:
    three = replace(nats_config(path), replicas=3)
    with pytest.raises(ConfigurationError, match=r"is one server alone.* set replicas: 1"):
        ENGINES["nats"].check(JournalConfig(nats=three), 1)
    async with journal_at(three, clock) as journal:
        with pytest.raises(ConfigurationError, match="set replicas: 1"):
            journal.floor("demo")
