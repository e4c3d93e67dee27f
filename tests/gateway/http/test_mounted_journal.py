"""A mounted gateway with a journal in a file: what it cannot keep it does not take either."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from meup_agent.gateway import Config, GatewayLimits, JournalConfig
from tests.gateway.conftest import envelope
from tests.gateway.journal.conftest import fill_disk
from tests.gateway.mounted import MountedPlace, mounted
from tests.gateways import one_space_config
from tests.journal_files import kept_ids
from tests.no_tls import ALONE
from tests.patience import PATIENCE

LIMITS = GatewayLimits(messages_per_second=1e9, messages_burst=10**9)


def config(path: Path) -> Config:
    participants = {"alice": [{"kind": "chat"}]}
    return replace(one_space_config("demo", participants, LIMITS), journal=JournalConfig(path))


def joined(place: MountedPlace) -> ClientConnection:
    header = {"Authorization": f"Bearer {place.token('alice')}"}
    return connect(
        f"{place.url}?space=demo",
        additional_headers=header,
        compression=None,
        open_timeout=PATIENCE,
    )


def said(number: int) -> str:
    return envelope("alice", id=str(number), payload={"message": "x" * 1_000}).decode()


def test_a_full_disk_closes_everybody_and_takes_nobody(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with mounted(config(path)) as place, joined(place) as alice:
        fill_disk(place.app.running.journals[0])
        accepted: list[str] = []
        with suppress(ConnectionClosed):
            for number in range(1_000):
                alice.send(said(number))
                heard = {"kind": ""}
                while heard["kind"] != "chat":
                    heard = json.loads(alice.recv(PATIENCE))
                accepted.append(heard["id"])
        assert alice.close_code == 1012
        assert accepted == kept_ids(path, "chat")
        states = {
            path: httpx.get(f"{place.http_url}{path}", **ALONE).status_code
            for path in ("/healthz", "/readyz")
        }
        assert states == {"/healthz": 200, "/readyz": 503}
