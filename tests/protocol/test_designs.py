"""The examples of the designs that this protocol comes from, each as it was written there.

Where an example shows a part only, the rest of an envelope is put around it.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from meup_agent import Envelope
from meup_agent.errors import NotExpressible
from tests.protocol.exchange.peer import Peer
from tests.tables import Cancel, Start
from tests.wire import DIALECTS, as_broadcast, decode, encode, kinds, read_call, read_proposal

LINES = (Path(__file__).parent.parent / "vectors" / "designs.jsonl").read_text("utf-8").splitlines()
EXAMPLES: list[dict[str, Any]] = [json.loads(line) for line in LINES]


def named(examples: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(each, id=f"{each['title']}: {each['shows']}") for each in examples]


def dialects_of(example: dict[str, Any]) -> list[str]:
    """The dialects that an example may be written in; MCP's own are in any."""
    return [example["dialect"]] if example["dialect"] else sorted(DIALECTS)


def written(example: dict[str, Any], dialect: str) -> dict[str, Any]:
    mcp = {"mcpx/v0.1": "mcp", "meup/v0.1": "mcp.request"}.get(dialect, "mcp/request")
    shown = example.get("envelope") or {"kind": mcp, "payload": example["payload"]}
    return {"protocol": dialect, "id": "example-1", "from": "somebody", **shown}


def received(example: dict[str, Any], dialect: str) -> Envelope:
    return decode(json.dumps(written(example, dialect)))


def test_every_design_is_there() -> None:
    assert len(EXAMPLES) == 21
    assert {each["title"] for each in EXAMPLES} == {
        "ADR-001: Request Cancellation Mechanism",
        "ADR-005: Proposal Cancellation Mechanism",
        "ADR-v2c: Proposal Lifecycle Extensions",
        "Cancellation (Model Context Protocol, draft)",
        "MCP-10: Cancellation Support",
    }


@pytest.mark.rule("1.designs")
@pytest.mark.parametrize("example", named(EXAMPLES))
def test_an_example_is_an_envelope_and_is_written_as_it_stands(example: dict[str, Any]) -> None:
    for dialect in dialects_of(example):
        whole = written(example, dialect)
        envelope = decode(json.dumps(whole), dialect)
        assert envelope.kind == example["kind"]
        assert envelope.id == whole["id"]
        assert envelope.sender == whole["from"]
        assert envelope.to == tuple(whole.get("to", ()))
        assert envelope.correlation == tuple(example.get("about", ()))
        assert envelope.payload == whole["payload"]
        assert json.loads(encode(envelope.replace(protocol=""), dialect)) == whole


@pytest.mark.rule("1.designs")
@pytest.mark.parametrize("example", named(EXAMPLES))
@pytest.mark.parametrize("other", sorted(DIALECTS))
def test_an_example_passes_through_every_dialect(example: dict[str, Any], other: str) -> None:
    for dialect in dialects_of(example):
        envelope = received(example, dialect)
        there = decode(encode(envelope, other), other)
        assert there.kind == envelope.kind
        assert there.correlation == envelope.correlation
        back = decode(encode(there, dialect), dialect)
        if there.kind == kinds.MCP_PROPOSAL:
            # Who was written there in ``to`` carries it out, and is said to.
            envelope = as_broadcast(envelope, there.protocol) or envelope
        assert json.loads(encode(back.replace(protocol=""), dialect)) == json.loads(
            encode(envelope.replace(protocol=""), dialect)
        )


CANCELS = [each for each in EXAMPLES if "cancels" in each]


@pytest.mark.rule("1.designs")
@pytest.mark.parametrize("through", sorted(DIALECTS))
@pytest.mark.parametrize("example", named(CANCELS))
def test_a_cancel_ends_what_it_names(example: dict[str, Any], through: str) -> None:
    request_id, reason = example["cancels"]
    for dialect in dialects_of(example):
        cancel = decode(encode(received(example, dialect), through), through)
        call = read_call(cancel.payload)
        assert call.method == kinds.CANCELLED
        assert call.is_notification
        assert call.params == {"requestId": request_id, "reason": reason}
        me = Peer.among(cancel.sender, name=cancel.to[0] if cancel.to else "me", dialect=through)
        [started] = [
            each
            for each in me.request(cancel.sender, "request-1", rpc_id=request_id)
            if isinstance(each, Start)
        ]
        [ended] = [each for each in me.receives(cancel) if isinstance(each, Cancel)]
        assert ended.key == started.key
        assert ended.cause.text == reason


@pytest.mark.rule("1.designs")
@pytest.mark.parametrize(
    "example", named([each for each in EXAMPLES if each["kind"] == kinds.MCP_PROPOSAL])
)
def test_a_proposal_says_its_call_in_every_dialect(example: dict[str, Any]) -> None:
    envelope = received(example, example["dialect"])
    for dialect in DIALECTS:
        try:
            there = decode(encode(envelope, dialect), dialect)
        except NotExpressible:
            pytest.fail(f"{dialect} has no words for it")
        assert there.payload == envelope.payload  # `ttl`, which nobody reads, included
        assert read_proposal(there.payload).method == "tools/call"
