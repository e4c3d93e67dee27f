"""Sign-in: sessions of browsers, and links that open one."""

from __future__ import annotations

import hmac
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from meup_agent.gateway.auth import Identity, Tokens
from meup_agent.gateway.console.event_queue import OutcomeNotice

SESSION_IDLE: Final = 12 * 3600.0
"""Seconds without a request after which a session ends: a working day with a long lunch."""

SESSION_AGE: Final = 7 * 24 * 3600.0
"""Seconds after which a session ends in any case."""

MAX_SESSIONS: Final = 10_000
"""Sessions of a gateway; the one that was used the longest ago makes room."""

MAX_PARTICIPANT_SESSIONS: Final = 16
"""Sessions of one participant; its one that was used the longest ago makes room."""

LINK_SECONDS: Final = 600.0
"""Seconds for which a one-time link opens a session."""

MAX_LINKS: Final = 100
"""Links that wait to be used; the oldest makes room."""

_SECRET_BYTES: Final = 32


@dataclass(slots=True)
class BrowserSession:
    """A browser that is signed in as a participant."""

    identity: Identity
    token: bytes  # the digest of the token that opened it, with which it ends
    opened: float
    used: float
    notice: OutcomeNotice | None = None  # for the next page
    is_closed: bool = False  # it was signed out, or made room: its event streams end
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(_SECRET_BYTES), repr=False)

    @property
    def shown_identity(self) -> str:
        """The participant and its space, in digits, by which a page knows what was made for it."""
        return _digest(json.dumps([self.identity.space, self.identity.participant])).hex()[:16]


class BrowserSessions:
    """The sessions of a gateway's browsers, by the digest of their cookie; in memory alone."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # The one that was used the longest ago is the first.
        self._sessions: OrderedDict[bytes, BrowserSession] = OrderedDict()

    def __len__(self) -> int:
        """Number of sessions."""
        return len(self._sessions)

    def open(self, identity: Identity, token: bytes) -> tuple[str, BrowserSession]:
        """Open a session; the value of its cookie is new, whatever the browser had before."""
        theirs = [key for key, each in self._sessions.items() if each.identity == identity]
        if len(theirs) >= MAX_PARTICIPANT_SESSIONS:
            self._remove(theirs[0])
        elif len(self._sessions) >= MAX_SESSIONS:
            self._remove(next(iter(self._sessions)))
        cookie = secrets.token_urlsafe(_SECRET_BYTES)
        at, key = self._now(), _digest(cookie)
        session = self._sessions[key] = BrowserSession(identity, token, at, at)
        return cookie, session

    def find(self, cookie: str, tokens: Tokens) -> BrowserSession | None:
        """The session of a cookie, unless it has ended by its age or with its token."""
        key, at = _digest(cookie), self._now()
        session = self._sessions.get(key)
        if session is None:
            return None
        if not self.is_open(session, tokens):
            self._remove(key)
            return None
        session.used = at
        self._sessions.move_to_end(key)
        return session

    def is_open(self, session: BrowserSession, tokens: Tokens) -> bool:
        """True if a session that was found has not ended since."""
        at = self._now()
        return (
            not session.is_closed
            and at - session.used <= SESSION_IDLE
            and at - session.opened <= SESSION_AGE
            and tokens.holder(session.token) == session.identity
        )

    def close(self, cookie: str) -> None:
        """End a session."""
        self._remove(_digest(cookie))

    def _remove(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.is_closed = True


@dataclass(frozen=True, slots=True)
class SignInLink:
    """A link that opens one session."""

    identity: Identity
    token: bytes
    until: float


class SignInLinks:
    """The one-time links of a gateway, by the digest of their code."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._links: OrderedDict[bytes, SignInLink] = OrderedDict()

    def make(self, identity: Identity, token: bytes) -> str:
        """Make a link's code."""
        if len(self._links) >= MAX_LINKS:
            self._links.popitem(last=False)
        code = secrets.token_urlsafe(_SECRET_BYTES)
        self._links[_digest(code)] = SignInLink(identity, token, self._now() + LINK_SECONDS)
        return code

    def find(self, code: str) -> SignInLink | None:
        """The link of a code, without using it."""
        link = self._links.get(_digest(code))
        return link if link is not None and self._now() <= link.until else None

    def take(self, code: str) -> SignInLink | None:
        """The link of a code, which opens nothing more."""
        link = self.find(code)
        self._links.pop(_digest(code), None)
        return link


class FormSeals:
    """CSRF tokens for forms before there is a session: a cookie's value, sealed."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_SECRET_BYTES)

    def new_cookie(self) -> str:
        """A value for the cookie."""
        return secrets.token_urlsafe(_SECRET_BYTES)

    def seal(self, cookie: str) -> str:
        """The token that belongs into the form."""
        return hmac.new(self._key, cookie.encode(errors="surrogatepass"), sha256).hexdigest()

    def fits(self, cookie: str, token: str) -> bool:
        """True if a form came from a page that we gave to the same browser."""
        return bool(cookie) and hmac.compare_digest(
            self.seal(cookie).encode(), token.encode(errors="surrogatepass")
        )


def _digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="surrogatepass")).digest()
