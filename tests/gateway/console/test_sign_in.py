"""Signing in: by a token, by a link, and how a session ends."""

import ssl
from dataclasses import replace

import httpx
import pytest

from meup_agent.gateway import TlsConfig
from meup_agent.gateway.console.sign_in import LINK_SECONDS, SESSION_AGE, SESSION_IDLE
from tests.gateway.console.conftest import PARTICIPANTS, Browser, Site, open_site
from tests.gateways import one_space_config
from tests.patience import PATIENCE
from tests.transport.peers import CERTIFICATE


def link_of(site: Site) -> str:
    return site.console.sign_in_link("/console", site.token("you")).partition("/console")[2]


async def is_signed_in(browser: Browser) -> bool:
    return (await browser.get("/health")).status_code == 200


async def test_token_opens_a_session(site: Site) -> None:
    browser = await site.browser()
    answer = await browser.sign_in(site.token("you"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/inbox")
    said = answer.headers["set-cookie"]
    assert "HttpOnly" in said
    assert "SameSite=strict" in said
    assert "Path=/console" in said
    await browser.page("/inbox", "Nothing waits for you", '<bdi class="name">you</bdi>')
    for name, value in browser.client.cookies.items():
        assert site.token("you") not in (name, value)


async def test_cookies_are_secure_under_tls() -> None:
    tls = TlsConfig(CERTIFICATE, CERTIFICATE)
    async with open_site(replace(one_space_config("demo", PARTICIPANTS), tls=tls)) as site:
        trust = ssl.create_default_context(cafile=str(CERTIFICATE))
        origin = site.gateway.http_url.replace("127.0.0.1", "localhost")
        async with httpx.AsyncClient(
            verify=trust, trust_env=False, timeout=PATIENCE, base_url=origin
        ) as client:
            browser = Browser(client, origin)
            form = await browser.get("/sign-in")
            entered = await browser.sign_in(site.token("you"))
            for answer in (form, entered):
                name, _, said = answer.headers["set-cookie"].partition("=")
                assert name.startswith("__Secure-meup_")
                assert "; Secure" in said
            assert await is_signed_in(browser)
            ended = (await browser.submit("/health", "/sign-out")).headers["set-cookie"]
            # Without that a browser takes no cookie of this name, and keeps the one that it has.
            assert ended.startswith("__Secure-meup_")
            assert "; Secure" in ended
            assert not client.cookies.get(ended.partition("=")[0])


async def test_page_without_a_session_leads_to_the_sign_in_and_back(site: Site) -> None:
    browser = await site.browser()
    answer = await browser.get("/timeline")
    assert answer.status_code == 303
    where = answer.headers["location"]
    assert where.startswith("/console/sign-in?next=")
    where = where.removeprefix("/console")
    answer = await browser.submit(where, "/sign-in", token=site.token("you"))
    assert answer.headers["location"] == "/console/timeline"


@pytest.mark.parametrize(
    "given", ["https://evil.example/", "//evil.example/", "/\\evil.example", "/../x", "/a?b=c"]
)
async def test_sign_in_leads_nowhere_else(site: Site, given: str) -> None:
    fields = {"token": site.token("you"), "next": given}
    answer = await (await site.browser()).submit("/sign-in", "/sign-in", **fields)
    assert answer.headers["location"] == "/console/inbox"


async def test_guessing_is_limited_like_every_login_and_keeps_no_long_token_out(site: Site) -> None:
    browser = await site.browser()
    answers = [await browser.sign_in(f"guess-{at}") for at in range(25)]
    assert [each.status_code for each in answers] == [401] * 20 + [429] * 5
    assert "not known here" in answers[0].text
    assert not any("guess-" in each.text for each in answers)
    assert not await is_signed_in(browser)
    assert (await browser.sign_in(site.token("you"))).status_code == 303


async def test_links_that_are_asked_for_count_as_no_wrong_tokens(site: Site) -> None:
    """Any page in a browser here can ask for them, by pictures that it shows."""
    browser = await site.browser()
    statuses = [(await browser.get(f"/link?code=guess-{at}")).status_code for at in range(40)]
    assert statuses == [403] * 40
    assert (await browser.sign_in("guess")).status_code == 401


async def test_signing_out_ends_the_session(site: Site) -> None:
    browser = await site.browser("you")
    stolen = await site.browser()
    stolen.client.cookies = browser.client.cookies
    assert (await browser.submit("/health", "/sign-out")).headers["location"] == "/console/sign-in"
    assert not await is_signed_in(stolen)


async def test_session_ends_when_it_is_idle_and_however_it_is_used(site: Site) -> None:
    idle, used = await site.browser("you"), await site.browser("you")
    for _ in range(int(SESSION_AGE / SESSION_IDLE)):
        site.clock.now += SESSION_IDLE - 1
        assert await is_signed_in(used)
    # The other one was not seen for longer than that.
    assert not await is_signed_in(idle)
    site.clock.now += SESSION_IDLE - 1
    assert not await is_signed_in(used)
    idle = await site.browser("you")
    site.clock.now += SESSION_IDLE + 1
    assert not await is_signed_in(idle)


@pytest.mark.parametrize(
    "asked", [{"Sec-Fetch-Dest": "empty"}, {"Accept": "text/html"}], ids=["https", "http"]
)
async def test_a_tab_that_is_left_open_keeps_no_session(site: Site, asked: dict[str, str]) -> None:
    browser = await site.browser("you")
    statuses: list[int] = []
    for _ in range(3):
        site.clock.now += SESSION_IDLE / 2
        statuses.append((await browser.get("/history/unseen", headers=asked)).status_code)
    assert statuses == [200, 200, 303]
    assert not await is_signed_in(browser)


async def test_session_ends_with_its_token(site: Site) -> None:
    boss = await site.join("boss")
    invitation = await boss.members.invite("guest", [{"kind": "chat"}])
    browser = await site.browser()
    assert (await browser.sign_in(str(invitation.token))).status_code == 303
    assert await is_signed_in(browser)
    await boss.members.kick("guest")
    assert (await browser.get("/health")).status_code == 403
    await boss.members.invite("guest")


async def test_session_has_a_new_cookie_at_each_sign_in(site: Site) -> None:
    browser = await site.browser()
    planted = {"meup_1": "planted", f"meup_{site.gateway.port}": "planted"}
    for name, value in planted.items():
        browser.client.cookies.set(name, value)
    await browser.sign_in(site.token("you"))
    given = [each.value for each in browser.client.cookies.jar if each.path == "/console"]
    assert given
    assert "planted" not in given
    attacker = await site.browser()
    for name, value in planted.items():
        attacker.client.cookies.set(name, value)
    assert not await is_signed_in(attacker)


async def test_link_signs_in_once_and_no_look_at_it_uses_it(site: Site) -> None:
    link = link_of(site)
    browser, thief, other = [await site.browser() for _ in range(3)]
    for _ in range(3):
        await browser.page(link, "Continue as", "you")
    assert not await is_signed_in(browser)
    # Its form belongs to one browser.
    assert (await other.post("/link", await browser.fields(link, "/link"))).status_code == 403
    stolen = await thief.fields(link, "/link")
    answer = await browser.submit(link, "/link")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/inbox")
    assert await is_signed_in(browser)
    assert (await thief.post("/link", stolen)).status_code == 403
    assert (await thief.get(link)).status_code == 403
    assert not await is_signed_in(thief)


async def test_link_ends_after_ten_minutes(site: Site) -> None:
    link = link_of(site)
    browser = await site.browser()
    fields = await browser.fields(link, "/link")
    site.clock.now += LINK_SECONDS + 1
    ended = await browser.get(link)
    assert ended.status_code == 403
    assert "<h1>The link is over</h1>" in ended.text
    assert (await browser.post("/link", fields)).status_code == 403
    assert not await is_signed_in(browser)


async def test_page_that_is_not_there_is_said(site: Site) -> None:
    for participant, way in ((None, "To the sign-in"), ("you", "Back to the inbox")):
        browser = await site.browser(participant)
        for path in ("/nowhere", "/static/nothing.js", "/inbox/"):
            answer = await browser.get(path)
            assert answer.status_code in (404, 307), path
            assert answer.headers["content-security-policy"]
            if answer.status_code == 404:
                assert "The console has no such page." in answer.text
                assert way in answer.text


async def test_token_gets_links_that_push_out_nobody_elses(site: Site) -> None:
    browser = await site.browser()
    theirs = link_of(site)
    bearer = {"Authorization": f"Bearer {site.token('other')}"}
    made = [
        (await browser.client.post("/console/links", headers=bearer)).json()["path"]
        for _ in range(20)
    ]
    assert (await browser.get(theirs)).status_code == 200
    found = [(await browser.client.get(each)).status_code for each in made]
    assert found == [403] * 16 + [200] * 4


async def test_link_is_made_for_no_cookie_and_no_wrong_token(site: Site) -> None:
    browser = await site.browser("you")
    assert (await browser.client.post("/console/links")).status_code == 401
    wrong = {"Authorization": "Bearer guess"}
    assert (await browser.client.post("/console/links", headers=wrong)).status_code == 401
    assert (await browser.client.get("/console/links")).status_code == 405
