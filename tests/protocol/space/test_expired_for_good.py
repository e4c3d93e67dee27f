"""What is expired stays so where the clock was put back over a restart (PROTOCOL 4.2)."""

import logging
from typing import Any

import pytest

from meup_agent.protocol.wire.envelope import rfc3339
from tests.interaction.views import lines
from tests.protocol.space.room import CALL, NOW, Room
from tests.protocol.space.test_declined_proposals import refused

pytestmark = pytest.mark.rule("4.2.expiry.for_good")

SECOND = 1_000_000


def propose(room: Room, proposal: str, seconds: float) -> None:
    ends = rfc3339(room.now + round(seconds * SECOND))
    params = {"name": "write", "_meta": {"dev.meup/expires_at": ends}}
    room.propose("ann", proposal, payload={**CALL, "params": params})


def test_a_clock_that_was_put_back_over_a_restart_revives_nothing(caplog: Any) -> None:
    room = Room()
    propose(room, "p", 30)
    propose(room, "q", 3_600)
    room.now += 200 * SECOND
    room.say("eve", "chat", {"message": "good morning"}, "c")
    assert refused(room, "reviewer", "p") == "expired"
    room.now = NOW
    with caplog.at_level(logging.WARNING):
        room.restart()
        room.restart()
    assert refused(room, "reviewer", "p") == "expired"
    assert room.host.now() >= NOW + 200 * SECOND
    room.now += 10 * SECOND
    assert room.host.now() >= NOW + 210 * SECOND
    told = "demo: the clock is 200 s behind the journal's last entry: time goes on from there"
    assert lines(caplog, logging.WARNING) == [told, told]
    assert [each["envelope"]["id"] for each in room.list_for("reviewer")] == ["q"]


def test_a_clock_that_is_right_is_left_as_it_is() -> None:
    room = Room()
    propose(room, "p", 3_600)
    room.now += SECOND
    room.restart()
    assert room.host.now() == room.now
    assert refused(room, "reviewer", "p") == ""
