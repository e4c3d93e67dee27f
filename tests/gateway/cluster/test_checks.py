"""What is refused before a gateway on NATS begins, by ``--check`` as at the start, with its key."""

from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import nats
import pytest

from meup_agent.cli import exit_codes
from meup_agent.cli.commands.gateway import describe_checked
from meup_agent.errors import ConfigurationError
from meup_agent.gateway import Config, Gateway, JournalConfig
from meup_agent.gateway.cluster.membership import config_parts
from meup_agent.gateway.cluster.placement import NodeHeartbeat
from meup_agent.gateway.cluster.signing import Signer
from meup_agent.gateway.config import NatsConfig
from meup_agent.gateway.journal.nats.records import (
    Ownership,
    decode_message,
    encode_batch,
    token_of,
)
from tests.cli.processes import meup
from tests.gateway.journal.conftest import nats_config
from tests.gateway.journal.test_gateway import config_with
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.nats_servers import NatsServer, held_port, shared_server
from tests.patience import PATIENCE


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return at(config_with(tmp_path), nats_config(tmp_path))


def at(config: Config, place: NatsConfig) -> Config:
    return replace(config, journal=JournalConfig(nats=place))


def place_of(config: Config) -> NatsConfig:
    assert config.journal.nats is not None
    return config.journal.nats


async def refused(config: Config, said: str) -> None:
    """Both by ``--check``, and at the start."""
    with pytest.raises(ConfigurationError, match=said):
        describe_checked(config)
    with pytest.raises(ConfigurationError, match=said):
        async with Gateway(config=config):
            pass


async def test_several_gateways_on_one_replica(config: Config) -> None:
    several = replace(place_of(config), advertise="10.0.0.1:8430", cluster_token="secret")
    await refused(at(config, several), r"^journal\.nats\.replicas: 1 would leave several gateways")
    # Of one machine: nothing outlives that anyway.
    describe_checked(at(config, replace(several, advertise="127.0.0.1:8430")))


async def test_an_output_log_with_several_gateways(config: Config) -> None:
    several = replace(place_of(config), advertise="127.0.0.1:1", cluster_token="secret")
    (space,) = config.spaces
    alice = replace(space.participants["alice"], output_log=Path("out.log"))
    participants = {**space.participants, "alice": alice}
    logged = replace(config, spaces=(replace(space, participants=participants),))
    await refused(at(logged, several), r"^output_log: out\.log of 'alice' is on one machine")


def test_a_space_to_try_things_out(tmp_path: Path) -> None:
    done = meup(
        *("gateway", "--dev", "--port", "0"),
        variables={"MEUP_GATEWAY_JOURNAL_NATS": shared_server().url},
    )
    assert done.returncode == exit_codes.USAGE
    assert "--dev keeps its tokens on this machine, and journal.nats is for several" in done.stderr


async def test_one_replica_that_is_not_on_the_disk(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        held, port = held_port()
        stack.enter_context(held)
        settings = f"http: 127.0.0.1:{port}"
        server = NatsServer(settings=settings, sync_interval="2m")
        stack.callback(server.close)
        here = replace(
            place_of(config), servers=(server.url,), monitoring=f"http://127.0.0.1:{port}/"
        )
        await refused(at(config, here), r"^journal\.nats\.replicas: of 1 copy a power cut may")
        server.kill()
        server.sync_interval = "always"
        server.start()
        describe_checked(at(config, here))
        assert capsys.readouterr().err == ""
        async with Gateway(config=at(config, here)):
            pass
        other = replace(here, servers=(shared_server().url,))
        await refused(at(config, other), r"^journal\.nats\.monitoring: http.* of another server")
        nobody = replace(here, monitoring=server.url.replace("nats", "http"))
        await refused(at(config, nobody), r"^journal\.nats\.monitoring: http.* does not answer as")
        describe_checked(at(config, replace(here, monitoring=None)))
        assert "is not seen from here; give its monitoring port" in capsys.readouterr().err


async def test_a_stream_that_takes_other_subjects(config: Config) -> None:
    prefix = place_of(config).prefix
    stranger = await nats.connect(shared_server().url)
    await stranger.jetstream().add_stream(name=f"{prefix}-demo", subjects=[f"{prefix}.log.>"])
    await refused(config, rf"^journal\.nats\.prefix: the stream {prefix}-demo is not the log of")
    await stranger.close()


async def test_two_clusters_with_one_stream(config: Config) -> None:
    """A prefix and a space of one are together what they are of the other."""
    (space,) = config.spaces
    other = replace(place_of(config), prefix=f"{place_of(config).prefix}-a")
    async with Gateway(config=replace(config, spaces=(replace(space, id="a-demo"),))):
        await refused(at(config, other), r"^journal\.nats\.prefix: the stream .* is not the log")


async def _publish(config: Config, body: bytes) -> int:
    stranger = await nats.connect(shared_server().url)
    written = await stranger.jetstream().publish(f"{place_of(config).prefix}.log.demo", body)
    await stranger.close()
    return written.seq


@pytest.mark.parametrize(
    ("body", "why"),
    [(lambda: b"hello", "was not written by"), (lambda: encode_batch(1, []), "did not own")],
    ids=["a stranger's", "of a stale epoch"],
)
async def test_a_message_that_no_owner_wrote(
    config: Config, body: Callable[[], bytes], why: str
) -> None:
    for _ in range(2):
        async with Gateway(config=config):
            pass
    sequence = await _publish(config, body())
    with pytest.raises(ConfigurationError, match=f"message {sequence} .*{why}"):
        async with Gateway(config=config):
            pass


async def test_nobody_without_the_token_names_a_gateway(config: Config) -> None:
    """Nor does who has kept what one with the token said once, its answers included."""
    (first, _), (second, _) = pairs = held_port(), held_port()
    ports = [port for _, port in pairs]
    here = replace(place_of(config), advertise=f"127.0.0.1:{ports[0]}", cluster_token="secret")
    stranger, names = await nats.connect(shared_server().url), list[str]()
    async with Gateway(config=at(config, here), port=0) as gateway:
        keeper = gateway._gateway.keeper
        assert keeper is not None
        assert keeper.membership is not None
        mine = keeper.membership

        async def says(nonce: str, signer: Signer, message: bytes = b"") -> bytes:
            beat = NodeHeartbeat(nonce, nonce, "", "127.0.0.1:1", {"demo": 2**60})
            sent = message or signer.sign(msgspec.msgpack.encode(beat))
            await stranger.publish(f"{here.prefix}.beat", sent)
            return sent

        async def seen(nonce: str, *, there: bool = True) -> None:
            with anyio.fail_after(PATIENCE):
                while (nonce in mine.nodes) is not there:
                    await mine.changed.wait()

        @asynccontextmanager
        async def answers(nonce: str, sign: Callable[[bytes], bytes]) -> AsyncGenerator[None]:
            async def answer(message: Any) -> None:
                await stranger.publish(message.reply, sign(message.data))

            listening = await stranger.subscribe(f"{here.prefix}.ask.{nonce}", cb=answer)
            yield
            await listening.unsubscribe()

        secret = Signer("secret")
        for token in ("", "another"):
            await says("liar", Signer(token))
        async with answers("first", partial(secret.sign, b"\x80")):
            old = await says("first", secret)
            await seen("first")
        await seen("first", there=False)  # nobody answers for it
        await says("first", Signer(""), old)
        kept = secret.sign(b"\x80", b"of before")
        async with (
            answers("kept", lambda _: kept),
            answers("second", partial(secret.sign, b"\x80")),
        ):
            await says("kept", secret)
            await says("silent", secret)
            await says("second", secret)
            await seen("second")
        names = list(mine.nodes)
        advertise = f"127.0.0.1:{ports[1]}"
        other = at(config, replace(here, advertise=advertise, cluster_token="another"))
        with pytest.raises(ConfigurationError, match=r"^journal\.nats\.cluster_token: the gateway"):
            async with Gateway(config=other, port=0):
                pass
    await stranger.close()
    for held in (first, second):
        held.close()
    assert sorted({*names} - {mine.nonce}) == ["second"]


async def test_metrics_say_whose_they_are(config: Config) -> None:
    named = at(config, replace(place_of(config), node="here"))
    async with Gateway(config=named) as gateway, httpx.AsyncClient(timeout=PATIENCE) as client:
        lines = (await client.get(f"{gateway.http_url}/metrics")).text.splitlines()
    assert 'meup_connections{node="here"} 0.0' in lines
    assert 'meup_members{node="here",space="demo"} 0.0' in lines


async def test_who_owns_writes_down_by_which_configuration(config: Config) -> None:
    async with Gateway(config=config):
        client = await nats.connect(shared_server().url)
        stream = f"{place_of(config).prefix}-{token_of('demo')}"
        first = await client.jetstream().get_msg(stream, seq=1)
        await client.close()
    own = decode_message(1, first.data or b"")
    assert isinstance(own, Ownership)
    assert own.config == config_parts(config)
