"""An inbox: what waits, in which order, what takes it away, and what decides it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from meup_agent import Agent, Context, Fulfillment, Proposal, Reason, Rejection, Space
from meup_agent.approval import (
    Departure,
    Inbox,
    InboxChanges,
    InboxItem,
    InboxRenewed,
    ItemArrived,
    ItemChanged,
    ItemLeft,
    Verb,
)
from meup_agent.cli.render.card import ShownValue, card_rows
from meup_agent.errors import AlreadyDecided, AlreadyInProgress, MeupError, NotOffered
from tests.interaction.cast import calculator
from tests.interaction.people import Meeting, ended, gathered, join, until
from tests.interaction.views import session_of
from tests.patience import PATIENCE
from tests.tables import ProposalKey


@asynccontextmanager
async def opened(
    meeting: Meeting, *others: Agent | str
) -> AsyncGenerator[tuple[Inbox, InboxChanges, Space, Space]]:
    """The inbox of ``reviewer``, its changes, the space of a proposer, and that of ``reviewer``."""
    async with gathered(meeting, calculator(), "reviewer", "proposer", *others) as spaces:
        _, reviewer, proposer, *_ = spaces
        async with Inbox(reviewer) as inbox:
            yield inbox, inbox.changes(), proposer, reviewer


async def arrived(changes: InboxChanges) -> InboxItem:
    while not isinstance(change := await anext(changes), ItemArrived):
        pass
    return change.item


async def left(changes: InboxChanges) -> ItemLeft:
    while not isinstance(change := await anext(changes), ItemLeft):
        pass
    return change


async def test_a_proposal_arrives_and_is_carried_out(meeting: Meeting) -> None:
    async with opened(meeting) as (inbox, changes, proposer, _):
        async with proposer.propose("tools", "add", {"a": 1, "b": 2}, ttl=60) as proposal:
            item = await arrived(changes)
            assert inbox.items == [item]
            assert (item.proposer, item.target, item.tool) == ("proposer", "tools", "add")
            assert item.arguments == {"a": 1, "b": 2}
            assert item.may == {Verb.APPROVE, Verb.REJECT}
            assert item.deadline is not None
            result = await inbox.approve(item)
            assert result is not None
            assert result.result() == 3
            assert await proposal.result() == 3
        gone = await left(changes)
        assert (gone.item, gone.why, gone.by) == (item, Departure.APPROVED, "reviewer")
        assert item.left == gone
        assert inbox.items == []


@pytest.mark.rule("4.4.inbox")
async def test_a_second_decision_is_refused(meeting: Meeting) -> None:
    async with opened(meeting) as (inbox, changes, proposer, _):
        async with proposer.propose("tools", "add", {"a": 1, "b": 2}, to="reviewer") as proposal:
            item = await arrived(changes)
            await inbox.reject(item, Reason.UNSAFE, "not today")
            outcome = await ended(proposal, Rejection)
            assert outcome.reason == "unsafe"
            assert await outcome.explanation() == "not today"
            for decide in (inbox.approve(item), inbox.reject(item, Reason.BUSY)):
                with pytest.raises(AlreadyDecided, match="is rejected"):
                    await decide
        assert (await left(changes)).words == "rejected by reviewer: unsafe"
        assert inbox.items == []


async def test_what_another_says_of_it_meanwhile_stands_on_its_card(meeting: Meeting) -> None:
    second, seen = Agent("second"), anyio.Event()

    @second.on_proposal
    async def consider(proposal: Proposal, ctx: Context) -> None:
        await seen.wait()
        ctx.progress(0.1, message="behind two others")

    async with opened(meeting, second) as (_, changes, proposer, _):
        async with proposer.propose("tools", "add", {"a": 1, "b": 2}, on_progress=print):
            item = await arrived(changes)
            assert item.told == {}
            seen.set()
            while not item.told:
                assert isinstance(await anext(changes), ItemChanged)
            assert item.told == {"second": "behind two others"}
            # Who comes later is told by the gateway.
            async with join(meeting, "deep") as later, Inbox(later) as inbox:
                await inbox.settle()
                assert [each.told for each in inbox.items] == [item.told]
            card = [each.plain for each in card_rows(item, ShownValue())]
            assert "second says: behind two others" in card


async def test_a_withdrawal_takes_away_exactly_one_with_why(meeting: Meeting) -> None:
    async with opened(meeting) as (inbox, changes, proposer, _):
        async with proposer.propose("tools", "add", {"a": 1, "b": 2}):
            kept = await arrived(changes)
            async with proposer.propose("tools", "add", {"a": 3, "b": 4}) as second:
                withdrawn = await arrived(changes)
                await second.withdraw(Reason.NO_LONGER_NEEDED)
            gone = await left(changes)
            assert gone.item is withdrawn
            assert gone.words == "withdrawn by proposer: no_longer_needed"
            assert inbox.items == [kept]
            with pytest.raises(AlreadyDecided):
                await inbox.approve(withdrawn)


async def test_the_decision_of_another_takes_it_away(meeting: Meeting) -> None:
    async with opened(meeting, "second") as (inbox, changes, proposer, _):
        async with join(meeting, "mallory") as other, Inbox(other) as theirs:
            others = theirs.changes()
            async with proposer.propose("tools", "add", {"a": 1, "b": 2}) as proposal:
                item, same = await arrived(changes), await arrived(others)
                await theirs.approve(same)
                gone = await left(changes)
                assert (gone.item, gone.why, gone.by) == (item, Departure.APPROVED, "mallory")
                with pytest.raises((AlreadyDecided, AlreadyInProgress)):
                    await inbox.approve(item)
                assert await proposal.result() == 3


async def test_the_oldest_deadline_is_first(meeting: Meeting) -> None:
    async with opened(meeting) as (inbox, changes, proposer, _):
        async with (
            proposer.propose("tools", "add", {"a": 1, "b": 1}, ttl=None),
            proposer.propose("tools", "add", {"a": 2, "b": 2}, ttl=600),
            proposer.propose("tools", "add", {"a": 3, "b": 3}, ttl=60),
            proposer.propose("tools", "add", {"a": 4, "b": 4}, ttl=None),
        ):
            for _ in range(4):
                await arrived(changes)
            assert [item.arguments["a"] for item in inbox.items] == [3, 2, 1, 4]


async def test_a_cancelled_approval_lets_it_wait_again(meeting: Meeting) -> None:
    slow = Agent("deep")
    started = anyio.Event()

    @slow.tool
    async def think() -> None:
        started.set()
        await anyio.sleep_forever()

    async with opened(meeting, slow) as (inbox, changes, proposer, _):
        async with proposer.propose("deep", "think"):
            item = await arrived(changes)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(inbox.approve, item)
                await started.wait()
                assert inbox.items == []
                tasks.cancel_scope.cancel()
            with anyio.fail_after(PATIENCE):
                assert await arrived(changes) is item
            assert item.left is None
            # Who decides it again is told, and asked twice: it may have run in part.
            assert "it may have run in part" in item.danger[0]
            assert "reviewer approved it before" in item.danger[0]


async def test_nothing_is_offered_to_who_may_nothing(meeting: Meeting) -> None:
    async with opened(meeting) as (_, changes, proposer, _):
        async with join(meeting, "observer") as other, Inbox(other) as theirs:
            async with proposer.propose("tools", "add", {"a": 1, "b": 2}):
                await arrived(changes)
                assert theirs.items == []


async def test_a_target_that_is_not_here_can_be_rejected_only(meeting: Meeting) -> None:
    async with opened(meeting) as (inbox, changes, proposer, _):
        async with proposer.propose("deep", "think"):
            item = await arrived(changes)
            assert item.may == {Verb.REJECT}
            with pytest.raises(NotOffered, match="'deep', who is not here"):
                await inbox.approve(item)
            async with join(meeting, "deep"):
                while item.may != {Verb.APPROVE, Verb.REJECT}:
                    await anext(changes)
            assert inbox.items == [item]


async def test_the_tools_of_a_target_are_asked_for_when_it_comes(meeting: Meeting) -> None:
    async with (
        gathered(meeting, "reviewer", "proposer") as (reviewer, proposer),
        Inbox(reviewer) as inbox,
    ):
        changes = inbox.changes()
        async with proposer.propose("tools", "add", {"a": 1, "b": 2}):
            item = await arrived(changes)
            assert not knows_tools(item)
            # And when it comes back: its tools may be others by then.
            for _ in range(2):
                async with join(meeting, calculator()):
                    while not knows_tools(item):
                        await changes.__anext__()
                while knows_tools(item):
                    await changes.__anext__()


def knows_tools(item: InboxItem) -> bool:
    return item.tool_facts is not None and "properties" in item.tool_facts.schema


async def test_several_are_approved_by_an_explicit_list(meeting: Meeting) -> None:
    async with opened(meeting) as (inbox, changes, proposer, _):
        async with (
            proposer.propose("tools", "add", {"a": 1, "b": 1}),
            proposer.propose("tools", "add", {"a": 2, "b": 2}),
        ):
            items = [await arrived(changes), await arrived(changes)]
            done = await inbox.approve_all([*items, items[0]])
        assert [each.fulfillment and each.fulfillment.result() for each in done] == [2, 4]
        again = await inbox.approve_all(items)
        assert [type(each.error) for each in again] == [AlreadyDecided] * 2


async def test_what_the_gateway_did_not_tell_of_at_the_join_waits_too(meeting: Meeting) -> None:
    """Of many open proposals a newcomer is told of a part, and the rest is listed."""
    async with opened(meeting) as (inbox, changes, proposer, reviewer):
        async with (
            proposer.propose("tools", "add", {"a": 1, "b": 2}) as proposal,
            proposer.propose("tools", "add", {"a": 3, "b": 4}) as withdrawn,
        ):
            told = [(await arrived(changes)).envelope, (await arrived(changes)).envelope]
            async with join(meeting, "second") as late:
                for each in told:
                    key = ProposalKey(each.sender, each.id)
                    session_of(late).table.proposal_store.forget(key)
                await withdrawn.withdraw(Reason.NO_LONGER_NEEDED)
                await left(changes)
                async with Inbox(late) as theirs:
                    [item] = theirs.items
                    assert await theirs.approve(item) is not None
                    assert await proposal.result() == 3
        assert reviewer.me == inbox.me


async def test_two_people_approve_at_once_and_it_runs_once(meeting: Meeting) -> None:
    runs: list[int] = []
    counter = Agent("deep")

    @counter.tool
    async def count() -> int:
        runs.append(1)
        return len(runs)

    async with opened(meeting, counter) as (inbox, changes, proposer, _):
        async with join(meeting, "second") as other, Inbox(other) as theirs:
            others = theirs.changes()
            async with proposer.propose("deep", "count") as proposal:
                mine, same = await arrived(changes), await arrived(others)
                outcomes: list[object] = []

                async def approve(box: Inbox, item: InboxItem) -> None:
                    try:
                        outcomes.append(await box.approve(item))
                    except MeupError as error:
                        outcomes.append(error)

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(approve, inbox, mine)
                    tasks.start_soon(approve, theirs, same)
                assert await proposal.result() == 1
    assert runs == [1]
    done = [each for each in outcomes if isinstance(each, Fulfillment) and not each.is_error]
    assert len(done) == 1
    assert (inbox.items, theirs.items) == ([], [])


async def test_a_flood_hides_no_others(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.approval.inbox.rules.MAX_OF_A_PROPOSER", 2)
    async with opened(meeting, "second") as (inbox, changes, proposer, _):
        async with (
            proposer.propose("tools", "add", {"a": 1, "b": 1}),
            proposer.propose("tools", "add", {"a": 2, "b": 2}),
            proposer.propose("tools", "add", {"a": 3, "b": 3}),
            join(meeting, "mallory") as other,
            other.propose("tools", "add", {"a": 4, "b": 4}),
        ):
            found = [(await arrived(changes)).arguments["a"] for _ in range(3)]
        assert found == [1, 2, 4]
        assert inbox.left_out == 1


async def test_many_are_listed_in_turns(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAX_AT_FIRST", 1), ("MAX_AWAITED", 0), ("MAX_AT_A_TURN", 1)):
        monkeypatch.setattr(f"meup_agent.approval.inbox.item.{name}", value)
    async with opened(meeting) as (_, changes, proposer, reviewer):
        async with (
            proposer.propose("tools", "add", {"a": 1, "b": 1}, ttl=None),
            proposer.propose("tools", "add", {"a": 2, "b": 2}, ttl=60),
            proposer.propose("tools", "add", {"a": 3, "b": 3}, ttl=600),
        ):
            for _ in range(3):
                await arrived(changes)
            async with Inbox(reviewer) as late:
                news = late.changes()
                assert [item.arguments["a"] for item in late.items] == [2]
                await late.settle(PATIENCE)
                assert [item.arguments["a"] for item in late.items] == [2, 3, 1]
                assert any(isinstance(each, InboxRenewed) for each in news.taken())


async def test_a_slow_reader_is_renewed(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.approval.inbox.item.MAX_CHANGES", 2)
    async with opened(meeting) as (inbox, slow, proposer, _):
        for number in range(3):
            async with proposer.propose("tools", "add", {"a": number, "b": 0}):
                await until(lambda: len(inbox) == 1)
            await until(lambda: not len(inbox))
        assert any(isinstance(each, InboxRenewed) for each in slow.taken())
