"""Rules: the records that a policy is made of, in the order in which they are asked.

Each matches calls by patterns of the capability language (PROTOCOL 7), and says what becomes of
them. What cannot be meant is refused here, where it is written: a rule that says something else
than its author meant would decide in silence.
"""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections import Counter, deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypedDict, TypeGuard, TypeVar, cast

import msgspec
from msgspec.structs import replace

from meup_agent.approval.shell.patterns import (
    CallParts,
    CommandPatterns,
    LinePatterns,
    PathPatterns,
    Sight,
    keys_beside,
    parts_of,
)
from meup_agent.causes import Reason
from meup_agent.errors import ConfigurationError, InvalidPattern, VoteRefused, printable
from meup_agent.protocol.capability.patterns import (
    MAX_PARTS,
    ArgumentCompiler,
    Exhausted,
    Match,
    PatternCompiler,
    Reading,
    StringMatch,
    WorkBudget,
    fold_text,
    is_glob,
    is_path,
    plain_beginnings,
)
from meup_agent.protocol.wire.payloads import PING, TOOL_CALL, TOOL_LIST, Call, as_object

MAX_SECONDS: Final = 366 * 86_400.0
"""A year: of a longer span of time the author has made a slip."""

MAX_COUNT: Final = 10_000
"""Calls that one limit counts: their moments are kept for each proposer."""

MAX_VOTERS: Final = 100
"""Participants that may vote about one call: their votes are told with each decision."""

MAX_WORDS: Final = 2_000
"""Characters of a rule's name or explanation, which is said with each decision."""

MCP_METHODS: Final = (
    *(TOOL_CALL, TOOL_LIST, "prompts/get", "prompts/list", "completion/complete"),
    *("resources/list", "resources/read", "resources/subscribe", "resources/unsubscribe"),
    *("resources/templates/list", "sampling/createMessage", "elicitation/create", "roots/list"),
    *("logging/setLevel", "tasks/get", "tasks/list", "tasks/cancel", "tasks/result", "initialize"),
    PING,
)
"""Methods of MCP, with which those of rules are compared; others may be meant, too."""

_ALIKE: Final = 0.85
"""Likeness of a method and one of MCP from which on it is taken for that one, mistyped."""

LINE_KEYS: Final = ("shell", "path")
"""Keys of a rule that are about the command line of a call, or its files."""

Pattern = str | Sequence[str]


class Verdict(StrEnum):
    """The outcome of a policy for one call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"
    QUORUM = "quorum"


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """A rule; the calls that it matches have all that its patterns ask for.

    Args:
        tool: Pattern, or patterns, of the tool's name.
        arguments: Pattern of the arguments, an object; any if not given.
        target: Pattern, or patterns, of the participant that should carry the call out.
        proposer: Pattern, or patterns, of the participant that proposes it.
        method: Pattern, or patterns, of the MCP method.
        shell: Pattern, or patterns, of the commands that its command line runs: an allow takes a
            line if each of them is allowed, any other rule if one of them matches.
        path: Pattern, or patterns, of the files that the line redirects to, or that an editing
            tool is called for; of a rule that holds back, of all paths that the call names.
        name: The rule's name, told with each of its decisions; else its number.

    Raises:
        ConfigurationError: It cannot be what was meant.
    """

    verdict: ClassVar[str] = ""

    tool: Pattern | None = None
    _: KW_ONLY
    arguments: Mapping[str, Any] | Sequence[Any] | None = None
    target: Pattern | None = None
    proposer: Pattern | None = None
    method: Pattern = TOOL_CALL
    shell: Pattern | None = None
    path: Pattern | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        """Check what can be checked of one rule alone."""
        if cast("object", self.method) is None:
            raise ConfigurationError("method: has no value; leave the key out for calls of tools")
        if self.tool is None and self.method == TOOL_CALL and not self.reads_line:
            raise ConfigurationError("tool: is missing; a rule names the tools that it is for")
        if self.reads_line and self.method != TOOL_CALL:
            raise ConfigurationError("shell, path: only calls of tools have them; leave method out")
        for key in ("tool", "target", "proposer", "method", "shell", "path"):
            given = getattr(self, key)
            for each in () if given is None else _read_texts(given, key):
                if key == "tool":
                    _check_tool(each)
                elif key == "method":
                    _check_method(each)
        if self.arguments is not None:
            _check_arguments(self.arguments)
        check_words(self.name, "name")

    @property
    def reads_line(self) -> bool:
        """True if it looks at the command line of a call, or at its files."""
        return self.shell is not None or self.path is not None

    @property
    def pattern(self) -> dict[str, Any]:
        """Pattern of the calls that it matches, one of the capability language."""
        # What is not among them is read from its field; one more needs a value of each call, too
        # (`_names` of the rule set, or `_match`).
        keys = ("method", "tool", "arguments", "target", "proposer", *LINE_KEYS)
        found = ((key, getattr(self, key)) for key in keys)
        return {key: plain_value(value) for key, value in found if value is not None}

    @property
    def named(self) -> frozenset[str]:
        """The arguments that it names, with or without wildcards; a path names none."""
        return frozenset(
            key for each in as_patterns(self.arguments) for key in each if not is_path(key)
        )

    @property
    def identity(self) -> dict[str, Any]:
        """Every key of the rule that has a value: two rules that are equal say the same."""
        found = ((each.name, getattr(self, each.name)) for each in fields(self))
        said = {key: plain_value(value) for key, value in found if value is not None}
        return {self.verdict: said}


@dataclass(frozen=True, slots=True)
class AllowRule(PolicyRule):
    """Calls that are carried out without asking.

    Where it names arguments, commands or files, it is for calls that have no other arguments.

    Args:
        others: Arguments that a call may have besides those that are named: their names, or
            ``any``. Beside a command or a file those that say nothing of it are free.
    """

    verdict: ClassVar[str] = Verdict.ALLOW

    _: KW_ONLY
    others: Literal["any"] | Sequence[str] | None = None

    def __post_init__(self) -> None:
        """As any rule, with the other arguments."""
        # Not by super(): a dataclass with slots is another class than the one that is written.
        PolicyRule.__post_init__(self)
        if self.others is not None:
            _check_others(self.others)
            if self.arguments is None and not self.reads_line:
                raise ConfigurationError(
                    "others: the rule names no arguments, so any are allowed; take the key out"
                )
        elif self.arguments is not None and not self.named:
            raise ConfigurationError(
                "arguments: no argument is named, so no call has all of its own named; write"
                " others: any, or the names"
            )

    @property
    def others_free(self) -> Collection[str] | None:
        """Names of the arguments that are not looked at; ``None``: all that are not named."""
        if self.arguments is None or self.others == "any":
            return None
        return self.others or ()

    @property
    def free_beside_line(self) -> frozenset[str] | None:
        """Names of the arguments that are free beside a command line; ``None``: all."""
        if self.others == "any":
            return None
        return frozenset(self.others or ()) | self.named


CONFIRM_WORD: Final = "approve"
"""The word that a person types where a rule says ``confirm: word``."""


@dataclass(frozen=True, slots=True)
class PeopleRule(PolicyRule):
    """Calls that people decide, one or several."""

    _: KW_ONLY
    ttl: float | None = None
    remind: float | None = None

    def __post_init__(self) -> None:
        """As any rule, with its times."""
        PolicyRule.__post_init__(self)
        check_seconds(self.ttl, "ttl")
        check_seconds(self.remind, "remind")
        if self.ttl is not None and self.remind is not None and self.remind >= self.ttl:
            raise ConfigurationError("remind: a reminder would come after the ttl; make it shorter")


@dataclass(frozen=True, slots=True)
class AskRule(PeopleRule):
    """Calls that people decide.

    Args:
        ttl: Seconds for a decision; then ``meup reviewer`` rejects the call as ``timeout``.
        remind: Seconds between two reminders in the space's chat.
        confirm: ``word``: who approves types :data:`CONFIRM_WORD`, and no yes in advance counts.
    """

    verdict: ClassVar[str] = Verdict.ASK

    _: KW_ONLY
    confirm: str | None = None

    def __post_init__(self) -> None:
        """As any rule, with what confirms it."""
        PeopleRule.__post_init__(self)
        if self.confirm not in (None, "word"):
            raise ConfigurationError(f"confirm: {self.confirm!r} is unknown; write word")


@dataclass(frozen=True, slots=True)
class DenyRule(PolicyRule):
    """Calls that are rejected.

    Args:
        reason: The reason code that the proposer gets.
        explain: Words for the proposer.
    """

    verdict: ClassVar[str] = Verdict.DENY

    _: KW_ONLY
    reason: str = Reason.POLICY
    explain: str | None = None

    def __post_init__(self) -> None:
        """As any rule, with its reason."""
        PolicyRule.__post_init__(self)
        if self.reason not in list(Reason):
            raise ConfigurationError(
                f"reason: {self.reason!r} is none of the protocol's reasons; "
                + suggest(str(self.reason), [str(each) for each in Reason])
            )
        check_words(self.explain, "explain")


@dataclass(frozen=True, slots=True)
class QuorumRule(PeopleRule):
    """Calls that several people decide together.

    Args:
        of: Votes that carry the call out.
        among: The participants that may vote; the proposer of a call never counts.
        never: Always ``proposer``.
        ttl: Seconds for the votes; then ``meup reviewer`` rejects the call as ``timeout``.
        remind: Seconds between two reminders in the space's chat.
    """

    verdict: ClassVar[str] = Verdict.QUORUM

    _: KW_ONLY
    of: int = 0
    among: Sequence[str] = ()
    never: Literal["proposer"] = "proposer"

    def __post_init__(self) -> None:
        """As any rule; there must be voters enough."""
        PeopleRule.__post_init__(self)
        among = cast("object", self.among)
        if isinstance(among, str) or not isinstance(among, Sequence) or not among:
            raise ConfigurationError("among: expected the names of those who may vote")
        for each in cast("Sequence[object]", among):
            if not _is_text(each):
                raise ConfigurationError(f"among: expected names, not {each!r}")
        if len(self.among) > MAX_VOTERS:
            raise ConfigurationError(f"among: {len(self.among)} may not vote; {MAX_VOTERS} may")
        if len(set(self.among)) != len(self.among):
            raise ConfigurationError("among: a name stands there twice; a person votes once")
        if not is_count(self.of):
            raise ConfigurationError("of: expected a number of votes")
        if not 1 <= self.of <= len(self.among):
            raise ConfigurationError(
                f"of: {self.of} votes cannot come of {len(self.among)} who may vote"
            )
        if self.never != "proposer":
            raise ConfigurationError("never: expected 'proposer', whose vote never counts")


@dataclass(frozen=True, slots=True)
class LimitRule(PolicyRule):
    """A limit of calls: within it the rules behind it decide, over it ``then`` does.

    Args:
        per: Always ``proposer``: each has a count of its own.
        count: Calls that pass.
        every: Seconds in which they do.
        then: The verdict over the limit, ``ask`` or ``deny``.
    """

    verdict: ClassVar[str] = "limit"

    _: KW_ONLY
    per: Literal["proposer"] = "proposer"
    count: int = 0
    every: float = 0.0
    then: Literal["ask", "deny"] = "ask"

    def __post_init__(self) -> None:
        """As any rule, with its numbers."""
        PolicyRule.__post_init__(self)
        if not is_count(self.count) or not 1 <= self.count <= MAX_COUNT:
            raise ConfigurationError(f"count: expected a number of calls from 1 to {MAX_COUNT}")
        check_seconds(self.every, "every")
        if self.per != "proposer":
            raise ConfigurationError("per: expected 'proposer'")
        if self.then not in ("ask", "deny"):
            raise ConfigurationError("then: expected 'ask' or 'deny'; a limit allows nothing")


RULES: Final[Mapping[str, type[PolicyRule]]] = {
    each.verdict: each for each in (AllowRule, AskRule, DenyRule, QuorumRule, LimitRule)
}
"""The rules by the word that a file has for them."""


# --- checks ---

_NOT_IN_NAMES: Final = re.compile(r"[\s\"',;|^$()]")
_SET_OR_CHOICE: Final = re.compile(r"\[[^\]]*\]|\{[^{}]*\}")
_CHOICE: Final = re.compile(r"\{[^{}]*,[^{}]*\}")


def suggest(name: str, known: Sequence[str]) -> str:
    """Advice about a name that means nothing, from names that do."""
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"it is one of {', '.join(known)}"


def as_patterns(given: Any) -> Sequence[Any]:
    """The patterns of which one is enough: those of a list, the one that stands alone, or none."""
    if given is None:
        return ()
    return cast("Sequence[Any]", given) if isinstance(given, list | tuple) else (given,)


def check_words(given: object, key: str) -> None:
    """Raise ConfigurationError for what is not text, an empty one, or too long."""
    if given is None:
        return
    if not _is_text(given) or len(given) > MAX_WORDS:
        raise ConfigurationError(f"{key}: expected a text of at most {MAX_WORDS} characters")


def check_seconds(given: object, key: str) -> None:
    """Raise ConfigurationError for what is not a span of time."""
    if given is None:
        return
    number = given if isinstance(given, int | float) and not isinstance(given, bool) else 0
    if not 0 < number <= MAX_SECONDS:  # which no infinity is, nor what is not a number
        raise ConfigurationError(f"{key}: expected a span of time, more than nothing, up to a year")


def is_count(given: object) -> TypeGuard[int]:
    """True for a whole number; JSON's true and false are none."""
    return isinstance(given, int) and not isinstance(given, bool)


def _is_text(given: object) -> TypeGuard[str]:
    return isinstance(given, str) and bool(given.strip())


def _read_texts(given: object, key: str) -> Sequence[str]:
    """The patterns of names: anything but texts would never match."""
    if not isinstance(given, str | list | tuple) or given in ([], ()):
        raise ConfigurationError(f"{key}: expected a pattern or a list of patterns")
    texts: list[str] = []
    for item in as_patterns(given):
        if not _is_text(item):
            raise ConfigurationError(f"{key}: expected a text; put it in quotes")
        if is_choice_without_wildcard(item):
            raise ConfigurationError(
                f"{key}: {item!r} can never match, since {{a,b}} is a choice only beside a"
                " wildcard; write a list, as [one, other]"
            )
        texts.append(item)
    _check_alternatives(texts, key)
    return texts


def _check_alternatives(patterns: Sequence[object], key: str) -> None:
    """A negated pattern takes all but one; beside another, it is not an exception from that."""
    for each in patterns if len(patterns) > 1 else ():
        if isinstance(each, str) and each.startswith("!"):
            raise ConfigurationError(
                f"{key}: {each!r} stands in a list, of which one pattern is enough, so it excepts"
                " nothing; write what is meant, or hold the exception back by a rule before"
            )


def _check_method(pattern: str) -> None:
    """A method of MCP that is nearly one: the rule would match nothing."""
    if pattern in MCP_METHODS or is_glob(pattern) or pattern[0] in "!/":
        return
    if known := get_close_matches(pattern, MCP_METHODS, 1, _ALIKE):
        raise ConfigurationError(
            f"method: {pattern!r} is not a method of MCP; did you mean {known[0]}?"
        )


def is_choice_without_wildcard(pattern: str) -> bool:
    """True if a pattern looks like a choice, and is an exact text with braces (PROTOCOL 7)."""
    text = pattern.removeprefix("!")
    if text.startswith("/") and text.endswith("/"):
        return False
    return _CHOICE.search(text) is not None and not is_glob(text)


def _check_tool(pattern: str) -> None:
    """A pattern of tools: no name of MCP has these, and a comma or a quote was forgotten."""
    found = _NOT_IN_NAMES.search(_SET_OR_CHOICE.sub("", pattern))
    if found is not None and not pattern.startswith(("/", "!/")):
        raise ConfigurationError(
            f"tool: {pattern!r} has {found[0]!r} in it, which no tool's name has; write"
            " several patterns as a list, [one, other], a regular expression between slashes,"
            " and ? for any character"
        )


def _check_arguments(given: object) -> None:
    for item in as_patterns(given):
        if not isinstance(item, Mapping):
            raise ConfigurationError("arguments: expected keys and patterns of their values")
        if not item:
            raise ConfigurationError(
                "arguments: {} says nothing, and takes any arguments; take the key out if that is"
                " meant"
            )
    pending: list[object] = [given]
    parts = 0
    while pending:
        value, parts = pending.pop(), parts + 1
        if parts > MAX_PARTS:  # an anchor of YAML can stand in itself
            raise ConfigurationError(f"arguments: there are more than {MAX_PARTS} parts")
        if isinstance(value, Mapping):
            for key, each in cast("Mapping[object, object]", value).items():
                if not isinstance(key, str):
                    raise ConfigurationError(
                        f"arguments: the key {key!r} is not a string; put quotes around it"
                    )
                pending.append(each)
        elif isinstance(value, list | tuple):
            if not value:
                raise ConfigurationError("arguments: an empty list never matches")
            _check_alternatives(cast("Sequence[object]", value), "arguments")
            pending += cast("Sequence[object]", value)


def _check_others(given: object) -> None:
    if given == "any":
        return
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise ConfigurationError("others: expected any, or the names of arguments")
    for each in cast("Sequence[object]", given):
        if not _is_text(each) or is_glob(each):
            raise ConfigurationError(
                f"others: expected any, or the names of arguments, not {each!r}"
            )


def plain_value(value: Any) -> Any:
    """The value as JSON and YAML have it, without tuples and enumerations."""
    if isinstance(value, str):  # nearly all of them: no other test is as quick
        return str(value)
    if isinstance(value, Mapping):
        return {
            str(key): plain_value(each) for key, each in cast("Mapping[str, Any]", value).items()
        }
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in cast("Sequence[Any]", value)]
    return value


_ENCODER: Final = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)


def written(rule: PolicyRule) -> str:
    """The rule on one line, in one form for equal rules."""
    # What is not JSON, a set for example, is refused when the rule is compiled; until then any text
    # stands for it.
    return _ENCODER.encode(rule.identity)


# --- votes ---
# The count of one quorum, a pure function of the votes in their order.
#
# A participant votes once, and may change its vote until the votes decide; the proposer's never
# counts. A quorum is reached with as many approvals as its rule asks for, and lost as soon as
# those who have not rejected are too few for that. Nothing but a vote changes a count, and the
# removal of one that voted: no time that passes, no participant that leaves.

MAX_EXPLANATION: Final = 500
"""Characters of a vote's explanation; a hundred voters may explain a thousand proposals."""

V = TypeVar("V")

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class Vote(StrEnum):
    """A vote about one proposal."""

    APPROVE = "approve"
    REJECT = "reject"


class ToldCount(TypedDict):
    """A count as it is told."""

    of: int
    among: list[str]
    votes: dict[str, str]


class VoteOutcome(StrEnum):
    """The outcome of a count."""

    OPEN = "open"
    APPROVED = "approved"
    REJECTED = "rejected"


class VoteCount(msgspec.Struct, frozen=True):
    """A count of the votes about one proposal.

    Attributes:
        proposer: The proposal's proposer, whose vote never counts.
        of: Approvals that carry the call out.
        among: The participants that may vote.
        votes: The vote of each, in the order in which they first voted.
        explanations: Words to the votes, of those who gave some.
    """

    proposer: str
    of: int
    among: tuple[str, ...]
    votes: Mapping[str, Vote] = _NONE
    explanations: Mapping[str, str] = _NONE

    @property
    def voters(self) -> tuple[str, ...]:
        """The participants whose vote counts."""
        return tuple(each for each in self.among if each != self.proposer)

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of them who have not voted."""
        return tuple(each for each in self.voters if each not in self.votes)

    def those(self, vote: Vote) -> tuple[str, ...]:
        """The participants with a vote of a kind."""
        return tuple(voter for voter, each in self.votes.items() if each is vote)

    @property
    def outcome(self) -> VoteOutcome:
        """Approved, rejected since no vote can bring the quorum any more, or open."""
        voters = frozenset(self.voters)
        votes = [each for voter, each in self.votes.items() if voter in voters]
        rejections = votes.count(Vote.REJECT)
        if self.of < 1 or len(voters) - rejections < self.of:
            return VoteOutcome.REJECTED
        reached = votes.count(Vote.APPROVE) >= self.of
        return VoteOutcome.APPROVED if reached else VoteOutcome.OPEN

    def cast(self, voter: str, vote: Vote, explanation: str = "") -> VoteCount:
        """The count with one more vote, or with one that is changed.

        Raises:
            VoteRefused: The participant may not vote, or the votes have decided.
        """
        if voter == self.proposer:
            raise VoteRefused(f"{_listed([voter])} proposed it, and a proposer's vote never counts")
        if voter not in self.among:
            may = _listed(self.voters)
            raise VoteRefused(f"{_listed([voter])} may not vote about it; these may: {may}")
        if self.outcome is not VoteOutcome.OPEN:
            raise VoteRefused(f"its votes have decided: it is {self.outcome}")
        explanations = _without(self.explanations, voter)
        if explanation:
            explanations[voter] = explanation[:MAX_EXPLANATION]
        votes = {**self.votes, voter: vote}
        return replace(self, votes=votes, explanations=explanations)

    def without(self, voter: str) -> VoteCount:
        """The count without the vote of a participant."""
        votes, explanations = _without(self.votes, voter), _without(self.explanations, voter)
        return replace(self, votes=votes, explanations=explanations)

    def anew(self) -> VoteCount:
        """The count without votes."""
        return VoteCount(self.proposer, self.of, self.among)

    @property
    def told(self) -> ToldCount:
        """The count as it stands in a message beside its rule (PROTOCOL 6)."""
        votes = {voter: str(vote) for voter, vote in self.votes.items()}
        return {"of": self.of, "among": list(self.among), "votes": votes}

    def __str__(self) -> str:
        """The count on one line."""
        approvals = self.those(Vote.APPROVE)
        by = f" ({_listed(approvals)})" if approvals else ""
        rejections = self.those(Vote.REJECT)
        against = f"; {_listed(rejections)} rejected" if rejections else ""
        return f"{len(approvals)} of {self.of} approvals{by}{against}"


def _without(by_voter: Mapping[str, V], voter: str) -> dict[str, V]:
    return {who: each for who, each in by_voter.items() if who != voter}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(printable(each) for each in names) or "no participant"


# --- rule index ---
# The rules that a text can match, by the beginnings of their patterns.
#
# Most patterns begin with letters that mean only themselves. So of two hundred rules that differ
# by a tool's name or by one argument, a few are left to be compared. Texts and patterns are held
# against one another as in the wide reading, which takes all that the narrow one does.

FEW: Final = 8
"""Rules that are compared one after the other as fast as an index finds them."""


class BeginningIndex:
    """Numbers by the beginnings of patterns; those of patterns without one are found always.

    Args:
        patterns: A pattern for each number, of any JSON form; ``None``: any text.
    """

    def __init__(self, patterns: Sequence[object]) -> None:
        self._all = list(range(len(patterns)))
        self._always: list[int] = []
        by_length: dict[int, dict[str, list[int]]] = {}
        for number, pattern in enumerate(patterns):
            beginnings = beginnings_of(pattern)
            if beginnings is None:
                self._always.append(number)
                continue
            for each in beginnings:
                by_length.setdefault(len(each), {}).setdefault(each, []).append(number)
        self._by_length = sorted(by_length.items())

    def find(self, text: object, work: WorkBudget) -> list[int]:
        """The numbers, in order, of which the patterns may match a value; of others none does."""
        if isinstance(text, list):
            return self._all  # a pattern may take one of its elements
        if not isinstance(text, str):
            return self._always
        found = self._always
        for form in work.forms(text):
            for length, numbers in self._by_length:
                more = numbers.get(form[:length])
                if more is not None:
                    found = found + more
        # A pattern may have several beginnings.
        return found if found is self._always else sorted(set(found))

    def find_any(self, beginnings: Sequence[str] | None) -> list[int]:
        """The numbers, in order, whose patterns may match what begins with one of some texts.

        ``None``: nothing is known of how it begins.
        """
        if beginnings is None:
            return self._all
        return sorted({n for each in beginnings for n in self.find(each, WorkBudget(each))})


def beginnings_of(pattern: object) -> tuple[str, ...] | None:
    """Texts of which each match begins with one; ``None`` where nothing is known of that."""
    if isinstance(pattern, list | tuple):
        found: list[str] = []
        for each in cast("Sequence[object]", pattern):
            inner = beginnings_of(each)
            if inner is None:
                return None
            found += inner
        return tuple(found) or None
    if not isinstance(pattern, str) or pattern.startswith("!"):
        return None
    return plain_beginnings(pattern) or None


# --- rule set ---

MAX_RULES: Final = 5_000
"""Rules of one policy, which are ready in half a second."""

MAX_TOOLS_REMEMBERED: Final = 256
"""Tools whose rules are kept: more than a space has, few for names that are made up."""

MAX_COUNTED: Final = 10_000
"""Pairs of a limit and a proposer that a history counts."""

DEFAULT: Final = "default"
"""Name of the rule that asks where no other matches."""


class LimitCount(NamedTuple):
    """A count of calls: of one limit, for one proposer."""

    limit: str
    proposer: str
    most: int
    every: float


class PolicyDecision(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a policy for one call.

    Attributes:
        verdict: Allow, ask, deny or quorum.
        rule: Name of the rule that decided, or ``default``.
        why: The cause in words, for a reader of logs.
        reason: The reason code of a rejection.
        explain: Words for the proposer of what is rejected.
        ttl: Seconds for people to decide.
        remind: Seconds between reminders.
        takes_word: Who approves types a word.
        of: Votes that a quorum takes.
        among: Participants that may vote.
        counted: Counts in which the call is one more.
        policy: Digest of the policy.
        number: Place of the rule in the policy, from 0; ``None`` where none decided.
        text: The rule on one line, as JSON.
        form: Digest of the tool's form; empty where that is not known.
        is_marked: The form is one that nobody has accepted (PROTOCOL 5).
        yes: The scoped yes that lets it pass; empty: a rule of the policy decided.
    """

    verdict: Verdict
    rule: str
    why: str = ""
    reason: str = ""
    explain: str = ""
    ttl: float | None = None
    remind: float | None = None
    takes_word: bool = False
    of: int = 0
    among: tuple[str, ...] = ()
    counted: tuple[LimitCount, ...] = ()
    policy: str = ""
    number: int | None = None
    text: str = ""
    form: str = ""
    is_marked: bool = False
    yes: str = ""

    @property
    def told(self) -> dict[str, Any]:
        """The rule as it stands in ``_meta`` of what is sent (PROTOCOL 6)."""
        policy = {"policy": self.policy} if self.policy else {}
        return {"verdict": str(self.verdict), "rule": self.rule, **policy}


class History:
    """The calls that limits have counted; a decision reads it and never changes it."""

    def __init__(self) -> None:
        self._moments: dict[LimitCount, deque[float]] = {}

    def is_full(self, limit: LimitCount, moment: float) -> bool:
        """True if a limit lets no more calls of its proposer pass at a moment.

        A moment is in seconds, by a monotonic clock: it has no date.
        """
        moments = self._moments.get(limit)
        if moments is None:
            # Without room to count, nothing passes uncounted.
            return len(self._moments) >= MAX_COUNTED
        return len(moments) >= limit.most and moments[-limit.most] > moment - limit.every

    def record(self, decision: PolicyDecision, moment: float) -> None:
        """Count a call that was decided at a moment; moments never go back."""
        for limit in decision.counted:
            self._moments.setdefault(limit, deque(maxlen=limit.most)).append(moment)
        if len(self._moments) >= MAX_COUNTED:
            counts = self._moments.items()
            self._moments = {
                limit: each for limit, each in counts if each[-1] > moment - limit.every
            }


class PassedHistory(History):
    """A history as it is for a call that some limits have let pass before.

    Args:
        history: The calls that were counted, among them this one.
        passed: The counts in which it is one.
    """

    def __init__(self, history: History, passed: Iterable[LimitCount]) -> None:
        super().__init__()
        self._history = history
        self._passed = {*passed}

    def is_full(self, limit: LimitCount, moment: float) -> bool:
        """True if a limit that has not let it pass lets no more calls pass."""
        return limit not in self._passed and self._history.is_full(limit, moment)


_NO_HISTORY: Final = History()


class _CallMatch(NamedTuple):
    """The match of calls with a rule, in one reading."""

    method: StringMatch
    tool: StringMatch
    names: tuple[tuple[str, StringMatch], ...]  # of target and proposer
    arguments: Match

    def takes_tool(self, method: str, tool: str, work: WorkBudget) -> bool:
        return self.method(method, work) and self.tool(tool, work)

    def takes(self, arguments: dict[str, Any], names: dict[str, str], work: WorkBudget) -> bool:
        """True if it takes a call of a tool that it takes."""
        for key, matches in self.names:
            if key not in names or not matches(names[key], work):
                return False
        return self.arguments(arguments, work)


class _CompiledRule(NamedTuple):
    rule: PolicyRule
    pattern: Mapping[str, Any]  # the rule's
    match: _CallMatch  # an allow's in the narrow reading, any other's in the wide one
    narrow: _CallMatch
    decision: PolicyDecision
    lines: LinePatterns | None  # of command lines and files

    @property
    def doubted(self) -> PolicyDecision:
        """The decision about a call that only the wide reading takes."""
        if isinstance(self.rule, LimitRule):
            return self.decision
        why = f"{self.decision.rule} may mean it: it matches in the wide reading"
        return replace(self.decision, why=why)


class _ToolRule(NamedTuple):
    """A rule for one tool."""

    compiled: _CompiledRule
    is_certain: bool  # it takes the tool in the narrow reading, too


class _ToolRules:
    """The rules for one tool, in their order; of many, by the argument that most of them look at.

    Args:
        rules: The rules.
    """

    def __init__(self, rules: list[_ToolRule]) -> None:
        self.rules = rules
        patterns = [as_object(each.compiled.pattern.get("arguments")) for each in rules]
        keys = Counter(
            key
            for pattern in patterns
            for key, value in pattern.items()
            if not is_path(key) and not is_glob(key) and beginnings_of(value) is not None
        )
        [(self._key, count)] = keys.most_common(1) or [("", 0)]
        self._plain = fold_text(self._key)
        self._index = None
        if count > FEW:
            self._index = BeginningIndex([each.get(self._key) for each in patterns])

    def of(self, arguments: dict[str, Any], work: WorkBudget) -> Iterable[_ToolRule]:
        """Those that may match a call with some arguments."""
        if self._index is None or any(
            name != self._key and work.plain_forms(name)[0] == self._plain for name in arguments
        ):
            return self.rules
        numbers = self._index.find(arguments.get(self._key), work)
        return [self.rules[number] for number in numbers]


@contextmanager
def _collector_paused() -> Generator[None]:
    """Pause the garbage collector while thousands of rules are compiled, of which none is garbage.

    It would go through all objects of the process several times meanwhile.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class RuleSet:
    """Rules that decide calls, and know nothing of agents.

    Args:
        rules: The rules, in the order in which they are asked.

    Attributes:
        rules: The same.
        names: Their names.
        digest: First 16 hexadecimal digits of the SHA-256 of what the rules say.

    Raises:
        ConfigurationError: A pattern does not compile, or a name is given twice.
    """

    @_collector_paused()
    def __init__(self, rules: Iterable[PolicyRule]) -> None:
        self.rules = tuple(rules)
        if len(self.rules) > MAX_RULES:
            raise ConfigurationError(
                f"rules: {len(self.rules)} are too many; at most {MAX_RULES} are taken"
            )
        self.names = names = [
            rule.name or f"rules[{index}]" for index, rule in enumerate(self.rules)
        ]
        taken = {DEFAULT}
        for index, name in enumerate(names):
            if name in taken:
                raise ConfigurationError(f"rules[{index}].name: {name!r} is taken; choose another")
            taken.add(name)
        ids = [written(rule) for rule in self.rules]
        self.digest = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]
        self._compiled = tuple(
            _compile(rule, names[index], ids[index], self.digest, index)
            for index, rule in enumerate(self.rules)
        )
        self._default = PolicyDecision(
            Verdict.ASK, DEFAULT, why="no rule matches", policy=self.digest
        )
        self.tool_index = BeginningIndex([each.pattern.get("tool") for each in self._compiled])
        self._by_tool: dict[tuple[str, str], _ToolRules] = {}

    def __repr__(self) -> str:
        """The number of rules, and the digest."""
        return f"<{type(self).__name__} of {len(self.rules)} rules, {self.digest}>"

    def decide(
        self, call: Call, proposer: str, history: History = _NO_HISTORY, moment: float = 0.0
    ) -> PolicyDecision:
        """Decide a call.

        Args:
            call: The call; its arguments fit the schema of its tool.
            proposer: The participant that proposes it.
            history: Calls that were counted before.
            moment: The time in seconds, by the monotonic clock of the history; it has no date.
        """
        arguments, names = call.arguments, _names(call, proposer)
        work = WorkBudget(arguments)
        counted: tuple[LimitCount, ...] = ()
        found: PolicyDecision | None = None
        compiled = None
        asked = _AskedParts(call)
        try:
            for compiled, is_certain in self._rules_for(call.method, call.name).of(arguments, work):
                if not compiled.match.takes(arguments, names, work):
                    continue
                rule = compiled.rule
                if compiled.lines is not None:
                    sight, is_whole = asked.look(compiled.lines, rule, work)
                    if sight is Sight.NO:
                        continue
                    if isinstance(rule, DenyRule) and sight is Sight.DOUBT:
                        found = _stricter(found, _in_doubt(compiled.doubted))
                        continue
                    is_certain = is_certain and is_whole
                if isinstance(rule, LimitRule):
                    # Equal limits go on counting when a file is read again.
                    text = compiled.decision.text
                    limit = LimitCount(text, proposer, rule.count, rule.every)
                    if not history.is_full(limit, moment):
                        counted += (limit,)
                        continue
                    is_certain = False  # rules behind it may be stricter
                elif is_certain and compiled.match is not compiled.narrow:
                    is_certain = compiled.narrow.takes(arguments, names, work)
                said = compiled.decision if is_certain else compiled.doubted
                if said.verdict is Verdict.QUORUM and (
                    VoteCount(proposer, said.of, said.among).outcome is VoteOutcome.REJECTED
                ):
                    why = (
                        f"it takes {said.of} votes of others than its proposer, and fewer may vote"
                    )
                    said = deny(said, Reason.POLICY, why)
                found = _stricter(found, said)
                if is_certain or found.verdict is Verdict.DENY:
                    break
            else:
                found = _stricter(found, self._default)
        except Exhausted:
            name = DEFAULT if compiled is None else compiled.decision.rule
            why = "comparing the arguments with this rule takes too much work"
            gave_up = PolicyDecision(Verdict.ASK, name, why=why, policy=self.digest)
            found = _stricter(found, gave_up)
        # What a limit stops or a deny rejects takes no place in the limits before it.
        is_counted = counted and found.verdict is not Verdict.DENY
        return replace(found, counted=counted) if is_counted else found

    def find_matching(self, call: Call, proposer: str) -> dict[str, Reading]:
        """Names of all rules that match a call, and in which reading; whichever decides."""
        arguments, names = call.arguments, _names(call, proposer)
        work = WorkBudget(arguments)
        matching: dict[str, Reading] = {}
        try:
            asked = _AskedParts(call)
            for each, is_certain in self._rules_for(call.method, call.name).rules:
                if each.match.takes(arguments, names, work):
                    if each.lines is not None:
                        sight, is_whole = asked.look(each.lines, each.rule, work)
                        if sight is Sight.NO:
                            continue
                        is_certain = is_certain and is_whole
                    is_narrow = is_certain and each.narrow.takes(arguments, names, work)
                    matching[each.decision.rule] = Reading.NARROW if is_narrow else Reading.WIDE
        except Exhausted:
            return {}
        return matching

    def _rules_for(self, method: str, tool: str) -> _ToolRules:
        # Remembered by these two, so nothing that depends on anything else may be decided here.
        found = self._by_tool.get((method, tool))
        if found is None:
            work = WorkBudget(tool)
            possible = [self._compiled[number] for number in self.tool_index.find(tool, work)]
            found = _ToolRules(
                [
                    _ToolRule(each, each.narrow.takes_tool(method, tool, work))
                    for each in possible
                    if each.match.takes_tool(method, tool, work)
                ]
            )
            if len(self._by_tool) >= MAX_TOOLS_REMEMBERED:
                self._by_tool.clear()
            self._by_tool[method, tool] = found
        return found


def named_rules(policy: RuleSet) -> Iterator[tuple[PolicyRule, str]]:
    """The rules of a policy, each with its name."""
    return zip(policy.rules, policy.names, strict=True)


class _AskedParts:
    """The command line and the files of a call, and what of them no allow has taken yet."""

    def __init__(self, call: Call) -> None:
        self._call = call

    @cached_property
    def _all(self) -> CallParts | None:
        return parts_of(self._call.arguments)

    @cached_property
    def _left(self) -> CallParts | None:
        return self._all

    def look(self, lines: LinePatterns, rule: PolicyRule, work: WorkBudget) -> tuple[Sight, bool]:
        """The answer of a rule about them, and whether it is for all of them, read narrowly.

        An allow takes the call if those before it and itself take all of its parts.
        """
        tool, arguments = self._call.name, self._call.arguments
        if isinstance(rule, AllowRule):
            if self._left is None:
                return Sight.NO, False
            self._left = lines.uncovered(tool, arguments, self._left, work)
            is_whole = self._left.are_none
            return Sight.YES if is_whole else Sight.NO, is_whole
        settled = None if self._left is None else self._left.settled
        sight = lines.find(arguments, settled or (), work, self._call.folder)
        if sight is not Sight.YES or self._all is None:
            return sight, False
        return sight, lines.uncovered(tool, arguments, self._all, work).are_none


def _in_doubt(decision: PolicyDecision) -> PolicyDecision:
    """The decision about a line of which a deny cannot tell what it runs."""
    why = f"it cannot be told whether it runs what {decision.rule} denies"
    return replace(decision, verdict=Verdict.ASK, reason="", explain="", why=why)


_NAMED: Final = frozenset({"proposer", "target"})


def _names(call: Call, proposer: str) -> dict[str, str]:
    """The participants of a call, as rules name them."""
    target = call.target
    return {"proposer": proposer} if target is None else {"proposer": proposer, "target": target}


_STRICTNESS: Final = {Verdict.ALLOW: 0, Verdict.ASK: 1, Verdict.QUORUM: 2, Verdict.DENY: 3}


def _stricter(first: PolicyDecision | None, behind: PolicyDecision) -> PolicyDecision:
    """The stricter of two decisions; of equal ones the first, but the votes of the one behind.

    Those would have been asked for without the first: its voters must not decide in their place.
    """
    if first is None:
        return behind
    one, other = _STRICTNESS[first.verdict], _STRICTNESS[behind.verdict]
    is_first = one > other or (one == other and first.verdict is not Verdict.QUORUM)
    stricter = first if is_first else behind
    takes_word = stricter.verdict is Verdict.ASK and (first.takes_word or behind.takes_word)
    if takes_word and not stricter.takes_word:
        return replace(stricter, takes_word=True)
    return stricter


def deny(decision: PolicyDecision, reason: Reason, why: str, words: str = "") -> PolicyDecision:
    """The decision about a call that its rule cannot let pass; ``words`` for its proposer."""
    words = words or f"The rule {decision.rule} cannot let it pass: {why}."
    return replace(decision, verdict=Verdict.DENY, reason=str(reason), why=why, explain=words)


def _compile(rule: PolicyRule, name: str, text: str, digest: str, index: int) -> _CompiledRule:
    pattern = rule.pattern
    narrow = _match(rule, pattern, Reading.NARROW, index)
    takes = narrow if isinstance(rule, AllowRule) else _match(rule, pattern, Reading.WIDE, index)
    verdict = Verdict(rule.then if isinstance(rule, LimitRule) else rule.verdict)
    why = f"it matches {name}"
    given: dict[str, Any] = {}
    match rule:
        case QuorumRule():
            given = {"of": rule.of, "among": tuple(rule.among)}
        case AskRule():
            given = {"takes_word": rule.confirm is not None}
        case DenyRule():
            given = {"reason": str(rule.reason), "explain": rule.explain or ""}
        case LimitRule():
            calls = "1 call" if rule.count == 1 else f"{rule.count} calls"
            over = f"more than {calls} in {rule.every:g} s"
            why = f"{over}, the limit of {name}"
            reason = str(Reason.RESOURCE_LIMIT) if verdict is Verdict.DENY else ""
            given = {"reason": reason, "explain": over}
        case _:
            pass
    if isinstance(rule, PeopleRule):
        given |= {"ttl": rule.ttl, "remind": rule.remind}
    decision = PolicyDecision(
        verdict, name, why=why, policy=digest, number=index, text=text, **given
    )
    return _CompiledRule(rule, pattern, takes, narrow, decision, _compile_lines(rule, index))


def _compile_lines(rule: PolicyRule, index: int) -> LinePatterns | None:
    if not rule.reads_line:
        return None
    commands = paths = None
    try:
        if rule.shell is not None:
            commands = CommandPatterns(as_patterns(rule.shell), "shell")
        if rule.path is not None:
            paths = PathPatterns(as_patterns(rule.path), "path")
    except InvalidPattern as error:
        raise ConfigurationError(f"rules[{index}].{error}") from None
    free = rule.free_beside_line if isinstance(rule, AllowRule) else None
    return LinePatterns(commands, paths, rule.tool is None, free)


def _match(
    rule: PolicyRule, pattern: Mapping[str, Any], reading: Reading, index: int
) -> _CallMatch:
    compiler = PatternCompiler(reading)
    others = rule.others_free if isinstance(rule, AllowRule) else None
    if others is not None and rule.reads_line:
        others = {*others, *keys_beside()}
    arguments: Match = _take_all
    texts: dict[str, StringMatch] = {"method": _TOOL_CALLS[reading], "tool": _take_all}
    try:
        for key, value in pattern.items():
            if key == "arguments":
                arguments = ArgumentCompiler(reading, others).compile(value, key)
            elif key not in LINE_KEYS and (key, value) != _TOOL_CALL:
                texts[key] = compiler.compile_text(value, key)
    except InvalidPattern as error:
        raise ConfigurationError(f"rules[{index}].{error}") from None
    method, tool = texts.pop("method"), texts.pop("tool")
    if unknown := texts.keys() - _NAMED:
        raise AssertionError(f"no call has {', '.join(unknown)}: add it to _names")
    return _CallMatch(method, tool, tuple(texts.items()), arguments)


def _take_all(value: object, work: WorkBudget) -> bool:
    return True


_TOOL_CALL: Final = ("method", TOOL_CALL)
_TOOL_CALLS: Final = {each: PatternCompiler(each).compile_text(TOOL_CALL, "") for each in Reading}
"""The test of the method that nearly every rule is for, by its reading."""
