"""Our own requests and proposals, and what ends each of them (PROTOCOL 5, third table)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from meup_agent.causes import Cause
from meup_agent.protocol.exchange.dependencies import DependentProposals
from meup_agent.protocol.exchange.effects import Key, Priority, Unsend, Wake
from meup_agent.protocol.exchange.fulfillment_check import FulfillmentCheck
from meup_agent.protocol.exchange.lifecycle import (
    OUTBOUND,
    OutboundAction,
    OutboundEvent,
    OutboundState,
)
from meup_agent.protocol.exchange.outbound_exchange import (
    AbsenceWatch,
    OutboundExchange,
    OutboundIndex,
    cause_of,
    deciding_rejection,
    record_end,
    send_end,
    send_withdraws,
    together,
)
from meup_agent.protocol.exchange.outbound_renewals import OutboundRenewals
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.outcomes import (
    Ending,
    GatewayRefused,
    Gone,
    Unknown,
    Unsent,
    Withdrawal,
)
from meup_agent.protocol.proposals.lifecycle import look_up
from meup_agent.protocol.proposals.record import FulfillingRequest, ProposalEntry, ProposalKey
from meup_agent.protocol.proposals.resolution import executors_of
from meup_agent.protocol.proposals.store import MAX_PROPOSALS
from meup_agent.protocol.ttl_map import TTLMap, size_of


class OutboundTracker(OutboundIndex):
    """Tracks every request and proposal of our own that is open, or has ended lately."""

    def __init__(self, context: TableContext) -> None:
        super().__init__(context)
        self._dependents = DependentProposals(context, self)
        self._settled: deque[tuple[str, Ending]] = deque()  # those whose dependents are looked at
        self._check = FulfillmentCheck(context, self)
        self.renewals = OutboundRenewals(context, self)
        self._absence = AbsenceWatch(context)
        self._withdrawn: list[OutboundExchange] | None = None  # those to be withdrawn together
        self._fulfilled: TTLMap[ProposalKey, bool] = TTLMap(
            count=MAX_PROPOSALS, seconds=float("inf")
        )

    def _open_and_offered(self, exchange_id: str) -> OutboundExchange | None:
        """An exchange that is open, and of which others can have heard."""
        exchange = self._open.get(exchange_id)
        return None if exchange is None or exchange.is_blocked else exchange

    def has_fulfilled(self, proposal: ProposalKey) -> bool:
        """True if a fulfilling request of ours has left, and the gateway let it through."""
        return self._fulfilled.get(proposal, self._context.now) is not None

    # --- begun and ended by ourselves ---

    def open(
        self,
        exchange: OutboundExchange,
        depends_on: Mapping[str, Ending | None] | None = None,
    ) -> None:
        """Begin a request or proposal; raises as :meth:`ExchangeTable.open`."""
        if depends_on:
            exchange.state = OutboundState.BLOCKED
            self._dependents.check(exchange, depends_on)
            self._open[exchange.key.id] = exchange
            cause = self._dependents.open(exchange, depends_on)
            if cause is not None or not self._dependents.is_blocked(exchange.key.id):
                self._offer_or_withdraw(exchange.key.id, cause)
            return
        if exchange.fulfilling is not None:
            exchange.record = self._check.check(exchange, exchange.fulfilling)
            if exchange.record is not None:
                exchange.record.holders += 1
        elif exchange.is_proposal:
            accepted = self._context.moment()
            exchange.record = self._context.proposal_store.add(
                exchange.draft, self._context.now, holders=1, accepted=accepted
            )
        self._open[exchange.key.id] = exchange
        self._context.envelope_sender.transmit(exchange.draft, Priority.OPEN)
        self._context.look_again(exchange.deadline, exchange.key)

    def sent(self, envelope_id: str) -> bool:
        """Note that the transport takes an envelope now; ``False``: it is not to leave any more.

        A fulfillment is looked at again here, however long it waited for a connection.
        """
        exchange = self._open.get(envelope_id)
        if exchange is not None and exchange.fulfilling is not None:
            unwanted = self._check.unwanted(exchange, exchange.fulfilling)
            if unwanted is not None:
                self.apply(exchange, OutboundEvent.DEADLINE, unwanted)
                return False
        self._context.envelope_sender.note_sent(envelope_id)
        if exchange is None:
            return False
        self.apply(exchange, OutboundEvent.SENT)
        return True

    def expire_own(self, record: ProposalEntry) -> bool:
        """End our wait for a proposal that expired before our deadline, as when a clock is set."""
        own = self.find_own_proposal(record)
        if own is not None and own.is_open:
            self.apply(own, OutboundEvent.DEADLINE, self._absence.expiry(own))
        return own is not None

    def give_up(self, key: Key, cause: Cause) -> None:
        """End the wait for one: its caller gave up."""
        exchange = self._open.get(key.id)
        if exchange is not None:
            self.apply(exchange, OutboundEvent.GIVE_UP, Withdrawal(key.id, self._context.me, cause))

    def end_by_sibling(self, exchange_id: str, kind: str, cause: Cause) -> None:
        """End what another process under our name has withdrawn or cancelled."""
        exchange = self._open.get(exchange_id)
        if (
            exchange is None
            or exchange.is_blocked
            or exchange.draft.kind != kind
            or exchange.call.method == "initialize"
        ):
            return
        self.note_left(exchange)
        self.apply(
            exchange,
            OutboundEvent.ENDED_BY_SIBLING,
            Withdrawal(exchange_id, self._context.me, cause),
        )

    def withdraw_all(self, keys: Iterable[Key], cause: Cause, *, joint: bool) -> None:
        """Withdraw proposals; ``joint``: as many in one envelope as it may name."""
        ended = self._withdrawn = []
        try:
            for key in keys:
                self.give_up(key, cause)
        finally:
            self._withdrawn = None
        guarantees, sender = self._context.roster.guarantees, self._context.envelope_sender
        by_one = together(ended, by_audience=guarantees.hidden_targets)
        for group in by_one if joint else [[exchange] for exchange in ended]:
            send_withdraws(sender, group, cause)

    def give_up_all(self, cause: Cause) -> None:
        """End everything that is open: we leave."""
        for exchange in list(self._open.values()):
            self.give_up(exchange.key, cause)

    def give_up_children(self, parent: Key, cause: Cause) -> None:
        """End what a handler has open: it has been cancelled, or has ended."""
        for exchange in [item for item in self._open.values() if item.parent == parent]:
            self.give_up(exchange.key, cause)

    # --- the connection ---

    def connection_lost(self) -> None:
        """Note for every wait that envelopes may be missed."""
        for exchange in list(self._open.values()):
            self.apply(exchange, OutboundEvent.LOST)

    def welcomed(self) -> None:
        """Send again what is idempotent, and count absence anew."""
        for exchange in list(self._open.values()):
            exchange.missed |= exchange.lost
            self.apply(exchange, OutboundEvent.WELCOME)
        self.presence_changed()

    def caught_up(self) -> None:
        """Take what the gateway had echoed for uninterrupted: we have read all that we missed."""
        for exchange in list(self._open.values()):
            # What it has not taken is sent again, and is so from then on.
            exchange.lost = exchange.lost and not exchange.echoed
        self.presence_changed()

    def presence_changed(self, *, joined: bool = True) -> None:
        """See whose rejection is missing and whose absence counts, after a join or a leave."""
        for exchange in list(self._open.values()):
            if exchange.proposal is not None and not exchange.draft.to:
                if joined:  # a newcomer may decide it, or be followed by one that does
                    exchange.unanswerable_since = None
                self.reconsider(exchange, exchange.proposal)
            self.watch_absence(exchange)

    def stopped(self, why: str) -> None:
        """End every wait: there will be no further connection."""
        for exchange in list(self._open.values()):
            if not exchange.is_open:  # it depended on one of those before it
                continue
            ending = Unknown(why) if exchange.state is OutboundState.WAITING else Unsent(why)
            self.apply(exchange, OutboundEvent.STOPPED, ending)

    def check_deadline(self, key: Key) -> None:
        """End what has passed its deadline, or has been without a participant for too long."""
        now = self._context.now
        exchange = self._open.get(key.id)
        if exchange is None:
            return
        if exchange.deadline is not None and now >= exchange.deadline:
            self.apply(exchange, OutboundEvent.DEADLINE, self._absence.expiry(exchange))
            return
        gone_at = self._absence.gone_at(exchange)
        if gone_at is not None and now >= gone_at:
            ending = self._absence.ending(exchange)
            is_gone = isinstance(ending, Gone)
            event = OutboundEvent.GONE if is_gone else OutboundEvent.REJECTION
            self.apply(exchange, event, ending)
        else:
            self._context.look_again(gone_at, key)
            self._context.look_again(exchange.deadline, key)  # progress may have moved it

    def watch_absence(self, exchange: OutboundExchange) -> None:
        """Look again when the wait would end for want of a participant that could answer."""
        self._context.look_again(self._absence.gone_at(exchange), exchange.key)

    # --- ended by others ---

    def note_echo(self, envelope_id: str) -> None:
        """Note that the gateway has ordered an envelope of ours."""
        exchange = self._open.get(envelope_id) or self._ended.peek(envelope_id)
        if exchange is not None:
            exchange.echoed = True

    def refused(self, envelope_id: str, payload: dict[str, object]) -> bool:
        """End what the gateway refused; true if it is a request or proposal of ours."""
        exchange = self._open_and_offered(envelope_id)
        if exchange is None:
            is_renewal = self.renewals.take_back(envelope_id)
            return is_renewal or self._ended.get(envelope_id, self._context.now) is not None
        error, words = payload.get("error"), payload.get("message")
        code = error if isinstance(error, str) else "error"
        message = f"the gateway refused {exchange.draft.kind} {envelope_id}: {code}"
        if isinstance(words, str) and words:
            message = f"{message} ({words})"
        self.note_left(exchange)
        self.apply(exchange, OutboundEvent.REFUSAL, GatewayRefused(code, message, payload))
        return True

    def end_by_gateway(self, by: str, exchange_id: str, reason: str) -> None:
        """End what the gateway ended in our place; its error may have been lost."""
        if by == self._context.me:
            self.refused(exchange_id, {"error": reason})

    def note_left(self, exchange: OutboundExchange) -> None:
        """Take for sent what others speak of: a connection that broke had taken it along."""
        if exchange.state is OutboundState.UNSENT:
            self.apply(exchange, OutboundEvent.SENT)

    def reconsider(self, exchange: OutboundExchange, record: ProposalEntry) -> bool:
        """End the wait if the rejections so far do that; true if they do."""
        ending = deciding_rejection(exchange, record, self._context.roster)
        if ending is not None:
            self.apply(exchange, OutboundEvent.REJECTION, ending)
        return ending is not None

    # --- the lifecycle ---

    def apply(
        self,
        exchange: OutboundExchange,
        event: OutboundEvent,
        ending: Ending | None = None,
        *,
        cause: Cause | None = None,
    ) -> None:
        """Step an exchange through the lifecycle; a cause given is sent, else the ending's."""
        now = self._context.now
        state, action = look_up(OUTBOUND, exchange.state, event, "an exchange of our own")
        match action:
            case OutboundAction.OFFER:
                self._dependents.offer(exchange)
            case OutboundAction.KEEP | OutboundAction.IGNORE | OutboundAction.LATE:
                pass
            case OutboundAction.NOTE_SENT:
                exchange.lost = False
                if exchange.fulfilling is not None:
                    self._fulfilled.put(exchange.fulfilling.proposal, True, now)
                    self._note_unseen(exchange)
            case OutboundAction.NOTE_LOST:
                exchange.lost = True
            case OutboundAction.SEND_AGAIN:
                if exchange.idempotent:
                    exchange.lost = exchange.missed = False
                    self._context.envelope_sender.transmit(
                        exchange.draft, Priority.OPEN, again=True
                    )
            case OutboundAction.DROP | OutboundAction.DROP_TIMEOUT | OutboundAction.NOT_SENT:
                self._context.effects.append(Unsend(exchange.key.id))
                record_end(exchange, ending, self._context.me)
            case OutboundAction.RESULT | OutboundAction.UNKNOWN:
                pass
            case OutboundAction.REFUSED:
                record_end(exchange, ending, self._context.me)
                if exchange.fulfilling is not None:
                    self._fulfilled.pop(exchange.fulfilling.proposal)
                    self._note_unseen(exchange, ended=True)
            case (
                OutboundAction.END
                | OutboundAction.REJECTED_AND_END
                | OutboundAction.GONE_AND_END
                | OutboundAction.EXPIRED_AND_END
            ):
                guarantees = self._context.roster.guarantees
                record_end(exchange, ending, self._context.me, echo=guarantees.echo)
                if self._withdrawn is not None and exchange.is_proposal:
                    self._withdrawn.append(exchange)
                else:
                    why = cause or cause_of(ending)
                    send_end(self._context.envelope_sender, exchange, ending, why)
                self._note_unseen(exchange, ended=True)
        exchange.state = state
        if action is OutboundAction.NOTE_SENT:
            self.watch_absence(exchange)
        if not exchange.is_open and exchange.ending is None:
            self._close(exchange, ending)

    def _note_unseen(self, exchange: OutboundExchange, *, ended: bool = False) -> None:
        """Enter our own fulfilling request, or its end, where the gateway hides it from us, too.

        Elsewhere its echo does that, in the gateway's order. Without either the proposal would seem
        to be pending for good, and could be fulfilled a second time.
        """
        now = self._context.now
        if exchange.fulfilling is None or not self._context.roster.guarantees.hidden_targets:
            return
        proposal_store, record = self._context.proposal_store, exchange.record
        if ended:
            proposal_store.request_cancelled(self._context.me, exchange.key.id, now)
        elif (
            record is not None and record.fulfillment(exchange.key.sender, exchange.key.id) is None
        ):
            request = exchange.draft.replace()
            proposal_store.requested(
                record, FulfillingRequest(request, executors_of(record, request)), now
            )

    def _close(self, exchange: OutboundExchange, ending: Ending | None) -> None:
        assert ending is not None
        exchange.ending = ending
        if exchange.record is not None:
            exchange.record.holders -= 1
        del self._open[exchange.key.id]
        self._ended.put(exchange.key.id, exchange, self._context.now, size=size_of(exchange.draft))
        self._context.effects.append(Wake(exchange.key, ending))
        if exchange.is_proposal and self._dependents.any_blocked:
            self._settle_dependents(exchange.key.id, ending)

    # --- proposals that depend on others ---

    def _settle_dependents(self, proposal: str, ending: Ending) -> None:
        """Offer, or withdraw, what depends on a proposal that has ended."""
        self._dependents.remove(proposal)
        self._settled.append((proposal, ending))
        if len(self._settled) > 1:
            return  # the loop below takes it: a chain may be longer than the stack
        try:
            while self._settled:
                for name, cause in self._dependents.settle(*self._settled[0]):
                    self._offer_or_withdraw(name, cause)
                self._settled.popleft()
        finally:
            self._settled.clear()

    def _offer_or_withdraw(self, proposal: str, cause: Cause | None) -> None:
        """Offer a blocked proposal; with a cause withdraw it."""
        exchange = self._open[proposal]
        if cause is None:
            self.apply(exchange, OutboundEvent.OFFERED)
        else:
            self.give_up(exchange.key, cause)
