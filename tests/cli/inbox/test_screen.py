"""The inbox's screen, by its pilot: what a person sees, presses, and gets."""

import json
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from meup_agent import Fulfillment, Rejection
from meup_agent.cli.render.screen import GUARD_SECONDS, REASON_KEYS
from tests.cli.commands import ScreenQuestion
from tests.cli.inbox.people import Desk, desk, shown
from tests.cli.inbox.people import anyio_backend as anyio_backend
from tests.interaction.people import ended, join
from tests.wire import REASONS_TO_REJECT


async def test_one_key_approves_what_was_seen_whole() -> None:
    async with desk() as d:
        assert "Nothing waits for you." in d.text("#card")
        async with d.proposer.propose("tools", "read", {"path": "a.md"}, ttl=60) as proposal:
            await d.arrived()
            assert 'path: "a.md"' in d.text("#card")
            assert "left" in d.text("#head")
            await d.press("a")
            assert await proposal.result() == "text of a.md"
            await d.until(lambda: "is done" in d.text("#note"))
        assert "Nothing waits for you." in d.text("#card")


async def test_what_is_marked_dangerous_takes_a_second_key() -> None:
    async with shown("wipe", {"disk": "a"}) as (d, proposal):
        item = d.inbox.items[0]
        await d.press("a")
        assert d.asks(ScreenQuestion.SURE)
        assert "marks it as destructive" in d.text("#ask")
        await d.press("x")
        assert d.asks(ScreenQuestion.NOTHING)
        assert d.inbox.items == [item]
        await d.press("a", "y")
        assert await proposal.result() == "wiped a"


async def test_what_another_has_rejected_takes_a_second_key() -> None:
    async with desk() as d, join(d.meeting, "mallory") as other:
        async with d.proposer.propose("tools", "read", {"path": "a.md"}) as proposal:
            item = await d.arrived()
            await other.proposals.get(proposal.id).reject("policy")
            await d.until(lambda: "! mallory is against it: policy" in d.text("#card"))
            await d.press("a")
            assert d.asks(ScreenQuestion.SURE)
            assert "mallory is against it: policy" in d.text("#ask")
            await d.press("x")
            assert d.inbox.items == [item]
            await d.press("a", "y")
            assert await proposal.result() == "text of a.md"


@pytest.mark.thorough
async def test_what_has_to_be_scrolled_takes_a_second_key() -> None:
    text = "\n".join(map(str, range(100)))
    async with shown("read", {"path": text}) as (d, proposal):
        await d.press("a")
        assert "lines of it have not been on the screen" in d.text("#ask")
        # What lies between has not been on the screen by going to its end.
        await d.press("escape", "end", "a")
        assert "lines of it have not been on the screen" in d.text("#ask")
        await d.press("escape", "home", *["space"] * 20, "a")
        assert "it is longer than the screen" in d.text("#ask")
        await d.press("y")
        assert text in str(await proposal.result())


async def test_two_keys_reject_with_a_reason() -> None:
    async with shown("wipe", {"disk": "a"}, to="reviewer") as (d, proposal):
        await d.press("r", "u")
        assert (await ended(proposal, Rejection)).reason == "unsafe"
        await d.until(lambda: "you rejected" in d.text("#note"))


def test_each_of_the_eleven_reasons_has_a_key() -> None:
    assert {code for code, _ in REASON_KEYS.values()} == set(REASONS_TO_REJECT)
    assert len(REASON_KEYS) == len(REASONS_TO_REJECT)


async def test_words_go_with_a_rejection() -> None:
    async with shown("wipe", {"disk": "a"}, to="reviewer") as (d, proposal):
        await d.press("r", "w", "n", "o", "enter")
        assert "no" in d.text("#ask")
        await d.press("u")
        outcome = await ended(proposal, Rejection)
        assert await outcome.explanation() == "no"


async def test_the_next_one_never_slides_under_the_finger() -> None:
    """It is withdrawn while a key is on its way: the key does nothing."""
    async with desk() as d, d.proposer.propose("tools", "read", {"path": "b"}, ttl=600):
        async with d.proposer.propose("tools", "read", {"path": "a"}, ttl=60) as first:
            item = await d.arrived(2)
            await d.press("k")
            assert d.app.current is item
            await first.withdraw("no_longer_needed")
            await d.until(lambda: len(d.inbox) == 1)
        assert "withdrawn by proposer: no_longer_needed" in d.text("#banner")
        assert 'path: "a"' in d.text("#card")
        await d.press("a", "y", "r", "u", "e")
        assert [each.arguments["path"] for each in d.inbox.items] == ["b"]
        await d.press("j")
        assert 'path: "b"' in d.text("#card")


async def test_a_question_closes_when_its_proposal_goes() -> None:
    async with desk() as d, d.proposer.propose("tools", "read", {"path": "b"}, ttl=600):
        async with d.proposer.propose("tools", "wipe", {"disk": "a"}, ttl=60) as first:
            await d.arrived(2)
            await d.press("k", "a")
            assert d.asks(ScreenQuestion.SURE)
            await first.withdraw("no_longer_needed")
            await d.until(lambda: len(d.inbox) == 1)
        assert d.asks(ScreenQuestion.NOTHING)
        await d.press("y")
        assert len(d.inbox) == 1


async def test_a_key_just_after_a_change_does_nothing() -> None:
    async with (
        desk() as d,
        d.proposer.propose("tools", "read", {"path": "a"}, ttl=60) as first,
        d.proposer.propose("tools", "read", {"path": "b"}, ttl=600),
    ):
        await d.arrived(2)
        await d.press("k", "a")
        await first.result()
        await d.until(lambda: "is done" in d.text("#note"))
        # The same moment: as a key that is pressed twice.
        await d.pilot.press("a")
        await d.pilot.pause()
        assert "has just changed" in d.text("#note")
        assert len(d.inbox) == 1
        d.now += 2 * GUARD_SECONDS
        await d.pilot.press("a")
        await d.until(lambda: not len(d.inbox))


async def test_an_edit_is_shown_before_it_is_sent() -> None:
    async def edit(text: str) -> str:
        assert json.loads(text) == {"path": "a.md"}
        return text.replace("a.md", "b.md")

    async with shown("read", {"path": "a.md"}, edit=edit) as (d, proposal):
        await d.press("e")
        await d.until(lambda: d.asks(ScreenQuestion.EDITED))
        assert '- "a.md"' in d.text("#card")
        assert '+ "b.md"' in d.text("#card")
        await d.press("y")
        assert await proposal.result(accept_edits=True) == "text of b.md"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{", "not JSON, so nothing was sent"),
        ("[1]", "not a JSON object"),
        ('{"path": NaN}', "NaN is not JSON"),
        ('{"path": "a.md"}', "you changed nothing"),
    ],
)
async def test_an_edit_that_cannot_be_sent_is_refused(written: str, said: str) -> None:
    async def edit(text: str) -> str:
        assert text
        return written

    async with shown("read", {"path": "a.md"}, edit=edit) as (d, _):
        await d.press("e")
        await d.until(lambda: said in d.text("#note"))
        assert len(d.inbox) == 1


async def test_an_edit_of_what_is_withdrawn_meanwhile_sends_nothing() -> None:
    async def edit(text: str) -> str:
        await proposal.withdraw("no_longer_needed")
        await d.until(lambda: not len(d.inbox))
        return text.replace("a.md", "b.md")

    async with desk(edit=edit) as d:
        async with d.proposer.propose("tools", "read", {"path": "a.md"}) as proposal:
            await d.arrived()
            await d.press("e")
            await d.until(lambda: "it is gone, so nothing was sent" in d.text("#note"))
        assert d.asks(ScreenQuestion.NOTHING)


async def test_several_are_approved_by_their_list() -> None:
    async with (
        desk() as d,
        d.proposer.propose("tools", "read", {"path": "a"}, ttl=60) as first,
        d.proposer.propose("tools", "read", {"path": "b"}, ttl=90) as second,
        d.proposer.propose("tools", "wipe", {"disk": "c"}, ttl=120),
    ):
        await d.arrived(3)
        await d.press("k", "m", "m", "m")
        assert "approved alone" in d.text("#note")  # a dangerous one
        await d.press("a")
        assert [f'path: "{each}"' in d.text("#card") for each in "ab"] == [True, True]
        await d.press("y")
        assert [await first.result(), await second.result()] == ["text of a", "text of b"]
        assert len(d.inbox) == 1


def has_left(desk: Desk, count: int) -> bool:
    return len(desk.inbox) == count and not desk.app.marked


@pytest.mark.thorough
async def test_twenty_mixed_calls_take_few_keys() -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    calls += [("read", {"path": f"{number}.md"}) for number in range(10)]
    calls += [("deploy", {"version": number}) for number in range(5)]
    calls += [("wipe", {"disk": f"d{number}"}) for number in range(3)]
    async with desk(size=(120, 30)) as d, AsyncExitStack() as stack:
        enter = stack.enter_async_context
        made = [await enter(d.proposer.propose("tools", *each, ttl=600)) for each in calls]
        other = await enter(join(d.meeting, "mallory"))
        theirs = [other.propose("tools", "read", {"path": path}, ttl=600) for path in "xy"]
        made += [await enter(each) for each in theirs]
        await d.arrived(20)
        await d.press("k")
        d.pressed = 0
        for left in (10, 5):
            await d.press("X", "a")
            while d.app.card.unseen_lines:
                await d.press("space")
            await d.press("y")
            await d.until(partial(has_left, d, left))
        for left in range(4, -1, -1):
            await d.press("a")
            if d.asks(ScreenQuestion.SURE):  # the dangerous ones
                await d.press("y")
            await d.until(partial(has_left, d, left))
        for each in made:
            assert isinstance(await each.outcome(), Fulfillment)
        assert d.pressed <= 20


async def test_all_that_are_marked_are_rejected_by_two_keys() -> None:
    async with (
        desk() as d,
        d.proposer.propose("tools", "read", {"path": "a"}, ttl=60, to="reviewer") as first,
        d.proposer.propose("tools", "read", {"path": "b"}, ttl=90, to="reviewer") as second,
    ):
        await d.arrived(2)
        await d.press("X", "r")
        assert "reject all 2" in d.text("#ask")
        await d.press("d")
        for each in (first, second):
            assert (await ended(each, Rejection)).reason == "disagree"
        await d.until(lambda: "2 of 2 are rejected" in d.text("#note"))


async def test_what_is_marked_and_grows_dangerous_is_not_approved_with_the_others() -> None:
    async with desk() as d, join(d.meeting, "mallory") as other:
        async with (
            d.proposer.propose("tools", "read", {"path": "a"}, ttl=60) as first,
            d.proposer.propose("tools", "read", {"path": "b"}, ttl=90) as second,
        ):
            await d.arrived(2)
            await d.press("X", "a")
            await other.proposals.get(second.id).reject("policy")
            await d.until(lambda: len(d.app.marked) == 1)
            assert "mallory is against it" in d.text("#note")
            await d.press("y")
            assert await first.result() == "text of a"
            assert [each.id for each in d.inbox.items] == [second.id]


async def test_hostile_text_is_inert_and_marked() -> None:
    hostile = {
        "path": "\x1b]0;owned\x07\u202egnp.exe [bold]x[/] wr\u0456te",
        "\u202ename": [1, {"deep\n": "\u200b"}],
    }
    async with desk() as d, d.proposer.propose("tools", "read", hostile):
        await d.until(lambda: d.app.current is not None)
        shown = d.text("#card")
        assert "\\u202egnp.exe [bold]x[/]" in shown
        assert not any(each in shown for each in ("\x1b", "\x07", "\u202e", "\u200b"))
        item = d.inbox.items[0]
        assert any("right-to-left override" in each for each in item.danger)
        await d.press("a")
        assert d.asks(ScreenQuestion.SURE)


async def test_a_call_too_long_for_the_screen_is_not_approved_there() -> None:
    async with desk() as d, d.proposer.propose("tools", "read", {"path": "x" * 1_000_000}):
        await d.until(lambda: d.app.current is not None)
        assert "more characters" in d.text("#card")
        await d.press("a", "y")
        assert "meup inbox show" in d.text("#note")
        assert len(d.inbox) == 1


async def test_a_wide_screen_has_the_queue_beside() -> None:
    async with (
        desk(size=(120, 30)) as d,
        d.proposer.propose("tools", "read", {"path": "a"}, ttl=60),
        d.proposer.propose("tools", "wipe", {"disk": "b"}, ttl=90),
    ):
        await d.arrived(2)
        assert d.app.query_one("#queue").display
        await d.pilot.resize_terminal(80, 24)
        await d.pilot.pause()
        assert d.app.screen.has_class("narrow")
        dark = {(0x12, 0x16, 0x1D), (0xD8, 0xDE, 0xE9)}  # the background, and text
        assert dark < d.colours()
        await d.press("t")
        assert not dark & d.colours()
        await d.press("?")
        assert "reject" in d.text("#ask")


async def test_what_arrives_is_notified() -> None:
    told: list[str] = []
    async with desk(notify=lambda item: told.append(item.tool)) as d:
        async with d.proposer.propose("tools", "read", {"path": "a"}):
            await d.arrived()
        assert told == ["read"]


async def test_leaving_while_something_runs_asks_once() -> None:
    async with shown("read", {"path": "a"}) as (d, _):
        d.app.decisions.underway = 1
        await d.press("q")
        assert "leaving cancels them" in d.text("#ask")
        await d.press("n")
        assert d.app.is_running


async def test_words_of_what_went_elsewhere_are_escaped() -> None:
    async with desk() as d, d.proposer.propose("tools", "read", {"path": "a"}, ttl=60):
        async with d.proposer.propose("tools", "read", {"path": "b"}, ttl=600) as other:
            await d.arrived(2)
            await d.press("k")
            await other.withdraw("\x1b[2J\u202e")
            await d.until(lambda: "withdrawn by proposer" in d.text("#note"))
        assert "\\e[2J\\u202e" in d.text("#note")
