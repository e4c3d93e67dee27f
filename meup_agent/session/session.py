"""Carries out what the exchange table decides, over whatever connection there is."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import anyio
import msgspec
from anyio import AsyncContextManagerMixin
from anyio.lowlevel import checkpoint

from meup_agent.causes import Cause, Reason
from meup_agent.errors import (
    CannotConnect,
    InvalidEnvelope,
    MeupError,
    NotSent,
    Refused,
    RemoteShutdown,
    SessionEnded,
    UsageError,
    WrongParticipant,
)
from meup_agent.events import Dropped, Resumed
from meup_agent.protocol.dialects import encode, spoken
from meup_agent.protocol.exchange import (
    Cancel,
    CaughtUp,
    Drop,
    ExchangeTable,
    Leave,
    Priority,
    Progressed,
    ProposalKey,
    Send,
    Start,
    Unsend,
    Wake,
)
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import Envelope, check_frame, draft, moment_of
from meup_agent.protocol.wire.outcomes import GatewayRefused
from meup_agent.protocol.wire.payloads import Call, JsonObject
from meup_agent.protocol.wire.streams import read_frame
from meup_agent.session.event_emitter import EventEmitter
from meup_agent.session.outbox import Outbox, PendingCalls, log_cancel
from meup_agent.session.settings import Settings
from meup_agent.transport.base import Condition, background_tasks, loop_clock, uninterrupted
from meup_agent.transport.connect_failure import advice_for

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable
    from typing import Self

    from anyio.abc import TaskGroup

    from meup_agent.errors import TransportError
    from meup_agent.protocol.exchange import Effect, Key
    from meup_agent.session.settings import EnvelopeListener, Handlers
    from meup_agent.tracing import CallSpan, Tracer


# --- envelope listeners ---
# Listeners to every envelope that took effect, and callers that wait for the gateway's word.

WATCHED: Final = 1024
"""Envelopes kept for a watcher that is slower than the space; older ones are dropped."""


class EnvelopeStream:
    """The envelopes of a space, in the gateway's order.

    Args:
        wanted: Says which are kept; ``None``: all.

    Attributes:
        missed: Envelopes dropped because they were not read in time.
    """

    def __init__(self, wanted: Callable[[Envelope], bool] | None = None) -> None:
        self._wanted = wanted
        self._envelopes: deque[Envelope] = deque(maxlen=WATCHED)
        self._came = anyio.Event()
        self._over = False
        self.missed = 0

    def put(self, envelope: Envelope) -> None:
        """Keep an envelope until it is taken."""
        if self._wanted is not None and not self._wanted(envelope):
            return
        if len(self._envelopes) == WATCHED:
            self.missed += 1
        self._envelopes.append(envelope)
        self._came.set()

    def end(self) -> None:
        """End with what has come: the space has been left."""
        self._over = True
        self._came.set()

    def __aiter__(self) -> Self:
        """The watcher itself."""
        return self

    async def __anext__(self) -> Envelope:
        """Wait for the next envelope; it ends where the space has been left."""
        while not self._envelopes:
            if self._over:
                raise StopAsyncIteration
            if self._came.is_set():
                # Only then: others may wait for the one that is there.
                self._came = anyio.Event()
            await self._came.wait()
        return self._envelopes.popleft()


class EnvelopeListeners:
    """The listeners of a session, called with each envelope, in no order."""

    def __init__(self) -> None:
        self.listeners: set[EnvelopeListener] = set()
        self._asked: set[str] = set()
        self._over = False

    def listen(self, listener: EnvelopeListener) -> None:
        self.listeners.add(listener)

    @contextmanager
    def listening(self, listener: EnvelopeListener) -> Generator[None]:
        """Hand every envelope to a listener for the length of a block."""
        self.listeners.add(listener)
        try:
            yield
        finally:
            self.listeners.discard(listener)

    @contextmanager
    def told_of(
        self, envelope_id: str, wanted: Callable[[Envelope], bool]
    ) -> Generator[EnvelopeStream]:
        """The envelopes that answer one of ours, as :meth:`watch` gives them.

        A refusal is the caller's to report, and no line in the log.
        """
        self._asked.add(envelope_id)
        try:
            with self.watch(wanted) as answers:
                yield answers
        finally:
            self._asked.discard(envelope_id)

    @contextmanager
    def watch(self, wanted: Callable[[Envelope], bool] | None = None) -> Generator[EnvelopeStream]:
        """Every envelope from here on, echoes of our own included, as an async iterator."""
        watcher = EnvelopeStream(wanted)
        try:
            with self.listening(watcher):
                if self._over:
                    watcher.end()
                yield watcher
        finally:
            watcher.end()

    def end(self) -> None:
        """End what is watched: a task outside the session's block would wait for ever."""
        self._over = True
        for listener in self.listeners:
            if isinstance(listener, EnvelopeStream):
                listener.end()

    def ask_about(self, envelope: Envelope) -> bool:
        """True if a listener waits for the gateway's answer that an envelope is."""
        return not self._asked.isdisjoint(envelope.correlation)


RECEIPT_SECONDS: Final = 30.0
"""Wait of a caller for that answer; a gateway reads later what comes too fast, and after a thousand
withdrawals at once that takes its time. The envelope stays sent when its caller waits no longer."""


class Receipts:
    """Envelopes of ours whose callers wait until the gateway has accepted or refused them."""

    def __init__(self) -> None:
        # The ids, each with the reason for which the gateway will not take it.
        self.waiting: dict[str, MeupError | None] = {}
        self._changed = Condition()

    async def wait(self, envelope_ids: Iterable[str]) -> None:
        """Wait until the gateway has accepted what was said just now; raise if it refused any.

        Returns all the same when the connection is lost, after which it is said again, and when the
        gateway says nothing for :data:`RECEIPT_SECONDS`.
        """
        ids = list(envelope_ids)
        self.waiting.update(dict.fromkeys(ids))
        try:
            with anyio.move_on_after(RECEIPT_SECONDS):
                for each in ids:
                    while each in self.waiting:
                        problem = self.waiting[each]
                        if problem is not None:
                            raise problem
                        await self._changed.wait()
        finally:
            for each in ids:
                self.waiting.pop(each, None)

    def heard(self, envelope: Envelope, me: str) -> None:
        """End the wait that an envelope answers, if it answers one."""
        if envelope.sender == me:
            if envelope.id in self.waiting:
                del self.waiting[envelope.id]
                self._changed.notify_all()
        elif envelope.kind == kinds.SYSTEM_ERROR and envelope.sender in kinds.GATEWAY_NAMES:
            for name in envelope.correlation:
                self.failed(name, refusal_in(envelope.payload_object, name))

    def failed(self, envelope_id: str, problem: MeupError) -> None:
        """Note that an envelope was not taken and will not be, if a caller waits for it."""
        if envelope_id in self.waiting:
            self.waiting[envelope_id] = problem
            self._changed.notify_all()

    def lost(self) -> None:
        """End every wait: after a lost connection no answer comes."""
        if self.waiting:
            self.waiting.clear()
            self._changed.notify_all()


def refusal_in(payload: JsonObject, what: str) -> Refused:
    """The exception for the payload of a gateway's ``system/error``."""
    found = GatewayRefused.read(payload, what)
    return Refused(found.error, found.message, found.details)


# --- session ---

log = logging.getLogger("meup_agent.session")

EditJudge = Callable[[Any, Call, JsonObject | None], Awaitable[JsonObject | None]]
"""Takes a proposal, the call that would be made, and the rule that let the proposal pass; gives
the rule that lets the call pass, or raises."""

FLUSH_SECONDS: Final = 2.0
"""Wait of a session that ends until its last envelopes are sent."""


class Session(ABC, AsyncContextManagerMixin):
    """One participant's presence in a space; an async context manager.

    Inside the block the participant has been welcomed at least once. The block is cancelled, and
    raises :class:`~meup_agent.errors.SessionEnded`, when the gateway will not have us back.
    """

    def __init__(
        self,
        *,
        handlers: Handlers,
        settings: Settings | None = None,
        where: str = "gateway",
        participant: str | None = None,
        events: EventEmitter | None = None,
    ) -> None:
        self._settings = settings or Settings()
        self.ttl: Final = self._settings.ttl
        """Seconds that a proposal waits where it does not say; ``None``: as long as it takes."""
        self.edit_judge: EditJudge | None = None
        """Judges a fulfillment that is not what was proposed, before it is sent."""
        self.tracer: Tracer | None = None
        """Makes spans of what is called, proposed, decided and handled."""
        self._handlers = handlers
        self._where = where
        self._participant = participant
        self._dialect = self._settings.dialect
        self.now: Final = loop_clock()
        """Seconds of the loop's clock."""
        self.events = events or EventEmitter()
        """Told of what happens; look at its ``observers`` before making an event."""
        self.table = ExchangeTable(
            new_id=new_id,
            find_handler=handlers.find,
            limits=self._settings.limits,
            wall_clock=partial(datetime.now, UTC),
            mode=self._settings.mode,
        )
        self.outbox = Outbox()
        self.watchers: Final = EnvelopeListeners()
        """Listeners that are handed every envelope."""
        self.counters: Final = Counter[str]()
        """Counts of dropped envelopes, by the exchange table's codes."""
        self._receipts: Final = Receipts()
        self.pending_calls: Final = PendingCalls(self, self.table, self.outbox, self.events)
        """Requests and proposals of ours, and the callers that wait for them."""
        self._welcomed = Condition()
        self._deadline: float | None = None  # for which the timer waits, if it runs
        self._deadline_changed = Condition()
        self._timers: TaskGroup | None = None
        self._failure: TransportError | None = None
        self._presence = anyio.CancelScope(shield=True)
        self._tasks: TaskGroup | None = None
        self._over = ""
        self._thread: Final = get_ident()
        self.connections = 0
        """Connections that have welcomed us."""

    # --- the block ---

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        async with background_tasks() as tasks:
            self._tasks = tasks
            uninterrupted(self._run_timer)  # begun with many a call
            tasks.start_soon(uninterrupted(self._be_present), name="meup session")
            try:
                await self._first_welcome()
                try:
                    yield self
                finally:
                    await self._say_goodbye()
            finally:
                self._presence.cancel()
                self._end_waits()

    def _end_waits(self) -> None:
        """Wake what still waits: handlers that shield themselves, and tasks outside the block."""
        self.table.streams.stopped(self._over)
        self.watchers.end()
        self.outbox.clear()

    async def _be_present(self) -> None:
        """Keep the connection and the time, until we end it ourselves.

        Shielded: a block that is cancelled still has withdrawals to send.
        """
        with self._presence:
            async with anyio.create_task_group() as self._timers:
                self._watch_deadline()
                try:
                    await self._exchange()
                except SessionEnded as error:
                    log.info("%s", error)
                    self._over = str(error)
                    self.apply(self.table.stopped(self._over, self.now()))
                    raise
                finally:
                    self._timers = None

    def _watch_deadline(self) -> None:
        """Have the timer ring for the next deadline, which may be another one.

        It is a task while there is a deadline, and none otherwise: most agents mostly wait for
        nothing.
        """
        at = self.table.next_deadline()
        if at is None or self._timers is None:
            return
        if self._deadline is None:
            self._deadline = at
            self._timers.start_soon(self._run_timer, name="meup session: timer")
        elif at < self._deadline:
            self._deadline_changed.notify_all()

    async def _run_timer(self) -> None:
        while (at := self.table.next_deadline()) is not None:
            self._deadline = at
            with anyio.CancelScope(deadline=at):
                await self._deadline_changed.wait()
            self.apply(self.table.tick(self.now()))
        self._deadline = None

    async def _first_welcome(self) -> None:
        with anyio.move_on_after(self._settings.first_welcome):
            while not self.connections:
                await self._welcomed.wait()
        if self.connections:
            return
        because = f": {self._failure}" if self._failure else ""
        scheme = self._where.partition(":")[0]
        if not because and (advice := advice_for(TimeoutError(), scheme)) is not None:
            # A port without TLS waits for the rest of what it takes for a request.
            because = f"; {advice.todo}"
        raise CannotConnect(
            f"no welcome came from {self._where} in {self._settings.first_welcome:g} s{because}"
        ) from self._failure

    async def _say_goodbye(self) -> None:
        """Withdraw and cancel what is open, give it a moment to leave, and go."""
        self._over = self._over or "we have left the space"
        cause = Cause(Reason.NO_LONGER_NEEDED, self.me, "the participant leaves")
        self.apply(self.table.close(cause, self.now()))
        if self.table.connected:
            with anyio.move_on_after(FLUSH_SECONDS, shield=True):
                await self.outbox.wait_emptied()
            log.info("leaving %s", self._where)

    # --- the connection ---

    @abstractmethod
    async def _exchange(self) -> None:
        """Hand on what is said, and take in what is heard, until the gateway ends it."""

    def receive(self, envelope: Envelope, seq: int | None) -> bool:
        """Apply an envelope; ``True`` if it was the first welcome of a connection."""
        connected = self.table.connected
        effects = self.table.receive(envelope, self.now(), seq)
        welcomed = self.table.connected and not connected
        if welcomed:
            if self._participant not in (None, self.me):
                raise WrongParticipant(str(self._participant), self.me, self._where)
            self.connections += 1
            self.events.connected(self.me, self._where, envelope.protocol)
        self.apply(effects)
        if self._receipts.waiting:
            self._receipts.heard(envelope, self.me)
        for watcher in self.watchers.listeners:
            watcher.put(envelope)
        if welcomed:
            self._dialect = spoken(envelope.protocol) or self._dialect
            log.info("connected to %s as %r", self._where, self.me)
            self._welcomed.notify_all()
        return welcomed

    def note_leaving(self, envelope_id: str) -> bool:
        """Note that a request or proposal leaves now; ``False``: its caller has given it up."""
        leaves, effects = self.table.sent(envelope_id, self.now())
        self.apply(effects)
        return leaves

    def note_lost(self) -> None:
        """Note that a connection which had welcomed us has ended."""
        self._receipts.lost()
        self.apply(self.table.connection_lost(self.now()))

    def fail_unsayable(self, envelope_id: str, words: str) -> None:
        """Fail an envelope that has no wire form, or that the gateway closed the connection for."""
        log.error("%s of ours could not be sent: %s", envelope_id, words)
        self.outbox.remove(envelope_id)
        self._receipts.failed(envelope_id, NotSent(f"{envelope_id} was not sent: {words}"))
        self.apply(self.table.unsendable(envelope_id, words, self.now()))

    def drop_invalid(self, error: InvalidEnvelope) -> None:
        """Count, tell and log a frame that was no envelope."""
        self._count(Drop(error.problem, Envelope(id=error.envelope_id or "", sender="", kind="")))
        log.warning("left out a frame from the gateway: %s", error)

    def _count(self, drop: Drop) -> None:
        self.counters[drop.why] += 1
        if self.events.observers:
            envelope = drop.envelope
            self.events.emit(
                Dropped(
                    **self.events.event_fields(),
                    why=drop.why,
                    envelope_id=envelope.id,
                    kind=envelope.kind,
                    sender=envelope.sender,
                    expected=drop.expected,
                )
            )

    def _drop(self, drop: Drop) -> None:
        """Count, tell and log an envelope that the exchange table left out.

        Where a caller has asked for what it says, it reports that, and the log does not.
        """
        envelope = drop.envelope
        self._count(drop)
        if drop.expected or self.watchers.ask_about(envelope):
            return
        said = ""
        if envelope.kind == kinds.SYSTEM_ERROR:
            payload = envelope.payload_object
            said = f" ({str(payload.get('error'))[:64]!r}: {str(payload.get('message'))[:200]!r})"
        # A refusal that no caller waits for is lost but for this line.
        level = logging.ERROR if drop.why == "refused_by_gateway" else logging.WARNING
        log.log(
            level,
            "dropped %r %r from %r: %s%s",
            envelope.kind[:64],
            envelope.id[:64],
            envelope.sender[:64],
            drop.why,
            said,
        )

    def receive_frame(self, frame: bytes) -> None:
        """Give a frame of a stream to its readers."""
        try:
            read = read_frame(frame)
        except InvalidEnvelope as error:
            self.drop_invalid(error)
            return
        if read is not None:
            effects = self.table.receive_frame(read.stream, read.data, self.now())
            if effects:
                self.apply(effects)

    # --- effects ---

    def apply(self, effects: Iterable[Effect]) -> None:
        """Carry out what the exchange table decided, in its order."""
        for effect in effects:
            match effect:
                case Send():
                    if effect.priority is Priority.END and not effect.again:
                        log_cancel(effect.draft)
                    self.outbox.put(effect.draft, effect.priority, self.now())
                case Unsend():
                    self.outbox.remove(effect.id)
                case Start():
                    self._handlers.start(effect.key, effect.work)
                case Cancel():
                    self._handlers.cancel(effect.key, effect.cause)
                case Wake():
                    # No caller waits for it, so it is not sent again after a loss.
                    self.outbox.remove(effect.key.id)
                    self.pending_calls.end(effect.key, effect.ending)
                case Progressed():
                    self.pending_calls.progressed(effect)
                case Drop():
                    self._drop(effect)
                case CaughtUp():
                    self._caught_up(effect)
                case Leave():
                    self.start_soon(partial(self._leave, effect), "meup shutdown")
        self._watch_deadline()

    async def _leave(self, effect: Leave) -> None:
        """End the session, since another participant shut us down; our last words go first."""
        with anyio.move_on_after(FLUSH_SECONDS):
            await self.outbox.wait_emptied()
        self._over = str(error := RemoteShutdown(effect.by, effect.reason))
        self.apply(self.table.stopped(self._over, self.now()))
        raise error

    def _caught_up(self, effect: CaughtUp) -> None:
        gap = "" if effect.gap is None else ", and the gateway does not know all of it any more"
        log.info("away for %.1f s: %d envelopes were missed%s", effect.seconds, effect.missed, gap)
        if self.events.observers:
            self.events.emit(
                Resumed(
                    **self.events.event_fields(),
                    missed=effect.missed,
                    gap=effect.gap is not None,
                    seconds=effect.seconds,
                )
            )

    # --- what handlers and clients use ---

    @property
    def me(self) -> str:
        return self.table.roster.me

    @property
    def over(self) -> str:
        """Why nothing can be sent any more; empty while something can."""
        return self._over

    @property
    def dialect(self) -> str:
        """The gateway's dialect, by the first welcome of its latest connection."""
        return self._dialect

    def time_of_day(self) -> datetime:
        """The gateway's time, else our own (PROTOCOL 6)."""
        moment = self.table.moment(self.now())
        assert moment is not None  # the table has a clock
        return moment_of(moment)

    async def taken(self, envelope_ids: Iterable[str]) -> None:
        """Wait until the gateway has taken what was said just now, where it shows that for certain.

        Without a connection it is sent later, and not waited for. Nor is a refusal the end where a
        gateway may have forgotten us: then it is said again (PROTOCOL 2).
        """
        guarantees = self.table.roster.guarantees
        if self.table.connected and guarantees.echo and guarantees.identity_checked:
            await self._receipts.wait(envelope_ids)
        else:
            await checkpoint()

    def reject(
        self, proposal: ProposalKey, reason: str, meta: JsonObject | None = None
    ) -> Envelope:
        """Reject another participant's proposal; the reject."""
        envelope, effects = self.table.reject(proposal, reason, self.now(), meta)
        self.apply(effects)
        return envelope

    def send_message(
        self,
        kind: str,
        payload: Any,
        *,
        to: tuple[str, ...] = (),
        correlation: tuple[str, ...] = (),
        context: str | None = None,
    ) -> Envelope:
        """Send something that begins no exchange."""
        trial = self.check_message(kind, payload, to=to, correlation=correlation, context=context)
        envelope, effects = self.table.send(
            kind,
            trial.raw_payload,
            now=self.now(),
            to=to,
            correlation=correlation,
            context=context,
        )
        self.apply(effects)
        return envelope

    def check_message(
        self,
        kind: str,
        payload: Any,
        *,
        to: tuple[str, ...] = (),
        correlation: tuple[str, ...] = (),
        context: str | None = None,
    ) -> Envelope:
        """Check that something could be said now; what it would be, but for its id."""
        self.check_present(kind)
        return self.with_frame(
            draft(
                kind,
                payload,
                id=new_id(),
                sender=self.me,
                to=to,
                correlation=correlation,
                context=context,
            )
        )

    def check_present(self, kind: str) -> None:
        """Raise if nothing can be sent any more."""
        self.table.check_may_send(kind)
        if get_ident() != self._thread:
            # It would wake tasks of a loop that does not look for it, which hang from then on.
            raise UsageError(
                f"the {kind} was not sent: it was begun in another thread than the one that joined"
                " the space; have that one's loop begin it, as anyio.from_thread.run(…) does"
            )
        if self._over:
            raise NotSent(f"the {kind} was not sent: {self._over}")

    def begin_span(
        self, method: str, params: JsonObject, *, proposes: bool = False
    ) -> tuple[CallSpan | None, JsonObject]:
        """Begin the span of a call, if calls are traced; it, and the parameters that name it."""
        if self.tracer is None:
            return None, params
        span = self.tracer.begin_call(method, params, proposes=proposes)
        return span, span.inject(params)

    def with_frame(self, said: Envelope) -> Envelope:
        """The envelope with its frame, which is written once and sent as it is.

        Raises what the caller can still act on; later there is only the log.
        """
        try:
            frame = encode(said, self._dialect)
            check_frame(frame)
        except InvalidEnvelope as error:
            raise UsageError(f"the {said.kind} cannot be sent: {error}") from None
        return msgspec.structs.replace(said, protocol=self._dialect, frame=frame)

    def returned(self, key: Key, result: Any) -> None:
        """A handler has ended well."""
        self.apply(self.table.returned(key, result, self.now()))

    def raised(
        self, key: Key, code: int, message: str, data: Any = None, *, begun: bool = True
    ) -> None:
        """A handler has failed, has ended cancelled, or was refused before it had ``begun``."""
        self.apply(self.table.raised(key, code, message, data, self.now(), begun=begun))

    def start_soon(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Do something in a task of the session's own; what it raises ends the session."""
        if self._over or self._tasks is None:
            raise NotSent(f"{name} was not begun: {self._over or 'we have not joined'}")
        self._tasks.start_soon(work, name=name)


def new_id() -> str:
    """128 random bits, in hex."""
    return os.urandom(16).hex()


@runtime_checkable
class SessionMaker(Protocol):
    """A way into a space without a connection, which an agent joins in place of an address."""

    where: str

    def make_session(self, **given: Any) -> Session:
        """A session, of what :class:`Session` is given.

        Raises:
            TransportError: The participant cannot be in the space.
        """
        ...
