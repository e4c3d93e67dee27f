"""A session in the gateway's own process: a participant in its space, without a connection.

It is beside the connections of its participant (PROTOCOL 3): an agent that runs with the same token
keeps its own, and answers. What it says is decided as what any member says is; what it hears are
the entries of the space, and no frames. The console and the hooks of coding agents have one each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import anyio
import msgspec

from meup_agent.causes import Cause
from meup_agent.errors import HandshakeRefused, SessionEnded
from meup_agent.gateway.auth import FORBIDDEN, Identity, NotAdmitted
from meup_agent.gateway.frame_queue import TOO_SLOW
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.dialects import DEFAULT_DIALECT, decode, encode
from meup_agent.protocol.exchange import Key, Mode, Priority, Role, Work
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.link import FrameFormat, Place, UnqueuedSubscriber
from meup_agent.protocol.space.state.grants import REMOVED
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.payloads import Call
from meup_agent.session import Session, Settings
from meup_agent.session.outbox import QueuedEnvelope
from meup_agent.transport.base import Condition, background_tasks

JOIN_SECONDS: Final = 10.0
"""Wait for the space to have taken the session in, which takes a turn of the loop."""

LONGEST_PAUSE: Final = 10.0
"""Seconds for which one that says too much is not listened to, at most."""

MAX_UNHEARD: Final = 10_000
"""Entries that are not taken in yet: the next turn of the loop takes in what was said in one."""

_TALK: Final = ("chat", "reasoning/", "stream/")
"""The kinds of what participants say and show each other."""

_EXCHANGES: Final = frozenset(
    {kinds.MCP_PROPOSAL, kinds.MCP_REQUEST, kinds.MCP_RESPONSE, kinds.MCP_REPORT}
)
"""The kinds of which an exchange consists, while nobody ends it."""

Hears = Callable[[str, Envelope], bool]
"""True if a participant's session hears an envelope."""


def check_entry(runtime: GatewayRuntime, identity: Identity) -> None:
    """Raise :exc:`NotAdmitted` if a participant may not, or cannot, be in its space."""
    runtime.check_open(identity.space)
    if runtime.spaces[identity.space].owner.is_kicked(identity.participant):
        raise NotAdmitted(FORBIDDEN, REMOVED)
    runtime.check_members(identity, Place.BESIDE)


def is_for_inbox(participant: str, said: Envelope) -> bool:
    """Leaves out talk that explains no proposal: it is most of what is said."""
    return bool(said.correlation) or not said.kind.startswith(_TALK)


def is_for_proposer(participant: str, said: Envelope) -> bool:
    """Leaves out what others say to others.

    Each proposes by a session of its own: with hundreds of them in a process all would otherwise
    take in what concerns one.
    """
    if said.sender == participant or participant in said.to:
        return True
    if said.kind == kinds.CHAT and said.correlation:
        return True  # it may explain a rejection
    if said.kind == kinds.MCP_PROPOSAL or said.kind.startswith(_TALK):
        return False
    # To all, or to others alone. What ends an exchange is always heard, whomever it is said to.
    return not said.to or said.kind not in _EXCHANGES


class LocalSession(UnqueuedSubscriber, Session):
    """A member of a space and its session, which hand each other envelopes.

    Args:
        runtime: The gateway.
        identity: The participant.
        hears: Whether it hears an envelope.
        given: As of :class:`~meup_agent.session.Session`; by default nothing is answered.
    """

    place = Place.BESIDE
    token_use = None  # whoever has it ends it with a token

    def __init__(
        self,
        runtime: GatewayRuntime,
        identity: Identity,
        *,
        hears: Hears,
        **given: Any,
    ) -> None:
        settings = Settings(mode=Mode.BESIDE, first_welcome=JOIN_SECONDS)
        given = {"handlers": NoHandlers(), "settings": settings, **given}
        given["participant"] = identity.participant
        super().__init__(**given)
        self.participant = identity.participant
        heard = partial(_as_heard, hears, identity.participant)
        self.form = FrameFormat(DEFAULT_DIALECT, numbered=True, pack_entry=heard)
        self._runtime = runtime
        self._host = runtime.spaces[identity.space]
        self._max_bytes = runtime.limits.max_message_bytes
        self._unheard: deque[Entry] = deque()
        self._changed = Condition()
        self._ended: SessionEnded | None = None

    async def _exchange(self) -> None:
        self._host.join(self)
        holders = self._runtime.event_streams
        try:
            holders.add(self)
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
            holders.discard(self)
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
            # Its caller may have given it up while it was queued.
            if waiting.priority is Priority.OPEN and not self.note_leaving(said.id):
                continue
            frame = encode(said, DEFAULT_DIALECT)
            if len(frame) > most:
                told = {"limit": "max_message_bytes", "max": most}
                host.refuse_frame(self, "too_large", f"it has over {most} bytes", **told)
            # One that says too much is not listened to for a while, as at a socket.
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

    def shut(self, code: int, reason: str) -> None:
        """End with its token."""
        self.close(code, reason)


def _as_heard(hears: Hears, participant: str, entry: Entry) -> Entry | None:
    """An entry as it is heard in our dialect; ``None``: it is not."""
    said = entry.envelope
    if not hears(participant, said):
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


class LocalSpace:
    """A space of a gateway in this process, which an agent that proposes can join.

    Args:
        runtime: The gateway.
        identity: The participant.
    """

    def __init__(self, runtime: GatewayRuntime, identity: Identity) -> None:
        self.where = "the gateway"
        self._runtime = runtime
        self._identity = identity

    def make_session(self, **given: Any) -> Session:
        """A session of an agent.

        Raises:
            HandshakeRefused: The participant may not, or cannot, be in the space.
        """
        try:
            check_entry(self._runtime, self._identity)
        except NotAdmitted as error:
            raise HandshakeRefused(error.status, error.retry_after, str(error)) from None
        return LocalSession(self._runtime, self._identity, hears=is_for_proposer, **given)
