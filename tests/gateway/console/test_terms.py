"""MEUP's words: each page explains those that it uses, once, where they first stand on it."""

import re

import pytest

from meup_agent.gateway.console.templating import FOLDER, TERMS, PageTerms, sentence
from tests.gateway.console.conftest import PLAIN_PAGES, Site, key_in
from tests.gateway.console.test_voting import POLICY

FORMS = {
    "capability": "capabilit(?:y|ies)",
    "expire": "expire[sd]?",
    "fulfill": "fulfill(?:s|ed)?|requests?",
    "grant": "grants?|revokes?",
    "reject": "reject(?:s|ed)?",
    "vote": "vote[sd]?",
    "withdraw": "withdr(?:aws?|awn|ew)",
}
"""Forms of words that are not the word, or the word and an s."""

NOT_OURS = re.compile(
    r'<bdi class="name">.*?</bdi>|<code.*?</code>|<pre.*?</pre>|<select.*?</select>'
    r"|the tool is \w+|the method is dev\.meup/\w+(?: or dev\.meup/\w+)*"
    r'|<p class="crumbs">.*?</p>'
    r'|<span class="words">.*?</span>|<svg.*?</svg>|<textarea.*?</textarea>',
    re.DOTALL,
)
"""Words of others, choices, and links before a page begins."""


def problems_of(page: str) -> list[str]:
    """The words of a page that it does not explain in the part where they first stand, and once."""
    main = NOT_OURS.sub(" ", page.partition("<main")[2].partition("</main>")[0])
    parts = re.split(r"(?=<h[12])", main)
    problems: list[str] = []
    for word in TERMS:
        form = re.compile(rf"\b(?:{FORMS.get(word, word + 's?')})\b", re.IGNORECASE)
        texts = [re.sub(r"<[^>]+>", " ", each) for each in parts]
        first = next((at for at, text in enumerate(texts) if form.search(text)), None)
        if first is None:
            continue
        explained = re.findall(rf"<em>(?:{form.pattern})</em>", parts[first], re.IGNORECASE)
        whole = main.count(str(sentence(word)))
        if not explained or whole != 1:
            problems.append(f"{word}: explained {whole} times; stands in {texts[first].split()}")
    return problems


def test_word_is_explained_once() -> None:
    explain = PageTerms()
    assert explain("envelope") == (
        '<p class="muted small">An <em>envelope</em> is one message.</p>'
    )
    assert explain("envelope") == ""
    assert "message" not in explain("envelope", "stream")
    assert all("<em>" in sentence(word) for word in TERMS)


def test_sentences_stand_in_the_table_alone() -> None:
    for path in (FOLDER / "templates").glob("*.html"):
        assert "<em>" not in path.read_text(encoding="utf-8"), path


def test_problem_is_found() -> None:
    said = str(sentence("envelope"))
    assert problems_of(f"<main><h1>Envelopes</h1><p>{said}</p></main>") == []
    assert problems_of(f"<main><h1>Envelopes</h1><h2>x</h2><p>{said}</p></main>") != []
    assert problems_of(f"<main><p>{said}</p><p>{said}</p></main>") != []
    assert problems_of("<main><p>an envelope</p></main>") != []


@pytest.mark.parametrize("who", ["you", "boss", "looker", "voter"])
async def test_each_page_of_an_empty_space(site: Site, who: str) -> None:
    browser = await site.browser(who)
    for path in (*PLAIN_PAGES, f"/inbox/{'0' * 24}"):
        assert problems_of((await browser.get(path)).text) == [], path


async def test_each_page_of_a_space_at_work(site: Site) -> None:
    proposer = await site.proposer()
    browser = await site.browser("boss")
    taken = await site.propose(proposer, {"path": "old.md"})
    await browser.page("/inbox", "old.md")
    await taken.withdraw()
    await site.propose(proposer)
    page = await browser.page("/inbox", "a.md", "withdrawn")
    assert "<em>withdraw</em>" in page
    assert problems_of(page) == []
    for path in (*PLAIN_PAGES, f"/proposals/{key_in(page)}"):
        assert problems_of((await browser.get(path)).text) == [], path
    rows = (await browser.get("/timeline")).text
    for seq in re.findall(r'href="/console/envelopes/(\d+)"', rows):
        assert problems_of((await browser.get(f"/envelopes/{seq}")).text) == [], seq


async def test_card_that_others_have_rejected(site: Site) -> None:
    proposer = await site.proposer()
    given, asked = {"path": "a.md"}, ("you", "other")
    proposal = proposer.propose("tools", "write_file", given, ttl=600, to=asked, wait="all")
    await site.stack.enter_async_context(proposal)
    other, you = await site.browser("other"), await site.browser("you")
    await other.decide(await other.key("a.md"), "reject", reason="unsafe")
    assert problems_of(await you.page("/inbox", "Rejected so far by")) == []


async def test_pages_of_a_call_that_is_voted_on(site: Site) -> None:
    await site.review(POLICY)
    proposal = await site.propose(await site.proposer())
    key = ""
    for who in ("you", "voter"):
        browser = await site.browser(who)
        page = await browser.page("/inbox", "four eyes", "Vote for it")
        key = key_in(page)
        assert "<em>rule</em>" in page
        assert problems_of(page) == []
        await browser.decide(key, "vote", vote="approve")
    await proposal.outcome()
    story = (await (await site.browser("boss")).get(f"/proposals/{key}")).text
    assert "<em>vote</em>" in story
    assert problems_of(story) == []
