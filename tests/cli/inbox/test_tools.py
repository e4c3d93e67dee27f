"""Tools that have changed, at the inbox's screen: `s` shows how, and `y` accepts them."""

from meup_agent import Fulfillment
from tests.changed_server import ChangedServer
from tests.cli.commands import ScreenQuestion
from tests.cli.inbox.people import anyio_backend as anyio_backend
from tests.cli.inbox.people import shown
from tests.wire import ACCEPT_CALL, ACCEPT_TOOLS

LINE = 'inputSchema.properties.cmd is new: {"type": "string"}'


def changed(*lines: str) -> ChangedServer:
    return ChangedServer("read", lines, "description was a")


async def test_one_key_shows_the_difference_and_another_accepts_it() -> None:
    server = changed(LINE)
    async with shown("read", {"cmd": "x"}, having=server.agent, size=(100, 30)) as (d, _):
        assert f"tools does not offer this tool as it was accepted: {LINE}" in d.text("#card")
        assert "key s, or meup inbox accept-tools, shows how" in d.text("#card")
        await d.press("s")
        await d.until(lambda: d.asks(ScreenQuestion.TOOLS))
        assert "The tools of files are not as they were accepted:" in d.text("#card")
        assert LINE in d.text("#card")
        assert "its text description was a" in d.text("#card")
        # Any other key goes back to the proposal, and accepts nothing.
        await d.press("x")
        assert "proposed by" in d.text("#card")
        assert server.sent(ACCEPT_TOOLS) == []
        await d.press("s")
        await d.until(lambda: d.asks(ScreenQuestion.TOOLS))
        await d.press("y")
        await d.until(lambda: "you accepted the tools of tools" in d.text("#note"))
        assert server.sent(ACCEPT_TOOLS) == [{"digest": "d1"}]


async def test_what_changed_meanwhile_is_not_accepted() -> None:
    server = changed(LINE)
    async with shown("read", {"cmd": "x"}, having=server.agent, size=(100, 30)) as (d, _):
        await d.press("s")
        await d.until(lambda: d.asks(ScreenQuestion.TOOLS))
        server.digest = "d2"
        await d.press("y")
        await d.until(lambda: "they have changed since you looked" in d.text("#note"))


async def test_long_difference_is_accepted_once_all_of_it_was_on_the_screen() -> None:
    server = changed(LINE, *(f"argument {each} is new" for each in range(1, 80)))
    async with shown("read", {"cmd": "x"}, having=server.agent) as (d, _):
        await d.press("s")
        await d.until(lambda: d.asks(ScreenQuestion.TOOLS))
        await d.press("y")
        assert "scroll to its end first" in d.text("#note")
        assert d.asks(ScreenQuestion.TOOLS)
        await d.press(*["space"] * 12, "y")
        await d.until(lambda: server.sent(ACCEPT_TOOLS))


async def test_approval_is_about_the_form_that_is_shown() -> None:
    server = changed(LINE)
    async with shown("read", {"cmd": "x"}, having=server.agent, size=(100, 30)) as (d, proposal):
        item = d.inbox.items[0]
        await d.press("a")
        assert d.asks(ScreenQuestion.SURE)
        await d.press("y")
        assert isinstance(await proposal.outcome(), Fulfillment)
    assert [method for method, _ in server.got][-2:] == [ACCEPT_CALL, "tools/call"]
    assert server.sent(ACCEPT_CALL) == [
        {"proposal": item.id, "proposer": "proposer", "tool": "read", "form": "f1"}
    ]


async def test_changed_text_is_marked_and_asks_nothing_more() -> None:
    server = changed()
    async with shown("read", {"cmd": "x"}, having=server.agent, size=(100, 30)) as (d, proposal):
        assert "Above is its accepted text; it has changed" in d.text("#card")
        await d.press("a")
        assert isinstance(await proposal.outcome(), Fulfillment)
    assert server.sent(ACCEPT_CALL) == []
