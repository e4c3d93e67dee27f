"""Responses that only a JSON-RPC id ties to their request (PROTOCOL 1)."""

import json
from typing import Any

import pytest

from meup_agent import Envelope
from meup_agent.protocol.dialects import MAX_RPC_IDS, MAX_SENDERS, RpcIds
from tests.spaces import Acceptance, Refusal, SpaceState, member_capabilities
from tests.wire import decode, draft, encode

V01, MCPX = "meup/v0.1", "mcpx/v0.1"


@pytest.fixture
def ids() -> RpcIds:
    return RpcIds()


def request(sender: str, id: str, rpc_id: Any, to: str | None = "b", **said: Any) -> Envelope:
    payload = {"jsonrpc": "2.0", "id": rpc_id, "method": "tools/list", **said}
    return draft("mcp/request", payload, id=id, sender=sender, to=(to,) if to else ())


def response(rpc_id: Any, to: str | None = "a", sender: str = "b", **header: Any) -> Envelope:
    """As it comes in the dialect that has only JSON-RPC ids."""
    fields = {
        "protocol": MCPX,
        "id": "answer",
        "from": sender,
        "kind": "mcp",
        "payload": {"jsonrpc": "2.0", "id": rpc_id, "result": {}},
        **({"to": [to]} if to else {}),
        **header,
    }
    return decode(json.dumps(fields))


def hears(ids: RpcIds, envelope: Envelope) -> Envelope:
    return ids.heard(envelope, envelope.payload)


def answered(ids: RpcIds, envelope: Envelope) -> tuple[str, ...]:
    return hears(ids, envelope).correlation


@pytest.mark.rule("1.rpc_ids")
def test_a_response_answers_the_request_with_its_id_of_that_requester(ids: RpcIds) -> None:
    for sender, id in (("a", "request-a"), ("c", "request-c")):
        heard = request(sender, id, 1)
        assert hears(ids, heard) is heard
    assert answered(ids, response(1)) == ("request-a",)
    assert answered(ids, response("1")) == ("request-a",)
    assert answered(ids, response(1, to="c")) == ("request-c",)
    assert answered(ids, response(2)) == ("2",)
    assert answered(ids, response(1, to="d")) == ("1",)


@pytest.mark.rule("1.rpc_ids")
def test_a_response_to_everybody_is_told_only_where_one_request_fits(ids: RpcIds) -> None:
    hears(ids, request("a", "request-a", 1))
    hears(ids, request("c", "request-c", 1, to="d"))
    assert answered(ids, response(1, to=None)) == ("request-a",)
    hears(ids, request("e", "request-e", 1, to=None))
    assert answered(ids, response(1, to=None)) == ("1",)


@pytest.mark.rule("1.rpc_ids")
def test_the_frame_stays_as_it_came(ids: RpcIds) -> None:
    hears(ids, request("a", "request-a", 1))
    came = response(1)
    told = hears(ids, came)
    assert told.frame == encode(told, MCPX) == came.frame
    assert json.loads(encode(told, V01))["correlationId"] == "request-a"


@pytest.mark.rule("1.rpc_ids")
@pytest.mark.parametrize(
    "said",
    [
        response(1, correlationId="request-x"),
        draft("mcp/response", {"id": 1, "result": 1}, id="r", sender="b", correlation=("1",)),
    ],
)
def test_an_envelope_id_is_not_taken_for_a_json_rpc_id(ids: RpcIds, said: Envelope) -> None:
    hears(ids, request("a", "request-a", 1))
    assert hears(ids, said) is said


def test_the_last_request_with_an_id_counts_and_what_has_none_is_not_remembered(
    ids: RpcIds,
) -> None:
    hears(ids, request("a", "e1", 1, method="notifications/progress"))
    for odd in (None, True, [1], "x" * 300):
        hears(ids, request("a", "e2", odd))
    assert len(ids) == 0
    hears(ids, request("a", "e1", 1))
    hears(ids, request("a", "e2", "1"))
    assert answered(ids, response(1)) == ("e2",)


@pytest.mark.rule("1.rpc_ids")
@pytest.mark.parametrize("dialect", [MCPX, V01])
def test_what_waits_for_its_answer_is_known_however_much_was_asked_and_answered_since(
    ids: RpcIds, dialect: str
) -> None:
    hears(ids, request("a", "slow", "s"))
    for number in range(MAX_RPC_IDS + 1):
        hears(ids, request("a", f"request-{number}", number))
        quick = response(number)
        if dialect != MCPX:
            quick = quick.replace(protocol=dialect, correlation=(f"request-{number}",))
        hears(ids, quick)
        hears(ids, response("s", sender="eve"))  # whom nobody asked
    assert len(ids) == MAX_RPC_IDS
    assert answered(ids, response("s")) == ("slow",)


@pytest.mark.rule("1.rpc_ids")
def test_what_is_remembered_is_bounded_for_each_sender_and_in_senders(ids: RpcIds) -> None:
    for number in range(MAX_RPC_IDS + 1):
        hears(ids, request("a", f"e{number}", number))
    hears(ids, request("c", "other", 0))
    assert len(ids) == MAX_RPC_IDS + 1
    assert answered(ids, response(0)) == ("0",)
    assert answered(ids, response(MAX_RPC_IDS)) == (f"e{MAX_RPC_IDS}",)
    assert answered(ids, response(0, to="c")) == ("other",)
    for number in range(MAX_SENDERS):
        hears(ids, request(f"s{number}", "e", 1))
    assert len(ids) == MAX_SENDERS


def test_a_gateway_remembers_requests_from_the_first_on_who_may_answer_by_json_rpc_id() -> None:
    space = SpaceState({name: member_capabilities([{"kind": "mcp/*"}]) for name in ("a", "b")})
    for name in ("a", "b"):
        space.join(name)
    answered_as: list[tuple[str, ...]] = []
    for id, rpc_id in (("early", 7), ("late", 8)):
        space.decide("a", encode(request("a", id, rpc_id), V01), V01)
        space.register_dialect(MCPX)
        decision = space.decide("b", response(rpc_id).frame, MCPX)
        assert isinstance(decision, Acceptance)
        answered_as.append(decision.envelope.correlation)
    assert answered_as == [("7",), ("late",)]


def test_a_gateway_translates_what_a_response_answers() -> None:
    asks = member_capabilities([{"kind": "mcp/request"}])
    space = SpaceState({"a": asks, "b": member_capabilities([]), "c": member_capabilities([])})
    space.register_dialect(MCPX)
    for name in ("a", "b", "c"):
        space.join(name)
    asked = space.decide("a", encode(request("a", "request-a", 7), V01), V01)
    assert isinstance(asked, Acceptance)
    delivered = json.loads(encode(asked.envelope, MCPX))
    assert (delivered["kind"], delivered["payload"]["id"]) == ("mcp", 7)

    # Nothing but having been asked allows this, and the JSON-RPC id alone says so.
    said = response(7)
    decision = space.decide("b", said.frame, MCPX)
    assert isinstance(decision, Acceptance)
    assert json.loads(encode(decision.envelope, V01))["correlationId"] == "request-a"
    assert encode(decision.envelope, MCPX) == said.frame

    stranger = space.decide("c", response(7, sender="c").frame, MCPX)
    assert isinstance(stranger, Refusal)
    assert stranger.code == "capability_violation"
