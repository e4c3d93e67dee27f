"""Decoding and writing of an envelope of 450 bytes, beside other libraries.

CPU time of `decode()` as a session uses it, its checks of size, UTF-8 and depth included. The peers
check nothing but what they decode.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
from pydantic import BaseModel, Field

from meup_agent.protocol.dialects import decode, encode
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.envelope import draft
from tests.bench.figures import Figure, Program
from tests.bench.timing import microseconds

TIMES = 50_000

DIALECT = "meup/v0.1"
ID = "0123456789abcdef0123456789abcdef"
CALL = {
    "name": "write_file",
    "arguments": {"path": "/public/notes/a.txt", "text": "hello, some text"},
    "_meta": {"progressToken": ID},
}
PAYLOAD = payloads.request("tools/call", CALL, ID)


def fresh(ts: str | None = None) -> bytes:
    """Make an envelope and write it, as a verb does."""
    about = ("fedcba9876543210fedcba9876543210",)
    header: dict[str, Any] = {"id": ID, "sender": "agent-a", "to": ("files",), "ts": ts}
    return encode(draft("mcp/request", PAYLOAD, correlation=about, **header), DIALECT)


FRAME = fresh("2025-08-30T12:00:00.000Z")


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
