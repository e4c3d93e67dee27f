"""History of decided proposals: how a proposer's last ones ended, and the last similar call."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from meup_agent.protocol.payloads import Call, Change, changes, read_proposal
from meup_agent.protocol.proposals.lifecycle import ProposalState

if TYPE_CHECKING:
    from meup_agent.client.proposal import ProposalRecord

LAST: Final = 10
"""Endings that are kept of a proposer."""

MAX_PROPOSERS: Final = 1_000
"""Proposers whose endings are kept; those that were heard of longest ago go first."""

MAX_CALLS: Final = 1_000
"""Calls that are kept to compare others with: one of each tool of each participant."""

MAX_CALL_CHARS: Final = 64 * 1024
"""Characters of such a call; a larger one is compared with nothing."""


class PastProposal(msgspec.Struct, frozen=True):
    """A proposal that was decided.

    Attributes:
        id: Its id.
        proposer: Its proposer.
        call: The call that was proposed.
        state: ``fulfilled``, ``rejected``, ``withdrawn`` or ``expired``.
        by: The participant that decided it.
        reason: The reason code that came with that, if any.
    """

    id: str
    proposer: str
    call: Call
    state: ProposalState
    by: str = ""
    reason: str = ""


class ProposalEnding(NamedTuple):
    """The end of a decided proposal, with who decided it and for which reason."""

    state: ProposalState
    by: str = ""
    reason: str = ""


def past_of(record: ProposalRecord) -> PastProposal:
    """A decided proposal as the history keeps it."""
    call = read_proposal(record.envelope.payload)
    return PastProposal(record.id, record.proposer, call, *ending_of(record))


def ending_of(record: ProposalRecord) -> ProposalEnding:
    """The end of a decided proposal."""
    return ProposalEnding(record.state, record.decided_by or "", record.reason or "")


class SimilarCall(msgspec.Struct, frozen=True):
    """The last proposal of the same tool of the same participant, and what differs from it.

    Attributes:
        past: That proposal, and how it ended.
        changes: What the new one has otherwise; empty: it is the same call.
    """

    past: PastProposal
    changes: tuple[Change, ...]


class ProposerRecord(msgspec.Struct, frozen=True):
    """The endings of the last proposals of one proposer.

    Attributes:
        endings: The latest first, ten at the most.
    """

    endings: tuple[PastProposal, ...] = ()

    @property
    def counts(self) -> dict[ProposalState, int]:
        """The endings by state, the most frequent first."""
        return dict(Counter(each.state for each in self.endings).most_common())


class ProposalHistory:
    """The latest decided proposals, by proposer and by tool."""

    def __init__(self) -> None:
        self._endings: OrderedDict[str, deque[PastProposal]] = OrderedDict()
        self._calls: OrderedDict[tuple[str | None, str, str], PastProposal] = OrderedDict()
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note(self, past: PastProposal, size: int | None = None) -> None:
        """Remember a decided proposal; the same one only once.

        Args:
            past: The proposal; later ones are noted later.
            size: Characters that its arguments take; ``None``: they are counted.
        """
        key = (past.proposer, past.id)
        if key in self._seen:
            return
        self._seen[key] = None
        if len(self._seen) > MAX_PROPOSERS * LAST:
            self._seen.popitem(last=False)
        endings = self._endings.setdefault(past.proposer, deque(maxlen=LAST))
        self._endings.move_to_end(past.proposer)
        # Its arguments are kept once, to compare with, and not for each ending.
        endings.append(msgspec.structs.replace(past, call=_without_arguments(past.call)))
        if len(self._endings) > MAX_PROPOSERS:
            self._endings.popitem(last=False)
        if size is None:
            size = _size_of(past.call)
        if size <= MAX_CALL_CHARS:
            tool = _tool_of(past.call)
            self._calls[tool] = past
            self._calls.move_to_end(tool)
            if len(self._calls) > MAX_CALLS:
                self._calls.popitem(last=False)

    def note_before(self, past: Iterable[PastProposal]) -> None:
        """Remember proposals that were decided before all that are remembered, and read later."""
        older = ProposalHistory()
        for each in past:
            if (each.proposer, each.id) not in self._seen:
                older.note(each)
        for proposer, endings in self._endings.items():
            older._endings.setdefault(proposer, deque(maxlen=LAST)).extend(endings)
            older._endings.move_to_end(proposer)
        for tool, call in self._calls.items():
            older._calls[tool] = call
            older._calls.move_to_end(tool)
        older._seen.update(self._seen)
        self._endings, self._calls, self._seen = older._endings, older._calls, older._seen
        for kept, most in (
            (self._endings, MAX_PROPOSERS),
            (self._calls, MAX_CALLS),
            (self._seen, MAX_PROPOSERS * LAST),
        ):
            for _ in range(len(kept) - most):
                kept.popitem(last=False)

    def record(self, proposer: str) -> ProposerRecord:
        """The endings of the last proposals of a proposer."""
        return ProposerRecord(tuple(reversed(self._endings.get(proposer, ()))))

    def similar(self, call: Call) -> SimilarCall | None:
        """The last decided proposal of the same tool; ``None`` if none is known."""
        past = self._calls.get(_tool_of(call))
        return None if past is None else SimilarCall(past, changes(past.call, call, call.target))


def _tool_of(call: Call) -> tuple[str | None, str, str]:
    return call.target, call.method, call.name


def _without_arguments(call: Call) -> Call:
    return Call(call.method, {"name": call.name} if call.name else {})


def _size_of(call: Call) -> int:
    try:
        return len(msgspec.json.encode(call.params))
    except RecursionError:
        return MAX_CALL_CHARS + 1
