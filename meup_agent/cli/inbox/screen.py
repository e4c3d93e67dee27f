"""Screen: the inbox as a live terminal program, one decision at a time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.text import Text
from textual.app import App
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from meup_agent.approval.inbox_item import (
    InboxRenewed,
    ItemArrived,
    ItemChanged,
    ItemLeft,
    Verb,
)
from meup_agent.cli.inbox.card import Card, change_rows, time_left, title, why_no_approval
from meup_agent.cli.inbox.decisions import Decisions
from meup_agent.cli.inbox.edit import EditRefused, edited_arguments
from meup_agent.cli.inbox.questions import (
    MAX_MARKED,
    NOT_OFFERED,
    REASONS,
    ScreenQuestion,
    lines_of,
)
from meup_agent.cli.inbox.rows import CardRow, Part, row, theirs
from meup_agent.cli.inbox.themes import DARK, LIGHT, THEMES
from meup_agent.cli.inbox.views import QueueView, RowsView
from meup_agent.protocol.payloads import Call, changes

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from textual import events
    from textual.app import ComposeResult

    from meup_agent.approval.inbox import Inbox
    from meup_agent.approval.inbox_changes import InboxChanges
    from meup_agent.approval.inbox_item import InboxChange, InboxItem

GUARD_SECONDS: Final = 0.4
"""Time for which keys that decide do nothing after the screen has changed by itself: a person who
presses one meant what was there before."""

WIDE: Final = 100
"""Columns from which on the queue stands beside the decision."""

QUEUE_WIDTH: Final = 36
CARD_MARGIN: Final = 3
SCROLLBAR: Final = 1
"""Columns of the queue, beside the text of a card, and of a scrollbar."""

Edit = Callable[[str], Awaitable[str]]
"""Lets a person edit a text; the text afterwards."""


class InboxApp(App[None]):
    """The inbox of a person.

    Args:
        inbox: The inbox.
        where: The participant and its space, in words.
        edit: Lets the person edit a text.
        notify: Called for each proposal that arrives.
        clock: Seconds, to tell keys that came just after a change.
        light: Begin with the light theme.
    """

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    CSS = """
    Screen { layout: vertical; }
    #head { height: 1; background: $panel; padding: 0 1; }
    #body { height: 1fr; }
    #queue { width: 36; background: $panel; overflow-y: scroll; scrollbar-size-vertical: 1; }
    .narrow #queue { display: none; }
    #decision { width: 1fr; }
    #banner { height: auto; padding: 0 1; display: none; background: $error; color: white; }
    #card { height: 1fr; padding: 1 1 0 2; overflow-y: scroll; scrollbar-size-vertical: 1; }
    #note { height: 1; padding: 0 1; }
    #ask { height: auto; padding: 0 1; background: $panel; display: none; }
    #words { display: none; border: none; height: 1; padding: 0 1; background: $panel; }
    #keys { height: 1; background: $panel; padding: 0 1; }
    """
    BINDINGS: ClassVar = []

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
        super().__init__()
        for each in THEMES:
            self.register_theme(each)
        self.theme = "meup-light" if light else "meup-dark"
        self._inbox = inbox
        self._where = where
        self._edit = edit
        self._notify = notify
        self._clock = clock
        self.current: InboxItem | None = None
        self.marked: set[InboxItem] = set()
        self.note = Text()
        self._changed_at = -GUARD_SECONDS
        self._is_whole = True
        self.mounted_at = self.first_drawn_at = 0.0
        self.drawn_at = 0.0  # when the last change of the inbox was on the screen
        self._gone: ItemLeft | None = None
        self._at = 0  # the place of the current one in the queue
        self.decisions = Decisions(inbox, self._tell)
        self.question = ScreenQuestion.NOTHING
        self._words = ""
        self._edited: dict[str, Any] = {}

    # --- the parts of the screen ---

    def compose(self) -> ComposeResult:
        """The head, the queue beside the decision, and below what can be done."""
        yield Static(id="head")
        with Horizontal(id="body"):
            yield QueueView(id="queue")
            with Vertical(id="decision"):
                yield Static(id="banner")
                yield RowsView(id="card")
        yield Static(id="note")
        yield Static(id="ask")
        yield Input(id="words", placeholder="words for the others; enter keeps them, escape not")
        yield Static(id="keys")

    def on_mount(self) -> None:
        """Show the first decision, and follow the inbox."""
        self.mounted_at = time.perf_counter()
        self._follow_width(self.size.width)
        self.call_after_refresh(self._note_drawn)
        self._go_to(0, by_itself=False)
        self.run_worker(self._follow(self._inbox.changes()), exit_on_error=True)
        self.set_interval(1.0, self._tick)

    def on_resize(self, event: events.Resize) -> None:
        """Show the queue where there is room for it."""
        self._follow_width(event.size.width)
        self._show_frame()

    def _follow_width(self, width: int) -> None:
        self.screen.set_class(width < WIDE, "narrow")
        beside = QUEUE_WIDTH if width >= WIDE else 0
        self.query_one("#queue", QueueView).expect(QUEUE_WIDTH - SCROLLBAR)
        self.query_one("#card", RowsView).expect(width - beside - CARD_MARGIN - SCROLLBAR)

    async def _follow(self, changes: InboxChanges) -> None:
        async for change in changes:
            batch = [change, *changes.taken()]
            for each in batch:
                self._take(each)
            # Another one beside what is on the screen changes nothing there but the queue.
            touched = any(_item_of(each) in (None, self.current) for each in batch)
            if touched and self._gone is None and self.question is not ScreenQuestion.EDITED:
                self._show_card(anew=False)
            self._show_frame()
            self.call_after_refresh(self._note_drawn)

    def _note_drawn(self) -> None:
        self.drawn_at = time.perf_counter()
        self.first_drawn_at = self.first_drawn_at or self.drawn_at

    def _take(self, change: InboxChange) -> None:
        match change:
            case ItemArrived(item):
                if self._notify is not None:
                    self._notify(item)
                if self._gone is not None and self._gone.item is item:
                    self._gone = None
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
            if left.by != self._inbox.me:
                self._say(*title(item), " ", *theirs(left.words, "dim"))
            return
        if self.question is not ScreenQuestion.HELP:
            self._close_question()
        if left.by == self._inbox.me:
            self._go_to(self._at, by_itself=True)
            return
        # Not the next one: a key that is on its way was meant for this one.
        self._gone = left
        self._changed_by_itself()

    def _changed_by_itself(self) -> None:
        self._changed_at = self._clock()

    def _go_to(self, at: int, *, by_itself: bool) -> None:
        items = self._inbox.items
        self._gone = None
        self._at = min(max(at, 0), max(len(items) - 1, 0))
        self.current = items[self._at] if items else None
        if by_itself:
            self._changed_by_itself()
        self._show_card(anew=True)
        self._show_frame()

    @contextmanager
    def suspended(self) -> Generator[None]:
        """Leave the terminal to another program; the inbox goes on meanwhile, and draws nothing."""
        with self.suspend(), self.batch_update():
            yield
        self.refresh()

    def report(self, words: str) -> None:
        """Show what becomes of the connection."""
        self._say(words, style="late")
        self._show_frame()

    async def action_quit(self) -> None:
        """Leave, as ``q`` does."""
        await self._browse("q")
        self._show_frame()

    def action_help_quit(self) -> None:
        """Leave at Ctrl-C, as ``q`` does."""
        self.run_worker(self.action_quit())

    # --- drawing ---

    @property
    def _styles(self) -> dict[str, str]:
        return DARK if self.current_theme.dark else LIGHT

    def _text(self, *parts: Part | str, style: str = "") -> Text:
        text = Text(no_wrap=False, overflow="fold")
        for each in parts:
            part = Part(each, style) if isinstance(each, str) else each
            text.append(part.text, self._styles[part.style])
        return text

    @property
    def _is_drawn(self) -> bool:
        """True if the parts of the screen are there: not while the program ends."""
        return bool(self.query("#keys"))

    def _show_card(self, *, anew: bool) -> None:
        if not self._is_drawn:
            return
        view = self.query_one("#card", RowsView)
        if self.current is None:
            view.show(self._nothing())
            return
        card = Card(self.current)
        self._is_whole = card.is_whole
        view.show(card.rows, anew=anew)

    def _nothing(self) -> list[CardRow]:
        return [
            row(Part("Nothing waits for you.", "heading")),
            CardRow(),
            row(Part("What is proposed appears here by itself, the oldest deadline first.", "dim")),
        ]

    def _show_frame(self) -> None:
        """Draw everything around the card."""
        if not self._is_drawn:
            return
        items = self._inbox.items
        if self.current is not None and self._gone is None and self.current in items:
            self._at = items.index(self.current)
        self.query_one("#queue", QueueView).show(items, self.current, self.marked)
        self._show_times()
        banner = self.query_one("#banner", Static)
        banner.display = self._gone is not None
        if self._gone is not None:
            by = "".join(part.text for part in theirs(self._gone.words))
            banner.update(Text(f"{by}. Nothing is left to decide; j goes on.", "bold #ffffff"))
        self.query_one("#note", Static).update(self.note, layout=False)
        self._show_question()
        keys = self.query_one("#keys", Static)
        keys.update(
            self._keys() if self.question is ScreenQuestion.NOTHING else Text(), layout=False
        )

    def _tick(self) -> None:
        """Show the times of this second, and a scrollbar for all that waits by now."""
        if self._is_drawn:
            self._show_times()
            self.query_one("#queue", QueueView).measure()

    def _show_times(self) -> None:
        waiting = len(self._inbox)
        count = "nothing waits" if not waiting else f"{self._at + 1} of {waiting}"
        left = "" if self.current is None or self._gone else time_left(self.current)
        width = self.size.width - 2
        first = self._text(Part("meup inbox ", "heading"), Part(self._where, "dim"))
        style = "late" if "past" in left else "name"
        second = self._text(Part(f"{count}   " if left else count, "dim"), Part(left, style))
        if self.decisions.underway:
            second = self._text(Part(f"{self.decisions.underway} running   ", "late")) + second
        first.truncate(max(width - second.cell_len - 1, 0))
        first.pad_right(max(width - first.cell_len - second.cell_len, 1))
        self.query_one("#head", Static).update(first + second, layout=False)

    def _keys(self) -> Text:
        keys = Text(no_wrap=True)
        item = None if self._gone is not None else self.current
        may: frozenset[Verb] = frozenset() if item is None else item.may
        said: list[tuple[str, str, str]] = []
        if may & {Verb.APPROVE, Verb.VOTE} or self.marked:
            what = f"approve {len(self.marked)} marked" if self.marked else "approve"
            said.append(("a", what, "bold white on #1f7a3a"))
        if Verb.APPROVE in may:
            said.append(("e", "edit", ""))
        if Verb.REJECT in may:
            said.append(("r", "reject", "bold white on #b3261e"))
        if Verb.VOTE in may:
            said.append(("v", "vote", ""))
        said += [("j k", "next, previous", ""), ("?", "help", ""), ("q", "leave", "")]
        for key, words, style in said:
            keys.append(f" {key} ", style or f"bold {self._styles['key']}")
            keys.append(f" {words}  ", self._styles[""])
        return keys

    def _tell(self, *parts: Part | str, style: str = "") -> None:
        """Say what came of a decision."""
        self._say(*parts, style=style)
        self._show_frame()

    def _say(self, *parts: Part | str, style: str = "") -> None:
        """Put a line above the keys; it stays until the next one."""
        self.note = self._text(*parts, style=style)
        self.note.no_wrap, self.note.overflow = True, "ellipsis"

    # --- questions ---

    def _open_question(self, question: ScreenQuestion) -> None:
        self.question = question
        self._show_frame()

    def _close_question(self) -> None:
        was, self.question = self.question, ScreenQuestion.NOTHING
        self._words = ""
        if not self._is_drawn:
            return
        field = self.query_one("#words", Input)
        field.display = False
        field.value = ""
        self.screen.set_focus(None)
        if was is ScreenQuestion.EDITED:
            self._show_card(anew=True)

    def _show_question(self) -> None:
        ask = self.query_one("#ask", Static)
        marked = self._marked_in_order()
        doubts = [] if self.current is None else self._doubts(self.current)
        asked = lines_of(self.question, doubts, marked, self._words, self.decisions.underway)
        lines = [self._text(*each) for each in asked]
        if not (lines or ask.display):
            return  # a layout of the whole screen takes longer than all else
        ask.display = bool(lines)
        ask.update(Text("\n").join(lines))

    def _doubts(self, item: InboxItem) -> list[str]:
        """Reasons for which approving asks once more."""
        view = self.query_one("#card", RowsView)
        found = list(item.danger)
        if view.lines_below:
            found.append(f"{view.lines_below:,} lines of it have not been on the screen")
        elif not view.is_seen_at_once:
            found.append("it is longer than the screen")
        return found

    # --- keys ---

    async def on_key(self, event: events.Key) -> None:
        """Do what a key says, in the question that is open."""
        if self.query_one("#words", Input).display:
            if event.key == "escape":
                event.stop()
                self._close_words("")
            return
        key = event.character if event.is_printable and event.character else event.key
        event.stop()
        event.prevent_default()
        if self.question is ScreenQuestion.NOTHING:
            await self._browse(key)
        else:
            self._answer(key)
        self._show_frame()

    async def _browse(self, key: str) -> None:
        view = self.query_one("#card", RowsView)
        match key:
            case "j" | "n":
                self._go_to(self._at if self._gone is not None else self._at + 1, by_itself=False)
            case "k" | "p":
                self._go_to(self._at - 1, by_itself=False)
            case "space" | " " | "pagedown":
                view.scroll_page_down(animate=False)
            case "pageup":
                view.scroll_page_up(animate=False)
            case "down":
                view.scroll_down(animate=False)
            case "up":
                view.scroll_up(animate=False)
            case "home":
                view.scroll_home(animate=False)
            case "end":
                view.scroll_end(animate=False)
            case "t":
                self.theme = "meup-light" if self.current_theme.dark else "meup-dark"
                self._show_card(anew=False)
            case "?":
                self._open_question(ScreenQuestion.HELP)
            case "q" | "ctrl+c" | "ctrl+q":
                if self.decisions.underway:
                    self._open_question(ScreenQuestion.LEAVE)
                else:
                    self.exit()
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
        elif self._gone is not None:
            self._refuse("it is gone; j goes on")
        elif self._is_too_soon():
            self._refuse("the screen has just changed; look, and press it again")
        elif key == "a":
            self._approve(item)
        elif key == "m":
            self._mark(item)
        elif key == "e" and Verb.APPROVE in item.may:
            self.run_worker(self._edit_and_ask(item), exit_on_error=True)
        elif key == "r" and Verb.REJECT in item.may:
            self._open_question(ScreenQuestion.REASON)
        elif key == "v" and Verb.VOTE in item.may:
            self._open_question(ScreenQuestion.VOTE)
        else:
            self._refuse(NOT_OFFERED[key])

    def _answer(self, key: str) -> None:
        question, item = self.question, self.current
        if question in (ScreenQuestion.REASON, ScreenQuestion.VOTE) and key == "w":
            field = self.query_one("#words", Input)
            field.display = True
            self.screen.set_focus(field)
            return
        words, edited = self._words, self._edited
        if question is not ScreenQuestion.HELP and self._is_too_soon():
            self._refuse("the screen has just changed; look, and press it again")
            return
        marked = self._marked_in_order()
        self._close_question()
        match question, key:
            case ScreenQuestion.LEAVE, "y":
                self.exit()
            case ScreenQuestion.MARKED, "y":
                self._start(self.decisions.approve_all(marked))
            case _ if item is None or self._gone is not None:
                pass
            case ScreenQuestion.SURE, "y":
                self._start(self.decisions.approve(item))
            case ScreenQuestion.EDITED, "y":
                self._start(self.decisions.approve(item, edited))
            case ScreenQuestion.REASON, _ if key in REASONS:
                self._start(self.decisions.reject(item, REASONS[key][0], words))
            case ScreenQuestion.VOTE, "a" | "r":
                self._start(self.decisions.vote(item, words, approve=key == "a"))
            case _:
                pass

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the words that go with a rejection or a vote."""
        event.stop()
        self._close_words(event.value.strip())

    def _close_words(self, words: str) -> None:
        field = self.query_one("#words", Input)
        field.display = False
        self.screen.set_focus(None)
        self._words = words
        self._show_frame()

    def _is_too_soon(self) -> bool:
        return self._clock() - self._changed_at < GUARD_SECONDS

    def _refuse(self, why: str) -> None:
        self._say(why, style="late")
        self.bell()

    def _mark(self, item: InboxItem) -> None:
        if item in self.marked:
            self.marked.remove(item)
        elif len(self.marked) >= MAX_MARKED:
            self._refuse(f"{MAX_MARKED} are marked; approve these first")
        elif not item.may & {Verb.APPROVE, Verb.VOTE}:
            self._refuse(why_no_approval(item))
        elif self._doubts(item):
            self._refuse("this one asks once more when it is approved, so it is approved alone")
        else:
            self.marked.add(item)
            self._go_to(self._at + 1, by_itself=False)

    def _marked_in_order(self) -> list[InboxItem]:
        return sorted(self.marked, key=lambda item: item.arrived_at)

    def _approve(self, item: InboxItem) -> None:
        why = why_no_approval(item)
        if why:
            self._refuse(why)
        elif not self._is_whole:
            self._refuse("too long to be shown here: meup inbox show, then meup inbox approve")
        elif self._doubts(item):
            self._open_question(ScreenQuestion.SURE)
        else:
            self._start(self.decisions.approve(item))

    # --- decisions ---

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self.run_worker(work, exit_on_error=True)

    async def _edit_and_ask(self, item: InboxItem) -> None:
        """Let the person edit the arguments, and show what is different before anything is sent."""
        if self._edit is None:
            self._refuse("no editor is here; set EDITOR")
            return
        try:
            edited = await edited_arguments(self._edit, item.arguments)
        except EditRefused as error:
            self._say(str(error), style="late")
            self._show_frame()
            return
        if item.left is not None or item is not self.current:
            words = "" if item.left is None else item.left.words
            words = "" if item.left is None else item.left.words
            self._say("it is gone, so nothing was sent: ", *theirs(words), style="late")
            self._show_frame()
            return
        after = Call(item.method, {**item.call.params, "arguments": edited})
        different = changes(item.call, after, item.target)
        if not different:
            self._say("you changed nothing; nothing was sent", style="dim")
            self._show_frame()
            return
        self._edited = edited
        rows = [row(Part("You made of it:", "heading")), CardRow(), *change_rows(different)]
        self.query_one("#card", RowsView).show(rows)
        self._open_question(ScreenQuestion.EDITED)


def _item_of(change: InboxChange) -> InboxItem | None:
    return None if isinstance(change, InboxRenewed) else change.item
