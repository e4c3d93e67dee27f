"""Rules that ask, and votes, as the reviewers of a space tell them."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from meup_agent.approval.reviewer_methods import VOTE, WAITING
from meup_agent.approval.tool_directory import MAX_AT_A_TIME
from meup_agent.errors import MeupError, RequestError, printable
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.protocol.payloads import as_object, objects_in
from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope

log = logging.getLogger("meup_agent.approval")

_VOTE: Final = VOTE.removeprefix(payloads.PREFIX).encode()  # a slash may be written as an escape

ASK_SECONDS: Final = 5.0
"""Wait for a reviewer's answer."""

PAUSE_SECONDS: Final = 0.25
"""Pause between two questions to a reviewer, so that a flood of votes is no flood of questions."""

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
    votes: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
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
        """Forget which participants are no reviewers."""
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

        An answer to a question like ours is no reason: two inboxes would ask each other for ever.
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
    """True for a request that is a vote."""
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
