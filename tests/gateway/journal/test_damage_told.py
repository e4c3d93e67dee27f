"""Damage of a journal's file, as members and readers over HTTP are told of it."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.status import HTTP_200_OK

from meup_agent.gateway import Gateway, HttpConfig
from tests.cli.processes import meup
from tests.gateway.conftest import envelope
from tests.gateway.journal.conftest import change
from tests.gateway.journal.test_checksums import break_index
from tests.gateway.journal.test_gateway import config_with, dial, hear_chats
from tests.gateway.websocket_client import hear
from tests.patience import PATIENCE


@pytest.mark.rule("9.damage.told")
async def test_members_and_audits_are_told_of_what_damage_took(path: Path) -> None:
    config = replace(config_with(path), http=HttpConfig(port=0))
    async with Gateway(config=config) as gateway:
        alice_token, bob_token = gateway.token("alice"), gateway.token("bob")
        async with dial(gateway, alice_token) as alice:
            await alice.send(envelope("alice", id="first"))
            (first,) = await hear_chats(alice, 1)
            await alice.send(envelope("alice", id="lost"))
            await alice.send(envelope("alice", id="last"))
            lost, last = await hear_chats(alice, 2)
    change(path, "UPDATE entry SET frame = x'ff' WHERE seq = ?", lost["seq"])
    accepting = replace(config, journal=replace(config.journal, accept_damage=True))
    async with Gateway(config=accepting) as gateway:
        # Who has read it misses nothing.
        async with dial(gateway, alice_token, last["seq"]) as alice:
            assert (await hear(alice))["payload"]["gap"] is False
        async with dial(gateway, bob_token, first["seq"]) as bob:
            payload = (await hear(bob))["payload"]
            assert (payload["resumed"], payload["gap"]) == (True, True)
            assert [each["id"] for each in await hear_chats(bob, 1)] == ["last"]
        page, audit = await asked(gateway, "bob")
    said = [each["id"] for each in page["messages"] if each["kind"] == "chat"]
    assert said == ["first", "last"]
    assert (page["gap"], page["damaged"]) == (True, [[lost["seq"], lost["seq"]]])
    assert audit == f"meup: warning: damage took number {lost['seq']} of the journal\n"


@pytest.mark.rule("9.damage.told")
async def test_readers_are_told_of_what_may_be_missing_at_the_end(path: Path) -> None:
    config = replace(config_with(path), http=HttpConfig(port=0))
    async with Gateway(config=config) as gateway:
        token = gateway.token("alice")
        async with dial(gateway, token) as alice:
            await alice.send(envelope("alice", id="last"))
            await hear_chats(alice, 1)
    with closing(sqlite3.connect(path)) as connection:
        (count, last) = connection.execute("SELECT count(*), max(seq) FROM entry").fetchone()
    break_index(path, count)
    accepting = replace(config, journal=replace(config.journal, accept_damage=True))
    async with Gateway(config=accepting) as gateway:
        page, audit = await asked(gateway, "alice")
    ((first, until),) = page["damaged"]
    assert first == last + 1 < until
    assert page["gap"] is True
    assert page["next"] is None
    assert f"damage took numbers {first} to {until} of the journal" in audit


async def asked(gateway: Gateway, name: str) -> tuple[dict[str, Any], str]:
    """A page of what was said, and what an audit says beside its result; both over HTTP."""
    assert gateway.http_url is not None
    token = gateway.token(name)
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
        answer = await client.get(
            f"{gateway.http_url}/participants/{name}/messages",
            headers={"Authorization": f"Bearer {token}"},
        )
        proposals = await client.get(
            f"{gateway.http_url}/spaces/demo/proposals",
            headers={"Authorization": f"Bearer {token}"},
        )
    assert answer.status_code == proposals.status_code == HTTP_200_OK
    assert proposals.json()["gap"] is True
    audit = partial(meup, "audit", "--http", gateway.http_url, "--json")
    variables = {"MEUP_TOKEN": token, "MEUP_SPACE": "demo"}
    done = await anyio.to_thread.run_sync(partial(audit, variables=variables))
    assert done.returncode == 0
    return answer.json(), done.stderr
