"""Methods of a reviewer: people vote, see what waits, and have an edit judged.

They are methods of their own, and no tools: nothing that a face asks by itself is a ``tools/call``,
and no bridge passes them on to what stands behind it (PROTOCOL 5).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import msgspec

from meup_agent.approval.voting import ToldCount, Vote, VoteCount
from meup_agent.protocol.envelope import encode_json
from meup_agent.protocol.payloads import PREFIX

if TYPE_CHECKING:
    from meup_agent.approval.held_proposals import HeldProposal
    from meup_agent.approval.rule_set import PolicyDecision

WAITING: Final = f"{PREFIX}waiting"
"""Lists what waits for people, with the rule that asks and the votes so far."""

VOTE: Final = f"{PREFIX}vote"
"""Gives the sender's vote about one proposal."""

JUDGE: Final = f"{PREFIX}judge"
"""Asks for the verdict of the rules about a call as a person would edit it."""

MAX_WAITING_BYTES: Final = 512 * 1024
"""Bytes of a list of what waits; what follows is only counted, so that the answer fits a frame."""


class ProposalParams(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The proposal that a question is about.

    Attributes:
        proposal: Its id.
        proposer: Its proposer.
        digest: The digest of the call that was looked at; ``None``: not said, whichever it is.
    """

    proposal: str
    proposer: str
    digest: str | None = None


class VoteParams(ProposalParams, frozen=True, kw_only=True):
    """The parameters of a vote.

    Attributes:
        vote: The vote.
        explanation: Words for the others.
        form: Digest of the form of its tool that was looked at, where nobody has accepted that;
            ``None``: the tool had no such mark.
    """

    vote: Vote
    explanation: str | None = None
    form: str | None = None


class JudgeParams(ProposalParams, frozen=True, kw_only=True):
    """The parameters of the question about an edit.

    Attributes:
        arguments: The arguments that would be sent.
        target: The participant that would carry it out, where it is another than proposed.
    """

    arguments: dict[str, Any]
    target: str | None = None


class RuleOfProposal(TypedDict):
    """The rule that left a proposal to people; its number is ``None`` where no rule matched."""

    name: str
    number: int | None
    text: str
    policy: str


class WaitingProposal(ToldCount):
    """A proposal that waits for people."""

    proposal: str
    proposer: str
    digest: str | None
    rule: RuleOfProposal
    kind: Literal["ask", "quorum"]
    explanations: dict[str, str]
    deadline: str | None


class WaitingProposals(TypedDict):
    """The proposals that wait for people, as many as have room; and how many more there are."""

    proposals: list[WaitingProposal]
    omitted: int


class VoteResult(ToldCount):
    """The count after a vote."""

    proposal: str
    proposer: str
    outcome: str


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
    count = held.count or VoteCount(held.proposal.proposer, 0, ())
    deadline = held.deadline(now)
    return {
        "proposal": held.proposal.id,
        "proposer": held.proposal.proposer,
        "digest": held.digest,
        "rule": describe_rule(held.decision),
        "kind": "ask" if held.count is None else "quorum",
        **count.told,
        "among": list(count.voters),
        "explanations": dict(count.explanations),
        "deadline": None if deadline is None else deadline.isoformat(timespec="milliseconds"),
    }


def describe_all(waiting: list[HeldProposal], now: float) -> WaitingProposals:
    """Held proposals for their readers, as many as an answer has room for.

    One that an inbox is not told of is one that a person approves alone. So those that take votes
    come first, and a flood of one proposer leaves out none of the others'.
    """
    of = Counter[str]()
    places: list[tuple[bool, int, HeldProposal]] = []
    for held in waiting:
        proposer = held.proposal.proposer
        places.append((held.count is None, of[proposer], held))
        of[proposer] += 1
    found: list[WaitingProposal] = []
    size = 0
    for _, _, held in sorted(places, key=lambda place: place[:2]):
        described = describe(held, now)
        size += len(encode_json(described))
        if size > MAX_WAITING_BYTES:
            break
        found.append(described)
    return {"proposals": found, "omitted": len(waiting) - len(found)}
