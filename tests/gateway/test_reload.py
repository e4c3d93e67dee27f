"""A configuration that is read again: who is let in, who is closed, and what waits for a start."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.streams.tls import TLSAttribute
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from websockets.asyncio.client import ClientConnection

from meup_agent import Agent, Space
from meup_agent.approval import Reviewer
from meup_agent.errors import ConfigurationError
from meup_agent.gateway import Config, GatewayLimits, SpaceConfig, TlsConfig
from tests.gateway.conftest import envelope
from tests.gateway.dialing import close_code
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateway.websocket_client import hear_until, open_websocket, refusal
from tests.gateways import (
    BESIDE_HEADER,
    OBSERVE_HEADER,
    ConfigChange,
    RunningGateway,
    new_token,
    participant,
    serve,
    websocket_connector,
)
from tests.patience import PATIENCE

CHAT = ({"kind": "chat"},)
ALL = ({"kind": "*"},)
NAMES = ("ann", "bob", "eve")
TOKENS = {name: (new_token(), new_token()) for name in NAMES}


def config(names: dict[str, Any]) -> Config:
    """A space of participants, each with its capabilities, and its tokens if they are others."""
    entries = {}
    for name, said in names.items():
        may, tokens = said if isinstance(said[0], tuple) else (said, TOKENS[name])
        entries[name] = participant(name, may, tokens)
    return Config((SpaceConfig("demo", entries),), port=0)


def url(gateway: RunningGateway) -> str:
    return f"{gateway.url}/ws?space=demo"


def new_certificate() -> bytes:
    """A certificate that nobody has seen before, and its key."""
    key, name = generate_private_key(SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=True)
        .sign(key, hashes.SHA256())
    )
    written = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.public_bytes(Encoding.PEM) + written


@asynccontextmanager
async def member(
    gateway: RunningGateway, name: str, token: int = 0, **headers: str
) -> AsyncGenerator[ClientConnection]:
    async with open_websocket(url(gateway), TOKENS[name][token], headers=headers) as client:
        await hear_until(client, kind="system.welcome")
        yield client


async def still_there(client: ClientConnection, name: str) -> None:
    said = new_token()
    await client.send(envelope(name, id=said))
    assert (await hear_until(client, id=said))["from"] == name


@pytest.mark.rule("3.reload")
async def test_a_token_that_is_gone_ends_its_connections_and_no_other() -> None:
    before = config({"ann": CHAT, "bob": CHAT})
    beside = {BESIDE_HEADER: "1"}
    async with (
        serve(before) as gateway,
        member(gateway, "ann") as ann,
        member(gateway, "ann", 1, **beside) as other,
        member(gateway, "bob") as bob,
    ):
        change = gateway.reload(config({"ann": (CHAT, TOKENS["ann"][1:]), "bob": CHAT}))
        assert str(change) == "changed ann"
        assert await close_code(ann) == 4401
        await still_there(other, "ann")
        await still_there(bob, "bob")
        assert (await refusal(url(gateway), TOKENS["ann"][0])).status_code == 401


@pytest.mark.rule("3.reload")
async def test_a_message_whose_token_is_gone_before_its_end_is_refused() -> None:
    body = b'{"kind": "chat", "payload": {}}'
    async with serve(config({"ann": CHAT})) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(
            b"POST /participants/ann/messages HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n"
            % (TOKENS["ann"][0].encode(), len(body))
        )
        with anyio.fail_after(PATIENCE):
            assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
            gateway.reload(config({"ann": (CHAT, TOKENS["ann"][1:])}))
            writer.write(body)
            assert b" 401 " in await reader.readline()
        writer.close()


@pytest.mark.rule("3.reload")
async def test_one_who_is_not_listed_any_more_leaves_and_a_new_one_comes() -> None:
    async with (
        serve(config({"ann": CHAT, "bob": CHAT})) as gateway,
        member(gateway, "ann") as ann,
        member(gateway, "bob") as bob,
    ):
        change = gateway.reload(config({"ann": CHAT, "eve": CHAT}))
        assert str(change) == "added eve; removed bob"
        assert await close_code(bob) == 4401
        left = await hear_until(ann, kind="system.presence")
        while left["payload"]["event"] != "leave":
            left = await hear_until(ann, kind="system.presence")
        assert left["payload"]["participant"]["id"] == "bob"
        async with member(gateway, "eve") as eve:
            await still_there(eve, "eve")
        gateway.reload(config({"ann": CHAT, "bob": CHAT}))
        async with member(gateway, "bob") as again:
            await still_there(again, "bob")
        await still_there(ann, "ann")


@pytest.mark.rule("3.reload", "5.votes.removed")
@pytest.mark.parametrize("is_here", [True, False])
async def test_the_vote_of_one_who_is_not_listed_any_more_is_taken_back(
    is_here: bool, tmp_path: Path
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("rules: [{quorum: {tool: add, of: 2, among: [ann, bob, eve]}}]\nend: true\n")
    tools = Agent("tools")
    tools.tool(add)
    names = ("tools", "reviewer", "proposer", *NAMES)
    tokens = {name: new_token() for name in names}
    before = config({name: (ALL, (tokens[name],)) for name in names})
    after = config({name: (ALL, (tokens[name],)) for name in names if name != "ann"})
    with anyio.fail_after(PATIENCE):
        async with serve(before) as gateway, AsyncExitStack() as stack:

            def join(agent: Agent | Reviewer, name: str) -> AbstractAsyncContextManager[Space]:
                dial = websocket_connector(gateway.url, space="demo")
                return agent.join(dial, token=tokens[name])

            await stack.enter_async_context(join(tools, "tools"))
            await stack.enter_async_context(join(Reviewer(path), "reviewer"))
            proposer = await stack.enter_async_context(join(Agent("proposer"), "proposer"))
            bob = await stack.enter_async_context(join(Agent("bob"), "bob"))
            call = proposer.propose("tools", "add", {"a": 1}, ttl=None, to="reviewer")
            proposal = await stack.enter_async_context(call)
            about = {"proposal": proposal.id, "proposer": "proposer", "vote": "approve"}
            async with join(Agent("ann"), "ann") as ann:
                found = await ann.request("reviewer", "dev.meup/vote", about)
                assert found["votes"] == {"ann": "approve"}
                if is_here:
                    gateway.reload(after)
            gateway.reload(after)
            found = await bob.request("reviewer", "dev.meup/vote", about)
            assert (found["votes"], found["outcome"]) == ({"bob": "approve"}, "open")


async def add(a: int) -> int:
    return a


@pytest.mark.rule("3.reload", "3.manage.rests")
async def test_other_capabilities_are_told_and_take_what_rests_on_them() -> None:
    grant = {"recipient": "eve", "capabilities": [{"kind": "chat"}]}
    before = {"ann": ALL, "bob": CHAT, "eve": ({"kind": "mcp/proposal"},)}
    async with (
        serve(config(before)) as gateway,
        member(gateway, "ann") as ann,
        member(gateway, "eve") as eve,
    ):
        await ann.send(envelope("ann", "capability/grant", grant, id="g1"))
        await hear_until(eve, kind="system.welcome")
        await still_there(eve, "eve")
        less = ({"kind": "mcp/request"},)
        assert str(gateway.reload(config(before | {"ann": less}))) == "changed ann"
        for client, name in ((ann, "ann"), (eve, "eve")):
            said = await hear_until(client, kind="system.welcome")
            assert {"kind": "chat"} not in said["payload"]["you"]["capabilities"]
            await client.send(envelope(name, id=new_token()))
            await hear_until(client, kind="system.error")


@pytest.mark.rule("3.reload")
async def test_what_is_wrong_changes_nothing_and_who_was_invited_stays() -> None:
    before = config({"ann": ALL, "bob": CHAT})
    async with serve(before) as gateway, member(gateway, "ann") as ann:
        invite = {"participant_id": "guest", "initial_capabilities": [{"kind": "chat"}]}
        await ann.send(envelope("ann", "space/invite", invite, id="i1"))
        invited = await hear_until(ann, kind="space.invite-ack")
        token = invited["payload"]["token"]
        async with open_websocket(url(gateway), token) as guest:
            for taken in (TOKENS["ann"], (token,)):
                with pytest.raises(ConfigurationError, match="has a token of"):
                    gateway.reload(config({"ann": ALL, "bob": (CHAT, taken)}))
            async with member(gateway, "bob") as bob:
                await still_there(bob, "bob")
            gateway.reload(config({"ann": ALL}))
            await still_there(ann, "ann")
            await still_there(guest, "guest")


async def test_what_takes_effect_at_the_next_start_is_told() -> None:
    before = config({"ann": CHAT})
    async with serve(before) as gateway:
        after = replace(
            config({"ann": CHAT}),
            port=1,
            limits=GatewayLimits(max_members=7),
            spaces=(*before.spaces, SpaceConfig("more", {})),
            tls=TlsConfig(Path("c"), Path("k")),
        )
        change = gateway.runtime.reload(after)
        assert change.waiting == ("gateway.port", "gateway.max_members", "tls", "spaces.more")
        assert gateway.runtime.reload(before).waiting == ()


@pytest.mark.rule("3.reload")
async def test_event_streams_end_with_their_token() -> None:
    async with (
        serve(config({"ann": CHAT, "bob": CHAT})) as gateway,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        assert gateway.http_url is not None
        for observes in ({}, {OBSERVE_HEADER: "1"}):
            proof = {"Authorization": f"Bearer {TOKENS['ann'][0]}", **observes}
            address = f"{gateway.http_url}/spaces/demo/events"
            async with client.stream("GET", address, headers=proof) as stream:
                assert stream.status_code == 200
                gateway.reload(config({"ann": (CHAT, TOKENS["ann"][1:]), "bob": CHAT}))
                with anyio.fail_after(PATIENCE):
                    async for _ in stream.aiter_raw():
                        pass
            gateway.reload(config({"ann": CHAT, "bob": CHAT}))


@pytest.mark.rule("3.reload")
async def test_the_name_of_one_who_is_not_listed_any_more_may_be_invited() -> None:
    async with serve(config({"ann": ALL, "bob": CHAT})) as gateway, member(gateway, "ann") as ann:
        gateway.reload(config({"ann": ALL}))
        invite = {"participant_id": "bob", "initial_capabilities": list(CHAT)}
        await ann.send(envelope("ann", "space/invite", invite, id="i1"))
        token = (await hear_until(ann, kind="space.invite-ack"))["payload"]["token"]
        async with open_websocket(url(gateway), token) as bob:
            await hear_until(bob, kind="system.welcome")
            await still_there(bob, "bob")
            gateway.reload(config({"ann": ALL}))
            await still_there(bob, "bob")
        assert (await refusal(url(gateway), TOKENS["bob"][0])).status_code == 401


async def test_a_certificate_that_is_replaced_meanwhile_is_the_one_that_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "both.pem"

    def write_certificate() -> bytes:
        file.write_bytes(new_certificate())
        return ssl.PEM_cert_to_DER_cert(file.read_text().partition("-----BEGIN PRIVATE")[0])

    async def shown(name: str | None) -> bytes | None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        port = gateway.port
        async with await anyio.connect_tcp(
            "127.0.0.1", port, ssl_context=context, tls_hostname=name or "127.0.0.1"
        ) as stream:
            seen: bytes | None = stream.extra(TLSAttribute.peer_certificate_binary)
            return seen

    first = write_certificate()
    settings = replace(config({"ann": CHAT}), tls=TlsConfig(file, file))
    async with serve(settings) as gateway:
        assert await shown(None) == first
        second = write_certificate()
        take_over = gateway.runtime.reload

        def replace_then(read: Config) -> ConfigChange:
            file.write_text("half of a certificate")
            return take_over(read)

        monkeypatch.setattr(gateway.runtime, "reload", replace_then)
        change = gateway.reload(replace(config({"ann": CHAT, "eve": CHAT}), tls=settings.tls))
        assert str(change) == "added eve"
        assert [await shown(None), await shown("localhost")] == [second, second]
        with pytest.raises(ConfigurationError, match="are not a certificate"):
            gateway.reload(settings)
        assert await shown("localhost") == second
