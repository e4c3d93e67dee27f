"""Envelopes of some hundred bytes, as members send them."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from meup_agent.protocol.wire import payloads


def envelope(sender: str, id: str, kind: str, payload: dict[str, Any], **header: Any) -> bytes:
    said = {"protocol": "meup/v0.1", "id": id, "from": sender, "kind": kind, **header}
    said["ts"] = "2025-01-01T00:00:00.000Z"
    return json.dumps({**said, "payload": payload}, separators=(",", ":")).encode()


def proposal(id: str, sender: str, ttl: float, **header: Any) -> bytes:
    """A proposed call of some 400 bytes, that waits so many seconds."""
    until = (datetime.now(UTC) + timedelta(seconds=ttl)).isoformat()
    arguments = {"path": f"docs/{id[-6:]}.md", "content": "a line\n" * 5}
    meta = {payloads.TARGET: "tools", payloads.EXPIRES_AT: until}
    params = {"name": "write_file", "arguments": arguments, payloads.META: meta}
    payload = {"method": "tools/call", "params": params}
    return envelope(sender, id, "mcp.proposal", payload, **header)


def withdrawal(id: str, sender: str, of: str) -> bytes:
    """The end of a proposal, by its proposer."""
    return envelope(sender, id, "mcp.withdraw", {"reason": "no_longer_needed"}, correlationId=of)


def chat(id: str, sender: str) -> bytes:
    """Some words to all."""
    return envelope(sender, id, "chat", {"message": "the build is green again"})


def request(id: str, sender: str) -> bytes:
    """A call of a tool."""
    params = {"name": "write_file", "arguments": {"path": "a.txt", "text": "hi"}}
    payload = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
    return envelope(sender, id, "mcp.request", payload, to=["tools"])


def response(id: str, of: str, to: str) -> bytes:
    """Its result."""
    result = {"content": [{"type": "text", "text": "done"}], "isError": False}
    payload = {"jsonrpc": "2.0", "id": of, "result": result}
    return envelope("tools", id, "mcp.response", payload, to=[to], correlationId=of)
