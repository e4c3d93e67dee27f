"""The proposals of a space: those that were seen, the gateway's lists, and ours to withdraw."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal, overload

from meup_agent.causes import Cause, Reason
from meup_agent.client.proposal import Proposal, ProposalRecord, read_proposal_pages
from meup_agent.client.requests import TIMEOUT
from meup_agent.client.running_handler import awaited
from meup_agent.client.talk import DecisionReceipt, check_may_decide, explainer_of
from meup_agent.errors import AmbiguousProposal, UsageError
from meup_agent.protocol.dialects import PUBLISHED
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.membership import ProposalQuery

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from meup_agent.client.offers import OfferFinder
    from meup_agent.client.requests import Outbound
    from meup_agent.session import Session


class Proposals(Sequence[ProposalRecord]):
    """Every proposal that was seen, ours included, oldest first, as ``space.proposals``."""

    def __init__(self, session: Session, finder: OfferFinder, outbound: Outbound | None) -> None:
        self._session = session
        self._finder = finder
        self._outbound = outbound

    @overload
    def __getitem__(self, at: int) -> ProposalRecord: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[ProposalRecord]: ...

    def __getitem__(self, at: int | slice) -> ProposalRecord | Sequence[ProposalRecord]:
        """One of them, or several, each with its state."""
        return self._seen()[at]

    def __len__(self) -> int:
        """Their number."""
        return len(self._seen())

    def __iter__(self) -> Iterator[ProposalRecord]:
        """Each of them, as of the moment at which it begins."""
        return iter(self._seen())

    def _seen(self) -> Sequence[ProposalRecord]:
        store = self._session.table.proposal_store
        return [ProposalRecord(entry) for entry in store.records(self._session.now())]

    @property
    def ttl(self) -> float | None:
        """Seconds that a proposal waits where it does not say; ``None``: as long as it takes."""
        return self._session.ttl

    async def list(
        self,
        *,
        state: Literal["open", "decided"] = "open",
        id: str = "",
        proposer: str = "",
        tool: str = "",
        to_me: bool = False,
        timeout: float | None = TIMEOUT,
    ) -> AsyncGenerator[ProposalRecord]:
        """List those that are open, or that were decided lately.

        The gateway tells them to us alone, page by page, as an async iterator; also while we
        observe. The open ones are known from then on: :meth:`get` decides them, and what
        changes them is heard. On a gateway that does not list proposals
        (``guarantees.lists_proposals``) these are the ones that we have heard of since we came.

        Args:
            state: ``open``, in the order in which they were accepted, or ``decided``, in the order
                of their decisions.
            id: Only those with this id, or with ids that begin so.
            proposer: Only those of this participant.
            tool: Only those that call a tool of this name.
            to_me: Only those that are addressed to us, or to no participant.
            timeout: Seconds to wait for each page; ``None``: as long as it takes.

        Raises:
            OutcomeUnknown: The gateway did not answer in time, or its answer cannot be read.
            Refused: The gateway refused the question.
            NotSent: There is no connection any more, and there will be none.
        """
        query = ProposalQuery(state, id, proposer, tool, to_me)
        async with aclosing(read_proposal_pages(self._session, query, timeout)) as pages:
            async for page in pages:
                for record in page.records:
                    yield record

    def get(self, of: ProposalRecord | Envelope | str, *, proposer: str | None = None) -> Proposal:
        """A participant's proposal, to decide outside of a handler.

        What is decided is the proposal that was handed over: where its proposer has used its id
        for another one since, or takes it back, it is not pending any more.

        Args:
            of: One of them, its envelope, or its id.
            proposer: Whose it is, where ``of`` is an id, which is unique for its proposer alone.

        Raises:
            AmbiguousProposal: Several proposals have that id.
            UsageError: No proposal with that id, of that proposer, is known.
        """
        if isinstance(of, str):
            known = self._session.table.proposal_store.under(of, self._session.now())
            theirs = [each for each in known if proposer in (None, each.key.proposer)]
            every = [each for latest in theirs for each in (latest, *latest.earlier)]
            if len(every) > 1:
                raise AmbiguousProposal(of, [each.key.proposer for each in every])
            if not every:
                whose = "" if proposer is None else f" of {proposer!r}"
                raise UsageError(
                    f"no proposal {of!r}{whose} is known here; see those in space.proposals"
                )
            envelope = every[0].envelope
        else:
            envelope = of if isinstance(of, Envelope) else of.envelope
        return Proposal(self._session, envelope, self._finder, self._outbound)

    @awaited
    async def withdraw_all(
        self,
        where: Callable[[ProposalRecord], object] | None = None,
        *,
        reason: str = Reason.NO_LONGER_NEEDED,
        explain: str | None = None,
    ) -> Sequence[DecisionReceipt]:
        """Withdraw our open proposals: all, or those that a condition is true of.

        They end together, also those that wait for others, and handlers at work on them are
        cancelled. Where the gateway's dialect lets an envelope name several proposals, up to 64
        are withdrawn by one.

        Args:
            where: The condition, for example ``lambda each: each.tool == "write"``. It is asked of
                every open proposal before the first one ends.
            reason: The reason code that the others see.
            explain: Longer words for them, said as a chat after each withdraw.

        Returns:
            A receipt of each withdraw that was sent; what was not sent itself needs none.

        Raises:
            Refused: Our capabilities do not allow it, or not the explanation, and nothing was sent;
                or the gateway did not let one of them through.
            UsageError: The explanation is larger than any gateway takes. Then nothing was sent.
        """
        session = self._session
        explainer = explainer_of(session, self._outbound)
        keys = [
            key
            for key, entry in session.table.open_proposals()
            if where is None or where(ProposalRecord(entry))
        ]
        for to in {session.table.addressees(key) for key in keys if session.table.is_sent(key)}:
            payload, what = {"reason": str(reason)}, "no proposal was withdrawn"
            check_may_decide(session, kinds.MCP_WITHDRAW, payload, what, to=to, explain=explain)
        cause = Cause(str(reason), session.me, at=session.now())
        joint = session.dialect in PUBLISHED
        sent = session.pending_calls.withdraw_all(keys, cause, joint=joint)
        await session.taken([each.id for each in sent])
        receipts = [DecisionReceipt(each, each.correlation, explainer) for each in sent]
        for receipt in receipts if explain else ():
            await receipt.explain(explain or "")
        return receipts
