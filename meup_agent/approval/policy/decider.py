"""Decider: an agent's handler of proposals, which asks a policy and does what it says.

With it stand what it sees before a rule decides: arguments that do not fit the tool's schema, and
calls that a deny or an ask nearly matches.
"""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import unquote
from weakref import WeakKeyDictionary

import anyio
from msgspec.structs import replace

from meup_agent.approval.policy.rules import (
    AllowRule,
    AskRule,
    History,
    LimitCount,
    PassedHistory,
    Pattern,
    PolicyDecision,
    PolicyRule,
    QuorumRule,
    RuleSet,
    Verdict,
    as_patterns,
    deny,
    named_rules,
)
from meup_agent.approval.yeses import list_yeses
from meup_agent.causes import Reason
from meup_agent.client.proposal import Proposal
from meup_agent.client.schema_check import ArgumentChecker, objects_of
from meup_agent.client.space import Space, allowed_words, send_note
from meup_agent.client.tool_changes import digest_of_form, read_mark
from meup_agent.errors import ConfigurationError, MeupError, Refused, printable
from meup_agent.protocol.capability.patterns import (
    CALL_WORK,
    NODE_WORK,
    DefaultedObject,
    Exhausted,
    Reading,
    StringMatch,
    WorkBudget,
    compile_glob,
    compile_path,
    compile_pattern,
    descendants,
    fold_text,
    is_glob,
    is_path,
    plain_beginnings,
    split_negation,
    written,
)
from meup_agent.protocol.capability.patterns import Pattern as WidePattern
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.wire.envelope import encode_leniently
from meup_agent.protocol.wire.payloads import (
    LEFT_TO_OTHERS,
    TOOL_CALL,
    Call,
    as_list,
    as_object,
    edit_call,
    is_list,
    is_object,
    is_refusal,
    one_or_more,
    read_proposal,
    tell_proposer,
)

if TYPE_CHECKING:
    from meup_agent.agent.agent import Agent
    from meup_agent.protocol.wire.scoped_yes import KeptYes


MAX_SCHEMAS_SEEN: Final = 5_000
"""Schemas that are looked at to find the defaults of one call: a hundred times what tools have."""

MAX_STEPS: Final = 500_000
"""Steps to find the defaults of one call, in half a second: one for each member, element or part of
a default, and for each schema that is held against it. A table of 20,000 cells takes 80,000."""

SCHEMA_STEPS: Final = MAX_STEPS // MAX_SCHEMAS_SEEN
"""Steps for each schema that is looked at."""

CHARS_PER_STEP: Final = 50
"""Characters of a default's JSON that are written in one step."""

MAX_LEVELS: Final = 128
"""Levels of a call's defaults: more than a message has, and a schema may refer to itself."""

MAX_REMEMBERED: Final = 1_000
"""Places of a schema of which it is kept what applies there: many elements share one."""

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_PERHAPS: Final = ("anyOf", "oneOf", "if", "then", "else", "not")
_PERHAPS_BY_NAME: Final = ("dependentSchemas", "dependencies")
_OF_MEMBERS: Final = ("additionalProperties", "unevaluatedProperties")
_OF_SOME_ELEMENTS: Final = ("contains", "unevaluatedItems")
_BY_PLACE: Final = ("prefixItems", "items")

_NONE: Final = object()
_UNSURE: Final = object()

_Schema = Mapping[str, Any]


class UnknownDefaults(Exception):
    """A schema is too large, or refers to what is not there, so its defaults are not known."""


class _Applied(NamedTuple):
    """A schema that applies to a value, or may."""

    schema: _Schema
    is_certain: bool


_Applying = list[_Applied]


class ArgumentSchema:
    """The schema of one tool's arguments.

    Attributes:
        root: The schema as the tool has it.
    """

    def __init__(self, schema: _Schema) -> None:
        self.root = schema
        self._has_any = any("default" in each for each in objects_of(schema))
        self._steps_left = 0
        self._known: dict[tuple[tuple[int, bool], ...], _Applying] = {}
        self._defaults: dict[int, tuple[_Applying, Any]] = {}

    def named(self) -> dict[str, list[Any]]:
        """The arguments that it names, and the values that it lists for each, if it lists any."""
        self._steps_left = MAX_STEPS
        try:
            applying = self._expanded([_Applied(self.root, True)], 0)
            names = [*_names(applying)]
            self._take_steps(len(names))
            found: dict[str, list[Any]] = {}
            for name in dict.fromkeys(names):
                self._take_steps(len(applying))
                found[name] = []
                for each, _ in self._expanded(_of_member(applying, name), 1):
                    values = as_list(each.get("enum"))
                    self._take_steps(1 + len(values))
                    found[name] += values
            return found
        except UnknownDefaults:
            return {name: [] for name in as_object(self.root.get("properties"))}

    def fill(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
        """Fill in what a call leaves out, marked; and the arguments that are unsure.

        Of those the schema does not say for certain what they are.

        Raises:
            UnknownDefaults: It cannot be told what its tool takes there.
        """
        if not self._has_any:
            return arguments, frozenset()
        self._steps_left = MAX_STEPS
        root = [_Applied(self.root, True)]
        if not arguments and any(each.get("default") for each, _ in self._expanded(root, 0)):
            raise UnknownDefaults  # some tools take it for arguments that are left out as a whole
        filled, unsure = self._fill_object(arguments, root, 0)
        return filled, frozenset(unsure)

    def _fill_object(
        self, value: dict[str, Any], given: _Applying, level: int
    ) -> tuple[dict[str, Any], set[str]]:
        """An object with its defaults, and the names of its members that are unsure."""
        applying = self._expanded(given, level)
        found, unsure = dict(value), set[str]()
        filled = set(value.filled) if isinstance(value, DefaultedObject) else set[str]()
        names = [*_names(applying), *value]
        self._take_steps(len(applying) + len(names))
        for name in dict.fromkeys(names):
            of_member = _of_member(applying, name)
            if name not in value:
                self._take_steps(len(applying) + len(of_member))
                default = self._default(of_member, level + 1)
                if default is _UNSURE:
                    unsure.add(name)
                if default is _UNSURE or default is _NONE:
                    continue
                found[name] = self._marked(default)
                filled.add(name)
            of_member = [*of_member, *_of_any_member(applying)]
            self._take_steps(len(applying) + len(of_member))
            found[name], is_sure = self._fill_any(found[name], of_member, level + 1)
            if not is_sure:
                unsure.add(name)
        return (DefaultedObject(found, filled) if filled else found), unsure

    def _fill_any(self, value: object, given: _Applying, level: int) -> tuple[Any, bool]:
        """A value with its defaults, and whether all of them are certain."""
        if given and is_object(value):
            filled, unsure = self._fill_object(value, given, level)
            return filled, not unsure
        if not given or not is_list(value):
            return value, True
        applying = self._expanded(given, level)
        elements: list[Any] = []
        are_sure = True
        for index, each in enumerate(value):
            of_element = [*_of_element(applying, index)]
            self._take_steps(1 + len(applying) + len(of_element))
            element, is_sure = self._fill_any(each, of_element, level + 1)
            elements.append(element)
            are_sure = are_sure and is_sure
        # Few tools append what is missing, so nothing is chosen here.
        places = [as_list(each.get(name)) for each, _ in applying for name in _BY_PLACE]
        self._take_steps(sum(1 + len(each) for each in places))
        behind = [
            _Applied(each, True) for some in places for each in _schemas_in(some[len(elements) :])
        ]
        return elements, are_sure and self._default(behind, level + 1) is _NONE

    def _marked(self, value: Any) -> Any:
        """A default, in which no member was given by the call."""
        self._take_steps(1)
        if is_object(value):
            marked = {name: self._marked(each) for name, each in value.items()}
            return DefaultedObject(marked, marked)
        if is_list(value):
            return [self._marked(each) for each in value]
        return value

    def _default(self, given: _Applying, level: int) -> Any:
        """The default of a member that is missing, where there is one, and only one."""
        applying = self._expanded(given, level)
        known = self._defaults.get(id(applying))
        if known is None:
            # The schemas are kept as long as what is known about them.
            known = self._defaults[id(applying)] = applying, self._find_default(applying, level)
        return known[1]

    def _find_default(self, applying: _Applying, level: int) -> Any:
        found: dict[str, list[_Applied]] = {}  # by its JSON: true is not 1
        for each in applying:
            if "default" in each.schema:
                text = json.dumps(each.schema["default"], sort_keys=True, default=str)
                self._take_steps(len(text) // CHARS_PER_STEP)
                found.setdefault(text, []).append(each)
        for same in found.values():
            if len(found) == 1 and any(each.is_certain for each in same):
                return same[0].schema["default"]
        return _UNSURE if found or self._has_below(applying, level, set()) else _NONE

    def _has_below(self, applying: _Applying, level: int, seen: set[int]) -> bool:
        """True if a member of a missing object has a default: its tool may make the object."""
        fresh = [each for each in applying if id(each.schema) not in seen]
        seen.update(id(each.schema) for each in fresh)
        for name in _names(fresh):
            self._take_steps(1 + len(fresh))
            below = self._expanded(_of_member(fresh, name), level + 1)
            if any("default" in each for each, _ in below):
                return True
            if self._has_below(below, level + 1, seen):
                return True
        return False

    # --- the schemas that apply together ---

    def _expanded(self, given: _Applying, level: int) -> _Applying:
        """Schemas with those that they refer to, all of them, and any of which may apply."""
        if level > MAX_LEVELS:
            raise UnknownDefaults
        key = tuple((id(each.schema), each.is_certain) for each in given)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
                self._defaults.clear()
            known = self._known[key] = self._expand(given)
        return known

    def _expand(self, given: _Applying) -> _Applying:
        found: dict[tuple[int, bool], _Applied] = {}
        pending = [*given]
        for schema, is_certain in pending:
            key = (id(schema), is_certain)
            if key in found:
                continue
            self._take_steps(SCHEMA_STEPS)
            found[key] = _Applied(schema, is_certain)
            referred = [self._referred(schema[name]) for name in _REFERENCES if name in schema]
            surely = [*_under(schema, "allOf"), *referred]
            perhaps = [*_under(schema, *_PERHAPS), *_by_name(schema, *_PERHAPS_BY_NAME)]
            pending += [_Applied(each, is_certain) for each in surely]
            pending += [_Applied(each, False) for each in perhaps]
        return [*found.values()]

    def _take_steps(self, count: int) -> None:
        self._steps_left -= count
        if self._steps_left < 0:
            raise UnknownDefaults

    def _referred(self, reference: object) -> _Schema:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise UnknownDefaults
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            return self._anchored(pointer)
        found: object = self.root
        steps = pointer.split("/")[1:]
        self._take_steps(len(steps))
        for step in steps:
            key = step.replace("~1", "/").replace("~0", "~")
            listed = as_list(found)
            if key.isdecimal() and int(key) < len(listed):
                found = listed[int(key)]
            else:
                found = as_object(found).get(key)
        if isinstance(found, bool):
            return {}  # true and false are schemas, too, and have no defaults
        if not is_object(found):
            raise UnknownDefaults
        return found

    def _anchored(self, anchor: str) -> _Schema:
        for each in objects_of(self.root):
            self._take_steps(SCHEMA_STEPS)
            if anchor in (each.get("$anchor"), each.get("$dynamicAnchor")):
                return each
        raise UnknownDefaults


def _schemas_in(values: Iterable[object]) -> Iterator[_Schema]:
    """The schemas among some values; those that are true or false have no defaults."""
    return filter(is_object, values)


def _under(schema: _Schema, *keywords: str) -> Iterator[_Schema]:
    """The schemas behind keywords of one, alone or in a list."""
    for keyword in keywords:
        yield from _schemas_in(one_or_more(schema.get(keyword)))


def _by_name(schema: _Schema, *keywords: str) -> Iterator[_Schema]:
    """The schemas behind keywords of one that have a name each."""
    for keyword in keywords:
        yield from _schemas_in(as_object(schema.get(keyword)).values())


def _names(applying: _Applying) -> Iterator[str]:
    """The members that schemas of an object name."""
    for each, _ in applying:
        yield from as_object(each.get("properties"))


def _of_member(applying: _Applying, name: str) -> _Applying:
    """The schemas of one member by its name."""
    return [
        _Applied(each, is_certain)
        for schema, is_certain in applying
        for each in _schemas_in([as_object(schema.get("properties")).get(name)])
    ]


def _of_any_member(applying: _Applying) -> _Applying:
    """The schemas of members that are known by a pattern, or by none."""
    return [
        _Applied(each, False)
        for schema, _ in applying
        for each in [*_by_name(schema, "patternProperties"), *_under(schema, *_OF_MEMBERS)]
    ]


def _of_element(applying: _Applying, index: int) -> Iterator[_Applied]:
    """The schemas of an element: by its place, or by what it is, or others are not."""
    for schema, is_certain in applying:
        items = schema.get("items")
        first = as_list(schema.get("prefixItems")) or as_list(items)
        if index < len(first):
            items = first[index]
        elif isinstance(items, list):
            items = schema.get("additionalItems")
        yield from (_Applied(each, is_certain) for each in _schemas_in([items]))
        yield from (_Applied(each, False) for each in _under(schema, *_OF_SOME_ELEMENTS))


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
        if is_list(each):
            pending += each
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
        return is_object(value) and any(
            _is_other_type(wanted, _members_of(value, key, work), work) for key, wanted in members
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


# --- decider ---

log = logging.getLogger("meup_agent.approval")

LIST_SECONDS: Final = 5.0
"""Wait for the tools of an executor: without its schema nothing is allowed, and people decide."""

MAX_SCHEMAS: Final = 256
"""Schemas that are kept ready: compiling one takes as long as a hundred decisions."""

MAX_YESES_TRIED: Final = 8
"""Scoped yeses that are tried for one proposal, where each is used up by others just before."""

SCHEMA: Final = "schema"
"""Name of the rule that rejects what does not fit the schema of its tool."""

Held = Callable[[Proposal, Space, PolicyDecision], None]
"""Told of each proposal that is left to people, at once."""


class Shown(NamedTuple):
    """A call as its policy may see it."""

    call: Call
    problem: str = ""  # for which it is rejected, before any rule
    doubt: str = ""  # for which it is not allowed without people
    around: KnownNames = KnownNames()
    form: str = ""  # digest of its tool's form; empty: not known
    is_marked: bool = False  # …which nobody has accepted


class _ReadSchema(NamedTuple):
    """The schema of one tool, ready to be used, and the digest of its form."""

    written: bytes
    form: str
    checker: ArgumentChecker
    arguments: ArgumentSchema


def tell_left(proposal: Proposal, space: Space, decision: PolicyDecision) -> None:
    """Tell a proposer if a call is left to people: of what all may decide, their no is enough."""
    if not proposal.envelope.to:
        is_left = decision.verdict is Verdict.ASK  # and not to those whose votes are counted
        said = tell_proposer(proposal.envelope, LEFT_TO_OTHERS, holds=is_left)
        with failure_logged(proposal):
            send_note(space, said, to=(proposal.proposer,), about=proposal.id)


class Decider:
    """Decides proposals by a policy, with the history of each space.

    Args:
        policy: Gives the policy of the moment.
        held: Told of the proposals that are left to people.
        own_files: Names of the files by which it decides: no rule allows a call that names one.
        doubt: Gives the reason for which no rule of the moment allows anything; empty: there is
            none.
    """

    def __init__(
        self,
        policy: Callable[[], RuleSet],
        *,
        held: Held = lambda proposal, space, decision: None,
        own_files: Collection[str] = (),
        doubt: Callable[[], str] = str,
    ) -> None:
        self._policy = policy
        self._doubt = doubt
        self._held = held
        self._own_files = tuple(own_files)
        self._histories: WeakKeyDictionary[Space, History] = WeakKeyDictionary()
        self._schemas: OrderedDict[tuple[str, str], _ReadSchema] = OrderedDict()
        self._holding: dict[str, RuleSet | None] = {}

    def install(self, agent: Agent) -> None:
        """Register it as the agent's handler of proposals of every method."""
        agent.on_proposal(method="**")(self.handle)
        agent.judge_edits(self.judge_edit)

    async def handle(self, proposal: Proposal, space: Space) -> None:
        """Decide one proposal, and do what was decided."""
        asked = await self.decide(proposal, space)
        decision = asked
        if asked.verdict is Verdict.ASK:
            decision = await self.find_yes(proposal, space, asked) or asked
        log.info(
            "proposal %s of %r: %s by %s%s",
            *(proposal.id, proposal.proposer, decision.verdict, printable(decision.rule)),
            f" ({printable(decision.why)})" if decision.why else "",
        )
        if decision.yes:
            if not await self.use_yes(proposal, space, decision):
                again = await self.decide(proposal, space, again=True)
                if again.verdict in (Verdict.ASK, Verdict.QUORUM):
                    self._leave(proposal, space, again)
            return
        # It is decided elsewhere, or stays pending: people can still decide it.
        with failure_logged(proposal):
            if decision.verdict is Verdict.ALLOW:
                done = await proposal.fulfill(rule=decision.told)
                if is_refusal({"error": done.error}) and proposal.state is ProposalState.PENDING:
                    # Its executor has refused it for what its tool is by now.
                    again = await self.decide(proposal, space, again=True)
                    if again.is_marked and again.verdict is not Verdict.DENY:
                        self._leave(proposal, space, again)
            elif decision.verdict is Verdict.DENY:
                explain = decision.explain or f"The rule {decision.rule} denies this call."
                words = allowed_words(proposal, space, explain)
                await proposal.reject(decision.reason, explain=words, rule=decision.told)
            else:
                self._leave(proposal, space, decision)

    def _leave(self, proposal: Proposal, space: Space, decision: PolicyDecision) -> None:
        """Leave a call to people."""
        self._held(proposal, space, decision)
        if decision.verdict is Verdict.ASK:
            tell_left(proposal, space, decision)

    async def judge_edit(
        self, space: Space, proposal: Proposal, call: Call, rule: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Judge an edited call as the call that it now is; the rule to be told.

        A person, or a program of its own, that edits is asked by that, and may do what is left to
        people. A rule that let the proposal pass may not.

        Raises:
            Refused: The policy does not let it pass.
        """
        proposed = read_proposal(proposal.envelope.payload)
        decision = await self._decide(call, proposal.proposer, space, self._history(space))
        asked = decision.verdict is Verdict.ASK and rule is None
        if decision.verdict is not Verdict.ALLOW and not asked:
            what = printable((proposed.name or proposed.method)[:64])
            raise Refused(
                "policy",
                f"proposal {proposal.id} was not fulfilled: as it was edited, the call of {what!r}"
                f" is not let pass by the rule {decision.rule}",
            )
        return decision.told

    async def decide(
        self, proposal: Proposal, space: Space, *, again: bool = False
    ) -> PolicyDecision:
        """Decide one proposal, and count it; ``again``: without its limits, which it has passed."""
        call = read_proposal(proposal.envelope.payload)
        history = History() if again else self._history(space)
        return await self._decide(call, proposal.proposer, space, history)

    async def find_yes(
        self,
        proposal: Proposal,
        space: Space,
        asked: PolicyDecision,
        kept: list[KeptYes] | None = None,
    ) -> PolicyDecision | None:
        """The decision by a scoped yes that covers a proposal which rules leave to people.

        A yes stands behind all rules that deny, count votes or limit, wherever they are, and in
        place of those that ask; a doubt about an allow is one about it (PROTOCOL 5). Of those that
        are ``kept`` the gateway is asked, where they are not given.
        """
        call = read_proposal(proposal.envelope.payload)
        proposer, target = proposal.proposer, call.target
        permit = call.permit_form(proposer)
        has_form = bool(permit or asked.form) and not asked.is_marked
        if call.method != TOOL_CALL or target is None or not has_form:
            return None
        if kept is None:
            try:
                kept = await list_yeses(space, proposer=proposer, tool=call.name)
            except MeupError as error:
                log.warning("proposal %s: no yes is used: %s", printable(proposal.id), error)
                return None
        covering = [
            each.yes
            for each in kept
            if each.is_active and each.yes.proposal != proposal.id
            if each.yes.covers(call, proposer)
        ]
        policy = self._behind()
        if not covering or policy is None:
            return None
        shown = await self._show(call, proposer, space)
        # From here on nothing waits.
        history = PassedHistory(self._history(space), asked.counted)
        decision = self._decide_shown(shown, call, proposer, history, policy)
        if decision.verdict is not Verdict.ALLOW:
            return None
        for yes in covering:
            if yes.form == (permit or shown.form) and yes.covers(shown.call, proposer):
                counted = [each for each in decision.counted if each not in asked.counted]
                more = replace(decision, counted=tuple(counted))
                self._history(space).record(more, anyio.current_time())
                why = f"{yes.used} of {yes.most} calls were let through before it"
                return replace(
                    asked,
                    verdict=Verdict.ALLOW,
                    rule=yes.name,
                    why=why,
                    yes=yes.id,
                    number=None,
                    policy="",
                    counted=(*asked.counted, *counted),
                )
        return None

    def _behind(self) -> RuleSet | None:
        """The rules that no yes beats, and behind them one that allows every tool's call.

        ``None`` where they are no rule set: a policy is full, or has names as rules without one.
        """
        policy = self._policy()
        if policy.digest not in self._holding:
            holding = [each for each in policy.rules if _stands_before_a_yes(each)]
            try:
                self._holding = {policy.digest: RuleSet([*holding, AllowRule("*")])}
            except ConfigurationError as error:
                log.warning("no yes is used beside this policy: %s", printable(str(error)))
                self._holding = {policy.digest: None}
        return self._holding[policy.digest]

    async def use_yes(self, proposal: Proposal, space: Space, decision: PolicyDecision) -> bool:
        """Carry a proposal out by a scoped yes; ``False``: people decide it.

        Where others have used up its last call meanwhile, or it was ended, the next one is used.
        """
        is_refused = False
        with failure_logged(proposal):
            for _ in range(MAX_YESES_TRIED):
                try:
                    done = await proposal.fulfill(rule=decision.told, yes=decision.yes)
                except Refused as error:
                    holds_no_more = error.details.get("state") in ("unknown", "expired", "used_up")
                    if error.error != "invalid_yes" or not holds_no_more:
                        raise
                    found = await self.find_yes(proposal, space, decision)
                    if found is None:
                        raise
                    decision = found
                    continue
                # Its executor may have refused it for what its tool is by now.
                is_refused = is_refusal({"error": done.error})
                break
        return not is_refused and proposal.state is not ProposalState.PENDING

    async def judge(
        self, call: Call, proposer: str, space: Space, passed: Iterable[LimitCount] = ()
    ) -> PolicyDecision:
        """Judge a call that a person would make of a proposal; no limit counts it.

        One that is full stops it, but for those that the proposal itself has passed.
        """
        history = PassedHistory(self._history(space), passed)
        return await self._decide(call, proposer, space, history)

    def _history(self, space: Space) -> History:
        return self._histories.setdefault(space, History())

    async def _decide(
        self, call: Call, proposer: str, space: Space, history: History
    ) -> PolicyDecision:
        shown = await self._show(call, proposer, space)
        # From here on nothing waits: what is decided is counted before the next one is.
        decision = self._decide_shown(shown, call, proposer, history)
        return replace(decision, form=shown.form, is_marked=shown.is_marked)

    def _decide_shown(
        self,
        shown: Shown,
        call: Call,
        proposer: str,
        history: History,
        policy: RuleSet | None = None,
    ) -> PolicyDecision:
        policy, at = policy or self._policy(), anyio.current_time()
        if shown.problem:
            asked = PolicyDecision(Verdict.ASK, SCHEMA, policy=policy.digest)
            return deny(asked, Reason.INVALID, shown.problem, shown.problem)
        decision = policy.decide(shown.call, proposer, history, at)
        history.record(decision, at)
        if decision.verdict is Verdict.ALLOW:
            doubt = shown.doubt or self._doubt() or find_own_file(shown.call, self._own_files)
            if not doubt and decision.number is not None:
                before = decision.number
                doubt = find_near_miss(policy, before, shown.call, proposer, shown.around)
            if doubt:
                return replace(decision, verdict=Verdict.ASK, why=doubt)
        if decision.verdict is Verdict.QUORUM and call.target is None:
            why = "it does not say who should carry it out, and votes are about one executor"
            return deny(decision, Reason.INVALID, why)
        return decision

    async def _show(self, call: Call, proposer: str, space: Space) -> Shown:
        """Shown part of a call, on which rules decide, with the defaults of its schema."""
        if call.method != TOOL_CALL:
            return Shown(call)
        given = call.params.get("arguments", {})
        if not call.name or not isinstance(given, dict):
            return Shown(call, problem="The call has no tool, or its arguments are not an object.")
        others = sorted(call.beside)
        if others:
            return Shown(call, doubt=f"no rule sees its parameter {others[0][:64]!r}")
        target = call.target
        if target is None:
            # A person may let it pass, and it goes to the only owner: who is denied is denied here.
            owners = set[str]()
            with suppress(MeupError):
                found = await space.offers.find(call.name, timeout=LIST_SECONDS)
                owners = {each.participant for each in found} - {proposer}
            if len(owners) == 1:
                call = edit_call(call, call.arguments, owners.pop())
            return Shown(call, doubt="it does not say who should carry it out")
        if call.asks_permit(proposer):
            # Its proposer runs it itself, and no list has it: all of its input is in the call.
            return Shown(call)
        present = {each.id for each in space.participants} | {space.me}
        if target not in present:
            return Shown(call, doubt="the participant that should carry it out is not present")
        try:
            tools = await space.offers.tools(target, timeout=LIST_SECONDS)
        except MeupError as error:
            return Shown(call, doubt=f"the schema of its tool could not be had: {error}")
        described = [each for each in tools if each.get("name") == call.name]
        if not described:
            return Shown(call, problem=f"{target!r} has no tool {call.name[:64]!r}.")
        if len(described) > 1:
            return Shown(call, doubt="several tools have its name")
        names = frozenset(str(each.get("name")) for each in tools)
        read = self._read_schema(target, described[0])
        around = known_names_of(read.arguments, names, frozenset(present))
        shown = _check_arguments(call, read, around)
        mark = read_mark(described[0])
        if mark is None or not mark.form:
            return shown._replace(form=read.form)
        difference = "; ".join(mark.difference)
        doubt = f"{target} does not offer this tool as it was accepted: {difference}"
        return shown._replace(doubt=shown.doubt or doubt, form=mark.form, is_marked=True)

    def _read_schema(self, target: str, tool: Mapping[str, Any]) -> _ReadSchema:
        name, schema = str(tool["name"]), tool.get("inputSchema")
        key = (target, name)
        known = self._schemas.get(key)
        # Not the tool itself: to Python 1 and true are equal.
        written = encode_leniently(tool)
        if known is None or known.written != written:
            whose = f"{name[:64]!r} of {target!r}"
            checker = ArgumentChecker(schema, whose, exact=True)
            form = digest_of_form(tool)
            known = _ReadSchema(written, form, checker, ArgumentSchema(as_object(schema)))
            self._schemas[key] = known
            if len(self._schemas) > MAX_SCHEMAS:
                self._schemas.popitem(last=False)
        return known


def _stands_before_a_yes(rule: PolicyRule) -> bool:
    """True for a rule that no yes in advance beats."""
    if isinstance(rule, AskRule):
        return rule.confirm is not None
    return not isinstance(rule, AllowRule)


@contextmanager
def failure_logged(proposal: Proposal) -> Generator[None]:
    """Log why something about a proposal could not be done, and go on."""
    try:
        yield
    except MeupError as error:
        log.warning("proposal %s: %s", printable(proposal.id), printable(str(error)))


def _check_arguments(call: Call, read: _ReadSchema, around: KnownNames) -> Shown:
    """The call as rules see it, with the arguments that its tool takes where none are given."""
    problems = read.checker.problems(call.arguments)
    if problems is None:
        return Shown(call, doubt="the schema of its tool cannot be checked")
    if problems:
        said = "; ".join(map(str, problems))
        return Shown(call, problem=f"The tool does not take these arguments: {said}.")
    try:
        if doubt := _doubt_names(call.arguments, around.arguments, WorkBudget(call.arguments)):
            return Shown(call, doubt=doubt)
        arguments, unsure = read.arguments.fill(call.arguments)
    except Exhausted:
        return Shown(call, doubt="comparing the names of its arguments takes too much work")
    except UnknownDefaults:
        return Shown(call, doubt="the defaults in the schema of its tool cannot be told")
    if arguments is not call.arguments:
        params = {**call.params, "arguments": arguments}
        call = replace(call, params=params)
    return Shown(call, around=around._replace(unsure=unsure))


def _doubt_names(arguments: dict[str, Any], known: Mapping[str, Any], work: WorkBudget) -> str:
    """The doubt about names that are nearly others; empty: there is none."""
    known_plain = {work.plain_forms(name)[0] for name in known}
    for name in arguments.keys() - known.keys():
        if work.plain_forms(name)[0] in known_plain:
            # Some servers take it for the one that they have, and no rule about that would see it.
            return f"its argument {name[:64]!r} is nearly one that its tool has"
    for members in objects_of(arguments):
        seen: set[str] = set()
        for name in members if len(members) > 1 else ():
            plain = work.plain_forms(name)[0]
            if plain in seen:
                return f"two names in its arguments are nearly {name[:64]!r}"
            seen.add(plain)
    return ""


def find_own_file(call: Call, names: Collection[str]) -> str:
    """The doubt about a call whose arguments name a file by which it is decided; empty: none.

    Its tool may write there, and then the next call is allowed by the proposer of this one. A text
    says nothing of links and patterns, so this is not a lock.
    """
    for each in [call.arguments, *descendants(call.arguments)] if names else ():
        for text in each if is_object(each) else [each]:
            words = text.casefold() if isinstance(text, str) else ""
            found = next((name for name in names if name.casefold() in words), None)
            if found is not None:
                return f"its arguments name {found}, by which calls are decided"
    return ""


def refuse_quorum(policy: RuleSet) -> None:
    """Raise ConfigurationError for a policy with a quorum: its votes would never be counted."""
    for rule, name in named_rules(policy):
        if isinstance(rule, QuorumRule):
            raise ConfigurationError(
                f"{name}: it is a quorum, and no votes are counted here, so no call of it could be"
                " carried out; run meup reviewer, or write ask instead"
            )


# --- policy ---
# A rule set by which an agent decides.


class Policy(RuleSet):
    """Rules that decide calls.

    ``agent.use(policy)`` lets an agent decide by them: what is allowed is fulfilled, what is denied
    rejected, and the rest left to people.

    Args:
        rules: The rules, in the order in which they are asked.

    Attributes:
        rules: The same.
        names: Their names.
        digest: First 16 hexadecimal digits of the SHA-256 of what the rules say.

    Raises:
        ConfigurationError: A pattern does not compile, or a name is given twice.
    """

    def install(self, agent: Agent) -> None:
        """Let an agent decide by it; ``agent.use(policy)`` calls this.

        Raises:
            ConfigurationError: A rule counts votes, for which the agent has no tools.
        """
        refuse_quorum(self)
        Decider(lambda: self).install(agent)
