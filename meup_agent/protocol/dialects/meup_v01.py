"""``meup/v0.1``: kinds with dots, one correlation id as a string (PROTOCOL 1)."""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from meup_agent.protocol import kinds
from meup_agent.protocol.dialects.base import Dialect, Fields, one_and_all, read_plain, write_fields
from meup_agent.protocol.dialects.translate import with_message
from meup_agent.protocol.envelope import Envelope


class _MeupV01:
    name: str = "meup/v0.1"

    read = staticmethod(read_plain)

    def write(self, envelope: Envelope) -> bytes:
        first, all_ids = one_and_all(envelope.correlation)
        return write_fields(
            Fields(
                protocol=self.name,
                id=envelope.id,
                ts=envelope.ts,
                sender=envelope.sender,
                to=envelope.to,
                kind=kinds.dotted(envelope.kind),
                camel_correlation=first,
                snake_correlation=all_ids,
                context=envelope.context,
                payload=Raw(with_message(envelope, self.name)),
            ),
            envelope,
        )


DIALECT: Final[Dialect] = _MeupV01()
