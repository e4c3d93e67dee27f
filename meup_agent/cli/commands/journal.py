"""``meup audit``: proposals, with who decided each, when and why; ``meup journal``: copies.

:func:`read_file` and :func:`read_over_http` read the entries of a journal;
:class:`~meup_agent.protocol.audit.Audit` folds them; :class:`AuditListing` and
:class:`AuditTimeline` make lines of the result. Nothing is written to a journal or sent into a
space.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast
from urllib.parse import quote

import anyio
import msgspec
import typer
from anyio.lowlevel import checkpoint
from rich.cells import cell_len
from rich.text import Text

from meup_agent.cli.address import HttpAddress, HttpOptions, find_http_url, open_http
from meup_agent.cli.commands import CommandTyper
from meup_agent.cli.failures import Failure, Misuse, require_extra
from meup_agent.cli.options import NoColour, argument, flag, option
from meup_agent.cli.render.formatting import (
    NARROW,
    NARROWEST,
    STATE_STYLES,
    Glyphs,
    IdPrefixes,
    RowBuilder,
    compact_text,
    counted,
    format_answer,
    format_capability,
    hang,
    name_some,
)
from meup_agent.cli.render.logs import log_nothing, log_to_stderr
from meup_agent.cli.render.output import Output, Stderr, progress_line
from meup_agent.cli.signals import ENDING, end_by_signals, run_until_signal
from meup_agent.cli.up.state import find_journal, journal_of_ended, journal_path
from meup_agent.errors import ConfigurationError, InvalidEnvelope
from meup_agent.escape import as_json_line, compact, visible
from meup_agent.protocol.audit import (
    Audit,
    AuditRecord,
    Decision,
    FulfillmentAudit,
    SettledRecords,
    SpaceOperation,
    Step,
    StepKind,
    operation_as_json,
    proposal_as_json,
)
from meup_agent.protocol.dialects import decode
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.space.journal import Entry, NumberRange
from meup_agent.protocol.space.state.grants import GrantEffect
from meup_agent.protocol.wire.envelope import TRANSIT_SECONDS, moment_of
from meup_agent.protocol.wire.payloads import (
    ToldRule,
    as_list,
    as_object,
    as_text,
    objects_in,
    read_call,
)
from meup_agent.protocol.wire.scoped_yes import YesTerms
from meup_agent.wording import (
    FAILED,
    IGNORED,
    MAX_NAME,
    WHOLE,
    describe_changes,
    duration,
    format_call,
    format_proposed,
    shown_name,
    shown_names,
    state_name,
)

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from meup_agent.gateway.journal.decisions import DecisionQuery


# --- the words of an audit ---
# Names, times, states, edits and reasons, safe to print.

MAX_WORDS: Final = 200  # characters of a reason or an explanation on a line


def local(at: int) -> datetime:
    """A time in microseconds since 1970 (UTC), in the user's zone."""
    return datetime.fromtimestamp(at / 1_000_000).astimezone()


def time_of(at: int, *, beside: int | None = None) -> str:
    """A time of day; with its date, unless a time of the same day is told beside it."""
    moment = local(at)
    same_day = beside is not None and local(beside).date() == moment.date()
    return f"{moment:%H:%M:%S}" if same_day else f"{moment:%Y-%m-%d %H:%M:%S}"


def state_of(proposal: AuditRecord) -> str:
    """The state of a proposal; fulfilled by an answer that is an error: ``failed``."""
    failed, ran_anyway = proposal.has_failed, proposal.ran_anyway
    return state_name(proposal.state, failed=failed, ran_anyway=ran_anyway)


def why(reason: str, explanation: str = "") -> str:
    code, text = visible(reason, MAX_WORDS), visible(" ".join(explanation.split()), MAX_WORDS)
    return f"{code}: {text}" if code and text else code or text


def by_rule(rule: ToldRule | None) -> str:
    """The rule that a decision tells, and its votes; empty where it tells none."""
    if rule is None:
        return ""
    said = f"by the rule {shown_name(rule.name)}"
    if rule.policy:
        said += f" of policy {shown_name(rule.policy)}"
    if not rule.of:
        return said
    votes: dict[str, list[str]] = {}
    for voter, vote in rule.votes.items():
        votes.setdefault(vote, []).append(voter)
    each = (f"{shown_name(vote)}: {shown_names(who)}" for vote, who in votes.items())
    return f"{said}, {rule.of} approvals needed ({'; '.join(each) or 'no votes'})"


# --- sources of an audit ---
# A journal's file, or a running gateway over HTTP.

_MICROSECONDS: Final = 1_000_000
PAGE: Final = 500  # entries that are read at a time

DIALECT: Final = "meup/v0.1"
"""Our own dialect: in the published ones `to` of a proposal names its executor, not who decides."""

TRANSIT: Final = round(TRANSIT_SECONDS * _MICROSECONDS)
"""For what the gateway has accepted, and is still about to keep."""

MAX_NOTED: Final = 1_000
"""Ranges of damaged numbers after which those of further pages are not noted."""

_SHOWN_SPACES: Final = 8
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGO: Final = re.compile(r"(\d{1,9})([smhdw])")


class Page(NamedTuple):
    """Entries of a space, oldest first."""

    entries: tuple[Entry, ...]
    # The gateway's time when there were no more, in microseconds since 1970; only in the last one.
    now: int | None = None
    # Numbers among them, or about them, whose entries damage took.
    damaged: tuple[NumberRange, ...] = ()


Pages = AsyncGenerator[Page]


class DamageNote:
    """Notes which numbers are missing from what was read, and says so once."""

    def __init__(self) -> None:
        self._found = dict[NumberRange, None]()

    def add(self, page: Page) -> None:
        if len(self._found) < MAX_NOTED:
            self._found |= dict.fromkeys(page.damaged)

    def write(self, stderr: Stderr) -> None:
        """Say what is missing, if anything is."""
        if self._found:
            from meup_agent.gateway.journal.damage import name_numbers

            said = name_numbers(self._found)
            stderr.note(f"warning: damage took {said} of the journal")


class JournalOptions(HttpOptions, frozen=True):
    """The options that name a journal, and the time from which it is read."""

    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal",
            metavar="FILE",
            help=(
                "Read this journal of a gateway, which may run; no token is needed. A space's file"
                " (YAML) says where its journal is, also on NATS or in PostgreSQL. Without it and"
                " an address, that of `meup up`."
            ),
        ),
    ] = None
    since: Annotated[
        str | None,
        option(
            "TIME",
            "Only what was said from then on: a time such as 2026-01-31T22:00, or how long ago,"
            " such as 90s, 15m, 2h, 7d.",
        ),
    ] = None
    accept_damage: Annotated[
        bool,
        flag(
            "--accept-damage",
            "Read a journal's file although it is damaged: what cannot be read is left out, and"
            " its numbers are named.",
        ),
    ] = False

    def open_pages(self, kinds: tuple[str, ...] = (), query: DecisionQuery | None = None) -> Pages:
        """The entries that the options name, of some kinds at least; see :func:`read_file`.

        Raises:
            ConfigurationError: They name no journal, or two.
        """
        begin = None if self.since is None else moment(self.since, "--since", time.time())
        if self.journal is not None and self.http is not None:
            raise ConfigurationError("give --journal or --http, not both")
        journal = self.journal
        if journal is None:
            url = find_http_url(self.http)
            journal = find_journal() if url is None else journal_of_ended(url)
        if journal is not None:
            return read_file(
                journal,
                self.space,
                begin,
                kinds,
                accept_damage=self.accept_damage,
                query=query,
            )
        if find_http_url(self.http) is None:
            raise ConfigurationError(
                "the journal is missing: `meup up` has kept none here; give --journal with a"
                " gateway's journal, or --http (or MEUP_HTTP, or MEUP_URL) with the address of one"
                " that runs"
            )
        return read_over_http(self.address(), begin)


async def read_file(
    file: Path,
    wanted: str | None,
    since: int | None,
    kinds: tuple[str, ...],
    *,
    accept_damage: bool,
    query: DecisionQuery | None,
) -> Pages:
    """The entries in a journal from a moment on, also while its gateway writes.

    The file is the journal's, or a space's that says where that is. ``wanted`` is the space;
    ``None``: the only one that there is. Of some ``kinds`` alone, if any are named. Of a damaged
    file what can be read, if that is accepted. Of the proposals that a query means alone, and what
    belongs to them, if it is given and the file can tell.
    """
    # Loaded here: SQLite is not needed where a gateway is asked.
    from meup_agent.gateway.journal.places import open_archive, place_of

    place = place_of(file)
    shown = str(file) if place.path is not None else f"on {place.name}"
    if query is not None and since is None and not accept_damage and place.path is not None:
        with open_archive(place, looks_through=False) as archive:
            space = _space_in(archive.spaces, shown, wanted)
            chains = archive.find_chains(space, query)
        if chains is not None:
            yield Page(tuple(chains.entries), now=chains.until)
            return
    with open_archive(place, accept_damage=accept_damage) as archive:
        space = _space_in(archive.spaces, shown, wanted)
        after, until = 0 if since is None else archive.before(space, since), archive.latest(space)
        begin = after
        read = partial(archive.read, space, until=until, limit=PAGE, kinds=kinds)
        while after < until and (page := read(after=after)):
            yield Page(page)
            after = page[-1].seq
            await checkpoint()
        # Some is found only when it is read.
        yield Page((), damaged=tuple(each for each in archive.damaged if each.last > begin))


async def read_over_http(where: HttpAddress, since: int | None) -> Pages:
    """The journal of a running gateway from a moment on, for the space that a token is for.

    Raises:
        Failure: It has no end.
    """
    async with open_http(where) as (me, ask):
        space = str(me.get("space", ""))
        path = f"/participants/{quote(str(me.get('id', '')), safe='')}/messages"
        begin, read = {} if since is None else {"since": moment_of(since).isoformat()}, -1
        while True:
            page = await ask(path, limit=str(PAGE), dialect=DIALECT, **begin)
            following = page.get("next")
            now = None if isinstance(following, int) else page.get("now")
            yield Page(
                tuple(_entries(space, page)),
                _microseconds(now) - TRANSIT if isinstance(now, str) else None,
                tuple(_ranges(page.get("damaged"))),
            )
            if not isinstance(following, int):
                return
            if following <= read:
                raise Failure(
                    f"the gateway names {following} after {read} as the next message, so its"
                    " journal has no end; update the gateway, or check the address"
                )
            begin, read = {"since": str(following)}, following


def _space_in(spaces: list[str], journal: str, wanted: str | None) -> str:
    if wanted is None and len(spaces) == 1:
        return spaces[0]
    if wanted is not None and wanted in spaces:
        return wanted
    shown = name_some(spaces, _SHOWN_SPACES)
    said = f"has no space {wanted!r}; it has {shown}"
    if not spaces:
        said = "is empty: nothing was said yet in any space"
    elif wanted is None:
        said = f"has several spaces; give --space: {shown}"
    raise ConfigurationError(f"the journal {journal} {said}")


def _entries(space: str, page: dict[str, Any]) -> Iterator[Entry]:
    """The entries of a page; what cannot be read is left out, as a gateway's own reading does."""
    messages, times = (as_list(page.get(name)) for name in ("messages", "times"))
    grants = as_object(page.get("grants"))
    for message, at in zip(messages, times, strict=False):
        try:
            seq = int(cast("dict[str, Any]", message)["seq"])
            envelope = decode(json.dumps(message))
            effect = msgspec.convert(grants.get(str(seq), {}), GrantEffect)
            facts = effect.facts(envelope.id)
            yield Entry(seq, space, _microseconds(str(at)), envelope, facts)
        except (InvalidEnvelope, ValueError, KeyError, TypeError):
            continue


def _ranges(value: object) -> Iterator[NumberRange]:
    for each in as_list(value):
        match each:
            case [int(first), int(last)]:
                yield NumberRange(first, last)
            case _:
                continue


def _microseconds(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * _MICROSECONDS)


def moment(given: str, option: str, now: float) -> int:
    """A moment in microseconds since 1970 (UTC); ``now`` is in seconds.

    Given as ``2026-01-31``, ``2026-01-31T22:00`` (in the user's zone, unless it says which), or as
    how long ago it is: ``90s``, ``15m``, ``2h``, ``7d``, ``4w``.
    """
    ago = _AGO.fullmatch(given.strip())
    if ago is not None:
        return max(round((now - int(ago[1]) * _UNITS[ago[2]]) * _MICROSECONDS), 0)
    try:
        return max(_microseconds(given.strip()), 0)
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"{option} takes a time such as 2026-01-31T22:00, or how long ago, such as 2h;"
            f" {given!r} is neither"
        ) from None


# --- listing ---
# The proposals of a space, or what was done to it, one after the other.
#
# ::
#
#     2026-01-31 22:01:07  4f2a91c0  alice  files.write_file(path="a.txt")            fulfilled
#                          by bob 22:01:09, after 2.0 s; edited: path "a.txt" → "b.txt"
#
# On a terminal each has a line, or more where it is long, and below it what there is to say of it;
# where the output goes elsewhere, each is one line, for `grep`.

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
    "yes": "said yes in advance to calls of",
    "revoke_yes": "revoked the yes",
}

_Item = AuditRecord | SpaceOperation


class AuditListing:
    """Makes the lines."""

    def __init__(self, width: int | None, now: float) -> None:
        self._width = width
        self._now = now
        self._ids = IdPrefixes()
        # Columns grow with what comes, and do not shrink again.
        self._id_width = self._who_width = 0
        self._shown_ids: dict[str, str] = {}

    def proposals(self, proposals: Sequence[AuditRecord]) -> Iterator[Text]:
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
        widest = max((cell_len(shown_name(each)) for each in senders), default=0)
        self._who_width = max(self._who_width, min(widest, WIDEST_NAME))

    def _entry(
        self, item: _Item, at: int, sender: str, what: str, state: str, details: Iterator[str]
    ) -> Text:
        time, short, who = f"{time_of(at)}  ", self._shown_ids[item.id], shown_name(sender)
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

    def _details(self, item: AuditRecord) -> Iterator[str]:
        decision = item.decision
        if decision is None:
            yield from self._describe_pending(item)
        elif item.state is ProposalState.EXPIRED:
            yield f"no decision in its time, which was {self._until(item)}"
        else:
            when = time_of(decision.at, beside=item.first.at)
            yield f"by {shown_name(decision.by)} {when}, {_after(item, decision)}"
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

    def _describe_pending(self, item: AuditRecord) -> Iterator[str]:
        begun_by = item.record.in_progress_by
        for fulfillment in item.fulfillments:
            if begun_by is not None and fulfillment.request.live:
                since = time_of(fulfillment.step.at, beside=item.first.at)
                yield f"{shown_name(fulfillment.by)} carries it out since {since}"
        if item.record.envelope.to and begun_by is None:
            yield f"waits for {shown_names(item.record.envelope.to)}"
        if item.is_past(self._now):
            yield f"past its time, which was {self._until(item)}"

    def _until(self, item: AuditRecord) -> str:
        expires_at = item.record.expires_at
        return "" if expires_at is None else time_of(expires_at, beside=item.first.at)

    def _fulfilled(self, item: AuditRecord) -> Iterator[str]:
        changes = describe_changes(item.changes)
        if changes:
            yield f"edited: {changes}"
        if item.state is ProposalState.PERMITTED:
            yield "permitted, outcome not reported"
        report = item.record.report
        if report is not None:
            yield f"{'reported: ' if report.is_end else ''}{compact_text(str(report))}"
        if item.state is not ProposalState.FULFILLED or report is not None:
            return
        answered = item.answered
        if answered is not None and answered.is_error:
            yield format_answer(answered.answer)[0] if answered.answer else "failed"


def _after(proposal: AuditRecord, decision: Decision) -> str:
    """The time that a decision took, and why it was made."""
    took = duration((decision.at - proposal.first.at) / _MICROSECONDS)
    said = why(decision.reason, proposal.explanation(decision.step))
    return f"after {took}" + (f": {said}" if said else "")


def _rejection(item: AuditRecord, step: Step) -> str:
    said = (why(step.reason, item.explanation(step)), by_rule(step.rule))
    return f"{shown_name(step.by)} ({', '.join(filter(None, said))})"


def _about_operation(item: SpaceOperation) -> Iterator[str]:
    if item.reason:
        yield why(item.reason)
    if item.what == "yes":
        yield from _terms(item.details)
    if item.rests_on:
        yield f"rests on the grant {shown_names(item.rests_on)}"
    also = [each for each in item.ended if each != item.grant]
    if also:
        yield (
            f"ended the grant {shown_names(also)}, too"
            if item.grant
            else f"ended {shown_names(also)}"
        )


def _terms(details: Mapping[str, Any]) -> Iterator[str]:
    """The scope, count and time of a yes in advance, in lines; none where it cannot be read."""
    said = dict(details)
    proposal = as_text(said.pop("proposal", ""))
    try:
        terms = msgspec.convert(said, YesTerms)
    except msgspec.ValidationError:
        return
    span = duration(terms.seconds)
    yield f"like proposal {shown_name(proposal)}, {terms.most} at most, for {span}"
    from meup_agent.approval.yeses import YesScope  # loads an agent

    shown = YesScope("", terms.arguments, terms.others).shown
    yield visible(", ".join(shown.splitlines()), MAX_WORDS)


def _operation(item: SpaceOperation) -> str:
    capabilities = ", ".join(
        format_capability(each)
        for key in ("capabilities", "initial_capabilities")
        for each in objects_in(item.details.get(key))
    )
    words = [_DONE.get(item.what, item.what)]
    words += [shown_name(item.whom)] if item.whom else []
    words += [f"the grant {shown_name(item.grant)}"] if item.grant else []
    words += [f"({capabilities})"] if capabilities else []
    if item.what == "revoke_yes":
        return f"{words[0]} {shown_name(as_text(item.details.get('yes_id')))}"
    if not (item.whom or item.grant or capabilities):
        words.append(compact(item.details, MAX_NAME))
    return " ".join(words)


# --- proposal timeline ---
# One proposal and every step about it, as a timeline.

_NOUNS = {
    StepKind.PROPOSED: "proposal",
    StepKind.REQUESTED: "request",
    StepKind.CANCELLED: "cancel",
    StepKind.PROGRESSED: "progress",
    StepKind.RESPONDED: "response",
    StepKind.REJECTED: "reject",
    StepKind.WITHDREW: "withdraw",
    StepKind.EXPIRED: "expired",
    StepKind.RENEWED: "renewed",
    StepKind.REPORTED: "report",
    StepKind.SAID: "chat",
    StepKind.REFERRED: "request",
}
_NOUN = max(map(len, _NOUNS.values()))
_TIME = len("00:00:00.000")

_STYLES = {
    StepKind.PROPOSED: "bold",
    StepKind.REJECTED: "red",
    StepKind.WITHDREW: "yellow",
    StepKind.CANCELLED: "yellow",
    StepKind.PROGRESSED: "dim",
}


class AuditTimeline(NamedTuple):
    """Makes the lines of a timeline."""

    width: int | None
    glyphs: Glyphs

    def lines(self, proposal: AuditRecord) -> Iterator[Text]:
        """The proposal in a few lines, then what was said about it, in the gateway's order."""
        yield from self._head(proposal)
        who = max(cell_len(shown_name(step.by)) for step in proposal.steps)
        if self.width is not None:
            # A longer name is cut there: what follows it on its line is not pushed out.
            who = min(who, max(self.width - _TIME - _NOUN - 2 * len("  "), NARROWEST))
        day = ""
        previous = None
        for step in proposal.steps:
            moment = local(step.at)
            if f"{moment:%Y-%m-%d}" != day:
                day = f"{moment:%Y-%m-%d}"
                yield Text(day, style="dim", no_wrap=True)
            yield self._line(step, proposal, who, previous)
            previous = step.state if step.ignored is None else previous
        if proposal.omitted:
            yield Text(f"and {proposal.omitted} more, which are not kept", style="dim")

    def _head(self, proposal: AuditRecord) -> Iterator[Text]:
        state = state_of(proposal)
        line = Text(shown_name(proposal.id), style="bold cyan", no_wrap=True)
        yield line.append("  ").append(state, style=STATE_STYLES.get(state, ""))
        whom = shown_names(proposal.record.envelope.to)
        to = f" to {whom}" if whom else ""
        lines = [
            f"{shown_name(proposal.proposer)} proposed {format_proposed(proposal.call, WHOLE)}{to}"
        ]
        if proposal.call.client:
            lines.append(f"for the client {shown_name(proposal.call.client)}, as it names itself")
        decision = proposal.decision
        if decision is not None:
            how = f"decided by {shown_name(decision.by)}" if decision.by else "expired"
            lines.append(f"{how} {_after(proposal, decision)}")
            lines += filter(None, [by_rule(decision.step.rule)])
        if changes := describe_changes(proposal.changes):
            lines.append(f"edited: {changes}")
        for each in lines:
            yield Text(hang(each, self.width, 0), no_wrap=True)
        yield Text("")

    def _line(
        self, step: Step, proposal: AuditRecord, who_width: int, previous: str | None
    ) -> Text:
        line = Text(no_wrap=True)
        moment = local(step.at)
        line.append(f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}  ", style="dim")
        who = Text(shown_name(step.by) if step.by else "")
        who.truncate(who_width, overflow="ellipsis")
        who.align("left", who_width)
        line.append_text(who).append("  ")
        line.append(f"{_NOUNS[step.what]:<{_NOUN}}  ", style=_STYLES.get(step.what, ""))
        item = _fulfillment(proposal, step.about)
        failed = item is not None and item.response is step and item.is_error
        end = _end(step, previous, failed=failed)
        said = self._said(step, proposal)
        if end:
            said = f"{said}  [{end}]" if said else f"[{end}]"
        indent = line.cell_len
        if self.width is not None and self.width - indent < 2 * NARROWEST:
            indent = 4
            line.rstrip()
            line.append("\n" + " " * indent)
        style = "dim" if step.ignored is not None else ""
        line.append(hang(said, self.width, indent), style=style)
        line.rstrip()
        return line

    def _said(self, step: Step, proposal: AuditRecord) -> str:
        whom = f" {self.glyphs.arrow} {shown_names(step.to)}" if step.to else ""
        match step.what:
            case StepKind.REPORTED:
                return compact_text(step.text)
            case StepKind.PROPOSED:
                return f"{format_proposed(proposal.call, more='the beginning')}{whom}"
            case StepKind.REQUESTED:
                item = _fulfillment(proposal, step.id)
                return ", ".join(filter(None, [self._request(item, whom), by_rule(step.rule)]))
            case StepKind.RESPONDED:
                return _answer(_fulfillment(proposal, step.about), step)
            case StepKind.PROGRESSED:
                times = "once" if step.times == 1 else f"{step.times} times"
                until = f", until {local(step.until):%H:%M:%S}" if step.times > 1 else ""
                return f"{times}{until}"
            case StepKind.SAID | StepKind.CANCELLED:
                return visible(" ".join(step.text.split()), MAX_WORDS)
            case StepKind.REFERRED:
                return f"{visible(step.text, MAX_WORDS)}, which is not what was proposed{whom}"
            case StepKind.EXPIRED:
                return "no decision in its time"
            case StepKind.RENEWED:
                return f"until {time_of(step.until, beside=step.at)}"
            case StepKind.REJECTED | StepKind.WITHDREW:
                said = [why(step.reason, step.text), by_rule(step.rule)]
                return ", ".join(filter(None, said))

    def _request(self, item: FulfillmentAudit | None, whom: str) -> str:
        if item is None:
            return whom.lstrip()
        call = read_call(item.request.envelope.payload)
        changed = describe_changes(item.changes)
        edited = f", edited: {changed}" if changed else ""
        return f"{format_call(call, WHOLE)}{whom}{edited}"


def _end(step: Step, previous: str | None, *, failed: bool) -> str:
    """The reason why a step changed nothing, or the state that it led to."""
    if step.ignored is not None:
        return f"ignored: {IGNORED[step.ignored]}"
    if failed and step.state != previous:
        return FAILED
    return "" if step.state == previous else step.state.value.replace("_", " ")


def _fulfillment(proposal: AuditRecord, request: str) -> FulfillmentAudit | None:
    return next((item for item in proposal.fulfillments if item.id == request), None)


def _answer(item: FulfillmentAudit | None, step: Step) -> str:
    if item is None or item.response is not step:
        return ""
    if item.answer is None:
        return "an error, too long to be kept" if item.is_error else "too long to be kept"
    return format_answer(item.answer)[0]


# --- meup audit ---


class StateName(StrEnum):
    """The states that can be asked for, as a person writes them."""

    PENDING = "pending"
    IN_PROGRESS = "in-progress"
    PERMITTED = "permitted"
    FULFILLED = "fulfilled"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


def audit(
    *,
    source: JournalOptions,
    proposal: Annotated[
        str | None,
        option(
            "ID",
            "Only this one, with everything that was said about it, as a timeline. The id, or"
            " the beginning of it.",
        ),
    ] = None,
    proposer: Annotated[
        str | None,
        option("NAME", "Only what this participant proposed.", "--from"),
    ] = None,
    state: Annotated[
        list[StateName] | None,
        option(
            "STATE",
            "Only proposals in this state: pending, in-progress, permitted, fulfilled,"
            " rejected, withdrawn or expired; may be given several times.",
        ),
    ] = None,
    grants: Annotated[
        bool,
        flag(
            "--grants",
            "Grants, revocations, invitations, removals, acceptances of tools and yeses in advance"
            " instead of the proposals.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        flag("--json", "Each proposal, or each thing that was done, as one line of JSON."),
    ] = False,
    no_colour: NoColour = False,
) -> None:
    """Show what was proposed, what became of it, and who decided that, when and why.

    It reads the journal of a gateway: its file, or over HTTP the journal of a running one, for the
    space of the token. Where neither is named, it finds the one that `meup up` keeps. It changes
    nothing, and the participants do not notice it.

    Example: `meup audit`

    Example: `meup audit --journal journal.db --space demo`

    Example: `MEUP_TOKEN=… meup audit --http http://localhost:8420 --state rejected`

    Example: `meup audit --journal journal.db --proposal 4f2a`
    """
    if grants and (proposal or state):
        raise ConfigurationError("--grants shows no proposals; leave --proposal and --state out")
    states = frozenset(ProposalState(each.value.replace("-", "_")) for each in state or ())
    log_nothing()
    query = None  # all of the journal
    if proposal is not None or states:
        from meup_agent.gateway.journal.decisions import DecisionQuery  # loads SQLite

        query = DecisionQuery(proposal, proposer, states)
    pages = source.open_pages(query=query)
    output, stderr = Output(colour=not no_colour), Stderr(colour=not no_colour)
    listing, shown = AuditListing(output.width, time.time()), 0

    def lines(
        proposals: Iterable[AuditRecord], operations: Iterable[SpaceOperation]
    ) -> list[str | Text]:
        """The entries that the filters let through."""
        nonlocal shown
        if grants:
            done = [each for each in operations if proposer in (None, each.by)]
            shown += len(done)
            if as_json:
                return [as_json_line(operation_as_json(each)) for each in done]
            return list(listing.operations(done))
        found = [
            each
            for each in proposals
            if (not states or each.state in states) and proposer in (None, each.proposer)
        ]
        shown += len(found)
        if as_json:
            return [as_json_line(proposal_as_json(each)) for each in found]
        return list(listing.proposals(found))

    async def run() -> None:
        """Take the journal in, and show what is settled as soon as it is."""
        async with aclosing(pages), AsyncExitStack() as meanwhile:
            audit, count, damage = Audit(), 0, DamageNote()
            begin: int | None = None
            settled = SettledRecords(
                audit, keep=lambda each: proposal is not None and each.id.startswith(proposal)
            )
            waiting = await meanwhile.enter_async_context(
                progress_line(stderr.console, "reading the journal")
            )
            async for page in pages:
                for entry in page.entries:
                    audit.add(entry)
                if page.entries and not count:
                    begin = page.entries[0].at
                count += len(page.entries)
                damage.add(page)
                if page.now is not None:
                    audit.pass_time(page.now)
                waiting.rename(f"reading the journal: {count:,} envelopes")
                settled_now, done = list(settled.pop(count)), audit.pop_operations()
                found = [] if proposal is not None else lines(settled_now, done)
                if found and output.is_terminal:
                    # The lines themselves show how far it is; on one terminal the two would mix.
                    await meanwhile.aclose()
                await output.show_all(found)
            await meanwhile.aclose()
            damage.write(stderr)
            if proposal is not None:
                one = _one(audit.named(proposal, proposer=proposer), proposal)
                if as_json:
                    await output.write(as_json_line(proposal_as_json(one, timeline=True)))
                else:
                    timeline = AuditTimeline(output.width, output.glyphs)
                    await output.show_all(timeline.lines(one))
                return
            await output.show_all(lines(list(audit.proposals), []))
            if not as_json and (output.is_terminal or not shown):
                said = counted(shown, "operation" if grants else "proposal")
                if begin is not None and source.since is None:
                    # Before that, nothing is known.
                    said += f"; what is kept begins {time_of(begin)}"
                    if audit.unknown and not grants:
                        said += f"; about older proposals: {counted(audit.unknown, 'decision')}"
                stderr.note(said)

    anyio.run(run)


def _one(found: Sequence[AuditRecord], wanted: str) -> AuditRecord:
    """The proposal that is meant."""
    if not found:
        raise Failure(f"no proposal in the journal has an id that begins with {wanted!r}")
    if len(found) == 1:
        return found[0]
    if len({item.id for item in found}) == 1:
        proposers = list(dict.fromkeys(item.proposer for item in found))
        if len(proposers) > 1:
            raise Misuse(
                f"several participants have used the id {wanted!r}: {shown_names(proposers)};"
                " say with --from whose is meant"
            )
        raise Misuse(
            f"{shown_names(proposers)} has used the id {wanted!r} {len(found)} times; meup audit"
            " --json shows all of them, and --since tells them apart"
        )
    ids = ", ".join(shown_name(item.id) for item in found[:4])
    raise Misuse(f"several proposals begin with {wanted!r}: {ids}")


# --- meup journal ---

journal = CommandTyper("journal")


@journal.callback()
def journal_group() -> None:
    """Copy the journal of a gateway, to keep it or to move it.

    Example: `meup journal backup copy.db --journal journal.db`
    """


def backup(
    file: Annotated[Path, argument("FILE", "The copy, a new file.")],
    journal_file: Annotated[
        Path | None,
        option(
            "FILE",
            "The journal to copy; else that of the space's file, or the one that `meup up` keeps.",
            "--journal",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        option(
            "FILE",
            "The space's file, as `meup gateway` takes it; else `.mew/space.yaml` or `space.yaml`.",
        ),
    ] = None,
) -> None:
    """Copy a journal into a new file, also while its gateway runs.

    The copy is as the journal is at one moment, is readable for its owner alone, and has been
    looked through when it has its name. A damaged journal is not copied.

    Example: `meup journal backup copy.db --journal journal.db`

    Example: `meup journal backup "backups/$(date +%F).db"`
    """
    if journal_file is not None and config is not None:
        raise ConfigurationError("give --journal or --config, not both")
    source = journal_file or _configured(config)
    from meup_agent.gateway.journal.archive import back_up

    with end_by_signals():
        count = back_up(source, file)
    sys.stdout.write(f"{visible(str(file), 500)}: {counted(count, 'envelope')}\n")


def copy(
    source: Annotated[
        Path,
        option("FILE", "The journal to copy: its file, or a space's file (YAML).", "--from"),
    ],
    target: Annotated[
        Path,
        option(
            "FILE",
            "Where the copy goes, a place without a journal: a file, or a space's file (YAML).",
            "--to",
        ),
    ],
) -> None:
    """Copy a journal to another place: from a file to NATS or PostgreSQL, or back.

    A space's file says under `journal` where its journal is. No gateway may run on either place,
    and none starts on a copy that is not complete. If it was interrupted, run the same command
    again, and it goes on. Entries keep their times and get new numbers, so members that come back
    are told of a gap.

    At the end the copy is read back and compared. The SHA-256 that is printed is that of both.

    Example: `meup journal copy --from journal.db --to space.yaml`

    Example: `meup journal copy --from space.yaml --to journal.db`
    """
    require_extra("a gateway")
    from meup_agent.gateway.journal.copying import copy_journal
    from meup_agent.gateway.journal.places import place_of
    from meup_agent.gateway.runtime import wall_clock

    log_to_stderr("warning")
    origin, place = place_of(source), place_of(target)
    if origin._replace(name="") == place._replace(name=""):
        raise ConfigurationError(f"--from and --to are both {origin.name}; give two places")
    stderr = Stderr(colour=False)

    async def act(_: TaskGroup) -> None:
        async with progress_line(stderr.console, "copying the journal") as waiting:

            def tell(count: int) -> None:
                waiting.rename(f"copying the journal: {count:,} envelopes")

            try:
                done = await copy_journal(origin, place, wall_clock, tell)
            except anyio.get_cancelled_exc_class():
                stderr.note("interrupted; the same command goes on where it stopped")
                raise
        where = f"{place.name}: {counted(done.envelopes, 'envelope')}"
        where += f" of {counted(done.spaces, 'space')}"
        if done.was_there:
            where += ", which were there already"
        elif done.went_on:
            where += f", {done.went_on:,} of them from a copy that was interrupted"
        sys.stdout.write(f"{visible(where, 500)}\nSHA-256 {done.digest}\n")

    run_until_signal(act, ENDING)


def _configured(config: Path | None) -> Path:
    """The journal of a space's file."""
    require_extra("a gateway")
    from meup_agent.gateway.config_file import find_space_file, load_config

    config = config or find_space_file()
    if config is None and (kept := find_journal()) is not None:
        return kept
    if config is None:
        raise ConfigurationError(
            "what to copy is missing: there is no space.yaml in this folder; give --journal FILE or"
            " --config FILE"
        )
    settings = load_config(config, needs_tokens=False).journal
    path = settings.path
    if settings.nats is not None:
        raise ConfigurationError(
            f"{config}: its journal is on NATS, so there is no file to copy; copy its streams with"
            " 'nats stream backup'"
        )
    if settings.postgres is not None:
        raise ConfigurationError(
            f"{config}: its journal is in PostgreSQL, so there is no file to copy; copy its schema"
            f" with 'pg_dump --schema={settings.postgres.schema}'"
        )
    if path is None:
        kept = journal_path(config)
        if kept.is_file():
            return kept
        raise ConfigurationError(
            f"{config}: its journal is in memory, so there is no file to copy; set journal.path"
        )
    return path


journal.add("backup", backup)
journal.add("copy", copy)
