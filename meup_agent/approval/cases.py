"""Cases: calls with the decision that a policy should make of them, in a file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from meup_agent.approval.policy import Policy
from meup_agent.approval.policy_file import read_file
from meup_agent.approval.rule_set import History, PolicyDecision
from meup_agent.approval.rules import MAX_COUNT, Verdict, suggest
from meup_agent.errors import ConfigurationError
from meup_agent.protocol.payloads import META, TARGET, TOOL_CALL, Call

PROPOSER: Final = "proposer"
"""The participant that proposes a call which does not say."""

_CASE_KEYS: Final = ("call", "expect", "rule", "earlier")
_CALL_KEYS: Final = ("tool", "arguments", "proposer", "target", "method")


class PolicyCase(NamedTuple):
    """A call, and the decision that is expected."""

    place: str
    call: Call
    proposer: str
    expect: str
    rule: str | None = None
    earlier: int = 0  # equal calls that were decided just before

    def decide(self, policy: Policy) -> PolicyDecision:
        """The decision about the last of its calls."""
        history = History()
        for _ in range(self.earlier):
            history.record(policy.decide(self.call, self.proposer, history), 0.0)
        return policy.decide(self.call, self.proposer, history)

    def failure(self, policy: Policy) -> str:
        """The difference to what is expected; empty where there is none."""
        found = self.decide(policy)
        if found.verdict == self.expect and self.rule in (None, found.rule):
            return ""
        by = "" if self.rule is None else f" by {self.rule}"
        return f"{self.place}: expected {self.expect}{by}, got {found.verdict} by {found.rule}"


def load_cases(path: Path) -> tuple[list[PolicyCase], Path | None]:
    """Read a file of cases, and the path of the policy that it names.

    Raises:
        ConfigurationError: It cannot be read, or something in it is unknown or missing.
    """
    from meup_agent.strict_yaml import parse_yaml

    try:
        document = _keys(parse_yaml(read_file(path)), "", ("policy", "cases"))
        cases = document.get("cases")
        if not isinstance(cases, list) or not cases:
            raise ConfigurationError("cases: expected a list of cases")
        policy = document.get("policy")
        if policy is not None and not isinstance(policy, str):
            raise ConfigurationError("policy: expected a path")
        items = enumerate(cast("list[object]", cases))
        read = [_read_case(each, f"cases[{index}]") for index, each in items]
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return read, None if policy is None else path.parent / policy


def _read_case(given: object, place: str) -> PolicyCase:
    case = _keys(given, place, _CASE_KEYS)
    expect, rule, earlier = case.get("expect"), case.get("rule"), case.get("earlier", 0)
    verdicts = [str(each) for each in Verdict]
    if expect not in verdicts:
        raise ConfigurationError(f"{place}.expect: expected one of {', '.join(verdicts)}")
    if rule is not None and not isinstance(rule, str):
        raise ConfigurationError(f"{place}.rule: expected the name of a rule")
    if isinstance(earlier, bool) or not isinstance(earlier, int) or not 0 <= earlier <= MAX_COUNT:
        raise ConfigurationError(f"{place}.earlier: expected a number of calls up to {MAX_COUNT}")
    about = _keys(case.get("call"), f"{place}.call", _CALL_KEYS)
    for key in ("tool", "proposer", "target", "method"):
        if key in about and not isinstance(about[key], str):
            raise ConfigurationError(f"{place}.call.{key}: expected a text; put it in quotes")
    if not isinstance(about.get("arguments", {}), dict):
        raise ConfigurationError(f"{place}.call.arguments: expected keys and values")
    made = call_from(
        about.get("tool", ""),
        about.get("arguments", {}),
        target=about.get("target"),
        method=about.get("method", TOOL_CALL),
    )
    return PolicyCase(place, made, about.get("proposer", PROPOSER), str(expect), rule, earlier)


def call_from(
    tool: str, arguments: Mapping[str, Any], *, target: str | None, method: str = TOOL_CALL
) -> Call:
    """A call as a proposal would have it."""
    params: dict[str, Any] = {"name": tool, "arguments": dict(arguments)}
    if target is not None:
        params[META] = {TARGET: target}
    return Call(method, params)


def _keys(given: object, place: str, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ConfigurationError(
            f"{place}: expected the keys {', '.join(known)}".removeprefix(": ")
        )
    for key in cast("dict[object, object]", given):
        if key not in known:
            where = f"{place}.{key}" if place else str(key)
            raise ConfigurationError(f"{where}: unknown key; {suggest(str(key), known)}")
    return cast("dict[str, Any]", given)
