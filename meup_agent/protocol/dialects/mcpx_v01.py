"""``mcpx/v0.1``: one kind for all of MCP, correlation by JSON-RPC ids and ``proposalId``.

Where neither says what an envelope refers to, it stands in ``correlationId`` beside them
(PROTOCOL 1).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from meup_agent.errors import NotExpressible
from meup_agent.protocol import kinds
from meup_agent.protocol.dialects.base import Dialect, Header, one_and_all, read_plain, write_frame
from meup_agent.protocol.dialects.executors import to_target
from meup_agent.protocol.dialects.translate import (
    DECISIONS,
    members_of,
    with_message,
    with_proposal_id,
)
from meup_agent.protocol.envelope import Envelope

NAME: Final = "mcpx/v0.1"

MCP: Final = "mcp"

_TO_WIRE: Final = {
    kinds.MCP_REQUEST: MCP,
    kinds.MCP_RESPONSE: MCP,
    kinds.MCP_PROPOSAL: "proposal",
    kinds.MCP_WITHDRAW: "proposal/withdraw",
    kinds.MCP_REJECT: "proposal/reject",
}
_FROM_WIRE: Final = {wire: kind for kind, wire in _TO_WIRE.items() if wire != MCP}


_MCPX_ONLY: Final = frozenset({MCP, *_FROM_WIRE})


class _Rpc(NamedTuple):
    """Members of an MCP message that refer to others, checked."""

    has_method: bool  # true for a request, false for a response
    id: str | None  # the JSON-RPC id as a name, where it is one
    proposal_id: str | None


_NULL: Final = msgspec.Raw(b"null")

_decode_name = msgspec.json.Decoder(str | int | None).decode


def _read(header: Header, frame: bytes) -> Envelope:
    envelope = read_plain(header, frame)
    rpc = _rpc(envelope.raw_payload)
    kind = _FROM_WIRE.get(envelope.kind, envelope.kind)
    if kind == MCP:
        kind = kinds.MCP_REQUEST if rpc.has_method else kinds.MCP_RESPONSE
    told = _referenced_id(kind, rpc)
    correlation = envelope.correlation or ((told,) if told else ())
    return msgspec.structs.replace(envelope, kind=kind, correlation=correlation)


def _write(envelope: Envelope) -> bytes:
    envelope = to_target(envelope)
    correlation, all_ids = one_and_all(envelope.correlation)
    if envelope.kind in _MCPX_ONLY:
        raise NotExpressible(f"{NAME} has another meaning for the kind {envelope.kind!r}")
    if envelope.kind in DECISIONS and correlation is not None:
        payload = with_proposal_id(envelope, NAME, correlation)
    else:
        payload = with_message(envelope, NAME)
    rpc = _rpc(payload)
    if envelope.kind == kinds.MCP_REQUEST and not rpc.has_method:
        raise NotExpressible(f"{NAME} tells a request by its method, and there is none")
    if envelope.kind == kinds.MCP_RESPONSE and rpc.has_method:
        raise NotExpressible(f"{NAME} tells a response by its having no method")
    said = _referenced_id(envelope.kind, rpc)
    kind = _TO_WIRE.get(envelope.kind, envelope.kind)
    camel = None if correlation == said else correlation
    return write_frame(envelope, NAME, kind, payload, camel, all_ids)


def _rpc(payload: bytes) -> _Rpc:
    members = members_of(payload) or {}
    method, rpc_id = members.get("method", _NULL), members.get("id", _NULL)
    has_method = bytes(method) != b"null"
    return _Rpc(has_method, _name(rpc_id), _name(members.get("proposalId", _NULL)))


def _name(raw: msgspec.Raw) -> str | None:
    """An id, where it is one; what else stands there changes nothing of the message's meaning."""
    try:
        found = _decode_name(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None if found is None else str(found)


def _referenced_id(kind: str, rpc: _Rpc) -> str | None:
    """Return the id to which the payload itself refers."""
    if kind == kinds.MCP_RESPONSE:
        return rpc.id
    if kind in DECISIONS:
        return rpc.proposal_id
    return None


DIALECT: Final = Dialect(NAME, _read, _write)
