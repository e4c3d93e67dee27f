"""A session over connections: dials again and again, joins, reads and writes.

Each connection lasts from its join to its end: frames in, in wire order, and frames out, by one
writer. This is the only place that retries (PROTOCOL 3, close codes).
"""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from meup_agent.errors import (
    CannotConnect,
    CannotJoinBeside,
    CannotObserve,
    HandshakeRefused,
    InvalidEnvelope,
    Kicked,
    NoSuchSpace,
    NotExpressible,
    SessionEnded,
    TakenOver,
    TokenRefused,
    TransportClosed,
    TransportError,
    printable,
)
from meup_agent.events import Retrying
from meup_agent.protocol.dialects import (
    BY_RPC_ID,
    DEFAULT_DIALECT,
    PUBLISHED,
    RpcIds,
    decode,
    encode,
    to_executor,
)
from meup_agent.protocol.exchange import Mode, Priority
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import check_frame, draft
from meup_agent.protocol.wire.kinds import MCP_PROPOSAL
from meup_agent.protocol.wire.membership import numbered, read_ack, read_seq
from meup_agent.session.outbox import QueuedFrame
from meup_agent.session.session import Session
from meup_agent.session.settings import read_token
from meup_agent.transport.base import (
    ABNORMAL,
    ACK_HEADER,
    BESIDE_HEADER,
    DIALECT_HEADER,
    INVALID,
    LAST_SEEN_HEADER,
    OBSERVE_HEADER,
    RESUME_HEADER,
    STREAM_MARK,
    TOO_BIG,
    CloseInfo,
    Condition,
    uninterrupted,
)

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.session.outbox import QueuedEnvelope
    from meup_agent.session.settings import Token
    from meup_agent.transport.base import Connector, Transport

log = logging.getLogger("meup_agent.session")


# --- dials again and again ---

LONGEST_RETRY_AFTER: Final = 3600.0
"""Seconds that a gateway can make us wait: a slip in a header must not keep us out for good."""

_FORBIDDEN: Final = 403

_TAKEN_OVER: Final = 4409

RESTORE_TOKEN_ONCE: Final = frozenset({401, _FORBIDDEN, 4401})
"""The token was refused: one that is asked for may be better the next time."""


OWN_LATE_SECONDS: Final = 300.0
"""Time for which a dial that was given up may still come through: whatever held it up, a paused
gateway say, hands the handshake on when it wakes, and then it is the newer connection."""

MAX_OWN_LATE: Final = 3
"""Dials that are remembered so: two programs with one token must not throw each other out for
long."""


class RequiredEcho(NamedTuple):
    """A header that a gateway says back which knows what it asks for, and the error of others."""

    header: str
    error: type[SessionEnded]
    sentence: str


_ECHOES: Final = {
    Mode.OBSERVING: RequiredEcho(
        OBSERVE_HEADER,
        CannotObserve,
        "the gateway {where} knows no observers, and joining it would throw out the agent that runs"
        " with this token: use the token of a participant without an agent, and --take-over"
        " (in a program, take_over=True)",
    ),
    Mode.BESIDE: RequiredEcho(
        BESIDE_HEADER,
        CannotJoinBeside,
        "the gateway {where} knows no connection beside, and joining it would throw out the agent"
        " that runs with this token: use the token of a participant without an agent, and leave"
        " --as out (in a program, take_over=True)",
    ),
}
"""The header that a gateway's handshake must say back to a session in a mode, if any."""

_ENDS: Final[dict[int, tuple[type[SessionEnded], str]]] = {
    400: (SessionEnded, "the gateway {where} cannot speak with us"),
    4400: (SessionEnded, "the gateway {where} cannot speak with us"),
    # A web server says it of a path that it does not know.
    404: (NoSuchSpace, "the gateway {where} has no such space, or no gateway is at this path"),
    4404: (NoSuchSpace, "the gateway {where} has no such space"),
    4403: (Kicked, "we were removed from the space at {where}"),
    _TAKEN_OVER: (
        TakenOver,
        "a newer connection of the same participant took over at {where}; "
        "give each program a token of its own",
    ),
}
"""Close codes and statuses after which there is no use in dialling (PROTOCOL 3)."""


class ConnectedSession(Session):
    """A session over connections, one after the other.

    A gateway that takes us for another than ``participant`` is left; without one, a join frame has
    the ``name``. With ``take_over`` a session that observes, or is beside, joins a gateway that
    knows neither as a member who answers nothing.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        token: Token | None,
        space: str | None = None,
        name: str = "",
        take_over: bool = False,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self._connector = connector
        self._token = token
        self._space = space
        self._name = name
        self._take_over = take_over
        self.rpc_ids: Final = RpcIds()
        """JSON-RPC ids that were heard, on whichever connection."""
        self._token_refused = False
        self._welcomed_for: float | None = None  # seconds, of the last connection
        # When each dial was given up that had no answer.
        self._given_up: deque[float] = deque(maxlen=MAX_OWN_LATE)

    async def _exchange(self) -> None:
        """Connect again and again, until the gateway does not want this participant any more."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(TransportError),
            wait=self._delay,
            sleep=anyio.sleep,
            before_sleep=self._announce,
        ):
            with attempt:
                await self._connect_once()

    async def _connect_once(self) -> None:
        """One connection, from the handshake to its end; always ends with an exception."""
        self._welcomed_for = None
        headers = {DIALECT_HEADER: self._settings.dialect, RESUME_HEADER: "1"}
        if self._settings.dialect == DEFAULT_DIALECT:  # in others a gateway fills something in
            headers[ACK_HEADER] = "1"
        required, seq = _ECHOES.get(self._settings.mode), self.table.seq
        if required is not None:
            headers[required.header] = "1"
        if seq is not None:
            # Asks a gateway that numbers envelopes for what we missed.
            headers[LAST_SEEN_HEADER] = str(seq)
        try:
            token = await read_token(self._token)
        except OSError as error:
            if not self.connections:
                raise
            # Where the token comes from is out of reach for a while, as the gateway may be.
            self._failure = CannotConnect(f"no token could be had: {printable(str(error))}")
            raise self._failure from error
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        try:
            async with self._connector(headers) as transport:
                answered = transport.response_headers
                has_echo = required is None or required.header.lower() in answered
                if required is not None and not (has_echo or self._take_over):
                    # On such a gateway a join frame would throw the participant's agent out.
                    raise required.error(required.sentence.format(where=self._where))
                knows_us = DIALECT_HEADER.lower() in answered
                connection = SessionConnection(self, transport, self._join_frame(token, knows_us))
                try:
                    self._welcomed_for = await connection.use(
                        # Who we must be is said also where the token was taken from the handshake.
                        join_at_once=self._participant is not None or not knows_us
                    )
                finally:
                    self.events.disconnected(transport.closed)
                closed = transport.closed
            raise (closed or CloseInfo(ABNORMAL)).error()
        except TransportError as error:
            self._judge(error)
            self._failure = error
            raise

    def _join_frame(self, token: str | None, knows_us: bool) -> bytes:
        """The first frame for a gateway that does not read the handshake's headers (PROTOCOL 2)."""
        said = {
            "type": "join",
            "participantId": self._participant or self._name,
            "space": self._space,
            "token": token,
            # Gateways that do not know our dialect refuse a frame that names it.
            "protocol": self._settings.dialect if knows_us else None,
        }
        return json.dumps({key: value for key, value in said.items() if value is not None}).encode()

    def _judge(self, error: TransportError) -> None:
        """Raise if there is no use in trying again."""
        if self._welcomed_for is not None:
            self._token_refused = False
        match error:
            case HandshakeRefused():
                code, said = error.status, error.body
            case TransportClosed():
                code, said = error.code, error.reason
            case _:
                if isinstance(error.__cause__, TimeoutError):
                    self._given_up.append(anyio.current_time())
                return
        if code == _TAKEN_OVER and self._may_be_own():
            return
        because = f": {said}" if said else ""
        if code in RESTORE_TOKEN_ONCE:
            if callable(self._token) and not self._token_refused:
                self._token_refused = True
                return
            if code == _FORBIDDEN and not said:
                # An ASGI server answers so where its application has nothing at the path; gateways
                # that refuse a token give a reason.
                raise SessionEnded(
                    f"the server at {self._where} refused the connection with status 403 and no"
                    " reason: no gateway is at this path, or something in front of it refuses the"
                    " token; check the path in MEUP_URL, then MEUP_TOKEN"
                ) from error
            # A gateway of ours says it of a participant that was removed, whose token is right.
            advice = "" if code == _FORBIDDEN else "; check MEUP_TOKEN"
            raise TokenRefused(
                f"the gateway {self._where} refused the token{because}{advice}"
            ) from error
        ends = _ENDS.get(code)
        if ends is not None:
            kind, sentence = ends
            # A gateway of ours gives as its reason what the sentence says already.
            more = "" if said in sentence else because
            raise kind(sentence.format(where=self._where) + more) from error

    def _may_be_own(self) -> bool:
        """True if the newer connection may be one of ours that came late; each counts once."""
        while self._given_up:
            if anyio.current_time() - self._given_up.popleft() <= OWN_LATE_SECONDS:
                return True
        return False

    def _delay(self, state: RetryCallState) -> float:
        backoff, lasted = self._settings.backoff, self._welcomed_for
        if lasted is not None and lasted >= backoff.stable:
            state.attempt_number = 1
        delay = backoff.pause(state.attempt_number - 1)
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after if isinstance(error, HandshakeRefused) else None
        return max(delay, min(asked or 0.0, LONGEST_RETRY_AFTER))

    def _announce(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        delay = state.next_action.sleep if state.next_action else 0.0
        log.info("%s; trying again in %.2f s", error, delay)
        if self.events.observers:
            self.events.emit(Retrying(**self.events.event_fields(), delay=delay, error=error))


# --- one connection ---

PROBE_SECONDS: Final = 3.0
"""Wait for the echo of a probe: next to no work for a gateway, so many times what the slowest
network needs."""

PROBE_ATTEMPTS: Final = 3
"""Probes on one connection, each but the first after another join frame, before we dial anew."""


class EchoProbe:
    """Asks a gateway whether it hears us, and whether we hear it.

    A probe is an ``mcp/response``, to ourselves, to itself. Every gateway sends that back: those of
    ``meup/v0.2`` because it is addressed to us, those of ``mew/v0.4`` because they send everything
    to every member, and let each respond. For its readers it answers a request that they never
    made, which is the one thing that every participant leaves alone: a request would have to be
    answered, a chat is read, and ``system/*`` is not ours to send. Where we may not respond, the
    gateway's error names it, and shows as well that we are there.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._sent: set[str] = set()
        self._answered = anyio.Event()
        self._evicted = False

    def next(self) -> Envelope:
        """Another probe to send; an echo of an older one still counts."""
        probe_id, me = self._session.table.new_id(), self._session.me
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
        roster, is_refusal = self._session.table.roster, envelope.kind == kinds.SYSTEM_ERROR
        if is_refusal:
            is_answer = envelope.sender in kinds.GATEWAY_NAMES and not self._sent.isdisjoint(
                envelope.correlation
            )
        else:
            is_answer = envelope.sender == roster.me and envelope.id in self._sent
        if is_answer:
            # Only then: whatever else comes before the answer is looked at says nothing of it.
            self._evicted = is_refusal and roster.shows_eviction(envelope.payload_object)
            self._answered.set()
        return is_answer

    async def came_back(self) -> bool:
        """Wait for an answer; ``False`` if none came, or one that says that we are not in."""
        with anyio.move_on_after(PROBE_SECONDS):
            await self._answered.wait()
            return not self._evicted
        return False


WELCOME_SECONDS: Final = 10.0
"""Wait for the welcome: a gateway that accepts a connection and then says nothing
would keep us out of the space for good."""

ECHO_SECONDS: Final = 5.0
"""Silence of a gateway that owes us as many echoes as we keep; then it will send none,
and what it owes is not sent again after a loss."""


_READ_AS_SAID: Final = frozenset({kinds.MCP_REQUEST, kinds.MCP_RESPONSE})
"""Kinds that are read as they were said: of others the wire changes words, say a chat's ``text``.
Those that are acknowledged need not be read, and most of what is large is of these."""


class SessionConnection:
    """Reads and writes one connection of a session."""

    def __init__(self, session: ConnectedSession, transport: Transport, join: bytes) -> None:
        self._session = session
        self._outbox = session.outbox
        self._transport = transport
        self._join = join
        # Where we were in the space before, an older connection of ours may evict this one.
        self._was_welcomed = session.connections > 0
        # Of what is sent, until a welcome tells the gateway's.
        self._dialect = session.dialect
        self._changed = Condition()
        self._welcomed_at: float | None = None
        self._may_talk = self._numbered = self._catching_up = False
        self._probe: EchoProbe | None = None
        self._end: SessionEnded | None = None
        self._last = self._before_last = ""
        self._largest = (0, "")

    async def use(self, *, join_at_once: bool) -> float | None:
        """Use the connection until it ends; seconds that it lasted after a welcome."""
        session = self._session
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(uninterrupted(self._write), name="meup session: writer")
                # A task of its own: each frame would wake all that awaits this connection.
                tasks.start_soon(uninterrupted(self._read), tasks, name="meup session: reader")
                if join_at_once:
                    tasks.start_soon(uninterrupted(self._send_frame), self._join)
                with anyio.move_on_after(WELCOME_SECONDS):
                    while self._welcomed_at is None:
                        await self._changed.wait()
                if self._welcomed_at is None:
                    words = f"no welcome within {WELCOME_SECONDS:g} seconds"
                    await self._transport.aclose(reason=words)
        finally:
            self._blame(self._transport.closed)
            if self._welcomed_at is not None:
                session.note_lost()
        if self._end is not None:
            raise self._end
        return None if self._welcomed_at is None else session.now() - self._welcomed_at

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
            self._outbox.keep_nothing()
        else:
            words = (
                f"the gateway closed the connection: code {closed.code} {printable(closed.reason)}"
            )
            self._session.fail_unsayable(guilty, words.strip())

    async def _read(self, tasks: TaskGroup) -> None:
        """Take frames in wire order; nothing here waits for a person's code."""
        async for frame in self._transport:
            if frame[:1] == STREAM_MARK:
                if self._welcomed_at is not None:
                    self._session.receive_frame(frame)
                continue
            told, sent = read_ack(frame) if self._numbered else None, None
            if told is not None:
                sent = self._outbox.sent(told.id)
                if sent is None:
                    # On the next connection it comes whole, in its place.
                    await self._transport.aclose(reason="an acknowledgement of something forgotten")
                    break
                frame = numbered(sent.frame, told.seq)  # in place of what would have come back
            try:
                if sent is not None and sent.kind in _READ_AS_SAID:
                    envelope = msgspec.structs.replace(sent, frame=frame)
                else:
                    envelope = decode(frame, unnamed=self._dialect)
            except InvalidEnvelope as error:
                self._session.drop_invalid(error)
                continue
            if (envelope.protocol or self._dialect) == BY_RPC_ID:
                envelope = self._session.rpc_ids.heard(
                    envelope, envelope.payload, dialect=self._dialect
                )
            if self._probe is not None and self._probe.takes(envelope):
                continue
            self._see_taken(envelope)
            may_have_seq = self._numbered or self._welcomed_at is None
            seq = read_seq(frame) if may_have_seq else None
            if self._numbered and seq is not None:
                self._see_accepted(envelope)
            try:
                welcomed = self._session.receive(envelope, seq)
            except SessionEnded as end:
                self._end = end
                break
            if welcomed:
                self._begin()
                if self._was_welcomed and self._session.table.roster.may_evict:
                    tasks.start_soon(uninterrupted(self._prove), False)
                else:
                    self._talk()
                self._changed.notify_all()
            elif self._catching_up:
                self._talk()
            elif (
                self._may_talk
                and envelope.kind == kinds.SYSTEM_ERROR
                and envelope.sender in kinds.GATEWAY_NAMES
                and self._session.table.roster.shows_eviction(envelope.payload_object)
            ):
                # An older connection of ours has evicted this one.
                self._may_talk = False
                tasks.start_soon(uninterrupted(self._prove), True)
        tasks.cancel_scope.cancel()

    def _begin(self) -> None:
        """Take in the welcome; keep what was sent before, if this gateway knows it again."""
        table = self._session.table
        self._welcomed_at, self._dialect = self._session.now(), self._session.dialect
        self._numbered = self._catching_up = table.seq is not None
        if not table.is_complete:
            self._outbox.keep_nothing()
        self._outbox.forget_ended()

    def _talk(self) -> None:
        """Send, first of all what was lost, as soon as we have read what we missed."""
        if self._catching_up:
            if not self._session.table.caught_up:
                return
            self._catching_up = False
            self._outbox.send_again()
        self._may_talk = True
        self._changed.notify_all()

    def _see_accepted(self, envelope: Envelope) -> None:
        """Note that an envelope with a number was accepted, and is not sent again (PROTOCOL 6)."""
        outbox = self._outbox
        if envelope.sender == self._session.me:
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

    async def _prove(self, out: bool) -> None:
        """See that the gateway keeps us, and join again if not (PROTOCOL 2).

        Nothing else is sent meanwhile: on an evicted connection it would be lost.
        """
        self._probe = probe = EchoProbe(self._session)
        for attempt in range(PROBE_ATTEMPTS):
            if out or attempt:
                log.warning("the gateway has forgotten this connection; joining again")
                if not await self._send_frame(self._join):
                    return
            if not await self._send_frame(encode(probe.next(), self._dialect)):
                return
            if await probe.came_back():
                self._may_talk = True
                self._changed.notify_all()
                return
        await self._transport.aclose(reason="the gateway does not hear us")

    async def _send_frame(self, frame: bytes) -> bool:
        """Send a frame that is not from the outbox; ``False`` if the connection has ended."""
        try:
            await self._transport.send(frame)
        except TransportClosed:
            return False
        return True

    async def _write(self) -> None:
        """The one task that sends from the outbox, while we know that we are in."""
        while True:
            await self._outbox.wait_filled()
            if not self._may_talk:
                await self._changed.wait()
                continue
            if self._outbox.is_owed_too_much:
                await self._wait_for_echoes()
                continue
            waiting = self._outbox.take(self._session.now())
            if waiting is None:
                continue
            if self._transport.closed is not None:
                self._outbox.put_back(waiting)
                return
            if isinstance(waiting, QueuedFrame):
                is_open = await self._transmit_frame(waiting)
            else:
                is_open = await self._transmit(waiting)
            if not is_open:
                return

    async def _wait_for_echoes(self) -> None:
        with anyio.move_on_after(ECHO_SECONDS) as patience:
            await self._outbox.wait_accepted()
        if patience.cancelled_caught:
            log.warning(
                "the gateway sends nothing of what we say back; if the connection is lost now, "
                "%d envelopes are not sent again",
                self._outbox.unaccepted,
            )
            self._outbox.keep_nothing()

    async def _transmit_frame(self, waiting: QueuedFrame) -> bool:
        """Send one frame of a stream, at most once; ``False`` if the connection has ended."""
        try:
            await self._transport.send(waiting.frame)
        except TransportClosed:
            return False
        except NotExpressible as error:
            session, stream = self._session, waiting.stream
            session.apply(session.table.end_unsendable_stream(stream, str(error), session.now()))
        finally:
            self._outbox.gone()
        return True

    async def _transmit(self, waiting: QueuedEnvelope) -> bool:
        """Send one envelope; ``False`` if the connection has ended."""
        draft = waiting.draft
        try:
            if (
                draft.kind == MCP_PROPOSAL
                and not draft.to
                and self._dialect in PUBLISHED
                and not self._session.table.roster.guarantees.hidden_targets
            ):
                # Everybody sees it. In the table it stays a broadcast: whoever may decides.
                draft = to_executor(draft).replace()
            frame = encode(draft, self._dialect)
            if frame is not draft.frame:  # one that was written before was checked then
                check_frame(frame)
        except (NotExpressible, InvalidEnvelope) as error:
            self._outbox.gone()
            self._session.fail_unsayable(draft.id, str(error))
            return True
        # From here on it may have been sent, and a request is never sent twice.
        is_opening = waiting.priority is Priority.OPEN
        if is_opening and not self._session.note_leaving(draft.id):
            self._outbox.gone()
            return True
        if self._numbered:
            if draft is waiting.draft and draft.frame is not frame:  # in which it comes back
                said = msgspec.structs.replace(draft, protocol=self._dialect, frame=frame)
                waiting = msgspec.structs.replace(waiting, draft=said)
            self._outbox.keep(waiting)
        self._before_last, self._last = self._last, draft.id
        self._largest = max(self._largest, (len(frame), draft.id))
        sent = False
        try:
            await self._transport.send(frame)
            sent = True
        except TransportClosed:
            pass
        finally:
            if sent or is_opening:
                self._outbox.gone()
            else:
                self._outbox.put_back(waiting)
        return sent
