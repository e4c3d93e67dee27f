"""The past of a space over HTTP: what is decided, what waits, and what we have rejected."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest

from meup_agent import Envelope, Space
from meup_agent.approval.past_proposals import MAX_PAST
from meup_agent.cli.http_api import HttpApi
from meup_agent.cli.inbox.past import AT_A_TIME, read_past
from tests.cli.commands import Failure
from tests.wire import draft, kinds, payloads

pytestmark = pytest.mark.anyio


class Gateway:
    """A gateway's HTTP API, with its proposals."""

    def __init__(self, *latest: dict[str, Any], older: tuple[dict[str, Any], ...] = ()) -> None:
        self.latest, self.older = list(latest), list(older)
        self.missing: set[int] = set()
        self.asked: list[int] = []
        self.at_once = self.most_at_once = 0

    async def recent(self, most: int, **query: str) -> list[dict[str, Any]]:
        assert most >= MAX_PAST
        return self.older if "state" in query else self.latest

    async def envelope(self, seq: int) -> Envelope:
        self.asked.append(seq)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await anyio.lowlevel.checkpoint()
        self.at_once -= 1
        if seq in self.missing:
            raise Failure("the gateway does not know the envelope any more")
        return draft(
            kinds.MCP_PROPOSAL, payloads.proposal("tools/call", {}), id=f"p{seq}", sender="bot"
        )


class Known:
    """A proposal that the space has told of."""

    def __init__(self, proposer: str, id: str) -> None:
        self.proposer, self.id = proposer, id


class Here:
    """A space that has told of some proposals."""

    me = "lead"

    def __init__(self, *known: Known) -> None:
        self.proposals = known


def pending(seq: int, **more: Any) -> dict[str, Any]:
    return {"seq": seq, "id": f"p{seq}", "proposer": "bot", "state": "pending", **more}


async def past_of(gateway: Gateway, *known: Known) -> Any:
    return await read_past(cast("HttpApi", gateway), cast("Space", Here(*known)))


async def test_what_the_space_has_not_told_of_is_read_in_order() -> None:
    gateway = Gateway(*map(pending, range(3 * AT_A_TIME, 0, -1)))
    past = await past_of(gateway, Known("bot", "p3"), Known("other", "p4"))
    numbers = [each for each in range(1, 3 * AT_A_TIME + 1) if each != 3]
    assert [each.id for each in past.waiting] == [f"p{each}" for each in numbers]
    assert gateway.most_at_once <= AT_A_TIME


async def test_requests_that_are_out_are_read_behind_their_proposal() -> None:
    out = {"seq": 7, "cancelled_at": None, "responded_at": None}
    ended = [{**out, "seq": 3, "cancelled_at": "then"}, {**out, "seq": 4, "responded_at": "then"}]
    gateway = Gateway(pending(2, state="in_progress", fulfillments=[*ended, out]), pending(5))
    assert [each.id for each in (await past_of(gateway)).waiting] == ["p2", "p7", "p5"]


async def test_our_own_and_what_is_decided_are_not_read() -> None:
    decided = pending(2, state="fulfilled", method="tools/call", decision={"by": "lead"})
    gateway = Gateway(pending(1, proposer="lead"), decided, pending(3, state="in_progress"))
    past = await past_of(gateway)
    assert [each.id for each in past.waiting] == ["p3"]
    assert [(each.id, each.by) for each in past.decided] == [("p2", "lead")]


async def test_those_that_have_waited_longest_are_asked_for_apart() -> None:
    latest = [pending(seq, state="withdrawn") for seq in range(1_000, 1_000 + MAX_PAST)]
    gateway = Gateway(*latest, older=(pending(1), pending(2)))
    assert [each.id for each in (await past_of(gateway)).waiting] == ["p1", "p2"]


async def test_what_is_gone_meanwhile_is_left_out() -> None:
    gateway = Gateway(pending(1), pending(2))
    gateway.missing = {1}
    assert [each.id for each in (await past_of(gateway)).waiting] == ["p2"]


async def test_what_we_have_rejected_is_told() -> None:
    ours = pending(1, rejections=[{"by": "other"}, {"by": "lead"}])
    gateway = Gateway(ours, pending(2, rejections=[{"by": "other"}]))
    assert (await past_of(gateway)).rejected == (("bot", "p1"),)


async def test_rejections_of_others_are_told_behind_the_proposals() -> None:
    no = {"by": "reviewer", "id": "r1", "reason": "policy"}
    gateway = Gateway(
        pending(1, rejections=[no, {"by": "lead", "id": "r2", "reason": "unsafe"}]), pending(2)
    )
    found = (await past_of(gateway, Known("bot", "p1"))).waiting
    assert [(each.id, each.sender, each.correlation) for each in found] == [
        ("p2", "bot", ()),
        ("r1", "reviewer", ("p1",)),
    ]
    assert found[1].payload_object["reason"] == "policy"
