"""The streams of a space at work: takes their frames, and closes those whose owners stay away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from meup_agent.protocol.space.counters import SpaceCounters
from meup_agent.protocol.space.decisions import Consequence, Notice, Refusal
from meup_agent.protocol.space.frame_relay import FrameRelay
from meup_agent.protocol.space.journal import Journal
from meup_agent.protocol.space.state import SpaceState
from meup_agent.protocol.streams import StreamInfo

CallLater = Callable[[float, Callable[[], None]], object]
"""Calls a function after so many seconds."""


class StreamServer:
    """Routes frames by the state of a space to its relay."""

    def __init__(
        self,
        state: SpaceState,
        relay: FrameRelay,
        journal: Journal,
        counters: SpaceCounters,
        now: Callable[[], int],
        follow: Callable[[Iterable[Consequence]], None],
        call_later: CallLater | None,
    ) -> None:
        self._state = state
        self._relay = relay
        self._journal = journal
        self._counters = counters
        self._now = now
        self._follow = follow
        self._call_later = call_later
        self._is_due_later = False

    @property
    def active(self) -> tuple[StreamInfo, ...]:
        """The open streams, oldest first."""
        return self._state.streams.active

    def receive(self, participant: str, frame: bytes, at: int) -> Refusal | None:
        """Hand on a frame of a stream; else the reason for which it goes no further."""
        found = self._state.route_frame(participant, frame, at)
        if isinstance(found, Refusal):
            return found
        self._relay.write(found, frame)
        return None

    def receive_as(self, participant: str, frame: bytes) -> Refusal | None:
        """The same of a participant without a connection, or beside it, which is told as well."""
        self._counters.frames_in += 1
        refused = self.receive(participant, frame, self._now())
        if refused is not None:
            self._counters.refused[refused.code] += 1
            # A frame has no id: what its sender logs has to say which it was, as elsewhere.
            self._follow((Notice(participant, refused.error),))
        return refused

    def expire(self) -> None:
        """Close the streams whose owners did not come back in time, and look again when due."""
        streams, at = self._state.streams, self._now()
        if not len(streams):
            return
        self._follow(streams.expire(at))
        due = streams.expires_at
        if due is not None and self._call_later is not None and not self._is_due_later:
            self._is_due_later = True
            self._call_later(max(0.0, (due - at) / 1_000_000), self._expire_later)

    def end(self, stream: str) -> None:
        """Tell what readers lost of a stream, after its last frame and before its end."""
        self._journal.call_when_kept(partial(self._relay.closed, stream))

    def _expire_later(self) -> None:
        self._is_due_later = False
        self.expire()
