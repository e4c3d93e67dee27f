"""A few frames of each dialect to begin with: the conversation of a proposal, and management."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from meup_agent.errors import NotExpressible
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.dialects import DIALECTS, encode
from meup_agent.protocol.envelope import draft

CALL: dict[str, Any] = {"name": "write", "arguments": {"path": "a.txt"}}

MANAGEMENT: list[tuple[str, Any]] = [
    ("capability/grant", {"recipient": "slash", "capabilities": [{"kind": "mcp/reject"}]}),
    ("capability/revoke", {"recipient": "slash", "capabilities": [{"kind": "chat"}]}),
    ("capability/revoke", {"recipient": "slash", "grant_id": "g1"}),
    ("capability/grant-ack", {"status": "accepted", "grant_id": "g1"}),
    ("space/invite", {"participant_id": "guest", "initial_capabilities": [{"kind": "chat"}]}),
    ("space/kick", {"participant_id": "mew", "reason": "spam"}),
]


def conversation(me: str) -> Iterator[tuple[str, Any, str, tuple[str, ...], tuple[str, ...]]]:
    """Kind, payload, id, to and correlation of one envelope after the other."""
    yield kinds.CHAT, {"text": "hi", "message": "hi"}, "c1", (), ()
    yield kinds.MCP_PROPOSAL, payloads.proposal("tools/call", CALL), "p1", ("mew",), ()
    yield kinds.MCP_REJECT, {"reason": "unsafe"}, "j1", (), ("p1",)
    yield kinds.MCP_REQUEST, payloads.request("tools/call", CALL, "r1"), "r1", (me,), ("p1",)
    progress = {"progressToken": "r1", "progress": 1, "total": 2}
    yield kinds.MCP_REQUEST, payloads.notification(kinds.PROGRESS, progress), "n1", (), ("r1",)
    cancelled = {"requestId": "r1", "reason": "timeout"}
    yield kinds.MCP_REQUEST, payloads.notification(kinds.CANCELLED, cancelled), "n2", (), ("r1",)
    result = {"jsonrpc": "2.0", "id": "r1", "result": {"content": []}}
    yield kinds.MCP_RESPONSE, result, "s1", (), ("r1",)
    yield kinds.MCP_WITHDRAW, {"reason": "no_longer_needed"}, "w1", (), ("p1",)
    for number, (kind, payload) in enumerate(MANAGEMENT):
        yield kind, payload, f"g{number}", (), ("g0",) if kind.endswith("ack") else ()


def examples(me: str, dialect: str) -> list[bytes]:
    """The conversation as a participant writes it, without what the dialect cannot say."""
    frames: list[bytes] = []
    for kind, payload, each_id, to, correlation in conversation(me):
        envelope = draft(kind, payload, id=each_id, sender=me, to=to, correlation=correlation)
        try:
            frames.append(encode(envelope, dialect))
        except NotExpressible:
            continue
    return frames


EXAMPLES = {
    dialect: examples(me, dialect)
    for dialect, me in zip(DIALECTS, ("mcpx", "dots", "slash", "mew"), strict=True)
}
"""Frames by dialect."""


def join_frame(**fields: object) -> bytes:
    """A join frame."""
    return json.dumps({"type": "join", **fields}).encode()
