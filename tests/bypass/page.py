"""The page of published bypasses, made from the incidents that the tests try."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.bypass.catalog import INCIDENTS
from tests.bypass.findings import FINDINGS, Finding
from tests.bypass.incident import Incident

PATH: Final = Path(__file__).parents[2] / "docs" / "explanation" / "bypasses.md"

HEAD: Final = """# Bypasses that others reported

An approval that can be bypassed is worth nothing. This page has {count} bypasses that users of
other approval systems reported in public: what happened there, and what stops it here. Each is a
test, which repeats the steps of the report against a space, in memory or over real sockets, mostly
both; and each has a second test, in which the rule that stops it is switched off and the bypass
succeeds: so it is that rule, and not an accident, that stops it. {open} of them are *not* stopped;
they stand at the end.

The tests are in `tests/bypass`, and this page is written from them. Behind the reports stand the
bypasses that attacks on this project found, each with the test that repeats it.
"""

FOUND: Final = """## Found here

Strangers were asked to get a call carried out that nobody approved. These ways were open once.
"""

GAPS: Final = """## What nothing here stops

An approval binds a call: who proposed it, who carries it out, and its arguments, byte for byte.
It says nothing of what the arguments mean or point at, and nothing of the judgement of the
participant that decides. Nor do a rule or votes bind a participant whose capabilities let it make
the request by itself, as the reviewer's own do: it needs no proposal for that, and whoever has its
token is that participant. So grant voters the method `dev.meup/vote`, and not the tool that is
voted about.
"""


def page() -> str:
    """The page, in Markdown."""
    stopped = [each for each in INCIDENTS.values() if each.off is not None]
    gaps = [each for each in INCIDENTS.values() if each.off is None]
    head = HEAD.format(count=len(INCIDENTS), open=_spelled(len(gaps)))
    found = [FOUND, *map(_finding, FINDINGS)] if FINDINGS else []
    return "\n".join([head, *map(_entry, stopped), *found, GAPS, *map(_entry, gaps)])


def _finding(each: Finding) -> str:
    return (
        f"### {each.title}\n\n"
        f"**Then:** {each.was}\n\n"
        f"**Now:** {each.here}\n\n"
        f"*Test:* `{each.test}`\n"
    )


def _entry(each: Incident) -> str:
    more = "".join(f", [also]({link})" for link in each.also)
    return (
        f"### {each.title}\n\n"
        f"> “{each.said}”\n>\n> — [{_name(each.link)}]({each.link}), {each.date}{more}\n\n"
        f"**There:** {each.there}\n\n"
        f"**Here:** {each.here}\n\n"
        f"*Test:* `{each.name}`\n"
    )


def _name(link: str) -> str:
    owner, repository, _, number = link.removeprefix("https://github.com/").split("/")
    return f"{owner}/{repository}#{number}"


def _spelled(count: int) -> str:
    return ("None", "One", "Two", "Three", "Four", "Five", "Six")[count]
