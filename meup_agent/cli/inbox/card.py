"""Card: one proposal as rows, with everything that a person decides by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from meup_agent.approval.inbox_item import Verb
from meup_agent.cli.inbox.rows import CardRow, Part, ShownValue, row, theirs
from meup_agent.escape import compact, visible
from meup_agent.protocol.payloads import TOOL_CALL, without_meta
from meup_agent.wording import WHOLE

if TYPE_CHECKING:
    from meup_agent.approval.inbox_item import InboxItem
    from meup_agent.approval.proposal_history import ProposerRecord
    from meup_agent.approval.reviewer_rules import InboxRule
    from meup_agent.client.tool_changes import ToolDifference
    from meup_agent.protocol.payloads import Change

ONLY_HEARD: Final = "this gateway lists no proposals: those of before you came are not shown"
"""The note at a gateway of other make."""

SHOW: Final = "meup inbox show"
"""Command that shows all of a call."""

MAX_NAME: Final = 64
"""Characters of a name that are shown."""

MAX_VALUE: Final = 300
"""Characters of a value that differs; the call itself is shown whole."""

MAX_CHANGES: Final = 50
"""Differences that are shown."""

MAX_VOTES: Final = 20
"""Votes that are shown, and names of those who have not voted."""


def name(text: str, style: str = "", limit: int = MAX_NAME) -> Iterator[Part]:
    """The name of a participant or a tool."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return theirs(cut, style, is_name=True)


def title(item: InboxItem, limit: int = MAX_NAME) -> tuple[Part, ...]:
    """The participant and the tool that is to run."""
    target = () if item.target is None else (*name(item.target, "target", limit), Part(".", "dim"))
    return (*target, *name(item.tool or item.method, "title", limit))


def record_words(record: ProposerRecord) -> str:
    """The endings of a proposer's last proposals: ``7 fulfilled, 2 rejected of its last 9``."""
    if not record.endings:
        return "none of its proposals was decided yet"
    said = ", ".join(f"{count} {state}" for state, count in record.counts.items())
    return f"{said} of its last {len(record.endings)}"


def card_rows(item: InboxItem, shown: ShownValue) -> Iterator[CardRow]:
    """A proposal as rows, its call as far as there is room for it."""
    yield row(
        Part("proposed by ", "dim"),
        *name(item.proposer, "name"),
        Part(f"  {record_words(item.record)}", "dim"),
    )
    if item.rule is not None:
        yield from _rule(item.rule)
    facts = item.tool_facts
    if facts is not None and (facts.description or facts.hints):
        said = " ".join(facts.description.split())[:MAX_VALUE]
        hints = f"  ({', '.join(facts.hints)})" if facts.hints else ""
        yield row(
            Part("the tool: ", "dim"), *theirs(said), Part(hints if said else hints.strip(), "dim")
        )
    if facts is not None and facts.mark is not None:
        said = (
            "It is not as it was accepted"
            if facts.form
            else "Above is its accepted text; it has changed"
        )
        yield row(Part(f"{said}: key s, or meup inbox accept-tools, shows how.", "late"))
    dangers = item.danger
    for each in dangers:
        yield row(Part("! ", "danger"), *theirs(each, "danger"), indent=0)
    for rejection in item.rejections:
        if any(each.startswith(f"{rejection.by} is against it") for each in dangers):
            continue
        said = f"{visible(rejection.by, MAX_NAME)}: {visible(rejection.reason, MAX_NAME)}"
        yield row(Part("rejected already by ", "dim"), said)
    yield CardRow()
    yield from call_rows(item, shown)
    yield CardRow()
    yield from _similar(item)


def _rule(rule: InboxRule) -> Iterator[CardRow]:
    place = "" if rule.number is None else f" (rule {rule.number + 1})"
    yield row(
        *(Part("asked by ", "dim"), *name(rule.name or "a rule", "name")),
        *(Part(f"{place} of ", "dim"), *name(rule.reviewer, "name")),
        *(Part(": ", "dim"), *theirs(" ".join(rule.text.split())[:MAX_VALUE], "dim")),
    )
    if not rule.is_quorum:
        return
    approvals = sum(vote == "approve" for vote in rule.votes.values())
    parts = [Part("votes ", "dim"), Part(f"{approvals} of {rule.of}", "name")]
    for voter, vote in list(rule.votes.items())[:MAX_VOTES]:
        style = "good" if vote == "approve" else "bad"
        parts += [Part("  "), Part("✓ " if vote == "approve" else "✗ ", style), *name(voter)]
    missing = [each for each in rule.among if each not in rule.votes][:MAX_VOTES]
    if missing:
        parts.append(Part("  not yet: ", "dim"))
        parts += [Part(", ".join(visible(each, MAX_NAME) for each in missing), "dim")]
    yield row(*parts)


def call_rows(item: InboxItem, shown: ShownValue) -> Iterator[CardRow]:
    """The call as it will run; also its names, which may differ in their ends alone."""
    yield row(*title(item, WHOLE))
    call = item.call
    is_tool = call.method == TOOL_CALL
    values = call.arguments if is_tool else without_meta(call.params)
    if not values:
        yield row(Part("without arguments", "dim"), indent=2)
    yield from shown.members(values, 2)
    if is_tool and call.beside:
        yield row(Part("and, beside its arguments:", "danger"))
        yield from shown.members(call.beside, 2)


def _similar(item: InboxItem) -> Iterator[CardRow]:
    similar = item.similar
    if similar is None:
        yield row(Part("No call of this tool was decided before, as far as is known here.", "dim"))
        return
    past = similar.past
    by = f" by {visible(past.by, MAX_NAME)}" if past.by else ""
    whose = "" if past.proposer == item.proposer else f" of {visible(past.proposer, MAX_NAME)}"
    ended = f"the last one{whose}, {past.state}{by}"
    if not similar.changes:
        yield row(Part(f"The same call as {ended}.", "dim"))
        return
    yield row(Part(f"Differs from {ended}:", "heading"))
    yield from change_rows(similar.changes)


def change_rows(changes: tuple[Change, ...]) -> Iterator[CardRow]:
    """Differences, the former value above the new one."""
    for each in changes[:MAX_CHANGES]:
        yield row(*theirs(each.path.removeprefix("arguments."), "key", is_name=True), indent=2)
        for sign, style, value in (("- ", "bad", each.proposed), ("+ ", "good", each.fulfilled)):
            if value is not None:
                said = compact(value, MAX_VALUE)
                yield row(Part(sign, style), *theirs(said, style), indent=4)
    if len(changes) > MAX_CHANGES:
        yield row(Part(f"and {len(changes) - MAX_CHANGES} more", "dim"), indent=2)


def difference_rows(difference: ToolDifference) -> Iterator[CardRow]:
    """Each tool that differs, first by what its calls are, then by what a model reads."""
    if not difference.tools:
        yield row("The tools of ", *name(difference.server, "name"), " are as they were accepted.")
        return
    yield row("The tools of ", *name(difference.server, "name"), " are not as they were accepted:")
    for tool in difference.tools:
        yield CardRow()
        yield row(*name(tool.name, "title"))
        for line in tool.form:
            yield row(Part("! ", "danger"), *theirs(line, "danger"), indent=2)
        for line in tool.texts:
            yield row(Part("its text ", "dim"), *theirs(line), indent=2)
    if difference.omitted:
        yield CardRow()
        said = f"and {difference.omitted} more differences, for which there is no room"
        yield row(Part(said, "danger"))


def why_no_approval(item: InboxItem) -> str:
    """The reason for which approving is not offered; empty where it is."""
    if item.may & {Verb.APPROVE, Verb.VOTE}:
        return ""
    if item.target is None and item.method != TOOL_CALL:
        return "it does not say who should carry it out; see meup fulfill --executor"
    if item.target is None:
        return "you may not approve it"
    return f"you may not approve it, or {visible(item.target, MAX_NAME)} is not here"
