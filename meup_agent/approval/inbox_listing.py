"""Listing of an inbox: what was open before it, the most urgent first, and what was decided lately.

The gateway lists both. Of ten thousand open proposals the first page shows fifty: so the rest is
read in turns, and each turn takes a few milliseconds.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.approval.proposal_history import PastProposal, past_of
from meup_agent.errors import MeupError, printable
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.protocol.proposal_query import ProposalQuery
from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from meup_agent.client.proposal_feed import ProposalFeed
    from meup_agent.protocol.exchange import ProposalEntry

log = logging.getLogger("meup_agent.approval")

MAX_AT_FIRST: Final = 64
"""Proposals that are listed when an inbox opens, before it is drawn: more than a screen shows."""

MAX_AWAITED: Final = 100
"""Open proposals up to which an inbox waits for all of them, and for what was decided lately."""

MAX_AT_A_TURN: Final = 40
"""Proposals that are listed in one turn of the loop: a few milliseconds."""

FIRST_SECONDS: Final = 5.0
"""Wait for the first page; the inbox is shown without it then."""

SCREEN_SECONDS: Final = 0.25
"""Pause before the rest, in which the first screen is drawn."""

TURN_SECONDS: Final = 0.02
"""Pause between turns, so that a screen is drawn meanwhile also where the machine is busy."""

TELL_EVERY: Final = 1_000
"""Proposals that are listed until readers are told."""


async def pause_for_screen() -> None:
    """Wait as long as a first screen is drawn."""
    await anyio.sleep(SCREEN_SECONDS)


class InboxListing:
    """Reads what the gateway lists, and hands it to an inbox.

    Args:
        feed: The proposals of the session.
        update_item: Lists an open one, of which no reader is told by itself.
        note_past: Takes those that were decided, in the order of their decisions.
        told: Called after every thousand, and at the end.
        until_drawn: Waits until the first screen is drawn.
    """

    def __init__(
        self,
        feed: ProposalFeed,
        update_item: Callable[[ProposalEntry], None],
        note_past: Callable[[Iterable[PastProposal]], None],
        told: Callable[[], None],
        until_drawn: Callable[[], Awaitable[None]],
    ) -> None:
        self._feed = feed
        self._update_item = update_item
        self._note_past = note_past
        self._told = told
        self._until_drawn = until_drawn
        # Listed ones are kept from being forgotten: a vote may be asked for later.
        self._kept: dict[ProposalKey, ProposalEntry] = {}
        self._again = Condition()
        self._wanted, self._read = 1, 0  # how often all of it was asked for, and listed
        self.left = self.omitted = 0
        """Open proposals that are not listed yet, and those of which the gateway cannot tell."""

    @property
    def is_complete(self) -> bool:
        """True once all of it is listed."""
        return self._read == self._wanted

    async def read_first(self) -> None:
        """List the most urgent ones; of few proposals all, and what was decided lately."""
        with anyio.move_on_after(FIRST_SECONDS):
            try:
                await self._read_open(ProposalQuery(to_me=True, urgent=True, limit=MAX_AT_FIRST))
                if self.left <= MAX_AWAITED:
                    await self._read_rest(0.0)
            except MeupError as error:
                log.warning("what was proposed before is not listed: %s", printable(str(error)))

    async def run(self) -> None:
        """List the rest, and all of it anew when :meth:`read_again` asks for it."""
        while True:
            while not self.is_complete:
                await self._until_drawn()
                wanted = self._wanted
                try:
                    await self._read_rest(TURN_SECONDS)
                except MeupError as error:
                    log.warning("the rest is not listed: %s", printable(str(error)))
                self.left, self._read = 0, wanted
                self._told()
            await self._again.wait()

    def read_again(self) -> None:
        """List all of it anew: a connection was lost, or we may do something else."""
        self._wanted += 1
        self._again.notify_all()

    def release(self) -> None:
        """Let what is listed be forgotten in its time."""
        while self._kept:
            self._feed.release(self._kept.popitem()[1])

    async def _read_rest(self, pause: float) -> None:
        wanted, past = self._wanted, list[PastProposal]()
        for key, entry in tuple(self._kept.items()):
            if not entry.state.is_pending:
                self._feed.release(self._kept.pop(key))
        async with aclosing(self._feed.list_pages(ProposalQuery("decided"))) as pages:
            async for page in pages:
                past.extend(map(past_of, page.records))
        self._note_past(past)
        await self._read_open(ProposalQuery(limit=MAX_AT_A_TURN), pause)
        for entry in self._feed.pending():
            if entry.key not in self._kept:
                self._list(entry.key)  # heard, and too large to be listed
        self._read = wanted

    async def _read_open(self, query: ProposalQuery, pause: float = 0.0) -> None:
        listed = omitted = 0
        async with aclosing(self._feed.list_pages(query)) as pages:
            async for page in pages:
                for record in page.records:
                    self._list(ProposalKey(record.proposer, record.id))
                omitted += page.omitted
                before, listed = listed, listed + len(page.records)
                if before // TELL_EVERY < listed // TELL_EVERY:
                    self._told()
                self.left = page.left
                await anyio.sleep(pause)
        self.omitted = omitted

    def _list(self, key: ProposalKey) -> None:
        entry = self._feed.get(key)
        if entry is None:
            return
        known = self._kept.get(key)
        if known is not entry:
            if known is not None:
                self._feed.release(known)
            self._feed.hold(entry)
            self._kept[key] = entry
        self._update_item(entry)
