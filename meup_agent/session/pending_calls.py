"""Requests and proposals of ours: their beginning, the callers that wait, and their end."""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import msgspec

from meup_agent.errors import UsageError
from meup_agent.protocol.exchange import Priority, Send, Wait
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.outcomes import Unsent
from meup_agent.protocol.wire.payloads import MAX_TTL
from meup_agent.transport.base import Condition, condition_maker

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from meup_agent.causes import Cause
    from meup_agent.protocol.exchange import (
        Effect,
        ExchangeTable,
        FulfillmentTarget,
        Key,
        Progressed,
    )
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.outcomes import Ending
    from meup_agent.session.event_emitter import EventEmitter
    from meup_agent.session.outbox import Outbox
    from meup_agent.tracing import CallSpan


# --- timeouts that callers give ---

EXTENSIONS: Final = 10
"""So many times its timeout a request waits in all, if progress comes and nothing else is said."""


def checked_total(timeout: float | None, total: float | None) -> float:
    """Seconds that a request may wait in all, however often progress comes."""
    if timeout is None or total == math.inf:
        return math.inf
    if total is None:
        return EXTENSIONS * timeout
    if not total >= timeout:
        raise UsageError(
            f"a total_timeout of {total:g} is less than the timeout of {timeout:g} s that it is to"
            " extend; give as much, or more"
        )
    return total


def checked_ttl(seconds: float | None) -> float | None:
    """Seconds for which a proposal waits; ``None`` and infinity are as long as it takes.

    Raises:
        UsageError: It is not a time to wait, or more than readers take for one.
    """
    ttl = checked_timeout(seconds)
    if ttl is not None and ttl > MAX_TTL:
        raise UsageError(
            f"a proposal waits for at most {MAX_TTL:.0f} s; give None for as long as it takes"
        )
    return ttl


def checked_timeout(seconds: float | None) -> float | None:
    """Seconds that a verb may wait, fit to be added to a clock; infinite is as good as ``None``.

    NaN is refused: a comparison with it would never end a wait.
    """
    if seconds is None or seconds == math.inf:
        return None
    if math.isnan(seconds) or seconds < 0:
        raise UsageError(
            f"{seconds} is not a time to wait; give seconds from 0 on, or None for no limit"
        )
    return seconds


# --- requests and proposals of ours ---

log = logging.getLogger("meup_agent.session")

MAX_LOGGED_CHARS: Final = 200
"""Characters of a reason in the log: it may repeat what a stranger gave as theirs."""


class _Waiter(msgspec.Struct):
    done: Condition
    kind: str
    since: float
    on_progress: Callable[[Progressed], None] | None
    span: CallSpan | None
    ending: Ending | None = None


class CallOwner(Protocol):
    """The session whose calls these are."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds of the loop's clock."""
        ...

    def apply(self, effects: Iterable[Effect]) -> None:
        """Carry out what the exchange table decided."""
        ...

    def with_frame(self, said: Envelope) -> Envelope:
        """The envelope with its frame; raises if it has no wire form that a gateway takes."""
        ...

    def check_present(self, kind: str) -> None:
        """Raise if nothing can be sent any more."""
        ...


@dataclass
class PendingCalls:
    """The requests and proposals of ours whose ending a caller waits for, or has not read yet."""

    owner: CallOwner
    table: ExchangeTable
    outbox: Outbox
    events: EventEmitter
    _waits: dict[Key, _Waiter] = field(default_factory=dict["Key", _Waiter], init=False)
    _new_condition: Callable[[], Condition] = field(default_factory=condition_maker, init=False)

    # --- what handlers and clients use ---

    async def open(
        self,
        opening: Envelope,
        *,
        timeout: float | None,
        parent: Key | None = None,
        wait: Wait = Wait.ADDRESSED,
        idempotent: bool = False,
        fulfills: FulfillmentTarget | None = None,
        on_progress: Callable[[Progressed], None] | None = None,
        total: float | None = None,  # with it, each progress lets the timeout begin anew
        depends_on: Mapping[str, Ending | None] | None = None,
        span: CallSpan | None = None,
    ) -> Key:
        """Begin a request or proposal of ours; see :meth:`ExchangeTable.open`.

        Its span, if it has one, ends with it.
        """
        try:
            opening = self.owner.with_frame(self.table.date(opening))
            now = self.owner.now()
            if self.outbox.is_full:
                with anyio.move_on_after(timeout):
                    await self.outbox.room()
            self.owner.check_present(opening.kind)
            key, effects = self.table.open(
                opening,
                now=now,
                deadline=None if timeout is None or depends_on else now + timeout,
                parent=parent,
                wait=wait,
                idempotent=idempotent,
                fulfills=fulfills,
                patience=None if total is None else timeout,
                latest=math.inf if total is None else now + total,
                depends_on=depends_on,
                ttl=timeout,
            )
        except BaseException as error:  # also a cancellation while it waited for room
            if span is not None:
                span.fail(type(error).__qualname__)
                span.end()
            raise
        # Before its effects are carried out: its ending may be among what they lead to.
        self._waits[key] = _Waiter(self._new_condition(), opening.kind, now, on_progress, span)
        if self.events.observers:
            self.events.began(opening, parent)
        self.owner.apply(effects)
        return key

    async def ending(self, key: Key, *, parent: Key | None = None) -> Ending:
        """Wait until one has ended; the handler that waits gives its place free."""
        wait = self._waits.get(key)
        if wait is None:
            return Unsent("the exchange is not open")
        while wait.ending is None:
            if parent is None:
                await wait.done.wait()
                continue
            with self.release_slot(parent):
                await wait.done.wait()
        return wait.ending

    @contextmanager
    def release_slot(self, parent: Key | None) -> Generator[None]:
        """Give up a handler's place among those that run, for the length of a block."""
        if parent is None:
            yield
            return
        self.owner.apply(self.table.count_waits(parent, 1, self.owner.now()))
        try:
            yield
        finally:
            self.owner.apply(self.table.count_waits(parent, -1, self.owner.now()))

    def ended(self, key: Key) -> Ending | None:
        """The ending of one; ``None`` while it is open."""
        wait = self._waits.get(key)
        return None if wait is None else wait.ending

    def give_up(self, key: Key, cause: Cause) -> list[Envelope]:
        """Withdraw or cancel one if it is still open; what is said for that."""
        return self._end(self.table.give_up(key, cause, self.owner.now()))

    def withdraw_all(self, keys: Iterable[Key], cause: Cause, *, joint: bool) -> list[Envelope]:
        """Withdraw proposals that are still open; what is said for that."""
        return self._end(self.table.withdraw_all(keys, cause, self.owner.now(), joint=joint))

    def _end(self, effects: list[Effect]) -> list[Envelope]:
        self.owner.apply(effects)
        return [
            effect.draft
            for effect in effects
            if isinstance(effect, Send) and effect.priority is Priority.END
        ]

    def renew(self, key: Key, seconds: float) -> str:
        """Give a proposal more time; the id of what is said for that."""
        renewal, effects = self.table.renew(key, seconds, self.owner.now())
        self.owner.apply(effects)
        return renewal.id

    def leave(self, key: Key, cause: Callable[[], Cause]) -> Ending | None:
        """Ask for one no more, which gives it up if it is open; its ending."""
        if self._waits[key].ending is None:
            self.give_up(key, cause())
        return self._waits.pop(key).ending

    def drop(self, key: Key) -> Ending | None:
        """Wait for one no more, and leave it open; its ending, if it has ended."""
        return self._waits.pop(key).ending

    # --- what the table tells ---

    def end(self, key: Key, ending: Ending) -> None:
        """Note the ending, and wake its callers."""
        wait = self._waits.get(key)
        if wait is None:
            return
        # Observers and the span are told of the first ending; callers get the last one.
        if self.events.observers and wait.ending is None:
            self.events.ended(key, wait.kind, ending, self.owner.now() - wait.since)
        if wait.span is not None and wait.ending is None:
            wait.span.end_by(ending)
        wait.ending = ending
        wait.done.notify_all()

    def progressed(self, progress: Progressed) -> None:
        wait = self._waits.get(progress.key)
        if wait is not None and wait.on_progress is not None:
            wait.on_progress(progress)


def log_cancel(said: Envelope) -> None:
    """Log it, if it is a cancel."""
    if said.kind != kinds.MCP_REQUEST:
        return
    call = payloads.read_call(said.payload)
    if call.method == kinds.CANCELLED:
        log.info(
            "cancelled our request %r to %r: %r",
            str(call.params.get("requestId"))[:64],
            ", ".join(said.to)[:MAX_LOGGED_CHARS],
            str(call.params.get("reason"))[:MAX_LOGGED_CHARS],
        )
