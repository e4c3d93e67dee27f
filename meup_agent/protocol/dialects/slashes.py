"""``meup/v0.2`` and ``mew/v0.4``: kinds with slashes, a list of correlation ids (PROTOCOL 1)."""

from __future__ import annotations

from typing import Final

import msgspec

from meup_agent.protocol.dialects.base import Dialect, Header, join_fields, read_plain
from meup_agent.protocol.dialects.translate import with_text
from meup_agent.protocol.envelope import Envelope


class _Slashes(msgspec.Struct, frozen=True):
    name: str

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
                "kind": envelope.kind,
                "correlation_id": envelope.correlation or None,
                "context": envelope.context,
            },
            envelope,
            with_text(envelope, self.name),
        )


MEUP_V02: Final[Dialect] = _Slashes("meup/v0.2")
MEW_V04: Final[Dialect] = _Slashes("mew/v0.4")
