"""Cards: a proposal, or a yes in advance, as rows with all that a person decides by; its bell."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import anyio
from anyio import AsyncContextManagerMixin
from rich.cells import cell_len, chop_cells

from meup_agent.approval.inbox.item import InboxItem, Verb
from meup_agent.approval.inbox.preview import MAX_SHOWN as MAX_PREVIEWED
from meup_agent.approval.inbox.preview import SeenCall, preview_scope
from meup_agent.approval.yeses import YesScope
from meup_agent.client.file_difference import FileDifference, read_written_file
from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.escape import compact, visible
from meup_agent.protocol.wire.envelope import encode_leniently
from meup_agent.protocol.wire.payloads import TOOL_CALL, Change, is_list, is_object, without_meta
from meup_agent.protocol.wire.shown_text import segments
from meup_agent.transport.base import background_tasks
from meup_agent.wording import (
    AT_TERMINAL,
    MAX_NAME,
    WHOLE,
    duration,
    format_proposed,
    shown_name,
    shown_names,
    time_left,
)

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from meup_agent.approval.reviewer.methods import InboxRule
    from meup_agent.client.tool_changes import ToolDifference
    from meup_agent.protocol.wire.scoped_yes import KeptYes

# --- rows ---
# Lines of styled text, and JSON values as rows in which nothing of them is hidden.

MAX_SHOWN: Final = 256 * 1024
"""Characters of a call that a screen shows; what is longer is not approved there."""

MAX_DEPTH: Final = 12
"""Levels of a value that get rows of their own; what is deeper stands on one line."""

MAX_ROWS: Final = 20_000
"""Rows of a value: a list of numbers has one for each."""

GUTTER: Final = "│ "
"""Before each line of a text: no line of a stranger's begins where one of ours does."""


class Part(NamedTuple):
    """A part of a row, printable, in one style; its name is looked up in a theme."""

    text: str
    style: str = ""


class CardRow(NamedTuple):
    """A line; what does not fit goes on below, behind the indent."""

    parts: tuple[Part, ...] = ()
    indent: int = 0

    @property
    def plain(self) -> str:
        """The line without its styles."""
        return " " * self.indent + "".join(part.text for part in self.parts)


def row(*parts: Part | str, indent: int = 0) -> CardRow:
    """A row of parts; a text alone has no style."""
    made = (Part(each) if isinstance(each, str) else each for each in parts)
    return CardRow(tuple(each for each in made if each.text), indent)


def theirs(text: str, style: str = "", *, is_name: bool = False) -> Iterator[Part]:
    """The text of a stranger, with what hides or deceives in the style ``mark``."""
    for each in segments(text, is_name=is_name):
        yield Part(each.text, "mark" if each.mark else style)


class ShownValue:
    """A JSON value as rows; ``is_whole`` tells whether all of it has been shown.

    Args:
        room: Characters that are shown; ``None``: all.
    """

    def __init__(self, room: int | None = MAX_SHOWN) -> None:
        self.is_whole = True
        self._room = sys.maxsize if room is None else room
        self._rows = sys.maxsize if room is None else MAX_ROWS

    def members(self, values: dict[str, Any], indent: int, depth: int = 0) -> Iterator[CardRow]:
        """The members of an object, a row for each and more for what is in it."""
        for name, value in values.items():
            if not self._has_room(len(name)):
                yield self._cut(indent)
                return
            head = (*theirs(_escaped(name), "key", is_name=True), Part(": ", "dim"))
            yield from self._value(head, value, indent, depth)

    def _value(
        self, head: tuple[Part, ...], value: object, indent: int, depth: int
    ) -> Iterator[CardRow]:
        if isinstance(value, str) and "\n" in value.rstrip("\n"):
            yield from self._text(head, value, indent)
        elif is_object(value) and value and depth < MAX_DEPTH:
            yield CardRow(head, indent)
            yield from self.members(value, indent + 2, depth + 1)
        elif is_list(value) and depth < MAX_DEPTH and _wants_rows(value):
            yield from self._items(head, value, indent, depth)
        else:
            yield CardRow((*head, *self._inline(value)), indent)

    def _items(
        self, head: tuple[Part, ...], values: list[object], indent: int, depth: int
    ) -> Iterator[CardRow]:
        yield CardRow(head, indent)
        for value in values:
            if not self._has_room(1):
                yield self._cut(indent + 2)
                return
            yield from self._value((Part("- ", "dim"),), value, indent + 2, depth + 1)

    def _text(self, head: tuple[Part, ...], text: str, indent: int) -> Iterator[CardRow]:
        shown = text[: self._room]
        lines = shown.split("\n")
        end = "" if lines[-1] else ", the last one ended"
        count = text.count("\n") + bool(text) - (not lines[-1])
        yield CardRow((*head, Part(f"text of {count:,} lines{end}", "dim")), indent)
        for line in lines if lines[-1] else lines[:-1]:
            if not self._has_room(len(line) + 1):
                yield self._cut(indent + 2)
                return
            yield CardRow((Part(GUTTER, "dim"), *_line(line)), indent + 2)
        if len(shown) < len(text):
            yield self._cut(indent + 2)

    def _inline(self, value: object) -> Iterator[Part]:
        """A value on one line, as JSON."""
        is_text = isinstance(value, str)
        said = value if isinstance(value, str) else _dumped(value)
        shown = said[: max(self._room, 0)]
        self._has_room(len(said))
        style = "string" if is_text else "" if isinstance(value, dict | list) else "number"
        mark = [Part('"', style)] if is_text else []
        yield from mark
        yield from theirs(_escaped(shown) if is_text else shown, style)
        yield from mark
        if len(shown) < len(said):
            self.is_whole = False
            yield Part(f" and {len(said) - len(shown):,} more characters", "danger")

    def _has_room(self, characters: int) -> bool:
        self._room -= characters
        self._rows -= 1
        return self._room >= 0 and self._rows >= 0

    def _cut(self, indent: int) -> CardRow:
        self.is_whole = False
        return row(Part("… the rest is not shown here", "danger"), indent=indent)


def _wants_rows(values: list[object]) -> bool:
    """True if a list is too long for one line, or has more than numbers and short words in it."""
    short = all(not isinstance(each, dict | list) for each in values)
    if not short or not values:
        return bool(values)
    return any(isinstance(each, str) and "\n" in each for each in values) or (
        sum(len(str(each)[:60]) + 4 for each in values[:20]) > 60
    )


def _escaped(text: str) -> str:
    """A text as it stands between the quotation marks of JSON."""
    if text.isalnum():
        return text
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _dumped(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "nested too deeply to be shown"


def _line(line: str) -> tuple[Part, ...]:
    """A line of a text; columns stay, everything else that does not print is written out."""
    parts = tuple(theirs(line.removesuffix("\r").expandtabs(4), "string"))
    if line.endswith("\r"):
        parts = (*parts, Part("\\r", "mark"))
    if line.endswith((" ", "\t")):
        parts = (*parts, Part("⏎", "dim"))
    return parts


# --- wrapping ---

MAX_WORD: Final = 20
"""Characters of a word that is not broken where it can go on below."""


def wrapped(rows: Iterable[CardRow], width: int) -> Iterator[list[Part]]:
    for each in rows:
        yield from _wrap(each, max(width, 16))


def _wrap(each: CardRow, width: int) -> Iterator[list[Part]]:
    indent = min(each.indent, width // 2)
    gutter = each.parts[:1] if each.parts and each.parts[0].text == GUTTER else ()
    line: list[Part] = [Part(" " * indent)] if indent else []
    used, is_new = indent, True
    for part in each.parts:
        rest = part.text
        while rest:
            if used >= width:
                yield line
                below = indent if gutter else min(indent + 2, width // 2)
                line, used = [Part(" " * below), *gutter], below + len(GUTTER) * bool(gutter)
                is_new = True
            taken, rest = _split_to_fit(rest, width - used, is_new=is_new)
            if not taken and not is_new:  # a word, or a wide character, that has no room here
                used = width
                continue
            if not taken:  # nor anywhere, as it is counted; without it no line would be the last
                taken, rest = rest[0], rest[1:]
            line.append(Part(taken, part.style))
            # What is left belongs below: the room behind a space is not for half a word.
            used, is_new = width if rest else used + cell_len(taken), False
    yield line


def _split_to_fit(text: str, room: int, *, is_new: bool) -> tuple[str, str]:
    """The beginning of a text that has room, at a space if it has one near, and the rest.

    Nothing of a short word is taken that has no room, unless it would stand there alone.
    """
    if text.isascii():
        if len(text) <= room:
            return text, ""
        first = text[:room]
    else:
        if len(text) <= room * 4 and cell_len(text) <= room:
            return text, ""
        begin = text[: room + 1]
        # Nothing is chopped of characters that take no room.
        first = next(iter(chop_cells(begin, max(room, 1))), begin)
        if cell_len(first) > room:
            return "", text
    end = len(first)
    # Before the space: a line's end would hide it, of a value as well.
    at = text.rfind(" ", max(end - MAX_WORD, 1), end + 1)
    if at > 0:
        return text[:at], text[at:]
    if not is_new and end < len(text.partition(" ")[0]) <= MAX_WORD:
        return "", text
    return first, text[end:]


# --- card ---

ONLY_HEARD: Final = "this gateway lists no proposals: those of before you came are not shown"
"""The note at a gateway of other make."""

SHOW: Final = "meup inbox show"
"""Command that shows all of a call."""

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


def card_rows(item: InboxItem, shown: ShownValue, *, has_keys: bool = True) -> Iterator[CardRow]:
    """A proposal as rows, its call as far as there is room for it.

    ``has_keys``: it stands on a screen, so the keys that act on it are named.
    """
    record, said = item.record, "none of its proposals was decided yet"
    if record.endings:
        counts = ", ".join(f"{count} {state}" for state, count in record.counts.items())
        failed = f", {record.failed} of them failed" if record.failed else ""
        said = f"{counts} of its last {len(record.endings)}{failed}"
    # A client names itself, so its label stands apart from the participant's name.
    label = (Part(", for the client ", "dim"), *name(item.client)) if item.client else ()
    if folder := item.call.folder:
        label = (*label, Part(f" in {visible(folder, MAX_VALUE)}", "dim"))
    proposer = (Part("proposed by ", "dim"), *name(item.proposer, "name"))
    yield row(*proposer, *label, Part(f"  {said}", "dim"))
    if item.call.is_at_terminal:
        yield row(Part(AT_TERMINAL, "danger"))
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
        how = "key s, or meup inbox accept-tools," if has_keys else "meup inbox accept-tools"
        yield row(Part(f"{said}: {how} shows how.", "late"))
    dangers = item.danger
    for each in dangers:
        yield row(Part("! ", "danger"), *theirs(each, "danger"), indent=0)
    for rejection in item.rejections:
        if any(each.startswith(f"{rejection.by} is against it") for each in dangers):
            continue
        said = f"{shown_name(rejection.by)}: {shown_name(rejection.reason)}"
        yield row(Part("rejected already by ", "dim"), said)
    for by, words in item.told.items():
        yield row(*name(by, "dim"), Part(" says: ", "dim"), *theirs(words, "dim"))
    yield CardRow()
    yield from call_rows(item, shown)
    if has_keys and read_written_file(item.call) is not None:
        yield row(Part("key f shows what it changes in the file", "dim"), indent=2)
    yield CardRow()
    yield from _similar(item)


def _rule(rule: InboxRule) -> Iterator[CardRow]:
    place = "" if rule.number is None else f" (rule {rule.number + 1})"
    text = " ".join(rule.text.split())[:MAX_VALUE]  # of a default without a policy, none
    yield row(
        *(Part("asked by ", "dim"), *name(rule.name or "a rule", "name")),
        *(Part(f"{place} of ", "dim"), *name(rule.reviewer, "name")),
        *((Part(": ", "dim"), *theirs(text, "dim")) if text else ()),
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
        parts += [Part(shown_names(missing), "dim")]
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
    by = f" by {shown_name(past.by)}" if past.by else ""
    whose = "" if past.proposer == item.proposer else f" of {shown_name(past.proposer)}"
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


def file_rows(difference: FileDifference) -> Iterator[CardRow]:
    """The difference that a call would make to a file, and the moment at which that was read."""
    if difference.path:
        yield row(
            Part("What its call would change in ", "heading"), *theirs(difference.path, "key")
        )
    if difference.said:
        yield row(*theirs(difference.said, "late"))
    if difference.read_at:
        said = f"As the file was at {difference.read_at}; it may change until the call runs."
        yield row(*theirs(said, "dim"))
    yield CardRow()
    styles = {"-": "bad", "+": "good", "@": "dim", "\\": "dim"}
    for each in difference.lines:
        style = styles.get(each[:1], "")
        yield CardRow((Part(each[:1], style), *theirs(each[1:].expandtabs(4), style)), 2)
    if difference.omitted:
        yield row(Part(f"and {difference.omitted:,} more lines", "danger"))


def why_no_approval(item: InboxItem) -> str:
    """The reason for which approving is not offered; empty where it is."""
    if item.may & {Verb.APPROVE, Verb.VOTE}:
        return ""
    if item.target is None and item.method != TOOL_CALL:
        return "it does not say who should carry it out; see meup fulfill --executor"
    if item.target is None:
        return "you may not approve it"
    return f"you may not approve it, or {shown_name(item.target)} is not here"


# --- notifier ---
# A bell or a command of the person's for each proposal that arrives.

BELL: Final = "bell"

MAX_COMMANDS: Final = 4
"""Commands that run at the same time; of proposals that arrive meanwhile none is told."""

COMMAND_SECONDS: Final = 30.0
"""Time after which a command is stopped."""

MAX_COMMAND: Final = 64
"""Characters of its name that are shown where it fails."""


class Notifier(AsyncContextManagerMixin):
    """Tells a person of what arrives.

    Args:
        command: The command, ``bell``, or ``None``: nothing is told.

    Attributes:
        bell: Rings the terminal's bell.
        report: Shows a sentence.

    Raises:
        ConfigurationError: The command cannot be read.
    """

    def __init__(self, command: str | None) -> None:
        try:
            self._command = shlex.split(command or "")
        except ValueError as error:
            raise ConfigurationError(f"--notify {command!r} cannot be read: {error}") from None
        self.bell: Callable[[], None] = lambda: None
        self.report: Callable[[str], None] = lambda _: None
        self._has_failed = False
        self._tasks: TaskGroup | None = None
        self._running = 0

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        async with background_tasks() as self._tasks:
            yield self

    def arrived(self, item: InboxItem) -> None:
        """Tell of a proposal; returns at once."""
        if self._command == [BELL]:
            self.bell()
        elif self._command and self._tasks is not None and self._running < MAX_COMMANDS:
            self._running += 1
            self._tasks.start_soon(self._run, item)

    async def _run(self, item: InboxItem) -> None:
        # No part of it is a word of the command: a shell in it sees variables alone.
        told = {
            "MEUP_PROPOSAL": shown_name(item.id),
            "MEUP_PROPOSER": shown_name(item.proposer),
            "MEUP_CALL": format_proposed(item.call, more=SHOW),
        }
        try:
            with anyio.move_on_after(COMMAND_SECONDS) as patience:
                done = await anyio.run_process(
                    self._command,
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    stderr=DEVNULL,
                    check=False,
                    env={**os.environ, **told},
                )
                if done.returncode:
                    self._fail(f"exit status {done.returncode}")
            if patience.cancelled_caught:
                self._fail(f"it runs for more than {COMMAND_SECONDS:g} s")
        except OSError as error:
            self._fail(system_reason(error))
        finally:
            self._running -= 1

    def _fail(self, why: str) -> None:
        """Ring the bell, since that is better than silence, and say so the first time."""
        self.bell()
        if not self._has_failed:
            self._has_failed = True
            name = visible(self._command[0], MAX_COMMAND)
            self.report(f"--notify: {name} failed ({why}); the bell rings instead")


def plain_card(item: InboxItem) -> str:
    """A proposal as its card shows it, without a screen, and all of its call."""
    offered = ", ".join(sorted(item.may)) or "nothing"
    left = time_left(item.seconds_left)
    lines = [f"proposal {shown_name(item.id)}, {left}; you may: {offered}"]
    lines.extend(each.plain for each in card_rows(item, ShownValue(room=None), has_keys=False))
    return "\n".join(lines) + "\n"


# --- yeses in advance ---
# A draft that keys change, and the list of those kept.

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
        """The draft as a card, with calls that it takes and some near it that it does not."""
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
        for seen in preview.covered[:MAX_PREVIEWED]:
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
