"""Web Push: a browser of a person subscribes, and is told what waits, at an endpoint of our own."""

import base64
import json
import os
import shutil
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import http_ece
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from py_vapid import Vapid02

from meup_agent.atomic_file import replace_file
from meup_agent.gateway.reach import services
from tests.gateway.console.conftest import Browser, Site, fields_in, open_site, two_spaces
from tests.gateway.reach.receiver import Received, receive
from tests.gateways import Identity, NotifyTarget, PushSubscriptions
from tests.patience import PATIENCE


def text_of(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


class PushReader:
    """The keys of a browser, and what it reads with them."""

    def __init__(self) -> None:
        self._key: EllipticCurvePrivateKey = generate_private_key(SECP256R1())
        self._auth = os.urandom(16)

    def fields(self, endpoint: str) -> dict[str, str]:
        point = self._key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        return {"endpoint": endpoint, "p256dh": text_of(point), "auth": text_of(self._auth)}

    def read(self, sent: Received) -> dict[str, Any]:
        assert sent.headers["content-encoding"] == "aes128gcm"
        content = http_ece.decrypt(sent.body, private_key=self._key, auth_secret=self._auth)
        found: dict[str, Any] = json.loads(content)
        return found


@asynccontextmanager
async def pushing(path: Path, *, allow_private: bool = True) -> AsyncGenerator[Site]:
    target = NotifyTarget(
        url="push", secret_file=path / "push.json", after=0.0, allow_private=allow_private
    )
    async with open_site(replace(two_spaces(), notify=(target,))) as site:
        yield site


async def subscribe(browser: Browser, fields: dict[str, str], path: str = "/push") -> int:
    page = (await browser.get("/inbox")).text
    csrf = fields_in(page, "/sign-out")["csrf"]
    return (await browser.post(path, {**fields, "csrf": csrf})).status_code


def subscribed(site: Site) -> list[str]:
    runtime = site.console.runtime
    assert runtime is not None
    assert runtime.push is not None
    return [each.endpoint for each in runtime.push.of(Identity("demo", "you"))]


async def test_a_browser_is_told_what_waits_and_that_it_is_settled(tmp_path: Path) -> None:
    async with receive() as receiver, pushing(tmp_path) as site:
        browser, reader = await site.browser("you"), PushReader()
        assert await subscribe(browser, reader.fields(receiver.url)) == 204
        proposal = await site.propose(await site.proposer(), tool="write_file")
        sent = await receiver.take()
        assert reader.read(sent) == {
            "title": "1 call waits for a decision",
            "text": "proposer: write_file",
            "waiting": 1,
        }
        scheme, said = sent.headers["authorization"].split(" ", 1)
        key = dict(each.strip().split("=", 1) for each in said.split(","))["k"]
        assert scheme == "vapid"
        assert f'data-push="{key}"' in (await browser.get("/inbox")).text
        assert Vapid02.verify(sent.headers["authorization"])
        await proposal.withdraw()
        assert reader.read(await receiver.take())["waiting"] == 0


async def test_who_may_not_decide_is_told_nothing(tmp_path: Path) -> None:
    async with receive() as receiver, receive() as other, pushing(tmp_path) as site:
        looker, reader = await site.browser("looker"), PushReader()
        assert await subscribe(looker, reader.fields(other.url)) == 204
        assert await subscribe(await site.browser("you"), reader.fields(receiver.url)) == 204
        await site.propose(await site.proposer())
        await receiver.take()
        assert not other.received


async def test_a_browser_that_signs_out_or_is_gone_is_told_no_more(tmp_path: Path) -> None:
    def kept() -> set[str]:
        document = json.loads((tmp_path / "push.json").read_text())
        return {each["endpoint"] for each in document["subscriptions"]}

    async with receive() as receiver, receive() as gone, pushing(tmp_path) as site:
        gone.status = 410
        first, second, reader = await site.browser("you"), await site.browser("you"), PushReader()
        for browser, endpoint in ((first, f"{receiver.url}/1"), (second, f"{receiver.url}/2")):
            assert await subscribe(browser, reader.fields(endpoint)) == 204
        assert await subscribe(first, reader.fields(gone.url)) == 204
        assert await subscribe(first, reader.fields(f"{receiver.url}/1")) == 204
        await first.submit("/health", "/sign-out")
        assert kept() == {f"{receiver.url}/2", gone.url}
        await site.propose(await site.proposer())
        assert (await receiver.take()).path == "/hook/2"
        await gone.take()
        while gone.url in kept():
            await second.get("/health")
        assert await subscribe(second, {"endpoint": f"{receiver.url}/2"}, "/push/off") == 204
        assert kept() == set()


async def test_a_browser_is_told_no_more_once_its_token_is_void(tmp_path: Path) -> None:
    async with receive() as before, receive() as now:
        async with pushing(tmp_path) as site:
            fields = PushReader().fields(before.url)
            assert await subscribe(await site.browser("you"), fields) == 204
        async with pushing(tmp_path) as site:  # with other tokens
            assert await subscribe(await site.browser("you"), PushReader().fields(now.url)) == 204
            await site.propose(await site.proposer())
            await now.take()
            assert not before.received
    assert before.url not in (tmp_path / "push.json").read_text()


async def test_a_private_endpoint_is_not_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with receive() as receiver, pushing(tmp_path, allow_private=False) as site:
        browser, reader = await site.browser("you"), PushReader()
        assert await subscribe(browser, reader.fields(receiver.url)) == 400
        secure = receiver.url.replace("http:", "https:") + "/hush"
        assert await subscribe(browser, reader.fields(secure)) == 204
        await site.propose(await site.proposer())
        while "private address" not in caplog.text:
            await browser.get("/health")
        assert not receiver.received
    assert "hush" not in caplog.text


async def test_a_slow_disk_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_busy, is_free = threading.Event(), threading.Event()

    def write(path: Path, content: bytes) -> None:
        is_busy.set()
        assert is_free.wait(PATIENCE)
        replace_file(path, content)

    async with pushing(tmp_path) as site, anyio.create_task_group() as tasks:
        browser, other = await site.browser("you"), await site.browser("you")
        fields = PushReader().fields("https://push.example/1")
        monkeypatch.setattr(services, "replace_file", write)
        try:
            tasks.start_soon(subscribe, browser, fields)
            while not is_busy.is_set():
                await other.get("/health")
            assert (await other.get("/health")).status_code == 200
            tasks.start_soon(browser.submit, "/health", "/sign-out")
            while (await browser.get("/health")).status_code == 200:
                pass
        finally:
            is_free.set()
    assert b"push.example" not in (tmp_path / "push.json").read_bytes()


async def test_one_signs_out_also_where_the_disk_takes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    async with pushing(folder) as site:
        browser = await site.browser("you")
        assert await subscribe(browser, PushReader().fields("https://push.example/1")) == 204
        shutil.rmtree(folder)
        folder.touch()
        assert (await browser.submit("/health", "/sign-out")).status_code == 303
        assert (await browser.get("/health")).status_code == 303
        assert not subscribed(site)
    assert "is lost at the next start" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint": "file:///etc/passwd"},
        {"endpoint": "http://user:password@127.0.0.1/"},
        {"endpoint": "https://[/"},
        {"endpoint": "https://push.example/\x01"},
        {"endpoint": f"http://127.0.0.1/{'x' * 2_000}"},
        {"p256dh": "AAAA"},
        {"p256dh": "ä"},
        {"auth": ""},
        {"auth": "A" * 5_000},
    ],
    ids=str,
)
async def test_what_is_no_subscription_is_refused(change: dict[str, str], tmp_path: Path) -> None:
    async with pushing(tmp_path) as site:
        browser = await site.browser("you")
        fields = {**PushReader().fields("http://127.0.0.1:9/"), **change}
        assert await subscribe(browser, fields) == 400


async def test_it_is_off_unless_it_is_switched_on(site: Site) -> None:
    browser = await site.browser("you")
    assert 'data-push=""' in (await browser.get("/inbox")).text
    assert await subscribe(browser, PushReader().fields("https://push.example/")) == 404


async def test_the_console_can_be_installed(site: Site) -> None:
    browser = await site.browser()
    manifest = await browser.get("/manifest.webmanifest")
    assert manifest.headers["content-type"] == "application/manifest+json"
    icon = manifest.json()["icons"][0]["src"]
    assert (await browser.get(f"/{icon}")).headers["content-type"].startswith("image/svg")
    worker = await browser.get("/worker.js")
    assert worker.headers["content-type"].startswith("text/javascript")
    assert worker.headers["cache-control"] == "no-cache"


async def test_the_key_and_the_browsers_outlive_the_gateway(tmp_path: Path) -> None:
    path, fields = tmp_path / "state" / "push.json", dict[str, Any]()
    first = PushSubscriptions(path)
    identity: Any = Identity("demo", "you")
    for number in range(9):
        fields |= PushReader().fields(f"https://push.example/{number}")
        await first.add(identity, **fields)
    again = PushSubscriptions(path)
    assert again.application_key == first.application_key
    kept = [each.endpoint for each in again.of(identity)]
    assert kept == [f"https://push.example/{number}" for number in range(4, 9)]
    assert path.stat().st_mode & 0o077 == 0
    await again.add(Identity("demo", "other"), **fields)
    assert fields["endpoint"] not in [each.endpoint for each in again.of(identity)]
    await again.remove(identity, fields["endpoint"])
    assert again.of(Identity("demo", "other"))
