"""A mistyped rule never approves: no changed letter of a file lets pass what it held back."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meup_agent import Agent
from meup_agent.approval import (
    AllowRule,
    AskRule,
    DenyRule,
    History,
    LimitRule,
    Policy,
    PolicyRule,
    Verdict,
)
from meup_agent.approval.policy.decider import (
    ArgumentSchema,
    KnownNames,
    find_near_miss,
    is_one_off,
    known_names_of,
)
from meup_agent.approval.policy.file import findings_of, read_policy
from meup_agent.errors import ConfigurationError
from meup_agent.strict_yaml import parse_yaml
from tests.effort import scaled
from tests.interaction.people import InMemory, join, until
from tests.wire import META, TARGET, Call

TEXT = """rules:
  - deny:  {tool: "shell_rm", reason: policy, explain: "no"}
  - deny:
      tool: shell_dd
      target: tools
  - ask:   {tool: [shell_mv, "shell_cp"], ttl: 10m, remind: 2m}
  - deny:  {tool: "write_*", arguments: {path: "etc/**"}}
  - deny:  {tool: "call_*", proposer: guest}
  - quorum: {tool: deploy_all, of: 2, among: [lead, security], never: proposer}
"""
"""Rules that hold calls back, each of which an allow behind it would let pass."""

ALLOWS = """  - allow: {tool: ["shell_*", "deploy_*", "call_*"]}
  - allow: {tool: write_file, arguments: {path: "**"}, target: tools}
end: true
"""

HELD: list[tuple[str, str, dict[str, str]]] = [
    ("guest", "shell_rm", {}),
    ("bot", "shell_dd", {}),
    ("bot", "shell_mv", {}),
    ("bot", "shell_cp", {}),
    ("bot", "write_file", {"path": "etc/x"}),
    ("guest", "call_home", {}),
    ("bot", "deploy_all", {}),
]
AROUND = KnownNames(
    tools=frozenset({"shell_ls", *(tool for _, tool, _ in HELD)}),
    arguments={"path": []},
    participants=frozenset({"tools", "guest", "bot", "lead", "security"}),
)


def is_let_pass(policy: Policy, proposer: str, call: Call, around: KnownNames = AROUND) -> bool:
    """True if a call is carried out, as a decider would."""
    found = policy.decide(call, proposer, History())
    if found.verdict is not Verdict.ALLOW or found.number is None:
        return False
    return not find_near_miss(policy, found.number, call, proposer, around)


def call_of(tool: str, arguments: dict[str, str], target: str = "tools") -> Call:
    return Call("tools/call", {"name": tool, "arguments": arguments, META: {TARGET: target}})


def is_near_miss(wanted: dict[str, Any], given: dict[str, Any], schema: dict[str, Any]) -> bool:
    """True if a call is asked about since a deny of these arguments nearly matches it."""
    call = Call("tools/call", {"name": "deploy", "arguments": given})
    around = known_names_of(ArgumentSchema(schema), {"deploy"}, {"bot"})
    policy = Policy([DenyRule("deploy", arguments=wanted), AllowRule("deploy")])
    return not is_let_pass(policy, "bot", call, around)


PLACES = [
    at
    for at in range(len(TEXT))
    # Which folder is held back, no list tells; with another one it is another rule.
    if not -1 <= at - TEXT.index('"etc/**"') < len('"etc/**"')
]
LETTERS = " \"':-[]{}xyz17\n&|>\t@%"
"""No sign of a comment or of patterns, and no comma, which makes two names of one."""


@settings(max_examples=scaled(800))
@given(st.sampled_from(PLACES), st.sampled_from(["lose", "put", "replace", "swap"]), st.data())
@example(TEXT.index("rm"), "replace", None)
def test_no_changed_letter_lets_it_pass(at: int, how: str, data: st.DataObject | None) -> None:
    letter = "n" if data is None else data.draw(st.sampled_from(LETTERS))
    new = {"lose": "", "put": letter + TEXT[at], "replace": letter}.get(
        how, TEXT[at : at + 2][::-1]
    )
    text = TEXT[:at] + new + TEXT[at + 1 + (how == "swap") :] + ALLOWS
    try:
        policy = read_policy(parse_yaml(text.encode()))
    except ConfigurationError:
        return
    for proposer, tool, arguments in HELD:
        assert not is_let_pass(policy, proposer, call_of(tool, arguments)), (tool, text)


def test_as_it_was_written_it_holds_back_and_lets_pass() -> None:
    policy = read_policy(parse_yaml((TEXT + ALLOWS).encode()))
    for proposer, tool, arguments in HELD:
        assert not is_let_pass(policy, proposer, call_of(tool, arguments))
    assert is_let_pass(policy, "bot", call_of("shell_ls", {}))
    assert is_let_pass(policy, "bot", call_of("write_file", {"path": "docs/x"}))


@pytest.mark.parametrize(
    ("rule", "is_near"),
    [
        (DenyRule("delete_fil"), True),
        (AskRule("Delete_File"), True),
        (DenyRule("delete_file2"), True),
        (DenyRule("delete_user"), False),
        (DenyRule("delete_fles"), False),  # is there
        (DenyRule("delte_*"), True),
        (DenyRule("delete_"), True),
        (DenyRule("delete_x"), True),
        (DenyRule("delete_*%"), True),
        (DenyRule("delete_*_all"), False),
        (DenyRule("delete_*ile"), True),
        (DenyRule("delete_*fila"), True),
        (DenyRule("*_fil"), True),
        (DenyRule("*_user"), False),
        (DenyRule("delete-file"), True),
        (DenyRule("deleteFile"), True),
        (DenyRule("tools.delete_file"), True),
        (DenyRule(["shell_*", "tools/delete_*"]), True),
        (DenyRule("other.delete_file"), False),
        (DenyRule("delte_*file"), True),
        (DenyRule("delete_f*", arguments={"pth": "x"}), True),
        (DenyRule("delete_f*", arguments={"path": "x"}), False),
        (DenyRule("delete_f*", arguments=[{"path": "x"}, {"paht": "x"}]), True),
        (DenyRule("delete_*", target="tool"), True),
        (DenyRule("delete_*", target="other"), False),  # another participant's
        (DenyRule("delete_fil", target="tool"), False),  # two letters
        (LimitRule("delete_fil", count=1, every=60.0), True),
        (DenyRule("/^delete_fil$/"), False),
        (AllowRule("delete_fil"), False),
    ],
)
def test_what_is_nearly_held_back_is_not_let_pass(rule: PolicyRule, is_near: bool) -> None:
    around = KnownNames(
        frozenset({"delete_file", "delete_fles"}), {"path": []}, frozenset({"tools", "bot"})
    )
    policy = Policy([rule, AllowRule("delete_*")])
    call = call_of("delete_file", {"path": "y"})
    assert is_let_pass(policy, "bot", call, around) is not is_near


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ("", "", False),
        ("rm", "rn", False),
        ("abc", "abd", True),
        ("abc", "abcd", True),
        ("abcd", "bcd", True),
        ("abcd", "acbd", True),
        ("abcd", "cbad", False),
        ("abcd", "abcd", False),
        ("abcd", "abce9", False),
        ("aaa", "aaaa", True),
        ("tool1", "tool2", False),
        ("tool", "tool2", True),
        ("tool", "TOOL", True),
    ],
)
def test_one_off(one: str, other: str, said: bool) -> None:
    assert is_one_off(one, other) is said
    assert is_one_off(other, one) is said


@pytest.mark.parametrize(
    ("arguments", "is_near"),
    [
        ({"version": "13"}, True),  # of another type than the tool takes
        ({"force": "True"}, True),
        ({"branch": "Main"}, True),
        ({"branch": "main "}, True),
        ({"branch": "ma\u200bin"}, True),
        ({"branch": ["stage", "MAIN"]}, True),
        ({"branch": "mian"}, False),  # no list tells
        ({"stage": "prodution"}, True),  # the schema lists its values
        ({"stage": "test"}, False),
        ({"version": 12}, False),
        ({"branch": {"name": "main"}}, False),
        ({"environment": "production"}, True),  # no argument of the tool
        ({"arguments": {"stage": "production"}}, True),
        ({"**": "x"}, False),
    ],
)
def test_a_nearly_equal_argument_is_asked_about(arguments: dict[str, Any], is_near: bool) -> None:
    schema = {
        "properties": {
            "version": {"type": "integer"},
            "force": {"type": "boolean"},
            "branch": {"type": "string"},
            "stage": {"enum": ["test", "production"]},
        }
    }
    given = {"version": 13, "force": True, "branch": "main", "stage": "production"}
    assert is_near_miss(arguments, given, schema) is is_near


@pytest.mark.parametrize(
    ("wanted", "given", "is_near"),
    [
        ({"mode": "6"}, {"mode": [6]}, True),
        ({"mode": "6"}, {"mode": ["x", [6.0]]}, True),
        ({"mode": 6}, {"mode": ["6"]}, True),
        ({"mode": True}, {"mode": ["True "]}, True),
        ({"mode": ["5", "6"]}, {"mode": 6}, True),
        ({"mode": "6*"}, {"mode": 644}, True),
        ({"mode": "!!6"}, {"mode": 6}, True),
        ({"mode": "*4"}, {"mode": -64}, True),
        ({"mode": "-*"}, {"mode": -64}, True),
        ({"mode": "Tr*"}, {"mode": True}, True),
        ({"mode": "/^[67]/"}, {"mode": 644}, True),
        ({"opts": {"mode": "6"}}, {"opts": {"mode": 6}}, True),
        ({"opts": {"mode": "6"}}, {"opts": [{"mode": 6}]}, True),
        ({"opts": {"mode": {"x": 6}}}, {"opts": {"mode": {"X": "6"}}}, True),
        ({"$.mode": "6"}, {"mode": 6}, True),
        ({"$..mode": "true"}, {"opts": {"mode": True}}, True),
        ({"m*": "6"}, {"mode": 6}, True),
        ({"**": "6"}, {"opts": [{"mode": 6}]}, True),
        ({"mode": "6"}, {"mode": [7, "5", {"x": 6}]}, False),
        ({"mode": "!6", "path": "/etc/**"}, {"mode": 7, "path": "/tmp"}, False),
        ({"mode": "*", "path": "/etc/**"}, {"mode": 7, "path": "/tmp"}, False),
        ({"mode": 6}, {"mode": [5, "7", True, None]}, False),
        ({"opts": {"mode": "6"}}, {"opts": {"kind": 6}}, False),
        ({"opts": {"mode": "6"}}, {"opts": 6}, False),
        ({"n*": "6"}, {"mode": 6}, False),
    ],
)
def test_a_value_of_another_type_is_asked_about_wherever_it_stands(
    wanted: dict[str, Any], given: dict[str, Any], is_near: bool
) -> None:
    schema: dict[str, Any] = {"properties": {name: {} for name in ("mode", "opts", "path")}}
    call = Call("tools/call", {"name": "deploy", "arguments": given})
    policy = Policy([DenyRule("deploy", arguments=wanted), AllowRule("deploy")])
    assert policy.decide(call, "bot").verdict is Verdict.ALLOW
    assert is_near_miss(wanted, given, schema) is is_near


def test_values_that_are_listed_behind_a_reference_are_compared_as_well() -> None:
    schema = {
        "allOf": [{"properties": {"stage": {"$ref": "#/$defs/Stage"}}}],
        "$defs": {"Stage": {"enum": ["test", "production"]}},
    }
    assert is_near_miss({"stage": "prodution"}, {"stage": "production"}, schema)


def test_an_argument_that_the_schema_leaves_open_is_no_mistake() -> None:
    opened: dict[str, Any] = {"additionalProperties": True, "patternProperties": {"^p": {}}}
    for key, value in opened.items():
        schema = {"properties": {"stage": {}}, key: value}
        assert not is_near_miss({"purge": True}, {"stage": "test"}, schema)


def test_a_long_name_is_compared_with_none_and_asked_about() -> None:
    rule, call = DenyRule("y"), call_of("x" * 257, {})
    assert not is_let_pass(Policy([rule, AllowRule("*")]), "bot", call)
    assert is_let_pass(Policy([AllowRule("*")]), "bot", call)


def test_names_that_take_too_much_work_are_asked_about() -> None:
    name = "\u0301" * 50_000 + "\u0316" * 50_000
    call = call_of("shell_ls", {})
    for tool, argument in (("shell_ls", "a?b"), ("shell_r?", "a")):
        rule = DenyRule(tool, arguments={argument: "x"})
        policy = Policy([rule, AllowRule("shell_ls")])
        assert is_let_pass(policy, "bot", call)
        around = AROUND._replace(tools=["shell_ls", name], unsure=[name])
        assert not is_let_pass(policy, "bot", call, around)


@pytest.mark.parametrize("field", ["arguments", "unsure"])
def test_a_tool_with_very_many_arguments_is_asked_about(field: str) -> None:
    rules = [DenyRule("*", arguments={f"folder{number}": "x"}) for number in range(100)]
    policy, call = Policy([*rules, AllowRule("write")]), call_of("write", {})
    for count, asked in (1, False), (20_000, True):
        many: dict[str, Any] = {field: {f"arg_{number:05d}": [] for number in range(count)}}
        doubt = find_near_miss(policy, 100, call, "bot", AROUND._replace(**many))
        assert ("too much work" in doubt) is asked


@pytest.mark.parametrize(
    "tool",
    ["shell_mv shell_cp", 'shell_rm"', "'shell_rm", ["a", "b\tc"], "a,b", "a|b", "^a", "a;b"],
)
def test_no_pattern_of_tools_has_what_no_name_has(tool: str | list[str]) -> None:
    with pytest.raises(ConfigurationError, match="write several patterns as a list"):
        DenyRule(tool)


@pytest.mark.parametrize(
    "names",
    [
        {"tool": "git_{log,diff}"},
        {"tool": ["read_*", "{a,b}"]},
        {"tool": "!{a,b}"},
        {"tool": "a", "proposer": "{bob,eve}"},
        {"tool": "a", "target": "{git,notes}"},
    ],
)
def test_no_choice_of_names_stands_without_a_wildcard(names: dict[str, Any]) -> None:
    # Braces alone are an exact text, so a deny would hold nothing back.
    with pytest.raises(ConfigurationError, match="only beside a wildcard"):
        DenyRule(**names)
    DenyRule("git_{log,diff}*")
    DenyRule("/git_(log|diff){1,2}/")


def test_a_choice_among_arguments_without_a_wildcard_is_found() -> None:
    paths = {"path": {"in": ["{a,b}"]}, "text": "{a,b}*", "one": "{a}"}
    [found] = findings_of(Policy([DenyRule("write", arguments=paths)]))
    assert "rules[0] matches the very text '{a,b}'" in found.text


async def test_people_decide_what_is_nearly_held_back(caplog: pytest.LogCaptureFixture) -> None:
    meeting, ran = InMemory(), list[str]()
    tools, reviewer = Agent("tools"), Agent("reviewer")

    @tools.tool
    async def shell_rm(path: str) -> None:
        ran.append(path)

    @tools.tool
    async def shell_ls(path: str) -> None:
        ran.append(path)

    reviewer.use(Policy([DenyRule("shell_rn"), AllowRule("shell_*")]))
    caplog.set_level("INFO", "meup_agent.approval")
    async with join(meeting, tools), join(meeting, reviewer), join(meeting, "proposer") as space:
        async with space.propose("tools", "shell_rm", {"path": "a"}):
            await until(lambda: "perhaps it is mistyped" in caplog.text)
        await space.call("tools", "shell_ls", {"path": "b"})
    assert ran == ["b"]
