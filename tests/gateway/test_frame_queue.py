"""A member's queue, turn by turn."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from meup_agent.gateway import Config, GatewayLimits
from tests.gateways import GatewayMember, GatewayRuntime, Identity
from tests.spaces import FrameFormat


class Loop:
    """The part of a loop that a turn needs; a turn is over when told."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def end_turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


class Socket:
    """Takes writes; may be full after each."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.codes: list[int] = []
        self.closed: tuple[int, str] | None = None
        self.after_write: Callable[[], None] = lambda: None

    joins_frames = True

    def write(self, packed: bytes) -> None:
        self.writes.append(packed)
        self.after_write()

    def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)
        self.codes.append(code)


class Setting:
    def __init__(self, **limits: Any) -> None:
        self.loop = Loop()
        self.runtime = GatewayRuntime(
            Config((), limits=GatewayLimits(**limits)),
            loop=cast("asyncio.AbstractEventLoop", self.loop),
        )
        self.member, self.socket = self.seat()

    def seat(self) -> tuple[GatewayMember, Socket]:
        socket = Socket()
        identity, form = Identity("demo", "alice"), FrameFormat("meup/v0.1")
        return GatewayMember(self.runtime, identity, form, socket), socket


def test_frames_of_one_turn_leave_in_one_write() -> None:
    setting = Setting()
    other, others_socket = setting.seat()
    for frame in (b"a", b"b", b"c"):
        setting.member.deliver(frame)
        other.deliver(frame)
    assert setting.socket.writes == []
    assert len(setting.loop.due) == 1
    setting.loop.end_turn()
    assert setting.socket.writes == others_socket.writes == [b"abc"]
    setting.member.deliver(b"d")
    setting.loop.end_turn()
    assert setting.socket.writes == [b"abc", b"d"]


def test_full_socket_holds_back_what_comes_before_and_after_it_fills() -> None:
    setting = Setting()
    setting.member.deliver(b"a")
    setting.member.pause()
    setting.member.deliver(b"b")
    setting.loop.end_turn()
    assert (setting.socket.writes, setting.member.queued_bytes) == ([], 2)
    setting.member.resume()
    assert (setting.socket.writes, setting.member.queued_bytes) == ([b"ab"], 0)


@pytest.mark.rule("3.limits")
@pytest.mark.parametrize(
    ("limits", "waits"),
    [
        ({"max_queued_frames": 3}, "3 messages wait for you (max_queued_frames)"),
        ({"max_queued_bytes": 3}, "3 bytes wait for you (max_queued_bytes)"),
    ],
)
@pytest.mark.limit("max_queued_frames")
def test_one_frame_too_many_closes_who_does_not_read(limits: dict[str, int], waits: str) -> None:
    setting = Setting(**limits)
    setting.member.pause()
    for _ in range(3):
        setting.member.deliver(b"x")
    assert setting.socket.codes == []
    setting.member.deliver(b"x")
    said = f"you read too slowly: more than {waits}; connect again"
    assert setting.socket.closed == (1013, said)
    assert setting.socket.codes == [1013]
    setting.member.deliver(b"x")
    setting.member.resume()
    assert setting.socket.writes == []


def test_one_frame_too_many_in_a_turn_is_one_more_write() -> None:
    setting = Setting(max_queued_frames=3)
    for number in range(10):
        setting.member.deliver(b"%d" % number)
    setting.loop.end_turn()
    assert setting.socket.closed is None
    assert setting.socket.writes == [b"0123", b"4567", b"89"]


def test_socket_that_is_full_after_that_write_counts_anew() -> None:
    setting = Setting(max_queued_frames=3)
    setting.socket.after_write = setting.member.pause
    for _ in range(7):
        setting.member.deliver(b"x")
    assert setting.socket.closed is None
    setting.member.deliver(b"x")
    assert setting.socket.codes == [1013]


def test_closing_comes_after_what_was_queued_and_once() -> None:
    setting = Setting()
    setting.member.deliver(b"a")
    setting.member.close(4409, "taken over")
    setting.member.close(1012, "stops")
    assert setting.socket.writes == [b"a"]
    assert setting.socket.closed == (4409, "taken over")
    assert setting.socket.codes == [4409]
    setting.loop.end_turn()
    assert setting.socket.writes == [b"a"]
