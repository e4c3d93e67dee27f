"""Policy: the first rule that matches decides, and nothing slips past a deny or an ask."""

from typing import Any

import pytest

from meup_agent.approval import (
    AllowRule,
    AskRule,
    DenyRule,
    History,
    LimitRule,
    Policy,
    PolicyDecision,
    QuorumRule,
    Verdict,
)
from meup_agent.approval.policy.rules import LimitCount
from meup_agent.errors import ConfigurationError
from tests.wire import Call


def call(tool: str, target: str | None = "files", /, **arguments: Any) -> Call:
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if target is not None:
        params["_meta"] = {"dev.meup/target": target}
    return Call("tools/call", params)


BOB: Any = "bob"
TRUE: Any = True
NO: Any = False
NONE: Any = None
TOOL: Any = "tool"
ALLOW: Any = "allow"
"""Values that a type checker would not let pass."""

POLICY = Policy(
    [
        AllowRule("read_*", arguments={"path": "docs/**"}),
        AskRule("write_*", ttl=600, remind=120),
        DenyRule("shell*", reason="unsafe", explain="no shells here", name="shells"),
        QuorumRule("deploy", of=2, among=["lead", "security", "oncall"]),
        LimitRule("send_*", count=2, every=60, then="deny"),
        AllowRule("send_mail", proposer="bot", target="mail"),
    ]
)


@pytest.mark.parametrize(
    ("asked", "proposer", "verdict", "rule"),
    [
        (call("read_file", path="docs/a/b.md"), "bob", "allow", "rules[0]"),
        (call("read_file", path="docs/../etc/passwd"), "bob", "ask", "default"),
        (call("read_file", path=["docs/a"]), "bob", "ask", "default"),
        (call("read_file"), "bob", "ask", "default"),
        (call("write_file", path="docs/a"), "bob", "ask", "rules[1]"),
        (call("shell_run"), "bob", "deny", "shells"),
        (call("deploy"), "bob", "quorum", "rules[3]"),
        (call("send_mail", "mail"), "bot", "allow", "rules[5]"),
        (call("send_mail", "mail"), "bob", "ask", "default"),
        (call("send_mail", None), "bot", "ask", "default"),
        (Call("resources/read", {"uri": "a"}), "bob", "ask", "default"),
        (Call("", {}), "bob", "ask", "default"),
    ],
)
def test_first_match_decides(asked: Call, proposer: str, verdict: str, rule: str) -> None:
    decision = POLICY.decide(asked, proposer)
    assert (decision.verdict, decision.rule, decision.policy) == (verdict, rule, POLICY.digest)


def test_a_decision_has_what_its_rule_says() -> None:
    asked = POLICY.decide(call("write_file"), "bob")
    assert (asked.ttl, asked.remind) == (600, 120)
    denied = POLICY.decide(call("shell"), "bob")
    assert (denied.reason, denied.explain) == ("unsafe", "no shells here")
    voted = POLICY.decide(call("deploy"), "bob")
    assert (voted.of, voted.among) == (2, ("lead", "security", "oncall"))
    assert denied.told == {"verdict": "deny", "rule": "shells", "policy": POLICY.digest}


def ask_at(history: History, at: float, proposer: str = "bot") -> PolicyDecision:
    decision = POLICY.decide(call("send_mail", "mail"), proposer, history, at)
    history.record(decision, at)
    return decision


def test_a_limit_lets_so_many_pass_and_then_decides() -> None:
    history = History()
    verdicts = [ask_at(history, at).verdict for at in (0, 1, 2, 59)]
    assert verdicts == ["allow", "allow", "deny", "deny"]
    over = ask_at(history, 59)
    assert (over.rule, over.reason) == ("rules[4]", "resource_limit")
    # What was denied took no place: a minute after the first, one passes again.
    assert [ask_at(history, at).verdict for at in (60, 60.5, 61)] == ["allow", "deny", "allow"]


@pytest.mark.parametrize(("count", "said"), [(1, "1 call in 60 s"), (2, "2 calls in 60 s")])
def test_a_limit_says_how_many_calls_it_takes(count: int, said: str) -> None:
    policy, history = Policy([LimitRule("a", count=count, every=60)]), History()
    for _ in range(count):
        history.record(policy.decide(call("a"), "bob", history), 0)
    assert policy.decide(call("a"), "bob", history).explain == f"more than {said}"


def test_each_proposer_has_a_count_of_its_own() -> None:
    history = History()
    assert [ask_at(history, 0).verdict for _ in range(3)] == ["allow", "allow", "deny"]
    assert ask_at(history, 0, "bob").rule == "default"


def test_deciding_changes_no_history() -> None:
    history = History()
    for _ in range(5):
        assert POLICY.decide(call("send_mail", "mail"), "bot", history, 0).verdict == "allow"


def test_equal_limits_go_on_counting_in_a_policy_that_was_read_again() -> None:
    history = History()
    assert {ask_at(history, 0).verdict for _ in range(2)} == {"allow"}
    again = Policy([DenyRule("other"), *POLICY.rules])
    assert again.decide(call("send_mail", "mail"), "bot", history, 0).verdict == "deny"


def test_without_room_to_count_nothing_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.approval.policy.rules.MAX_COUNTED", 1)
    history = History()
    assert ask_at(history, 0).verdict == "allow"
    assert ask_at(history, 0, "bob").verdict == "deny"
    # The first one's minute is over, so there is room.
    limit = LimitCount("l", "p", 2, 1.0)
    history.record(PolicyDecision(Verdict.ASK, "x", counted=(limit,)), 100)
    assert not history.is_full(limit, 100)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Policy([AskRule("a", name="n"), AskRule("b", name="n")]), "'n' is taken"),
        (lambda: Policy([AskRule("a", name="default")]), "'default' is taken"),
        (lambda: Policy([AskRule("/(/")]), r"rules\[0\].tool: the regular expression"),
        (lambda: Policy([AskRule("a", arguments={"p": "//"})]), r"rules\[0\].arguments.p: '//' n"),
        (lambda: AllowRule(), "tool: is missing"),
        (lambda: AllowRule([]), "tool: expected a pattern"),
        (lambda: AllowRule(""), "tool: expected a text"),
        (lambda: AllowRule(TRUE), "tool: expected a pattern or"),
        (lambda: AllowRule("a", arguments="b"), "arguments: expected keys"),
        (lambda: AllowRule("a", arguments={"b": []}), "never matches"),
        (lambda: AllowRule("a", arguments={}), "arguments: {} says nothing"),
        (lambda: AllowRule("a", arguments=[{"b": 1}, {}]), "{} says nothing, and takes any"),
        (lambda: AllowRule(["read_*", "!read_secret"]), "'!read_secret' stands in a list"),
        (lambda: AllowRule("a", proposer=["!bob", "!eve"]), "proposer: '!bob' stands in a list"),
        (lambda: AllowRule("a", arguments={"b": ["!c", "!d"]}), "arguments: '!c' stands in a list"),
        (lambda: DenyRule("a", method="tool/call"), "did you mean tools/call"),
        (lambda: AllowRule("a", method=NONE), "method: has no value"),
        (lambda: Policy([DenyRule("a", arguments={NO: "b"})]), "key False is not a string; put q"),
        (lambda: Policy([DenyRule("a", arguments={"b": {NO: "c"}})]), "key False is not a string"),
        (lambda: Policy([AllowRule("a", arguments={NO: "b"})]), "False is not a string; put quote"),
        (lambda: DenyRule("a", arguments={"b": "c", NO: "d"}), "False is not a string; put quotes"),
        (lambda: DenyRule("a", method=["tools/call", "tools.list"]), "did you mean tools/list"),
        (lambda: DenyRule("a", reason="unsave"), "did you mean unsafe"),
        (lambda: DenyRule("a", explain=" "), "explain: expected a text"),
        (lambda: AskRule("a", ttl=-1), "ttl: expected a span"),
        (lambda: AskRule("a", ttl=float("nan")), "ttl: expected a span of time"),
        (lambda: AskRule("a", ttl=5, remind=5), "remind: a reminder would come after"),
        (lambda: AskRule("a", confirm="yes"), "confirm: 'yes' is unknown; write word"),
        (lambda: QuorumRule("a", of=3, among=["b", "c"]), "3 votes cannot come of 2"),
        (lambda: QuorumRule("a", of=1, among=["b", "b"]), "stands there twice"),
        (lambda: QuorumRule("a", of=1, among="bob"), "among: expected the names"),
        (lambda: QuorumRule("a", of=1, among=["b"], never=BOB), "never: expected 'proposer'"),
        (lambda: LimitRule("a", count=0, every=1), "count: expected a number"),
        (lambda: LimitRule("a", count=1, every=0), "every: expected a span"),
        (lambda: LimitRule("a", count=1, every=1, per=TOOL), "per: expected"),
        (lambda: LimitRule("a", count=1, every=1, then=ALLOW), "a limit allows nothing"),
    ],
)
def test_a_rule_that_cannot_be_meant(made: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        made()


def test_a_deny_that_takes_too_much_work_lets_no_allow_decide() -> None:
    heavy = [f"/{n}a[ab]{{30}}c/" for n in range(400)]
    policy = Policy([DenyRule("a", arguments={"**": heavy}, name="heavy"), AllowRule("a")])
    assert policy.decide(call("a", text="x"), "bob").verdict == "allow"
    decision = policy.decide(call("a", text="ab" * 40_000), "bob")
    assert (decision.verdict, decision.rule) == ("ask", "heavy")


def test_names_that_are_made_up_take_no_memory() -> None:
    for number in range(1_000):
        POLICY.decide(call(f"shell{number}"), "bob")
    assert len(vars(POLICY)["_by_tool"]) <= 256
