"""Suggested rules about command lines, of what people decided about lines.

An allow names the commands that were approved, word by word; only of programs that read, and were
approved in many forms, it takes any words. A deny names a program, or its first word, of which
nothing was approved. A command stands in no allow if a line with it was not approved.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from meup_agent.approval.policy.rules import AllowRule, DenyRule, PolicyRule
from meup_agent.approval.shell.line import KEYS, CommandLine, SimpleCommand, line_of
from meup_agent.approval.shell.patterns import FREE_KEYS

MAX_FORMS: Final = 5
"""Forms of one command that a rule lists; of more it takes none, or all where it only reads."""

MAX_COMMANDS: Final = 50
"""Commands that one rule lists, those that were approved most."""

_WORD: Final = re.compile(r"[A-Za-z0-9_.,@:+=/-]+")
"""Words that mean only themselves as a pattern."""

_READERS: Final = frozenset(
    [
        *("ls", "cat", "head", "tail", "grep", "rg", "wc", "pwd", "stat", "file", "tree", "du"),
        *("df", "diff", "cmp", "cut", "which", "basename", "dirname", "realpath", "nl", "sort"),
        *("git status", "git log", "git diff", "git show", "git blame", "git ls-files"),
        *("git rev-parse", "git grep", "git describe", "git shortlog"),
    ]
)
"""Commands that only read; what of their options writes or runs, no allow takes by a star."""


_WIDENING: Final = re.compile(
    r"sandbox|danger|escalat|elevat|privileg|permission|bypass|sudo|unsafe|insecure"
    r"|skip_?(?:check|verif|valid)|no_?verify|^force$",
    re.IGNORECASE,
)
"""Parts of an argument's name by which a call may do more: ``dangerouslyDisableSandbox``."""


def may_widen(name: str) -> bool:
    """True for the name of an argument that no rule is to leave free."""
    return _WIDENING.search(name) is not None


class LineDecision(NamedTuple):
    """A decision about a call that may have a command line.

    Attributes:
        arguments: The call's.
        is_cut: Its command line is not here as a whole.
        reason: The reason of a rejection that is evidence for a deny; else empty.
    """

    arguments: Mapping[str, Any]
    is_cut: bool
    reason: str = ""

    @property
    def line(self) -> CommandLine | None:
        """Its line; ``None``: it has none that is understood as a whole."""
        found = None if self.is_cut else line_of(self.arguments)
        return None if found is None or found.unclear or found.odd or found.is_blind else found

    @property
    def text(self) -> str:
        """The text of it, in small letters."""
        return " ".join(str(self.arguments.get(key, "")) for key in KEYS).casefold()


def shell_rules(
    tool: str,
    approved: Sequence[LineDecision],
    others: Sequence[LineDecision],
    least: int,
    who: Mapping[str, Any],
) -> Iterator[PolicyRule]:
    """The rules about the command lines of a tool, those that deny first.

    Args:
        tool: The tool.
        approved: What people approved.
        others: What was not approved.
        least: Decisions that speak for a rule at the least.
        who: Proposer and target, of an allow.
    """
    yield from _denials(tool, approved, others, least)
    if any(not isinstance(each.arguments.get(key, ""), str) for each in others for key in KEYS):
        return  # lists of words are not kept
    held, unread = set[str](), ""
    is_cut = any(each.is_cut for each in others)
    for each in others:
        if each.line is None:
            unread += f"\n{each.text}"
        else:
            held |= {key for command in each.line.commands for key in _keys(command)}
    counts, forms = Counter[str](), dict[str, dict[str, int]]()
    named: set[str] = set()
    for each in approved:
        line = each.line
        if line is None or line.redirections or any(map(may_widen, each.arguments)):
            continue
        named |= each.arguments.keys() - FREE_KEYS - {*KEYS}
        for command in {*line.commands}:
            form, keys = _form(command), _keys(command)
            if form and keys and keys[0].split()[0] not in unread and not held & {keys[-1]}:
                counts[keys[-1]] += 1
                forms.setdefault(keys[-1], {}).setdefault(form, 0)
                forms[keys[-1]][form] += 1
    patterns: list[str] = []
    for key, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        if count < least:
            break
        said = sorted(forms[key])
        if len(said) <= MAX_FORMS:
            patterns += said
        elif key in _READERS and not is_cut:  # what was not approved may have had it behind the cut
            patterns.append(f"{key} *")
    if patterns and all(map(_WORD.fullmatch, named)):
        yield AllowRule(tool, shell=patterns[:MAX_COMMANDS], others=sorted(named) or None, **who)


def _denials(
    tool: str, approved: Sequence[LineDecision], others: Sequence[LineDecision], least: int
) -> Iterator[DenyRule]:
    good = {key for each in approved for key in _all_keys(each)}
    reasons: dict[str, Counter[str]] = {}
    for each in others:
        line = each.line
        # Of a line of several it is not known which one was meant.
        if not each.reason or line is None or len(line.commands) != 1:
            continue
        for key in _keys(line.commands[0]):
            reasons.setdefault(key, Counter())[each.reason] += 1
    denied: set[str] = set()
    for key, found in sorted(reasons.items()):
        if found.total() >= least and key not in good and key.split()[0] not in denied:
            denied.add(key)
            yield DenyRule(tool, shell=key, reason=found.most_common(1)[0][0])


def _all_keys(each: LineDecision) -> Iterable[str]:
    line = each.line
    if line is None:  # it may run anything that it says
        return each.text.split()
    return [key for command in line.commands for key in _keys(command)]


def _keys(command: SimpleCommand) -> list[str]:
    """The program of a command, and it with the word behind; none where they are not plain."""
    words = [each.text or "" for each in command.words[:2]]
    if not words or command.assignments or not _WORD.fullmatch(words[0]):
        return []
    has_second = len(words) > 1 and _WORD.fullmatch(words[1]) and words[1][0].isalpha()
    return [words[0], " ".join(words)] if has_second and "/" not in words[1] else [words[0]]


def _form(command: SimpleCommand) -> str:
    """A command as a pattern that takes it alone; empty where there is none."""
    words = [each.text or "" for each in command.words]
    is_plain = words and not command.assignments and all(map(_WORD.fullmatch, words))
    return " ".join(words) if is_plain else ""
