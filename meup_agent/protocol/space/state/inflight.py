"""Requests and proposals in flight in a space, each until it ends, and their lists (PROTOCOL 4.2).

The gateway needs this to limit the open proposals of a participant, to end what it has in
flight and may no longer do, and to know who may answer or withdraw what. The last goes for what
has ended, too, as long as that is remembered: a request to several has several answers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from math import inf
from typing import Any, Final

import msgspec

from meup_agent.causes import Reason, declines, read_reason
from meup_agent.errors import NotExpressible
from meup_agent.protocol.dialects import encode, read_addressees
from meup_agent.protocol.proposals import (
    UNPERMITTED,
    DeadlineHeap,
    ProposalEvent,
    ProposalState,
    choose_addressed,
    renewal_problem,
    resolve,
)
from meup_agent.protocol.space.journal import ProposalChange
from meup_agent.protocol.space.state.indexes import (
    LOST,
    MAX_DECIDED,
    MAX_ORIGINS,
    Answer,
    Broadcast,
    CancelledRequests,
    Consequence,
    EndedItem,
    ItemDecision,
    ItemIndex,
    KnownItem,
    May,
    NotedRejection,
    Notice,
    OpenItem,
    UndecidedProposals,
    draft_refusal,
    gateway_draft,
)
from meup_agent.protocol.space.state.streams import AbsenceTracker
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, encode_leniently, rfc3339
from meup_agent.protocol.wire.membership import (
    ListedDecision,
    ListedProposal,
    ListedRejection,
    ListedRequest,
    ProposalPage,
    ProposalQuery,
)
from meup_agent.protocol.wire.outcomes import PermitReport, read_report
from meup_agent.protocol.wire.payloads import JsonObject, as_object, objects_in, read_told_rule
from meup_agent.protocol.wire.ttl_map import FairTTLMap

# --- tool owners ---
# The owners of tools, learned from the answers to `tools/list` that pass (PROTOCOL 4.4).
#
# A list is its participant's own word. Any participant may name any tool, so a name that several
# have addresses nothing.

MAX_LISTED_TOOLS: Final = 1_000
"""Tools of a participant that are remembered: a list is as long as its participant likes."""


class _ToolList(msgspec.Struct):
    names: dict[str, None] = {}
    is_whole: bool = False  # its last page has passed


class ToolOwners:
    """The tools of each participant, as far as its lists have passed."""

    def __init__(self) -> None:
        self._lists: dict[str, _ToolList] = {}

    def learn(self, participant: str, payload: JsonObject, cursor: str) -> None:
        """Learn from an answer to ``tools/list``; ``cursor`` is that of its request, if any."""
        result, error = payloads.read_response(payload)
        if error is not None:
            if error.get("code") == payloads.METHOD_NOT_FOUND:
                self._lists[participant] = _ToolList({}, is_whole=True)
            return
        page = as_object(result)
        is_last = not isinstance(page.get("nextCursor"), str)
        known = self._lists.get(participant)
        if known is None or (is_last and not cursor):
            # Of a list in pages none is forgotten: two readers may ask for them at the same time.
            known = self._lists[participant] = _ToolList()
        known.is_whole = known.is_whole or is_last
        for tool in objects_in(page.get("tools")):
            name = tool.get("name")
            if len(known.names) >= MAX_LISTED_TOOLS:
                return
            if isinstance(name, str) and len(name) <= payloads.MAX_KEPT_NAME_CHARS:
                known.names[name] = None

    def outdate(self, participant: str) -> None:
        """Note that a participant which has left, or begun anew, may have other tools, too.

        Those that it had count until its next list: else another participant could list one of them
        before that, and be the only one that has it.
        """
        known = self._lists.get(participant)
        if known is not None:
            known.is_whole = False

    def has(self, participant: str, tool: str) -> bool:
        known = self._lists.get(participant)
        return known is not None and tool in known.names

    def may_have(self, participant: str, tool: str) -> bool:
        """True unless all tools of a participant are known, and this one is not among them."""
        known = self._lists.get(participant)
        if known is None or not known.is_whole or len(known.names) >= MAX_LISTED_TOOLS:
            return True
        return tool in known.names or len(tool) > payloads.MAX_KEPT_NAME_CHARS


def _may_report(ended: EndedItem, report: PermitReport) -> bool:
    """True if the end of a call is still to be told: of a permit, or where it ran without one.

    That its program has come back for a permit is told once, before that.
    """
    if not report.is_end:
        return ended.state is ProposalState.PERMITTED and not ended.is_taken
    ran_anyway = ended.state in UNPERMITTED and ended.asks_permit and report.has_run
    return not ended.is_reported and (ended.state is ProposalState.PERMITTED or ran_anyway)


# --- inflight ---

MAX_OPEN_REQUESTS: Final = 1_000
"""Requests of a participant that are remembered as open; the oldest is forgotten first."""

OPEN_SECONDS: Final = 3_600.0
"""Time for which something without a deadline is kept where room is needed: some clients withdraw
nothing that they gave up."""

MAX_RECENT: Final = 500
"""Decided proposals that are kept to be listed; the proposer of most of them loses the oldest
first."""

MAX_RECENT_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the same."""

RECENT_SECONDS: Final = 24 * 3_600.0
"""Time for which they are: as far as a gateway looks back when it starts."""

MAX_KEPT_REASON_CHARS: Final = 64
"""Characters of the reason of a rejection that are kept: each participant may reject everything."""

MAX_OPEN_BYTES: Final = 4 * 1024 * 1024
"""Bytes of frames and payloads that are kept of a participant, to decide about them again."""

TRACKED_KINDS: Final = kinds.EXCHANGES | {kinds.SYSTEM_EXPIRED}
"""The kinds with which something begins or ends, or is decided."""

_REASONS: Final = frozenset(map(str, Reason))

_OPEN_MICROSECONDS: Final = round(OPEN_SECONDS * 1_000_000)


class InFlight:
    """Every open request and proposal of a space, followed from the envelopes that are accepted.

    What has no deadline, or whose end is not told here, counts as open; once it is
    :data:`OPEN_SECONDS` old, it is forgotten where its participant needs the room.
    """

    def __init__(self, *, announces: bool = False) -> None:
        self.tool_owners = ToolOwners()
        self._requests = ItemIndex(MAX_ORIGINS)
        self.proposals = ItemIndex(MAX_DECIDED)
        self._cancelled_requests = CancelledRequests()
        self._begun = self._ended = 0
        # Open proposals by number, and those that were decided lately by proposer and number.
        self._in_order: dict[int, OpenItem] = {}
        self._decided: FairTTLMap[tuple[str, int], OpenItem] = FairTTLMap(
            owner=lambda key: key[0],
            count=MAX_RECENT,
            seconds=RECENT_SECONDS,
            size=MAX_RECENT_BYTES,
        )
        # The time of what is decided at this moment, in microseconds since 1970 (UTC).
        self.at = 0
        self._kept_bytes: dict[str, int] = {}
        self._changes: list[ProposalChange] = []
        self.announces = announces
        self._deadlines = DeadlineHeap(self.is_listed)
        # Each has the participants under an id as keys. Looked at for each envelope.
        self._owners: tuple[Mapping[str, Mapping[str, KnownItem]], ...] = (
            self.proposals.open.by_id,
            self._requests.open.by_id,
            self.proposals.ended.by_id,
            self._requests.ended.by_id,
        )

    @property
    def participants(self) -> frozenset[str]:
        """The participants that have something open."""
        return frozenset((*self._requests.open.by_sender, *self.proposals.open.by_sender))

    def of(self, participant: str) -> tuple[OpenItem, ...]:
        """The open items of a participant: requests, then proposals, the oldest first."""
        return (*self._requests.of(participant), *self.proposals.of(participant))

    @property
    def items(self) -> tuple[OpenItem, ...]:
        return tuple(item for each in self.participants for item in self.of(each))

    def open_in_order(self) -> list[OpenItem]:
        """The open proposals, in the order of their acceptance; expired ones may be among them."""
        return list(self._in_order.values())

    def decided(self, at: int) -> list[OpenItem]:
        """The proposals that were decided lately, in the order of their decisions."""
        return list(self._decided.values(at / 1_000_000))

    def proposed_at(self, proposer: str, proposal: str) -> int | None:
        """The time at which an open proposal was accepted, in microseconds since 1970 (UTC)."""
        item = self.proposals.get((proposer, proposal))
        return None if item is None else item.at

    def state_of(self, proposal: tuple[str, str]) -> ProposalState | None:
        """The state of a proposal, open or ended; ``None``: it was forgotten."""
        sender, proposal_id = proposal
        ended = self.proposals.ended.of(sender).get(proposal_id)
        item = self.proposals.get(proposal) or ended
        return None if item is None else item.state

    def find_other_owner(self, envelope_id: str, sender: str) -> str | None:
        """Another participant that began something under an id, unless the sender did, too."""
        other = None
        for owners in self._owners:
            if envelope_id in owners:  # by a call less than `get`
                for owner in owners[envelope_id]:
                    if owner == sender:
                        return None
                    other = owner
        return other

    def opened_by(self, envelope_id: str) -> tuple[str, ...]:
        """The participants that have something open under an id."""
        shelves = (self.proposals, self._requests)
        return tuple(each.proposer for shelf in shelves for each in shelf.under(envelope_id))

    def named(self, correlation: tuple[str, ...]) -> dict[str, list[KnownItem]]:
        """The proposals that correlation ids name, open or ended, by id."""
        known = {each: [*self.proposals.known(each).values()] for each in correlation}
        return {each: found for each, found in known.items() if found}

    def was_asked(self, participant: str, requests: tuple[str, ...]) -> bool:
        """True if one of some requests asked a participant, and none asked others alone."""
        known = [found for each in requests if (found := [*self._requests.every(each)])]
        for found in known:
            if not any(item.concerns(participant) for item in found):
                return False
        return bool(known)

    def has_begun(self, participant: str, names: Iterable[str]) -> bool:
        """True if a participant began something under one of some ids, open or remembered."""
        shelves = (self._requests, self.proposals)
        return any(participant in shelf.known(name) for name in names for shelf in shelves)

    def begun(self, participant: str, names: Iterable[str]) -> Iterator[OpenItem]:
        """The open requests and proposals of a participant under one of some ids."""
        for name in names:
            for shelf in (self._requests, self.proposals):
                item = shelf.get((participant, name))
                if item is not None:
                    yield item

    def is_open(self, proposer: str, proposal: str, at: int) -> bool:
        item = self.proposals.get((proposer, proposal))
        return item is not None and item.state_at(at).is_pending

    def count(self, participant: str, at: int) -> int:
        """The number of open proposals of a participant; old ones count until they are forgotten.

        Until then they are listed: a person may decide one that waits since yesterday.
        """
        self.expire_unannounced(at)
        return len(self.proposals.open.of(participant))

    def abandoned(self, participant: str, at: int, gone_until: int | None) -> list[OpenItem]:
        """The proposals that are only in the way: expired, too old, or left by a process."""
        return [
            item
            for item in self.proposals.of(participant)
            if _is_too_old(item, at)
            or not item.state_at(at).is_pending
            or (
                gone_until is not None
                and item.at <= gone_until
                and not (item.fulfilling or item.outlives)
            )
        ]

    def drop_abandoned(self, participant: str, at: int, gone_until: int | None) -> None:
        for item in self.abandoned(participant, at, gone_until):
            self._forget(item, at)

    def orphan(self, participant: str) -> None:
        """Note that the process which began what a participant has open is gone for good."""
        for item in self.of(participant):
            item.orphaned = item.beside is None and not item.outlives

    def orphan_lost(self) -> None:
        """Note that what sessions in the process of a gateway before this one proposed is lost."""
        for item in self._in_order.values():
            item.orphaned = item.orphaned or (item.beside == LOST and not item.outlives)

    def orphaned_requests(self, withdraw: Envelope) -> list[OpenItem]:
        """The requests that are out for what a withdraw takes back, and that no process cancels."""
        named = dict.fromkeys(withdraw.correlation)
        found = (self.proposals.get((withdraw.sender, each)) for each in named)
        return [
            request
            for proposal in found
            if proposal is not None
            for request in proposal.fulfilling.values()
            if request.orphaned
        ]

    def track(
        self, envelope: Envelope, payload: JsonObject, at: int, *, beside: int | None = None
    ) -> OpenItem | None:
        """Follow an accepted envelope, of a tracked kind; what begins with it, if anything does."""
        self.at = at
        # The bytes of what has expired are no one's, whenever they were counted last.
        if envelope.kind in kinds.BEGINNINGS:
            self.expire_unannounced(at)
        match envelope.kind:
            case kinds.MCP_PROPOSAL:
                return self._proposed(envelope, payload, at, beside=beside)
            case kinds.MCP_REQUEST:
                return self._requested(envelope, payload, at, beside=beside)
            case kinds.MCP_RESPONSE:
                self._responded(envelope, payload)
            case kinds.MCP_REJECT:
                self._rejected(envelope, payload)
            case kinds.MCP_RENEW:
                self._renewed(envelope, payload)
            case kinds.MCP_REPORT:
                self._reported(envelope, payload)
            case kinds.MCP_WITHDRAW:
                # The gateway's own words come here only when they are read from the journal again.
                by = payloads.on_behalf_of(envelope.sender, payload)
                for proposal in envelope.correlation:
                    self.withdraw(by, proposal, payload, at, said_by=envelope.sender)
            case kinds.SYSTEM_EXPIRED if envelope.sender in kinds.GATEWAY_NAMES:
                self._announced_expired(envelope, payload)
            case _:
                pass
        return None

    def end(self, item: OpenItem, rule: str = "", *, failed: bool = False) -> None:
        """Forget something that has ended; another one under its id stays.

        ``rule`` is that by which a proposal was decided; ``failed``: its answer is an error.
        """
        sender, is_proposal = item.proposer, item.is_proposal
        if is_proposal and not item.state.is_pending:
            self._ended += 1
            item.decision = ItemDecision(self._ended, self.at, rule, failed)
            key = (sender, item.number)
            size = item.size + sum(len(each.raw_payload) for each in item.carried_out or ())
            self._decided.put(key, item, self.at / 1_000_000, size=size)
        shelf = self._shelf_of(item)
        if shelf.get((sender, item.envelope.id)) is not item:
            return
        shelf.end(item)
        self._in_order.pop(item.number, None)
        self._kept_bytes[sender] -= item.size
        if not self._kept_bytes[sender]:
            del self._kept_bytes[sender]
        if is_proposal:
            self._cancelled_requests.forget_all_of(item)
            self._note_change(
                item,
                ended=True,
                by=item.decided_by or "",
                reason="" if item.state is ProposalState.EXPIRED else item.reason or "",
                rule=rule,
                failed=failed,
            )
        proposal = item.fulfills
        if proposal is not None:
            del proposal.fulfilling[item.number]
            # A later result would be about it, which completes an open proposal (4.2).
            if self.is_listed(proposal) and item.whole and not item.was_refused:
                self._cancelled_requests.keep(item, proposal)
            if not proposal.fulfilling and proposal.state is ProposalState.IN_PROGRESS:
                proposal.step(ProposalEvent.REQUEST_CANCELLED, sender)
                self._deadlines.add(proposal)  # its time may have passed meanwhile

    def _shelf_of(self, item: OpenItem) -> ItemIndex:
        return self.proposals if item.is_proposal else self._requests

    def is_listed(self, item: OpenItem) -> bool:
        return self._shelf_of(item).get(item.key) is item

    def end_if_expired(self, item: OpenItem, at: int) -> bool:
        """End a proposal that has expired, which is for good; ``False``: it has not.

        Where that is announced, the announcement ends it, which is due now.
        """
        self.at = at
        if item.state_at(at).is_pending:
            return False
        if not self.announces:
            item.expire(at)
            self.end(item)
        return True

    def _proposed(
        self, envelope: Envelope, payload: JsonObject, at: int, *, beside: int | None
    ) -> OpenItem:
        body = payloads.unwrapped(payload)
        call = payloads.read_call(body)
        proposal = OpenItem(
            envelope,
            at,
            called=payloads.called(body),
            addressees=read_addressees(envelope, call).as_kept(),
            expires_at=call.expiry(at),
            beside=beside,
            outlives=call.outlives,
            asks_permit=call.asks_permit(envelope.sender),
            is_watched=call.is_watched(envelope.sender),
        )
        self._begin(proposal)
        self._note_change(proposal, begins=True)
        self._deadlines.add(proposal)
        return proposal

    def _requested(
        self, envelope: Envelope, payload: JsonObject, at: int, *, beside: int | None
    ) -> OpenItem | None:
        if payload.get("method") == kinds.CANCELLED:
            params = payloads.as_object(payload.get("params"))
            by = payloads.on_behalf_of(envelope.sender, params)
            self._cancelled(by, params.get("requestId"))
        elif not is_notification(payload):
            fulfills = None
            if envelope.correlation:
                fulfills = self._fulfilled_by(envelope, payloads.read_call(payload))
            if fulfills is not None:
                fulfills.step(ProposalEvent.REQUEST, envelope.sender)
            listing = None
            if payload.get("method") == payloads.TOOL_LIST:
                listing = payloads.kept_name(as_object(payload.get("params")).get("cursor"))
            request = OpenItem(
                envelope,
                at,
                rpc_name=payloads.rpc_name(payload.get("id")),
                fulfills=fulfills,
                listing=listing,
                called=payloads.called(payload),
                beside=beside,
            )
            self._begin(request)
            if fulfills is not None:
                request.rule = _rule_in(payload.get("params"))
                fulfills.fulfilling[request.number] = request
            return request
        return None

    def _fulfilled_by(self, request: Envelope, call: payloads.Call) -> OpenItem | None:
        """The open proposal that a request carries out; a proposer does not fulfill its own."""
        record = resolve(request, self.proposals, 0.0, call).record
        return None if record is None or record.proposer == request.sender else record

    def find_proposed(self, request: Envelope, call: payloads.Call) -> list[KnownItem]:
        """The proposals that a request may carry out, also those that were forgotten undecided."""
        means = resolve(request, UndecidedProposals(self.proposals), 0.0, call)
        found = means.named if means.record is None else (means.record,)
        return [each for each in found if each.proposer != request.sender]

    def told_about(self, progress: Envelope) -> OpenItem | None:
        """The proposal of another that waits, and that a progress is about (PROTOCOL 4.9)."""
        # Nearly every progress is about a request.
        if not any(self.proposals.known(each) for each in progress.correlation):
            return None
        item = resolve(progress, self.proposals, 0.0).record
        if item is None or not item.whole or item.state is not ProposalState.PENDING:
            return None
        deciders, sender = item.deciders, progress.sender
        is_others = sender != item.proposer and not (deciders and sender not in deciders)
        return item if is_others else None

    def _cancelled(self, sender: str, request: object) -> None:
        """End the request that a cancel names: by its JSON-RPC id, or by its own (PROTOCOL 4.8)."""
        if not isinstance(request, int | str):
            return
        name = str(request)
        by_id = self._requests.get((sender, name))
        if by_id is None or by_id.rpc_name != name:
            named = (item for item in self._requests.of(sender) if item.rpc_name == name)
            by_id = next(named, by_id)
        if by_id is not None:
            self.end(by_id)

    def _declined(self, proposal: str, sender: str, payload: JsonObject) -> None:
        """Note that a participant has decided, for each of its processes (PROTOCOL 4.4)."""
        reason = read_reason(payload.get("reason"))
        if declines(reason):
            # Its own words are in the journal; what is kept here has a bounded size.
            known = Reason(reason) if reason in _REASONS else Reason.OTHER
            for item in self.proposals.every(proposal):
                if item.state.is_pending:
                    item.declined = {sender: known, **item.declined}

    def renewal_problem(self, renewal: Envelope, until: int, at: int) -> str:
        """The reason why a renewal gives no more time; empty: it does (PROTOCOL 4.17)."""
        sender, proposal = renewal.sender, renewal.correlation[0]
        item = self.proposals.get((sender, proposal))
        if item is not None:
            return renewal_problem(item.state, item.expires_at, until, at, item.renewals)
        ended = self.proposals.ended.under(proposal).get(sender)
        return "it is not known here" if ended is None else f"it is {ended.state}"

    def _renewed(self, envelope: Envelope, payload: JsonObject) -> None:
        until = payloads.read_renewal(payload)
        for proposal in envelope.correlation:
            item = self.proposals.get((envelope.sender, proposal))
            if item is not None and until is not None:
                item.expires_at = until
                item.renewals += 1
                self._note_change(item)

    def report_problem(self, report: Envelope) -> str:
        """The reason why there is nothing to report; empty: there is (PROTOCOL 4.20)."""
        sender, (name,) = report.sender, report.correlation
        ended = self.proposals.ended.of(sender).get(name)
        said = read_report(report.payload_object)
        is_open = self.proposals.get((sender, name)) is not None
        if not is_open and ended is not None and said is not None and _may_report(ended, said):
            return ""
        state = self.state_of((sender, name))
        return "it is not known here" if state is None else f"it is {state}"

    def _reported(self, envelope: Envelope, payload: JsonObject) -> None:
        """Note what came of a permit, as its proposer says."""
        report, sender = read_report(payload), envelope.sender
        for name in envelope.correlation:
            ended = self.proposals.ended.of(sender).get(name)
            if report is None or ended is None or not _may_report(ended, report):
                continue
            item = self._decided.get((sender, ended.number), self.at / 1_000_000)
            if item is not None:
                step = ProposalEvent.REPORT if report.is_end else ProposalEvent.TAKEN
                item.step(step, item.decided_by or "", item.reason)
                item.report = report
            if not report.is_end:
                ended.is_taken = True
                continue
            ended.is_reported, is_permit = True, ended.state is ProposalState.PERMITTED
            if is_permit:
                ended.state = ProposalState.FULFILLED
            self._changes.append(
                ProposalChange(
                    sender,
                    name,
                    "",
                    None,
                    ended.state,
                    ended=True,
                    at=self.at,
                    failed=report.has_failed or not is_permit,
                )
            )

    def withdraw(
        self, sender: str, proposal: str, payload: JsonObject, at: int, *, said_by: str
    ) -> ProposalState | None:
        """End a proposal that its proposer withdraws; its last state, ``None`` if it ended before.

        The reason tells an expiry, and what was rejected before was rejected (PROTOCOL 4.5).
        """
        item = self.proposals.get((sender, proposal))
        if item is None:
            ended = self.proposals.ended.under(proposal).get(sender)
            if ended is not None and ended.state.is_pending:
                # It was forgotten as too old, not as decided.
                ended.state = ProposalState.WITHDRAWN
            return None
        self.at = at
        item.expire(at)
        item.withdrawn(payload, at, said_by)
        decided_by = item.decided_by if item.state is ProposalState.REJECTED else None
        rejection = item.rejections.get(decided_by or "")
        self.end(item, "" if rejection is None else rejection.rule)
        return item.state

    def _rejected(self, reject: Envelope, payload: JsonObject) -> None:
        """Note a rejection of the proposal that its first known id names (PROTOCOL 4.4)."""
        for name in reject.correlation:
            if self.proposals.known(name):
                self._declined(name, reject.sender, payload)
                by = reject.sender
                item = choose_addressed(reject, self.proposals.under(name)).record
                if item is not None and item.proposer != by and item.has_room_for(by):
                    reason = read_reason(payload.get("reason"))[:MAX_KEPT_REASON_CHARS]
                    item.rejections[by] = NotedRejection(reject.id, reason, _rule_in(payload))
                return

    # --- changes ---

    def pop_changes(self) -> tuple[ProposalChange, ...]:
        """The proposals that began, moved their deadline, or ended since the last call."""
        if not self._changes:
            return ()
        changes, self._changes = tuple(self._changes), []
        return changes

    def _note_change(self, item: OpenItem, **more: Any) -> None:
        at = self.at
        if item.state is ProposalState.EXPIRED and item.expires_at is not None:
            at = item.expires_at  # whenever that was noticed
        tool, until = item.called[1], item.expires_at
        self._changes.append(ProposalChange(*item.key, tool, until, item.state, at=at, **more))

    # --- expiries ---

    @property
    def next_expiry(self) -> int | None:
        """The last moment of the next proposal that may expire, in microseconds since 1970."""
        return self._deadlines.next if self.announces else None

    def expire(self, at: int) -> Iterator[OpenItem]:
        """End the proposals whose time is over, and that no withdraw has ended, one by one.

        So that the reader can take the changes of each by itself.
        """
        self.at = at
        for item in self._deadlines.pop_due(at):
            if not self.is_listed(item):
                continue
            item.expire(at)
            if item.state is ProposalState.EXPIRED:
                self.end(item)
                yield item
            else:
                self._deadlines.add(item)  # it was renewed

    def expire_unannounced(self, at: int) -> None:
        """End the proposals whose time is over, unless their ends are still to be announced."""
        due = self._deadlines.next
        if due is not None and due < at and not self.announces:
            for _ in self.expire(at):
                pass

    def _announced_expired(self, notice: Envelope, payload: JsonObject) -> None:
        """End what the gateway has announced as expired before a restart."""
        proposer = payload.get("by")
        for proposal in notice.correlation:
            item = self.proposals.get((str(proposer), proposal))
            if item is not None and item.state is ProposalState.PENDING:
                item.step(ProposalEvent.EXPIRY, "", Reason.TIMEOUT)
                self.end(item)

    def _responded(self, response: Envelope, payload: JsonObject) -> None:
        """End what a response answers; a refused proposal waits again (PROTOCOL 4.2)."""
        refused = payloads.is_refusal(payload)
        for correlated in response.correlation:
            asked = self._requests.under(correlated)
            self._learn_tools(correlated, response.sender, payload)
            for request in asked:
                if not request.concerns(response.sender):
                    continue
                if refused:
                    if response.sender in request.envelope.to:
                        request.refused_by |= {response.sender}
                    if not request.was_refused:
                        continue
                elif (proposal := request.fulfills) is not None:
                    _keep_answer(proposal, request, response)
                    self._answered_by(proposal, request.proposer, response, payload, request.rule)
                self.end(request)
            if "result" in payload:
                self._responded_late(correlated, response, payload)

    def _learn_tools(self, request_id: str, sender: str, payload: JsonObject) -> None:
        """Learn from an answer to a request for tools, which may be one of several answers."""
        for each in self._requests.every(request_id):
            if each.listing is not None and each.concerns(sender):
                self.tool_owners.learn(sender, payload, each.listing)
                return

    def _responded_late(self, request_id: str, response: Envelope, payload: JsonObject) -> None:
        """A result for a request that has ended, cancelled say: it was carried out all the same."""
        for requester, ended in self._requests.ended.under(request_id).items():
            proposal = self._in_order.get(ended.fulfills)
            if proposal is not None and ended.concerns(response.sender):
                self._answered_by(proposal, requester, response, payload)

    def _answered_by(
        self, proposal: OpenItem, by: str, response: Envelope, payload: JsonObject, rule: str = ""
    ) -> None:
        """End a proposal that was answered, and whose request a participant made."""
        if proposal.state.is_pending:
            is_own = proposal.asks_permit and response.sender == proposal.proposer
            permitted = is_own and payloads.is_permit(payload)
            proposal.step(ProposalEvent.PERMIT if permitted else ProposalEvent.RESPONSE, by)
            self.end(proposal, rule, failed=payloads.is_failure(payload))

    def answered(
        self, proposer: str, proposal: str, response: Envelope, payload: JsonObject, at: int
    ) -> None:
        """End an open proposal that a response decided by itself."""
        item = self.proposals.get((proposer, proposal))
        if item is not None:
            self.at = at
            self._answered_by(item, response.sender, response, payload)

    def _begin(self, item: OpenItem) -> None:
        shelf, envelope = self._shelf_of(item), item.envelope
        sender = envelope.sender
        self._begun += 1
        item.number = self._begun
        opened = shelf.open.of(sender)
        if envelope.id in opened:
            self.end(opened[envelope.id])
        if shelf is self._requests and len(opened) >= MAX_OPEN_REQUESTS:
            self.end(next(iter(opened.values())))
        size, kept = item.size, self._kept_bytes
        # Here and nowhere else: what is forgotten depends on what was accepted alone.
        if shelf is self._requests or kept.get(sender, 0) + size > MAX_OPEN_BYTES:
            self._forget_old(shelf, sender, item.at)
        if kept.get(sender, 0) + size > MAX_OPEN_BYTES:
            item.whole = False
            item.envelope = msgspec.structs.replace(envelope, frame=b"", raw_payload=b"{}")
            size = item.size
        kept[sender] = kept.get(sender, 0) + size
        shelf.open.put(sender, envelope.id, item)
        if item.is_proposal:
            self._in_order[item.number] = item

    def _forget_old(self, shelf: ItemIndex, sender: str, at: int) -> None:
        oldest = next(iter(shelf.open.of(sender).values()), None)
        if oldest is None or oldest.at >= at - _OPEN_MICROSECONDS:
            return
        for item in shelf.of(sender):
            if _is_too_old(item, at):
                self._forget(item, at)

    def _forget(self, item: OpenItem, at: int) -> None:
        """End an item as expired where that is known, and else undecided."""
        self.at = at
        item.expire(at)
        self.end(item)


def _is_too_old(item: OpenItem, at: int) -> bool:
    """True for what began too long ago, and may not be decided for hours yet."""
    too_old = at - _OPEN_MICROSECONDS
    expires_at = (item.fulfills or item).expires_at
    return item.at < too_old and (expires_at is None or expires_at < too_old)


def _keep_answer(proposal: OpenItem, request: OpenItem, response: Envelope) -> None:
    """Keep the result of a proposal whose proposer may ask for it in another process."""
    size = len(request.envelope.raw_payload) + len(response.raw_payload)
    if (proposal.outlives or proposal.asks_permit) and request.whole and size <= MAX_ANSWER_BYTES:
        proposal.carried_out = request.envelope, response


def is_notification(payload: JsonObject) -> bool:
    method = payload.get("method")
    return isinstance(method, str) and method.startswith(payloads.NOTIFICATION)


def _rule_in(holder: object) -> str:
    """The name of the rule that parameters, or a payload, tell; empty: none."""
    told = read_told_rule(holder)
    return "" if told is None else told.name


REVOKED = str(Reason.REVOKED)

MAX_ANSWER_BYTES: Final = 256 * 1024
"""Bytes of a request and its answer that are kept for the proposer; of larger ones the journal has
the answer."""

ORPHANED: Final = "the process that wanted it is gone, and its participant has begun anew"
"""The words of an end that a new process of a participant brings."""


def end_revoked(
    exchanges: InFlight,
    participant: str,
    may: May,
    at: int,
) -> Iterator[Consequence]:
    """End what a participant has open and may not do any more; what the gateway says of it.

    A request is cancelled and a proposal withdrawn, in the gateway's name, and the participant is
    told that it waits in vain. What was too large to keep is ended, too, as it cannot be judged.
    """
    for item in exchanges.of(participant):
        envelope = item.envelope
        payload = envelope.payload_object
        if item.is_proposal:
            payload = payloads.unwrapped(payload)
        if item.whole and may(envelope.kind, payload, envelope.to):
            continue
        if exchanges.end_if_expired(item, at):
            continue
        what = "proposal" if item.is_proposal else "request"
        told = draft_refusal(
            participant,
            REVOKED,
            f"your {what} {envelope.id} was ended: what allowed it was revoked",
            about=envelope.id,
        )
        yield Notice(participant, told.error)
        yield from end_item(exchanges, item, REVOKED, "")


def end_orphaned(exchanges: InFlight, participant: str, at: int) -> Iterator[Broadcast]:
    """End what a process that is gone had open, and what runs for it (PROTOCOL 4.2).

    But for the requests by which it carries out what others propose: these wait for the results.
    """
    for item in exchanges.of(participant):
        if not item.orphaned or (item.fulfills is not None and item.fulfills.state.is_pending):
            continue
        if not exchanges.end_if_expired(item, at):
            yield from end_item(exchanges, item)


def end_item(
    exchanges: InFlight,
    item: OpenItem,
    reason: str = Reason.NO_LONGER_NEEDED,
    text: str = ORPHANED,
) -> Iterator[Broadcast]:
    """End an item, and all that is out to fulfill it: its fulfiller may not be here to do that."""
    if not exchanges.is_listed(item):
        return  # it has ended already
    running = tuple(item.fulfilling.values())
    (sender, name), to = item.key, item.envelope.to
    if item.is_proposal:
        # Read as everybody reads it: it may follow a rejection.
        payload = {"reason": reason, payloads.META: {payloads.BEGUN_BY: sender}}
        exchanges.withdraw(sender, name, payload, exchanges.at, said_by=kinds.GATEWAY)
        said = gateway_draft(kinds.MCP_WITHDRAW, payload, to=to, about=name)
        yield Broadcast(said, changes=exchanges.pop_changes())
    else:
        exchanges.end(item)
    # The first is never cancelled (PROTOCOL 4.7).
    if not item.is_proposal and item.called[0] != "initialize":
        why = f"{reason}: {text}" if text else reason
        cancel = payloads.cancelled_by_gateway(name, why, sender)
        yield Broadcast(gateway_draft(kinds.MCP_REQUEST, cancel, to=to, about=name))
    for request in running:
        yield from end_item(exchanges, request, reason, text)


MAX_LISTED_BYTES: Final = 1024 * 1024
"""Bytes of a page; a single larger proposal is one by itself, and fits in a frame, since what is
kept of it and of its requests is bounded."""

MAX_CONSIDERED: Final = 1_000
"""Proposals that are looked at for one page: a question costs no more, whatever it asks for."""

MAX_LISTED_REJECTIONS: Final = 64
"""Rejections of one proposal on a page; the asker's own comes first."""

MAX_READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes of proposals that are read for one page of those which its asker may decide."""

MAX_SORTED: Final = 20_000
"""Proposals that are sorted by their deadlines: as many as an inbox holds."""

MAX_SHARED_BYTES: Final = 256 * 1024
"""Bytes of all requests for one proposal that are listed, and of a proposal to decide: a larger one
would take the place of others."""

MAX_LISTED_REQUESTS: Final = 4
"""Requests that are out for one proposal, and as many that were cancelled: with hundreds for one
proposal, a participant would keep all others from a reader."""

_CONSIDERED_BYTES: Final = 1024
"""Bytes that each proposal which is looked at counts besides in the asker's pace: it takes some
microseconds, whether it is listed or not."""


def list_proposals(
    exchanges: InFlight,
    absences: AbsenceTracker,
    question: Envelope,
    query: ProposalQuery,
    dialect: str,
    at: int,
    may: May,
) -> Answer:
    """The answer to a question: a page of the proposals at this moment, for its sender alone."""
    exchanges.expire_unannounced(at)
    if query.state == "open":
        items: Sequence[OpenItem] = exchanges.open_in_order()
    else:
        items = exchanges.decided(at)
    begin = bisect_right(items, query.after, key=lambda item: _place(item) or query.after + 1)
    count, weighed = len(items), 0
    if query.urgent:
        items, begin = sorted(items[:MAX_SORTED], key=lambda item: item.expires_at or inf), 0
        weighed = len(items)
    elif query.to_decide and query.state == "open":
        items, begin = list(islice(exchanges.proposals.round_robin(), MAX_CONSIDERED)), 0
    chosen = items[begin : begin + MAX_CONSIDERED]
    is_only_page = query.urgent or query.to_decide
    decides = _Decider(question.sender, may) if query.to_decide else None
    page, listed = ProposalPage(), list[tuple[OpenItem, ListedProposal]]()
    size = looked_at = 0
    for item in chosen:
        if len(listed) >= query.limit:
            break
        deciders = item.addressees.deciders
        expired = item.decision is None and not item.state_at(at).is_pending
        takes = query.takes(item.envelope, item.called[1], deciders, question.sender)
        if takes and not expired and (decides is None or decides.may(item)):
            document = _document(item, absences, question.sender, dialect) if item.whole else None
            # With its rejections: others write these, and a page too large closes its reader.
            more = 0 if document is None else len(encode_leniently(document))
            is_full = bool(listed) and size + more > MAX_LISTED_BYTES
            if is_full and decides is None:
                break
            if document is None or is_full:
                page.omitted += 1
            else:
                listed.append((item, document))
                size += more
        looked_at += 1
    if query.to_decide and not query.urgent:
        # The newest were chosen; they are told in the order of their acceptance.
        listed.sort(key=lambda each: each[0].number)
    page.proposals = [document for _, document in listed]
    page.left = count - (len(listed) if is_only_page else begin + looked_at)
    last = chosen[looked_at - 1] if page.left and not is_only_page else None
    decision = None if last is None else last.decision  # an open one may be decided until we write

    def write(seq: int) -> Envelope:
        # Now the journal has numbered all that is listed.
        for item, document in listed:
            document.seq = item.seq
        page.seq = seq
        if last is not None:
            page.next = last.seq if decision is None else decision.number
        return gateway_draft(
            kinds.PROPOSALS, encode_leniently(page), to=question.sender, about=question.id
        )

    size += _CONSIDERED_BYTES * max(looked_at, weighed)
    return Answer(question, write, size)


def list_waiting(exchanges: InFlight, participant: str, may: May | None, at: int) -> list[OpenItem]:
    """The proposals that wait for the decision of a participant, the oldest first.

    Args:
        exchanges: The state of the space.
        participant: The participant.
        may: Tells what it may send; ``None``: all that wait for any decision are listed.
        at: The time.
    """
    exchanges.expire_unannounced(at)
    decides = None if may is None else _Decider(participant, may)
    found: list[OpenItem] = []
    for item in islice(exchanges.proposals.round_robin(), MAX_CONSIDERED):
        deciders = item.addressees.deciders
        if item.fulfilling or item.state_at(at) is not ProposalState.PENDING:
            continue
        if decides is not None and (
            participant in item.rejections
            or (deciders and participant not in deciders)
            or not decides.may(item)
        ):
            continue
        found.append(item)
    return sorted(found, key=lambda item: item.number)


class _Decider:
    """An asker that may decide some proposals; what is read and written for it is bounded."""

    def __init__(self, participant: str, may: May) -> None:
        self._participant = participant
        self._may = may
        self._rejects = may(kinds.MCP_REJECT, {"reason": str(Reason.DISAGREE)}, ())
        self._left = MAX_READ_BYTES

    def may(self, proposal: OpenItem) -> bool:
        """True if it may decide a proposal of another's."""
        if proposal.proposer == self._participant or not _has_place(proposal):
            return False
        self._left -= proposal.size
        if self._left < 0:
            return False
        return self._rejects or self._may(kinds.MCP_REQUEST, *call_of(proposal.envelope))


def _has_place(item: OpenItem) -> bool:
    return item.whole and item.size <= MAX_SHARED_BYTES


def call_of(proposal: Envelope) -> tuple[JsonObject, tuple[str, ...]]:
    call = payloads.read_proposal(proposal.payload_object)
    to = (call.target,) if call.target is not None else proposal.to
    return payloads.request(call.method, call.params, ""), to


def _requests_for(proposal: OpenItem) -> list[OpenItem]:
    """The latest requests for a proposal that were cancelled, and the first that are out."""
    cancelled = islice(reversed(proposal.cancelled.values()), MAX_LISTED_REQUESTS)
    kept = (each for each in proposal.fulfilling.values() if _has_place(each))
    size, found = 0, list[OpenItem]()
    for request in chain(islice(kept, MAX_LISTED_REQUESTS), cancelled):
        size += request.size
        if size > MAX_SHARED_BYTES:
            break
        found.append(request)
    return sorted(found, key=lambda request: request.number)


def _place(item: OpenItem) -> int:
    """The place of an item in its list; 0: the journal has not numbered it yet."""
    return item.seq if item.decision is None else item.decision.number


def _document(
    item: OpenItem, absences: AbsenceTracker, asker: str, dialect: str
) -> ListedProposal | None:
    """A proposal as a page has it; ``None`` if the asker's dialect cannot express it."""
    decision, left, requests = None, None, list[OpenItem]()
    if item.decision is None:
        if not item.outlives:
            left = absences.left_after(item.envelope.sender, item.at)
        requests = _requests_for(item)
    else:
        by, reason = item.decided_by or "", str(item.reason or "")
        _, at, rule, failed = item.decision
        report = item.report
        decision = ListedDecision(str(item.state), rfc3339(at), by, reason, rule, report)
        if report is not None and item.state is ProposalState.FULFILLED:
            failed = report.has_failed
        decision.failed = failed
        if item.carried_out is not None and asker == item.proposer:
            decision.carried_out = _answer(item.carried_out, dialect)
    rejections = sorted(item.rejections.items(), key=lambda rejection: rejection[0] != asker)
    try:
        return ListedProposal(
            _encoded(item, dialect),
            item.seq,
            _moment(item.expires_at),
            _moment(left),
            [
                ListedRejection(by, each.id, each.reason, each.rule)
                for by, each in rejections[:MAX_LISTED_REJECTIONS]
            ],
            [
                ListedRequest(_encoded(each, dialect), each.number in item.cancelled)
                for each in requests
            ],
            decision,
            item.told if decision is None else None,
        )
    except NotExpressible:
        return None


def _answer(carried_out: tuple[Envelope, Envelope], dialect: str) -> list[msgspec.Raw]:
    """The request that carried a proposal out, and its answer; none that have no words there."""
    try:
        return [msgspec.Raw(encode(each, dialect)) for each in carried_out]
    except NotExpressible:
        return []


def _moment(at: int | None) -> str | None:
    return None if at is None else rfc3339(at)


def _encoded(item: OpenItem, dialect: str) -> msgspec.Raw:
    return msgspec.Raw(encode(item.envelope, dialect))
