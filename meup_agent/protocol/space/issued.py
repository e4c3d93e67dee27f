"""A bounded memory of who issued what, and for whom."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MAX_ISSUED: Final = 1_000
"""Envelopes of one kind that are remembered of each participant after they have ended, and grants
that it made. Each participant has a share of its own, so that nobody can push out another's."""

Addressees = tuple[str, ...]


class Issued:
    """Envelopes of one kind by id; the oldest of a participant is forgotten first.

    Two participants may use the same id, so an id alone does not say whose envelope it is.
    """

    def __init__(self, limit: int = MAX_ISSUED) -> None:
        self._limit = limit
        self._by_id: dict[str, dict[str, Addressees]] = {}
        self._in_order: dict[str, OrderedDict[str, None]] = {}

    def remember(self, envelope_id: str, issuer: str, to: Addressees) -> None:
        """Remember an envelope, and forget the issuer's oldest if these are too many."""
        share = self._in_order.get(issuer)
        if share is None:
            share = self._in_order[issuer] = OrderedDict()
        if envelope_id in share:
            share.move_to_end(envelope_id)
        share[envelope_id] = None
        issuers = self._by_id.get(envelope_id)
        if issuers is None:
            self._by_id[envelope_id] = {issuer: to}
        else:
            issuers[issuer] = to
        if len(share) > self._limit:
            oldest, _ = share.popitem(last=False)
            issuers = self._by_id[oldest]
            del issuers[issuer]
            if not issuers:
                del self._by_id[oldest]

    def __contains__(self, envelope_id: str) -> bool:
        """Whether an envelope with that id is remembered."""
        return envelope_id in self._by_id

    def issuers(self, envelope_id: str) -> frozenset[str]:
        """Who issued an envelope with that id; nobody if it is unknown or forgotten."""
        return frozenset(self._by_id.get(envelope_id, ()))

    def addressed(self, envelope_id: str, participant: str) -> bool:
        """Whether an envelope with that id was for the participant, by name or for everybody."""
        issuers = self._by_id.get(envelope_id, {})
        return any(not to or participant in to for to in issuers.values())

    def __len__(self) -> int:
        """How many envelopes are remembered, over all participants."""
        return sum(len(share) for share in self._in_order.values())
