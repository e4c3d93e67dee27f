"""Resuming: a member reads what it missed in order, then what is for it alone, then what is new."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.protocol.frames import frame_by
from tests.protocol.space.test_server import Listener, chat
from tests.spaces import FrameFormat, MemoryJournal, delivery, space_server

SAID = 3


class SlowJournal(MemoryJournal):
    """Hands over what was read when a test lets it, as a disk does."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.waiting: list[Callable[[], None]] = []

    def read(self, *space: Any, **page: Any) -> None:
        self.waiting.append(partial(super().read, *space, **page))

    def go_on(self) -> None:
        """Hand over everything that was asked for, also what is asked for thereby."""
        while self.waiting:
            self.waiting.pop(0)()


class Scene:
    def __init__(self) -> None:
        self.journal = SlowJournal()
        may = {"alice": [{"kind": "*"}], "bob": [{"kind": "chat"}]}
        self.host = space_server(may, journal=self.journal, new_id=lambda: "g")
        self.alice, self.bob = Listener("alice"), Listener("bob")
        self.host.join(self.alice)
        self.bob.form = FrameFormat("meup/v0.1", numbered=True)
        self.bob.last_seen = self.journal.latest("demo")
        for number in range(SAID):
            self.host.receive(self.alice, chat("alice", number))
        self.host.join(self.bob)

    @property
    def closed(self) -> int | None:
        return None if self.bob.closed is None else self.bob.closed[0]

    def heard(self) -> list[tuple[str, Any]]:
        """Kind, and number or error, of each frame that bob got since the last call."""
        frames, self.bob.frames = self.bob.frames, []
        said = [json.loads(frame) for frame in frames]
        return [(each["kind"], each["payload"].get("error", each["id"])) for each in said]


MISSED = [("chat", str(number)) for number in range(SAID)] + [("system.presence", "g")]
REFUSED = ("system.error", "identity_mismatch")


@pytest.mark.rule("6.resume.order")
def test_what_is_said_meanwhile_comes_after_what_was_missed() -> None:
    scene = Scene()
    assert scene.heard() == [("system.welcome", "g")]
    # Something for bob alone, and something for everybody, while the disk takes its time.
    scene.host.receive(scene.bob, chat("alice"))
    scene.host.receive(scene.alice, chat("alice", 7))
    assert scene.heard() == []
    scene.journal.go_on()
    heard = scene.heard()
    assert [each for each in heard if each != REFUSED] == [*MISSED, ("chat", "7")]
    assert heard.index(REFUSED) >= len(MISSED)
    scene.host.receive(scene.alice, chat("alice", 8))
    scene.host.receive(scene.bob, chat("alice"))
    assert scene.heard() == [("chat", "8"), REFUSED]


def test_who_takes_too_much_meanwhile_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_HELD", 2)
    scene = Scene()
    for _ in range(2):
        scene.host.receive(scene.bob, chat("alice"))
    assert scene.closed is None
    scene.host.receive(scene.bob, chat("alice"))
    assert scene.closed == 1013


@pytest.mark.rule("3.list.pages")
def test_who_asks_for_large_pages_meanwhile_is_closed() -> None:
    """A reader that reads nothing, and asks on, would fill the memory."""
    scene = Scene()
    call = {"method": "tools/call", "params": {"name": "write", "arguments": {"text": "x" * 2**20}}}
    scene.host.receive(scene.alice, frame_by("alice", "mcp.proposal", call))
    asked = 0
    while scene.closed is None:
        scene.host.receive(scene.bob, frame_by("bob", "space.list-proposals", id=f"q{asked}"))
        asked += 1
        assert asked * 2**20 <= delivery.MAX_HELD_BYTES
    assert (scene.closed, asked > 4) == (1013, True)


def test_who_leaves_meanwhile_gets_no_more() -> None:
    scene = Scene()
    scene.heard()
    scene.host.leave(scene.bob)
    scene.journal.go_on()
    assert scene.heard() == []


@pytest.mark.parametrize("kept", [1, 4])
def test_what_is_forgotten_before_it_is_read_is_not_left_out_in_silence(kept: int) -> None:
    """All of it, and the first of it alone."""
    scene = Scene()
    scene.heard()
    scene.journal._max_entries = kept
    scene.host.receive(scene.alice, chat("alice", 9))
    scene.journal.go_on()
    assert scene.heard() == []
    assert scene.closed == 1013
