"""``meup audit`` over HTTP: proposals expire by the gateway's clock."""

import json
from collections.abc import Generator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from meup_agent.gateway import Gateway, ThreadedGateway
from tests.cli.conftest import Here
from tests.gateways import one_space_config
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE


@pytest.fixture(scope="module")
def gateway() -> Generator[ThreadedGateway]:
    """Five proposals, the third and the last of which nobody decided in time."""
    with Gateway(
        config=one_space_config("demo", {"alice": [{"kind": "*"}]})
    ).in_thread() as gateway:
        headers = {"Authorization": f"Bearer {gateway.token('alice')}"}
        with httpx.Client(
            base_url=gateway.http_url, headers=headers, verify=NO_TLS, timeout=PATIENCE
        ) as client:
            for number in range(5):
                days = -1 if number in (2, 4) else 1
                until = (datetime.now(UTC) + timedelta(days=days)).isoformat()
                params = {"name": "x", "arguments": {}, "_meta": {"dev.meup/expires_at": until}}
                payload = {"method": "tools/call", "params": params}
                envelope = {"kind": "mcp.proposal", "id": f"p{number}", "payload": payload}
                said = client.post("/participants/alice/messages", json=envelope)
                assert said.status_code == 200, said.text
        yield gateway


def test_the_gateways_clock(gateway: ThreadedGateway, command: Here) -> None:
    where = ("audit", "--http", gateway.http_url, "--token", gateway.token("alice"), "--json")
    found = [json.loads(line)["state"] for line in command(*where).out.splitlines()]
    assert found == ["pending", "pending", "expired", "pending", "expired"]
    assert len(command(*where, "--state", "expired").out.splitlines()) == 2
