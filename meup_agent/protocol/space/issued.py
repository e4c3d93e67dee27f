"""A bounded memory of who issued what."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

MAX_ISSUED: Final = 1_000
"""Requests that are remembered of each participant after they have ended, and grants that it made.
Each participant has a share of its own, so that nobody can push out another's."""

V = TypeVar("V")

_NOBODY: Final[Mapping[str, Any]] = MappingProxyType({})


class Issued(Generic[V]):
    """Envelopes of one kind by id; the oldest of a participant is forgotten first.

    Two participants may use the same id, so an id alone does not say whose envelope it is.

    Args:
        limit: Envelopes of each participant.

    Attributes:
        by_id: What is remembered, by id and issuer; only to be read.
    """

    def __init__(self, limit: int = MAX_ISSUED) -> None:
        self._limit = limit
        self.by_id: dict[str, dict[str, V]] = {}
        self._in_order: dict[str, OrderedDict[str, None]] = {}

    def remember(self, envelope_id: str, issuer: str, value: V) -> None:
        """Remember an envelope, and forget the issuer's oldest if these are too many."""
        share = self._in_order.get(issuer)
        if share is None:
            share = self._in_order[issuer] = OrderedDict()
        if envelope_id in share:
            share.move_to_end(envelope_id)
        share[envelope_id] = None
        issuers = self.by_id.get(envelope_id)
        if issuers is None:
            self.by_id[envelope_id] = {issuer: value}
        else:
            issuers[issuer] = value
        if len(share) > self._limit:
            oldest, _ = share.popitem(last=False)
            issuers = self.by_id[oldest]
            del issuers[issuer]
            if not issuers:
                del self.by_id[oldest]

    def of(self, envelope_id: str) -> Mapping[str, V]:
        """What is remembered under an id, by issuer; nothing if it is unknown or forgotten."""
        return self.by_id.get(envelope_id, _NOBODY)

    def __contains__(self, envelope_id: str) -> bool:
        """Whether an envelope with that id is remembered."""
        return envelope_id in self.by_id

    def __len__(self) -> int:
        """How many envelopes are remembered, over all participants."""
        return sum(len(share) for share in self._in_order.values())
