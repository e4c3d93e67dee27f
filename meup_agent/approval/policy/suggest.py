"""Suggestions: rules that would have decided as people did.

Of the decisions about one tool those are looked for that have something in common, by proposer,
target or argument, and of which none was decided otherwise. A rule says all that its decisions have
in common, so that it is not wider than they are. Before it is given out each is tried on every
decision by the policy itself, in its order with the others: one that allows what was not approved
is dropped. Nothing here decides anything.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from meup_agent.approval.policy.decider import Policy
from meup_agent.approval.policy.rules import MAX_RULES, AllowRule, DenyRule, PolicyRule, Verdict
from meup_agent.approval.shell.line import KEYS, CommandLine, SimpleCommand, line_of, load_parser
from meup_agent.approval.shell.patterns import FREE_KEYS, SHELL_TOOLS
from meup_agent.causes import OF_THE_MOMENT, Reason, read_reason
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.payloads import TOOL_CALL, Call, edit_call, read_told_rule

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


# --- decision log ---
# The decisions that participants made about proposals, read from a journal.
#
# A decision is a request that carries a proposal out, or a rejection. One by a policy is known by
# its rule; only those of people are evidence for a suggestion. What was edited, and what both was
# rejected and carried out, counts as not approved.

MAX_PROPOSALS: Final = 500_000
"""Proposals of a journal that are kept, the latest: half a gigabyte of them at the most."""

MAX_VALUE_CHARS: Final = 200
"""Characters of a text among the arguments that are kept; a path of rules is shorter."""

MAX_ARGUMENTS: Final = 16
"""Arguments of a call that are kept, by name."""

_hash_json = msgspec.json.Encoder(order="sorted").encode


class Judgement(StrEnum):
    """The judgement of a participant about a proposal."""

    APPROVED = "approved"
    EDITED = "edited"
    REJECTED = "rejected"


# Not the collector's: it would walk half a million of them each time, and they are in no cycle.
class LoggedDecision(msgspec.Struct, gc=False):
    """A proposal, and what was decided about it.

    Attributes:
        arguments: Its arguments as far as rules are suggested about them: long texts are cut off,
            and what is not text, number or boolean is an empty object.
        judgement: What was made of it; ``None`` while nothing was.
        by_people: The decision names no rule of a policy, but one that asks.
        reason: The reason of its rejection.
        is_whole: All its arguments are here; of those with very many, some are not.
    """

    id: str
    proposer: str
    tool: str
    target: str | None
    arguments: dict[str, Any]
    content: bytes
    judgement: Judgement | None = None
    by_people: bool = True
    reason: str = ""
    is_whole: bool = True

    @property
    def call(self) -> Call:
        """The call, as rules see it."""
        return edit_call(Call(TOOL_CALL, {"name": self.tool}), self.arguments, self.target)


class DecisionLog:
    """The proposals of a space with their decisions, oldest first."""

    def __init__(self) -> None:
        self._proposals: dict[tuple[str, str], LoggedDecision] = {}
        self._replaced: list[LoggedDecision] = []
        self._proposers: dict[str, tuple[str, ...]] = {}

    def decided(self) -> list[LoggedDecision]:
        """The proposals about which something was decided."""
        found = [*self._replaced, *self._proposals.values()]
        return [each for each in found if each.judgement is not None]

    def add(self, envelope: Envelope) -> None:
        """Take the next envelope of the space's journal in."""
        match envelope.kind:
            case kinds.MCP_PROPOSAL:
                self._propose(envelope)
            case kinds.MCP_REQUEST if envelope.correlation:
                self._fulfill(envelope)
            case kinds.MCP_REJECT:
                self._reject(envelope)
            case _:
                pass

    def _propose(self, envelope: Envelope) -> None:
        call = payloads.read_proposal(envelope.payload)
        if call.method != TOOL_CALL or not call.name:
            return
        key = (envelope.sender, envelope.id)
        arguments = _kept(call.arguments)
        made = LoggedDecision(
            envelope.id,
            envelope.sender,
            call.name,
            call.target,
            arguments,
            _content(call),
            is_whole=arguments.keys() == call.arguments.keys(),
        )
        known = self._proposals.pop(key, None)
        if known is not None:
            if known.content == made.content:
                self._proposals[key] = known
                return
            self._replaced.append(known)
        self._proposals[key] = made
        others = self._proposers.get(envelope.id, ())
        if envelope.sender not in others:
            self._proposers[envelope.id] = (*others, envelope.sender)
        if len(self._proposals) > MAX_PROPOSALS:
            proposer, id = next(iter(self._proposals))
            del self._proposals[proposer, id]
            left = tuple(each for each in self._proposers.pop(id, ()) if each != proposer)
            if left:
                self._proposers[id] = left

    def _fulfill(self, envelope: Envelope) -> None:
        call = payloads.read_call(envelope.payload)
        if call.method != TOOL_CALL or len(envelope.correlation) != 1:
            return
        [id] = envelope.correlation
        proposer = str(call.meta.get(payloads.PROPOSER) or "")
        theirs = [each for each in self._proposers.get(id, ()) if proposer in ("", each)]
        if len(theirs) != 1 or theirs[0] == envelope.sender:
            return
        proposal = self._proposals.get((theirs[0], id))
        if proposal is None or proposal.tool != call.name:
            return
        # Without ``to`` it starts at the target (PROTOCOL 4.4).
        where = proposal.target is None or envelope.to in ((), (proposal.target,))
        same = where and proposal.content == _content(call)
        found = Judgement.APPROVED if same else Judgement.EDITED
        self._judge(proposal, found, call.params)

    def _reject(self, envelope: Envelope) -> None:
        payload = envelope.payload_object
        for id in envelope.correlation:
            proposers = self._proposers.get(id, ())
            for proposer in proposers:
                proposal = self._proposals.get((proposer, id))
                if proposal is None or proposer == envelope.sender:
                    continue
                proposal.reason = proposal.reason or read_reason(payload.get("reason"))
                self._judge(proposal, Judgement.REJECTED, payload)
                if len(proposers) > 1:
                    # It may mean another one under this id: it keeps a rule from allowing, and
                    # is not evidence for one that denies.
                    proposal.by_people = False

    def _judge(self, proposal: LoggedDecision, found: Judgement, holder: object) -> None:
        rule = read_told_rule(holder)
        if rule is not None and rule.verdict != Verdict.ASK:
            proposal.by_people = False
        # Of several decisions the one that holds most back counts.
        if proposal.judgement in (None, Judgement.APPROVED) or found is Judgement.REJECTED:
            proposal.judgement = found


def _content(call: Call) -> bytes:
    """A hash of a call's parameters, without ``_meta``."""
    params = payloads.without_meta(call.params)
    return hashlib.blake2b(_hash_json(params), digest_size=16).digest()


def _kept(arguments: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in islice(arguments.items(), MAX_ARGUMENTS):
        kept = value[:MAX_VALUE_CHARS] if isinstance(value, str) else value
        found[name[:MAX_VALUE_CHARS]] = kept if isinstance(kept, str | int | float) else {}
    return found


# --- suggestions ---

LEAST: Final = 20
"""Decisions that a rule covers at the least: with as many its bound is 0.84."""

_Z: Final = 1.959964
"""Of the normal distribution, for 95 % on both sides."""

MAX_CHANGED: Final = 0.05
"""Part of its decisions that a denying rule may change; an allowing one changes none."""

MAX_RULES_SUGGESTED: Final = 100
"""Rules of one suggestion, those that cover most: more are not looked through."""

MAX_NAMES: Final = 5
"""Names or values that a rule lists; of more, it asks for none."""

MAX_DEPTH: Final = 2
"""Times that the decisions about a tool are taken apart by something that they have in common."""

MAX_DIRECTORIES: Final = 3
"""Levels of a path by which decisions are taken apart."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.@:+ -]+(?:/[A-Za-z0-9_.@:+ -]+)*")
"""Texts that mean only themselves as a pattern."""

# An inbox shows that a call is too expensive; a rule that denies it for good does not follow.
_JUDGED: Final = (
    frozenset(Reason) - OF_THE_MOMENT - {Reason.RESOURCE_LIMIT, Reason.NO_LONGER_NEEDED}
)
"""Reasons from which a rule that denies may be derived."""

T = TypeVar("T")
K = TypeVar("K")
Attribute = Callable[[LoggedDecision], object]
ProgressReport = Callable[[float, float], None]
"""Told how many decisions have been looked at, of how many."""


class Suggestion(NamedTuple):
    """A rule that is suggested, and what speaks for it.

    Attributes:
        rule: The rule.
        covered: The proposals that it would have decided, oldest first.
        changed: Those of them that people decided otherwise.
        bound: The part of such calls that people decide so, at the least: the lower end of
            Wilson's interval at 95 %.
        unseen: Arguments of these calls that the rule does not look at.
    """

    rule: PolicyRule
    covered: tuple[LoggedDecision, ...]
    changed: tuple[LoggedDecision, ...]
    bound: float
    unseen: tuple[str, ...]


def wilson(agreed: int, of: int) -> float:
    """The lower end of Wilson's score interval, at 95 %."""
    if not of:
        return 0.0
    part, square = agreed / of, _Z * _Z
    middle = part + square / (2 * of)
    spread = _Z * math.sqrt(part * (1 - part) / of + square / (4 * of * of))
    return max(0.0, (middle - spread) / (1 + square / of))


def suggest_rules(
    decided: Sequence[LoggedDecision],
    *,
    least: int = LEAST,
    told: ProgressReport = lambda done, total: None,
) -> list[Suggestion]:
    """Rules that would have decided as people did, those that deny first."""
    rules: list[PolicyRule] = []
    done = 0
    for tool, theirs in _parts(decided, lambda each: each.tool).items():
        rules += islice(_rules_for(tool, theirs, least), MAX_RULES)
        done += len(theirs)
        told(done / 2, len(decided))
    return _tried(rules, decided, least, told)


def _rules_for(tool: str, decided: list[LoggedDecision], least: int) -> Iterator[PolicyRule]:
    if not _is_plain(tool) or " " in tool:
        return  # a rule about it would be no rule
    approved = [each for each in decided if each.judgement is Judgement.APPROVED]
    others = [each for each in decided if each.judgement is not Judgement.APPROVED]
    rejected = [
        each
        for each in others
        if each.by_people and each.judgement is Judgement.REJECTED and each.reason in _JUDGED
    ]
    has_lines = any(not each.arguments.keys().isdisjoint(KEYS) for each in decided)
    if tool in SHELL_TOOLS and has_lines and load_parser() is not None:
        # What a line runs is not what it has in common with others as a text.
        people = [each for each in approved if each.by_people]
        patterns = _common(people).patterns if people else {}
        who = {key: some for key, some in patterns.items() if key != "arguments"}
        good, bad = ([_line_decision(each) for each in some] for some in (people, others))
        yield from shell_rules(tool, good, bad, least, who)
        return
    for group in _groups(rejected, approved, least, MAX_CHANGED):
        [(reason, _)] = Counter(each.reason for each in group).most_common(1)
        yield DenyRule(tool, reason=reason, **_common(group).patterns)
    if all(each.is_whole for each in others):
        given = [each for each in approved if each.by_people]
        # What widens a call is never left free: such a call is asked about.
        people = [each for each in given if not any(map(may_widen, each.arguments))]
        for group in _groups(people, others, least, 0.0):
            common = _common(group)
            # Arguments that had nothing in common may be anything.
            free = sorted({name for each in group for name in each.arguments} - {*common.arguments})
            if not common.arguments:
                if len(people) == len(given):  # else it would take those as well
                    yield AllowRule(tool, **common.patterns)
            elif all(map(_is_key, free)):
                yield AllowRule(tool, others=free or None, **common.patterns)


def _line_decision(each: LoggedDecision) -> LineDecision:
    given = [each.arguments.get(key) for key in KEYS]
    is_cut = not each.is_whole or any(
        isinstance(value, str) and len(value) >= MAX_VALUE_CHARS for value in given
    )
    is_evidence = each.judgement is Judgement.REJECTED and each.by_people
    reason = each.reason if is_evidence and each.reason in _JUDGED else ""
    return LineDecision(each.arguments, is_cut, reason)


# --- what decisions have in common ---


def _groups(
    wanted: list[LoggedDecision],
    others: list[LoggedDecision],
    least: int,
    changed: float,
    depth: int = MAX_DEPTH,
) -> Iterator[list[LoggedDecision]]:
    """Groups of wanted decisions whose common rule takes none of the others, or few."""
    if len(wanted) < least:
        return
    if _taken(_common(wanted), others) <= changed * len(wanted):
        yield wanted
        return
    best: list[list[LoggedDecision]] = []
    chosen: Attribute | None = None
    for attribute in _attributes(wanted):
        mine, theirs = _parts(wanted, attribute), _parts(others, attribute)
        clean = [
            part
            for value, part in mine.items()
            if len(mine) > 1
            and len(part) >= least
            and _taken(_common(part), theirs.get(value, [])) <= changed * len(part)
        ]
        if sum(map(len, clean)) > sum(map(len, best)):
            best, chosen = clean, attribute
    yield from best
    if depth == 1:
        return
    kept = {id(each) for part in best for each in part}
    rest = [each for each in wanted if id(each) not in kept]
    for attribute in [chosen] if chosen is not None else list(_attributes(rest))[:4]:
        theirs = _parts(others, attribute)
        groups = [
            group
            for value, part in _parts(rest, attribute).items()
            for group in _groups(part, theirs.get(value, []), least, changed, depth - 1)
        ]
        if groups:
            yield from groups
            return


def _attributes(decided: list[LoggedDecision]) -> Iterator[Attribute]:
    yield lambda each: each.proposer
    yield lambda each: each.target
    counts = Counter(name for each in decided for name in each.arguments)
    for name, _ in counts.most_common(8):
        if not _is_key(name):
            continue
        yield partial(_value, name)
        for level in range(1, MAX_DIRECTORIES + 1):
            yield partial(_directory, name, level)


def _value(name: str, each: LoggedDecision) -> object:
    found: object = each.arguments.get(name)
    return (type(found).__name__, found) if _is_exact(found) else None


def _directory(name: str, level: int, each: LoggedDecision) -> object:
    found = each.arguments.get(name)
    parts = found.split("/") if isinstance(found, str) else []
    return tuple(parts[:level]) if len(parts) > level else None


def _parts(values: Iterable[T], by: Callable[[T], K | None]) -> dict[K, list[T]]:
    """Values by something that they have, without those that lack it."""
    found: dict[K, list[T]] = {}
    for each in values:
        value = by(each)
        if value is not None:
            found.setdefault(value, []).append(each)
    return found


class _Common(NamedTuple):
    """All that the decisions of a group have in common; of each the patterns, none: anything."""

    target: list[str]
    proposer: list[str]
    arguments: dict[str, list[Any]]

    @property
    def patterns(self) -> dict[str, Any]:
        """The same as a rule has it."""
        arguments = {name: _one_or_list(each) for name, each in self.arguments.items()}
        given = {
            "arguments": arguments,
            "target": _one_or_list(self.target),
            "proposer": _one_or_list(self.proposer),
        }
        return {key: value for key, value in given.items() if value}

    def takes(self, each: LoggedDecision) -> bool:
        """True if a rule of these patterns takes a call of its tool."""
        return (
            (not self.target or each.target in self.target)
            and (not self.proposer or each.proposer in self.proposer)
            and all(_fits(each.arguments.get(name), some) for name, some in self.arguments.items())
        )


def _common(group: list[LoggedDecision]) -> _Common:
    names = set(group[0].arguments).intersection(*(each.arguments for each in group))
    arguments = {
        name: patterns
        for name in group[0].arguments
        if name in names
        and _is_key(name)
        and (patterns := _patterns_of([each.arguments[name] for each in group]))
    }
    return _Common(
        _names({each.target or "" for each in group}),
        _names({each.proposer for each in group}),
        arguments,
    )


def _names(values: set[str]) -> list[str]:
    return sorted(values) if len(values) <= MAX_NAMES and all(map(_is_plain, values)) else []


def _one_or_list(patterns: list[Any]) -> Any:
    return patterns[0] if len(patterns) == 1 else patterns


def _patterns_of(values: list[Any]) -> list[Any]:
    """The patterns of what an argument always was; none where that is anything."""
    if len({type(each).__name__ for each in values}) != 1:
        return []
    few = set(values) if all(map(_is_exact, values)) else set[Any]()
    if 0 < len(few) <= MAX_NAMES:
        return sorted(few)
    if not isinstance(values[0], str):
        return []
    steps = zip(*(each.split("/")[:-1] for each in values), strict=False)
    parts = [step[0] for step in takewhile(lambda step: len(set(step)) == 1, steps)]
    prefix = "/".join(parts)
    # A glob matches no segment that begins with a dot, and nobody means one.
    plain = _is_plain(prefix.removeprefix("/")) and not any(part.startswith(".") for part in parts)
    return [f"{prefix}/**"] if plain else []


def _is_exact(value: object) -> bool:
    """True if a value as a pattern means itself alone."""
    if isinstance(value, str):
        return len(value) < MAX_VALUE_CHARS and _is_plain(value.removeprefix("/"))
    return isinstance(value, bool | int)


def _is_key(name: str) -> bool:
    return "/" not in name and _is_plain(name)


def _is_plain(text: str) -> bool:
    """True if a text as a pattern means itself alone, and is none that a rule does not take."""
    return len(text) <= MAX_VALUE_CHARS and not text.isspace() and bool(_PLAIN.fullmatch(text))


def _taken(common: _Common, others: Iterable[LoggedDecision]) -> int:
    """The count of decisions that a rule would take besides its own."""
    return sum(map(common.takes, others))


def _fits(value: object, wanted: list[Any]) -> bool:
    for each in wanted:
        if isinstance(each, str) and each.endswith("/**"):
            if isinstance(value, str) and value.startswith(each[:-2]):
                return True
        elif value == each and isinstance(value, bool) == isinstance(each, bool):
            return True
    return False


# --- the trial ---


def _tried(
    rules: list[PolicyRule], decided: Sequence[LoggedDecision], least: int, told: ProgressReport
) -> list[Suggestion]:
    """The rules that stand the trial, with the decisions that each makes."""
    kept = sorted(rules, key=lambda rule: isinstance(rule, AllowRule))
    while kept:
        found = _decisions(kept, decided, told)
        good = [each for each in found if _is_good(each, least)]
        if len(good) == len(found):
            if len(good) <= MAX_RULES_SUGGESTED:
                return good
            good = sorted(good, key=lambda each: -len(each.covered))[:MAX_RULES_SUGGESTED]
        # What one that is dropped would have decided falls to those behind it.
        left = {id(each.rule) for each in good}
        kept = [each for each in kept if id(each) in left]
    return []


def _decisions(
    rules: list[PolicyRule], decided: Sequence[LoggedDecision], told: ProgressReport
) -> list[Suggestion]:
    by_tool = _parts(rules, lambda rule: str(rule.tool))
    # A policy of a tool's rules alone decides as all of them do, for no other is of that tool.
    policies = {tool: Policy(theirs) for tool, theirs in by_tool.items()}
    covered: dict[int, list[LoggedDecision]] = {id(rule): [] for rule in rules}
    for count, each in enumerate(decided):
        if count % 1_000 == 0:
            told(len(decided) / 2 + count / 2, len(decided))
        policy = policies.get(each.tool)
        if policy is not None:
            number = policy.decide(each.call, each.proposer).number
            if number is not None:
                covered[id(policy.rules[number])].append(each)
    told(len(decided), len(decided))
    return [_suggestion(rule, covered[id(rule)]) for rule in rules]


def _suggestion(rule: PolicyRule, covered: list[LoggedDecision]) -> Suggestion:
    wanted = Judgement.APPROVED if isinstance(rule, AllowRule) else Judgement.REJECTED
    changed = tuple(each for each in covered if each.judgement is not wanted)
    seen = {*(rule.arguments if isinstance(rule.arguments, dict) else ())}
    seen |= {*KEYS} if rule.shell is not None else set()
    unseen = sorted({name for each in covered for name in each.arguments} - seen)
    bound = wilson(len(covered) - len(changed), len(covered))
    return Suggestion(rule, tuple(covered), changed, bound, tuple(unseen))


def _is_good(found: Suggestion, least: int) -> bool:
    if len(found.covered) < least:
        return False
    most = 0.0 if isinstance(found.rule, AllowRule) else MAX_CHANGED * len(found.covered)
    return len(found.changed) <= most
