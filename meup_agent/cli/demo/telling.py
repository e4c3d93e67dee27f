"""What happened, in the words of the table at the end."""

from __future__ import annotations

from typing import Final

from meup_agent import Fulfillment, Gone, Outcome, ProposalEntry, Rejection, Withdrawal
from meup_agent.cli.demo.checks import Expectation
from meup_agent.cli.demo.stage import Stage, method_of
from meup_agent.cli.demo.workspace import NotAllowed, Workspace
from meup_agent.protocol import kinds

WRITING: Final = ("write_file", "reindex")
"""The tools that the five stories are about; the others only look."""


def outcome_in_words(outcome: Outcome) -> str:
    """How a proposal ended for its proposer."""
    match outcome:
        case Fulfillment(is_error=True):
            return f"fulfilled by {outcome.by}, and failed at {outcome.executor}: {outcome.result}"
        case Fulfillment():
            return f"fulfilled by {outcome.by}, run by {outcome.executor}"
        case Rejection():
            return f"rejected by {outcome.by}: {outcome.reason}"
        case Withdrawal():
            return f"withdrawn: {outcome.reason}"
        case Gone():
            return f"gone: {', '.join(outcome.participants)}"
        case _:
            return "expired"


def kinds_of(stage: Stage, proposal_id: str) -> str:
    """What the auditor has seen of a proposal, in order; progress left out."""
    return ", ".join(_kinds(stage, proposal_id))


def sorted_kinds_of(stage: Stage, proposal_id: str) -> str:
    """The same where two senders' envelopes may come in either order."""
    return ", ".join(sorted(_kinds(stage, proposal_id)))


def _kinds(stage: Stage, proposal_id: str) -> list[str]:
    return [
        "cancel" if method_of(each) == kinds.CANCELLED else each.kind.removeprefix("mcp/")
        for each in stage.exchange(proposal_id)
    ]


def text_on_disk(workspace: Workspace, path: str) -> str | None:
    """The text of a file; ``None`` if there is none."""
    try:
        return workspace.read(path)
    except (NotAllowed, OSError):
        return None


async def look_at(stage: Stage, path: str) -> int | None:
    """Look whether there is a file, and show it; its size in bytes, ``None`` if there is none."""
    try:
        size = (stage.workspace.root / path).lstat().st_size
    except OSError:
        await stage.note("disk", "has no", path)
        return None
    await stage.note("disk", "has", f"{path}, {size} bytes")
    return size


def record_checks(stage: Stage) -> list[Expectation]:
    """The whole demo as the auditor has it in its record, in the gateway's order."""
    states = [_state(record) for record in stage.auditor.proposals if record.call.name in WRITING]
    cancelled = {
        name
        for each in stage.seen.all
        if method_of(each) == kinds.CANCELLED
        for name in each.correlation
    }
    answered = [
        each
        for each in stage.seen.all
        if each.kind == kinds.MCP_RESPONSE and cancelled.intersection(each.correlation)
    ]
    # Everything that was sent before the last scene's result has been seen by now.
    return [
        Expectation(
            "the five proposals",
            "fulfilled; fulfilled; rejected: unsafe; withdrawn: no_longer_needed; fulfilled",
            "; ".join(states),
        ),
        Expectation("cancelled requests", "1", str(len(cancelled))),
        Expectation("answers to them", "0", str(len(answered))),
    ]


def _state(record: ProposalEntry) -> str:
    """A proposal's end; who was rejected takes the proposal back too."""
    if record.rejections:
        return f"rejected: {', '.join(each.reason for each in record.rejections.values())}"
    return f"{record.state}: {record.reason}" if record.reason else str(record.state)
