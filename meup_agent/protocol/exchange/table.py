"""The exchange table: the only owner of the state of one participant's exchanges.

Every event goes through it (a frame, a handler's end, a deadline, a caller who gives up, a lost
connection, a welcome, a shutdown) and comes out as effects for the session to carry out. It has no
clock, no tasks and no random numbers, so every race is a sequence of calls on one object.

Times are seconds of one monotonic clock, handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from meup_agent.errors import IllegalStep, ObservingOnly
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.concurrency_limiter import Limits
from meup_agent.protocol.exchange.dispatcher import InboundDispatcher
from meup_agent.protocol.exchange.effects import Effect, Key, Priority
from meup_agent.protocol.exchange.envelope_sender import EnvelopeSender
from meup_agent.protocol.exchange.explanations import RejectExplanations
from meup_agent.protocol.exchange.handler_scheduler import HandlerScheduler
from meup_agent.protocol.exchange.mode import Mode
from meup_agent.protocol.exchange.outbound_exchange import OutboundExchange, Wait
from meup_agent.protocol.exchange.outbound_tracker import OutboundTracker
from meup_agent.protocol.exchange.proposal_store import ProposalKey, ProposalStore
from meup_agent.protocol.exchange.roster import Roster
from meup_agent.protocol.exchange.table_context import FindHandler, TableContext
from meup_agent.protocol.reasons import Cause

UNSENT = "the answer could not be sent"
"""How the error begins that takes the place of an answer which cannot be sent."""

SPARE_TIMERS = 1024
"""Timers of ended exchanges that are kept before anybody looks for them."""


class ExchangeTable:
    """Every open exchange of one participant, and what each event does to it (PROTOCOL 4 and 5).

    Each method applies one event and returns the effects, in the order in which they must happen.

    Args:
        new_id: Draws an id that nobody used before.
        find_handler: Finds the handler for an envelope in a role.
        limits: How much is handled at once.
        wall_clock: Tells the time of day in UTC, for ``ts`` and for what proposers say of their
            deadlines (PROTOCOL 6); without it neither is looked at.
        proposal_store: The proposals seen; ``None``: a store of the usual size.
        mode: How much of the table is at work.
    """

    def __init__(
        self,
        *,
        new_id: Callable[[], str],
        find_handler: FindHandler,
        limits: Limits | None = None,
        wall_clock: Callable[[], datetime] | None = None,
        proposal_store: ProposalStore | None = None,
        mode: Mode = Mode.PARTICIPATING,
    ) -> None:
        self._effects: list[Effect] = []
        self._envelope_sender = EnvelopeSender(new_id, wall_clock, self._effects)
        self._context = TableContext(
            self._envelope_sender,
            find_handler,
            self._effects,
            wall_clock,
            mode,
            proposal_store=proposal_store or ProposalStore(),
        )
        self._outbound = OutboundTracker(self._context)
        self._scheduler = HandlerScheduler(self._context, self._outbound, limits or Limits())
        self._dispatcher = InboundDispatcher(self._context, self._outbound, self._scheduler)

    # --- what can be looked at ---

    @property
    def me(self) -> str:
        """Our own name, as the last welcome said it; empty before the first."""
        return self._context.me

    @property
    def roster(self) -> Roster:
        """Who is present."""
        return self._context.roster

    @property
    def proposal_store(self) -> ProposalStore:
        """The proposals seen."""
        return self._context.proposal_store

    @property
    def explanations(self) -> RejectExplanations:
        """The words that explain rejects of our proposals."""
        return self._dispatcher.explanations

    @property
    def connected(self) -> bool:
        """Whether we have been welcomed on the present connection."""
        return self._context.connected

    @property
    def seq(self) -> int | None:
        """The number of the last envelope that we have read; ``None``: none has had any."""
        return self._context.cursor.seq

    @property
    def caught_up(self) -> bool:
        """Whether we have read what we missed, so that what comes is new."""
        return self._context.cursor.until is None

    @property
    def is_complete(self) -> bool:
        """Whether the last welcome continues what we had read, and nothing of it is lost."""
        return self._context.cursor.complete

    @property
    def running(self) -> int:
        """Handlers that have begun and not ended."""
        return self._scheduler.running

    @property
    def queued(self) -> int:
        """What waits for a handler to begin."""
        return self._scheduler.queued

    @property
    def waiting(self) -> int:
        """Requests and proposals of our own that are open."""
        return len(self._outbound)

    def is_open(self, key: Key) -> bool:
        """Whether an exchange has not ended yet."""
        if key.side == "out":
            return self._outbound.opened(key) is not None
        return self._scheduler.find(key) is not None

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to look at; too early does no harm."""
        return self._context.timers[0][0] if self._context.timers else None

    # --- our own verbs ---

    def check_may_send(self, kind: str) -> None:
        """Check that this table's mode lets its user say something.

        Raises:
            ObservingOnly: We only look on.
        """
        if not self._context.mode.speaks:
            raise ObservingOnly(
                f"the {kind} was not sent: this space is only observed; "
                "join without observe=True to take part"
            )

    def new_id(self) -> str:
        """An id for an envelope of ours."""
        return self._envelope_sender.new_id()

    def date(self, draft: Envelope) -> Envelope:
        """An envelope of ours with the time of day, which it keeps when it is sent again."""
        return self._envelope_sender.date(draft)

    def open(
        self,
        draft: Envelope,
        *,
        now: float,
        deadline: float | None,
        parent: Key | None = None,
        wait: Wait = Wait.ADDRESSED,
        idempotent: bool = False,
        fulfills: ProposalKey | None = None,
        expires: datetime | None = None,
    ) -> tuple[Key, list[Effect]]:
        """Begin a request or a proposal of our own.

        What a handler begins while it is being cancelled ends at once and is not sent: it may be
        a thread, which nothing else stops.

        Args:
            draft: The request or proposal; its id becomes the exchange's.
            now: The time.
            deadline: When the wait ends by itself.
            parent: The handler that it is part of, and ends with.
            wait: Which rejection ends the wait for a proposal.
            idempotent: Send it again after a reconnect, under the same id.
            fulfills: The proposal that this request carries out.
            expires: When its proposer gives that up, by the proposer's clock.

        Raises:
            AlreadyInProgress: Somebody is fulfilling that proposal already.
            AlreadyDecided: That proposal is no longer pending, or has certainly expired.
            AmbiguousProposal: It does not tell which of several proposals it carries out.
            ParticipantGone: That proposal's proposer has left.
            IllegalStep: The handler has ended; what it began would outlive it.
            ObservingOnly: We only look on.
        """
        self.check_may_send(draft.kind)
        handler = None if parent is None else self._scheduler.find(parent)
        if parent is not None and handler is None:
            raise IllegalStep(
                f"the handler of {parent.id} has ended and begins nothing more; "
                "await what belongs to it, or begin it outside of any handler"
            )
        key = Key("out", self._context.me, draft.id)
        exchange = OutboundExchange(
            key,
            self._envelope_sender.date(draft),
            deadline,
            parent,
            wait,
            idempotent,
            fulfills,
            expires=expires,
        )
        self._outbound.open(exchange, now)
        if handler is not None and handler.cause is not None:
            self._outbound.give_up(key, handler.cause, now)
        self._forget_timers()
        return key, self._flush()

    def extend_by_progress(self, key: Key, *, by: float, until: float) -> None:
        """Let the deadline of a request of ours count from its last progress.

        Args:
            key: The request.
            by: Seconds from each progress.
            until: When the wait ends, however often progress comes.
        """
        exchange = self._outbound.opened(key)
        if exchange is not None:
            exchange.patience, exchange.latest = by, until

    def _forget_timers(self) -> None:
        """Drop the timers of what has ended, which most of them are on a busy day."""
        timers = self._context.timers
        if len(timers) > SPARE_TIMERS + 4 * (self.waiting + self.running + self.queued):
            timers[:] = sorted(timer for timer in timers if self.is_open(timer[1]))  # still a heap
            self._context.next_looks = {key: at for at, key in reversed(timers)}

    def give_up(self, key: Key, cause: Cause, now: float) -> list[Effect]:
        """The caller stops waiting: a proposal is withdrawn, a request cancelled."""
        self._outbound.give_up(key, cause, now)
        return self._flush()

    def reject(
        self, proposal: ProposalKey, reason: str, now: float
    ) -> tuple[Envelope, list[Effect]]:
        """Say no to somebody's proposal; the reject, and what to do.

        Raises:
            ObservingOnly: We only look on.
        """
        self.check_may_send(kinds.MCP_REJECT)
        return self._scheduler.reject(proposal, reason, now), self._flush()

    def send(
        self,
        kind: str,
        payload: Any,
        *,
        now: float,
        to: tuple[str, ...] = (),
        correlation: tuple[str, ...] = (),
    ) -> tuple[Envelope, list[Effect]]:
        """Send something that begins no exchange: chat, progress, any other kind.

        Raises:
            ObservingOnly: We only look on.
        """
        self.check_may_send(kind)
        said = self._envelope_sender.send(
            kind, payload, now=now, priority=Priority.TALK, to=to, correlation=correlation
        )
        return said, self._flush()

    def count_waits(self, handler: Key, change: int, now: float) -> list[Effect]:
        """A handler begins (+1) or ends (−1) to await an exchange, and gives its place free."""
        self._scheduler.count_waits(handler, change, now)
        return self._flush()

    # --- handlers ---

    def returned(self, key: Key, result: Any, now: float) -> list[Effect]:
        """A handler has ended well; the result is the answer to a request.

        Raises:
            NotExpressible: The result has no form in JSON; nothing was changed.
        """
        self._scheduler.returned(key, result, now)
        return self._flush()

    def raised(self, key: Key, code: int, message: str, data: Any, now: float) -> list[Effect]:
        """A handler has failed, or has ended because it was cancelled."""
        self._scheduler.raised(key, code, message, data, now)
        return self._flush()

    # --- the connection, the clock, our own end ---

    def sent(self, envelope_id: str, now: float) -> list[Effect]:
        """The transport has taken an envelope of ours."""
        self._outbound.sent(envelope_id, now)
        return self._flush()

    def unsendable(self, envelope_id: str, why: str, now: float) -> list[Effect]:
        """An envelope of ours has no wire form, or the gateway closed the connection for it.

        Of the latter PROTOCOL 3 (1007 and 1009) tells. It fails and is not said again; in a
        response's place the requester gets an error.
        """
        payload: dict[str, object] = {"error": "connection_closed", "message": why}
        self._outbound.refused(envelope_id, payload, now)
        unsaid = self._envelope_sender.forget(envelope_id)
        answer = {} if unsaid is None else unsaid.payload_object
        error = payloads.as_object(answer.get("error"))
        # What takes its place is not replaced in its turn: there would be no end to it.
        replaceable = bool(error) and not str(error.get("message")).startswith(UNSENT)
        if unsaid is not None and ("result" in answer or replaceable):
            message = f"{UNSENT}: {why}"
            self._envelope_sender.send(
                unsaid.kind,
                payloads.error(answer["id"], payloads.INTERNAL_ERROR, message),
                now=now,
                priority=Priority.ANSWER,
                to=unsaid.to,
                correlation=unsaid.correlation,
                concerned=unsaid.to,
            )
        return self._flush()

    def connection_lost(self, now: float) -> list[Effect]:
        """The connection has ended; there will be another."""
        self._context.connected = False
        self._outbound.connection_lost(now)
        self._scheduler.connection_lost(now)
        return self._flush()

    def stopped(self, why: str, now: float) -> list[Effect]:
        """The connection has ended and there will be no other: every wait ends."""
        self._context.connected = False
        self._outbound.stopped(why, now)
        return self._flush()

    def tick(self, now: float) -> list[Effect]:
        """Look at everything whose time has come."""
        while (key := self._context.due(now)) is not None:
            if key.side == "out":
                self._outbound.look(key, now)
            else:
                self._scheduler.look(key, now)
        return self._flush()

    def shutdown(self, now: float) -> list[Effect]:
        """Take nothing new; what is queued is answered ``busy``."""
        self._context.closing = True
        self._scheduler.shutdown(now)
        return self._flush()

    def shutdown_over(self, now: float) -> list[Effect]:
        """The grace is over: cancel what still runs, and answer so."""
        self._context.closing = True
        self._scheduler.shutdown(now)
        self._scheduler.shutdown_over(now)
        return self._flush()

    def close(self, cause: Cause, now: float) -> list[Effect]:
        """Give up everything of our own that is open."""
        self._outbound.give_up_all(cause, now)
        return self._flush()

    # --- what comes from the wire ---

    def receive(self, envelope: Envelope, now: float, seq: int | None = None) -> list[Effect]:
        """An envelope has come; with its number, where the gateway gives it one (PROTOCOL 6)."""
        self._dispatcher.take(envelope, now, seq)
        return self._flush()

    def _flush(self) -> list[Effect]:
        effects = self._effects[:]
        self._effects.clear()
        return effects
