"""``meup/v0.1``: kinds with dots, one correlation id as a string (PROTOCOL 1)."""

from __future__ import annotations

from typing import Final

from meup_agent.errors import NotExpressible
from meup_agent.protocol import kinds
from meup_agent.protocol.dialects.base import Dialect, Header, join_fields, read_plain
from meup_agent.protocol.envelope import Envelope


class _MeupV01:
    name: str = "meup/v0.1"

    def read(self, header: Header, frame: bytes) -> Envelope:
        return read_plain(header, frame)

    def write(self, envelope: Envelope) -> bytes:
        if len(envelope.correlation) > 1:
            raise NotExpressible(
                f"{self.name} has one correlation id, and envelope {envelope.id} of kind "
                f"{envelope.kind!r} has {len(envelope.correlation)}"
            )
        return join_fields(
            {
                "protocol": self.name,
                "id": envelope.id,
                "ts": envelope.ts,
                "from": envelope.sender,
                "to": envelope.to or None,
                "kind": kinds.dotted(envelope.kind),
                "correlationId": envelope.correlation[0] if envelope.correlation else None,
                "context": envelope.context,
            },
            envelope,
        )


DIALECT: Final[Dialect] = _MeupV01()
