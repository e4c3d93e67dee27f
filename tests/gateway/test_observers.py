"""Observers at each edge: in memory, at the message port, and mounted in an ASGI application."""

import anyio
import anyio.abc
import pytest

from meup_agent.gateway import GatewayLimits
from tests.gateway.conftest import Site, envelope, hear
from tests.gateways import OBSERVE_HEADER, Backlog, Backlogs, Identity
from tests.patience import PATIENCE
from tests.spaces import SpaceCounters

LOOKING_ON = {OBSERVE_HEADER: "1"}


@pytest.mark.rule("3.observe.header", "3.observe.takes_no_part")
async def test_the_answer_says_the_header_back_and_the_agent_stays(site: Site) -> None:
    async with site.join("bob") as (bob,), site.dial("bob", headers=LOOKING_ON) as one:
        assert one.response_headers[OBSERVE_HEADER.lower()] == "1"
        assert OBSERVE_HEADER.lower() not in bob.response_headers
        assert (await hear(one, "system.welcome"))["payload"]["observing"] is True
        await bob.send(envelope("bob", payload={"message": "hi"}))
        assert (await hear(one, "chat"))["payload"] == {"message": "hi"}
        assert (await hear(bob, "chat"))["payload"] == {"message": "hi"}
        await one.send(envelope("bob", id="mine"))
        error = await hear(one, "system.error")
        assert (error["payload"]["error"], error["correlationId"]) == ("observing", "mine")
        await bob.send(envelope("bob", id="e2"))
        assert (await hear(bob, "chat"))["id"] == "e2"
        assert (await hear(one, "chat"))["id"] == "e2"
        assert site.place.counters.taken_over == 0


@pytest.mark.rule("3.observe.limit")
async def test_one_that_reads_nothing_is_closed_and_the_others_go_on(site: Site) -> None:
    """Its queue is bounded as a member's."""
    big = {"message": "x" * 90_000}
    async with site.join("alice") as (alice,), site.dial("alice", headers=LOOKING_ON):
        with anyio.fail_after(PATIENCE):
            number = 0
            while not site.place.counters.closed[1013]:
                number += 1
                await alice.send(envelope("alice", id=f"e{number}", payload=big))
                assert (await hear(alice, "chat"))["id"] == f"e{number}"
        assert site.place.counters.left == 0
    assert site.place.counters.closed[1013] == 1


@pytest.mark.rule("3.observe.takes_no_part")
def test_no_sender_waits_for_an_observer() -> None:
    """And its participant's agent is waited for as before, after the observer was dropped."""
    limits = GatewayLimits(max_queued_bytes=1_000, max_participant_queued_bytes=4_000)
    backlogs = Backlogs(limits, SpaceCounters(), now=lambda: 0.0)
    dropped: list[str] = []

    class Queue(Backlog):
        def __init__(self, *, awaited: bool) -> None:
            super().__init__(backlogs, Identity("demo", "alice"), awaited=awaited)

        def _drop(self, reason: str) -> None:
            dropped.append("agent" if self.awaited else "observer")

    agent, observer = Queue(awaited=True), Queue(awaited=False)
    observer.count_in(b"x" * 900)
    assert not backlogs.in_space("demo").filling
    agent.count_in(b"y" * 3_000)
    observer.count_in(b"z" * 900)
    assert dropped == ["observer"]
    assert backlogs.in_space("demo").filling
    assert backlogs.in_space("demo").wait("bob") > 0
