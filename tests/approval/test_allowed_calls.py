"""Calls that rules allowed once are found where the rules of today would not allow them."""

from typing import Any

from meup_agent import Envelope
from meup_agent.approval import AllowRule, DenyRule, Policy
from meup_agent.approval.policy.cases import AllowedCalls
from tests.wire import draft, kinds, payloads

POLICY = Policy(
    [
        DenyRule("shell", name="no shells"),
        AllowRule("send_mail", arguments={"to": "*@example.com"}, name="own mail"),
        AllowRule("read", arguments={"path": "docs/**"}, others=["limit"]),
    ]
)


def fulfilled(
    tool: str, arguments: dict[str, Any], verdict: str = "allow", **more: Any
) -> Envelope:
    meta = {
        payloads.PROPOSER: "bob",
        payloads.RULE: {"verdict": verdict, "rule": "before", "policy": "0" * 16},
        **more,
    }
    payload = payloads.request(
        "tools/call", {"name": tool, "arguments": arguments, "_meta": meta}, "r1"
    )
    return draft(
        kinds.MCP_REQUEST, payload, id="r1", sender="reviewer", to=("files",), correlation=("p1",)
    )


def found(*envelopes: Envelope, policy: Policy = POLICY) -> AllowedCalls:
    allowed = AllowedCalls(policy)
    for each in envelopes:
        allowed.add(each)
    return allowed


def test_calls_that_would_be_asked_about_are_listed_with_what_their_rule_does_not_name() -> None:
    to = {"to": "bob@example.com"}
    allowed = found(
        fulfilled("send_mail", to),
        fulfilled("send_mail", {**to, "cc": "eve@example.org", "body": "x"}),
        fulfilled("send_mail", {"to": "a@b.org,bob@example.com"}),
        fulfilled("read", {"path": "docs/a", "limit": 3}),
        fulfilled("read", {"path": "docs/a", "offset": 3}),
        fulfilled("shell", {"line": "ls"}),
    )
    assert (allowed.count, allowed.turned_count) == (6, 4)
    told = [(each.tool, each.verdict, each.rule, each.unnamed) for each in allowed.turned]
    assert told == [
        ("send_mail", "ask", "default", ("body", "cc")),
        ("send_mail", "ask", "default", ()),
        ("read", "ask", "default", ("offset",)),
        ("shell", "deny", "no shells", ()),
    ]
    first = allowed.turned[0]
    assert (first.proposal, first.proposer, first.before) == ("p1", "bob", "before")
    assert (first.lacking, allowed.turned[1].lacking) == ("own mail", "")


def test_what_no_rule_allowed_is_left_aside() -> None:
    asked = fulfilled("shell", {}, "ask")
    unnamed: dict[str, Any] = {payloads.PROPOSER: None}
    nobody = fulfilled("shell", {}, **unnamed)
    alone = draft(kinds.MCP_REQUEST, fulfilled("shell", {}).payload, id="r2", sender="x")
    proposal = draft(
        kinds.MCP_PROPOSAL, fulfilled("shell", {}).payload, id="p", sender="x", correlation=("p1",)
    )
    assert found(asked, nobody, alone, proposal).count == 0


def test_the_executor_of_a_call_is_the_one_that_it_was_sent_to() -> None:
    rule = AllowRule("shell", target="files")
    assert found(fulfilled("shell", {}), policy=Policy([rule])).turned_count == 0
    rule = AllowRule("shell", target="others")
    assert found(fulfilled("shell", {}), policy=Policy([rule])).turned_count == 1
