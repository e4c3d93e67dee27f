"""The inbox's screen where all goes wrong: floods, races, broken editors, and poor terminals."""

from contextlib import AsyncExitStack

import anyio
import pytest

from meup_agent import Rejection
from meup_agent.approval import Inbox
from tests.cli.commands import ScreenQuestion
from tests.cli.inbox.people import anyio_backend as anyio_backend
from tests.cli.inbox.people import desk, shown
from tests.interaction.people import join, raw, until
from tests.wire import kinds, payloads


async def test_what_arrives_before_it_does_not_change_the_card_under_the_key() -> None:
    """A flood of more urgent ones comes between looking and deciding."""
    async with desk() as d, AsyncExitStack() as others:
        async with d.proposer.propose("tools", "read", {"path": "seen"}, ttl=600) as proposal:
            seen = await d.arrived()
            d.now += 10  # looked at for long; what follows comes in no time
            for number in range(30):
                urgent = d.proposer.propose("tools", "wipe", {"disk": str(number)}, ttl=60)
                await others.enter_async_context(urgent)
            await d.until(lambda: len(d.inbox) == 31)
            assert d.inbox.items[-1] is seen
            assert d.app.current is seen
            assert 'path: "seen"' in d.text("#card")
            assert "31 of 31" in d.text("#head")
            await d.pilot.press("a")
            assert await proposal.result() == "text of seen"
        assert len(d.inbox) == 30


async def test_what_arrives_while_a_question_is_open_does_not_answer_it() -> None:
    async with desk() as d, d.proposer.propose("tools", "wipe", {"disk": "seen"}, ttl=600) as first:
        await d.arrived()
        await d.press("a")
        async with d.proposer.propose("tools", "wipe", {"disk": "other"}, ttl=60) as second:
            await d.until(lambda: len(d.inbox) == 2)
            assert d.asks(ScreenQuestion.SURE)
            await d.press("y")
            assert await first.result() == "wiped seen"
            assert second.state.is_pending


async def test_another_call_under_the_same_id_is_another_proposal() -> None:
    """Withdrawn and proposed anew under its id: a key that is on its way decides neither."""
    async with desk() as d, raw(d.meeting) as stranger:

        async def propose(tool: str, arguments: dict[str, str]) -> None:
            params = {"name": tool, "arguments": arguments}
            payload = payloads.build_proposal("tools/call", params, target="tools", expires=None)
            await stranger.say(kinds.MCP_PROPOSAL, payload, id="same")

        await propose("read", {"path": "seen"})
        await d.arrived()
        await stranger.say(kinds.MCP_WITHDRAW, {"reason": "other"}, id="w", correlation=("same",))
        await d.until(lambda: not len(d.inbox))
        await propose("wipe", {"disk": "sda"})
        await d.until(lambda: len(d.inbox) == 1)
        assert 'path: "seen"' in d.text("#card")
        assert "withdrawn by mallory" in d.text("#banner")
        await d.press("a", "y", "r", "u", "e")
        assert d.inbox.items[0].tool == "wipe"
        await d.press("j")
        assert 'disk: "sda"' in d.text("#card")


async def test_a_decision_of_another_and_ours_at_the_same_time_is_one() -> None:
    """The other one's is not on the screen yet as the key is pressed."""
    async with (
        desk() as d,
        join(d.meeting, "second") as other,
        Inbox(other) as theirs,
        d.proposer.propose("tools", "read", {"path": "a"}) as proposal,
    ):
        item = await d.arrived()
        await until(lambda: bool(theirs.items))
        await theirs.approve(theirs.items[0])
        await d.press("a")
        assert await proposal.result() == "text of a"
        await d.until(lambda: not len(d.inbox))
        assert item.left is not None
        assert item.left.by == "second"


async def test_without_an_editor_that_is_said() -> None:
    async with shown("read", {"path": "a"}) as (d, _):
        await d.press("e")
        assert "set EDITOR" in d.text("#note")


async def test_another_card_while_the_editor_is_open_keeps_the_edit_from_it() -> None:
    """The person goes on to another proposal before the editor of the first ends."""
    leave = anyio.Event()

    async def edit(text: str) -> str:
        await leave.wait()
        return text.replace("a.md", "b.md")

    async with (
        desk(edit=edit) as d,
        d.proposer.propose("tools", "read", {"path": "a.md"}, ttl=60),
        d.proposer.propose("tools", "read", {"path": "other"}, ttl=600),
    ):
        await d.arrived(2)
        await d.press("k", "e", "j")
        assert 'path: "other"' in d.text("#card")
        leave.set()
        await d.until(lambda: "nothing was sent" in d.text("#note"))
        await d.press("y")
        assert len(d.inbox) == 2


async def test_a_terminal_of_40_by_10_decides() -> None:
    async with (
        desk(size=(40, 10)) as d,
        d.proposer.propose("tools", "read", {"path": "a"}, ttl=60) as first,
        d.proposer.propose("tools", "read", {"path": "b"}, ttl=600, to="reviewer") as second,
    ):
        await d.arrived(2)
        await d.press("k")
        assert "a approve e edit y r reject j k ? q" in d.looks()
        # It does not fit such a screen, so that it takes a second key.
        await d.press("a", "y")
        assert await first.result() == "text of a"
        await d.until(lambda: len(d.inbox) == 1)
        await d.press("r")
        for code in ("unsafe", "timeout", "other", "say something"):
            assert code in d.looks()
        await d.press("u")
        assert isinstance(await second.outcome(), Rejection)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(1, 1), (4, 3), (16, 5), (300, 80)], ids=str)
async def test_a_terminal_of_any_size_is_drawn(size: tuple[int, int]) -> None:
    text = "\u4e16\u754c " * 200
    async with shown("read", {"path": text}) as (d, _):
        await d.pilot.resize_terminal(*size)
        await d.press("r", "escape", "?", "escape", "end", "home")
        assert len(d.looks().splitlines()) == size[1]
        assert d.app.is_running


async def test_no_colour_leaves_signs_and_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with (
        desk(size=(120, 30)) as d,
        d.proposer.propose("tools", "wipe", {"disk": "\u202e"}, ttl=60),
        d.proposer.propose("tools", "read", {"path": "a"}, ttl=600),
    ):
        await d.arrived(2)
        await d.press("k", "j", "m", "k")
        assert {each for each in d.colours() if len(set(each)) > 1} == set()
        looks = d.looks()
        assert "! tools marks it as destructive" in looks
        assert "\u25cf tools.read" in looks
        assert "\u258c tools.wipe" in looks
        assert "\\u202e" in looks


async def test_a_key_that_means_nothing_changes_nothing() -> None:
    async with shown("read", {"path": "a"}) as (d, _):
        item = d.inbox.items[0]
        # The first line has the time that is left.
        before = d.looks().splitlines()[1:8]
        await d.press("z", "y", "d", "0", "f5", "ctrl+l", "enter", "tab", "v")
        assert d.inbox.items == [item]
        assert d.looks().splitlines()[1:8] == before


async def test_help_and_leaving_are_answered_whatever_waits() -> None:
    async with desk() as d:
        for key in ("a", "e", "r", "v", "m"):
            await d.press(key)
            assert d.text("#note") == "nothing waits for you"
        await d.press("?")
        for key in ("j  k", "approve", "edit", "reject", "vote"):
            assert key in d.text("#ask")
        await d.press("x", "q")
        await d.until(lambda: not d.app.is_running)


async def test_keys_behind_the_one_that_leaves_decide_nothing() -> None:
    """They are typed for the shell, before the screen is gone."""
    async with shown("read", {"path": "a"}) as (d, proposal):
        d.now += 10
        d.app.simulate_key("q")
        for key in "carujm":
            d.app.simulate_key(key)
        await d.until(lambda: not d.app.is_running)
        assert (len(d.inbox), proposal.state.is_pending) == (1, True)
