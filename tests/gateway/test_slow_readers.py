"""Readers that do not keep up, at each edge, over real sockets: what they cost, and whom."""

import json
from contextlib import ExitStack, suppress
from threading import Thread
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests.gateway.conftest import envelope
from tests.gateway.edges import Edge, edge
from tests.gateway.edges import kind as kind
from tests.patience import PATIENCE

MIB = 1 << 20
LOUD: dict[str, Any] = {"bytes_per_second": 1 << 40, "bytes_burst": 1 << 40}
"""No pace: only readers hold a sender up."""


def said(number: int, size: int, who: str = "alice") -> bytes:
    return envelope(who, id=f"e{number}", payload={"text": "x" * size})


class Reader(Thread):
    """Reads as a normal member does, until so many envelopes of others have come."""

    def __init__(self, socket: ClientConnection, number: int) -> None:
        super().__init__(daemon=True)
        self.ids: list[str] = []
        self.problem = ""
        self._socket = socket
        self._number = number
        self.start()

    def run(self) -> None:
        try:
            while len(self.ids) < self._number:
                each = json.loads(self._socket.recv(PATIENCE))
                if each["kind"] == "chat":
                    self.ids.append(each["id"])
        except (ConnectionClosed, TimeoutError) as problem:
            self.problem = repr(problem)

    def heard(self) -> list[str]:
        self.join(PATIENCE)
        assert not self.problem
        return self.ids


def speak(it: Edge, number: int, size: int) -> None:
    """Alice says so many large messages at full speed, and Bob hears each of them."""
    with it.join("bob") as bob, it.speaker("alice") as alice:
        reader = Reader(bob, number)
        for each in range(number):
            alice.send(said(each, size))
        assert reader.heard() == [f"e{each}" for each in range(number)]


@pytest.mark.thorough
@pytest.mark.rule("3.pace.reader")
@pytest.mark.limit("max_queued_bytes", "slow_reader_seconds")
def test_loud_sender_waits_for_the_one_that_stalls_and_the_others_do_not_notice(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with edge(kind, slow_reader_seconds=2, **LOUD) as it:
        with it.stall("carol"):
            speak(it, 24, MIB)
        counters = it.place.counters
        # Not by a queue that was full: what would have filled it was not read meanwhile.
        assert counters.too_slow == {"slow_reader_seconds": 1}
        assert counters.closed[1013] == 1
        assert caplog.text.count("reads too slowly, and is closed") == 1


@pytest.mark.thorough
@pytest.mark.rule("3.pace.reader")
def test_who_stalls_again_is_not_waited_for_again(kind: str) -> None:
    with edge(kind, slow_reader_seconds=2, max_queued_bytes=2 * MIB, **LOUD) as it:
        for _ in range(2):
            with it.stall("carol"):
                speak(it, 24, MIB // 2)
        assert it.place.counters.too_slow == {"slow_reader_seconds": 1, "max_queued_bytes": 1}


@pytest.mark.rule("3.pace.reader")
def test_only_the_loud_wait_over_http_too(kind: str) -> None:
    with edge(kind, slow_reader_seconds=100, max_queued_bytes=MIB, **LOUD) as it:
        with it.stall("carol"):
            for number in range(100):
                answer = it.post("alice", said(number, 300_000))
                if answer.status_code != 200:
                    break
            told = answer.json()
            assert (answer.status_code, told["limit"]) == (429, "slow_reader_seconds")
            assert answer.headers["Retry-After"] == "1"
            assert it.post("bob", said(0, 10, "bob")).status_code == 200
            assert it.post("alice", said(200, 10)).status_code == 429
        assert not it.place.counters.too_slow


@pytest.mark.thorough
@pytest.mark.rule("3.queues", "3.limits")
@pytest.mark.limit("max_participant_queued_bytes", "max_streams")
def test_130_streams_that_are_never_read_are_bounded(kind: str) -> None:
    most = {"max_streams": 16, "max_queued_bytes": 2 * MIB, "max_participant_queued_bytes": 8 * MIB}
    with edge(kind, slow_reader_seconds=0.1, **most, **LOUD) as it, ExitStack() as stack:
        for number in range(130):
            stack.enter_context(it.stream("carol", 200 if number < 16 else 429))
        size = MIB // 2
        with it.speaker("alice") as alice, it.join("bob") as bob:
            for number in range(28):
                reader = Reader(bob, 1)
                alice.send(said(number, size))
                assert reader.heard() == [f"e{number}"]
                assert it.metric("queued_bytes") <= 8 * MIB + 2 * size
        counters = it.place.counters
        assert sum(counters.too_slow.values()) == 16
        assert counters.streams_refused == 130 - 16
        # The others notice nothing.
        assert counters.closed[1013] == 0


@pytest.mark.rule("3.queues")
def test_a_stream_that_has_ended_makes_room_for_another(kind: str) -> None:
    with edge(kind, max_streams=1) as it:
        for _ in range(3):
            with it.stream("carol"), it.stream("carol", 429), it.stream("bob"):
                pass
            # The gateway sees soon that it is gone.
            assert any(it.read_events("carol") == 200 for _ in range(10_000))


@pytest.mark.thorough
@pytest.mark.rule("3.queues")
@pytest.mark.limit("max_gateway_queued_bytes")
def test_of_all_that_wait_the_participant_with_most_is_dropped_first(kind: str) -> None:
    most = {"max_gateway_queued_bytes": 6 * MIB, "max_queued_bytes": 64 * MIB}
    with edge(kind, close_timeout=0.2, **most, **LOUD) as it:
        with it.stream("carol") as stream, it.stall("carol"), it.join("bob") as bob:
            with it.speaker("alice") as alice:
                for number in range(20):
                    reader = Reader(bob, 1)
                    alice.send(said(number, MIB))
                    assert reader.heard() == [f"e{number}"]
                    assert it.metric("backlog_bytes") <= 7 * MIB
            # Its stream is not only let go: the connection ends, behind what its socket held.
            with suppress(ConnectionResetError):
                while stream.recv(MIB):
                    pass
        assert set(it.place.counters.too_slow) == {"max_gateway_queued_bytes"}


@pytest.mark.rule("3.queues")
def test_messages_that_do_not_come_to_their_end_are_bounded(kind: str) -> None:
    with edge(kind, max_participant_queued_bytes=4 * MIB, join_timeout=PATIENCE) as it:
        with ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(it.upload("alice", MIB))
            for _ in range(10_000):
                if it.metric("backlog_bytes") == 4 * MIB:
                    break
            refused = it.post("alice", said(0, 10))
            told = refused.json()["limit"]
            assert (refused.status_code, told) == (429, "max_participant_queued_bytes")
            assert it.post("bob", said(0, 10, "bob")).status_code == 200
        for _ in range(10_000):
            if it.metric("backlog_bytes") == 0:
                break
        assert it.post("alice", said(0, 10)).status_code == 200
