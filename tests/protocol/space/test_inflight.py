"""Open exchanges of a space, followed from what is accepted."""

import json
import tracemalloc
from typing import Any

import pytest

from meup_agent import Envelope, ProposalState
from meup_agent.protocol.space.state.inflight import MAX_OPEN_BYTES, MAX_OPEN_REQUESTS, InFlight
from tests.spaces import OPEN_SECONDS
from tests.wire import draft

CALL: dict[str, Any] = {"method": "tools/call", "params": {"name": "write"}}


class Following:
    def __init__(self) -> None:
        self.open = InFlight()
        self.at = 0

    def say(
        self, kind: str, sender: str, id: str, payload: dict[str, Any], **header: Any
    ) -> Envelope:
        envelope = draft(kind, payload, id=id, sender=sender, **header)
        self.open.track(envelope, payload, self.at)
        return envelope

    def propose(self, sender: str, id: str) -> None:
        self.say("mcp/proposal", sender, id, CALL)

    def request(
        self,
        sender: str,
        id: str,
        to: str | tuple[str, ...],
        *fulfills: str,
        rpc: object = None,
        tool: str = "write",
        proposer: str | None = None,
    ) -> None:
        params: dict[str, Any] = {"name": tool}
        if proposer is not None:
            params["_meta"] = {"dev.meup/proposer": proposer}
        payload = {"method": "tools/call", "params": params, "id": id if rpc is None else rpc}
        to = (to,) if isinstance(to, str) else to
        self.say("mcp/request", sender, id, payload, to=to, correlation=fulfills)

    def respond(self, sender: str, request: str, error: dict[str, Any] | None = None) -> None:
        payload = {"result": {}} if error is None else {"error": error}
        self.say("mcp/response", sender, f"re-{request}", payload, correlation=(request,))

    def cancel(self, sender: str, request: object) -> None:
        payload = {"method": "notifications/cancelled", "params": {"requestId": request}}
        self.say("mcp/request", sender, "cancel", payload)

    def state(self, proposer: str) -> ProposalState:
        (proposal,) = self.open.of(proposer)
        return proposal.state

    def ids(self, participant: str) -> list[str]:
        return [item.envelope.id for item in self.open.of(participant)]


@pytest.fixture
def following() -> Following:
    return Following()


def test_open_proposal_has_the_time_of_its_acceptance(following: Following) -> None:
    following.at = 5
    following.propose("ann", "p")
    following.at = 7
    following.propose("bob", "p")
    following.request("ann", "r", "tools")
    following.at = 9
    assert following.open.proposed_at("ann", "p") == 5
    assert following.open.proposed_at("bob", "p") == 7
    assert following.open.proposed_at("ann", "r") is None
    assert len(following.open.items) == 3
    following.request("bob", "s", "tools", "p", proposer="ann")
    following.respond("tools", "s")
    assert following.open.proposed_at("ann", "p") is None


def test_a_proposal_is_open_until_the_response_to_a_request_that_fulfills_it(
    following: Following,
) -> None:
    following.propose("ann", "p")
    following.request("bob", "r", "tools", "p")
    (proposal,) = following.open.of("ann")
    assert proposal.is_proposal
    assert following.state("ann") is ProposalState.IN_PROGRESS
    following.respond("eve", "r")  # whom nobody asked
    assert following.ids("bob") == ["r"]
    following.respond("tools", "r")
    assert following.ids("ann") == following.ids("bob") == []
    assert proposal.state is ProposalState.FULFILLED


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_an_id_that_is_used_again_is_another_proposal(
    following: Following, is_cancelled: bool
) -> None:
    following.propose("ann", "1")
    following.request("bob", "r", "tools", "1")
    if is_cancelled:
        following.cancel("bob", "r")
    following.propose("ann", "1")
    following.respond("tools", "r")
    assert following.ids("ann") == ["1"]
    assert following.state("ann") is ProposalState.PENDING
    assert following.ids("bob") == []


@pytest.mark.parametrize("named", ["7", 7, "r"], ids=repr)
def test_a_cancel_ends_the_request_that_it_names(following: Following, named: object) -> None:
    following.propose("ann", "p")
    following.request("bob", "r", "tools", "p", rpc=7)
    following.request("bob", "other", "tools", rpc=8)
    following.cancel("eve", named)
    assert following.ids("bob") == ["r", "other"]
    following.cancel("bob", named)
    assert following.ids("bob") == ["other"]
    (proposal,) = following.open.of("ann")
    assert proposal.state is ProposalState.PENDING


def test_a_json_rpc_id_comes_before_an_envelope_id(following: Following) -> None:
    following.request("bob", "x", "tools", rpc="y")
    following.request("bob", "y", "tools", rpc="z")
    following.cancel("bob", "y")
    assert following.ids("bob") == ["y"]


def test_a_proposal_is_in_progress_while_one_request_for_it_is_out(following: Following) -> None:
    following.propose("ann", "p")
    following.request("bob", "r1", "tools", "p")
    following.request("carol", "r2", "tools", "p")
    following.cancel("bob", "r1")
    assert following.state("ann") is ProposalState.IN_PROGRESS
    following.cancel("carol", "r2")
    assert following.state("ann") is ProposalState.PENDING


def test_the_oldest_request_is_forgotten_first_and_no_notification_is_open(
    following: Following,
) -> None:
    following.say("mcp/request", "bob", "n", {"method": "notifications/progress", "params": {}})
    for number in range(MAX_OPEN_REQUESTS + 1):
        following.request("bob", f"r{number}", "tools")
    expected = [f"r{number}" for number in range(1, MAX_OPEN_REQUESTS + 1)]
    assert following.ids("bob") == expected


def test_what_is_too_old_is_forgotten_where_its_room_is_needed(following: Following) -> None:
    following.propose("ann", "p")
    following.at = round(OPEN_SECONDS * 1_000_000)
    assert following.open.abandoned("ann", following.at, None) == []
    following.at += 1
    assert [each.envelope.id for each in following.open.open_in_order()] == ["p"]
    following.open.drop_abandoned("ann", following.at, None)
    assert following.open.open_in_order() == []


def test_payloads_are_kept_as_long_as_there_is_room(following: Following) -> None:
    half = {**CALL, "text": "x" * (MAX_OPEN_BYTES // 2)}
    for number in (1, 2):
        following.say("mcp/proposal", "ann", f"p{number}", half)
    first, second = following.open.of("ann")
    assert (first.whole, second.whole) == (True, False)
    assert first.envelope.payload == half
    assert second.envelope.payload == {}
    for number in (1, 2):
        following.say("mcp/withdraw", "ann", "w", {}, correlation=(f"p{number}",))
    following.say("mcp/proposal", "ann", "p3", half)
    (third,) = following.open.of("ann")
    assert third.whole


@pytest.mark.parametrize("field", ["method", "tool", "target", "cursor"])
@pytest.mark.parametrize("kind", ["mcp/proposal", "mcp/request"])
def test_long_names_are_not_kept_beside_the_payloads(
    following: Following, kind: str, field: str
) -> None:
    count, long = 4, "x" * MAX_OPEN_BYTES
    payload = {
        "method": {"method": long, "cursor": "tools/list"}.get(field, "tools/call"),
        "params": {
            "name": long if field == "tool" else "write",
            "cursor": long if field == "cursor" else "",
            "_meta": {"dev.meup/target": long if field == "target" else "tools"},
        },
    }
    text = json.dumps(payload)
    tracemalloc.start()
    try:
        for number in range(count):
            following.say(kind, "ann", f"p{number}", json.loads(text))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(following.open.of("ann")) == count
    assert kept < MAX_OPEN_BYTES


def test_a_long_name_is_another_than_one_that_begins_like_it(following: Following) -> None:
    long = "x" * MAX_OPEN_BYTES
    call = {"method": "tools/call", "params": {"name": f"{long}1"}}
    following.say("mcp/proposal", "ann", "p", call)
    following.request("bob", "r1", "tools", "p", tool=f"{long}2")
    assert following.state("ann") is ProposalState.PENDING
    following.request("bob", "r2", "tools", "p", tool=f"{long}1")
    assert following.state("ann") is ProposalState.IN_PROGRESS


REFUSED = {"code": -32000, "message": "no", "data": {"reason": "refused"}}


@pytest.mark.parametrize(
    ("last", "state"), [(None, ProposalState.FULFILLED), (REFUSED, ProposalState.PENDING)]
)
def test_of_several_executors_one_may_refuse_and_another_carry_out(
    following: Following, last: dict[str, Any] | None, state: ProposalState
) -> None:
    following.propose("ann", "p")
    (proposal,) = following.open.of("ann")
    following.request("bob", "r", ("tools", "spare"), "p")
    for _ in range(2):
        following.respond("tools", "r", REFUSED)
    assert following.state("ann") is ProposalState.IN_PROGRESS
    following.respond("spare", "r", last)
    assert proposal.state is state
    assert following.ids("ann") == (["p"] if last else [])
