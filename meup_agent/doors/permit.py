"""The permit: a call that a coding agent runs itself, once the space lets it (PROTOCOL 4.20).

A :class:`Door` is a participant that proposes ``tools/call`` to itself. Who may, fulfills such a
proposal as any other; the fulfilling request is the permit, and the door answers it *permitted*.
Only when the gateway has taken that answer does :meth:`Door.ask` return :class:`Permitted`, and
from then on nothing withdraws, cancels or repeats it: one proposal, one permit. Every other end is
a :class:`Denied`, whose words are for the model. Use it so::

    door = Door()
    async with door.join(url, space="demo", token=token):
        answer = await door.ask(HostCall("Bash", {"command": "ls"}, agent="claude-code"), ttl=300)
        if isinstance(answer, Permitted):
            ...  # tell the host to run answer.arguments, and nothing else
            ...  # and later, when the host tells what came of it:
            door.report(
                answer.proposal, PermitReport.of(ReportedOutcome.COMPLETED, output, exit_code=0)
            )

**To withdraw**, cancel the task (or scope) that awaits ``ask``: the host has hung up, or was
interrupted. It never raises for anything that a space, a gateway or a person does. Where the permit
was given already and the host did not hear of it, the door reports by itself that it did not run; a
door whose last write to the host fails says so by ``report(…, NOT_RUN)``.

**The report** tells the space what came of a permit, once; a second one is left out. What is never
reported is shown as *permitted, outcome not reported*.

**Edits.** ``answer.arguments`` are those that were fulfilled, which may be others than asked for. A
door whose host takes no other arguments says ``edits=False`` in its :class:`HostCall`: faces offer
no edit then, and an edited fulfillment is a denial.

**One call, one proposal.** A call with the same agent, session and ``call_id`` that is asked about
again, at once or later, gets the answer of the first, and no card of its own.

A door joins beside other connections of its participant, so that any number of doors, and an MCP
client, can have one token; each permit comes to the connection that asked.
"""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import anyio

from meup_agent.agent.agent import Agent
from meup_agent.client.messages import Request
from meup_agent.client.proposal import ProposalHandle, ProposalRecord, Ttl, resolve_ttl
from meup_agent.client.proposal_feed import withdraw_left
from meup_agent.client.space import Space, send_report, take_permit
from meup_agent.errors import MeupError, Refused, RequestError, UsageError
from meup_agent.mcp.sdk import decisions
from meup_agent.protocol.exchange import Wait
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.outcomes import (
    CallOutcome,
    Expiry,
    Fulfillment,
    Gone,
    PermitReport,
    Rejection,
    ReportedOutcome,
    Withdrawal,
)
from meup_agent.protocol.wire.ttl_map import TTLMap

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable


log = logging.getLogger("meup_agent.doors")

MAX_ANSWERED: Final = 4_096
"""Calls whose answer is remembered, for a host that asks about the same one again."""

ANSWERED_SECONDS: Final = 24 * 3_600.0
"""Time for which it is."""

TAKE_SECONDS: Final = 10.0
"""For the gateway to take that a host has come back for a permit, before it is told of it."""

MAX_TOLD_CHARS: Final = 1_024
"""Characters of each thing that a host tells of itself: they are labels for people."""

NOT_TOLD: Final = "its host was not told that it may run, so it did not"
"""The report of a permit whose host has hung up before, for people."""

PERMITTED: Final = "permitted: the agent that asked runs it itself from now on"
"""The answer to a request that is a permit, for people."""

# --- a call, and its answers ---


@dataclass(frozen=True)
class HostCall:
    """A call that a coding agent is about to run with its own hands.

    Attributes:
        tool: The tool's name, as the agent calls it: ``Bash``, ``Edit``.
        arguments: All of its input, as JSON values.
        agent: The agent's program: ``claude-code``, ``codex``.
        session: The agent's own id of its session.
        call_id: The agent's own id of the call, unique in its session; empty: it has none, and each
            call is another one.
        cwd: The folder in which it works.
        mode: Its permission mode, as it names that.
        worker: The agent's own id of that of its workers which asks; empty: it asks itself.
        edits: It can run other arguments than these, where it is told so.
        watched: It is only told of: its host asks nobody, and nothing permits it.
        terminal: Its agent's terminal is asked at the same time, and may have answered it.
    """

    tool: str
    arguments: dict[str, Any]
    agent: str
    session: str = ""
    call_id: str = ""
    cwd: str = ""
    mode: str = ""
    worker: str = ""
    edits: bool = True
    watched: bool = False
    terminal: bool = False

    @property
    def key(self) -> tuple[str, str, str] | None:
        """Its name among all calls of all hosts; ``None``: it has none."""
        return (self.agent, self.session, self.call_id) if self.call_id else None

    @property
    def asker(self) -> tuple[str, str, str]:
        """The agent, its session and its worker that ask."""
        return (self.agent, self.session, self.worker)

    @property
    def labels(self) -> dict[str, Any]:
        """The labels that its proposal gives the program that asks (PROTOCOL 4.20)."""
        told = {
            "agent": self.agent,
            "session": self.session,
            "call": self.call_id,
            "cwd": self.cwd,
            "mode": self.mode,
            "worker": self.worker,
        }
        labels: dict[str, Any] = {
            name: text[:MAX_TOLD_CHARS] for name, text in told.items() if text
        }
        if not self.edits:
            labels["edits"] = False
        if self.watched:
            labels["watched"] = True
        if self.terminal:
            labels["terminal"] = True
        return labels


@dataclass(frozen=True)
class Permitted:
    """The call may run: with these arguments, once.

    Attributes:
        proposal: The id of its proposal.
        arguments: The arguments to run it with.
        by: The participant that permitted it.
        edited: They are others than it was proposed with.
        kept: Its host was away; :meth:`Door.spend` hands it out, to the first that comes back.
    """

    proposal: str
    arguments: dict[str, Any]
    by: str
    edited: bool = False
    kept: bool = False


class Why(StrEnum):
    """The reason for which a call must not run."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    """No participant decided in time."""
    WITHDRAWN = "withdrawn"
    """The proposal was taken back elsewhere, or by the gateway."""
    GONE = "gone"
    """No participant is left that could decide."""
    EDITED = "edited"
    """It was permitted with other arguments, which this host cannot run."""
    ELSEWHERE = "elsewhere"
    """Another participant has carried it out."""
    RUN_BEFORE = "run_before"
    """The same call was permitted before, and has been reported, or may have run."""
    UNREACHABLE = "unreachable"
    """It could not be proposed, or its outcome is not known."""


@dataclass(frozen=True)
class Denied:
    """The call must not run.

    Attributes:
        why: The reason.
        words: What the model reads: what happened, by whom, and what to do now.
        proposal: The id of its proposal; empty: there was none.
        by: The participant that rejected it; empty: none did.
        reason: The reason code of a rejection.
    """

    why: Why
    words: str
    proposal: str = ""
    by: str = ""
    reason: str = ""


Answer = Permitted | Denied

# --- the door ---


@dataclass(eq=False)
class _Asked:
    """A call that waits."""

    call: HostCall
    is_away: Callable[[], bool] | None
    ended: anyio.Event = field(default_factory=anyio.Event)
    proposal: str = ""
    handle: ProposalHandle | None = None
    # Those of the request that was answered last; of several, only the last answer can have left.
    permitted: dict[str, Any] | None = None
    is_told: bool = False  # its permit is returned to whom asked
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Door:
    """A participant that asks the space before a coding agent runs something.

    Args:
        name: The name of its agent, for logs.

    Attributes:
        agent: Its agent; :meth:`join` has it join a space.
        space: The space, while it is in one.
    """

    def __init__(self, name: str = "meup-door") -> None:
        self.agent = Agent(name)
        self.agent.on_request(payloads.TOOL_CALL)(self._permit)
        self.space: Space | None = None
        self._waiting: dict[str, _Asked] = {}  # by their proposals
        self._asking: dict[tuple[str, str, str], _Asked] = {}
        self._reported: TTLMap[str, bool] = TTLMap(count=MAX_ANSWERED, seconds=ANSWERED_SECONDS)
        self._answered: TTLMap[tuple[str, str, str], tuple[HostCall, Answer]] = TTLMap(
            count=MAX_ANSWERED, seconds=ANSWERED_SECONDS
        )
        # Open proposals of a door before this one.
        self._left: TTLMap[tuple[str, str, str], tuple[HostCall, ProposalRecord]] = TTLMap(
            count=MAX_ANSWERED, seconds=ANSWERED_SECONDS
        )
        self._given: TTLMap[str, dict[str, Any]] = TTLMap(
            count=MAX_ANSWERED, seconds=ANSWERED_SECONDS
        )

    @asynccontextmanager
    async def join(self, *args: Any, **options: Any) -> AsyncGenerator[Self]:
        """Be in a space for the length of a block; takes what :meth:`meup_agent.Agent.join` does.

        It joins beside other connections of its participant.

        Raises:
            MeupError: As :meth:`meup_agent.Agent.join`.
        """
        join = partial(self.agent.join, *args, **{"beside": True, **options})
        async with self.join_by(lambda _: join()):
            yield self

    @asynccontextmanager
    async def join_by(
        self, join: Callable[[Agent], AbstractAsyncContextManager[Space]]
    ) -> AsyncGenerator[Self]:
        """Be in a space as a function joins it with the door's agent, which should be beside."""
        if self.space is not None:
            raise UsageError("a door is in one space at a time; make another one")
        async with join(self.agent) as self.space:
            try:
                yield self
            finally:
                self.space = None

    async def ask(
        self,
        call: HostCall,
        *,
        ttl: Ttl = "space",
        to: str | Iterable[str] = (),
        is_away: Callable[[], bool] | None = None,
    ) -> Answer:
        """Propose a call, and wait until it may run, or must not.

        Cancelling it withdraws the proposal. It raises nothing of a space's: what goes wrong there
        is a denial.

        Args:
            call: The call.
            ttl: Seconds to wait for a decision; ``None``: as long as it takes. By default the
                space's. Take less than the host waits.
            to: The participants that should decide; empty: any that may.
            is_away: Says, as it is permitted, whether its host was told to come back. Then the
                permit is kept for that, and :meth:`spend` hands it out; also after a restart.
                ``None``: its host waits, and is handed also one that was kept.

        Raises:
            UsageError: The door is in no space.
        """
        space, key = self.space, call.key
        if space is None:
            raise UsageError("the door is in no space; enter async with door.join(…) first")
        if key is None:
            return await self._propose(space, _Asked(call, is_away), ttl, to)
        while (other := self._asking.get(key)) is not None:
            await other.ended.wait()
        known = self._answered.get(key, anyio.current_time())
        if known is not None:
            answer = self._again(call, *known)
            is_kept = isinstance(answer, Permitted) and answer.kept
            return await self.spend(call, answer) if is_kept and is_away is None else answer
        asked = self._asking[key] = _Asked(call, is_away)
        try:
            # An agent that asks about another call comes back for none of these.
            await self._withdraw_left(call.asker, but=key)
            left = self._left.pop(key)
            if left is not None and left[1].state.is_pending:
                with suppress(MeupError):  # its deadline ends it, too
                    await withdraw_left(space, left[1])
            answer = await self._propose(space, asked, ttl, to)
            if isinstance(answer, Permitted) or answer.why is Why.REJECTED:
                self._answered.put(key, (call, answer), anyio.current_time())
            return answer
        finally:
            del self._asking[key]
            asked.ended.set()

    def _again(self, call: HostCall, before: HostCall, answer: Answer) -> Answer:
        """The answer to a call that was asked about before; another one under its id gets none."""
        return self.differs(call, before) or self.check(call, answer)

    def differs(self, call: HostCall, before: HostCall) -> Denied | None:
        """The answer to a call that has the id of another one; ``None``: it is the same."""
        if call.tool == before.tool and payloads.is_same_json(call.arguments, before.arguments):
            return None
        words = (
            f"The call of {decisions.name(call.tool)} has the id of another call that was asked"
            " about before. It was not carried out. Tell the user."
        )
        return Denied(Why.UNREACHABLE, words)

    async def spend(self, call: HostCall, answer: Answer) -> Answer:
        """An answer for one host alone: whoever asks about its call later gets no permit.

        For one that was kept that is so in every process: the space is told first.
        """
        key, now = call.key, anyio.current_time()
        if key is None:
            return answer
        known = self._answered.get(key, now)
        answer = self.check(call, answer if known is None else known[1])
        if isinstance(answer, Permitted):
            self._answered.put(key, (call, _run_before(call, answer.proposal)), now)
            if answer.kept:
                return await self._take(call, answer)
        return answer

    async def _take(self, call: HostCall, permit: Permitted) -> Answer:
        """A kept permit, once the space knows that its host has come, if that is the first."""
        if self.space is None:  # it leaves just now; a later one hands it out
            return _unreachable(call, permit.proposal, "the door has left its space")
        try:
            # Shielded: a host that hangs up now has its permit, and that it did not run is told.
            with anyio.fail_after(TAKE_SECONDS, shield=True):
                await take_permit(self.space, permit.proposal)
        except Refused:
            return _run_before(call, permit.proposal)
        except (MeupError, TimeoutError) as error:
            return _unreachable(call, permit.proposal, str(error) or "the gateway did not answer")
        self._given.put(permit.proposal, permit.arguments, anyio.current_time())
        return replace(permit, kept=False)

    def check(self, call: HostCall, answer: Answer) -> Answer:
        """An answer as it holds now: a permit about which was reported lets nothing run."""
        if self._reported.get(answer.proposal, anyio.current_time()):
            words = (
                f"This call of {decisions.name(call.tool)} was permitted once, and has been"
                " reported since. It was not carried out again. Make a new call."
            )
            return Denied(Why.RUN_BEFORE, words, answer.proposal)
        return answer

    async def _propose(
        self, space: Space, asked: _Asked, ttl: Ttl, to: str | Iterable[str]
    ) -> Answer:
        call, seconds = asked.call, resolve_ttl(ttl, space.proposals.ttl)
        to = (to,) if isinstance(to, str) else tuple(to)

        def proposed(proposal: ProposalHandle) -> None:
            asked.proposal, asked.handle = proposal.id, proposal
            self._waiting[proposal.id] = asked

        outcome: CallOutcome | None = None
        try:
            with asked.scope:
                outcome = await space.invoke(
                    space.me,
                    call.tool,
                    call.arguments,
                    to=to,
                    ttl=seconds,
                    # A no of anybody is one: a reviewer that leaves a call to people is present,
                    # too, and will never reject it.
                    wait=Wait.ADDRESSED if to else Wait.FIRST,
                    as_proposal=True,
                    proposal_meta={
                        payloads.DOOR: call.labels,
                        payloads.CLIENT: {"name": call.agent},
                        # Its agent comes back for it, whatever has become of this process.
                        **({} if asked.is_away is None else {payloads.OUTLIVES: True}),
                    },
                    on_proposed=proposed,
                )
            if outcome is None:
                return _edited(call, asked)
            answer = await self._answer(space, asked, outcome, seconds)
            asked.is_told = isinstance(answer, Permitted)
            return answer
        except MeupError as error:
            # For people: where nothing could be proposed, the space shows nothing.
            log.warning("a call of %s was denied: %s", call.agent, error)
            code = error.error if isinstance(error, Refused) else ""
            return _unreachable(call, asked.proposal, str(error), code)
        finally:
            self._waiting.pop(asked.proposal, None)
            if asked.permitted is not None and not asked.is_told:
                # The gateway may have ordered our answer before the end that we saw.
                self.report(asked.proposal, PermitReport.of(ReportedOutcome.NOT_RUN, NOT_TOLD))

    async def take_back(self, call: HostCall, reason: str) -> bool:
        """Withdraw a call that waits, for a reason; :meth:`ask` is answered that it is withdrawn.

        Returns:
            ``False`` if no such call waits.

        Raises:
            MeupError: The gateway did not take it.
        """
        found = (each.handle for each in self._waiting.values() if each.call is call)
        handle = next(found, None)
        if handle is None:
            return False
        await handle.withdraw(reason)
        return True

    async def recall(self) -> None:
        """Know the permits that the space has of this participant, and no end.

        They were given to a door before this one, whose process has ended: their calls can be
        reported here, and are permitted no second time. One that was kept for a host which has not
        come back for it is kept here, and one that is open is taken back as its host asks again,
        since nobody waits there.

        Raises:
            MeupError: The gateway did not tell them.
        """
        space, now = self.space, anyio.current_time()
        if space is None:
            raise UsageError("the door is in no space; enter async with door.join(…) first")
        async for record in space.proposals.list(proposer=space.me):
            left = _call_of(record, space.me)
            if left is not None and left.key is not None and left.key not in self._asking:
                self._left.put(left.key, (left, record), now)
        async for record in space.proposals.list(state="decided", proposer=space.me):
            known = _call_of(record, space.me)
            if record.state is not ProposalState.PERMITTED or known is None:
                continue
            given = record.fulfilled_arguments
            if given is not None:
                self._given.put(record.id, given, now)
            if known.key is not None and self._answered.get(known.key, now) is None:
                permit = _permit_in(record.outcome, given, space.me)
                is_kept = permit is not None and permit.kept and record.report is None
                answer = permit if permit and is_kept else _run_before(known, record.id)
                self._answered.put(known.key, (known, answer), now)

    async def take_back_left(self, agent: str, session: str, worker: str) -> None:
        """Take back what doors before this one have kept for an agent that has gone on without it.

        Of a permit that it has not come for, it is reported that the call did not run.
        """
        now, asks = anyio.current_time(), (agent, session, worker)
        await self._withdraw_left(asks)
        for call, answer in tuple(self._answered.values(now)):
            if call.asker == asks and isinstance(answer, Permitted) and answer.kept:
                self.report(answer.proposal, PermitReport.of(ReportedOutcome.NOT_RUN, NOT_TOLD))

    async def _withdraw_left(
        self, asks: tuple[str, str, str], but: tuple[str, str, str] | None = None
    ) -> None:
        """Withdraw what doors before this one have left open of an agent, but for one call."""
        space, now = self.space, anyio.current_time()
        if space is None:
            return
        for call, record in tuple(self._left.values(now)):
            is_kept = record.outlives and record.state.is_pending
            key = call.key
            if is_kept and key is not None and key != but and call.asker == asks:
                with suppress(MeupError):  # its deadline ends it, too
                    await withdraw_left(space, record)
                    self._left.pop(key)

    def permit_of(self, call: HostCall) -> str | None:
        """The proposal by which a call was permitted, by the call's id; ``None``: none is known."""
        known = None if call.key is None else self._answered.get(call.key, anyio.current_time())
        if known is None:
            return None
        answer = known[1]
        is_permit = isinstance(answer, Permitted) or answer.why is Why.RUN_BEFORE
        return answer.proposal if is_permit else None

    def rejected_as(self, call: HostCall) -> str | None:
        """The proposal by which a call was rejected, by the call's id; ``None``: none is known."""
        known = None if call.key is None else self._answered.get(call.key, anyio.current_time())
        if known is None or known[1].proposal == self.permit_of(call):
            return None
        return known[1].proposal

    def ran_as_permitted(self, proposal: str, arguments: dict[str, Any]) -> bool:
        """``False``: a call ran with other arguments than were permitted, as far as is known."""
        given = self._given.get(proposal, anyio.current_time())
        return given is None or payloads.is_same_json(given, arguments)

    def report(self, proposal: str, report: PermitReport) -> bool:
        """Tell the space what came of a permit; returns at once.

        Args:
            proposal: The id of the permit's proposal.
            report: What came of it.

        Returns:
            ``False`` if it was told before, or the door is in the space no more.
        """
        now = anyio.current_time()
        if self.space is None or self._reported.get(proposal, now):
            return False
        try:
            send_report(self.space, proposal, report)
        except MeupError as error:
            log.warning("of proposal %s it is not reported what came of it: %s", proposal, error)
            return False
        self._reported.put(proposal, True, now)
        return True

    async def _answer(
        self, space: Space, asked: _Asked, outcome: CallOutcome, seconds: float | None
    ) -> Answer:
        """The answer to a host, of the outcome that the gateway has ordered."""
        call, proposal = asked.call, asked.proposal
        match outcome:
            case Fulfillment():
                permit = _permit_in(outcome, asked.permitted, space.me)
                if permit is not None:
                    self._given.put(proposal, permit.arguments, anyio.current_time())
                    return permit
                words = (
                    f"The call of {decisions.name(call.tool)} was carried out by"
                    f" {decisions.participant(outcome.executor)} in your place. Do not run it"
                    " yourself; ask the user for its result."
                )
                return Denied(Why.ELSEWHERE, words, proposal, outcome.by)
            case Rejection():
                words = await decisions.undone(call.tool, outcome, seconds)
                return Denied(Why.REJECTED, words, proposal, outcome.by, outcome.reason)
            case Expiry() | Withdrawal() | Gone():
                words = await decisions.undone(call.tool, outcome, seconds)
                return Denied(_WHY[type(outcome)], words, proposal)
            case _:
                raise AssertionError("a proposal is answered with the outcome of one")

    async def _permit(self, request: Request) -> dict[str, Any]:
        """Answer a request as permitted, if it carries out a call that waits here.

        The answer counts where the gateway orders it before a withdrawal, and not before; until
        then the host hears nothing.
        """
        space, asked = self.space, self._waiting.get(request.proposal or "")
        ours = space is not None and request.proposer == space.me
        call = None if asked is None else asked.call
        if asked is None or call is None or not ours or request.params.get("name") != call.tool:
            raise _refusal("no call waits here for this permit; it may have been taken back")
        if call.watched:
            raise _refusal(f"{call.agent} only tells of this call, and asks nobody for a permit")
        given: dict[str, Any] = {"arguments": {}, **payloads.without_meta(request.params)}
        arguments = given["arguments"]
        # Not as Python compares: ``1`` and ``true`` are two values to who runs them.
        is_edited = not payloads.is_same_json(arguments, call.arguments)
        is_call = isinstance(arguments, dict) and given.keys() == {"name", "arguments"}
        if not is_call or (is_edited and not call.edits):
            asked.scope.cancel()
            raise _refusal(
                f"{call.agent} runs its calls only as it has proposed them; it was denied this"
                " edited one"
            )
        asked.permitted = arguments
        text = {"type": "text", "text": PERMITTED}
        kept = {payloads.KEPT: True} if asked.is_away is not None and asked.is_away() else {}
        return {"content": [text], payloads.META: {payloads.PERMITTED: True, **kept}}


def _call_of(record: ProposalRecord, me: str) -> HostCall | None:
    """The call of a door's proposal, with its key if it has one; ``None``: it is no door's."""
    call = payloads.read_proposal(record.envelope.payload)
    if not call.asks_permit(me):
        return None
    told = call.door or {}
    agent, session, call_id, worker = (
        payloads.as_text(told.get(each)) for each in ("agent", "session", "call", "worker")
    )
    # What may have been cut names no call.
    is_whole = max(map(len, (agent, session, call_id))) < MAX_TOLD_CHARS
    call_id = call_id if is_whole else ""
    return HostCall(call.name, call.arguments, agent, session, call_id, worker=worker)


def _permit_in(
    outcome: Fulfillment | None, arguments: dict[str, Any] | None, me: str
) -> Permitted | None:
    """The permit that a fulfillment with some arguments is; ``None``: it is none of ours."""
    if outcome is None or arguments is None or outcome.executor != me:
        return None
    if not payloads.is_permit({"result": outcome.response}) or outcome.error is not None:
        return None
    edited, kept = bool(outcome.changes), payloads.is_kept(outcome.response)
    return Permitted(outcome.proposal_id, arguments, outcome.by, edited, kept)


_WHY: Final = {Expiry: Why.EXPIRED, Withdrawal: Why.WITHDRAWN, Gone: Why.GONE}


def _refusal(text: str) -> RequestError:
    return RequestError(payloads.EXCHANGE_ERROR, text, {"reason": payloads.REFUSED})


def _run_before(call: HostCall, proposal: str) -> Denied:
    words = (
        f"This call of {decisions.name(call.tool)} was permitted once before, and may have been"
        " carried out. It was not carried out now. Look what came of it, and make a new call."
    )
    return Denied(Why.RUN_BEFORE, words, proposal)


def _edited(call: HostCall, asked: _Asked) -> Denied:
    words = (
        f"The call of {decisions.name(call.tool)} was approved with other arguments than these,"
        " which cannot be run here. It was not carried out. Do not run it as it was; ask the user"
        " which arguments are wanted."
    )
    return Denied(Why.EDITED, words, asked.proposal)


def _unreachable(call: HostCall, proposal: str, why: str, code: str = "") -> Denied:
    said = decisions.failed(call.tool, why)
    words = (
        f"{said} It was not carried out, since nobody could decide about it. That is neither a"
        " refusal nor a permission: do not try to do the same by another way. Tell the user."
    )
    return Denied(Why.UNREACHABLE, words, proposal, reason=code)
