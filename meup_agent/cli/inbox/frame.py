"""Frame: the parts of the inbox's screen and how each is drawn, without what keys do."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.text import Text
from textual.app import App
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from meup_agent.approval.inbox_item import Verb
from meup_agent.cli.inbox.card import card_rows
from meup_agent.cli.inbox.decisions import PersonDecisions
from meup_agent.cli.inbox.questions import ScreenQuestion, lines_of
from meup_agent.cli.inbox.rows import CardRow, Part, ShownValue, row, theirs
from meup_agent.cli.inbox.themes import DARK, LIGHT, THEMES
from meup_agent.cli.inbox.views import QueueView, RowsView
from meup_agent.wording import time_left

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult

    from meup_agent.approval.inbox import Inbox
    from meup_agent.approval.inbox_item import InboxItem, ItemLeft

WIDE: Final = 100
"""Columns from which on the queue stands beside the decision."""

SMALL: Final = (60, 18)
"""Columns and lines below which questions are asked in few words."""

QUEUE_WIDTH: Final = 36
CARD_MARGIN: Final = 3
SCROLLBAR: Final = 1
"""Columns of the queue, beside the text of a card, and of a scrollbar."""


class InboxFrame(App[None]):
    """The screen of an inbox: its head, the queue, one decision, a question, and the keys.

    Attributes:
        current: The proposal that is decided now; ``None``: nothing waits.
        gone: Why it waits no longer, while it is still shown.
        marked: The proposals that are approved together.
        note: The line above the keys.
        question: The question that is open.
        decisions: The decisions that were made, and how many approved calls run.
        words: The words that go with a rejection or a vote.
        at: The place of the current one in the queue.
        is_whole: The card shows all of the call.
    """

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    CSS = """
    Screen { layout: vertical; overflow: hidden; }
    #head { height: 1; background: $panel; padding: 0 1; }
    #body { height: 1fr; }
    LinesView {
        overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1;
        scrollbar-background: $background; scrollbar-background-hover: $background;
        scrollbar-color: $primary 50%;
    }
    #queue { scrollbar-background: $panel; scrollbar-background-hover: $panel; }
    #queue { width: 36; background: $panel; }
    .narrow #queue { display: none; }
    #decision { width: 1fr; }
    #banner { height: auto; padding: 0 1; display: none; background: $error; color: white; }
    #card { height: 1fr; padding: 1 1 0 2; }
    #note { height: 1; padding: 0 1; }
    #ask { height: auto; padding: 0 1; background: $panel; display: none; }
    #words { display: none; border: none; height: 1; padding: 0 1; background: $panel; }
    #keys { height: 1; background: $panel; padding: 0 1; }
    """
    BINDINGS: ClassVar = []

    def __init__(self, inbox: Inbox, where: str, *, light: bool) -> None:
        super().__init__()
        for each in THEMES:
            self.register_theme(each)
        self.theme = "meup-light" if light else "meup-dark"
        self.inbox = inbox
        self.where = where
        self.current: InboxItem | None = None
        self.gone: ItemLeft | None = None
        self.marked: set[InboxItem] = set()
        self.note: tuple[Part, ...] = ()
        self.question = ScreenQuestion.NOTHING
        self.words = ""
        self.decisions = PersonDecisions(inbox, self.show_outcome)
        self.at = 0
        self.is_whole = True

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

    def on_resize(self, event: events.Resize) -> None:
        """Show the queue where there is room for it."""
        self.follow_width(event.size.width)
        # The app has its new size, by which words are chosen, only after this.
        self.call_after_refresh(self.show_frame)

    def follow_width(self, width: int) -> None:
        """Show the queue beside the decision where there is room, and tell both their widths."""
        self.screen.set_class(width < WIDE, "narrow")
        beside = QUEUE_WIDTH if width >= WIDE else 0
        self.query_one("#queue", QueueView).expect(QUEUE_WIDTH - SCROLLBAR)
        self.card.expect(width - beside - CARD_MARGIN - SCROLLBAR)

    # --- drawing ---

    @property
    def card(self) -> RowsView:
        """The proposal that is decided now, or what is asked about it."""
        return self.query_one("#card", RowsView)

    @property
    def field(self) -> Input:
        """The field for words that go with a decision."""
        return self.query_one("#words", Input)

    @property
    def _styles(self) -> dict[str, str]:
        return DARK if self.current_theme.dark else LIGHT

    def _text(self, *parts: Part) -> Text:
        text = Text(no_wrap=False, overflow="fold")
        for part in parts:
            text.append(part.text, self._styles[part.style])
        return text

    @property
    def is_drawn(self) -> bool:
        """True if the parts of the screen are there: not while the program ends."""
        return bool(self.query("#keys"))

    def show_card(self, *, anew: bool) -> bool:
        """Show the proposal that is decided now; true if it looks otherwise than before.

        Args:
            anew: Show it from its first line on, and nothing of it counts as seen.
        """
        if not self.is_drawn:
            return False
        view = self.card
        before = view.rows
        if self.current is None:
            view.show(self._nothing())
        else:
            shown = ShownValue()
            view.show(card_rows(self.current, shown), anew=anew)
            self.is_whole = shown.is_whole
        return view.rows != before

    def _nothing(self) -> list[CardRow]:
        return [
            row(Part("Nothing waits for you.", "heading")),
            CardRow(),
            row(Part("What is proposed appears here by itself, the oldest deadline first.", "dim")),
        ]

    def show_frame(self) -> None:
        """Draw everything around the card."""
        if not self.is_drawn:
            return
        items = self.inbox.items
        if self.current is not None and self.gone is None and self.current in items:
            self.at = items.index(self.current)
        self.query_one("#queue", QueueView).show(items, self.current, self.marked)
        self.show_times()
        banner = self.query_one("#banner", Static)
        banner.display = self.gone is not None
        if self.gone is not None:
            by = "".join(part.text for part in theirs(self.gone.words))
            banner.update(Text(f"{by}. Nothing is left to decide; j goes on.", "bold #ffffff"))
        note = self._text(*self.note)
        note.no_wrap, note.overflow = True, "ellipsis"
        self.query_one("#note", Static).update(note, layout=False)
        self.show_question()
        keys = self.query_one("#keys", Static)
        keys.update(
            self._keys() if self.question is ScreenQuestion.NOTHING else Text(), layout=False
        )

    def tick(self) -> None:
        """Show the times of this second, and a scrollbar for all that waits by now."""
        if self.is_drawn:
            self.show_times()
            self.query_one("#queue", QueueView).measure()

    def show_times(self) -> None:
        """Show how many wait, and the time that is left for the current one."""
        waiting = len(self.inbox)
        count = "nothing waits" if not waiting else f"{self.at + 1} of {waiting}"
        left = "" if self.current is None or self.gone else time_left(self.current.seconds_left)
        width = self.size.width - 2
        first = self._text(Part("meup inbox ", "heading"), Part(self.where, "dim"))
        style = "late" if "past" in left else "name"
        second = self._text(Part(f"{count}   " if left else count, "dim"), Part(left, style))
        if self.decisions.underway:
            second = self._text(Part(f"{self.decisions.underway} running   ", "late")) + second
        first.truncate(max(width - second.cell_len - 1, 0))
        first.pad_right(max(width - first.cell_len - second.cell_len, 1))
        self.query_one("#head", Static).update(first + second, layout=False)

    def _keys(self) -> Text:
        keys = Text(no_wrap=True)
        item = None if self.gone is not None else self.current
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
        width = self.size.width - 2
        fits = sum(len(key) + len(words) + 5 for key, words, _ in said) <= width
        for key, words, style in said:
            keys.append(f" {key} " if fits else key, style or f"bold {self._styles['key']}")
            # What decides keeps its words.
            short = f" {words} " if key in "aerv" else " "
            keys.append(f" {words}  " if fits else short, self._styles[""])
        return keys

    def show_outcome(self, *parts: Part | str, style: str = "") -> None:
        """Show what came of a decision."""
        self.show_note(*parts, style=style)
        self.show_frame()

    def show_note(self, *parts: Part | str, style: str = "") -> None:
        """Put a line above the keys; it stays until the next one."""
        self.note = tuple(Part(each, style) if isinstance(each, str) else each for each in parts)

    def show_question(self) -> None:
        """Show the question that is open, or none."""
        ask = self.query_one("#ask", Static)
        marked = self.marked_in_order()
        doubts = [] if self.current is None else self.doubts(self.current)
        width, height = self.size
        asked = lines_of(
            self.question,
            doubts,
            marked,
            self.words,
            self.decisions.underway,
            is_small=width < SMALL[0] or height < SMALL[1],
        )
        lines = [self._text(*each) for each in asked]
        if not (lines or ask.display):
            return  # a layout of the whole screen takes longer than all else
        ask.display = bool(lines)
        ask.update(Text("\n").join(lines))

    def doubts(self, item: InboxItem) -> list[str]:
        """Reasons for which approving asks once more."""
        view = self.card
        found = list(item.danger)
        if unseen := view.unseen_lines:
            lines = "line of it has" if unseen == 1 else "lines of it have"
            found.append(f"{unseen:,} {lines} not been on the screen")
        elif not view.is_seen_at_once:
            found.append("it is longer than the screen")
        return found

    def marked_in_order(self) -> list[InboxItem]:
        """The marked proposals in the order of their arrival."""
        return sorted(self.marked, key=lambda item: item.arrived_at)
