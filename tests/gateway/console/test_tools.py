"""Tools that have changed, in a browser: what is shown is what is accepted and approved."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from meup_agent import Agent, Fulfillment
from meup_agent.client.messages import Request
from meup_agent.errors import RequestError
from tests.gateway.console.conftest import Site
from tests.patience import PATIENCE
from tests.wire import ACCEPT_CALL, ACCEPT_TOOLS, CHANGED, TOOL_CHANGES

CHANGED_WORDS = "does not offer this tool as it was accepted"
LINE = "inputSchema.properties.<b>cmd</b> is new"


class ChangedServer:
    """A participant whose tool is not the accepted one."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.form, self.digest = "f1", "d1"
        self.agent = Agent("tools")
        for method in ("tools/list", "tools/call", TOOL_CHANGES, ACCEPT_TOOLS, ACCEPT_CALL):
            self.agent.on_request(method)(self._answer)

    async def _answer(self, request: Request) -> dict[str, Any]:
        self.got.append((request.method, request.params))
        match request.method:
            case "tools/list":
                mark = {"form": self.form, "difference": [LINE]}
                tool = {"name": "write_file", "inputSchema": {}, "_meta": {CHANGED: mark}}
                return {"tools": [tool]}
            case "tools/call":
                return {"content": []}
            case "dev.meup/tool_changes":
                changed = {"name": "write_file", "form": [LINE], "texts": ["<i>says</i>"]}
                return {"server": "tools", "digest": self.digest, "tools": [changed]}
            case "dev.meup/accept_tools" if request.params["digest"] != self.digest:
                raise RequestError(-32000, "they have changed since you looked")
            case _:
                return {}

    def sent(self, method: str) -> list[dict[str, Any]]:
        return [params for each, params in self.got if each == method]


async def test_difference_is_shown_and_accepted_as_it_was_shown(site: Site) -> None:
    server = ChangedServer()
    await site.join("tools", server.agent)
    await site.propose(await site.join("proposer"))
    you = await site.browser("you")
    assert 'href="/console/tools?who=tools"' in (await you.page("/inbox", CHANGED_WORDS))
    shown = (await you.get("/tools?who=tools")).text
    assert "inputSchema.properties.&lt;b&gt;cmd&lt;/b&gt; is new" in shown
    assert "<i>says" not in shown

    # It changes between the page and the button.
    fields = await you.fields("/tools?who=tools", "/tools/accept")
    server.digest = "d2"
    answer = await you.post("/tools/accept", fields)
    assert answer.status_code == 409
    assert "they have changed since you looked" in answer.text
    assert (await you.submit("/tools?who=tools", "/tools/accept")).status_code == 303
    assert [each["digest"] for each in server.sent(ACCEPT_TOOLS)] == ["d1", "d2"]


@pytest.mark.parametrize("who", ["", "nobody", "proposer"])
async def test_page_of_who_pins_nothing_is_a_sentence(site: Site, who: str) -> None:
    await site.join("proposer")
    you = await site.browser("you")
    assert (await you.get(f"/tools?who={who}")).status_code == 400


async def test_who_may_decide_nothing_accepts_nothing(site: Site) -> None:
    server = ChangedServer()
    await site.join("tools", server.agent)
    assert (await (await site.browser("looker")).get("/tools?who=tools")).status_code == 400
    assert server.got == []


async def test_call_is_approved_with_the_form_that_was_shown(site: Site) -> None:
    server = ChangedServer()
    boss = await site.join("boss", server.agent)
    proposer = await site.join("proposer")
    proposing = proposer.propose("boss", "write_file", {"path": "a.md"}, ttl=600)
    proposal = await site.stack.enter_async_context(proposing)
    you = await site.browser("you")
    key = await you.key(CHANGED_WORDS)
    fields = await you.fields("/inbox", f"/inbox/{key}/approve")
    server.form = "f2"
    await boss.send("mcp/request", {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    # Once the page has the form of now, the form of then approves nothing.
    with anyio.fail_after(PATIENCE):
        action = f"/inbox/{key}/approve"
        while (await you.fields("/inbox", action))["digest"] == fields["digest"]:
            await anyio.lowlevel.checkpoint()
        await you.key(CHANGED_WORDS)
    answer = await you.post(f"/inbox/{key}/approve", {**fields, "sure": "yes"})
    assert answer.status_code == 409
    assert "The call, or its tool, is another one than you were shown" in answer.text
    assert (await you.decide(key)).status_code == 303
    assert isinstance(await proposal.outcome(), Fulfillment)
    assert [each["form"] for each in server.sent(ACCEPT_CALL)] == ["f2"]
