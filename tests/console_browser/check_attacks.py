"""Attacks that only a browser can show: frames, forms of other sites, cookies that travel."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import httpx
from anyio.abc import SocketAttribute, SocketStream
from playwright.async_api import Browser, Page, Route, expect
from websockets.asyncio.client import connect

from tests.console_browser.conftest import Desk, open_desk, settled
from tests.gateway.console.conftest import two_spaces
from tests.gateways import participant
from tests.no_tls import ALONE


async def elsewhere(desk: Desk, page: Page, html: str) -> None:
    desk.foreign.append("http://evil.example/")

    async def answer(route: Route) -> None:
        await route.fulfill(content_type="text/html", body=html)

    await page.route("http://evil.example/", answer)
    await page.goto("http://evil.example/")


async def test_form_of_another_site_decides_nothing(desk: Desk) -> None:
    await desk.site.propose(await desk.site.proposer())
    page = await desk.open()
    await expect(page.locator("#call")).to_contain_text("a.md")
    await settled(page)
    # With all that the page itself would send: as if another site had read it.
    form = await page.locator("#approve-form").evaluate("each => each.outerHTML")
    action = await page.locator("#approve-form").evaluate("each => each.action")
    desk.expect("status of 403")
    await elsewhere(desk, page, form.replace("/console/", f"{desk.url}/"))
    await page.click("button")
    await expect(page).to_have_url(action)
    await expect(page.locator("[role=alert]")).to_contain_text("did not come from a page")
    assert desk.site.ran == []
    await page.goto(f"{desk.url}/inbox")
    await expect(page.locator("#call")).to_contain_text("a.md")


async def test_frame_of_another_site_stays_empty(desk: Desk) -> None:
    page = await desk.open()
    desk.expect("frame-ancestors", "X-Frame-Options", "ERR_BLOCKED_BY_RESPONSE")
    await elsewhere(desk, page, f'<iframe src="{desk.url}/inbox"></iframe>')
    await page.wait_for_load_state("networkidle")
    assert [each.url for each in page.frames[1:]] == ["chrome-error://chromewebdata/"]
    assert "Nothing waits" not in await page.frames[1].content()


LOCK_OUT = """
const wait = promises => Promise.allSettled(promises);
async function ask(console) {
    const many = Array.from({length: 40}, (_, number) => number);
    const pictures = many.map(number => new Promise(done => {
        const picture = new Image();
        picture.onload = picture.onerror = done;
        picture.src = `${console}/link?code=guess-${number}`;
        document.body.append(picture);
    }));
    const form = body => ({method: "POST", mode: "no-cors", body: new URLSearchParams(body)});
    await wait([...pictures, ...many.flatMap(number => [
        fetch(`${console}/link?code=guess-${number}`, {mode: "no-cors", credentials: "include"}),
        fetch(`${console}/link`, form({code: `guess-${number}`})),
        fetch(`${console}/sign-in`, form({token: `guess-${number}`})),
    ])]);
}
async function join(gateway) {
    for (let number = 0; number < 60; number++)
        await new Promise(done => {
            const socket = new WebSocket(`${gateway}/ws?space=demo`);
            socket.onopen = () => socket.send(
                JSON.stringify({type: "join", space: "demo", token: `guess-${number}`}));
            socket.onclose = done;
        });
}
"""


@asynccontextmanager
async def page_of_another_origin(page: Page, desk: Desk) -> AsyncGenerator[None]:
    """Show a page of another port of this machine, which no browser keeps from asking here."""
    html = f"<!doctype html><title>Elsewhere</title><body><script>{LOCK_OUT}</script>".encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"

    async def answer(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(head + html)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        desk.foreign.append(f"http://127.0.0.1:{port}/")
        await page.goto(f"http://127.0.0.1:{port}/")
        yield
        tasks.cancel_scope.cancel()


async def test_page_of_another_origin_locks_nobody_out(chromium: Browser) -> None:
    """By pictures, forms and WebSockets: of long tokens it keeps none out, wherever they go in."""
    demo = two_spaces()
    first, *others = demo.spaces
    short = participant("short", [{"kind": "chat"}], ["shorts-token"])
    first = replace(first, participants={**first.participants, "short": short})
    # However slow the machine is, nothing is forgiven meanwhile.
    limits = replace(demo.limits, strangers_burst=20, strangers_per_second=0.0001)
    config = replace(demo, spaces=(first, *others), limits=limits)
    async with open_desk(chromium, config) as desk:
        gateway = desk.site.gateway
        page = await desk.open()
        desk.expect("status of 403", "WebSocket connection to", "Opaque", "ERR_BLOCKED")
        async with page_of_another_origin(page, desk):
            await page.evaluate(f"ask({desk.url!r})")
            await desk.open(token="shorts-token")
            await page.evaluate(f"join({gateway.url!r})")
        assert gateway.counters.not_admitted[429] > 0
        await desk.site.join("proposer")
        async with connect(gateway.url) as by_frame:
            frame = {"type": "join", "space": "demo", "token": desk.site.token("you")}
            await by_frame.send(json.dumps(frame))
            assert json.loads(await by_frame.recv())["kind"] == "system.welcome"
        async with httpx.AsyncClient(**ALONE) as http:
            authorization = {"Authorization": f"Bearer {desk.site.token('you')}"}
            asked = await http.get(f"{gateway.http_url}/me", headers=authorization)
            assert asked.status_code == 200
        await desk.open()


async def test_link_of_another_site_carries_no_session(desk: Desk) -> None:
    page = await desk.open()
    await elsewhere(desk, page, f'<a href="{desk.url}/inbox">look</a>')
    await page.click("a")
    await expect(page.locator("#token")).to_be_visible()
    cookies = await page.context.cookies()
    assert all(each.get("httpOnly") and each.get("sameSite") == "Strict" for each in cookies)
    assert await page.evaluate("document.cookie") == ""
