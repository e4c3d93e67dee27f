"""Scoped yeses at a reviewer: what they let through, and what no yes beats."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent import Agent, ProposalHandle, Space
from meup_agent.approval import Inbox, Reviewer
from meup_agent.approval.yeses import give_yes, list_yeses, revoke_yes
from meup_agent.client.tool_changes import digest_of_form
from meup_agent.doors.permit import Denied, Door, HostCall, Permitted
from meup_agent.protocol.wire.scoped_yes import YesTerms
from tests.interaction.people import InMemory, Notes, join
from tests.virtual_time import anyio_backend as anyio_backend
from tests.wire import payloads

ASK = "[{ask: {tool: '*'}}]"
SECONDS = 600.0
"""Longer than anything that is decided without a person takes; virtual."""


def tools(notes: Notes) -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def write(path: str, content: str = "") -> str:
        notes(path)
        return path

    return agent


class Office:
    """A reviewer by some rules, a person, and a proposer of `write`."""

    def __init__(self, meeting: InMemory, person: Space, proposer: Space, notes: Notes) -> None:
        self.meeting, self.person, self.proposer, self.notes = meeting, person, proposer, notes
        self.stack = AsyncExitStack()
        self.proposed: dict[str, dict[str, Any]] = {}

    async def proposes(self, path: str, **more: Any) -> ProposalHandle:
        arguments = {"path": path, **more}
        made = self.proposer.propose("tools", "write", arguments, ttl=None)
        proposal = await self.stack.enter_async_context(made)
        self.proposed[proposal.id] = arguments
        return proposal

    async def gives(self, at: ProposalHandle, **terms: Any) -> str:
        usual: dict[str, Any] = {"seconds": 3600.0, "most": 2, "others": ("content",)}
        usual |= {"arguments": {"path": "/a/*"}, "proposer": "proposer"}
        if "form" not in terms:
            (tool,) = await self.person.offers.tools("tools")
            usual["form"] = digest_of_form(tool)
        await anyio.sleep(1)  # virtual: the proposal is accepted meanwhile
        params = {"name": "write", "arguments": self.proposed[at.id]}
        usual["digest"] = payloads.digest("tools/call", params, "tools")
        return await give_yes(self.person, at.id, YesTerms(**(usual | terms)))

    async def runs(self, proposal: ProposalHandle) -> bool:
        """True if it is carried out although nobody decides it."""
        with anyio.move_on_after(SECONDS):
            await proposal.result()
            return True
        return False


def write(path: Path, rules: str) -> None:
    path.write_text(f"rules: {rules}\nend: true\n")


@asynccontextmanager
async def office(rules: str, path: Path | None, notes: Notes) -> AsyncGenerator[Office]:
    if path is not None:
        write(path, rules)
    meeting, reviewer = InMemory(), Reviewer(path)
    async with (
        reviewer.join(meeting.connector("reviewer"), token=meeting.token("reviewer")),
        join(meeting, tools(notes)),
        join(meeting, "mallory") as person,
        join(meeting, "proposer") as proposer,
    ):
        found = Office(meeting, person, proposer, notes)
        async with found.stack:
            yield found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


@pytest.mark.rule("5.yes.reviewer")
async def test_what_it_covers_runs_unasked_also_what_waited_before(
    path: Path, notes: Notes
) -> None:
    async with office(ASK, path, notes) as found:
        first, waiting = await found.proposes("/a/1"), await found.proposes("/a/2", content="x")
        yes = await found.gives(first)
        assert await waiting.result() == "/a/2"
        assert await found.runs(await found.proposes("/a/3"))
        # Used up: asked again. So is the one at which it was given, and the kept say so.
        assert not await found.runs(await found.proposes("/a/4"))
        assert not await found.runs(first)
        (kept,) = await list_yeses(found.person)
        assert (kept.yes.id, kept.state, kept.yes.used) == (yes, "used_up", 2)
        (decided, *_) = [each async for each in found.person.proposals.list(state="decided")]
        assert decided.rule == f"yes {yes[:8]} of mallory"
    assert notes.all == ["/a/2", "/a/3"]


@pytest.mark.rule("5.yes.reviewer")
async def test_call_for_which_another_was_quicker_takes_the_next_one(
    path: Path, notes: Notes
) -> None:
    """Each looks at the first yes, which has one call left."""
    async with office(ASK, path, notes) as found:
        first = await found.proposes("/a/0")
        given = [await found.gives(first, most=most) for most in (1, 2)]
        await anyio.sleep(60)  # long enough that none is looked up again for being new
        some = [await found.proposes(f"/a/{number}") for number in range(1, 5)]
        await anyio.sleep(SECONDS)
        assert sorted(notes.all) == sorted({*notes.all}), "each once"
        assert sum(not each.state.is_pending for each in some) == 3
        assert [each.yes.used for each in await list_yeses(found.person)] == [1, 2], given


@pytest.mark.thorough
@pytest.mark.rule("5.yes.reviewer")
async def test_what_it_does_not_cover_is_asked_about(path: Path, notes: Notes) -> None:
    async with office("[{ask: {tool: write}}]", path, notes) as found:
        yes = await found.gives(await found.proposes("/a/1"), most=9)
        for arguments in ({"path": "/b/1"}, {"path": "/a/b/1"}, {"path": "/a/../b"}):
            assert not await found.runs(await found.proposes(**arguments))
        assert await found.runs(await found.proposes("/a/2"))
        await revoke_yes(found.person, yes)
        assert not await found.runs(await found.proposes("/a/3"))
        assert await list_yeses(found.person) == []


@pytest.mark.rule("5.yes.reviewer")
async def test_time_that_is_over_is_asked_about(path: Path, notes: Notes) -> None:
    async with office(ASK, path, notes) as found:
        await found.gives(await found.proposes("/a/1"), seconds=0.001)
        assert not await found.runs(await found.proposes("/a/2"))


@pytest.mark.rule("5.yes.reviewer")
@pytest.mark.parametrize(
    "rules",
    [
        "[{ask: {tool: write}}, {deny: {tool: write, arguments: {path: '/a/2'}}}]",
        "[{deny: {tool: write, arguments: {path: '/A/2'}}}]",
        "[{ask: {tool: write}}, {quorum: {tool: write, of: 1, among: [second]}}]",
        "[{ask: {tool: write}}, {limit: {tool: write, per: proposer, count: 1, every: 7d,"
        " then: ask}}]",
        "[{ask: {tool: write}}, {ask: {tool: write, confirm: word}}]",
        # A doubt: it may be mistyped, and mean this call.
        "[{deny: {tool: writ}}]",
        "[{deny: {tool: write, arguments: {paht: '*'}}}]",
    ],
)
async def test_it_beats_no_rule_that_holds_back_and_no_doubt(
    rules: str, path: Path, notes: Notes
) -> None:
    async with office(ASK, path, notes) as found:
        await found.gives(await found.proposes("/a/1"), most=9)
        assert await found.runs(await found.proposes("/a/0"))
        write(path, rules)
        await anyio.sleep(5)
        if "limit" in rules:
            assert await found.runs(await found.proposes("/a/1"))
        proposal = await found.proposes("/a/2")
        with anyio.move_on_after(SECONDS):
            with pytest.raises(Exception, match=r".*"):
                await proposal.result()
        assert "/a/2" not in notes.all


@pytest.mark.rule("5.yes.reviewer")
async def test_own_file_and_another_form_are_asked_about(path: Path, notes: Notes) -> None:
    async with office(ASK, path, notes) as found:
        await found.gives(await found.proposes("/a/1"), most=9, arguments=None)
        waits = await found.proposes("/b/policy.yaml")
        assert not await found.runs(waits)
        assert await found.runs(await found.proposes("/b/1"))
        other = await found.gives(waits, most=9, arguments=None, form="0" * 64)
        await revoke_yes(found.person, (await list_yeses(found.person))[0].yes.id)
        assert [each.yes.id for each in await list_yeses(found.person)] == [other]
        assert not await found.runs(await found.proposes("/b/2"))


@pytest.mark.rule("5.yes.reviewer")
async def test_reviewer_without_a_policy_uses_them(notes: Notes) -> None:
    async with office("", None, notes) as found:
        await found.gives(await found.proposes("/a/1"))
        assert await found.runs(await found.proposes("/a/2"))
        assert not await found.runs(await found.proposes("/b/2"))


@pytest.mark.rule("5.yes.permits")
async def test_a_yes_at_a_door_is_for_its_program_in_its_folder() -> None:
    meeting, reviewer = InMemory(), Reviewer()
    call = HostCall("Bash", {"command": "make"}, "claude-code", cwd="/work")
    async with (
        reviewer.join(meeting.connector("reviewer"), token=meeting.token("reviewer")),
        join(meeting, "mallory") as space,
        Inbox(space) as inbox,
        Door().join(meeting.connector("proposer"), token=meeting.token("proposer")) as door,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(door.ask, call)
        await anyio.sleep(1)
        (item,) = inbox.items
        (scope, *_) = inbox.offered_scopes(item)
        await inbox.give_yes(item, scope, seconds=3600.0, most=9)
        assert isinstance(await door.ask(call, ttl=1), Permitted)
        for other in ({"agent": "codex"}, {"cwd": "/home"}, {"watched": True}):
            assert isinstance(await door.ask(replace(call, **other), ttl=1), Denied), other
        assert [each.yes.used for each in await list_yeses(space)] == [1]
        assert item.state.is_pending, "it is not for the call at which it was given"
        tasks.cancel_scope.cancel()


@pytest.mark.rule("4.20.watched")
async def test_a_rule_makes_nothing_rejected_that_ran(path: Path) -> None:
    write(path, "[{deny: {tool: '*'}}]")
    meeting, reviewer = InMemory(), Reviewer(path)
    call = HostCall("Bash", {"command": "make"}, "claude-code", watched=True)
    async with (
        reviewer.join(meeting.connector("reviewer"), token=meeting.token("reviewer")),
        join(meeting, "mallory") as space,
        Door().join(meeting.connector("proposer"), token=meeting.token("proposer")) as door,
    ):
        await door.ask(call, ttl=60, to="reviewer")
        await anyio.sleep(1)
        (told,) = space.proposals
        assert (told.state, [each.by for each in told.rejections]) == ("withdrawn", ["reviewer"])
