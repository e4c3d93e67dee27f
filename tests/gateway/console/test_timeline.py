"""The timeline: filtered rows, threads of older ones, folded thoughts and streams."""

import re
from typing import Any

import pytest
from markupsafe import escape

from meup_agent import Envelope, Reason
from meup_agent.gateway.console.pages.timeline import RowFilter, read_filter
from meup_agent.gateway.console.timeline import (
    MAX_THREADS,
    PAGE_ROWS,
    ThreadIndex,
    TimelineRow,
    describe,
    fold_rows,
)
from meup_agent.wording import REASON_WORDS
from tests.gateway.console.conftest import PARTICIPANTS, Browser, Site, open_site
from tests.gateways import one_space_config
from tests.wire import draft


def envelope(kind: str, id: str, payload: dict[str, Any], **more: Any) -> Envelope:
    return draft(kind, payload, id=id, sender=more.pop("sender", "a"), **more)


def cancel(id: str, request: str) -> Envelope:
    params = {"requestId": request}
    payload = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
    return envelope("mcp/request", id, payload)


def test_reason_is_told_in_words() -> None:
    assert set(REASON_WORDS) == set(Reason) - {Reason.OTHER}  # the words beside it say which other
    # A code of a participant's own is told as it is, and one that is missing not at all.
    for reason, words in (("unsafe", "it could do harm"), ("moon is full", "moon is full"),
                          (None, "")):  # fmt: skip
        for kind in ("mcp/reject", "mcp/withdraw"):
            assert describe(envelope(kind, "i", {"reason": reason}))[1] == words


def test_answer_is_told_in_its_own_words() -> None:
    text = {"type": "text", "text": "at noon"}
    for body, words in (
        ({"result": {"content": [text]}}, "at noon"),
        ({"result": {"content": [text, text], "structuredContent": {}}}, "at noon at noon"),
        # What is not text alone is told as it is.
        ({"result": {"content": [text, {"type": "image"}]}}, '{"content": [{"type": "text"'),
        ({"result": {"content": []}}, '{"content": []}'),
        ({"result": {"tools": [{"name": "add"}, {"name": "read"}]}}, "2 tools: add, read"),
        ({"result": {"tools": [{"name": "add"}]}}, "1 tool: add"),
        ({"error": {"code": 1, "message": "no such tool"}}, "no such tool"),
        ({"result": None}, "null"),
    ):
        assert describe(envelope("mcp/response", "i", body))[1].startswith(words)


def test_chain_belongs_to_its_proposal() -> None:
    threads = ThreadIndex()
    asked = envelope("mcp/request", "r", {"id": 1}, correlation=("p",))
    for each in (
        envelope("mcp/proposal", "p", {"method": "tools/call"}),
        asked,
        envelope("mcp/response", "s", {"result": {}}, correlation=("r",)),
        cancel("c", "r"),
        envelope("chat", "w", {"text": "why"}, correlation=("s",)),
    ):
        assert threads.of(each)[:2] == ("a", "p"), each.id
    assert threads.of(cancel("d", "unknown"))[:2] == ("", "")


def test_older_threads_leave_what_is_remembered_alone() -> None:
    live = ThreadIndex()
    live.of(envelope("mcp/proposal", "p", {}))
    older = ThreadIndex(live)
    for number in range(MAX_THREADS + 1):
        older.of(envelope("mcp/proposal", f"old-{number}", {}))
    assert live.find("p") is not None
    assert older.find("p") is not None
    assert live.find("old-7") is None


def test_thoughts_and_streams_have_a_group() -> None:
    threads = ThreadIndex()
    thoughts = [
        envelope("reasoning/start", "t", {"input": "x"}),
        envelope("reasoning/thought", "u", {"message": "y"}, context="t"),
        envelope("reasoning/conclusion", "v", {}, context="t"),
    ]
    assert len({threads.of(each).group for each in thoughts}) == 1
    other = envelope("reasoning/thought", "w", {}, context="t", sender="b")
    assert threads.of(other).group != threads.of(thoughts[0]).group
    stream = [
        envelope("stream/request", "q", {"direction": "upload"}),
        envelope("stream/open", "o", {"stream_id": "s-1"}, correlation=("q",)),
        envelope("stream/close", "z", {"stream_id": "s-1"}),
    ]
    assert len({threads.of(each).group for each in stream}) == 1
    assert threads.of(envelope("chat", "h", {})).group == ""


def test_lists_that_one_asks_for_are_folded_with_their_answers() -> None:
    threads = ThreadIndex()
    asked = [
        envelope("mcp/request", "l", {"method": "tools/list"}),
        envelope("mcp/response", "m", {"result": {"tools": []}}, correlation=("l",), sender="b"),
        envelope("mcp/request", "n", {"method": "ping"}),
        envelope("mcp/request", "w", {"method": "dev.meup/waiting"}),
        envelope("mcp/response", "x", {"result": {}}, correlation=("w",), sender="b"),
    ]
    assert {threads.of(each).group for each in asked} == {"lists/a"}
    vote = envelope("mcp/request", "v", {"method": "dev.meup/vote", "params": {"t": "waiting"}})
    assert threads.of(vote).group == ""
    called = envelope("mcp/request", "o", {"method": "tools/call", "params": {"name": "a/list"}})
    for each in (
        called,
        envelope("mcp/response", "p", {"result": {}}, correlation=("o",), sender="b"),
    ):
        assert threads.of(each).group == ""
    other = envelope("mcp/request", "q", {"method": "resources/list"}, sender="b")
    assert threads.of(other).group == "lists/b"


def row(seq: int, **values: Any) -> TimelineRow:
    given: dict[str, Any] = {
        "seq": seq, "at": 0.0, "kind": "chat", "tone": "chat", "sender": "a", "to": (),
        "verb": "says", "words": "", "thread": "", "state": "", "word": "", "group": "",
        "begin": 0.0, "ends": (),
    }  # fmt: skip
    return TimelineRow(**{**given, **values})


def test_fold_stands_where_its_newest_part_does() -> None:
    rows = [row(5, group="g"), row(4), row(3, group="g"), row(2, group="h"), row(1, group="g")]
    folds = fold_rows(rows)
    assert [each.lead.seq for each in folds] == [5, 4, 2]
    assert [[part.seq for part in each.parts] for each in folds] == [[5, 3, 1], [], [2]]
    assert len({each.key for each in folds}) == 3


@pytest.mark.parametrize(
    ("shown", "seqs"),
    [
        (read_filter({"tone": "<b>", "state": "x", "thread": "../.."}), [1, 2, 3]),
        (RowFilter(), [1, 2, 3]),
        (RowFilter(participant="a"), [1, 3]),
        (RowFilter(participant="c"), [2]),
        (RowFilter(tone="reject"), [2]),
        (RowFilter(state="pending"), [3]),
        (RowFilter(thread="k"), [3]),
        (RowFilter(participant="b", tone="chat"), []),
    ],
)
def test_filter_passes_rows(shown: RowFilter, seqs: list[int]) -> None:
    rows = [
        row(1),
        row(2, sender="b", to=("c",), tone="reject"),
        row(3, thread="k", state="pending", tone="proposal"),
    ]
    assert [each.seq for each in rows if shown.passes(each)] == seqs


def test_envelope_has_a_verb_and_a_colour() -> None:
    for kind, payload, said in (
        ("mcp/response", {"result": {"isError": True, "content": []}}, ("fails", "error")),
        ("mcp/response", {"result": {"content": []}}, ("answers", "response")),
        ("reasoning/thought", {"message": "hm"}, ("thinks", "reasoning")),
        ("stream/close", {"reason": "done"}, ("closes a stream", "stream")),
        ("stream/grant-write", {"stream_id": "s"}, ("sends", "stream")),
    ):
        assert describe(envelope(kind, "i", payload))[::2] == said


def older_than(page: str) -> str:
    return str(re.findall(r"/timeline\?before=(\d+)\"", page)[0])


async def rows_of(browser: Browser, **query: str) -> list[tuple[str, str]]:
    page = (await browser.get("/timeline", params=query)).text
    return re.findall(r'data-tone="(\w+)" data-thread="\w*" data-state="(\w*)"', page)


async def test_timeline_is_filtered_without_a_script(site: Site) -> None:
    proposer = await site.proposer()
    browser = await site.browser("you")
    taken = await site.propose(proposer, {"path": "old.md"})
    await browser.page("/timeline", "old.md")
    await taken.withdraw()
    await site.propose(proposer)
    await proposer.chat("between")
    await browser.page("/timeline", "between")
    withdrawn = ("proposal", "withdrawn")
    assert await rows_of(browser, state="withdrawn") == [("withdraw", "withdrawn"), withdrawn]
    found = await rows_of(browser, tone="proposal", participant="proposer")
    assert found == [("proposal", "pending"), withdrawn]
    page = await browser.page("/timeline?state=withdrawn")
    thread, *_ = re.findall(r'data-thread="(\w{24})"', page)
    assert len(await rows_of(browser, thread=thread)) == 2
    assert await rows_of(browser, tone="stream") == []


async def test_older_page_knows_the_proposals_of_its_rows(site: Site) -> None:
    proposer = await site.proposer()
    proposal = await site.propose(proposer, {"path": "old.md"})
    for number in range(PAGE_ROWS - 10):
        await proposer.chat(f"meanwhile {number}")
    await proposal.withdraw()
    for number in range(PAGE_ROWS):
        await proposer.chat(f"later {number}")
    browser = await site.browser("you")
    # The feed of the space begins here: it knows nothing of what was said before.
    first = await browser.page("/timeline", f"later {PAGE_ROWS - 1}")
    assert "withdraws" not in first
    older = older_than(first)
    found = await rows_of(browser, before=older, part="rows", tone="withdraw")
    assert found == [("withdraw", "withdrawn")]


async def test_page_drawn_anew_has_what_was_loaded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer = await site.join("proposer")
    for number in range(2 * PAGE_ROWS + 10):
        await proposer.chat(f"message {number}.")
    browser = await site.browser("you")
    first = await browser.page("/timeline", f"message {2 * PAGE_ROWS + 9}.")
    older = older_than(first)
    assert len(await rows_of(browser)) == PAGE_ROWS
    await proposer.chat("one more")
    await browser.page("/timeline", "one more")
    assert len(await rows_of(browser, kept=older)) == PAGE_ROWS + 1
    assert len(await rows_of(browser, kept="1")) > 2 * PAGE_ROWS
    monkeypatch.setattr("meup_agent.gateway.console.pages.timeline.MAX_KEPT_ROWS", PAGE_ROWS + 5)
    assert len(await rows_of(browser, kept="1")) == PAGE_ROWS + 5


async def test_thoughts_and_streams_are_one_row_each_and_say_how_long_ago(site: Site) -> None:
    for said in (
        {"kind": "reasoning/start", "id": "t", "payload": {"message": "Where to begin"}},
        {"kind": "reasoning/thought", "context": "t", "payload": {"message": "a <b>thought</b>"}},
        {"kind": "stream/request", "id": "q", "payload": {"description": "the log"}},
        {"kind": "reasoning/conclusion", "context": "t", "payload": {"message": "So be it"}},
    ):
        await site.post("boss", said)
    page = await (await site.browser("you")).page("/timeline")
    assert page.count('id="group-') == 2
    # The gateway opened the stream.
    assert re.findall(r'class="parts-count">(\d)<', page) == ["3", "2"]
    assert "opens a stream" in page
    assert "a &lt;b&gt;thought" in page
    rows = page.partition('id="rows"')[2]
    clocks = re.findall(r'<time datetime="([^"]*)" title="[^"]* UTC">[\d:]{8}</time>', rows)
    since = re.findall(r'<time datetime="([^"]*)" data-ago>[^<]+</time>', rows)
    # The rows, and each of their parts.
    assert len(clocks) >= 5
    assert since == clocks


async def test_head_of_a_column_has_the_whole_name() -> None:
    # Printable, as an id must be, and wider than any column.
    named = f'"><b onclick=alert(1)>\u2010{"W" * 200}'
    config = one_space_config("demo", {**PARTICIPANTS, named: [{"kind": "chat"}]})
    async with open_site(config) as site:
        await (await site.join(named)).chat("hello")
        page = await (await site.browser("you")).page("/timeline", "hello")
        heads = page.partition('class="lane names"')[2].partition("</div>")[0]
        assert f'<span title="{escape(named)}"><bdi' in heads
        assert "<b onclick" not in heads
