"""Tokens: not to be guessed, and found in no log, error, answer or file."""

import contextlib
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from meup_agent.gateway import (
    Config,
    GatewayLimits,
    JournalConfig,
    RunningGateway,
    SpaceConfig,
    serve,
)
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.gateway.conftest import envelope
from tests.gateway.websocket_client import hear_until, open_websocket, refusal
from tests.gateways import participant
from tests.no_tls import ALONE
from tests.patience import PATIENCE

TOKENS = {"alice": "alices-very-own-token", "bob": "bobs-very-own-token"}
MADE_UP = "somebodys-made-up-token"
ANYTHING = [{"kind": "*"}]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything that anybody logs, at the lowest level."""
    # The clients' own logs are not the gateway's.
    for name in ("websockets", "asyncio", "hypothesis", "httpx", "httpcore"):
        caplog.set_level(logging.CRITICAL, logger=name)
    caplog.set_level(1)
    for name in ("meup_agent", "meup_agent.gateway", "picows", "uvicorn", "uvicorn.error"):
        caplog.set_level(1, logger=name)
    caplog.handler.setLevel(1)
    return caplog


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """All of it, arguments and exceptions included."""
    formatter = logging.Formatter("%(name)s %(levelname)s %(message)s")
    return "\n".join(f"{formatter.format(each)} {each.args!r}" for each in caplog.records)


@asynccontextmanager
async def running(tmp_path: Path, **limits: Any) -> AsyncGenerator[RunningGateway]:
    entries = {name: participant(name, ANYTHING, (token,)) for name, token in TOKENS.items()}
    config = Config(
        (SpaceConfig("demo", entries),),
        port=0,
        limits=GatewayLimits(**limits),
        journal=JournalConfig(tmp_path / "journal.sqlite"),
    )
    async with serve(config) as gateway:
        yield gateway


@asynccontextmanager
async def dial(
    gateway: RunningGateway, token: str = "", path: str = "/ws?space=demo"
) -> AsyncGenerator[ClientConnection]:
    async with open_websocket(gateway.url + path, token) as client:
        yield client


async def joined(gateway: RunningGateway, **fields: object) -> tuple[int | None, str, list[str]]:
    """Close code, reason and messages of a connection that sends this join frame."""
    async with dial(gateway, path="/") as client:
        await client.send(json.dumps({"type": "join", "space": "demo", **fields}))
        heard: list[str] = []
        with anyio.fail_after(PATIENCE), contextlib.suppress(ConnectionClosed):
            async for message in client:
                heard.append(str(message))
                await client.close()
        return client.close_code, client.close_reason or "", heard


async def over_http(gateway: RunningGateway, method: str, path: str, token: str) -> tuple[int, str]:
    """Status and body of an HTTP request."""
    header = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=str(gateway.http_url), **ALONE) as client:
        answer = await client.request(method, path, headers=header)
        return answer.status_code, f"{answer.text}{answer.headers}"


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def contents(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.iterdir())


@pytest.mark.rule("3.guesses")
async def test_failed_logins_are_limited(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    limits: dict[str, Any] = {"failed_tokens": 3, "failed_token_seconds": 3_600.0}
    async with running(tmp_path, **limits) as gateway, dial(gateway, TOKENS["bob"]) as bob:
        assert (await refusal(f"{gateway.url}/ws?space=demo", MADE_UP)).status_code == 401
        assert (await joined(gateway, token=MADE_UP))[0] == 4401
        assert (await over_http(gateway, "GET", "/spaces/demo/participants", MADE_UP))[0] == 401
        # From here on no token of this address is looked at, not even one that fits.
        answer = await refusal(f"{gateway.url}/ws?space=demo", TOKENS["alice"])
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) > 0
        assert (await joined(gateway, token=TOKENS["alice"]))[0] == 1013
        asked = await over_http(gateway, "GET", "/spaces/demo/participants", TOKENS["alice"])
        assert asked[0] == 429
        assert '"error":"too_many_attempts"' in asked[1]
        assert "retry-after" in asked[1]
        await bob.send(envelope("bob", id="still-here"))
        await hear_until(bob, id="still-here")
        assert gateway.counters.not_admitted == {401: 2, 4401: 1, 429: 2, 1013: 1}
    warned = [each for each in said.records if each.levelno == logging.WARNING]
    assert [each.getMessage() for each in warned] == [
        "short tokens could be guessed, so many wrong ones keep them out for a while, of"
        " 'alice' of 'demo', 'bob' of 'demo'; make longer ones with 'meup token new'",
        "too many wrong tokens from '127.0.0.1'; short ones are refused for a while",
    ]
    assert MADE_UP not in logged(said)


async def test_no_token_is_logged_answered_or_kept(
    tmp_path: Path, said: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    answers: list[str] = []
    async with running(tmp_path) as gateway:
        for path in ("/ws?space=demo", f"/?token={MADE_UP}&space={MADE_UP}", f"/{MADE_UP}"):
            answer = await refusal(gateway.url + path, MADE_UP)
            answers.append(f"{answer.body!r}{answer.headers}")
        answer = await refusal(f"{gateway.url}/?space={TOKENS['bob']}", TOKENS["alice"])
        answers.append(f"{answer.body!r}{answer.headers}")
        wrong: list[dict[str, object]] = [
            {"token": MADE_UP},
            {"token": [MADE_UP]},
            {"token": TOKENS["alice"], "participantId": TOKENS["bob"]},
            {"token": TOKENS["alice"], "space": MADE_UP},
            {"token": TOKENS["alice"], "protocol": TOKENS["alice"]},
            {"token": TOKENS["alice"], "type": MADE_UP},
            {"participantId": "\x1b[2J", "token": MADE_UP + "\u0000\u202e"},
        ]
        for fields in wrong:
            code, reason, heard = await joined(gateway, **fields)
            assert code is not None
            assert code >= 4400
            answers += [reason, *heard]
        answers += (await joined(gateway, token=TOKENS["bob"], participantId="bob"))[2]
        for token in (MADE_UP, TOKENS["alice"]):
            for path in ("/spaces/demo/participants", f"/x?token={token}", f"/spaces/{token}/x"):
                for method in ("GET", "POST"):
                    answers.append((await over_http(gateway, method, path, token))[1])
        async with dial(gateway, TOKENS["alice"]) as alice, dial(gateway, TOKENS["bob"]) as bob:
            invite = {"participant_id": "guest", "initial_capabilities": [{"kind": "chat"}]}
            await alice.send(envelope("alice", "space.invite", invite, id="invite"))
            ack = await hear_until(alice, kind="space.invite-ack")
            invited = ack["payload"]["token"]
            assert isinstance(invited, str)
            assert len(invited) >= 32
            async with dial(gateway, invited) as guest:
                await hear_until(guest, kind="system.welcome")
                await guest.send(envelope("guest", id="from-the-guest"))
                heard_by_bob: list[dict[str, Any]] = []
                while not heard_by_bob or heard_by_bob[-1]["id"] != "from-the-guest":
                    with anyio.fail_after(PATIENCE):
                        heard_by_bob.append(json.loads(await bob.recv()))
            assert not [each for each in heard_by_bob if each["kind"] == "space.invite-ack"]
            answers.append(json.dumps(heard_by_bob))
        kept = contents(tmp_path)
        assert b"from-the-guest" in kept
        assert invited not in repr(gateway.runtime.tokens.__dict__)
    kept += contents(tmp_path)
    printed = "".join(capfd.readouterr())
    logs = logged(said)
    assert "'alice' in 'demo': joined" in logs
    assert "refused with 401" in logs
    assert not [each for each in said.records if each.name.startswith("picows")]
    for secret in (*TOKENS.values(), MADE_UP, invited):
        # Also as it stands in an address.
        for form in {secret, quote(secret), repr(secret)}:
            assert form not in logs
            assert form not in printed
            assert form.encode() not in kept
            # An answer goes to whoever sent the token; it is in none all the same.
            assert not [each for each in answers if form in each]
    assert not set("\u202e\x00\x1b") & set(logs)


async def test_files_are_where_they_were_told_to_be_whatever_the_names(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    async with running(folder) as gateway, dial(gateway, TOKENS["alice"]) as alice:
        for number, name in enumerate(["../../evil", "..", "/etc/passwd", "C:\\x", "a/../../b"]):
            invite = {"participant_id": name, "initial_capabilities": []}
            await alice.send(envelope("alice", "space.invite", invite, id=f"{name}{number}"))
            await alice.send(envelope("alice", "../../kind", {}, id=f"x/{name}", context=name))
        await alice.send(envelope("alice", id="last"))
        await hear_until(alice, id="last")
    assert names(tmp_path) == {"inner"}
    assert {name.partition("-")[0] for name in names(folder)} == {"journal.sqlite"}
