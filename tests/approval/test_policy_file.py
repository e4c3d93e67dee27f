"""Policy files: what is read, and the place of what is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.approval import (
    AllowRule,
    AskRule,
    DenyRule,
    LimitRule,
    Policy,
    QuorumRule,
    load_policy,
)
from meup_agent.approval.policy.file import findings_of, read_policy
from meup_agent.errors import ConfigurationError

GOOD = """
rules:
  - allow: {tool: "read_*", arguments: {path: "docs/**"}}
  - ask:   {tool: "write_*", ttl: 10m, remind: 2m}
  - deny:  {tool: "shell*", reason: policy, explain: "no shells here"}
  - quorum: {tool: deploy, of: 2, among: [lead, security, oncall], never: proposer}
  - limit: {tool: "send_*", per: proposer, count: 5, every: 1h, then: ask}
end: true
"""

RULES = [
    AllowRule("read_*", arguments={"path": "docs/**"}),
    AskRule("write_*", ttl=600.0, remind=120.0),
    DenyRule("shell*", reason="policy", explain="no shells here"),
    QuorumRule("deploy", of=2, among=["lead", "security", "oncall"]),
    LimitRule("send_*", count=5, every=3600.0, then="ask"),
]


def test_a_file_says_the_same_as_python(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    policy = load_policy(path)
    assert list(policy.rules) == RULES
    assert policy.digest == Policy(RULES).digest
    assert findings_of(policy) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected the key 'rules'"),
        ("rules: []", "rules: expected a list of rules"),
        ("rules:", "rules: expected a list of rules"),
        ("rules: [{allow: {tool: a}}]\nrule: 1", "rule: unknown key"),
        ("rules: [{allow: {tool: a, arguments: {no: b}}}]", "the key 'no' is not read as a text"),
        ("rules: [{alow: {tool: a}}]", r"rules\[0\].alow: unknown key; did you mean allow"),
        ("rules: [{allow: {tool: a}, deny: {tool: b}}]", r"rules\[0\]: expected one of"),
        ("rules: [allow]", r"rules\[0\]: expected one of"),
        ("rules: [{allow: }]", r"rules\[0\].allow: expected keys and values"),
        ("rules: [{allow: {}}]", r"rules\[0\].allow.tool: is missing"),
        ("rules: [{allow: {tools: a}}]", r"rules\[0\].allow.tools: unknown key; did you mean tool"),
        ("rules: [{allow: {tool: }}]", r"rules\[0\].allow.tool: has no value"),
        ("rules: [{allow: {tool: yes}}]", r"rules\[0\].allow.tool: expected a pattern"),
        ("rules: [{allow: {tool: a, arguments: }}]", r"allow.arguments: has no value"),
        ("rules: [{allow: {tool: a, tool: b}}]", "line 1: .*the key 'tool' stands twice"),
        ("rules: [{allow: {tool: a, ttl: 5m}}]", r"rules\[0\].allow.ttl: unknown key"),
        (
            "rules: [{ask: {tool: a, ttl: 5}}]",
            r"rules\[0\].ask.ttl: expected a number and its unit",
        ),
        ("rules: [{ask: {tool: a, ttl: 5 minutes}}]", "expected a number and its unit"),
        ("rules: [{quorum: {tool: a, of: 2, among: [b]}}]", "2 votes cannot come of 1"),
        ("rules: [{allow: {tool: a, arguments: &x {b: *x}}}]", "more than 1000 parts"),
        ("rules: [", "line 3: expected YAML"),
        ("\x00", "expected YAML"),
        ("rules: [{allow: {tool: 2024-13-45}}]", "expected YAML"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(f"{text}\nend: true\n")
    with pytest.raises(ConfigurationError, match=said) as raised:
        load_policy(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="none: cannot be read"):
        load_policy(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        load_policy(tmp_path / "latin")
    (tmp_path / "large").write_bytes(b" " * (1 << 21))
    with pytest.raises(ConfigurationError, match="larger than"):
        load_policy(tmp_path / "large")


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([AllowRule("*")], r"rules\[0\] is too wide"),
        ([AllowRule(["a", "**"])], "too wide"),
        ([AllowRule("!shell")], "too wide"),
        ([AllowRule("/.*/", proposer="bob")], "too wide"),
        ([AllowRule("/^[^!]+$/")], "too wide"),
        ([AllowRule("*?")], "too wide"),
        ([AllowRule("?*")], "too wide"),
        ([AllowRule("*e*")], "too wide"),
        ([AllowRule("[a-z]*")], "too wide"),
        ([AllowRule("{a,b}*")], "too wide"),
        ([AllowRule("a", arguments={"x": "!b"})], "allows all values but one by '!b'"),
        ([AllowRule("read_file", arguments={"x": ["b", "/^b|c$/"]})], "is found anywhere"),
        ([AllowRule(["read_file", "a*"])], "instead of 'a\\*'"),
        ([AllowRule(method="*")], "it allows every tool"),
        (
            [AllowRule("read_*"), DenyRule("*_secret")],
            r"rules\[0\] allows calls of 'read_secret' that rules\[1\], behind it, would deny",
        ),
        ([AllowRule("a", arguments={"x": "b*"}), AskRule("a", arguments={"x": "*c"})], "would ask"),
    ],
)
def test_a_check_finds_what_loads_and_should_not_be(rules: list[Any], said: str) -> None:
    [found] = [
        each.text
        for each in findings_of(Policy(rules))
        if "too wide" in each.text or "allows" in each.text
    ]
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(found)


@pytest.mark.parametrize(
    "rules",
    [
        *([AllowRule(each)] for each in ("read_*", "*_list", "fs.*", "{read,get}_*", "a")),
        [AllowRule("/^(read|get)_/")],
        [DenyRule("*_secret"), AllowRule("read_*")],
        [AllowRule("a", arguments={"x": "b"}), DenyRule("a", arguments={"x": "c"})],
        [AllowRule("a", proposer="bob"), DenyRule("a", proposer="eve")],
        [AllowRule("a", arguments={"x": 1}), DenyRule("a", arguments={"x": 2})],
        [AllowRule("read_*"), DenyRule("write_*")],
        [AllowRule("read_*"), DenyRule("shell*"), AskRule("*")],
        [AllowRule("read_*", arguments={"path": "docs/**"}), DenyRule("*")],
        [AllowRule("a", arguments={"x": "/^(b|c)$/", "y": "/^b$|^[|]c$/"})],
        [AllowRule("read_*", arguments={"x": "a/*"}), DenyRule("*_x", arguments={"x": "b/*"})],
    ],
)
def test_a_check_takes_what_says_what_it_means(rules: list[Any]) -> None:
    assert findings_of(Policy(rules)) == []


KEYS = st.sampled_from(["rules", "allow", "ask", "tool", "arguments", "ttl", "reason", "x", ""])
DOCUMENTS: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.sampled_from(["a", "*", "10m", "policy"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=12,
)


@given(rules=st.lists(st.dictionaries(KEYS, DOCUMENTS, max_size=2), max_size=3))
def test_any_document_is_read_or_refused_with_a_sentence(rules: Any) -> None:
    document = yaml.safe_load(yaml.safe_dump({"rules": rules})) | {"end": True}
    try:
        policy = read_policy(document)
    except ConfigurationError:
        return
    assert [next(iter(each)) for each in document["rules"]] == [
        rule.verdict for rule in policy.rules
    ]
