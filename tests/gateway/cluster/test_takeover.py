"""Several gateways with one configuration: who is active, and what members see of a change."""

import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import anyio.to_thread
import pytest
from websockets.exceptions import InvalidStatus

from meup_agent.cli import exit_codes
from meup_agent.errors import ConfigurationError
from meup_agent.gateway import Config, Gateway, JournalConfig
from meup_agent.gateway.cluster import keeper
from meup_agent.gateway.config import NO_CAPABILITIES
from meup_agent.gateway.journal.nats.follower import LogFollower
from meup_agent.gateway.journal.nats.journal import NatsJournal
from tests.cli.processes import Running, running
from tests.gateway.conftest import envelope
from tests.gateway.journal.conftest import nats_config, postgres_config
from tests.gateway.journal.test_gateway import config_with, dial, hear_chats, rest
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateway.websocket_client import hear_until, open_websocket
from tests.gateways import LAST_SEEN_HEADER, RESUME_HEADER
from tests.nats_servers import shared_server
from tests.patience import PATIENCE, patient, wait_until
from tests.postgres_servers import shared_postgres

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["NATS", "PostgreSQL"])
def engine(request: pytest.FixtureRequest) -> str:
    """The server of the journal."""
    name: str = request.param
    return name


@pytest.fixture
def config(tmp_path: Path, engine: str) -> Config:
    """That of each gateway of a test."""
    if engine == "NATS":
        journal = JournalConfig(nats=nats_config(tmp_path))
    else:
        journal = JournalConfig(postgres=postgres_config(tmp_path))
    return _named(config_with(tmp_path), journal, "first")


def _named(config: Config, journal: JournalConfig, node: str) -> Config:
    nats, postgres = journal.nats, journal.postgres
    named = JournalConfig(
        nats=nats and replace(nats, node=node), postgres=postgres and replace(postgres, node=node)
    )
    return replace(config, journal=named)


def second_of(config: Config) -> Config:
    return _named(config, config.journal, "second")


WAITS = {
    "NATS": "there are other gateways: 'first'",
    "PostgreSQL": "the gateway 'first' is at work",
}
"""What one that waits says."""


class Standby:
    """A gateway that takes spaces as soon as it may, until the test is over."""

    def __init__(self, config: Config) -> None:
        self.gateway = Gateway(config=config)
        self.begun, self.active = anyio.Event(), anyio.Event()
        self.over = anyio.Event()

    @property
    def keeper(self) -> keeper.SpaceKeeper:
        """That of its spaces, once it has begun."""
        found = self.gateway._gateway.keeper
        assert isinstance(found, keeper.SpaceKeeper)
        return found

    async def run(self) -> None:
        async with self.gateway:
            self.begun.set()
            while not self.gateway._gateway.runtime.spaces:  # noqa: ASYNC110 - nobody is told of it
                await anyio.sleep(0.01)
            self.active.set()
            await self.over.wait()


@pytest.fixture
def nobody_hangs() -> Generator[None]:
    """Nobody is taken to hang, however slow the machine is."""
    with patient("meup_agent.gateway.cluster.membership.SILENT_SECONDS"):
        yield


@pytest.mark.parametrize("way", ["in order", "killed"])
@pytest.mark.usefixtures("nobody_hangs")
async def test_one_that_waits_takes_over(
    config: Config, engine: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "meup_agent.gateway")
    standby = Standby(second_of(config))
    active, second = standby.active, standby.gateway
    async with anyio.create_task_group() as tasks:
        async with Gateway(config=config) as first:
            async with dial(first, first.token("alice")) as alice:
                await alice.send(envelope("alice", id="1"))
                (one,) = await hear_chats(alice, 1)
                tasks.start_soon(standby.run)
                await wait_until(lambda: WAITS[engine] in caplog.text)
                assert not active.is_set()
                if way == "killed":
                    first.kill()
                else:
                    await alice.send(envelope("alice", id="2"))
                    await hear_chats(alice, 1)
        with anyio.fail_after(PATIENCE):
            await active.wait()
        async with dial(second, second.token("alice"), one["seq"]) as again:
            await again.send(envelope("alice", id="3"))
            said = await hear_chats(again, 1 if way == "killed" else 2)
            assert [each["id"] for each in said] == (["3"] if way == "killed" else ["2", "3"])
        standby.over.set()


@asynccontextmanager
async def taken_over(config: Config, late: anyio.Event) -> AsyncGenerator[Standby]:
    """One that waits, whose first gateway ends in order once it follows the log, or wants to.

    It has read the space's log when the event comes, and goes on when that is set.
    """
    standby, reads = Standby(second_of(config)), anyio.Event()
    finish = LogFollower[Any].finish

    async def finish_late(follower: LogFollower[Any]) -> None:
        await finish(follower)
        reads.set()
        await late.wait()

    async with anyio.create_task_group() as tasks:
        async with Gateway(config=config):
            tasks.start_soon(standby.run)
            with anyio.fail_after(PATIENCE):
                await standby.begun.wait()
                await wait_until(lambda: standby.keeper._followed)
            patched = mock.patch.object(LogFollower, "finish", finish_late)
            patched.start()
        try:
            with anyio.fail_after(PATIENCE):
                await reads.wait()
        finally:
            patched.stop()
        yield standby
        standby.over.set()


@pytest.mark.parametrize("engine", ["NATS"], indirect=True)
@pytest.mark.usefixtures("nobody_hangs")
async def test_what_is_read_again_while_a_space_is_taken_over_holds_there(config: Config) -> None:
    late = anyio.Event()
    async with taken_over(config, late) as standby:
        (space,) = config.spaces
        alice = replace(space.participants["alice"], capabilities=NO_CAPABILITIES)
        less = replace(space, participants={**space.participants, "alice": alice})
        gateway = standby.gateway
        gateway._gateway.runtime.reload(replace(second_of(config), spaces=(less,)))
        late.set()
        with anyio.fail_after(PATIENCE):
            await standby.active.wait()
        async with dial(gateway, gateway.token("alice")) as client:
            await client.send(envelope("alice", id="1"))
            await hear_until(client, kind="system.error")


@pytest.mark.parametrize("engine", ["NATS"], indirect=True)
async def test_who_reads_a_file_again_is_told_of_by_one_that_did_not(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    standby = Standby(second_of(config))
    async with Gateway(config=config) as first, anyio.create_task_group() as tasks:
        tasks.start_soon(standby.run)
        with anyio.fail_after(PATIENCE):
            await standby.begun.wait()
        (space,) = config.spaces
        alice = replace(space.participants["alice"], capabilities=NO_CAPABILITIES)
        less = replace(space, participants={**space.participants, "alice": alice})
        first._gateway.runtime.reload(replace(config, spaces=(less,)))
        told = f"another configuration at 'spaces.{space.id}'"
        await wait_until(lambda: told in caplog.text)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("engine", ["NATS"], indirect=True)
async def test_gateways_write_the_oldest_format_that_one_of_them_announces(config: Config) -> None:
    standby = Standby(second_of(config))
    async with Gateway(config=config) as first, anyio.create_task_group() as tasks:
        tasks.start_soon(standby.run)
        with anyio.fail_after(PATIENCE):
            await standby.begun.wait()
        mine = first._gateway.keeper
        assert isinstance(mine, keeper.SpaceKeeper)
        mine.membership._own.format, standby.keeper.membership._own.format = 5, 4
        await wait_until(lambda: mine.membership.common_format() == 4)
        (journal,) = mine._owned.values()
        assert journal.format() == 4
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("engine", ["NATS"], indirect=True)
@pytest.mark.usefixtures("nobody_hangs")
async def test_a_log_is_not_followed_once_the_space_is_there(config: Config) -> None:
    """Also where its turn to be read comes late."""
    late, read = anyio.Event(), list[str]()
    late.set()

    async def follow(journal: NatsJournal, space: str, begin: object) -> bool:
        read.append(space)
        return False

    with (
        mock.patch.object(keeper, "READS_AT_ONCE", 0),
        mock.patch.object(NatsJournal, "follow", follow),
    ):
        async with taken_over(config, late) as standby:
            with anyio.fail_after(PATIENCE):
                await standby.active.wait()
                read.clear()  # what the takeover itself read
                standby.keeper._reads.release()
                await standby.keeper._reads.acquire()  # its turn has been
    assert read == []


@pytest.mark.usefixtures("nobody_hangs")
async def test_another_configuration_is_refused_with_its_key(config: Config) -> None:
    other = second_of(config)
    limits = replace(other.limits, max_open_proposals=7)
    async with Gateway(config=config):
        with pytest.raises(ConfigurationError, match=r"^gateway.max_open_proposals: the gateway"):
            async with Gateway(config=replace(other, limits=limits)):
                pass


SPACE = """
spaces:
  demo:
    participants:
      alice: {{tokens: [alice-token-of-this-test], capabilities: [{{kind: chat}}]}}
journal:
"""
NATS = '  nats: {{servers: ["{url}"], prefix: {prefix}, replicas: 1, node: {node}}}\n'
POSTGRES = '  postgres: {{url: "{url}", schema: {prefix}, node: {node}}}\n'


def _write(folder: Path, node: str, engine: str) -> str:
    file = folder / f"{node}.yaml"
    prefix = nats_config(folder).prefix
    form, server = NATS, shared_server().url
    if engine == "PostgreSQL":
        form, server = POSTGRES, shared_postgres().url
    file.write_text(SPACE.format() + form.format(url=server, prefix=prefix, node=node))
    return str(file)


def _port_of(process: Running) -> int:
    """The port at which it listens."""
    text = "listening at ws://127.0.0.1:"
    process.until(text, stream="err")
    said = process.err.split(text)[1]
    while not said.partition(" ")[1]:
        process.until(" ", stream="err", after=said)
        said = process.err.split(text)[1]
    return int(said.partition(" ")[0])


SLEEPER = (
    sys.executable,
    "-c",
    """
import runpy, signal, time

slept = 0

def sleep_for_an_hour(*_):
    global slept
    slept = 3_600

def ahead(clock, second):
    return lambda: clock() + slept * second

for name in ("time", "monotonic"):
    setattr(time, name, ahead(getattr(time, name), 1))
    setattr(time, f"{name}_ns", ahead(getattr(time, f"{name}_ns"), 1_000_000_000))
signal.signal(signal.SIGUSR1, sleep_for_an_hour)
runpy.run_module("meup_agent.cli", run_name="__main__")
""",
)
"""A program whose clocks are an hour ahead once it has got a signal."""


async def say(port: int, token: str, number: str, seen: int | None = None) -> list[dict[str, Any]]:
    """Say something as soon as that may be; the chats heard until then, since one with a number."""
    headers = {RESUME_HEADER: "1"}
    if seen is not None:
        headers[LAST_SEEN_HEADER] = str(seen)
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                url = f"ws://127.0.0.1:{port}/ws?space=demo"
                async with open_websocket(url, token, headers=headers) as alice:
                    await alice.send(envelope("alice", id=number))
                    heard = await hear_chats(alice, 1)
                    while heard[-1]["id"] != number:
                        heard += await hear_chats(alice, 1)
                    return heard
            except InvalidStatus:
                await anyio.sleep(0.05)  # it is not there yet


@pytest.mark.thorough
async def test_one_that_sleeps_for_an_hour_is_replaced_and_waits_when_it_wakes(
    tmp_path: Path, engine: str
) -> None:
    """A message of a member to it meanwhile is nobody's; it takes the space again when it may."""
    token = "alice-token-of-this-test"
    with ExitStack() as stack:
        file = _write(tmp_path, "first", engine)
        first = stack.enter_context(
            running("gateway", "--config", file, "--port", "0", command=SLEEPER)
        )
        port = await anyio.to_thread.run_sync(_port_of, first)
        (begin,) = await say(port, token, "0")
        second = stack.enter_context(
            running("gateway", "--config", _write(tmp_path, "second", engine), "--port", "0")
        )
        await anyio.to_thread.run_sync(lambda: second.until(WAITS[engine], stream="err"))
        async with open_websocket(f"ws://127.0.0.1:{port}/ws?space=demo", token) as stays:
            await hear_chats(stays, 0)
            first.process.send_signal(signal.SIGSTOP)
            await stays.send(envelope("alice", id="stale"))
            await say(await anyio.to_thread.run_sync(_port_of, second), token, "1")
            first.process.send_signal(signal.SIGUSR1)
            first.process.send_signal(signal.SIGCONT)
            assert "chat" not in {each["kind"] for each in await rest(stays)}
            assert stays.close_code == 1012
        second.process.kill()
        heard = await say(port, token, "2", begin["seq"])
        assert [each["id"] for each in heard] == ["1", "2"]
        assert await anyio.to_thread.run_sync(first.end, signal.SIGTERM) == exit_codes.OK


@pytest.mark.thorough
async def test_an_output_log_is_refused_where_gateways_are_several(
    config: Config, tmp_path: Path
) -> None:
    (space,) = config.spaces
    alice = replace(space.participants["alice"], output_log=tmp_path / "out.log")
    logging = replace(
        config, spaces=(replace(space, participants={**space.participants, "alice": alice}),)
    )
    nats = config.journal.nats
    if nats is not None:
        shared = replace(nats, advertise="127.0.0.1:1", cluster_token="secret")
        logging = replace(logging, journal=JournalConfig(nats=shared))
    async with AsyncExitStack() as stack:
        if nats is None:  # nothing says that there are several until the second one starts
            await stack.enter_async_context(Gateway(config=config))
        with pytest.raises(ConfigurationError, match=r"^output_log: .*out.log of 'alice' is on"):
            async with Gateway(config=logging):
                pass


async def test_one_that_waits_ends_when_it_is_told_to(tmp_path: Path, engine: str) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(
            running("gateway", "--config", _write(tmp_path, "first", engine), "--port", "0")
        )
        await anyio.to_thread.run_sync(_port_of, first)
        second = stack.enter_context(
            running("gateway", "--config", _write(tmp_path, "second", engine), "--port", "0")
        )
        await anyio.to_thread.run_sync(_port_of, second)
        assert await anyio.to_thread.run_sync(second.end, signal.SIGINT) == exit_codes.OK
