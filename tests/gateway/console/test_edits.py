"""Edits: the fields of a tool's schema, and what the schema says of what was typed."""

from typing import Any

import httpx
import pytest

from meup_agent import Fulfillment
from meup_agent.gateway.console.schema_form import (
    MAX_FIELD_CHARS,
    MAX_SCHEMA_FIELDS,
    fields_of,
    read_fields,
)
from tests.gateway.console.conftest import Browser, Site, fields_in

pytestmark = pytest.mark.anyio

SCHEMA: dict[str, Any] = {
    "properties": {
        "to": {"type": "string", "title": "Addressee", "description": "Its mail address"},
        "copies": {"type": "integer"},
        "form": {"enum": ["pdf", "text"]},
        "urgent": {"type": "boolean"},
        "note": {"type": ["string", "null"]},
    },
    "required": ["to", "copies"],
}


def typed(arguments: dict[str, Any], **values: str) -> Any:
    """The form of a call with some fields filled in otherwise, as a browser sends it, read."""
    fields = fields_of(SCHEMA, arguments)
    form = {each.key: each.text for each in fields}
    form |= {each.key: values[each.name] for each in fields if each.name in values}
    form |= {f"{each.key}-here": each.type for each in fields}
    return read_fields(fields, form, arguments)


def test_fields_say_what_the_schema_says() -> None:
    fields = {each.name: each for each in fields_of(SCHEMA, {"to": "a@b", "copies": 2})}
    assert [each.type for each in fields.values()] == ["text", "json", "choice", "switch", "json"]
    assert fields["to"].title == "Addressee"
    assert fields["to"].about == "Its mail address"
    assert fields["form"].choices == ('"pdf"', '"text"')
    assert [each.name for each in fields.values() if each.required] == ["to", "copies"]


def test_untouched_form_changes_nothing() -> None:
    for arguments in ({"to": "", "copies": 2}, {"to": "a\nb", "copies": 1, "more": [1]}, {}):
        assert typed(arguments).arguments == arguments


@pytest.mark.parametrize(
    ("name", "said", "value"),
    [
        ("to", "c@d", "c@d"),
        ("to", "one\r\ntwo", "one\ntwo"),
        ("copies", "7", 7),
        ("form", '"text"', "text"),
        ("urgent", "true", True),
        ("urgent", "false", False),
        ("note", '"x"', "x"),
    ],
)
def test_field_is_read_by_its_type(name: str, said: str, value: object) -> None:
    read = typed({"to": "a@b", "copies": 2}, **{name: said})
    assert read.problems == {}
    assert read.arguments == {"to": "a@b", "copies": 2, name: value}


def test_emptied_field_leaves_its_argument_out() -> None:
    arguments = {"to": "a", "copies": 2, "form": "pdf", "urgent": True}
    read = typed(arguments, to="", copies="", form="", urgent="")
    # A text that was there may be meant to be empty.
    assert read.arguments == {"to": ""}


def test_unreadable_field_is_named_and_kept() -> None:
    read = typed({"to": "a", "copies": 2}, copies="two")
    assert list(read.problems) == ["field-1"]
    assert [each.text for each in read.fields if each.name == "copies"] == ["two"]


def test_schema_that_is_too_much_for_a_form_has_none() -> None:
    many = {str(number): {"type": "string"} for number in range(MAX_SCHEMA_FIELDS + 1)}
    assert fields_of({"properties": many}, {}) == []
    assert fields_of(SCHEMA, {"to": "x" * (MAX_FIELD_CHARS + 1)}) == []
    assert fields_of({}, {"to": "x"}) == []


async def begin(site: Site) -> tuple[Browser, str, Any]:
    """A browser at the decision about a call with a schema, the decision's key, its proposal."""
    given = {"to": "a@b", "copies": 2}
    proposal = await site.propose(await site.proposer(), given, tool="send_report")
    browser = await site.browser("you")
    return browser, await browser.key("fields-form"), proposal


async def test_edit_that_does_not_fit_the_schema_is_not_sent(site: Site) -> None:
    browser, key, proposal = await begin(site)
    action = f"/inbox/{key}/edit"
    form = fields_in((await browser.get("/inbox")).text, action, "field-1")
    for value, words in (
        ("1.5", "it should be integer, not number"),
        ("", "it is required"),
        ("{", "it is no JSON yet"),
    ):
        answer = await browser.post(action, {**form, "field-1": value})
        assert answer.status_code == 400
        assert words in answer.text
        assert "send-edit" not in answer.text
        assert fields_in(answer.text, action, "field-1")["field-1"] == value
    unfit = '{"to": "a@b", "copies": "2", "cc": "c@d"}'
    answer = await browser.post(action, {"csrf": form["csrf"], "digest": form["digest"],
                                         "arguments": unfit, "seen": unfit})  # fmt: skip
    assert answer.status_code == 400
    assert "should be integer, not string" in answer.text
    assert site.ran == []
    shown = await browser.post(action, {**form, "field-1": "3"})
    assert shown.status_code == 200
    await browser.post(action, fields_in(shown.text, action, "seen"))
    assert isinstance(await proposal.outcome(), Fulfillment)
    assert site.ran == [{"to": "a@b", "copies": 3, "form": "pdf", "urgent": False}]


POLICY = """
rules:
  - deny: {tool: send_report, arguments: {copies: 3}, name: paper, explain: too many}
  - ask: {tool: send_report, name: by hand}
end: true
"""


@pytest.mark.rule("4.4.edits_judged")
async def test_edit_that_a_rule_denies_is_not_sent_and_not_lost(site: Site) -> None:
    await site.review(POLICY)
    browser, key, proposal = await begin(site)
    await browser.page("/inbox", "by hand")
    action = f"/inbox/{key}/edit"

    async def send(copies: str) -> httpx.Response:
        form = fields_in((await browser.get("/inbox")).text, action, "field-1")
        shown = await browser.post(action, {**form, "field-1": copies})
        return await browser.post(action, fields_in(shown.text, action, "seen"))

    answer = await send("3")
    assert answer.status_code == 400
    assert "the rule &#39;paper&#39; of &#39;reviewer&#39;: too many" in answer.text
    assert fields_in(answer.text, action, "field-1")["field-1"] == "3"
    assert site.ran == []
    assert (await send("4")).status_code == 303
    assert isinstance(await proposal.outcome(), Fulfillment)
    assert [each["copies"] for each in site.ran] == [4]


async def test_edit_is_checked_while_it_is_typed(site: Site) -> None:
    browser, key, _ = await begin(site)
    form = fields_in((await browser.get("/inbox")).text, f"/inbox/{key}/edit", "field-1")
    for changed, problems in (
        ({}, {}),
        ({"field-1": "true"}, {"field-1": "it should be integer, not boolean"}),
        ({"field-1": ""}, {"field-1": "it is required"}),
    ):
        answer = await browser.post(f"/inbox/{key}/check", {**form, **changed})
        assert answer.json() == {"problems": problems}
    whole = {"csrf": form["csrf"], "arguments": "{}"}
    answer = await browser.post(f"/inbox/{key}/check", whole)
    assert answer.json() == {"problems": {"arguments": "'to' is required; 'copies' is required"}}
    answer = await browser.post(f"/inbox/{'0' * 24}/check", whole)
    assert answer.json() == {"problems": {}}


@pytest.mark.parametrize("digest", ["0" * 64, "", None], ids=["another", "empty", "none"])
async def test_tampered_digest_decides_nothing(site: Site, digest: str | None) -> None:
    browser, key, proposal = await begin(site)
    page = (await browser.get("/inbox")).text
    edit = fields_in(page, f"/inbox/{key}/edit", "field-1")
    shown = await browser.post(f"/inbox/{key}/edit", {**edit, "field-1": "3"})
    seen = fields_in(shown.text, f"/inbox/{key}/edit", "seen")
    reject = fields_in(page, f"/inbox/{key}/reject")
    for path, form in (("edit", edit), ("edit", seen), ("reject", reject), ("vote", reject)):
        sent = {name: value for name, value in form.items() if name != "digest"}
        if digest is not None:
            sent["digest"] = digest
        answer = await browser.post(f"/inbox/{key}/{path}", {**sent, "vote": "approve"})
        assert answer.status_code == 409
        assert "another one than you were shown" in answer.text
    assert site.ran == []
    assert proposal.state.is_pending
    await browser.post(f"/inbox/{key}/edit", seen)
    assert isinstance(await proposal.outcome(), Fulfillment)


async def test_edit_is_sent_only_as_it_was_seen(site: Site) -> None:
    browser, key, proposal = await begin(site)
    action = f"/inbox/{key}/edit"
    form = fields_in((await browser.get("/inbox")).text, action, "field-1")
    shown = await browser.post(action, {**form, "field-1": "3"})
    seen = fields_in(shown.text, action, "seen")
    another = seen["seen"].replace("3", "4")
    assert another != seen["seen"]
    for tampered in ({**seen, "arguments": another}, {**seen, "seen": another}):
        answer = await browser.post(action, tampered)
        assert answer.status_code == 200  # it is shown, and nothing is sent
        assert "send-edit" in answer.text
    assert site.ran == []
    assert proposal.state.is_pending
    await browser.post(action, seen)
    await proposal.outcome()
    assert [each["copies"] for each in site.ran] == [3]
