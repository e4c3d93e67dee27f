"""Malformed calls at gateways that exist, which pass them on: our agents refuse them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.gateways import ExistingGateway, Heard
from tests.conformance.people import joined, patiently
from tests.interaction.people import Notes
from tests.interaction.test_malformed_calls import STRUCTURE, everything, proposals

pytestmark = pytest.mark.rule("1.calls")


def said(gateway: ExistingGateway, kind: str, payload: Any, id: str) -> dict[str, Any]:
    header = {"protocol": gateway.version.protocol, "from": "typescript", "to": ["reviewer"]}
    return {**header, "id": id, "kind": kind, "payload": payload}


def kind_of(heard: Heard) -> str:
    return str(heard.frame.get("kind")) if isinstance(heard.frame, dict) else ""


async def test_no_handler_sees_one_and_its_sender_is_told(gateway: ExistingGateway) -> None:
    notes = Notes()
    async with joined(gateway, everything(notes)):
        malformed = list(proposals().values())
        for number, payload in enumerate(malformed):
            gateway.forge(said(gateway, "mcp/proposal", payload, f"p{number}"))
        rejects = await patiently(
            gateway.wait_frames, lambda each: kind_of(each) == "mcp/reject", len(malformed)
        )
        assert {each.frame["payload"]["reason"] for each in rejects} == {"invalid"}
        for number, params in enumerate(STRUCTURE.values()):
            call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            gateway.forge(said(gateway, "mcp/request", call, f"r{number}"))
        answers = await patiently(
            gateway.wait_frames, lambda each: kind_of(each) == "mcp/response", len(STRUCTURE)
        )
        assert {each.frame["payload"]["error"]["code"] for each in answers} == {-32602}
    assert notes.all == []
