"""The words of an audit: names, times, states, edits and reasons, safe to print."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from meup_agent.cli.render.escape import compact, visible
from meup_agent.cli.render.formatting import MAX_NAME
from meup_agent.protocol.audit import Ignored, ProposalAudit
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.payloads import Change
from meup_agent.protocol.told_rule import ToldRule

MAX_WORDS: Final = 200  # characters of a reason or an explanation on a line

MAX_VALUE: Final = 1_000
"""Characters of a value that was edited: enough to see where two long texts differ."""

FAILED: Final = "failed"
MAX_CHANGES: Final = 4  # changes that are told; of more, only how many

IGNORED: Final = {
    Ignored.LATE: "too late",
    Ignored.AGAIN: "again",
    Ignored.NOT_THEIRS: "not theirs",
    Ignored.OWN_PROPOSAL: "own proposal",
    Ignored.REFUSED: "not carried out",
    Ignored.AMBIGUOUS: "ambiguous",
    Ignored.FORGED: "forged",
}
"""Words for steps that changed nothing."""


def local(at: int) -> datetime:
    """A time in microseconds since 1970 (UTC), in the user's zone."""
    return datetime.fromtimestamp(at / 1_000_000).astimezone()


def time_of(at: int, *, beside: int | None = None) -> str:
    """A time of day; with its date, unless a time of the same day is told beside it."""
    moment = local(at)
    same_day = beside is not None and local(beside).date() == moment.date()
    return f"{moment:%H:%M:%S}" if same_day else f"{moment:%Y-%m-%d %H:%M:%S}"


def lasted(begin: int, end: int) -> str:
    """The time between two times, in its largest units: ``4 ms``, ``3 min 5 s``, ``2 d 4 h``."""
    seconds = max(end - begin, 0) / 1_000_000
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    rest, parts = round(seconds), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))


def name(participant: str) -> str:
    """A participant's name."""
    return visible(participant, MAX_NAME)


def names(participants: Iterable[str]) -> str:
    """The names of some participants."""
    return ", ".join(map(name, participants))


def state_of(proposal: ProposalAudit) -> str:
    """The state of a proposal; fulfilled by an answer that is an error: ``failed``."""
    answered = proposal.answered
    if proposal.state is ProposalState.FULFILLED and answered is not None and answered.is_error:
        return FAILED
    return proposal.state.value.replace("_", " ")


def edits(changes: Iterable[Change], arrow: str) -> str:
    """The changes of an edit: ``path "a.txt" → "b.txt"``."""
    found = list(changes)
    said = [
        f"{visible(change.path.removeprefix('arguments.'), MAX_NAME)}"
        f" {_value(change.proposed)} {arrow} {_value(change.fulfilled)}"
        for change in found[:MAX_CHANGES]
    ]
    more = len(found) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more else "")


def why(reason: str, explanation: str = "") -> str:
    """A reason, and what was said to explain it."""
    code, text = visible(reason, MAX_WORDS), visible(" ".join(explanation.split()), MAX_WORDS)
    return f"{code}: {text}" if code and text else code or text


def by_rule(rule: ToldRule | None) -> str:
    """The rule that a decision tells, and its votes; empty where it tells none."""
    if rule is None:
        return ""
    said = f"by the rule {visible(rule.name, MAX_NAME)}"
    if rule.policy:
        said += f" of policy {visible(rule.policy, MAX_NAME)}"
    if not rule.of:
        return said
    votes: dict[str, list[str]] = {}
    for voter, vote in rule.votes.items():
        votes.setdefault(vote, []).append(voter)
    each = (f"{visible(vote, MAX_NAME)}: {names(who)}" for vote, who in votes.items())
    return f"{said}, {rule.of} approvals needed ({'; '.join(each) or 'no votes'})"


def _value(value: object) -> str:
    return "nothing" if value is None else compact(value, MAX_VALUE)
