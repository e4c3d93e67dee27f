"""Backlogs of readers, in a time that the tests tell: waiting senders, dropped readers."""

from typing import Any

import pytest

from meup_agent.gateway import GatewayLimits
from meup_agent.gateway.frame_queue import IMPATIENT_SECONDS
from tests.gateways import Backlog, Backlogs, Identity
from tests.spaces import SpaceCounters


class Queue(Backlog):
    """A queue that is dropped when it is told so."""

    def __init__(self, backlogs: Backlogs, reader: str) -> None:
        super().__init__(backlogs, Identity("demo", reader))
        self.waits: list[bytes] = []
        self.why = ""

    def put(self, *frames: bytes) -> None:
        self.waits += frames
        self.count_in(*frames)

    def drain(self) -> None:
        waits, self.waits = self.waits, []
        self.count_out(waits)

    def close(self) -> None:
        self.drain()
        self.forget()

    def _drop(self, reason: str) -> None:
        self.why = reason
        self.drain()


class Scene:
    def __init__(self, **limits: Any) -> None:
        self.now = 0.0
        self.counters = SpaceCounters()
        self.all = Backlogs(GatewayLimits(**limits), self.counters, lambda: self.now)
        self.space = self.all.in_space("demo")

    def queue(self, reader: str) -> Queue:
        return Queue(self.all, reader)

    def waits(self, sender: str, seconds: float) -> float:
        """For how long a loud sender waits, at most so many seconds."""
        began = self.now
        while self.now - began < seconds:
            wait = self.space.wait(sender)
            if not wait:
                break
            self.now += wait
        return self.now - began


def frame(size: int) -> bytes:
    return bytes(bytearray(size))


@pytest.mark.rule("3.queues")
def test_what_waits_for_several_counts_for_each_and_once_in_all() -> None:
    scene, shared = Scene(), frame(100)
    ann, bob = scene.queue("ann"), scene.queue("bob")
    ann.put(shared)
    bob.put(shared, frame(10))
    assert scene.all.bytes == 110
    assert scene.all.waiting_in("demo") == 210
    ann.drain()
    assert scene.all.bytes == 110
    bob.drain()
    assert scene.all.bytes == scene.all.waiting_in("demo") == 0


@pytest.mark.rule("3.queues")
def test_of_a_participant_the_fullest_queue_is_dropped() -> None:
    scene = Scene(max_participant_queued_bytes=100)
    first, second, other = scene.queue("ann"), scene.queue("ann"), scene.queue("bob")
    other.put(frame(90))
    first.put(frame(60))
    second.put(frame(41))
    assert "(max_participant_queued_bytes)" in first.why
    assert not second.why
    assert not other.why
    assert scene.counters.too_slow == {"max_participant_queued_bytes": 1}


@pytest.mark.rule("3.queues")
def test_of_all_the_participant_with_most_is_dropped_with_all_its_queues() -> None:
    scene = Scene(max_gateway_queued_bytes=100)
    ann, bob, bobs_other, idle = (scene.queue(name) for name in ("ann", "bob", "bob", "bob"))
    ann.put(frame(45))
    bob.put(frame(30))
    bobs_other.put(frame(26))
    assert bob.why
    assert bobs_other.why
    assert not ann.why
    assert not idle.why
    assert scene.all.bytes == 45


@pytest.mark.rule("3.pace.reader")
def test_a_sender_waits_until_a_queue_has_drained() -> None:
    scene = Scene(max_queued_bytes=100)
    ann = scene.queue("ann")
    ann.put(frame(50))
    assert not scene.space.filling
    ann.put(frame(20))
    assert scene.waits("bob", 0.5) >= 0.5
    ann.count_out([ann.waits.pop()])
    assert scene.space.wait("bob")
    ann.drain()
    assert not scene.space.wait("bob")
    assert not ann.why


@pytest.mark.rule("3.pace.reader")
def test_a_sender_waits_for_a_reader_for_a_time_and_not_again_for_a_minute() -> None:
    scene = Scene(max_queued_bytes=100, slow_reader_seconds=1)
    for number in range(3):
        ann = scene.queue("ann")
        ann.put(frame(60))
        assert scene.waits("bob", 10) == pytest.approx(0 if number else 1, abs=0.05)
        assert bool(ann.why) is not bool(number)
        ann.close()
    scene.now += IMPATIENT_SECONDS
    ann = scene.queue("ann")
    ann.put(frame(60))
    assert scene.waits("bob", 10) == pytest.approx(1, abs=0.05)


@pytest.mark.rule("3.pace.reader")
def test_many_queues_of_a_participant_cost_no_more_than_one() -> None:
    scene = Scene(max_queued_bytes=100, slow_reader_seconds=1)
    queues = [scene.queue("ann") for _ in range(16)]
    for number, ann in enumerate(queues):
        scene.now += 0.01
        ann.put(frame(60))
        assert scene.space.wait("bob")
        assert not queues[number].why
    assert scene.waits("bob", 10) <= 1
    assert sum(bool(ann.why) for ann in queues) == 1


@pytest.mark.rule("3.pace.reader")
def test_who_speaks_and_does_not_read_has_the_others_wait_no_longer() -> None:
    scene = Scene(max_queued_bytes=100, slow_reader_seconds=1)
    ann = scene.queue("ann")
    ann.put(frame(60))
    began = scene.now
    while not ann.why:
        scene.space.wait("ann")  # its own messages: not dropped for that
        scene.space.wait("bob")
        scene.now += 0.02
        assert scene.now - began < 1.1


def test_for_its_own_queue_a_sender_waits_and_then_goes_on() -> None:
    scene = Scene(max_queued_bytes=100, slow_reader_seconds=1)
    ann = scene.queue("ann")
    ann.put(frame(60))
    for _ in range(5):
        assert scene.waits("ann", 10) == pytest.approx(1, abs=0.05)
    assert not ann.why


def test_nothing_is_kept_of_who_has_gone() -> None:
    scene = Scene(max_streams=1)
    ann = scene.queue("ann")
    ann.put(frame(60))
    assert scene.all.add_stream(Identity("demo", "ann"))
    assert not scene.all.add_stream(Identity("demo", "ann"))
    assert scene.counters.streams_refused == 1
    scene.all.remove_stream(Identity("demo", "ann"))
    ann.close()
    assert scene.all.waiting_in("demo") == 0
    assert not scene.all._shares


@pytest.mark.rule("3.queues")
def test_what_is_being_sent_counts_with_what_waits() -> None:
    scene, ann = Scene(max_participant_queued_bytes=100), Identity("demo", "ann")
    queue = scene.queue("ann")
    queue.put(frame(60))
    assert scene.all.reserve(ann, 40)
    assert not scene.all.reserve(ann, 1)
    assert scene.all.reserve(Identity("demo", "bob"), 100)
    scene.all.release(ann, 40)
    assert scene.all.reserve(ann, 1)
    assert scene.all.bytes == 161
