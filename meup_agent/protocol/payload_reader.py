"""Reads the fields of one payload that must have their form, and names the wrong one."""

from __future__ import annotations

from typing import Final, cast

from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.payloads import JsonObject

MAX_REASON_CHARS: Final = 1_000
"""Characters of a reason or an address: they are kept as long as what they are about."""

MAX_NAME_CHARS: Final = 256
"""Characters of a participant's name, as of an id."""


class PayloadReader:
    """Reads the fields of one payload, and names the wrong one."""

    def __init__(self, envelope: Envelope, payload: JsonObject) -> None:
        self.envelope = envelope
        self.payload = payload
        self.by = envelope.sender

    def problem(self, what: str) -> InvalidEnvelope:
        """The error for a payload with which its kind cannot be carried out."""
        return InvalidEnvelope(
            "invalid_envelope",
            f"the {self.envelope.kind!r} cannot be carried out: {what}",
            envelope_id=self.envelope.id,
        )

    def name(self, field: str) -> str:
        """The name in a field."""
        value = self.payload.get(field)
        if is_name(value):
            return cast("str", value)
        raise self.problem(f"its {field!r} must be a name of 1 to {MAX_NAME_CHARS} characters")

    def text(self, field: str) -> str:
        """The text in a field; empty where there is none."""
        value = self.payload.get(field)
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > MAX_REASON_CHARS:
            raise self.problem(
                f"its {field!r} must be a text of up to {MAX_REASON_CHARS} characters"
            )
        return value

    def count(self, field: str) -> int | None:
        """The number in a field; ``None`` where there is none."""
        value = self.payload.get(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.problem(f"its {field!r} must be a whole number that is not negative")
        return value


def is_name(value: object) -> bool:
    """True for a text that can be a name: not empty, not too long, all printable."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARS and value.isprintable()
