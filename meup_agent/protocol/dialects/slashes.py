"""``meup/v0.2`` and ``mew/v0.4``: kinds with slashes, a list of correlation ids (PROTOCOL 1)."""

from __future__ import annotations

from typing import Final

import msgspec

from meup_agent.protocol.dialects.base import Dialect, Fields, read_plain, write_fields
from meup_agent.protocol.dialects.translate import with_text
from meup_agent.protocol.envelope import Envelope


class _Slashes(msgspec.Struct, frozen=True):
    name: str

    read = staticmethod(read_plain)

    def write(self, envelope: Envelope) -> bytes:
        return write_fields(
            Fields(
                protocol=self.name,
                id=envelope.id,
                ts=envelope.ts,
                sender=envelope.sender,
                to=envelope.to,
                kind=envelope.kind,
                snake_correlation=envelope.correlation,
                context=envelope.context,
                payload=msgspec.Raw(with_text(envelope, self.name)),
            ),
            envelope,
        )


MEUP_V02: Final[Dialect] = _Slashes("meup/v0.2")
MEW_V04: Final[Dialect] = _Slashes("mew/v0.4")
