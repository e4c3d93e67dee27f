"""A session in the gateway's own process: a participant in its space, without a connection.

It is beside the connections of its participant (PROTOCOL 3): an agent that runs with the same token
keeps its own, and answers. What it says is decided as what any member says is; what it hears are
the entries of the space, and no frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import anyio
import msgspec

from meup_agent.causes import Cause
from meup_agent.errors import SessionEnded
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.backlog import TOO_SLOW
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.dialects import DEFAULT_DIALECT, decode, encode
from meup_agent.protocol.exchange import Key, Mode, Priority, Role, Work
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.link import FrameFormat, Place
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.payloads import Call
from meup_agent.session import Session, Settings
from meup_agent.session.outbox import QueuedEnvelope
from meup_agent.transport.base import Condition, background_tasks

JOIN_SECONDS: Final = 10.0
"""Seconds that a page waits for its participant to have joined."""

LONGEST_PAUSE: Final = 10.0
"""Seconds for which one that says too much is not listened to, at most."""

MAX_UNHEARD: Final = 10_000
"""Entries that are not taken in yet: the next turn of the loop takes in what was said in one."""

_TALK: Final = ("chat", "reasoning/", "stream/")
"""The kinds of what participants say and show each other."""


class LocalSession(Session):
    """A member of a space and its session, which hand each other envelopes.

    Args:
        runtime: The gateway.
        identity: The participant.
    """

    place = Place.BESIDE
    last_seen = None

    def __init__(self, runtime: GatewayRuntime, identity: Identity) -> None:
        settings = Settings(mode=Mode.BESIDE, first_welcome=JOIN_SECONDS)
        super().__init__(handlers=NoHandlers(), settings=settings, participant=identity.participant)
        self.participant = identity.participant
        self.form = FrameFormat(DEFAULT_DIALECT, numbered=True, pack_entry=_as_heard)
        self._host = runtime.spaces[identity.space]
        self._max_bytes = runtime.limits.max_message_bytes
        self._unheard: deque[Entry] = deque()
        self._changed = Condition()
        self._ended: SessionEnded | None = None

    async def _exchange(self) -> None:
        self._host.join(self)
        try:
            async with background_tasks() as tasks:
                tasks.start_soon(self._speak)
                while self._unheard or self._ended is None:
                    if self._unheard:
                        entry = self._unheard.popleft()
                        self.receive(entry.envelope, entry.seq)
                    else:
                        await self._changed.wait()
                raise self._ended
        finally:
            self._host.leave(self)

    async def _speak(self) -> None:
        """Have the space decide about what is said, one after the other."""
        host, most = self._host, self._max_bytes
        while not self.connections:
            await self._welcomed.wait()
        while True:
            await self.outbox.wait_filled()
            waiting = self.outbox.take(self.now())
            self.outbox.gone()
            # Nothing here sends frames of streams.
            if not isinstance(waiting, QueuedEnvelope):
                continue
            said = waiting.draft
            if waiting.priority is Priority.OPEN and not self.note_leaving(said.id):
                continue
            frame = encode(said, DEFAULT_DIALECT)
            if len(frame) > most:
                told = {"limit": "max_message_bytes", "max": most}
                host.refuse_frame(self, "too_large", f"it has over {most} bytes", **told)
            elif wait := host.receive(self, frame):
                await anyio.sleep(min(wait, LONGEST_PAUSE))

    # --- the member ---

    def deliver(self, packed: Entry) -> None:
        """Take an entry."""
        self._unheard.append(packed)
        if len(self._unheard) > MAX_UNHEARD:
            self.close(TOO_SLOW, "the gateway has too much to do")
        self._changed.notify_all()

    def close(self, code: int, reason: str) -> None:
        """End by a decision of the gateway's; what was delivered before is still taken in."""
        self._ended = self._ended or SessionEnded(f"{reason} (code {code})")
        self._changed.notify_all()

    def ready(self, then: Callable[[], None]) -> None:
        """Go on at once: it never resumes."""
        then()


def _as_heard(entry: Entry) -> Entry | None:
    """An entry as it is heard in our dialect; ``None`` for talk that explains no proposal.

    Talk is most of what is said, and no inbox needs it.
    """
    said = entry.envelope
    if said.kind.startswith(_TALK) and not said.correlation:
        return None
    if said.protocol == DEFAULT_DIALECT:
        return entry
    return msgspec.structs.replace(entry, envelope=decode(encode(said, DEFAULT_DIALECT)))


class NoHandlers:
    """The handlers of a person, who answers nothing: none."""

    def find(self, role: Role, envelope: Envelope, call: Call | None) -> None:
        """There is none."""

    def start(self, key: Key, work: Work) -> None:
        """Never called."""

    def cancel(self, key: Key, cause: Cause) -> None:
        """Never called."""
