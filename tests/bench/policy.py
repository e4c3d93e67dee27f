"""The time of a policy of 200 rules to decide a call.

Each call is decided many times, with the calls in turn, as in a space whose tools are known. The
figures are CPU time: the median over the calls, and the call that takes longest.
"""

import statistics
import time
from collections.abc import Iterator
from functools import partial

from meup_agent.approval import AllowRule, AskRule, DenyRule, History, LimitRule, Policy
from meup_agent.approval.policy.rules import MAX_RULES, PolicyRule
from meup_agent.protocol.wire.payloads import META, TARGET, Call
from tests.bench.figures import Figure, Program
from tests.bench.timing import microseconds

RULES = 200
TIMES = 300


def by_tool(count: int = RULES) -> Policy:
    """Rules for tools of many servers, each with an argument or a proposer."""
    rules: list[PolicyRule] = []
    for number in range(count // 5):
        rules += [
            DenyRule(f"s{number}_shell*"),
            AllowRule(f"s{number}_read_*", arguments={"path": "docs/**"}),
            LimitRule(f"s{number}_send_*", count=5, every=3600.0, then="deny"),
            AllowRule(f"s{number}_send_*", proposer=["bob", "bot-*"]),
            AskRule(f"s{number}_write_*", ttl=600.0),
        ]
    return Policy(rules)


def by_argument() -> Policy:
    """Rules for one tool that differ by an argument: each is looked at."""
    return Policy([AllowRule("read_file", arguments={"path": f"d{n}/**"}) for n in range(RULES)])


def by_held_argument() -> Policy:
    """Rules that hold back what one tool is asked for, behind which all else is allowed."""
    rules: list[PolicyRule] = [
        DenyRule("read_file", arguments={"path": f"/home/u{n}/**"}) for n in range(RULES - 1)
    ]
    return Policy([*rules, AllowRule("read_file")])


def call(tool: str, **arguments: str) -> Call:
    params = {"name": tool, "arguments": arguments, META: {TARGET: "tools"}}
    return Call("tools/call", params)


def taken(policy: Policy, calls: list[Call], times: int) -> list[float]:
    """CPU microseconds of one decision about each call."""
    history = History()
    return [
        microseconds(partial(policy.decide, each, "bob", history, 0.0), times) for each in calls
    ]


def measure(scale: float = 1.0) -> Iterator[Figure]:
    times = max(1, round(TIMES * scale))
    names = ["shell_run", "read_file", "send_mail", "write_file", "other"]
    calls = [call(f"s{n}_{name}", path="docs/a/b.md") for n in range(40) for name in names]
    found = taken(by_tool(), calls, times)
    yield Figure(f"{RULES} rules, a decision, p50", statistics.median(found), "µs", 20)
    yield Figure(f"{RULES} rules, the slowest call", max(found), "µs")
    first = Policy(by_tool().rules)
    unknown = [call(f"s{n % 40}_other_{n}") for n in range(max(1, round(1_000 * scale)))]
    begun = time.process_time()
    for each in unknown:
        first.decide(each, "bob")
    cold = (time.process_time() - begun) / len(unknown) * 1e6
    yield Figure(f"{RULES} rules, the first call of a tool", cold, "µs", 20)
    [last] = taken(by_argument(), [call("read_file", path=f"d{RULES - 1}/a")], times)
    yield Figure(f"{RULES} rules of one tool, the last one decides", last, "µs", 20)
    [held] = taken(by_held_argument(), [call("read_file", path="/home/u7/../ann/.x")], times)
    yield Figure(f"{RULES} rules that hold back, none does", held, "µs", 20)
    begun = time.process_time()
    many = by_tool(MAX_RULES)
    built = (time.process_time() - begun) * 1e3
    yield Figure(f"{MAX_RULES} rules, made ready", built, "ms", 300)
    found = taken(many, calls, max(1, times // 10))
    yield Figure(f"{MAX_RULES} rules, a decision, p50", statistics.median(found), "µs", 10)


PROGRAM = Program("policy", "Policies: rules that decide a call", measure)
