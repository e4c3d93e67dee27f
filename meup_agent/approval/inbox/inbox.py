"""Inbox: the proposals that wait for a participant, live, and its decisions about them.

It owns no state of a proposal: that is the exchange table's. It follows each envelope, keeps what
waits from being forgotten, and orders it by deadline; of thousands that waited before, the most
urgent are listed first. Its rules and its offers say what may be done about each. A decision takes
its proposal out of the queue before anything is sent, so that a second one is refused; where
nothing comes of it, the proposal is back.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from weakref import WeakSet

import anyio
import msgspec
from anyio import AsyncContextManagerMixin

from meup_agent.approval.inbox.item import (
    MAX_AT_FIRST,
    MAX_CALL_CHARS,
    ApprovalOutcome,
    DecisionHistory,
    Departure,
    InboxChange,
    InboxChanges,
    InboxItem,
    InboxListing,
    InboxRenewed,
    ItemArrived,
    ItemChanged,
    ItemLeft,
    ProposerRecord,
    SimilarCall,
    Verb,
    departure_of,
    past_of,
    pause_for_screen,
)
from meup_agent.approval.inbox.preview import SeenCall, read_past
from meup_agent.approval.inbox.rules import HeldItem, InboxQueue, InboxRules
from meup_agent.approval.policy.rules import CONFIRM_WORD, Vote
from meup_agent.approval.reviewer.methods import (
    VOTE,
    InboxRule,
    ToolDirectory,
    ToolFacts,
    VoteParams,
    check_edit,
    read_count,
)
from meup_agent.approval.yeses import YesScope, give_yes, list_yeses, revoke_yes, scopes_of
from meup_agent.causes import OF_THE_MOMENT, Reason
from meup_agent.client.file_difference import FileDifference, read_file_difference
from meup_agent.client.messages import OnProgress, write_params
from meup_agent.client.offers import TOOLS, ask_each, changed_lists
from meup_agent.client.proposal import ProposalRecord
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.client.tool_changes import (
    AcceptCallParams,
    ToolDifference,
    accept_call,
    accept_tools,
    read_difference,
)
from meup_agent.errors import (
    AlreadyDecided,
    AlreadyInProgress,
    MeupError,
    NotOffered,
    RequestError,
    UsageError,
)
from meup_agent.protocol.exchange import ProposalEntry, ProposalKey
from meup_agent.protocol.roster import read_participant
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.payloads import TOOL_CALL, Call, as_object
from meup_agent.protocol.wire.scoped_yes import KeptYes, YesTerms
from meup_agent.transport.base import Condition, background_tasks

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Generator,
        Iterable,
        Iterator,
        Mapping,
    )
    from datetime import datetime

    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.outcomes import Fulfillment


class InboxOffers:
    """The decisions that are offered, by our capabilities and by who is here.

    Args:
        space: The space.
        feed: Its proposals.
        directory: The tools of its participants.
    """

    def __init__(self, space: Space, feed: ProposalFeed, directory: ToolDirectory) -> None:
        self._space = space
        self._feed = feed
        self._directory = directory

    def is_here(self, participant: str | None) -> bool:
        # What runs beside this inbox under our name is here as well.
        return participant == self._space.me or self._feed.is_present(participant)

    def allowed(self, call: Call) -> frozenset[Verb]:
        """The decisions that our capabilities allow, with any members present."""
        found = set[Verb]()
        if self._space.may(kinds.MCP_REJECT, {"reason": str(Reason.DISAGREE)}):
            found.add(Verb.REJECT)
        if self._space.may_request(None, call.method, call.params):
            found.add(Verb.APPROVE)
        return frozenset(found)

    def offered(self, item: InboxItem, allowed: frozenset[Verb]) -> frozenset[Verb]:
        """The decisions that are offered now.

        Where a reviewer counts our vote, that is what approving means: to carry it out ourselves
        would go past the other voters.
        """
        if item.rule is not None and self._may_vote(item, item.rule):
            return (allowed - {Verb.APPROVE}) | {Verb.VOTE}
        # What is sent to who is not here would wait, and perhaps run long after.
        has_executor = self.is_here(item.target) or self.names_none(item)
        return allowed if has_executor else allowed - {Verb.APPROVE}

    @staticmethod
    def names_none(item: InboxItem) -> bool:
        """True for the call of a tool that goes to the only participant that has it."""
        return item.target is None and item.method == TOOL_CALL

    def _may_vote(self, item: InboxItem, rule: InboxRule) -> bool:
        me = self._space.me
        if not rule.counts_vote_of(me) or item.proposer == me or not self.is_here(rule.reviewer):
            return False
        vote = VoteParams(proposal=item.id, proposer=item.proposer, vote=Vote.APPROVE)
        return self._space.may_request(rule.reviewer, VOTE, write_params(vote))

    def why_not(self, item: InboxItem, verb: Verb) -> str:
        """The reason for which a decision is not offered."""
        if verb is Verb.APPROVE and item.target is None and not self.names_none(item):
            return f"proposal {item.id} does not say who should carry it out"
        if verb is Verb.APPROVE and item.target and not self.is_here(item.target):
            return f"proposal {item.id} is for {item.target!r}, who is not here"
        if verb is Verb.VOTE and (item.rule is None or not item.rule.is_quorum):
            return f"no votes are counted about proposal {item.id}"
        if verb is Verb.VOTE:
            return f"a vote of {self._space.me!r} about proposal {item.id} does not count"
        return f"our capabilities do not allow to {verb} proposal {item.id}"

    def facts(self, item: InboxItem) -> ToolFacts | None:
        """The tool as the participant that has it describes it."""
        tools = self._tools(item)
        return None if tools is None else tools.get(item.tool)

    def _tools(self, item: InboxItem) -> Mapping[str, ToolFacts] | None:
        return None if item.target is None else self._directory.tools(item.target)

    def ask_for_tools_again(self, item: InboxItem) -> None:
        """Ask anew for the tools of an executor, where a call or a vote was refused."""
        if item.target is not None and self.is_here(item.target):
            self._directory.ask_again(item.target, refresh=True)

    def dangers(self, item: InboxItem) -> Iterator[str]:
        """Reasons to look twice before approving."""
        target, facts = item.target or "", self.facts(item)
        if item.rule is not None and item.rule.is_quorum and Verb.APPROVE in item.may:
            voters = ", ".join(item.rule.among)
            yield f"goes past the votes of {voters}, which the rule {item.rule.name} asks for"
        for said in item.rejections:
            if said.reason not in OF_THE_MOMENT:
                yield f"{said.by} is against it: {said.reason}"
        for each in item.cancelled_by:
            yield f"it may have run in part: {each} approved it before, and that was cancelled"
        if item.method != TOOL_CALL or item.asks_permit:
            pass  # no listed tool, so no annotations
        elif facts is not None and facts.is_destructive:
            yield f"{target} marks it as destructive"
        elif self._tools(item) is not None and facts is None:
            yield f"{target} has no such tool"
        elif facts is None and item.target is not None:
            yet = "" if self._directory.could_not_be_had(target) else " yet"
            yield f"the tools of {target} are not known{yet}"
        if facts is not None and facts.mark is not None and facts.form:
            for each in facts.mark.difference or ("it does not say how",):
                yield f"{target} does not offer this tool as it was accepted: {each}"
        yield from item.marks


LOOK_SECONDS: Final = 1.0
"""Interval at which proposals past their deadline are looked at: no envelope says that one has
expired."""


MAX_AT_ONCE: Final = 100
"""Proposals that are approved by one call, each of which the person has seen."""

VOTE_SECONDS: Final = 30.0
"""Wait for a reviewer to count a vote."""


class Inbox(AsyncContextManagerMixin):
    """The proposals that wait for a participant's decision; an async context manager.

    ::

        async with Inbox(space) as inbox:
            for item in inbox.items:
                await inbox.reject(item, Reason.UNSAFE)

    Args:
        space: The participant's space.
        like: An inbox of the same space; what it was told of tools and rules counts until we are.
        until_drawn: Waits until a first screen is drawn; of thousands, the rest is listed then.
    """

    def __init__(
        self,
        space: Space,
        *,
        like: Inbox | None = None,
        until_drawn: Callable[[], Awaitable[None]] = pause_for_screen,
    ) -> None:
        self._space = space
        self._feed = ProposalFeed(space)
        self._history = DecisionHistory()
        self._queue = InboxQueue()
        # One that is no longer held by its user is forgotten.
        self._readers: WeakSet[InboxChanges] = WeakSet()
        self._settled = Condition()
        self._directory = ToolDirectory(space, self._tools_came)
        self._offers = InboxOffers(space, self._feed, self._directory)
        # Of one that was open before, no reader is told by itself.
        update_listed = partial(self._update_item, is_new=False)
        self._listing = InboxListing(
            self._feed, update_listed, self._history.note_before, self._many_came, until_drawn
        )
        self._rules = InboxRules(
            space,
            self._feed,
            self._queue,
            self._update_item,
            self._settled.notify_all,
        )
        if like is not None:
            self._directory.learn_from(like._directory)
            self._rules.learn_from(like._rules)
        self._left_out = 0

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        async with background_tasks() as tasks:
            with self._feed.deciding(self):
                await self._listing.read_first()
                tasks.start_soon(self._watch_time)
                tasks.start_soon(self._listing.run)
                tasks.start_soon(self._directory.run)
                tasks.start_soon(self._rules.run)
                try:
                    yield self
                finally:
                    for held in self._queue:
                        self._feed.release(held.entry)
                    self._listing.release()

    # --- what waits ---

    @property
    def items(self) -> list[InboxItem]:
        """The proposals that wait for us, oldest deadline first; then those without one."""
        return self._queue.items

    @property
    def me(self) -> str:
        """The participant whose inbox it is."""
        return self._space.me

    def __len__(self) -> int:
        """The number of proposals that wait for us."""
        return len(self._queue)

    @property
    def unlisted(self) -> int:
        """The number of open proposals that are still to be listed, if they wait for us.

        Of thousands that were open when the inbox opened, the most urgent are listed at once.
        """
        return self._listing.left

    @property
    def left_out(self) -> int:
        """The number of proposals that are left out: too many wait, or they are too large."""
        return self._left_out + self._listing.omitted

    @property
    def knows_before(self) -> bool:
        """True if the gateway lists what was proposed and decided before we came."""
        return self._space.gateway.guarantees.lists_proposals

    def find(self, proposer: str, id: str) -> InboxItem | None:
        """A proposal that waits for us."""
        held = self._queue.get(ProposalKey(proposer, id))
        return held.item if held is not None and held.place is not None else None

    def changes(self) -> InboxChanges:
        """Every change from here on.

        A reader that is slower than the space is handed one :class:`InboxRenewed` in place of what
        it has not read.
        """
        reader = InboxChanges()
        self._readers.add(reader)
        return reader

    async def settle(self, timeout: float = 2 * LOOK_SECONDS) -> None:
        """Wait until all that waits is listed, and executors and reviewers have told of it.

        A few hundred are listed at once, and thousands in turns, the most urgent first.

        Args:
            timeout: Seconds to wait at the most; without their words the inbox is as good as ever.
        """
        with anyio.move_on_after(timeout):
            while not (
                self._listing.is_complete and self._directory.is_settled and self._rules.has_asked
            ):
                await self._settled.wait()

    # --- decisions ---

    async def approve(
        self,
        item: InboxItem,
        arguments: dict[str, Any] | None = None,
        *,
        form: str | None = None,
        word: str = "",
        timeout: float | Literal["proposer"] | None = "proposer",
        on_progress: OnProgress | None = None,
    ) -> Fulfillment | None:
        """Approve a proposal: carry it out, or vote for it where a reviewer counts our vote.

        Args:
            item: The proposal.
            arguments: Other arguments than the proposed ones; the proposer is told the difference.
            form: The form of its tool that was shown (:attr:`ToolFacts.form`); ``None``: the one
                that is known now. In another one its call does not run.
            word: What the person typed, where a rule takes :data:`CONFIRM_WORD`
                (:attr:`InboxItem.takes_word`).
            timeout: Seconds to wait for its result; by default as long as the proposer waits.
            on_progress: Called with the tool's progress.

        Returns:
            Its result; ``None`` if it was a vote.

        Raises:
            NotOffered: We may neither carry it out nor vote, or it is a vote and was edited, or its
                proposer takes no edit.
            AlreadyDecided: It waits no longer, or we have decided it before.
            AlreadyInProgress: Another participant has approved it.
            MeupError: As :meth:`Proposal.fulfill`; then it waits again, if it is still pending.
        """
        held = self._check_waits(item)
        if Verb.VOTE in item.may:
            if arguments is None:
                await self.vote(item, approve=True, form=form)
                return None
            raise NotOffered(
                f"the votes about proposal {item.id} are about the call as it was proposed;"
                " reject it, and say what you would approve"
            )
        self._check_offered(item, Verb.APPROVE)
        is_edited = arguments is not None and not payloads.is_same_json(arguments, item.arguments)
        if is_edited and not item.takes_edits:
            raise NotOffered(
                f"proposal {item.id} was not approved: {item.client or item.proposer} runs its"
                " calls only as it has proposed them; approve it as it is, or reject it"
            )
        if item.takes_word and word.strip().lower() != CONFIRM_WORD:
            raise NotOffered(
                f"proposal {item.id} was not approved: its rule takes the word {CONFIRM_WORD!r},"
                " typed by who approves it"
            )
        if form is None:
            # Before anything waits: the form that is shown at this moment.
            form = item.form
        with self._deciding(held, Departure.APPROVED):
            proposal = self._space.proposals.get(item.envelope)
            executor = await proposal.find_executor()
            if arguments is not None:
                # What was judged is what runs, whatever the caller does meanwhile.
                arguments = deepcopy(arguments)
                await check_edit(
                    self._space,
                    item.envelope,
                    arguments,
                    target=None if item.target else executor,
                    told=self._rules.rules_for(held.entry, item.call),
                    away=self._rules.reviewers_away(held.entry.key),
                )
            if form:
                seen = AcceptCallParams(item.id, item.proposer, item.tool, form)
                await accept_call(self._space, executor, seen)
            fulfillment = await proposal.fulfill(
                arguments, executor=executor, timeout=timeout, on_progress=on_progress
            )
            if payloads.is_refusal({"error": fulfillment.error}):
                self._offers.ask_for_tools_again(item)  # it may be another tool by now
            self._undecide(held)
        return fulfillment

    async def approve_all(
        self, items: Iterable[InboxItem], *, word: str = ""
    ) -> list[ApprovalOutcome]:
        """Approve several proposals, each as :meth:`approve`.

        Args:
            items: The proposals, one by one: no pattern approves. One that stands twice is approved
                once.
            word: As in :meth:`approve`.

        Returns:
            The outcome of each, in their order.

        Raises:
            UsageError: They are more than a person has looked at.
        """
        chosen = list(dict.fromkeys(items))
        if len(chosen) > MAX_AT_ONCE:
            raise UsageError(
                f"{len(chosen)} proposals are too many to approve at once; at most {MAX_AT_ONCE}"
            )

        async def approve_one(item: InboxItem) -> ApprovalOutcome:
            try:
                return ApprovalOutcome(item, await self.approve(item, word=word))
            except MeupError as error:
                return ApprovalOutcome(item, error=error)

        return await ask_each(chosen, approve_one, at_a_time=MAX_AT_ONCE)

    async def reject(self, item: InboxItem, reason: str, explanation: str | None = None) -> None:
        """Reject a proposal; where a reviewer counts our vote, vote against it, too.

        Others' votes may carry it out all the same. Where ours is the last that it takes to stop
        it, the reviewer rejects it.

        Args:
            item: The proposal.
            reason: A reason code, for example ``Reason.UNSAFE``.
            explanation: Longer words for the proposer.

        Raises:
            NotOffered: We may not reject it.
            AlreadyDecided: It waits no longer, or we have decided it before.
            AlreadyInProgress: Another participant has approved it.
            RequestError: The reviewer does not count the vote, and says why.
            MeupError: As :meth:`Proposal.reject`.
        """
        held = self._check_waits(item)
        self._check_offered(item, Verb.REJECT)
        if Verb.VOTE in item.may and reason not in OF_THE_MOMENT:
            words = explanation or str(reason)
            if (await self.vote(item, approve=False, explanation=words)).is_lost:
                return
            held = self._check_waits(item)
        with self._deciding(held, Departure.REJECTED, str(reason)):
            await self._space.proposals.get(item.envelope).reject(
                reason, explain=explanation or None
            )

    async def vote(
        self,
        item: InboxItem,
        *,
        approve: bool,
        explanation: str | None = None,
        form: str | None = None,
    ) -> InboxRule:
        """Vote about a proposal whose reviewer counts votes; a vote can be changed until it counts.

        Args:
            item: The proposal.
            approve: Approve it; ``False``: reject it.
            explanation: Words for the others.
            form: As in :meth:`approve`. A vote about another one does not count.

        Returns:
            The rule, with the votes so far.

        Raises:
            NotOffered: No votes are counted about it, or not ours.
            AlreadyDecided: It waits no longer.
            AlreadyInProgress: It is being carried out.
            RequestError: The reviewer does not count the vote, and says why.
            MeupError: As :meth:`Space.request`.
        """
        held = self._check_waits(item)
        self._check_offered(item, Verb.VOTE)
        rule = item.rule
        assert rule is not None
        # The digest of what was shown: the vote counts for no other call.
        digest = payloads.digest(item.method, item.call.params, item.target)
        params = VoteParams(
            proposal=item.id,
            proposer=item.proposer,
            digest=digest,
            vote=Vote.APPROVE if approve else Vote.REJECT,
            explanation=explanation or None,
            form=(item.form if form is None else form) or None,
        )
        try:
            answer = await self._space.request(
                rule.reviewer, VOTE, write_params(params), timeout=VOTE_SECONDS
            )
        except RequestError:
            self._offers.ask_for_tools_again(item)  # it may be another tool by now
            raise
        said = as_object(answer)
        rule = msgspec.structs.replace(rule, **read_count(said))
        self._rules.note_counted(held.entry.key, rule)
        self._update_item(held.entry)
        return rule

    def _check_waits(self, item: InboxItem) -> HeldItem:
        held = self._queue.get(item.key)
        if held is not None and held.item is item and held.place is not None:
            return held
        by = item.in_progress_by
        if by is not None:
            raise AlreadyInProgress(item.id, by)
        state = str(item.state)
        if item.state.is_pending:
            state = "not waiting" if item.left is None else str(item.left.why)
        raise AlreadyDecided(item.id, state)

    def _check_offered(self, item: InboxItem, verb: Verb) -> None:
        if verb not in item.may:
            raise NotOffered(self._offers.why_not(item, verb))

    @contextmanager
    def _deciding(self, held: HeldItem, why: Departure, reason: str = "") -> Generator[None]:
        """Take a proposal out for the length of a decision, and for good if it is made."""
        held.ours = ItemLeft(held.item, why, self._space.me, reason)
        self._place(held)
        try:
            yield
        except BaseException:
            self._undecide(held)
            raise

    def _undecide(self, held: HeldItem) -> None:
        """Forget our own decision: what the space says of the proposal counts."""
        held.ours = None
        if self._queue.get(held.entry.key) is held:
            self._update_item(held.entry)

    # --- scoped yeses ---

    @property
    def uses_yeses(self) -> bool:
        """True if the gateway keeps yeses, and a reviewer is here that would use them."""
        return self._space.gateway.guarantees.keeps_yeses and self._rules.has_reviewer

    def check_yes(self, item: InboxItem) -> str:
        """Check that a yes can be given at a proposal; the form of its tool.

        Raises:
            NotOffered: We may not approve it, its tool is not known, or has changed.
            AlreadyDecided: It waits no longer.
            AlreadyInProgress: Another participant has approved it.
        """
        self._check_waits(item)
        self._check_offered(item, Verb.APPROVE)
        if not self._space.gateway.guarantees.keeps_yeses:
            raise NotOffered("this gateway keeps no yeses: approve each call by itself")
        if item.rule is not None and item.rule.is_quorum:
            raise NotOffered("several decide about such calls, so no yes of one lets them through")
        if item.takes_word:
            raise NotOffered("its rule takes a word for each call, so no yes lets them through")
        if form := item.call.permit_form(item.proposer):
            return form
        facts = item.tool_facts
        if item.target is None or facts is None or not facts.seen:
            raise NotOffered("its tool is not known here, so it could not be told when it changes")
        if facts.form:
            raise NotOffered(
                "its tool is not as it was accepted; look at the change first: meup inbox"
                f" accept-tools {item.target}"
            )
        return facts.seen

    def offered_scopes(self, item: InboxItem) -> list[YesScope]:
        """The scopes of a yes that are offered at a proposal, narrowest first."""
        return scopes_of(item.call)

    async def read_past(self, item: InboxItem) -> list[SeenCall]:
        """The other calls of its tool by its proposer that are known, the latest first."""
        return await read_past(self._space, item)

    async def give_yes(self, item: InboxItem, scope: YesScope, *, seconds: float, most: int) -> str:
        """Say yes in advance to calls like a proposal, which itself still waits.

        Args:
            item: The proposal; the yes is for its tool, its target and its proposer.
            scope: The arguments of the calls.
            seconds: Seconds for which it holds, 7 days at the most.
            most: Calls that it lets through.

        Returns:
            Its id.

        Raises:
            NotOffered: As :meth:`check_yes`.
            Refused: The gateway does not take it, and says why.
            MeupError: It did not answer.
        """
        form = self.check_yes(item)
        digest = payloads.digest(item.method, item.call.params, item.target)
        if digest is None:
            raise NotOffered("no yes was given: the call has a value that no digest tells apart")
        terms = YesTerms(item.proposer, seconds, most, form, digest, scope.arguments, scope.others)
        if problem := terms.problem:
            raise NotOffered(f"no yes was given: {problem}")
        return await give_yes(self._space, item.id, terms)

    async def yeses(self, item: InboxItem | None = None) -> list[KeptYes]:
        """List the yeses that are kept, oldest first, or those for an item's tool and proposer."""
        if item is None:
            return await list_yeses(self._space)
        return await list_yeses(self._space, proposer=item.proposer, tool=item.tool)

    async def revoke_yes(self, yes_id: str) -> None:
        """Revoke a yes: what it covers is asked about again.

        Raises:
            Refused: It is not kept any more, or we may not revoke it.
            MeupError: The gateway did not answer.
        """
        await revoke_yes(self._space, yes_id)

    async def read_file(self, item: InboxItem) -> FileDifference:
        """The difference that a proposal's call would make to the file that it writes.

        Raises:
            MeupError: As :meth:`Space.request`; its server reads no files, or we do not decide.
        """
        executor = item.target or await self._space.proposals.get(item.envelope).find_executor()
        return await read_file_difference(
            self._space, executor, proposer=item.proposer, proposal=item.id
        )

    async def read_tools(self, participant: str) -> ToolDifference:
        """The difference of a participant's tools from those that were accepted.

        Raises:
            MeupError: As :meth:`Space.request`; −32601: it pins no tools.
        """
        return await read_difference(self._space, participant)

    async def accept_tools(self, participant: str, difference: ToolDifference) -> None:
        """Accept a participant's tools as they were read, for all that is decided from now on.

        Raises:
            MeupError: As :meth:`Space.request`; they have changed since, or we may not.
        """
        await accept_tools(self._space, participant, difference.digest)

    # --- what changes ---

    def put(self, envelope: Envelope) -> None:
        """Look at what an envelope may have changed."""
        if envelope.kind == kinds.SYSTEM_WELCOME:
            # Another process may have come while we were away.
            self._rules.forget_others()
            self._look_at_all()
        elif envelope.kind == kinds.SYSTEM_PRESENCE:
            participant = read_participant(envelope.payload_object.get("participant"))
            if participant is not None:
                self._look_at_participant(participant.id)
        else:
            for entry in self._feed.concerned(envelope):
                self._update_item(entry)
            self._rules.hear(envelope)
            if TOOLS in changed_lists(envelope):
                self._look_at_tools(envelope.sender)

    def _look_at_tools(self, participant: str) -> None:
        """Ask anew for the tools of a participant that says that they have changed."""
        if not self._directory.is_wanted(participant):
            return
        self._directory.ask_again(participant)
        self._publish_changed(participant)

    def _look_at_all(self) -> None:
        """Begin anew with what we may, and who is here: a welcome says both."""
        for held in self._queue:
            held.offers = None
        for held in self._queue.first(MAX_AT_FIRST):
            self._update_item(held.entry)
        self._listing.read_again()
        self._rules.look_again()

    def _many_came(self) -> None:
        self._publish(InboxRenewed())
        self._settled.notify_all()

    def _look_at_participant(self, participant: str) -> None:
        is_here = self._offers.is_here(participant)
        self._directory.forget(participant)
        if is_here and any(held.item.target == participant for held in self._queue):
            self._directory.ask_again(participant)
        for held in self._queue:
            item = held.item
            if participant == item.target or (item.rule and item.rule.reviewer == participant):
                self._update_item(held.entry)
        self._rules.note_presence(participant, is_here=is_here)
        self._rules.look_again()

    async def _watch_time(self) -> None:
        while True:
            await anyio.sleep(LOOK_SECONDS)
            for held in self._queue.due(self._feed.time_of_day.timestamp()):
                self._update_item(held.entry)

    def _update_item(self, entry: ProposalEntry, *, is_new: bool = True) -> None:
        """Bring the inbox up to date with one proposal; of an old one that arrives none is told."""
        record, held = ProposalRecord(entry), self._queue.get(entry.key)
        if held is not None and held.entry is not entry:
            self._drop(held, ItemLeft(held.item, Departure.REPLACED, entry.key.proposer))
            held = None
        if not record.state.is_pending:
            self._history.note(past_of(record), len(entry.envelope.raw_payload))
            if held is not None:
                self._drop(held, departure_of(held.item, record))
            return
        if held is None and self._is_for_us(entry, record):
            held = self._hold(entry, record)
        if held is not None:
            self._place(held, is_new=is_new)

    def _is_for_us(self, entry: ProposalEntry, record: ProposalRecord) -> bool:
        me = self._space.me
        # Another proposer had the id first: no decision can mean this one for certain.
        if entry.copied or record.proposer == me:
            return False
        call = entry.call
        rule = self._rules.rule_for(entry, call)
        if rule is not None and rule.counts_vote_of(me):
            return True
        is_for_others = rule is None and record.to and me not in record.to
        if not is_for_others and self._offers.allowed(call):
            return True
        if rule is None:
            # A voter need not be able to do anything else about it.
            self._rules.look_for_reviewers_of(call)
        return False

    def _hold(self, entry: ProposalEntry, record: ProposalRecord) -> HeldItem | None:
        if not self._queue.has_room_for(entry.key.proposer):
            self._left_out += 1
            return None
        item = InboxItem(self, record, self._feed.now)
        self._feed.hold(entry)
        # One that is not here tells nothing: a flood of such names is to displace no reviewer's.
        if item.target is not None and self._offers.is_here(item.target):
            self._directory.want(item.target)
        self._rules.look_again(is_new=True)
        return self._queue.add(item, entry)

    def _place(self, held: HeldItem, *, is_new: bool = True) -> None:
        """Put an item where it belongs, and tell of it."""
        item = held.item
        if held.offers is None:
            held.offers = self._offers.allowed(item.call)
        rule = self._rules.rule_for(held.entry, item.call)
        was = (item.rule, item.may, held.heard)
        held.heard = (len(item.rejections), *item.told.items())
        item.rule = rule
        item.may = self._offers.offered(item, held.offers)
        away = held.ours or self._away(item)
        if away is None:
            arrives = held.place is None
            if arrives:
                item.left = None
            moved = self._queue.insert(held)
            if arrives and is_new:
                self._publish(ItemArrived(item))
            elif not arrives and (moved or was != (item.rule, item.may, held.heard)):
                self._publish(ItemChanged(item))
        elif held.place is not None:
            self._queue.remove(held)
            item.left = away
            self._publish(away)

    def _away(self, item: InboxItem) -> ItemLeft | None:
        """The departure of a pending proposal that does not wait for us; ``None``: it does."""
        by, me = item.in_progress_by, self._space.me
        if by is not None:
            return ItemLeft(item, Departure.APPROVED, by)
        mine = next((each for each in item.rejections if each.by == me), None)
        if mine is not None:
            return ItemLeft(item, Departure.REJECTED, mine.by, mine.reason)
        # One for who is not here may come back with them.
        is_ours = item.may or self._offers.allowed(item.call)
        return None if is_ours else ItemLeft(item, Departure.NOT_OURS)

    def _drop(self, held: HeldItem, left: ItemLeft) -> None:
        was_waiting = held.place is not None
        self._queue.drop(held)
        self._feed.release(held.entry)
        if was_waiting:
            held.item.left = left
            self._publish(left)

    # --- what others tell of it ---

    def _tools_came(self, participant: str) -> None:
        self._rules.look_again()
        self._publish_changed(participant)
        self._settled.notify_all()

    # --- its readers ---

    def _publish(self, change: InboxChange) -> None:
        for reader in self._readers:
            reader.put(change)

    def _publish_changed(self, target: str) -> None:
        """Tell of a change of all that a participant is to carry out."""
        for held in self._queue:
            if held.item.target == target and held.place is not None:
                self._publish(ItemChanged(held.item))

    # --- what items ask ---

    def similar(self, item: InboxItem) -> SimilarCall | None:
        """The last decided proposal of the same tool."""
        if len(item.envelope.raw_payload) > MAX_CALL_CHARS:
            return None
        return self._history.similar(item.call)

    def record(self, item: InboxItem) -> ProposerRecord:
        """The endings of the last proposals of an item's proposer."""
        return self._history.record(item.proposer)

    def time_of_day(self) -> datetime:
        """The gateway's time, by which proposals expire."""
        return self._feed.time_of_day

    def tool_facts(self, item: InboxItem) -> ToolFacts | None:
        """The tool as its participant describes it."""
        return self._offers.facts(item)

    def danger(self, item: InboxItem) -> tuple[str, ...]:
        """Reasons to look twice before approving."""
        return tuple(self._offers.dangers(item))
