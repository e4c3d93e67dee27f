"""The address and headers of a handshake, and the words for a failed one.

The advice is the same for an agent, for each command, and for ``meup doctor``.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from urllib.parse import SplitResult, parse_qs, quote, urlsplit, urlunsplit

from meup_agent.errors import CannotConnect, ConfigurationError, HandshakeRefused
from meup_agent.transport.listener_owner import ForeignListener
from meup_agent.transport.unix_socket import socket_path

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

MAX_REFUSAL_CHARS: Final = 500
"""Characters kept of what a gateway says with a refusal: room for a sentence or two, while an
HTML page of a proxy would fill the log."""

_SECONDS = re.compile(r"\d{1,9}", re.ASCII)
_FORBIDDEN_IN_HEADER = re.compile(r"[\x00-\x1f\x7f]|[^\x00-\x7f]")


def handshake_url(url: str, space: str | None) -> str:
    """The address of a handshake, with the space in its query (PROTOCOL 3)."""
    if socket_path(url) is not None:
        url = "ws://localhost"  # the name of every gateway at a Unix socket
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it is what checks it
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise _unusable(url, str(error)) from None
    if parts.scheme not in ("ws", "wss"):
        raise _unusable(url, "it does not begin with ws:// or wss://")
    if not parts.hostname:
        raise _unusable(url, "it names no host")
    if parts.fragment:
        raise _unusable(url, "a fragment (#) has no meaning there")
    if parts.username is not None:
        raise _unusable(_without_user(parts), "it holds a user; identity is the token's")
    path = parts.path if parts.path not in ("", "/") else "/ws"
    return urlunsplit((parts.scheme, parts.netloc, path, _query(url, parts, space), ""))


def _query(url: str, parts: SplitResult, space: str | None) -> str:
    named = parse_qs(parts.query, keep_blank_values=True).get("space", [])
    if space is None or named == [space]:
        return parts.query
    if named:
        raise _unusable(url, f"it names the space {named[0]!r}, and {space!r} was asked for")
    return "&".join(filter(None, (parts.query, f"space={quote(space, safe='')}")))


def _without_user(parts: SplitResult) -> str:
    """The address as it may be shown: a password must not end up in a log."""
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _unusable(url: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the address {url!r} cannot be used: {why}; write it like ws://localhost:8420"
    )


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse a header that would break the handshake, such as a token with its line break.

    Its value is not in the error's message, since it may be a secret.
    """
    for name, value in headers.items():
        if _FORBIDDEN_IN_HEADER.search(name) or _FORBIDDEN_IN_HEADER.search(value):
            raise ConfigurationError(
                f"the header {name!r} cannot be sent: it holds a line break or another character"
                " outside printable ASCII; strip it"
            )


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
    """The exception for a connection that could not be made."""
    parts = urlsplit(url)
    found = advice_for(error, parts.scheme) or Advice(reason_for(error, timeout), CHECK_PLACE)
    return CannotConnect(f"cannot connect to {parts.netloc or parts.path}: {found}")


def reason_for(error: BaseException, timeout: float) -> str:
    """The failure in a few words, whichever loop it comes from."""
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
