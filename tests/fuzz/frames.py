"""A few frames of each dialect to begin with: a proposal's conversation, management, streams.

In a line, ``@@`` is the id of the stream that was opened last, which no input can guess, and
``@M@`` a megabyte.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from meup_agent.errors import NotExpressible
from meup_agent.protocol.dialects import DIALECTS, encode
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import draft
from meup_agent.protocol.wire.streams import StreamInfo

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


def joined(first: bytes, frames: Iterable[bytes]) -> bytes:
    """Frames, each on a line that begins so."""
    return b"\n".join(first + each for each in frames)


STREAMS: list[tuple[str, Any]] = [
    ("stream/request", {"direction": "upload", "description": "tokens"}),
    ("stream/request", {"direction": "upload", "target": ["dots", "mew"], "metadata": {"a": 1}}),
    ("stream/grant-write", {"stream_id": "@@", "participant_id": "dots"}),
    ("stream/revoke-write", {"stream_id": "@@", "participant_id": "dots", "reason": "enough"}),
    ("stream/transfer-ownership", {"stream_id": "@@", "new_owner": "dots"}),
    ("stream/close", {"stream_id": "@@", "reason": "complete"}),
    ("stream/open", {"stream_id": "@@", "owner": "mew"}),
    ("participant/pause", {"reason": "enough", "timeout_seconds": 5}),
]

STREAM_FRAMES = [
    b"#@@#data", b"#@@#", b"#@@#\x00\xff#@@#", b"#unknown#x", b"#", b"##", b"#@@", b"#a b#x",
    b"#\xc3#x", b"#@M@#x", b"#@@#@M@", b'#{"kind":"chat"}',
]  # fmt: skip
"""Frames of streams, good and bad."""


def stream_examples(me: str, dialect: str) -> list[bytes]:
    """The life of a stream as its owner writes it, with frames of its own in between."""
    frames = list[bytes]()
    for number, (kind, payload) in enumerate(STREAMS):
        to = ("dots",) if kind.startswith("participant") else ()
        frames.append(encode(draft(kind, payload, id=f"t{number}", sender=me, to=to), dialect))
        frames.append(STREAM_FRAMES[0])
    return frames


def expanded(frame: bytes, active: Sequence[StreamInfo]) -> bytes:
    """A frame with its placeholders filled in."""
    newest = active[-1].id.encode() if active else b"none"
    return frame.replace(b"@@", newest).replace(b"@M@", b"M" * (1 << 20))


EXAMPLES = {
    dialect: examples(me, dialect)
    for dialect, me in zip(DIALECTS, ("mcpx", "dots", "slash", "mew"), strict=True)
}
"""Frames by dialect."""


def join_frame(**fields: object) -> bytes:
    """A join frame."""
    return json.dumps({"type": "join", **fields}).encode()
