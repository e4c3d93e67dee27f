"""Acknowledgements in place of echoes, at each edge."""

import json
from typing import Any

import anyio
import pytest

from meup_agent import Agent
from meup_agent.types import CallNext, InboundMessage
from tests.gateway.conftest import Site, envelope, hear
from tests.gateways import BESIDE_HEADER, OBSERVE_HEADER, Connector, Transport
from tests.patience import PATIENCE
from tests.wire import decode

NUMBERED = {"MEUP-Resume": "1"}
ACKED = {**NUMBERED, "MEUP-Ack": "1"}
LONG = "long" * 1024


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
            said = envelope("bob", id=f"e{number}", to=["alice", "bob"], payload={"text": LONG})
            await sender.send(said)
            heard = [await welcomed(each) for each in (bob, beside, observer, alice)]
            own = heard.pop(0 if sender is bob else 1)
            assert own == {"id": f"e{number}", "seq": heard[0]["seq"]}
            assert heard == [{**json.loads(said), "seq": own["seq"]}] * 3


@pytest.mark.rule("6.ack.filled_in")
async def test_what_was_filled_in_or_said_again_comes_back_whole(site: Site) -> None:
    async with site.dial("bob", headers=ACKED) as bob:
        said = envelope("bob", payload={"text": LONG})
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
@pytest.mark.parametrize(
    ("headers", "text"),
    [
        (ACKED, "short"),
        (NUMBERED, LONG),
        ({"MEUP-Ack": "1"}, LONG),
        ({**NUMBERED, "MEUP-Ack": "0"}, LONG),
    ],
)
async def test_what_is_short_or_not_asked_about_comes_back(
    site: Site, headers: dict[str, str], text: str
) -> None:
    async with site.dial("bob", headers=headers) as bob:
        await bob.send(envelope("bob", payload={"text": text}))
        heard = await welcomed(bob)
        assert heard["payload"] == {"text": text}
        assert ("seq" in heard) is ("MEUP-Resume" in headers)


@pytest.mark.rule("6.ack", "6.resume.order")
async def test_who_comes_back_reads_its_own_envelopes_whole(site: Site) -> None:
    async with site.dial("bob", headers=ACKED) as bob:
        await bob.send(envelope("bob", id="e1", payload={"text": LONG}))
        seq = (await welcomed(bob))["seq"]
        await bob.send(envelope("bob", id="e2", payload={"text": "lost" + LONG}))
        assert (await hear_frame(bob)).keys() == {"id", "seq"}
    back = {**ACKED, "Last-Event-ID": str(seq)}
    async with site.dial("bob", headers=back) as bob:
        heard = await welcomed(bob)
        assert (heard["id"], heard["payload"]) == ("e2", {"text": "lost" + LONG})


def without_acknowledgements(connector: Connector) -> Connector:
    """The connector as to a gateway that knows none."""
    return lambda headers: connector(
        {name: each for name, each in headers.items() if name != "MEUP-Ack"}
    )


@pytest.mark.rule("6.ack.agent")
@pytest.mark.parametrize("echoed", [False, True])
async def test_an_agent_hears_what_it_said_as_if_it_had_come_back(site: Site, echoed: bool) -> None:
    """As its observers do, also what the wire words anew, and so its own tool that it calls."""
    agent = Agent("bob")
    passed: list[str] = []

    @agent.tool
    async def say(text: str) -> str:
        return text

    @agent.middleware
    async def note(message: InboundMessage, call_next: CallNext) -> Any:
        if message.sender == "bob":
            passed.append(message.handler)
        return await call_next(message)

    connector = site.connector("demo")
    connector = without_acknowledgements(connector) if echoed else connector
    token = site.place.token("bob")
    async with (
        site.dial("bob", headers={**NUMBERED, OBSERVE_HEADER: "1"}) as observer,
        agent.join(connector, token=token) as space,
    ):
        with space.watch(lambda each: each.sender == "bob") as watched, anyio.fail_after(PATIENCE):
            await space.chat(LONG, to=("alice", "carol"))
            await space.send("mcp/own.kind", {"x": [1.5, "é", LONG]}, correlation=("a",))
            await space.send("chat", {"text": LONG}, correlation=("a", "a", "b"))
            assert await space.call("bob", "say", {"text": LONG}) == LONG
            for _ in range(5):
                while b'"from":"bob"' not in (whole := await anext(observer)):
                    pass
                own = await anext(watched)
                assert own == decode(whole)
    assert passed == ["say"]
