"""Views of the screen: rows that scroll, and the queue, of which only what is seen is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from meup_agent.cli.inbox.card import title
from meup_agent.cli.inbox.rows import CardRow, Part, wrapped
from meup_agent.cli.inbox.themes import DARK, LIGHT
from meup_agent.escape import visible
from meup_agent.wording import time_left

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from textual import events

    from meup_agent.approval.inbox_item import InboxItem


class LinesView(ScrollView):
    """Lines that scroll; the style of all of them is looked up once for each drawing."""

    can_focus = False

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.base = Style()
        self.styles_by_name = DARK
        self._width_to_come = 0

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

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.rows: tuple[CardRow, ...] = ()
        self._lines: list[list[Part]] = []
        self._wrapped_at = 0
        self._seen = bytearray()  # for each line 1 if it has been on the screen

    @property
    def unseen_lines(self) -> int:
        """Lines that have never been on the screen."""
        return self._seen.count(0)

    @property
    def is_seen_at_once(self) -> bool:
        """True if all of it fits the screen."""
        return len(self._lines) <= self._height

    @property
    def _height(self) -> int:
        return self.size.height

    def show(self, rows: Iterable[CardRow], *, anew: bool = True) -> None:
        """Show rows, from the first on, or at the place of before where little has changed."""
        self.rows = tuple(rows)
        seen = set[tuple[Part, ...]]() if anew else self._seen_lines()
        self._wrap()
        if seen:
            # What others tell of it moves the lines of its call, and changes none of them.
            self._seen = bytearray(tuple(line) in seen for line in self._lines)
        if anew:
            self.scroll_to(y=0, animate=False)
        self._mark_seen()

    def _wrap(self) -> None:
        self._wrapped_at = self.width
        # Before the first layout there is no width, and nothing is drawn.
        self._lines = list(wrapped(self.rows, self._wrapped_at - 1)) if self._wrapped_at else []
        self._seen = bytearray(len(self._lines))
        self.virtual_size = Size(self._wrapped_at, len(self._lines))
        self.refresh()

    def _seen_lines(self) -> set[tuple[Part, ...]]:
        return {tuple(line) for line, seen in zip(self._lines, self._seen, strict=True) if seen}

    def _mark_seen(self) -> None:
        first = min(round(self.scroll_y), len(self._lines))
        last = min(first + self._height, len(self._lines))
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

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._items: Sequence[InboxItem] = ()
        self._current: InboxItem | None = None
        self._marked: set[InboxItem] = set()

    def show(
        self, items: Sequence[InboxItem], current: InboxItem | None, marked: set[InboxItem]
    ) -> None:
        """Show a queue, with the one that is decided now."""
        self._items, self._marked = items, marked
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
        if line == 0:
            sign = "●" if item in self._marked else "▌" if is_current else " "
            parts = [Part(f"{sign} ", "late" if item in self._marked else "key"), *title(item)]
            return to_strip(parts, styles, base, width)
        left = time_left(item.seconds_left).removesuffix(" left")
        who = visible(item.proposer, 40)
        room = max(width - cell_len(left) - 4, 4)
        parts = [Part(f"  {set_cell_size(who, room)} ", "dim")]
        parts.append(Part(left, "late" if "past" in left else "dim"))
        return to_strip(parts, styles, base, width)


def styles_of(view: ScrollView) -> dict[str, str]:
    """The styles for the theme of the moment."""
    # Of which kind an app is, a view does not know.
    theme = view.app.current_theme  # pyright: ignore[reportUnknownMemberType]
    return DARK if theme.dark else LIGHT


def to_strip(parts: Iterable[Part], styles: dict[str, str], base: Style, width: int) -> Strip:
    """Parts as a line of the screen."""
    made = [Segment(part.text, base + Style.parse(styles[part.style])) for part in parts]
    return Strip(made).adjust_cell_length(width, base)
