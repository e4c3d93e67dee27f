"""An agent that loses its connection reads what it missed, or hears of a gap.

Run it with ``python -m pytest examples/test_lost_connection.py``.
"""

import anyio
import pytest

from meup_agent import Agent, Backoff, Chat, Gap, Settings, Space
from meup_agent.testing import MemorySpace

pytestmark = pytest.mark.anyio  # runs the async tests, on asyncio and on trio

PARTICIPANTS = {"stock": [{"kind": "chat"}], "shop": [{"kind": "chat"}]}
AT_ONCE = Settings(backoff=Backoff(first=0))


async def test_an_agent_asks_anew_for_what_it_missed_for_good() -> None:
    agent = Agent("stock")

    @agent.on_chat
    async def said(chat: Chat, space: Space) -> None:
        await space.chat(f"noted: {chat.text}", about=chat.id)

    @agent.on_gap
    async def missed(gap: Gap, space: Space) -> None:
        await space.chat("What did I miss?")

    heard: list[str] = []
    answered = anyio.Event()
    shop = Agent("shop")

    @shop.on_chat
    async def listen(chat: Chat) -> None:
        heard.append(chat.text)
        answered.set()

    space = MemorySpace(participants=PARTICIPANTS)
    stock = agent.join(space.connector("stock"), settings=AT_ONCE)
    with anyio.fail_after(10):
        async with (
            stock,
            shop.join(space.connector("shop"), settings=AT_ONCE) as here,
        ):
            space.drop("stock")  # it comes back by itself
            await here.chat("a chair")  # nothing is lost
            await answered.wait()
            answered = anyio.Event()
            space.restart()  # the gateway forgets everything
            await answered.wait()
    assert heard == [
        "noted: a chair",
        "What did I miss?",
    ]
