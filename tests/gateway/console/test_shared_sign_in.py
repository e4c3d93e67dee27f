"""Signing in where gateways keep the journal on NATS: one takes over, and nobody sees it."""

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent.gateway import Config, JournalConfig
from meup_agent.gateway.cluster.shared import SharedValues
from meup_agent.gateway.console.sign_in import SESSION_IDLE, SHARED_SECONDS, USED_SECONDS
from tests.gateway.console.conftest import Browser, Site, open_site, two_spaces
from tests.gateway.console.test_sign_in import is_signed_in, link_of
from tests.gateway.journal.conftest import nats_config
from tests.nats_servers import NatsServer
from tests.patience import PATIENCE


def _at(path: Path, server: NatsServer | None = None) -> Config:
    return replace(two_spaces(), journal=JournalConfig(nats=nats_config(path, server)))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return _at(tmp_path)


async def moved(browser: Browser, site: Site) -> Browser:
    """A browser at another gateway than it was at, whose port is the same where people dial."""
    there = await site.browser()
    before, now = (each.rpartition(":")[2] for each in (browser.origin, there.origin))
    for name, value in browser.client.cookies.items():
        there.client.cookies.set(name.replace(before, now), value)
    return there


async def enter(browser: Browser, link: str) -> int:
    """The status of signing in by a link, whose page may have been loaded before."""
    page = await browser.get(link)
    if page.status_code != 200:
        return page.status_code
    return (await browser.submit(link, "/link")).status_code


async def test_who_is_signed_in_stays_so_and_who_signed_out_too(config: Config) -> None:
    async with open_site(config) as first:
        browser = await first.browser("you")
        form = await browser.fields("/inbox", "/sign-out")
    async with open_site(config) as second:
        browser = await moved(browser, second)
        assert await is_signed_in(browser)
        # By the form of a page that was loaded before.
        assert (await browser.post("/sign-out", form)).status_code == 303
        assert not await is_signed_in(browser)
    async with open_site(config) as third:
        # With the cookie that it had.
        browser = await moved(browser, third)
        assert not await is_signed_in(browser)


@pytest.mark.parametrize(
    ("slow", "is_used"),
    [("_purge", False), ("_replace", True)],
    ids=["as its gateway stops", "as the session is used"],
)
async def test_who_signs_out_is_so_elsewhere(
    config: Config, monkeypatch: pytest.MonkeyPatch, slow: str, is_used: bool
) -> None:
    change = getattr(SharedValues, slow)

    async def slowly(*given: Any) -> None:
        await asyncio.sleep(0.1)  # the server's answer takes so long; a removal is sooner
        await change(*given)

    monkeypatch.setattr(SharedValues, slow, slowly)
    async with open_site(config) as first:
        browser = await first.browser("you")
        form = await browser.fields("/inbox", "/sign-out")
        before = dict(browser.client.cookies)
        if is_used:
            first.clock.now += USED_SECONDS + 1
        assert (await browser.post("/sign-out", form)).status_code == 303
    async with open_site(config) as second:
        browser.client.cookies.clear()
        browser.client.cookies.update(before)
        assert not await is_signed_in(await moved(browser, second))


async def test_a_session_that_is_not_used_ends(config: Config) -> None:
    async with open_site(config) as first:
        browser = await first.browser("you")
        first.clock.now += USED_SECONDS + 1
        assert await is_signed_in(browser)
        first.clock.now += SESSION_IDLE - 1
        assert await is_signed_in(browser)
        first.clock.now += SESSION_IDLE + 1
        assert not await is_signed_in(browser)
    async with open_site(config) as second:
        assert not await is_signed_in(await moved(browser, second))


async def test_a_link_opens_one_session_at_any_gateway(config: Config) -> None:
    async with open_site(config) as first:
        links = [link_of(first) for _ in range(2)]
        assert await enter(await first.browser(), links[0]) == 303
        waiting = await first.browser()
        form = await waiting.fields(links[1], "/link")
    async with open_site(config) as second:
        assert await enter(await second.browser(), links[0]) == 403
        # By the form of a page that was loaded before.
        browser = await moved(waiting, second)
        assert (await browser.post("/link", form)).status_code == 303
        assert await is_signed_in(browser)
        assert await enter(await second.browser(), links[1]) == 403
        guessed = links[1][:-1] + ("A" if links[1][-1] != "A" else "B")
        assert await enter(await second.browser(), guessed) == 403


@pytest.mark.thorough
async def test_who_is_known_stays_signed_in_while_nats_is_away(tmp_path: Path) -> None:
    with closing(NatsServer()) as server:
        async with open_site(_at(tmp_path, server)) as site:
            known, stranger = await site.browser("you"), await site.browser()
            stranger.client.cookies.update(known.client.cookies)
            name = next(each for each in stranger.client.cookies if not each.endswith("_form"))
            value = stranger.client.cookies[name]
            stranger.client.cookies.clear()
            stranger.client.cookies.set(name, value[::-1])
            assert await is_signed_in(known)
            server.kill()
            site.clock.now += SHARED_SECONDS + 1
            assert await is_signed_in(known)
            answer = await stranger.get("/health")
            assert answer.status_code == 503
            assert "cannot reach NATS" in answer.text
            server.start()
            with anyio.fail_after(PATIENCE):
                while (await stranger.get("/health")).status_code != 303:
                    await anyio.lowlevel.checkpoint()
            assert await is_signed_in(known)
