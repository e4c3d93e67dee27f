"""Chat as a handler sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meup_agent.protocol.envelope import Envelope


class Chat:
    """A chat message.

    Attributes:
        id: Its id.
        sender: Who said it.
        text: What was said. It is a stranger's text: escape it where a person reads it.
        about: The id of the envelope that it refers to, for example a reject that it explains.
        envelope: The message as it came.
    """

    def __init__(self, envelope: Envelope) -> None:
        payload = envelope.payload_object
        text = payload.get("message", payload.get("text", ""))
        self.id = envelope.id
        self.sender = envelope.sender
        self.text = text if isinstance(text, str) else ""
        self.about = envelope.correlation[0] if envelope.correlation else None
        self.envelope = envelope

    def __repr__(self) -> str:
        """Who said what."""
        return f"<Chat of {self.sender!r}: {self.text[:60]!r}>"
