"""Any order of requests, writers, targets, cuts and slow readers: frames reach whom they should.

The world keeps a model of its own, and what each reader should get of each stream since it
joined: every frame is read, in order, or counted among what the reader was told that it lost.
"""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meup_agent.protocol.space.delivery import STREAMS_TOGETHER
from tests.effort import scaled
from tests.protocol.space.stream_scene import NAMES, SECOND, StreamScene
from tests.spaces import GRACE_SECONDS
from tests.wire import StreamFrame

MOST = 3
"""Streams of a participant, and frames of one that wait for a reader."""

STEPS = 120
_OFTEN = {
    "join": 3,
    "leave": 2,
    "wait": 1,
    "open": 3,
    "grant": 4,
    "revoke": 1,
    "transfer": 2,
    "close": 2,
    "write": 12,
    "stall": 3,
    "catch_up": 3,
}


@dataclass
class Modelled:
    """A stream as it should be."""

    owner: str
    requester: str
    targets: frozenset[str]
    granted: set[str] = field(default_factory=set[str])
    left_at: int | None = None

    @property
    def writers(self) -> set[str]:
        return {self.owner, *self.granted}


@dataclass
class ReadStream:
    """The frames that a reader should get of each stream, and the part that has come."""

    due: dict[str, list[bytes]] = field(default_factory=dict[str, list[bytes]])
    seen: dict[str, int] = field(default_factory=dict[str, int])


class World:
    """Participants that open, share, write and close streams, and come and go."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.scene = StreamScene(max_open_streams=MOST, max_stream_queued_frames=MOST)
        self.model: dict[str, Modelled] = {}
        self.known: list[str] = []
        self.readings: dict[str, ReadStream] = {}
        self.written = 0
        for name in NAMES[:3]:
            self.join(name, new=False)
        self.open(NAMES[0])

    # --- who is there ---

    def join(self, name: str, new: bool | None = None) -> None:
        new = self.random.random() < 0.3 if new is None else new
        self.scene.join(name, resumes=new)
        self.readings[name] = ReadStream()
        for stream in [each for each, held in self.model.items() if held.owner == name]:
            if new:
                del self.model[stream]
            else:
                self.model[stream].left_at = None

    def leave(self, name: str) -> None:
        if name not in self.scene.readers:
            return
        self.read(name)
        self.scene.leave(name)
        del self.readings[name]
        for held in self.model.values():
            if held.owner == name:
                held.left_at = self.scene.at
            else:
                held.granted.discard(name)

    def wait(self, _: str) -> None:
        self.scene.at += self.random.choice((1, 20, 40)) * SECOND
        self.scene.host.owner.expire()
        since = self.scene.at - round(GRACE_SECONDS * SECOND)
        for stream in list(self.model):
            left_at = self.model[stream].left_at
            if left_at is not None and left_at <= since:
                del self.model[stream]

    # --- who may write ---

    def open(self, by: str) -> None:
        whom = frozenset(self.random.choices(NAMES, k=self.random.choice((0, 0, 1, 2))))
        if by not in self.scene.readers:
            return
        before = set(self.model)
        opened = sum(held.requester == by for held in self.model.values())
        self.scene.say(by, "stream/request", {"target": sorted(whom)})
        active = {stream.id for stream in self.scene.host.owner.streams}
        fits = opened < MOST and whom <= set(self.scene.readers)
        assert len(active - before) == fits
        for stream in active - before:
            assert stream not in self.known
            self.known.append(stream)
            self.model[stream] = Modelled(by, by, whom)

    def grant(self, by: str) -> None:
        self.share(by, "grant")

    def revoke(self, by: str) -> None:
        self.share(by, "revoke")

    def transfer(self, by: str) -> None:
        self.share(by, "transfer")

    def share(self, by: str, kind: str) -> None:
        by, stream, held = self.pick(by)
        to = self.random.choice(NAMES)
        if by not in self.scene.readers or stream is None:
            return
        if kind == "transfer":
            payload = {"stream_id": stream, "new_owner": to}
            self.scene.say(by, "stream/transfer-ownership", payload)
        else:
            payload = {"stream_id": stream, "participant_id": to}
            self.scene.say(by, f"stream/{kind}-write", payload)
        if held is None or held.owner != by:
            return
        if kind == "revoke" and to != by:
            held.granted.discard(to)
        elif kind == "grant" and to != by and to in self.scene.readers:
            held.granted.add(to)
        elif kind == "transfer" and to in self.scene.readers:
            held.owner, held.left_at = to, None

    def close(self, by: str) -> None:
        by, stream, held = self.pick(by)
        if by not in self.scene.readers or stream is None:
            return
        self.scene.say(by, "stream/close", {"stream_id": stream})
        if held is not None and (by == held.owner or held.targets == {by}):
            del self.model[stream]

    # --- frames ---

    def write(self, by: str) -> None:
        by, stream, held = self.pick(by)
        number = self.random.choice((1, 2, 6))
        if by not in self.scene.readers or stream is None:
            return
        may = held is not None and by in held.writers
        for _ in range(number):
            self.written += may
            data = b"%d" % self.written
            self.scene.write(by, stream, data)
            assert self.scene.counters.stream_frames == self.written
            if may and held is not None:
                for name in held.targets or set(self.scene.readers):
                    if name in self.readings:
                        self.readings[name].due.setdefault(stream, []).append(data)

    def stall(self, name: str) -> None:
        if name in self.scene.readers:
            self.read(name)
            self.scene.readers[name].paused = True

    def catch_up(self, name: str) -> None:
        reader = self.scene.readers.get(name)
        if reader is None:
            return
        if reader.paused:
            frames = [packed for packed in reader.waiting if packed.startswith(b"#")]
            of_each = {frame.split(b"#")[1] for frame in frames}
            assert len(frames) <= MOST * min(STREAMS_TOGETHER, len(of_each) or 1)
        reader.catch_up()
        self.read(name)
        reading = self.readings[name]
        assert {s: len(due) for s, due in reading.due.items()} == reading.seen

    def read(self, name: str) -> None:
        """Compare what came with what should have come."""
        reading = self.readings[name]
        for said in self.scene.readers[name].heard():
            if isinstance(said, StreamFrame):
                at = reading.seen.get(said.stream, 0)
                assert reading.due[said.stream][at] == said.data
                reading.seen[said.stream] = at + 1
            elif said[0] == "stream/lost":
                stream = said[1]["stream_id"]
                reading.seen[stream] = reading.seen.get(stream, 0) + said[1]["frames"]

    def pick(self, by: str) -> tuple[str, str | None, Modelled | None]:
        """A stream, mostly an open one, and a participant that often may write it."""
        random = self.random
        if self.model and random.random() < 0.9:
            found = random.choice(sorted(self.model))
            held = self.model[found]
            return random.choice((by, held.owner, *sorted(held.writers))), found, held
        stream = random.choice(self.known) if self.known else None
        return by, stream, self.model.get(stream or "")

    def streams_are_as_they_should_be(self) -> None:
        active = {stream.id: stream for stream in self.scene.host.owner.streams}
        assert active.keys() == self.model.keys()
        for stream, held in self.model.items():
            assert active[stream].owner == held.owner
            assert set(active[stream].writers) == held.writers
            assert set(active[stream].targets) == held.targets

    def step(self) -> None:
        """Let one thing happen, and compare all that is known."""
        (what,) = self.random.choices(list(_OFTEN), list(_OFTEN.values()))
        getattr(self, what)(self.random.choice(NAMES))
        self.streams_are_as_they_should_be()

    def end(self) -> None:
        """Let everybody read what is left."""
        for name in self.readings:
            self.catch_up(name)


@pytest.mark.rule("8.writers", "8.targets", "8.lost", "8.owner_left")
@settings(max_examples=scaled(100))
@given(st.integers(0, 2**32))
@example(568185)  # an owner that was granted its stream before grants it to itself
def test_frames_reach_whom_they_should(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(STEPS):
        world.step()
    world.end()
