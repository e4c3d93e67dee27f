"""Decisions of the reference library for thousands of pairs: ours agree (PROTOCOL 7)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.wire import compile_capabilities, compile_pattern

VECTORS = Path(__file__).parent.parent / "vectors"


def lines(name: str) -> Iterator[list[Any]]:
    with (VECTORS / name).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def test_every_string_decision_is_ours() -> None:
    compared = list(lines("strings.jsonl"))
    assert len(compared) == 625
    assert [
        (pattern, value, allowed)
        for pattern, value, allowed in compared
        if compile_pattern(pattern).matches(value) is not allowed
        and (pattern, value) not in DIFFERENT
    ] == []


def test_every_capability_decision_is_ours() -> None:
    compared = list(lines("capabilities.jsonl"))
    assert len(compared) == 1676
    assert [
        (capability, message, allowed)
        for capability, message, allowed in compared
        if compile_capabilities([capability]).allow(message["kind"], message["payload"])
        is not allowed
    ] == []


DIFFERENT = [
    *[("!6", 6), ("!a*", 5), ("!/b/", None), (["!a", "!b"], True)],
    *[("!/public/**", "/public/.hidden"), ("!/public/**", "/public/a/.git/config")],
    *[("*a*", "{a,b}"), ("a*b", "a b")],
]
"""Values that the reference library lets through: section 7 says why ours does not."""


@pytest.mark.rule("7.negation")
@pytest.mark.rule("7.readings")
@pytest.mark.rule("7.lists")
@pytest.mark.parametrize(("pattern", "value"), DIFFERENT)
def test_where_we_differ_on_purpose_we_allow_less(pattern: object, value: object) -> None:
    assert not compile_pattern(pattern).matches(value)


def test_where_the_specification_decides_we_decide_alike() -> None:
    """Gateways and libraries that exist differ over these; `spec` is what the text says."""
    with (VECTORS / "capability-matrix.jsonl").open(encoding="utf-8") as file:
        decided = [row for row in map(json.loads, file) if row["spec"] in ("allow", "deny")]
    assert len(decided) > 15
    for row in decided:
        message = row["message"]
        allowed = compile_capabilities([row["capability"]]).allow(
            message["kind"], message.get("payload", {})
        )
        assert allowed is (row["spec"] == "allow"), row
