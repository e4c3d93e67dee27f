"""The rules of admission, for each way into a gateway: token, space, room and pace (PROTOCOL 3)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Mapping
from math import ceil
from typing import Final, Generic, Protocol, TypeVar

from meup_agent.gateway.auth import AuthThrottled, Identity, network_of
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.protocol.space.management import REMOVED
from meup_agent.protocol.space.members import Observers, crowded
from meup_agent.protocol.space.rate_limits import TokenBucket

BAD_REQUEST: Final = 400
TOKEN_REFUSED: Final = 401
KICKED: Final = 403
NO_SUCH_SPACE: Final = 404
TOO_MANY: Final = 429
OVERLOADED: Final = 503

RETRY_AFTER: Final = 5
"""Seconds after which a caller refused with 503 may try again."""

MAX_REMEMBERED: Final = 10_000
"""Participants, and addresses, whose pace is remembered; the one that came the longest ago is
forgotten, whose bucket has filled meanwhile."""


class NotAdmitted(Exception):
    """A caller is refused, with an HTTP status that :attr:`close_code` has another form of."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = RETRY_AFTER if status == OVERLOADED else retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer that says so over HTTP."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}

    @property
    def close_code(self) -> int:
        """The WebSocket close code that says the same."""
        return 1013 if self.status in (OVERLOADED, TOO_MANY) else 4000 + self.status


def identify(token: str, look_up: Callable[[str], Identity | None]) -> Identity:
    """The identity of a token.

    Args:
        token: The token.
        look_up: Finds the identity of a token that is known.

    Raises:
        NotAdmitted: The token is unknown, or was not looked up after too many wrong ones.
    """
    try:
        identity = look_up(token)
    except AuthThrottled as throttled:
        raise NotAdmitted(TOO_MANY, str(throttled), throttled.retry_after) from None
    if identity is None:
        raise NotAdmitted(TOKEN_REFUSED, "the token is not known here")
    return identity


class AdmittingSpace(Protocol):
    """A space, as far as its entrance has to know it."""

    def is_kicked(self, participant: str) -> bool:
        """True if a participant was removed, and not invited again."""
        ...


def check_space(identity: Identity, space: str, spaces: Mapping[str, AdmittingSpace]) -> None:
    """Raise :exc:`NotAdmitted` unless a participant may enter the space that it asks for."""
    entered = spaces.get(space)
    if entered is None:
        raise NotAdmitted(NO_SUCH_SPACE, "no space here has this name")
    if identity.space != space:
        raise NotAdmitted(TOKEN_REFUSED, "the token is for another space")
    if entered.is_kicked(identity.participant):
        raise NotAdmitted(KICKED, REMOVED)


def check_connections(accepting: bool, count: int, most: int) -> None:
    """Raise :exc:`NotAdmitted` unless a gateway takes one more connection."""
    if not accepting:
        raise NotAdmitted(OVERLOADED, "the gateway stops; connect again")
    if count >= most:
        raise NotAdmitted(
            OVERLOADED, f"the gateway has {most} connections, as many as it takes (max_connections)"
        )


def check_members(participant: str, members: Container[str], count: int, most: int) -> None:
    """Raise :exc:`NotAdmitted` unless there is room; one that takes over from itself needs none."""
    if count >= most and participant not in members:
        raise NotAdmitted(OVERLOADED, f"the space is full: it takes {most} members (max_members)")


def check_observers(participant: str, observers: Observers) -> None:
    """Raise :exc:`NotAdmitted` if a participant has as many observers as it may."""
    if observers.is_crowded(participant):
        raise NotAdmitted(TOO_MANY, crowded(observers.limit), RETRY_AFTER)


K = TypeVar("K", bound=Hashable)


class JoinThrottle:
    """Limits joins per participant, and connections without a token per address.

    Every member is told of a join, so one token that joins and leaves without end costs all of
    them. A connection without a token costs its place and its lines in the log.
    """

    def __init__(self, limits: GatewayLimits, now: Callable[[], int]) -> None:
        self._limits = limits
        self._now = now
        self._joins = _Buckets[tuple[Identity, bool]](limits.joins_per_second, limits.joins_burst)
        self._strangers = _Buckets[str](limits.strangers_per_second, limits.strangers_burst)

    def join(self, identity: Identity, *, observes: bool = False) -> None:
        """Count a join, or raise :exc:`NotAdmitted`: the participant has joined too often lately.

        Observers are counted by themselves: none keeps its participant's agent from coming back.
        """
        wait = self._joins.take((identity, observes), self._now())
        if wait:
            most = self._limits.joins_per_second
            raise _refusal(f"you join more than {most:g} times a second (joins_per_second)", wait)

    def connect(self, address: str) -> None:
        """Count a connection whose handshake does not join, or raise :exc:`NotAdmitted`."""
        wait = self._strangers.take(network_of(address), self._now())
        if wait:
            most = self._limits.strangers_per_second
            raise _refusal(
                f"more than {most:g} connections a second that do not join came from your address"
                " (strangers_per_second)",
                wait,
            )

    def joined(self, address: str) -> None:
        """Count a connection no more that has joined by a frame."""
        self._strangers.put_back(network_of(address), self._now())


class _Buckets(Generic[K]):
    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: OrderedDict[K, TokenBucket] = OrderedDict()

    def take(self, key: K, at: int) -> int:
        """Take one; if there is none, whole seconds until there is."""
        bucket = self._buckets.setdefault(key, TokenBucket(self._per_second, self._burst))
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_REMEMBERED:
            self._buckets.popitem(last=False)
        return 0 if bucket.try_consume(at) else ceil(bucket.wait(at))

    def put_back(self, key: K, at: int) -> None:
        """Give one back that was taken."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.consume(at, -1.0)


def _refusal(why: str, wait: int) -> NotAdmitted:
    return NotAdmitted(TOO_MANY, f"{why}; try again in {wait} s", wait)
