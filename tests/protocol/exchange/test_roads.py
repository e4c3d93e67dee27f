"""The road of each kind of message through the files of the exchange, as its head lists it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from tests.protocol.exchange.peer import Peer
from tests.wire import exchange

FOLDER = Path(str(exchange.__file__)).parent
LISTED = re.findall(r"^    +(\w+)[. ] ", str(exchange.__doc__), re.MULTILINE)
"""The files of the diagram, from the wire to the effects."""

EVENTS: dict[str, tuple[Callable[[Peer, str], object], list[str]]] = {
    "welcome": (
        lambda me, _: me.welcomed("alice"),
        ["table", "dispatcher", "system_messages", "control_messages", "handler_scheduler"],
    ),
    "proposal": (
        lambda me, _: me.proposal("alice", "p2"),
        ["table", "dispatcher", "inbound_calls", "handler_scheduler"],
    ),
    "withdraw": (
        lambda me, _: me.withdraw("alice", "p1"),
        ["table", "dispatcher", "inbound_calls", "handler_scheduler"],
    ),
    "request": (
        lambda me, _: me.request("alice", "a1"),
        ["table", "dispatcher", "inbound_calls", "handler_scheduler"],
    ),
    "cancel": (
        lambda me, _: me.cancel("alice", "a0"),
        ["table", "dispatcher", "inbound_calls", "handler_scheduler"],
    ),
    "response": (
        lambda me, ours: me.response("alice", ours, to=("me",)),
        ["table", "dispatcher", "response_reader"],
    ),
}


@pytest.mark.parametrize("kind", EVENTS)
def test_a_message_goes_down_its_road(me: Peer, kind: str) -> None:
    me.proposal("alice", "p1")
    me.request("alice", "a0")
    ours = me.begins_request(to=("alice",)).id
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.parent == FOLDER and path.stem in LISTED:
            entered.append(path.stem)

    happens, road = EVENTS[kind]
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        happens(me, ours)
    finally:
        sys.setprofile(before)
    assert list(dict.fromkeys(entered)) == road
