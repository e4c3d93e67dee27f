"""A member's queue, turn by turn."""

import asyncio
from collections.abc import Callable
from typing import cast

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
    """Takes writes."""

    joins_frames = True

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.ends: list[tuple[int, str]] = []

    def write(self, packed: bytes) -> None:
        self.writes.append(packed)

    def close(self, code: int, reason: str) -> None:
        self.ends.append((code, reason))


class Setting:
    def __init__(self, **limits: int) -> None:
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
@pytest.mark.limit("max_queued_frames")
@pytest.mark.parametrize(
    ("limit", "what"), [("max_queued_frames", "messages"), ("max_queued_bytes", "bytes")]
)
def test_one_frame_too_many_closes_who_does_not_read(limit: str, what: str) -> None:
    setting = Setting(**{limit: 3})
    setting.member.pause()
    for number in range(5):
        setting.member.deliver(b"x")
        assert bool(setting.socket.ends) is (number >= 3)
    waits = f"3 {what} wait for you ({limit})"
    said = f"you read too slowly: more than {waits}; connect again"
    assert setting.socket.ends == [(1013, said)]
    setting.member.resume()
    assert setting.socket.writes == []
