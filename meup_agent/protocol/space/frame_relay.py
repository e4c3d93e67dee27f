"""The streams of a space at work: their frames, handed to readers, and what slow ones lose.

A frame is packed once for all. It waits in the queue of its reader as envelopes do, but only a few
of each stream: while a reader is behind, further frames are lost, and the reader is told how many
once it has caught up (PROTOCOL 8). So a stream costs no reader its connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from meup_agent.protocol import kinds
from meup_agent.protocol.space.counters import SpaceCounters
from meup_agent.protocol.space.decisions import gateway_draft
from meup_agent.protocol.streams import StreamInfo, build_lost

if TYPE_CHECKING:
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.space.allowance import Allowance
    from meup_agent.protocol.space.link import FrameMessage
    from meup_agent.protocol.space.subscriber import (
        FrameFormat,
        FrameReader,
        ResumeProgress,
        Subscriber,
    )

STREAMS_TOGETHER: Final = 4
"""Frames of all streams that wait for one reader: so many times what may wait of one."""


@dataclass(slots=True)
class _Count:
    frames: int = 0
    size: int = 0

    def add(self, size: int) -> None:
        self.frames += 1
        self.size += size


@dataclass(slots=True, eq=False)
class _Gate:
    """Counts the frames for one reader since it fell behind."""

    reader: FrameReader
    waiting: dict[str, _Count] = field(default_factory=dict[str, _Count])
    together: _Count = field(default_factory=_Count)
    lost: dict[str, _Count] = field(default_factory=dict[str, _Count])


class FrameRelay:
    """The readers of streams in a space, and what they lose."""

    def __init__(
        self,
        counters: SpaceCounters,
        allowance: Allowance,
        tell: Callable[[FrameReader, Envelope], None],
        *,
        by_form: Mapping[FrameFormat, Mapping[int, Subscriber]],
        by_name: Mapping[str, Iterable[Subscriber]],
        resuming: Mapping[int, ResumeProgress],
    ) -> None:
        self._tell = tell  # sends a draft of the gateway to one reader
        self._counters = counters
        self._most_frames = allowance.max_stream_queued_frames
        self._most_bytes = allowance.max_stream_queued_bytes
        self._by_form = by_form
        self._by_name = by_name
        self._resuming = resuming
        # By identity, and only of readers that are behind.
        self._gates: dict[int, _Gate] = {}

    def deliver(self, message: FrameMessage) -> None:
        """Hand a frame to the stream's readers."""
        stream, frame, size = message.stream, message.frame, message.size
        for each in self._resuming.values():
            self._miss(each.subscriber, stream, size)
        if stream.targets:
            for name in stream.targets:
                for found in self._by_name.get(name, ()):
                    if found.form.pack_frame is not None:
                        group = {id(found): cast("FrameReader", found)}
                        packed = None if frame is None else found.form.pack_frame(frame)
                        self._deliver_to(group, stream.id, packed, size)
            return
        # Forms that differ in nothing but their envelopes share one packed frame.
        packed_by: dict[Callable[[bytes], bytes], bytes | None] = {}
        for form, subscribers in self._by_form.items():
            pack = form.pack_frame
            if pack is not None:
                if pack not in packed_by:
                    packed_by[pack] = None if frame is None else pack(frame)
                group = cast("dict[int, FrameReader]", subscribers)
                self._deliver_to(group, stream.id, packed_by[pack], size)

    def close(self, stream: str) -> None:
        """Tell what readers lost of a stream that is closed, before they hear of that."""
        for gate in tuple(self._gates.values()):
            gate.waiting.pop(stream, None)
            self._tell_lost(gate.reader, stream, gate.lost.pop(stream, None))

    def catch_up(self, subscriber: Subscriber) -> None:
        """Tell a reader that is behind no more what it lost."""
        gate = self._gates.pop(id(subscriber), None)
        if gate is not None:
            for stream, count in gate.lost.items():
                self._tell_lost(gate.reader, stream, count)

    def remove(self, subscriber: Subscriber) -> None:
        """Forget a reader that has gone."""
        self._gates.pop(id(subscriber), None)

    def _deliver_to(
        self, readers: Mapping[int, FrameReader], stream: str, packed: bytes | None, size: int
    ) -> None:
        gates, lost = self._gates, 0
        for key, reader in readers.items():
            if (packed is None or reader.paused or key in gates) and not self._admit(
                reader, stream, size, lost=packed is None
            ):
                lost += 1
            elif packed is not None:
                reader.deliver(packed)
        self._counters.stream_frames_lost += lost
        self._counters.stream_frames_delivered += len(readers) - lost

    def _miss(self, subscriber: Subscriber, stream: StreamInfo, size: int) -> None:
        """Count a frame that a reader loses since it still reads the envelopes that it missed."""
        named = getattr(subscriber, "participant", None) in stream.targets
        if subscriber.form.pack_frame is None or (stream.targets and not named):
            return
        reader = cast("FrameReader", subscriber)
        gate = self._gates.setdefault(id(reader), _Gate(reader))
        gate.lost.setdefault(stream.id, _Count()).add(size)
        self._counters.stream_frames_lost += 1

    def _admit(self, reader: FrameReader, stream: str, size: int, *, lost: bool) -> bool:
        """Count a frame for a reader that is behind; true if it may wait in the queue.

        Once one of a stream is lost, so are all until the reader has caught up: it is told of one
        gap, at its place, and not of many.
        """
        gate = self._gates.get(id(reader))
        if gate is None:
            gate = self._gates[id(reader)] = _Gate(reader)
            reader.ready(partial(self.catch_up, reader))
        count = gate.lost.get(stream)
        if count is None:
            waiting = gate.waiting.setdefault(stream, _Count())
            if (
                not lost
                and self._fits(waiting, 1, size)
                and self._fits(gate.together, STREAMS_TOGETHER, size)
            ):
                waiting.add(size)
                gate.together.add(size)
                return True
            count = gate.lost[stream] = _Count()
        count.add(size)
        return False

    def _fits(self, count: _Count, times: int, size: int) -> bool:
        return (
            count.frames < times * self._most_frames
            and count.size + size <= times * self._most_bytes
        )

    def _tell_lost(self, reader: FrameReader, stream: str, count: _Count | None) -> None:
        if count is not None:
            told = build_lost(stream, count.frames, count.size)
            name = getattr(reader, "participant", "")
            self._tell(reader, gateway_draft(kinds.STREAM_LOST, told, to=name))
