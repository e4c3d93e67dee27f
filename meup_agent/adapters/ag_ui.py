"""Approvals of a space as interrupts of AG-UI runs. Needs the extra ``ag-ui``."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import anyio
from ag_ui.core import (
    CustomEvent,
    Interrupt,
    RunAgentInput,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    ToolCallResultEvent,
)

from meup_agent.adapters.space_tools import SpaceTool, SpaceTools, ToolAnswer, failed_answer
from meup_agent.client.messages import names
from meup_agent.client.proposal import ProposalRecord, Ttl
from meup_agent.client.proposal_feed import find_left, outcome_of_left, withdraw_left
from meup_agent.errors import MeupError
from meup_agent.mcp.sdk import decisions
from meup_agent.mcp.sdk.naming import exposed_name
from meup_agent.protocol.exchange import Wait
from meup_agent.protocol.wire import payloads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meup_agent.client.space import Space

Told = ToolCallResultEvent | CustomEvent | Interrupt
"""An event or interrupt of a run: the result of a call, a warning, or a call that waits."""

DIGEST: Final = "dev.meup/digest"
"""In the metadata of an interrupt, and of a resume that says which call it means."""

REFUSED: Final = "dev.meup/resume_refused"
"""Name of the event that warns of a resume which is about no call of its thread."""

_RUN: Final = "dev.meup/ag-ui"
"""In a proposal: the digest of its thread, and the id of its tool call there."""


class SpaceInterrupts:
    """Calls of a space's tools in AG-UI runs, which end where a call waits for its decision.

    The proposal stays open, also when this program ends, and a later run of the thread resumes it
    by its id: with what became of it, or another interrupt while it waits on. A resume decides
    nothing, whatever its payload; ``cancelled`` withdraws. Cancelling a run withdraws what it has
    not told of yet. Who may resume a thread is the program's to check, as for any AG-UI run.

    Args:
        space: A joined space.
        within: Seconds that a run waits for a call before it ends.
        ttl: Seconds that a call waits, for a decision and its result; ``None``: as long as it
            takes. By default the space's (:class:`meup_agent.Settings`).
        to: The participants that should decide proposals; empty: any that may.

    Attributes:
        tools: The tools; ``await tools.read()`` lists them.
    """

    def __init__(
        self, space: Space, *, within: float = 5.0, ttl: Ttl = "space", to: Iterable[str] = ()
    ) -> None:
        self._to, self._ttl, self._within = names(to), ttl, within
        self.tools = SpaceTools(space, ttl=ttl, to=self._to)
        self._space = space

    async def call(
        self, run: RunAgentInput, tool: SpaceTool, arguments: dict[str, Any], call_id: str
    ) -> Told:
        """Call a tool: its result, or an interrupt where that waits for a decision."""
        space, params = self._space, {"name": tool.name, "arguments": arguments}
        if space.may_request(tool.participant, payloads.TOOL_CALL, params):
            return _result(call_id, await self.tools.call(tool, arguments))
        try:
            async with space.propose(
                tool.participant,
                tool.name,
                arguments,
                to=self._to,
                ttl=self._ttl,
                wait=Wait.ADDRESSED if self._to else Wait.LATER,
                outlives=True,
                proposal_meta={_RUN: {"thread": _thread(run), "call": call_id}},
            ) as proposal:
                with anyio.move_on_after(self._within):
                    await proposal.outcome()
                record = None if proposal.has_outcome else await find_left(space, proposal.id)
                if record is not None:
                    proposal.keep()
                    return self._interrupt(record)
                # It is decided, or its gateway could not tell a later run of it.
                outcome = await proposal.outcome()
            answer = await self.tools.answer(tool.exposed, outcome)
        except MeupError as error:
            answer = failed_answer(tool.exposed, error)
        return _result(call_id, answer)

    async def resume(self, run: RunAgentInput) -> list[Told]:
        """The results of the calls for which earlier runs of the thread were interrupted.

        An open call without an entry in ``run.resume`` is an interrupt again.

        Raises:
            MeupError: The gateway did not answer, or did not let a withdrawal through.
        """
        told, covered, thread = list[Told](), set[str](), _thread(run)
        for entry in run.resume or ():
            record = await find_left(self._space, entry.interrupt_id)
            given = (entry.metadata or {}).get(DIGEST)
            is_ours = record is not None and _run_of(record).get("thread") == thread
            if record is None or not is_ours or given not in (None, _digest(record)):
                told.append(CustomEvent(name=REFUSED, value={"interruptId": entry.interrupt_id}))
            elif record.id not in covered:
                covered.add(record.id)
                told.append(await self._resume(record, withdraws=entry.status == "cancelled"))
        async for each in self._space.proposals.list(proposer=self._space.me):
            if _run_of(each).get("thread") == thread and each.id not in covered:
                told.append(self._interrupt(each))
        return told

    async def _resume(self, record: ProposalRecord, *, withdraws: bool) -> Told:
        tool = exposed_name(record.target or "", record.tool)
        if withdraws and record.state.is_pending:
            await withdraw_left(self._space, record)
        outcome = await outcome_of_left(self._space, record, self._within)
        if outcome is None:
            return self._interrupt(record)
        try:
            if isinstance(outcome, ProposalRecord):
                answer = ToolAnswer(decisions.answer_gone(tool), is_error=True)
            else:
                answer = await self.tools.answer(tool, outcome)
        except MeupError as error:
            answer = failed_answer(tool, error)
        return _result(payloads.as_text(_run_of(record).get("call")), answer)

    def finish(self, run: RunAgentInput, told: Iterable[Told]) -> RunFinishedEvent:
        """The end of a run: an interrupt where any call waits."""
        waiting = [each for each in told if isinstance(each, Interrupt)]
        outcome = RunFinishedInterruptOutcome(interrupts=waiting) if waiting else None
        return RunFinishedEvent(thread_id=run.thread_id, run_id=run.run_id, outcome=outcome)

    def _interrupt(self, record: ProposalRecord) -> Interrupt:
        expires, now = record.expires_at, self._space.gateway.now
        left = None if expires is None else (expires - now).total_seconds()
        tool = decisions.name(exposed_name(record.target or "", record.tool))
        return Interrupt(
            id=record.id,
            reason="dev.meup:approval",
            message=f"The call of {tool} is {decisions.describe_waiting(record.to, left)}.",
            tool_call_id=payloads.as_text(_run_of(record).get("call")),
            expires_at=None if expires is None else expires.isoformat(),
            metadata={DIGEST: _digest(record)},
        )


def _thread(run: RunAgentInput) -> str:
    return hashlib.sha256(run.thread_id.encode("utf-8", "surrogatepass")).hexdigest()


def _run_of(record: ProposalRecord) -> dict[str, Any]:
    return payloads.as_object(payloads.read_proposal(record.envelope.payload).meta.get(_RUN))


def _digest(record: ProposalRecord) -> str | None:
    call = payloads.read_proposal(record.envelope.payload)
    return payloads.digest(call.method, call.params, call.target)


def _result(call_id: str, answer: ToolAnswer) -> ToolCallResultEvent:
    message = f"{call_id}-result"
    return ToolCallResultEvent(message_id=message, tool_call_id=call_id, content=answer.text)
