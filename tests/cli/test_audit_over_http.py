"""``meup audit`` over HTTP: proposals expire by the gateway's clock."""

import json
from collections.abc import Generator
from datetime import UTC, datetime, timedelta

import pytest

from meup_agent.gateway import Gateway, ThreadedGateway
from tests.cli.conftest import Here
from tests.cli.participants import post
from tests.gateways import one_space_config


@pytest.fixture(scope="module")
def gateway() -> Generator[ThreadedGateway]:
    """Five proposals, the third and the last of which nobody decided in time."""
    with Gateway(
        config=one_space_config("demo", {"alice": [{"kind": "*"}]})
    ).in_thread() as gateway:
        for number in range(5):
            days = -1 if number in (2, 4) else 1
            until = (datetime.now(UTC) + timedelta(days=days)).isoformat()
            params = {"name": "x", "arguments": {}, "_meta": {"dev.meup/expires_at": until}}
            payload = {"method": "tools/call", "params": params}
            post(gateway, "alice", kind="mcp.proposal", id=f"p{number}", payload=payload)
        yield gateway


def test_the_gateways_clock(gateway: ThreadedGateway, command: Here) -> None:
    where = ("audit", "--http", gateway.http_url, "--token", gateway.token("alice"), "--json")
    found = [json.loads(line)["state"] for line in command(*where).out.splitlines()]
    assert found == ["pending", "pending", "expired", "pending", "expired"]
    assert len(command(*where, "--state", "expired").out.splitlines()) == 2
    assert len(command(*where, "--since", "1h").out.splitlines()) == 5
    assert command(*where, "--since", "2999-01-01T00:00:00.000001").out == ""


def test_grants_are_told_as_the_gateway_keeps_them(command: Here) -> None:
    people = {"alice": [{"kind": "**"}], "bob": [], "carol": []}
    with Gateway(config=one_space_config("demo", people)).in_thread() as gateway:

        def say(by: str, kind: str, id: str, **payload: object) -> None:
            post(gateway, by, id=id, kind=kind, payload=payload)

        chat = {"kind": "chat"}
        both = [{"kind": "capability/grant"}, chat]
        say("alice", "capability/grant", id="g1", recipient="bob", capabilities=both)
        say("bob", "capability/grant", id="g2", recipient="carol", capabilities=[chat])
        say("alice", "capability/revoke", id="r1", recipient="bob", grant_id="g1")
        token = gateway.token("alice")
        run = command("audit", "--http", gateway.http_url, "--token", token, "--grants", "--json")
    found = [json.loads(line) for line in run.out.splitlines()]
    told = {each["id"]: (each["rests_on"], sorted(each["ended"])) for each in found}
    assert told == {"g1": ([], []), "g2": (["g1"], []), "r1": ([], ["g1", "g2"])}
