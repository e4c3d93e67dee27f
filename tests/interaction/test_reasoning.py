"""Lines of thought, and chats that are taken back, in memory and over real sockets."""

from typing import Any

import anyio
import pytest

from meup_agent import Agent, Chat, Context, Envelope, Space
from meup_agent.client import messages
from meup_agent.errors import ReasoningCancelled, RequestError, UsageError
from meup_agent.types import CallNext, OutboundMessage
from tests.interaction.cast import sleep_until_stopped
from tests.interaction.people import Meeting, Notes, gathered
from tests.interaction.views import note_result, of_kind, taped


def of_reasoning(envelope: Envelope) -> bool:
    return envelope.kind.startswith("reasoning/")


def thoughts(envelopes: list[Envelope]) -> list[tuple[str, Any]]:
    """The kinds, and what they say."""
    return [
        (each.kind.removeprefix("reasoning/"), *each.payload.values())
        for each in envelopes
        if of_reasoning(each)
    ]


def thinker(notes: Notes) -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def answer(ctx: Context) -> int:
        async with ctx.reasoning("what was the question?") as reasoning:
            await reasoning.thought("perhaps it is a number")
            await reasoning.conclude("it is")
        return 42

    @agent.tool
    async def ponder(ctx: Context) -> str:
        try:
            async with ctx.reasoning("why?") as reasoning:
                notes(reasoning.id)
                await ctx.space.call("deep", "wait")
        except ReasoningCancelled as cancelled:
            return f"{cancelled.by}: {cancelled.reason}"
        return "never"

    @agent.tool
    async def fail(ctx: Context) -> None:
        async with ctx.reasoning("why?"):
            raise RequestError(1, "no idea")

    return agent


def waiter(notes: Notes) -> Agent:
    agent = Agent("deep")

    @agent.tool
    async def wait(ctx: Context) -> None:
        await sleep_until_stopped(notes, ctx, "waiting")

    @agent.on_chat
    async def chat(chat: Chat, ctx: Context) -> None:
        await sleep_until_stopped(notes, ctx, ("reads", chat.text))

    return agent


@pytest.mark.rule("4.18.context")
async def test_line_of_thought_is_one_context(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, thinker(notes), "second") as (_, second), taped(second) as tape:
        assert await second.call("tools", "answer") == 42
        # The response may overtake it: answers leave before talk.
        await tape.until(of_kind("reasoning/conclusion"))
        start, thought, conclusion = filter(of_reasoning, tape.envelopes)
        (request,) = tape.calls("tools/call")
        assert start.correlation == (request.id,)
        assert (thought.context, conclusion.context) == (start.id, start.id)
        assert thoughts(tape.envelopes) == [
            ("start", "what was the question?"),
            ("thought", "perhaps it is a number"),
            ("conclusion", "it is"),
        ]
        with pytest.raises(RequestError):
            await second.call("tools", "fail")
        await tape.until(of_kind("reasoning/cancel"))
        assert thoughts(tape.envelopes)[3:] == [("start", "why?"), ("cancel", "error")]


@pytest.mark.rule("4.18.cancel")
async def test_cancel_ends_the_block_and_its_calls(meeting: Meeting, notes: Notes) -> None:
    everybody = (thinker(notes), waiter(notes), "second", "observer")
    async with gathered(meeting, *everybody) as (_, _, second, observer), taped(second) as tape:
        answers: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note_result, answers.append, second.call, "tools", "ponder")
            start = await tape.until(of_kind("reasoning/start"))
            await notes.until(start.id, "waiting")
            # One who may not changes nothing, nor does the id of another context.
            await observer.talk.cancel_reasoning(start.id, reason="because")
            await second.talk.cancel_reasoning("another", reason="because")
            await second.talk.cancel_reasoning(start.id, reason="superseded")
            await notes.until(("tools", "superseded"))
        assert answers == ["second: superseded"]
        await tape.until(lambda each: each.sender == "tools" and each.kind == "reasoning/cancel")
        said = [each for each in tape.of("reasoning/cancel") if each.context != "another"]
        assert [(each.sender, each.payload["reason"]) for each in said] == [
            ("second", "superseded"),
            ("tools", "superseded"),
        ]


@pytest.mark.rule("4.18.bounded")
async def test_reasoning_is_bounded(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_THOUGHTS", 2)
    monkeypatch.setattr(messages, "MAX_REASONINGS", 1)
    async with gathered(meeting, "tools", "second") as (space, second), taped(second) as tape:
        async with space.talk.reasoning() as reasoning:
            for each in ("one", "two"):
                await reasoning.thought(each)
            with pytest.raises(UsageError, match="at most 2 thoughts"):
                await reasoning.thought("three")
            with pytest.raises(UsageError, match="1 lines of thought are open"):
                await think_on(space, None)
        with pytest.raises(UsageError, match="is concluded"):
            await reasoning.conclude("too late")
        with pytest.raises(ReasoningCancelled, match=r"timeout: it took more than 0\.01 s"):
            await think_on(space, 0.01)
        await tape.until(of_kind("reasoning/cancel"))
        assert [kind for kind, _ in thoughts(tape.envelopes)] == [
            *("start", "thought", "thought", "conclusion"),
            *("start", "cancel"),
        ]


@pytest.mark.rule("4.18.bounded")
@pytest.mark.parametrize("explicit", [True, False])
async def test_a_held_conclusion_is_followed_by_a_cancel(meeting: Meeting, explicit: bool) -> None:
    agent, held = Agent("tools"), anyio.Event()

    @agent.middleware
    async def hold(message: OutboundMessage, call_next: CallNext) -> Any:
        if message.kind == "reasoning/conclusion":
            held.set()
            await anyio.sleep_forever()
        return await call_next(message)

    async with gathered(meeting, agent, "second") as (space, second), taped(second) as tape:

        async def think() -> None:
            async with space.talk.reasoning("why?") as reasoning:
                if explicit:
                    await reasoning.conclude("because")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(think)
            await held.wait()
            tasks.cancel_scope.cancel()
        await tape.until(of_kind("reasoning/cancel"))
        assert [kind for kind, _ in thoughts(tape.envelopes)] == ["start", "cancel"]


async def think_on(space: Space, timeout: float | None) -> None:
    async with space.talk.reasoning("on and on", timeout=timeout):
        await anyio.sleep_forever()


@pytest.mark.rule("4.19.cancelled", "4.19.own")
async def test_chat_is_taken_back(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, waiter(notes), "second", "mallory") as (_, second, mallory):
        chat = await second.chat("look at this", to="deep")
        await notes.until(("reads", "look at this"))
        await mallory.talk.cancel(chat, to="deep")
        await second.talk.cancel(chat, to="deep", reason="handled_elsewhere")
        await notes.until(("second", "handled_elsewhere"))
        assert ("mallory", "no_longer_needed") not in notes.all
