"""Carries out what the exchange table decides, over whatever connection there is."""

from __future__ import annotations

import logging
import secrets
from collections import Counter, deque
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
from anyio import AsyncContextManagerMixin

from meup_agent.errors import (
    CannotConnect,
    InvalidEnvelope,
    NotExpressible,
    SessionEnded,
    TransportClosed,
)
from meup_agent.protocol import kinds
from meup_agent.protocol.dialects import DEFAULT_DIALECT, decode, encode
from meup_agent.protocol.exchange import (
    Cancel,
    Drop,
    ExchangeTable,
    Key,
    Limits,
    Priority,
    Progressed,
    ProposalKey,
    Role,
    Send,
    Start,
    Unsend,
    Wait,
    Wake,
    Work,
)
from meup_agent.protocol.outcomes import Ending, Unsent
from meup_agent.protocol.reasons import Cause, Reason
from meup_agent.session.groups import unwrapped
from meup_agent.session.link import Backoff, Link, Token
from meup_agent.session.outbox import Outbox, Waiting

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterable
    from typing import Self

    from anyio.abc import TaskGroup

    from meup_agent.errors import TransportError
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import Effect
    from meup_agent.transport.base import Connector, Transport

log = logging.getLogger("meup_agent.session")

FLUSH_SECONDS: Final = 2.0
"""How long a session that ends tries to get its last words out."""

WATCHED: Final = 1024
"""Envelopes kept for a watcher that is slower than the space; older ones are dropped."""


class Handlers(Protocol):
    """What an agent does with what comes; all of it returns at once."""

    def wants(self, role: Role, envelope: Envelope) -> bool:
        """Whether there is a handler for an envelope in a role."""
        ...

    def start(self, key: Key, work: Work) -> None:
        """Start it; the session is told of its end by :meth:`Session.returned` or `raised`."""
        ...

    def cancel(self, key: Key, cause: Cause) -> None:
        """End its scope."""
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """How a session behaves.

    Attributes:
        dialect: The dialect that we speak.
        backoff: How long to wait between attempts to connect.
        limits: How much is handled at once.
        first_welcome: Seconds to wait for the first welcome; ``None``: as long as it takes.
    """

    dialect: str = DEFAULT_DIALECT
    backoff: Backoff = field(default_factory=Backoff)
    limits: Limits = field(default_factory=Limits)
    first_welcome: float | None = 10.0


@dataclass(slots=True)
class _Waiter:
    done: anyio.Event
    ending: Ending | None = None
    on_progress: Callable[[Progressed], None] | None = None


class Session(AsyncContextManagerMixin):
    """One participant's presence in a space; an async context manager.

    Inside the block the participant has been welcomed at least once. The block is cancelled, and
    raises :class:`~meup_agent.errors.SessionEnded`, when the gateway will not have us back.

    Args:
        connector: Opens a connection to the gateway.
        token: The participant's token, or a callable that gives it.
        handlers: What is done with what comes.
        settings: How the session behaves.
        where: The gateway's address, for errors and the log.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        token: Token | None,
        handlers: Handlers,
        settings: Settings | None = None,
        where: str = "gateway",
    ) -> None:
        self._settings = settings or Settings()
        self._handlers = handlers
        self._where = where
        self.table = ExchangeTable(
            new_id=new_id, wants=handlers.wants, limits=self._settings.limits
        )
        self.outbox = Outbox()
        self.counters: Counter[str] = Counter()
        """What was dropped and why, by the exchange table's codes."""
        self.welcomed_at: float | None = None
        self._waiters: dict[Key, _Waiter] = {}
        self._welcomed = anyio.Event()
        self._line_welcomed = anyio.Event()
        self._timer_changed = anyio.Event()
        self._timer_at: float | None = None
        self._failure: TransportError | None = None
        self._watchers: set[Watcher] = set()
        self._link = Link(
            connector,
            token=token,
            headers={"MEUP-Protocol": self._settings.dialect},
            line=self,
            backoff=self._settings.backoff,
            where=where,
            on_failure=self._attempt_failed,
        )

    # --- the block ---

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        with unwrapped():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep_connected, name="meup session: connection")
                tasks.start_soon(self._keep_time, name="meup session: timer")
                await self._first_welcome()
                try:
                    yield self
                finally:
                    await self._say_goodbye(tasks)

    async def _first_welcome(self) -> None:
        with anyio.move_on_after(self._settings.first_welcome):
            await self._welcomed.wait()
        if self._welcomed.is_set():
            return
        raise self._failure or CannotConnect(
            f"no welcome came from {self._where} in {self._settings.first_welcome:g} s"
        )

    async def _say_goodbye(self, tasks: TaskGroup) -> None:
        """Withdraw and cancel what is open, give it a moment to leave, and go."""
        cause = Cause(Reason.NO_LONGER_NEEDED, self.table.me, "the participant leaves")
        self.apply(self.table.close(cause, anyio.current_time()))
        if self.table.connected:
            with anyio.move_on_after(FLUSH_SECONDS, shield=True):
                await self.outbox.wait_emptied()
        tasks.cancel_scope.cancel()

    # --- the connection ---

    async def _keep_connected(self) -> None:
        try:
            await self._link.run()
        except SessionEnded as error:
            log.info("%s", error)
            self.apply(self.table.stopped(str(error), anyio.current_time()))
            raise

    async def use(self, transport: Transport) -> None:
        """Use a connection until it ends: one writer beside the reader."""
        self.welcomed_at = None
        self._line_welcomed = anyio.Event()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write, transport, name="meup session: writer")
                await self._read(transport)
                tasks.cancel_scope.cancel()
        finally:
            if self._line_welcomed.is_set():
                self.apply(self.table.connection_lost(anyio.current_time()))

    async def _read(self, transport: Transport) -> None:
        """Take frames in wire order; nothing here waits for a person's code."""
        async for frame in transport:
            try:
                envelope = decode(frame)
            except InvalidEnvelope as error:
                self.counters[error.problem] += 1
                log.warning("left out a frame from the gateway: %s", error)
                continue
            self.apply(self.table.receive(envelope, anyio.current_time()))
            for watcher in self._watchers:
                watcher.put(envelope)
            if self.welcomed_at is None and self.table.connected:
                self._greeted()

    def _greeted(self) -> None:
        self.welcomed_at = anyio.current_time()
        self._line_welcomed.set()
        self._welcomed.set()
        log.info("connected to %s as %r", self._where, self.table.me)

    async def _write(self, transport: Transport) -> None:
        """The one task that sends; it begins when we have been welcomed."""
        await self._line_welcomed.wait()
        while True:
            await self.outbox.wait_filled()
            waiting = self.outbox.take(anyio.current_time())
            if waiting is not None and not await self._transmit(transport, waiting):
                return

    async def _transmit(self, transport: Transport, waiting: Waiting) -> bool:
        """Send one envelope; ``False`` if the connection has ended."""
        if transport.closed is not None:
            self.outbox.put_back(waiting)
            return False
        draft = waiting.draft.replace(ts=waiting.draft.ts or _timestamp())
        try:
            frame = encode(draft, self._settings.dialect)
        except NotExpressible as error:
            log.error("an envelope of ours cannot be said: %s", error)
            return True
        # From here on it may have been sent, and a request is never sent twice.
        is_opening = waiting.priority is Priority.OPEN
        if is_opening:
            self.apply(self.table.sent(draft.id, anyio.current_time()))
        sent = False
        try:
            await transport.send(frame)
            sent = True
        except TransportClosed:
            pass
        finally:
            if not sent and not is_opening:
                self.outbox.put_back(waiting)
        return sent

    def _attempt_failed(self, error: TransportError) -> None:
        self._failure = error

    # --- time ---

    async def _keep_time(self) -> None:
        while True:
            self._timer_changed = anyio.Event()
            self._timer_at = self.table.next_deadline()
            with anyio.CancelScope(
                deadline=float("inf") if self._timer_at is None else self._timer_at
            ):
                await self._timer_changed.wait()
            self.apply(self.table.tick(anyio.current_time()))

    def _watch_timer(self) -> None:
        at = self.table.next_deadline()
        if at is not None and (self._timer_at is None or at < self._timer_at):
            self._timer_changed.set()

    # --- effects ---

    def apply(self, effects: Iterable[Effect]) -> None:
        """Carry out what the exchange table decided, in its order."""
        for effect in effects:
            match effect:
                case Send():
                    self.outbox.put(effect.draft, effect.priority, anyio.current_time())
                case Unsend():
                    self.outbox.remove(effect.id)
                case Start():
                    self._handlers.start(effect.key, effect.work)
                case Cancel():
                    self._handlers.cancel(effect.key, effect.cause)
                case Wake():
                    self._wake(effect.key, effect.ending)
                case Progressed():
                    waiter = self._waiters.get(effect.key)
                    if waiter is not None and waiter.on_progress is not None:
                        waiter.on_progress(effect)
                case Drop():
                    self._dropped(effect)
        self._watch_timer()

    def _wake(self, key: Key, ending: Ending) -> None:
        waiter = self._waiters.get(key)
        if waiter is not None:
            waiter.ending = ending
            waiter.done.set()

    def _dropped(self, drop: Drop) -> None:
        self.counters[drop.why] += 1
        if drop.expected:
            return
        envelope = drop.envelope
        log.warning(
            "dropped %s %s from %r: %s%s",
            envelope.kind,
            envelope.id[:64],
            envelope.sender[:64],
            drop.why,
            _said(envelope) if envelope.kind == kinds.SYSTEM_ERROR else "",
        )

    # --- what handlers and clients use ---

    @property
    def me(self) -> str:
        """Our name in the space."""
        return self.table.me

    def now(self) -> float:
        """Seconds of the loop's clock."""
        return anyio.current_time()

    async def open(
        self,
        draft: Envelope,
        *,
        timeout: float | None,
        parent: Key | None = None,
        wait: Wait = Wait.ADDRESSED,
        idempotent: bool = False,
        fulfills: ProposalKey | None = None,
        on_progress: Callable[[Progressed], None] | None = None,
    ) -> Key:
        """Begin a request or proposal of ours; see :meth:`ExchangeTable.open`.

        Args:
            draft: The request or proposal.
            timeout: Seconds until the wait ends by itself.
            parent: The handler that it is part of.
            wait: Which rejection ends the wait for a proposal.
            idempotent: Send it again after a reconnect.
            fulfills: The proposal that it carries out.
            on_progress: Told of each progress; must return at once.

        Raises:
            AlreadyInProgress: Somebody is fulfilling that proposal already.
            AlreadyDecided: That proposal is no longer pending.
            NotExpressible: Our dialect has no words for it.
        """
        encode(draft, self._settings.dialect)
        await self.outbox.room()
        now = self.now()
        key, effects = self.table.open(
            draft,
            now=now,
            deadline=None if timeout is None else now + timeout,
            parent=parent,
            wait=wait,
            idempotent=idempotent,
            fulfills=fulfills,
        )
        self._waiters[key] = _Waiter(anyio.Event(), on_progress=on_progress)
        self.apply(effects)
        return key

    async def ending(self, key: Key, *, parent: Key | None = None) -> Ending:
        """Wait until an exchange of ours has ended; the handler that waits gives its place free."""
        waiter = self._waiters.get(key)
        if waiter is None:
            return Unsent("the exchange is not open")
        if waiter.ending is None:
            with self._place_given_free(parent):
                await waiter.done.wait()
        assert waiter.ending is not None
        return waiter.ending

    @contextmanager
    def _place_given_free(self, parent: Key | None) -> Generator[None]:
        if parent is None:
            yield
            return
        self.apply(self.table.awaits(parent, 1, self.now()))
        try:
            yield
        finally:
            self.apply(self.table.awaits(parent, -1, self.now()))

    def ended(self, key: Key) -> Ending | None:
        """How an exchange of ours ended; ``None`` while it is open."""
        waiter = self._waiters.get(key)
        return None if waiter is None else waiter.ending

    def give_up(self, key: Key, cause: Cause) -> None:
        """Stop waiting: withdraw or cancel it if it is still open."""
        self.apply(self.table.give_up(key, cause, self.now()))

    def forget(self, key: Key) -> None:
        """Nobody will ask for the ending any more."""
        self._waiters.pop(key, None)

    def reject(self, proposal: ProposalKey, reason: str) -> Envelope:
        """Say no to somebody's proposal; the reject."""
        envelope, effects = self.table.reject(proposal, reason, self.now())
        self.apply(effects)
        return envelope

    def say(
        self,
        kind: str,
        payload: Any,
        *,
        to: tuple[str, ...] = (),
        correlation: tuple[str, ...] = (),
    ) -> Envelope:
        """Send something that begins no exchange."""
        envelope, effects = self.table.say(
            kind, payload, now=self.now(), to=to, correlation=correlation
        )
        self.apply(effects)
        return envelope

    def returned(self, key: Key, result: Any) -> None:
        """A handler has ended well."""
        self.apply(self.table.returned(key, result, self.now()))

    def raised(self, key: Key, code: int, message: str, data: Any = None) -> None:
        """A handler has failed, or has ended cancelled."""
        self.apply(self.table.raised(key, code, message, data, self.now()))

    @contextmanager
    def watch(self) -> Generator[Watcher]:
        """Every envelope from here on, echoes of our own included, as an async iterator."""
        watcher = Watcher()
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)


class Watcher:
    """The envelopes of a space, in the gateway's order.

    Attributes:
        missed: Envelopes dropped because they were not taken in time.
    """

    def __init__(self) -> None:
        self._envelopes: deque[Envelope] = deque(maxlen=WATCHED)
        self._came = anyio.Event()
        self.missed = 0

    def put(self, envelope: Envelope) -> None:
        """Keep an envelope until it is taken."""
        if len(self._envelopes) == WATCHED:
            self.missed += 1
        self._envelopes.append(envelope)
        self._came.set()

    def __aiter__(self) -> Self:
        """The watcher itself."""
        return self

    async def __anext__(self) -> Envelope:
        """Wait for the next envelope."""
        while not self._envelopes:
            self._came = anyio.Event()
            await self._came.wait()
        return self._envelopes.popleft()


def new_id() -> str:
    """128 random bits, in hex."""
    return secrets.token_hex(16)


def _timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(envelope: Envelope) -> str:
    payload = envelope.payload_object
    return f" ({str(payload.get('error'))[:64]!r}: {str(payload.get('message'))[:200]!r})"
