"""Lessons of interoperation for a gateway: odd payloads, frames, ends and sizes."""

import json
import socket as sockets
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from meup_agent.gateway import Config, Gateway, GatewayLimits
from tests.conformance.wire import Site, config_of
from tests.patience import PATIENCE
from tests.wire import MAX_FRAME_BYTES


@pytest.mark.rule("E.E5")
@pytest.mark.parametrize(
    ("kind", "payload", "header"),
    [
        ("mcp/response", {"result": 5}, {"correlation_id": ["r1"]}),
        ("mcp/response", {}, {"correlation_id": ["r1", "p1"]}),
        ("mcp/response", {"error": {"code": "NOT_FOUND", "message": "no"}}, {"correlationId": "r"}),
        ("mcp/request", {"method": "tools/list"}, {"to": "alice"}),
        ("mcp/request", {"method": "notifications/anything", "id": 1}, {}),
        ("mcp/proposal", {"proposal": {"method": "tools/list"}}, {}),
        ("mcp.reject", {"reason": "because"}, {"correlation_id": ["p1"], "seq": 1}),
    ],
)
def test_what_existing_participants_write_passes_as_it_is(
    site: Site, kind: str, payload: Any, header: dict[str, Any]
) -> None:
    with site.join("bob", "alice") as members:
        members[0].send(kind, payload, **header)
        for member in members:
            said = member.hear(kind)
            assert said["payload"] == payload
            assert {name: said[name] for name in header} == header


@pytest.mark.rule("E.E8")
def test_a_binary_frame_that_holds_an_envelope_is_one(site: Site) -> None:
    with site.join("alice", "bob") as (alice, bob):
        frame = {"protocol": site.dialect, "id": "a", "from": "alice", "kind": "chat"}
        alice.write(json.dumps({**frame, "payload": {"text": "é"}}, ensure_ascii=False).encode())
        assert bob.hear("chat")["payload"] == {"text": "é"}
        # Frames of streams, in a dialect that has some and in one that has none.
        codes = ("unauthorized_stream_write", "invalid_json", "invalid_utf8")
        for raw in (b"#stream-1#\x00\xff", "#stream-1#hello"):
            alice.write(raw)
            code = alice.refusal()
            assert code in (codes[:1] if site.dialect == "mew/v0.4" else codes[1:])


def limited(dialect: str, **limits: Any) -> Config:
    config = config_of({"alice": [{"kind": "chat"}]}, dialect=dialect)
    return replace(config, limits=GatewayLimits(**limits))


@pytest.mark.rule("E.E9")
def test_who_does_not_answer_a_ping_is_gone(dialect: str) -> None:
    """A participant that has stopped reading: its socket is open, and nothing reads it."""
    config = limited(dialect, ping_interval=0.1, ping_deadline=0.1)
    with Gateway(config=config).in_thread() as gateway:
        with sockets.create_connection(("127.0.0.1", gateway.port), PATIENCE) as silent:
            silent.sendall(
                b"GET /ws?space=demo HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
                b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                b"Authorization: Bearer alice-token\r\n\r\n"
            )
            received = b""
            while chunk := silent.recv(65536):
                received += chunk
        assert b"system/welcome" in received
        assert b"\x89\x00" in received  # a ping, in vain


@pytest.mark.rule("E.E9")
def test_a_gateway_that_stops_says_so(dialect: str) -> None:
    with ExitStack() as stack:
        with Gateway(config=limited(dialect)).in_thread() as gateway:
            (alice,) = stack.enter_context(Site(gateway, dialect).join("alice"))
        assert alice.end() == 1012


@pytest.mark.rule("E.E10")
def test_a_message_that_is_too_large_is_refused_and_ends_its_connection(dialect: str) -> None:
    with Gateway(config=limited(dialect)).in_thread() as gateway:
        with Site(gateway, dialect).join("alice") as (alice,):
            frame = {"protocol": dialect, "id": "a", "from": "alice", "kind": "chat"}
            room = MAX_FRAME_BYTES - len(json.dumps({**frame, "payload": {"text": ""}}))
            for more in (0, 1):
                alice.write({**frame, "payload": {"text": "x" * (room + more)}})
                if not more:
                    alice.hear("chat")
            assert alice.refused()["error"] == "too_large"
            assert alice.end() == 1009
