"""``meup/v0.1``: kinds with dots, one correlation id as a string (PROTOCOL 1)."""

from __future__ import annotations

from typing import Final

from meup_agent.protocol import kinds
from meup_agent.protocol.dialects.base import (
    Dialect,
    Header,
    join_fields,
    one_correlation,
    read_plain,
)
from meup_agent.protocol.dialects.translate import with_message
from meup_agent.protocol.envelope import Envelope


class _MeupV01:
    name: str = "meup/v0.1"

    def read(self, header: Header, frame: bytes) -> Envelope:
        return read_plain(header, frame)

    def write(self, envelope: Envelope) -> bytes:
        return join_fields(
            {
                "protocol": self.name,
                "id": envelope.id,
                "ts": envelope.ts,
                "from": envelope.sender,
                "to": envelope.to or None,
                "kind": kinds.dotted(envelope.kind),
                "correlationId": one_correlation(envelope, self.name),
                "context": envelope.context,
            },
            envelope,
            with_message(envelope, self.name),
        )


DIALECT: Final[Dialect] = _MeupV01()
