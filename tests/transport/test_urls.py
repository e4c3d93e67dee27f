"""Addresses of gateways, and headers of their handshake."""

import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.transport.urls import check_headers, handshake_url


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
