"""The checks of each request before a page sees it, and the headers of each answer."""

from __future__ import annotations

import hmac
import math
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

import anyio
from anyio.lowlevel import checkpoint
from starlette.requests import ClientDisconnect

from meup_agent.gateway.admission import BAD_REQUEST, FORBIDDEN, TOO_MANY
from meup_agent.protocol.space.rate_limits import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from meup_agent.gateway.auth import Identity
    from meup_agent.gateway.console.sign_in import BrowserSession

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
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

TOO_LARGE: Final = 413

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
        bucket = self._buckets.get(identity)
        if bucket is None:
            bucket = self._buckets[identity] = TokenBucket(REQUESTS_PER_SECOND, REQUESTS_BURST)
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
    each browser that the console works in sends it with a form.
    """
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if request.headers.get("origin") != own:
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
        RequestDenied: It is no form.
    """
    if not body.isascii() or body.count(b"&") >= MAX_FIELDS:
        raise _unreadable()
    fields: dict[str, str] = {}
    for field in filter(None, body.split(b"&")):
        name, _, value = field.partition(b"=")
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
