"""The exchange table: events of one participant in, effects for its session out.

Its parts, and what they may call, are listed at the head of this folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from meup_agent.causes import Cause
from meup_agent.errors import IllegalStep, ObservingOnly
from meup_agent.protocol.exchange.dispatcher import InboundDispatcher
from meup_agent.protocol.exchange.effects import Effect, Key, Priority
from meup_agent.protocol.exchange.handlers import HandlerScheduler, Limits
from meup_agent.protocol.exchange.lifecycle import OutboundState
from meup_agent.protocol.exchange.outbound_exchange import FulfillmentTarget, OutboundExchange, Wait
from meup_agent.protocol.exchange.outbound_tracker import OutboundTracker
from meup_agent.protocol.exchange.streams import OwnStream
from meup_agent.protocol.exchange.table_context import (
    CONTROL,
    EXPIRIES,
    EnvelopeSender,
    FindHandler,
    Mode,
    TableContext,
)
from meup_agent.protocol.proposals.fold import Folded, ProposalFold
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.proposals.record import ProposalEntry, ProposalKey
from meup_agent.protocol.proposals.store import ProposalStore
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.control_payloads import Pause
from meup_agent.protocol.wire.envelope import TRANSIT_SECONDS, Envelope
from meup_agent.protocol.wire.outcomes import Ending
from meup_agent.protocol.wire.streams import CANCELLED
from meup_agent.protocol.wire.ttl_map import Tombstones

UNSENT = "the answer could not be sent"
"""The beginning of the error that takes the place of an answer which cannot be sent."""

SPARE_TIMERS = 1024
"""Timers of ended exchanges that are kept before they are looked for."""


class ExchangeTable:
    """The open exchanges of one participant, and the effects of each event (PROTOCOL 4 and 5).

    Each method applies one event and returns the effects, in the order in which they must happen.
    ``now`` is the time in seconds of one monotonic clock. The wall clock tells the time of day in
    UTC, for ``ts`` and for the deadlines that proposers announce (PROTOCOL 6); without it neither
    is used.
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
        transit: float = TRANSIT_SECONDS,
    ) -> None:
        self._effects: list[Effect] = []
        self._envelope_sender = EnvelopeSender(new_id, wall_clock, self._effects)
        store, tombstones = proposal_store or ProposalStore(), Tombstones()
        self._context = TableContext(
            self._envelope_sender,
            find_handler,
            self._effects,
            store,
            tombstones,
            ProposalFold(store, tombstones),
            wall_clock,
            mode,
            transit=transit,
        )
        self._outbound = OutboundTracker(self._context)
        self._scheduler = HandlerScheduler(self._context, self._outbound, limits or Limits())
        self._dispatcher = InboundDispatcher(self._context, self._outbound, self._scheduler)
        self._control = self._dispatcher.control
        self.roster: Final = self._context.roster
        self.proposal_store: Final = self._context.proposal_store
        # The words that explain rejects of our proposals, and withdraws of others'.
        self.explanations: Final = self._dispatcher.reader.explanations
        # Open streams, and their readers and writers.
        self.streams: Final = self._dispatcher.streams
        self.new_id: Final = new_id
        # Gives an envelope of ours the time of day, which it keeps when it is sent again.
        self.date: Final = self._envelope_sender.date

    # --- state ---

    @property
    def connected(self) -> bool:
        """True if we have been welcomed on the present connection."""
        return self._context.connected

    @property
    def seq(self) -> int | None:
        """The number of the last envelope that we have read; ``None``: none has had any."""
        return self._context.cursor.seq

    @property
    def caught_up(self) -> bool:
        """True if we have read what we missed, so that what comes is new."""
        return self._context.cursor.until is None

    def offer(self, record: ProposalEntry, now: float) -> list[Effect]:
        """Offer an open proposal to our handlers that was listed (4.6)."""
        self._begin(now)
        self._dispatcher.proposals.offer(record)
        return self._flush()

    def add_inbox(self, count: int) -> None:
        """Note an inbox from which a person decides what no handler does; -1: it is closed."""
        self._context.inboxes += count

    @property
    def is_complete(self) -> bool:
        """True if the last welcome continues what we had read, and nothing of it is lost."""
        return self._context.cursor.complete

    @property
    def running(self) -> int:
        """Handlers that have begun and not ended."""
        return self._scheduler.limiter.running

    @property
    def queued(self) -> int:
        """Handlers that wait to begin."""
        return self._scheduler.limiter.queued

    @property
    def waiting(self) -> int:
        """Requests and proposals of our own that are open."""
        return len(self._outbound)

    @property
    def pause(self) -> Pause | None:
        """The pause that we keep at this moment."""
        return self._control.pause

    def is_open(self, key: Key) -> bool:
        """True if an exchange has not ended yet."""
        if key.side == "out":
            return self._outbound.find_open(key.id) is not None
        if key == CONTROL:
            return True
        if key == EXPIRIES:
            return self._context.proposal_store.next_expiry is not None
        return self._scheduler.find(key) is not None

    def is_sent(self, key: Key) -> bool:
        """True if an exchange of ours is open and has left, so that its end has to be said."""
        exchange = self._outbound.find_open(key.id)
        return exchange is not None and exchange.state is OutboundState.WAITING

    @property
    def folded(self) -> Folded:
        """The effect of the last envelope on the proposals."""
        return self._context.folded

    def moment(self, now: float) -> int | None:
        """The gateway's time in microseconds since 1970, else our own (PROTOCOL 6)."""
        self._begin(now)
        return self._context.moment()

    def state_of(self, record: ProposalEntry, now: float) -> ProposalState:
        """The state of a proposal at this moment, also where no event has shown it yet."""
        self._begin(now)
        return self._context.state_of(record)

    def has_declined(self, record: ProposalEntry) -> bool:
        """True if we have decided to reject a proposal, in this or another process of ours."""
        return self._context.has_declined(record)

    def addressees(self, key: Key) -> tuple[str, ...]:
        """The addressees of an open exchange of ours; empty: all, or it has ended."""
        exchange = self._outbound.find_open(key.id)
        return () if exchange is None else exchange.draft.to

    def is_blocked(self, key: Key) -> bool:
        """True if a proposal of ours waits for others of ours to be fulfilled."""
        exchange = self._outbound.find_open(key.id)
        return exchange is not None and exchange.is_blocked

    def next_deadline(self) -> float | None:
        """The time at which :meth:`tick` has something to do; an earlier one does no harm."""
        return self._context.timers[0][0] if self._context.timers else None

    # --- our own verbs ---

    def check_may_send(self, kind: str) -> None:
        """Raise ObservingOnly if this table's mode does not let its user send."""
        if self._context.mode is Mode.OBSERVING and kind != kinds.LIST_PROPOSALS:
            raise ObservingOnly(
                f"the {kind} was not sent: this space is only observed; "
                "join without observe=True to take part"
            )

    def open(
        self,
        draft: Envelope,  # its id becomes the exchange's
        *,
        now: float,
        deadline: float | None,
        parent: Key | None = None,  # the handler that it is part of, and ends with
        wait: Wait = Wait.ADDRESSED,
        idempotent: bool = False,  # it is sent again after a reconnect, under the same id
        fulfills: FulfillmentTarget | None = None,
        # Each progress gives it so many seconds more, up to the latest.
        patience: float | None = None,
        latest: float = math.inf,
        # Proposals of ours that must be fulfilled before it is sent, with their endings where the
        # caller knows them; its deadline is ``ttl`` seconds from then.
        depends_on: Mapping[str, Ending | None] | None = None,
        ttl: float | None = None,
    ) -> tuple[Key, list[Effect]]:
        """Begin a request or a proposal of our own.

        In a handler that is being cancelled it ends in the same step and is not sent: the handler
        may be a thread, which nothing else stops.

        Raises:
            AlreadyInProgress: The proposal that it fulfills is being fulfilled already.
            AlreadyDecided: That proposal is no longer pending, or has certainly expired.
            AmbiguousProposal: It does not tell which of several proposals it carries out.
            ParticipantGone: That proposal's proposer has left.
            IllegalStep: The handler has ended; what it began would outlive it.
            ObservingOnly: We only observe.
            Refused: We are paused.
            UsageError: It depends on what is not a proposal of ours, on itself, or on too many.
        """
        self._begin(now)
        self.check_may_send(draft.kind)
        self._control.check_held(draft.kind)
        handler = None if parent is None else self._scheduler.find(parent)
        if parent is not None and handler is None:
            raise IllegalStep(
                f"the handler of {parent.id} has ended and begins nothing more; "
                "await what belongs to it, or begin it outside of any handler"
            )
        key = Key("out", self._context.me, draft.id)
        exchange = OutboundExchange(
            key,
            self.date(draft),
            deadline,
            parent,
            wait,
            idempotent,
            fulfills,
            patience,
            latest,
            ttl,
        )
        self._outbound.open(exchange, depends_on)
        if handler is not None and fulfills is not None and fulfills.even_if_gone:
            handler.outlasts_sender = True
        if handler is not None and handler.cause is not None:
            self._outbound.give_up(key, handler.cause)
        # Most timers on a busy day are of exchanges that have ended.
        spare = len(self._context.timers) - SPARE_TIMERS
        if spare > 0 and spare > 4 * (self.waiting + self.running + self.queued):
            self._context.forget_timers(self.is_open)
        return key, self._flush()

    def renew(self, key: Key, seconds: float, now: float) -> tuple[Envelope, list[Effect]]:
        """Give a proposal of ours more time from now on; the renewal, and the effects.

        Raises:
            AlreadyDecided: It is not pending any more.
            UsageError: It has no deadline, or cannot have that one.
        """
        self._begin(now)
        return self._outbound.renewals.renew(key, seconds), self._flush()

    def give_up(self, key: Key, cause: Cause, now: float) -> list[Effect]:
        """End the wait of a caller that gave up: withdraw a proposal, cancel a request."""
        self._begin(now)
        self._outbound.give_up(key, cause)
        return self._flush()

    def keep(self, key: Key) -> bool:
        """Leave a proposal open when we leave; ``False``: it does not say that it outlives us."""
        return self._outbound.keep(key)

    def open_proposals(self) -> list[tuple[Key, ProposalEntry]]:
        """Our open proposals, oldest first; one that waits for others has a record of its own."""
        return [
            (each.key, each.record or ProposalEntry.of(each.draft))
            for each in self._outbound.open_proposals()
        ]

    def withdraw_all(
        self, keys: Iterable[Key], cause: Cause, now: float, *, joint: bool
    ) -> list[Effect]:
        """Withdraw proposals of ours; ``joint``: together, where the dialect names several."""
        self._begin(now)
        self._outbound.withdraw_all(keys, cause, joint=joint)
        return self._flush()

    def reject(
        self,
        proposal: ProposalKey,
        reason: str,
        now: float,
        meta: payloads.JsonObject | None = None,
    ) -> tuple[Envelope, list[Effect]]:
        """Reject a proposal; the reject, and the effects."""
        self._begin(now)
        self.check_may_send(kinds.MCP_REJECT)
        return self._dispatcher.proposals.reject(proposal, reason, meta), self._flush()

    def send(
        self,
        kind: str,
        payload: Any,
        *,
        now: float,
        to: tuple[str, ...] = (),
        correlation: tuple[str, ...] = (),
        context: str | None = None,
    ) -> tuple[Envelope, list[Effect]]:
        """Send an envelope that begins no exchange: chat, progress, any other kind."""
        self._begin(now)
        self.check_may_send(kind)
        if kind != kinds.MCP_REQUEST:  # a notification, which a pause lets pass
            self._control.check_held(kind)
        envelope = self._envelope_sender.send(
            kind,
            payload,
            priority=Priority.TALK,
            to=to,
            correlation=correlation,
            context=context,
        )
        return envelope, self._flush()

    # --- streams ---

    def request_stream(
        self, payload: payloads.JsonObject, about: tuple[str, ...], now: float
    ) -> tuple[OwnStream, list[Effect]]:
        self._begin(now)
        self.check_may_send(kinds.STREAM_REQUEST)
        return self.streams.request(payload, about), self._flush()

    def close_stream(self, own: OwnStream, reason: str, text: str, now: float) -> list[Effect]:
        """End a stream of ours; another participant's we only write no more."""
        self._begin(now)
        self.streams.close(own, reason, text)
        return self._flush()

    def end_unsendable_stream(self, stream: str, why: str, now: float) -> list[Effect]:
        """End a stream of ours whose frames our connection does not carry."""
        self._begin(now)
        self.streams.unsendable(stream, why)
        return self._flush()

    def receive_frame(self, stream: str, data: bytes, now: float) -> list[Effect]:
        self._begin(now)
        return self._flush() if self.streams.receive_frame(stream, data) else []

    # --- handlers ---

    def count_waits(self, handler: Key, change: int, now: float) -> list[Effect]:
        """Count a wait that a handler begins (+1) or ends (−1); its slot is free meanwhile."""
        self._begin(now)
        self._scheduler.count_waits(handler, change)
        return self._flush()

    def returned(self, key: Key, result: Any, now: float) -> list[Effect]:
        """End a handler that returned; a result that JSON cannot hold raises NotExpressible."""
        self._begin(now)
        self._scheduler.returned(key, result)
        return self._flush()

    def raised(
        self, key: Key, code: int, message: str, data: Any, now: float, *, begun: bool = True
    ) -> list[Effect]:
        """End a handler that raised, was cancelled, or never began and so carried nothing out."""
        self._begin(now)
        self._scheduler.raised(key, code, message, data, begun=begun)
        return self._flush()

    # --- the connection, the clock, our own end ---

    def receive(self, envelope: Envelope, now: float, seq: int | None = None) -> list[Effect]:
        """Apply an envelope, with its number where the gateway gives it one (PROTOCOL 6)."""
        self._begin(now)
        self._dispatcher.receive(envelope, seq)
        return self._flush()

    def sent(self, envelope_id: str, now: float) -> tuple[bool, list[Effect]]:
        """Note that an envelope of ours leaves; ``False``: a request or proposal that is not to."""
        self._begin(now)
        return self._outbound.sent(envelope_id), self._flush()

    def unsendable(self, envelope_id: str, why: str, now: float) -> list[Effect]:
        """Fail an envelope of ours that has no wire form, or that closed the connection.

        The latter is PROTOCOL 3 (1007 and 1009). It is not sent again; in a response's place the
        requester gets an error.
        """
        self._begin(now)
        payload: dict[str, object] = {"error": "connection_closed", "message": why}
        self._outbound.refused(envelope_id, payload)
        self.streams.refused((envelope_id,), payload)
        unsent = self._envelope_sender.forget(envelope_id)
        answer = {} if unsent is None else unsent.payload_object
        error = payloads.as_object(answer.get("error"))
        # The error is not replaced in its turn: that would go on for ever.
        replaceable = bool(error) and not str(error.get("message")).startswith(UNSENT)
        if unsent is not None and ("result" in answer or replaceable):
            message = f"{UNSENT}: {why}"
            self._envelope_sender.send(
                unsent.kind,
                payloads.error(answer["id"], payloads.INTERNAL_ERROR, message),
                priority=Priority.ANSWER,
                to=unsent.to,
                correlation=unsent.correlation,
                concerned=unsent.to,
            )
        return self._flush()

    def connection_lost(self, now: float) -> list[Effect]:
        """Note the end of a connection; there will be another."""
        self._begin(now)
        self._context.connected = False
        self._outbound.connection_lost()
        self._scheduler.connection_lost()
        return self._flush()

    def stopped(self, why: str, now: float) -> list[Effect]:
        """End every wait: the connection has ended and there will be no other."""
        self._begin(now)
        self._context.connected = False
        self._outbound.stopped(why)
        self.streams.stopped(why)
        return self._flush()

    def tick(self, now: float) -> list[Effect]:
        """Look at every exchange whose time has come."""
        self._begin(now)
        while (key := self._context.due()) is not None:
            if key == EXPIRIES:
                self._scheduler.expire()
            elif key == CONTROL:
                self._control.check_deadlines()
            elif key.side == "out":
                self._outbound.check_deadline(key)
            else:
                self._scheduler.check_absence(key)
        return self._flush()

    def expire(self, now: float) -> list[ProposalEntry]:
        """End the proposals whose time is over, as :meth:`tick` does; these."""
        self._begin(now)
        return self._scheduler.expire()

    def shutdown(self, now: float) -> list[Effect]:
        """Take nothing new; what is queued is answered ``busy``."""
        self._begin(now)
        self._context.closing = True
        self._scheduler.shutdown()
        self.streams.shutdown()
        return self._flush()

    def shutdown_over(self, now: float) -> list[Effect]:
        """Cancel what still runs after the grace, and answer so."""
        self._begin(now)
        self._context.closing = True
        self._scheduler.shutdown()
        self._scheduler.shutdown_over()
        return self._flush()

    def close(self, cause: Cause, now: float) -> list[Effect]:
        """End every request, proposal and stream of our own."""
        self._begin(now)
        self._outbound.give_up_all(cause)
        self.streams.close_all(CANCELLED, str(cause))
        return self._flush()

    def _begin(self, now: float) -> None:
        """Tell each part the time of an event, or of a question."""
        self._context.now = self._envelope_sender.now = now

    def _flush(self) -> list[Effect]:
        if self.proposal_store.watches_more:
            self._context.watch_expiries()
        effects = self._effects[:]
        self._effects.clear()
        return effects
