"""Capability patterns: every sentence of PROTOCOL 7, and the limits on what a stranger grants."""

from typing import Any

import pytest

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.compiled_capabilities import MAX_KINDS_REMEMBERED
from meup_agent.protocol.capability.patterns import (
    MAX_BRACES,
    MAX_NESTING,
    MAX_PARTS,
    MAX_PATTERN_CHARS,
)
from tests.protocol.matching import matches, place_of_refusal
from tests.wire import (
    MAX_CAPABILITIES,
    compile_announced,
    compile_capabilities,
    compile_kind,
    compile_pattern,
)


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        ({}, {"a": [1]}, True),
        ({}, [], False),
        ({}, None, False),
        (1, 1, True),
        (1, 1.0, True),
        (1, 2, False),
        (1, True, False),
        (0, False, False),
        (1, "1", False),
        (True, True, True),
        (True, 1, False),
        (False, 0, False),
        (None, None, True),
        (None, False, False),
        (2**70, 2**70, True),
        (["a", 1], "a", True),
        (["a", 1], 1, True),
        (["a", 1], ["a", 1], False),
        ([], "a", False),
        (["!a", "!b"], "a", True),
        ({"a": "x"}, {"a": "x", "b": 1}, True),
        ({"a": "x"}, {"b": "x"}, False),
        ({"a": "!x"}, {"b": "x"}, False),
        ({"a": "!x"}, {"a": 5}, False),
        ({"a": "!x"}, {"a": "5"}, True),
        ({"a": {"b": [1, "y"]}}, {"a": {"b": "y"}}, True),
        ({"a": {"b": 1}}, {"a": [{"b": 1}]}, False),
        # keys
        ({"par*": 1}, {"params": 1}, True),
        ({"par*": 1}, {"params": 2, "part": 1}, True),
        ({"par*": 1}, {"x": 1}, False),
        ({"!a": 1}, {"b": 1}, False),
        ({"!a": 1}, {"!a": 1}, True),
        ({"$ref": 1}, {"$ref": 1}, True),
        # anywhere below
        ({"**": "x"}, {"a": [{"b": ["x"]}]}, True),
        ({"**": "x"}, {"x": 1}, False),
        ({"**": {"b": 1}}, {"b": 1}, False),
        ({"**": {"b": 1}}, {"a": {"b": 1}}, True),
        ({"**": "x"}, {"a": [], "b": {}, "c": "x"}, True),
        # paths
        ({"$": {"a": 1}}, {"a": 1}, True),
        ({"$.a.b": 1}, {"a": {"b": 1}}, True),
        ({"$.a.b": 1}, {"a": [{"b": 1}]}, False),
        ({"$.a[*].b": 1}, {"a": [{"b": 2}, {"b": 1}]}, True),
        ({"$.a.*.b": 1}, {"a": {"x": {"b": 1}}}, True),
        ({"$.a[1]": 1}, {"a": [0, 1]}, True),
        ({"$.a[2]": 1}, {"a": [0, 1]}, False),
        ({"$['a']": 1}, {"a": 1}, True),
        ({'$["a b"].c': 1}, {"a b": {"c": 1}}, True),
        ({"$['']": 1}, {"": 1}, True),
        ({"$..b": 1}, {"b": 1}, True),
        ({"$..b": 1}, {"a": [{"x": {"b": 1}}]}, True),
        ({"$..b": 1}, {"a": [{"x": {"c": 1}}]}, False),
        ({"$..a..b": 1}, {"a": {"a": {"c": {"b": 1}}}}, True),
        ({"$..*": 1}, {"a": [1]}, True),
        ({"$..[1]": 1}, {"a": [0, 1]}, True),
        ({"$.a": {"$.b": 1}}, {"a": {"b": 1}}, True),
    ],
)
def test_pattern(pattern: object, value: object, expected: bool) -> None:
    assert matches(pattern, value) is expected


@pytest.mark.parametrize(
    ("pattern", "kind", "expected"),
    [
        ("*", "mcp/request", True),
        ("*", "a/b/c", True),
        ("!*", "chat", False),
        ("mcp/*", "mcp/request", True),
        ("mcp/*", "chat", False),
        ("mcp.request", "mcp/request", True),
        ("!mcp.request", "mcp/request", False),
        ("mcp.*", "mcp/request", True),
        ("!mcp.*", "mcp/request", False),
        ("*.request", "mcp/request", True),
        ("{mcp.request,chat*}", "mcp/request", True),
        ("{mcp.request,chat*}", "chat/cancel", False),
        # only kinds that are known have a form with dots
        ("custom.*", "custom/x", False),
        ("custom.*", "custom.x", True),
        ("custom.x", "custom/x", False),
        # a regular expression sees the slashes
        (r"/^mcp\./", "mcp/request", False),
        ("/^mcp.request$/", "mcp/request", True),
        (r"/^mcp\/re/", "mcp/request", True),
    ],
)
def test_kind_pattern(pattern: str, kind: str, expected: bool) -> None:
    assert compile_kind(pattern)(kind) is expected
    assert compile_capabilities([{"kind": pattern}]).allow(kind, {}) is expected
    assert compile_capabilities([{"kind": ["nothing", pattern]}]).allow(kind, {}) is expected


@pytest.mark.parametrize(
    "pattern", ["*", "**", "!chat", "/./", "system/*", "system/presence", "system.*", ["system/*"]]
)
@pytest.mark.parametrize(
    "kind", ["system/presence", "system/heartbeat", "system/x/y", "system.x", "system", "system/"]
)
def test_the_gateways_own_kinds_are_never_granted(pattern: Any, kind: str) -> None:
    assert not compile_capabilities([{"kind": pattern}]).allow(kind, {})


def test_any_capability_may_allow() -> None:
    capabilities = compile_capabilities(
        [
            {"kind": "mcp/request", "payload": {"method": "tools/list"}},
            {"kind": "mcp.*", "payload": {"params": {"name": "read_*"}}},
            {"kind": "chat", "id": "grant-1"},
        ]
    )
    assert capabilities.allow("chat", {})
    assert capabilities.allow("mcp/request", {"method": "tools/list"})
    assert capabilities.allow("mcp/request", {"params": {"name": "read_file"}})
    assert capabilities.allow("mcp/proposal", {"params": {"name": "read_file"}})
    assert not capabilities.allow("mcp/proposal", {"method": "tools/list"})
    assert not capabilities.allow("mcp/request", {"params": {"name": "write_file"}})


def test_a_payload_is_decoded_once_and_only_if_the_answer_depends_on_it() -> None:
    decoded: list[str] = []

    def payload() -> dict[str, str]:
        decoded.append("once")
        return {"method": "c"}

    capabilities = compile_capabilities(
        [
            {"kind": "mcp/request", "payload": {"method": "a"}},
            {"kind": "mcp/request", "payload": {"method": "b"}},
            {"kind": "mcp/proposal", "payload": {"method": "a"}},
            {"kind": "mcp/*al"},
        ]
    )
    assert capabilities.allow("mcp/proposal", payload)
    assert not capabilities.allow("chat", payload)
    assert decoded == []
    assert not capabilities.allow("mcp/request", payload)
    assert decoded == ["once"]


def test_made_up_kinds_do_not_pile_up_and_are_decided_alike() -> None:
    capabilities = compile_capabilities([{"kind": "x/*"}])
    kinds = [f"x/{number}" for number in range(2 * MAX_KINDS_REMEMBERED)]
    assert all(capabilities.allow(kind, {}) for kind in kinds for _ in range(2))
    assert not capabilities.allow("y/1", {})
    assert len(capabilities._by_kind) == MAX_KINDS_REMEMBERED


def test_what_is_announced_counts_as_far_as_it_is_understood() -> None:
    announced: list[object] = [
        "chat",
        {"kind": "/(/"},
        {"kind": "mcp/request", "when": "monday"},
        {"kind": "mcp/reject"},
        {"kind": "x", "payload": {"a": ["b"] * MAX_PARTS}},
    ]
    understood = compile_announced([*announced, *[{"kind": "chat"}] * MAX_CAPABILITIES])
    assert understood.allow("mcp/reject", {})
    assert not understood.allow("mcp/request", {})
    assert not understood.allow("x", {"a": "b"})
    assert {"kind": "mcp/reject"} in understood.patterns


@pytest.mark.parametrize(
    ("capability", "place"),
    [
        ("chat", ""),
        ({}, ""),
        ({"kind": "chat", "payloads": {}}, ""),
        ({"kind": 5}, "kind"),
        ({"kind": {"a": "b"}}, "kind"),
        ({"kind": ["chat", 5]}, "kind[1]"),
        ({"kind": "/(/"}, "kind"),
        ({"kind": "mcp.[*"}, "kind"),
        ({"kind": "!"}, "kind"),
        ({"kind": "//"}, "kind"),
        ({"kind": "chat", "payload": None}, "payload"),
        ({"kind": "chat", "payload": "x"}, "payload"),
        ({"kind": "chat", "payload": {"params": {"name": "/(?=x)/"}}}, "payload.params.name"),
        ({"kind": "chat", "payload": {"a": ["x", "[z-a]*"]}}, "payload.a[1]"),
        ({"kind": "chat", "payload": {"a": "[/]*"}}, "payload.a"),
        ({"kind": "chat", "payload": {"a": "{x,*"}}, "payload.a"),
        ({"kind": "chat", "payload": {"a": "*\\"}}, "payload.a"),
        ({"kind": "chat", "payload": {"a": "!!"}}, "payload.a"),
        ({"kind": "chat", "payload": {"a": "\ud800"}}, "payload.a"),
        ({"kind": "chat", "payload": {"a": "*\ufdd0"}}, "payload.a"),
        ({"kind": "chat", "payload": {"a": float("nan")}}, "payload.a"),
        ({"kind": "chat", "payload": {"a": b"x"}}, "payload.a"),
        ({"kind": "chat", "payload": {1: "x"}}, "payload"),
        ({"kind": "chat", "payload": {"a[*": "x"}}, "payload.a[*"),
        ({"kind": "chat", "payload": {"$.a[?(@.b)]": 1}}, "payload.$.a[?(@.b)]"),
        ({"kind": "chat", "payload": {"$.": 1}}, "payload.$."),
        ({"kind": "chat", "payload": {"$..": 1}}, "payload.$.."),
        ({"kind": "chat", "payload": {"$.a[-1]": 1}}, "payload.$.a[-1]"),
        ({"kind": "chat", "payload": {"**": {"**": 1}}}, "payload.**.**"),
        ({"kind": "chat", "payload": {"$..a": {"b": {"**": 1}}}}, "payload.$..a.b.**"),
    ],
)
def test_what_does_not_compile_is_refused_with_its_place(capability: object, place: str) -> None:
    within = f".{place}" if place else ""
    assert place_of_refusal(capability) == f"capabilities[1]{within}"


def test_capabilities_that_are_no_list_are_refused() -> None:
    with pytest.raises(InvalidPattern, match=r"^space\.capabilities: the capabilities are not a"):
        compile_capabilities("chat", place="space.capabilities")


def nested(levels: int) -> object:
    pattern: object = "x"
    for _ in range(levels):
        pattern = {"a": pattern}
    return pattern


@pytest.mark.parametrize(
    ("most", "too_many"),
    [
        ("x" * MAX_PATTERN_CHARS, "x" * (MAX_PATTERN_CHARS + 1)),
        ({"x" * MAX_PATTERN_CHARS: 1}, {"x" * (MAX_PATTERN_CHARS + 1): 1}),
        (nested(MAX_NESTING), nested(MAX_NESTING + 1)),
        (["x"] * (MAX_PARTS - 1), ["x"] * MAX_PARTS),
        (
            "{" * MAX_BRACES + "*" + ",}" * MAX_BRACES,
            "{" * (MAX_BRACES + 1) + "*" + ",}" * (MAX_BRACES + 1),
        ),
        ("/a{900}/", "/(a{900}){2}/"),
        ("?*" * 20, "?*" * 100),
    ],
)
def test_limits_on_a_pattern(most: object, too_many: object) -> None:
    compile_pattern(most)
    with pytest.raises(InvalidPattern):
        compile_pattern(too_many)


def test_limits_on_capabilities() -> None:
    compile_capabilities([{"kind": "chat"}] * MAX_CAPABILITIES)
    with pytest.raises(InvalidPattern):
        compile_capabilities([{"kind": "chat"}] * (MAX_CAPABILITIES + 1))
    # The parts of all of them are counted together.
    half = {"kind": "chat", "payload": {"a": ["x"] * (MAX_PARTS // 2)}}
    compile_capabilities([half])
    with pytest.raises(InvalidPattern):
        compile_capabilities([half, half])


LONG = 100_000


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        # Engines that backtrack take longer than the universe is old over each of these.
        ("*a" * 30 + "b", "a" * LONG, False),
        ("**/a/" * 8 + "**/b", "a/" * LONG, False),
        ("/(a+)+$/", "a" * LONG + "b", False),
        ("/(a|aa)+$/", "a" * LONG + "b", False),
        ("/(.*a){20}b/", "a" * LONG, False),
        # Engines that expand braces would write 2^40 patterns.
        ("{a,b}" * 40 + "*", "ab" * LONG, True),
        ("{a,b}" * 40 + "*", "a" * 39 + "c" * LONG, False),
        ("{{a,b},{c,d}}" * 12 + "**", "abcd" * LONG, True),
    ],
)
def test_patterns_that_hang_other_engines(pattern: str, value: str, expected: bool) -> None:
    assert matches(pattern, value) is expected


def test_descending_twice_visits_no_node_twice() -> None:
    value: Any = {"b": 1}
    for _ in range(90):
        value = {"a": value, "c": [0] * 100}
    assert matches({"$" + "..a" * 40 + "..b": 1}, value)
    assert not matches({"$" + "..a" * 40 + "..b": 2}, value)
