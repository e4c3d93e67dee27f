"""A participant's connection inside the gateway's process, with the rules of one over HTTP.

As over HTTP (:mod:`meup_agent.transport.http`), what is sent is posted, and what is heard comes by
an observer of the space: an agent that runs with the same token keeps its connection, and answers.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio

from meup_agent.errors import CannotConnect, HandshakeRefused, InvalidEnvelope
from meup_agent.gateway.admission import FORBIDDEN, NotAdmitted
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.console.frame_filter import PersonMember, filter_of
from meup_agent.gateway.edge.handshake import read_dialect, read_resume, repeats_join
from meup_agent.gateway.edge.http.context import Problem, await_callback
from meup_agent.gateway.frame_queue import GatewayMember
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol import kinds
from meup_agent.protocol.dialects import decode
from meup_agent.protocol.envelope import draft
from meup_agent.protocol.limits import check_frame
from meup_agent.protocol.management_payloads import INVITE_ACK
from meup_agent.protocol.space.decisions import Answer, Discard, Refusal
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.server import DecisionCallback
from meup_agent.protocol.space.subscriber import FrameFormat, Place
from meup_agent.transport.base import (
    ABNORMAL,
    BESIDE_HEADER,
    DIALECT_HEADER,
    LAST_SEEN_HEADER,
    OBSERVE_HEADER,
    RESUME_HEADER,
    CloseInfo,
    Connector,
    InboxTransport,
    Transport,
    checked_close,
)

LONGEST_PAUSE: Final = 10.0
"""Seconds between two attempts of one that sends too fast, at most, as over HTTP."""

MAX_UNREAD_FRAMES: Final = 1_024
"""Frames received and not read yet, before the rest waits in the gateway, where it is counted."""


class LocalTransport(InboxTransport):
    """Both ends of the connection: the writer of an observer's queue, and what its reader reads."""

    joins_frames = False

    def __init__(
        self, runtime: GatewayRuntime, identity: Identity, dialect: str, *, observes: bool
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._identity = identity
        self._host = runtime.spaces[identity.space]
        self._dialect = dialect
        self._member: GatewayMember | None = None
        self._held = False
        self._first = True
        self._observes = observes
        self.response_headers = {DIALECT_HEADER.lower(): dialect}
        if observes:
            self.response_headers |= {OBSERVE_HEADER.lower(): "1", BESIDE_HEADER.lower(): "1"}

    @asynccontextmanager
    async def joined(self, last_seen: int | None, *, again: bool) -> AsyncGenerator[None]:
        """Observe the space, or be a member, for the length of a block, from a number on.

        Args:
            last_seen: The number.
            again: True if its session has heard that itself: then it waits for the last number of
                what it missed, so that none is kept from it.
        """
        member = self._member = self._make_member(last_seen, again=again)
        participant = self._identity.participant
        with filter_of(self._host).serving(participant, observes=self._observes):
            self._host.join(member)
            try:
                yield
            finally:
                self._end(CloseInfo(ABNORMAL, local=True))
                self._host.leave(member)
                member.lost()

    def _make_member(self, last_seen: int | None, *, again: bool) -> GatewayMember:
        runtime, identity, observes = self._runtime, self._identity, self._observes
        if again:
            form = FrameFormat(self._dialect, numbered=True)
            return GatewayMember(
                runtime, identity, form, self, last_seen=last_seen, place=_place(observes)
            )
        return PersonMember(runtime, identity, self, self._dialect, last_seen, observes=observes)

    # --- the gateway's end ------------------------------------------------------------------

    def write(self, packed: bytes) -> None:
        """Take a frame of the gateway's."""
        if self._closed is not None:
            return
        self._inbox.append(packed)
        self._arrived.notify_all()
        if len(self._inbox) >= MAX_UNREAD_FRAMES and not self._held and self._member is not None:
            self._held = True
            self._member.pause()

    def close(self, code: int, reason: str) -> None:
        """End by a decision of the gateway's; what was written before can still be read."""
        self._end(CloseInfo(code, reason))

    # --- the participant's end --------------------------------------------------------------

    async def __anext__(self) -> bytes:
        """The next frame."""
        frame = await super().__anext__()
        if self._held and not self._inbox and self._member is not None:
            self._held = False
            self._member.resume()
        return frame

    async def send(self, frame: bytes) -> None:
        """Post a frame; returns when it is kept or refused."""
        async with self._turn:
            self._check_open()
            participant, host = self._identity.participant, self._host
            first, self._first = self._first, False
            if first and repeats_join(frame, participant, host.name):
                return  # it has joined already
            most = self._runtime.limits.max_message_bytes
            if len(frame) > most:
                self._refuse(frame, {"error": "too_large", "message": f"it has over {most} bytes"})
                return
            try:
                check_frame(frame)
            except InvalidEnvelope as invalid:
                self._refuse(frame, {"error": invalid.problem, "message": str(invalid)})
                return
            while (pace := host.check_rate(participant, len(frame))) is not None:
                await anyio.sleep(min(pace.seconds, LONGEST_PAUSE))
                self._check_open()
            acknowledged: dict[str, Any] = {}
            try:
                answer = await await_callback(partial(self._receive, frame, acknowledged))
            except Problem:
                # Nothing tells whether it was kept: the session connects anew, and asks again.
                self._end(CloseInfo(ABNORMAL))
                self._check_open()
                raise
            if isinstance(answer, Refusal):
                self._refuse(frame, answer.error.payload_object)
            elif acknowledged:
                # With a token, which is for whom invited, and for no other observer.
                self._deliver_notice(INVITE_ACK, frame, acknowledged)

    def _receive(self, frame: bytes, acknowledged: dict[str, Any], tell: DecisionCallback) -> None:
        def then(decision: Entry | Refusal | Discard | Answer) -> None:
            if isinstance(decision, Answer):
                # At once, so that what is heard behind it is newer.
                page = decision.write(self._host.fanout.delivered).raw_payload
                self._deliver_notice(kinds.PROPOSALS, frame, page)
            tell(decision)

        self._host.receive_as(
            self._identity.participant, frame, self._dialect, then, private=acknowledged.update
        )

    def _refuse(self, frame: bytes, payload: dict[str, Any]) -> None:
        """Tell of a refusal as a member is told, in its place among the frames."""
        self._deliver_notice(kinds.SYSTEM_ERROR, frame, payload)

    def _deliver_notice(self, kind: str, frame: bytes, payload: object) -> None:
        told = draft(
            kind,
            payload,
            id=os.urandom(16).hex(),
            sender=kinds.GATEWAY,
            to=(self._identity.participant,),
            correlation=(decode(frame).id,),
        )
        if self._member is not None:
            self._host.fanout.deliver_to(self._member, told)

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection."""
        self._end(checked_close(code, reason))

    async def abort(self) -> None:
        """End the connection at once."""
        self._end(CloseInfo(ABNORMAL))


def local_connector(runtime: GatewayRuntime, identity: Identity) -> Connector:
    """Make a connector by which a participant observes its space in this process, and speaks.

    Args:
        runtime: The gateway.
        identity: The participant that is signed in.
    """

    @asynccontextmanager
    async def dial(headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
        dialect, last_seen = _entered(runtime, identity, headers, observes=True)
        transport = LocalTransport(runtime, identity, dialect, observes=True)
        async with transport.joined(last_seen, again=last_seen is not None):
            yield transport

    return dial


def seat_connector(runtime: GatewayRuntime, identity: Identity) -> Connector:
    """Make a connector by which a participant is a member, where nothing else of it is one."""

    @asynccontextmanager
    async def dial(headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
        dialect, last_seen = _entered(runtime, identity, headers, observes=False)
        transport = LocalTransport(runtime, identity, dialect, observes=False)
        # Nothing waits from here to the join: it must not take over from an agent.
        if identity.participant in runtime.spaces[identity.space]:
            raise CannotConnect("an agent of the participant is a member")
        async with transport.joined(last_seen, again=last_seen is not None):
            yield transport

    return dial


def _entered(
    runtime: GatewayRuntime, identity: Identity, headers: Mapping[str, str], *, observes: bool
) -> tuple[str, int | None]:
    """Check that a participant may join; its dialect, and the number that it has heard last."""
    if not runtime.accepting:
        raise CannotConnect("the gateway stops")
    said = {name.lower(): value for name, value in headers.items()}
    try:
        check_entry(runtime, identity)
        runtime.check_members(identity, _place(observes))
        runtime.join_throttle.join(identity, _place(observes))
        dialect = read_dialect(said.get(DIALECT_HEADER.lower())) or runtime.dialect(identity)
        _, last_seen = read_resume(
            said.get(RESUME_HEADER.lower()), said.get(LAST_SEEN_HEADER.lower())
        )
    except NotAdmitted as refused:
        raise HandshakeRefused(refused.status, refused.retry_after, body=str(refused)) from None
    return dialect, last_seen


def _place(observes: bool) -> Place:
    return Place.OBSERVING if observes else Place.ANSWERING


def check_entry(runtime: GatewayRuntime, identity: Identity) -> None:
    """Raise :exc:`NotAdmitted` if a participant was removed from its space."""
    if runtime.spaces[identity.space].is_kicked(identity.participant):
        raise NotAdmitted(FORBIDDEN, "you were removed from the space")
