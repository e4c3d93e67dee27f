"""The history, without a script: what was decided, what expired, and what was not seen of it."""

import re
from datetime import UTC, datetime, timedelta

from tests.gateway.console.conftest import Browser, Site


async def expire(site: Site, id: str) -> None:
    """Let a proposal come whose time is over."""
    until = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    params = {"name": "write_file", "arguments": {}, "_meta": {"dev.meup/expires_at": until}}
    payload = {"method": "tools/call", "params": params}
    await site.post("proposer", {"kind": "mcp/proposal", "id": id, "payload": payload})


async def rows_of(browser: Browser, **query: str) -> list[list[str]]:
    page = (await browser.get("/history", params=query)).text
    rows = re.findall(r"(?s)<tr.*?</tr>", page)[1:]
    return [
        [
            " ".join(re.sub(r"<[^>]+>", " ", cell).split())
            for cell in re.findall("(?s)<td.*?</td>", row)
        ]
        for row in rows
    ]


async def test_decisions_are_listed_searched_and_sorted(site: Site) -> None:
    proposal, browser, _, key = await site.asked()
    assert (await browser.decide(key)).status_code == 303
    await proposal.outcome()
    refused = await site.propose(await site.join("boss"), {"path": "<b>.md"}, "send_report")
    again = await browser.key("send_report")
    assert (await browser.decide(again, "reject", reason="unsafe")).status_code == 303
    await refused.outcome()
    await expire(site, "late")
    first, second, late = await rows_of(browser)
    assert first[1:5] == ["send_report", "boss", "rejected", "you it could do harm"]
    assert second[1:5] == ["write_file", "proposer", "fulfilled", "you"]
    assert late[3:5] == ["expired not seen", "nobody"]
    tools = [row[1] for row in await rows_of(browser, sort="tool")]
    assert tools == sorted(tools)
    assert [row[2] for row in await rows_of(browser, search="BOSS")] == ["boss"]
    assert [row[3] for row in await rows_of(browser, state="expired")] == ["expired not seen"]
    page = (await browser.get("/history")).text
    for address in re.findall(r'href="/console(/proposals/[^"]*)"', page):
        assert (await browser.get(address)).status_code == 200
    assert (await browser.get("/history?sort=x")).status_code == 400


async def test_what_expired_is_marked_until_it_was_seen(site: Site) -> None:
    await expire(site, "late")
    browser, other = await site.browser("you"), await site.browser("other")
    assert (await browser.get("/history/unseen")).text == "1"
    assert "1 expired</strong> since you last looked" in await browser.page("/history")
    await expire(site, "later")  # after the page was made: whoever marks that has not seen it
    assert (await browser.submit("/history", "/history/seen")).status_code == 303
    assert (await browser.get("/history/unseen")).text == ""
    assert "is-unseen" not in await browser.page("/history")
    assert (await other.get("/history/unseen")).text == "2"
