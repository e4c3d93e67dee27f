"""Echoes, requests to ourselves, and forgeries in our name (PROTOCOL 4.10, 4.11, 5)."""

from __future__ import annotations

import pytest

from tests.protocol.exchange.peer import (
    CALL,
    Peer,
    started,
)
from tests.tables import Key, ProposalKey
from tests.wire import draft, payloads

A1 = Key("in", "alice", "a1")


PROPOSAL = ProposalKey("alice", "p1")


@pytest.mark.rule("4.10.any_context")
def test_messages_are_handled_whatever_their_context(me: Peer) -> None:
    request = draft(
        "mcp/request",
        payloads.request("tools/call", CALL, "a1"),
        id="a1",
        sender="alice",
        to=("me",),
        context="somewhere/else",
    )
    assert started(me.receives(request)) == [A1]
