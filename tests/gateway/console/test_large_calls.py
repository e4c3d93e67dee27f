"""Large calls and forms: of each a page does a bounded amount of work, and others are served."""

import json
from typing import Any

import pytest
from markupsafe import Markup

from meup_agent import Rejection
from meup_agent.approval.inbox.item import MAX_MARKED_CHARS, marked_in
from meup_agent.gateway.console.sign_in import (
    FORM_PIECE_BYTES,
    OPEN_FORM_BYTES,
    REQUESTS_BURST,
    RequestDenied,
    RequestPace,
    decode_form,
)
from meup_agent.gateway.console.templating import (
    MAX_EDITED_BYTES,
    MAX_LINES,
    MAX_PARTS,
    editable,
    is_shown_whole,
    json_lines,
)
from tests.gateway.console.conftest import Site, fields_in
from tests.gateways import Identity
from tests.wire import Call

FORM = "application/x-www-form-urlencoded"


class Endless(list[Any]):
    """A list of values without an end; one that reads it all does not return."""

    def __iter__(self) -> Any:
        while True:
            yield 1

    def __bool__(self) -> bool:
        return True


def test_marks_of_a_call_count_names_and_values_and_end_where_it_is_long() -> None:
    def marks(arguments: Any) -> list[str]:
        return [*marked_in(Call("tools/call", {"name": "write", "arguments": arguments}))]

    first, second = marks({"\u202ename": "value", "more": [{"deep": "a\u200bb"}]})
    assert first.startswith("the name of an argument has U+202E")
    assert second.startswith("its arguments have U+200B")
    for long in ({"more": Endless()}, {"n" * MAX_MARKED_CHARS: 1}):
        assert marks(long) == ["it is long"]


def test_json_without_an_end_is_shown_from_its_beginning() -> None:
    said = json_lines({"a": Endless()})
    assert said.startswith(Markup("{\n  &#34;a&#34;: [\n    1,\n    1,"))
    assert said.endswith(Markup('<span class="cut">… and more than a page can show</span>'))


def test_text_to_edit_has_what_is_hidden_as_escapes() -> None:
    value = {"path": "a\u202eb\u200bс\U000e0041", "text": 'é"\n'}
    said = editable(value)
    assert json.loads(said) == value
    for shown in ("\\u202e", "\\u200b", "\\udb40\\udc41", "é"):
        assert shown in said


async def test_form_is_decoded_piece_by_piece_as_it_would_be_whole() -> None:
    text = "é+&=%" * FORM_PIECE_BYTES
    sent = text.replace("%", "%25").replace("+", "%2B").replace("&", "%26").replace("=", "%3d")
    sent = sent.replace("é", "%C3%a9")
    for shift in range(3):
        body = f"{'x' * shift}=a+b&&more={'x' * shift}{sent}".encode()
        fields = await decode_form(body)
        assert fields == {"x" * shift: "a b", "more": "x" * shift + text}


async def test_stranger_is_read_no_further_than_a_token_goes(site: Site) -> None:
    browser = await site.browser()
    headers = {"Origin": browser.origin, "Content-Type": FORM}
    large = b"token=" + b"%41" * (OPEN_FORM_BYTES // 3)
    for path, status in (("/sign-in", 413), ("/link", 413), ("/inbox/0/approve", 303)):
        answer = await browser.client.post(f"/console{path}", content=large, headers=headers)
        assert answer.status_code == status


async def test_large_forms_are_many_requests(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = await site.browser("boss")
    fields = await browser.fields("/health", "/sign-out")
    amounts: list[int] = []

    async def wait(_: RequestPace, __: Identity, amount: int = 1) -> None:
        amounts.append(amount)

    monkeypatch.setattr(RequestPace, "wait", wait)
    pad = "x" * (3 * FORM_PIECE_BYTES)
    answer = await browser.post("/participants/kick", {**fields, "csrf": "wrong", "pad": pad})
    assert answer.status_code == 403
    assert amounts == [1, 3]


async def test_request_that_counts_as_many_waits_for_as_many() -> None:
    pace, identity = RequestPace(), Identity("demo", "you")
    await pace.wait(identity, REQUESTS_BURST)
    with pytest.raises(RequestDenied, match="too fast"):
        await pace.wait(identity, REQUESTS_BURST)


async def test_call_that_a_page_cuts_is_not_approved_there(site: Site) -> None:
    # Short enough for all that looks at its characters: a line for each line of nothing.
    given = {"path": "a.md", "text": "x", "more": [0] * MAX_LINES}
    _, browser, _, key = await site.asked(given)
    page = await browser.page(f"/inbox/{key}")
    assert "it is more than this page shows" in page
    assert "it is long" not in page
    refused = await browser.decide(key)
    assert refused.status_code == 400
    assert "Not approved: it is more than this page shows" in refused.text
    assert site.ran == []


def test_json_is_shown_whole_or_said_not_to_be() -> None:
    whole: list[Any] = [[0] * (MAX_LINES - 2), "x" * 100, {}]
    for value in whole:
        assert is_shown_whole(value)
        assert 'class="cut"' not in json_lines(value)
    cut: list[Any] = [[0] * (MAX_LINES - 1), [[]] * MAX_PARTS, "x" * 20_000, Endless()]
    for value in cut:
        assert not is_shown_whole(value)
        assert 'class="cut"' in json_lines(value)


async def test_large_call_is_shown_and_rejected_and_not_edited(site: Site) -> None:
    given = {"path": "a.md", "text": "é" * MAX_EDITED_BYTES}
    proposal, browser, _, key = await site.asked(given)
    page = await browser.page(f"/inbox/{key}")
    assert "It is too large to be edited here" in page
    assert "it is long" in page
    assert len(page) < 4 * MAX_EDITED_BYTES
    fields = fields_in(page, f"/inbox/{key}/approve")
    refused = await browser.post(f"/inbox/{key}/edit", {**fields, "arguments": "{}"})
    assert refused.status_code == 400
    assert "a page takes 131,072 characters" in refused.text
    assert (await browser.decide(key, "reject", reason="invalid")).status_code == 303
    assert isinstance(await proposal.outcome(), Rejection)
    assert site.ran == []
