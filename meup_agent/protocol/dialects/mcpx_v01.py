"""``mcpx/v0.1``: one kind for all of MCP, correlation by JSON-RPC ids and ``proposalId``.

Where neither says what an envelope refers to, it stands in ``correlationId`` beside them
(PROTOCOL 1).
"""

from __future__ import annotations

from typing import Final

import msgspec

from meup_agent.errors import NotExpressible
from meup_agent.protocol import kinds
from meup_agent.protocol.dialects.base import (
    Dialect,
    Fields,
    Header,
    one_correlation,
    read_plain,
    write_fields,
)
from meup_agent.protocol.dialects.translate import DECISIONS, with_message, with_proposal_id
from meup_agent.protocol.envelope import Envelope

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


class _Rpc(msgspec.Struct):
    """What an MCP message says of itself."""

    method: str | None = None
    id: str | int | None = None
    proposal_id: str | None = msgspec.field(name="proposalId", default=None)


_decode_rpc = msgspec.json.Decoder(_Rpc).decode


class _McpxV01:
    name: str = "mcpx/v0.1"

    def read(self, header: Header, frame: bytes) -> Envelope:
        envelope = read_plain(header, frame)
        rpc = _rpc(envelope.raw_payload)
        kind = _FROM_WIRE.get(envelope.kind, envelope.kind)
        if kind == MCP:
            kind = kinds.MCP_REQUEST if rpc.method is not None else kinds.MCP_RESPONSE
        told = _told(kind, rpc)
        correlation = envelope.correlation or ((told,) if told else ())
        return msgspec.structs.replace(envelope, kind=kind, correlation=correlation)

    def write(self, envelope: Envelope) -> bytes:
        correlation = one_correlation(envelope, self.name)
        if envelope.kind in _MCPX_ONLY:
            raise NotExpressible(f"{self.name} has another meaning for the kind {envelope.kind!r}")
        if envelope.kind in DECISIONS and correlation is not None:
            payload = with_proposal_id(envelope, self.name, correlation)
        else:
            payload = with_message(envelope, self.name)
        rpc = _rpc(payload)
        if envelope.kind == kinds.MCP_REQUEST and rpc.method is None:
            raise NotExpressible(f"{self.name} tells a request by its method, and there is none")
        if envelope.kind == kinds.MCP_RESPONSE and rpc.method is not None:
            raise NotExpressible(f"{self.name} tells a response by its having no method")
        said = _told(envelope.kind, rpc)
        return write_fields(
            Fields(
                protocol=self.name,
                id=envelope.id,
                ts=envelope.ts,
                sender=envelope.sender,
                to=envelope.to,
                kind=_TO_WIRE.get(envelope.kind, envelope.kind),
                camel_correlation=None if correlation == said else correlation,
                context=envelope.context,
                payload=msgspec.Raw(payload),
            ),
            envelope,
        )


def _rpc(payload: bytes) -> _Rpc:
    try:
        return _decode_rpc(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Rpc()


def _told(kind: str, rpc: _Rpc) -> str | None:
    """What the payload itself says that it refers to."""
    if kind == kinds.MCP_RESPONSE:
        return None if rpc.id is None else str(rpc.id)
    if kind in DECISIONS:
        return rpc.proposal_id
    return None


DIALECT: Final[Dialect] = _McpxV01()
