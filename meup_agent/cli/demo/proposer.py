"""The proposer: a restricted agent that may propose, and nothing else.

What it does, the scenes say. Here is what it hears: who said no, and why.
"""

from __future__ import annotations

from meup_agent import Agent, Chat, Rejection
from meup_agent.cli.demo.arrivals import EventLog


def proposer_agent(explanations: EventLog[Chat], rejections: EventLog[Rejection]) -> Agent:
    """The agent.

    Args:
        explanations: Takes what others say to it.
        rejections: Takes who rejected a proposal of its.
    """
    proposer = Agent("proposer")

    @proposer.on_reject
    async def hear_rejection(rejection: Rejection) -> None:
        rejections.add(rejection)

    @proposer.on_chat
    async def hear_chat(chat: Chat) -> None:
        explanations.add(chat)

    return proposer
