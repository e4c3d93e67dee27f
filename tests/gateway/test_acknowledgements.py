"""Acknowledgements in place of echoes, at each edge."""

import json
from typing import Any

import anyio
import pytest

from tests.gateway.conftest import Site, envelope, hear
from tests.gateways import BESIDE_HEADER, OBSERVE_HEADER, Transport
from tests.patience import PATIENCE

NUMBERED = {"MEUP-Resume": "1"}
ACKED = {**NUMBERED, "MEUP-Ack": "1"}


async def hear_frame(transport: Transport) -> dict[str, Any]:
    with anyio.fail_after(PATIENCE):
        heard: dict[str, Any] = json.loads(await anext(transport))
    return heard


async def welcomed(transport: Transport) -> dict[str, Any]:
    """The first frame after the welcome, which others' presences may follow."""
    while (heard := await hear_frame(transport)).get("kind", "").startswith("system."):
        pass
    return heard


@pytest.mark.rule("6.ack", "6.ack.others")
async def test_the_sending_connection_alone_gets_an_acknowledgement(site: Site) -> None:
    async with (
        site.dial("bob", headers=ACKED) as bob,
        site.dial("bob", headers={**ACKED, BESIDE_HEADER: "1"}) as beside,
        site.dial("bob", headers={**ACKED, OBSERVE_HEADER: "1"}) as observer,
        site.dial("alice", headers=ACKED) as alice,
    ):
        for number, sender in enumerate((bob, beside, bob)):
            said = envelope("bob", id=f"e{number}", to=["alice", "bob"], payload={"text": "hi"})
            await sender.send(said)
            heard = [await welcomed(each) for each in (bob, beside, observer, alice)]
            own = heard.pop(0 if sender is bob else 1)
            assert own == {"id": f"e{number}", "seq": heard[0]["seq"]}
            assert heard == [{**json.loads(said), "seq": own["seq"]}] * 3


@pytest.mark.rule("6.ack.filled_in")
async def test_what_was_filled_in_or_said_again_comes_back_whole(site: Site) -> None:
    async with site.dial("bob", headers=ACKED) as bob:
        said = envelope("bob", payload={"text": "hi"})
        await bob.send(said)
        told = await welcomed(bob)
        await bob.send(said)
        assert await hear_frame(bob) == {**json.loads(said), "seq": told["seq"]}
        without_sender = {**json.loads(said), "id": "e2"}
        del without_sender["from"]
        await bob.send(json.dumps(without_sender).encode())
        whole = await hear(bob, "chat")
        assert (whole["from"], whole["id"]) == ("bob", "e2")
        assert whole["seq"] > told["seq"]


@pytest.mark.rule("6.ack")
@pytest.mark.parametrize("headers", [NUMBERED, {"MEUP-Ack": "1"}, {**NUMBERED, "MEUP-Ack": "0"}])
async def test_who_does_not_ask_for_both_gets_its_echo(site: Site, headers: dict[str, str]) -> None:
    async with site.dial("bob", headers=headers) as bob:
        await bob.send(envelope("bob", payload={"text": "hi"}))
        heard = await welcomed(bob)
        assert heard["payload"] == {"text": "hi"}
        assert ("seq" in heard) is ("MEUP-Resume" in headers)


@pytest.mark.rule("6.ack", "6.resume.order")
async def test_who_comes_back_reads_its_own_envelopes_whole(site: Site) -> None:
    async with site.dial("bob", headers=ACKED) as bob:
        await bob.send(envelope("bob", id="e1"))
        seq = (await welcomed(bob))["seq"]
        await bob.send(envelope("bob", id="e2", payload={"text": "lost"}))
        await hear_frame(bob)
    back = {**ACKED, "Last-Event-ID": str(seq)}
    async with site.dial("bob", headers=back) as bob:
        heard = await welcomed(bob)
        assert (heard["id"], heard["payload"]) == ("e2", {"text": "lost"})
