"""A connection that fails by TLS is explained in the same words everywhere."""

import ssl

import pytest
from websockets.exceptions import InvalidMessage

from meup_agent.transport.handshake import MAX_CAUSES, advice_for
from tests.gateways import cannot_connect


def untrusted(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, "self-signed certificate"
    return error


def behind(error: BaseException) -> BaseException:
    """The error as trio tells of it: one of those of all addresses of a name."""
    outer = OSError("all attempts to connect failed")
    outer.__cause__ = BaseExceptionGroup("attempts", [error])
    return outer


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("error", "scheme", "todo"),
    [
        (untrusted(18), "wss", "SSL_CERT_FILE=its-certificate.pem"),
        (untrusted(10), "https", "renew the gateway's certificate"),
        (untrusted(99), "wss", "use a certificate that this machine trusts"),
        (ssl.SSLError(1, "wrong version number"), "wss", "write ws:// if the gateway has no TLS"),
        (ssl.SSLError(1, "wrong version number"), "https", "write http:// if the gateway has no"),
        (TimeoutError(), "wss", "write ws:// if the gateway has no TLS"),
        (InvalidMessage("no HTTP"), "ws", "if it speaks TLS, write wss://"),
    ],
)
def test_it_says_what_to_do(error: BaseException, scheme: str, todo: str, wrapped: bool) -> None:
    found = advice_for(behind(error) if wrapped else error, scheme)
    assert found is not None
    assert todo in found.todo
    said = str(cannot_connect(f"{scheme}://host:1/ws", error, 10.0))
    assert said == f"cannot connect to host:1: {found}"


@pytest.mark.parametrize(
    ("error", "scheme"),
    [
        (ConnectionRefusedError(111, "refused"), "wss"),
        (TimeoutError(), "ws"),
        (TimeoutError(110, "timed out"), "wss"),
        (InvalidMessage("no HTTP"), "wss"),
        (OSError("no address"), "ws"),
    ],
)
def test_it_says_nothing_where_tls_is_not_the_matter(error: BaseException, scheme: str) -> None:
    assert advice_for(error, scheme) is None
    said = str(cannot_connect(f"{scheme}://host:1/ws", error, 10.0))
    assert said.endswith("; check the address and that a gateway listens there")


def test_a_circle_of_causes_has_an_end() -> None:
    error = OSError("one")
    error.__cause__ = other = OSError("two")
    other.__cause__ = error
    assert advice_for(error, "wss") is None
    deep: BaseException = untrusted(18)
    for _ in range(MAX_CAUSES):
        deep = behind(deep)
    assert advice_for(deep, "wss") is None
