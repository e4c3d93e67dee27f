"""Tools that have changed, in a browser: what is shown is what is accepted and approved."""

import anyio
import anyio.lowlevel
import pytest

from meup_agent import Fulfillment
from tests.changed_server import ChangedServer
from tests.gateway.console.conftest import Site
from tests.patience import PATIENCE
from tests.wire import ACCEPT_CALL, ACCEPT_TOOLS

CHANGED_WORDS = "does not offer this tool as it was accepted"
LINE = "inputSchema.properties.<b>cmd</b> is new"


def changed() -> ChangedServer:
    return ChangedServer("write_file", [LINE], "<i>says</i>")


async def test_difference_is_shown_and_accepted_as_it_was_shown(site: Site) -> None:
    server = changed()
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
    server = changed()
    await site.join("tools", server.agent)
    assert (await (await site.browser("looker")).get("/tools?who=tools")).status_code == 400
    assert server.got == []


async def test_call_is_approved_with_the_form_that_was_shown(site: Site) -> None:
    server = changed()
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
