"""Calls are checked by the list of tools that is known."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Proposal, Space
from meup_agent.client import offers
from meup_agent.errors import InvalidArguments, RequestError
from tests.interaction.offer_lists import READ, WRITE, ask, lister, writer
from tests.interaction.people import Meeting, Notes, gathered, join, until
from tests.interaction.views import Tape, run_within, session_of, taped
from tests.wire import kinds, payloads

WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "'path' is required"),
    ({"path": 3}, "'path' should be string, not number"),
    ({"path": "a", "size": "big"}, "'size' should be integer, not string"),
    ({"path": "a", "mode": 1}, "'mode' is not known; there is 'path', 'size'"),
]


async def nothing_is_sent(
    tape: Tape, space: Space, verb: Callable[[], Awaitable[object]], match: str
) -> InvalidArguments:
    """The verb refuses, and says nothing."""
    await tape.all_said(space)  # the list that was asked for, too
    before = len(tape.envelopes)
    with pytest.raises(InvalidArguments, match=match) as caught:
        await verb()
    await tape.all_said(space)
    assert [envelope.kind for envelope in tape.envelopes[before:]] == [kinds.CHAT]
    return caught.value


@pytest.mark.parametrize(("arguments", "problem"), WRONG)
async def test_wrong_arguments_are_not_sent(
    meeting: Meeting, notes: Notes, arguments: dict[str, Any], problem: str
) -> None:
    async with (
        gathered(meeting, writer(notes)) as (tools,),
        taped(tools) as tape,
        join(meeting, "second") as space,
    ):
        await space.offers.tools("tools")

        async def call() -> None:
            await space.call("tools", "write", arguments)

        async def propose() -> None:
            async with space.propose("tools", "write", arguments):
                pass

        said = f"tool 'write' of 'tools' does not take these arguments: {problem}"
        error = await nothing_is_sent(tape, space, call, said)
        assert f"{error.problems[0]['argument']!r} {error.problems[0]['problem']}" == problem
        await nothing_is_sent(tape, space, propose, said)
        await nothing_is_sent(
            tape, space, lambda: space.call("tools", "erase"), "it has 'write', 'read'"
        )
        # The tool takes both, so both are sent.
        for size in (3, "3"):
            assert await space.call("tools", "write", {"path": "a", "size": size}) == "a"
    assert notes.all == [("write", "a", 3), ("write", "a", 3)]


async def test_an_old_list_refuses_nothing_before_it_was_asked_for_again(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not everybody says when theirs changes."""
    monkeypatch.setattr(offers, "SURE_SECONDS", 0.0)
    lists: list[Any] = []

    async def propose(space: Space, tool: str) -> None:
        async with space.propose("mallory", tool, {"path": "a"}):
            pass

    async with lister(meeting) as mallory, join(meeting, "second") as space:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, space, lists)
            await mallory.give(await mallory.asked(1), WRITE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(propose, space, "read")
            await mallory.give(await mallory.asked(2), WRITE, READ)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                run_within,
                pytest.raises(InvalidArguments, match="it has 'write', 'read'"),
                propose,
                space,
                "erase",
            )
            await mallory.give(await mallory.asked(3), WRITE, READ)
        await propose(space, "write")
        await propose(space, "read")
        # Who does not answer has the last word on the call itself.
        monkeypatch.setattr(offers, "ASKING_SECONDS", 0.0)
        await propose(space, "erase")


async def test_what_is_not_known_is_left_to_the_tool(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, writer(notes), "second") as (_, space):
        with pytest.raises(RequestError, match="'path'") as caught:
            await space.call("tools", "write")
        assert caught.value.code == payloads.INVALID_PARAMS
        await space.offers.tools("tools")
        meeting.drop("second")
        await until(lambda: session_of(space).connections == 2)
        with pytest.raises(RequestError, match="'path'"):
            await space.call("tools", "write")


async def test_edited_arguments_are_checked(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def review(proposal: Proposal, space: Space) -> None:
        await space.offers.tools("tools")
        with pytest.raises(InvalidArguments, match="'size' should be integer"):
            await proposal.fulfill({"path": "b", "size": "big"})
        assert proposal.state == "pending"
        await proposal.fulfill({"path": "b"})

    async with gathered(meeting, writer(notes), reviewer, "proposer") as (_, _, space):
        async with space.propose("tools", "write", {"path": "a"}) as proposal:
            assert await proposal.result(accept_edits=True) == "b"
    assert notes.all == [("write", "b", 0)]
