"""Permits: a coding agent's own calls, which it runs itself once somebody lets it."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Fulfillment, Proposal, ProposalState, Space
from meup_agent.approval import Inbox, Reviewer
from meup_agent.cli.render.card import ShownValue, card_rows
from meup_agent.doors.permit import Answer, Denied, Door, HostCall, Permitted, Why
from meup_agent.errors import AlreadyDecided, MeupError, NotOffered, Refused, UsageError
from meup_agent.gateway import Gateway, JournalConfig
from meup_agent.protocol.wire.outcomes import PermitReport, ReportedOutcome
from meup_agent.wording import AT_TERMINAL
from tests.gateways import one_space_config
from tests.interaction.people import (
    EVERYTHING,
    PROPOSALS,
    QUICK,
    Latch,
    Meeting,
    OverSockets,
    join,
    keep_away,
    open_meeting,
    until,
)
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio

PARTICIPANTS = {
    "coder": PROPOSALS,
    "ann": EVERYTHING,
    "mallory": EVERYTHING,
    "deaf": [{"kind": "chat"}],
}


@pytest.fixture(params=["memory", "sockets"])
def meeting(request: pytest.FixtureRequest) -> Generator[Meeting]:
    with open_meeting(request.param, PARTICIPANTS) as meeting:
        yield meeting


def bash(command: str, **told: Any) -> HostCall:
    return HostCall("Bash", {"command": command}, agent="claude-code", **told)


def approver(decide: Callable[[Proposal], Any]) -> Agent:
    agent = Agent("ann")
    agent.on_proposal(tool="*")(decide)
    return agent


@asynccontextmanager
async def doors(
    meeting: Meeting, *others: Agent | str, count: int = 1, name: str = "coder"
) -> AsyncGenerator[tuple[tuple[Door, ...], tuple[Space, ...]]]:
    """Doors of one participant, and others of the space, for a block that may not hang."""
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(PATIENCE))
        spaces = [await stack.enter_async_context(join(meeting, each)) for each in others]
        made = [
            await stack.enter_async_context(
                Door().join(meeting.connector(name), token=meeting.token(name))
            )
            for _ in range(count)
        ]
        yield tuple(made), tuple(spaces)


async def fulfill(proposal: Proposal) -> Fulfillment:
    return await proposal.fulfill()


@pytest.mark.rule("4.20.permit")
async def test_a_permit_has_the_call_that_was_fulfilled(meeting: Meeting) -> None:
    async def decide(proposal: Proposal) -> None:
        assert proposal.target == proposal.proposer == "coder"
        edited = {"command": "ls"} if proposal.arguments["command"] == "rm" else None
        outcome = await proposal.fulfill(edited)
        assert outcome.response["_meta"] == {"dev.meup/permitted": True}

    async with doors(meeting, approver(decide)) as ((door,), _):
        as_it_was, edited = await door.ask(bash("pwd")), await door.ask(bash("rm"))
    assert isinstance(as_it_was, Permitted)
    assert (as_it_was.arguments, as_it_was.edited) == ({"command": "pwd"}, False)
    assert isinstance(edited, Permitted)
    assert (edited.arguments, edited.edited, edited.by) == ({"command": "ls"}, True, "ann")


async def test_a_no_holds_though_others_that_may_decide_say_nothing(meeting: Meeting) -> None:
    """As a reviewer that asks people does: it is present, may decide, and leaves it to them."""

    async def leave_it(proposal: Proposal) -> None:
        pass

    async def refuse(proposal: Proposal) -> None:
        await proposal.reject("unsafe", explain="not on Fridays")

    reviewer = Agent("mallory")
    reviewer.on_proposal(tool="*")(leave_it)
    async with doors(meeting, reviewer, approver(refuse)) as ((door,), _):
        answer = await door.ask(bash("make"))
    assert isinstance(answer, Denied)
    assert (answer.why, answer.by, answer.reason) == (Why.REJECTED, "ann", "unsafe")


@pytest.mark.rule("4.20.connection")
async def test_each_permit_comes_to_the_door_that_asked(meeting: Meeting) -> None:
    """Beside an agent of the same participant, which runs a tool of that name by request."""
    coder = Agent("coder")
    ran: list[str] = []

    @coder.tool(name="Bash")
    async def run(command: str) -> None:
        ran.append(command)

    answers: dict[str, Any] = {}

    async def ask(door: Door, command: str) -> None:
        answers[command] = await door.ask(bash(command))

    async with (
        doors(meeting, coder, approver(fulfill), count=3) as (three, _),
        anyio.create_task_group() as tasks,
    ):
        for number in range(9):
            tasks.start_soon(ask, three[number % 3], f"echo {number}")
    assert {each.arguments["command"] for each in answers.values()} == set(answers)
    assert len(answers) == 9
    assert ran == []


@pytest.mark.rule("4.20.edits")
async def test_an_edit_that_the_host_cannot_run_is_a_denial(meeting: Meeting) -> None:
    refused = anyio.Event()

    async def decide(proposal: Proposal) -> None:
        outcome = await proposal.fulfill({"command": "ls"})
        assert outcome.error is not None
        assert outcome.error["data"] == {"reason": "refused"}
        refused.set()

    async with doors(meeting, approver(decide)) as ((door,), (ann,)):
        answer = await door.ask(bash("rm", edits=False))
        assert isinstance(answer, Denied)
        assert answer.why is Why.EDITED
        await until(lambda: ann.proposals[0].state == "withdrawn")


@pytest.mark.parametrize(
    ("proposed", "given"), [(1, True), (0, False), ([1], [True]), ({"a": 1}, {"a": True})]
)
@pytest.mark.rule("4.20.edits")
async def test_what_python_takes_for_the_same_is_an_edit(
    meeting: Meeting, proposed: Any, given: Any
) -> None:
    async def decide(proposal: Proposal) -> None:
        await proposal.fulfill({"n": given})

    async with doors(meeting, approver(decide)) as ((door,), _):
        call = HostCall("Bash", {"n": proposed}, agent="gemini", edits=False)
        answer = await door.ask(call)
        assert isinstance(answer, Denied)
        assert answer.why is Why.EDITED
        answer = await door.ask(replace(call, edits=True))
        assert isinstance(answer, Permitted)
        assert repr(answer.arguments) == repr({"n": given})


async def test_an_id_that_comes_again_with_what_python_takes_for_the_same_is_denied(
    meeting: Meeting,
) -> None:
    async with doors(meeting, approver(fulfill)) as ((door,), _):
        call = HostCall("Bash", {"n": 1}, agent="codex", session="s1", call_id="c1")
        assert isinstance(await door.ask(call), Permitted)
        assert isinstance(await door.ask(replace(call, arguments={"n": True})), Denied)
        assert isinstance(await door.ask(replace(call, session="s2")), Permitted)


@pytest.mark.rule("4.20.watched")
async def test_what_is_only_watched_is_permitted_by_nobody(meeting: Meeting) -> None:
    """However late it is taken back."""

    async def decide(proposal: Proposal) -> None:
        with suppress(MeupError):
            await proposal.fulfill()
        refused.set()

    refused = anyio.Event()
    async with doors(meeting, approver(decide)) as ((door,), (ann,)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(door.ask, bash("ls", watched=True))
            await refused.wait()
            tasks.cancel_scope.cancel()
        await until(lambda: ann.proposals[0].state == "withdrawn")
        assert ann.proposals[0].report is None


async def test_what_is_rejected_tells_the_model_why(meeting: Meeting) -> None:
    async def decide(proposal: Proposal) -> None:
        await proposal.reject("unsafe", explain="never on\x1b[2J Fridays")

    async with doors(meeting, approver(decide)) as ((door,), _):
        answer = await door.ask(bash("rm -rf /"))
    assert isinstance(answer, Denied)
    assert (answer.why, answer.by, answer.reason) == (Why.REJECTED, "ann", "unsafe")
    assert "never on" in answer.words
    assert "\x1b" not in answer.words
    assert "nor try to do the same by another way" in answer.words


async def test_silence_denies_and_says_that_nobody_decided(meeting: Meeting) -> None:
    async with doors(meeting, "ann") as ((door,), _):
        answer = await door.ask(bash("ls"), ttl=0.05)
    assert isinstance(answer, Denied)
    assert answer.why is Why.EXPIRED
    assert "do not try to do the same by another way" in answer.words


async def test_what_may_not_be_proposed_is_denied(meeting: Meeting) -> None:
    async with doors(meeting, name="deaf") as ((door,), _):
        answer = await door.ask(bash("ls"))
    assert isinstance(answer, Denied)
    assert answer.why is Why.UNREACHABLE
    assert "nobody could decide" in answer.words


async def test_a_cancelled_wait_withdraws_and_is_permitted_no_more(meeting: Meeting) -> None:
    async with doors(meeting, "ann") as ((door,), (ann,)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(door.ask, bash("ls"))
            await until(lambda: len(ann.proposals) == 1)
            tasks.cancel_scope.cancel()
        record = ann.proposals[0]
        await until(lambda: record.state == "withdrawn")
        with pytest.raises(AlreadyDecided):
            await ann.proposals.get(record).fulfill()


@pytest.fixture
def with_file(tmp_path: Path) -> Generator[Meeting]:
    """A gateway that remembers when it is started again."""
    config = one_space_config("demo", PARTICIPANTS)
    config = replace(config, journal=JournalConfig(tmp_path / "journal.db"))
    with Gateway(config=config).in_thread() as gateway:
        yield OverSockets(gateway)


async def ask_and_interrupt(meeting: Meeting, interrupt: Callable[[], object]) -> object:
    """The answer to a call that is decided once the door has come back."""
    answers: list[object] = []
    async with doors(meeting, "ann") as ((door,), (ann,)):
        space = door.space
        assert space is not None

        async def ask() -> None:
            answers.append(await door.ask(bash("ls")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await until(lambda: len(ann.proposals) == 1)
            interrupt()
            await until(lambda: not space.connected)
            await until(lambda: space.connected and ann.connected)
            await ann.proposals.get(ann.proposals[0]).fulfill()
    (answer,) = answers
    return answer


@pytest.mark.rule("3.beside.own", "4.20.permit")
async def test_one_that_lost_its_connection_is_permitted_on_the_next(meeting: Meeting) -> None:
    answer = await ask_and_interrupt(meeting, lambda: meeting.drop("coder"))
    assert isinstance(answer, Permitted)


@pytest.mark.rule("3.beside.own", "4.20.permit")
async def test_one_whose_gateway_starts_again_is_permitted(with_file: Meeting) -> None:
    assert isinstance(await ask_and_interrupt(with_file, with_file.restart), Permitted)


@pytest.mark.rule("4.20.permit")
async def test_no_request_but_a_permit_is_answered(meeting: Meeting) -> None:
    """Not one of its own accord, and not one for another's proposal to the door."""
    async with doors(meeting, "ann", "mallory") as ((door,), (ann, mallory)):
        assert door.space is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(door.ask, bash("ls"))
            await until(lambda: len(ann.proposals) == 1)
            async with mallory.propose("coder", "Bash", {"command": "ls"}) as copied:
                await until(lambda: len(ann.proposals) == 2)
                with pytest.raises(Exception, match="not_answering"):
                    await ann.proposals.get(copied.id).fulfill()
            assert ann.proposals[0].state == "pending"
            tasks.cancel_scope.cancel()


@pytest.mark.rule("4.20.one_call")
async def test_one_call_is_one_proposal_and_has_one_answer(meeting: Meeting) -> None:
    answers: list[Any] = []

    async def decide(proposal: Proposal) -> None:
        if proposal.arguments["command"] == "rm":
            await proposal.reject("unsafe")
        else:
            await proposal.fulfill()

    async with doors(meeting, approver(decide)) as ((door,), (ann,)):
        for command in ("ls", "rm"):
            call = bash(command, session="s1", call_id=f"toolu_{command}")
            answers.clear()

            async def ask(call: HostCall = call) -> None:
                answers.append(await door.ask(call))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                tasks.start_soon(ask)
            await ask()
            assert answers[0] == answers[1] == answers[2]
        other = await door.ask(bash("rm -rf /", session="s1", call_id="toolu_ls"))
        assert isinstance(other, Denied)
        assert len(ann.proposals) == 2
        await door.ask(bash("ls", session="s2", call_id="toolu_ls"))
        assert len(ann.proposals) == 3


async def test_a_wait_goes_on_for_another_that_asks_as_the_first_hangs_up(meeting: Meeting) -> None:
    call = bash("ls", session="s1", call_id="toolu_1")
    answered = anyio.Event()
    async with doors(meeting, "ann") as ((door,), (ann,)), anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as first:
            first.start_soon(door.ask, call)
            await until(lambda: len(ann.proposals) == 1)

            async def second() -> None:
                assert isinstance(await door.ask(call), Permitted)
                answered.set()

            tasks.start_soon(second)
            first.cancel_scope.cancel()
        await until(lambda: len(ann.proposals) == 2)
        await ann.proposals.get(ann.proposals[1]).fulfill()
        await answered.wait()


@pytest.mark.rule("4.20.one_way")
async def test_nothing_reopens_what_was_permitted(meeting: Meeting) -> None:
    """Not the withdraw of its proposer, not its approver's cancel, and not that these leave."""
    async with doors(meeting, "mallory") as ((door,), (watching,)):
        async with join(meeting, approver(fulfill)):
            answer = await door.ask(bash("make"))
        assert isinstance(answer, Permitted)
        assert door.space is not None
        await door.space.send("mcp/withdraw", {"reason": "other"}, correlation=answer.proposal)
        record = next(each for each in watching.proposals if each.id == answer.proposal)
        await watching.send("chat", {"message": "a mark behind that"})
        with pytest.raises(AlreadyDecided, match="permitted"):
            await watching.proposals.get(record).fulfill()
        assert record.state == "permitted"
        listed = [each async for each in watching.proposals.list(state="decided")]
        assert [(each.state, each.decided_by, each.report) for each in listed] == [
            ("permitted", "ann", None)
        ]


@pytest.mark.rule("4.20.report")
async def test_what_came_of_it_is_reported_once_by_its_executor(meeting: Meeting) -> None:
    async with doors(meeting, approver(fulfill), "mallory") as ((door,), (ann, mallory)):
        answer = await door.ask(bash("make"))
        assert isinstance(answer, Permitted)
        record = ann.proposals[0]
        said = {"outcome": "completed", "output": "forged"}
        with pytest.raises(Refused, match="not yours"):
            await reports(mallory, said, answer.proposal)
        report = PermitReport.of(ReportedOutcome.FAILED, "x" * 5_000, exit_code=2)
        assert door.report(answer.proposal, report)
        assert not door.report(answer.proposal, report)
        await until(lambda: record.state == "fulfilled")
        assert record.report == report
        assert record.has_failed
        assert (len(report.output), report.cut, record.decided_by) == (2_000, True, "ann")
        assert door.space is not None
        for wrong in (said, {"outcome": "late"}, {"outcome": "failed", "output": "x" * 2_001}):
            with pytest.raises(Refused):
                await reports(door.space, wrong, answer.proposal)
        (listed,) = [each async for each in mallory.proposals.list(state="decided")]
        assert (listed.state, listed.report, listed.has_failed) == ("fulfilled", report, True)


async def test_the_card_counts_what_the_agent_reports_to_have_failed(meeting: Meeting) -> None:
    async with doors(meeting, "ann", "mallory") as ((door,), (ann, other)), Inbox(ann) as inbox:
        async with anyio.create_task_group() as tasks:
            for outcome in (ReportedOutcome.COMPLETED, ReportedOutcome.FAILED):
                tasks.start_soon(door.ask, bash(outcome))
                await until(lambda: len(inbox) == 1)
                [item] = inbox.items
                await inbox.approve(item)
                assert door.report(item.id, PermitReport.of(outcome, ""))
            tasks.start_soon(door.ask, bash("next"))
            await until(lambda: len(inbox) == 1 and inbox.items[0].record.failed == 1)
            live = inbox.items[0].record
            assert live.counts == {ProposalState.FULFILLED: 2}
            async with Inbox(other) as late:
                assert late.items[0].record == live
            tasks.cancel_scope.cancel()


@pytest.mark.rule("4.20.report")
async def test_a_call_that_ran_all_the_same_is_told_once_and_stays_as_it_was(
    meeting: Meeting,
) -> None:
    async def reject(proposal: Proposal) -> None:
        await proposal.reject("unsafe")

    async with doors(meeting, approver(reject)) as ((door,), (ann,)):
        answer = await door.ask(bash("make"))
        assert isinstance(answer, Denied)
        record = ann.proposals[0]
        assert door.space is not None
        with pytest.raises(Refused, match="it is rejected"):
            await reports(door.space, {"outcome": "not_run"}, answer.proposal)
        report = PermitReport.of(ReportedOutcome.FAILED, "no", exit_code=2)
        assert door.report(answer.proposal, report)
        await until(lambda: record.report == report)
        assert (record.state, record.decided_by) == ("rejected", "ann")
        with pytest.raises(Refused, match="it is rejected"):
            await reports(door.space, {"outcome": "completed"}, answer.proposal)
        async with ann.propose("ann", "other", {}) as mine:
            await mine.withdraw()
            with pytest.raises(Refused, match="is to be reported"):
                await reports(ann, {"outcome": "completed"}, mine.id)


async def reports(space: Space, said: dict[str, Any], proposal: str) -> None:
    """Say it, and wait for what the gateway answers."""
    with space.watch(lambda each: each.kind == "system/error") as errors:
        await space.send("mcp/report", said, correlation=proposal)
        error = (await anext(errors)).payload_object
    raise Refused(error["error"], error["message"], error)


POLICY = """
rules:
  - allow: {tool: Bash, arguments: {command: "ls"}}
  - deny: {tool: Bash, arguments: {command: "rm*"}, reason: unsafe}
end: true
"""


async def test_a_policy_decides_by_the_call_alone(meeting: Meeting, tmp_path: Path) -> None:
    """No list has a tool that an agent runs itself, and none is asked for."""
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    reviewer = Reviewer(file).join(meeting.connector("ann"), token=meeting.token("ann"))
    async with reviewer, doors(meeting) as ((door,), _):
        assert isinstance(await door.ask(bash("ls")), Permitted)
        denied = await door.ask(bash("rm -rf /"))
        assert isinstance(denied, Denied)
        assert (denied.why, denied.by, denied.reason) == (Why.REJECTED, "ann", "unsafe")


async def test_a_person_is_offered_no_edit_where_the_agent_takes_none(meeting: Meeting) -> None:
    """And is not warned that its tools are not known, which no list has."""
    async with doors(meeting, "ann") as ((door,), (ann,)), Inbox(ann) as inbox:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(door.ask, bash("ls", edits=False, cwd="/work", terminal=True))
            await until(lambda: len(inbox.items) == 1)
            (item,) = inbox.items
            assert (item.takes_edits, item.danger, item.call.folder) == (False, (), "/work")
            assert AT_TERMINAL in [row.plain for row in card_rows(item, ShownValue())]
            with pytest.raises(NotOffered, match="only as it has proposed them"):
                await inbox.approve(item, {"command": "pwd"})
            assert await inbox.approve(item) is not None


async def test_a_kept_permit_is_had_or_not_also_by_a_host_that_hangs_up(meeting: Meeting) -> None:
    call = bash("make", session="s1", call_id="t1")
    async with doors(meeting, approver(fulfill)) as ((door,), (ann,)):
        kept = await door.ask(call, is_away=lambda: True)
        assert isinstance(kept, Permitted)
        answer: Answer = kept
        with anyio.CancelScope() as scope:
            scope.cancel()
            answer = await door.spend(call, kept)
        assert answer == replace(kept, kept=False)  # so its caller can tell that it did not run
        report = ann.proposals[0].report
        assert report == PermitReport(ReportedOutcome.TAKEN)
        assert str(report) == "its agent, which was away, has come back for the permit"


async def test_a_door_that_is_in_no_space_says_so() -> None:
    with pytest.raises(UsageError, match="in no space"):
        await Door().ask(bash("ls"))


async def test_a_door_that_has_left_hands_no_kept_permit_out() -> None:
    kept = Permitted("p", {"command": "ls"}, "ann", kept=True)
    answer = await Door().spend(bash("ls", session="s1", call_id="t1"), kept)
    assert isinstance(answer, Denied)
    assert answer.why is Why.UNREACHABLE


@pytest.mark.rule("4.20.kept")
async def test_of_two_doors_that_recall_a_kept_permit_one_hands_it_out(meeting: Meeting) -> None:
    call = bash("make", session="s1", call_id="t1")
    async with doors(meeting, approver(fulfill)) as ((door,), (ann,)):
        kept = await door.ask(call, is_away=lambda: True)
        assert isinstance(kept, Permitted)
        assert kept.kept
        async with doors(meeting, count=2) as (others, _):
            for each in others:
                await each.recall()
            answers: list[Answer] = []

            async def ask(other: Door) -> None:
                answers.append(await other.ask(call))

            async with anyio.create_task_group() as tasks:
                for each in others:
                    tasks.start_soon(ask, each)
            answers.append(await door.spend(call, kept))
            permits = [each for each in answers if isinstance(each, Permitted)]
            assert permits == [replace(kept, kept=False)]
            denied = {each.why for each in answers if isinstance(each, Denied)}
            assert denied == {Why.RUN_BEFORE}
        record = ann.proposals[0]
        assert (record.state, record.report) == ("permitted", PermitReport(ReportedOutcome.TAKEN))
        assert door.report(kept.proposal, PermitReport(ReportedOutcome.COMPLETED))
        await until(lambda: record.state == "fulfilled")
        assert door.space is not None
        with pytest.raises(Refused, match="it is fulfilled"):
            await reports(door.space, {"outcome": "taken"}, kept.proposal)
        assert record.report == PermitReport(ReportedOutcome.COMPLETED)
        assert len(ann.proposals) == 1


@pytest.mark.rule("4.20.kept")
async def test_a_door_that_was_away_is_told_that_another_has_handed_it_out(
    meeting: Meeting,
) -> None:
    call, latch = bash("make", session="s1", call_id="t1"), Latch()
    answers: list[Answer] = []
    async with doors(meeting, approver(fulfill)) as ((door,), _):
        kept = await door.ask(call, is_away=lambda: True)
        dial, token = latch(meeting.connector("coder")), meeting.token("coder")
        async with Door().join(dial, token=token, settings=QUICK) as other:
            await other.recall()
            assert other.space is not None
            await keep_away(meeting, latch, other.space)

            async def ask() -> None:
                answers.append(await other.ask(call))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                assert isinstance(await door.spend(call, kept), Permitted)
                latch.closed = False
    (answer,) = answers
    assert isinstance(answer, Denied)
    assert answer.why is Why.RUN_BEFORE


@pytest.mark.rule("4.20.one_call")
async def test_what_a_door_before_left_open_is_taken_back_as_its_host_asks_again(
    meeting: Meeting,
) -> None:
    call = bash("make", session="s1", call_id="t1")
    async with doors(meeting, "ann", count=2) as ((before, door), (ann,)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(before.ask, call)
            await until(lambda: len(ann.proposals) == 1)
            await door.recall()
            tasks.start_soon(door.ask, call)
            await until(lambda: len(ann.proposals) == 2)
            assert [each.state for each in ann.proposals] == ["withdrawn", "pending"]
            tasks.cancel_scope.cancel()
