"""Yeses in advance at the inbox's screen: a draft that keys change, and the list of those kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from meup_agent.approval.yeses.preview import MAX_SHOWN, preview_scope
from meup_agent.approval.yeses.scopes import YesScope
from meup_agent.cli.inbox.card import CardRow, Part, name, row, theirs, title
from meup_agent.protocol.wire.envelope import encode_leniently
from meup_agent.wording import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meup_agent.approval import InboxItem
    from meup_agent.approval.yeses.preview import SeenCall
    from meup_agent.protocol.wire.scoped_yes import KeptYes

TIMES: Final = (3600.0, 8 * 3600.0, 7 * 86_400.0)
"""Seconds that a key goes through."""

USES: Final = (20, 100, 1_000, 1, 5)
"""Numbers of calls that a key goes through."""

MAX_LISTED: Final = 9
"""Yeses of the list that a digit ends: the latest."""


@dataclass(frozen=True)
class YesDraft:
    """A yes before it is given.

    Attributes:
        item: The proposal at which it is given.
        scopes: The scopes that are offered.
        past: Other calls of its tool that are known.
        number: The place of the chosen scope.
        time: The place of its time in :data:`TIMES`.
        use: The place of its number of calls in :data:`USES`.
        is_used: A reviewer is here that uses it.
        doubts: Reasons to look twice at the call itself.
    """

    item: InboxItem
    scopes: tuple[YesScope, ...]
    past: list[SeenCall]
    number: int
    time: int = 0
    use: int = 0
    is_used: bool = True
    doubts: tuple[str, ...] = ()

    @property
    def scope(self) -> YesScope:
        """The chosen scope."""
        return self.scopes[self.number]

    @property
    def seconds(self) -> float:
        """The time for which it holds."""
        return TIMES[self.time]

    @property
    def most(self) -> int:
        """Calls that it lets through."""
        return USES[self.use]

    def press(self, key: str) -> YesDraft | None:
        """The draft as a key changes it; ``None``: the key changes nothing."""
        if key.isdecimal() and 1 <= int(key) <= len(self.scopes):
            return replace(self, number=int(key) - 1)
        if key == "h":
            return replace(self, time=(self.time + 1) % len(TIMES))
        if key == "n":
            return replace(self, use=(self.use + 1) % len(USES))
        return None

    def written(self, scope: YesScope) -> YesDraft:
        """The draft with a scope that a person wrote, which is chosen."""
        offered = self.scopes if self.scopes[0].words != scope.words else self.scopes[1:]
        return replace(self, scopes=(scope, *offered), number=0)

    def rows(self) -> Iterator[CardRow]:
        """It as a card, with what it takes and what it does not."""
        yield row(Part("Yes to ", "heading"), *title(self.item), Part(" by ", "heading"),
                  *name(self.item.proposer, "name"), Part(" with", "heading"))  # fmt: skip
        for number, each in enumerate(self.scopes):
            is_chosen = number == self.number
            mark = Part("▌" if is_chosen else " ", "key")
            yield row(mark, Part(f"{number + 1} ", "key"), *theirs(each.words))
            for line in each.shown.splitlines() if is_chosen else ():
                yield row(*theirs(line, "string"), indent=6)
        yield CardRow()
        preview = preview_scope(self.scope, self.item.call, self.past)
        yield row(Part(preview.summary, "dim"))
        for seen in preview.covered[:MAX_SHOWN]:
            by = f" by {seen.by}" if seen.by else ""
            yield row(Part("+ ", "good"), *_call(seen), *theirs(f"  {seen.state}{by}", "dim"))
        for seen in preview.near:
            yield row(Part("- ", "bad"), *_call(seen), *theirs(f"  {seen.state}", "dim"))
        for said in preview.warnings:
            yield row(Part("! ", "danger"), *theirs(said, "late"))
        if not self.is_used:
            yield row(Part("! no reviewer is here that would use it: meup reviewer", "danger"))

    @property
    def question(self) -> str:
        """The question that `y` answers."""
        calls = "1 call" if self.most == 1 else f"{self.most} calls"
        return f"approve it, and for {duration(self.seconds)} at most {calls} like it"


def _call(seen: SeenCall) -> Iterator[Part]:
    text = encode_leniently(seen.arguments).decode()
    yield from theirs(text[:160] + ("…" if len(text) > 160 else ""))


def kept_rows(kept: list[KeptYes], now: float) -> Iterator[CardRow]:
    """The yeses that are kept, the latest first; ``now`` in seconds since 1970."""
    yield row(Part("Yeses in advance", "heading"))
    for number, each in enumerate(kept[::-1][:MAX_LISTED], 1):
        yes = each.yes
        left = f"{duration(max(0.0, yes.until / 1e6 - now))} left"
        end = left if each.is_active else each.state.replace("_", " ")
        yield row(
            *(Part(f"{number} ", "key"), *name(yes.target, "target"), Part(".", "dim")),
            *(*name(yes.tool, "title"), Part(" by ", "dim"), *name(yes.proposer, "name")),
            Part(f"  {yes.used} of {yes.most} used, {end}, said by ", "dim"),
            *name(yes.by),
        )
        for line in YesScope("", yes.arguments, yes.others).shown.splitlines():
            yield row(*theirs(line, "string"), indent=4)
    if not kept:
        yield row(Part("there are none; y at a proposal says one", "dim"))
