"""The effect of each envelope on the proposals of a store: one step for each kind.

The exchange table of an agent and the audit of a journal take the same steps. What follows from one
for handlers, waits and steps of a record is theirs.
"""

from __future__ import annotations

from typing import NamedTuple

from meup_agent.causes import Cause, Reason, read_reason
from meup_agent.protocol.proposals.lifecycle import ProposalEvent, ProposalState
from meup_agent.protocol.proposals.record import (
    FulfillingRequest,
    ProposalEntry,
    ProposalKey,
    fingerprint_of,
    names_of,
)
from meup_agent.protocol.proposals.resolution import (
    Doubt,
    executors_of,
    find_answered,
    resolve,
)
from meup_agent.protocol.proposals.store import ProposalStore
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.outcomes import Rejection, read_report
from meup_agent.protocol.wire.ttl_map import Tombstones


class Folded(NamedTuple):
    """The effect of an envelope."""

    # The proposal that it is about; ``None`` where there is none that is known.
    record: ProposalEntry | None = None
    # The fulfilling request that it is, or that it answers.
    fulfillment: FulfillingRequest | None = None
    doubt: Doubt | None = None  # the reason for which it cannot be told which proposal it means
    was_pending: bool = True  # the proposal was pending before; ``True`` where there is none
    # The reason why it changed nothing, as the exchange table drops it; empty: it did.
    dropped: str = ""
    # The proposal in whose place a new one stands, which its proposer wants no more.
    replaced: ProposalEntry | None = None

    @property
    def rejection(self) -> Rejection | None:
        """The rejection that its proposer takes for an answer, if the envelope ends it so."""
        record = self.record
        if record is None or not self.was_pending or record.state is not ProposalState.REJECTED:
            return None
        return record.rejections.get(record.decided_by or "")


NOTHING = Folded()


class ProposalFold:
    """Takes envelopes into a store of proposals, in the order of the gateway.

    In every method ``now`` are seconds of a clock that only goes forward, by which what is old is
    forgotten, and ``at`` is the gateway's time, in microseconds since 1970 (UTC), as far as known.
    """

    def __init__(self, store: ProposalStore, tombstones: Tombstones) -> None:
        self._store = store
        self._tombstones = tombstones

    def propose(
        self,
        proposal: Envelope,
        now: float,
        at: int | None,
        *,
        is_new: bool,
        expires_at: int | None = None,
    ) -> Folded:
        """Enter a proposal, in place of an older one of its proposer's under the same id.

        ``is_new``: it has a number of its own, so it does not copy what came before. ``expires_at``
        is its deadline where the gateway tells it.
        """
        store, key = self._store, ProposalKey(proposal.sender, proposal.id)
        known, replaced = store.get(key, now), None
        if known is not None:
            same = known.fingerprint == fingerprint_of(proposal)
            if same and _is_copy(known, is_new=is_new):
                return Folded(
                    known, was_pending=known.state.is_pending, dropped="duplicate_proposal"
                )
            # Its proposer began to count ids anew, and waits for the older one no more.
            if known.step(ProposalEvent.WITHDRAWAL, key.proposer, Reason.NO_LONGER_NEEDED):
                replaced = known
        record = store.add(proposal, now, accepted=at)
        record.unnumbered = not is_new
        if expires_at is not None and expires_at != record.expires_at:
            store.set_deadline(record, expires_at)
        withdrawn = self._tombstones.get("withdrawn", *key, now)
        if withdrawn is not None:
            record.withdrawn({"reason": withdrawn}, at)
        return Folded(record, replaced=replaced)

    def renew(self, renewal: Envelope, now: float, at: int | None) -> Folded:
        """Move the deadline of a proposal (PROTOCOL 4.17)."""
        until = payloads.read_renewal(renewal.payload_object)
        if until is None or len(renewal.correlation) != 1:
            return Folded(dropped="malformed_renew")
        name = renewal.correlation[0]
        record = self._store.get(ProposalKey(renewal.sender, name), now)
        if record is None:
            by_another = bool(self._store.under(name, now))
            return Folded(dropped="renew_by_another" if by_another else "unknown_renew")
        refused = self._store.renew(record, until, at)
        return Folded(record, dropped="late_renew" if refused else "")

    def report(self, report: Envelope, now: float) -> Folded:
        """Note what came of a permit: its proposer's word, once (PROTOCOL 4.20)."""
        said = read_report(report.payload_object)
        if said is None or len(report.correlation) != 1:
            return Folded(dropped="malformed_report")
        name = report.correlation[0]
        record = self._store.get(ProposalKey(report.sender, name), now)
        if record is None:
            by_another = bool(self._store.under(name, now))
            return Folded(dropped="report_by_another" if by_another else "unknown_report")
        late = not record.reported(said)
        return Folded(record, was_pending=False, dropped="late_report" if late else "")

    def withdraw(
        self, key: ProposalKey, payload: payloads.JsonObject, now: float, at: int | None
    ) -> Folded:
        """End a proposal that its proposer withdraws, also one that is still to come."""
        record = self._store.get(key, now)
        if record is None:
            # Two proposers may use one id, and this one's proposal may be still to come.
            reason = read_reason(payload.get("reason"))
            self._tombstones.put("withdrawn", *key, reason, now)
            is_known = bool(self._store.under(key.id, now))
            return Folded(dropped="withdraw_by_another" if is_known else "")
        if not record.withdrawn(payload, at):
            record.unordered = False
            return Folded(record, was_pending=False, dropped="late_withdraw")
        return Folded(record)

    def reject(self, reject: Envelope, now: float) -> Folded:
        """Note a rejection (PROTOCOL 4.5)."""
        means = resolve(reject, self._store, now)
        record = means.record
        if record is None:
            unknown = means.doubt is None
            why = "unknown_reject" if unknown else "ambiguous_reject"
            return Folded(doubt=means.doubt, dropped=why)
        was_pending, why = record.state.is_pending, ""
        if reject.sender == record.key.proposer:
            why = "reject_of_own_proposal"
        elif (
            record.rejected(
                reject.sender, read_reason(reject.payload_object.get("reason")), reject.id
            )
            is None
        ):
            why = "duplicate_reject"
        return Folded(record, was_pending=was_pending, dropped=why)

    def request(
        self,
        request: Envelope,
        call: payloads.Call,
        now: float,
        at: int | None = None,
        *,
        live: bool = True,
        unattended: bool = False,
    ) -> Folded:
        """Enter a request in the proposal that it carries out, if it does (PROTOCOL 4.4).

        ``at`` lets the proposal expire before it; without it, the gateway took it in time. One that
        is not ``live`` was cancelled, and counts only if a result comes all the same.
        """
        if not request.correlation:
            return NOTHING
        store = self._store
        record, doubt, _ = resolve(request, store, now, call)
        if record is None or request.sender == record.key.proposer:
            return Folded(record, doubt=doubt)
        was_pending = record.state.is_pending
        known = record.fulfillment(request.sender, request.id)
        if known is not None:
            if fingerprint_of(known.envelope) == fingerprint_of(request):
                if not live:  # its cancel was lost with a gap
                    store.not_carried_out(record, known)
                return Folded(record, known, was_pending=was_pending)
            store.not_carried_out(record, known)  # another one under its id takes its place
        record.expire(at)
        fulfillment = FulfillingRequest(
            request.replace(),
            executors_of(record, request),
            live=live,
            unattended=unattended,
            names=names_of(request, call),
        )
        entered = store.requested(record, fulfillment, now)
        return Folded(record, entered, was_pending=was_pending)

    def cancel(
        self, requester: str, names: tuple[str, ...], now: float, cause: Cause | None = None
    ) -> ProposalEntry | None:
        """Let the proposal of a cancelled request wait again; the request has one of some names."""
        found = (self._store.request_cancelled(requester, name, now, cause) for name in names)
        return next((record for record in found if record is not None), None)

    def answer(self, response: Envelope, payload: object, now: float) -> Folded:
        """Complete the proposal of the request that a response answers, unless it refuses that."""
        found = find_answered(response, self._store, now)
        if found is None:
            return NOTHING
        was_pending = found[0].state.is_pending
        self.complete(*found, response.sender, payload)
        return Folded(*found, was_pending=was_pending)

    def complete(
        self, record: ProposalEntry, fulfillment: FulfillingRequest, by: str, payload: object
    ) -> bool:
        """Take in an answer to a fulfilling request; ``True`` if that was carried out."""
        error = payloads.read_response(payload)[1]
        if error is not None and payloads.is_refusal(payload):
            self._store.refused(record, fulfillment, by, str(error.get("message", "")))
            return False
        is_permit = by == record.proposer and payloads.is_permit(payload) and record.asks_permit
        return self._store.complete(
            record, fulfillment, is_error=error is not None, is_permit=is_permit
        )


def _is_copy(known: ProposalEntry, *, is_new: bool) -> bool:
    """True if the same proposal came before, and is not made a second time (PROTOCOL 6)."""
    if not is_new:
        return True
    # Read elsewhere, or replayed, it may have come before its own place in the order.
    is_copy = known.unnumbered and known.state.is_pending
    known.unnumbered = False
    return is_copy
