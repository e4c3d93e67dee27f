"""Two processes of one participant: a person acts with an agent's token while the agent runs."""

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import anyio
import httpx
import pytest

from meup_agent import Agent, Context, Fulfillment, Proposal, Rejection, Space, Withdrawal
from meup_agent.errors import AlreadyInProgress, OutcomeUnknown, ProposalWithdrawn
from meup_agent.gateway import Gateway, HttpConfig
from tests.gateways import one_space_config
from tests.interaction.cast import sleep_until_stopped
from tests.interaction.people import (
    PARTICIPANTS,
    InMemory,
    Meeting,
    Notes,
    OverSockets,
    ended,
    gathered,
)
from tests.interaction.views import all_idle, is_, lines, note_result, run_within, session_of, taped
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE
from tests.wire import draft, encode, kinds, payloads

pytestmark = pytest.mark.rule("5.who.me.beside")

Say = Callable[[str, bytes], Awaitable[None]]


class Person:
    """A client with the tokens of the others, which speaks in their name beside them."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._ids = count(1)

    async def says(
        self,
        who: str,
        kind: str,
        payload: Any,
        *,
        to: tuple[str, ...] = (),
        about: tuple[str, ...] = (),
    ) -> str:
        """Say it, and return when the gateway has taken it; its id."""
        id = f"beside {who} {next(self._ids)}"
        if kind == kinds.MCP_REQUEST and "jsonrpc" not in payload:
            payload = payloads.request("tools/call", payload, id)
        said = draft(kind, payload, id=id, sender=who, to=to, correlation=about)
        await self._say(who, encode(said, "meup/v0.1"))
        return id


@asynccontextmanager
async def beside(meeting: Meeting) -> AsyncGenerator[Person]:
    """A client that speaks without a connection."""
    if isinstance(meeting, InMemory):
        host = meeting.space._runtime.spaces["demo"]

        async def in_memory(who: str, frame: bytes) -> None:
            host.owner.receive_as(who, frame, "meup/v0.1", lambda _: None)

        yield Person(in_memory)
        return
    assert isinstance(meeting, OverSockets)
    gateway = meeting.gateway
    async with httpx.AsyncClient(
        base_url=gateway.http_url, trust_env=False, timeout=PATIENCE, verify=NO_TLS
    ) as client:

        async def over_http(who: str, frame: bytes) -> None:
            headers = {"Authorization": f"Bearer {gateway.token(who)}"}
            answer = await client.post(
                f"/participants/{who}/messages", json=json.loads(frame), headers=headers
            )
            assert answer.json()["status"] == "accepted", answer.text

        yield Person(over_http)


@pytest.fixture(params=["memory", "sockets"])
def meeting(request: pytest.FixtureRequest) -> Generator[Meeting]:
    if request.param == "memory":
        yield InMemory()
    else:
        config = replace(one_space_config("demo", PARTICIPANTS), http=HttpConfig(port=0))
        with Gateway(config=config).in_thread() as gateway:
            yield OverSockets(gateway)


@pytest.fixture(autouse=True)
def nothing_is_remarkable(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """A client beside an agent is none to be warned of."""
    caplog.set_level(logging.INFO, "meup_agent")
    yield
    assert lines(caplog, logging.WARNING) == []


async def test_a_withdrawal_ends_the_wait(meeting: Meeting) -> None:
    async with gathered(meeting, "proposer", "observer") as (space, observer):
        async with taped(observer) as tape, beside(meeting) as person:
            async with space.propose("tools", "write", {}) as proposal:
                await person.says(
                    "proposer", kinds.MCP_WITHDRAW, {"reason": "policy"}, about=(proposal.id,)
                )
                outcome = await ended(proposal, Withdrawal)
                assert (outcome.reason, outcome.cause.by) == ("policy", "proposer")
                with pytest.raises(ProposalWithdrawn, match="policy"):
                    await proposal.result()
            await tape.all_said(space)
        assert len(tape.of(kinds.MCP_WITHDRAW)) == 1
        assert space.connected
        await all_idle(space)


@pytest.mark.rule("5.own.given_up.response", "4.13.loser_is_reported")
async def test_a_result_after_a_withdrawal_is_told(meeting: Meeting, notes: Notes) -> None:
    proposer, tools = Agent("proposer"), Agent("tools")

    @proposer.on_conflict
    async def conflict(space: Space) -> None:
        notes("conflict")

    @tools.tool
    async def write(ctx: Context) -> str:
        notes("writes")
        async with ctx.cleanup():
            await notes.until("withdrawn")
        return "written"

    async with gathered(meeting, proposer, tools) as (space, carrying_out):
        async with beside(meeting) as person, space.propose("tools", "write") as proposal:
            request = payloads.request("tools/call", {"name": "write"}, "r1")
            await person.says(
                "reviewer", kinds.MCP_REQUEST, request, to=("tools",), about=(proposal.id,)
            )
            await notes.until("writes")
            await person.says("proposer", kinds.MCP_WITHDRAW, {}, about=(proposal.id,))
            assert isinstance(await proposal.outcome(), Withdrawal)
            notes("withdrawn")
            await notes.until("conflict")
        await all_idle(space, carrying_out)


async def test_a_cancel_ends_the_wait_and_the_work(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.tool
    async def write(ctx: Context) -> None:
        notes(ctx.envelope.id)
        await sleep_until_stopped(notes, ctx)

    async with gathered(meeting, tools, "reviewer") as (working, space):
        async with beside(meeting) as person, anyio.create_task_group() as tasks:
            given_up = pytest.raises(OutcomeUnknown, match="was given up: policy: not today")
            tasks.start_soon(run_within, given_up, space.call, "tools", "write")
            await notes.until("runs")
            cancel = {"requestId": notes.all[0], "reason": "policy: not today"}
            said = payloads.notification(kinds.CANCELLED, cancel)
            await person.says("reviewer", kinds.MCP_REQUEST, said, to=("tools",))
            await notes.until(("reviewer", "policy: not today"))
        await all_idle(space, working)


async def test_a_rejection_ends_the_handler_that_looks(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def review(ctx: Context) -> None:
        await sleep_until_stopped(notes, ctx, "looks")

    @reviewer.on_withdraw
    async def withdrawn(withdrawal: Withdrawal) -> None:
        notes(withdrawal)

    async with gathered(meeting, reviewer, "proposer") as (reviewing, space):
        async with taped(space) as tape, beside(meeting) as person:
            async with space.propose("tools", "write", to="reviewer") as proposal:
                await notes.until("looks")
                await person.says(
                    "reviewer", kinds.MCP_REJECT, {"reason": "unsafe"}, about=(proposal.id,)
                )
                outcome = await ended(proposal, Rejection)
                assert (outcome.by, outcome.reason) == ("reviewer", "unsafe")
            await all_idle(reviewing, space)
            await tape.all_said(space, reviewing)
        assert len(tape.of(kinds.MCP_REJECT)) == 1
    why = "unsafe: another process of ours rejected it"
    assert notes.all == ["looks", ("reviewer", why)]


@pytest.mark.parametrize("expected", [True, False])
async def test_what_is_fulfilled_is_not_fulfilled_again(
    meeting: Meeting, notes: Notes, caplog: pytest.LogCaptureFixture, expected: bool
) -> None:
    """Nor is it rejected, by a handler that does not expect it and fails."""
    reviewer, tools = Agent("reviewer"), Agent("tools")

    @reviewer.on_proposal
    async def review(proposal: Proposal) -> None:
        notes("looks")
        await notes.until("writes")
        try:
            await proposal.fulfill(executor="tools")
        except AlreadyInProgress as error:
            notes(error.by)
            if not expected:
                raise

    @tools.tool
    async def write() -> str:
        notes("writes")
        await notes.until("reviewer")
        return "written"

    async with (
        gathered(meeting, reviewer, tools, "proposer") as (reviewing, _, space),
        beside(meeting) as person,
        taped(space) as tape,
        space.propose("tools", "write", {}, to="reviewer") as proposal,
    ):
        await notes.until("looks")
        call = {"name": "write", "arguments": {}}
        await person.says("reviewer", kinds.MCP_REQUEST, call, to=("tools",), about=(proposal.id,))
        outcome = await ended(proposal, Fulfillment)
        assert (outcome.by, outcome.executor) == ("reviewer", "tools")
        await all_idle(reviewing)
        await tape.all_said(reviewing)
        assert tape.of(kinds.MCP_REJECT) == []
        assert session_of(reviewing).counters == {}
    assert notes.all == ["looks", "writes", "reviewer"]
    failures = lines(caplog, logging.WARNING)
    assert ["failed" in each for each in failures] == ([] if expected else [True])
    caplog.clear()


@pytest.mark.rule("4.11.self_request")
async def test_a_request_to_the_agent_itself_is_answered(meeting: Meeting) -> None:
    tools = Agent("tools")

    @tools.tool
    async def write() -> str:
        return "written"

    async with gathered(meeting, tools, "observer") as (working, observer):
        async with taped(observer) as tape, beside(meeting) as person:
            call = {"name": "write", "arguments": {}}
            asked = await person.says("tools", kinds.MCP_REQUEST, call, to=("tools",))
            answer = await tape.until(lambda e: e.correlation == (asked,))
        assert (answer.sender, answer.to) == ("tools", ("tools",))
        await all_idle(working)
        assert session_of(working).counters == {}


@pytest.mark.rule("5.who.response")
async def test_who_answers_in_the_agents_place_has_answered(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.tool
    async def ask_a_person(ctx: Context) -> None:
        notes(ctx.envelope.id)
        await sleep_until_stopped(notes, ctx, "asked")

    answers: list[Any] = []
    async with gathered(meeting, tools, "reviewer") as (working, space):
        async with beside(meeting) as person, anyio.create_task_group() as tasks:
            tasks.start_soon(note_result, answers.append, space.call, "tools", "ask_a_person")
            await notes.until("asked")
            request, answer = notes.all[0], {"structuredContent": {"answer": 42}, "content": []}
            payload = {"jsonrpc": "2.0", "id": request, "result": answer}
            await person.says(
                "tools", kinds.MCP_RESPONSE, payload, to=("reviewer",), about=(request,)
            )
            why = "no_longer_needed: another process of ours answered it"
            await notes.until(("tools", why))
        await all_idle(working, space)
        assert session_of(space).counters == {}
    assert answers == [{"answer": 42}]


async def test_what_a_person_asks_and_says_is_no_affair_of_the_agents(meeting: Meeting) -> None:
    tools = Agent("tools")

    @tools.tool
    async def write() -> str:
        return "written"

    async with gathered(meeting, tools, "reviewer") as (_, space):
        async with taped(space) as tape, beside(meeting) as person:
            call = {"name": "write", "arguments": {}}
            asked = await person.says("reviewer", kinds.MCP_REQUEST, call, to=("tools",))
            await person.says("reviewer", kinds.CHAT, {"message": "hello"})
            proposal = payloads.proposal("tools/call", call)
            proposed = await person.says("reviewer", kinds.MCP_PROPOSAL, proposal)
            await tape.until(lambda e: e.correlation == (asked,))
            await tape.until(is_(proposed))
        assert [str(each.state) for each in space.proposals] == ["pending"]
        assert session_of(space).counters == {}
        await all_idle(space)
