"""Methods of a reviewer: people vote, see what waits, and have an edit judged.

They are methods of their own, and no tools: nothing that a face asks by itself is a ``tools/call``,
and no bridge passes them on to what stands behind it (PROTOCOL 5). An inbox learns by them which
rule asked about a proposal, and the facts of its tool.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import anyio
import msgspec

from meup_agent.approval.policy.rules import PolicyDecision, ToldCount, Vote, VoteCount, is_count
from meup_agent.client.messages import write_params
from meup_agent.client.offers import TOOLS, ask_each
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.client.space import Space, directory_of
from meup_agent.client.tool_changes import ToolMark, digest_of_form, read_mark
from meup_agent.errors import (
    ConnectionFailed,
    MeupError,
    NotOffered,
    Refused,
    RequestError,
    UsageError,
    printable,
)
from meup_agent.protocol.dialects import read_addressees
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.envelope import Envelope, encode_json
from meup_agent.protocol.wire.payloads import (
    PREFIX,
    Call,
    as_object,
    as_text,
    digest,
    objects_in,
    read_proposal,
)
from meup_agent.transport.base import Condition

if TYPE_CHECKING:
    from meup_agent.client.proposal import Proposal


LIST_SECONDS: Final = 5.0
"""Wait for the tools of a participant; what is not known by then is shown as not known."""

MAX_DIRECTORIES: Final = 64
"""Participants whose tools are asked for: the executors of what waits."""

MAX_AT_A_TIME: Final = 8
"""Of these, asked at the same time."""

MAX_TOOLS: Final = 1_000
"""Tools of a participant that are kept."""

MAX_DESCRIPTION: Final = 4_000
"""Characters of a tool's description that are kept."""


class ToolFacts(msgspec.Struct, frozen=True):
    """A tool as the participant that has it describes it.

    Attributes:
        description: The tool's description.
        schema: Its ``inputSchema``.
        annotations: Its ``annotations``, hints of MCP.
        mark: Its difference from the accepted tool; ``None``: it has none.
        seen: Digest of its form, accepted or not.
    """

    description: str = ""
    schema: Mapping[str, Any] = {}
    annotations: Mapping[str, Any] = {}
    mark: ToolMark | None = None
    seen: str = ""

    @property
    def form(self) -> str:
        """Digest of its form, where nobody has accepted that."""
        return "" if self.mark is None else self.mark.form

    @property
    def is_destructive(self) -> bool:
        """True if it is marked as one that may destroy something."""
        return self.annotations.get("destructiveHint") is True

    @property
    def hints(self) -> tuple[str, ...]:
        """Its annotations in words."""
        said = ((self.annotations.get(key), words) for key, words in _HINTS.items())
        return tuple(words[not value] for value, words in said if isinstance(value, bool))


_HINTS: Final = {
    "readOnlyHint": ("reads only", "changes something"),
    "destructiveHint": ("may destroy", "destroys nothing"),
    "idempotentHint": ("can be repeated", "not to be repeated"),
    "openWorldHint": ("reaches outside", "stays inside"),
}


class ToolDirectory:
    """The tools of those participants that were asked for.

    Args:
        space: The space.
        came: Told of each participant whose tools have come, or could not be had.
    """

    def __init__(self, space: Space, came: Callable[[str], None]) -> None:
        self._space = space
        self._came = came
        self._known: dict[str, dict[str, ToolFacts] | None] = {}
        # Those that are asked, and that are to be (None).
        self._asked: dict[str, anyio.CancelScope | None] = {}
        self._changed = Condition()

    @property
    def is_settled(self) -> bool:
        """True if there is an answer, or none, to everything that was asked."""
        return not self._asked

    def want(self, participant: str) -> None:
        """Ask for the tools of a participant, if that has not been done."""
        if not self.is_wanted(participant) and len(self._known) < MAX_DIRECTORIES:
            self._asked[participant] = None
            self._changed.notify_all()

    def tools(self, participant: str) -> Mapping[str, ToolFacts] | None:
        """The tools of a participant, by name; ``None`` where they are not known."""
        return self._known.get(participant)

    def is_wanted(self, participant: str) -> bool:
        return participant in self._known or participant in self._asked

    def could_not_be_had(self, participant: str) -> bool:
        return self._known.get(participant, ()) is None

    def learn_from(self, other: ToolDirectory) -> None:
        """Take over the tools that another directory of the same space knows."""
        self._known.update({name: each for name, each in other._known.items() if each is not None})

    def forget(self, participant: str) -> None:
        self._known.pop(participant, None)

    def ask_again(self, participant: str, *, refresh: bool = False) -> None:
        """Ask for the tools of a participant that has come, whatever was asked before it did.

        With ``refresh`` itself, although the space has a list of it.
        """
        self.forget(participant)
        if refresh:
            directory_of(self._space).forget_tools(participant)
        scope = self._asked.get(participant)
        if scope is not None:
            # What was asked of who was not here is answered by nobody.
            scope.cancel()
        else:
            self.want(participant)

    async def run(self) -> None:
        """Ask for what is wanted, until cancelled."""
        limiter = anyio.CapacityLimiter(MAX_AT_A_TIME)
        async with anyio.create_task_group() as tasks:
            while True:
                for participant, begun in [*self._asked.items()]:
                    if begun is None:
                        scope = self._asked[participant] = anyio.CancelScope()
                        tasks.start_soon(self._ask, participant, scope, limiter)
                await self._changed.wait()

    async def _ask(
        self, participant: str, scope: anyio.CancelScope, limiter: anyio.CapacityLimiter
    ) -> None:
        listed: list[dict[str, Any]] | None = None
        with scope, suppress(ConnectionFailed):
            async with limiter:
                listed = await directory_of(self._space).read(participant, TOOLS, LIST_SECONDS)
        del self._asked[participant]
        if scope.cancelled_caught:
            self.want(participant)
            return
        self._known[participant] = None if listed is None else _read_all(listed[:MAX_TOOLS])
        self._came(participant)


def _read_all(listed: list[dict[str, Any]]) -> dict[str, ToolFacts]:
    found: dict[str, ToolFacts] = {}
    for each in listed:
        name = str(each.get("name"))
        # Of two with one name it is not known which one runs: it is the more dangerous.
        if name not in found or not (found[name].is_destructive or found[name].form):
            found[name] = _read(each)
    return found


def _read(tool: Mapping[str, Any]) -> ToolFacts:
    return ToolFacts(
        as_text(tool.get("description"), MAX_DESCRIPTION),
        as_object(tool.get("inputSchema")),
        as_object(tool.get("annotations")),
        read_mark(tool),
        digest_of_form(tool),
    )


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


# --- rules as they are told ---

MAX_TEXT: Final = 2_000
"""Characters of a rule that are kept."""

MAX_VOTERS: Final = 100
"""Voters of a rule that are kept."""


class InboxRule(msgspec.Struct, frozen=True):
    """The rule that asks for a decision, as a reviewer tells it.

    Attributes:
        reviewer: The participant whose rule it is.
        name: Its name.
        number: Its place in the policy; ``None``: no rule matched.
        text: The rule as it is written.
        kind: ``ask``: a person decides; ``quorum``: votes are counted.
        of: Votes that a quorum takes.
        among: Participants that may vote.
        votes: The votes so far, ``approve`` or ``reject`` by participant.
        deadline: The moment at which the reviewer waits no longer.
        digest: The digest of the call that it is about; empty where the reviewer does not say.
        takes_word: Who approves types a word.
    """

    reviewer: str
    name: str = ""
    number: int | None = None
    text: str = ""
    kind: str = "ask"
    of: int = 0
    among: tuple[str, ...] = ()
    votes: Mapping[str, str] = {}
    deadline: datetime | None = None
    digest: str = ""
    takes_word: bool = False

    @property
    def is_quorum(self) -> bool:
        """True if it counts votes."""
        return self.kind == "quorum"

    @property
    def approvals(self) -> int:
        """Votes for it so far."""
        return sum(each == "approve" for each in self.votes.values())

    @property
    def is_lost(self) -> bool:
        """True if it cannot get the votes that it takes any more."""
        against = sum(each == "reject" for each in self.votes.values())
        return self.is_quorum and len(self.among) - against < self.of

    def counts_vote_of(self, participant: str) -> bool:
        """True if a participant may vote."""
        return self.is_quorum and participant in self.among


def read_waiting(reviewer: str, said: Mapping[str, Any]) -> Iterable[tuple[ProposalKey, InboxRule]]:
    """The rules that a reviewer's answer tells; what cannot be read is left out."""
    for each in objects_in(said.get("proposals")):
        proposal, proposer = each.get("proposal"), each.get("proposer")
        if isinstance(proposal, str) and isinstance(proposer, str):
            yield ProposalKey(proposer, proposal), read_rule(reviewer, each)


def read_rule(reviewer: str, said: Mapping[str, Any]) -> InboxRule:
    """The rule in one entry of a reviewer's answer."""
    rule = as_object(said.get("rule"))
    number = rule.get("number")
    return InboxRule(
        reviewer,
        name=as_text(rule.get("name"), MAX_TEXT),
        number=number if is_count(number) else None,
        text=as_text(rule.get("text"), MAX_TEXT),
        kind="quorum" if said.get("kind") == "quorum" else "ask",
        deadline=_moment(said.get("deadline")),
        digest=as_text(said.get("digest")),
        # What holds back is read widely: another way to confirm is not known here.
        takes_word=said.get("confirm") is not None,
        **read_count(said),
    )


def read_count(said: Mapping[str, Any]) -> dict[str, Any]:
    """The count in a reviewer's answer: ``of``, ``among`` and ``votes``."""
    of, names = said.get("of"), payloads.as_list(said.get("among"))
    votes = {
        voter: str(vote)
        for voter, vote in list(as_object(said.get("votes")).items())[:MAX_VOTERS]
        if vote in ("approve", "reject")
    }
    return {
        "of": of if is_count(of) else 0,
        "among": tuple(name for name in names[:MAX_VOTERS] if isinstance(name, str)),
        "votes": votes,
    }


def _moment(value: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None


# --- check of a person's edit ---
# The rules of every reviewer that is here judge the call as it now is.
#
# A rule that an inbox was told is not a condition: one that floods its space, or hurries, may
# keep a reviewer's rule from being known, and an edit is not to run unjudged for that.

JUDGE_SECONDS: Final = 10.0
"""Wait for a verdict about an edited call, for which a reviewer may read a list of tools."""

MAX_WORDS: Final = 500
"""Characters of a reviewer's words about an edited call that are told."""


async def check_edit(
    space: Space,
    proposal: Envelope,
    arguments: dict[str, Any],
    *,
    target: str | None = None,
    told: Collection[InboxRule] = (),
    away: Sequence[str] = (),
) -> None:
    """Have an edited call judged by reviewers.

    A reviewer is a participant that answers the method ``dev.meup/judge``. What it says can only
    hold a call back, so each participant is asked that may carry the proposed call out, or reject
    it.

    Args:
        space: The space.
        proposal: The proposal.
        arguments: The arguments that are to be sent.
        target: The participant that is to carry it out, where it is another than proposed.
        told: The rules that reviewers have told for it.
        away: The reviewers whose rule asked for a decision, and who are not here.

    Raises:
        Refused: A rule does not let it pass.
        NotOffered: A reviewer that asked for a decision is away, or we may not ask one who may
            decide, or it gives no verdict; then nothing is certain, and nothing is sent.
        ConnectionFailed: Our own connection has failed.
    """
    if away:
        raise NotOffered(
            f"proposal {proposal.id} was not carried out: {away[0]!r}, whose rules an edited"
            " call must pass, is not here; wait for it, or approve the call as it was proposed"
        )
    call = payloads.read_proposal(proposal.payload)
    params = write_params(
        JudgeParams(
            proposal=proposal.id,
            proposer=proposal.sender,
            digest=payloads.digest(call.method, call.params, call.target),
            arguments=arguments,
            target=target,
        )
    )
    rules = {rule.reviewer: rule for rule in told}
    calls = (call, payloads.edit_call(call, arguments, target))

    async def ask(reviewer: str) -> None:
        await _have_judged(space, reviewer, proposal.id, params, rules.get(reviewer))

    await ask_each(_find_deciders(space, proposal, calls, rules), ask, at_a_time=MAX_AT_A_TIME)


def _find_deciders(
    space: Space, proposal: Envelope, calls: Sequence[Call], told: Collection[str]
) -> list[str]:
    """The participants that are to judge: those whose rule was told, and all who may decide.

    It is enough that they may carry out the call as it was proposed, or as it now is.
    """
    feed, here = ProposalFeed(space), [each.id for each in space.participants]
    named = read_addressees(proposal, calls[0]).deciders
    others = [
        each
        for each in here
        if each not in (space.me, proposal.sender) and (not named or each in named)
    ]
    deciders = {
        *(each for each in here if each in told),
        *feed.find_who_may_carry_out(others, calls),
        *(each for each in others if feed.may_reject(each, proposal.sender)),
    }
    return sorted(deciders)


async def _have_judged(
    space: Space,
    reviewer: str,
    proposal: str,
    params: dict[str, Any],
    rule: InboxRule | None,
) -> None:
    """Have one of them judge; one without the method is not a reviewer.

    Raises:
        Refused: Its verdict does not let the call pass.
        NotOffered: There is no verdict of its.
        ConnectionFailed: Our own connection has failed.
    """
    not_carried_out = f"proposal {proposal} was not carried out"
    if not space.may_request(reviewer, JUDGE, params):
        raise NotOffered(
            f"{not_carried_out}: an edited call must pass the rules of every reviewer, and"
            f" {space.me!r} may not send {JUDGE} to {reviewer!r}, who may decide; ask for"
            " that capability, or approve the call as it was proposed"
        )
    try:
        said = as_object(
            await space.request(reviewer, JUDGE, params, timeout=JUDGE_SECONDS, idempotent=True)
        )
    except ConnectionFailed:
        raise
    except MeupError as error:
        lacks = isinstance(error, RequestError) and error.code in payloads.UNKNOWN_METHOD
        if lacks and rule is None:
            return
        # Neither silence nor a failure is consent: it may be a reviewer with much to do, which
        # a proposer can bring about.
        raise NotOffered(
            f"{not_carried_out}: an edited call must pass the rules of every reviewer, and"
            f" {reviewer!r}, who may decide, has not judged it"
            f" ({printable(str(error)[:MAX_WORDS])}); try again, or approve the call as it was"
            " proposed"
        ) from error
    verdict, name = said.get("verdict"), as_object(said.get("rule")).get("name")
    counts_votes = rule is not None and rule.is_quorum
    if verdict in (("allow", "ask", "quorum") if counts_votes else ("allow", "ask")):
        return
    explain = said.get("explain")
    words = f": {printable(explain[:MAX_WORDS])}" if isinstance(explain, str) else ""
    raise Refused(
        "policy",
        f"{not_carried_out}: as it was edited, it is not let pass by"
        f" the rule {printable(str(name)[:MAX_NAME])!r} of {reviewer!r}{words}",
    )
