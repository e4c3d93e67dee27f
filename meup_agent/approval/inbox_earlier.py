"""Proposals of before an inbox opened, of which its session was not told.

A gateway's console opens an inbox over what its space knows, without reading its journal. Of ten
thousand, the first screen shows fifty: so each is entered in the session when it is listed, or as
soon as an envelope is about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from meup_agent.protocol import kinds
from meup_agent.protocol.exchange import ProposalKey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meup_agent.client.proposal_feed import ProposalFeed
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import ProposalEntry
    from meup_agent.protocol.resume import ReplayMark


class OpenProposal(Protocol):
    """An open proposal, entered in the session or not."""

    @property
    def envelope(self) -> Envelope:
        """The proposal as it came."""
        ...

    @property
    def expires_at(self) -> int | None:
        """Its deadline, in microseconds since 1970."""
        ...


class EarlierProposals(Protocol):
    """Open proposals as their space knows them; each is taken once."""

    def list_waiting(self) -> Sequence[OpenProposal]:
        """Those that are not taken yet, in the order in which they came."""
        ...

    def named(self, id: str) -> ProposalKey | None:
        """The one of an id; ``None``: there is none, or it was taken."""
        ...

    def take(self, key: ProposalKey) -> Sequence[tuple[Envelope, ReplayMark]]:
        """One with what was said about it, in order; none if it is decided, or was taken."""
        ...


class EarlierEntries:
    """The entries of such proposals, which are kept from being forgotten.

    Args:
        feed: The proposals of the session.
        source: Those to enter when their turn comes, if any.
        overtaken: Called for each that is entered before its turn.
    """

    def __init__(
        self,
        feed: ProposalFeed,
        source: EarlierProposals | None,
        overtaken: Callable[[ProposalKey], None],
    ) -> None:
        self._feed = feed
        self._source = source
        self._overtaken = overtaken
        self._kept: list[ProposalEntry] = []

    def list_waiting(self) -> Sequence[OpenProposal]:
        """Those that are still to be entered, in the order in which they came."""
        return () if self._source is None else self._source.list_waiting()

    def add(self, envelope: Envelope) -> ProposalEntry | None:
        """Enter one at once, unless it is known; or what was said about one, which is returned."""
        if envelope.kind != kinds.MCP_PROPOSAL:
            self._feed.add_word(envelope)
            return next(iter(self._feed.concerned(envelope)), None)
        self._feed.add(envelope)
        return self._keep(ProposalKey(envelope.sender, envelope.id))

    def enter(self, envelope: Envelope) -> ProposalEntry | None:
        """Enter one whose turn it is; ``None``: it is decided."""
        return self._enter(ProposalKey(envelope.sender, envelope.id))

    def find(self, key: ProposalKey) -> ProposalEntry | None:
        """A proposal; one that is still to be entered is entered at once."""
        if self._source is not None and self._source.named(key.id) == key:
            self._overtaken(key)
            self._enter(key)
        return self._feed.get(key)

    def enter_named(self, envelope: Envelope) -> list[ProposalEntry]:
        """Enter those that an envelope is about, which has just been heard."""
        if self._source is None:
            return []
        named = (self._source.named(name) for name in envelope.correlation)
        entries = (self.find(key) for key in named if key is not None)
        found = [entry for entry in entries if entry is not None]
        if found and envelope.kind == kinds.MCP_REJECT:
            # The session knew none that it is about. All else is in what was taken.
            self._feed.add_word(envelope)
        return found

    def _enter(self, key: ProposalKey) -> ProposalEntry | None:
        taken = () if self._source is None else self._source.take(key)
        for nth, (envelope, mark) in enumerate(taken):
            (self._feed.add_word if nth else self._feed.add)(envelope, mark)
        return self._keep(key) if taken else None

    def _keep(self, key: ProposalKey) -> ProposalEntry | None:
        # At once, before the next ones take its room.
        entry = self._feed.get(key)
        if entry is not None:
            self._feed.hold(entry)
            self._kept.append(entry)
        return entry

    def release(self) -> None:
        """Let all of them be forgotten in their time."""
        while self._kept:
            self._feed.release(self._kept.pop())
