"""Scene for tests of streams: a space whose readers stop reading when a test says so."""

import json
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from tests.spaces import (
    Allowance,
    FrameFormat,
    Journal,
    MemoryJournal,
    Place,
    SpaceCounters,
    space_server,
)
from tests.wire import StreamFrame, read_frame

Said = tuple[str, Any] | StreamFrame
DIALECT = "mew/v0.4"
SECOND = 1_000_000
NAMES = ("ann", "bob", "cid", "dan")


class Reader:
    place = Place.ANSWERING

    def __init__(self, participant: str, *, dialect: str = DIALECT, resumes: bool = False) -> None:
        self.participant = participant
        self.form = FrameFormat(dialect, resumes, pack_frame=bytes)
        self.last_seen: int | None = None
        self.paused = False
        self.waiting: list[bytes] = []
        self.closed = 0
        self._then: Callable[[], None] | None = None

    def deliver(self, packed: bytes) -> None:
        self.waiting.append(packed)

    def close(self, code: int, reason: str) -> None:
        self.closed = code

    def ready(self, then: Callable[[], None]) -> None:
        self._then = then
        if not self.paused:
            self.catch_up()

    def catch_up(self) -> None:
        """Take what waits, and read on."""
        self.paused = False
        then, self._then = self._then, None
        if then is not None:
            then()

    def heard(self) -> list[Said]:
        """Everything since the last call: kinds with payloads, and frames."""
        taken, self.waiting = self.waiting, []
        return [_read(packed) for packed in taken]


def _read(packed: bytes) -> Said:
    frame = read_frame(packed)
    if frame is not None:
        return frame
    said = json.loads(packed)
    return said["kind"], said["payload"]


class Later(NamedTuple):
    seconds: float
    then: Callable[[], None]

    def cancel(self) -> None:
        """Leave it to the test, which may call a timer too late."""


class StreamScene:
    def __init__(
        self,
        *,
        journal: Journal | None = None,
        at: int = 1_735_689_600 * SECOND,
        announces: bool = False,
        **limits: Any,
    ) -> None:
        self.at = at
        self.later: list[Later] = []
        self._ids = count(1)
        self.counters = SpaceCounters()
        self.host = space_server(
            {name: [{"kind": "*"}] for name in NAMES},
            lambda: self.at,
            journal=journal or MemoryJournal(lambda: self.at),
            counters=self.counters,
            allowance=Allowance(**limits),
            call_later=self._call_later,
            announce_withdrawals=announces,
        )
        self.readers: dict[str, Reader] = {}

    def _call_later(self, seconds: float, then: Callable[[], None]) -> "Later":
        self.later.append(Later(seconds, then))
        return self.later[-1]

    def join(self, *names: str, **how: Any) -> Reader:
        for name in names:
            self.readers[name] = reader = Reader(name, **how)
            self.host.join(reader)
        return reader

    def leave(self, name: str) -> None:
        self.host.leave(self.readers.pop(name))

    def forget(self) -> None:
        for reader in self.readers.values():
            reader.waiting.clear()

    def say(self, by: str, kind: str, payload: dict[str, Any] | None = None, **header: Any) -> str:
        envelope_id = f"{by}/{next(self._ids)}"
        said = {"protocol": DIALECT, "id": envelope_id, "from": by, "kind": kind}
        frame = json.dumps({**said, "payload": payload or {}, **header}).encode()
        self.host.receive(self.readers[by], frame)
        return envelope_id

    def open(self, by: str, *target: str, **fields: Any) -> str:
        """Open a stream; its id."""
        before = {stream.id for stream in self.host.owner.streams}
        self.say(by, "stream/request", {"direction": "upload", "target": list(target), **fields})
        (stream,) = {stream.id for stream in self.host.owner.streams} - before
        return stream

    def write(self, by: str, stream: str, data: bytes = b"x") -> None:
        self.host.receive(self.readers[by], b"#%b#%b" % (stream.encode(), data))

    def error(self, name: str) -> str:
        last = self.readers[name].heard()[-1]
        assert not isinstance(last, StreamFrame)
        kind, payload = last
        assert kind == "system/error"
        return str(payload["error"])

    def frames(self, name: str) -> list[bytes]:
        """The data of the frames that a participant has got since the last time."""
        heard = self.readers[name].heard()
        return [said.data for said in heard if isinstance(said, StreamFrame)]
