"""``meup/v0.1``, ``meup/v0.2`` and ``mew/v0.4``: each part of the header has a field (PROTOCOL 1).

The first has kinds with dots and one correlation id, the others kinds with slashes and a list.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from meup_agent.protocol.dialects.base import (
    WITH_MESSAGE,
    WITH_TEXT,
    Dialect,
    as_broadcast,
    one_and_all,
    read_plain,
    to_executor,
    translated,
    write_frame,
)
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import Envelope

_NAMING_DECIDERS: Final = ("meup/v0.1", "mcpx/v0.1")
"""Dialects in which ``to`` of a proposal names who decides it."""


def _write_dots(envelope: Envelope) -> bytes:
    if envelope.kind == kinds.MCP_PROPOSAL:
        envelope = as_broadcast(envelope) or envelope
    first, all_ids = one_and_all(envelope.correlation)
    payload = translated(envelope, "meup/v0.1", WITH_MESSAGE)
    kind = kinds.dotted(envelope.kind)
    return write_frame(envelope, "meup/v0.1", kind, payload, first, all_ids)


def _write_slashes(name: str, envelope: Envelope) -> bytes:
    if envelope.kind == kinds.MCP_PROPOSAL and envelope.protocol in _NAMING_DECIDERS:
        envelope = to_executor(envelope)
    payload = translated(envelope, name, WITH_TEXT)
    return write_frame(envelope, name, envelope.kind, payload, None, envelope.correlation)


MEUP_V01: Final = Dialect("meup/v0.1", read_plain, _write_dots)
MEUP_V02: Final = Dialect("meup/v0.2", read_plain, partial(_write_slashes, "meup/v0.2"))
MEW_V04: Final = Dialect("mew/v0.4", read_plain, partial(_write_slashes, "mew/v0.4"))
