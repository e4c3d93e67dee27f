"""Grants cover no more than their granter has: what is said to be covered is covered."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.patterns import (
    MAX_COMPARISONS,
    covers,
    covers_pattern,
    first_covering,
    kinds_of,
    stripped,
)
from tests.effort import scaled
from tests.wire import ArgumentCompiler, Reading, WorkBudget, compile_capabilities

CALL = {"kind": "mcp/request", "payload": {"method": "tools/call"}}


def capability(kind: Any, **payload: Any) -> dict[str, Any]:
    return {"kind": kind, "payload": payload} if payload else {"kind": kind}


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (capability("chat"), capability("chat")),
        (capability("*"), capability("chat")),
        (capability("*"), capability("mcp/*")),
        (capability("*"), capability("!chat")),
        (capability("*"), capability("/./")),
        (capability("mcp/*"), capability("mcp/request")),
        (capability("mcp/*"), capability("mcp.request")),
        (capability("mcp.*"), capability("mcp/request")),
        (capability("mcp/*"), capability("mcp/re*")),
        (capability("mcp/**"), capability("mcp/*")),
        (capability("/^mcp/"), capability("mcp/request")),
        (capability("!chat"), capability("mcp/request")),
        (capability(["chat", "mcp/*"]), capability("mcp/request")),
        (capability("mcp/request"), CALL),
        (CALL, CALL),
        (CALL, capability("mcp/request", method="tools/call", params={"name": "read"})),
        (capability("mcp/*", method="tools/*"), CALL),
        (capability("mcp/*", method=["tools/list", "tools/call"]), CALL),
        (capability("mcp/*", method="tools/*"), capability("mcp/*", method=["tools/a", "tools/b"])),
        (capability("x", n=1), capability("x", n=1)),
        (capability("x", n="!2"), capability("x", n="1")),
        (capability("x", n="/^a/"), capability("x", n="abc")),
        (capability("x", **{"**": "a*"}), capability("x", **{"**": "ab"})),
        (capability("x", n={}), capability("x", n={"a": 1})),
        (capability("x", n="a/**"), capability("x", n="a/*/b")),
    ],
)
def test_covered(held: Any, wanted: Any) -> None:
    assert covers(held, wanted)


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (capability("chat"), capability("*")),
        (capability("mcp/*"), capability("chat")),
        (capability("mcp/re*"), capability("mcp/*")),
        (capability("mcp/request"), capability("mcp.response")),
        (capability("!chat"), capability("*")),
        (capability("a/*"), capability("a/*/*")),
        (CALL, capability("mcp/request")),
        (CALL, capability("mcp/request", params={"name": "read"})),
        (CALL, capability("mcp/request", method="tools/*")),
        (CALL, capability("mcp/request", method=["tools/call", "tools/list"])),
        (capability("x", n=1), capability("x", n=True)),
        (capability("x", n=1), capability("x", n="1")),
        (capability("x", n="1"), capability("x", n={"a": "1"})),
        (capability("x", n={}), capability("x", n="a")),
        (capability("x", n="/**"), capability("x", n="/a/")),
        (capability("x", n="*"), capability("x", n="!a")),
        (capability("x", n="!6"), capability("x", n=6)),
        (capability("x", n="!*a*"), capability("x", n=None)),
        (capability("x", n="!6"), capability("x", n=[5, "a"])),
        (capability("x", n="a*"), capability("x", n=".a")),
        (capability("x", a=1, b=2), capability("x", a=1)),
    ],
)
def test_not_covered(held: Any, wanted: Any) -> None:
    assert not covers(held, wanted)


def test_each_kind_may_be_covered_by_another_capability() -> None:
    wanted = kinds_of({"kind": ["chat", "mcp/request"], "payload": {"a": 1}})
    assert [each["kind"] for each in wanted] == ["chat", "mcp/request"]
    held = [capability("chat"), capability("mcp/*")]
    assert [first_covering(held, each) for each in wanted] == held


def test_what_takes_too_long_to_compare_is_not_covered() -> None:
    size = 300
    assert size * size > MAX_COMPARISONS
    many = {"kind": "x", "payload": {"n": [f"n{number}" for number in range(size)]}}
    few = {"kind": "x", "payload": {"n": ["n299"] * 60}}
    assert covers(many, few)
    assert not covers(many, {"kind": "x", "payload": {"n": ["n299"] * size}})


def test_id_beside_a_capability_is_left_aside() -> None:
    assert stripped([{"id": "mcp-response", "kind": "mcp/response"}]) == [{"kind": "mcp/response"}]


ALL_WORDS = [
    "a", "ab", "b", "a/b", "a/b/c", "ab/c", ".a", "a/.b", "a/", "/a/", "", "mcp/request", "chat",
    "mcp.request", "a/bc", "mcp/x.y", "a b", "a,b", "a/b c", "a/b,c", "A", "a/../b", "a\\b",
]  # fmt: skip
ALL_STRINGS = [
    *ALL_WORDS,
    *["*", "**", "a*", "a/*", "a/**", "*/b", "a*b", "a/*/c", "a/b*", "?", "[ab]", "{a,b}*",
         "!a", "!a*", "/a/", "/^a/", "mcp/*", "mcp.*", "mcp.request", "a**", "/**", "*a", "a/*b*"],
]  # fmt: skip
WORDS = st.sampled_from(ALL_WORDS)
STRINGS = st.sampled_from(ALL_STRINGS)
SCALARS = st.one_of(st.integers(0, 2), st.booleans(), st.none(), STRINGS)
KEYS = st.sampled_from(["x", "y", "*", "**", "x*"])
PATTERNS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(KEYS, inner, max_size=2)),
    max_leaves=4,
)
CAPABILITIES = st.fixed_dictionaries(
    {"kind": st.one_of(STRINGS, st.lists(STRINGS, min_size=1, max_size=2))},
    optional={"payload": st.dictionaries(KEYS, PATTERNS, max_size=2)},
)
VALUES = st.recursive(
    st.one_of(st.integers(0, 2), st.booleans(), st.none(), WORDS),
    lambda inner: st.dictionaries(st.sampled_from(["x", "y", "xx"]), inner, max_size=2),
    max_leaves=4,
)
PAYLOADS = st.dictionaries(st.sampled_from(["x", "y", "xx"]), VALUES, max_size=2)


@settings(max_examples=scaled(500), deadline=None)
@given(CAPABILITIES, CAPABILITIES, WORDS, st.lists(PAYLOADS, min_size=4, max_size=4))
def test_what_is_covered_is_allowed(
    held: dict[str, Any], wanted: dict[str, Any], kind: str, payloads: list[dict[str, Any]]
) -> None:
    try:
        may, grants = compile_capabilities([held]), compile_capabilities([wanted])
    except InvalidPattern:
        return
    if not all(covers(held, each) for each in kinds_of(wanted)):
        return
    for payload in payloads:
        if grants.allow(kind, payload):
            assert may.allow(kind, payload)


def test_string_that_is_covered_is_matched() -> None:
    compiled = {each: compile_capabilities([capability("k", n=each)]) for each in ALL_STRINGS}
    kinds = {each: compile_capabilities([capability(each)]) for each in ALL_STRINGS if each}
    for held, wanted in product(ALL_STRINGS, repeat=2):
        if covers(capability("k", n=held), capability("k", n=wanted)):
            for value in ALL_WORDS:
                said = {"n": value}
                allowed = compiled[held].allow("k", said) or not compiled[wanted].allow("k", said)
                assert allowed, (held, wanted, value)
        if held and wanted and covers(capability(held), capability(wanted)):
            for value in ALL_WORDS:
                allowed = kinds[held].allow(value, {}) or not kinds[wanted].allow(value, {})
                assert allowed, (held, wanted, value)


@pytest.mark.rule("7.readings")
@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ("/etc/**", "/etc/.ssh/*"),
        ("/etc/*", "/ETC/a/b"),
        ("read_*", "Read_{a,b}*"),
        ("*", "/a/"),
        ("*", "!a"),
        ("/etc/x", "/etc/../etc/x"),
        ({"path": "/etc/**"}, {"path": ["/etc/.a", "/etc/b*"], "mode": 1}),
    ],
)
def test_what_is_revoked_or_denied_is_compared_widely(held: object, wanted: object) -> None:
    assert covers_pattern(held, wanted, Reading.WIDE)
    assert not covers_pattern(held, wanted)
    revoked = capability("mcp/request", params=held)
    assert covers(revoked, capability("mcp/request", params=wanted), Reading.WIDE)


@pytest.mark.rule("7.readings")
@settings(max_examples=scaled(500), deadline=None)
@given(PATTERNS, PATTERNS, st.lists(VALUES, min_size=6, max_size=6), st.sampled_from(Reading))
def test_pattern_that_is_covered_takes_no_more(
    held: Any, wanted: Any, values: list[Any], reading: Reading
) -> None:
    try:
        takes = ArgumentCompiler(reading).compile(held, "")
        wants = ArgumentCompiler(Reading.NARROW).compile(wanted, "")
    except InvalidPattern:
        return
    if covers_pattern(held, wanted, reading, of_arguments=True):
        for value in values:
            assert takes(value, WorkBudget(value)) or not wants(value, WorkBudget(value))


def test_string_that_is_covered_in_a_reading_is_matched() -> None:
    for reading in Reading:
        takes = {each: ArgumentCompiler(reading).compile(each, "") for each in ALL_STRINGS}
        wants = {each: ArgumentCompiler(Reading.NARROW).compile(each, "") for each in ALL_STRINGS}
        for held, wanted in product(ALL_STRINGS, repeat=2):
            if covers_pattern(held, wanted, reading, of_arguments=True):
                for value in ALL_WORDS:
                    work = WorkBudget(value)
                    assert takes[held](value, work) or not wants[wanted](value, work), (
                        held,
                        wanted,
                        value,
                        reading,
                    )
