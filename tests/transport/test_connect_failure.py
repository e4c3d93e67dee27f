"""What is made of a refusal or of a failure to connect, without a network."""

import errno
import ssl
from datetime import UTC, datetime

import pytest
from websockets.exceptions import InvalidMessage

from meup_agent.transport.connect_failure import (
    MAX_CAUSES,
    MAX_REFUSAL_CHARS,
    advice_for,
    refused,
    retry_after,
)
from tests.gateways import cannot_connect

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Thu, 01 Jan 2026 12:01:30 GMT", 90.0),
        ("Thu, 01 Jan 2026 12:01:30 -0000", 90.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("9" * 5_000, None),
        ("Thu, 99 Jan 2026 12:01:30 GMT", None),
        ("٣", None),
    ],
)
def test_retry_after(value: str, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds


def test_refusal_says_what_the_gateway_said() -> None:
    error = refused(503, [("RETRY-AFTER", "5")], b"come back later\n", NOW)
    assert (error.status, error.retry_after, error.body) == (503, 5.0, "come back later")
    assert refused(401, [], b"\xff" * 10_000, NOW).body == "\ufffd" * MAX_REFUSAL_CHARS


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "no answer within 10 seconds"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed"), "connection refused"),
        (OSError("nothing known"), "nothing known"),
        (EOFError(), "EOFError"),
        (ssl.SSLError(1, "[SSL] wrong version number"), "wrong version number"),
    ],
)
def test_failure_names_the_address_and_the_cause(error: Exception, words: str) -> None:
    message = str(cannot_connect("ws://host:8420/ws?space=demo", error, 10))
    assert message.startswith("cannot connect to host:8420: ")
    assert words in message


def test_failure_of_every_address_names_the_first_cause() -> None:
    attempts = OSError("all attempts to connect failed")
    attempts.__cause__ = ExceptionGroup("all", [OSError(errno.ECONNREFUSED, "x"), OSError("y")])
    assert "connection refused" in str(cannot_connect("ws://host/ws", attempts, 10))


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
