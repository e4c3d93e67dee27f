"""The words that follow a reject of a proposal of ours, as a chat (PROTOCOL 4.3)."""

from __future__ import annotations

from typing import Final

from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.ttl_map import TTLMap

MAX_CHARS: Final = 4_000
"""Characters of an explanation that are kept: some pages, and a stranger may have written them."""

COUNT: Final = 1_000
SECONDS: Final = 600.0


class RejectExplanations:
    """Keeps the first chat with which the sender of a reject explains it."""

    def __init__(self) -> None:
        self._words: TTLMap[tuple[str, str], str] = TTLMap(
            count=COUNT, seconds=SECONDS, size=COUNT * MAX_CHARS
        )

    def rejected(self, by: str, rejection_id: str, now: float) -> None:
        """A proposal of ours was rejected: an explanation may follow."""
        self._words.put((by, rejection_id), "", now)

    def heard(self, chat: Envelope, now: float) -> None:
        """A chat has come; it explains the rejects that it names, if they are of its sender."""
        for name in chat.correlation:
            if self._words.get((chat.sender, name), now) == "":
                said = chat.payload_object
                text = said.get("message", said.get("text"))
                if isinstance(text, str) and text:
                    words = text[:MAX_CHARS]
                    self._words.put((chat.sender, name), words, now, size=4 * len(words))

    def get(self, by: str, rejection_id: str, now: float) -> str:
        """The words that explain a reject; empty where none have come."""
        return self._words.get((by, rejection_id), now) or ""
