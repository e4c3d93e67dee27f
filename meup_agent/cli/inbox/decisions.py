"""Decisions of the screen: carried out beside it, and told when they are done."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from meup_agent.cli.inbox.card import MAX_NAME, title
from meup_agent.errors import MeupError
from meup_agent.escape import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from meup_agent.approval.inbox import Inbox
    from meup_agent.approval.inbox_item import InboxItem
    from meup_agent.causes import Reason
    from meup_agent.cli.inbox.rows import Part
    from meup_agent.client.tool_changes import ToolDifference


class PersonDecisions:
    """The decisions of a person; what they come to is told, whatever it is.

    Args:
        inbox: The inbox that carries them out.
        tell: Shows a line of parts, in a ``style``.

    Attributes:
        underway: Approved calls that run.
    """

    def __init__(self, inbox: Inbox, tell: Callable[..., None]) -> None:
        self._inbox = inbox
        self._tell = tell
        self.underway = 0

    async def approve(self, item: InboxItem, arguments: dict[str, Any] | None = None) -> None:
        """Approve a proposal."""
        with self._telling_failure(*title(item)):
            self.underway += 1
            try:
                done = await self._inbox.approve(item, arguments)
            finally:
                self.underway -= 1
            if done is None:
                self._tell("you voted for ", *title(item), style="good")
            elif done.is_error:
                self._tell(*title(item), " ran, and failed", style="danger")
            else:
                self._tell(*title(item), " is done", style="good")

    async def approve_all(self, items: list[InboxItem]) -> None:
        """Approve several proposals."""
        self.underway += len(items)
        try:
            outcomes = await self._inbox.approve_all(items)
        finally:
            self.underway -= len(items)
        failed = [each.error for each in outcomes if each.error is not None]
        said = f"{len(items) - len(failed)} of {len(items)} are done"
        if failed:
            said += f"; {visible(str(failed[0]), 300)}"
        self._tell(said, style="danger" if failed else "good")

    async def reject(self, item: InboxItem, reason: Reason, words: str) -> None:
        """Reject a proposal."""
        with self._telling_failure(*title(item)):
            await self._inbox.reject(item, reason, words)
            self._tell("you rejected ", *title(item), f": {reason}", style="bad")

    async def vote(self, item: InboxItem, words: str, *, approve: bool) -> None:
        """Vote about a proposal."""
        with self._telling_failure(*title(item)):
            await self._inbox.vote(item, approve=approve, explanation=words)
            said = "you voted for " if approve else "you voted against "
            self._tell(said, *title(item), style="good" if approve else "bad")

    async def accept_tools(self, participant: str, difference: ToolDifference) -> None:
        """Accept the tools of a participant as they were shown."""
        tools = f"the tools of {visible(participant, MAX_NAME)}"
        with self._telling_failure(tools):
            await self._inbox.accept_tools(participant, difference)
            self._tell(f"you accepted {tools}", style="good")

    @contextmanager
    def _telling_failure(self, *subject: Part | str) -> Generator[None]:
        try:
            yield
        except MeupError as error:
            self._tell(*subject, f": {visible(str(error), 500)}", style="danger")
