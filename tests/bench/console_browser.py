"""The time until a person sees what came and went, in a real Chromium.

Run it from the repository: `python -m tests.bench.console_browser` (needs Playwright and Chromium)

Wall time, of the gateway and the browser together: from the frame of a proposal that leaves its
proposer until the browser has painted its row in the queue, or, on an empty desk, its card; and
from the frame of a withdrawal until the row is gone, or the card says so. The first paint is
Chromium's own figure, of an inbox of 10,000 open proposals, counted from the click.
"""

import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, Final, cast

from playwright.sync_api import Page, sync_playwright

from meup_agent.gateway.console.templating import key_of
from tests.bench.console_site import ConsoleSite, console_site
from tests.bench.envelopes import proposal, withdrawal
from tests.bench.figures import Figure, Program, main
from tests.bench.timing import percentile
from tests.console_browser.conftest import find_chromium

PROPOSALS = 10_000
SAMPLES = 30
SIZE: Final[Any] = {"width": 1280, "height": 900}
PAUSE = 0.3
"""Seconds between a frame and the next: longer than what is measured."""

WATCH = """() => {
  window.came = {}; window.went = {};
  const at = () => performance.timeOrigin + performance.now();
  // After the next paint.
  const painted = (then) => requestAnimationFrame(() => setTimeout(then, 0));
  const look = () => {
    const card = document.querySelector("#decision")?.dataset.key;
    const gone = document.querySelector("#gone");
    for (const row of document.querySelectorAll("#queue > li")) {
      if (!(row.id in came)) { came[row.id] = 0; painted(() => { came[row.id] = at(); }); }
    }
    for (const id of Object.keys(came)) if (id.startsWith("q-") && !(id in went)
      && !document.getElementById(id)) { went[id] = 0; painted(() => { went[id] = at(); }); }
    if (card && document.querySelector("#call") && !(card in came)) {
      came[card] = 0; painted(() => { came[card] = at(); }); }
    if (card && gone && !gone.hidden && !(card in went)) {
      went[card] = 0; painted(() => { went[card] = at(); }); }
  };
  look();
  new MutationObserver(look).observe(document.body,
    {subtree: true, childList: true, attributes: true});
}"""


def open_page(site: ConsoleSite, chromium: Any, person: str) -> Page:
    """A page of a browser of its own, signed in."""
    # The policy would forbid what is watched here, too.
    context = chromium.new_context(viewport=SIZE, bypass_csp=True)
    name, _, value = site.address.cookies[person].partition("=")
    url = f"http://127.0.0.1:{site.address.port}/console"
    context.add_cookies([{"name": name, "value": value, "url": url}])
    page: Page = context.new_page()
    page.set_default_timeout(15_000)
    page.goto(f"{url}/inbox")
    return page


def first_paint(page: Page) -> float:
    """Milliseconds from the start of a load until something was painted."""
    entries = "performance.getEntriesByName('first-contentful-paint').map((each) => each.startTime)"
    # A function that the page waits for by itself is evaluated there, which its policy forbids.
    while not (found := page.evaluate(entries)):
        page.wait_for_timeout(20)
    return float(found[0])


def changes(site: ConsoleSite, page: Page, samples: int, *, rows: bool) -> tuple[Any, Any]:
    """Milliseconds until each proposal is seen, and until its end is."""
    came: list[float] = []
    went: list[float] = []
    for number in range(samples):
        if not rows:
            # The card of one that has gone stays a while, so that it can be read.
            page.reload()
            page.wait_for_function("document.querySelector('#badge') !== null")
            page.wait_for_timeout(1_000 * PAUSE)
        page.evaluate(WATCH)
        id = f"f{number:029x}{'aa' if rows else 'bb'}"
        key = key_of("caller", id)
        seen = f"q-{key}" if rows else key
        sent = time.time() * 1e3
        site.say("caller", proposal(id, "caller", 60))
        page.wait_for_function(f"window.came['{seen}'] > 0")
        came.append(page.evaluate(f"window.came['{seen}']") - sent)
        site.read(PAUSE)
        sent = time.time() * 1e3
        site.say("caller", withdrawal(f"w{id}", "caller", id))
        page.wait_for_function(f"window.went['{seen}'] > 0")
        went.append(page.evaluate(f"window.went['{seen}']") - sent)
        site.read(PAUSE)
    return came, went


def paints(chromium: Any, count: int) -> Iterator[Figure]:
    """First paints before somebody is in the space, beside one of a page with nothing to find."""
    with console_site(2, -(-count // 1_000)) as site:
        site.seed(count)
        site.settle()
        page: Page = chromium.new_context(viewport=SIZE).new_page()
        page.goto(f"http://127.0.0.1:{site.address.port}/console/sign-in")
        yield Figure("first paint of the sign-in page, nothing cached", first_paint(page), "ms")
        page.fill("#token", site.address.tokens["you0"])
        with page.expect_navigation(url="**/inbox"):
            page.press("#token", "Enter")
        yield Figure("first paint, 10,000, the person signs in", first_paint(page), "ms", 300)


def measure(scale: float = 1.0) -> Iterator[Figure]:
    samples = max(2, round(SAMPLES * scale))
    count = max(60, round(PROPOSALS * scale))
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.getuid() == 0 else []
        path = find_chromium(cast("Any", playwright))  # the same of either kind
        with playwright.chromium.launch(executable_path=path, args=options) as chromium:
            yield from paints(chromium, count)
            for rows, words in ((False, "a card on an empty desk"), (True, "a row of the queue")):
                with console_site(2, -(-count // 1_000)) as site:
                    if rows:
                        site.seed(count)
                        site.settle()
                        page = open_page(site, chromium, "you0")
                        name = "first paint, 10,000, nothing cached, the person is not there yet"
                        yield Figure(name, first_paint(page), "ms", 300)
                        site.settle()
                        page.reload()
                        yield Figure("first paint, 10,000", first_paint(page), "ms", 300)
                    else:
                        page = open_page(site, chromium, "you0")
                    came, went = changes(site, page, samples, rows=rows)
                yield Figure(f"{words} is seen, median", statistics.median(came), "ms")
                yield Figure(f"{words} is seen, p95", percentile(came, 0.95), "ms", 100)
                yield Figure(f"{words} is gone, median", statistics.median(went), "ms")
                yield Figure(f"{words} is gone, p95", percentile(went, 0.95), "ms", 100)


PROGRAM = Program("console_browser", "The console in a browser", measure)

if __name__ == "__main__":
    main([PROGRAM], sys.argv[1:])
