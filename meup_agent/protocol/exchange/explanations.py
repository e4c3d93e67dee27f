"""The words with which senders explain their rejects and withdraws, later, in a chat (4.3)."""

from __future__ import annotations

from typing import Final

import msgspec

from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.outcomes import Explanation
from meup_agent.protocol.ttl_map import FairTTLMap

EXPLANATION_CHARS: Final = 4_000
"""Characters of an explanation that are kept: some pages, and a stranger may have written them."""

EXPLANATION_COUNT: Final = 1_000
"""Explanations that are kept; whoever sent most of them loses the oldest first."""

EXPLANATION_SECONDS: Final = 3_600.0
"""Rejects and withdraws whose explanations are kept, for as long as proposals are. The sender of
most of them loses the oldest first."""


class _Expected(msgspec.Struct):
    """A reject or withdraw that its sender may explain."""

    proposals: tuple[str, ...]
    withdrawn: bool
    text: str = ""


class ExplanationStore:
    """Explanations of rejects of our proposals, and of withdraws of proposals of others."""

    def __init__(self) -> None:
        self._expected: FairTTLMap[tuple[str, str], _Expected] = FairTTLMap(
            owner=lambda key: key[0],
            forgotten=lambda key, value: None,
            count=EXPLANATION_COUNT,
            seconds=EXPLANATION_SECONDS,
            size=EXPLANATION_COUNT * EXPLANATION_CHARS,
        )

    def __len__(self) -> int:
        """The number of rejects and withdraws whose words are expected, or kept."""
        return len(self._expected)

    def expect_of_reject(self, by: str, reject_id: str, proposal: str, now: float) -> None:
        """Expect an explanation of a reject."""
        self._expected.put((by, reject_id), _Expected((proposal,), withdrawn=False), now)

    def expect_of_withdraw(
        self, by: str, withdraw_id: str, proposals: tuple[str, ...], now: float
    ) -> None:
        """Expect an explanation of a withdraw."""
        expected, size = _Expected(proposals, withdrawn=True), sum(map(len, proposals))
        self._expected.put((by, withdraw_id), expected, now, size=size)

    def read(self, chat: Envelope, now: float) -> list[Explanation]:
        """The explanations that a chat is: of decisions of its sender that it names first."""
        found: list[Explanation] = []
        for name in chat.correlation:
            expected = self._expected.get((chat.sender, name), now)
            if expected is None or expected.text:
                continue
            payload = chat.payload_object
            text = payload.get("message", payload.get("text"))
            if not isinstance(text, str) or not text:
                break
            expected.text = text[:EXPLANATION_CHARS]
            self._expected.grow((chat.sender, name), 4 * len(expected.text), now)
            found.append(
                Explanation(
                    expected.proposals, chat.sender, name, expected.text, expected.withdrawn
                )
            )
        return found

    def get(self, by: str, decision_id: str, now: float) -> str:
        """The words that explain a reject or withdraw; empty where none have come."""
        expected = self._expected.get((by, decision_id), now)
        return "" if expected is None else expected.text
