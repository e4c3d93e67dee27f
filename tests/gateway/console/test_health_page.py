"""The health page, without a script: limits near their end, plots, and what was dropped and why."""

import re
from dataclasses import replace

import pytest

from meup_agent.errors import MeupError
from meup_agent.gateway import JournalConfig
from meup_agent.gateway.console.pages import health
from meup_agent.gateway.console.pages.health import MAX_REASONS, SAMPLES, Gauge, Samples
from meup_agent.gateway.console.templating import size
from tests.gateway.console.conftest import Browser, Site, open_site, two_spaces
from tests.gateways import GatewayMember

BIG = {"kind": "chat", "payload": {"text": "x" * 100_000}}


async def plots_of(browser: Browser) -> dict[str, str]:
    page = (await browser.get("/health")).text
    labels = re.findall(r'role="img" aria-label="([^"]*)"', page)
    return dict(each.split(": ", 1) for each in labels)


def slow_down(site: Site, participant: str) -> None:
    runtime = site.console.runtime
    assert runtime is not None
    member = runtime.spaces["demo"].delivery.member(participant)
    assert isinstance(member, GatewayMember)
    member.pause()


def test_gauge_near_its_end_says_so() -> None:
    near = [Gauge("g", "", value, 10).is_near for value in (0, 7, 8, 10)]
    assert near == [False, False, True, True]


async def test_limits_near_their_end_are_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.gateway.console.pages.health.MAX_SESSIONS", 2)
    await site.browser("looker")
    page = await (await site.browser("you")).page("/health")
    assert re.findall(r'<li class="near"><label for="gauge-\d+">(\w+)', page) == ["Browsers"]
    assert "near its end" in page


async def test_journal_tells_its_size(site: Site) -> None:
    browser = await site.browser("you")
    await site.post("boss", BIG)
    page = await browser.page("/health")
    assert re.search(r"all spaces of the gateway</dt><dd>\d{2,3} KiB<", page)


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1536, "1.5 KiB"), (2**28, "256 MiB"),
     (2**42, "4,096 GiB")],
)  # fmt: skip
def test_bytes_are_said_as_a_person_does(count: int, words: str) -> None:
    assert size(count) == words


async def test_journal_near_its_limit_is_named() -> None:
    config = replace(two_spaces(), journal=JournalConfig(memory_bytes=220_000))
    async with open_site(config) as site:
        browser = await site.browser("you")
        await site.post("boss", BIG)
        page = await browser.page("/health")
        [gauge] = re.findall(r'<li class="near"><label[^>]*>Journal .*?max="220000".*?</li>', page)
        assert "KiB of 215 KiB <strong>near its end" in gauge


def test_plot_is_drawn_from_what_grew() -> None:
    samples, grown = Samples(), [0, 10, 30]
    for at, accepted in enumerate(grown):
        samples.note(float(at), {"accepted": accepted})
    plot = samples.growth("Accepted", "accepted")
    assert (plot.latest, plot.highest) == (20.0, 20.0)
    assert plot.points == "0.0,22.0 240.0,2.0"
    assert samples.level("As it is", "accepted").latest == 30.0
    assert Samples().growth("Nothing", "accepted").points == ""
    later = Samples()
    for moment in (0.0, 10.0, 40.0):
        later.note(moment, {"n": 1})
    assert later.level("N", "n").points == "0.0,2.0 60.0,2.0 240.0,2.0"


def test_plot_says_in_words_what_it_shows() -> None:
    samples, said = Samples(), list[str]()
    for since in (None, 0.0, 90.0):
        if since is not None:
            samples.note(since, {"s": 1_024 if since else 2_048})
        said.append(samples.level("Size", "s", size).label)
    assert said == [
        "Size: now 0 bytes, measured while this page is open",
        "Size: now 2.0 KiB, measured while this page is open",
        "Size: now 1.0 KiB, at most 2.0 KiB in the last 1 min 30 s",
    ]


def test_reason_that_comes_up_later_began_at_nothing() -> None:
    samples = Samples()
    for at, reasons in enumerate(({}, {"refused x": 4}, {"refused x": 4})):
        samples.note(float(at), {}, reasons)
    plot = samples.growth("x", "refused x")
    assert (plot.latest, plot.highest) == (0.0, 4.0)


def test_samples_and_their_reasons_are_bounded() -> None:
    samples = Samples()
    for at in range(SAMPLES + 10):
        # Each time another reason, however often it came up.
        samples.note(float(at), {"n": at}, {f"reason {each}": at for each in range(at + 1)})
    assert samples.level("N", "n").points.count(",") == SAMPLES
    assert samples.has(f"reason {MAX_REASONS - 1}")
    assert not samples.has(f"reason {MAX_REASONS}")


async def test_slow_members_and_drops_are_plotted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "SAMPLE_SECONDS", 0.0)
    looker, boss = await site.join("looker"), await site.join("boss")
    browser = await site.browser("you")
    before = await plots_of(browser)
    assert before["Slow members"].startswith("now 0")
    with pytest.raises(MeupError):
        await looker.request("tools", "tools/list", {})
    slow_down(site, "looker")
    await site.post("boss", BIG)
    await boss.chat("to a connection that takes nothing")
    said = before
    while not said["Slow members"].startswith("now 1, at most 1"):
        said = await plots_of(browser)
    assert re.match(r"now 2\d\d KiB, at most 2\d\d KiB", said["Size of the journal"])
    assert any(name.startswith("refused ") and name.endswith(", a second") for name in said)
    page = await browser.page("/health", " wait<")
    assert re.search(r'<bdi class="name">looker</bdi>: [\d.,]+ (bytes|KiB) wait', page)
    assert re.search(r"<td>refused</td><td><code>[\w/]+</code></td>", page)
    assert re.search(r"(bytes|KiB) wait for it", await browser.page("/participants"))
    # What is slow in a space is nobody's business in another one.
    elsewhere = await plots_of(await site.browser("you", space="elsewhere"))
    assert elsewhere["Slow members"].startswith("now 0, measured")


async def test_what_is_dropped_for_one_reason_is_named_with_it(site: Site) -> None:
    browser = await site.browser("you")
    await browser.page("/health", "Nothing was refused or dropped.")
    for _ in range(2):
        await site.post("boss", {"id": "twice", "kind": "chat", "payload": {"text": "hello"}})
    page = await browser.page("/health")
    assert re.search(r"<td>repeated</td><td><code>accepted before</code></td>.*?>1</td></tr>", page)
