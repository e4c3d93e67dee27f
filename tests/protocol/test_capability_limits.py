"""The cost of a check, and proof that making it cheap changes no decision (PROTOCOL 7)."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.compiled_capabilities import MAX_NOT_UNDERSTOOD, joined
from meup_agent.protocol.capability.patterns import (
    MAX_PATH_STEPS,
    MAX_STEPS,
    MAX_WORK,
    WORK_PER_BYTE,
    Exhausted,
    WorkBudget,
)
from meup_agent.protocol.wire.envelope import MAX_PROGRAM_STEPS, MAX_UNICODE_CLASSES
from tests.gateways import participant
from tests.protocol.matching import matches
from tests.wire import (
    MAX_CAPABILITIES,
    compile_announced,
    compile_capabilities,
    compile_kind,
    compile_pattern,
)

EITHER = "ab" * 50_000
BAD = "/a[ab]{60}c/"
"""A program that goes through all its steps at every letter of such a text."""


def place_of_refusal(payload: object) -> str:
    with pytest.raises(InvalidPattern) as refused:
        compile_capabilities([{"kind": "a"}, {"kind": "b"}, {"kind": "mcp/*", "payload": payload}])
    return refused.value.place


def test_work_ends_where_it_says() -> None:
    work = WorkBudget("x")
    work.spend(MAX_WORK)
    with pytest.raises(Exhausted):
        work.spend(1)
    with pytest.raises(Exhausted):
        work.spend(1)


@pytest.mark.parametrize("value", ["x" * 10**6, {"a": ["x" * 10**6]}, {"x" * 10**6: 1}])
def test_a_larger_value_may_cost_more_in_proportion(value: object) -> None:
    work = WorkBudget(value)
    work.spend(WORK_PER_BYTE * 10**6)
    with pytest.raises(Exhausted):
        work.spend(100 * WORK_PER_BYTE)


@pytest.mark.rule("7.bounded")
@pytest.mark.parametrize("pattern", [BAD, f"!{BAD}", [BAD, f"!{BAD}"], ["!x", BAD][::-1]])
def test_what_costs_too_much_matches_nothing(pattern: object) -> None:
    assert matches(pattern, "x" + "ab" * 100) is not (pattern == BAD)
    assert not matches(pattern, EITHER)
    assert not compile_capabilities([{"kind": "x", "payload": {"a": pattern}}]).allow(
        "x", {"a": EITHER}
    )


@pytest.mark.rule("7.bounded")
@pytest.mark.parametrize("kind", [BAD, f"!{BAD}"])
def test_a_kind_that_costs_too_much_is_not_allowed(kind: str) -> None:
    assert not compile_kind(kind)(EITHER)
    assert not compile_capabilities([{"kind": kind}]).allow(EITHER, {})


@pytest.mark.thorough
@pytest.mark.rule("7.bounded")
@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ({"**": [{f"x{n}": 1} for n in range(450)]}, {"a": [{}] * 30_000}),
        ({"$" + "..*" * 90: 0}, {"a": {"a": list(range(1, 18_000))}}),
        ({f"?*{n}": 1 for n in range(200)}, {f"{n}a": 1 for n in range(9_000)}),
        ([{"**": {f"x{n}": 1}} for n in range(300)], {"a": [{}] * 30_000}),
        ({"**": [f"*{n}?b" for n in range(400)]}, {"a": ["ab" * 5] * 7_000}),
        ({"$..a.*": {"*": 7}}, {"a": {"a": {str(n): [n] for n in range(60_000)}}}),
    ],
)
def test_a_search_that_costs_too_much_ends(pattern: object, value: object) -> None:
    negated = [{"nothing": 1}, pattern]
    assert not matches(pattern, value)
    assert not matches(negated, value)


@pytest.mark.rule("7.bounded")
@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        # A megabyte is not an obstacle for what is plain.
        ("!*secret*", "x" * 10**6, True),
        ({"**": "/secret/"}, {"a": ["x" * 10**6, "a secret"]}, True),
        ("/public/**", "/public/" + "a/" * 500_000, True),
        ("**/a/**/b", "a/" * 500_000 + "b", True),
        ("{a,b}" * 40 + "**", "ab" * 500_000, True),
        ({"**": 7}, {"a": [0] * 200_000 + [7]}, True),
        ({"$..a": 7}, {"b": [{"c": 1}] * 100_000 + [{"a": 7}]}, True),
        ({"text": "!/(?i)password|secret/"}, {"text": "a word " * 100_000}, True),
    ],
)
def test_large_values_are_decided(pattern: object, value: object, expected: bool) -> None:
    assert matches(pattern, value) is expected


@pytest.mark.rule("7.bounded")
@pytest.mark.parametrize(
    "text",
    ["\u0301" * 30_000 + "\u0316" * 30_000, "a" + "\u0344\u0316" * 30_000, "\ufdfa" * 300_000],
    ids=["marks", "marks that are two", "letters that are eighteen"],
)
def test_no_letters_take_long_to_normalise(text: str) -> None:
    before = time.process_time()
    assert not matches("/etc/**", text)
    assert not matches("!/etc/**", text)
    assert time.process_time() - before < 1


@pytest.mark.rule("7.refused_with_place")
@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        (f"/a{{{MAX_PROGRAM_STEPS}}}/", ""),
        (f"!/a{{{MAX_PROGRAM_STEPS}}}/", ""),
        (r"/\pL/", ""),
        ("/" + r"\p{Greek}" * (MAX_UNICODE_CLASSES + 1) + "/", ""),
        ("?" * 100, ""),
        ("*".join("abc" for _ in range(60)), ""),
        ([f"/a{{900}}{n}/" for n in range(MAX_STEPS // 900 + 1)], f"[{MAX_STEPS // 900}]"),
    ],
)
def test_too_complicated_patterns_are_refused(pattern: object, place: str) -> None:
    where = f"capabilities[2].payload.params.name{place}"
    assert place_of_refusal({"params": {"name": pattern}}) == where


@pytest.mark.rule("7.refused_with_place")
def test_keys_and_paths_that_are_too_complicated_are_refused() -> None:
    glob = "?" * 100
    assert place_of_refusal({glob: 1}) == f"capabilities[2].payload.{glob[:40]}…"
    path = "$" + ".a" * (MAX_PATH_STEPS + 1)
    assert place_of_refusal({path: 1}) == f"capabilities[2].payload.{path[:40]}…"
    value: Any = 1
    for _ in range(MAX_PATH_STEPS):
        value = {"a": value}
    assert matches({"$" + ".a" * MAX_PATH_STEPS: 1}, value)
    assert matches({"$" + "..a" * MAX_PATH_STEPS: 1}, value)
    assert not matches({"$" + "..a" * MAX_PATH_STEPS: 2}, value)


def test_what_nobody_understands_is_read_only_so_far() -> None:
    unknown: list[object] = [{"kind": f"/(?={n})/"} for n in range(MAX_NOT_UNDERSTOOD)]
    assert compile_announced([*unknown[1:], {"kind": "chat"}]).allow("chat", {})
    assert not compile_announced([*unknown, {"kind": "chat"}]).allow("chat", {})


@pytest.mark.rule("7.system")
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("system/*", "participants.bob.capabilities[1].kind"),
        ("system.presence", "participants.bob.capabilities[1].kind"),
        ("system", "participants.bob.capabilities[1].kind"),
        (["chat", "system/**"], "participants.bob.capabilities[1].kind[1]"),
    ],
)
def test_a_configuration_that_grants_what_is_never_granted_is_refused(
    kind: object, place: str
) -> None:
    with pytest.raises(InvalidPattern, match="only from the gateway") as refused:
        participant("bob", [{"kind": "chat"}, {"kind": kind}], ["token"])
    assert refused.value.place == place


@pytest.mark.rule("7.system")
@pytest.mark.parametrize("kind", ["*", "**", "!chat", "/./", "!system/x", "{system/x,chat*}"])
def test_a_wildcard_is_configured_and_does_not_grant_it(kind: str) -> None:
    capabilities = participant("bob", [{"kind": kind}], ["token"]).capabilities
    assert not any(capabilities.allow(f"system/{name}", {}) for name in ("x", "presence", ""))


WORDS = st.sampled_from(["a", "b", "a*", "*b", "!a", "/b/", "a/**", "?b", "ab"])
LEAVES = WORDS | st.sampled_from([1, True, None, 0])
KEYS = st.sampled_from(["a", "b", "a*", "**", "$.a", "$..b", "?"])
PATTERNS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
VALUES = st.recursive(
    st.sampled_from(["a", "b", "ab", "a/b", "", 1, True, None, 0]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "ab"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def compiles(pattern: object) -> bool:
    try:
        compile_pattern(pattern)
    except InvalidPattern:
        return False
    return True


@given(st.lists(PATTERNS.filter(compiles), max_size=5), VALUES)
def test_alternatives_that_are_joined_decide_as_each_alone(
    alternatives: list[object], value: object
) -> None:
    expected = any(matches(pattern, value) for pattern in alternatives)
    assert matches(joined(alternatives), value) is expected
    assert matches(alternatives, value) is expected


OBJECTS = st.dictionaries(KEYS, PATTERNS, max_size=3).filter(compiles)


@given(st.lists(OBJECTS, max_size=5), VALUES)
def test_capabilities_together_decide_as_each_alone(payloads: list[object], value: object) -> None:
    patterns: list[object] = [{"kind": "x", "payload": payload} for payload in payloads]
    together = compile_capabilities(patterns)
    expected = any(compile_capabilities([each]).allow("x", value) for each in patterns)
    assert together.allow("x", value) is expected
    assert together.allow("x", lambda: value) is expected


def test_alternatives_that_share_something_become_one() -> None:
    def call(name: object, path: object = "x") -> dict[str, Any]:
        return {"method": "tools/call", "params": {"name": name, "path": path}}

    assert joined([call("a"), call("b"), call(["c", "a"])]) == call(["a", "b", "c"])
    assert joined([call("a"), call("a")]) == call("a")
    assert joined([call("a"), call("b", "y")]) == {
        "method": "tools/call",
        "params": [{"name": "a", "path": "x"}, {"name": "b", "path": "y"}],
    }
    assert joined([{"a": 1}, {"a": True}, {"a": 1.0}]) == {"a": [1, True, 1.0]}
    assert joined([]) == []


@given(
    st.sampled_from(["", "a", "a/", "a/b", "../", ".a", "é", "a\n"]),
    st.sampled_from(["", "b", ".b", "é"]),
    st.text(alphabet="ab/.é\n, \ufdd0\ufdd2", max_size=8),
    st.booleans(),
)
def test_globs_of_one_star_are_decided_as_any_others(
    before: str, after: str, text: str, near: bool
) -> None:
    # The second form means the same, and is left to RE2.
    value = before + text + after if near else text
    whole = before in ("a/", "../") and not after
    by_re2 = f"{before}?*" if whole else f"{before}*{after}{{,}}"
    for pattern, same in (
        *([(f"{before}*{after}", by_re2)] if before or after else []),
        (f"{before}b/**", f"{before}{{b,b}}/**"),
    ):
        assert matches(pattern, value) is matches(same, value), pattern


def test_what_was_compiled_does_not_change_with_what_it_was_compiled_from() -> None:
    payload: dict[str, Any] = {"method": "a", "params": {"name": "b"}}
    capabilities = compile_capabilities([{"kind": "x", "payload": payload}])
    payload["method"] = "z"
    payload["params"]["name"] = "/(/"
    assert capabilities.allow("x", {"method": "a", "params": {"name": "b"}})
    assert not capabilities.allow("x", {"method": "z", "params": {"name": "b"}})


def test_kinds_under_the_same_rules_are_compiled_once() -> None:
    capabilities = compile_capabilities([{"kind": "x/*", "payload": {"a": "b"}}, {"kind": "y"}])
    assert all(capabilities.allow(f"x/{n}", {"a": "b"}) for n in range(2 * MAX_CAPABILITIES))
    assert len(capabilities._by_rules) == 1


@pytest.mark.parametrize("kind", ["mcp.request", "mcp/request"])
def test_a_kind_may_be_asked_about_in_either_form(kind: str) -> None:
    capabilities = compile_capabilities([{"kind": "mcp/request", "payload": {"method": "a"}}])
    assert capabilities.allow(kind, {"method": "a"})
    assert not capabilities.allow(kind, {"method": "b"})
    assert not compile_capabilities([{"kind": "*"}]).allow("system.welcome", {})
