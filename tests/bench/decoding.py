"""Decoding and writing of an envelope of 450 bytes, beside other libraries.

CPU time of `decode()` as a session uses it, its checks of size, UTF-8 and depth included. The peers
check nothing but what they decode.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from time import process_time
from typing import Any

import msgspec
from pydantic import BaseModel, Field

from meup_agent.protocol.dialects import decode, encode
from meup_agent.protocol.envelope import draft
from tests.bench.figures import Figure, Program

TIMES = 50_000

DIALECT = "meup/v0.1"
PAYLOAD = {
    "jsonrpc": "2.0",
    "id": "0123456789abcdef0123456789abcdef",
    "method": "tools/call",
    "params": {
        "name": "write_file",
        "arguments": {"path": "/public/notes/a.txt", "text": "hello, some text"},
        "_meta": {"progressToken": "0123456789abcdef0123456789abcdef"},
    },
}
FRAME = json.dumps(
    {
        "protocol": DIALECT,
        "id": "0123456789abcdef0123456789abcdef",
        "ts": "2025-08-30T12:00:00.000Z",
        "from": "agent-a",
        "to": ["files"],
        "kind": "mcp.request",
        "correlationId": "fedcba9876543210fedcba9876543210",
        "payload": PAYLOAD,
    },
    separators=(",", ":"),
).encode()


class MsgspecHeader(msgspec.Struct):
    """The header as one would write it for msgspec alone."""

    protocol: str
    id: str
    kind: str
    sender: str = msgspec.field(name="from")
    payload: msgspec.Raw
    to: list[str] = []
    ts: str | None = None
    correlation: str | None = msgspec.field(name="correlationId", default=None)
    context: str | None = None


class PydanticEnvelope(BaseModel):
    """The envelope as one would write it for pydantic."""

    protocol: str
    id: str
    kind: str
    sender: str = Field(alias="from")
    payload: dict[str, Any]
    to: list[str] = []
    ts: str | None = None
    correlation: str | None = Field(alias="correlationId", default=None)
    context: str | None = None


_header = msgspec.json.Decoder(MsgspecHeader).decode
_values = msgspec.json.Decoder().decode


def microseconds(run: Callable[[], object], times: int) -> float:
    """CPU time of one run."""
    run()
    begun = process_time()
    for _ in range(times):
        run()
    return (process_time() - begun) / times * 1e6


def fresh() -> bytes:
    """Make an envelope and write it, as a verb does."""
    return encode(
        draft(
            "mcp/request",
            PAYLOAD,
            id="0123456789abcdef0123456789abcdef",
            sender="agent-a",
            to=("files",),
            correlation=("fedcba9876543210fedcba9876543210",),
        ),
        DIALECT,
    )


def measure(scale: float = 1.0) -> Iterator[Figure]:
    times = max(1, round(TIMES * scale))
    figures: dict[str, tuple[Callable[[], object], float | None]] = {
        f"the header of {len(FRAME)} bytes": (partial(decode, FRAME, DIALECT), 1.5),
        "header, and the payload as JSON values": (lambda: decode(FRAME, DIALECT).payload, 6),
        "make and write one": (fresh, None),
        "msgspec alone: the header": (partial(_header, FRAME), None),
        "msgspec alone: everything": (partial(_values, FRAME), None),
        "a pydantic model": (partial(PydanticEnvelope.model_validate_json, FRAME), None),
        "json of the standard library": (partial(json.loads, FRAME), None),
    }
    for name, (run, goal) in figures.items():
        yield Figure(name, microseconds(run, times), "µs", goal)


PROGRAM = Program("decoding", "Decoding and writing an envelope", measure)
