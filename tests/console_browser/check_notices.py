"""Notices of a browser: asked for once, shown while the page is hidden, and Web Push."""

import json
from dataclasses import replace
from pathlib import Path

import anyio.lowlevel
from playwright.async_api import Browser, Page, expect

from tests.console_browser.axe import violations
from tests.console_browser.conftest import Desk, open_desk
from tests.gateway.console.conftest import two_spaces
from tests.gateways import NotifyTarget

STAND_IN = """
    class Stand { static get permission() { return sessionStorage.may || 'default'; }
      static async requestPermission() { return sessionStorage.may = 'granted'; } }
    window.Notification = Stand;
    window.shown = []; window.badges = [];
    navigator.setAppBadge = async (count) => badges.push(count);
    navigator.clearAppBadge = async () => badges.push(0);
    const show = ServiceWorkerRegistration.prototype;
    show.showNotification = async function (title, options) { shown.push([title, options.tag]); };
    show.getNotifications = async () => [];
    Object.defineProperty(document, 'hidden', { get: () => Boolean(window.isAway) });
"""
"""What a browser without a screen lacks."""

PUSH = """
    const manager = { mine: null,
      getSubscription: async () => manager.mine,
      subscribe: async ({ applicationServerKey }) => manager.mine = {
        endpoint: 'https://push.example/mine',
        options: { applicationServerKey: applicationServerKey.buffer },
        unsubscribe: async () => { manager.mine = null; },
        toJSON: () => ({ endpoint: 'https://push.example/mine', keys: {
          p256dh: 'BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6'
            + 'PBru3jl7A8',
          auth: 'BTBZMqHH6r4Tts7J_aSIgg' } }) } };
    Object.defineProperty(ServiceWorkerRegistration.prototype, 'pushManager',
      { get: () => manager });
"""


async def until(page: Page, true: str) -> None:
    """Ask a page until something holds: one under its policy evaluates no text by itself."""
    while not await page.evaluate(true):
        await anyio.lowlevel.checkpoint()


async def open_page(desk: Desk, script: str = STAND_IN) -> Page:
    page = await desk.open()
    await page.context.add_init_script(script)
    await page.reload()
    return page


async def test_it_is_asked_once_and_tells_while_the_page_is_hidden(desk: Desk) -> None:
    page = await open_page(desk)
    ask = page.locator("#ask-notices")
    await expect(ask).to_contain_text("while this page is open in the background")
    assert await violations(page) == []
    await ask.get_by_text("Tell me").click()
    await expect(ask).to_be_hidden()
    await page.locator("#notices summary").click()
    await expect(page.locator("#notices")).to_contain_text("This browser tells you")
    await page.evaluate("window.isAway = true")
    proposal = await desk.site.propose(await desk.site.proposer())
    await until(page, "shown.length === 1")
    assert await page.evaluate("shown") == [["1 call waits for a decision", "meup"]]
    await proposal.withdraw()
    await until(page, "badges.at(-1) === 0")
    assert 1 in await page.evaluate("badges")


async def test_no_is_kept(desk: Desk) -> None:
    page = await open_page(desk)
    await page.locator("#ask-notices").get_by_text("No", exact=True).click()
    await page.reload()
    await expect(page.locator("#notices summary")).to_be_visible()
    await expect(page.locator("#ask-notices")).to_be_hidden()


async def test_push_is_subscribed_and_ended_by_the_page(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "push.json"
    target = NotifyTarget(url="push", secret_file=file)
    async with open_desk(chromium, replace(two_spaces(), notify=(target,))) as desk:
        page = await open_page(desk, STAND_IN + PUSH)
        ask = page.locator("#ask-notices")
        await expect(ask).to_contain_text("also while this page is closed")
        async with page.expect_response("**/console/push") as answered:
            await ask.get_by_text("Tell me").click()
        assert (await answered.value).status == 204
        (kept,) = json.loads(file.read_text())["subscriptions"]
        assert (kept["participant"], kept["endpoint"]) == ("you", "https://push.example/mine")
        await page.locator("#notices summary").click()
        async with page.expect_response("**/console/push/off") as ended:
            await page.locator("#notices").get_by_text("Tell me no more").click()
        assert (await ended.value).status == 204
        assert json.loads(file.read_text())["subscriptions"] == []
        await expect(page.locator("#notices")).to_contain_text("can tell you")


async def test_a_page_without_https_says_what_it_lacks(desk: Desk) -> None:
    insecure = "Object.defineProperty(window, 'isSecureContext', { value: false })"
    page = await open_page(desk, insecure)
    await page.locator("#notices summary").click()
    await expect(page.locator("#notices")).to_contain_text("served by https")
    await expect(page.locator("#ask-notices")).to_be_hidden()
