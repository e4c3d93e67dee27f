"""The settings of a session, and the interfaces that it calls."""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol

from meup_agent.errors import ConfigurationError, UsageError
from meup_agent.protocol.dialects import DEFAULT_DIALECT
from meup_agent.protocol.exchange import Limits, Mode
from meup_agent.session.outbox import checked_ttl

if TYPE_CHECKING:
    from meup_agent.causes import Cause
    from meup_agent.protocol.exchange import Key, Role, Work
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.payloads import Call

Token = str | Callable[[], str] | Callable[[], Awaitable[str]]
"""A token, or what gives one; it is asked once for each attempt to connect."""


async def read_token(token: Token | None) -> str | None:
    """The token, which is asked for where it is not a text."""
    given = token() if callable(token) else token
    return await given if inspect.isawaitable(given) else given


MAX_DOUBLED: Final = 32
"""Failures after which a pause grows no more: a float ends at 2**1024."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts: with full jitter, so that not all agents come back at once.

    Attributes:
        first: Seconds at the most before the first attempt after a loss.
        longest: Seconds at the most before any attempt.
        stable: Seconds of welcome after which the next loss counts as a first one.
    """

    first: float = 0.25
    longest: float = 30.0
    stable: float = 30.0

    def pause(self, failures: int, *, least: float = 0.0) -> float:
        """Seconds before the next attempt, after so many failures in a row before the last one.

        They are random, and at least this part, 0 to 1, of the most that they can be.
        """
        most = min(self.longest, self.first * 2 ** min(failures, MAX_DOUBLED))
        return random.uniform(least * most, most)


TTL: Final = 300.0
"""Seconds that a proposal waits for a decision, if nothing else is said: a person may decide it."""


def ttl_from_environment() -> float | None:
    """Seconds of ``MEUP_TTL``, which may also be ``none``; without it :data:`TTL`."""
    said = os.environ.get("MEUP_TTL", "").strip()
    if not said or said.lower() == "none":
        return None if said else TTL
    try:
        return checked_ttl(float(said))
    except (ValueError, UsageError):
        raise ConfigurationError(
            f"MEUP_TTL is {said!r}; give seconds that a proposal waits, or none for as long as it"
            " takes"
        ) from None


Tracing = bool | Literal["trust"]
"""Make spans, or none; ``trust``: also within the traces that proposers name."""

_TRACING: Final[dict[str, Tracing]] = {
    **dict.fromkeys(("", "0", "false", "off"), False),
    **dict.fromkeys(("1", "true", "on"), True),
    "trust": "trust",
}


def tracing_from_environment() -> Tracing:
    """The value of ``MEUP_TRACING``; without it no spans are made."""
    said = os.environ.get("MEUP_TRACING", "").strip()
    try:
        return _TRACING[said.lower()]
    except KeyError:
        raise ConfigurationError(
            f"MEUP_TRACING is {said!r}; give 1 to make traces, trust to make them within those that"
            " proposers name, or 0"
        ) from None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a session.

    Attributes:
        dialect: The dialect that we begin with; the gateway's welcome may name another.
        backoff: The pauses between attempts to connect.
        limits: The handlers that run and wait at once.
        first_welcome: Seconds to wait for the first welcome; ``None``: as long as it takes.
        mode: Take part, only ask, or only look on.
        ttl: Seconds that a proposal waits for its decision and result where it does not say, else
            ``MEUP_TTL``, else 300; ``None``: as long as it takes.
        tracing: Make OpenTelemetry spans, as ``agent.use(tracing())`` does; ``trust``: with
            ``trust_proposers``. By default as ``MEUP_TRACING`` says, else not.
    """

    dialect: str = DEFAULT_DIALECT
    backoff: Backoff = field(default_factory=Backoff)
    limits: Limits = field(default_factory=Limits)
    first_welcome: float | None = 10.0
    mode: Mode = Mode.PARTICIPATING
    ttl: float | None = field(default_factory=ttl_from_environment)
    tracing: Tracing = field(default_factory=tracing_from_environment)

    def __post_init__(self) -> None:
        """Check the ttl, which each proposal would raise for."""
        checked_ttl(self.ttl)


class Handlers(Protocol):
    """The handlers of an agent; each call returns at once."""

    def find(self, role: Role, envelope: Envelope, call: Call | None, /) -> object:
        """Find the handler for an envelope in a role; something false where there is none.

        What is found comes back to :meth:`start` as ``work.handler``.
        """
        ...

    def start(self, key: Key, work: Work) -> None:
        """Start it; the session is told of its end by :meth:`Session.returned` or `raised`."""
        ...

    def cancel(self, key: Key, cause: Cause) -> None:
        """End its scope."""
        ...


class EnvelopeListener(Protocol):
    """A callee for every envelope."""

    def put(self, envelope: Envelope) -> None:
        """Take one; returns at once."""
        ...
