"""Edits: the fields of a tool's schema, and what the schema says of what was typed."""

from typing import Any

import httpx
import pytest

from meup_agent import Fulfillment, ProposalHandle
from meup_agent.gateway.console.templating import (
    MAX_FIELD_CHARS,
    MAX_SCHEMA_FIELDS,
    fields_of,
    read_fields,
)
from tests.gateway.console.conftest import Browser, Site, fields_in, key_in

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


def test_field_is_read_by_its_type() -> None:
    for name, said, value in (
        ("to", "c@d", "c@d"),
        ("to", "one\r\ntwo", "one\ntwo"),
        ("copies", "7", 7),
        ("form", '"text"', "text"),
        ("urgent", "true", True),
        ("urgent", "false", False),
        ("note", '"x"', "x"),
    ):
        read = typed({"to": "a@b", "copies": 2}, **{name: said})
        assert read.problems == {}, (name, said)
        assert read.arguments == {"to": "a@b", "copies": 2, name: value}
    # One that is emptied leaves its argument out, but for a text, which may be meant to be empty.
    arguments = {"to": "a", "copies": 2, "form": "pdf", "urgent": True}
    assert typed(arguments, to="", copies="", form="", urgent="").arguments == {"to": ""}
    # One that cannot be read is named and kept.
    read = typed({"to": "a", "copies": 2}, copies="two")
    assert list(read.problems) == ["field-1"]
    assert [each.text for each in read.fields if each.name == "copies"] == ["two"]


def test_schema_that_is_too_much_for_a_form_has_none() -> None:
    many = {str(number): {"type": "string"} for number in range(MAX_SCHEMA_FIELDS + 1)}
    assert fields_of({"properties": many}, {}) == []
    assert fields_of(SCHEMA, {"to": "x" * (MAX_FIELD_CHARS + 1)}) == []
    assert fields_of({}, {"to": "x"}) == []


class Editing:
    """A browser at the decision about a call with a schema."""

    def __init__(self, browser: Browser, page: str, proposal: ProposalHandle) -> None:
        self.browser = browser
        self.page = page
        self.proposal = proposal
        self.path = f"/inbox/{key_in(page)}"
        self.form = fields_in(page, f"{self.path}/edit", "field-1")

    async def post(self, fields: dict[str, str], verb: str = "edit") -> httpx.Response:
        return await self.browser.post(f"{self.path}/{verb}", fields)

    async def seen(self, copies: str) -> dict[str, str]:
        """The form that sends a change, once that is shown."""
        shown = await self.post({**self.form, "field-1": copies})
        assert shown.status_code == 200
        return fields_in(shown.text, f"{self.path}/edit", "seen")

    async def run(self, fields: dict[str, str]) -> None:
        assert self.proposal.state.is_pending
        assert (await self.post(fields)).status_code == 303
        assert isinstance(await self.proposal.outcome(), Fulfillment)


async def begin(site: Site, *words: str) -> Editing:
    given = {"to": "a@b", "copies": 2}
    proposal = await site.propose(await site.proposer(), given, tool="send_report")
    browser = await site.browser("you")
    return Editing(browser, await browser.page("/inbox", "fields-form", *words), proposal)


async def test_edit_that_does_not_fit_the_schema_is_not_sent(site: Site) -> None:
    editing = await begin(site)
    for value, words in (
        ("1.5", "it should be integer, not number"),
        ("", "it is required"),
        ("{", "it is not JSON yet"),
    ):
        answer = await editing.post({**editing.form, "field-1": value})
        assert answer.status_code == 400
        assert words in answer.text
        assert "send-edit" not in answer.text
        assert fields_in(answer.text, f"{editing.path}/edit", "field-1")["field-1"] == value
    unfit = '{"to": "a@b", "copies": "2", "cc": "c@d"}'
    kept = {name: editing.form[name] for name in ("csrf", "digest")}
    answer = await editing.post({**kept, "arguments": unfit, "seen": unfit})
    assert answer.status_code == 400
    assert "should be integer, not string" in answer.text
    assert site.ran == []
    await editing.run(await editing.seen("3"))
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
    editing = await begin(site, "by hand")
    answer = await editing.post(await editing.seen("3"))
    assert answer.status_code == 400
    assert "the rule &#39;paper&#39; of &#39;reviewer&#39;: too many" in answer.text
    assert fields_in(answer.text, f"{editing.path}/edit", "field-1")["field-1"] == "3"
    assert site.ran == []
    await editing.run(await editing.seen("4"))
    assert [each["copies"] for each in site.ran] == [4]


async def test_rule_that_asks_for_a_word_is_answered_by_nothing_else(site: Site) -> None:
    await site.review(
        "rules: [{ask: {tool: send_report, name: by hand, confirm: word}}]\nend: true\n"
    )
    editing = await begin(site, "by hand")
    approve = fields_in(editing.page, f"{editing.path}/approve")
    assert "word" in approve
    for word in ("", "yes"):
        answer = await editing.post({**approve, "sure": "yes", "word": word}, "approve")
        assert answer.status_code == 400
        assert "type “approve”" in answer.text
    seen = await editing.seen("3")
    assert (await editing.post(seen)).status_code == 400
    assert site.ran == []
    await editing.run({**seen, "word": "approve"})
    assert [each["copies"] for each in site.ran] == [3]


async def test_edit_is_checked_while_it_is_typed(site: Site) -> None:
    editing = await begin(site)
    whole = {"csrf": editing.form["csrf"], "arguments": "{}"}
    for fields, problems in (
        (editing.form, {}),
        ({**editing.form, "field-1": "true"}, {"field-1": "it should be integer, not boolean"}),
        ({**editing.form, "field-1": ""}, {"field-1": "it is required"}),
        (whole, {"arguments": "'to' is required; 'copies' is required"}),
    ):
        assert (await editing.post(fields, "check")).json() == {"problems": problems}
    answer = await editing.browser.post(f"/inbox/{'0' * 24}/check", whole)
    assert answer.json() == {"problems": {}}


@pytest.mark.parametrize("digest", ["0" * 64, "", None], ids=["another", "empty", "none"])
async def test_tampered_digest_decides_nothing(site: Site, digest: str | None) -> None:
    editing = await begin(site)
    seen = await editing.seen("3")
    edit, reject = editing.form, fields_in(editing.page, f"{editing.path}/reject")
    for verb, form in (("edit", edit), ("edit", seen), ("reject", reject), ("vote", reject)):
        sent = {name: value for name, value in form.items() if name != "digest"}
        sent |= {} if digest is None else {"digest": digest}
        answer = await editing.post({**sent, "vote": "approve"}, verb)
        assert answer.status_code == 409
        assert "another one than you were shown" in answer.text
    assert site.ran == []
    await editing.run(seen)


async def test_edit_is_sent_only_as_it_was_seen(site: Site) -> None:
    editing = await begin(site)
    seen = await editing.seen("3")
    another = seen["seen"].replace("3", "4")
    assert another != seen["seen"]
    for tampered in ({**seen, "arguments": another}, {**seen, "seen": another}):
        answer = await editing.post(tampered)
        assert answer.status_code == 200  # it is shown, and nothing is sent
        assert "send-edit" in answer.text
    assert site.ran == []
    await editing.run(seen)
    assert [each["copies"] for each in site.ran] == [3]
