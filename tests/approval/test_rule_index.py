"""The rule index leaves out no rule that matches."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meup_agent.approval import Policy, PolicyRule
from meup_agent.approval.policy.rules import RULES
from meup_agent.errors import ConfigurationError
from tests.wire import Call

PATTERNS: list[Any] = [
    *("a", "ab", "a*", "ab*", "*", "**", "?b", "a?", "[ab]c", "{a,b}*", "!a", "!!a", "!a*", "a/**"),
    *("/a/", "/^a/", "/a|b/", "", 1, True, 1.5, ["a", "b*"], ["a", 1], ["!a", "b"], {"x": "a"}),
    [["a"], "b"],
    *(".\\a\\*", "a\\b\\*", "a\\*", "\\a*", "a\\..\\b\\*", "C:\\..\\a\\*", "./a/*", "a\\b"),
]
VALUES: list[Any] = [
    *("a", "ab", "b", "abc", "a/b", "c", "", "ac", 1, True, 1.5, None, [], ["a"], {}),
    *("A", "AB", ".a", "./a", "a,b", "a/../b", ["b", "a"], [["x"]], "\u200bb", " B"),
    *("a\\b", "a\\b\\c", ".\\a\\b", "b\\c", "\\a", "a*", "a\\*", "c:\\a\\b", "A//B"),
]


ARGUMENTS = st.dictionaries(
    st.sampled_from(["x", "y", "*", "**", "$.x", "x?"]),
    st.sampled_from([each for each in PATTERNS if each not in ("", [["a"], "b"], ["!a", "b"])]),
    min_size=1,
    max_size=2,
)


def rule_of(verdict: str, tool: Any, arguments: Any) -> PolicyRule:
    some: dict[str, Any] = {"others": "any"} if verdict == "allow" else {}
    return RULES[verdict](tool, arguments=arguments, **some)


@given(
    rules=st.lists(
        st.builds(
            rule_of,
            st.sampled_from(["allow", "deny"]),
            st.sampled_from(
                ["a", "a*", "*", ["a", "b*"], "/a/", "!b", "?b", "{a,b}*", "[ab]c", "A"]
            ),
            st.one_of(ARGUMENTS, st.lists(ARGUMENTS, min_size=1, max_size=2)),
        ),
        min_size=9,
        max_size=25,
    ),
    tool=st.sampled_from(["a", "b", "ab", "ac", "A", "a\u200bb"]),
    given_arguments=st.dictionaries(
        st.sampled_from(["x", "y", "xy", "X"]), st.sampled_from(VALUES), max_size=3
    ),
)
def test_first_decides(rules: list[PolicyRule], tool: str, given_arguments: dict[str, Any]) -> None:
    kept: list[PolicyRule] = []
    for rule in rules:
        try:
            Policy([*kept, rule])
        except ConfigurationError:
            continue
        kept.append(rule)
    policy, call = Policy(kept), Call("tools/call", {"name": tool, "arguments": given_arguments})
    wanted = [
        name
        for name, rule in zip(policy.names, kept, strict=True)
        if Policy([rule]).find_matching(call, "p")
    ]
    assert [*policy.find_matching(call, "p")] == wanted
    assert policy.decide(call, "p").rule == (wanted[0] if wanted else "default")
