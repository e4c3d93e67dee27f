"""A participant's connection inside the gateway's process, beside its others (PROTOCOL 3).

An agent that runs with the same token keeps its connection, and answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import anyio

from meup_agent.errors import CannotConnect, HandshakeRefused
from meup_agent.gateway.admission import FORBIDDEN, NotAdmitted
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.edge.handshake import read_dialect, read_resume, repeats_join
from meup_agent.gateway.frame_queue import GatewayMember
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.space.subscriber import FrameFormat, Place
from meup_agent.transport.base import (
    ABNORMAL,
    BESIDE_HEADER,
    DIALECT_HEADER,
    LAST_SEEN_HEADER,
    RESUME_HEADER,
    CloseInfo,
    Connector,
    InboxTransport,
    Transport,
    checked_close,
)

LONGEST_PAUSE: Final = 10.0
"""Seconds for which one that sends too fast is not read, at most."""

MAX_UNREAD_FRAMES: Final = 1_024
"""Frames received and not read yet, before the rest waits in the gateway, where it is counted."""

_TALK: Final = ("chat", "reasoning/", "stream/")
"""The kinds of what participants say and show each other."""


def _changes_proposals(envelope: Envelope) -> bool:
    """False for talk that explains no proposal: most of what is said, and no inbox needs it."""
    return bool(envelope.correlation) or not envelope.kind.startswith(_TALK)


class LocalTransport(InboxTransport):
    """Both ends of the connection: the writer of a member's queue, and what its reader reads."""

    joins_frames = False

    def __init__(
        self, runtime: GatewayRuntime, identity: Identity, dialect: str, last_seen: int | None
    ) -> None:
        super().__init__()
        self._host = runtime.spaces[identity.space]
        self._max_bytes = runtime.limits.max_message_bytes
        self._first = True
        self.response_headers = {DIALECT_HEADER.lower(): dialect, BESIDE_HEADER.lower(): "1"}
        # One that resumes waits for the last number of what it missed, so it takes all.
        takes = _changes_proposals if last_seen is None else None
        form = FrameFormat(dialect, numbered=True, takes=takes)
        self._member = GatewayMember(
            runtime, identity, form, self, last_seen=last_seen, place=Place.BESIDE
        )

    @contextmanager
    def joined(self) -> Generator[None]:
        """Be a member for the length of a block."""
        self._host.join(self._member)
        try:
            yield
        finally:
            self._end(CloseInfo(ABNORMAL, local=True))
            self._host.leave(self._member)
            self._member.lost()

    # --- the gateway's end ------------------------------------------------------------------

    def write(self, packed: bytes) -> None:
        """Take a frame of the gateway's."""
        if self._closed is not None:
            return
        self._inbox.append(packed)
        self._arrived.notify_all()
        if len(self._inbox) >= MAX_UNREAD_FRAMES:
            self._member.pause()

    def close(self, code: int, reason: str) -> None:
        """End by a decision of the gateway's; what was written before can still be read."""
        self._end(CloseInfo(code, reason))

    # --- the participant's end --------------------------------------------------------------

    async def __anext__(self) -> bytes:
        """The next frame."""
        frame = await super().__anext__()
        if self._member.paused and not self._inbox:
            self._member.resume()
        return frame

    async def send(self, frame: bytes) -> None:
        """Hand a frame to the space; returns when the next one would be read."""
        async with self._turn:
            self._check_open()
            member, host = self._member, self._host
            first, self._first = self._first, False
            if first and repeats_join(frame, member.participant, host.name):
                return  # it has joined already
            most = self._max_bytes
            if len(frame) > most:
                told = {"limit": "max_message_bytes", "max": most}
                host.refuse_frame(member, "too_large", f"it has over {most} bytes", **told)
                return
            wait = host.receive(member, frame)
            if wait:
                await anyio.sleep(min(wait, LONGEST_PAUSE))

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection."""
        self._end(checked_close(code, reason))

    async def abort(self) -> None:
        """End the connection at once."""
        self._end(CloseInfo(ABNORMAL))


def local_connector(runtime: GatewayRuntime, identity: Identity) -> Connector:
    """Make a connector by which a participant takes part in its space from this process.

    Args:
        runtime: The gateway.
        identity: The participant that is signed in.
    """

    @asynccontextmanager
    async def dial(headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
        dialect, last_seen = _admit(runtime, identity, headers)
        transport = LocalTransport(runtime, identity, dialect, last_seen)
        with transport.joined():
            yield transport

    return dial


def _admit(
    runtime: GatewayRuntime, identity: Identity, headers: Mapping[str, str]
) -> tuple[str, int | None]:
    """Check that a participant may join; its dialect, and the number that it has heard last."""
    if not runtime.accepting:
        raise CannotConnect("the gateway stops")
    said = {name.lower(): value for name, value in headers.items()}
    try:
        check_entry(runtime, identity)
        runtime.join_throttle.join(identity, Place.BESIDE)
        dialect = read_dialect(said.get(DIALECT_HEADER.lower())) or runtime.dialect(identity)
        _, last_seen = read_resume(
            said.get(RESUME_HEADER.lower()), said.get(LAST_SEEN_HEADER.lower())
        )
    except NotAdmitted as refused:
        raise HandshakeRefused(refused.status, refused.retry_after, body=str(refused)) from None
    return dialect, last_seen


def check_entry(runtime: GatewayRuntime, identity: Identity) -> None:
    """Raise :exc:`NotAdmitted` if a participant may not, or cannot, be in its space."""
    if runtime.spaces[identity.space].owner.is_kicked(identity.participant):
        raise NotAdmitted(FORBIDDEN, "you were removed from the space")
    runtime.check_members(identity, Place.BESIDE)
