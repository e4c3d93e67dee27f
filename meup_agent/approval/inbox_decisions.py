"""Decisions of an inbox: what is sent for each, and the proposal out of the way meanwhile.

A decision takes its proposal out of the queue before anything is sent, so that a second one is
refused; where nothing comes of it, the proposal is back.
"""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import msgspec

from meup_agent.approval.inbox_item import Departure, InboxItem, ItemLeft, Verb
from meup_agent.approval.inbox_offers import build_vote
from meup_agent.approval.reviewer_methods import VOTE
from meup_agent.approval.reviewer_rules import read_count
from meup_agent.client.tool_changes import AcceptCallParams, accept_call
from meup_agent.errors import (
    AlreadyDecided,
    AlreadyInProgress,
    MeupError,
    NotOffered,
    RequestError,
    UsageError,
)
from meup_agent.protocol import payloads
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.protocol.payloads import as_object

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from meup_agent.approval.edit_check import EditCheck
    from meup_agent.approval.inbox_offers import InboxOffers
    from meup_agent.approval.inbox_queue import HeldItem, InboxQueue
    from meup_agent.approval.inbox_rules import InboxRules
    from meup_agent.approval.reviewer_rules import InboxRule
    from meup_agent.client.messages import OnProgress
    from meup_agent.client.space import Space
    from meup_agent.protocol.exchange import ProposalEntry
    from meup_agent.protocol.outcomes import Fulfillment

MAX_AT_ONCE: Final = 100
"""Proposals that are approved by one call, each of which the person has seen."""

VOTE_SECONDS: Final = 30.0
"""Wait for a reviewer to count a vote."""


class ApprovalOutcome(msgspec.Struct, frozen=True):
    """The outcome of one approval among several.

    Attributes:
        item: The proposal.
        fulfillment: What came of it; ``None``: it was a vote, or it failed.
        error: Why it failed; ``None``: it did not.
    """

    item: InboxItem
    fulfillment: Fulfillment | None = None
    error: MeupError | None = None


class InboxDecisions:
    """The decisions of a participant about what waits for it.

    Args:
        space: The space.
        queue: What waits.
        offers: The decisions that are offered.
        rules: The rules that ask.
        edits: Checks what is edited.
        place: Brings the queue up to date with our decision of one.
        update_item: Brings the queue up to date with what the space says of one.
    """

    def __init__(
        self,
        space: Space,
        queue: InboxQueue,
        offers: InboxOffers,
        rules: InboxRules,
        edits: EditCheck,
        place: Callable[[HeldItem], None],
        update_item: Callable[[ProposalEntry], None],
    ) -> None:
        self._space = space
        self._queue = queue
        self._offers = offers
        self._rules = rules
        self._edits = edits
        self._place = place
        self._update_item = update_item

    async def approve(
        self,
        item: InboxItem,
        arguments: dict[str, Any] | None,
        form: str | None,
        timeout: float | Literal["proposer"] | None,
        on_progress: OnProgress | None,
    ) -> Fulfillment | None:
        """Carry a proposal out, or vote for it."""
        self._check_waits(item)
        if Verb.VOTE in item.may and arguments is None:
            await self.vote(item, None, form, approve=True)
            return None
        if Verb.VOTE in item.may:
            raise NotOffered(
                f"the votes about proposal {item.id} are about the call as it was proposed;"
                " reject it, and say what you would approve"
            )
        self._check_offered(item, Verb.APPROVE)
        if form is None:
            # Before anything waits: the form that is shown at this moment.
            form = self._shown_form(item)
        with self._deciding(item, Departure.APPROVED) as held:
            proposal = self._space.proposal(item.envelope)
            executor = await proposal.find_executor()
            if arguments is not None:
                # What was judged is what runs, whatever the caller does meanwhile.
                arguments = deepcopy(arguments)
                await self._edits.check(
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

    async def approve_all(self, items: Iterable[InboxItem]) -> list[ApprovalOutcome]:
        """Approve several proposals at the same time, each once."""
        chosen = list(dict.fromkeys(items))
        if len(chosen) > MAX_AT_ONCE:
            raise UsageError(
                f"{len(chosen)} proposals are too many to approve at once; at most {MAX_AT_ONCE}"
            )
        outcomes = [ApprovalOutcome(item) for item in chosen]

        async def approve_one(position: int, item: InboxItem) -> None:
            try:
                done = await self.approve(item, None, None, "proposer", None)
                outcomes[position] = ApprovalOutcome(item, done)
            except MeupError as error:
                outcomes[position] = ApprovalOutcome(item, error=error)

        async with anyio.create_task_group() as tasks:
            for position, item in enumerate(chosen):
                tasks.start_soon(approve_one, position, item)
        return outcomes

    async def reject(self, item: InboxItem, reason: str, explanation: str | None) -> None:
        """Reject a proposal."""
        self._check_waits(item)
        self._check_offered(item, Verb.REJECT)
        with self._deciding(item, Departure.REJECTED, str(reason)):
            await self._space.proposal(item.envelope).reject(reason, explain=explanation or None)

    async def vote(
        self, item: InboxItem, explanation: str | None, form: str | None, *, approve: bool
    ) -> InboxRule:
        """Vote about a proposal; its rule, with the votes so far."""
        held = self._check_waits(item)
        self._check_offered(item, Verb.VOTE)
        rule = item.rule
        assert rule is not None
        # The digest of what was shown: the vote counts for no other call.
        digest = payloads.digest(item.method, item.call.params, item.target)
        params = build_vote(
            item,
            approve=approve,
            explanation=explanation,
            digest=digest,
            form=self._shown_form(item) if form is None else form,
        )
        try:
            answer = await self._space.request(rule.reviewer, VOTE, params, timeout=VOTE_SECONDS)
        except RequestError:
            self._offers.ask_for_tools_again(item)  # it may be another tool by now
            raise
        said = as_object(answer)
        rule = msgspec.structs.replace(rule, **read_count(said))
        self._rules.note_counted(held.entry.key, rule)
        self._update_item(held.entry)
        return rule

    def _shown_form(self, item: InboxItem) -> str:
        """Digest of its tool's form, as it is shown now, where nobody has accepted that."""
        facts = self._offers.facts(item)
        return "" if facts is None else facts.form

    def _check_waits(self, item: InboxItem) -> HeldItem:
        held = self._queue.get(key_of(item))
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
    def _deciding(self, item: InboxItem, why: Departure, reason: str = "") -> Generator[HeldItem]:
        """Take a proposal out for the length of a decision, and for good if it is made."""
        held = self._check_waits(item)
        held.ours = ItemLeft(item, why, self._space.me, reason)
        self._place(held)
        try:
            yield held
        except BaseException:
            self._undecide(held)
            raise

    def _undecide(self, held: HeldItem) -> None:
        """Forget our own decision: what the space says of the proposal counts."""
        held.ours = None
        if self._queue.get(held.entry.key) is held:
            self._update_item(held.entry)


def key_of(item: InboxItem) -> ProposalKey:
    """The name of a proposal, which its id alone is not."""
    return ProposalKey(item.proposer, item.id)
