"""Attacks on the console's requests: each changing one, and the headers of each answer."""

import re

import httpx
import pytest

from meup_agent.gateway.console.pages import PAGES
from tests.gateway.console.conftest import PLAIN_PAGES, Site, fields_in

pytestmark = pytest.mark.anyio

FORM = "application/x-www-form-urlencoded"
CHANGING = [each.path for each in PAGES if each.method == "POST"]


def filled(path: str, key: str = "0" * 24) -> str:
    return path.replace("{key}", key).replace("{seq:int}", "1")


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "http://127.0.0.1:1", "https://127.0.0.1"]
)
async def test_changing_request_from_elsewhere_is_refused(site: Site, origin: str | None) -> None:
    browser = await site.browser("boss")
    csrf = (await browser.fields("/health", "/sign-out"))["csrf"]
    headers = {} if origin is None else {"Origin": origin}
    for path in map(filled, CHANGING):
        answer = await browser.client.post(f"/console{path}", data={"csrf": csrf}, headers=headers)
        assert answer.status_code == 403
        assert "did not come from a page of the console" in answer.text


async def test_console_behind_a_proxy_that_speaks_tls_takes_forms(site: Site) -> None:
    browser = await site.browser()
    # A proxy leaves what the browser says.
    browser.client.headers["Host"] = "meup.example"
    browser.origin = "https://meup.example"
    signed_in = await browser.sign_in(site.token("boss"))
    assert signed_in.headers["location"] == "/console/inbox"
    assert (await browser.submit("/health", "/sign-out")).status_code == 303
    browser.origin = "https://other.example"
    assert (await browser.sign_in(site.token("boss"))).status_code == 403


@pytest.mark.parametrize("csrf", [None, "", "wrong", "other"])
async def test_change_without_its_sessions_token_is_refused(site: Site, csrf: str | None) -> None:
    browser, other = await site.browser("boss"), await site.browser("boss")
    if csrf == "other":
        csrf = (await other.fields("/health", "/sign-out"))["csrf"]
    fields = {"token": site.token("boss")} | ({} if csrf is None else {"csrf": csrf})
    for path in map(filled, CHANGING):
        assert (await browser.post(path, fields)).status_code == 403, path
    assert (await browser.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("content", "media", "status"),
    [
        (b"csrf=%zz\xff", FORM, 400),
        (b"a=%ff", FORM, 400),
        (b"&" * 200, FORM, 400),
        (b"{}", "application/json", 415),
        (b"csrf=1", "text/plain", 415),
        (b"a=1&" * 1_000, FORM, 400),
        (b"a" * 13_000_000, FORM, 413),
    ],
)
async def test_form_of_no_page_is_refused(
    site: Site, content: bytes, media: str, status: int
) -> None:
    browser = await site.browser("boss")
    headers = {"Origin": browser.origin, "Content-Type": media}
    answer = await browser.client.post("/console/sign-out", content=content, headers=headers)
    assert answer.status_code == status
    assert (await browser.get("/health")).status_code == 200


def assert_safe(answer: httpx.Response) -> None:
    said = answer.headers
    policy = said["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert said["x-frame-options"] == "DENY"
    assert said["referrer-policy"] == "same-origin"
    assert said["x-content-type-options"] == "nosniff"


async def test_no_answer_can_be_framed_or_run_foreign_code(site: Site) -> None:
    browsers = (await site.browser(), await site.browser("you"))
    paths = sorted({each.path for each in PAGES} - {"/events"})
    for browser, path in ((browser, path) for browser in browsers for path in paths):
        answer = await browser.get(filled(path))
        assert_safe(answer)
        assert answer.headers["cache-control"] == "no-store"
        page = answer.text
        # Nothing inline, so that the policy is not a dead letter.
        assert not re.search(r"<script(?![^>]*\ssrc=)", page)
        assert not re.search(r"<[^>]+\s(style|on\w+|hx-on[^=]*)\s*=", page)
        assert not re.search(r"(src|href|action)=\"(https?:)?//", page)


async def test_static_files_are_safe_and_kept(site: Site) -> None:
    browser = await site.browser()
    for name in ("console.js", "console.css", "htmx.min.js", "icon.svg"):
        answer = await browser.get(f"/static/{name}")
        assert answer.status_code == 200
        assert_safe(answer)
        assert "immutable" in answer.headers["cache-control"]
    for name in ("../console.py", "%2e%2e/console.py", "..%2fconsole.py"):
        assert (await browser.get(f"/static/{name}")).status_code == 404


async def test_participant_of_another_space_sees_and_decides_nothing_here(site: Site) -> None:
    _, here, page, key = await site.asked({"path": "secret-plan.md"})
    there = await site.browser("you", "elsewhere")
    assert "secret-plan.md" in page
    seqs = re.findall(r"/console/envelopes/(\d+)", (await here.get("/timeline")).text)
    assert seqs
    paths = [*PLAIN_PAGES, f"/inbox/{key}", f"/proposals/{key}"]
    for path in [*paths, *(f"/envelopes/{seq}" for seq in seqs), f"/proposals/{key}/export"]:
        assert "secret-plan" not in (await there.get(path)).text
    approve = fields_in(page, f"/inbox/{key}/approve")
    csrf = (await there.fields("/health", "/sign-out"))["csrf"]
    answer = await there.post(f"/inbox/{key}/approve", {**approve, "csrf": csrf})
    assert answer.status_code == 409
    assert site.ran == []


async def test_session_is_one_participants_alone(site: Site) -> None:
    """A token that a form names changes nothing: the cookie says who acts."""
    browser = await site.browser("looker")
    fields = {"who": "tools", "pattern": '{"kind": "*"}', "participant": "boss", "from": "boss"}
    csrf = (await browser.fields("/health", "/sign-out"))["csrf"]
    answer = await browser.post("/participants/grant", {**fields, "csrf": csrf})
    assert answer.status_code == 400
    assert "not done" in answer.text
    boss = await site.join("boss")
    found = {each.id: each.capabilities for each in boss.participants}
    assert {"kind": "*"} not in found.get("tools", ())
