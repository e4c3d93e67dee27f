"""The public face as type checkers see it; they read this file, and nobody runs it."""

from __future__ import annotations

from typing import Any, assert_type

import meup_agent
from meup_agent import (
    Agent,
    Cause,
    Change,
    Chat,
    Conflict,
    Context,
    Envelope,
    Expired,
    Fulfilled,
    Gone,
    Outcome,
    OwnProposal,
    Participant,
    Progress,
    Proposal,
    ProposalState,
    Reason,
    Rejected,
    Rejection,
    Space,
    Withdrawal,
    Withdrawn,
    handlers,
)

agent = Agent("typed")


@agent.tool
async def write_file(path: str, text: str, ctx: Context) -> str:
    assert_type(ctx.cancelled, bool)
    assert_type(ctx.reason, Cause | None)
    ctx.progress(1, 2, "half")
    await ctx.progress(2, 2)
    async with ctx.cleanup(5):
        await ctx.chat("done", to=ctx.sender)
    return f"{path}: {len(text)}"


@agent.tool(name="count", read_only=True)
def count_words(text: str) -> int:
    return len(text.split())


async def functions_stay_what_they_were(ctx: Context) -> None:
    assert_type(await write_file("a", "b", ctx), str)
    assert_type(count_words("a b"), int)


@agent.on_proposal(method="tools/call", name="write_*")
async def review(proposal: Proposal, ctx: Context) -> None:
    assert_type(proposal.arguments, dict[str, Any])
    assert_type(proposal.state, ProposalState | None)
    if ctx.cancelled:
        await proposal.reject(Reason.UNSAFE, explain="no")
    done = await proposal.fulfill({"path": "b"})
    assert_type(done, Fulfilled)
    assert_type(done.changes, tuple[Change, ...])


@agent.on_proposal
def review_all(proposal: Proposal) -> None:
    assert_type(proposal.proposer, str)


@agent.on_reject
async def rejected(rejection: Rejection) -> None:
    assert_type(rejection.reason, str)
    if rejection.reason == Reason.BUSY:
        return


@agent.on_withdraw
async def withdrawn(withdrawal: Withdrawal) -> None:
    assert_type(withdrawal.cause.code, str)


@agent.on_conflict
async def conflict(conflict: Conflict) -> None:
    assert_type(conflict.outcome, Fulfilled)


@agent.on_chat
async def said(chat: Chat, space: Space) -> None:
    await space.chat(chat.text, to=chat.sender, about=chat.id)


@agent.on("acme/event", "system/*")
async def seen(envelope: Envelope) -> None:
    assert_type(envelope.to, tuple[str, ...])


@agent.on_join
async def joined(participant: Participant) -> None:
    assert_type(participant.id, str)


class Tools:
    @handlers.tool
    async def add(self, a: int, b: int) -> int:
        return a + b


agent.include(Tools())


def on_progress(progress: Progress) -> None:
    assert_type(progress.total, float | None)


async def verbs() -> None:
    async with agent.join("ws://localhost:8420", space="demo", token="…") as space:
        assert_type(space, Space)
        assert_type(space.participants, tuple[Participant, ...])
        result = await space.call("files", "write_file", {"path": "a"}, on_progress=on_progress)
        assert_type(result, Any)
        assert_type(await space.tools("files"), list[dict[str, Any]])
        async with space.propose(
            "files", "write_file", {"path": "a"}, to=["reviewer"], ttl=30
        ) as proposal:
            assert_type(proposal, OwnProposal)
            outcome = await proposal.outcome()
            assert_type(outcome, Outcome)
            assert_type(summary(outcome), str)
        with space.watch() as envelopes:
            async for envelope in envelopes:
                assert_type(envelope, Envelope)


def summary(outcome: Outcome) -> str:
    """Every way in which a proposal ends, and no other."""
    match outcome:
        case Fulfilled():
            assert_type(outcome.edited, bool)
            return f"by {outcome.by}"
        case Rejected():
            return outcome.reason
        case Withdrawn():
            return outcome.reason
        case Expired():
            return f"sent: {outcome.sent}"
        case Gone():
            return ", ".join(outcome.participants)


async def token() -> str:
    return "…"


def script() -> None:
    agent.run("ws://localhost:8420", space="demo", token=token)
    agent.run(backend="trio", log_level=None)


def every_error_is_one_of_ours(error: meup_agent.MeupError) -> str:
    if isinstance(error, meup_agent.RequestError):
        assert_type(error.code, int | str)
    return str(error)
