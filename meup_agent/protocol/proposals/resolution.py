"""The proposal that an envelope means (PROTOCOL 4.4): exactly one, none, or in doubt.

An id is unique for its sender alone, so two proposers may have used the same one, or one proposer
may have used it twice. Everything that names a proposal goes through here: the gateway, the
executor's checks, the proposer and the fulfillers who follow a request, rejections, responses, and
the audit. An envelope that does not tell which of several it means, means none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from meup_agent.protocol.dialects.base import Addressees, choose_executors
from meup_agent.protocol.proposals.record import FulfillingRequest, ProposalEntry, ProposalKey
from meup_agent.protocol.proposals.store import ProposalStore
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.payloads import Call

MAX_NAMED = 64
"""Correlation ids that are looked at; a request with more is refused."""


class Doubt(StrEnum):
    """The reason for which an envelope that names a proposal means none."""

    AMBIGUOUS = "ambiguous"  # several proposals have the id, and nothing tells which is meant
    SEVERAL = "several"  # it names more than one proposal, and a request carries out one
    TOO_MANY = "too_many"  # it names more ids than are looked at


class KnownProposal(Protocol):
    """A proposal, as a gateway or an agent keeps it."""

    @property
    def proposer(self) -> str: ...

    @property
    def call(self) -> Call: ...

    @property
    def earlier(self) -> Sequence[Any]:
        """Those that its proposer made under this id before."""
        ...

    @property
    def called(self) -> tuple[str, str]:
        """Its method and its tool (or prompt), as they are kept; requests for it have the same."""
        ...


R = TypeVar("R", bound=KnownProposal)
R_co = TypeVar("R_co", bound=KnownProposal, covariant=True)


class KnownProposals(Protocol[R_co]):
    """The proposals that a gateway or an agent keeps."""

    def under(self, exchange_id: str, now: float) -> Sequence[R_co]: ...

    def get(self, key: ProposalKey, now: float) -> R_co | None:
        """The latest of a proposer under an id."""
        ...


class Resolution(NamedTuple, Generic[R]):
    """The proposal that an envelope means."""

    # The proposal; ``None``: none that is known, or it cannot be told which.
    record: R | None = None
    doubt: Doubt | None = None  # the reason for which it cannot be told
    named: tuple[R, ...] = ()


def resolve(
    envelope: Envelope, known: KnownProposals[R], now: float, call: Call | None = None
) -> Resolution[R]:
    """The proposal that an envelope means; ``call`` is that of a request, where it is read.

    A request means the proposal that it carries out, which must have its method and its tool: one
    that asks for anything else only refers to it. Otherwise a participant that may send little, a
    ``ping`` say, would decide the proposals of others. Any other envelope means the proposal that
    its first known id names.
    """
    if not envelope.correlation:
        return Resolution()
    if envelope.kind == kinds.MCP_REQUEST:
        call = payloads.read_call(envelope.payload) if call is None else call
        if not call.is_notification:
            return _carried_out(envelope, call, known, now)
    for name in envelope.correlation[:MAX_NAMED]:
        named = known.under(name, now)
        if named:
            return choose_addressed(envelope, named)
    return Resolution()


def choose_addressed(envelope: Envelope, named: Sequence[R]) -> Resolution[R]:
    """Of the proposals with one id, the one that an envelope means: whom it is for tells whose."""
    meant = named if len(named) < 2 else [it for it in named if it.proposer in envelope.to]
    return _one_of(named, meant)


def find_referenced(envelope: Envelope, store: ProposalStore, now: float) -> list[ProposalEntry]:
    names = dict.fromkeys(envelope.correlation[:MAX_NAMED])
    return [record for name in names for record in store.under(name, now)]


def find_answered(
    envelope: Envelope, proposal_store: ProposalStore, now: float
) -> tuple[ProposalEntry, FulfillingRequest] | None:
    """The proposal that a response (or progress) is about, and the request.

    All correlation ids are looked at, those of requests first (PROTOCOL 4.4). Two requesters may
    have used one id: whom the response is for tells which is meant. Of one requester, who counts
    its ids anew, the request is meant that is still out, and came last.
    """
    for name in envelope.correlation[:MAX_NAMED]:
        found = [
            (record, item)
            for record, item in proposal_store.find_fulfillments(name, now)
            if item.envelope.id == name and item.may_answer(envelope.sender)
        ]
        if len(found) == 1:
            return found[0]
        if len({item.by for _, item in found}) > 1:
            found = [(record, item) for record, item in found if item.by in envelope.to]
            if len({item.by for _, item in found}) != 1:
                return None
        if found:
            return max(reversed(found), key=lambda each: each[1].live)
    record = resolve(envelope, proposal_store, now).record
    if record is not None:
        for item in record.fulfillments:
            if item.by == envelope.sender:
                return record, item
    return None


def executors_of(record: ProposalEntry, request: Envelope) -> tuple[str, ...]:
    """The executors of a fulfilling request; empty: each that has the tool (PROTOCOL 4.4)."""
    if request.to:
        return request.to
    named = Addressees(record.envelope.to, record.call.target)
    return choose_executors(named, request.sender)


def claimed_proposer(call: Call) -> str | None:
    proposer = call.meta.get(payloads.PROPOSER)
    return proposer if isinstance(proposer, str) else None


def _carried_out(
    request: Envelope, call: Call, known: KnownProposals[R], now: float
) -> Resolution[R]:
    if len(request.correlation) > MAX_NAMED:
        return Resolution(doubt=Doubt.TOO_MANY)
    proposer = claimed_proposer(call)
    by_id: list[list[R]] = []
    for name in dict.fromkeys(request.correlation):
        named = list(known.under(name, now))
        if proposer is not None:
            # An id that very many have used has no place for all of them.
            claimed = known.get(ProposalKey(proposer, name), now)
            if claimed is not None and claimed not in named:
                named.append(claimed)
        if named:
            by_id.append(named)
    if len(by_id) > 1:
        every = tuple(record for named in by_id for record in named)
        return Resolution(doubt=Doubt.SEVERAL, named=every)
    called = call.called
    candidates: list[R] = [
        record
        for named in by_id
        for latest in named
        for record in (latest, *latest.earlier)
        if record.called == called
    ]
    proposers = {record.proposer for record in candidates}
    if len(candidates) == 1 and (proposer is None or proposer in proposers):
        return Resolution(candidates[0], named=tuple(candidates))
    return _one_of(candidates, _possible_referents(candidates, call, proposer))


def _possible_referents(candidates: list[R], call: Call, proposer: str | None) -> list[R]:
    """Return the proposals, of several, to which a request can refer."""
    fitting = [record for record in candidates if _fits(record, call)]
    theirs = [record for record in candidates if record.proposer == proposer]
    if theirs:
        fitting_theirs = [record for record in fitting if record.proposer == proposer]
        if fitting_theirs:
            return fitting_theirs[:1]  # the latest of what is the same call by the same proposer
        if call.meta.get(payloads.EDITED) is True:
            return theirs
    if len({record.proposer for record in fitting}) == 1:
        return fitting[:1]  # they have one id
    return fitting


def _fits(record: KnownProposal, call: Call) -> bool:
    """True if a request is the proposed call unchanged: the digest alone may be copied."""
    proposed = record.call
    if payloads.changes(proposed, call, proposed.target):
        return False
    claimed = call.meta.get(payloads.DIGEST)
    if not isinstance(claimed, str):
        return True
    return claimed == payloads.digest(proposed.method, proposed.params, proposed.target)


def _one_of(named: Sequence[R], meant: Sequence[R]) -> Resolution[R]:
    if len(meant) == 1:
        return Resolution(meant[0], named=tuple(named))
    return Resolution(doubt=Doubt.AMBIGUOUS if named else None, named=tuple(named))
