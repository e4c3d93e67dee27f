"""Who gets in: one set of rules for a handshake's header and for a join frame (PROTOCOL 3)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Mapping
from math import ceil
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from meup_agent.errors import InvalidEnvelope
from meup_agent.gateway.auth import AuthThrottled, Identity, network_of
from meup_agent.gateway.config import Limits
from meup_agent.protocol.dialects import DIALECTS, spoken
from meup_agent.protocol.limits import check_frame
from meup_agent.protocol.space.management import REMOVED
from meup_agent.protocol.space.members import Observers, crowded
from meup_agent.protocol.space.rate_limits import TokenBucket
from meup_agent.transport.base import LAST_SEEN_HEADER, OBSERVE_HEADER

BAD_REQUEST: Final = 400
TOKEN_REFUSED: Final = 401
KICKED: Final = 403
NO_SUCH_SPACE: Final = 404
TOO_MANY: Final = 429
OVERLOADED: Final = 503

RETRY_AFTER: Final = 5
"""Seconds after which somebody refused with 503 may try again."""

MAX_SEQ_DIGITS: Final = 18
"""Digits of a number that an envelope can have: what a database takes for one."""

MAX_JOIN_BYTES: Final = 16 * 1024
"""Bytes of a join frame: what the headers of a handshake may have, for the same content."""


class NotAdmitted(Exception):
    """Somebody does not get in.

    Attributes:
        status: The HTTP status that says why; :attr:`close_code` is its form after the handshake.
        retry_after: Seconds after which to try again; ``None`` where that is of no use.
    """

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


class TokenLookup(Protocol):
    """Every token: those of a gateway, or the same as one address may ask for them."""

    def identify(self, token: str) -> Identity | None:
        """Whose token it is; ``None`` for a token that nobody has."""
        ...


def identify(tokens: TokenLookup, token: str) -> Identity:
    """Whose token it is.

    Raises:
        NotAdmitted: Nobody's; or it was not looked at, after too many wrong ones.
    """
    try:
        identity = tokens.identify(token)
    except AuthThrottled as guessing:
        raise NotAdmitted(TOO_MANY, str(guessing), guessing.retry_after) from None
    if identity is None:
        raise NotAdmitted(TOKEN_REFUSED, "the token is not known here")
    return identity


class Entered(Protocol):
    """A space, as far as its entrance has to know it."""

    def is_kicked(self, participant: str) -> bool:
        """Whether somebody was removed, and not invited again."""
        ...


def check_space(identity: Identity, space: str, spaces: Mapping[str, Entered]) -> None:
    """Check that somebody may enter the space that they ask for.

    Raises:
        NotAdmitted: There is no such space, the token is for another, or its participant was
            removed from the space.
    """
    entered = spaces.get(space)
    if entered is None:
        raise NotAdmitted(NO_SUCH_SPACE, "no space here has this name")
    if identity.space != space:
        raise NotAdmitted(TOKEN_REFUSED, "the token is for another space")
    if entered.is_kicked(identity.participant):
        raise NotAdmitted(KICKED, REMOVED)


def check_connections(listening: bool, count: int, most: int) -> None:
    """Check that a gateway takes one more connection.

    Args:
        listening: Whether it takes any.
        count: How many it has.
        most: How many it may have.

    Raises:
        NotAdmitted: It does not.
    """
    if not listening:
        raise NotAdmitted(OVERLOADED, "the gateway stops; connect again")
    if count >= most:
        raise NotAdmitted(
            OVERLOADED, f"the gateway has {most} connections, as many as it takes (max_connections)"
        )


def check_members(participant: str, members: Container[str], count: int, most: int) -> None:
    """Check that a space has room for somebody; who takes over from itself needs none.

    Args:
        participant: Who wants to come in.
        members: Who is in the space.
        count: How many these are.
        most: How many there may be.

    Raises:
        NotAdmitted: It has none.
    """
    if count >= most and participant not in members:
        raise NotAdmitted(OVERLOADED, f"the space is full: it takes {most} members (max_members)")


def check_observers(participant: str, observers: Observers) -> None:
    """Check that a participant may have one more observer.

    Args:
        participant: Whose token the observer has.
        observers: Those of the space.

    Raises:
        NotAdmitted: It has as many as it may.
    """
    if observers.is_crowded(participant):
        raise NotAdmitted(TOO_MANY, crowded(observers.limit), RETRY_AFTER)


def read_dialect(name: str | None) -> str | None:
    """The dialect that a member asks for, by header or join frame; ``None`` if it asks for none.

    Raises:
        NotAdmitted: None that is known here.
    """
    if name is None:
        return None
    dialect = spoken(name.strip())
    if dialect is None:
        raise NotAdmitted(BAD_REQUEST, f"this gateway speaks {', '.join(DIALECTS)}; speak one")
    return dialect


def read_observe(said: str | None) -> bool:
    """Whether a connection only looks on (PROTOCOL 3).

    Args:
        said: Its header :data:`~meup_agent.transport.base.OBSERVE_HEADER`.

    Raises:
        NotAdmitted: It is something else than ``1``: taken for a member, it would take over its
            participant's connection.
    """
    if said is None:
        return False
    if said.strip() != "1":
        raise NotAdmitted(BAD_REQUEST, f"{OBSERVE_HEADER} must be 1, or be left out")
    return True


def read_resume(asks: str | None, said: str | None) -> tuple[bool, int | None]:
    """Whether a member wants each envelope's number, and the last one that it got (PROTOCOL 6).

    Args:
        asks: Its header :data:`~meup_agent.transport.base.RESUME_HEADER`.
        said: Its header :data:`~meup_agent.transport.base.LAST_SEEN_HEADER`.

    Raises:
        NotAdmitted: What stands there is no number.
    """
    if asks is None or asks.strip() != "1":
        return False, None
    if said is None:
        return True, None
    said = said.strip()
    if not (said.isascii() and said.isdigit() and len(said) <= MAX_SEQ_DIGITS):
        raise NotAdmitted(BAD_REQUEST, f"{LAST_SEEN_HEADER} must be the last 'seq' that you got")
    return True, int(said)


def bearer(authorization: str) -> str:
    """The token in an ``Authorization`` header.

    Raises:
        NotAdmitted: The header holds something else.
    """
    scheme, _, token = authorization.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotAdmitted(TOKEN_REFUSED, "the Authorization header must be: Bearer <token>")
    return token.strip()


class JoinFrame(msgspec.Struct, frozen=True):
    """The first frame of a connection whose handshake did not say everything (PROTOCOL 3)."""

    type: str
    participant: str | None = msgspec.field(name="participantId", default=None)
    space: str | None = None
    token: str | None = None
    protocol: str | None = None


class _OnlyType(msgspec.Struct):
    type: object = None


_decode_type = msgspec.json.Decoder(_OnlyType).decode
_decode_join = msgspec.json.Decoder(JoinFrame).decode


def read_join(frame: bytes) -> JoinFrame | None:
    """The join frame that a message is; ``None`` if it is something else.

    Raises:
        NotAdmitted: It is meant as one, and a field has the wrong type.
    """
    try:
        check_frame(frame, max_bytes=MAX_JOIN_BYTES)
        if _decode_type(frame).type != "join":
            return None
    except (InvalidEnvelope, msgspec.DecodeError, UnicodeDecodeError):
        return None
    try:
        return _decode_join(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAdmitted(BAD_REQUEST, f"the join frame is not valid: {error}") from None


def repeats_join(message: bytes, participant: str | None, space: str) -> bool:
    """Whether a joined connection's first message is a join frame of the same identity."""
    try:
        frame = read_join(message)
    except NotAdmitted:
        return False
    return (
        frame is not None
        and frame.participant in (None, participant)
        and frame.space in (None, space)
    )


def join(
    frame: JoinFrame,
    *,
    tokens: TokenLookup,
    spaces: Mapping[str, Entered],
    held: Identity | None = None,
    space: str | None = None,
) -> Identity:
    """Who joins by a join frame.

    Args:
        frame: The frame.
        tokens: Every token.
        spaces: The spaces that there are, by id.
        held: Whose token the handshake's header had.
        space: The space that the handshake asked for.

    Raises:
        NotAdmitted: The token or the space is not known, or the frame claims to be from somebody
            else than the token's participant.
    """
    identity = held
    if frame.token is not None or identity is None:
        identity = identify(tokens, frame.token or "")
    if held not in (None, identity) or frame.participant not in (None, identity.participant):
        raise NotAdmitted(TOKEN_REFUSED, "the token is another participant's")
    asked = frame.space if frame.space is not None else space
    if asked is None:
        raise NotAdmitted(BAD_REQUEST, "the join frame names no space")
    check_space(identity, asked, spaces)
    return identity


MAX_REMEMBERED: Final = 10_000
"""Participants, and addresses, whose pace is remembered; the one that came the longest ago is
forgotten, whose bucket has filled meanwhile."""

K = TypeVar("K", bound=Hashable)


class JoinThrottle:
    """Counts who joins, and who connects without a token.

    A join is told to everybody in its space, so one token that joins and leaves without end costs
    all of them. A connection without a token costs its place and its lines in the log.

    Args:
        limits: How many are taken.
        now: Tells the time in microseconds.
    """

    def __init__(self, limits: Limits, now: Callable[[], int]) -> None:
        self._limits = limits
        self._now = now
        self._joins = _Buckets[tuple[Identity, bool]](limits.joins_per_second, limits.joins_burst)
        self._strangers = _Buckets[str](limits.strangers_per_second, limits.strangers_burst)

    def join(self, identity: Identity, *, observes: bool = False) -> None:
        """Count a join.

        Args:
            identity: Who joins.
            observes: It only looks on; that is counted by itself, so that no observer keeps its
                participant's agent from coming back.

        Raises:
            NotAdmitted: The participant has joined too often lately; this one does not count.
        """
        wait = self._joins.take((identity, observes), self._now())
        if wait:
            most = self._limits.joins_per_second
            raise _refusal(f"you join more than {most:g} times a second (joins_per_second)", wait)

    def connect(self, address: str) -> None:
        """Count a connection that does not say in its handshake who joins where.

        Raises:
            NotAdmitted: Too many came from the address lately; this one does not count.
        """
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
