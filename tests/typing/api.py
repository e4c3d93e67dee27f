# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""The public face as type checkers see it; mypy and pyright read this file, and nothing runs it.

Where `type: ignore` stands, users must see an error: both checkers say so if there is none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, assert_never, assert_type

import meup_agent
from meup_agent import (
    Agent,
    Backoff,
    CallOutcome,
    Chat,
    Context,
    Envelope,
    Expiry,
    Explanation,
    Fulfillment,
    Gap,
    Gone,
    Limits,
    Outcome,
    Participant,
    Progress,
    Proposal,
    ProposalHandle,
    ProposalState,
    Reason,
    Rejection,
    Responded,
    Settings,
    Space,
    Wait,
    Withdrawal,
    errors,
    events,
    handlers,
)
from meup_agent.errors import RejectMessage
from meup_agent.gateway import Gateway
from meup_agent.testing import MemorySpace
from meup_agent.types import (
    CallNext,
    Cause,
    CauseStep,
    Change,
    Conflict,
    DecisionReceipt,
    Guarantees,
    InboundMessage,
    OutboundMessage,
    ProposalRecord,
)

agent = Agent("typed")


# --- decorators: each way to write them leaves the function what it was -------------------------


@agent.tool
async def write_file(path: str, text: str, ctx: Context) -> str:
    return f"{path}: {len(text)} by {ctx.sender}"


@agent.tool(name="count", title="Count", description="Counts words.", read_only=True)
def count_words(text: str) -> int:
    return len(text.split())


@agent.tool(destructive=False, idempotent=True, open_world=False)
async def without_arguments() -> None:
    pass


async def functions_stay_what_they_were(ctx: Context) -> None:
    assert_type(await write_file("a", "b", ctx), str)
    assert_type(count_words("a b"), int)
    await write_file("a")  # type: ignore[call-arg]
    count_words(1)  # type: ignore[arg-type]


@agent.on_proposal(method="tools/call", tool="write_*")
async def review(proposal: Proposal, ctx: Context) -> None:
    assert_type(proposal.id, str)
    assert_type(proposal.proposer, str)
    assert_type(proposal.to, tuple[str, ...])
    assert_type(proposal.target, str | None)
    assert_type(proposal.arguments, dict[str, Any])
    assert_type(proposal.state, ProposalState | None)
    receipt = await proposal.reject(Reason.UNSAFE, explain="no")
    assert_type(receipt, DecisionReceipt)
    assert_type(receipt.id, str)
    assert_type(await receipt.explain("words"), str)
    await proposal.reject("a reason of our own")
    await proposal.reject()  # type: ignore[call-arg]
    done = await proposal.fulfill({"path": "b"}, executor="files", timeout=None)
    assert_type(done, Fulfillment)
    assert_type(done.changes, tuple[Change, ...])
    await proposal.fulfill("b")  # type: ignore[arg-type]
    await ctx.space.chat("done", to=proposal.proposer)


@agent.on_proposal
def review_all(proposal: Proposal) -> None:
    assert_type(proposal.tool, str)


@agent.on_proposal(method=["tools/call", "resources/*"], tool=["a", "b"])
async def review_some(space: Space, proposal: Proposal) -> None:
    assert_type(space.me, str)


@agent.on_reject
async def rejected(rejection: Rejection) -> None:
    assert_type(rejection.reason, str)
    assert_type(await rejection.explanation(timeout=1.0), str)
    if rejection.reason == Reason.BUSY:
        return


@agent.on_reject()
def rejected_in_a_thread(rejection: Rejection, ctx: Context) -> None:
    ctx.check_cancelled()


@agent.on_explanation
async def explained(explanation: Explanation) -> None:
    assert_type(explanation.text, str)
    assert_type(explanation.proposal_ids, tuple[str, ...])


@agent.on_withdraw
async def withdrawn(withdrawal: Withdrawal) -> None:
    assert_type(withdrawal.cause, Cause)
    assert_type(withdrawal.cause.code, str)
    assert_type(withdrawal.cause.chain, tuple[CauseStep, ...])


@agent.on_conflict
async def conflict(conflict: Conflict) -> None:
    assert_type(conflict.outcome, Fulfillment | None)


@agent.on_chat
async def said(chat: Chat, space: Space) -> None:
    assert_type(await space.chat(chat.text, to=chat.sender, about=chat.id), str)
    assert_type(chat.about, str | None)


@agent.on("acme/event", "system/*")
async def seen(envelope: Envelope) -> None:
    assert_type(envelope.to, tuple[str, ...])
    envelope.kind = "another"  # type: ignore[misc]


@agent.on_join
async def joined(participant: Participant) -> None:
    assert_type(participant.id, str)


@agent.on_leave()
async def left(participant: Participant, ctx: Context) -> None:
    await ctx.space.chat(f"{participant.id} left")


@agent.on_gap
async def missed(gap: Gap, space: Space) -> None:
    assert_type(gap.seconds, float)
    assert_type(gap.seq, int)


class Tools:
    @handlers.tool
    async def add(self, a: int, b: int) -> int:
        return a + b

    @handlers.on_proposal(tool="add")
    async def review(self, proposal: Proposal) -> None:
        await proposal.fulfill()


agent.include(Tools())


async def methods_stay_what_they_were(tools: Tools) -> None:
    assert_type(await tools.add(1, 2), int)


def what_no_decorator_takes() -> None:
    agent.tool(nome="x")  # type: ignore[call-overload]
    agent.tool(name=1)  # type: ignore[call-overload]
    agent.on_proposal(name="x")  # type: ignore[call-overload]
    agent.on(1)  # type: ignore[arg-type]
    agent.on_request(1)  # type: ignore[arg-type]
    agent.on_chat("hi")  # type: ignore[call-overload]


# --- middleware -----------------------------------------------------------------------------------


@agent.middleware
async def handled(message: InboundMessage, call_next: CallNext) -> Any:
    assert_type(message.sender, str)
    assert_type(message.arguments, dict[str, Any])
    assert_type(message.proposal, Proposal | None)
    assert_type(message.reason, Cause | None)
    if message.role == "request":
        raise RejectMessage(Reason.BUSY, "later")
    message.sender = "another"  # type: ignore[misc]
    return await call_next(message)


@agent.middleware
async def sent(message: OutboundMessage, call_next: CallNext) -> Any:
    return await call_next(message.replace(arguments={}))


@agent.middleware
async def handled_or_sent(message: InboundMessage | OutboundMessage, call_next: CallNext) -> int:
    await call_next(1)  # type: ignore[arg-type]
    return 1


async def middleware_stays_what_it_was(message: InboundMessage, call_next: CallNext) -> None:
    assert_type(await handled_or_sent(message, call_next), int)
    Agent("typed", middleware=[handled, sent, handled_or_sent])


def what_no_middleware_is() -> None:
    agent.middleware(count_words)  # type: ignore[type-var]
    Agent("typed", middleware=[count_words])  # type: ignore[list-item]


# --- the context ----------------------------------------------------------------------------------


@agent.tool
async def everything_in_a_context(ctx: Context) -> None:
    assert_type(ctx.cancelled, bool)
    assert_type(ctx.reason, Cause | None)
    assert_type(ctx.space, Space)
    assert_type(ctx.envelope, Envelope)
    str(ctx.reason.code)  # type: ignore[union-attr]
    ctx.progress(1, 2, "half")
    await ctx.progress(2, 2)
    async with ctx.cleanup(5):
        ctx.log.info("tidy")


# --- being in a space -----------------------------------------------------------------------------


def on_progress(progress: Progress) -> None:
    assert_type(progress.done, float)
    assert_type(progress.total, float | None)


async def verbs() -> None:
    async with agent.join("ws://localhost:8420", space="demo", token="…") as space:
        assert_type(space, Space)
        assert_type(space.connected, bool)
        assert_type(space.gateway.dialect, str)
        assert_type(space.participants, tuple[Participant, ...])
        assert_type(space.gateway.guarantees, Guarantees)
        assert_type(space.gateway.guarantees.identity_checked, bool)
        assert_type(space.may("chat", {"message": "hi"}), bool)
        result = await space.call("files", "write_file", {"path": "a"}, on_progress=on_progress)
        assert_type(result, Any)
        assert_type(await space.request("files", "tools/list", idempotent=True), Any)
        assert_type(await space.offers.tools("files"), list[dict[str, Any]])
        assert_type(await space.send("acme/event", {"any": ["JSON"]}), str)
        outcome = await space.invoke("files", "write_file", {"path": "a"}, as_proposal=True)
        assert_type(outcome, CallOutcome)
        assert_type(outcome.word, str)
        if not isinstance(outcome, Responded):
            assert_type(outcome, Outcome)
        assert_type(await space.call("files", "read", to=["a"], accept_edits=True), Any)
        await space.call("files")  # type: ignore[call-arg]
        await space.call("files", "write_file", ["a"])  # type: ignore[arg-type]
        await space.chat("hi", to=1)  # type: ignore[arg-type]
        with space.watch() as envelopes:
            assert_type(envelopes.missed, int)
            async for envelope in envelopes:
                assert_type(envelope, Envelope)
        for record in space.proposals:
            assert_type(record, ProposalRecord)
            assert_type((record.id, record.proposer, record.tool), tuple[str, str, str])
            assert_type(record.arguments, dict[str, Any])
            assert_type(record.state, ProposalState)
            assert_type(record.rejections, tuple[Rejection, ...])
            str(record.holders)  # type: ignore[attr-defined]
            await space.proposals.get(record).reject(Reason.POLICY)


async def proposing(space: Space) -> None:
    async with space.propose(
        "files", "write_file", {"path": "a"}, to=["reviewer"], ttl=30, wait=Wait.FIRST
    ) as proposal:
        assert_type(proposal, ProposalHandle)
        assert_type(proposal.state, ProposalState)
        outcome = await proposal.outcome()
        assert_type(outcome, Outcome)
        assert_type(by_match(outcome), str)
        assert_type(await proposal.result(accept_edits=True), Any)
        assert_type(await proposal.withdraw(Reason.NO_LONGER_NEEDED, explain="x"), DecisionReceipt)
        async with space.propose("files", "sync", depends_on=[proposal, "id"], wait="all") as then:
            assert_type(then.offered, bool)
        space.propose("files", "sync", depends_on=[5])  # type: ignore[list-item]
    assert_type(
        await space.proposals.withdraw_all(lambda each: each.tool == "a"), Sequence[DecisionReceipt]
    )
    with space.propose("files", "write_file"):  # type: ignore[attr-defined]
        pass


def by_match(outcome: Outcome) -> str:
    """Every way in which a proposal ends, and no other."""
    match outcome:
        case Fulfillment():
            assert_type(outcome.edited, bool)
            assert_type(outcome.result(accept_edits=True), Any)
            assert_type(outcome.content, list[dict[str, Any]])
            assert_type(outcome.is_error, bool)
            assert_type(outcome.knows_edits, bool)
            return f"by {outcome.by}, carried out by {outcome.executor}"
        case Rejection():
            return outcome.reason
        case Withdrawal():
            assert_type(outcome.cause, Cause)
            return outcome.reason
        case Expiry():
            return f"sent: {outcome.sent}"
        case Gone():
            return ", ".join(outcome.participants)
        case _:
            assert_never(outcome)


def by_isinstance(outcome: Outcome) -> str:
    if isinstance(outcome, Fulfillment):
        return outcome.by
    if isinstance(outcome, Rejection | Withdrawal):
        assert_type(outcome, Rejection | Withdrawal)
        return outcome.reason
    assert_type(outcome, Expiry | Gone)
    str(outcome.reason)  # type: ignore[union-attr]
    return outcome.proposal_id


def a_way_forgotten(outcome: Outcome) -> str:
    match outcome:
        case Fulfillment() | Rejection() | Withdrawal() | Expiry():
            return outcome.proposal_id
        case _:
            assert_never(outcome)  # type: ignore[arg-type]


# --- scripts and settings -------------------------------------------------------------------------


async def token() -> str:
    return "…"


def script() -> None:
    agent.run("ws://localhost:8420", space="demo", token=token)
    agent.run(token=lambda: "…", participant="alice", grace=1)
    agent.run(
        backend="trio",
        log_level=None,
        settings=Settings(
            dialect="mew/v0.4",
            backoff=Backoff(first=1, longest=60),
            limits=Limits(),
            first_welcome=None,
        ),
    )
    agent.run(backend="curio")  # type: ignore[arg-type]
    agent.run(token=1)  # type: ignore[arg-type]
    Settings(dialekt="mew/v0.4")  # type: ignore[call-arg]
    Settings().dialect = "mew/v0.4"  # type: ignore[misc]


# --- gateways -------------------------------------------------------------------------------------


async def gateways() -> None:
    async with Gateway("demo", participants={"alice": [{"kind": "chat"}]}) as gateway:
        assert_type(gateway, Gateway)
        assert_type(gateway.url, str)
        assert_type(gateway.port, int)
        assert_type(gateway.token("alice"), str)
        async with agent.join(gateway.url, space="demo", token=gateway.token("alice")):
            pass
        gateway.drop("alice")
        gateway.kill()
        await gateway.restart()
    Gateway(port="8420")  # type: ignore[arg-type]


def gateway_for_trio() -> None:
    with Gateway(participants={"alice": [{"kind": "chat"}]}).in_thread() as gateway:
        assert_type(gateway.url, str)
        assert_type(gateway.token("alice"), str)
        gateway.restart()


async def without_a_network() -> None:
    space = MemorySpace(participants={"alice": [{"kind": "chat"}]})
    async with agent.join(space.connector("alice")) as joined:
        assert_type(joined, Space)
        space.drop("alice")
    space.kill()
    space.restart()


# --- errors ---------------------------------------------------------------------------------------


def every_error_is_one_of_ours(error: errors.MeupError) -> str:
    match error:
        case errors.RequestError():
            assert_type(error.code, int | str)
            assert_type(error.by, str | None)
        case errors.ToolError():
            assert_type(error.result, dict[str, Any])
        case errors.ProposalRejected():
            assert_type((error.reason, error.by), tuple[str, str])
            assert_type(error.explanation, str)
        case errors.ProposalEdited():
            assert_type(error.value, Any)
        case errors.AlreadyInProgress():
            assert_type(error.by, str)
        case errors.AlreadyDecided():
            assert_type(error.state, str)
        case errors.Refused():
            assert_type(error.error, str)
            assert_type(error.details, dict[str, Any])
        case errors.HandshakeRefused():
            assert_type(error.retry_after, float | None)
        case errors.TransportClosed():
            assert_type((error.code, error.reason), tuple[int, str])
        case errors.WrongParticipant():
            assert_type((error.asked, error.given), tuple[str, str])
        case errors.InvalidArguments():
            assert_type(error.problems, tuple[dict[str, str], ...])
        case errors.InvalidPattern():
            assert_type(error.place, str)
        case _:
            pass
    return str(error)


def a_timeout_is_one_for_python_too(error: errors.RequestTimeout) -> TimeoutError:
    return error


# --- observers ------------------------------------------------------------------------------------


@agent.observe
def observe(event: events.Event) -> None:
    assert_type((event.space, event.me, event.at), tuple[str, str, float])
    match event:
        case events.HandlerStopped():
            assert_type((event.role, event.handler, event.exchange), tuple[str, str, str])
            assert_type(event.cause, Cause)
            assert_type(event.error, BaseException | None)
        case events.HandlerFinished():
            assert_type(event.seconds, float)
        case events.Disconnected():
            assert_type(event.code, int | None)
        case events.ExchangeEnded():
            assert_type(event.cause, Cause | None)
        case _:
            pass


def observe_with_what_is_there(logger: logging.Logger) -> None:
    counters = meup_agent.Counters()
    assert_type(agent.observe(counters), meup_agent.Counters)
    agent.observe(meup_agent.log_events(logger))
    assert_type(counters.snapshot(), dict[str, Any])
    agent.observe("events")  # type: ignore[type-var]
