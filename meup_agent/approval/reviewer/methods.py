"""Methods of a reviewer: people vote, see what waits, and have an edit judged.

They are methods of their own, and no tools: nothing that a face asks by itself is a ``tools/call``,
and no bridge passes them on to what stands behind it (PROTOCOL 5).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import msgspec

from meup_agent.approval.policy.rule_set import ToldCount, Vote, VoteCount
from meup_agent.errors import UsageError, printable
from meup_agent.protocol.wire.envelope import encode_json
from meup_agent.protocol.wire.payloads import PREFIX, digest, read_proposal

if TYPE_CHECKING:
    from meup_agent.approval.policy.rule_set import PolicyDecision
    from meup_agent.client.proposal import Proposal
    from meup_agent.client.space import Space


# --- held proposals ---
# Those that a policy has left to people, while they are pending.

MAX_HELD: Final = 1_000
"""Proposals that are held; of more, the proposer with most of them loses its oldest."""

MAX_NAME: Final = 64  # characters of a tool or participant in a reminder
"""Characters of a name in a reminder."""

Key = tuple[str, str]


@dataclass(eq=False)
class HeldProposal:
    """A proposal that people decide.

    Attributes:
        proposal: The proposal.
        space: The space in which it was made.
        decision: The decision that leaves it to people.
        since: The moment of that, by the loop's clock.
        reminded: The moment of the last reminder.
        count: The votes, where the rule counts some.
        key: The name of the count in a file of votes.
        is_counted: Its votes have decided, and that is being carried out.
        policy: The digest of the policy that has looked at it last.
        is_looked_up: It is known whether a scoped yes of now covers it.
    """

    proposal: Proposal
    space: Space
    decision: PolicyDecision
    since: float
    reminded: float
    count: VoteCount | None = None
    key: str = ""
    is_counted: bool = False
    policy: str = ""
    is_looked_up: bool = False

    @property
    def name(self) -> Key:
        return self.proposal.proposer, self.proposal.id

    @cached_property
    def digest(self) -> str | None:
        """The digest of its call, as it is, whatever it says of itself."""
        return digest_of(self.proposal)

    @property
    def is_ambiguous(self) -> bool:
        """True if its proposer has made several proposals under its id."""
        try:
            self.space.proposals.get(self.proposal.id, proposer=self.proposal.proposer)
        except UsageError:
            return True
        return False

    @property
    def is_pending(self) -> bool:
        state = self.proposal.state
        return state is not None and state.is_pending

    @property
    def told(self) -> dict[str, Any]:
        """The rule with the votes, as it stands in what is sent (PROTOCOL 6)."""
        return {**self.decision.told, **({} if self.count is None else self.count.told)}

    def deadline(self, now: float) -> datetime | None:
        """The moment at which it ends without a decision; ``now`` by the loop's clock."""
        ends = [] if self.proposal.expires_at is None else [self.proposal.expires_at]
        if self.decision.ttl is not None:
            left = self.since + self.decision.ttl - now
            ends.append(datetime.now(UTC) + timedelta(seconds=left))
        return min(ends, default=None)

    def reminder(self, now: float) -> str:
        """Words for people about it."""
        proposal, ttl = self.proposal, self.decision.ttl
        left = "" if ttl is None else f", {ttl - (now - self.since):.0f} s left"
        tool = printable((proposal.tool or proposal.method)[:MAX_NAME])
        rule = f"the rule {self.decision.rule!r}{left}."
        waits = f"Proposal {printable(proposal.id[:MAX_NAME])} of"
        waits += f" {printable(proposal.proposer[:MAX_NAME])!r} waits for"
        if self.count is None:
            return f"{waits} a decision: {tool!r}, asked by {rule}"
        missing = ", ".join(printable(each) for each in self.count.missing)
        may = f" Not yet voted: {missing}; vote by `meup inbox vote`, or in the console."
        return f"{waits} votes: {tool!r}, {self.count}, by {rule}{may if missing else ''}"


def digest_of(proposal: Proposal) -> str | None:
    """The digest of a proposal's call, as it is, whatever it says of itself."""
    call = read_proposal(proposal.envelope.payload)
    return digest(call.method, call.params, call.target)


HeldProposals = OrderedDict[Key, HeldProposal]
"""The held proposals by name, oldest first."""


def hold(proposals: HeldProposals, held: HeldProposal) -> None:
    """Hold one more; a later one under its name takes its place."""
    proposals[held.name] = held
    proposals.move_to_end(held.name)
    if len(proposals) > MAX_HELD:
        [(most, _)] = Counter(proposer for proposer, _ in proposals).most_common(1)
        del proposals[next(name for name in proposals if name[0] == most)]


# --- methods of a reviewer ---

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

    @property
    def name(self) -> Key:
        return self.proposer, self.proposal


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
    confirm: Literal["word"] | None
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
        "confirm": "word" if held.decision.takes_word else None,
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
