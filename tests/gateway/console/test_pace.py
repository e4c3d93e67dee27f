"""Floods of requests by one person: paced, refused, and none of the others' business."""

import anyio
import httpx
import pytest

from meup_agent.gateway.console.sign_in import (
    MAX_PARTICIPANT_SESSIONS,
    PACE_SECONDS,
    REQUESTS_BURST,
    REQUESTS_PER_SECOND,
    RequestDenied,
    RequestPace,
)
from tests.gateway.console.conftest import Site
from tests.gateways import Identity
from tests.patience import PATIENCE

MALLORY, BOB = Identity("demo", "mallory"), Identity("demo", "bob")


async def test_requests_wait_and_then_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("anyio.sleep", sleep)
    monkeypatch.setattr("anyio.current_time", lambda: 1_000.0)
    pace, waiting = RequestPace(), round(REQUESTS_PER_SECOND * PACE_SECONDS)
    for _ in range(REQUESTS_BURST):
        await pace.wait(MALLORY)
    assert not slept
    for _ in range(waiting):
        await pace.wait(MALLORY)
    assert slept == sorted(slept)
    assert slept[0] == pytest.approx(1 / REQUESTS_PER_SECOND)
    assert slept[-1] == pytest.approx(PACE_SECONDS)
    for _ in range(3):
        with pytest.raises(RequestDenied, match="too fast") as refused:
            await pace.wait(MALLORY)
        assert refused.value.headers["Retry-After"] == "2"
    await pace.wait(BOB)
    assert len(slept) == waiting
    monkeypatch.setattr("anyio.current_time", lambda: 1_000.0 + 60)
    await pace.wait(MALLORY)
    assert len(slept) == waiting


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """So few requests at once, and none for long after them."""
    most = 6
    monkeypatch.setattr("meup_agent.gateway.console.sign_in.REQUESTS_BURST", most)
    monkeypatch.setattr("meup_agent.gateway.console.sign_in.REQUESTS_PER_SECOND", 1e-3)
    return most


async def test_timeline_that_is_scrolled_for_ever_is_refused(site: Site, few: int) -> None:
    mallory, bob = await site.browser("you"), await site.browser("other")
    with anyio.fail_after(PATIENCE):
        scrolled = [
            (await mallory.get("/timeline?before=1000000&part=rows")).status_code
            for _ in range(3 * few)
        ]
        # The sign-in was the first of them.
        assert scrolled == [200] * (few - 1) + [429] * (2 * few + 1)
        assert (await bob.get("/timeline")).status_code == 200
        # Another browser makes no difference, and what styles a page is not counted.
        assert (await mallory.get("/static/console.css")).status_code == 200


async def test_flood_of_sign_ins_is_refused_and_opens_few_sessions(site: Site, few: int) -> None:
    answers: list[httpx.Response] = []

    async def sign_in() -> None:
        browser = await site.browser()
        answers.append(await browser.sign_in(site.token("you")))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for _ in range(3 * few):
                tasks.start_soon(sign_in)
        assert sorted(each.status_code for each in answers) == [303] * few + [429] * (2 * few)
        assert len(site.console.sessions) == few < MAX_PARTICIPANT_SESSIONS
        assert (await (await site.browser("other")).get("/inbox")).status_code == 200
