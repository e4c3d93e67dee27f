"""Backlog of an inbox: of thousands of open proposals, the most urgent first, the rest in turns."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.protocol.exchange import ProposalKey
from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from meup_agent.approval.inbox_earlier import OpenProposal

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


async def pause_for_screen() -> None:
    """Wait as long as a first screen is drawn."""
    await anyio.sleep(SCREEN_SECONDS)


class InboxBacklog:
    """Proposals that were too many to list when an inbox opened, or its participant came back.

    Args:
        update_item: Lists one.
        told: Called after every thousand of them, and at the end.
        until_drawn: Waits until the first screen is drawn.
    """

    def __init__(
        self,
        update_item: Callable[[OpenProposal], None],
        told: Callable[[], None],
        until_drawn: Callable[[], Awaitable[None]] = pause_for_screen,
    ) -> None:
        self._update_item = update_item
        self._told = told
        self._until_drawn = until_drawn
        self._waiting: list[OpenProposal] = []  # the most urgent at the end
        self._removed: set[ProposalKey] = set()  # of these
        self._came = Condition()

    def __len__(self) -> int:
        """The number of proposals that are not listed yet."""
        return len(self._waiting) - len(self._removed)

    def begin(self, pending: Iterable[OpenProposal], me: str) -> list[OpenProposal]:
        """Keep all but the most urgent proposals for later, and first of all those for others.

        Args:
            pending: All that are open; of one deadline, those that came first stand first.
            me: The participant whose inbox it is.

        Returns:
            Those to look at now, the most urgent first.
        """
        ours: list[OpenProposal] = []
        others: list[OpenProposal] = []
        for each in pending:
            to = each.envelope.to
            (others if to and me not in to else ours).append(each)
        ordered = [*sorted(ours, key=_urgency), *sorted(others, key=_urgency)]
        self._waiting = ordered[: MAX_AT_FIRST - 1 : -1]
        self._removed.clear()
        self._came.notify_all()
        return ordered[:MAX_AT_FIRST]

    def remove(self, key: ProposalKey) -> None:
        """List one of them no more: it was not waited for, or is decided."""
        self._removed.add(key)

    def hasten(self, ids: Collection[str]) -> None:
        """List proposals of some ids before the others."""
        if not self._waiting or not ids:
            return
        later = [each for each in self._waiting if each.envelope.id not in ids]
        self._waiting = [*later, *(each for each in self._waiting if each.envelope.id in ids)]

    async def run(self) -> None:
        """List them in turns, until cancelled."""
        while True:
            while not self._waiting:
                await self._came.wait()
            await self._until_drawn()
            while self._waiting:
                await anyio.sleep(TURN_SECONDS)
                self._list_some()

    def _list_some(self) -> None:
        for _ in range(min(MAX_AT_A_TURN, len(self._waiting))):
            proposal = self._waiting.pop()
            key = ProposalKey(proposal.envelope.sender, proposal.envelope.id)
            if key in self._removed:
                self._removed.remove(key)
            else:
                self._update_item(proposal)
        if len(self._waiting) % TELL_EVERY < MAX_AT_A_TURN:
            self._told()


def _urgency(proposal: OpenProposal) -> float:
    """The deadline of a proposal, without which it comes last."""
    return inf if proposal.expires_at is None else proposal.expires_at
