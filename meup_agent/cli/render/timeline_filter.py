"""The filter of ``meup tail``: by kind, by participant, or all of one exchange.

Everything is looked at first, and only then left out, so that an exchange is followed also through
envelopes that are not shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from meup_agent.cli.render.exchange_observer import Observation
from meup_agent.cli.render.formatting import NOUNS
from meup_agent.cli.render.timeline import TimelineEntry
from meup_agent.escape import visible
from meup_agent.protocol import kinds
from meup_agent.protocol.capability import compile_kind
from meup_agent.protocol.envelope import Envelope
from meup_agent.wording import MAX_NAME

GATEWAY: Final = "gateway"  # the gateway in a filter, as on the timeline, whatever it calls itself

PATTERN: Final = frozenset("*?[{!()|^$\\")
"""Characters of patterns; what has none of them is meant as it stands."""


def suggest_kinds(words: Iterable[str]) -> list[str]:
    """Remarks on kinds that are unknown, but close to one that is known."""
    known = [*NOUNS, *kinds.KINDS, *map(kinds.dotted, kinds.KINDS)]
    strange = [word for word in words if word not in known and not PATTERN.intersection(word)]
    return [
        f"no kind is called {visible(word, MAX_NAME)!r}, as far as is known (did you mean {name}?)"
        for word in strange
        for name in get_close_matches(word, known, n=1)
    ]


class TimelineFilter:
    """Lets the envelopes through that fit every choice that was made.

    A kind is a pattern as in capabilities, or a word of the timeline such as ``cancel``; ``who``
    sends, is addressed, comes or goes; ``about`` is what an :class:`ExchangeFilter` wants. With
    ``fold``, thoughts are shown only where their kind or their exchange was asked for: the end of
    a line of thought counts them.
    """

    def __init__(
        self,
        *,
        kind: Iterable[str] = (),
        sender: Iterable[str] = (),
        to: Iterable[str] = (),
        who: Iterable[str] = (),
        about: str | None = None,
        fold: bool = False,
    ) -> None:
        self._fold = fold
        self._words = frozenset(kind)
        self._kinds = [compile_kind(pattern, place="--kind") for pattern in self._words]
        self._sender, self._to, self._who = frozenset(sender), frozenset(to), frozenset(who)
        self.chain = None if about is None else ExchangeFilter(about)

    def shows(self, entry: TimelineEntry) -> bool:
        """True if an envelope is shown; to be asked once for each, in the gateway's order."""
        envelope = entry.envelope
        sender, to = _named(envelope.sender), frozenset(envelope.to)
        if self._fold and self.chain is None and not self._kinds and _is_thought(envelope):
            return False
        return (
            (self.chain is None or self.chain.holds(entry.observation))
            and (not self._kinds or self._is_of_kind(entry))
            and (not self._sender or bool(self._sender & sender))
            and (not self._to or bool(self._to & to))
            and (not self._who or bool(self._who & (sender | to | _came_or_went(entry))))
        )

    def _is_of_kind(self, entry: TimelineEntry) -> bool:
        return entry.words.noun in self._words or any(
            fits(entry.envelope.kind) for fits in self._kinds
        )


class ExchangeFilter:
    """All of one exchange.

    Wanted by how its id begins, or that of a request in it; or by both, with a slash in between,
    as the timeline has them.
    """

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.exchange: str = ""
        self.other: str = ""

    def holds(self, observation: Observation) -> bool:
        """True if an envelope belongs to it; the first that fits decides on the exchange."""
        if not observation.exchange:
            return False
        if observation.exchange != self.exchange:
            if self.wanted in (observation.exchange, observation.part):
                self.exchange = observation.exchange  # the whole id: no other can be meant
            elif self._begins(observation):
                if self.exchange:
                    self.other = self.other or observation.exchange
                else:
                    self.exchange = observation.exchange
        return observation.exchange == self.exchange

    def _begins(self, observation: Observation) -> bool:
        if observation.exchange.startswith(self.wanted) or observation.part.startswith(self.wanted):
            return True
        exchange, _, part = self.wanted.partition("/")
        return bool(part) and (
            observation.exchange.startswith(exchange) and observation.part.startswith(part)
        )


def _is_thought(envelope: Envelope) -> bool:
    return envelope.kind == kinds.REASONING_THOUGHT and envelope.context is not None


def _named(sender: str) -> frozenset[str]:
    """The names by which a sender may be asked for."""
    return frozenset((sender, GATEWAY)) if sender in kinds.GATEWAY_NAMES else frozenset((sender,))


def _came_or_went(entry: TimelineEntry) -> frozenset[str]:
    """The participant that came or went by an envelope."""
    came_or_went = entry.envelope.kind == kinds.SYSTEM_PRESENCE
    return frozenset((entry.words.who,)) if came_or_went else frozenset()
