"""Answers of reviewers to the question about an edit: only a whole yes, in time and theirs, is one.

The reviewer is played by hand, for what a correct one does not send.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from meup_agent import Envelope, ProposalHandle
from meup_agent.approval import InboxItem
from meup_agent.errors import MeupError, NotOffered, Refused
from tests.approval.test_inbox_rules import Office, there, wiping
from tests.interaction.people import Meeting, Notes, Raw, raw
from tests.patience import PATIENCE
from tests.wire import decode, kinds, payloads

pytestmark = pytest.mark.rule("4.4.edits_judged")

EDIT = {"disk": "scratch"}
YES: dict[str, Any] = {"verdict": "allow", "rule": {"name": "mine"}}

Answer = Callable[["HandReviewer", Envelope], Awaitable[None]]


class HandReviewer:
    """A reviewer that answers the questions about edits as a test says."""

    def __init__(self, peer: Raw, answer: Answer) -> None:
        self.peer = peer
        self.asked = Notes()
        self._answer = answer
        self._said = 0

    async def serve(self) -> None:
        async for frame in self.peer.transport:
            envelope = decode(frame)
            if envelope.kind != kinds.MCP_REQUEST or envelope.to != (self.peer.name,):
                continue
            method = envelope.payload_object["method"]
            self.asked(method)
            if method == "dev.meup/waiting":
                await self.list_waiting(envelope)
            elif method == "dev.meup/judge":
                await self._answer(self, envelope)

    async def list_waiting(self, asked: Envelope) -> None:
        await self.result(asked, {"proposals": [], "omitted": 0})

    async def result(self, asked: Envelope, result: Any, **changed: Any) -> None:
        await self.respond(asked, {"result": result}, **changed)

    async def error(self, asked: Envelope, code: int | str, data: Any = None) -> None:
        await self.respond(asked, {"error": {"code": code, "message": "no", "data": data}})

    async def respond(
        self, asked: Envelope, said: dict[str, Any], *, rpc_id: str = "", about: str = ""
    ) -> None:
        self._said += 1
        payload = {"jsonrpc": "2.0", "id": rpc_id or asked.payload_object["id"], **said}
        await self.peer.say(
            kinds.MCP_RESPONSE,
            payload,
            id=f"{self.peer.name}{self._said}",
            to=(asked.sender,),
            correlation=(about or asked.id,),
        )


@asynccontextmanager
async def asking(
    meeting: Meeting, answer: Answer
) -> AsyncGenerator[tuple[Office, HandReviewer, ProposalHandle, InboxItem]]:
    """A person with a proposal before it, and the reviewer ``deep``."""
    async with raw(meeting, "deep") as peer, anyio.create_task_group() as tasks:
        reviewer = HandReviewer(peer, answer)
        tasks.start_soon(reviewer.serve)
        async with wiping(meeting, None, until=there) as (o, proposal, item):
            yield o, reviewer, proposal, item
        tasks.cancel_scope.cancel()


def answering(*results: Any, **changed: Any) -> Answer:
    async def answer(reviewer: HandReviewer, asked: Envelope) -> None:
        for each in results:
            await reviewer.result(asked, each, **changed)

    return answer


def failing(code: int | str, data: Any = None) -> Answer:
    async def answer(reviewer: HandReviewer, asked: Envelope) -> None:
        await reviewer.error(asked, code, data)

    return answer


async def leave(reviewer: HandReviewer, _: Envelope) -> None:
    await reviewer.peer.transport.aclose()


@pytest.mark.parametrize(
    "answer",
    [
        answering(YES),
        answering({**YES, "explain": "yes" * 330_000}),
        failing(payloads.METHOD_NOT_FOUND),
        failing("NOT_IMPLEMENTED"),
    ],
    ids=["yes", "within a megabyte", "lacks the method", "lacks it in mew/v0.4"],
)
async def test_an_edit_runs(meeting: Meeting, answer: Answer) -> None:
    async with asking(meeting, answer) as (o, _, proposal, item):
        assert await o.inboxes["mallory"].approve(item, EDIT) is not None
        assert await proposal.result(accept_edits=True) == "scratch"


NO: dict[str, Any] = {**YES, "verdict": "deny"}
BUSY = "'deep', who may decide, has not judged it"


@pytest.mark.parametrize(
    ("answer", "seconds", "error", "said"),
    [
        (answering(NO, YES), PATIENCE, Refused, "rule 'mine' of 'deep'"),
        (answering(YES, about="another"), 0.2, MeupError, "deep"),
        (answering(YES, rpc_id="another", about="another"), 0.2, MeupError, "deep"),
        (answering({**NO, "explain": "no" * 500_000}), PATIENCE, MeupError, "deep"),
        (answering({"verdict": "x" * 1_000_000}), PATIENCE, MeupError, "deep"),
        (answering({**NO, "rule": {"name": "m" * 1_000_000}}), PATIENCE, MeupError, "deep"),
        (failing(payloads.EXCHANGE_ERROR, {"reason": "busy"}), PATIENCE, NotOffered, BUSY),
        (failing(-32603), PATIENCE, NotOffered, BUSY),
        (leave, 0.5, MeupError, "deep"),
    ],
    ids=[
        *("no and yes", "under another id", "to another call", "long words", "long verdict"),
        *("long name", "busy", "failed", "leaves"),
    ],
)
async def test_an_edit_is_stopped(
    meeting: Meeting,
    monkeypatch: pytest.MonkeyPatch,
    answer: Answer,
    seconds: float,
    error: type[MeupError],
    said: str,
) -> None:
    monkeypatch.setattr("meup_agent.approval.reviewer.methods.JUDGE_SECONDS", seconds)
    async with asking(meeting, answer) as (o, _, proposal, item):
        with pytest.raises(error, match=said) as refused:
            await o.inboxes["mallory"].approve(item, EDIT)
        assert len(str(refused.value)) < 2_000, "a megabyte is told in few words"
        assert proposal.state.is_pending
        if said == BUSY:
            assert await o.inboxes["mallory"].approve(item) is not None, "as it was proposed"


async def test_yes_of_another_is_none(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.approval.reviewer.methods.JUDGE_SECONDS", 0.2)
    async with raw(meeting, "second") as peer, anyio.create_task_group() as tasks:
        # Nobody waits for the second one's own yes: it is no reviewer.
        second = HandReviewer(peer, failing(payloads.METHOD_NOT_FOUND))
        tasks.start_soon(second.serve)

        async def by_second(_: HandReviewer, asked: Envelope) -> None:
            await second.result(asked, YES)

        async with asking(meeting, by_second) as (o, _, proposal, item):
            with pytest.raises(NotOffered, match="'deep'"):
                await o.inboxes["mallory"].approve(item, EDIT)
            assert proposal.state.is_pending
        tasks.cancel_scope.cancel()


async def test_late_yes_changes_nothing(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.approval.reviewer.methods.JUDGE_SECONDS", 0.2)
    kept: list[Envelope] = []

    async def keep(_: HandReviewer, asked: Envelope) -> None:
        kept.append(asked)

    async with asking(meeting, keep) as (o, reviewer, proposal, item):
        inbox = o.inboxes["mallory"]
        with pytest.raises(MeupError):
            await inbox.approve(item, EDIT)
        await reviewer.result(kept[0], YES)
        # Nor does it answer the question that is asked next.
        with pytest.raises(MeupError):
            await inbox.approve(item, EDIT)
        assert proposal.state.is_pending
        assert o.item("mallory") is item
