"""Failures to connect, in words: what happened, and what to do.

The advice is the same for an agent, for each command, and for ``meup doctor``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from urllib.parse import urlsplit

from meup_agent.errors import CannotConnect, HandshakeRefused
from meup_agent.transport.listener_owner import ForeignListener

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator, Iterable


MAX_REFUSAL_CHARS: Final = 500
"""Characters kept of what a gateway says with a refusal: room for a sentence or two, while an
HTML page of a proxy would fill the log."""

_SECONDS = re.compile(r"\d{1,9}", re.ASCII)


@contextmanager
def explained(url: str, timeout: float) -> Generator[None]:
    """Turn the library's exceptions for a failed handshake into ours, in the block."""
    from websockets.exceptions import InvalidStatus, WebSocketException  # not for an address alone

    try:
        yield
    except InvalidStatus as error:
        answer = error.response
        headers, body = answer.headers.raw_items(), bytes(answer.body)
        raise refused(answer.status_code, headers, body, datetime.now(UTC)) from error
    except (OSError, WebSocketException) as error:
        raise cannot_connect(url, error, timeout) from error


def refused(
    status: int, headers: Iterable[tuple[str, str]], body: bytes, now: datetime
) -> HandshakeRefused:
    """The exception for an answer that is an HTTP status instead of a connection."""
    wait = next((value for name, value in headers if name.lower() == "retry-after"), None)
    text = body.decode(errors="replace").strip()[:MAX_REFUSAL_CHARS]
    return HandshakeRefused(status, None if wait is None else retry_after(wait, now), text)


def retry_after(value: str, now: datetime) -> float | None:
    """Seconds that a ``Retry-After`` asks to wait, as a number or a date (RFC 9110, 10.2.3)."""
    if _SECONDS.fullmatch(value.strip()):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    # A date in "-0000" comes back without a zone; HTTP knows only UTC.
    aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(0.0, (aware - now).total_seconds())


def cannot_connect(url: str, error: BaseException, timeout: float) -> CannotConnect:
    parts = urlsplit(url)
    found = advice_for(error, parts.scheme) or Advice(reason_for(error, timeout), CHECK_PLACE)
    return CannotConnect(f"cannot connect to {parts.netloc or parts.path}: {found}")


def reason_for(error: BaseException, timeout: float) -> str:
    """The failure in a few words, whichever loop it comes from."""
    import ssl  # loaded at the first failure: it takes 4 ms of an agent's import

    match error:
        case TimeoutError(errno=None):
            return f"no answer within {timeout:g} seconds"
        case OSError(__cause__=BaseExceptionGroup() as attempts):
            # trio tries every address of a name and tells what became of each.
            return reason_for(attempts.exceptions[0], timeout)
        case OSError(errno=int(number)) if number > 0 and not isinstance(error, ssl.SSLError):
            # The system's words: asyncio puts its own in their place.
            return os.strerror(number).lower()
        case OSError(strerror=str(words)) if words:
            return words
        case BaseException(__cause__=ssl.SSLError() as reason):
            return str(reason)
        case ConnectionError() if not str(error):
            return "the connection was closed"
        case _:
            # httpx puts words of its own before the system's.
            for each in _causes(error):
                found = each.errno if isinstance(each, OSError) else None
                if found and found > 0 and not isinstance(each, ssl.SSLError):
                    return os.strerror(found).lower()
            return str(error) or type(error).__name__


MAX_CAUSES: Final = 16
"""Exceptions behind an exception that are looked at."""

_CERTIFICATES: Final = {
    9: "set this machine's clock, or use a certificate that has begun",
    10: "renew the gateway's certificate",
    18: "add it to what this machine trusts: SSL_CERT_FILE=its-certificate.pem",
    19: "add its root to what this machine trusts: SSL_CERT_FILE=root.pem",
    20: "add its root to what this machine trusts: SSL_CERT_FILE=root.pem",
    62: "dial by a name that stands in the certificate, or get one for this name",
    64: "dial by a name that stands in the certificate, or get one for this address",
}
"""Advice by OpenSSL's numbers of what is wrong with a certificate (X509_V_ERR_…)."""

CHECK_PLACE: Final = "check the address and that a gateway listens there"


class Advice(NamedTuple):
    """A failure to connect, in two halves of a sentence: it and its remedy."""

    said: str
    todo: str

    def __str__(self) -> str:
        """As the end of a sentence."""
        return f"{self.said}; {self.todo}"


def untrusted(error: ssl.SSLCertVerificationError) -> Advice:
    """A certificate that this machine does not trust."""
    return Advice(
        f"the certificate is not to be trusted: {error.verify_message}",
        _CERTIFICATES.get(error.verify_code, "use a certificate that this machine trusts"),
    )


def without_tls(scheme: str) -> str:
    """Advice where TLS was tried, and the other end does not speak it."""
    return f"write {scheme.removesuffix('s')}:// if the gateway has no TLS, or check the port"


def with_tls(scheme: str) -> str:
    """Advice where no TLS was tried, and the other end may want it."""
    if scheme == "unix":
        return "check the path"
    return f"check host, port and path; if it speaks TLS, write {scheme}s://"


def advice_for(error: BaseException, scheme: str) -> Advice | None:
    """Advice for another user at the port, TLS, or its lack; ``None`` for any other failure."""
    import ssl

    from websockets.exceptions import WebSocketException

    is_tls = scheme in ("wss", "https")
    for each in _causes(error):
        match each:
            case ForeignListener():
                return Advice(str(each), each.advice)
            case ssl.SSLCertVerificationError():
                return untrusted(each)
            case ssl.SSLError() if is_tls:
                reason = str(getattr(each, "reason", "") or "")
                why = f": {reason}".lower().replace("_", " ") if reason else ""
                return Advice(f"it speaks no TLS{why}", without_tls(scheme))
            case TimeoutError(errno=None) if is_tls:
                return Advice("no answer came in time", without_tls(scheme))
            case WebSocketException() if not is_tls:
                return Advice("what listens there answers no WebSocket handshake", with_tls(scheme))
            case _:
                pass
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, its causes and contexts, and the members of groups, breadth first."""
    waiting: list[BaseException] = [error]
    for _ in range(MAX_CAUSES):
        if not waiting:
            return
        each = waiting.pop(0)
        yield each
        if isinstance(each, BaseExceptionGroup):
            waiting += cast("BaseExceptionGroup[BaseException]", each).exceptions
        waiting += [behind for behind in (each.__cause__ or each.__context__,) if behind]
