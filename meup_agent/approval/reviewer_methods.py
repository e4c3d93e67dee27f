"""Results of a reviewer's MCP tools: people vote, see what waits, and have an edit judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypedDict

from meup_agent.approval.voting import VoteCount, VoteOutcome
from meup_agent.protocol.envelope import encode_json

if TYPE_CHECKING:
    from meup_agent.approval.held_proposals import HeldProposal
    from meup_agent.approval.rule_set import PolicyDecision
    from meup_agent.client.proposal import Proposal

VOTE: Final = "vote"
WAITING: Final = "waiting"
JUDGE: Final = "judge"

MAX_WAITING_BYTES: Final = 512 * 1024
"""Bytes of a list of what waits; what follows is only counted, so that the answer fits a frame."""


class RuleOfProposal(TypedDict):
    """The rule that left a proposal to people; its number is ``None`` where no rule matched."""

    name: str
    number: int | None
    text: str
    policy: str


class WaitingProposal(TypedDict):
    """A proposal that waits for people."""

    proposal: str
    proposer: str
    digest: str | None
    rule: RuleOfProposal
    kind: Literal["ask", "quorum"]
    of: int
    among: list[str]
    votes: dict[str, str]
    explanations: dict[str, str]
    deadline: str | None


class WaitingProposals(TypedDict):
    """The proposals that wait for people, the oldest first; and how many more there are."""

    proposals: list[WaitingProposal]
    omitted: int


class VoteResult(TypedDict):
    """The count after a vote."""

    proposal: str
    proposer: str
    outcome: str
    of: int
    among: list[str]
    votes: dict[str, str]


class EditVerdict(TypedDict):
    """The verdict of the rules about a proposal's call as a person would edit it."""

    proposal: str
    proposer: str
    verdict: str
    rule: RuleOfProposal
    explain: str


def describe_rule(decision: PolicyDecision) -> RuleOfProposal:
    """The rule of a decision for its readers."""
    return {
        "name": decision.rule,
        "number": decision.number,
        "text": decision.text,
        "policy": decision.policy,
    }


def describe(held: HeldProposal, now: float) -> WaitingProposal:
    """A held proposal for its readers."""
    decision, count = held.decision, held.count
    deadline = held.deadline(now)
    return {
        "proposal": held.proposal.id,
        "proposer": held.proposal.proposer,
        "digest": held.digest,
        "rule": describe_rule(decision),
        "kind": "ask" if count is None else "quorum",
        "of": 0 if count is None else count.of,
        "among": [] if count is None else list(count.voters),
        "votes": {} if count is None else {who: str(vote) for who, vote in count.votes.items()},
        "explanations": {} if count is None else dict(count.explanations),
        "deadline": None if deadline is None else deadline.isoformat(timespec="milliseconds"),
    }


def describe_all(waiting: list[HeldProposal], now: float) -> WaitingProposals:
    """Held proposals for their readers, as many as an answer has room for."""
    found: list[WaitingProposal] = []
    size = 0
    for held in waiting:
        described = describe(held, now)
        size += len(encode_json(described))
        if size > MAX_WAITING_BYTES:
            break
        found.append(described)
    return {"proposals": found, "omitted": len(waiting) - len(found)}


def vote_arguments(proposal: Proposal, vote: str) -> dict[str, str]:
    """The arguments of a vote about a proposal, without words."""
    return {"proposal": proposal.id, "proposer": proposal.proposer, "vote": vote}


def result_of_vote(held: HeldProposal, count: VoteCount) -> VoteResult:
    """The count after a vote, for the voter."""
    return {
        "proposal": held.proposal.id,
        "proposer": held.proposal.proposer,
        "outcome": str(count.outcome),
        "of": count.of,
        "among": list(count.voters),
        "votes": {who: str(vote) for who, vote in count.votes.items()},
    }


def describe_verdict(judged: Proposal, decision: PolicyDecision) -> EditVerdict:
    """The verdict about an edited call, for who would make it."""
    return {
        "proposal": judged.id,
        "proposer": judged.proposer,
        "verdict": str(decision.verdict),
        "rule": describe_rule(decision),
        "explain": decision.explain or decision.why,
    }


def explain_rejection(count: VoteCount) -> str:
    """Words for the proposer of what the votes reject."""
    assert count.outcome is VoteOutcome.REJECTED
    said = "; ".join(f"{who}: {text}" for who, text in count.explanations.items())
    return f"The votes reject it: {count}.{f' {said}' if said else ''}"
