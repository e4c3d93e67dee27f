"""Addresses, headers, and what is made of a refusal: no network needed."""

import errno
import ssl
from datetime import UTC, datetime

import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.transport.handshake import (
    MAX_REFUSAL_CHARS,
    check_headers,
    handshake_url,
    refused,
    retry_after,
)
from tests.gateways import cannot_connect

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("url", "space", "expected"),
    [
        ("ws://host:8420", "demo", "ws://host:8420/ws?space=demo"),
        ("ws://host:8420/", "demo", "ws://host:8420/ws?space=demo"),
        ("ws://host:8420", None, "ws://host:8420/ws"),
        ("wss://host/gateway", "demo", "wss://host/gateway?space=demo"),
        ("ws://host/ws?x=1", "demo", "ws://host/ws?x=1&space=demo"),
        ("ws://host/ws?space=demo", "demo", "ws://host/ws?space=demo"),
        ("ws://host/ws?space=demo", None, "ws://host/ws?space=demo"),
        ("ws://host", "a b&c/ü", "ws://host/ws?space=a%20b%26c%2F%C3%BC"),
        ("ws://[::1]:8420", "demo", "ws://[::1]:8420/ws?space=demo"),
        ("WS://host", "demo", "ws://host/ws?space=demo"),
    ],
)
def test_handshake_goes_to(url: str, space: str | None, expected: str) -> None:
    assert handshake_url(url, space) == expected


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "ws:// or wss://"),
        ("localhost:8420", "ws:// or wss://"),
        ("http://host", "ws:// or wss://"),
        ("ws://", "names no host"),
        ("ws://:8420", "names no host"),
        ("ws://host:port", "port"),
        ("ws://host:99999", "ort"),
        ("ws://[::1", "IPv6"),
        ("ws://a..b", "label"),
        ("ws://host/#part", "fragment"),
        ("ws://host/ws?space=other", "'other'"),
        ("ws://user:secret@host", "identity is the token's"),
    ],
)
def test_unusable_address_is_the_callers_mistake(url: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        handshake_url(url, "demo")
    assert isinstance(caught.value, ValueError)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", ["Bearer t\n", "Bearer\r\nX: y", "Bearer \x00", "Bearer ü"])
def test_header_that_breaks_the_handshake_is_refused_without_its_value(value: str) -> None:
    with pytest.raises(ConfigurationError, match="'Authorization'") as caught:
        check_headers({"MEUP-Resume": "1", "Authorization": value})
    assert "Bearer" not in str(caught.value)


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
