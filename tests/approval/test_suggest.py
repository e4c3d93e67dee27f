"""Suggested rules: never one that allows what was not approved, and no wider than what was."""

from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.approval import (
    AllowRule,
    AskRule,
    DecisionLog,
    DenyRule,
    Judgement,
    LimitRule,
    Policy,
    PolicyRule,
    QuorumRule,
    Suggestion,
    suggest_rules,
)
from meup_agent.approval.policy.file import findings_of, read_policy, rule_to_file
from meup_agent.approval.policy.suggest import wilson
from tests.wire import draft, kinds, payloads


class Past:
    """The envelopes, decision by decision."""

    def __init__(self) -> None:
        self.log = DecisionLog()
        self._ids = (f"e{number}" for number in count())

    def say(self, sender: str, kind: str, payload: Any, about: str = "", id: str = "") -> str:
        correlation = (about,) if about else ()
        made = draft(
            kind, payload, id=id or next(self._ids), sender=sender, correlation=correlation
        )
        self.log.add(made)
        return made.id

    def propose(
        self, arguments: dict[str, Any], *, tool: str = "read", by: str = "bob", id: str = ""
    ) -> str:
        params = {"name": tool, "arguments": arguments, "_meta": {payloads.TARGET: "files"}}
        return self.say(by, kinds.MCP_PROPOSAL, payloads.proposal("tools/call", params), id=id)

    def fulfill(
        self,
        about: str,
        arguments: dict[str, Any],
        *,
        tool: str = "read",
        by: str = "lead",
        rule: Any = None,
    ) -> None:
        meta = {} if rule is None else {payloads.RULE: rule}
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        request = payloads.request("tools/call", params, "r")
        self.say(by, kinds.MCP_REQUEST, request, about)

    def approve(self, *, times: int = 1, tool: str = "read", **arguments: Any) -> None:
        for _ in range(times):
            self.fulfill(self.propose(arguments, tool=tool), arguments, tool=tool)

    def reject(
        self, *, times: int = 1, tool: str = "read", reason: str = "unsafe", **arguments: Any
    ) -> None:
        for _ in range(times):
            p = self.propose(arguments, tool=tool)
            self.say("lead", kinds.MCP_REJECT, {"reason": reason}, p)

    def suggest(self, least: int = 20) -> list[Suggestion]:
        return suggest_rules(self.log.decided(), least=least)


@pytest.mark.parametrize("tool", ["read file", " ", "x" * 2_000, "read,write", "*"])
def test_a_name_that_no_rule_takes_is_left_aside(past: Past, tool: str) -> None:
    past.approve(times=30, tool=tool, path="docs/a")
    past.reject(times=30, tool=tool, path="keys/a")
    past.approve(times=30, path="docs/a")
    assert [each.rule.tool for each in past.suggest()] == ["read"]


@pytest.fixture
def past() -> Past:
    return Past()


def rules_of(found: Iterable[Suggestion]) -> list[PolicyRule]:
    return [each.rule for each in found]


def test_what_was_always_approved_is_allowed_as_narrowly_as_it_was(past: Past) -> None:
    for number in range(30):
        past.approve(path=f"docs/{number}.md", limit=5)
    [found] = past.suggest()
    assert found.rule == AllowRule(
        "read", arguments={"path": "docs/**", "limit": 5}, target="files", proposer="bob"
    )
    assert (len(found.covered), found.changed, found.unseen) == (30, (), ())
    assert found.bound == pytest.approx(0.8865, abs=1e-4)


def test_what_was_rejected_parts_the_rules(past: Past) -> None:
    for number in range(25):
        past.approve(path=f"docs/{number}.md")
        past.reject(path=f"secrets/{number}.md")
    deny, allow = past.suggest()
    assert isinstance(deny.rule, DenyRule)
    assert (deny.rule.arguments, deny.rule.reason) == ({"path": "secrets/**"}, "unsafe")
    assert isinstance(allow.rule, AllowRule)
    assert allow.rule.arguments == {"path": "docs/**"}


@pytest.mark.parametrize("is_rejected", [True, False], ids=["rejection", "edit"])
def test_one_rejection_or_edit_keeps_a_rule_from_allowing(past: Past, is_rejected: bool) -> None:
    past.approve(times=19, path="docs/a.md")
    assert (past.suggest(), len(past.suggest(least=19))) == ([], 1)
    past.approve(times=81, path="docs/a.md")
    assert len(past.suggest()) == 1
    if is_rejected:
        past.reject(path="docs/a.md")
    else:
        past.fulfill(past.propose({"path": "docs/a.md"}), {"path": "docs/b.md"})
    assert past.suggest() == []


@pytest.mark.parametrize("reason", ["busy", "timeout", "incapable", "no_longer_needed"])
def test_a_reason_of_the_moment_denies_nothing(past: Past, reason: str) -> None:
    past.reject(times=50, reason=reason, path="docs/a.md")
    assert past.suggest() == []


def test_decisions_by_a_policy_are_no_evidence_but_their_rejections_count(past: Past) -> None:
    rule = {"verdict": "allow", "rule": "r", "policy": "x"}
    # What a person decided that a rule asked is evidence.
    for verdict, found in (("allow", 0), ("ask", 1)):
        for _ in range(50):
            p = past.propose({"path": "docs/a.md"})
            past.fulfill(p, {"path": "docs/a.md"}, rule=rule | {"verdict": verdict})
        assert len(past.suggest()) == found
    p = past.propose({"path": "docs/a.md"})
    payload = {"reason": "policy", "_meta": {payloads.RULE: rule | {"verdict": "deny"}}}
    past.say("reviewer", kinds.MCP_REJECT, payload, p)
    assert past.suggest() == []


def test_a_deny_may_change_few(past: Past) -> None:
    past.reject(times=99, path="tmp/a")
    past.approve(path="tmp/a")
    [found] = past.suggest()
    assert isinstance(found.rule, DenyRule)
    assert (len(found.covered), len(found.changed)) == (100, 1)
    assert found.bound == pytest.approx(0.9455, abs=1e-4)


def test_what_the_proposer_or_a_stranger_to_its_id_says_is_no_decision(past: Past) -> None:
    for number in range(30):
        p = past.propose({"path": "docs/a.md"}, by="bob", id=f"p{number}")
        past.fulfill(p, {"path": "docs/a.md"}, by="bob")
        past.propose({"path": "etc/a.md"}, by="eve", id=f"p{number}")
        past.fulfill(p, {"path": "etc/a.md"}, by="lead")
    assert past.suggest() == []


def test_a_rejection_under_an_id_that_two_have_used_keeps_a_rule_from_allowing(past: Past) -> None:
    past.approve(times=30, path="docs/a.md")
    p = past.propose({"path": "docs/a.md"}, by="bob", id="twice")
    past.propose({"path": "docs/a.md"}, by="eve", id=p)
    assert len(past.suggest()) == 1
    past.say("lead", kinds.MCP_REJECT, {"reason": "unsafe"}, p)
    assert past.suggest() == []


def test_rejections_under_such_ids_are_no_evidence(past: Past) -> None:
    for number in range(30):
        p = past.propose({"path": "docs/a.md"}, by="bob", id=f"p{number}")
        past.propose({"path": "docs/a.md"}, by="eve", id=p)
        past.say("lead", kinds.MCP_REJECT, {"reason": "unsafe"}, p)
    assert past.suggest() == []


@pytest.mark.parametrize(
    ("tool", "key", "value"),
    [
        ("read_*", "path", "docs/a.md"),
        ("/read/", "path", "docs/a.md"),
        ("!read", "path", "docs/a.md"),
        ("read", "*", "docs/a.md"),
        ("read", "path", "*"),
        ("read", "path", "!x"),
        ("read", "path", "[a]/b/c"),
        ("read", "$..path", "x"),
    ],
)
def test_what_would_be_a_pattern_is_in_no_rule(past: Past, tool: str, key: str, value: str) -> None:
    for number in range(30):
        arguments: dict[str, Any] = {key: value if number else f"{value}{number}"}
        past.approve(tool=tool, **arguments)
    for each in rules_of(past.suggest()):
        assert "*" not in str(each.tool)
        assert each.tool == "read"
        assert value not in str(each.arguments)


def test_the_suggestions_are_a_good_policy(past: Past) -> None:
    for number in range(40):
        past.approve(path=f"docs/{number % 7}/{number}.md")
        past.reject(path=f"src/{number}.py", reason="policy")
        past.approve(tool="list", depth=number % 3)
        past.reject(tool="shell", line=f"rm {number}")
    found = past.suggest()
    text = yaml.safe_dump(
        {"rules": [rule_to_file(each.rule) for each in found], "end": True}, sort_keys=False
    )
    policy = read_policy(yaml.safe_load(text))
    assert findings_of(policy) == []
    assert len(policy.rules) == len(found) == 4
    assert Policy(rules_of(found)).digest == policy.digest


def test_an_allow_leaves_free_the_arguments_that_varied(past: Past) -> None:
    for number in range(30):
        more: dict[str, Any] = {"x": number} if number % 2 else {}
        past.approve(path=f"docs/{number}", note=f"n {number}", **more)
    [rule] = rules_of(past.suggest())
    assert isinstance(rule, AllowRule)
    assert (rule.arguments, rule.others) == ({"path": "docs/**"}, ["note", "x"])


MORE: list[Any] = [[], {}, None, "x" * 300]
LIMITS: list[Any] = [1, 2, 1.0, "1"]
ARGUMENTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "path": st.sampled_from(["docs/a", "docs/b/c", "src/a", "/etc/x", ".git/a", "docs/.x/y"]),
        "force": st.booleans(),
        "limit": st.sampled_from(LIMITS),
        "more": st.sampled_from(MORE),
    },
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["read", "write"]),
            st.sampled_from(["bob", "eve"]),
            ARGUMENTS,
            st.sampled_from(Judgement),
        ),
        max_size=60,
    )
)
def test_no_suggestion_is_too_wide(made: list[tuple[str, str, dict[str, Any], Judgement]]) -> None:
    past = Past()
    calls: list[tuple[payloads.Call, str, Judgement]] = []
    for tool, proposer, arguments, judgement in made:
        p = past.propose(arguments, tool=tool, by=proposer)
        if judgement is Judgement.REJECTED:
            past.say("lead", kinds.MCP_REJECT, {"reason": "unsafe"}, p)
        else:
            edit = {"path": "elsewhere"} if judgement is Judgement.EDITED else {}
            past.fulfill(p, {**arguments, **edit}, tool=tool)
        params = {"name": tool, "arguments": arguments, "_meta": {payloads.TARGET: "files"}}
        calls.append((payloads.Call("tools/call", params), proposer, judgement))
    found = past.suggest(least=2)
    policy = Policy(rules_of(found))
    for call, proposer, judgement in calls:
        decision = policy.decide(call, proposer)
        assert decision.verdict != "allow" or judgement is Judgement.APPROVED
    for each in found:
        assert len(each.covered) >= 2
        assert not each.changed or isinstance(each.rule, DenyRule)


def test_command_lines_are_allowed_by_their_commands(past: Past) -> None:
    for number in range(30):
        past.approve(tool="Bash", command=f"git log -{number} && npm test", description="look")
        past.approve(tool="Bash", command=f"curl https://x.example/{number}")
        past.reject(tool="Bash", command=f"git push origin b{number}")
        past.reject(tool="Bash", command=f"rm -rf x{number}", reason="unsafe")
    deny_push, deny_rm, allow = rules_of(past.suggest())
    assert deny_push == DenyRule("Bash", shell="git push", reason="unsafe")
    assert deny_rm == DenyRule("Bash", shell="rm", reason="unsafe")
    # Of curl, which does more than read, there were too many forms.
    assert allow == AllowRule(
        "Bash", shell=["git log *", "npm test"], proposer="bob", target="files"
    )


@pytest.mark.parametrize(
    "command",
    ["ls -l", "cat f && ls -l", "ls -l | sh", "ls -l; ((", "x=$(ls -l)", "ls -l " + "x" * 300],
)
def test_no_allow_is_suggested_of_a_command_that_was_not_approved(past: Past, command: str) -> None:
    past.approve(times=30, tool="Bash", command="ls -l")
    past.approve(times=30, tool="Bash", command="pwd")
    past.reject(tool="Bash", command=command)
    rules = rules_of(past.suggest())
    assert [each.shell for each in rules] == [["pwd"]] or rules == []
    assert all(isinstance(each, AllowRule) for each in rules)


def test_an_argument_that_widens_a_call_is_never_left_free(past: Past) -> None:
    for number in range(30):
        past.approve(tool="Bash", command="ls -l", dangerouslyDisableSandbox=bool(number % 2))
        past.approve(tool="write", path="/a/b", text=f"{number}", force=True)
        past.approve(tool="send", text=f"{number} b", sandbox_permissions="require_escalated")
    past.approve(times=30, tool="send", text="é é")
    assert past.suggest() == []
    for number in range(30):
        past.approve(tool="Bash", command="ls -l", run_in_background=bool(number % 2))
        past.approve(tool="write", path="/a/b", text=f"{number}")
    rules = [each for each in rules_of(past.suggest()) if isinstance(each, AllowRule)]
    left = {str(each.tool): each.others for each in rules}
    assert left == {"Bash": ["run_in_background"], "write": ["text"]}


def test_what_a_command_varies_in_is_no_word_of_a_pattern(past: Past) -> None:
    for odd in ("ls *", "ls $x", "ls 'a b'", "LD_PRELOAD=x ls", "ls > f", "python x.py $y"):
        past.approve(times=30, tool="Bash", command=odd)
    assert past.suggest() == []


@pytest.mark.parametrize(
    ("agreed", "of", "bound"),
    [(0, 0, 0.0), (0, 10, 0.0), (10, 10, 0.7225), (50, 100, 0.4038), (1_000, 1_000, 0.9962)],
)
def test_wilsons_bound(agreed: int, of: int, bound: float) -> None:
    assert wilson(agreed, of) == pytest.approx(bound, abs=1e-4)


def test_a_rule_is_written_as_a_file_has_it() -> None:
    rules: list[PolicyRule] = [
        AskRule("write_*", ttl=600.0, remind=90.0),
        QuorumRule("deploy", of=2, among=("a", "b"), ttl=0.25),
        LimitRule("send", count=5, every=3600.0, then="deny"),
        DenyRule(["rm", "shell*"], reason="unsafe", explain="no"),
        AllowRule("read", arguments={"path": ["a", "b/**"]}, method="tools/*", name="reads"),
    ]
    documents = [rule_to_file(each) for each in rules]
    assert documents[0] == {"ask": {"tool": "write_*", "ttl": "10m", "remind": "90s"}}
    again = read_policy({"rules": yaml.safe_load(yaml.safe_dump(documents)), "end": True})
    assert again.digest == Policy(rules).digest
