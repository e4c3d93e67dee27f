"""Who tries tokens until one fits: each address may be wrong so many times (PROTOCOL 3)."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from typing import Final

from meup_agent.gateway.auth import Identity, Tokens
from meup_agent.gateway.logs import log, shown
from meup_agent.protocol.space.rate_limits import NoticeThrottle, TokenBucket

MAX_ADDRESSES: Final = 10_000
"""Addresses that are remembered; the one whose wrong token is the longest ago is forgotten."""

IPV6_PREFIX: Final = 64
"""Bits of an IPv6 address that stand for whoever it is: one network gives out all the others."""


class TooManyGuesses(Exception):
    """Too many wrong tokens came from an address.

    Attributes:
        retry_after: Seconds after which the next token is looked at.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__("too many wrong tokens came from your address; try again later")
        self.retry_after = retry_after


class Guesses:
    """How many wrong tokens came from each address lately.

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
        """Whose token it is that came from an address; ``None`` for a token that nobody has.

        Raises:
            TooManyGuesses: The token was not looked at.
        """
        who, at = network_of(address), self._now()
        bucket = self._buckets.get(who)
        wait = 0.0 if bucket is None else bucket.wait(at)
        if wait:
            raise TooManyGuesses(ceil(wait))
        identity = self._tokens.identify(token)
        if identity is None:
            self._failed(who, at)
        return identity

    def __len__(self) -> int:
        """How many addresses are remembered."""
        return len(self._buckets)

    def _failed(self, who: str, at: int) -> None:
        bucket = self._buckets.setdefault(who, TokenBucket(self._per_second, self._failures))
        self._buckets.move_to_end(who)
        bucket.take(at)
        if len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        elif bucket.wait(at) and self._told.due("", who, at):
            log.warning("too many wrong tokens from %s; refused for a while", shown(who))


class TokensAt:
    """Every token, as one address may ask for them.

    Args:
        guesses: Who looks whether the address may.
        address: The address.
    """

    def __init__(self, guesses: Guesses, address: str) -> None:
        self._guesses = guesses
        self._address = address

    def identify(self, token: str) -> Identity | None:
        """Whose token it is; see :meth:`Guesses.identify`."""
        return self._guesses.identify(token, self._address)


def network_of(address: str) -> str:
    """What stands for whoever has an address: of IPv6 its network, otherwise the address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_PREFIX), strict=False))
