"""Decided proposals of before: an inbox that opens later tells what one that was there does."""

import pytest

from meup_agent import Agent, ProposalState, Reason
from meup_agent.approval import DecidedItem, Inbox
from meup_agent.approval.inbox.item import MAX_CALL_CHARS, DecisionHistory
from meup_agent.errors import ToolError
from tests.interaction.cast import calculator
from tests.interaction.people import InMemory, gathered, join, until
from tests.wire import TARGET, Call

DECIDED = ProposalState.FULFILLED


async def test_who_comes_later_is_told_what_an_inbox_saw() -> None:
    meeting = InMemory()
    people = (calculator(), "reviewer", "proposer", "observer")
    async with gathered(meeting, *people) as (_, reviewer, proposer, _), Inbox(reviewer) as inbox:
        for number in range(4):
            to = ["reviewer"] if number == 1 else ()
            async with proposer.propose(
                "tools", "add", {"a": number, "b": 1}, to=to, ttl=60
            ) as proposal:
                await until(lambda: len(inbox) == 1)
                [item] = inbox.items
                if number == 0:
                    await inbox.approve(item)
                elif number == 1:
                    await inbox.reject(item, Reason.UNSAFE)
                    await proposal.outcome()
                elif number == 2:
                    await proposal.withdraw(Reason.OTHER)
                else:
                    await proposal.withdraw(Reason.TIMEOUT)
            await until(lambda: not len(inbox))
        async with proposer.propose("tools", "add", {"a": 9, "b": 2}) as open_one:
            await until(lambda: len(inbox) == 1)
            assert open_one.state.is_pending
            live = inbox.record(inbox.items[0])
            async with join(meeting, "second") as late, Inbox(late) as theirs:
                await until(lambda: len(theirs) == 1)
                [item] = theirs.items
                assert item.record.counts == live.counts
                endings = item.record.endings
                assert endings == live.endings
                assert [(each.state, each.by, each.reason) for each in reversed(endings)] == [
                    (ProposalState.FULFILLED, "reviewer", ""),
                    (ProposalState.REJECTED, "reviewer", "unsafe"),
                    (ProposalState.WITHDRAWN, "proposer", "other"),
                    (ProposalState.WITHDRAWN, "proposer", "timeout"),
                ]
                similar, seen = item.similar, inbox.items[0].similar
                assert similar is not None
                assert seen is not None
                assert similar.past.id == seen.past.id
                assert [each.path for each in similar.changes] == ["arguments.a", "arguments.b"]
                assert similar.changes == seen.changes


async def test_a_call_that_failed_is_counted_as_such_live_and_listed() -> None:
    meeting, tools = InMemory(), Agent("tools")

    @tools.tool
    async def add(a: int, b: int) -> int:
        if a == 0:
            raise ToolError("there is nothing to add")
        return a + b

    async with gathered(meeting, tools, "reviewer", "proposer") as (_, me, proposer):
        async with Inbox(me) as inbox:
            for number in (0, 1):
                async with proposer.propose("tools", "add", {"a": number, "b": 2}) as proposal:
                    await until(lambda: len(inbox) == 1)
                    await inbox.approve(inbox.items[0])
                    await proposal.outcome()
            async with proposer.propose("tools", "add", {"a": 9, "b": 2}):
                await until(lambda: len(inbox) == 1)
                async with join(meeting, "second") as late, Inbox(late) as theirs:
                    await until(lambda: len(theirs) == 1)
                    for item in (inbox.items[0], theirs.items[0]):
                        assert [each.failed for each in item.record.endings] == [False, True]
                        assert (item.record.failed, item.record.counts) == (1, {DECIDED: 2})


def past_with(text: str) -> DecidedItem:
    params = {"name": "add", "arguments": {"text": text}, "_meta": {TARGET: "tools"}}
    return DecidedItem("p", "bot", Call("tools/call", params), DECIDED)


@pytest.mark.parametrize(("length", "compares"), [(10, True), (MAX_CALL_CHARS, False)])
def test_a_large_call_of_before_is_compared_with_nothing(length: int, compares: bool) -> None:
    history = DecisionHistory()
    past = past_with("x" * length)
    history.note(past)
    assert (history.similar(past.call) is not None) is compares
    assert history.record("bot").counts == {DECIDED: 1}


def test_what_was_decided_before_is_remembered_behind_what_is_known() -> None:
    """Read late, it stands where it would have stood."""

    def past(number: int, text: str, proposer: str = "bot") -> DecidedItem:
        call = Call("tools/call", {"name": "write", "arguments": {"text": text}})
        return DecidedItem(f"p{number}", proposer, call, DECIDED)

    history = DecisionHistory()
    history.note(past(3, "newest"))
    history.note_before(
        [past(1, "oldest"), past(2, "older"), past(3, "newest"), past(1, "", "eve")]
    )
    assert [each.id for each in history.record("bot").endings] == ["p3", "p2", "p1"]
    assert [each.id for each in history.record("eve").endings] == ["p1"]
    similar = history.similar(past(9, "").call)
    assert similar is not None
    assert similar.past.id == "p3"
    # It comes once, whether it is read again or heard.
    history.note(past(1, "oldest"))
    assert len(history.record("bot").endings) == 3


def test_no_more_is_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.approval.inbox.item.MAX_PROPOSERS", 2)
    history = DecisionHistory()
    call = Call("tools/call", {"name": "write"})
    history.note(DecidedItem("1", "new", call, DECIDED))
    history.note_before(DecidedItem("1", name, call, DECIDED) for name in ("old", "later"))
    known = [name for name in ("old", "later", "new") if history.record(name).endings]
    assert known == ["later", "new"]
