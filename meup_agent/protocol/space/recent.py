"""What was accepted lately: the same envelope is not delivered a second time (PROTOCOL 6)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from meup_agent.protocol.envelope import Envelope

REMEMBERED_SECONDS: Final = 600.0
"""How long an accepted envelope is known again (PROTOCOL 6)."""

MAX_RECENT: Final = 10_000
"""Envelopes that are remembered of each sender. What a member sends again is what had not come
back to it when its connection ended, which is less than its outbox holds."""

LOOKED_AFTER: Final = 16
"""Envelopes after which one sender's are looked at for those that are too old."""

_MICROSECONDS: Final = 1_000_000


class _Accepted(NamedTuple):
    content: int
    seq: int
    at: int


class Recent:
    """A bounded memory of accepted envelopes by sender and id."""

    def __init__(self, *, limit: int = MAX_RECENT, seconds: float = REMEMBERED_SECONDS) -> None:
        self._limit = limit
        self._age = round(seconds * _MICROSECONDS)
        self._remembered = 0
        # Whose were looked at the longest ago comes first.
        self._by_sender: OrderedDict[str, OrderedDict[str, _Accepted]] = OrderedDict()

    def remember(self, envelope: Envelope, seq: int, at: int) -> None:
        """Remember an accepted envelope; its id may have been another's before.

        Now and then somebody's are forgotten that are too old to be known again.
        """
        share = self._by_sender.get(envelope.sender)
        if share is None:
            share = self._by_sender[envelope.sender] = OrderedDict()
        share[envelope.id] = _Accepted(_content(envelope), seq, at)
        share.move_to_end(envelope.id)
        if len(share) > self._limit:
            share.popitem(last=False)
        self._remembered += 1
        if self._remembered % LOOKED_AFTER == 0:
            self._forget(at)

    def find(self, envelope: Envelope, at: int) -> int | None:
        """The number under which the same envelope was accepted; ``None`` if it is new.

        Some clients begin to count their ids anew when they start: another content under a known
        id is another envelope.
        """
        share = self._by_sender.get(envelope.sender)
        known = None if share is None else share.get(envelope.id)
        if known is None or at - known.at > self._age or known.content != _content(envelope):
            return None
        return known.seq

    def __len__(self) -> int:
        """How many envelopes are remembered."""
        return sum(map(len, self._by_sender.values()))

    def _forget(self, at: int) -> None:
        """Forget what is too old of one sender, another one each time."""
        sender, share = self._by_sender.popitem(last=False)
        while share and at - next(iter(share.values())).at > self._age:
            share.popitem(last=False)
        if share:
            self._by_sender[sender] = share


def _content(envelope: Envelope) -> int:
    # Python's hash is keyed anew in each process, so nobody can make two contents look alike.
    return hash(
        (envelope.kind, envelope.to, envelope.correlation, envelope.context, envelope.raw_payload)
    )
