"""Screen: the inbox as a live terminal program, one decision at a time."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import time
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
    Set,
)
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.theme import Theme
from textual.widgets import Input, Static

from meup_agent.approval.inbox.item import (
    MAX_TOGETHER,
    InboxChange,
    InboxChanges,
    InboxItem,
    InboxRenewed,
    ItemArrived,
    ItemChanged,
    ItemLeft,
    QueueRow,
    Verb,
    group_of,
    queue_rows,
    why_alone,
)
from meup_agent.approval.inbox.preview import choose_scope
from meup_agent.approval.policy.rules import CONFIRM_WORD
from meup_agent.approval.yeses import read_scope
from meup_agent.causes import Reason
from meup_agent.cli.arguments import read_json
from meup_agent.cli.render.card import (
    MAX_LISTED,
    MAX_SHOWN,
    ONLY_HEARD,
    CardRow,
    Part,
    ShownValue,
    YesDraft,
    call_rows,
    card_rows,
    change_rows,
    difference_rows,
    file_rows,
    kept_rows,
    name,
    row,
    theirs,
    title,
    why_no_approval,
    wrapped,
)
from meup_agent.errors import MeupError, system_reason
from meup_agent.escape import visible
from meup_agent.protocol.wire.payloads import Call, changes, is_object
from meup_agent.protocol.wire.shown_text import Mark, segments
from meup_agent.wording import shown_name, time_left

if TYPE_CHECKING:
    from textual import events

    from meup_agent.approval.inbox.inbox import Inbox
    from meup_agent.client.tool_changes import ToolDifference
    from meup_agent.protocol.wire.scoped_yes import ScopedYes


# --- themes of the screen ---
# Light and dark, and the styles of parts in each.

DARK: Final = {
    "": "#d8dee9",
    "dim": "#8b95a7",
    "title": "bold #ffffff",
    "target": "#9fb3d1",
    "name": "bold #d8dee9",
    "key": "#8fc7ff",
    "string": "#c3e88d",
    "number": "#f7a072",
    "heading": "bold #d8dee9",
    "mark": "bold #ffffff on #b3261e",
    "danger": "bold #ff9d8a",
    "good": "bold #7ddf8c",
    "bad": "bold #ff8a80",
    "late": "bold #ffcb6b",
}
LIGHT: Final = {
    "": "#24292f",
    "dim": "#5f6b7a",
    "title": "bold #000000",
    "target": "#43536b",
    "name": "bold #24292f",
    "key": "#0550ae",
    "string": "#116329",
    "number": "#953800",
    "heading": "bold #24292f",
    "mark": "bold #ffffff on #b3261e",
    "danger": "bold #a40e26",
    "good": "bold #0f6b2d",
    "bad": "bold #b3261e",
    "late": "bold #8a4600",
}
"""Styles of parts by name; each has a contrast of 4.5 on its background."""


def _theme(
    name: str, styles: dict[str, str], background: str, panel: str, success: str, *, dark: bool
) -> Theme:
    return Theme(
        name=name,
        primary=styles["key"],
        foreground=styles[""],
        background=background,
        surface=background,
        panel=panel,
        success=success,
        error="#b3261e",
        warning=styles["late"].removeprefix("bold "),
        dark=dark,
    )


THEMES: Final = (
    _theme("meup-dark", DARK, "#12161d", "#1d2430", "#1f7a3a", dark=True),
    _theme("meup-light", LIGHT, "#ffffff", "#eef2f7", "#0f6b2d", dark=False),
)


# --- views of the screen ---
# Rows that scroll, and the queue, of which only what is seen is drawn.


class LinesView(ScrollView):
    """Lines that scroll; the style of all of them is looked up once for each drawing."""

    can_focus = False
    base = Style()
    styles_by_name = DARK
    _width_to_come = 0

    @property
    def width(self) -> int:
        """Columns of its text: those that it will have, before it is laid out."""
        return self.size.width or self._width_to_come

    def expect(self, width: int) -> None:
        """Tell the width that the layout will give it, so that it is laid out once."""
        self._width_to_come = width

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines in a part of the screen."""
        # Looking the style up walks all ancestors, which takes as long as drawing a line.
        self.base, self.styles_by_name = self.rich_style, styles_of(self)
        return super().render_lines(crop)


class RowsView(LinesView):
    """Rows, wrapped to the width; it knows how much of them has been seen."""

    rows: tuple[CardRow, ...] = ()
    _lines: Sequence[list[Part]] = ()
    _wrapped_at = 0
    _seen = bytearray()  # for each line 1 if it has been on the screen

    @property
    def unseen_lines(self) -> int:
        """Lines that have never been on the screen."""
        return self._seen.count(0)

    @property
    def is_seen_at_once(self) -> bool:
        """True if all of it fits the screen."""
        return len(self._lines) <= self.size.height

    def show(self, rows: Iterable[CardRow], *, anew: bool = True) -> None:
        """Show rows, from the first on, or at the place of before where little has changed."""
        self.rows = tuple(rows)
        before = zip(self._lines, self._seen, strict=True)
        self._wrap()
        if anew:
            self.scroll_to(y=0, animate=False)
        else:
            # What others tell of it moves the lines of its call, and changes none of them.
            seen = {tuple(line) for line, is_seen in before if is_seen}
            self._seen = bytearray(tuple(line) in seen for line in self._lines)
        self._mark_seen()

    def _wrap(self) -> None:
        self._wrapped_at = self.width
        # Before the first layout there is no width, and nothing is drawn.
        self._lines = list(wrapped(self.rows, self._wrapped_at - 1)) if self._wrapped_at else []
        self._seen = bytearray(len(self._lines))
        self.virtual_size = Size(self._wrapped_at, len(self._lines))
        self.refresh()

    def _mark_seen(self) -> None:
        first = min(round(self.scroll_y), len(self._lines))
        last = min(first + self.size.height, len(self._lines))
        self._seen[first:last] = b"\x01" * (last - first)

    def on_resize(self, event: events.Resize) -> None:
        """Wrap anew; what is narrower has to be seen anew."""
        del event
        self.call_after_refresh(self._wrap_anew)

    def _wrap_anew(self) -> None:
        if self._wrapped_at != self.size.width:
            self._wrap()
        self._mark_seen()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Note what has been seen."""
        super().watch_scroll_y(old_value, new_value)
        self._mark_seen()

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        width, at = self.size.width, y + round(self.scroll_y)
        if at >= len(self._lines):
            return Strip.blank(width, self.base)
        return to_strip(self._lines[at], self.styles_by_name, self.base, width)


class QueueView(LinesView):
    """The queue: a line for each proposal that waits, and a mark for what is chosen."""

    _items: Sequence[InboxItem] = ()
    _rows: Mapping[InboxItem, QueueRow] = MappingProxyType({})
    _current: InboxItem | None = None
    _marked: Set[InboxItem] = frozenset()

    def show(
        self,
        items: Sequence[InboxItem],
        rows: Mapping[InboxItem, QueueRow],
        current: InboxItem | None,
        marked: Set[InboxItem],
    ) -> None:
        """Show a queue, with the one that is decided now."""
        self._items, self._rows, self._marked = items, rows, marked
        if current is not None and current is not self._current and current in items:
            self.measure()
            at = items.index(current) * 2
            height = self.scrollable_content_region.height
            if not self.scroll_y <= at <= self.scroll_y + height - 2:
                self.scroll_to(y=max(at - height // 2, 0), animate=False)
        self._current = current
        self.refresh()

    def measure(self) -> None:
        """Let the scrollbar fit the queue; a new size lays out the whole screen, so not always."""
        self.virtual_size = Size(self.width, len(self._items) * 2)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of the screen: a call, or who proposes it."""
        width = self.size.width
        at, line = divmod(y + round(self.scroll_y), 2)
        if at >= len(self._items):
            return Strip.blank(width, self.base)
        item = self._items[at]
        is_current = item is self._current
        base, styles = self.base, self.styles_by_name
        if is_current:
            base += Style.parse("on #2d3a52" if styles is DARK else "on #d7e3f7")
        row = self._rows.get(item)
        is_first = row is None or row.of > 0
        told = "" if row is None else "  ".join(f"{name} {value}" for name, value in row.differs)
        if line == 0:
            sign = "●" if item in self._marked else "▌" if is_current else " "
            parts = [Part(f"{sign} ", "late" if item in self._marked else "key")]
            if is_first:
                parts += title(item)
            else:
                parts.append(Part(f"  {visible(told, 100) or 'the same arguments'}"))
            if row is not None and row.of > 1:
                parts.append(Part(f"  {row.of} calls", "dim"))
            return to_strip(parts, styles, base, width)
        left = time_left(item.seconds_left).removesuffix(" left")
        who = visible(item.proposer, 40) if is_first else ""
        if is_first and row is not None and row.of > 1 and told:
            who = f"{who}  {visible(told, 100)}"
        room = max(width - cell_len(left) - 4, 4)
        parts = [Part(f"  {set_cell_size(who, room)} ", "dim")]
        parts.append(Part(left, "late" if "past" in left else "dim"))
        return to_strip(parts, styles, base, width)


def styles_of(view: ScrollView) -> dict[str, str]:
    # Of which kind an app is, a view does not know.
    theme = view.app.current_theme  # pyright: ignore[reportUnknownMemberType]
    return DARK if theme.dark else LIGHT


def to_strip(parts: Iterable[Part], styles: dict[str, str], base: Style, width: int) -> Strip:
    """Parts as a line of the screen."""
    made = [Segment(part.text, base + Style.parse(styles[part.style])) for part in parts]
    return Strip(made).adjust_cell_length(width, base)


# --- questions of the screen ---
# Which are asked, in which words, and the keys that answer them.

GROUPED: Final = 2 * MAX_TOGETHER
"""Proposals at the head of the queue that stand in groups."""

REASON_KEYS: Final = {
    "d": (Reason.DISAGREE, "I disagree"),
    "n": (Reason.INAPPROPRIATE, "not appropriate here"),
    "u": (Reason.UNSAFE, "unsafe"),
    "b": (Reason.BUSY, "no time for it now"),
    "c": (Reason.INCAPABLE, "cannot be done here"),
    "p": (Reason.POLICY, "against a rule"),
    "t": (Reason.DUPLICATE, "it was proposed before"),
    "i": (Reason.INVALID, "wrong arguments"),
    "l": (Reason.RESOURCE_LIMIT, "costs too much"),
    "x": (Reason.TIMEOUT, "it came too late"),
    "o": (Reason.OTHER, "another reason"),
}
"""The key of each reason, and what it says to a person."""

HELP: Final = (
    ("j  k", "the next proposal, the one before"),
    ("a", "approve: carry it out, or vote for it where votes count"),
    ("e", "edit its arguments in $EDITOR, see the difference, approve"),
    ("r", "reject: a key for the reason; w first for words of yours"),
    ("v", "vote, for or against"),
    ("s", "how the tools of its server have changed; y accepts them"),
    ("f", "what it changes in the file that it writes"),
    ("y", "yes, where a key asks; else: approve it and calls like it"),
    ("Y", "the yeses to calls like it; a digit ends one"),
    ("space  ↓ ↑", "scroll; home, end, page up and page down as well"),
    ("x  X", "mark it; mark its group; a or r then decides all that are marked"),
    ("t", "light or dark"),
    ("q", "leave; what you did not decide goes on waiting, or expires"),
)


SHORT_HELP: Final = (
    ("j k", "next, previous"),
    ("a", "approve"),
    ("e", "edit"),
    ("r", "reject"),
    ("v", "vote"),
    ("y", "yes"),
    ("space", "scroll"),
    ("x X", "mark"),
    ("f", "file"),
    ("s", "tools"),
    ("t", "theme"),
    ("q", "leave"),
)
"""The same for a terminal of a few lines."""

REASON_CODES: Final = tuple((key, str(code)) for key, (code, _) in REASON_KEYS.items())
"""The reasons for a terminal of a few lines."""


YES_KEYS: Final = (
    ("1-9", "which calls"),
    ("h", "how long"),
    ("n", "how many"),
    ("e", "write it"),
)
"""The keys that change a yes in advance."""


class ScreenQuestion(StrEnum):
    """The question that is open, which the next key answers."""

    NOTHING = ""
    SURE = "sure"
    EDITED = "edited"
    MARKED = "marked"
    REASON = "reason"
    VOTE = "vote"
    TOOLS = "tools"
    FILE = "file"
    YES = "yes"
    YESES = "yeses"
    HELP = "help"
    LEAVE = "leave"


CONFIRMED: Final = (ScreenQuestion.SURE, ScreenQuestion.EDITED)
"""Questions that a word answers, too, where a rule asks for one."""

NOT_OFFERED: Final = {
    "e": "you may not carry it out",
    "r": "you may not reject it",
    "v": "no vote of yours is counted here",
}

ScreenLine = tuple[Part, ...]


def _answer_line(key: str, answer: str) -> ScreenLine:
    return Part(f"{key} ", "key"), Part(answer), Part("   any other key goes back", "dim")


def _wrap_keys(cells: Sequence[tuple[str, str]]) -> list[ScreenLine]:
    return [tuple(part for key, said in cells for part in (Part(key, "key"), Part(f" {said}  ")))]


def _doubt_lines(doubts: Iterable[str]) -> list[ScreenLine]:
    return [(Part("! ", "danger"), *theirs(each, "danger")) for each in doubts]


def _in_columns() -> list[ScreenLine]:
    """The reasons with their keys, two on a line."""
    cells = [
        (Part(f"{key} ", "key"), Part(f"{words:<26}")) for key, (_, words) in REASON_KEYS.items()
    ]
    half = (len(cells) + 1) // 2
    halves = zip_longest(cells[:half], cells[half:], fillvalue=())
    return [(*left, *right) for left, right in halves]


# --- decisions of the screen ---
# Carried out beside it, and told when they are done.


@dataclass(slots=True)
class PersonDecisions:
    """The decisions of a person; what they come to is told, whatever it is.

    ``inbox`` carries them out, ``tell`` shows a line of parts, in a ``style``.

    Attributes:
        underway: Approved calls that run.
    """

    _inbox: Inbox
    _tell: Callable[..., None]
    underway: int = 0

    async def approve(
        self, item: InboxItem, arguments: dict[str, Any] | None = None, word: str = ""
    ) -> None:
        """Approve a proposal."""
        with self._telling_failure(*title(item)):
            self.underway += 1
            try:
                done = await self._inbox.approve(item, arguments, word=word)
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
        failed = [(each.item, str(each.error)) for each in outcomes if each.error is not None]
        failed += [
            (each.item, "it ran, and failed")
            for each in outcomes
            if each.fulfillment is not None and each.fulfillment.is_error
        ]
        self._tell_all("are done", len(items), failed)

    async def reject_all(self, items: list[InboxItem], reason: Reason, words: str) -> None:
        """Reject several proposals, one after the other."""
        failed: list[tuple[InboxItem, str]] = []
        for each in items:
            try:
                await self._inbox.reject(each, reason, words)
            except MeupError as error:
                failed.append((each, str(error)))
        self._tell_all("are rejected", len(items), failed)

    def _tell_all(self, done: str, count: int, failed: list[tuple[InboxItem, str]]) -> None:
        said = f"{count - len(failed)} of {count} {done}"
        whose = [f"{shown_name(item.tool or item.method)}: {why}" for item, why in failed]
        words = visible("; ".join([said, *whose]), 500)
        self._tell(words, style="danger" if failed else "good")

    async def reject(self, item: InboxItem, reason: Reason, words: str) -> None:
        with self._telling_failure(*title(item)):
            await self._inbox.reject(item, reason, words)
            self._tell("you rejected ", *title(item), f": {reason}", style="bad")

    async def vote(self, item: InboxItem, words: str, *, approve: bool) -> None:
        """Vote about a proposal."""
        with self._telling_failure(*title(item)):
            await self._inbox.vote(item, approve=approve, explanation=words)
            said = "you voted for " if approve else "you voted against "
            self._tell(said, *title(item), style="good" if approve else "bad")

    async def say_yes(self, draft: YesDraft) -> None:
        """Give a yes, and approve the proposal at which it is given."""
        with self._telling_failure(*title(draft.item)):
            await self._inbox.give_yes(
                draft.item, draft.scope, seconds=draft.seconds, most=draft.most
            )
            await self.approve(draft.item)

    async def end_yes(self, yes: ScopedYes) -> None:
        """End a yes before its time."""
        with self._telling_failure("the yes to ", *name(yes.tool, "title")):
            await self._inbox.revoke_yes(yes.id)
            self._tell("the yes to ", *name(yes.tool, "title"), " has ended", style="bad")

    async def accept_tools(self, participant: str, difference: ToolDifference) -> None:
        """Accept the tools of a participant as they were shown."""
        tools = f"the tools of {shown_name(participant)}"
        with self._telling_failure(tools):
            await self._inbox.accept_tools(participant, difference)
            self._tell(f"you accepted {tools}", style="good")

    @contextmanager
    def _telling_failure(self, *subject: Part | str) -> Generator[None]:
        try:
            yield
        except MeupError as error:
            self._tell(*subject, f": {visible(str(error), 500)}", style="danger")


# --- frame ---
# The parts of the inbox's screen and how each is drawn, without what keys do.

WIDE: Final = 100
"""Columns from which on the queue stands beside the decision."""

SMALL: Final = (60, 18)
"""Columns and lines below which questions are asked in few words."""

QUEUE_WIDTH: Final = 36
CARD_MARGIN: Final = 3
SCROLLBAR: Final = 1
"""Columns of the queue, beside the text of a card, and of a scrollbar."""

NOTHING_WAITS: Final = (
    row(Part("Nothing waits for you.", "heading")),
    CardRow(),
    row(Part("What is proposed appears here by itself, the oldest deadline first.", "dim")),
)


class InboxFrame(App[None]):
    """The screen of an inbox: its head, the queue, one decision, a question, and the keys.

    Attributes:
        current: The proposal that is decided now; ``None``: nothing waits.
        gone: Why it waits no longer, while it is still shown.
        marked: The proposals that are decided together.
        rejecting: Those of them that the open question rejects.
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
        self.rejecting: list[InboxItem] = []
        self.note: tuple[Part, ...] = ()
        self.question = ScreenQuestion.NOTHING
        self.draft: YesDraft | None = None
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
            view.show(NOTHING_WAITS)
        else:
            shown = ShownValue()
            view.show(card_rows(self.current, shown), anew=anew)
            self.is_whole = shown.is_whole
        return view.rows != before

    def show_frame(self) -> None:
        """Draw everything around the card."""
        if not self.is_drawn:
            return
        rows = self.rows()
        items = self.in_groups(rows)
        if self.current is not None and self.gone is None and self.current in items:
            self.at = items.index(self.current)
        self.query_one("#queue", QueueView).show(items, rows, self.current, self.marked)
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

    def rows(self) -> dict[InboxItem, QueueRow]:
        """The rows of the head of the queue, in groups."""
        return {each.item: each for each in queue_rows(self.inbox.items[:GROUPED])}

    def in_groups(self, rows: Mapping[InboxItem, QueueRow]) -> list[InboxItem]:
        """The queue in the order in which it is shown."""
        return [*rows, *self.inbox.items[GROUPED:]]

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
            what = "approve" if Verb.APPROVE in may else "vote for it"
            if self.marked:
                what = f"approve {len(self.marked)} marked"
            said.append(("a", what, "bold white on #1f7a3a"))
        if Verb.APPROVE in may:
            if item is not None and item.takes_edits:
                said.append(("e", "edit", ""))
            said.append(("y", "yes", ""))
        if Verb.REJECT in may:
            said.append(("r", "reject", "bold white on #b3261e"))
        if Verb.VOTE in may:
            said.append(("v", "vote", ""))
        said += [("j k", "move", ""), ("?", "help", ""), ("q", "leave", "")]
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
        lines = [self._text(*each) for each in self._question_lines()]
        if not (lines or ask.display):
            return  # a layout of the whole screen takes longer than all else
        ask.display = bool(lines)
        ask.update(Text("\n").join(lines))

    def _question_lines(self) -> list[ScreenLine]:
        """The lines of the question that is open."""
        width, height = self.size
        is_small = width < SMALL[0] or height < SMALL[1]
        doubted = _doubt_lines(() if self.current is None else self.doubts(self.current))
        words = (
            (Part("with your words: ", "dim"), *theirs(self.words))
            if self.words
            else _answer_line("w", "say something with it")
        )
        match self.question:
            case ScreenQuestion.SURE:
                return [*doubted, _answer_line("y", "approve it all the same")]
            case ScreenQuestion.EDITED:
                return [_answer_line("y", "carry out what you made of it")]
            case ScreenQuestion.TOOLS:
                return [_answer_line("y", "accept these tools as they are now")]
            case ScreenQuestion.FILE:
                return [(Part("any key goes back to the call", "dim"),)]
            case ScreenQuestion.YES:
                if self.draft is None:
                    return []
                doubted = _doubt_lines(self.draft.doubts)
                return [*doubted, *_wrap_keys(YES_KEYS), _answer_line("y", self.draft.question)]
            case ScreenQuestion.YESES:
                return [_answer_line("1-9", "ends that one: its calls are asked about again")]
            case ScreenQuestion.MARKED:
                count = len(self.marked)
                return [_answer_line("y", f"approve all {count}, in the order of their arrival")]
            case ScreenQuestion.REASON:
                head = [(Part(f"reject all {len(self.rejecting)} that are marked", "danger"),)]
                reasons = _wrap_keys(REASON_CODES) if is_small else _in_columns()
                return [*(head if self.rejecting else []), *reasons, words]
            case ScreenQuestion.VOTE:
                for_it = (Part("a ", "key"), Part("for it"))
                against = (Part("r ", "key"), Part("against it"))
                return [*doubted, for_it, against, words]
            case ScreenQuestion.HELP:
                if is_small:
                    return _wrap_keys(SHORT_HELP)
                return [(Part(f"{keys:<14}", "key"), Part(said)) for keys, said in HELP]
            case ScreenQuestion.LEAVE:
                running = self.decisions.underway
                said = f"{running} approved calls still run; leaving cancels them."
                return [(Part(said, "danger"),), _answer_line("y", "leave")]
            case ScreenQuestion.NOTHING:
                return []

    def doubts(self, item: InboxItem) -> list[str]:
        """Reasons for which approving asks once more."""
        view = self.card
        found = list(item.danger)
        if item.takes_word:
            found.append(f"its rule takes a word: press w, type {CONFIRM_WORD}, enter")
        if unseen := view.unseen_lines:
            lines = "line of it has" if unseen == 1 else "lines of it have"
            found.append(f"{unseen:,} {lines} not been on the screen")
        elif not view.is_seen_at_once:
            found.append("it is longer than the screen")
        return found

    def marked_in_order(self) -> list[InboxItem]:
        """The marked proposals in the order of their arrival."""
        return sorted(self.marked, key=lambda item: item.arrived_at)


# --- editor ---
# Editing of arguments in the person's own editor, before they are approved.

MAX_EDITED: Final = 4 << 20
"""Bytes of a file that is read back: as many as a frame has."""


class EditRefused(Exception):
    """Refuses what a person asked for at the screen; its words are for that person."""


async def edited_arguments(
    edit: Callable[[str], Awaitable[str]], arguments: dict[str, Any]
) -> dict[str, Any]:
    """The arguments as a person has edited them.

    Raises:
        EditRefused: There is no editor, or what came back is not a JSON object.
    """
    try:
        edited = read_json(await edit(as_text(arguments)))
    except ValueError as error:
        raise EditRefused(f"what you wrote is not JSON, so nothing was sent: {error}") from None
    if not is_object(edited):
        raise EditRefused("what you wrote is not a JSON object, so nothing was sent")
    return edited


def as_text(arguments: dict[str, Any]) -> str:
    """Arguments as JSON with indents; what does not print as itself stands as an escape of JSON."""
    written = json.dumps(arguments, indent=2, ensure_ascii=False)
    hidden = {
        ord(each): json.dumps(each)[1:-1]
        for each in set(written) - {"\n"}
        if not each.isprintable()
        or any(part.mark not in (None, Mark.LOOK_ALIKE) for part in segments(each))
    }
    return written.translate(hidden) + "\n"


async def run_editor(text: str, suspended: Callable[[], AbstractContextManager[None]]) -> str:
    """The text after a person has edited it in the editor of their environment.

    The loop goes on meanwhile, so that the space is heard.

    Args:
        text: The text.
        suspended: Leaves the terminal to the editor.

    Raises:
        EditRefused: There is no editor, or it failed.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        command = shlex.split(editor)
    except ValueError as error:
        raise EditRefused(f"{editor!r} cannot be read ({error}); set EDITOR") from None
    # A folder of its own, which no other user reads: an editor leaves copies beside a file.
    with tempfile.TemporaryDirectory(prefix="meup-edit-", ignore_cleanup_errors=True) as folder:
        path = anyio.Path(folder, "arguments.json")
        await path.write_text(text, encoding="utf-8")
        with suspended():
            try:
                done = await anyio.run_process(
                    [*command, str(path)], stdin=None, stdout=None, stderr=None, check=False
                )
            except OSError as error:
                said = f"{editor} cannot be started ({system_reason(error)}); set EDITOR"
                raise EditRefused(said) from None
        if done.returncode:
            raise EditRefused(f"{editor} ended with {done.returncode}, so nothing was sent")
        try:
            if (await path.stat()).st_size > MAX_EDITED:
                raise EditRefused("what you wrote is too large, so nothing was sent")
            return await path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise EditRefused("what you wrote is not text in UTF-8, so nothing was sent") from None
        except OSError as error:
            raise EditRefused(
                f"what you wrote cannot be read ({system_reason(error)}), so nothing was sent"
            ) from None


# --- screen ---

TOO_LONG: Final = "too long to be shown here: meup inbox show, then meup inbox approve"
"""Refusal of all that lets a call pass of which the screen shows a part."""

GUARD_SECONDS: Final = 0.4
"""Time for which keys that decide do nothing after the screen has changed by itself: a person who
presses one meant what was there before."""

SCROLLED: Final = (
    ScreenQuestion.FILE,
    ScreenQuestion.MARKED,
    ScreenQuestion.TOOLS,
    ScreenQuestion.YES,
    ScreenQuestion.YESES,
)
"""Questions about something that may be longer than the screen."""

COVERS_CARD: Final = (ScreenQuestion.EDITED, *SCROLLED)
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
        self._kept: list[ScopedYes] = []

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
            touched = any(
                isinstance(each, InboxRenewed) or each.item is self.current for each in batch
            )
            shown = self.gone is None and self.question not in COVERS_CARD
            if touched and shown and self.show_card(anew=False):
                self._changed_by_itself()
            if self.question is ScreenQuestion.MARKED:
                self._show_marked(anew=False)
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
        items = self.in_groups(self.rows())
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
        self.show_outcome(words, style="late")

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
        elif not (self.question in SCROLLED and self._scroll(key)):
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
                self._start(self._show_tools(), self.current)
            case "f":
                self._start(self._show_file(), self.current)
            case "t":
                self.theme = "meup-light" if self.current_theme.dark else "meup-dark"
            case "?":
                self._open_question(ScreenQuestion.HELP)
            case "q" | "ctrl+c" | "ctrl+q":
                if self.decisions.underway:
                    self._open_question(ScreenQuestion.LEAVE)
                else:
                    self._leave_now()
            case "Y":
                self._start(self._show_yeses())
            case "a" | "e" | "r" | "v" | "m" | "x" | "X" | "y":
                await self._decide(key)
            case _:
                pass

    async def _decide(self, key: str) -> None:
        item = self.current
        if key == "a" and self.marked:
            self._open_question(ScreenQuestion.MARKED)
            self._show_marked(anew=True)
        elif key == "r" and self.marked:
            self.rejecting = [each for each in self.marked_in_order() if Verb.REJECT in each.may]
            if self.rejecting:
                self._open_question(ScreenQuestion.REASON)
            else:
                self._refuse("you may reject none of those that are marked")
        elif item is None:
            self._refuse("nothing waits for you")
        elif self.gone is not None:
            self._refuse("it is gone; j goes on")
        elif self._is_too_soon():
            self._refuse("the screen has just changed; look, and press it again")
        elif key == "a":
            self._approve(item)
        elif key in ("m", "x"):
            self._mark(item)
        elif key == "X":
            self._mark_group(item)
        elif key == "y":
            self._start(self._draft_yes(item), item)
        elif key == "e" and not self.is_whole:
            self._refuse(TOO_LONG)
        elif key == "e" and Verb.APPROVE in item.may:
            self._start(self._edit_and_ask(item))
        elif key == "r" and Verb.REJECT in item.may:
            self.rejecting = []
            self._open_question(ScreenQuestion.REASON)
        elif key == "v" and Verb.VOTE in item.may:
            self._open_question(ScreenQuestion.VOTE)
        else:
            self._refuse(NOT_OFFERED[key])

    def _answer(self, key: str) -> None:
        question, item = self.question, self.current
        asks_word = item is not None and item.takes_word and question in CONFIRMED
        if key == "w" and (asks_word or question in (ScreenQuestion.REASON, ScreenQuestion.VOTE)):
            self.field.display = True
            self.screen.set_focus(self.field)
            return
        words, edited = self.words, self._edited
        if question is not ScreenQuestion.HELP and self._is_too_soon():
            self._refuse("the screen has just changed; look, and press it again")
            return
        marked = self.marked_in_order()
        whole = (ScreenQuestion.TOOLS, ScreenQuestion.MARKED)
        if question in whole and key == "y" and self.card.unseen_lines:
            self._refuse("scroll to its end first: space; you say yes to all of it")
            return
        if question is ScreenQuestion.VOTE and key == "a" and not self.is_whole:
            self._refuse(TOO_LONG)
            return
        draft = self.draft
        if question is ScreenQuestion.YES and draft is not None and draft.item is item:
            if key == "e":
                self._start(self._write_pattern(draft))
                return
            changed = draft.press(key)
            if changed is not None:
                self._show_draft(changed)
                return
        self._close_question()
        match question, key:
            case ScreenQuestion.LEAVE, "y":
                self._leave_now()
            case ScreenQuestion.MARKED, "y":
                self.run_worker(self.decisions.approve_all(marked))
            case ScreenQuestion.TOOLS, "y" if self._tools is not None:
                self.run_worker(self.decisions.accept_tools(*self._tools))
            case ScreenQuestion.YESES, _ if key.isdecimal() and 1 <= int(key) <= len(self._kept):
                self.run_worker(self.decisions.end_yes(self._kept[int(key) - 1]))
            case ScreenQuestion.REASON, _ if self.rejecting:
                if key in REASON_KEYS:
                    reason = REASON_KEYS[key][0]
                    self.run_worker(self.decisions.reject_all(self.rejecting, reason, words))
            case _ if item is None or self.gone is not None:
                pass
            case ScreenQuestion.YES, "y" if draft is not None and draft.item is item:
                self.run_worker(self.decisions.say_yes(draft))
            case ScreenQuestion.SURE, "y":
                self.run_worker(self.decisions.approve(item, word=words))
            case ScreenQuestion.EDITED, "y":
                self.run_worker(self.decisions.approve(item, edited, words))
            case ScreenQuestion.REASON, _ if key in REASON_KEYS:
                self.run_worker(self.decisions.reject(item, REASON_KEYS[key][0], words))
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
        elif why := self._why_unmarked(item):
            self._refuse(why)
        else:
            self.marked.add(item)
            self._go_to(self.at + 1, by_itself=False)

    def _mark_group(self, item: InboxItem) -> None:
        """Mark all that wait of one tool and proposer, or, once all are, none of them."""
        group = [each for each in self.rows() if group_of(each) == group_of(item)]
        left = [each for each in group if each not in self.marked]
        whys: list[str] = []
        for each in left:
            if why := self._why_unmarked(each):
                whys.append(why)
            else:
                self.marked.add(each)
        if len(whys) == len(left):
            self.marked.difference_update(group)
        if whys:
            self._refuse(f"{len(whys)} of the group: {whys[0]}")

    def _why_unmarked(self, item: InboxItem) -> str:
        if len(self.marked) >= MAX_TOGETHER:
            return f"{MAX_TOGETHER} are marked; decide these first"
        why = why_alone(item)
        return f"it is approved alone: {visible(why, 200)}" if why else ""

    def _show_marked(self, *, anew: bool) -> None:
        """Show all that are marked as they will run; what is approved alone is marked no longer."""
        shown, rows = list[InboxItem](), list[CardRow]()
        for each in self.marked_in_order():
            whole = ShownValue(MAX_SHOWN // MAX_TOGETHER)
            call = [row(Part("of ", "dim"), *name(each.proposer, "name")), *call_rows(each, whole)]
            why = why_alone(each) or ("" if whole.is_whole else "it is long")
            if why:
                self.marked.discard(each)
                self._refuse(f"one is marked no more, and approved alone: {visible(why, 200)}")
            else:
                shown.append(each)
                rows += [*call, CardRow()]
        if not shown:
            self._close_question()
            self.show_frame()
        elif anew or tuple(rows) != self.card.rows:
            self.card.show(rows, anew=anew)
            self._changed_at = self._changed_at if anew else self._clock()

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

    def _start(self, work: Coroutine[Any, Any, None], item: InboxItem | None = None) -> None:
        """Read, ask or show something beside the screen; what goes wrong is said above the keys."""

        async def run() -> None:
            try:
                await work
            except EditRefused as error:
                self.show_outcome(visible(str(error), 300), style="late")
            except MeupError as error:
                said = visible(str(error), 300)
                whose: tuple[Part | str, ...] = () if item is None else (*title(item), ": ")
                self.show_outcome(*whose, said, style="late")

        self.run_worker(run())

    def _still_shows(self, item: InboxItem) -> bool:
        """True if the person has meanwhile gone on to nothing else."""
        return self.question is ScreenQuestion.NOTHING and self.current is item

    async def _show_tools(self) -> None:
        """Show how the tools of the current call's server have changed, and offer to accept it."""
        item = self.current
        if item is None or item.target is None:
            raise EditRefused("no server to look at")
        difference = await self.inbox.read_tools(item.target)
        if not self._still_shows(item):
            return
        if not difference.tools:
            said = "the tools of its server are as they were accepted"
            self.show_outcome(said, style="dim")
            return
        self._tools = (item.target, difference)
        self.card.show(difference_rows(difference))
        self._open_question(ScreenQuestion.TOOLS)

    async def _show_file(self) -> None:
        """Show what the current call would change in the file that it writes."""
        item = self.current
        if item is None:
            raise EditRefused("nothing waits for you")
        difference = await self.inbox.read_file(item)
        if not self._still_shows(item):
            return
        self.card.show(file_rows(difference))
        self._open_question(ScreenQuestion.FILE)

    async def _draft_yes(self, item: InboxItem) -> None:
        """Offer the scopes of a yes to calls like the current one."""
        if not self.is_whole:
            self._refuse(TOO_LONG)
            self.show_frame()
            return
        doubts = tuple(self.doubts(item))
        self.inbox.check_yes(item)
        past = await self.inbox.read_past(item)
        if not self._still_shows(item):
            return
        scopes = self.inbox.offered_scopes(item)
        number = choose_scope(scopes, past, item.arguments)
        is_used = self.inbox.uses_yeses
        draft = YesDraft(item, tuple(scopes), past, number, is_used=is_used, doubts=doubts)
        self._open_question(ScreenQuestion.YES)
        self._show_draft(draft)

    def _show_draft(self, draft: YesDraft) -> None:
        self.draft = draft
        self.card.show(draft.rows())
        self.show_frame()

    async def _write_pattern(self, draft: YesDraft) -> None:
        """Let the person write the patterns of a yes."""
        if self._edit is None:
            self._refuse("no editor is here; set EDITOR")
            self.show_frame()
            return
        scope = draft.scope
        given = {"arguments": scope.arguments, "others": scope.others}
        written = read_scope(await edited_arguments(self._edit, given))
        if self.question is not ScreenQuestion.YES or self.current is not draft.item:
            return
        if not written.takes(draft.item.arguments):
            raise EditRefused("what you wrote does not take this call")
        self._show_draft(draft.written(written))

    async def _show_yeses(self) -> None:
        """Show the yeses that are kept, and offer to end one."""
        kept = await self.inbox.yeses()
        if self.question is not ScreenQuestion.NOTHING:
            return
        self._kept = [each.yes for each in reversed(kept)][:MAX_LISTED]
        self.card.show(kept_rows(kept, self.inbox.time_of_day().timestamp()))
        self._open_question(ScreenQuestion.YESES)

    async def _edit_and_ask(self, item: InboxItem) -> None:
        """Let the person edit the arguments, and show what is different before anything is sent."""
        if not item.takes_edits:
            self._refuse("its agent runs it only as it is; approve or reject it")
            return
        if self._edit is None:
            self._refuse("no editor is here; set EDITOR")
            self.show_frame()
            return
        edited = await edited_arguments(self._edit, item.arguments)
        if item.left is not None:
            words = theirs(item.left.words, "late")
            self.show_outcome("it is gone, so nothing was sent: ", *words, style="late")
            return
        if item is not self.current:
            raise EditRefused("you went on to another one, so nothing was sent")
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
