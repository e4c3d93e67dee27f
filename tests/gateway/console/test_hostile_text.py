"""Text of participants in every field of a page: inert, visible, and bounded."""

import re

import pytest

from tests.gateway.console.conftest import PLAIN_PAGES, Site, key_in

HOSTILE = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "attribute": "\" onmouseover=alert(1) x='",
    "htmx": '"><a hx-get="/console/health" hx-trigger="load" hx-on:click="alert(1)">',
    "template": "{{ 7919*7927 }}{% raw %}${7919*7927}",
    "ansi": "\x1b[31mred\x07",
    "direction": "safe\u202egpj.exe",
    "invisible": "pa\u200byment\u2060",
    "look-alike": "p\u0430ypal",
    "long": "x" * 1_000_000,
    "lines": "line\n" * 10_000,
}


def assert_inert(page: str) -> None:
    assert "<script>" not in page
    assert "<img" not in page
    tags = re.sub(r'"[^"]*"', '""', page)
    assert not re.search(r"<[^>]+\s(onerror|onmouseover|hx-on[^=\s]*)\s*=", tags)
    # The only htmx attributes are those of our own templates, with addresses of ours.
    for value in re.findall(r"<[^>]*\shx-(?:get|post)=\"([^\"]*)\"", page):
        assert re.fullmatch(r"/console/[a-z/]+(\?before=\d+&amp;part=rows)?", value)
    for character in "\x1b\x07\u202e\u200b\u2060":
        assert character not in page
    assert "62773913" not in page
    assert len(page) < 3_000_000


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_text_is_inert(site: Site, name: str) -> None:
    text = HOSTILE[name]
    proposer = await site.proposer()
    tool = text[:200] or "t"
    await site.propose(proposer, {"path": text, text[:100]: [text[:500]]}, tool=tool)
    await proposer.chat(text)
    browser = await site.browser("you")
    page = (await browser.get("/inbox")).text
    assert_inert(page)
    key = key_in(page)
    for path in (*PLAIN_PAGES, f"/proposals/{key}", f"/inbox/{key}"):
        answer = await browser.get(path)
        assert answer.status_code == 200
        assert_inert(answer.text)
    seqs = re.findall(r"/console/envelopes/(\d+)", (await browser.get("/timeline")).text)
    for seq in set(seqs):
        assert_inert((await browser.get(f"/envelopes/{seq}")).text)
    await browser.decide(key, "reject", reason="unsafe", words=text[:2_000])
    assert_inert((await browser.get(f"/proposals/{key}")).text)
    assert_inert((await browser.get("/inbox")).text)


async def test_marked_text_says_what_it_is(site: Site) -> None:
    _, _, page, _ = await site.asked({"path": HOSTILE["direction"]})
    assert re.search(r'class="mark" title="[^"]*U\+202E[^"]*"', page)


async def test_hostile_query_is_inert(site: Site) -> None:
    browser = await site.browser("you")
    for text in HOSTILE.values():
        for path in ("/participants/try", "/timeline", "/inbox", "/history", "/sign-in", "/link"):
            query = {
                "who": text,
                "search": text,
                "by": text,
                "deed": text,
                "tool": text,
                "before": text,
                "next": text,
            }
            if len(text) > 10_000:
                continue
            answer = await browser.get(path, params={**query, "code": text})
            assert answer.status_code in (200, 303, 400, 403, 429)
            assert_inert(answer.text)
