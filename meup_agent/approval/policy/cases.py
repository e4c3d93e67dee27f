"""Cases: calls with the decision that a policy should make: from a file, a journal, or drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from meup_agent.approval.policy.decider import Policy
from meup_agent.approval.policy.file import read_file, read_keys
from meup_agent.approval.policy.rules import (
    MAX_COUNT,
    AllowRule,
    History,
    PolicyDecision,
    PolicyRule,
    RuleSet,
    Verdict,
    as_patterns,
    is_count,
    named_rules,
)
from meup_agent.approval.shell.line import load_parser
from meup_agent.errors import ConfigurationError
from meup_agent.protocol.capability.patterns import Reading, compile_pattern, is_regex
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.payloads import TOOL_CALL, Call, as_list, edit_call, read_told_rule

# --- cases ---

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
        document = read_keys(parse_yaml(read_file(path), text_keys=True), "", ("policy", "cases"))
        cases = as_list(document.get("cases"))
        if not cases:
            raise ConfigurationError("cases: expected a list of cases")
        policy = document.get("policy")
        if policy is not None and not isinstance(policy, str):
            raise ConfigurationError("policy: expected a path")
        read = [_read_case(each, f"cases[{index}]") for index, each in enumerate(cases)]
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return read, None if policy is None else path.parent / policy


def _read_case(given: object, place: str) -> PolicyCase:
    case = read_keys(given, place, _CASE_KEYS)
    expect, rule, earlier = case.get("expect"), case.get("rule"), case.get("earlier", 0)
    verdicts = [str(each) for each in Verdict]
    if expect not in verdicts:
        raise ConfigurationError(f"{place}.expect: expected one of {', '.join(verdicts)}")
    if rule is not None and not isinstance(rule, str):
        raise ConfigurationError(f"{place}.rule: expected the name of a rule")
    if not is_count(earlier) or not 0 <= earlier <= MAX_COUNT:
        raise ConfigurationError(f"{place}.earlier: expected a number of calls up to {MAX_COUNT}")
    about = read_keys(case.get("call"), f"{place}.call", _CALL_KEYS)
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
    return edit_call(Call(method, {"name": tool}), dict(arguments), target)


# --- allowed calls ---
# Those of a journal that a rule once let through, held against the rules of today.
#
# A rule that is read otherwise than before, or was written anew, asks people about calls that
# nobody was asked about. Nothing here decides anything.

MAX_TURNED: Final = 10_000
"""Calls that are kept because they are allowed no longer; more are counted."""


class TurnedCall(NamedTuple):
    """A call that was allowed, and is no longer.

    Attributes:
        proposal: The id of its proposal.
        proposer: The participant that proposed it.
        tool: The tool.
        before: The rule that allowed it.
        verdict: The verdict of today.
        rule: The rule of today.
        lacking: A rule that would allow it, did it name some arguments; empty: there is none.
        unnamed: Those arguments.
    """

    proposal: str
    proposer: str
    tool: str
    before: str
    verdict: Verdict
    rule: str
    lacking: str
    unnamed: tuple[str, ...]


class AllowedCalls:
    """The calls that rules allowed, as fulfilling requests tell it, and what a policy says of them.

    Attributes:
        count: Calls that were allowed.
        turned: Those that the policy does not allow, oldest first.
        turned_count: Their number.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # Each allow, as it would be if it named all arguments.
        self._open = [
            (name, rule, Policy([replace(rule, others="any")]))
            for rule, name in named_rules(policy)
            if isinstance(rule, AllowRule) and rule.others_free is not None
        ]
        self.count = self.turned_count = 0
        self.turned: list[TurnedCall] = []

    def add(self, envelope: Envelope) -> None:
        """Take the next envelope of the space's journal in."""
        if envelope.kind != kinds.MCP_REQUEST or not envelope.correlation:
            return
        sent = payloads.read_call(envelope.payload)
        told = read_told_rule(sent.params)
        proposer = sent.meta.get(payloads.PROPOSER)
        if told is None or told.verdict != Verdict.ALLOW or not isinstance(proposer, str):
            return
        self.count += 1
        target = {payloads.TARGET: envelope.to[0]} if envelope.to else {}
        call = msgspec.structs.replace(sent, params={**sent.params, payloads.META: target})
        found = self._policy.decide(call, proposer)
        if found.verdict is Verdict.ALLOW:
            return
        self.turned_count += 1
        if len(self.turned) < MAX_TURNED:
            lacking, unnamed = self._lacking(call, proposer)
            self.turned.append(
                TurnedCall(
                    envelope.correlation[0],
                    proposer,
                    call.name or call.method,
                    told.name,
                    found.verdict,
                    found.rule,
                    lacking,
                    unnamed,
                )
            )

    def _lacking(self, call: Call, proposer: str) -> tuple[str, tuple[str, ...]]:
        """The first rule that would allow a call, did it name arguments that it has, and these."""
        if call.method == TOOL_CALL:
            for name, rule, policy in self._open:
                if policy.decide(call, proposer).verdict is Verdict.ALLOW:
                    free = rule.named.union(rule.others_free or ())
                    return name, tuple(sorted(call.arguments.keys() - free))
        return "", ()


MAX_SAMPLES: Final = 3

MAX_SLIPS: Final = 8
"""Letters of which one is left out in a text that is like what a pattern takes."""

_WILDCARD: Final = re.compile(r"\*+|\?|\[[^]]*\]|\{[^}]*\}")

_FILLS: Final = ("a", "a/b", ".a", "A-1", "../a", "a b", "")
"""Texts in place of a wildcard: those that the two readings take differently are among them."""


_LINES: Final = ("{}", "{} b", "{} && a", "{} > b", "x{}", "sudo {}", "{} $(a)", "/bin/{}")
"""Lines with a command in them: those that an allow and a deny take differently are among them."""


class Sample(NamedTuple):
    """Texts that a pattern takes, and texts like them that it does not."""

    taken: tuple[str, ...]
    left: tuple[str, ...]

    def __str__(self) -> str:
        said = [f"takes {_listed(self.taken)}"] if self.taken else []
        said += [f"not {_listed(self.left)}"] if self.left else []
        return "; ".join(said)


def samples_of(policy: Policy) -> Iterator[tuple[str, str, Sample]]:
    """The name of a rule, one of its patterns in words, and its samples, for each that has some."""
    for rule, name in named_rules(policy):
        reading = Reading.NARROW if isinstance(rule, AllowRule) else Reading.WIDE
        given = [("tool", rule.tool)]
        for arguments in as_patterns(rule.arguments):
            if isinstance(arguments, Mapping):
                given += arguments.items()
        for key, value in given:
            patterns = [each for each in as_patterns(value) if isinstance(each, str)]
            if patterns and not any(map(is_regex, patterns)):
                sample = sample_of(patterns, reading)
                yield name, f"{key} {_listed(patterns)}", sample
        lines = [str(each) for each in as_patterns(rule.shell)]
        if lines and not any(map(is_regex, lines)) and load_parser() is not None:
            yield name, f"shell {_listed(lines)}", _sample_of_lines(rule, lines)


def _sample_of_lines(rule: PolicyRule, patterns: list[str]) -> Sample:
    """The samples of a rule about command lines: what it alone makes of them."""
    tool = rule.tool if isinstance(rule.tool, str) and not _WILDCARD.search(rule.tool) else "Bash"
    alone = RuleSet([rule])
    lines = [[form.format(_fill_in(each, "a").strip()) for form in _LINES] for each in patterns]

    def takes(line: str) -> bool:
        call = call_from(tool, {"command": line}, target="a")
        return bool(alone.find_matching(call, "a"))

    return _sample(lines, takes)


def sample_of(patterns: list[str], reading: Reading) -> Sample:
    """The samples of patterns of which one is enough."""
    texts = [_texts_like(each.removeprefix("!")) for each in patterns]
    return _sample(texts, compile_pattern(patterns, reading=reading).matches)


def _sample(texts: Iterable[Iterable[str]], takes: Callable[[str], bool]) -> Sample:
    """The first texts of several patterns that are taken, and that are left."""
    # Each pattern in turn, so that every one of a list is among the samples.
    turns = chain.from_iterable(zip_longest(*texts))
    matched = {text: takes(text) for text in turns if text is not None}
    taken = [text for text in matched if matched[text]]
    left = [text for text in matched if text and not matched[text]]
    return Sample(tuple(taken[:MAX_SAMPLES]), tuple(left[:MAX_SAMPLES]))


def _texts_like(pattern: str) -> Iterator[str]:
    if not _WILDCARD.search(pattern):
        yield pattern
    else:
        for fill in _FILLS:
            yield _fill_in(pattern, fill)
    plain = _fill_in(pattern, "a")
    yield from (plain[1:], f"x{plain}", f"{plain}x", plain[:-1], plain.swapcase())
    # Slips of the pen, for a pattern that takes what is behind it and any case.
    yield from (plain[:at] + plain[at + 1 :] for at in range(1, min(len(plain) - 1, MAX_SLIPS)))


def _fill_in(pattern: str, fill: str) -> str:
    return _WILDCARD.sub(lambda found: _filled(found[0], fill), pattern)


def _filled(wildcard: str, fill: str) -> str:
    """A text for a wildcard: a choice and a set have their own."""
    if wildcard[0] in "{[":
        return wildcard[1:-1].split(",")[0] if wildcard[0] == "{" else wildcard[1]
    return fill[:1] if wildcard == "?" else fill


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(repr(each) for each in texts)
