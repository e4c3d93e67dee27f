"""The table of handlers: a new type is one row, and each message is looked up once."""

from dataclasses import dataclass
from typing import Any

import pytest

from meup_agent import Agent, Chat, Context, Envelope, Proposal
from meup_agent.agent.decorators import HandlerRow
from meup_agent.agent.definitions import Invocation
from meup_agent.agent.registry import Registry
from meup_agent.errors import HandlerDefinitionError
from meup_agent.protocol.payload_reader import PayloadReader
from tests.interaction.people import Meeting, Notes, gathered, session_of
from tests.tables import Role

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Nap:
    seconds: float
    by: str

    @classmethod
    def read(cls, run: Invocation) -> "Nap":
        envelope = run.work.envelope
        seconds = envelope.payload_object.get("seconds")
        if not isinstance(seconds, int | float):
            reader = PayloadReader(envelope, envelope.payload_object)
            raise reader.problem("its 'seconds' must be a number")
        return cls(seconds, envelope.sender)


class NappingAgent(Agent):
    on_nap = HandlerRow(Role.KIND, {Nap: Nap.read}, kinds=["acme/nap"])
    """Learn that a participant asks us to nap; gets a Nap."""


async def test_new_type_of_handler_is_one_row(meeting: Meeting, notes: Notes) -> None:
    agent = NappingAgent("tools")

    @agent.on_nap
    async def nap(nap: Nap, ctx: Context) -> None:
        notes((nap, ctx.sender))

    @agent.on_chat
    async def end(chat: Chat) -> None:
        notes(chat.text)

    async with gathered(meeting, agent, "second") as (_, second):
        await second.send("acme/nap", {"seconds": 2}, to="reviewer")
        await second.send("acme/wake", {"seconds": 3}, to="tools")
        await second.send("acme/nap", {"seconds": 4}, to="tools")
        await second.chat("end")
        await notes.until("end", (Nap(4, "second"), "second"))
    assert (Nap(2, "second"), "second") not in notes.all


async def test_payload_that_cannot_be_read_is_dropped_and_counted(
    meeting: Meeting, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    agent = NappingAgent("tools")

    @agent.on_nap
    async def nap(nap: Nap) -> None:
        notes(nap)

    @agent.on_nap
    async def doze(nap: Nap) -> None:
        notes(nap)

    async with gathered(meeting, agent, "second") as (space, second):
        await second.send("acme/nap", {"seconds": "long"}, to="tools")
        await second.send("acme/nap", {"seconds": 4}, to="tools")
        await notes.until(Nap(4, "second"))
        assert session_of(space).counters["malformed_payload"] == 2  # once for each handler
    assert notes.all == [Nap(4, "second")] * 2
    assert {record.levelname for record in caplog.records} <= {"DEBUG", "INFO", "WARNING"}


def test_row_says_what_its_handlers_may_ask_for() -> None:
    with pytest.raises(HandlerDefinitionError, match=r"on_nap .*Context, Space, Envelope, Nap"):

        @NappingAgent("tools").on_nap
        async def wrong(text: str) -> None: ...

    with pytest.raises(HandlerDefinitionError, match=r"'nap' is Nap, which handlers of this"):

        @Agent("tools").tool
        async def tool(nap: Nap) -> None: ...


class CountingRegistry(Registry):
    def __init__(self) -> None:
        super().__init__()
        self.looked_up: list[tuple[str, str]] = []

    def find(self, role: Role, envelope: Envelope, *args: Any, **kwargs: Any) -> Any:
        self.looked_up.append((str(role), envelope.id))
        return super().find(role, envelope, *args, **kwargs)


async def test_handler_is_looked_up_once_for_a_message(meeting: Meeting, notes: Notes) -> None:
    agent = Agent("tools")
    registry = agent._registry = CountingRegistry()
    agent.register = registry.add
    agent.observe(lambda _: None)  # observers are told the handler's name

    @agent.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @agent.on_proposal
    async def decide(proposal: Proposal) -> None:
        notes("proposal")

    @agent.on("x/y")
    async def watch(envelope: Envelope) -> None:
        notes("kind")

    async with gathered(meeting, agent, "second") as (_, second):
        assert await second.call("tools", "add", {"a": 1, "b": 2}) == 3
        async with second.propose("tools", "add", to="tools"):
            await notes.until("proposal")
        await second.send("x/y", {}, to="tools")
        await notes.until("kind")
    assert len(registry.looked_up) == len(set(registry.looked_up))
    assert {role for role, _ in registry.looked_up} >= {"request", "proposal", "kind"}
