"""Messages that are not calls: chat, presence, kinds of one's own."""

import json

import pytest

from meup_agent import Agent, Chat, Context
from tests.interaction.people import Meeting, Notes, gathered


@pytest.mark.rule("4.11.echo")
async def test_chat_reaches_those_it_is_for(meeting: Meeting, notes: Notes) -> None:
    def listener(name: str) -> Agent:
        agent = Agent(name)

        @agent.on_chat
        async def said(chat: Chat, ctx: Context) -> None:
            notes((name, chat.sender, chat.text, chat.about))
            if chat.text == "hello?":
                await ctx.space.chat("yes", to=chat.sender, about=chat.id)

        return agent

    async with gathered(
        meeting, listener("reviewer"), listener("second"), listener("observer")
    ) as (_, _, observer):
        asked = await observer.chat("hello?", to="reviewer")
        await notes.until(("observer", "reviewer", "yes", asked))
        await observer.chat("all")
        await notes.until(
            ("reviewer", "observer", "all", None), ("second", "observer", "all", None)
        )
    assert ("second", "observer", "hello?", None) not in notes.all
    assert ("observer", "observer", "all", None) not in notes.all, "an echo is not a message"


async def test_any_kind_can_be_sent_and_watched(meeting: Meeting) -> None:
    async with gathered(meeting, "second", "observer") as (speaker, observer):
        with observer.watch() as watcher:
            id = await speaker.send("reasoning.start", {"about": 1}, correlation="x")
            async for envelope in watcher:
                if envelope.id == id:
                    break
        assert envelope.kind == "reasoning/start"
        assert envelope.correlation == ("x",)
        assert json.loads(envelope.frame)["kind"] == "reasoning.start"
