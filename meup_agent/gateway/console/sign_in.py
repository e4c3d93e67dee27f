"""Sign-in: sessions of browsers, and links that open one."""

from __future__ import annotations

import hmac
import json
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from starlette.requests import ClientDisconnect, Request

from meup_agent.gateway.auth import BAD_REQUEST, FORBIDDEN, TOO_MANY, Identity, Tokens
from meup_agent.gateway.cluster.shared import SharedValues, ValuesAway
from meup_agent.gateway.console.event_queue import OutcomeNotice
from meup_agent.gateway.edge.http.context import TOO_LARGE
from meup_agent.protocol.space.allowance import TokenBucket

# --- sign-in ---

SESSION_IDLE: Final = 12 * 3600.0
"""Seconds without a page or form after which a session ends: a working day with a long lunch."""

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

MAX_PARTICIPANT_LINKS: Final = 4
"""Links of one participant that wait to be used; its oldest makes room."""

SHARED_SECONDS: Final = 1.0
"""Seconds for which a session is taken to be as the gateways' common store had it."""

USED_SECONDS: Final = 600.0
"""Seconds after which that store is told anew that a session is used."""

FORM_KEY: Final = "==form"
"""The key of the form key among the shared values, like no space's."""

_SECRET_BYTES: Final = 32

_COOKIE_CHARS: Final = len(secrets.token_urlsafe(_SECRET_BYTES))


class _KeptSession(msgspec.Struct):
    """A session as a store has it; times are in seconds since 1970 (UTC)."""

    space: str
    participant: str
    token: str  # the digest, in hexadecimal
    opened: float
    used: float
    push: str
    csrf: str


class _KeptLink(msgspec.Struct):
    """A link as a store has it."""

    space: str
    participant: str
    token: str
    until: float


_read_session: Final = msgspec.json.Decoder(_KeptSession).decode
_read_link: Final = msgspec.json.Decoder(_KeptLink).decode
_write: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class BrowserSession:
    """A browser that is signed in as a participant."""

    identity: Identity
    token: bytes  # the digest of the token that opened it, with which it ends
    opened: float
    used: float
    notice: OutcomeNotice | None = None  # for the next page
    push: str = ""  # the browser's address of Web Push, by which it is told no longer
    is_closed: bool = False  # it was signed out, or made room: its event streams end
    looked: float = 0.0  # when the store was asked for it, and when it was told of its use
    told: float = 0.0
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(_SECRET_BYTES), repr=False)

    @property
    def shown_identity(self) -> str:
        """The participant and its space, in digits, by which a page knows what was made for it."""
        return _digest(json.dumps([self.identity.space, self.identity.participant])).hex()[:16]


class BrowserSessions:
    """The sessions of a gateway's browsers, by the digest of their cookie.

    In memory; with a ``store``, as many as are used at this gateway, and no others than it has.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.store: SharedValues | None = None
        # The one that was used the longest ago is the first.
        self._sessions: OrderedDict[bytes, BrowserSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, identity: Identity, token: bytes) -> tuple[str, BrowserSession]:
        """Open a session; the value of its cookie is new, whatever the browser had before."""
        theirs = [key for key, each in self._sessions.items() if each.identity == identity]
        if len(theirs) >= MAX_PARTICIPANT_SESSIONS:
            self._end(theirs[0])
        elif len(self._sessions) >= MAX_SESSIONS:
            self._end(next(iter(self._sessions)))
        cookie = secrets.token_urlsafe(_SECRET_BYTES)
        at, key = self._now(), _digest(cookie)
        session = self._sessions[key] = BrowserSession(identity, token, at, at, looked=at, told=at)
        return cookie, session

    async def share(self, cookie: str) -> None:
        """Let other gateways know of a session that was opened.

        Raises:
            ValuesAway: They cannot; it is over.
        """
        key = _digest(cookie)
        session = self._sessions.get(key)
        if self.store is None or session is None:
            return
        try:
            await self.store.put(key.hex(), self._kept(session))
        except BaseException:
            self._end(key)
            raise

    async def look_up(self, cookie: str) -> None:
        """Learn what other gateways know of a session, before :meth:`find` is asked for it.

        Raises:
            ValuesAway: It is not known here, and may be there.
        """
        key, at = _digest(cookie), self._now()
        known = self._sessions.get(key)
        is_fresh = known is not None and at - known.looked < SHARED_SECONDS
        if self.store is None or len(cookie) != _COOKIE_CHARS or is_fresh:
            return
        try:
            kept = await self.store.get(key.hex())
        except ValuesAway:
            if known is None:
                raise
            return  # who is signed in stays so meanwhile
        if kept is None:
            self._remove(key)
            return
        if known is not None:
            known.looked = at
            return
        try:
            said = _read_session(kept)
            token = bytes.fromhex(said.token)
        except (msgspec.MsgspecError, ValueError):
            return  # of a later version
        if key not in self._sessions:  # another request was not faster
            ago = at - time.time()
            identity = Identity(said.space, said.participant)
            self._sessions[key] = BrowserSession(
                identity, token, said.opened + ago, said.used + ago,
                push=said.push, csrf=said.csrf, looked=at, told=at,
            )  # fmt: skip
            if len(self._sessions) > MAX_SESSIONS:
                self._remove(next(iter(self._sessions)))

    def _kept(self, session: BrowserSession) -> bytes:
        ago = time.time() - self._now()
        token, identity = session.token.hex(), session.identity
        times = session.opened + ago, session.used + ago
        return _write(_KeptSession(*identity, token, *times, session.push, session.csrf))

    def find(self, cookie: str, tokens: Tokens, *, is_used: bool = True) -> BrowserSession | None:
        """The session of a cookie, unless it has ended by its age or with its token.

        It ends later if it ``is_used``.
        """
        key, at = _digest(cookie), self._now()
        session = self._sessions.get(key)
        if session is None or not self.is_open(session, tokens):
            if session is not None:
                self._end(key)
            return None
        if not is_used:
            return session
        session.used = at
        if self.store is not None and at - session.told > USED_SECONDS:
            session.told = at
            self.store.replace_later(key.hex(), self._kept(session))
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
        key = _digest(cookie)
        if key in self._sessions:
            self._end(key)

    def _end(self, key: bytes) -> None:
        self._remove(key)
        if self.store is not None:
            self.store.remove_later(key.hex())

    def _remove(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.is_closed = True


class SignInLink(NamedTuple):
    """A link that opens one session."""

    identity: Identity
    token: bytes
    until: float


class SignInLinks:
    """The one-time links of a gateway, by the digest of their code.

    In memory; with a ``store`` those count that are there.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.store: SharedValues | None = None
        self._links: OrderedDict[bytes, SignInLink] = OrderedDict()

    def make(self, identity: Identity, token: bytes) -> str:
        """Make a link's code."""
        theirs = [key for key, each in self._links.items() if each.identity == identity]
        if len(theirs) >= MAX_PARTICIPANT_LINKS:
            self._drop(theirs[0])
        if len(self._links) >= MAX_LINKS:
            self._drop(next(iter(self._links)))
        code = secrets.token_urlsafe(_SECRET_BYTES)
        key = _digest(code)
        self._links[key] = SignInLink(identity, token, self._now() + LINK_SECONDS)
        if self.store is not None:
            until = time.time() + LINK_SECONDS
            self.store.put_later(key.hex(), _write(_KeptLink(*identity, token.hex(), until)))
        return code

    async def find(self, code: str) -> SignInLink | None:
        """The link of a code, without using it.

        Raises:
            ValuesAway: It cannot be asked for.
        """
        link = self._links.get(_digest(code))
        if self.store is not None and link is None and len(code) == _COOKIE_CHARS:
            link = self._read(await self.store.get(_digest(code).hex()))
        return link if link is not None and self._now() <= link.until else None

    async def take(self, code: str) -> SignInLink | None:
        """The link of a code, for the one that is first.

        Raises:
            ValuesAway: Whether it was the first is not known.
        """
        link = await self.find(code)
        self._links.pop(_digest(code), None)
        if link is not None and self.store is not None:
            return link if await self.store.take(_digest(code).hex()) else None
        return link

    def _read(self, kept: bytes | None) -> SignInLink | None:
        if kept is None:
            return None
        try:
            said = _read_link(kept)
            token = bytes.fromhex(said.token)
        except (msgspec.MsgspecError, ValueError):
            return None  # of a later version
        until = said.until + self._now() - time.time()
        return SignInLink(Identity(said.space, said.participant), token, until)

    def _drop(self, key: bytes) -> None:
        del self._links[key]
        if self.store is not None:
            self.store.remove_later(key.hex())


class FormSeals:
    """CSRF tokens for forms before there is a session: a cookie's value, sealed."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_SECRET_BYTES)

    async def share(self, store: SharedValues) -> None:
        """Seal with the key that other gateways have; without one, if they cannot be asked."""
        with suppress(ValuesAway):
            self._key = await store.add(FORM_KEY, self._key)

    def new_cookie(self) -> str:
        return secrets.token_urlsafe(_SECRET_BYTES)

    def seal(self, cookie: str) -> str:
        """The token that belongs into the form."""
        return hmac.new(self._key, cookie.encode(errors="surrogatepass"), sha256).hexdigest()

    def fits(self, cookie: str, token: str) -> bool:
        """True if a form came from a page that we gave to the same browser."""
        # Without a cookie anybody could have made the form.
        return bool(cookie) and hmac.compare_digest(
            self.seal(cookie).encode(), token.encode(errors="surrogatepass")
        )


def _digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="surrogatepass")).digest()


# --- guard ---
# The checks of each request before a page sees it, and the headers of each answer.

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
"""Nothing of another host, nothing inline, no frame around it."""

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: by that a browser sends the Origin `null` with a form. No other host is
    # told anything.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

MAX_FIELDS: Final = 200
"""Fields of a form; the largest that a page has is made of a tool's schema."""

MAX_FORM_BYTES: Final = 2 * 1024 * 1024
"""Bytes of a form: an edit stands in it twice, as it was seen and as it is sent, and each byte of
that may stand as ``%XX``."""

OPEN_FORM_BYTES: Final = 32 * 1024
"""Bytes of a form that anyone may send: a token, and where to go from there."""

FORM_PIECE_BYTES: Final = 64 * 1024
"""Bytes of a form that are decoded at a time, which takes some milliseconds; a larger form counts
as one request for each such piece."""

FORM_SECONDS: Final = 10.0
"""Seconds for a form to arrive."""

REQUESTS_PER_SECOND: Final = 20.0
"""Requests of a participant's browsers in the long run: a page takes some milliseconds to make."""

REQUESTS_BURST: Final = 200
"""Requests that may come at once after a pause: eight tabs that load anew, and what a person does
meanwhile."""

PACE_SECONDS: Final = 2.0
"""Seconds for which a request waits that comes too fast; one that would wait longer is refused."""


class RequestDenied(Exception):
    """A request is refused, with a status and a sentence for the person who made it."""

    def __init__(
        self,
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
        *,
        title: str = "",
    ) -> None:
        super().__init__(message)
        self.title = title  # of its page; empty: that of its status
        self.status = status
        self.headers = dict(headers or {})


class RequestPace:
    """Limits the rate of the requests of each participant, whatever browsers they come from."""

    def __init__(self) -> None:
        # As many as there are participants with tokens.
        self._buckets: dict[Identity, TokenBucket] = {}

    async def wait(self, identity: Identity, amount: int = 1) -> None:
        """Wait for the turn of one more request, or of one that counts as several.

        Raises:
            RequestDenied: It would take too long.
        """
        fresh = TokenBucket(REQUESTS_PER_SECOND, REQUESTS_BURST)
        bucket = self._buckets.setdefault(identity, fresh)
        at = int(anyio.current_time() * 1_000_000)
        if bucket.wait(at, amount) > PACE_SECONDS:
            headers = {"Retry-After": str(math.ceil(PACE_SECONDS))}
            raise RequestDenied(
                TOO_MANY, "That is too fast for one person; wait a moment.", headers
            )
        seconds = bucket.consume(at, amount)
        if seconds:
            await anyio.sleep(seconds)


def check_origin(request: Request) -> None:
    """Raise :exc:`RequestDenied` unless a changing request comes from a page of our own.

    The browser sets the header, and no page can say another. One that is missing is refused too:
    each browser that the console works in sends it with a form. To it the console speaks TLS also
    where a proxy does that for a gateway without.
    """
    own = {f"{each}://{request.headers.get('host', '')}" for each in (request.url.scheme, "https")}
    if request.headers.get("origin") not in own:
        raise RequestDenied(
            FORBIDDEN, "This did not come from a page of the console; nothing was done."
        )


_OF_ANOTHER: Final = (
    "The page was of an earlier sign-in, so nothing was done. Go back to it and try again; what you"
    " typed is kept."
)


def check_csrf(session: BrowserSession, form: Mapping[str, str]) -> None:
    """Raise :exc:`RequestDenied` unless a form has its session's token."""
    given = form.get("csrf", "").encode(errors="surrogatepass")
    if not hmac.compare_digest(session.csrf.encode(), given):
        raise RequestDenied(FORBIDDEN, _OF_ANOTHER)


async def read_form(request: Request, max_bytes: int) -> bytes:
    """The body of a form.

    Raises:
        RequestDenied: It is too large, too slow, or no form.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/x-www-form-urlencoded":
        raise RequestDenied(415, "Only forms of the console are taken.")
    body = bytearray()
    try:
        with anyio.fail_after(FORM_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise RequestDenied(TOO_LARGE, "That is more than a form may have.")
    except TimeoutError:
        raise RequestDenied(408, "The form did not arrive in time.") from None
    except ClientDisconnect:
        raise _unreadable() from None
    return bytes(body)


async def decode_form(body: bytes) -> dict[str, str]:
    """The fields of a form, of which each name counts once.

    Decoding takes a microsecond for each ``%XX``, so others are served in between.

    Raises:
        RequestDenied: It is not a form.
    """
    if not body.isascii() or body.count(b"&") >= MAX_FIELDS:
        raise _unreadable()
    fields: dict[str, str] = {}
    for pair in filter(None, body.split(b"&")):
        name, _, value = pair.partition(b"=")
        try:
            fields[(await _decoded(name)).decode()] = (await _decoded(value)).decode()
        except UnicodeDecodeError:
            raise _unreadable() from None
    return fields


async def _decoded(text: bytes) -> bytes:
    text = text.replace(b"+", b" ")
    if len(text) <= FORM_PIECE_BYTES:
        return unquote_to_bytes(text)
    pieces: list[bytes] = []
    at = 0
    while at < len(text):
        await checkpoint()
        until = at + FORM_PIECE_BYTES
        # No escape is cut in two.
        cut = text.rfind(b"%", until - 2, until)
        until = until if cut < 0 else cut
        pieces.append(unquote_to_bytes(text[at:until]))
        at = until
    return b"".join(pieces)


def _unreadable() -> RequestDenied:
    return RequestDenied(BAD_REQUEST, "The form cannot be read.")
