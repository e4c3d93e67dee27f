"""Rules are read so that none lets through, or leaves alone, more than its author would say."""

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meup_agent.approval import (
    AllowRule,
    AskRule,
    DenyRule,
    History,
    LimitRule,
    Policy,
    PolicyRule,
    QuorumRule,
    Verdict,
)
from meup_agent.approval.policy.file import findings_of
from meup_agent.approval.policy.rules import LimitCount, written
from meup_agent.errors import ConfigurationError
from tests.approval.test_policy import call
from tests.effort import scaled
from tests.wire import ArgumentCompiler, Call, Reading, WorkBudget, compile_pattern

STRICTNESS: Final = ["allow", "ask", "quorum", "deny"]


def verdict(*rules: PolicyRule, by: str = "bob", **arguments: Any) -> str:
    return Policy(rules).decide(call("read_file", **arguments), by).verdict


HOME = {"path": "/home/ann/**"}
EVIL = "https://evil.example/**"


@pytest.mark.rule("7.readings")
@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        *product(["/home/ann/**"], ["/home/ann/.ssh/id_rsa", "/home/ann/.env", "/home/ann/./x"]),
        *product(["/home/ann/**"], ["/HOME/Ann/x", "//home/ann/x"]),
        # Each of these is a dot of a host.
        *((EVIL, f"https://evil{dot}example/x") for dot in "\u3002\uff61\uff0e"),
        # A folder whose name has a wildcard.
        *(("/etc/**", f"/{name}/../etc/passwd") for name in ("x*", "[x]", "x?", "{x}", "x*/y\\..")),
        *product(["/etc/**"], ["/etc/.ssh/id", "/home/../etc/x", "/ETC/x"]),
        ("C:\\Windows\\*", "C:\\..\\Windows\\y"),
        ("C:/Windows/**", "C:\\a\\..\\..\\Windows\\y"),
        ("c:/windows/y", "C:\\..\\Windows\\y"),
        ("https://host/admin/**", "https://host/../admin/x"),
        ("https://*/admin/**", "https://host/a/../../admin/x"),
        ("https://host/admin/**", "https:/host/../admin/x"),
        ("file:///etc/**", "file:///../etc/passwd"),
        ("file:///etc/**", "file:/tmp/../../etc/passwd"),
        # elsewhere these are names as any other
        ("secret/**", "x:/../secret/y"),
        ("secret/y", "x:/../secret/y"),
        ("secret/[xy]", "https://host/../../secret/y"),
    ],
)
def test_no_way_to_write_a_path_or_an_address_leads_past_a_deny(pattern: str, path: str) -> None:
    deny = DenyRule("read_file", arguments={"path": pattern})
    several = DenyRule("read_file", arguments={"path": [pattern, "z"]})
    others = [DenyRule("read_file", arguments={"path": f"{n}/*"}) for n in range(9)]
    assert verdict(deny, AllowRule("read_file"), path=path) == "deny"
    assert verdict(several, *others, AllowRule("read_file"), path=path) == "deny"
    allow = AllowRule("read_file", arguments={"path": f"!{pattern}"})
    assert verdict(allow, path=path) == "ask"


@pytest.mark.rule("7.readings")
@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("kill *", ["kill", 9]),
        ("kill 9 *", ["kill", 9, "bob"]),
        ("kill bob", ["kill", 9, "bob"]),
        ("nice 1.5 x", ["nice", 1.5, "x"]),
        ("set x true", ["set", "x", True]),
    ],
)
def test_a_deny_takes_a_command_with_numbers_and_without(pattern: str, command: list[Any]) -> None:
    deny = DenyRule("read_file", arguments={"command": pattern})
    assert verdict(deny, AllowRule("read_file"), command=command) == "deny"
    assert verdict(deny, AllowRule("read_file"), command=[9, 8]) == "allow"


@pytest.mark.rule("7.readings")
@pytest.mark.parametrize("count", [2, 12])
def test_a_backslash_parts_a_path_among_many_rules_as_among_few(count: int) -> None:
    rules = [DenyRule("read_file", arguments={"path": f".\\secret{n}\\*"}) for n in range(count)]
    for path in ("secret1\\x", "secret1/x", ".\\secret1\\x", "./SECRET1/x"):
        assert verdict(*rules, AllowRule("read_file"), path=path) == "deny"
    assert verdict(*rules, AllowRule("read_file"), path="public\\x") == "allow"


@pytest.mark.rule("7.readings")
@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ("/etc/*", "/home/../etc/passwd"),
        ("rm *", "rm -rf /"),
        ("*DROP TABLE*", "select 1; DROP TABLE a/b"),
        ("https://evil.com/*", "https://evil.com/a/b"),
        ("prod", "PROD"),
        ("rm *", ["rm", "-rf", "/"]),
    ],
)
def test_what_holds_back_takes_what_a_reader_would_say(pattern: str, value: object) -> None:
    given: dict[str, Any] = {"arguments": {"path": pattern}}
    allow = AllowRule("read_file")
    assert verdict(DenyRule("read_file", **given), allow, path=value) == "deny"
    assert verdict(AskRule("read_file", **given), allow, path=value) == "ask"
    votes = QuorumRule("read_file", of=1, among=["lead"], **given)
    assert verdict(votes, allow, path=value) == "quorum"
    policy, history = (
        Policy([LimitRule("*", count=1, every=60, then="deny", **given), allow]),
        (History()),
    )
    for expected in ("allow", "deny"):
        decision = policy.decide(call("read_file", path=value), "bob", history)
        assert decision.verdict == expected
        history.record(decision, 0.0)


@pytest.mark.rule("7.readings")
@pytest.mark.parametrize("key", ["tool", "proposer", "target"])
def test_names_are_read_so_as_well(key: str) -> None:
    asked = call("Read_File", "Files")
    deny: dict[str, Any] = {"tool": "*", key: {"tool": "read_*"}.get(key, "[a-f]*")}
    assert Policy([DenyRule(**deny), AllowRule("*")]).decide(asked, "Bob").verdict == "deny"
    assert Policy([AllowRule(**deny)]).decide(asked, "Bob").verdict == "ask"
    but: dict[str, Any] = {"tool": "*", key: {"tool": "!read_*"}.get(key, "![a-f]*")}
    assert Policy([AllowRule(**but)]).decide(asked, "Bob").verdict == "ask"


@pytest.mark.rule("7.readings")
@pytest.mark.parametrize("cc", ["eve", ["eve"], {"name": "eve"}, [{"name": "eve"}], 5, False])
def test_a_wildcard_alone_holds_back_all_but_nothing(cc: object) -> None:
    rules = (DenyRule("read_file", arguments={"cc": "*"}), AllowRule("read_file"))
    assert verdict(*rules, cc=cc) == "deny"
    assert verdict(*rules) == verdict(*rules, cc=None) == verdict(*rules, cc=[]) == "allow"


@pytest.mark.rule("7.lists")
@pytest.mark.parametrize("path", ["docs\\..\\..\\x", "docs/a\\..\\..\\x", "docs/..\\..\\x"])
def test_an_allowed_path_leaves_no_folder_where_a_backslash_parts_it(path: str) -> None:
    for pattern in ("docs/**", "docs/*", "docs*", "docs/{a,.}*", "docs\\\\*"):
        assert verdict(AllowRule("read_file", arguments={"path": pattern}), path=path) == "ask"


@pytest.mark.rule("7.readings")
@pytest.mark.parametrize("given", [{"Path": "/etc/x"}, {"path": "/tmp/x", "PATH": "/etc/x"}])
def test_an_argument_in_capitals_is_held_back_as_well(given: dict[str, Any]) -> None:
    rules = [DenyRule("read_file", arguments={"path": f"/e{n}/*"}) for n in range(20)]
    rules += [DenyRule("read_file", arguments={"path": "/etc/*"})]
    assert verdict(*rules, AllowRule("read_file"), **given) == "deny"
    assert verdict(*rules[:-1], AllowRule("read_file"), **given) == "allow"
    assert verdict(AllowRule("read_file", arguments={"path": "/etc/*"}), **given) == "ask"


@pytest.mark.rule("7.readings")
def test_an_ask_that_takes_a_call_widely_lets_a_deny_behind_it_deny() -> None:
    asks, denies = AskRule("read_file", arguments={"path": "/public/**"}), DenyRule("*")
    assert verdict(asks, denies, path="/public/a") == "ask"
    assert verdict(asks, denies, path="/public/../etc/passwd") == "deny"
    assert verdict(asks, denies, path="/public/.git/x") == "deny"


@pytest.mark.rule("7.readings")
def test_of_what_takes_a_call_widely_the_strictest_decides() -> None:
    hidden: dict[str, Any] = {"path": "/a/.x"}
    path: dict[str, Any] = {"arguments": {"path": "/a/**"}}
    asks = AskRule("read_file", ttl=60, name="asks", **path)
    loud: dict[str, Any] = {"arguments": {"path": "/A/**"}}
    votes = QuorumRule("read_file", of=1, among=["lead"], name="votes", **loud)
    others = QuorumRule("read_file", of=1, among=["sec"], name="others", **path)
    allows = AllowRule("read_file", name="allows")
    asked = call("read_file", **hidden)

    def decided(*rules: PolicyRule) -> tuple[str, str]:
        found = Policy(rules).decide(asked, "bob")
        return found.verdict, found.rule

    assert decided(asks, allows) == ("ask", "asks")
    assert decided(asks) == ("ask", "asks")
    assert decided(asks, votes, allows) == ("quorum", "votes")
    # Two that count votes: those that would be counted without the first.
    assert decided(votes, others, allows) == ("quorum", "others")
    assert decided(votes, replace(others, arguments=hidden), allows) == ("quorum", "others")
    assert decided(votes, AskRule("read_file", name="all")) == ("quorum", "votes")
    # A quorum that its proposer leaves too few for denies.
    assert Policy([votes, allows]).decide(asked, "lead").verdict == "deny"


def test_a_wide_reading_is_told_in_words() -> None:
    policy = Policy([DenyRule("read_file", arguments=HOME, name="home"), AllowRule("read_file")])
    found = policy.decide(call("read_file", path="/home/ann/.env"), "bob")
    assert (found.rule, found.why) == ("home", "home may mean it: it matches in the wide reading")
    assert policy.find_matching(call("read_file", path="/home/ann/.env"), "bob") == {
        "home": Reading.WIDE,
        "rules[1]": Reading.NARROW,
    }


def test_a_limit_that_is_full_makes_no_decision_milder() -> None:
    limit = LimitRule("read_file", count=1, every=60, then="ask")
    policy, history = Policy([limit, DenyRule("*")]), History()
    for _ in range(3):
        decision = policy.decide(call("read_file"), "bob", history)
        history.record(decision, 0.0)
        assert decision.verdict == "deny"
    policy = Policy([limit, QuorumRule("*", of=1, among=["lead"], name="votes")])
    for _ in range(3):
        decision = policy.decide(call("read_file"), "bob", history)
        history.record(decision, 0.0)
        assert (decision.verdict, decision.rule) == ("quorum", "votes")


MAIL = AllowRule("read_file", arguments={"to": "*@example.com"})


@pytest.mark.rule("7.lists")
@pytest.mark.parametrize(
    "to",
    [
        "evil@evil.com,bob@example.com",
        "evil@evil.com;bob@example.com",
        "evil@evil.com bob@example.com",
        "evil@evil.com\nBcc: bob@example.com",
        "evil@evil.com\u2028bob@example.com",
    ],
)
def test_an_allowed_text_is_no_list_of_texts(to: str) -> None:
    assert verdict(MAIL, to="bob@example.com") == "allow"
    assert verdict(MAIL, to=to) == "ask"


def test_an_allow_takes_no_argument_that_it_does_not_name() -> None:
    given = {"to": "bob@example.com", "cc": "evil@evil.com"}
    assert verdict(MAIL, **given) == "ask"
    assert verdict(replace(MAIL, others=["bcc"]), **given) == "ask"
    assert verdict(replace(MAIL, others=["bcc", "cc"]), **given) == "allow"
    assert verdict(replace(MAIL, others="any"), **given, more={"a": 1}) == "allow"
    assert verdict(AllowRule("read_file"), **given) == "allow"


def test_what_an_allow_leaves_is_still_held_back_and_asked() -> None:
    rules = (MAIL, DenyRule("read_file", arguments={"cc": "*"}), AllowRule("read_file"))
    assert verdict(*rules, to="bob@example.com", cc="x") == "deny"
    assert verdict(*rules, to="bob@example.com", body="x") == "allow"


@pytest.mark.parametrize(
    ("arguments", "others", "said"),
    [
        ({"a": 1}, [], "others: expected any, or"),
        ({"a": 1}, "b", "others: expected any, or"),
        ({"a": 1}, ["b*"], "not 'b[*]'"),
        ({"a": 1}, [1], "not 1"),
        (None, "any", "others: the rule names no arguments"),
        ({"**": "x"}, None, "no argument is named"),
        ([{"$.a": "x"}, {"**": 1}], None, "no argument is named"),
    ],
)
def test_others_that_cannot_be_meant(arguments: Any, others: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        AllowRule("a", arguments=arguments, others=others)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([AllowRule("read_*"), DenyRule("read_secret")],
         r"rules\[1\].*never match.*allow where it says deny"),
        ([AskRule("a"), DenyRule("b"), AllowRule(["a", "b"])], r"rules\[2\].*never match"),
        ([DenyRule("x*"), LimitRule("x1", count=1, every=1)], r"rules\[1\].*never match"),
        # What a deny, an ask or a quorum takes widely is lost to milder rules behind it.
        ([DenyRule("a", arguments=HOME), AllowRule("a", arguments={"path": "/home/ann/.x/*"})],
         r"rules\[1\].*never match.*deny where it says allow"),
        ([AskRule("A*"), AllowRule("ab*")], "never match"),
        ([AskRule("a", arguments=HOME), AllowRule("a", arguments={"path": "/home/ann/.x/y"})],
         "never match"),
        ([AskRule("a", arguments=HOME), DenyRule("a", arguments={"path": "/home/ann/.x/*"})], ""),
        ([QuorumRule("a*", of=1, among=["x"]), AskRule("A")], "never match"),
        ([QuorumRule("a*", of=1, among=["x"]), QuorumRule("A", of=1, among=["y"])], ""),
        ([AllowRule("a*"), DenyRule("A")], ""),
        # An allow of some arguments takes none that it does not name.
        ([AllowRule("a", arguments={"x": "b*"}), AskRule("a", arguments={"x": "bc"})], "never"),
        ([AllowRule("a", arguments={"x": "*"}), AskRule("a", arguments={"x": "!c"})], "never"),
        ([AllowRule("a", arguments={"x": "b*"}), AskRule("a", arguments={"x": "bc", "y": 1})], ""),
        ([AllowRule("a", arguments={"x": "b"}, others=["y"]),
          AskRule("a", arguments={"x": "b", "y": 1})], "never"),
        ([AllowRule("a", arguments={"x": "b"}, others="any"),
          AskRule("a", arguments={"x": "b", "y": 1})], "never"),
        ([AllowRule("a", arguments=[{"x": "b"}, {"y": "c"}]),
          AskRule("a", arguments={"x": "b", "y": "d"})], ""),
        ([AllowRule("a", arguments={"x": "b"}), AllowRule("a", arguments={"y": "c"}),
          AskRule("a", arguments=[{"y": "c"}, {"x": "b"}])], "never"),
    ],
)  # fmt: skip
def test_a_check_finds_a_rule_that_others_leave_nothing(rules: list[PolicyRule], said: str) -> None:
    found = unreachable(rules)
    assert re.search(said, found) if said else not found


WORDS = ["a", "b", "ab", "ba", "a/b", "A", ".a", "a/../b", "a,b", "b a"]
PATTERNS = [*WORDS, "*", "**", "a*", "*b", "!a", "!a*", "/^a/", "a/**", "A*", "?b"]
KEYS = ["x", "y", "z", "X"]
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [*WORDS, 1, True, None, ["a"], ["a", "b"], {"x": "a"}, {"x": "a", "y": "b"}]
)
ARGUMENTS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2)
PATTERNS_OF_ARGUMENTS = st.dictionaries(
    st.sampled_from(["x", "y", "*", "**"]),
    st.one_of(st.sampled_from(PATTERNS), st.just(1), st.just({"x": "a*"})),
    min_size=1,
    max_size=2,
)


@st.composite
def some_rule(draw: st.DrawFn) -> PolicyRule:
    names = [each for each in PATTERNS if not set(each) & set(" ,")]
    several = st.sampled_from([each for each in names if not each.startswith("!")])
    tool = draw(st.one_of(st.sampled_from(names), st.lists(several, min_size=1, max_size=2)))
    some: dict[str, Any] = {}
    if draw(st.booleans()):
        some["arguments"] = draw(PATTERNS_OF_ARGUMENTS)
    if draw(st.booleans()):
        some["proposer"] = draw(st.sampled_from(PATTERNS))
    made = draw(st.sampled_from([AllowRule, AllowRule, AskRule, DenyRule, QuorumRule, LimitRule]))
    if made is LimitRule:
        some["then"] = draw(st.sampled_from(["ask", "deny"]))
        return LimitRule(tool, count=1, every=10, **some)
    if made is QuorumRule:
        return QuorumRule(tool, of=1, among=["lead", "b"], **some)
    if made is AllowRule and "arguments" in some:
        others = draw(st.sampled_from([None, "any", ["y", "z"]]))
        some["others"] = others if others or set(some["arguments"]) - {"**"} else "any"
    rule: PolicyRule = made(tool, **some)
    return rule


CALLS = st.tuples(st.sampled_from(WORDS), ARGUMENTS, st.sampled_from(WORDS))


def matches(rule: PolicyRule, asked: Call, proposer: str, reading: Reading) -> bool:
    """The rule's patterns against the whole call, by the capability language itself."""
    value = {
        "method": asked.method,
        "tool": asked.name,
        "target": asked.target,
        "proposer": proposer,
    }
    pattern = rule.pattern
    arguments = pattern.pop("arguments", None)
    others = rule.others_free if isinstance(rule, AllowRule) else None
    return compile_pattern(pattern, reading=reading).matches(value) and (
        arguments is None
        or ArgumentCompiler(reading, others).compile(arguments, "")(
            asked.arguments, WorkBudget(asked.arguments)
        )
    )


def expected(
    rules: list[PolicyRule], asked: Call, proposer: str, full: set[int], at: int = 0
) -> tuple[str, list[int]]:
    """The verdict as the documentation says it, from the last rule on, and the limits passed."""
    if at == len(rules):
        return "ask", []
    rule = rules[at]
    is_narrow = matches(rule, asked, proposer, Reading.NARROW)
    if isinstance(rule, AllowRule):
        return ("allow", []) if is_narrow else expected(rules, asked, proposer, full, at + 1)
    if not matches(rule, asked, proposer, Reading.WIDE):
        return expected(rules, asked, proposer, full, at + 1)
    behind, passed = expected(rules, asked, proposer, full, at + 1)
    if isinstance(rule, LimitRule):
        if at not in full:
            return behind, [at, *passed]
        return max(rule.then, behind, key=STRICTNESS.index), passed
    own = str(rule.verdict)
    if isinstance(rule, QuorumRule) and not set(rule.among) - {proposer}:
        own = "deny"
    return (own, []) if is_narrow else (max(own, behind, key=STRICTNESS.index), passed)


@pytest.mark.rule("7.readings")
@settings(max_examples=scaled(400), deadline=None)
@given(rules=st.lists(some_rule(), max_size=6), calls=st.lists(CALLS, min_size=1, max_size=6))
def test_each_decision_is_the_one_that_the_rules_say(
    rules: list[PolicyRule], calls: list[tuple[str, dict[str, Any], str]]
) -> None:

    policy, history = Policy(rules), History()
    full: set[tuple[int, str]] = set()
    for tool, arguments, proposer in calls:
        asked = call(tool, **arguments)
        decision = policy.decide(asked, proposer, history, 0.0)
        history.record(decision, 0.0)
        mine = {limit for limit, whose in full if whose == proposer}
        wanted, passed = expected(rules, asked, proposer, mine)
        assert decision.verdict == wanted
        if wanted != "deny":
            full |= {(each, proposer) for each in passed}
        if wanted == "allow":
            assert decision.number is not None
            held = rules[: decision.number]
            assert not any(
                matches(each, asked, proposer, Reading.WIDE)
                for each in held
                if not isinstance(each, AllowRule | LimitRule)
            )


def narrow_decision(rules: list[PolicyRule], asked: Call, proposer: str, full: set[int]) -> str:
    """The verdict, were what holds back read narrowly, too: the first rule that matches decides."""
    for at, rule in enumerate(rules):
        if matches(rule, asked, proposer, Reading.NARROW):
            if not isinstance(rule, LimitRule):
                return str(rule.verdict)
            if at in full:
                return rule.then
    return "ask"


@pytest.mark.rule("7.readings")
@settings(max_examples=scaled(400), deadline=None)
@given(rules=st.lists(some_rule(), max_size=6), asked=CALLS, full=st.sets(st.integers(0, 5)))
def test_widening_makes_no_decision_milder(
    rules: list[PolicyRule], asked: tuple[str, dict[str, Any], str], full: set[int]
) -> None:

    tool, arguments, proposer = asked
    made = call(tool, **arguments)
    limits = {at for at in full if at < len(rules) and isinstance(rules[at], LimitRule)}
    history = Full(written(rules[at]) for at in limits)
    found = Policy(rules).decide(made, proposer, history).verdict
    narrow = narrow_decision(rules, made, proposer, limits)
    assert STRICTNESS.index(found) >= STRICTNESS.index(narrow)


@pytest.mark.rule("7.readings")
@settings(max_examples=scaled(400), deadline=None)
@given(rule=some_rule(), calls=st.lists(CALLS, min_size=4, max_size=4))
def test_what_an_allow_takes_is_taken_by_a_deny_of_the_same(
    rule: PolicyRule, calls: list[tuple[str, dict[str, Any], str]]
) -> None:
    says: dict[str, Any] = {
        key: getattr(rule, key) for key in ("tool", "arguments", "target", "proposer", "method")
    }
    others = rule.others if isinstance(rule, AllowRule) else "any" if rule.arguments else None
    allows, denies = Policy([AllowRule(**says, others=others)]), Policy([DenyRule(**says)])
    for tool, arguments, proposer in calls:
        asked = call(tool, **arguments)
        if allows.decide(asked, proposer).verdict is Verdict.ALLOW:
            assert denies.decide(asked, proposer).verdict is Verdict.DENY


@settings(max_examples=scaled(200), deadline=None)
@given(
    rules=st.lists(some_rule(), min_size=2, max_size=5),
    calls=st.lists(CALLS, min_size=8, max_size=8),
)
def test_a_rule_that_is_found_to_be_unreachable_would_not_be_missed(
    rules: list[PolicyRule], calls: list[tuple[str, dict[str, Any], str]]
) -> None:
    """Calls that it takes narrowly are taken by others, but for arguments that those do not name.

    A deny behind an allow of the same path, for example, is still a mistake of its author.
    """
    *earlier, last = rules
    if unreachable(earlier):
        return
    said = unreachable(rules)
    if isinstance(last, LimitRule) and last in earlier:
        assert "says the same" in said
    elif said:
        assert "never match" in said
        for tool, arguments, proposer in calls:
            asked = call(tool, **arguments)
            if matches(last, asked, proposer, Reading.NARROW):
                assert any(
                    matches(
                        replace(each, others="any" if each.arguments else None)
                        if isinstance(each, AllowRule)
                        else each,
                        asked,
                        proposer,
                        Reading.NARROW if isinstance(each, AllowRule) else Reading.WIDE,
                    )
                    for each in earlier
                    if not isinstance(each, LimitRule)
                )


class Full(History):
    """A history in which some limits are full, for each proposer."""

    def __init__(self, limits: Iterable[str]) -> None:
        super().__init__()
        self._limits = frozenset(limits)

    def is_full(self, limit: LimitCount, at: float) -> bool:
        return limit.limit in self._limits


def unreachable(rules: list[PolicyRule]) -> str:
    """The findings about rules that never decide."""
    found = [each.text for each in findings_of(Policy(rules))]
    return "\n".join(each for each in found if "never match" in each or "says the same" in each)
