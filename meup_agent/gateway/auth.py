"""Tokens, and whose they are. A token is compared and never kept, shown or logged."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

TOKEN_BYTES = 32
"""Random bytes of a token that this package makes."""


class Identity(NamedTuple):
    """Who a token says that one is.

    Attributes:
        space: The space that the token is for.
        participant: The participant in it.
    """

    space: str
    participant: str


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(TOKEN_BYTES)


class Tokens:
    """Every token of a gateway, as SHA-256 digests.

    A look-up by digest takes a time that tells nothing of the token, since nobody can steer a
    digest; the comparison behind it takes the same time for every token.

    Args:
        known: Pairs of token and identity.
    """

    def __init__(self, known: Iterable[tuple[str, Identity]] = ()) -> None:
        self._identities: dict[bytes, tuple[bytes, Identity]] = {}
        for token, identity in known:
            digest = _digest(token)
            self._identities[digest] = (digest, identity)

    def identify(self, token: str) -> Identity | None:
        """Whose token it is; ``None`` for a token that nobody has."""
        digest = _digest(token)
        stored, identity = self._identities.get(digest, (b"", None))
        return identity if hmac.compare_digest(stored, digest) else None


def _digest(token: str) -> bytes:
    return sha256(token.encode(errors="surrogatepass")).digest()
