"""Proposals of our own: what we may not do ourselves, and who decides it."""

from __future__ import annotations

import inspect
import warnings
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, cast

from anyio.lowlevel import checkpoint_if_cancelled

from meup_agent.causes import Cause, Reason
from meup_agent.client.messages import relay
from meup_agent.client.running_handler import awaited, cause_of_leaving, parent_in
from meup_agent.client.talk import DecisionReceipt, check_may_decide
from meup_agent.client.waits import (
    await_announced,
    with_explanation,
)
from meup_agent.errors import UsageError
from meup_agent.protocol.exchange import ProposalKey, Wait
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import draft, moment_of
from meup_agent.protocol.wire.outcomes import (
    EXPLANATION_TIMEOUT,
    Rejection,
    Unsent,
    Withdrawal,
    outcome_of,
)
from meup_agent.protocol.wire.payloads import build_proposal
from meup_agent.session.pending_calls import checked_timeout, checked_ttl

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from types import TracebackType

    from meup_agent.client.messages import OnProgress
    from meup_agent.client.talk import Explainer
    from meup_agent.protocol.exchange import Key, ProposalEntry
    from meup_agent.protocol.wire.outcomes import Ending, Outcome
    from meup_agent.session import Session

Ttl = float | Literal["space"] | None
"""Seconds that a proposal waits; ``space``: as its session's settings say, ``None``: for ever."""


def resolve_ttl(ttl: Ttl, default: float | None) -> float | None:
    """The seconds that a proposal waits, in a space with a default."""
    return default if ttl == "space" else ttl


class ProposalHandle:
    """A proposal that we made: its state, its outcome, and what can still be done about it.

    Attributes:
        id: The id of the proposal.
    """

    def __init__(self, session: Session, key: Key, explainer: Explainer) -> None:
        self._session = session
        self._key = key
        self._left: Ending | None = None
        self._kept = False
        self._explainer = explainer
        self.id = key.id

    @property
    def state(self) -> ProposalState:
        """Its state now (PROTOCOL 4.2).

        What we took back is withdrawn at once, and what a rejection or its deadline ended for us
        rejected or expired; should the gateway have ordered the result of its fulfillment before
        that, it is fulfilled when we hear so (PROTOCOL 4.13).
        """
        record = self._record
        state = ProposalState.PENDING if record is None else record.state
        ending = self._left or self._session.pending_calls.ended(self._key)
        if state.is_pending and isinstance(ending, Withdrawal | Unsent):
            return ProposalState.WITHDRAWN
        return state

    @property
    def has_outcome(self) -> bool:
        """True once :meth:`outcome` waits no longer; a rejection may leave others to decide."""
        return self._ending_in(self._session) is not None

    @property
    def offered(self) -> bool:
        """True unless it waits for proposals that it depends on, and no participant has seen it."""
        return not self._session.table.is_blocked(self._key)

    @awaited
    async def outcome(self) -> Outcome:
        """Wait until it is decided.

        Returns:
            :class:`Fulfillment` (with the result, by whom, and what was changed),
            :class:`Rejection`, :class:`Withdrawal`, :class:`Expiry` or :class:`Gone`.

        Raises:
            Refused: The gateway did not let it through.
            NotSent: It never left.
            OutcomeUnknown: It was sent, and no answer can arrive.
        """
        ending = self._left or await self._session.pending_calls.ending(
            self._key, parent=parent_in(self._session)
        )
        if isinstance(ending, Withdrawal):
            await checkpoint_if_cancelled()
        outcome = outcome_of(ending)
        if isinstance(outcome, Rejection):
            return with_explanation(self._session, outcome)
        return outcome

    @awaited
    async def result(self, *, accept_edits: bool = False) -> Any:
        """Wait until it is carried out, and return what the tool returned.

        Args:
            accept_edits: Also what was carried out otherwise than proposed, or perhaps so, is a
                result.

        Raises:
            ProposalEdited: It was carried out otherwise than proposed, or it is unknown whether it
                was; the error has the result.
            ProposalRejected: It was rejected.
            ProposalExpired: It was not decided, or not done, in time.
            ProposalWithdrawn: It was withdrawn meanwhile.
            ToolError: The tool ran and failed.
            RequestError: It was answered with an error.
            ParticipantGone: Every participant that could decide has left.
            Refused: The gateway did not let it through.
            ConnectionFailed: It was not sent, or its outcome is not known.
        """
        outcome = await await_announced(self._session, await self.outcome())
        return outcome.result(accept_edits=accept_edits)

    @awaited
    async def explanation(self, timeout: float | None = EXPLANATION_TIMEOUT) -> str:
        """Wait for the words of who rejected it, which follow the rejection (PROTOCOL 4.3).

        The error of a rejected proposal has them if they had come, or come within a second of a
        rejection that says that they follow.

        Args:
            timeout: Seconds to wait after the outcome; most rejections have no explanation.

        Returns:
            The words, at most 4,000 characters, as a stranger wrote them; empty where none have
            come, or it was not rejected.
        """
        outcome = await self.outcome()
        if not isinstance(outcome, Rejection):
            return ""
        return await outcome.explanation(timeout)

    @awaited
    async def withdraw(
        self, reason: str = Reason.NO_LONGER_NEEDED, *, explain: str | None = None
    ) -> DecisionReceipt:
        """Withdraw it; a handler at work on it is cancelled. No effect on a decided proposal.

        Returns when the gateway has taken it, where the gateway shows that. Without a connection
        it is said later.

        Args:
            reason: The reason code that the others see.
            explain: Longer words for them, said as a chat that follows; the receipt takes them
                later, too. Left out where nothing had to be withdrawn.

        Returns:
            The receipt, with the id of the withdraw.

        Raises:
            Refused: Our capabilities do not allow it, or not the explanation, and nothing was sent;
                or the gateway did not let one of them through.
            UsageError: The explanation is larger than any gateway takes. Then nothing was sent.
        """
        session, what = self._session, f"proposal {self.id} was not withdrawn"
        if session.table.is_sent(self._key):
            payload, to = {"reason": str(reason)}, session.table.addressees(self._key)
            check_may_decide(session, kinds.MCP_WITHDRAW, payload, what, to=to, explain=explain)
        said = session.pending_calls.give_up(
            self._key, Cause(str(reason), session.me, at=session.now())
        )
        await session.taken([each.id for each in said])
        withdraw = next((each for each in said if self.id in each.correlation), None)
        receipt = DecisionReceipt(withdraw, (self.id,), self._explainer)
        if explain and withdraw is not None:
            await receipt.explain(explain)
        return receipt

    def keep(self) -> None:
        """Leave it open when its block is left, or this program ends: its deadline ends it.

        From then on :meth:`withdraw` alone takes it back, while this program runs.

        Raises:
            UsageError: It does not say that it outlives its proposer's process (``outlives``).
        """
        if not self._session.table.keep(self._key):
            raise UsageError(
                f"proposal {self.id} does not say that it outlives its process; propose it with"
                " outlives=True"
            )
        self._kept = True

    @property
    def expires_at(self) -> datetime | None:
        """The time at which we give it up, by the gateway's clock; ``None``: never."""
        record = self._record
        at = None if record is None else record.expires_at
        return None if at is None else moment_of(at)

    @awaited
    async def renew(self, ttl: float) -> None:
        """Give it more time, before its deadline; nothing else of it changes (PROTOCOL 4.17).

        Returns when the gateway has taken it, where the gateway shows that. One that it refuses
        leaves the deadline as it was.

        Args:
            ttl: Seconds from now to wait for a decision and its result, at most a week.

        Raises:
            AlreadyDecided: It is not pending any more; expired is decided, too.
            UsageError: It has no deadline, or has a later one, or that would be too late.
            Refused: The gateway did not let it through.
        """
        seconds = checked_timeout(ttl)
        if seconds is None:
            raise UsageError("a renewal gives a deadline; propose with ttl=None to have none")
        await self._session.taken((self._session.pending_calls.renew(self._key, seconds),))

    @property
    def _record(self) -> ProposalEntry | None:
        key = ProposalKey(self._session.me, self.id)
        return self._session.table.proposal_store.get(key, self._session.now())

    def _ending_in(self, session: Session) -> Ending | None:
        """Its ending, which its handle knows for longer than the session; ``None``: it is open.

        Raises:
            UsageError: It was made in another session.
        """
        if session is not self._session:
            raise UsageError(f"proposal {self.id} was made in another space, or before a new join")
        return self._left or session.pending_calls.ended(self._key)

    def _leave(self) -> None:
        """Its block is left: withdraw it if it is undecided, unless it is kept."""
        if self._kept:
            self._left = self._session.pending_calls.drop(self._key)
            return
        cause = partial(cause_of_leaving, self._session)
        self._left = self._session.pending_calls.leave(self._key, cause)


@asynccontextmanager
async def propose(
    session: Session,
    method: str,
    params: dict[str, Any],
    *,
    target: str | None,
    to: tuple[str, ...],
    ttl: float | None,
    wait: Wait,
    on_progress: OnProgress | None,
    explainer: Explainer,
    depends_on: Iterable[ProposalHandle | str] = (),
    check: Callable[[], Awaitable[None]] | None = None,
) -> AsyncGenerator[ProposalHandle]:
    """Propose a call for the length of a block; see :meth:`meup_agent.Space.propose`.

    The check raises where it is known that the call cannot work.
    """
    ttl = checked_ttl(ttl)
    needed = _dependencies(session, depends_on)
    if check is not None:
        await check()
    proposal_id = session.table.new_id()
    span, params = session.begin_span(method, params, proposes=True)
    envelope = draft(
        kinds.MCP_PROPOSAL,
        build_proposal(
            method,
            params,
            target=target,
            # What waits for others says when it expires as it is sent.
            expires=None
            if ttl is None or needed
            else session.time_of_day() + timedelta(seconds=ttl),
            progress_token=None if on_progress is None else proposal_id,
        ),
        id=proposal_id,
        sender=session.me,
        to=to,
    )
    key = await session.pending_calls.open(
        envelope,
        timeout=ttl,
        parent=parent_in(session),
        wait=wait,
        on_progress=None if on_progress is None else relay(on_progress),
        depends_on=needed,
        span=span,
    )
    proposal = ProposalHandle(session, key, explainer)
    try:
        yield proposal
    finally:
        proposal._leave()  # pyright: ignore[reportPrivateUsage]


def _dependencies(session: Session, depends_on: object) -> dict[str, Ending | None]:
    """The ids of proposals of ours, with their endings as far as these are known."""
    if isinstance(depends_on, str | ProposalHandle | ProposeContext):
        raise UsageError("depends_on takes a list of proposals: depends_on=[proposal]")
    needed: dict[str, Ending | None] = {}
    for each in cast("Iterable[object]", depends_on):
        if isinstance(each, str):
            needed.setdefault(each, None)
        elif isinstance(each, ProposalHandle):
            needed[each.id] = each._ending_in(session)  # pyright: ignore[reportPrivateUsage]
        else:
            raise UsageError(
                f"depends_on takes proposals that this program has made, not {each!r:.100}; enter "
                "async with space.propose(…) as proposal, and give that proposal"
            )
    return needed


class ProposeContext:
    """A proposal about to be made: ``async with`` makes it, and gives the handle."""

    def __init__(self, block: AbstractAsyncContextManager[ProposalHandle]) -> None:
        self._block = block
        self._entered = False
        # The file and line outside of this package.
        frame = inspect.currentframe()
        while frame and str(frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE:
            frame = frame.f_back
        self._written = (frame.f_code.co_filename, frame.f_lineno) if frame else (__file__, 0)

    async def __aenter__(self) -> ProposalHandle:
        """Propose."""
        self._entered = True
        return await self._block.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Withdraw it, if it is undecided."""
        return await self._block.__aexit__(kind, error, traceback)

    def __await__(self) -> NoReturn:
        self._refuse("it was awaited")

    def __enter__(self) -> NoReturn:
        self._refuse("it was entered without async")

    def __exit__(self, *_: object) -> None:
        """Never reached; for the words that :meth:`__enter__` has instead of Python's own."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        self._refuse(f"{name!r} was asked of it")

    def _refuse(self, what: str) -> NoReturn:
        self._entered = True  # it has been told of
        raise UsageError(
            f"propose() has proposed nothing yet, and {what}; write: "
            "async with space.propose(…) as proposal"
        )

    def __del__(self) -> None:
        if not self._entered:
            warnings.warn_explicit(
                "propose() was never entered, so nothing was proposed; write: "
                "async with space.propose(…) as proposal",
                RuntimeWarning,
                *self._written,
            )


_PACKAGE: Final = __name__.partition(".")[0]
