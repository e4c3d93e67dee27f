"""Rules: the records that a policy is made of, in the order in which they are asked.

Each matches calls by patterns of the capability language (PROTOCOL 7), and says what becomes of
them. What cannot be meant is refused here, where it is written: a rule that says something else
than its author meant would decide in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, ClassVar, Final, Literal, TypeGuard, cast

from meup_agent.causes import Reason
from meup_agent.errors import ConfigurationError
from meup_agent.protocol.capability.patterns import MAX_PARTS, is_path
from meup_agent.protocol.capability.strings import is_glob
from meup_agent.protocol.wire.payloads import PING, TOOL_CALL, TOOL_LIST

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
            for each in _read_texts(getattr(self, key), key):
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
        found = {key: getattr(self, key) for key in keys}
        return {key: plain_value(value) for key, value in found.items() if value is not None}

    @property
    def named(self) -> frozenset[str]:
        """The arguments that it names, with or without wildcards; a path names none."""
        return frozenset(
            key for each in as_patterns(self.arguments) for key in each if not is_path(key)
        )

    @property
    def identity(self) -> dict[str, Any]:
        """Every key of the rule that has a value: two rules that are equal say the same."""
        found = {each.name: plain_value(getattr(self, each.name)) for each in fields(self)}
        return {self.verdict: {key: value for key, value in found.items() if value is not None}}


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
        if not _is_count(self.of):
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
        if not _is_count(self.count) or not 1 <= self.count <= MAX_COUNT:
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


def _is_count(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _is_text(given: object) -> TypeGuard[str]:
    return isinstance(given, str) and bool(given.strip())


def _read_texts(given: object, key: str) -> Sequence[str]:
    """The patterns of names: anything but texts would never match."""
    if not isinstance(given, str | list | tuple | None) or given in ([], ()):
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
            pending += cast("Mapping[str, object]", value).values()
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
    """The value as JSON and YAML have it, without tuples and enumerations.

    A key that is not text stays one: a pattern refuses it, and as a text it would name nothing.
    """
    if isinstance(value, Mapping):
        return {
            str(key) if isinstance(key, str) else key: plain_value(each)
            for key, each in cast("Mapping[object, Any]", value).items()
        }
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in cast("Sequence[Any]", value)]
    return str(value) if isinstance(value, str) else value


def written(rule: PolicyRule) -> str:
    """The rule on one line, in one form for equal rules."""
    # What is not JSON, a set for example, is refused when the rule is compiled; until then any text
    # stands for it.
    return json.dumps(rule.identity, sort_keys=True, ensure_ascii=False, default=str)
