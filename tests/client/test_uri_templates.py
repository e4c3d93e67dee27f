"""URI templates read backwards, with those that strangers would write."""

import pytest

from meup_agent.client import offers
from meup_agent.client.offers import matches_any


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("notes://{day}", "notes://monday"),
        ("notes://{day:3}", "notes://mon"),
        ("notes://{a},{b}", "notes://1,2"),
        ("notes://all", "notes://all"),
        ("file:///{+path}", "file:///a/b.txt?x#y"),
        ("file://{/path*}", "file:///a/b"),
        ("file://a{.suffix}", "file://a.tar"),
        ("db://{table}{?limit,offset}", "db://users?offset=2"),
        ("db://{table}{?limit}", "db://users"),
        ("db://t?fixed=1{&more}", "db://t?fixed=1&more=2"),
        ("m://{;x,y}", "m://;x=1;y"),
        ("p://page{#part}", "p://page#two"),
        ("ü://{name}/(a)", "ü://ö/(a)"),
    ],
)
def test_a_uri_that_a_template_makes(template: str, uri: str) -> None:
    assert matches_any([template], uri)


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("notes://{day}", "notes://a/b"),
        ("notes://{day}", "notes://"),
        ("notes://{day}", "notesX//monday"),
        ("notes://.*", "notes://monday"),
        ("notes://{day", "notes://monday"),
        ("notes://day}", "notes://day}"),
        ("notes://{}", "notes://monday"),
        ("notes://{a b}", "notes://monday"),
        ("notes://{=day}", "notes://monday"),
        ("{{+x}}", "{a}"),
        ("db://{t}{?q}", "db://a/b?q=1"),
        ("{+x}" * 2000, "notes://monday"),
        ("{a}" * 300, "notes"),
    ],
)
def test_a_uri_that_it_does_not_make(template: str, uri: str) -> None:
    assert not matches_any([template], uri)


def test_a_stranger_makes_us_compile_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()

    def note(template: str) -> object:
        tried.append(template)
        return lambda _: False

    monkeypatch.setattr(offers, "_compiled", note)
    templates = (f"notes://{{a{number}}}" for number in range(1_000_000))
    assert not matches_any(templates, "notes://monday")
    assert len(tried) == offers.MAX_TRIED_TEMPLATES
    # Those of other schemes cost nothing, and count for nothing.
    tried.clear()
    matches_any(["other://{a}"] * 1000 + ["notes://{a}"], "notes://monday")
    assert tried == ["notes://{a}"]
