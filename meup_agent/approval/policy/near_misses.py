"""Near misses: rules that would have held a call back, were something a little otherwise.

A rule that names a tool, a participant or an argument which is not there, and which differs from
one that is there by a letter, is more probably mistyped than about another one. A rule that looks
at an argument for which the tool may take a default of its own may be about the call as it will
run. An allow that comes behind such a rule is not believed: people decide.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from meup_agent.approval.policy.rules import AllowRule, as_patterns
from meup_agent.errors import printable
from meup_agent.protocol.capability.patterns import Pattern as WidePattern
from meup_agent.protocol.capability.patterns import compile_path, compile_pattern, is_path, written
from meup_agent.protocol.capability.reading import (
    CALL_WORK,
    NODE_WORK,
    Exhausted,
    Reading,
    WorkBudget,
    fold_text,
)
from meup_agent.protocol.capability.strings import (
    StringMatch,
    compile_glob,
    is_glob,
    plain_beginnings,
    split_negation,
)

if TYPE_CHECKING:
    from meup_agent.approval.policy.argument_schema import ArgumentSchema
    from meup_agent.approval.policy.rule_set import RuleSet
    from meup_agent.approval.policy.rules import Pattern, PolicyRule
    from meup_agent.protocol.wire.payloads import Call

LEAST_CHARS: Final = 3
"""Characters of a name that is compared: of two letters most are one letter apart."""

MAX_COMPARED: Final = 256
"""Characters of a name that is compared; what was compared is kept, and strangers choose names."""

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_NUMBER: Final = re.compile(r"-?[0-9]|-$")
_NO_SIGNS: Final = re.compile(r"[-_.\s]")

_WILDCARDS: Final = re.compile(r"[*?\\]+|\[.+\]|\{.+\}")


_OPENING: Final = ("patternProperties", "allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if")
"""Keywords of a schema by which it may take arguments that it does not name."""


class KnownNames(NamedTuple):
    """The names that are there, with which those of a rule are compared.

    Attributes:
        tools: The tools of the call's executor.
        arguments: The arguments that the schema of the called tool names, with the values that it
            lists for each, if it lists any.
        participants: The participants that are present.
        is_closed: True if the schema takes no other arguments than it names, as far as it says.
        unsure: The arguments for which the schema may have a default, or may have another.
    """

    tools: Collection[str] = ()
    arguments: Mapping[str, Sequence[Any]] = MappingProxyType({})
    participants: Collection[str] = ()
    is_closed: bool = False
    unsure: Collection[str] = ()


def known_names_of(
    schema: ArgumentSchema, tools: Collection[str], participants: Collection[str]
) -> KnownNames:
    """KnownNames of a call of a tool with some schema."""
    is_closed = schema.root.get("additionalProperties") in (None, False) and not any(
        key in schema.root for key in _OPENING
    )
    return KnownNames(tools, schema.named(), participants, is_closed=is_closed)


def find_near_miss(
    policy: RuleSet, before: int, call: Call, proposer: str, around: KnownNames
) -> str:
    """The first rule that nearly holds a call back, in words; empty: there is none.

    Args:
        policy: The policy.
        before: The number of the rule that allows the call.
        call: The call.
        proposer: Its proposer.
        around: The names that are there.
    """
    held = [
        (name, rule)
        for name, rule in zip(policy.names[:before], policy.rules, strict=False)
        if not isinstance(rule, AllowRule)
    ]
    if held and max(map(len, (call.name, call.target or "", proposer))) > MAX_COMPARED:
        return f"a name of it is too long to be compared with those of the rule {held[0][0]}"
    work = WorkBudget(call.arguments)
    for name, rule in held:
        try:
            if doubt := _doubt_rule(rule, call, proposer, around, work):
                return f"the rule {name} is before it, and {doubt}"
        except Exhausted:
            return f"comparing it with the rule {name} takes too much work"
    return ""


def _doubt_rule(
    rule: PolicyRule, call: Call, proposer: str, around: KnownNames, work: WorkBudget
) -> str:
    """The doubt whether a rule is about a call, in words; empty: there is none."""
    wrong = _wrong_name(rule, call, proposer, around)
    if wrong is None:
        return ""
    if wrong := wrong or _wrong_argument(rule, call, around, work):
        return f"names {printable(wrong[:64])!r}, which is not there; perhaps it is mistyped"
    if unsure := _unsure_argument(rule, around.unsure, work):
        return (
            f"looks at {printable(unsure[:64])!r}, for which the tool may have a default of its own"
        )
    return ""


def _wrong_name(rule: PolicyRule, call: Call, proposer: str, around: KnownNames) -> str | None:
    """The name that is nearly one of the call; empty: all are; ``None``: it is about others."""
    near = ""
    for given, name, known in (
        (rule.tool, call.name, around.tools),
        (rule.target, call.target, around.participants),
        (rule.proposer, proposer, around.participants),
    ):
        if given is None:
            continue
        wrong = _compare(given, name or "", known)
        if wrong is None and given is rule.tool and call.target:
            # An inbox shows a tool behind its executor, as `files.read`.
            wrong = _without_executor(given, call.target, name or "", known)
        if wrong is None or (wrong and near):
            return None
        near = near or wrong
    return near


def _unsure_argument(rule: PolicyRule, unsure: Collection[str], work: WorkBudget) -> str:
    """An unsure argument that a rule looks at."""
    for key in chain(*as_patterns(rule.arguments)) if unsure else ():
        if is_path(key):
            return next(iter(unsure))
        work.spend(NODE_WORK * len(unsure))
        found = next((name for name in unsure if _is_match(key, name)), None)
        if found is not None:
            return found
    return ""


def _compare(given: Pattern, name: str, known: Collection[str]) -> str | None:
    """The pattern that is near a name; empty: one takes it, or may; ``None``: none is near."""
    near = None
    for pattern in as_patterns(given):
        # No name that begins so could be mistyped.
        if pattern.startswith(("!", "/")) or _is_match(pattern, name):
            return ""
        if _is_near(pattern, name) and not any(_is_match(pattern, each) for each in known):
            near = pattern
    return near


def _without_executor(given: Pattern, target: str, name: str, known: Collection[str]) -> str | None:
    """The pattern that takes a tool behind its executor's name."""
    pattern: str
    for pattern in as_patterns(given):
        for sign in "./:":
            cut = pattern.removeprefix(f"{target}{sign}")
            is_cut = cut != pattern and cut and _is_match(cut, name)
            if is_cut and not any(_is_match(pattern, each) for each in known):
                return pattern
    return None


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> StringMatch:
    return compile_glob(pattern, Reading.WIDE)[0]


@lru_cache(maxsize=4096)
def _is_match(pattern: str, name: str) -> bool:
    if is_glob(pattern):
        return _matcher(pattern)(name, WorkBudget(name))
    return fold_text(pattern) == fold_text(name)


@lru_cache(maxsize=4096)
def _is_near(pattern: str, name: str) -> bool:
    """True if a pattern that does not match a name would, with one letter otherwise."""
    if not is_glob(pattern):
        # The star of `write_*` may be lost, or be another letter.
        cut = [each for each in (pattern, pattern[:-1]) if each and not each[-1].isalnum()]
        return is_one_off(pattern, name) or any(_begins(name, each) for each in cut)
    head, *_, tail = _WILDCARDS.split(pattern)
    if len(tail) > 1:
        sizes = range(len(tail) - 1, len(tail) + 2)
        ends = any(is_one_off(tail, name[-size:]) for size in sizes if size)
        ends = ends and (not head or _begins(name, head))
        return ends or (name.endswith(tail) and _begins_nearly(name, head))
    return _begins(name, head) or _begins_nearly(name, head)


def _begins(name: str, head: str) -> bool:
    return len(head) >= LEAST_CHARS and name.startswith(head)


def _begins_nearly(name: str, head: str) -> bool:
    sizes = range(len(head) - 1, len(head) + 2)
    return any(is_one_off(head, name[:size]) for size in sizes if size > 0)


def _wrong_argument(rule: PolicyRule, call: Call, around: KnownNames, work: WorkBudget) -> str:
    """The name or the value of an argument that is nearly one of the call, or cannot be one."""
    # A glob may be about other tools, which have such an argument.
    is_exact = isinstance(rule.tool, str) and rule.tool == call.name
    for each in as_patterns(rule.arguments):
        for key, pattern in each.items():
            if _is_other_type(pattern, _members_of(call.arguments, key, work), work):
                return f"{key}: {pattern}"
            if key in around.arguments:
                known = around.arguments[key]
                if key in call.arguments and any(
                    _is_near_value(one, call.arguments[key], known) for one in _flat(pattern)
                ):
                    return f"{key}: {pattern}"
            elif is_exact and around.is_closed and _PLAIN_KEY.fullmatch(key):
                return str(key)
            else:
                # A tool names as many as its server likes.
                work.spend(NODE_WORK * len(around.arguments))
                others = (name for name in around.arguments if name not in each)
                if any(is_one_off(key, name) for name in others):
                    return str(key)
    return ""


def _is_near_value(pattern: Any, value: Any, known: Sequence[Any]) -> bool:
    """True if a value is meant that is of another type, or is written with other case or space.

    Or with another letter, where the schema lists the values, and the pattern is none of them.
    """
    scalars = str | int | float
    if not isinstance(pattern, scalars) or not isinstance(value, scalars):
        return False
    mine, theirs = str(pattern), str(value)
    if len(mine) > MAX_COMPARED or len(theirs) > MAX_COMPARED:
        return False
    if type(pattern) is type(value) and mine == theirs:
        return False
    if _letters(mine) == _letters(theirs):
        return True
    return bool(known) and pattern not in known and is_one_off(mine, theirs)


def _is_other_type(pattern: Any, values: Iterable[Any], work: WorkBudget) -> bool:
    """True if a pattern would take one of some values, were it of another type.

    A number, or true or false, that is written as a text, or the other way round; in lists, too.
    """
    patterns = [each for each in _flat(pattern) if not isinstance(each, str) or _may_be_other(each)]
    pending = [*values] if patterns else []
    while pending:
        each = pending.pop()
        work.spend(NODE_WORK)
        if isinstance(each, list):
            pending += cast("list[object]", each)
        elif any(_takes_other_type(one, each, work) for one in patterns):
            return True
    return False


def _flat(pattern: Any) -> Iterator[Any]:
    if isinstance(pattern, list | tuple):
        for each in cast("Sequence[Any]", pattern):
            yield from _flat(each)
    else:
        yield pattern


def _takes_other_type(pattern: Any, value: Any, work: WorkBudget) -> bool:
    if isinstance(pattern, Mapping):
        members = cast("Mapping[str, Any]", pattern).items()
        return isinstance(value, dict) and any(
            _is_other_type(wanted, _members_of(cast("dict[str, Any]", value), key, work), work)
            for key, wanted in members
        )
    if isinstance(pattern, str):
        if not isinstance(value, int | float):
            return False
        text = written(value)
        work.spend(CALL_WORK + len(text))
        wide = _wide(pattern)
        return wide.matches(text) and not wide.matches(value)
    if isinstance(pattern, int | float) and isinstance(value, str):
        return written(pattern) in work.plain_forms(value)
    return False


def _members_of(value: dict[str, Any], key: str, work: WorkBudget) -> Iterable[object]:
    """The values in an object at which a key of a pattern looks."""
    if is_path(key):
        return compile_path(key, "", Reading.WIDE).select(value, work)
    if is_glob(key):
        return (each for name, each in value.items() if _matcher(key)(name, work))
    return work.members(value).get(fold_text(key), ())


@lru_cache(maxsize=4096)
def _may_be_other(pattern: str) -> bool:
    """True if a number, or true or false, may be written as a text that a pattern takes."""
    body, is_negated = split_negation(pattern, "")
    if is_negated:
        return False  # it takes whatever is not text
    beginnings = plain_beginnings(body) or ("",)
    return any(
        _NUMBER.match(each) or any(word.startswith(each) for word in ("true", "false"))
        for each in beginnings
    )


@lru_cache(maxsize=1024)
def _wide(pattern: str) -> WidePattern:
    return compile_pattern(pattern, reading=Reading.WIDE)


def _letters(text: str) -> str:
    """A text without what a reader does not see, or takes for the same."""
    plain = unicodedata.normalize("NFKC", text).casefold().strip()
    return "".join(each for each in plain if unicodedata.category(each) not in ("Cf", "Cc"))


def is_one_off(one: str, other: str) -> bool:
    """True if two names differ by a letter that is missing, too many or another, or by its case.

    Or by two that changed places. Digits number names of one kind, and are not mistypes of others.
    """
    if one == other or min(len(one), len(other)) < LEAST_CHARS:
        return False
    if _NO_SIGNS.sub("", one).casefold() == _NO_SIGNS.sub("", other).casefold() != "":
        return True  # as delete-file, delete_file and deleteFile
    if abs(len(one) - len(other)) > 1:
        return False
    start = _common(one, other)
    one, other = one[start:], other[start:]
    end = _common(one[::-1], other[::-1])
    one, other = one[: len(one) - end], other[: len(other) - end]
    if len(one) <= 1 and len(other) <= 1:
        return not (one.isdigit() and other.isdigit())
    return len(one) == 2 and one == other[::-1]


def _common(one: str, other: str) -> int:
    """The number of characters with which both begin."""
    pairs = enumerate(zip_longest(one, other))
    return next((at for at, (a, b) in pairs if a != b), len(one))
