"""Reviewer: an agent that decides by a policy file, counts votes, and reminds people."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from meup_agent.agent.agent import GRACE, Agent
from meup_agent.agent.context import Context
from meup_agent.approval.policy.decider import LIST_SECONDS, Decider, failure_logged, tell_left
from meup_agent.approval.policy.file import NoPolicy, WatchedPolicy
from meup_agent.approval.policy.rules import (
    MAX_EXPLANATION,
    PolicyDecision,
    QuorumRule,
    Verdict,
    Vote,
    VoteCount,
    VoteOutcome,
)
from meup_agent.approval.reviewer.methods import (
    JUDGE,
    VOTE,
    WAITING,
    EditVerdict,
    HeldProposal,
    HeldProposals,
    JudgeParams,
    ProposalParams,
    VoteParams,
    VoteResult,
    WaitingProposals,
    describe_all,
    describe_rule,
    digest_of,
    hold,
)
from meup_agent.approval.yeses import YES_SECONDS, YesWatch, list_yeses
from meup_agent.causes import Reason
from meup_agent.client.messages import (
    Request,
    handler_is,
    is_own_request,
    read_params,
    write_params,
)
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.client.space import Space, allowed_words
from meup_agent.client.tool_changes import AcceptCallParams, accept_call
from meup_agent.errors import (
    ConfigurationError,
    MeupError,
    RequestError,
    UsageError,
    VoteRefused,
    explain_os_error,
    printable,
    system_reason,
)
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.roster import UPDATE, read_participant
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.payloads import KICK, REVOKE, read_proposal
from meup_agent.transport.base import Condition, background_tasks

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from meup_agent.client.proposal import Proposal
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.scoped_yes import KeptYes


# --- vote file ---
# The votes that have not decided yet, kept over a restart.
#
# A vote counts once its line is on the disk. The vote that decides is one line with the end of its
# count: after a crash it is either not there, and was not counted, or the votes are spent, and
# none of them counts again. So a crash can lose an approval, and never makes one.

log = logging.getLogger("meup_agent.approval")

MAX_FILE_BYTES: Final = 32 << 20
"""Bytes of a file of votes; beyond them no vote counts until it is written anew."""

MAX_VOTE_SECONDS: Final = 30 * 86_400.0
"""Age of a vote that a restart still knows: people forget what they voted upon longer ago."""


class VoteLine(msgspec.Struct, omit_defaults=True):
    """A line of the file: a vote, one that is taken back (``None``), or the end of a count."""

    key: str
    at: float
    voter: str = ""
    vote: Vote | None = None
    explanation: str = ""
    ends: bool = False


def vote_key(space: str, reviewer: str, envelope: Envelope, count: VoteCount, form: str) -> str:
    """The name of one count: a proposal as it came, the rule about its votes, and its tool's form.

    A proposal that differs in one byte, a rule with other voters, or a tool of another form finds
    no votes of before.
    """
    rule = [count.of, sorted(count.among)]
    said = json.dumps([space, reviewer, envelope.sender, envelope.id, envelope.ts, rule, form])
    return hashlib.sha256(said.encode() + bytes(envelope.raw_payload)).hexdigest()


class VoteFile:
    """An open file of votes, which no other process has open.

    Args:
        path: The file; it is made where there is none.

    Raises:
        ConfigurationError: It cannot be opened, or another reviewer has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._counts: dict[str, dict[str, VoteLine]] = {}
        # Through no link, which would lead to a file that is not ours to cut short.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with explain_os_error(f"{path} cannot be opened for votes"):
            self._file = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            _lock(self._file, path)
            for line in self._read():
                self._apply(line)
            self._rewrite()
        except OSError as error:
            os.close(self._file)
            why = system_reason(error)
            raise ConfigurationError(f"{path} cannot be used for votes ({why})") from None
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        """Close it, and let another process open it."""
        os.close(self._file)

    def restore(self, key: str, count: VoteCount) -> VoteCount:
        """A count with the votes that the file has of it."""
        lines = self._counts.get(key, {}).values()
        votes = {each.voter: each.vote for each in lines if each.vote is not None}
        said = {each.voter: each.explanation for each in lines if each.explanation}
        restored = msgspec.structs.replace(count, votes=votes, explanations=said)
        # Votes that decide are spent with the last of them: these are none of this file's.
        return restored if restored.outcome is VoteOutcome.OPEN else count

    def record(
        self, key: str, voter: str, vote: Vote, explanation: str = "", *, ends: bool = False
    ) -> None:
        """Keep a vote; with the one that ends a count, forget its others.

        Raises:
            VoteRefused: It could not be written, so that it does not count.
        """
        line = VoteLine(key, time.time(), voter, vote, explanation[:MAX_EXPLANATION], ends)
        if why := self._append(line, "a vote could not be written"):
            raise VoteRefused(f"it could not be kept ({why}), and what is not kept does not count")
        self._apply(line)

    def take_back(self, key: str, voter: str) -> None:
        if self._counts.get(key, {}).pop(voter, None) is not None:
            # It may count again after a restart, for which people are told to look.
            self._append(VoteLine(key, time.time(), voter), "a vote could not be taken back")

    def forget(self, key: str) -> None:
        if self._counts.pop(key, None) is not None:
            # What is decided is not asked again; a vote too many in the file does no harm.
            self._append(VoteLine(key, time.time(), ends=True), "votes could not be forgotten")

    def _apply(self, line: VoteLine) -> None:
        if line.ends:
            self._counts.pop(line.key, None)
        elif line.voter and line.vote is not None and time.time() - line.at <= MAX_VOTE_SECONDS:
            self._counts.setdefault(line.key, {})[line.voter] = line
        elif line.key in self._counts:
            # Taken back, or too old: what it replaced is older still.
            self._counts[line.key].pop(line.voter, None)

    def _append(self, line: VoteLine, failure: str) -> str:
        """Write a line; the reason for which that failed, or nothing."""
        try:
            if os.fstat(self._file).st_size > MAX_FILE_BYTES:
                self._rewrite()
            _write(self._file, _encode(line))
        except OSError as error:
            why = system_reason(error)
            log.error("%s: %s (%s)", self.path, failure, why)
            return why
        return ""

    def _rewrite(self) -> None:
        """Leave only the votes that count: cut short by a crash, there are fewer, and none else."""
        os.ftruncate(self._file, 0)
        live = [line for lines in self._counts.values() for line in lines.values()]
        _write(self._file, b"".join(map(_encode, live)))

    def _read(self) -> list[VoteLine]:
        raw = b""
        while chunk := os.pread(self._file, 1 << 20, len(raw)):
            raw += chunk
            if len(raw) > 2 * MAX_FILE_BYTES:
                return self._refused("it is too large")
        if not raw.endswith(b"\n") and raw:
            return self._refused("its last line is not whole")
        try:
            return msgspec.json.decode(
                b"[" + b",".join(raw.splitlines()) + b"]", type=list[VoteLine]
            )
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return self._refused(str(error))

    def _refused(self, why: str) -> list[VoteLine]:
        # The line that is broken may be one by which an approval was taken back.
        log.error(
            "%s: %s; no vote of it counts, so let people vote anew", self.path, printable(why)
        )
        return []


def _encode(line: VoteLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _write(file: int, raw: bytes) -> None:
    """Write it whole, and wait until the disk has it."""
    size = os.fstat(file).st_size
    try:
        written = os.write(file, raw)
        if written != len(raw):
            raise OSError(28, "No space left on device")
        os.fsync(file)
    except OSError:
        # Half a line would make the whole file worthless to the next start.
        os.ftruncate(file, size)
        raise


def _lock(file: int, path: Path) -> None:
    try:
        import fcntl  # not on every system
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(
            f"{path} has the votes of another reviewer that runs; give this one a file of its own"
            " by --votes"
        ) from None


# --- voter watch ---


class VoterWatch:
    """Follows a space, takes votes back, and has a call decided again whose tool becomes known.

    Args:
        space: The space.
        held: The proposals whose votes are counted.
        take_back: Takes back the vote of a participant about one.
    """

    def __init__(
        self, space: Space, held: HeldProposals, take_back: Callable[[HeldProposal, str], None]
    ) -> None:
        self._feed = ProposalFeed(space)
        self._space = space
        self._held = held
        self._take_back = take_back

    def put(self, envelope: Envelope) -> None:
        """Look at what an envelope takes from those who have voted."""
        payload = envelope.payload_object
        if envelope.kind == KICK:
            removed = payload.get("participant_id")
            self._take_back_if(lambda voter, held: voter == removed)
        elif envelope.kind == REVOKE:
            here = {each.id for each in self._space.participants}
            # Of those who are here an update tells what is left to them.
            self._take_back_if(
                lambda voter, held: voter not in here and payload.get("recipient") in (None, voter)
            )
        elif envelope.kind == kinds.SYSTEM_PRESENCE:
            changed = read_participant(payload.get("participant"))
            if changed is None:
                return
            if payload.get("event") == UPDATE:
                self._take_back_if(
                    lambda voter, held: voter == changed.id and not self._may_vote(voter, held)
                )
            # Votes of before a restart are about a tool of one form: without it none is found.
            for held in self._held.values():
                form, target = held.decision.form, held.proposal.target
                if held.count is not None and not form and target == changed.id:
                    held.policy = ""

    def _take_back_if(self, is_over: Callable[[str, HeldProposal], bool]) -> None:
        for held in [*self._held.values()]:
            for voter in () if held.count is None else held.count.votes:
                if is_over(voter, held):
                    self._take_back(held, voter)

    def _may_vote(self, voter: str, held: HeldProposal) -> bool:
        proposal = held.proposal
        params = VoteParams(proposal=proposal.id, proposer=proposal.proposer, vote=Vote.APPROVE)
        return self._feed.may_request_of_us(voter, VOTE, write_params(params))


POLL_SECONDS: Final = 0.5
"""Interval at which reminders are looked at, and the file, of which each decision looks anew."""

RULE_SECONDS: Final = 3.0
"""Wait of a vote for the rule of its proposal, which may have come just before it."""

MAX_OPEN_QUESTIONS: Final = 4
"""Questions and early votes of one participant that wait at a reviewer; more are told that it is
busy. Each takes one of the places for handlers, which others need, too."""

LIST_SECONDS_PER_PROPOSAL: Final = 0.001
"""Seconds for which a list of what waits is held back, for each proposal in it. A thousand are half
a megabyte, which every member of the space is sent."""

SAY_SECONDS: Final = 5.0
"""Wait for the gateway to take one rejection or reminder."""


class Reviewer:
    """Decides by a policy file; what is asked it leaves to people, and reminds them by chat.

    Of a quorum it counts the votes, which people give by its method ``dev.meup/vote``. The method
    ``dev.meup/waiting`` lists what waits for people, with the rule that asks and the votes so far,
    and ``dev.meup/judge`` says which rule decides one of these calls as a person would edit it.

    What it would leave to people, and a scoped yes covers, is carried out as a use of that yes,
    also where it was asked about before the yes was given.

    Args:
        path: The policy file; ``None``: no rules, so that everything is asked about.
        votes: The file of votes; by default the policy's path with ``.votes`` behind it.

    Raises:
        ConfigurationError: The file does not load.
    """

    def __init__(self, path: Path | None = None, votes: Path | None = None) -> None:
        try:
            self.policy = WatchedPolicy(path, anyio.current_time) if path else NoPolicy()
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from None
        if votes is None and path is not None:
            votes = path.with_name(f"{path.name}.votes")
        # Without a policy nothing is voted about.
        self._votes_path = votes or Path("votes")
        self._votes: VoteFile | None = None
        self._held = HeldProposals()
        self._space_name = ""
        self._is_joined = False
        self._tasks: TaskGroup | None = None
        self._open = Counter[str]()  # questions that wait, by who asks
        self._counted = 0  # proposals whose votes have decided, and that are being carried out
        self._arrived = Condition()  # one more is held
        self._ended = Condition()  # one of them has ended
        self.agent = Agent("reviewer")
        own_files = () if path is None else (path.name, self._votes_path.name)
        self._given = Condition()  # a scoped yes was given
        self._given_at = -math.inf  # by the loop's clock
        self._decider = Decider(
            self.policy.current,
            held=self.hold,
            own_files=own_files,
            doubt=lambda: self.policy.doubt,
        )
        self._decider.install(self.agent)
        self.agent.on_request(VOTE)(self.vote)
        self.agent.on_request(WAITING)(self.list_waiting)
        self.agent.on_request(JUDGE)(self.judge)

    @asynccontextmanager
    async def join(self, *where: Any, **options: Any) -> AsyncGenerator[Space]:
        """Be in a space, as :meth:`Agent.join`, with its reminders and votes.

        A reviewer is in one space at a time: names of voters mean nothing in another.

        Raises:
            UsageError: It is in a space.
            ConfigurationError: The policy counts votes, and their file cannot be opened.
        """
        if self._is_joined:
            raise UsageError(
                "the reviewer is in a space already, and counts the votes of that one; make another"
                " Reviewer for another space"
            )
        self._is_joined = True
        self._held = HeldProposals()
        self._space_name = str(options.get("space") or "")
        try:
            if any(isinstance(rule, QuorumRule) for rule in self.policy.current().rules):
                self._open_votes()
            async with (
                self.agent.join(*where, **options) as space,
                background_tasks() as tasks,
            ):
                watch = VoterWatch(space, self._held, self._take_back)
                feed = ProposalFeed(space)
                with feed.following(watch), feed.following(YesWatch(self._yes_given)):
                    self._tasks = tasks
                    tasks.start_soon(self._remind)
                    tasks.start_soon(self._look_for_yeses)
                    tasks.start_soon(_decide_listed, feed)
                    try:
                        yield space
                    finally:
                        # Handlers run on until the agent has left: no vote of theirs decides.
                        self._tasks = None
                    await self._finish(options.get("grace", GRACE), options.get("hurry"))
                tasks.cancel_scope.cancel()
        finally:
            self._is_joined = False
            self._tasks = None
            if self._votes is not None:
                self._votes.close()
                self._votes = None

    def hold(self, proposal: Proposal, space: Space, decision: PolicyDecision) -> None:
        """Remember a proposal that people decide, while it is pending."""
        now = anyio.current_time()
        held = HeldProposal(proposal, space, decision, now, now, policy=decision.policy)
        if decision.verdict is Verdict.QUORUM:
            count = VoteCount(proposal.proposer, decision.of, decision.among)
            held.key = vote_key(self._space_name, space.me, proposal.envelope, count, decision.form)
            try:
                held.count = self._open_votes().restore(held.key, count)
            except ConfigurationError as error:
                log.error("no vote can be counted: %s", printable(str(error)))
                held.count = count
        # One that was given while it was decided may not have been looked at.
        held.is_looked_up = now - self._given_at > YES_SECONDS
        hold(self._held, held)
        self._arrived.notify_all()
        self._given.notify_all()

    # --- the methods ---

    async def vote(self, request: Request, context: Context) -> VoteResult:
        """Count a vote about a proposal that takes several; it may be changed until it counts.

        The digest, if it is given, is that of the call which was looked at: the vote counts for
        no other, and for no other form of its tool.
        """
        given = read_params(request, VoteParams)
        try:
            await self._until_held(context, given)
            await self._until_form_known(context, given)
            return self._vote(context, given)
        except VoteRefused as error:
            log.info("a vote of %r does not count: %s", context.sender, error)
            raise RequestError(payloads.INVALID_PARAMS, str(error)) from None

    async def list_waiting(self, request: Request) -> WaitingProposals:
        """List the proposals that wait for people, with the rule that asks and the votes."""
        with self._answering(request.sender):
            await anyio.sleep(len(self._held) * LIST_SECONDS_PER_PROPOSAL)
            waiting = [held for held in self._held.values() if held.is_pending]
            return describe_all(waiting, anyio.current_time())

    async def judge(self, request: Request, context: Context) -> EditVerdict:
        """Judge a pending call as it would be with other arguments, or at another target.

        The digest, if it is given, is that of the call which was looked at.
        """
        given = read_params(request, JudgeParams)
        held = self._held.get(given.name)
        try:
            # It need not be held: its rule may come a moment later, or a flood displaced it.
            judged = (
                context.space.proposals.get(given.proposal, proposer=given.proposer)
                if held is None
                else held.proposal
            )
            _check_meant(judged, given, held)
        except (UsageError, VoteRefused) as error:
            raise RequestError(payloads.INVALID_PARAMS, str(error)) from None
        call = read_proposal(judged.envelope.payload)
        edited = payloads.edit_call(call, given.arguments, given.target)
        passed = () if held is None else held.decision.counted
        with self._answering(request.sender):
            decision = await self._decider.judge(edited, given.proposer, context.space, passed)
        return {
            "proposal": judged.id,
            "proposer": judged.proposer,
            "verdict": str(decision.verdict),
            "rule": describe_rule(decision),
            "explain": decision.explain or decision.why,
        }

    def _vote(self, context: Context, given: VoteParams) -> VoteResult:
        """Count a vote; no other one comes between the count and its file, since nothing waits."""
        voter = context.sender
        self._check_voter(context)
        held = self._votable(given)
        assert held.count is not None
        said = (given.explanation or "").strip()
        count = held.count.cast(voter, given.vote, said)
        decides = count.outcome is not VoteOutcome.OPEN
        self._open_votes().record(held.key, voter, given.vote, said, ends=decides)
        held.count = count
        log.info("proposal %s of %r: %r votes %s; %s", *held_words(held), voter, given.vote, count)
        if decides:
            # It is not part of this handler, which ends with the answer to the voter.
            with handler_is(None):
                self._begin(held, partial(self._carry_out, held))
        return {
            "proposal": held.proposal.id,
            "proposer": held.proposal.proposer,
            "outcome": str(count.outcome),
            **count.told,
            "among": list(count.voters),
        }

    @contextmanager
    def _answering(self, participant: str) -> Generator[None]:
        """Count a question of a participant while it waits for its answer.

        Raises:
            RequestError: So many wait already.
        """
        if self._open[participant] >= MAX_OPEN_QUESTIONS:
            raise RequestError(
                payloads.EXCHANGE_ERROR,
                f"the reviewer is answering {MAX_OPEN_QUESTIONS} requests of {participant!r}; ask"
                " again later",
                {"reason": "busy"},
            )
        self._open[participant] += 1
        try:
            yield
        finally:
            self._open[participant] -= 1
            if not self._open[participant]:
                del self._open[participant]

    async def _until_held(self, context: Context, given: VoteParams) -> None:
        """Wait for the rule of what came a moment ago: its tool's schema is asked for first."""
        if self._held.get(given.name) is not None:
            return
        with self._answering(context.sender), anyio.move_on_after(RULE_SECONDS):
            while self._held.get(given.name) is None:
                try:
                    known = context.space.proposals.get(given.proposal, proposer=given.proposer)
                except UsageError:
                    return
                if known.state is not ProposalState.PENDING:
                    return
                await self._arrived.wait()

    async def _until_form_known(self, context: Context, given: VoteParams) -> None:
        """Decide anew where a tool is not known, or a voter has seen it in another form.

        In the latter case the list of before may be ours.
        """
        held = self._held.get(given.name)
        if held is None or held.count is None or held.is_counted:
            return
        is_same, target = _is_form_of(held, given.form), held.proposal.target
        if (is_same and held.decision.form) or target is None:
            return
        if context.sender not in held.count.voters:
            return
        with self._answering(context.sender):
            if not is_same:
                with failure_logged(held.proposal):
                    await held.space.offers.tools(target, refresh=True, timeout=LIST_SECONDS)
            await self._decide_again(held)

    def _check_voter(self, context: Context) -> None:
        """Refuse votes whose voter is not certain, or not the one that decided to vote."""
        if not context.space.gateway.guarantees.identity_checked:
            raise VoteRefused(
                "no vote counts here: the gateway does not check who speaks, so that each may come"
                " from another participant"
            )
        if not is_own_request(context.envelope):
            raise VoteRefused(
                "it was proposed by another participant; vote by a request of your own"
            )
        if self._tasks is None:
            raise VoteRefused("the reviewer is stopping; vote again when it is back")

    def _votable(self, given: VoteParams) -> HeldProposal:
        """The held proposal that a vote is about."""
        held = self._held.get(given.name)
        named = _named(given)
        if held is None:
            raise VoteRefused(f"no {named} waits here")
        _check_meant(held.proposal, given, held)
        if held.count is None:
            raise VoteRefused(
                f"{named} takes no votes: the rule {held.decision.rule!r} leaves it to one person,"
                " who fulfills or rejects it"
            )
        if held.is_counted or held.proposal.state is ProposalState.IN_PROGRESS:
            raise VoteRefused(f"{named} is being carried out; no vote counts any more")
        if not _is_form_of(held, given.form):
            raise VoteRefused(
                f"{named} calls a tool that is not in the form that you were shown; look at it"
                " again, and vote about what it is now"
            )
        return held

    def _open_votes(self) -> VoteFile:
        if self._votes is None:
            self._votes = VoteFile(self._votes_path)
        return self._votes

    def _take_back(self, held: HeldProposal, voter: str) -> None:
        """Count a vote no longer, also one of those that have decided and are carried out."""
        assert held.count is not None
        held.count = held.count.without(voter)
        if self._votes is not None:
            self._votes.take_back(held.key, voter)
        words = "proposal %s of %r: the vote of %r is taken back, who may not vote any more; %s"
        log.warning(words, *held_words(held), voter, held.count)

    # --- scoped yeses ---

    def _yes_given(self, proposer: str) -> None:
        """Let it be looked up again whether a yes covers what waits of a proposer."""
        self._given_at = anyio.current_time()
        for held in self._held.values():
            if held.proposal.proposer == proposer:
                held.is_looked_up = False
        self._given.notify_all()

    async def _look_for_yeses(self) -> None:
        """Use the yeses that came since a proposal was left to people."""
        while True:
            waiting: dict[str, list[HeldProposal]] = {}
            for held in self._held.values():
                if not held.is_looked_up and held.count is None and not held.is_counted:
                    waiting.setdefault(held.proposal.proposer, []).append(held)
            for proposer, theirs in waiting.items():
                try:
                    kept = await list_yeses(theirs[0].space, proposer=proposer)
                except MeupError as error:
                    log.warning("no yes is used: %s", printable(str(error)))
                    kept = []
                for held in theirs:
                    held.is_looked_up = True
                    await self._look_up(held, kept)
            if not waiting:
                await self._given.wait()

    async def _look_up(self, held: HeldProposal, kept: list[KeptYes]) -> None:
        if held.proposal.state is not ProposalState.PENDING:
            return
        found = await self._decider.find_yes(held.proposal, held.space, held.decision, kept)
        is_held = self._held.get(held.name) is held and not held.is_counted
        if found is not None and is_held and held.count is None:
            self._use_yes(held, found)

    def _use_yes(self, held: HeldProposal, decision: PolicyDecision) -> None:
        log.info("proposal %s of %r: allowed by %s", *held_words(held), printable(decision.rule))
        self._begin(held, partial(self._decider.use_yes, held.proposal, held.space, decision))

    # --- what votes, or a yes, have decided ---

    def _begin(self, held: HeldProposal, work: Callable[[], Awaitable[object]]) -> None:
        """Carry it out in a task of the reviewer's; nothing else decides it meanwhile."""

        async def run() -> None:
            try:
                await work()
            finally:
                self._counted -= 1
                self._end(held)
                self._ended.notify_all()

        assert self._tasks is not None
        held.is_counted = True
        self._counted += 1
        self._tasks.start_soon(run)

    async def _carry_out(self, held: HeldProposal) -> None:
        count = held.count
        assert count is not None
        with failure_logged(held.proposal):
            if count.outcome is VoteOutcome.REJECTED:
                said = "; ".join(f"{who}: {text}" for who, text in count.explanations.items())
                words = f"The votes reject it: {count}.{f' {said}' if said else ''}"
                await self._reject(held, Reason.DISAGREE, words, held.told)
                return
            again = await self._decider.decide(held.proposal, held.space, again=True)
            if held.count is None or held.count.outcome is not VoteOutcome.APPROVED:
                return  # a vote was taken back meanwhile
            if again.verdict is Verdict.DENY:
                await self._reject(held, again.reason, again.explain, again.told)
            elif not _asks_the_same(held.decision, again):
                await self._begin_anew(held, again)
            else:
                await self._accept_form(held, again)
                await held.proposal.fulfill(rule=held.told)

    async def _accept_form(self, held: HeldProposal, decision: PolicyDecision) -> None:
        """Accept the form of the tool that the votes are about, for this call."""
        proposal = held.proposal
        if decision.is_marked and proposal.target is not None:
            seen = AcceptCallParams(proposal.id, proposal.proposer, proposal.tool, decision.form)
            await accept_call(held.space, proposal.target, seen)

    async def _reject(
        self, held: HeldProposal, reason: str, words: str, rule: dict[str, Any]
    ) -> None:
        """Reject it, once: what cannot be rejected is still decided by people, or expires."""
        self._drop(held)
        explain = allowed_words(held.proposal, held.space, words)
        await held.proposal.reject(reason, explain=explain, rule=rule)

    async def _begin_anew(self, held: HeldProposal, decision: PolicyDecision) -> None:
        """Hold it under the rule that it has now, or as its tool is now; the votes are spent."""
        what = _what_is_new(held.decision, decision)
        log.warning("proposal %s of %r: its %s", *held_words(held), what)
        self._drop(held)
        if decision.verdict is Verdict.ALLOW:
            why = "people were asked before the policy allowed it"
            decision = msgspec.structs.replace(decision, verdict=Verdict.ASK, why=why)
        self.hold(held.proposal, held.space, decision)
        tell_left(held.proposal, held.space, decision)
        if held.count is not None and (held.decision.form or held.count.votes):
            said = f"The {what}: no vote about it counts any more."
            await self._send_chat(held, said)

    def _end(self, held: HeldProposal) -> None:
        """Forget it, or let people vote anew where it could not be carried out."""
        held.is_counted = False
        if not held.is_pending:
            self._drop(held)
        elif held.count is not None:
            held.count = held.count.anew()

    def _drop(self, held: HeldProposal) -> None:
        if self._held.get(held.name) is held:
            del self._held[held.name]
        if self._votes is not None and held.key:
            self._votes.forget(held.key)

    async def _finish(self, grace: float, hurry: anyio.Event | None) -> None:
        """Give what the votes have decided a grace."""
        with anyio.move_on_after(grace) as scope:
            async with background_tasks() as tasks:
                if hurry is not None:
                    tasks.start_soon(_cancel_after, hurry, scope)
                while self._counted:
                    await self._ended.wait()

    # --- reminders ---

    async def _remind(self) -> None:
        while True:
            await anyio.sleep(POLL_SECONDS)
            policy = self.policy.current()  # so that a file which is refused is told at once
            async with anyio.create_task_group() as tasks:
                for held in [*self._held.values()]:
                    if held.policy != policy.digest and held.is_pending and not held.is_counted:
                        # At once: each may wait for the tools of another participant.
                        tasks.start_soon(self._decide_again, held)
            for held in [*self._held.values()]:
                if not held.is_pending:
                    self._drop(held)
                elif not held.is_counted:
                    await self._remind_or_reject(held)

    async def _decide_again(self, held: HeldProposal) -> None:
        """Decide what waits for people by a policy that was changed since they were asked."""
        with failure_logged(held.proposal):
            again = await self._decider.decide(held.proposal, held.space, again=True)
            if self._held.get(held.name) is not held or held.is_counted or not held.is_pending:
                return
            held.policy = again.policy
            with anyio.move_on_after(SAY_SECONDS):
                if again.verdict is Verdict.DENY:
                    await self._reject(held, again.reason, again.explain, again.told)
                elif _asks_the_same(held.decision, again):
                    held.decision = again
                elif again.verdict is Verdict.QUORUM or held.count is not None:
                    await self._begin_anew(held, again)
                # What is allowed now waits on: people were asked, and may be about to reject it.

    async def _remind_or_reject(self, held: HeldProposal) -> None:
        decision, now = held.decision, anyio.current_time()
        with failure_logged(held.proposal):
            # It is on its way by then; others wait no longer for one that is not taken.
            with anyio.move_on_after(SAY_SECONDS):
                if decision.ttl is not None and now - held.since >= decision.ttl:
                    words = (
                        f"No participant decided within {decision.ttl:g} s. That is neither a"
                        " refusal nor a permission."
                    )
                    await self._reject(held, Reason.TIMEOUT, words, held.told)
                elif decision.remind is not None and now - held.reminded >= decision.remind:
                    held.reminded = now
                    await self._send_chat(held, held.reminder(now))

    async def _send_chat(self, held: HeldProposal, words: str) -> None:
        payload = {"message": words, payloads.META: {payloads.RULE: held.told}}
        await held.space.send(kinds.CHAT, payload, correlation=held.proposal.id)


async def _cancel_after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def _decide_listed(feed: ProposalFeed) -> None:
    """Decide what was proposed before: of many open proposals a newcomer is told of a part."""
    try:
        await feed.offer_listed()
    except MeupError as error:
        log.warning("what was proposed before is not decided: %s", printable(str(error)))


def held_words(held: HeldProposal) -> tuple[str, str]:
    return printable(held.proposal.id), held.proposal.proposer


def _named(given: ProposalParams) -> str:
    """The words for a proposal in a refusal."""
    return f"proposal {printable(given.proposal)!r} of {printable(given.proposer)!r}"


def _check_meant(proposal: Proposal, given: ProposalParams, held: HeldProposal | None) -> None:
    """Refuse what is decided, or may be about another call than the one that was looked at."""
    named, state = _named(given), proposal.state
    if state is None or not state.is_pending:
        raise VoteRefused(f"{named} is {state or 'long forgotten'}; no decision counts any more")
    if given.digest is None:
        if held is not None and held.is_ambiguous:
            raise VoteRefused(
                f"{named} is one of several under its id; name the digest of its call"
            )
    elif given.digest != (digest_of(proposal) if held is None else held.digest):
        raise VoteRefused(f"{named} is another call than the one of that digest")


def _is_form_of(held: HeldProposal, seen: str | None) -> bool:
    """True if a tool is in the form that a voter has seen; ``None``: in one without a mark."""
    decision = held.decision
    return (seen or "") == (decision.form if decision.is_marked else "")


def _what_is_new(before: PolicyDecision, now: PolicyDecision) -> str:
    """The words for why votes of before do not count."""
    if before.policy != now.policy:
        return "policy has changed"
    if not before.form:
        return "tool was not known before"
    return "tool has changed" if now.form else "tool is not known any more"


def _asks_the_same(before: PolicyDecision, now: PolicyDecision) -> bool:
    """True if a decision of now counts the votes that one of before has asked for."""
    same = (before.verdict, before.of, sorted(before.among), before.form)
    return same == (now.verdict, now.of, sorted(now.among), now.form)
