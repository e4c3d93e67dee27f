"""Every kind of handler, sync and async, alone and together with others, in one space or two."""

import contextvars
import threading
from typing import Any

import anyio
import pytest

from meup_agent import (
    Agent,
    Chat,
    Context,
    Envelope,
    Limits,
    Participant,
    Proposal,
    ProposalState,
    Reason,
    Rejection,
    Settings,
    Space,
    handlers,
)
from meup_agent.errors import ToolError, UsageError
from tests.interaction.cast import onlooking, sleep_until_stopped
from tests.interaction.people import ONE_PLACE, Meeting, Notes, gathered, join, until
from tests.interaction.views import all_idle, is_idle, note_result, run_within, session_of, state_of
from tests.patience import PATIENCE


async def test_handlers_get_what_they_ask_for(meeting: Meeting, notes: Notes) -> None:
    agent = Agent("reviewer")

    @agent.on_proposal
    async def review(what: Proposal, ctx: Context, envelope: Envelope, space: Space) -> None:
        notes(("proposal", what.id == envelope.id, ctx.sender, space.me, ctx.envelope is envelope))

    @agent.on_chat
    async def chat(chat: Chat, space: Space) -> None:
        notes(("chat", chat.text, space is ctx_space))

    @agent.on("x/custom", "reasoning.*")
    async def custom(envelope: Envelope) -> None:
        notes(("kind", envelope.kind, str(envelope.payload)))

    @agent.on_join
    async def joined(participant: Participant) -> None:
        notes(("join", participant.id, len(participant.capabilities)))

    @agent.on_leave
    async def left(participant: Participant) -> None:
        notes(("leave", participant.id))

    async with gathered(meeting, agent) as (ctx_space,):
        async with join(meeting, "second") as second:
            async with second.propose("tools", "write"):
                await notes.until(("proposal", True, "second", "reviewer", True))
            await second.chat("hi")
            await second.send("x/custom", {"a": 1})
            await second.send("reasoning.start", {"b": 2})
            await second.send("x/other", {})
            await notes.until(
                ("chat", "hi", True),
                ("kind", "x/custom", "{'a': 1}"),
                ("kind", "reasoning/start", "{'b': 2}"),
                ("join", "second", 1),
            )
        await notes.until(("leave", "second"))
    assert not [note for note in notes.all if note[:2] == ("kind", "x/other")]


async def test_plain_functions_do_not_block_the_loop(meeting: Meeting, notes: Notes) -> None:
    agent = Agent("tools")
    both = threading.Barrier(2, timeout=PATIENCE)
    loop_thread = threading.get_ident()

    @agent.tool
    def meet(ctx: Context) -> str:
        both.wait()
        assert threading.get_ident() != loop_thread
        return ctx.sender

    async with (
        gathered(meeting, agent, "second") as (_, second),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(note_result, notes, second.call, "tools", "meet")
        tasks.start_soon(note_result, notes, second.call, "tools", "meet")
    assert notes.all == ["second", "second"]


@pytest.mark.rule("5.proposal.running.returns")
async def test_a_handler_that_does_not_decide_says_nothing(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, onlooking(notes), "proposer") as (reviewers, proposers):
        async with proposers.propose("tools", "write", to="reviewer") as proposal:
            await notes.until(proposal.id)
            await until(lambda: is_idle(reviewers))
            assert proposal.state is ProposalState.PENDING


@pytest.mark.rule("4.5.told", "4.3.unknown_survive")
async def test_rejections_that_do_not_count_are_told_too(meeting: Meeting, notes: Notes) -> None:
    proposer = Agent("proposer")

    @proposer.on_reject
    async def rejected(rejection: Rejection) -> None:
        notes((rejection.by, rejection.reason, rejection.counts))

    async with (
        gathered(meeting, onlooking(notes), "second", proposer) as (_, seconds, proposers),
        proposers.propose("tools", "write", to="reviewer") as proposal,
    ):
        await until(lambda: state_of(seconds, proposal.id) is not None)
        await seconds.proposals.get(seconds.proposals[-1]).reject("my own reason")
        await notes.until(("second", "my own reason", False))
        assert proposal.state is ProposalState.PENDING


async def test_the_first_handler_that_matches_decides(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal(method="tools/call", tool=["read_*", "list"])
    async def read(proposal: Proposal) -> None:
        notes(("read", proposal.tool))

    @reviewer.on_proposal(method="resources/*")
    async def resource(proposal: Proposal) -> None:
        notes(("resource", proposal.method))

    @reviewer.on_proposal
    async def rest(proposal: Proposal) -> None:
        notes(("rest", proposal.tool))

    async with gathered(meeting, reviewer, "proposer") as (_, proposers):
        for tool, handler in [("read_file", "read"), ("list", "read"), ("write", "rest")]:
            async with proposers.propose("tools", tool):
                await notes.until((handler, tool))
        await proposers.send("mcp.proposal", {"method": "resources/read", "params": {}})
        await notes.until(("resource", "resources/read"))


async def test_context_variables_of_one_handler_are_none_of_another_s(meeting: Meeting) -> None:
    agent = Agent("tools")
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")

    @agent.tool
    async def mark() -> str:
        before = who.get()
        who.set("somebody")
        return before

    found: list[str] = []
    async with (
        gathered(meeting, join(meeting, agent, settings=ONE_PLACE), "second") as (_, second),
        anyio.create_task_group() as tasks,
    ):
        # With one place, each begins when the one before it ends.
        for _ in range(5):
            tasks.start_soon(note_result, found.append, second.call, "tools", "mark")
    assert found == ["nobody"] * 5


async def test_threads_that_wait_for_threads_do_not_wait_for_ever(meeting: Meeting) -> None:
    """A handler that awaits an exchange gives its place to another, which needs a thread, too."""
    agent = Agent("tools")
    places = 4

    @agent.tool
    def inner() -> int:
        return 1

    @agent.tool
    def outer(ctx: Context) -> int:
        result: int = anyio.from_thread.run(ctx.space.call, "tools", "inner")
        return result

    results: list[int] = []
    settings = Settings(limits=Limits(handlers=places))
    async with (
        gathered(meeting, join(meeting, agent, settings=settings), "second") as (_, second),
        anyio.create_task_group() as tasks,
    ):
        for _ in range(4 * places):
            tasks.start_soon(note_result, results.append, second.call, "tools", "outer")
    assert results == [1] * 4 * places


async def test_a_large_text_is_sent_once_where_two_have_no_room(meeting: Meeting) -> None:
    agent = Agent("tools")

    @agent.tool
    async def large(size: int) -> str:
        return "x" * size

    async with gathered(meeting, agent, "second") as (_, second):
        size = 3 * 1024 * 1024
        assert len(await second.call("tools", "large", {"size": size})) == size
        with pytest.raises(ToolError, match="at most"):
            await second.call("tools", "large", {"size": 2 * size})


@handlers.tool
async def shared(text: str) -> str:
    return text.upper()


class Files:
    def __init__(self, root: str) -> None:
        self.root = root

    @handlers.tool
    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    @handlers.on_proposal(tool="path")
    async def review(self, proposal: Proposal) -> None:
        await proposal.reject(Reason.POLICY, explain=self.root)


async def test_handlers_may_be_written_without_an_agent(meeting: Meeting) -> None:
    agent = Agent("tools")
    agent.include(shared)
    agent.include(Files("/a"))
    other = Agent("deep")
    other.include(Files("/b"))
    async with gathered(meeting, agent, other, "second", "proposer") as (_, _, second, proposers):
        assert await second.call("tools", "shared", {"text": "x"}) == "X"
        assert await second.call("tools", "path", {"name": "x"}) == "/a/x"
        assert await second.call("deep", "path", {"name": "x"}) == "/b/x"
        async with proposers.propose("deep", "path", to="deep") as proposal:
            assert isinstance(await proposal.outcome(), Rejection)
    assert await shared("still callable") == "STILL CALLABLE"


async def test_an_agent_that_has_started_takes_no_more_handlers(meeting: Meeting) -> None:
    agent = Agent("tools")
    async with gathered(meeting, agent):
        for register in (agent.tool, agent.include):
            with pytest.raises(UsageError, match=r"tool .*shared.* comes too late"):
                register(shared)


async def test_one_agent_in_two_spaces(meeting: Meeting, notes: Notes) -> None:
    """Each with its own connection; what a handler does in one ends with it in the other."""
    agent = Agent("both")
    places: dict[str, Space] = {}

    @agent.tool
    async def relay(ctx: Context) -> str:
        other = places["deep" if ctx.space.me == "tools" else "tools"]
        notes(("relays", ctx.space.me))
        return str(await other.call("second" if other.me == "tools" else "reviewer", "answer"))

    slow = Agent("second")

    @slow.tool
    async def answer(ctx: Context) -> str:
        await sleep_until_stopped(notes, ctx)
        return "never"

    quick = Agent("reviewer")

    @quick.tool(name="answer")
    async def answer_at_once() -> str:
        return "answered"

    async with gathered(
        meeting, join(meeting, agent, "tools"), join(meeting, agent, "deep"), slow, quick, "mallory"
    ) as (first, second, _, _, caller):
        places.update(tools=first, deep=second)
        assert await caller.call("tools", "relay") == "answered"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.call, "deep", "relay")
            await notes.until("runs")
            tasks.cancel_scope.cancel()
        await notes.until(("tools", "no_longer_needed"))
        await all_idle(first, second)


@pytest.mark.rule("5.request.running.shutdown", "5.shutdown.nothing_new")
async def test_handlers_get_their_grace_at_the_end(meeting: Meeting, notes: Notes) -> None:
    agent = Agent("tools")

    @agent.tool
    async def quick() -> str:
        notes("quick runs")
        await notes.until("go on")
        return "done"

    @agent.tool
    async def endless(ctx: Context) -> None:
        await sleep_until_stopped(notes, ctx, "endless runs")

    answers: dict[str, Any] = {}
    async with gathered(meeting, "second") as (caller,), anyio.create_task_group() as tasks:

        async def call(tool: str) -> None:
            try:
                answers[tool] = await caller.call("tools", tool)
            except Exception as error:
                answers[tool] = error

        hurry = anyio.Event()
        async with join(meeting, agent, hurry=hurry, grace=PATIENCE):
            tasks.start_soon(call, "quick")
            tasks.start_soon(call, "endless")
            await notes.until("quick runs", "endless runs")

            async def go_on_and_hurry() -> None:
                notes("go on")
                await until(lambda: "quick" in answers)
                # What comes while an agent leaves is not begun.
                await call("late")
                hurry.set()

            tasks.start_soon(go_on_and_hurry)
    assert answers["quick"] == "done"
    assert answers["late"].data == {"reason": "busy"}
    assert answers["endless"].data == {"reason": "cancelled"}
    assert ("tools", "no_longer_needed: the agent shuts down") in notes.all


async def test_a_cancelled_join_tells_its_handlers_why(meeting: Meeting, notes: Notes) -> None:
    """Nothing but its own cause ends a handler, not even a cancellation around the agent."""
    agent = Agent("tools")

    @agent.tool
    async def endless(ctx: Context) -> None:
        await sleep_until_stopped(notes, ctx)

    async with gathered(meeting, "second") as (caller,), anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with join(meeting, agent) as tools:
                cancelled = pytest.raises(Exception, match="cancelled")
                tasks.start_soon(run_within, cancelled, caller.call, "tools", "endless")
                await notes.until("runs")
                scope.cancel()
                await anyio.sleep_forever()
        assert notes.all[1] == ("tools", "no_longer_needed: the agent shuts down")
    assert not session_of(tools).table.running
