"""Tokens and their identities.

A token is compared, and never kept, shown or logged.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.gateway.logs import log

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
    try:
        fresh.unlink(missing_ok=True)
        token = make(fresh)
        fresh.replace(file)
    except OSError as error:
        why = system_reason(error)
        raise ConfigurationError(f"{file} cannot be written ({why})") from None
    return token


def read_token(path: Path) -> str:
    """The token that a file holds, alone, with or without a line end; warns if others can read it.

    Raises:
        ConfigurationError: It cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_TOKEN_FILE_BYTES + 1)
    except OSError as error:
        why = system_reason(error)
        raise ConfigurationError(f"{path} cannot be read ({why})") from None
    lines = content.split()
    if len(content) > MAX_TOKEN_FILE_BYTES or len(lines) != 1 or not content.isascii():
        raise ConfigurationError(f"{path} must hold a token and nothing else")
    if os.name == "posix" and mode & (stat.S_IRGRP | stat.S_IROTH):
        log.warning(
            "%s holds a token and can be read by other users; run: chmod 600 %s", path, path
        )
    return lines[0].decode()


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

    def forget(self, digest: bytes) -> None:
        """Know a token no more."""
        self._identities.pop(digest, None)

    def identify(self, token: str) -> Identity | None:
        """The identity of a token; ``None`` if it is unknown."""
        digest = digest_of_token(token)
        stored, identity = self._identities.get(digest, (b"", None))
        return identity if hmac.compare_digest(stored, digest) else None

    def holder(self, digest: bytes) -> Identity | None:
        """The identity of the token with a digest, which a session was opened with."""
        _, identity = self._identities.get(digest, (b"", None))
        return identity


def digest_of_token(token: str) -> bytes:
    """The SHA-256 by which a token is known."""
    return sha256(token.encode(errors="surrogatepass")).digest()
