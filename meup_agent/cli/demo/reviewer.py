"""The reviewer: a trusted agent that decides what others propose, by rules that fit on a page.

It may make requests; a proposal that it approves is carried out by a request of its own. What
leaves the folder is unsafe. What looks like a secret is not written down: then it fulfills the
proposal with edited arguments, and the proposer learns the difference.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Final

from meup_agent import Agent, Context, Proposal, Reason, Withdrawal
from meup_agent.cli.demo.arrivals import EventLog
from meup_agent.cli.demo.stops import Stops

SECRET: Final = re.compile(r"(?i)\b(password|secret|token|api[_-]?key)(\s*[=:]\s*)(\S+)")


def reviewer_agent(stops: Stops, withdrawals: EventLog[Withdrawal]) -> Agent:
    """The agent.

    Args:
        stops: Told of each handler that was stopped.
        withdrawals: Takes the withdrawals of proposals that were being reviewed.
    """
    reviewer = Agent("reviewer")

    @reviewer.on_proposal(name="write_file")
    async def review_writing(proposal: Proposal) -> None:
        path = str(proposal.arguments.get("path"))
        text = str(proposal.arguments.get("text"))
        if leaves_the_folder(path):
            await proposal.reject(Reason.UNSAFE, explain=f"{path} leads out of the folder")
        elif SECRET.search(text):
            await proposal.fulfill({**proposal.arguments, "text": masked(text)})
        else:
            await proposal.fulfill()

    @reviewer.on_proposal(name=["list_files", "read_file", "search", "reindex"])
    async def review_reading(proposal: Proposal, ctx: Context) -> None:
        with stops.noted("reviewer", "review_reading", ctx):
            await proposal.fulfill()

    @reviewer.on_withdraw
    async def hear_withdrawal(withdrawal: Withdrawal) -> None:
        # The handler above has ended by now, and so has the request that it made.
        withdrawals.add(withdrawal)

    return reviewer


def leaves_the_folder(path: str) -> bool:
    """Whether a path leads upwards or begins at the top, by its words alone."""
    plain, windows = PurePosixPath(path), PureWindowsPath(path)
    return plain.is_absolute() or bool(windows.anchor) or ".." in (*plain.parts, *windows.parts)


def masked(text: str) -> str:
    """The text without its secrets."""
    return SECRET.sub(r"\1\2[masked]", text)
