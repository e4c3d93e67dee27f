"""The table of handlers: a new type is one row."""

from dataclasses import dataclass

import pytest

from meup_agent import Agent, Chat, Context
from meup_agent.agent.decorators import HandlerRow
from meup_agent.agent.definitions import Invocation
from meup_agent.errors import HandlerDefinitionError
from meup_agent.protocol.payload_reader import PayloadReader
from tests.interaction.people import Meeting, Notes, gathered
from tests.interaction.views import session_of
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
