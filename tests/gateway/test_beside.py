"""Connections beside, at each edge: in memory, at the message port, and mounted."""

import json

import pytest

from meup_agent.errors import HandshakeRefused
from meup_agent.gateway import GatewayLimits
from tests.gateway.conftest import Site, envelope, exceed_connections, hear
from tests.gateways import BESIDE_HEADER, OBSERVE_HEADER

BESIDE = {BESIDE_HEADER: "1"}


@pytest.mark.rule("3.beside.header", "3.beside.takes_part")
async def test_the_answer_says_the_header_back_and_the_agent_stays(site: Site) -> None:
    async with site.join("bob") as (bob,), site.dial("bob", headers=BESIDE) as one:
        assert one.response_headers[BESIDE_HEADER.lower()] == "1"
        assert BESIDE_HEADER.lower() not in bob.response_headers
        welcome = await hear(one, "system.welcome")
        assert (welcome["payload"]["you"]["id"], welcome["payload"]["participants"]) == ("bob", [])
        for sender, number in ((bob, 1), (one, 2)):
            await sender.send(envelope("bob", id=f"e{number}"))
            for reader in (bob, one):
                said = await hear(reader, "chat")
                assert (said["id"], said["from"]) == (f"e{number}", "bob")
        assert site.place.counters.taken_over == 0
    async with site.join("alice"):
        pass


@pytest.mark.rule("3.beside.header", "3.observe.header")
@pytest.mark.parametrize("value", ["0", "yes", "", "1, 1", "11", "1;q=1"])
async def test_any_other_value_is_refused(site: Site, value: str) -> None:
    """Taken for a member, it would throw the running agent out."""
    both = {**BESIDE, OBSERVE_HEADER: "1"}
    async with site.join("bob") as (bob,):
        for headers in ({BESIDE_HEADER: value}, {OBSERVE_HEADER: value}, both):
            with pytest.raises(HandshakeRefused) as refused:
                async with site.dial("bob", headers=headers):
                    pass
            assert refused.value.status == 400
            if headers is not both:
                assert f"{next(iter(headers))} must be 1" in refused.value.body
        await bob.send(envelope("bob"))
        await hear(bob, "chat")


@pytest.mark.rule("3.beside.header", "3.observe.header")
@pytest.mark.parametrize(
    ("name", "answer", "error"),
    [(BESIDE_HEADER, "chat", None), (OBSERVE_HEADER, "system.error", "observing")],
)
async def test_one_without_a_header_s_token_joins_by_a_frame(
    site: Site, name: str, answer: str, error: str | None
) -> None:
    """As a member may: the join frame has the token, the handshake said how it takes part."""
    if not hasattr(site.place, "url"):
        return  # in memory there is nothing but the handshake
    async with site.join("bob"), site.dial(headers={name: "1"}) as one:
        assert one.response_headers[name.lower()] == "1"
        frame = {"type": "join", "space": "demo", "token": site.place.token("bob")}
        await one.send(json.dumps(frame).encode())
        await hear(one, "system.welcome")
        await one.send(envelope("bob"))
        assert (await hear(one, answer))["payload"].get("error") == error


@pytest.mark.thorough
@pytest.mark.rule("3.beside.limit", "3.observe.limit")
@pytest.mark.limit("max_beside", "max_observers")
@pytest.mark.parametrize(
    ("header", "limit"), [(BESIDE_HEADER, "max_beside"), (OBSERVE_HEADER, "max_observers")]
)
async def test_one_too_many_is_refused(site: Site, header: str, limit: str) -> None:
    refused = await exceed_connections(site, {header: "1"}, getattr(GatewayLimits(), limit))
    assert f"({limit})" in refused.body
