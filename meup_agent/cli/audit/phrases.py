"""The words of an audit: names, times, states, edits and reasons, safe to print."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from meup_agent.escape import visible
from meup_agent.protocol.audit import ProposalAudit
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.told_rule import ToldRule
from meup_agent.wording import FAILED, MAX_NAME, STATES

MAX_WORDS: Final = 200  # characters of a reason or an explanation on a line


def local(at: int) -> datetime:
    """A time in microseconds since 1970 (UTC), in the user's zone."""
    return datetime.fromtimestamp(at / 1_000_000).astimezone()


def time_of(at: int, *, beside: int | None = None) -> str:
    """A time of day; with its date, unless a time of the same day is told beside it."""
    moment = local(at)
    same_day = beside is not None and local(beside).date() == moment.date()
    return f"{moment:%H:%M:%S}" if same_day else f"{moment:%Y-%m-%d %H:%M:%S}"


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
    return STATES[proposal.state]


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
