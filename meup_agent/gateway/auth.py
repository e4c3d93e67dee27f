"""Tokens, their identities, and the rules of admission for each way in (PROTOCOL 3).

A token is compared, and never kept, shown or logged.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from meup_agent.errors import ConfigurationError, explain_os_error
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.logs import log, quote
from meup_agent.protocol.space.allowance import NoticeThrottle, TokenBucket, network_of
from meup_agent.protocol.space.link import Place
from meup_agent.protocol.space.state.grants import REMOVED
from meup_agent.protocol.wire.membership import is_guessable

if TYPE_CHECKING:
    from meup_agent.protocol.space.owner import SpaceServer


# --- auth ---

TOKEN_BYTES = 32
"""Random bytes of a token that this package makes."""

MAX_TOKEN_FILE_BYTES: Final = 4_096
"""Bytes of a file with a token: a wrong path may lead to a large one."""

HASH_PREFIX: Final = "sha256:"


class Identity(NamedTuple):
    """The space and participant of a token."""

    space: str
    participant: str


def new_token() -> str:
    """A random token, too long to guess."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_token(token: str) -> str:
    """The form of a token in a configuration that does not hold it: ``sha256:`` and 64 digits.

    A plain hash is enough for tokens that are long and random, as those of :func:`new_token` are.
    """
    return HASH_PREFIX + digest_of_token(token).hex()


def read_hash(text: str) -> str:
    """The digits of a token's hash, as :func:`hash_token` writes it.

    The text stays out of an error's message, since it may be a token.
    """
    digits = text.removeprefix(HASH_PREFIX).lower()
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise ConfigurationError(
            "expected sha256: and 64 hexadecimal digits, as 'meup token hash' writes them"
        )
    return digits


def renew_token(file: Path, make: Callable[[Path], str]) -> str:
    """A new token in place of the one in a file: who reads it finds one or the other.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    fresh = file.with_name(f"{file.name}.new")
    with explain_os_error(f"{file} cannot be written"):
        # One that was interrupted may have left it.
        fresh.unlink(missing_ok=True)
        token = make(fresh)
        fresh.replace(file)
    return token


def read_token(path: Path) -> str:
    """The token that a file holds, alone, with or without a line end; warns if others can read it.

    Raises:
        ConfigurationError: It cannot be read, or holds something else.
    """
    with explain_os_error(f"{path} cannot be read"), path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        # One byte more than it may have tells a file that is too large.
        content = file.read(MAX_TOKEN_FILE_BYTES + 1)
    lines = content.split()
    if len(content) > MAX_TOKEN_FILE_BYTES or len(lines) != 1 or not content.isascii():
        raise ConfigurationError(f"{path} must hold a token and nothing else")
    if os.name == "posix" and mode & (stat.S_IRGRP | stat.S_IROTH):
        log.warning(
            "%s holds a secret and can be read by other users; run: chmod 600 %s", path, path
        )
    return lines[0].decode()


class TokenUse(NamedTuple):
    """A token by which a caller was admitted: its digest, and whose it was."""

    digest: bytes
    identity: Identity


class Tokens:
    """Every token of a gateway, as SHA-256 digests.

    A look-up by digest takes a time that tells nothing of the token, since no caller can steer a
    digest; the comparison behind it takes the same time for every token.
    """

    def __init__(self, known: Iterable[tuple[bytes, Identity]] = ()) -> None:
        self._identities: dict[bytes, tuple[bytes, Identity]] = {}
        for digest, identity in known:
            self.add(digest, identity)

    def add(self, digest: bytes, identity: Identity) -> None:
        """Know a further token by its digest, unless it is another participant's."""
        _, other = self._identities.setdefault(digest, (digest, identity))
        if other != identity:
            raise ConfigurationError(
                f"participant {identity.participant!r} of space {identity.space!r} has a token of"
                f" {other.participant!r} of space {other.space!r}; give each participant tokens of"
                " its own"
            )

    def replace(self, other: Tokens) -> None:
        """Know the tokens of another, and no more."""
        self._identities = dict(other._identities)

    def still_hold(self, use: TokenUse) -> bool:
        """True if a token is still that of the participant who was admitted by it."""
        return self.holder(use.digest) == use.identity

    def forget(self, digest: bytes) -> None:
        """Know a token no more."""
        self._identities.pop(digest, None)

    def identify(self, token: str) -> Identity | None:
        """The identity of a token; ``None`` if it is unknown."""
        digest = digest_of_token(token)
        # Compared for an unknown token, too, so that both answers take the same steps.
        stored, identity = self._identities.get(digest, (b"", None))
        return identity if hmac.compare_digest(stored, digest) else None

    def holder(self, digest: bytes) -> Identity | None:
        """The identity of the token with a digest, which a session was opened with."""
        _, identity = self._identities.get(digest, (b"", None))
        return identity


def digest_of_token(token: str) -> bytes:
    """The SHA-256 by which a token is known."""
    # JSON lets a token have half of a surrogate pair, which UTF-8 has no bytes for.
    return sha256(token.encode(errors="surrogatepass")).digest()


# --- admission ---
# The rules of admission, for each way into a gateway: token, space, room and pace (PROTOCOL 3).

BAD_REQUEST: Final = 400
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
TOO_MANY: Final = 429
UNAVAILABLE: Final = 503

RETRY_AFTER: Final = 5
"""Seconds after which a caller refused with 503 may try again."""

MAX_REMEMBERED: Final = 10_000
"""Participants, and addresses, whose pace is remembered; the one that came the longest ago is
forgotten, whose bucket has filled meanwhile."""

K = TypeVar("K", bound=Hashable)


UNKNOWN_TOKEN: Final = "the token is not known here"


class NotAdmitted(Exception):
    """A caller is refused, with an HTTP status that :attr:`close_code` has another form of.

    It is told when to come back; 0: at its own pace.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        if status == UNAVAILABLE and retry_after is None:
            retry_after = RETRY_AFTER
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer that says so over HTTP."""
        return {"Retry-After": str(self.retry_after)} if self.retry_after else {}

    @property
    def close_code(self) -> int:
        """The WebSocket close code that says the same."""
        return 1013 if self.status in (UNAVAILABLE, TOO_MANY) else 4000 + self.status


def check_space(identity: Identity, space: str, spaces: Mapping[str, SpaceServer]) -> None:
    """Raise :exc:`NotAdmitted` unless a participant may enter the space that it asks for."""
    entered = spaces.get(space)
    if entered is None:
        raise NotAdmitted(NOT_FOUND, "no space here has this name")
    if identity.space != space:
        raise NotAdmitted(UNAUTHORIZED, "the token is for another space")
    if entered.owner.is_kicked(identity.participant):
        raise NotAdmitted(FORBIDDEN, REMOVED)


class _Buckets(Generic[K]):
    """A token bucket for each caller, of a bounded number of callers."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: OrderedDict[K, TokenBucket] = OrderedDict()

    def open(self, key: K) -> TokenBucket:
        """The bucket of a caller that has come now."""
        bucket = self._buckets.setdefault(key, TokenBucket(self._per_second, self._burst))
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_REMEMBERED:
            self._buckets.popitem(last=False)
        return bucket

    def take(self, key: K, at: int, why: str) -> None:
        """Take one, or raise :exc:`NotAdmitted` for a reason: there is none yet."""
        bucket = self.open(key)
        if not bucket.try_consume(at):
            wait = ceil(bucket.wait(at))
            raise NotAdmitted(TOO_MANY, f"{why}; try again in {wait} s", wait)

    def get(self, key: K) -> TokenBucket | None:
        """The bucket of a caller that is remembered."""
        return self._buckets.get(key)

    def __len__(self) -> int:
        """The number of callers that are remembered."""
        return len(self._buckets)


class AuthThrottle:
    """Limits guesses per address.

    A token that cannot be guessed is only looked up: clients that share its address, as pages in a
    browser on this machine do, neither slow it nor are slowed. Of shorter ones an address that
    had too many wrong is refused whatever the next one is: otherwise it would go on guessing.
    """

    def __init__(self, tokens: Tokens, limits: GatewayLimits, now: Callable[[], int]) -> None:
        self._tokens = tokens
        self._now = now
        self._told = NoticeThrottle()
        self._failures = _Buckets[str](1 / limits.failed_token_seconds, limits.failed_tokens)

    def identify(self, token: str, address: str) -> Identity:
        """The identity of a token that came from an address, or :exc:`NotAdmitted`."""
        # Where nobody has guessed yet no address is refused, and a known token is not looked at.
        if not self._failures and (known := self._tokens.identify(token)) is not None:
            return known
        guessable = is_guessable(token)
        network, at = (network_of(address), self._now()) if guessable else ("", 0)
        # Not opened yet: right tokens from many addresses would have those that guess forgotten.
        bucket = self._failures.get(network) if guessable else None
        if bucket is not None and (wait := ceil(bucket.wait(at))):
            said = "too many wrong tokens came from your address; try again later"
            raise NotAdmitted(TOO_MANY, said, wait)
        if (identity := self._tokens.identify(token)) is not None:
            return identity
        if guessable:
            # Only now: a right token costs nothing, however many are used from an address.
            bucket = self._failures.open(network)
            bucket.consume(at)
            if bucket.wait(at) and self._told.due("", network, at):
                said = "too many wrong tokens from %s; short ones are refused for a while"
                log.warning(said, quote(network))
        raise NotAdmitted(UNAUTHORIZED, UNKNOWN_TOKEN)


class JoinThrottle:
    """Limits joins per participant, and connections without a token per address.

    Every member is told of a join, so one token that joins and leaves without end costs all of
    them. A connection without a token costs its place and its lines in the log. Pages in a browser
    are counted by themselves, since any page may connect from here: a browser says that it is one
    (``Origin``), and programs need not.
    """

    def __init__(self, limits: GatewayLimits, now: Callable[[], int]) -> None:
        self._limits = limits
        self._now = now
        self._joins = _Buckets[tuple[Identity, Place]](limits.joins_per_second, limits.joins_burst)
        self._strangers = _Buckets[tuple[str, bool]](
            limits.strangers_per_second, limits.strangers_burst
        )

    def join(self, identity: Identity, place: Place = Place.ANSWERING) -> None:
        """Count a join, or raise :exc:`NotAdmitted`: the participant has joined too often lately.

        Each place is counted by itself: no observer keeps its participant's agent from coming back.
        """
        most = self._limits.joins_per_second
        why = f"you join more than {most:g} times a second (joins_per_second)"
        self._joins.take((identity, place), self._now(), why)

    def connect(self, address: str, *, of_page: bool = False) -> None:
        """Count a connection whose handshake does not join, or raise :exc:`NotAdmitted`."""
        why = (
            f"more than {self._limits.strangers_per_second:g} connections a second that do not join"
            " came from your address (strangers_per_second)"
        )
        self._strangers.take((network_of(address), of_page), self._now(), why)

    def joined(self, address: str, *, of_page: bool = False) -> None:
        """Count a connection no more that has joined by a frame."""
        bucket = self._strangers.get((network_of(address), of_page))
        if bucket is not None:
            # What it took when it connected is given back.
            bucket.consume(self._now(), -1.0)
