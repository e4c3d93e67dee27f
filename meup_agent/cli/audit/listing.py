"""The proposals of a space, or what was done to it, one after the other.

::

    2026-01-31 22:01:07  4f2a91c0  alice  files.write_file(path="a.txt")            fulfilled
                         by bob 22:01:09, after 2.0 s; edited: path "a.txt" → "b.txt"

On a terminal each has a line, or more where it is long, and below it what there is to say of it;
where the output goes elsewhere, each is one line, for ``grep``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from meup_agent.cli.audit.phrases import (
    by_rule,
    name,
    names,
    state_of,
    time_of,
    why,
)
from meup_agent.cli.render.formatting import format_answer, format_capability
from meup_agent.cli.render.layout import MAX_FOLLOWED, NARROW, STATE_STYLES, RowBuilder
from meup_agent.escape import compact, visible
from meup_agent.protocol.audit import ProposalAudit, SpaceOperation, Step, StepKind
from meup_agent.protocol.payloads import objects_in
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.wording import MAX_NAME, describe_changes, duration, format_proposed

SHORT_ID: Final = 8  # characters of an id that are shown, more where another one begins alike

WHOLE_ID: Final = 12
"""Ids up to this long are shown whole: people, or programs that count, made them."""

WIDEST_NAME: Final = 16  # columns of the proposers' names
BEFORE_IDS: Final = len("2026-01-31 22:01:07  ")
INDENT: Final = 4  # columns before what stands below, on a narrow terminal

_DONE: Final = {
    "grant": "granted",
    "grant_ack": "took",
    "revoke": "revoked",
    "invite": "invited",
    "kick": "kicked",
    "accept_tools": "accepted the tools of",
}

_Item = ProposalAudit | SpaceOperation


class ProposalListing:
    """Makes the lines."""

    def __init__(self, width: int | None, now: float) -> None:
        self._width = width
        self._now = now
        self._ids = IdPrefixes()
        # Columns grow with what comes, and do not shrink again.
        self._id_width = self._who_width = 0
        self._shown_ids: dict[str, str] = {}

    def proposals(self, proposals: Sequence[ProposalAudit]) -> Iterator[Text]:
        """The lines of the next proposals."""
        self._widen(proposals, {item.proposer for item in proposals})
        for item in proposals:
            call = format_proposed(item.call, more="meup audit --proposal")
            state, details = state_of(item), self._details(item)
            yield self._entry(item, item.first.at, item.proposer, call, state, details)

    def operations(self, operations: Sequence[SpaceOperation]) -> Iterator[Text]:
        """The lines of what was done next to the space."""
        self._widen(operations, {item.by for item in operations})
        for item in operations:
            details = _about_operation(item)
            yield self._entry(item, item.at, item.by, _operation(item), "", details)

    def _widen(self, items: Sequence[_Item], senders: Iterable[str]) -> None:
        """Shorten the next ids, and make room for them and for the senders."""
        self._shown_ids = self._ids.of([item.id for item in items])
        self._id_width = max(self._id_width, *map(cell_len, self._shown_ids.values()), 0)
        widest = max((cell_len(name(each)) for each in senders), default=0)
        self._who_width = max(self._who_width, min(widest, WIDEST_NAME))

    def _entry(
        self, item: _Item, at: int, sender: str, what: str, state: str, details: Iterator[str]
    ) -> Text:
        time, short, who = f"{time_of(at)}  ", self._shown_ids[item.id], name(sender)
        if self._width is None:
            said = [time + short.ljust(self._id_width), who, what, state, "; ".join(details)]
            return Text("  ".join(filter(None, said)), no_wrap=True)
        row = RowBuilder(self._width)
        row.put(Text(time, style="dim"), 0)
        row.put(Text(short, style="cyan"), BEFORE_IDS)
        row.put(Text(who, style="bold"), BEFORE_IDS + self._id_width + 2)
        self._put_call(row, Text(what), Text(state, style=STATE_STYLES.get(state, "")))
        for detail in details:
            row.end_line()
            row.put(Text(detail, style="dim"), self._below)
        return row.text()

    def _put_call(self, row: RowBuilder, call: Text, state: Text) -> None:
        """Put a call beside its proposer where it has room there, else below."""
        width = self._width or NARROW
        beside = max(row.used, BEFORE_IDS + self._id_width + 2 + self._who_width) + 2
        state_room = state.cell_len + 2 if state else 0
        if width >= NARROW and beside + call.cell_len + state_room <= width:
            row.put(call, beside)
            row.put_right(state)
            return
        row.put_right(state)
        row.end_line()
        row.put(call, self._below)

    @property
    def _below(self) -> int:
        """The column of lines below the first."""
        return BEFORE_IDS if (self._width or NARROW) >= NARROW else INDENT

    # --- what there is to say of a proposal ---

    def _details(self, item: ProposalAudit) -> Iterator[str]:
        decision = item.decision
        if decision is None:
            yield from self._describe_pending(item)
        elif item.state is ProposalState.EXPIRED:
            yield f"no decision in its time, which was {self._until(item)}"
        else:
            when = time_of(decision.at, beside=item.first.at)
            took = duration((decision.at - item.first.at) / 1_000_000)
            said = why(decision.reason, item.explanation(decision.step))
            yield f"by {name(decision.by)} {when}, after {took}" + (f": {said}" if said else "")
            if rule := by_rule(decision.step.rule):
                yield rule
        yield from self._fulfilled(item)
        others = [
            step
            for step in item.rejections
            if decision is None or step.by != decision.by or decision.step.what != StepKind.REJECTED
        ]
        if others:
            rejections = (_rejection(item, step) for step in others)
            yield f"rejected by {', '.join(rejections)}"

    def _describe_pending(self, item: ProposalAudit) -> Iterator[str]:
        begun_by = item.record.in_progress_by
        for fulfillment in item.fulfillments:
            if begun_by is not None and fulfillment.request.live:
                since = time_of(fulfillment.step.at, beside=item.first.at)
                yield f"{name(fulfillment.by)} carries it out since {since}"
        if item.record.envelope.to and begun_by is None:
            yield f"waits for {names(item.record.envelope.to)}"
        if item.is_past(self._now):
            yield f"past its time, which was {self._until(item)}"

    def _until(self, item: ProposalAudit) -> str:
        expires_at = item.record.expires_at
        return "" if expires_at is None else time_of(expires_at, beside=item.first.at)

    def _fulfilled(self, item: ProposalAudit) -> Iterator[str]:
        changes = describe_changes(item.changes)
        if changes:
            yield f"edited: {changes}"
        if item.state is not ProposalState.FULFILLED:
            return
        answered = item.answered
        if answered is not None and answered.is_error:
            yield format_answer(answered.answer)[0] if answered.answer else "failed"


def _rejection(item: ProposalAudit, step: Step) -> str:
    said = (why(step.reason, item.explanation(step)), by_rule(step.rule))
    return f"{name(step.by)} ({', '.join(filter(None, said))})"


def _about_operation(item: SpaceOperation) -> Iterator[str]:
    if item.reason:
        yield why(item.reason)
    if item.rests_on:
        yield f"rests on the grant {names(item.rests_on)}"
    also = [each for each in item.ended if each != item.grant]
    if also:
        yield f"ended the grant {names(also)}, too" if item.grant else f"ended {names(also)}"


def _operation(item: SpaceOperation) -> str:
    capabilities = ", ".join(
        format_capability(each)
        for key in ("capabilities", "initial_capabilities")
        for each in objects_in(item.details.get(key))
    )
    words = [_DONE.get(item.what, item.what)]
    words += [name(item.whom)] if item.whom else []
    words += [f"the grant {visible(item.grant, MAX_NAME)}"] if item.grant else []
    words += [f"({capabilities})"] if capabilities else []
    if not (item.whom or item.grant or capabilities):
        words.append(compact(item.details, MAX_NAME))
    return " ".join(words)


class IdPrefixes:
    """Short forms of ids, which tell each from its neighbours and from the latest before."""

    def __init__(self) -> None:
        self._taken: dict[str, str] = {}

    def of(self, ids: Iterable[str]) -> dict[str, str]:
        """The short forms of the next ids."""
        texts = {each: visible(each, MAX_NAME) for each in ids}
        ordered = sorted(set(texts.values()))
        shorts: dict[str, str] = {}
        for position, each in enumerate(ordered):
            beside = (
                *ordered[max(position - 1, 0) : position],
                *ordered[position + 1 : position + 2],
            )
            alike = max((_alike(each, other) for other in beside), default=0)
            shorts[each] = self._short(each, max(alike + 1, SHORT_ID))
        for text, short in shorts.items():
            # All of its beginnings: each of them would mean this one, too.
            for length in range(min(SHORT_ID, len(short)), len(short) + 1):
                self._taken.setdefault(short[:length], text)
        for oldest in list(islice(self._taken, max(len(self._taken) - MAX_FOLLOWED, 0))):
            del self._taken[oldest]
        return {each: shorts[text] for each, text in texts.items()}

    def _short(self, text: str, length: int) -> str:
        if len(text) <= WHOLE_ID:
            return text
        while length < len(text) and self._taken.get(text[:length], text) != text:
            length += 1
        return text[:length]


def _alike(text: str, other: str) -> int:
    """Count the characters with which two texts begin alike."""
    pairs = zip(text, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(text), len(other)))
