"""Proposals: those of others are read, fulfilled and rejected, one's own are made and awaited."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    aclosing,
    asynccontextmanager,
    nullcontext,
)
from copy import deepcopy
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, cast

import msgspec
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from meup_agent.causes import Cause, Reason
from meup_agent.client.control import AwaitedAnswer, ask
from meup_agent.client.messages import (
    TIMEOUT,
    DecisionReceipt,
    Explainer,
    OnProgress,
    Outbound,
    Progress,
    Snapshot,
    await_announced,
    awaited,
    cause_of_leaving,
    check_may_decide,
    check_may_send,
    explainer_of,
    outbound,
    parent_in,
    relay,
    request,
    with_explanation,
    write_params,
)
from meup_agent.client.offers import TOOLS, OfferFinder
from meup_agent.errors import (
    AlreadyDecided,
    AlreadyInProgress,
    AmbiguousProposal,
    InvalidEnvelope,
    OutcomeUnknown,
    UsageError,
    printable,
)
from meup_agent.protocol.dialects import PUBLISHED, decode
from meup_agent.protocol.exchange import FulfillmentTarget, Key, ProposalEntry, ProposalKey, Wait
from meup_agent.protocol.proposals import ProposalState, fingerprint_of
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import (
    CLOCK_DIFFERENCE,
    Envelope,
    draft,
    moment_of,
    read_moment,
)
from meup_agent.protocol.wire.membership import (
    ListedDecision,
    ListedProposal,
    ProposalPage,
    ProposalQuery,
)
from meup_agent.protocol.wire.outcomes import (
    EXPLANATION_TIMEOUT,
    Ending,
    Fulfillment,
    Outcome,
    PermitReport,
    Rejection,
    Unsent,
    Withdrawal,
    outcome_of,
)
from meup_agent.protocol.wire.payloads import (
    build_end,
    build_fulfillment,
    build_proposal,
    rejection_meta,
)
from meup_agent.session.outbox import checked_timeout, checked_ttl

if TYPE_CHECKING:
    from types import TracebackType

    from meup_agent.session import Session


# --- proposals of others ---


def _fields_of(proposal: Proposal) -> dict[str, Any]:
    return {"method": proposal.method, "tool": proposal.tool, "proposal": proposal}


class Proposal:
    """A call that another participant proposes, for us to decide.

    Attributes:
        id: The proposal's id.
        proposer: The participant that proposes it.
        to: The participants that should decide it; empty: any that may.
        method: The MCP method, usually ``tools/call``.
        tool: The tool's name; empty for other methods.
        arguments: The tool's arguments, as JSON values.
        target: The participant that should carry it out, where the proposer said so.
        client: The program that the proposer serves, as that names itself: a label, which no rule
            should rest on; empty where none is told.
        envelope: The proposal as it came.
    """

    def __init__(
        self, session: Session, envelope: Envelope, finder: OfferFinder, outbound: Outbound | None
    ) -> None:
        call = payloads.read_proposal(envelope.payload)
        self._session = session
        self._outbound = outbound
        self._finder = finder
        self._call = call
        self._key = ProposalKey(envelope.sender, envelope.id)
        self.id = envelope.id
        self.proposer = envelope.sender
        self.to = envelope.to
        self.method = call.method
        self.tool = call.name
        # A copy of its own: an edited one is handed to fulfill(), which looks for the difference.
        self.arguments = payloads.read_proposal(envelope.payload).arguments
        self.target = call.target
        self.client = call.client
        self.envelope = envelope
        self._entry: ProposalEntry | None = None
        # Held as long as we are: the store may forget it where very many are proposed.
        self._entry = self._record

    def __repr__(self) -> str:
        """The id, the proposer and the call."""
        return f"<Proposal {self.id} of {self.proposer!r}: {self.method} {self.tool!r}>"

    @property
    def state(self) -> ProposalState | None:
        """Its state now, as far as we have seen; ``None`` if it is long forgotten."""
        record = self._record
        if record is None:
            return None
        return self._session.table.state_of(record, self._session.now())

    @property
    def canonical(self) -> bytes | None:
        """The call as its digest covers it: RFC 8785, with the target (PROTOCOL 6).

        ``None`` where a gateway of other make let pass a number that no double holds.
        """
        return payloads.canonical(self.method, self._call.params, self.target)

    @property
    def expires_at(self) -> datetime | None:
        """The time at which its proposer gives it up, where it said so; a renewal moves it."""
        record = self._record
        if record is None:
            return self._call.expires_at
        return None if record.expires_at is None else moment_of(record.expires_at)

    @property
    def _record(self) -> ProposalEntry | None:
        """The entry of this proposal, and not of a later one of its proposer under the same id."""
        latest = self._session.table.proposal_store.get(self._key, self._session.now())
        if latest is None or not latest.earlier:
            return latest or self._entry
        content, older = fingerprint_of(self.envelope), latest.earlier
        every = (latest, *older)
        return next((each for each in every if each.fingerprint == content), older[-1])

    async def _show_proposed(self, given: dict[str, Any]) -> None:
        """Fill in what a fulfillment is that names no executor, or no other arguments."""
        given["executor"] = given["executor"] or self.target
        if given["arguments"] is None:
            given["arguments"] = self._call.arguments

    @awaited
    @outbound(
        "fulfill",
        about=_fields_of,
        complete=_show_proposed,
        participant="executor",
        arguments="arguments",
    )
    async def fulfill(
        self,
        arguments: dict[str, Any] | None = None,
        *,
        executor: str | None = None,
        timeout: float | Literal["proposer"] | None = "proposer",
        on_progress: OnProgress | None = None,
        rule: dict[str, Any] | None = None,
        yes: str = "",
        even_if_gone: bool = False,
    ) -> Fulfillment:
        """Make the real request, and wait for its response (PROTOCOL 4.4).

        The proposal's state, its deadline, and its proposer are looked at as the request leaves,
        however long the proposal was held, or the request waited for a connection.

        Args:
            arguments: Other arguments than the proposed ones; the proposer is told the difference.
            executor: The participant that carries it out, if not the proposal's target; without
                either, the only one that has the tool.
            timeout: Seconds to wait for the response; then the request is cancelled. By default
                as long as the proposer waits: a minute longer than its ``expires_at``, since
                clocks differ, and without one as long as it takes.
            on_progress: Called with the tool's progress.
            rule: The rule that decided it, told to every reader of the request (PROTOCOL 6).
            yes: The id of the scoped yes that this is a use of; the gateway counts it.
            even_if_gone: It is wanted also where its proposer has left; the handler that fulfills
                it goes on then, too.

        Returns:
            The response, with ``is_error`` to look at.

        Raises:
            AlreadyInProgress: Another request is fulfilling it; leave it to that.
            AlreadyDecided: It is not pending any more, or we have rejected it; nothing was sent.
            AmbiguousProposal: Its proposer made several under its id, and an edited request does
                not tell which one it means.
            InvalidArguments: The executor's list of tools is known (``space.offers.tools``), and
                the tool does not take these ``arguments``; nothing was sent.
            OwnerUnknown: The proposal does not say who should carry it out, and not exactly one
                participant besides its proposer has the tool; give ``executor``.
            UsageError: It does not say so either, and calls no tool.
            RequestTimeout: No response came in time, or there was no connection in time.
            Refused: The gateway does not let us make that request; or, of an edited one, our
                capabilities or our policy do not, and nothing was sent.
            ParticipantGone: The executor left the space; or the proposer did, 30 s ago or more,
                without ``even_if_gone``, and nothing was sent.
            ConnectionFailed: The request was not sent, or its outcome is not known.
        """
        follows = timeout == "proposer"
        if timeout == "proposer":
            timeout = self._seconds_left()
        to = executor or await self.find_executor(timeout=timeout)
        # A copy: what is checked and judged is what leaves, whatever the caller does meanwhile.
        arguments = deepcopy(arguments)
        params, changes = build_fulfillment(
            self._call, arguments, to, proposer=self.proposer, rule=rule, yes=yes
        )
        if changes and arguments is not None and self.method == payloads.TOOL_CALL:
            await self._finder.lists.check(to, self.tool, arguments, timeout)
        if changes:
            what = f"proposal {self.id} was not fulfilled as it was edited"
            asked = payloads.request(self.method, params, "")
            check_may_send(self._session, kinds.MCP_REQUEST, asked, what, to=(to,))
        judge = self._session.edit_judge
        if changes and judge is not None:
            # The call that it now is was shown to no rule, and its rule let another one pass. It is
            # shown as a proposal would say it.
            meta = {payloads.TARGET: to}
            edited = {**payloads.without_meta(params), payloads.META: meta}
            rule = await judge(self, payloads.Call(self.method, edited), rule)
            params, changes = build_fulfillment(
                self._call, arguments, to, proposer=self.proposer, rule=rule, yes=yes
            )
        if on_progress is None and payloads.PROGRESS_TOKEN in self._call.meta:
            # The proposer follows the progress of our request, so the executor must tell it.
            on_progress = _ignore
        try:
            with self._traced("fulfill", rule):
                response = await request(
                    self._session,
                    to,
                    self.method,
                    params,
                    timeout=timeout,
                    on_progress=on_progress,
                    fulfills=FulfillmentTarget(self._key, self._record, even_if_gone, follows),
                )
        except AlreadyInProgress as error:
            raise AlreadyInProgress(self.id, error.by) from None
        if payloads.is_refusal({"error": response.error}):
            self._finder.lists.forget_tools(to)
        return Fulfillment(
            proposal_id=self.id,
            by=self._session.me,
            executor=response.by,
            response=response.response,
            error=response.error,
            changes=changes,
        )

    @awaited
    async def find_executor(self, *, timeout: float | None = None) -> str:
        """Find the participant that carries it out, where it is fulfilled as it is.

        It is the proposal's target, else the only participant besides its proposer that has the
        tool. One that was found keeps the name of its tool, as for :meth:`Space.call`.

        Args:
            timeout: Seconds to wait for the lists of tools, five at most.

        Raises:
            OwnerUnknown: Not exactly one participant has the tool.
            UsageError: The proposal calls no tool, and does not say who should carry it out.
            ConnectionFailed: Our own connection has failed.
        """
        if self.target is not None:
            return self.target
        if self.method != payloads.TOOL_CALL:
            raise UsageError(
                f"proposal {self.id} does not say who should carry it out; "
                "name the executor: fulfill(executor=…)"
            )
        return await self._finder.owner(TOOLS, self.tool, timeout, proposer=self.proposer)

    def _traced(self, verdict: str, rule: dict[str, Any] | None) -> AbstractContextManager[None]:
        tracer = self._session.tracer
        if tracer is None:
            return nullcontext()
        return tracer.decision(self._call, self.id, verdict, self._session.me, rule)

    def _seconds_left(self) -> float | None:
        """Seconds that the proposer waits at the most; ``None``: as long as it takes."""
        until, now = self.expires_at, self._session.time_of_day()
        return None if until is None else max((until + CLOCK_DIFFERENCE - now).total_seconds(), 0.0)

    @awaited
    @outbound("reject", about=_fields_of, must_pass=True, reason="reason", explain="explain")
    async def reject(
        self, reason: str, *, explain: str | None = None, rule: dict[str, Any] | None = None
    ) -> DecisionReceipt:
        """Reject the proposal. The explanation follows as a chat, without delaying the rejection.

        Returns when the gateway has taken it, where the gateway shows that. Without a connection
        it is said later.

        Args:
            reason: A reason code, for example ``Reason.UNSAFE``.
            explain: Longer words for the proposer; the receipt takes them later, too.
            rule: The rule that decided it, told to every reader of the rejection (PROTOCOL 6).

        Returns:
            The receipt, with the id of the reject.

        Raises:
            AlreadyDecided: It is not pending any more, or we have rejected it.
            AlreadyInProgress: Its fulfillment is on its way.
            Refused: Our capabilities do not allow it, or not the explanation, and nothing was sent;
                or the gateway did not let one of them through.
            NotExpressible: JSON, or the gateway's dialect, has no words for it.
            NotSent: There is no connection any more, and there will be none.
            UsageError: The explanation is larger than any gateway takes. Then nothing was sent.
        """
        record = self._record
        if record is not None:
            # A second rejection changes nothing, and its words would be lost.
            table = self._session.table
            declined = ProposalState.REJECTED if table.has_declined(record) else None
            state = declined or table.state_of(record, self._session.now())
            if not state.is_pending:
                raise AlreadyDecided(self.id, state)
        if record is not None and record.in_progress_by is not None:
            raise AlreadyInProgress(self.id, record.in_progress_by)
        session, to = self._session, (self.proposer,)
        meta = rejection_meta(rule, explained=bool(explain))
        payload = build_end(str(reason), meta)
        session.check_message(kinds.MCP_REJECT, payload, to=to, correlation=(self.id,))
        what = f"proposal {self.id} was not rejected"
        check_may_decide(session, kinds.MCP_REJECT, payload, what, to=to, explain=explain)
        with self._traced("reject", rule):
            rejection = session.reject(self._key, str(reason), meta)
        said = [rejection.id]
        if explain:
            body = {"message": explain}
            said.append(
                session.send_message(kinds.CHAT, body, to=to, correlation=(rejection.id,)).id
            )
        await session.taken(said)
        return DecisionReceipt(
            rejection, (self.id,), explainer_of(session, self._outbound), explained=bool(explain)
        )


def _ignore(_: Progress) -> None:
    """The proposer listens; we do not."""


class ProposalRecord:
    """A proposal in the space, ours included, as far as we have seen it.

    It goes on being true: its state is that of the moment in which it is read.
    """

    __slots__ = ("_call", "_entry", "_listed")

    def __init__(self, entry: ProposalEntry, listed: ListedProposal | None = None) -> None:
        self._entry = entry
        self._listed = listed
        self._call: payloads.Call | None = None

    def __repr__(self) -> str:
        return f"<ProposalRecord {self.id} of {self.proposer!r}: {self.tool!r} is {self.state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProposalRecord) and other._entry is self._entry

    def __hash__(self) -> int:
        return id(self._entry)

    @property
    def id(self) -> str:
        """The proposal's id."""
        return self._entry.key.id

    @property
    def proposer(self) -> str:
        """The participant that proposes it."""
        return self._entry.key.proposer

    @property
    def to(self) -> tuple[str, ...]:
        """The participants that should decide it; empty: any that may."""
        return self._entry.envelope.to

    @property
    def envelope(self) -> Envelope:
        """The proposal as it came."""
        return self._entry.envelope

    @property
    def method(self) -> str:
        """The MCP method, usually ``tools/call``."""
        return self._read().method

    @property
    def tool(self) -> str:
        """The tool's name; empty for other methods."""
        return self._read().name

    @property
    def arguments(self) -> dict[str, Any]:
        """The tool's arguments, as JSON values."""
        return self._read().arguments

    @property
    def target(self) -> str | None:
        """The participant that should carry it out, where the proposer said so."""
        return self._read().target

    @property
    def client(self) -> str:
        """The program that the proposer serves, as that names itself; empty: none is told."""
        return self._read().client

    @property
    def expires_at(self) -> datetime | None:
        """The time at which its proposer gives it up, where it said so; a renewal moves it."""
        at = self._entry.expires_at
        return None if at is None else moment_of(at)

    @property
    def state(self) -> ProposalState:
        """Its state now (PROTOCOL 4.2)."""
        return self._entry.state

    @property
    def in_progress_by(self) -> str | None:
        """The participant whose fulfilling request is out."""
        return self._entry.in_progress_by

    @property
    def cancelled_by(self) -> tuple[str, ...]:
        """While it is pending: those whose fulfilling requests were cancelled, perhaps midway."""
        return self._entry.cancelled_by

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """Its rejections, of each participant the first; it may be pending all the same."""
        return tuple(self._entry.rejections.values())

    @property
    def told(self) -> dict[str, str]:
        """Last words of each participant that considers or queues it, as far as we have heard."""
        return dict(self._entry.told or {})

    @property
    def decided_by(self) -> str | None:
        """The participant that brought it to its final state."""
        return self._entry.decided_by

    @property
    def reason(self) -> str | None:
        """The reason code that came with that, if any."""
        return self._entry.reason

    @property
    def has_failed(self) -> bool:
        """True if it was fulfilled, by an answer that is an error.

        Of a permit: if its report says that the call failed, or was not run.
        """
        return self._entry.has_failed

    @property
    def seq(self) -> int | None:
        """The number of its envelope, where the gateway listed it."""
        return None if self._listed is None else self._listed.seq

    @property
    def decided_at(self) -> datetime | None:
        """The time of the decision, where the gateway listed it as decided."""
        at = None if self._decision is None else read_moment(self._decision.at)
        return None if at is None else moment_of(at)

    @property
    def rule(self) -> str:
        """The rule of a policy that decided it, where the gateway listed it so; empty: none."""
        return "" if self._decision is None else self._decision.rule

    @property
    def report(self) -> PermitReport | None:
        """The report of its executor about a permitted call; ``None``: none yet."""
        return self._entry.report

    @property
    def outlives(self) -> bool:
        """True if it is wanted also where its proposer's process is gone."""
        return self._read().outlives

    @property
    def outcome(self) -> Fulfillment | None:
        """The fulfillment of a proposal of ours, as it was listed.

        ``None``: it was not fulfilled, or the gateway keeps no answer to it. It keeps those of
        proposals that outlive their process, and of permits.
        """
        told = self._carried_out
        if told is None:
            return None
        request, response = told
        fulfilled = payloads.read_call(request.payload)
        executor = request.to[0] if len(request.to) == 1 else response.sender
        edits = payloads.changes(self._read(), fulfilled, executor)
        answer = payloads.read_response(response.payload)
        return Fulfillment(self.id, request.sender, executor, *answer, edits)

    @property
    def fulfilled_arguments(self) -> dict[str, Any] | None:
        """The arguments with which it was fulfilled; ``None`` where :attr:`outcome` is."""
        told = self._carried_out
        return None if told is None else payloads.read_call(told[0].payload).arguments

    @property
    def _carried_out(self) -> tuple[Envelope, Envelope] | None:
        """The request by which it was fulfilled, and the response."""
        told = [] if self._decision is None else self._decision.carried_out
        try:
            request, response = (decode(bytes(each)) for each in told)
        except (ValueError, InvalidEnvelope):
            return None
        return request, response

    @property
    def _decision(self) -> ListedDecision | None:
        return None if self._listed is None else self._listed.decision

    def _read(self) -> payloads.Call:
        if self._call is None:
            self._call = self._entry.call
        return self._call


# --- proposal pages ---
# Pages of proposals that the gateway lists, entered in our session as they come (PROTOCOL 3).


class RecordPage(NamedTuple):
    """A page of proposals, of which the open ones are known to our session.

    Attributes:
        records: The proposals.
        left: Proposals behind this page, as :attr:`ProposalPage.left`.
        omitted: Proposals that the gateway, or we, could not tell of: they are too large.
    """

    records: list[ProposalRecord]
    left: int = 0
    omitted: int = 0


async def read_proposal_pages(
    session: Session, query: ProposalQuery, timeout: float | None
) -> AsyncGenerator[RecordPage]:
    """The pages of an answer, one after the other; errors as of ``space.proposals.list``."""
    if not session.table.roster.guarantees.lists_proposals:
        await checkpoint()
        heard = _heard(session, query)
        for begin in range(0, len(heard), query.limit):
            end = begin + query.limit
            yield RecordPage(heard[begin:end], max(len(heard) - end, 0))
            if query.urgent:
                return
        return
    while True:
        reader = _PageReader(session)
        params = write_params(query)
        await ask(session, kinds.LIST_PROPOSALS, params, answer=reader, timeout=timeout)
        if reader.problem:
            raise OutcomeUnknown(
                f"the gateway's list of proposals cannot be read: {reader.problem}; update it, or"
                " this package"
            )
        yield RecordPage(reader.records, reader.page.left, reader.omitted)
        if reader.page.next is None or reader.page.next <= query.after:
            return  # the last one, or one of a gateway that would never come to an end
        query = msgspec.structs.replace(query, after=reader.page.next)


def _heard(session: Session, query: ProposalQuery) -> list[ProposalRecord]:
    """The proposals of a query that our session has heard of."""
    store, is_open = session.table.proposal_store, query.state == "open"
    entries = store.records(session.now())
    if query.urgent:
        entries.sort(key=lambda each: inf if each.expires_at is None else each.expires_at)
    heard = map(ProposalRecord, entries)
    return [
        each
        for each in heard
        if each.state.is_pending is is_open
        and query.takes(each.envelope, each.tool, each.to, session.me)
    ]


class _PageReader(AwaitedAnswer):
    """Takes a page in as it is heard: what is heard behind it is newer."""

    def __init__(self, session: Session) -> None:
        super().__init__(kinds.PROPOSALS)
        self._session = session
        self.page = ProposalPage()
        self.records: list[ProposalRecord] = []
        self.omitted = 0
        self.problem = ""

    def take(self, envelope: Envelope) -> bool:
        """Keep the first answer, and enter its proposals; ``True`` for that."""
        is_first = super().take(envelope)
        if is_first and envelope.kind == kinds.PROPOSALS:
            self._enter(envelope)
        return is_first

    def _enter(self, answer: Envelope) -> None:
        try:
            self.page = msgspec.json.decode(answer.raw_payload, type=ProposalPage)
        except (msgspec.DecodeError, RecursionError) as error:
            self.problem = printable(str(error))
            return
        self.omitted = self.page.omitted
        for listed in self.page.proposals:
            try:
                entry = self._entry(listed)
            except (InvalidEnvelope, ValueError):
                entry = None
            if entry is None:
                self.omitted += 1
            else:
                self.records.append(ProposalRecord(entry, listed))

    def _entry(self, listed: ListedProposal) -> ProposalEntry | None:
        """The record of a listed proposal; ``None``: it cannot be one."""
        envelope = decode(bytes(listed.envelope))
        if envelope.kind != kinds.MCP_PROPOSAL:
            return None
        if listed.decision is not None:
            return _decided(envelope, listed)
        # Our session has entered it, unless it cannot be one.
        key = ProposalKey(envelope.sender, envelope.id)
        return self._session.table.proposal_store.get(key, self._session.now())


def _decided(envelope: Envelope, listed: ListedProposal) -> ProposalEntry | None:
    """The record of a proposal that was decided before: it stands by itself."""
    decision, entry = listed.decision, ProposalEntry.of(envelope)
    assert decision is not None  # our caller looked
    entry.state = ProposalState(decision.state)
    entry.decided_by, entry.reason = decision.by, decision.reason
    entry.has_failed = decision.failed
    entry.report = decision.report
    entry.expires_at = read_moment(listed.expires_at)
    for each in listed.rejections:
        entry.rejections[each.by] = Rejection(entry.key.id, each.reason, each.by, each.id)
    return None if entry.state.is_pending else entry


# --- the proposals of a space ---


class Proposals(Snapshot[ProposalRecord]):
    """Every proposal that was seen, ours included, oldest first, as ``space.proposals``."""

    def __init__(self, session: Session, finder: OfferFinder, outbound: Outbound | None) -> None:
        self._session = session
        self._finder = finder
        self._outbound = outbound

    def _all(self) -> Sequence[ProposalRecord]:
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
