"""Samples for the patterns of rules: texts that one takes, and texts like them that it does not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from meup_agent.approval.policy.cases import call_from
from meup_agent.approval.policy.rule_set import RuleSet
from meup_agent.approval.policy.rules import AllowRule, PolicyRule, as_patterns
from meup_agent.approval.shell.line import load_parser
from meup_agent.protocol.capability.patterns import compile_pattern
from meup_agent.protocol.capability.reading import Reading
from meup_agent.protocol.capability.strings import is_regex

if TYPE_CHECKING:
    from meup_agent.approval.policy.decider import Policy

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
    for rule, name in zip(policy.rules, policy.names, strict=True):
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
    turns = [[form.format(_fill_in(each, "a").strip()) for form in _LINES] for each in patterns]
    texts = [text for turn in zip(*turns, strict=True) for text in turn]
    matched = {
        text: bool(alone.find_matching(call_from(tool, {"command": text}, target="a"), "a"))
        for text in texts
    }
    taken = [text for text in matched if matched[text]]
    left = [text for text in matched if not matched[text]]
    return Sample(tuple(taken[:MAX_SAMPLES]), tuple(left[:MAX_SAMPLES]))


def sample_of(patterns: list[str], reading: Reading) -> Sample:
    """The samples of patterns of which one is enough."""
    compiled = compile_pattern(patterns, reading=reading)
    # Each pattern in turn, so that every one of a list is among the samples.
    turns = [list(_texts_like(each.removeprefix("!"))) for each in patterns]
    texts = dict.fromkeys(
        turn[at] for at in range(max(map(len, turns))) for turn in turns if at < len(turn)
    )
    taken = [text for text in texts if compiled.matches(text)]
    left = [text for text in texts if text and not compiled.matches(text)]
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
