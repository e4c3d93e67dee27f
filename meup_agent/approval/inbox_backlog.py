"""Backlog of an inbox: of thousands of open proposals, the most urgent first, the rest in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from meup_agent.protocol.exchange import ProposalEntry

MAX_AT_FIRST: Final = 64
"""Proposals that are listed when an inbox opens, before it is drawn: more than a screen shows."""

MAX_DECIDED: Final = 200
"""Decided proposals that are noted then: the latest ones."""

MAX_AT_A_TURN: Final = 40
"""Others that are listed in one turn of the loop: a few milliseconds."""

SCREEN_SECONDS: Final = 0.25
"""Pause before the first of them, in which the first screen is drawn."""

TURN_SECONDS: Final = 0.02
"""Pause between these turns, so that a screen is drawn meanwhile also where the machine is busy."""

TELL_EVERY: Final = 1_000
"""Others that are listed until readers are told."""


class InboxBacklog:
    """Proposals that were too many to list when an inbox opened, or its participant came back.

    Args:
        look: Lists one.
        told: Called after every thousand of them, and at the end.
    """

    def __init__(self, look: Callable[[ProposalEntry], None], told: Callable[[], None]) -> None:
        self._look = look
        self._told = told
        self._waiting: list[ProposalEntry] = []  # the most urgent at the end
        self._came = Condition()

    def __len__(self) -> int:
        """The number of proposals that are not listed yet."""
        return len(self._waiting)

    def begin(self, pending: Iterable[ProposalEntry]) -> list[ProposalEntry]:
        """Keep all but the most urgent proposals for later.

        Args:
            pending: All that are open.

        Returns:
            Those to look at now, the most urgent first.
        """
        ordered = sorted(pending, key=_urgency)
        self._waiting = ordered[: MAX_AT_FIRST - 1 : -1]
        self._came.notify_all()
        return ordered[:MAX_AT_FIRST]

    async def run(self) -> None:
        """List them in turns, until cancelled."""
        while True:
            if not self._waiting:
                while not self._waiting:
                    await self._came.wait()
                await anyio.sleep(SCREEN_SECONDS)
            await anyio.sleep(TURN_SECONDS)
            for _ in range(min(MAX_AT_A_TURN, len(self._waiting))):
                self._look(self._waiting.pop())
            if len(self._waiting) % TELL_EVERY < MAX_AT_A_TURN:
                self._told()


def _urgency(entry: ProposalEntry) -> float:
    """The deadline of a proposal, without which it comes last."""
    return float("inf") if entry.expires_at is None else entry.expires_at
