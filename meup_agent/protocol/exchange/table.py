"""The exchange table: events of one participant in, effects for its session out, by kind.

Its parts, and what they may call, are listed at the head of this folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from meup_agent.causes import Cause, Reason, cause_of_cancel, read_reason
from meup_agent.errors import IllegalStep, InvalidEnvelope, ObservingOnly
from meup_agent.protocol.dialects import ACKNOWLEDGING
from meup_agent.protocol.exchange.effects import Effect, Key, OutboundState, Priority, Role
from meup_agent.protocol.exchange.handlers import HandlerScheduler, Limits, TablePart, cause_of_end
from meup_agent.protocol.exchange.inbound_calls import (
    ControlMessages,
    InboundProposals,
    InboundRequests,
    ListedProposals,
    SystemMessages,
)
from meup_agent.protocol.exchange.outbound import (
    FulfillmentTarget,
    OutboundExchange,
    OutboundTracker,
    Wait,
)
from meup_agent.protocol.exchange.responses import ResponseReader
from meup_agent.protocol.exchange.streams import OwnStream, StreamTable
from meup_agent.protocol.exchange.table_context import (
    CONTROL,
    EXPIRIES,
    EnvelopeSender,
    FindHandler,
    Mode,
    TableContext,
)
from meup_agent.protocol.proposals import (
    MAX_NAMED,
    NOTHING,
    Folded,
    ProposalEntry,
    ProposalFold,
    ProposalKey,
    ProposalState,
    ProposalStore,
    fingerprint_of,
    resolve,
)
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import TRANSIT_SECONDS, Envelope
from meup_agent.protocol.wire.outcomes import Ending
from meup_agent.protocol.wire.payloads import (
    CONTROL_KINDS,
    GRANT,
    GRANT_ACK,
    REVOKE,
    Call,
    Grant,
    JsonObject,
    Pause,
    Revocation,
    read_acknowledgement,
    read_management,
)
from meup_agent.protocol.wire.streams import CANCELLED
from meup_agent.protocol.wire.ttl_map import Tombstones, TTLMap

MAX_ID_CHARS = 256
"""Characters of an id or a sender's name: these are remembered, and the longest in use have 60."""

GRANTED_COUNT = 1_000
"""Grants to us, to recognize a revocation by its id alone."""

GRANTED_SECONDS = 30 * 24 * 3600.0
"""Grants to us that are remembered, to know a revocation that names nothing but the grant."""

SEEN_COUNT = 20_000
"""Envelopes seen, to recognize one that comes twice."""

SEEN_SECONDS = 600.0
"""Envelopes that are remembered so that one which is delivered twice counts once."""

MALFORMED_CALL: Final = "malformed_call"
"""The counter of calls that are refused before any reader sees them."""


@dataclass
class InboundDispatcher(TablePart):
    """Hands each envelope to the part of the table that it is for."""

    def __post_init__(self) -> None:
        shared = (self._context, self._outbound, self._scheduler)
        self.reader = ResponseReader(*shared)
        self._requests = InboundRequests(*shared, self.reader)
        self.proposals = InboundProposals(*shared, self.reader, self._requests)
        self.control = ControlMessages(*shared)
        self.streams = StreamTable(self._context, self._scheduler)
        self._listed = ListedProposals(*shared, self.proposals, self._requests, _is_sound)
        self._system_messages = SystemMessages(*shared, self.control, self.streams, self._listed)
        self._seen: TTLMap[int, bool] = TTLMap(count=SEEN_COUNT, seconds=SEEN_SECONDS)
        self._granted: TTLMap[str, bool] = TTLMap(count=GRANTED_COUNT, seconds=GRANTED_SECONDS)

    # --- by number ---

    def receive(self, envelope: Envelope, seq: int | None = None) -> None:
        """Apply an envelope, with its number where the gateway gives it one (PROTOCOL 6)."""
        context = self._context
        context.is_new, context.folded = False, NOTHING
        if seq is None or not context.connected:
            self._dispatch(envelope, seq)
            return
        cursor, guarantees = context.cursor, context.roster.guarantees
        if cursor.until is not None and seq > cursor.until:
            self._system_messages.caught_up()
        is_unread = cursor.advance(seq, context.now)
        context.is_new = is_unread and guarantees.resume and guarantees.identity_checked
        if is_unread or self._has_no_number_of_its_own(envelope):
            self._dispatch(envelope, seq)
        else:
            context.drop("duplicate", envelope, expected=True)
        if cursor.until == seq:
            self._system_messages.caught_up()

    def _has_no_number_of_its_own(self, envelope: Envelope) -> bool:
        """True if it is the gateway's word to us alone, or its answer to what we sent again."""
        if envelope.sender in kinds.GATEWAY_NAMES:
            return envelope.kind != kinds.SYSTEM_PRESENCE
        return envelope.sender == self._context.me and self._is_sent_here(envelope.id)

    # --- by sender ---

    def _dispatch(self, envelope: Envelope, seq: int | None) -> None:
        if not _is_readable(envelope):
            self._context.drop("name_too_long", envelope)
            return
        # A request with more ids is refused, so it keeps them all (PROTOCOL 4.4).
        if len(envelope.correlation) > MAX_NAMED and envelope.kind != kinds.MCP_REQUEST:
            envelope = envelope.replace(correlation=envelope.correlation[:MAX_NAMED])
        if envelope.kind.startswith("system/"):
            self._system_messages.receive(envelope, seq)
        elif envelope.sender != self._context.me:
            self._from_others(envelope)
        elif self._is_sent_here(envelope.id):
            self._echo(envelope)
        else:
            self._from_sibling(envelope)

    def _from_others(self, envelope: Envelope) -> None:
        call: Call | None = None
        if envelope.kind in kinds.BEGINNINGS:
            payload = envelope.payload
            if problem := _problem(envelope, payload):
                self._refuse_call(envelope, problem)
                return
            call = payloads.read_call(payload)
        watcher = self._context.find_handler(Role.KIND, envelope, None)
        is_exchange = envelope.kind in kinds.EXCHANGES
        # Only a watcher cares whether an envelope of an exchange came before.
        is_new = (is_exchange and not watcher) or self._is_new(envelope)
        if is_exchange:
            self._exchange(envelope, call)
        elif not is_new:
            self._context.drop("duplicate", envelope, expected=True)
        elif envelope.kind == kinds.CHAT and envelope.concerns(self._context.me):
            if envelope.correlation:
                for explanation in self.reader.explanations.read(envelope, self._context.now):
                    self._scheduler.notify(Role.EXPLANATION, envelope, explanation)
            self._scheduler.notify(Role.CHAT, envelope)
            self._acknowledge(envelope)
        elif envelope.kind == kinds.CHAT_CANCEL and envelope.concerns(self._context.me):
            self._cancel_chat(envelope)
        elif envelope.kind == kinds.CHAT_ACKNOWLEDGE and envelope.concerns(self._context.me):
            self._scheduler.notify(Role.ACKNOWLEDGE, envelope, read_acknowledgement(envelope))
        elif envelope.kind in CONTROL_KINDS:
            self.control.receive(envelope)
        elif envelope.kind in (GRANT, REVOKE):
            self._grant_or_revoke(envelope)
        elif envelope.kind == kinds.PROPOSALS:
            self._listed.receive(envelope)
        elif envelope.kind.startswith("stream/"):
            self.streams.receive(envelope)
        if watcher and is_new:
            self._scheduler.notify(Role.KIND, envelope, handler=watcher)

    def _is_new(self, envelope: Envelope) -> bool:
        """True if it was not delivered before; ids may come again after a restart of a sender."""
        now = self._context.now
        mark = hash((envelope.sender, envelope.id, fingerprint_of(envelope)))
        if self._seen.get(mark, now) is not None:
            return False
        self._seen.put(mark, True, now)
        return True

    def _is_sent_here(self, envelope_id: str) -> bool:
        known = self._context.envelope_sender.is_own(envelope_id)
        return known or self._outbound.knows(envelope_id)

    def _echo(self, envelope: Envelope) -> None:
        """Apply an echo of ours: the gateway has ordered it (PROTOCOL 4.11)."""
        self._outbound.note_echo(envelope.id)
        # Most are requests to others about no other exchange: the copy changes nothing here.
        says_nothing = (
            envelope.kind == kinds.MCP_REQUEST
            and not envelope.correlation
            and self._context.me not in envelope.to
        )
        if envelope.kind in kinds.EXCHANGES and not says_nothing:
            self._exchange(envelope)

    def _from_sibling(self, envelope: Envelope) -> None:
        """Apply what another connection sent in our name; unchecked, the name may be forged.

        Where the gateway checks names it is our own (PROTOCOL 5): one beside, a person who acts
        over HTTP with our token, or a process before this one. All other participants take it for
        us, and so do we.
        """
        if not self._context.roster.guarantees.identity_checked:
            self._context.drop("not_ours", envelope)
            return
        # No caller here waits for the answers.
        self._context.envelope_sender.note_sibling(envelope)
        store, key = self._context.proposal_store, ProposalKey(envelope.sender, envelope.id)
        if envelope.kind == kinds.MCP_PROPOSAL and store.get(key, self._context.now) is None:
            store.add(envelope, self._context.now)
        if envelope.kind in kinds.EXCHANGES:
            self._exchange(envelope)
            self._end_decided(envelope)
        elif envelope.kind.startswith("stream/"):
            self.streams.receive(envelope)

    def _end_decided(self, envelope: Envelope) -> None:
        """End here what a sibling withdrew, rejected, answered or cancelled."""
        me, now = self._context.me, self._context.now
        match envelope.kind:
            case kinds.MCP_WITHDRAW:
                reason = read_reason(envelope.payload_object.get("reason"))
                for name in envelope.correlation:
                    cause = Cause(reason, by=me, id=name, at=now)
                    self._outbound.end_by_sibling(name, kinds.MCP_PROPOSAL, cause)
            case kinds.MCP_REJECT:
                record = resolve(envelope, self._context.proposal_store, now).record
                if record is not None:
                    reason = read_reason(envelope.payload_object.get("reason"))
                    self._scheduler.end_rejected(record, reason)
            case kinds.MCP_RESPONSE:
                # Our handler's answer would be a copy.
                for exchange in self._scheduler.requests.answered_by(envelope):
                    text = "another process of ours answered it"
                    cause = cause_of_end(me, exchange.key.id, Reason.NO_LONGER_NEEDED, text, now)
                    self._scheduler.cancel(exchange, cause)
            case kinds.MCP_REQUEST:
                call = payloads.read_call(envelope.payload)
                request_id = call.params.get("requestId")
                if call.method == kinds.CANCELLED and isinstance(request_id, int | str):
                    name = str(request_id)
                    cause = cause_of_cancel(call.params, by=me, exchange_id=name, at=now)
                    self._outbound.end_by_sibling(name, kinds.MCP_REQUEST, cause)
            case _:
                pass

    def _refuse_call(self, envelope: Envelope, problem: str) -> None:
        """Refuse a call that its readers would read differently, before any of them sees it."""
        self._context.drop(MALFORMED_CALL, envelope)
        if envelope.kind == kinds.MCP_PROPOSAL:
            self.proposals.refuse(envelope)
        else:
            self._requests.refuse(envelope, problem)

    # --- by kind ---

    def _exchange(self, envelope: Envelope, call: Call | None = None) -> None:
        """Apply an envelope of an exchange; ``call`` is that of a request, where it is read."""
        if not envelope.correlation and envelope.kind in kinds.CORRELATED:
            self._context.drop(f"malformed_{envelope.kind.removeprefix('mcp/')}", envelope)
            return
        match envelope.kind:
            case kinds.MCP_PROPOSAL:
                self.proposals.receive(envelope)
            case kinds.MCP_WITHDRAW:
                self.proposals.receive_withdraw(envelope)
            case kinds.MCP_REJECT:
                self.proposals.receive_reject(envelope)
            case kinds.MCP_RENEW:
                self.proposals.receive_renewal(envelope)
            case kinds.MCP_REPORT:
                self.proposals.receive_report(envelope)
            case kinds.MCP_RESPONSE:
                self.reader.receive(envelope)
            case _:
                call = call or payloads.read_call(envelope.payload)
                if call.is_notification:
                    self._notification(envelope, call)
                else:
                    self._requests.receive(envelope, call)

    def _notification(self, envelope: Envelope, call: Call) -> None:
        if len(envelope.correlation) > MAX_NAMED:
            envelope = envelope.replace(correlation=envelope.correlation[:MAX_NAMED])
        if call.method == kinds.CANCELLED:
            self._requests.receive_cancel(envelope, call)
        elif call.method == kinds.PROGRESS:
            self.reader.receive_progress(envelope, call.params)

    def _acknowledge(self, chat: Envelope) -> None:
        """Acknowledge a chat that names us, to a sender whose dialect has acknowledgements."""
        context, sender = self._context, chat.sender
        payload = {"status": "received"}
        if (
            context.mode.answers
            and context.me in chat.to
            and context.roster.dialect_of(sender) in ACKNOWLEDGING
            and context.find_handler(Role.CHAT, chat, None)
            and context.roster.is_allowed(context.me, kinds.CHAT_ACKNOWLEDGE, payload, (sender,))
        ):
            context.envelope_sender.send(
                kinds.CHAT_ACKNOWLEDGE,
                payload,
                priority=Priority.TALK,
                to=(sender,),
                correlation=(chat.id,),
            )

    def _cancel_chat(self, cancel: Envelope) -> None:
        """End the handlers of a chat: its sender, and no other participant, takes it back."""
        if not cancel.correlation:
            self._context.drop("malformed_chat_cancel", cancel)
            return
        reason = read_reason(cancel.payload_object.get("reason"))
        for exchange in self._scheduler.chats(cancel.correlation):
            chat = exchange.work.envelope
            if chat.sender == cancel.sender:
                cause = cause_of_end(cancel.sender, chat.id, reason, "", self._context.now)
                self._scheduler.cancel(exchange, cause)
            else:
                self._context.drop("chat_cancel_by_another", cancel)

    def _grant_or_revoke(self, envelope: Envelope) -> None:
        """Acknowledge a grant to us; tell handlers of it, or of its revocation."""
        now = self._context.now
        if not self._context.mode.answers:
            return
        me, payload = self._context.me, envelope.payload_object
        try:
            read = read_management(envelope, payload)
            if isinstance(read, Grant):
                if read.participant == me:
                    self._granted.put(read.id, True, now)
                    self._context.envelope_sender.send(
                        GRANT_ACK,
                        {"status": "accepted"},
                        priority=Priority.TALK,
                        to=(read.by,),
                        correlation=(read.id,),
                    )
                    self._scheduler.notify(Role.GRANT, envelope, read)
            elif isinstance(read, Revocation):
                ours = self._granted.get(read.grant_id, now) is not None
                if me == read.participant or (ours and not read.participant):
                    self._scheduler.notify(Role.REVOKE, envelope, read)
        except InvalidEnvelope:
            self._context.drop("malformed_grant", envelope)


def _problem(envelope: Envelope, payload: object) -> str:
    """The reason for which a call is not one that every reader reads alike (PROTOCOL 1)."""
    if envelope.kind == kinds.MCP_PROPOSAL:
        return payloads.proposal_problem(payload, envelope.raw_payload)
    return payloads.request_problem(payload)


def _is_sound(call: Envelope) -> bool:
    """True for a request or proposal that every reader reads alike."""
    return _is_readable(call) and not _problem(call, call.payload)


def _is_readable(envelope: Envelope) -> bool:
    """True if its id and its sender's name are short enough to be remembered."""
    return max(len(envelope.id), len(envelope.sender)) <= MAX_ID_CHARS


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
        meta: JsonObject | None = None,
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
        self, payload: JsonObject, about: tuple[str, ...], now: float
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
