"""Policy files: YAML, read whole or refused whole, with the place of a mistake, and findings."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from meup_agent.approval.policy.decider import Policy
from meup_agent.approval.policy.rules import (
    RULES,
    AllowRule,
    AskRule,
    DenyRule,
    LimitRule,
    PeopleRule,
    PolicyRule,
    RuleSet,
    as_patterns,
    beginnings_of,
    is_choice_without_wildcard,
    named_rules,
    plain_value,
    suggest,
)
from meup_agent.approval.shell.line import KEYS, load_parser
from meup_agent.approval.shell.patterns import starts_anything
from meup_agent.errors import ConfigurationError, explain_os_error, printable
from meup_agent.protocol.capability.patterns import (
    Reading,
    compile_pattern,
    covers_pattern,
    descendants,
    fold_text,
    is_glob,
    is_regex,
)
from meup_agent.protocol.wire.payloads import as_list, is_object

_WILDCARDS: Final = frozenset("*?[]{}!/")

_HARD: Final = _WILDCARDS - {"*", "?"}
"""Signs of a pattern that is compared with no other one."""

_SET: Final = re.compile(r"\[[^]]*\]")
_CHOICE: Final = re.compile(r"\{([^}]*)\}")

_TOKENS: Final = re.compile(r"\\.|\[(?:\\.|[^]])*\]|.", re.DOTALL)
"""Parts of a regular expression: an escape, a set, or a character."""

MAX_COMPARED_CHARS: Final = 200
"""Characters of two globs that are held against one another: the comparison is a recursion."""

NEW_NAMES: Final = ("q", "zx7_new-tool.v2", "Delete")
"""Names of tools that no author of a policy thought of; a narrow pattern misses some of them."""

MIN_FIXED: Final = 2
"""Letters and digits that a glob which is narrow enough says."""


Level = Literal["error", "warning", "hint"]


class Finding(NamedTuple):
    """A finding: an error is to be changed, a warning to be looked at; a hint is only told."""

    level: Level
    text: str


def find_unreachable(policy: RuleSet) -> Iterator[Finding]:
    """Rules that the rules before them leave nothing."""
    rules, names = policy.rules, policy.names
    before = [
        [(each, each.pattern) for each in _alternatives(rule, by_tool=False)] for rule in rules
    ]
    for index, rule in enumerate(rules):
        if isinstance(rule, LimitRule) and rule in rules[:index]:
            same = names[rules.index(rule)]
            yield Finding("warning", f"{names[index]}: {same} says the same; take one of them out")
            continue
        taken = [
            _taken_by(one, {n: before[n] for n in _find_beside(one, policy) if n < index})
            for one in _alternatives(rule)
        ]
        if None in taken:
            continue
        first = min(number for number in taken if number is not None)
        earlier = rules[first]
        said = f"{names[index]}: it can never match, since {names[first]} takes all that it would"
        level: Level = "warning"
        if earlier.verdict != rule.verdict:
            level = "error"
            said += f", and says {earlier.verdict} where it says {rule.verdict}"
        yield Finding(level, f"{said}; move it before that, or take it out")


def _find_beside(rule: PolicyRule, policy: RuleSet) -> list[int]:
    """The numbers of rules whose tools begin as those of a rule do: no other takes all of them."""
    return policy.tool_index.find_any(beginnings_of(rule.pattern.get("tool")))


def _taken_by(
    rule: PolicyRule, before: Mapping[int, Sequence[tuple[PolicyRule, Mapping[str, object]]]]
) -> int | None:
    """The number of the rule that takes all that one alternative of a rule behind it matches."""
    wanted, named = rule.pattern, rule.named
    for number, alternatives in before.items():
        for each, pattern in alternatives:
            if isinstance(each, LimitRule):
                continue
            if each.reads_line and isinstance(each, AllowRule) and not isinstance(rule, AllowRule):
                continue  # what holds back is found in lines that the allow leaves
            reading = Reading.WIDE if _outweighs(each, rule) else Reading.NARROW
            if _allows_others(each, named) and _covers(pattern, wanted, reading):
                return number
    return None


def _outweighs(before: PolicyRule, rule: PolicyRule) -> bool:
    """True if nothing that a rule says counts where one before it says something."""
    if isinstance(before, PeopleRule):
        return isinstance(rule, AllowRule | AskRule)
    return isinstance(before, DenyRule)


def _allows_others(rule: PolicyRule, names: Collection[str]) -> bool:
    """False for an allow of calls that have no arguments of some names."""
    if not isinstance(rule, AllowRule) or rule.others_free is None:
        return True
    return rule.named.union(rule.others_free).issuperset(names)


def _alternatives(rule: PolicyRule, *, by_tool: bool = True) -> list[PolicyRule]:
    """The rule taken apart by its tools and arguments: they may be taken by different rules."""
    tools = as_patterns(rule.tool) if by_tool else [rule.tool]
    arguments = as_patterns(rule.arguments)
    return [
        replace(rule, tool=one, arguments=each)
        for one in tools or [None]
        for each in arguments or [None]
    ]


def find_contradictions(policy: RuleSet) -> Iterator[Finding]:
    """Pairs of which an allow takes calls that a later rule would have held back.

    An allow of a part of what a rule behind it holds back is an exception: that is told, and not
    even that before a last rule for everything else.
    """
    rules, names = policy.rules, policy.names
    pairs = set[tuple[int, int]]()
    for number, rule in enumerate(rules):
        pairs.update((min(number, each), max(number, each)) for each in _find_beside(rule, policy))
    for number, other in sorted(pairs):
        first, second = rules[number], rules[other]
        if not isinstance(first, AllowRule) or not isinstance(second, PeopleRule | DenyRule):
            continue
        common = _common_tool(first, second)
        if common is None or _differ(first, second):
            continue
        said = (
            f"{names[number]} allows calls of {common!r} that {names[other]}, behind it,"
            f" would {second.verdict}"
        )
        if not _covers(second.pattern, first.pattern, Reading.WIDE):
            level: Level = "error" if isinstance(second, DenyRule) else "warning"
            advice = f"put {names[other]} first, or make {names[number]} narrower"
            yield Finding(level, f"{said}; {advice}")
        elif not _takes_any_tool(second):
            yield Finding("hint", f"{said}: an exception, if it is meant so")


def _covers(pattern: Mapping[str, object], wanted: Mapping[str, object], reading: Reading) -> bool:
    """True if the pattern of a rule takes all that another one does."""
    return all(
        key in wanted
        and covers_pattern(held, wanted[key], reading, of_arguments=key == "arguments")
        for key, held in pattern.items()
    )


def _takes_any_tool(rule: PolicyRule) -> bool:
    return not {"*", "**"}.isdisjoint(as_patterns(rule.tool))


def find_wide(policy: RuleSet) -> Iterator[Finding]:
    """Rules that allow calls of any tool, of every one but some, or of all with some letter."""
    for rule, name in named_rules(policy):
        if not isinstance(rule, AllowRule):
            continue
        if rule.tool is None and not rule.reads_line:
            said = f"{name} is too wide: it allows every tool; name those that are meant"
            yield Finding("error", said)
        for pattern in as_patterns(rule.shell):
            if starts_anything(pattern):
                yield Finding(
                    "error",
                    f"{name} is too wide: {pattern!r} allows any command, or a program that runs"
                    " what it is given; write the commands that are meant",
                )
        for pattern in filter(_is_wide, as_patterns(rule.tool)):
            yield Finding(
                "error",
                f"{name} is too wide: it allows tools that do not exist yet; name those that"
                f" are meant instead of {pattern!r}",
            )


def find_lines_compared_as_text(policy: RuleSet) -> Iterator[Finding]:
    """Patterns of a command line that compare it as text, and rules whose parser is missing."""
    for rule, name in named_rules(policy):
        if rule.reads_line and load_parser() is None:
            yield Finding(
                "warning",
                f"{name}: command lines cannot be read here, so they are asked about; run pip"
                " install 'meup-agent[doors]'",
            )
        for each in as_patterns(rule.arguments) if isinstance(rule, AllowRule) else ():
            for key, pattern in each.items():
                if key in KEYS and any(map(_has_wildcard, as_patterns(pattern))):
                    yield Finding(
                        "warning",
                        f"{name}: {key} is compared as a text, with all that a shell reads in it;"
                        " write shell: for the commands that are meant",
                    )


def _has_wildcard(pattern: object) -> bool:
    return isinstance(pattern, str) and (is_glob(pattern) or pattern.startswith(("!", "/")))


def find_misread(policy: RuleSet) -> Iterator[Finding]:
    """Patterns of arguments that take more than they seem to, or only their own braces."""
    for rule, name in named_rules(policy):
        is_allow = isinstance(rule, AllowRule)
        for value in descendants([rule.pattern.get("arguments")]):
            if not isinstance(value, str):
                continue
            if is_choice_without_wildcard(value):
                yield Finding(
                    "error",
                    f"{name} matches the very text {value!r}, since {{a,b}} is a choice only"
                    " beside a wildcard; write a list, as [one, other]",
                )
            if is_allow and value.startswith("!"):
                yield Finding(
                    "error",
                    f"{name} is too wide: it allows all values but one by {value!r}; write those"
                    " that are meant",
                )
            elif is_allow and is_regex(value) and not _is_anchored(value[1:-1]):
                yield Finding(
                    "error",
                    f"{name} is too wide: {value!r} is found anywhere in a text; write"
                    " /^(…)$/ around it",
                )


def _is_anchored(regex: str) -> bool:
    """True if a regular expression begins with ^ and ends with $, in each of its alternatives."""
    depth, parts = 0, [""]
    for token in _TOKENS.findall(regex):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if token == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += token
    return all(each.startswith("^") and each.endswith("$") for each in parts)


def _is_wide(tool: str) -> bool:
    # Of a choice the shortest, and of a set of letters none, is said for certain.
    said = _CHOICE.sub(lambda found: min(found[1].split(","), key=len), _SET.sub("", tool))
    fixed = sum(letter.isalnum() for letter in said)
    is_glob = not tool.startswith("/") and not _WILDCARDS.isdisjoint(tool)
    matches = compile_pattern(tool).matches
    return (is_glob and fixed < MIN_FIXED) or tool.startswith("!") or all(map(matches, NEW_NAMES))


def _common_tool(first: PolicyRule, second: PolicyRule) -> str | None:
    # Only globs of plain letters are compared: of others a common name is not easily found.
    for one in as_patterns(first.tool):
        for other in as_patterns(second.tool):
            if _HARD.isdisjoint(one + other) and len(one) + len(other) <= MAX_COMPARED_CHARS:
                found = _both(_stars(one), _stars(other))
                if found is not None:
                    return found
    return None


def _stars(glob: str) -> str:
    """A glob as it is widely read, in which a star takes anything."""
    return glob.replace("**", "*").casefold()


@lru_cache(maxsize=4096)
def _both(one: str, other: str) -> str | None:
    """A shortest text that two globs of one segment match."""
    if not one and not other:
        return ""
    first, second = one[:1], other[:1]
    if first != "*" == second:
        return _both(other, one)
    if first == "*":
        skipped = _both(one[1:], other)
        if skipped is not None or not other:
            return skipped
        letter, rest = second, _both(one, other[1:])
    elif first and second and (first == second or "?" in (first, second)):
        letter, rest = second if first == "?" else first, _both(one[1:], other[1:])
    else:
        return None
    return None if rest is None else letter.replace("*", "").replace("?", "x") + rest


def _differ(first: PolicyRule, second: PolicyRule) -> bool:
    """True if the rules ask for different exact values at one place, so no call matches both."""
    mine, theirs = first.pattern, second.pattern
    if isinstance(second.arguments, Mapping) and not any(map(is_glob, first.named)):
        exact = {name for name in second.named if not is_glob(name)}
        if not _allows_others(first, exact):
            return True
    pairs = [(mine.get(key), theirs.get(key)) for key in ("method", "target", "proposer")]
    ours, others = mine.get("arguments"), theirs.get("arguments")
    if is_object(ours) and is_object(others):
        pairs += [(ours[key], others[key]) for key in ours.keys() & others.keys()]
    return any(_apart(one, other) for one, other in pairs)


def _apart(one: object, other: object) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        plain = _WILDCARDS - {"/"}
        if plain.isdisjoint(one) and plain.isdisjoint(other):
            return fold_text(one) != fold_text(other)
        if plain.isdisjoint(one.replace("*", "")) and plain.isdisjoint(other.replace("*", "")):
            return _both(_stars(one), _stars(other)) is None
        return False
    return (
        one is not None
        and other is not None
        and type(one) is type(other)
        and (isinstance(one, bool | int | float) and one != other)
    )


# --- policy files ---

MAX_FILE_BYTES: Final = 1 << 20
"""Bytes of a policy file: five hundred rules take a tenth of it."""

_MOST_BYTES: Final = 1 << 14
"""Bytes of nearly every one: it is read for each decision, and a larger buffer costs more."""

END: Final = "end"
"""The last key of a policy file: with a part of its rules missing, another one might allow more."""

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])", re.ASCII)
_SPANS: Final = frozenset({"ttl", "remind", "every"})


def load_policy(path: str | Path) -> Policy:
    """Read a policy file.

    Raises:
        ConfigurationError: It cannot be read, something in it is unknown, or a rule of it can never
            match; the message says where.
    """
    path = Path(path)
    try:
        return parse_policy(read_file(path))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def read_file(path: Path) -> bytes:
    """The bytes of a file of limited size.

    Raises:
        ConfigurationError: It cannot be read, or is too large.
    """
    with explain_os_error("cannot be read"), path.open("rb") as file:
        raw = file.read(_MOST_BYTES)
        if len(raw) == _MOST_BYTES:
            raw += file.read(MAX_FILE_BYTES + 1 - len(raw))
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigurationError(f"it is larger than {MAX_FILE_BYTES} bytes")
    return raw


def parse_policy(raw: bytes) -> Policy:
    """The policy in the bytes of a file.

    Raises:
        ConfigurationError: A part of it may be missing, or something in it is unknown or wrong.
    """
    from meup_agent.strict_yaml import parse_yaml

    document = parse_yaml(raw, text_keys=True)
    if not raw.endswith(b"\n"):
        raise ConfigurationError("its last line has no end, so a part of it may be missing")
    return read_policy(document)


def read_policy(document: object) -> Policy:
    """The policy of a document, ``{"rules": [{"allow": {…}}, …], "end": True}``.

    Raises:
        ConfigurationError: Something in it is unknown or wrong.
    """
    if not is_object(document) or "rules" not in document:
        raise ConfigurationError("expected the key 'rules'")
    keys = read_keys(document, "", ("rules", END))
    if keys.get(END) is not True or [*keys][-1] != END:
        raise ConfigurationError(
            f"its last key is not '{END}: true', so a part of it may be missing; write that as its"
            " last line"
        )
    rules = as_list(keys["rules"])
    if not rules:
        raise ConfigurationError("rules: expected a list of rules")
    return Policy([_read_rule(each, f"rules[{index}]") for index, each in enumerate(rules)])


def _read_rule(given: object, place: str) -> PolicyRule:
    if not is_object(given) or len(given) != 1:
        raise ConfigurationError(
            f"{place}: expected one of {', '.join(RULES)}, with what it matches behind it"
        )
    [(verdict, body)] = given.items()
    made = RULES.get(str(verdict))
    if made is None:
        raise ConfigurationError(
            f"{place}.{verdict}: unknown key; {suggest(str(verdict), list(RULES))}"
        )
    place = f"{place}.{verdict}"
    if not is_object(body):
        raise ConfigurationError(f"{place}: expected keys and values, as {{tool: name}}")
    values = read_keys(body, place, [each.name for each in fields(made)])
    for key, value in values.items():
        if value is None:
            raise ConfigurationError(f"{place}.{key}: has no value; write one, or take the key out")
        if key in _SPANS:
            values[key] = read_span(value, f"{place}.{key}")
    try:
        rule = made(**values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}.{error}") from None
    if rule.arguments is not None and (name := _without_value(rule.arguments)):
        raise ConfigurationError(
            f"{place}.arguments.{name}: has no value; write one, or take the key out"
        )
    return rule


def read_keys(given: object, place: str, known: Sequence[str]) -> dict[str, Any]:
    """The values of an object by key.

    Raises:
        ConfigurationError: It is not an object, or has a key that is not known.
    """
    if not is_object(given):
        raise ConfigurationError(
            f"{place}: expected the keys {', '.join(known)}".removeprefix(": ")
        )
    for key in given:
        if key not in known:
            where = f"{place}.{key}" if place else str(key)
            raise ConfigurationError(f"{where}: unknown key; {suggest(str(key), known)}")
    return dict(given)


def _without_value(given: object) -> str:
    """The key of an object that has no value, as where its colon was forgotten."""
    if isinstance(given, list | tuple):
        found = (_without_value(each) for each in cast("Sequence[object]", given))
        return next((each for each in found if each), "")
    if not isinstance(given, Mapping):
        return ""
    for key, value in cast("Mapping[object, object]", given).items():
        if value is None:
            return str(key)
        if inner := _without_value(value):
            return f"{key}.{inner}"
    return ""


def rule_to_file(rule: PolicyRule) -> dict[str, Any]:
    """A rule as a file has it: only what was given, and times with their unit."""
    body: dict[str, Any] = {}
    for each in fields(rule):
        value = getattr(rule, each.name)
        if value == each.default and each.name != "never":
            continue
        body[each.name] = _span(value) if each.name in _SPANS else value
    return {str(rule.verdict): plain_value(body)}


def policy_text(rules: Sequence[PolicyRule], note: str = "") -> str:
    """A policy file of some rules, one a line, below a comment; empty without rules."""
    import yaml

    if not rules:
        return ""
    lines = [f"# {note}", "rules:"] if note else ["rules:"]
    for rule in rules:
        said: str = yaml.safe_dump(  # pyright: ignore[reportUnknownMemberType]  # its stubs' `width`
            rule_to_file(rule), default_flow_style=True, sort_keys=False, width=10**9
        )
        lines.append(f"  - {said.strip()}")
    return "\n".join([*lines, f"{END}: true", ""])


def _span(seconds: float) -> str:
    """A time in its largest unit that it fills."""
    for unit, length in reversed(_UNITS.items()):
        if seconds % length == 0 and seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:f}s"


def read_span(given: object, place: str) -> float:
    """The seconds of a span of time as files have it; ConfigurationError for another text."""
    found = _SPAN.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise ConfigurationError(
            f"{place}: expected a number and its unit: 30s, 10m, 1h or 7d, not {given!r}"
        )
    return float(found[1]) * _UNITS[found[2]]


def findings_of(policy: Policy) -> list[Finding]:
    """Findings about a policy that loads: rules that never match, contradict, or are too wide."""
    finders = (
        *(find_unreachable, find_contradictions, find_wide, find_misread),
        find_lines_compared_as_text,
    )
    return [each for find in finders for each in find(policy)]


# --- watched policy ---
# A policy file that is read again when it changes.
#
# The file is read when a decision is made, which costs some 20 µs: a watcher as `watchfiles` tells
# of a change later than that, by a thread, and the time of a file may stay as it was. A program
# that writes it may be half-way through, so a change counts once the text has stood still for a
# while, and until then nothing is allowed.

log = logging.getLogger("meup_agent.approval")

STILL_SECONDS: Final = 0.5
"""Time for which a changed policy file stands still before it counts."""


class NoPolicy:
    """A policy without a file and without rules: everything is asked about."""

    doubt: Final = ""

    def __init__(self) -> None:
        self._policy = Policy([])

    def current(self) -> Policy:
        """The policy, which never changes."""
        return self._policy


class WatchedPolicy:
    """A policy file that is read again when it changes, or refused whole while the old one stays.

    Args:
        path: The file.
        clock: Gives the time in seconds, since any moment.

    Raises:
        ConfigurationError: It does not load at the start.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._refused = ""
        self._raw = read_file(path)
        self._decided: bytes | None = self._raw  # the text that is in force, or was refused
        self._changed: tuple[bytes, float] | None = None  # a change, since it stands so
        self._policy = parse_policy(self._raw)

    def current(self) -> Policy:
        """The policy as the file has it now, or had it when it was good."""
        try:
            self._take_in(self._read())
        except ConfigurationError as error:
            self._changed = None
            said = f"{self._path} is refused, and the policy before it stays: {error}"
            if said != self._refused:
                log.error("%s", printable(said))
            self._refused = said
        return self._policy

    @property
    def doubt(self) -> str:
        """The reason for which the policy allows nothing at the moment; empty: there is none."""
        if self._changed is None:
            return ""
        return f"the file of the rules was changed less than {STILL_SECONDS:g} s ago"

    def _read(self) -> bytes:
        try:
            return read_file(self._path)
        except ConfigurationError:
            self._decided = None  # the text of a new file is decided on anew
            raise

    def _take_in(self, raw: bytes) -> None:
        if raw == self._decided:
            self._changed = None
            return
        now = self._clock()
        if self._changed is None or self._changed[0] != raw:
            self._changed = (raw, now)
        if now - self._changed[1] < STILL_SECONDS:
            return
        self._changed, self._decided = None, raw
        if raw != self._raw:
            if self._raw.startswith(raw):
                raise ConfigurationError(
                    "it is the beginning of the file before it, perhaps cut off"
                )
            self._policy, self._raw = parse_policy(raw), raw
            log.info("%s is read again: %r", self._path, self._policy)
        self._refused = ""
