"""The open proposals of a space as the space itself knows them, without its journal.

Ten thousand are sorted in a few milliseconds; to fold their journal takes a second. So an inbox of
many is opened over these, and what the journal says besides comes afterwards.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from meup_agent.causes import read_reason
from meup_agent.gateway.edge.http.context import read_journal
from meup_agent.gateway.edge.http.space_views import FOLD_PAGE
from meup_agent.protocol import kinds
from meup_agent.protocol.envelope import draft
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.protocol.resume import ReplayMark

if TYPE_CHECKING:
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.space.indexes import OpenItem
    from meup_agent.protocol.space.server import SpaceServer


class OpenProposals:
    """The open proposals of a space at one moment, with what was said about each since.

    What a space did not keep whole, or does not know any more, is not among them.

    Args:
        host: The space.
    """

    def __init__(self, host: SpaceServer) -> None:
        self._host = host
        self._rejections: dict[str, list[Envelope]] = {}
        at, twice = host.now(), set[str]()
        found: dict[str, OpenItem] = {}
        for item in host.in_flight:
            if item.is_proposal and item.whole and item.state_at(at).is_pending:
                if item.envelope.id in found:
                    twice.add(item.envelope.id)
                found[item.envelope.id] = item
        for id in twice:
            # Which of two was there first decides which of them counts: the journal tells.
            del found[id]
        self._items = found

    async def read_rejections(self, after: int) -> None:
        """Read who has rejected them, from a number on: a space does not keep that.

        Earlier ones are noted once the whole journal has been read.
        """
        host = self._host
        until = host.fanout.delivered
        while after < until:
            after = max(after, host.journal.floor(host.name))
            entries = await read_journal(host, after=after, until=until, limit=FOLD_PAGE)
            for entry in entries:
                if entry.envelope.kind == kinds.MCP_REJECT:
                    self.note_rejection(entry.envelope)
            after = entries[-1].seq if entries else until

    def note_rejection(self, reject: Envelope) -> None:
        """Note a rejection of those that it names and that are not taken yet."""
        named = [name for name in reject.correlation if name in self._items]
        # Nothing else of it counts, and its sender chose how long it is.
        reason = {"reason": read_reason(reject.payload_object.get("reason"))}
        for name in named:
            kept = draft(
                reject.kind, reason, id=reject.id, sender=reject.sender, correlation=(name,)
            )
            self._rejections.setdefault(name, []).append(kept)

    # --- as an inbox reads them ---

    def list_waiting(self) -> list[OpenItem]:
        """Those that are not taken yet, in the order in which they came."""
        return sorted(self._items.values(), key=attrgetter("number"))

    def named(self, id: str) -> ProposalKey | None:
        """The one of an id; ``None``: there is none, or it was taken."""
        item = self._items.get(id)
        return None if item is None else ProposalKey(item.envelope.sender, id)

    def take(self, key: ProposalKey) -> list[tuple[Envelope, ReplayMark]]:
        """One with what was said about it, in order; none if it is decided, or was taken."""
        item = self._items.get(key.id)
        if item is None or item.envelope.sender != key.proposer:
            return []
        del self._items[key.id]
        rejections = self._rejections.pop(key.id, ())
        if not item.state_at(self._host.now()).is_pending:
            return []
        left = self._host.left_after(key.proposer, item.at)
        mark = ReplayMark(in_progress=True, expires_at=item.expires_at, proposer_left=left)
        cancelled = mark._replace(cancelled=True)
        return [
            *((each, mark) for each in (item.envelope, *rejections)),
            *((each.envelope, cancelled) for each in item.cancelled.values()),
            *((each.envelope, mark) for each in item.fulfilling.values() if each.whole),
        ]
