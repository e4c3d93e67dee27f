"""Hostile text in every field that a participant can fill: inert, visible, and in its place."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio.lowlevel
import pytest
from playwright.async_api import Browser, Page, expect

from meup_agent import Agent
from tests.console_browser.axe import violations
from tests.console_browser.conftest import Desk, open_desk
from tests.gateway.console.conftest import PARTICIPANTS
from tests.gateways import one_space_config

CODE = "<script>window.ran=1</script><img src=//evil.example/x onerror=window.ran=1>"
HTMX = '"><a hx-get=//evil.example/y hx-trigger=load hx-on:click=window.ran=1 style=width:9999px>'
EYES = "\x1b[31mred\x07 safe\u202egpj.exe pay\u200bment\u2060 \u0430pple {{ 7919*7927 }}"

TEXTS = {
    "code": f"{CODE}{HTMX}{EYES}",
    "megabyte": CODE + "W" * 1_000_000,
    "lines": CODE + "\nW" * 10_000,
}

WIDER = """() => document.documentElement.scrollWidth <= innerWidth ? []
  : [...document.querySelectorAll("main *, header *")]
    .filter(each => each.getBoundingClientRect().right > innerWidth + 1)
    .map(each => each.outerHTML.slice(0, 120)).slice(0, 5)"""
"""Elements that are wider than the screen, where it must be scrolled sideways."""

NAMED = f"{CODE}{'W' * 150}"
"""A participant's id, which is printable and has at most 256 characters."""


@pytest.fixture
async def desk(chromium: Browser) -> AsyncGenerator[Desk]:
    """A space with participants whose ids are code, and too wide for any column."""
    names = {NAMED: PARTICIPANTS["proposer"], NAMED[::-1]: PARTICIPANTS["tools"]}
    async with open_desk(chromium, one_space_config("demo", PARTICIPANTS | names)) as opened:
        yield opened


def hostile_tools(text: str) -> Agent:
    """An agent whose tool says hostile things of itself, wherever MCP lets it."""
    agent = Agent("tools")
    field = {"type": "string", "title": text[:3_000], "description": text[:3_000]}
    schema = {
        "type": "object",
        "title": text[:3_000],
        "properties": {
            text[:300]: field,
            "choice": {"enum": [text[:300], "b"], "title": text[:90]},
        },
    }
    hints = {"title": text[:300], "destructiveHint": True, text[:90]: text[:90]}
    tool = {"name": text[:200], "title": text[:300], "description": text, "inputSchema": schema}

    @agent.on_request("tools/list")
    async def tools() -> Any:
        return {"tools": [{**tool, "annotations": hints}]}

    return agent


async def fill(desk: Desk, text: str) -> None:
    """Say hostile things in each field of each kind of envelope."""
    site, named = desk.site, json.dumps(text[:200])
    await site.review(f"rules:\n  - ask: {{tool: '*', name: {named}}}\nend: true\n")
    tools, proposer = NAMED[::-1], await site.join(NAMED)
    await site.join(tools, hostile_tools(text))
    given = {text[:300]: text, "choice": text[:300], "more": [{text[:90]: [text[:500]]}]}
    await proposer.chat(text)
    you = await site.join("you")
    for to in (("you",), ()):
        proposal = proposer.propose(tools, text[:200], {**given, "to": to}, ttl=600, to=to)
        await site.stack.enter_async_context(proposal)
    while not you.proposals:
        await anyio.lowlevel.checkpoint()
    await you.proposals.get(you.proposals[0]).reject("unsafe", explain=text)
    for kind in ("reasoning/start", "reasoning/thought"):
        said = {"kind": kind, "id": kind, "context": "t", "payload": {"message": text}}
        await site.post("boss", said)
    await site.post("boss", {"kind": text[:60].replace("\n", " "), "payload": {"x": text}})


async def assert_inert(page: Page) -> None:
    """Nothing ran, and nothing is wider than the screen."""
    assert await page.evaluate("window.ran") is None
    wide = await page.evaluate(WIDER)
    assert wide == []


@pytest.mark.parametrize("name", TEXTS)
async def test_hostile_text_is_inert_and_the_layout_holds(desk: Desk, name: str) -> None:
    await fill(desk, TEXTS[name])
    page = await desk.open("boss", viewport={"width": 320, "height": 640})
    await expect(page.locator("#call")).to_contain_text("<script>window.ran=1</script>")
    await expect(page.locator(".warning")).to_contain_text("destructive")
    if name == "megabyte":
        await expect(page.locator("#decision")).to_contain_text("too large to be edited here")
    else:
        await page.click("#edit-summary")
    await assert_inert(page)
    key = await page.locator("#decision").get_attribute("data-key")
    if name == "code":
        # Not only inert, but seen: with its escapes, and said to be what it is.
        await expect(page.locator("#call")).to_contain_text("\\u202e")
        for each in ("U+202E", "U+200B", "U+2060"):
            await expect(page.locator(f"#call .mark[title^='{each}']").first).to_be_visible()
        assert await violations(page) == []
    for path in ("participants", "health", "timeline", f"proposals/{key}"):
        await page.goto(f"{desk.url}/{path}")
        shown = "Journal" if path == "health" else "<script>window.ran=1"
        await expect(page.locator("main")).to_contain_text(shown)
        await assert_inert(page)
        if name == "code":
            assert await violations(page) == []
    # By their kind: on a slow machine more is said meanwhile than the first page holds.
    await page.goto(f"{desk.url}/timeline?tone=reasoning")
    await page.locator("#rows .t-reasoning .fold summary").first.click()
    await assert_inert(page)
    await page.goto(f"{desk.url}/timeline?tone=reject")
    await page.locator("#rows .t-reject .links a:has-text('proposal')").first.click()
    await expect(page.locator("blockquote").first).to_contain_text("<script>window.ran=1")
    await assert_inert(page)
    await page.click(".steps a")
    await page.wait_for_selector("h1:has-text('Envelope')")
    await assert_inert(page)
