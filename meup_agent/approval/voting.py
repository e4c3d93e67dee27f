"""Votes: the count of one quorum, a pure function of the votes in their order.

A participant votes once, and may change its vote until the votes decide; the proposer's never
counts. A quorum is reached with as many approvals as its rule asks for, and lost as soon as those
who have not rejected are too few for that. Nothing but a vote changes a count, and the removal of
one that voted: no time that passes, no participant that leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypedDict, TypeVar

import msgspec

from meup_agent.errors import VoteRefused, printable

MAX_EXPLANATION: Final = 500
"""Characters of a vote's explanation; a hundred voters may explain a thousand proposals."""

V = TypeVar("V")

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class Vote(StrEnum):
    """A vote about one proposal."""

    APPROVE = "approve"
    REJECT = "reject"


class ToldCount(TypedDict):
    """A count as it is told."""

    of: int
    among: list[str]
    votes: dict[str, str]


class VoteOutcome(StrEnum):
    """The outcome of a count."""

    OPEN = "open"
    APPROVED = "approved"
    REJECTED = "rejected"


class VoteCount(msgspec.Struct, frozen=True):
    """A count of the votes about one proposal.

    Attributes:
        proposer: The proposal's proposer, whose vote never counts.
        of: Approvals that carry the call out.
        among: The participants that may vote.
        votes: The vote of each, in the order in which they first voted.
        explanations: Words to the votes, of those who gave some.
    """

    proposer: str
    of: int
    among: tuple[str, ...]
    votes: Mapping[str, Vote] = _NONE
    explanations: Mapping[str, str] = _NONE

    @property
    def voters(self) -> tuple[str, ...]:
        """The participants whose vote counts."""
        return tuple(each for each in self.among if each != self.proposer)

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of them who have not voted."""
        return tuple(each for each in self.voters if each not in self.votes)

    def those(self, vote: Vote) -> tuple[str, ...]:
        """The participants with a vote of a kind."""
        return tuple(voter for voter, each in self.votes.items() if each is vote)

    @property
    def outcome(self) -> VoteOutcome:
        """Approved, rejected since no vote can bring the quorum any more, or open."""
        voters = frozenset(self.voters)
        votes = [each for voter, each in self.votes.items() if voter in voters]
        rejections = votes.count(Vote.REJECT)
        if self.of < 1 or len(voters) - rejections < self.of:
            return VoteOutcome.REJECTED
        reached = votes.count(Vote.APPROVE) >= self.of
        return VoteOutcome.APPROVED if reached else VoteOutcome.OPEN

    def cast(self, voter: str, vote: Vote, explanation: str = "") -> VoteCount:
        """The count with one more vote, or with one that is changed.

        Raises:
            VoteRefused: The participant may not vote, or the votes have decided.
        """
        if voter == self.proposer:
            raise VoteRefused(f"{_listed([voter])} proposed it, and a proposer's vote never counts")
        if voter not in self.among:
            may = _listed(self.voters)
            raise VoteRefused(f"{_listed([voter])} may not vote about it; these may: {may}")
        if self.outcome is not VoteOutcome.OPEN:
            raise VoteRefused(f"its votes have decided: it is {self.outcome}")
        explanations = _without(self.explanations, voter)
        if explanation:
            explanations[voter] = explanation[:MAX_EXPLANATION]
        votes = {**self.votes, voter: vote}
        return msgspec.structs.replace(self, votes=votes, explanations=explanations)

    def without(self, voter: str) -> VoteCount:
        """The count without the vote of a participant."""
        votes, explanations = _without(self.votes, voter), _without(self.explanations, voter)
        return msgspec.structs.replace(self, votes=votes, explanations=explanations)

    def anew(self) -> VoteCount:
        """The count without votes."""
        return VoteCount(self.proposer, self.of, self.among)

    @property
    def told(self) -> ToldCount:
        """The count as it stands in a message beside its rule (PROTOCOL 6)."""
        votes = {voter: str(vote) for voter, vote in self.votes.items()}
        return {"of": self.of, "among": list(self.among), "votes": votes}

    def __str__(self) -> str:
        """The count on one line."""
        approvals = self.those(Vote.APPROVE)
        by = f" ({_listed(approvals)})" if approvals else ""
        rejections = self.those(Vote.REJECT)
        against = f"; {_listed(rejections)} rejected" if rejections else ""
        return f"{len(approvals)} of {self.of} approvals{by}{against}"


def _without(by_voter: Mapping[str, V], voter: str) -> dict[str, V]:
    return {who: each for who, each in by_voter.items() if who != voter}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(printable(each) for each in names) or "no participant"
