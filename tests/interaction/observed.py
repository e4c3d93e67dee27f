"""Connections that observe, and the agents beside them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from meup_agent import Agent, Proposal
from meup_agent.gateway import GatewayLimits
from tests.gateways import OBSERVE_HEADER
from tests.interaction.people import Meeting, Notes, Raw
from tests.wire import decode, kinds

MAX_OBSERVERS = GatewayLimits().max_observers


def tool_owner() -> Agent:
    tools = Agent("tools")

    @tools.tool
    async def write(text: str) -> str:
        return text

    return tools


def reviewer(notes: Notes) -> Agent:
    agent = Agent("reviewer")

    @agent.on_proposal
    async def decide(proposal: Proposal) -> None:
        notes(("decides", proposal.id))
        await proposal.fulfill()

    return agent


@asynccontextmanager
async def observed(meeting: Meeting, name: str, **headers: str) -> AsyncGenerator[Raw]:
    """Look on by hand."""
    sent = {"Authorization": f"Bearer {meeting.token(name)}", OBSERVE_HEADER: "1", **headers}
    async with meeting.connector(name)(sent) as transport:
        assert transport.response_headers[OBSERVE_HEADER.lower()] == "1"
        welcome = decode(await anext(transport))
        assert welcome.kind == kinds.SYSTEM_WELCOME
        assert welcome.payload_object["observing"] is True
        yield Raw(transport, name)
