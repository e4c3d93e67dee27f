"""Tools that have changed, at the inbox's screen: `s` shows how, and `y` accepts them."""

from typing import Any

from meup_agent import Agent, Fulfillment
from meup_agent.client.messages import Request
from meup_agent.errors import RequestError
from tests.cli.commands import ScreenQuestion
from tests.cli.inbox.people import anyio_backend as anyio_backend
from tests.cli.inbox.people import shown
from tests.wire import ACCEPT_CALL, ACCEPT_TOOLS, CHANGED, TOOL_CHANGES

LINE = 'inputSchema.properties.cmd is new: {"type": "string"}'


class ChangedServer:
    """A participant whose tool is not the accepted one."""

    def __init__(self, lines: int = 1, *, texts_alone: bool = False) -> None:
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.digest = "d1"
        self._lines = [LINE, *(f"argument {each} is new" for each in range(1, lines))]
        self._mark: dict[str, Any] = {"form": "f1", "difference": [LINE]}
        if texts_alone:
            self._mark, self._lines = {"texts": True}, []
        self.agent = Agent("tools")
        for method in ("tools/list", "tools/call", TOOL_CHANGES, ACCEPT_TOOLS, ACCEPT_CALL):
            self.agent.on_request(method)(self._answer)

    async def _answer(self, request: Request) -> dict[str, Any]:
        self.got.append((request.method, request.params))
        match request.method:
            case "tools/list":
                tool = {"name": "read", "inputSchema": {}, "_meta": {CHANGED: self._mark}}
                return {"tools": [tool]}
            case "tools/call":
                return {"content": []}
            case "dev.meup/tool_changes":
                changed = {"name": "read", "form": self._lines, "texts": ["description was a"]}
                return {"server": "files", "digest": self.digest, "tools": [changed]}
            case _:
                if request.params.get("digest", self.digest) != self.digest:
                    raise RequestError(-32000, "they have changed since you looked")
                return {}

    def sent(self, method: str) -> list[dict[str, Any]]:
        """The parameters of each request of a method."""
        return [params for each, params in self.got if each == method]


async def test_one_key_shows_the_difference_and_another_accepts_it() -> None:
    server = ChangedServer()
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
    server = ChangedServer()
    async with shown("read", {"cmd": "x"}, having=server.agent, size=(100, 30)) as (d, _):
        await d.press("s")
        await d.until(lambda: d.asks(ScreenQuestion.TOOLS))
        server.digest = "d2"
        await d.press("y")
        await d.until(lambda: "they have changed since you looked" in d.text("#note"))


async def test_long_difference_is_accepted_once_all_of_it_was_on_the_screen() -> None:
    server = ChangedServer(lines=80)
    async with shown("read", {"cmd": "x"}, having=server.agent) as (d, _):
        await d.press("s")
        await d.until(lambda: d.asks(ScreenQuestion.TOOLS))
        await d.press("y")
        assert "scroll to its end first" in d.text("#note")
        assert d.asks(ScreenQuestion.TOOLS)
        await d.press(*["space"] * 12, "y")
        await d.until(lambda: server.sent(ACCEPT_TOOLS))


async def test_approval_is_about_the_form_that_is_shown() -> None:
    server = ChangedServer()
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
    server = ChangedServer(texts_alone=True)
    async with shown("read", {"cmd": "x"}, having=server.agent, size=(100, 30)) as (d, proposal):
        assert "Above is its accepted text; it has changed" in d.text("#card")
        await d.press("a")
        assert isinstance(await proposal.outcome(), Fulfillment)
    assert server.sent(ACCEPT_CALL) == []
