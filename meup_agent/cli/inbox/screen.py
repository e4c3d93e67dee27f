"""Screen: the inbox as a live terminal program, one decision at a time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from textual.widgets import Input

from meup_agent.approval.inbox_item import (
    InboxRenewed,
    ItemArrived,
    ItemChanged,
    ItemLeft,
    Verb,
)
from meup_agent.cli.inbox.card import (
    ONLY_HEARD,
    change_rows,
    difference_rows,
    title,
    why_no_approval,
)
from meup_agent.cli.inbox.editor import EditRefused, edited_arguments
from meup_agent.cli.inbox.frame import InboxFrame
from meup_agent.cli.inbox.questions import (
    MAX_MARKED,
    NOT_OFFERED,
    REASONS,
    ScreenQuestion,
)
from meup_agent.cli.inbox.rows import CardRow, Part, row, theirs
from meup_agent.cli.inbox.views import RowsView
from meup_agent.errors import MeupError
from meup_agent.escape import visible
from meup_agent.protocol.payloads import Call, changes

if TYPE_CHECKING:
    from textual import events

    from meup_agent.approval.inbox import Inbox
    from meup_agent.approval.inbox_changes import InboxChanges
    from meup_agent.approval.inbox_item import InboxChange, InboxItem
    from meup_agent.client.tool_changes import ToolDifference

TOO_LONG: Final = "too long to be shown here: meup inbox show, then meup inbox approve"
"""Refusal of all that lets a call pass of which the screen shows a part."""

GUARD_SECONDS: Final = 0.4
"""Time for which keys that decide do nothing after the screen has changed by itself: a person who
presses one meant what was there before."""

COVERS_CARD: Final = (ScreenQuestion.EDITED, ScreenQuestion.TOOLS)
"""Questions that show something in place of the card."""

SCROLLS: Final = {
    "space": RowsView.scroll_page_down,
    " ": RowsView.scroll_page_down,
    "pagedown": RowsView.scroll_page_down,
    "pageup": RowsView.scroll_page_up,
    "down": RowsView.scroll_down,
    "up": RowsView.scroll_up,
    "home": RowsView.scroll_home,
    "end": RowsView.scroll_end,
}
"""Keys that scroll what is shown."""

Edit = Callable[[str], Awaitable[str]]
"""Lets a person edit a text; the text afterwards."""


class InboxApp(InboxFrame):
    """The inbox of a person.

    Args:
        inbox: The inbox.
        where: The participant and its space, in words.
        edit: Lets the person edit a text.
        notify: Called for each proposal that arrives.
        clock: Seconds, to tell keys that came just after a change.
        light: Begin with the light theme.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        where: str = "",
        edit: Edit | None = None,
        notify: Callable[[InboxItem], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        light: bool = False,
    ) -> None:
        super().__init__(inbox, where, light=light)
        self._edit = edit
        self._notify = notify
        self._clock = clock
        self._changed_at = -GUARD_SECONDS
        self._is_leaving = False
        self.drawn_at = 0.0  # when the last change of the inbox was on the screen
        self._edited: dict[str, Any] = {}
        self._tools: tuple[str, ToolDifference] | None = None

    def on_mount(self) -> None:
        """Show the first decision, and follow the inbox."""
        self.follow_width(self.size.width)
        self.call_after_refresh(self._note_drawn)
        self._go_to(0, by_itself=False)
        if not self.inbox.knows_before:
            self.report(ONLY_HEARD)
        self.run_worker(self._follow(self.inbox.changes()))
        self.set_interval(1.0, self.tick)

    async def _follow(self, changes: InboxChanges) -> None:
        async for change in changes:
            batch = [change, *changes.taken()]
            for each in batch:
                self._apply_change(each)
            # Another one beside what is on the screen changes nothing there but the queue.
            touched = any(_item_of(each) in (None, self.current) for each in batch)
            shown = self.gone is None and self.question not in COVERS_CARD
            if touched and shown and self.show_card(anew=False):
                self._changed_by_itself()
            self.show_frame()
            self.call_after_refresh(self._note_drawn)

    def _note_drawn(self) -> None:
        self.drawn_at = time.perf_counter()

    def _apply_change(self, change: InboxChange) -> None:
        match change:
            case ItemArrived(item):
                if self._notify is not None:
                    self._notify(item)
                if self.gone is not None and self.gone.item is item:
                    self.gone = None
                    self._changed_by_itself()
                elif self.current is None:
                    self._go_to(0, by_itself=True)
            case ItemLeft(item):
                self.marked.discard(item)
                self._leave(change)
            case ItemChanged(item):
                if item is self.current:
                    self._changed_by_itself()
            case InboxRenewed():
                self.marked = {item for item in self.marked if item.left is None}
                if self.current is not None and self.current.left is not None:
                    self._leave(self.current.left)
                elif self.current is None:
                    self._go_to(0, by_itself=True)

    def _leave(self, left: ItemLeft) -> None:
        """Show what has left where it was; what we decided ourselves makes room for the next."""
        item = left.item
        if item is not self.current:
            if left.by != self.inbox.me:
                self.show_note(*title(item), " ", *theirs(left.words, "dim"))
            return
        if self.question is not ScreenQuestion.HELP:
            self._close_question()
        if left.by == self.inbox.me:
            self._go_to(self.at, by_itself=True)
            return
        # Not the next one: a key that is on its way was meant for this one.
        self.gone = left
        self._changed_by_itself()

    def _changed_by_itself(self) -> None:
        self._changed_at = self._clock()

    def _go_to(self, at: int, *, by_itself: bool) -> None:
        items = self.inbox.items
        self.gone = None
        self.at = min(max(at, 0), max(len(items) - 1, 0))
        self.current = items[self.at] if items else None
        if by_itself:
            self._changed_by_itself()
        self.show_card(anew=True)
        self.show_frame()

    @contextmanager
    def suspended(self) -> Generator[None]:
        """Leave the terminal to another program; the inbox goes on meanwhile, and draws nothing."""
        with self.suspend(), self.batch_update():
            yield
        self.refresh()

    def report(self, words: str) -> None:
        """Show what becomes of the connection."""
        self.show_note(words, style="late")
        self.show_frame()

    async def action_quit(self) -> None:
        """Leave, as ``q`` does."""
        await self._browse("q")
        self.show_frame()

    def action_help_quit(self) -> None:
        """Leave at Ctrl-C, as ``q`` does."""
        self.run_worker(self.action_quit())

    # --- questions ---

    def _open_question(self, question: ScreenQuestion) -> None:
        self.question = question
        self.show_frame()

    def _close_question(self) -> None:
        was, self.question = self.question, ScreenQuestion.NOTHING
        self.words = ""
        if not self.is_drawn:
            return
        self.field.value = ""
        self._hide_field()
        if was in COVERS_CARD:
            self.show_card(anew=True)

    # --- keys ---

    async def on_key(self, event: events.Key) -> None:
        """Do what a key says, in the question that is open."""
        if self._is_leaving:
            event.stop()
            return  # meant for the shell behind this screen
        if self.field.display:
            if event.key == "escape":
                event.stop()
                self._close_words("")
            return
        key = event.character if event.is_printable and event.character else event.key
        event.stop()
        event.prevent_default()
        if self.question is ScreenQuestion.NOTHING:
            await self._browse(key)
        elif not (self.question is ScreenQuestion.TOOLS and self._scroll(key)):
            self._answer(key)
        self.show_frame()

    def _scroll(self, key: str) -> bool:
        """Scroll what is shown; ``False`` if that is not what the key is for."""
        scroll = SCROLLS.get(key)
        if scroll is None:
            return False
        scroll(self.card, animate=False)
        return True

    async def _browse(self, key: str) -> None:
        if self._scroll(key):
            return
        match key:
            case "j" | "n":
                self._go_to(self.at if self.gone is not None else self.at + 1, by_itself=False)
            case "k" | "p":
                self._go_to(self.at - 1, by_itself=False)
            case "s":
                self.run_worker(self._show_tools())
            case "t":
                self.theme = "meup-light" if self.current_theme.dark else "meup-dark"
                self.show_card(anew=False)
            case "?":
                self._open_question(ScreenQuestion.HELP)
            case "q" | "ctrl+c" | "ctrl+q":
                if self.decisions.underway:
                    self._open_question(ScreenQuestion.LEAVE)
                else:
                    self._leave_now()
            case "a" | "e" | "r" | "v" | "m":
                await self._decide(key)
            case _:
                pass

    async def _decide(self, key: str) -> None:
        item = self.current
        if key == "a" and self.marked:
            self._open_question(ScreenQuestion.MARKED)
        elif item is None:
            self._refuse("nothing waits for you")
        elif self.gone is not None:
            self._refuse("it is gone; j goes on")
        elif self._is_too_soon():
            self._refuse("the screen has just changed; look, and press it again")
        elif key == "a":
            self._approve(item)
        elif key == "m":
            self._mark(item)
        elif key == "e" and not self.is_whole:
            self._refuse(TOO_LONG)
        elif key == "e" and Verb.APPROVE in item.may:
            self.run_worker(self._edit_and_ask(item))
        elif key == "r" and Verb.REJECT in item.may:
            self._open_question(ScreenQuestion.REASON)
        elif key == "v" and Verb.VOTE in item.may:
            self._open_question(ScreenQuestion.VOTE)
        else:
            self._refuse(NOT_OFFERED[key])

    def _answer(self, key: str) -> None:
        question, item = self.question, self.current
        if question in (ScreenQuestion.REASON, ScreenQuestion.VOTE) and key == "w":
            self.field.display = True
            self.screen.set_focus(self.field)
            return
        words, edited = self.words, self._edited
        if question is not ScreenQuestion.HELP and self._is_too_soon():
            self._refuse("the screen has just changed; look, and press it again")
            return
        marked = self.marked_in_order()
        if question is ScreenQuestion.TOOLS and key == "y" and self.card.unseen_lines:
            self._refuse("scroll to its end first; you accept all of it")
            return
        if question is ScreenQuestion.VOTE and key == "a" and not self.is_whole:
            self._refuse(TOO_LONG)
            return
        self._close_question()
        match question, key:
            case ScreenQuestion.LEAVE, "y":
                self._leave_now()
            case ScreenQuestion.MARKED, "y":
                self.run_worker(self.decisions.approve_all(marked))
            case ScreenQuestion.TOOLS, "y" if self._tools is not None:
                self.run_worker(self.decisions.accept_tools(*self._tools))
            case _ if item is None or self.gone is not None:
                pass
            case ScreenQuestion.SURE, "y":
                self.run_worker(self.decisions.approve(item))
            case ScreenQuestion.EDITED, "y":
                self.run_worker(self.decisions.approve(item, edited))
            case ScreenQuestion.REASON, _ if key in REASONS:
                self.run_worker(self.decisions.reject(item, REASONS[key][0], words))
            case ScreenQuestion.VOTE, "a" | "r":
                self.run_worker(self.decisions.vote(item, words, approve=key == "a"))
            case _:
                pass

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the words that go with a rejection or a vote."""
        event.stop()
        self._close_words(event.value.strip())

    def _hide_field(self) -> None:
        self.field.display = False
        self.screen.set_focus(None)

    def _close_words(self, words: str) -> None:
        self._hide_field()
        self.words = words
        self.show_frame()

    def _leave_now(self) -> None:
        self._is_leaving = True
        self.exit()

    def _is_too_soon(self) -> bool:
        return self._clock() - self._changed_at < GUARD_SECONDS

    def _refuse(self, why: str) -> None:
        self.show_note(why, style="late")
        self.bell()

    def _mark(self, item: InboxItem) -> None:
        if item in self.marked:
            self.marked.remove(item)
        elif len(self.marked) >= MAX_MARKED:
            self._refuse(f"{MAX_MARKED} are marked; approve these first")
        elif not item.may & {Verb.APPROVE, Verb.VOTE}:
            self._refuse(why_no_approval(item))
        elif self.doubts(item):
            self._refuse("this one asks once more when it is approved, so it is approved alone")
        else:
            self.marked.add(item)
            self._go_to(self.at + 1, by_itself=False)

    def _approve(self, item: InboxItem) -> None:
        why = why_no_approval(item)
        if why:
            self._refuse(why)
        elif not self.is_whole:
            self._refuse(TOO_LONG)
        elif self.doubts(item):
            self._open_question(ScreenQuestion.SURE)
        else:
            self.run_worker(self.decisions.approve(item))

    # --- decisions ---

    async def _show_tools(self) -> None:
        """Show how the tools of the current call's server have changed, and offer to accept it."""
        item = self.current
        if item is None or item.target is None:
            self.show_outcome("no server to look at", style="late")
            return
        try:
            difference = await self.inbox.read_tools(item.target)
        except MeupError as error:
            self.show_outcome(*title(item), f": {visible(str(error), 300)}", style="late")
            return
        if self.question is not ScreenQuestion.NOTHING or self.current is not item:
            return
        if not difference.tools:
            said = "the tools of its server are as they were accepted"
            self.show_outcome(said, style="dim")
            return
        self._tools = (item.target, difference)
        self.card.show(difference_rows(difference))
        self._open_question(ScreenQuestion.TOOLS)

    async def _edit_and_ask(self, item: InboxItem) -> None:
        """Let the person edit the arguments, and show what is different before anything is sent."""
        if self._edit is None:
            self._refuse("no editor is here; set EDITOR")
            self.show_frame()
            return
        try:
            edited = await edited_arguments(self._edit, item.arguments)
        except EditRefused as error:
            self.show_outcome(visible(str(error), 300), style="late")
            return
        if item.left is not None:
            words = theirs(item.left.words, "late")
            self.show_outcome("it is gone, so nothing was sent: ", *words, style="late")
            return
        if item is not self.current:
            self.show_outcome("you went on to another one, so nothing was sent", style="late")
            return
        after = Call(item.method, {**item.call.params, "arguments": edited})
        different = changes(item.call, after, item.target)
        if not different:
            self.show_outcome("you changed nothing; nothing was sent", style="dim")
            return
        self._edited = edited
        head = row(Part("You made of ", "heading"), *title(item), Part(":", "heading"))
        rows = [head, CardRow(), *change_rows(different)]
        self.card.show(rows)
        self._open_question(ScreenQuestion.EDITED)


def _item_of(change: InboxChange) -> InboxItem | None:
    return None if isinstance(change, InboxRenewed) else change.item
