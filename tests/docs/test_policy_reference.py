"""The page about policies has every rule, key and default of the models, and every public name."""

import re
from dataclasses import MISSING, Field, fields
from typing import Any

import pytest

from meup_agent import approval
from meup_agent.approval import PolicyRule
from meup_agent.approval.policy.file import rule_to_file
from meup_agent.approval.policy.rules import MAX_COUNT, MAX_VOTERS, RULES
from tests.programs import ROOT

PAGE = (ROOT / "docs" / "reference" / "policy.md").read_text(encoding="utf-8")
COMMON = [each.name for each in fields(PolicyRule)]
REQUIRED = {"of", "among", "count", "every", "tool"}
WORDS = {"any": None, "none": None, "its place: `rules[0]` …": None}


def table(heading: str) -> dict[str, str]:
    """The keys of a section's table, with their defaults."""
    section = PAGE.split(f"\n### {heading}\n")[1].split("\n## ")[0].split("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|", section, re.MULTILINE)
    return {key: default for key, _, default in rows}


def default_of(each: Field[Any]) -> object:
    return None if each.default is MISSING or each.name in REQUIRED else each.default


@pytest.mark.parametrize("word", ["every rule", *RULES])
def test_each_key_stands_in_its_table(word: str) -> None:
    model = RULES.get(word, PolicyRule)
    wanted = [each for each in fields(model) if word not in RULES or each.name not in COMMON]
    found = table(word)
    assert list(found) == [each.name for each in wanted]
    for each in wanted:
        said = found[each.name]
        if each.name in REQUIRED:
            assert said == "–"
        elif default_of(each) is None:
            assert said in WORDS
        else:
            assert said == f"`{each.default}`"


def test_the_limits_on_the_page_are_those_of_the_rules() -> None:
    assert f"up to {MAX_COUNT:,}" in PAGE
    assert f"at most {MAX_VOTERS}" in PAGE


def test_a_file_has_the_keys_of_the_page() -> None:
    rule = approval.QuorumRule("deploy", of=1, among=["lead"], ttl=60.0, remind=30.0, name="x")
    [(word, body)] = rule_to_file(rule).items()
    assert word == "quorum"
    assert set(body) <= set(table("quorum")) | set(table("every rule"))


def test_each_public_name_of_a_policy_is_shown() -> None:
    shown = set(re.findall(r"^::: meup_agent\.approval\.(\w+)", PAGE, re.MULTILINE))
    modules = ("meup_agent.approval.policy.", "meup_agent.approval.reviewer.reviewer")
    wanted = {
        name
        for name in vars(approval)["__all__"]
        if getattr(approval, name).__module__.startswith(modules)
    }
    assert shown == wanted
