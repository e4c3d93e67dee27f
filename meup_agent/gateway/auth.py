"""Tokens and their identities, and the limit on failed logins.

A token is compared, and never kept, shown or logged.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import sha256
from math import ceil
from typing import Final, NamedTuple

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.logs import log, quote
from meup_agent.protocol.space.rate_limits import NoticeThrottle, TokenBucket

TOKEN_BYTES = 32
"""Random bytes of a token that this package makes."""

HASH_PREFIX: Final = "sha256:"
_HASH_DIGITS = 64


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
    return HASH_PREFIX + _digest(token).hex()


def read_hash(text: str) -> str:
    """The digits of a token's hash, as :func:`hash_token` writes it.

    The text stays out of an error's message, since it may be a token.
    """
    digits = text.removeprefix(HASH_PREFIX).lower()
    if len(digits) != _HASH_DIGITS or not set(digits) <= set("0123456789abcdef"):
        raise ConfigurationError(
            f"expected sha256: and {_HASH_DIGITS} hexadecimal digits, as 'meup token hash' writes"
            " them"
        )
    return digits


class Tokens:
    """Every token of a gateway, as SHA-256 digests.

    A look-up by digest takes a time that tells nothing of the token, since no caller can steer a
    digest; the comparison behind it takes the same time for every token.
    """

    def __init__(
        self,
        known: Iterable[tuple[str, Identity]] = (),
        hashed: Iterable[tuple[str, Identity]] = (),
    ) -> None:
        self._identities: dict[bytes, tuple[bytes, Identity]] = {}
        for token, identity in known:
            self._add(_digest(token), identity)
        for digits, identity in hashed:
            self._add(bytes.fromhex(digits), identity)

    def add(self, digits: str, identity: Identity) -> None:
        """Know a further token by its SHA-256, unless it is another participant's."""
        self._add(bytes.fromhex(digits), identity)

    def forget(self, digits: str) -> None:
        """Know a token no more."""
        self._identities.pop(bytes.fromhex(digits), None)

    def identify(self, token: str) -> Identity | None:
        """The identity of a token; ``None`` if it is unknown."""
        digest = _digest(token)
        stored, identity = self._identities.get(digest, (b"", None))
        return identity if hmac.compare_digest(stored, digest) else None

    def _add(self, digest: bytes, identity: Identity) -> None:
        _, other = self._identities.setdefault(digest, (digest, identity))
        if other != identity:
            raise ConfigurationError(
                f"participant {identity.participant!r} of space {identity.space!r} has a token of"
                f" {other.participant!r} of space {other.space!r}; give each participant tokens of"
                " its own"
            )


def _digest(token: str) -> bytes:
    return sha256(token.encode(errors="surrogatepass")).digest()


MAX_ADDRESSES: Final = 10_000
"""Addresses that are remembered; the one whose wrong token is the longest ago is forgotten."""

IPV6_PREFIX: Final = 64
"""Bits of an IPv6 address that stand for its owner: one network gives out all the others."""


class AuthThrottled(Exception):
    """Too many wrong tokens came from an address.

    Attributes:
        retry_after: Seconds after which the next token is looked at.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__("too many wrong tokens came from your address; try again later")
        self.retry_after = retry_after


class AuthThrottle:
    """Limits failed logins per address.

    An address that had too many is refused whatever its next token is: otherwise it would go on
    guessing.

    Args:
        tokens: Every token.
        failures: Wrong tokens at once.
        seconds: After which one of these is forgiven.
        now: Tells the time in microseconds.
    """

    def __init__(
        self, tokens: Tokens, failures: int, seconds: float, now: Callable[[], int]
    ) -> None:
        self._tokens = tokens
        self._failures = failures
        self._per_second = 1 / seconds
        self._now = now
        self._told = NoticeThrottle()
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def identify(self, token: str, address: str) -> Identity | None:
        """The identity of a token that came from an address; ``None`` if it is unknown.

        Raises:
            AuthThrottled: The token was not looked at.
        """
        who, at = network_of(address), self._now()
        bucket = self._buckets.get(who)
        wait = 0.0 if bucket is None else bucket.wait(at)
        if wait:
            raise AuthThrottled(ceil(wait))
        identity = self._tokens.identify(token)
        if identity is None:
            self._failed(who, at)
        return identity

    def __len__(self) -> int:
        """Number of addresses that are remembered."""
        return len(self._buckets)

    def _failed(self, who: str, at: int) -> None:
        bucket = self._buckets.setdefault(who, TokenBucket(self._per_second, self._failures))
        self._buckets.move_to_end(who)
        bucket.consume(at)
        if len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        elif bucket.wait(at) and self._told.due("", who, at):
            log.warning("too many wrong tokens from %s; refused for a while", quote(who))


def network_of(address: str) -> str:
    """The network that one caller may have all of: the /64 of an IPv6 address, else the address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_PREFIX), strict=False))
