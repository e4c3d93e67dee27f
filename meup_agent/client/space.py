"""A space as a participant sees it, with everything that can be done there."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from meup_agent.causes import Cause, Reason
from meup_agent.client.control import Control
from meup_agent.client.management import Members
from meup_agent.client.offers import FIND_SECONDS, TOOLS, OfferDirectory, OfferFinder, Offers
from meup_agent.client.proposal import Proposal, ProposalRecord, read_proposal_pages
from meup_agent.client.proposal_handle import (
    PendingProposal,
    ProposalHandle,
    Ttl,
    propose,
    resolve_ttl,
)
from meup_agent.client.requests import (
    TIMEOUT,
    await_announced,
    names,
    outbound,
    proposing,
    request,
    shown,
    wait_for,
)
from meup_agent.client.running_handler import awaited
from meup_agent.client.streams import Streams, reading_of_call
from meup_agent.client.talk import DecisionReceipt, TalkVerbs, check_may_decide, explainer_of
from meup_agent.errors import AmbiguousProposal, ParticipantGone, UsageError
from meup_agent.protocol.dialects import PUBLISHED
from meup_agent.protocol.exchange import Participant, Wait
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.membership import ProposalQuery
from meup_agent.protocol.wire.outcomes import CallOutcome, result_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from datetime import datetime

    from meup_agent.client.messages import OnProgress
    from meup_agent.client.offers import FoundTool
    from meup_agent.client.requests import Outbound
    from meup_agent.client.streams import OnStream
    from meup_agent.client.talk import Explainer
    from meup_agent.protocol.wire.membership import Guarantees
    from meup_agent.protocol.wire.payloads import JsonObject
    from meup_agent.session import Session
    from meup_agent.session.session import EnvelopeStream


class Space(TalkVerbs):
    """A participant's presence in a space; :meth:`meup_agent.Agent.join` gives one.

    Attributes:
        members: Grants, revocations, invitations, removals.
        control: Pause, resume, status, restart and shutdown of other participants.
        streams: The streams that are open; opens, reads and writes them.
        offers: Resources and prompts of participants.
    """

    def __init__(
        self,
        session: Session,
        *,
        finder: OfferFinder | None = None,
        outbound: Outbound | None = None,
    ) -> None:
        self._session = session
        self._finder = finder or OfferFinder(session)
        self._directory = self._finder.lists
        self._outbound = outbound
        self.members = Members(session)
        self.control = Control(session)
        self.streams = Streams(session, outbound)
        self.offers = Offers(self._directory, self.request)

    @property
    def me(self) -> str:
        """Our own name: the gateway knows it by our token."""
        return self._session.me

    @property
    def connected(self) -> bool:
        """True if there is a connection at this moment."""
        return self._session.table.connected

    @property
    def observing(self) -> bool:
        """True if this participant observes, and is not present (PROTOCOL 3)."""
        return self._session.table.roster.observing

    @property
    def now(self) -> datetime:
        """The gateway's time, by which deadlines count; our own, where it does not tell it."""
        return self._session.time_of_day()

    @property
    def ttl(self) -> float | None:
        """Seconds that a proposal waits where it does not say; ``None``: as long as it takes."""
        return self._session.ttl

    @property
    def dialect(self) -> str:
        """The dialect that the gateway speaks, for example ``meup/v0.2``."""
        return self._session.dialect

    @property
    def guarantees(self) -> Guarantees:
        """The gateway's guarantees, by its latest first welcome."""
        return self._session.table.roster.guarantees

    @property
    def participants(self) -> tuple[Participant, ...]:
        """The participants present, with their capabilities; we too, unless we observe."""
        return self._session.table.roster.participants()

    @property
    def proposals(self) -> list[ProposalRecord]:
        """Every proposal seen, ours included, with its state (PROTOCOL 4.2)."""
        store = self._session.table.proposal_store
        return [ProposalRecord(entry) for entry in store.records(self._session.now())]

    async def list_proposals(
        self,
        *,
        state: Literal["open", "decided"] = "open",
        id: str = "",
        proposer: str = "",
        tool: str = "",
        to_me: bool = False,
        timeout: float | None = TIMEOUT,
    ) -> AsyncGenerator[ProposalRecord]:
        """List the proposals of the space that are open, or that were decided lately.

        The gateway tells them to us alone, page by page, as an async iterator; also while we
        observe. The open ones are known from then on: :meth:`proposal` decides them, and what
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

    @property
    def capabilities(self) -> tuple[Any, ...]:
        """Our capabilities, as the gateway announced them; not to be changed."""
        return self._session.table.roster.my_capabilities

    def may(self, kind: str, payload: Any, *, to: Sequence[str] = ()) -> bool:
        """True if our announced capabilities allow an envelope; some allow it to some alone."""
        roster = self._session.table.roster
        return roster.is_allowed(roster.me, kind, payload, to)

    def may_request(self, to: str | None, method: str, params: JsonObject) -> bool:
        """True if our announced capabilities allow an MCP request; ``to=None``: to every one."""
        payload = payloads.request(method, params, "")
        return self.may(kinds.MCP_REQUEST, payload, to=() if to is None else (to,))

    @awaited
    async def present(self, participant: str, *, timeout: float | None = TIMEOUT) -> Participant:
        """Wait until a participant is in the space; at once if it is.

        Args:
            participant: The participant to wait for.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Returns:
            The participant, with its capabilities.

        Raises:
            ParticipantGone: It did not come in time.
        """
        roster = self._session.table.roster

        def find() -> Participant | None:
            if participant not in roster:  # looked for at each envelope, so the list is built once
                return None
            return next(each for each in roster.participants() if each.id == participant)

        found = await wait_for(self._session, find, timeout)
        if found is None:
            raise ParticipantGone(f"{participant!r} did not come into the space in {timeout:g} s")
        return found

    @awaited
    async def tools(
        self, participant: str, *, refresh: bool = False, timeout: float | None = TIMEOUT
    ) -> list[dict[str, Any]]:
        """The tools that a participant has, as MCP describes them (``name``, ``inputSchema`` …).

        A list is kept, and given again without asking, until its participant says that it changed,
        leaves, or joins anew, or our own connection is lost. While it is kept, calls and proposals
        are checked by it before they are sent. Callers that ask at the same time share one request.

        Args:
            participant: The participant that has them.
            refresh: Ask in any case.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            RequestError: It was answered with an error.
            MeupError: As :meth:`request`.
        """
        return await self._directory.get(participant, timeout=timeout, refresh=refresh)

    @awaited
    async def find(
        self, tool: str, *, renew: bool = False, timeout: float = FIND_SECONDS
    ) -> list[FoundTool]:
        """The participants that have a tool of a name, those that came first first.

        Every present participant that we may ask is asked for its list, which is kept until it
        changes; one that does not answer is left out, and asked again half a minute later.

        Names are claimed by whichever participant likes. So the participant that alone has a name
        when it is first looked for, here or by :meth:`call` and :meth:`request` without a
        participant, is its owner from then on: they go to no other, and raise
        :exc:`OwnerChanged` once others have the tool and the owner has not.

        Args:
            tool: The tool's name.
            renew: Forget the owner; the participant that alone has it now becomes its owner.
            timeout: Seconds to wait for each participant's list.

        Raises:
            ConnectionFailed: Our own connection has failed.
        """
        return await self._finder.find(tool, timeout, renew=renew)

    # --- requests ---

    async def _complete_request(self, given: dict[str, Any]) -> None:
        """Find the addressee of a request that names none."""
        if given["to"] is None:
            params = payloads.as_object(given["params"])
            given["to"] = await self._finder.route(given["method"], params, given["timeout"])

    @awaited
    @outbound(
        "request", complete=_complete_request, participant="to", method="method", arguments="params"
    )
    async def request(
        self,
        to: str | None,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        timeout: float | None = TIMEOUT,
        total_timeout: float | None = None,
        idempotent: bool = False,
        on_progress: OnProgress | None = None,
        on_begun: Callable[[str], None] | None = None,
    ) -> Any:
        """Send an MCP request to a participant and wait for its result.

        Giving up, by a timeout or because the caller is cancelled, cancels the request.

        Args:
            to: The addressee; ``None``: the one participant that has the tool, prompt or resource
                that the parameters name (:meth:`find`).
            method: The MCP method, for example ``tools/list``.
            params: Its parameters.
            timeout: Seconds to wait; ``None``: as long as it takes.
            total_timeout: Seconds to wait in all: each progress (``on_progress``) lets the
                ``timeout`` begin anew. ``None``: ten times the timeout; as much as the timeout:
                progress changes nothing.
            idempotent: It may be sent again after a reconnect, under the same id.
            on_progress: Called with each progress; must return at once.
            on_begun: Called with the id of its envelope, before it is sent; must return at once.

        Returns:
            The result as JSON values.

        Raises:
            RequestError: It was answered with an error.
            RequestTimeout: No response came in time; it was cancelled.
            Refused: The gateway did not let it through, or no participant has that name.
            ParticipantGone: The addressee left, and did not come back.
            OwnerUnknown: It is for no single participant; nothing was sent.
            ConnectionFailed: It was not sent, or its outcome is not known.
        """
        if to is None:
            to = await self._finder.route(method, params or {}, timeout)
        response = await request(
            self._session,
            to,
            method,
            params or {},
            timeout=timeout,
            total_timeout=total_timeout,
            idempotent=idempotent,
            on_progress=on_progress,
            on_begun=on_begun,
        )
        return result_of(response)

    @awaited
    async def call(
        self,
        participant: str | None,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        to: str | Iterable[str] = (),
        timeout: Ttl = "space",
        total_timeout: float | None = None,
        idempotent: bool = False,
        accept_edits: bool = False,
        on_progress: OnProgress | None = None,
        on_stream: OnStream | None = None,
    ) -> Any:
        """Call a participant's tool: a request if our capabilities allow it, otherwise a proposal.

        Where the participant's list of tools is known (:meth:`tools`), the call is checked by it
        first.

        Args:
            participant: The participant that has the tool; ``None``: the one that has it, found by
                the tool's name and the same from then on (:meth:`Space.find`).
            tool: Its name.
            arguments: Its arguments.
            to: If it becomes a proposal: the participants that should decide it; empty: any that
                may.
            timeout: Seconds to wait, for a request as for a proposal; ``None``: as long as it
                takes. By default the space's ``ttl`` (:class:`Settings`).
            total_timeout: Seconds to wait in all if it becomes a request: each progress
                (``on_progress``) lets the ``timeout`` begin anew. ``None``: ten times the timeout;
                as much as the timeout: progress does not extend it. Of a proposal the timeout is
                the whole wait, since those who decide it are told its end.
            idempotent: A request may be sent again after a reconnect, under the same id.
            accept_edits: If it becomes a proposal: take the result also of what was carried out
                otherwise than proposed, or perhaps so.
            on_progress: Called with each progress; must return at once.
            on_stream: An async function that reads each stream which the tool opens about the call
                (:meth:`Context.stream`), in a task beside it; no handler of ours gets these. The
                call returns when it has read all that came before the answer. What it raises
                cancels the call.

        Returns:
            The tool's structured content, else its content.

        Raises:
            InvalidArguments: There is no such tool, or it does not take these; nothing was sent.
            OwnerUnknown: No single participant has a tool of that name, or no longer the one that
                had it; nothing was sent.
            ToolError: The tool ran and failed.
            RequestError: It was answered with an error, for example for wrong arguments.
            ProposalEdited: The proposal was carried out otherwise than proposed, or it is unknown
                whether it was.
            ProposalRejected: The proposal was rejected.
            ProposalExpired: It was not decided, or not done, in time.
            RequestTimeout: No response came in time; it was cancelled.
            Refused: The gateway let through neither, or no participant has that name.
            ParticipantGone: Every participant that could answer has left.
            ConnectionFailed: It was not sent, or its outcome is not known.
        """
        outcome = await self.invoke(
            participant,
            tool,
            arguments,
            to=to,
            timeout=timeout,
            ttl=timeout,
            total_timeout=total_timeout,
            idempotent=idempotent,
            on_progress=on_progress,
            on_stream=on_stream,
        )
        outcome = await await_announced(self._session, outcome)
        return outcome.result(accept_edits=accept_edits)

    async def _complete_call(self, given: dict[str, Any]) -> None:
        """Find the participant of a call that names none."""
        if given["participant"] is None:
            timeout = resolve_ttl(given["timeout"], self.ttl)
            given["participant"] = await self._finder.owner(TOOLS, given["tool"], timeout)

    @awaited
    @outbound(
        "invoke",
        about=lambda _: {"method": payloads.TOOL_CALL},
        complete=_complete_call,
        participant="participant",
        tool="tool",
        arguments="arguments",
        to="to",
    )
    async def invoke(
        self,
        participant: str | None,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        to: str | Iterable[str] = (),
        timeout: Ttl = "space",
        ttl: Ttl = "space",
        total_timeout: float | None = None,
        wait: Wait | str = Wait.ADDRESSED,
        as_proposal: bool = False,
        idempotent: bool = False,
        more: JsonObject | None = None,
        on_progress: OnProgress | None = None,
        on_stream: OnStream | None = None,
        on_begun: Callable[[str], None] | None = None,
        on_proposed: Callable[[ProposalHandle], None] | None = None,
    ) -> CallOutcome:
        """Call a tool as :meth:`call` does, and return its outcome, whatever that is.

        ``call(…)`` is ``(await invoke(…)).result()``. A caller that shows what became of a call
        matches the outcome instead of catching an exception for each.

        Args:
            participant: As of :meth:`call`; so are ``tool``, ``arguments``, ``to``,
                ``total_timeout``, ``idempotent``, ``on_progress`` and ``on_stream``.
            tool: Its name.
            arguments: Its arguments.
            to: If it becomes a proposal: the participants that should decide it.
            timeout: Seconds that a request waits; ``None``: as long as it takes.
            ttl: Seconds that a proposal waits for a decision and its result; ``None``: as long as
                it takes. By default both are the space's.
            total_timeout: Seconds that a request waits in all.
            wait: The rejection that ends the wait for a proposal, as of :meth:`propose`.
            as_proposal: Propose it also where our capabilities allow the request.
            idempotent: A request may be sent again after a reconnect, under the same id.
            more: Further parameters of a request, for example ``_meta``. A proposal has none.
            on_progress: Called with each progress; must return at once.
            on_stream: Reads each stream that the tool opens about the call.
            on_begun: Called with the id of the request or proposal; must return at once.
            on_proposed: Called with the handle of a proposal that was made; must return at once.

        Returns:
            :class:`Responded` to a request. Of a proposal :class:`Fulfillment`,
            :class:`Rejection`, :class:`Withdrawal`, :class:`Expiry` or :class:`Gone`. Each has
            ``result()``, which returns or raises what :meth:`call` does.

        Raises:
            InvalidArguments: There is no such tool, or it does not take these; nothing was sent.
            OwnerUnknown: No single participant has a tool of that name; nothing was sent.
            RequestTimeout: No response to a request came in time; it was cancelled.
            ParticipantGone: The addressee of a request left, and did not come back.
            Refused: The gateway did not let it through, or no participant has that name.
            ConnectionFailed: It was not sent, or its outcome is not known.
        """
        session, given = self._session, arguments or {}
        timeout, ttl = resolve_ttl(timeout, session.ttl), resolve_ttl(ttl, session.ttl)
        if participant is None:
            participant = await self._finder.owner(TOOLS, tool, timeout)
        params = {**(more or {}), "name": tool, "arguments": given}
        # It is judged once, before anything is awaited that could hide a change of capabilities.
        may_request = not as_proposal and self.may_request(participant, payloads.TOOL_CALL, params)
        check = partial(
            self._directory.check, participant, tool, given, timeout if may_request else ttl
        )

        async def requested(begun: Callable[[str], None] | None) -> CallOutcome:
            await check()
            return await request(
                session,
                participant,
                payloads.TOOL_CALL,
                params,
                timeout=timeout,
                total_timeout=total_timeout,
                idempotent=idempotent,
                on_progress=on_progress,
                on_begun=begun,
            )

        async def proposed(begun: Callable[[str], None] | None) -> CallOutcome:
            async with propose(
                session,
                payloads.TOOL_CALL,
                {"name": tool, "arguments": given},
                target=participant,
                to=names(to),
                ttl=ttl,
                wait=Wait(wait),
                on_progress=on_progress,
                explainer=self._explainer,
                check=check,
            ) as proposal:
                if begun is not None:
                    begun(proposal.id)
                if on_proposed is not None:
                    on_proposed(proposal)
                return await proposal.outcome()

        return await reading_of_call(
            session, on_stream, requested if may_request else proposed, on_begun
        )

    # --- proposals ---

    def propose(
        self,
        participant: str | None,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        to: str | Iterable[str] = (),
        ttl: Ttl = "space",
        wait: Wait | str = Wait.ADDRESSED,
        depends_on: Iterable[ProposalHandle | str] = (),
        on_progress: OnProgress | None = None,
    ) -> AbstractAsyncContextManager[ProposalHandle]:
        """Propose a call of a tool; leaving the block undecided withdraws it.

        Args:
            participant: The participant that should carry it out; ``None``: the fulfiller's choice.
            tool: The tool's name.
            arguments: Its arguments.
            to: The participants that should decide it; empty: any that may.
            ttl: Seconds to wait for a decision and its result; ``None``: as long as it takes. By
                default the space's (:class:`Settings`). The handle can :meth:`renew
                <ProposalHandle.renew>` it.
            wait: The rejection that ends the wait: ``addressed``, ``first``, ``later``, ``all`` or
                ``deadline`` (PROTOCOL 4.5).
            depends_on: Proposals of ours, or their ids, that must be fulfilled first (PROTOCOL
                4.15). Until then no participant hears of this one, and its ``ttl`` has not begun;
                if one of them ends otherwise, or fails, this one is withdrawn.
            on_progress: Called with each progress; must return at once.

        Returns:
            An async context manager that gives a :class:`ProposalHandle`; entering it proposes.

        Raises:
            InvalidArguments: The participant's list of tools is known (:meth:`Space.tools`), and
                there is no such tool, or it does not take these arguments; nothing was sent.
            UsageError: It was awaited, or asked for something, instead of entered; or it depends on
                what is not a proposal of ours, on itself, or on more than 64.
        """
        seconds = resolve_ttl(ttl, self.ttl)

        def begin(call: Any) -> AbstractAsyncContextManager[ProposalHandle]:
            target, check = call.participant, self._directory.check
            return propose(
                self._session,
                payloads.TOOL_CALL,
                {"name": call.tool, "arguments": call.arguments},
                target=target,
                to=names(call.to),
                ttl=seconds,
                wait=Wait(wait),
                on_progress=on_progress,
                explainer=self._explainer,
                depends_on=depends_on,
                check=None
                if target is None
                else partial(check, target, call.tool, call.arguments, seconds),
            )

        fields = {"participant": participant, "tool": tool, "to": names(to)}
        if self._outbound is None:
            return PendingProposal(begin(SimpleNamespace(**fields, arguments=arguments or {})))
        fields = shown(**fields, method=payloads.TOOL_CALL, arguments=arguments)
        return PendingProposal(proposing(self._outbound, fields, begin))

    @awaited
    async def withdraw_all(
        self,
        where: Callable[[ProposalRecord], object] | None = None,
        *,
        reason: str = Reason.NO_LONGER_NEEDED,
        explain: str | None = None,
    ) -> list[DecisionReceipt]:
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
        receipts = [DecisionReceipt(each, each.correlation, self._explainer) for each in sent]
        for receipt in receipts if explain else ():
            await receipt.explain(explain or "")
        return receipts

    @property
    def _explainer(self) -> Explainer:
        return explainer_of(self._session, self._outbound)

    def proposal(
        self, of: ProposalRecord | Envelope | str, *, proposer: str | None = None
    ) -> Proposal:
        """A participant's proposal, to decide outside of a handler.

        What is decided is the proposal that was handed over: where its proposer has used its id
        for another one since, or takes it back, it is not pending any more.

        Args:
            of: One of :attr:`proposals`, its envelope, or its id.
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

    def watch(
        self, wanted: Callable[[Envelope], bool] | None = None
    ) -> AbstractContextManager[EnvelopeStream]:
        """Every envelope from here on, for the length of a block.

        The block gets an async iterator of :class:`~meup_agent.Envelope`, echoes of our own
        included. A watcher that is slower than the space misses the oldest, and ``missed``
        counts them.

        Args:
            wanted: Says which envelopes the watcher is woken for; returns at once. ``None``: all.
        """
        return self._session.watchers.watch(wanted)


def allowed_words(proposal: Proposal, space: Space, text: str | None) -> str | None:
    """The words, if a chat of them is allowed: a program's rejection is sent without them, too."""
    to = (proposal.proposer,)
    allowed = not space.capabilities or space.may(kinds.CHAT, {"message": text}, to=to)
    return text if allowed else None


def directory_of(space: Space) -> OfferDirectory:
    """The lists that a space keeps: for views over them, and no verb of a user's."""
    return space._directory  # pyright: ignore[reportPrivateUsage]


def send_progress(space: Space, payload: JsonObject, *, to: str, request_id: str) -> None:
    """Send the progress of a request at once: a worker thread that tells it does not await."""
    # For the context of a handler alone; of users it would hide that nothing else gets to run.
    session = space._session  # pyright: ignore[reportPrivateUsage]
    session.send_message(kinds.MCP_REQUEST, payload, to=(to,), correlation=(request_id,))
