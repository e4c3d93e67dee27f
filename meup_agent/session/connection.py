"""One connection: the join, frames in, in wire order, and frames out, by one writer."""

from __future__ import annotations

import json
import logging
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import anyio

from meup_agent.errors import (
    InvalidEnvelope,
    NotExpressible,
    SessionEnded,
    TransportClosed,
    WrongParticipant,
    printable,
)
from meup_agent.protocol.dialects import PUBLISHED, decode, encode
from meup_agent.protocol.dialects.base import to_executor
from meup_agent.protocol.dialects.mcpx_v01 import BY_RPC_ID, RpcIds
from meup_agent.protocol.exchange import Priority
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import check_frame, draft
from meup_agent.protocol.wire.kinds import MCP_PROPOSAL
from meup_agent.protocol.wire.membership import is_eviction, read_seq
from meup_agent.session.outbox import QueuedFrame
from meup_agent.transport.base import INVALID, STREAM_MARK, TOO_BIG, Condition, loop_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup

    from meup_agent.protocol.exchange import ExchangeTable
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.session.outbox import Outbox, QueuedEnvelope
    from meup_agent.transport.base import CloseInfo, Transport


# --- join ---
# Join frames, welcomes, and the probe that a gateway keeps us (PROTOCOL 2).

PROBE_SECONDS: Final = 3.0
"""Wait for the echo of a probe: next to no work for a gateway, so many times what the slowest
network needs."""

PROBE_ATTEMPTS: Final = 3
"""Probes on one connection, each but the first after another join frame, before we dial anew."""


class JoinPlan(NamedTuple):
    """The join frame of a connection, and whether it is sent before anything has come.

    Where we were in the space before, an older connection of ours may evict this one.
    """

    frame: bytes
    at_once: bool
    again: bool

    def __repr__(self) -> str:
        """Without the token, so that it cannot get into a log."""
        return f"Joining(at_once={self.at_once}, again={self.again})"


class Welcomed(NamedTuple):
    """The first welcome of a connection.

    The gateway may evict us unseen; we are capable of sending something; it gives what it accepts a
    number; nothing that it accepted while we were away is lost.
    """

    me: str
    dialect: str
    may_evict: bool
    capable: bool
    numbered: bool = False
    complete: bool = False
    names_executors: bool = False  # in `to` of proposals, and everybody sees them

    @classmethod
    def read(cls, table: ExchangeTable, dialect: str) -> Welcomed:
        """The welcome that a table has taken just now."""
        roster = table.roster
        return cls(
            roster.me,
            dialect,
            roster.may_evict,
            capable=bool(roster.my_capabilities),
            numbered=table.seq is not None,
            complete=table.is_complete,
            names_executors=dialect in PUBLISHED and not roster.guarantees.hidden_targets,
        )


def check_welcome(table: ExchangeTable, participant: str | None, where: str) -> None:
    me = table.roster.me
    if participant not in (None, me):
        raise WrongParticipant(str(participant), me, where)


def join_frame(
    participant: str, space: str | None, token: str | None, dialect: str | None
) -> bytes:
    """The first frame for a gateway that does not read the handshake's headers (PROTOCOL 2)."""
    said = {"participantId": participant, "space": space, "token": token, "protocol": dialect}
    known = {name: value for name, value in said.items() if value is not None}
    return json.dumps({"type": "join", **known}).encode()


class EchoProbe:
    """Asks a gateway whether it hears us, and whether we hear it.

    A probe is an ``mcp/response``, to ourselves, to itself. Every gateway sends that back: those of
    ``meup/v0.2`` because it is addressed to us, those of ``mew/v0.4`` because they send everything
    to every member, and let each respond. For its readers it answers a request that they never
    made, which is the one thing that every participant leaves alone: a request would have to be
    answered, a chat is read, and ``system/*`` is not ours to send. Where we may not respond, the
    gateway's error names it, and shows as well that we are there.
    """

    def __init__(self, new_id: Callable[[], str], welcomed: Welcomed) -> None:
        self._new_id = new_id
        self._welcomed = welcomed
        self._sent: set[str] = set()
        self._answered = anyio.Event()
        self._evicted = False

    def next(self) -> Envelope:
        """Another probe to send; an echo of an older one still counts."""
        probe_id, me = self._new_id(), self._welcomed.me
        self._sent.add(probe_id)
        self._answered = anyio.Event()
        return draft(
            kinds.MCP_RESPONSE,
            payloads.result(probe_id, {}),
            id=probe_id,
            sender=me,
            to=(me,),
            correlation=(probe_id,),
        )

    def takes(self, envelope: Envelope) -> bool:
        """Take an envelope, if it is about a probe and so concerns no one else."""
        if envelope.kind == kinds.SYSTEM_ERROR:
            is_answer = envelope.sender in kinds.GATEWAY_NAMES and any(
                name in self._sent for name in envelope.correlation
            )
            evicted = self._welcomed.capable and is_eviction(envelope.payload_object)
        else:
            is_answer = envelope.sender == self._welcomed.me and envelope.id in self._sent
            evicted = False
        if is_answer:
            # Only then: whatever else comes before the answer is looked at says nothing of it.
            self._evicted = evicted
            self._answered.set()
        return is_answer

    async def came_back(self) -> bool:
        """Wait for an answer; ``False`` if none came, or one that says that we are not in."""
        with anyio.move_on_after(PROBE_SECONDS):
            await self._answered.wait()
            return not self._evicted
        return False


# --- one connection ---

log = logging.getLogger("meup_agent.session")

WELCOME_SECONDS: Final = 10.0
"""Wait for the welcome: a gateway that accepts a connection and then says nothing
would keep us out of the space for good."""

ECHO_SECONDS: Final = 5.0
"""Silence of a gateway that owes us as many echoes as we keep; then it will send none,
and what it owes is not sent again after a loss."""


class ConnectionOwner(Protocol):
    """The session that a connection is part of."""

    @property
    def has_caught_up(self) -> bool:
        """True once what we missed has been read; nothing is sent before."""
        ...

    def receive(self, envelope: Envelope, seq: int | None) -> Welcomed | None:
        """Apply an envelope, with its number if it has one; the first welcome of a connection."""
        ...

    def receive_frame(self, frame: bytes) -> None:
        """Give a frame of a stream to its readers."""
        ...

    def drop_invalid(self, error: InvalidEnvelope) -> None:
        """Count a frame that was no envelope."""
        ...

    def note_leaving(self, envelope_id: str) -> bool:
        """Note that a request or proposal leaves now; ``False``: it is not to leave any more."""
        ...

    def fail_unsayable(self, envelope_id: str, words: str) -> None:
        """Fail an envelope that cannot be written, or for which the other end has closed."""
        ...

    def end_refused_stream(self, stream: str, words: str) -> None:
        """End a stream of ours whose frames the transport does not carry."""
        ...

    def note_lost(self) -> None:
        """Note that a connection which had welcomed us has ended."""
        ...


@dataclass
class SessionConnection:
    """Reads and writes each connection of a session, one after the other."""

    outbox: Outbox
    owner: ConnectionOwner
    _: KW_ONLY
    dialect: str
    """Of what is sent, until a welcome tells the gateway's."""
    new_id: Callable[[], str]

    def __post_init__(self) -> None:
        self._changed = Condition()
        self._now = loop_clock()
        self._rpc_ids = RpcIds()
        self._forget()

    async def use(self, transport: Transport, joining: JoinPlan | None = None) -> float | None:
        """Use a connection until it ends; seconds that it lasted after a welcome."""
        self._forget()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write, transport, name="meup session: writer")
                # A task of its own: each frame would wake all that awaits this connection.
                tasks.start_soon(self._read, transport, joining, tasks, name="meup session: reader")
                if joining is not None and joining.at_once:
                    tasks.start_soon(self._send_frame, transport, joining.frame)
                await self._expect_welcome(transport)
        finally:
            self._blame(transport.closed)
            if self._welcomed_at is not None:
                self.owner.note_lost()
        if self._end is not None:
            raise self._end
        return None if self._welcomed_at is None else self._now() - self._welcomed_at

    def _forget(self) -> None:
        """Reset the state of the connection before."""
        self._welcomed_at: float | None = None
        self._may_talk = self._numbered = self._catching_up = False
        self._first: Welcomed | None = None
        self._probe: EchoProbe | None = None
        self._end: SessionEnded | None = None
        self._last = self._before_last = ""
        self._largest = (0, "")

    def _blame(self, closed: CloseInfo | None) -> None:
        """Say which envelope the connection was closed for, if it was for one (PROTOCOL 3).

        Too large was certainly the largest: whatever passed before was smaller than the limit.
        Invalid was the last, if it was the only one on its way; of several it cannot be told which.
        """
        if closed is None or closed.local or closed.code not in (INVALID, TOO_BIG):
            return
        only_one = "" if self._before_last else self._last
        guilty = only_one if closed.code == INVALID else self._largest[1]
        if not guilty:
            # Whichever it was, it must not be sent again.
            self.outbox.keep_nothing()
        else:
            words = (
                f"the gateway closed the connection: code {closed.code} {printable(closed.reason)}"
            )
            self.owner.fail_unsayable(guilty, words.strip())

    async def _expect_welcome(self, transport: Transport) -> None:
        with anyio.move_on_after(WELCOME_SECONDS):
            while self._welcomed_at is None:
                await self._changed.wait()
            return
        await transport.aclose(reason=f"no welcome within {WELCOME_SECONDS:g} seconds")

    async def _read(self, transport: Transport, joining: JoinPlan | None, tasks: TaskGroup) -> None:
        """Take frames in wire order; nothing here waits for a person's code."""
        async for frame in transport:
            if frame[:1] == STREAM_MARK:
                if self._first is not None:
                    self.owner.receive_frame(frame)
                continue
            try:
                envelope = decode(frame, unnamed=self.dialect)
            except InvalidEnvelope as error:
                self.owner.drop_invalid(error)
                continue
            if (envelope.protocol or self.dialect) == BY_RPC_ID:
                envelope = self._rpc_ids.heard(envelope, envelope.payload, dialect=self.dialect)
            if self._probe is not None and self._probe.takes(envelope):
                continue
            self._see_taken(envelope)
            seq = read_seq(frame) if self._numbered or self._first is None else None
            if self._numbered and seq is not None:
                self._see_accepted(envelope)
            try:
                first = self.owner.receive(envelope, seq)
            except SessionEnded as end:
                self._end = end
                break
            if first is not None:
                self._first, self.dialect = first, first.dialect
                self._welcomed_at = self._now()
                self._begin(first)
                if joining is not None and joining.again and first.may_evict:
                    tasks.start_soon(self._prove, transport, joining, first, False)
                else:
                    self._talk()
                self._changed.notify_all()
            elif self._catching_up:
                self._talk()
            elif envelope.kind == kinds.SYSTEM_ERROR and joining is not None:
                self._see_eviction(transport, joining, envelope, tasks)
        tasks.cancel_scope.cancel()

    def _begin(self, first: Welcomed) -> None:
        """Keep what was sent before, if this gateway knows it again."""
        self._numbered, self._catching_up = first.numbered, first.numbered
        if not first.complete:
            self.outbox.keep_nothing()

    def _talk(self) -> None:
        """Send, first of all what was lost, as soon as we have read what we missed."""
        if self._catching_up:
            if not self.owner.has_caught_up:
                return
            self._catching_up = False
            self.outbox.send_again()
        self._may_talk = True
        self._changed.notify_all()

    def _see_accepted(self, envelope: Envelope) -> None:
        """Note that an envelope with a number was accepted, and is not sent again (PROTOCOL 6)."""
        outbox, first = self.outbox, self._first
        if first is not None and envelope.sender == first.me:
            outbox.accepted(envelope.id, replayed=self._catching_up)
        elif envelope.kind in (kinds.SYSTEM_ERROR, kinds.PROPOSALS):
            for name in envelope.correlation:
                outbox.accepted(name, replayed=self._catching_up)

    def _see_taken(self, envelope: Envelope) -> None:
        """Note that an envelope that came back, or was answered, was taken, and all before it."""
        named = (envelope.id, *envelope.correlation)
        if self._last in named:
            self._last = self._before_last = ""
        elif self._before_last in named:
            self._before_last = ""

    def _see_eviction(
        self, transport: Transport, joining: JoinPlan, refusal: Envelope, tasks: TaskGroup
    ) -> None:
        """Join again if a refusal shows that an older connection of ours has evicted this one."""
        first = self._first
        if (
            refusal.sender in kinds.GATEWAY_NAMES
            and first is not None
            and first.capable
            and first.may_evict
            and self._may_talk
            and is_eviction(refusal.payload_object)
        ):
            self._may_talk = False
            tasks.start_soon(self._prove, transport, joining, first, True)

    async def _prove(
        self, transport: Transport, joining: JoinPlan, first: Welcomed, out: bool
    ) -> None:
        """See that the gateway keeps us, and join again if not (PROTOCOL 2).

        Nothing else is sent meanwhile: on an evicted connection it would be lost.
        """
        self._probe = probe = EchoProbe(self.new_id, first)
        for attempt in range(PROBE_ATTEMPTS):
            if out or attempt:
                log.warning("the gateway has forgotten this connection; joining again")
                if not await self._send_frame(transport, joining.frame):
                    return
            if not await self._send_frame(transport, encode(probe.next(), self.dialect)):
                return
            if await probe.came_back():
                self._may_talk = True
                self._changed.notify_all()
                return
        await transport.aclose(reason="the gateway does not hear us")

    async def _send_frame(self, transport: Transport, frame: bytes) -> bool:
        """Send a frame that is not from the outbox; ``False`` if the connection has ended."""
        try:
            await transport.send(frame)
        except TransportClosed:
            return False
        return True

    async def _write(self, transport: Transport) -> None:
        """The one task that sends from the outbox, while we know that we are in."""
        while True:
            await self.outbox.wait_filled()
            if not self._may_talk:
                await self._changed.wait()
                continue
            if self.outbox.is_owed_too_much:
                await self._wait_for_echoes()
                continue
            waiting = self.outbox.take(self._now())
            if isinstance(waiting, QueuedFrame):
                if not await self._transmit_frame(transport, waiting):
                    return
            elif waiting is not None and not await self._transmit(transport, waiting):
                return

    async def _wait_for_echoes(self) -> None:
        with anyio.move_on_after(ECHO_SECONDS) as patience:
            await self.outbox.wait_accepted()
        if patience.cancelled_caught:
            log.warning(
                "the gateway sends nothing of what we say back; if the connection is lost now, "
                "%d envelopes are not sent again",
                self.outbox.unaccepted,
            )
            self.outbox.keep_nothing()

    async def _transmit_frame(self, transport: Transport, waiting: QueuedFrame) -> bool:
        """Send one frame of a stream, at most once; ``False`` if the connection has ended."""
        if transport.closed is not None:
            self.outbox.put_frame_back(waiting)
            return False
        try:
            await transport.send(waiting.frame)
        except TransportClosed:
            return False
        except NotExpressible as error:
            self.owner.end_refused_stream(waiting.stream, str(error))
        finally:
            self.outbox.gone()
        return True

    async def _transmit(self, transport: Transport, waiting: QueuedEnvelope) -> bool:
        """Send one envelope; ``False`` if the connection has ended."""
        if transport.closed is not None:
            self.outbox.put_back(waiting)
            return False
        draft = waiting.draft
        try:
            if draft.kind == MCP_PROPOSAL and self._first and self._first.names_executors:
                # In the table it stays a broadcast: whoever may decides.
                draft = draft if draft.to else to_executor(draft).replace()
            frame = encode(draft, self.dialect)
            if frame is not draft.frame:  # one that was written before was checked then
                check_frame(frame)
        except (NotExpressible, InvalidEnvelope) as error:
            self.outbox.gone()
            self.owner.fail_unsayable(draft.id, str(error))
            return True
        # From here on it may have been sent, and a request is never sent twice.
        is_opening = waiting.priority is Priority.OPEN
        if is_opening and not self.owner.note_leaving(draft.id):
            self.outbox.gone()
            return True
        if self._numbered:
            self.outbox.keep(waiting)
        self._before_last, self._last = self._last, draft.id
        self._largest = max(self._largest, (len(frame), draft.id))
        sent = False
        try:
            await transport.send(frame)
            sent = True
        except TransportClosed:
            pass
        finally:
            if sent or is_opening:
                self.outbox.gone()
            else:
                self.outbox.put_back(waiting)
        return sent
