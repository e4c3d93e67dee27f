"""Advice for a connection that cannot be made, by the exception that says why: TLS or none of it.

The sentences are the same for an agent, for each command, and for ``meup doctor``.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Final, NamedTuple, cast

from websockets.exceptions import WebSocketException

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
    return f"check host, port and path; if it speaks TLS, write {scheme}s://"


def advice_for(error: BaseException, scheme: str) -> Advice | None:
    """Advice for a failure that TLS, or its lack, explains; ``None`` for any other."""
    is_tls = scheme in ("wss", "https")
    for each in _causes(error):
        match each:
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
