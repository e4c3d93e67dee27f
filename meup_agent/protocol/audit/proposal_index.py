"""The proposals that an audit keeps, and the index by which later envelopes find them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from meup_agent.protocol.audit.records import (
    MAX_STEPS,
    MAX_TEXT,
    Decision,
    FulfillmentAudit,
    Ignored,
    ProposalAudit,
    Step,
    StepKind,
)
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.proposals.lifecycle import ProposalState, last_moment
from meup_agent.protocol.proposals.record import ProposalEntry, ProposalKey
from meup_agent.protocol.proposals.store import ProposalStore
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.told_rule import ToldRule

_STEP_BYTES: Final = 500
# What a step takes besides its words, as a round figure.

MAX_RELEASED: Final = 50_000
"""Released proposals whose id is still known: more than are said again after a reconnect."""

T = TypeVar("T")


class Named(NamedTuple):
    """An envelope of a proposal's chain, by its id."""

    id: str
    seq: int
    sender: str
    proposal: ProposalAudit


class ProposalIndex:
    """The proposals of an audit, each with its chain; of too many, decided ones go first."""

    def __init__(self, proposal_store: ProposalStore, *, limit: int | None, max_bytes: int) -> None:
        self._proposal_store = proposal_store
        self._limit = limit
        self._max_bytes = max_bytes
        self._bytes = 0
        self._proposals: dict[int, ProposalAudit] = {}
        self._current: dict[ProposalKey, ProposalAudit] = {}
        self._by_record: dict[int, ProposalAudit] = {}
        self._names: dict[str, list[Named]] = {}
        self._requests: dict[str, list[tuple[ProposalAudit, FulfillmentAudit]]] = {}
        self._released: OrderedDict[str, None] = OrderedDict()  # ids

    @property
    def proposals(self) -> list[ProposalAudit]:
        """Every proposal, oldest first."""
        return list(self._proposals.values())

    # --- finding them ---

    def latest(self, key: ProposalKey) -> ProposalAudit | None:
        """The latest proposal that a proposer made under an id."""
        return self._current.get(key)

    def find(self, record: ProposalEntry | None) -> ProposalAudit | None:
        """The proposal of one of the store's records."""
        # Each is kept as long as its record, so that no other record can have its number.
        return None if record is None else self._by_record.get(id(record))

    def find_referenced(self, envelope: Envelope) -> list[Named]:
        """The envelope that one refers to: its sender's own, otherwise the latest.

        A withdraw of several proposals stands there once for each.
        """
        found = [named for name in envelope.correlation for named in self._names.get(name, ())]
        if not found:
            return []
        best = max(found, key=lambda named: (named.sender == envelope.sender, named.seq))
        return [named for named in found if (named.id, named.seq) == (best.id, best.seq)]

    def find_requests(self, name: str) -> Iterable[tuple[ProposalAudit, FulfillmentAudit]]:
        """The requests with one of their names that carry a proposal out, latest first."""
        return reversed(self._requests.get(name, ()))

    # --- what happens to them ---

    def begin(self, record: ProposalEntry, entry: Entry) -> ProposalAudit:
        """Keep a proposal from its beginning on."""
        first = _step(entry, StepKind.PROPOSED, record.state)
        proposal = ProposalAudit(record, first)
        self._proposals[id(proposal)] = self._current[record.key] = proposal
        self._by_record[id(record)] = proposal
        self._append(proposal, first)
        self.grow(proposal, len(entry.envelope.raw_payload))
        return proposal

    def add(
        self,
        proposal: ProposalAudit,
        entry: Entry,
        what: StepKind,
        *,
        about: str = "",
        reason: str | None = None,
        text: str = "",
        ignored: Ignored | None = None,
        rule: ToldRule | None = None,
    ) -> Step:
        """Append a step to a proposal."""
        step = _step(entry, what, proposal.state)
        step.about, step.reason, step.text = about, reason or "", text[:MAX_TEXT]
        step.ignored, step.rule = ignored, rule
        self._append(proposal, step)
        return step

    def add_renewal(
        self, proposal: ProposalAudit, entry: Entry, until: int, ignored: Ignored | None
    ) -> None:
        """Append a renewal; several in a row are one step, with the latest deadline."""
        last = proposal.steps[-1]
        if last.what is StepKind.RENEWED and ignored is None is last.ignored:
            last.times, last.until = last.times + 1, until
            return
        self.add(proposal, entry, StepKind.RENEWED, ignored=ignored).until = until

    def add_expiry(self, proposal: ProposalAudit) -> Step:
        """Append that a proposal expired, which no envelope says: after its last, or in its time.

        It is later where a request that was out held it up, and was cancelled or refused then.
        """
        record = proposal.record
        assert record.expires_at is not None
        at = max(last_moment(record.expires_at), *(step.at for step in proposal.steps))
        seq = proposal.steps[-1].seq  # whatever else was said in the space meanwhile
        step = Step(seq, at, StepKind.EXPIRED, "", "", (), record.state, until=at)
        step.reason = record.reason or ""
        self._append(proposal, step)
        return step

    def add_request(self, proposal: ProposalAudit, item: FulfillmentAudit) -> None:
        """Write down a request that carries a proposal out."""
        proposal.fulfillments.append(item)
        self.grow(proposal, len(item.request.envelope.raw_payload))
        for name in item.request.names:
            self._requests.setdefault(name, []).append((proposal, item))

    def grow(self, proposal: ProposalAudit, size: int) -> None:
        """Count bytes that a proposal takes more."""
        proposal.size += size
        self._bytes += size

    def _append(self, proposal: ProposalAudit, step: Step) -> None:
        if len(proposal.steps) >= MAX_STEPS:
            proposal.omitted += 1
            return
        proposal.steps.append(step)
        size = 0 if step.rule is None else _STEP_BYTES * (1 + len(step.rule.votes))
        self.grow(proposal, _STEP_BYTES + len(step.text) + len(step.reason) + size)
        if not step.id:  # no envelope said it
            return
        self._names.setdefault(step.id, []).append(Named(step.id, step.seq, step.by, proposal))

    # --- forgetting them ---

    def release(self, proposal: ProposalAudit) -> None:
        """Forget a proposal of which nothing more is wanted, all but its id.

        Proposals and their ends are said again after a reconnect (PROTOCOL 4.14); without the id
        they would count as new ones, and as decisions about something unknown.
        """
        self._forget(proposal)
        released = self._released
        released.pop(proposal.id, None)
        released[proposal.id] = None
        while len(released) > MAX_RELEASED:
            released.popitem(last=False)

    def was_released(self, *names: str) -> bool:
        """True if one of these is the id of a released proposal."""
        return any(name in self._released for name in names)

    def make_room(self, coming: int) -> None:
        """Forget proposals until so many more have room, and no more bytes than are kept."""
        if self._limit is None:
            return
        most = self._limit - coming
        while self._proposals and (len(self._proposals) > most or self._bytes > self._max_bytes):
            found = self._proposals.values()
            decided = (item for item in found if item.decision is not None)
            self._forget(next(decided, None) or next(iter(found)))

    def _forget(self, proposal: ProposalAudit) -> None:
        del self._proposals[id(proposal)], self._by_record[id(proposal.record)]
        self._bytes -= proposal.size
        key = proposal.record.key
        if self._current.get(key) is proposal:
            del self._current[key]
            self._proposal_store.forget(key)
        for step in proposal.steps:
            _drop(self._names, step.id, lambda named: named.proposal is proposal)
        for item in proposal.fulfillments:
            for name in item.request.names:
                _drop(self._requests, name, lambda pair: pair[0] is proposal)


def decide(proposal: ProposalAudit, step: Step) -> None:
    """Write down that a step decided a proposal; of one that expired, no participant did."""
    by = "" if proposal.state is ProposalState.EXPIRED else step.by
    proposal.decision = Decision(by, step.at, step, proposal.record.reason or "")


def _step(entry: Entry, what: StepKind, state: ProposalState) -> Step:
    envelope = entry.envelope
    return Step(
        entry.seq, entry.at, what, envelope.sender, envelope.id, envelope.to, state, until=entry.at
    )


def _drop(index: dict[str, list[T]], name: str, is_dropped: Callable[[T], bool]) -> None:
    kept = [each for each in index.pop(name, []) if not is_dropped(each)]
    if kept:
        index[name] = kept
