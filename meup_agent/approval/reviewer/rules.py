"""Rules that ask, and votes, as reviewers tell them; and their judgement of an edit."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from meup_agent.approval.reviewer.methods import JUDGE, VOTE, WAITING, JudgeParams
from meup_agent.client.messages import write_params
from meup_agent.client.offers import TOOLS, ask_each
from meup_agent.client.space import directory_of
from meup_agent.client.tool_changes import ToolMark, read_mark
from meup_agent.errors import (
    ConnectionFailed,
    MeupError,
    NotOffered,
    Refused,
    RequestError,
    printable,
)
from meup_agent.protocol.dialects.base import read_addressees
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.payloads import as_object, objects_in
from meup_agent.transport.base import Condition

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from anyio.abc import TaskGroup

    from meup_agent.client.proposal_feed import ProposalFeed
    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.payloads import Call


# --- tool directory ---
# Tools of the participants of a space, as they describe them, asked for where they matter.

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
    """

    description: str = ""
    schema: Mapping[str, Any] = {}
    annotations: Mapping[str, Any] = {}
    mark: ToolMark | None = None

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
        self._wanted: dict[str, None] = {}
        self._asked: dict[str, anyio.CancelScope] = {}
        self._changed = Condition()

    @property
    def is_settled(self) -> bool:
        """True if there is an answer, or none, to everything that was asked."""
        return not self._wanted and not self._asked

    def want(self, participant: str) -> None:
        """Ask for the tools of a participant, if that has not been done."""
        is_asked = participant in self._wanted or participant in self._asked
        if is_asked or participant in self._known or len(self._known) >= MAX_DIRECTORIES:
            return
        self._wanted[participant] = None
        self._changed.notify_all()

    def tools(self, participant: str) -> Mapping[str, ToolFacts] | None:
        """The tools of a participant, by name; ``None`` where they are not known."""
        return self._known.get(participant)

    def is_wanted(self, participant: str) -> bool:
        every = (self._known, self._wanted, self._asked)
        return any(participant in each for each in every)

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
        if participant in self._asked:
            # What was asked of who was not here is answered by nobody.
            self._asked[participant].cancel()
        else:
            self.want(participant)

    async def run(self) -> None:
        """Ask for what is wanted, until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._begin(tasks)
                await self._changed.wait()

    def _begin(self, tasks: TaskGroup) -> None:
        while self._wanted and len(self._asked) < MAX_AT_A_TIME:
            participant = next(iter(self._wanted))
            del self._wanted[participant]
            scope = self._asked[participant] = anyio.CancelScope()
            tasks.start_soon(self._ask, participant, scope)

    async def _ask(self, participant: str, scope: anyio.CancelScope) -> None:
        listed: list[dict[str, Any]] | None = None
        with scope, suppress(ConnectionFailed):
            listed = await directory_of(self._space).read(participant, TOOLS, LIST_SECONDS)
        del self._asked[participant]
        if scope.cancelled_caught:
            self.want(participant)
            return
        self._known[participant] = None if listed is None else _read_all(listed[:MAX_TOOLS])
        self._changed.notify_all()
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
    description = tool.get("description")
    return ToolFacts(
        description[:MAX_DESCRIPTION] if isinstance(description, str) else "",
        as_object(tool.get("inputSchema")),
        as_object(tool.get("annotations")),
        read_mark(tool),
    )


# --- reviewer rules ---

log = logging.getLogger("meup_agent.approval")

_VOTE: Final = VOTE.removeprefix(payloads.PREFIX).encode()  # a slash may be written as an escape

ASK_SECONDS: Final = 5.0
"""Wait for a reviewer's answer."""

PAUSE_SECONDS: Final = 0.25
"""Pause between two questions to a reviewer, so that many votes are not as many questions."""

PAUSE_PER_PROPOSAL: Final = 0.002
"""Seconds of that pause for each proposal in an answer, where that is longer: a thousand are half a
megabyte, which the reviewer, the gateway and each inbox read."""

AGAIN_SECONDS: Final = 15.0
"""Interval at which reviewers are asked although nothing happened: a policy file may change."""

MAX_RULES: Final = 10_000
"""Proposals of which a reviewer's rules are kept; one of ours tells of a thousand at most."""

MAX_VOTES: Final = 1_000
"""Votes of others whose answers are waited for; that of one that is forgotten is heard of at the
next question."""

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

    @property
    def is_quorum(self) -> bool:
        """True if it counts votes."""
        return self.kind == "quorum"

    def counts_vote_of(self, participant: str) -> bool:
        """True if a participant may vote."""
        return self.is_quorum and participant in self.among


class _Candidate(msgspec.Struct, eq=False):
    """A participant that may be a reviewer, as far as it has answered.

    Attributes:
        answers: True for a reviewer, ``False`` for a participant without the method; ``None`` for
            one of which neither is known.
        is_asked: A question to it is out, or waits for its turn.
        was_asked: A question to it has ended, whatever came of it.
        round: The round in which it was asked last.
        not_before: The moment from which it may be asked again.
        pause: Seconds until then, where it gives no answer.
        scope: The scope of its last question.
    """

    answers: bool | None = None
    is_asked: bool = False
    was_asked: bool = False
    round: int = 0
    not_before: float = -math.inf
    pause: float = AGAIN_SECONDS
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)


class ReviewerRules(ABC):
    """The rules of all reviewers for what waits.

    A reviewer is a participant that may carry out what waits, and answers the method
    ``dev.meup/waiting``. No name of a tool makes one: a bridge has the names that its server gives
    to its tools, and to ask it by one would be a call that nobody approved.

    Args:
        space: The space.
        asked: Called when each of them has been asked.
    """

    def __init__(self, space: Space, asked: Callable[[], None]) -> None:
        self._space = space
        self._asked = asked
        self._changed = Condition()
        self._candidates: dict[str, _Candidate] = {}
        # Others' votes without an answer so far, by voter and id.
        self._votes: dict[tuple[str, str], None] = {}
        self._round = 1
        self._next_round = -math.inf
        self._young_since: float | None = None
        self._has_begun = False

    @abstractmethod
    def _find_candidates(self, participants: Iterable[str]) -> Iterable[str]:
        """Of some participants, those that may carry out what waits."""

    @abstractmethod
    def _replace_rules(self, reviewer: str, rules: dict[ProposalKey, InboxRule]) -> None:
        """Take what a reviewer says, whole."""

    @property
    def has_asked(self) -> bool:
        """True if each participant that may be a reviewer has been asked once."""
        return self._has_begun and not any(
            each.is_asked and not each.was_asked for each in self._candidates.values()
        )

    def learn_from(self, other: ReviewerRules) -> None:
        """Take over which participants are reviewers, as another inbox of the same space knows."""
        for name, each in other._candidates.items():
            if each.answers is not None:
                self._candidates[name] = _Candidate(each.answers, was_asked=True)

    def forget(self, participant: str) -> None:
        """Forget what a participant has answered: it has come, left, or may do something else."""
        known = self._candidates.pop(participant, None)
        if known is not None:
            known.scope.cancel()

    def forget_others(self) -> None:
        for name in [name for name, each in self._candidates.items() if not each.answers]:
            self.forget(name)

    def look_again(self, *, since: float | None = None) -> None:
        """Ask all reviewers soon.

        Args:
            since: The moment at which a proposal came. A reviewer may have to read a list of tools
                before it knows its rule, so it is asked more than once.
        """
        if since is not None:
            self._young_since = since
        self._begin_round()
        self._changed.notify_all()

    def hear(self, envelope: Envelope) -> None:
        """Ask again once a reviewer has counted the vote of another one.

        An answer to a question like ours is not a reason: two inboxes would ask each other on.
        Nor is a refused vote, which any participant can send without end.
        """
        if self._space.me in (envelope.sender, *envelope.to):
            return
        if is_vote(envelope):
            self._votes[envelope.sender, envelope.id] = None
            if len(self._votes) > MAX_VOTES:
                del self._votes[next(iter(self._votes))]
        elif envelope.kind == kinds.MCP_RESPONSE and self._votes:
            answered = [
                (voter, each)
                for voter in envelope.to
                for each in envelope.correlation
                if (voter, each) in self._votes
            ]
            for each in answered:
                del self._votes[each]
            by = self._candidates.get(envelope.sender)
            if answered and by is not None and by.answers:
                _, error = payloads.read_response(envelope.payload)
                if error is None:
                    self.look_again()

    async def run(self) -> None:
        """Ask, until cancelled."""
        limiter = anyio.CapacityLimiter(MAX_AT_A_TIME)
        async with anyio.create_task_group() as tasks:
            while True:
                now = anyio.current_time()
                until = min(self._begin_asking(tasks, limiter, now), self._next_round)
                with anyio.CancelScope(deadline=until):
                    await self._changed.wait()
                await anyio.sleep(PAUSE_SECONDS)
                if anyio.current_time() >= self._next_round:
                    self._begin_round()

    def _begin_round(self) -> None:
        """Have all reviewers asked once more, and again after a while."""
        self._round += 1
        self._next_round = anyio.current_time() + self._pause()

    def _pause(self) -> float:
        """Seconds until reviewers are asked again, if nothing happens."""
        if self._young_since is None:
            return AGAIN_SECONDS
        # A quarter of a second after a proposal came, then half a second, and so on.
        age = anyio.current_time() - self._young_since
        if age > AGAIN_SECONDS:
            self._young_since = None
        return min(max(age, PAUSE_SECONDS), AGAIN_SECONDS)

    def _begin_asking(self, tasks: TaskGroup, limiter: anyio.CapacityLimiter, now: float) -> float:
        """Ask those whose turn it is; the moment at which it is that of the next one."""
        until = math.inf
        me, known = self._space.me, self._candidates
        reviewers: list[str] = []
        others: list[str] = []
        for each in self._space.participants:
            answers = known[each.id].answers if each.id in known else None
            if each.id != me and answers is not False:
                (reviewers if answers else others).append(each.id)
        for participant in (*reviewers, *self._find_candidates(others)):
            if not self._space.may_request(participant, WAITING, {}):
                continue
            candidate = known.setdefault(participant, _Candidate())
            if candidate.is_asked or candidate.round == self._round:
                continue
            if candidate.not_before > now:
                until = min(until, candidate.not_before)
                continue
            candidate.round, candidate.is_asked = self._round, True
            candidate.scope = anyio.CancelScope()
            tasks.start_soon(self._ask, participant, candidate, limiter)
        self._has_begun = True
        self._note_asked()
        return until

    async def _ask(
        self, participant: str, candidate: _Candidate, limiter: anyio.CapacityLimiter
    ) -> None:
        count = 0
        with candidate.scope:
            async with limiter:
                count = await self._request(participant, candidate)
        now = anyio.current_time()
        if candidate.answers is None:
            # A terminal of another make shows each question to its person, and answers none.
            candidate.not_before = now + candidate.pause
            candidate.pause *= 2
        else:
            candidate.not_before = now + max(PAUSE_SECONDS, count * PAUSE_PER_PROPOSAL)
        candidate.is_asked, candidate.was_asked = False, True
        self._note_asked()
        self._changed.notify_all()

    async def _request(self, participant: str, candidate: _Candidate) -> int:
        """Ask one of them; how many proposals it told of."""
        try:
            said = as_object(
                await self._space.request(
                    participant, WAITING, {}, timeout=ASK_SECONDS, idempotent=True
                )
            )
        except MeupError as error:
            if isinstance(error, RequestError) and error.code in payloads.UNKNOWN_METHOD:
                if candidate.answers:
                    self._replace_rules(participant, {})
                candidate.answers = False
            else:
                log.info("%r does not tell what waits: %s", participant, printable(str(error)))
            return 0
        candidate.answers = True
        rules = dict(islice(read_waiting(participant, said), MAX_RULES))
        self._replace_rules(participant, rules)
        return len(rules)

    def _note_asked(self) -> None:
        if self.has_asked:
            self._asked()


def is_vote(envelope: Envelope) -> bool:
    if envelope.kind != kinds.MCP_REQUEST or _VOTE not in envelope.raw_payload:
        return False
    return as_object(envelope.payload).get("method") == VOTE


def read_waiting(reviewer: str, said: Mapping[str, Any]) -> Iterable[tuple[ProposalKey, InboxRule]]:
    """The rules that a reviewer's answer tells; what cannot be read is left out."""
    for each in objects_in(said.get("proposals")):
        proposal, proposer = each.get("proposal"), each.get("proposer")
        if isinstance(proposal, str) and isinstance(proposer, str):
            yield ProposalKey(proposer, proposal), read_rule(reviewer, each)


def read_rule(reviewer: str, said: Mapping[str, Any]) -> InboxRule:
    """The rule in one entry of a reviewer's answer."""
    rule = as_object(said.get("rule"))
    number, digest = rule.get("number"), said.get("digest")
    return InboxRule(
        reviewer,
        name=_text(rule.get("name")),
        number=number if isinstance(number, int) and not isinstance(number, bool) else None,
        text=_text(rule.get("text")),
        kind="quorum" if said.get("kind") == "quorum" else "ask",
        deadline=_moment(said.get("deadline")),
        digest=digest if isinstance(digest, str) else "",
        **read_count(said),
    )


def read_count(said: Mapping[str, Any]) -> dict[str, Any]:
    """The count in a reviewer's answer: ``of``, ``among`` and ``votes``."""
    of, among = said.get("of"), said.get("among")
    names = payloads.as_list(among)
    votes = {
        voter: str(vote)
        for voter, vote in list(as_object(said.get("votes")).items())[:MAX_VOTERS]
        if vote in ("approve", "reject")
    }
    return {
        "of": of if isinstance(of, int) and not isinstance(of, bool) else 0,
        "among": tuple(name for name in names[:MAX_VOTERS] if isinstance(name, str)),
        "votes": votes,
    }


def _text(value: object) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""


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

MAX_NAME: Final = 100
"""Characters of a rule's name that are told."""


class EditCheck:
    """The check of edited calls by reviewers.

    A reviewer is a participant that answers the method ``dev.meup/judge``. What it says can only
    hold a call back, so each participant is asked that may carry the proposed call out, or reject
    it.

    Args:
        space: The space.
        feed: Its proposals.
    """

    def __init__(self, space: Space, feed: ProposalFeed) -> None:
        self._space = space
        self._feed = feed

    async def check(
        self,
        proposal: Envelope,
        arguments: dict[str, Any],
        *,
        target: str | None = None,
        told: Collection[InboxRule] = (),
        away: Sequence[str] = (),
    ) -> None:
        """Have an edited call judged.

        Args:
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
            await self._ask(reviewer, proposal.id, params, rules.get(reviewer))

        await ask_each(self._find_deciders(proposal, calls, rules), ask, at_a_time=MAX_AT_A_TIME)

    def _find_deciders(
        self, proposal: Envelope, calls: Sequence[Call], told: Mapping[str, InboxRule]
    ) -> list[str]:
        """The participants that are to judge: those whose rule was told, and all who may decide.

        It is enough that they may carry out the call as it was proposed, or as it now is.
        """
        named = read_addressees(proposal, calls[0]).deciders
        others = [
            each.id
            for each in self._space.participants
            if each.id not in (self._space.me, proposal.sender) and (not named or each.id in named)
        ]
        deciders = {
            *(each.id for each in self._space.participants if each.id in told),
            *self._feed.find_who_may_carry_out(others, calls),
            *(each for each in others if self._feed.may_reject(each, proposal.sender)),
        }
        return sorted(deciders)

    async def _ask(
        self, reviewer: str, proposal: str, params: dict[str, Any], rule: InboxRule | None
    ) -> None:
        """Have one of them judge; one without the method is not a reviewer.

        Raises:
            Refused: Its verdict does not let the call pass.
            NotOffered: There is no verdict of its.
            ConnectionFailed: Our own connection has failed.
        """
        not_carried_out = f"proposal {proposal} was not carried out"
        if not self._space.may_request(reviewer, JUDGE, params):
            raise NotOffered(
                f"{not_carried_out}: an edited call must pass the rules of every reviewer, and"
                f" {self._space.me!r} may not send {JUDGE} to {reviewer!r}, who may decide; ask for"
                " that capability, or approve the call as it was proposed"
            )
        try:
            said = as_object(
                await self._space.request(
                    reviewer, JUDGE, params, timeout=JUDGE_SECONDS, idempotent=True
                )
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
