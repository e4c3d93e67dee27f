"""Readers of streams that stop reading, over real sockets."""

import json
from typing import Any

import pytest

from tests.gateway.conftest import envelope
from tests.gateway.edges import edge
from tests.patience import PATIENCE

KIB = 1 << 10
LOUD = {"bytes_per_second": 1 << 40, "bytes_burst": 1 << 40, "messages_burst": 100_000}


@pytest.mark.rule("8.lost", "8.bounds")
@pytest.mark.parametrize("kind", ["port", "mounted"])
def test_stalled_reader_costs_bounded_memory_and_keeps_its_connection(kind: str) -> None:
    """Some 20 MiB go by: more than sockets hold, and five times what would close the reader."""
    size, number = 64 * KIB, 320
    with (
        edge(kind, max_queued_bytes=4 * KIB * KIB, **LOUD) as it,
        it.join("bob") as bob,
        it.join("alice") as alice,
    ):
        ask = envelope("alice", kind="stream.request", id="r", payload={"direction": "upload"})
        alice.send(ask.decode())
        stream = until(alice, "stream.open")["stream_id"]
        frame = f"#{stream}#".encode() + b"x" * size
        for each in range(number):
            alice.send(frame)
            assert alice.recv(PATIENCE) == frame
            if each % 40 == 0:
                assert it.metric("queued_bytes") <= 512 * KIB
        counters = it.place.counters
        assert (counters.stream_frames, counters.too_slow) == (number, {})
        assert counters.stream_frames_lost > 0
        # Bob reads again: each frame came, or is counted where it is missing.
        heard = lost = 0
        until(bob, "stream.open")
        while heard + lost < number:
            if isinstance(data := bob.recv(PATIENCE), bytes):
                assert data == frame
                heard += 1
            else:
                said = json.loads(data)
                assert (said["kind"], said["to"]) == ("stream.lost", ["bob"])
                lost += said["payload"]["frames"]
        assert lost == counters.stream_frames_lost
        alice.send(frame)
        assert bob.recv(PATIENCE) == frame


def until(socket: Any, kind: str) -> dict[str, str]:
    while True:
        said = json.loads(socket.recv(PATIENCE))
        if said["kind"] == kind:
            payload: dict[str, str] = said["payload"]
            return payload
