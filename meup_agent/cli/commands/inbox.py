"""``meup inbox``, ``reject`` and ``withdraw``: what waits for a person, its end, and yeses."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final, cast
from urllib.parse import quote

import anyio
import typer
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from meup_agent.approval import Inbox, InboxItem, Verb
from meup_agent.approval.inbox.preview import MAX_SHOWN, choose_scope, preview_scope
from meup_agent.approval.policy.file import read_span
from meup_agent.approval.policy.rules import CONFIRM_WORD
from meup_agent.approval.yeses import YesScope, list_yeses, revoke_yes, written_scope
from meup_agent.causes import REASONS_TO_REJECT, Reason, declines
from meup_agent.cli.address import (
    ActingOptions,
    AskHttp,
    HttpAddress,
    find_http_url,
    open_http,
)
from meup_agent.cli.arguments import did_you_mean, read_json
from meup_agent.cli.commands import CommandTyper
from meup_agent.cli.commands.decisions import (
    ID_CHARS,
    Explain,
    ProposalId,
    ProposalIds,
    Proposer,
    Yes,
    confirm,
    find_item,
    find_pending,
    list_known,
    open_inbox,
    open_session,
    send_explained,
)
from meup_agent.cli.failures import Failure, Misuse, code_for
from meup_agent.cli.options import (
    Timeout,
    argument,
    expand_groups,
    flag,
    option,
    reason_option,
    seconds,
)
from meup_agent.cli.render.card import SHOW, Notifier, difference_rows, plain_card
from meup_agent.cli.render.formatting import STATE_STYLES, IdPrefixes
from meup_agent.cli.render.output import Output, Stderr
from meup_agent.cli.session import CommandSession, unconfirmed
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.client.tool_changes import accept_tools, read_difference
from meup_agent.errors import AlreadyDecided, ConfigurationError, MeupError, NotOffered, UsageError
from meup_agent.escape import as_json_line, visible
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.outcomes import value_of
from meup_agent.protocol.wire.payloads import (
    REJECTED_BY,
    as_object,
    build_end,
    objects_in,
    without_meta,
)
from meup_agent.wording import (
    describe_reason,
    duration,
    format_proposed,
    shown_name,
    state_name,
    time_left,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meup_agent.approval.inbox.preview import SeenCall, YesPreview
    from meup_agent.protocol.wire.scoped_yes import KeptYes


# --- reject ---
# `meup reject` and `withdraw`: end a proposal, as a decider or as its proposer.

_HEX: Final = frozenset("0123456789abcdef")


def reject(
    ctx: typer.Context,
    proposals: ProposalIds,
    reason: Annotated[str, reason_option(REASONS_TO_REJECT)] = str(Reason.DISAGREE),
    explain: Explain = None,
    proposer: Proposer = None,
    timeout: Timeout = 10.0,
    *,
    where: ActingOptions,
) -> None:
    """Reject proposals.

    The proposer decides whether a rejection counts, and a late one has no effect. A gateway that
    does not list proposals takes their whole ids, as `meup tail --json` shows them.

    It joins beside the agent that runs with the same token, which keeps its connection. On a
    gateway of other make it takes that over, unless `--as` says that it must not; `meup inbox
    reject`, the same command, never does.

    Example: `meup reject 0c9f2c62a4ce --reason unsafe --explain "not on a Friday"`
    """
    limit = seconds(timeout, "--timeout")
    if not reason.strip():
        raise Misuse("the reason is empty; see meup reject --help")

    async def act(session: CommandSession) -> None:
        # All of them are looked up before one is rejected.
        meant = [await _find_proposal(session, each, proposer) for each in proposals]
        documents: list[dict[str, object]] = []
        with anyio.move_on_after(limit) as waiting:
            for whole, whose in dict.fromkeys(meant):
                to = (whose,) if whose else ()
                session.remark_absence(to)
                send = partial(
                    session.space.send,
                    kinds.MCP_REJECT,
                    {"reason": reason},
                    to=to,
                    correlation=whole,
                )
                sent, confirmed = await send_explained(session, "rejection", send, explain, to)
                named = f"{whole} of {whose}" if whose else whole
                session.stderr.note(
                    f"proposal {named} is rejected: {reason}"
                    if confirmed
                    else f"rejection of {named} sent; the gateway confirms none"
                )
                documents.append(
                    {
                        "proposal": whole,
                        "proposer": whose,
                        "rejection": sent,
                        "confirmed": confirmed,
                    }
                )
            if reason not in list(Reason):
                hint = did_you_mean(reason, Reason)
                session.stderr.note(
                    f"{reason!r} is not a reason of the protocol{hint}; it was sent as it is"
                )
        await session.print_json({"rejected": documents})
        if waiting.cancelled_caught:
            raise unconfirmed("the rejection", timeout)

    open_session(ctx, where).run(act)


async def _find_proposal(
    session: CommandSession, given: str, proposer: str | None
) -> tuple[str, str | None]:
    """The id and the proposer of the pending proposal that is meant."""
    space = session.space
    known = space.gateway.guarantees.lists_proposals or await list_known(space, given, proposer)
    if known or not given.strip():
        record = await find_pending(space, given, proposer=proposer)
        if any(each.by == space.me and declines(each.reason) for each in record.rejections):
            # A second one changes nothing, and its words would be lost.
            raise AlreadyDecided(record.id, ProposalState.REJECTED)
        return record.id, record.proposer
    if len(given) < ID_CHARS and _HEX.issuperset(given):
        # A newcomer has seen no proposal that it could begin.
        session.stderr.note(
            f"{given!r} looks shortened, and may match no proposal; meup tail --json shows ids"
            " in full"
        )
    return given, proposer


def withdraw(
    proposal: ProposalId,
    reason: Annotated[str, reason_option(list(Reason))] = str(Reason.NO_LONGER_NEEDED),
    explain: Explain = None,
    *,
    where: ActingOptions,
) -> None:
    """Withdraw a proposal of the participant whose token you have.

    It is said beside the agent that runs with this token, which keeps its connection, and learns
    that its proposal was withdrawn.

    Example: `MEUP_TOKEN=… meup withdraw 0c9f2c62a4ce --url ws://localhost:8420 --space demo`
    """

    async def act(session: CommandSession) -> None:
        me = session.space.me
        record = await find_pending(session.space, proposal, proposer=me, in_progress=True)
        whole, to = record.id, record.to
        # Else it would count as taken for an answer, if a participant has rejected it.
        meta = {REJECTED_BY: None} if record.rejections else None
        said = build_end(reason, meta)
        send = partial(session.space.send, kinds.MCP_WITHDRAW, said, to=to, correlation=whole)
        withdrawal, _ = await send_explained(session, "withdrawal", send, explain, to)
        for each in await list_known(session.space, whole, me):
            if each.seq == record.seq:
                record = each
        state = str(record.state)
        session.stderr.note(
            f"proposal {whole} is withdrawn"
            if state == "withdrawn"
            else f"the withdrawal of {whole} came too late: it is {shown_name(state)},"
            f" by {shown_name(record.decided_by or '')}"
        )
        await session.print_json({"withdrawal": withdrawal, "proposal": whole, "state": state})

    CommandSession(where, where.beside()).run(act)


# --- inbox ---

inbox = CommandTyper("inbox", alone=True)


def inbox_group(
    ctx: typer.Context,
    notify: Annotated[
        str | None,
        option(
            "COMMAND",
            "Run a command for each proposal that arrives, with MEUP_PROPOSAL, MEUP_PROPOSER"
            " and MEUP_CALL in its environment; `bell` rings the terminal's bell.",
        ),
    ] = None,
    light: Annotated[
        bool, flag("--light", "Begin with colours for a light terminal; t changes.")
    ] = False,
    *,
    where: ActingOptions,
) -> None:
    """Decide the proposals that wait for you: a live screen, or one by one.

    Without a command it shows the screen, one decision at a time, and `?` tells its keys. You are
    present in the space meanwhile. With `--json`, where no terminal is, or where textual is not
    installed (`pip install 'meup-agent[tui]'`), it lists what waits, as `meup inbox list` does.
    Each command takes the options of the connection, behind its name or before it. All of them act
    beside whatever runs under your name.

    Example: `MEUP_TOKEN=… meup inbox --url ws://localhost:8420 --space demo`
    """
    if ctx.invoked_subcommand is not None:
        if notify is not None or light:
            raise Misuse(
                "--notify and --light are for the live screen; give them without a command"
            )
        ctx.obj = where
        return
    # textual draws on standard error.
    is_terminal = all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr))
    if where.as_json or not is_terminal or find_spec("textual") is None:
        session = CommandSession(where, where.beside())
        if find_spec("textual") is None:
            session.stderr.note("for the live screen, run: pip install 'meup-agent[tui]'")
        session.run(_list)
        return
    if where.no_colour:
        os.environ["NO_COLOR"] = "1"
    session = CommandSession(where)
    session.run(partial(_show_live, notify=notify, light=light))


inbox.callback()(expand_groups(inbox_group))


async def _show_live(session: CommandSession, *, notify: str | None, light: bool) -> None:
    from meup_agent.cli.render.screen import InboxApp, run_editor

    space = session.space
    async with Inbox(space) as box, Notifier(notify) as told:
        me, name = shown_name(space.me), shown_name(session.where.space)

        async def edit(text: str) -> str:
            return await run_editor(text, app.suspended)

        app = InboxApp(
            box,
            where=f"{me} in {name}",
            edit=edit,
            notify=told.arrived,
            light=light,
        )
        told.bell, told.report = app.bell, app.report
        session.on_report = app.report
        await app.run_async()


# --- one by one ---


async def _list(session: CommandSession) -> None:
    async with open_inbox(session) as box:
        if session.as_json:
            await session.print_json({"proposals": [_document(each) for each in box.items]})
            return
        ids = IdPrefixes().of(item.id for item in box.items)
        for item in box.items:
            call = format_proposed(item.call, more=SHOW)
            may = ", ".join(sorted(item.may))
            whose = shown_name(item.proposer)
            danger = "!" if item.danger else " "
            left = time_left(item.seconds_left)
            line = f"{ids[item.id]} {danger} {left:>13}  {whose}: {call}  [{may}]"
            await session.output.write(line + "\n")
        if not box.items:
            session.stderr.note("nothing waits for you")


def list_(ctx: typer.Context, *, where: ActingOptions) -> None:
    """List what waits for you, oldest deadline first, each with what you may do.

    Example: `meup inbox list --json`
    """
    open_session(ctx, where).run(_list)


def show(
    ctx: typer.Context,
    proposal: ProposalId,
    proposer: Proposer = None,
    *,
    where: ActingOptions,
) -> None:
    """Show one proposal: the exact call, what is known of it, and what you may do.

    Example: `meup inbox show 4f2a`
    """

    async def act(session: CommandSession) -> None:
        async with open_inbox(session) as box:
            item = await find_item(box, session, proposal, proposer)
            if session.as_json:
                await session.print_json(_document(item))
            else:
                await session.output.write(plain_card(item))

    open_session(ctx, where).run(act)


def approve(
    ctx: typer.Context,
    proposals: ProposalIds,
    proposer: Proposer = None,
    yes: Yes = False,
    *,
    where: ActingOptions,
) -> None:
    """Approve proposals: carry each out, or vote for it where a reviewer counts your vote.

    It shows each of them, all of it however long it is, with what is dangerous about them below,
    and asks once. `meup fulfill --edit` carries one out with other arguments.

    Example: `meup inbox approve 4f2a 91c0`
    """

    async def act(session: CommandSession) -> None:
        async with open_inbox(session) as box:
            items = [await find_item(box, session, each, proposer) for each in proposals]
            for item in dict.fromkeys(items):
                if not item.may & {Verb.APPROVE, Verb.VOTE}:
                    raise NotOffered(f"proposal {item.id} is not offered to you for approval")
                session.stderr.write_lines(plain_card(item))
            ids = IdPrefixes().of(item.id for item in items)
            for item in dict.fromkeys(items):
                # Once more below all of them: what is above has scrolled away, perhaps.
                for danger in item.danger:
                    session.stderr.write_lines(f"! {ids[item.id]}: {visible(danger)}")
            word = CONFIRM_WORD if any(item.takes_word for item in items) else ""
            if word or not yes:
                count = len(set(items))
                which = "it" if count == 1 else f"all {count}"
                await confirm(session.stderr, f"approve {which}?", word=word)
            outcomes = await box.approve_all(items, word=word)
            documents: list[dict[str, Any]] = []
            failed: MeupError | None = None
            for each in outcomes:
                document: dict[str, Any] = {
                    "proposal": each.item.id,
                    "proposer": each.item.proposer,
                }
                documents.append(document)
                try:
                    if each.error is not None:
                        raise each.error
                    if each.fulfillment is None:
                        document["voted"] = "approve"
                    else:
                        document["result"] = value_of(each.fulfillment)
                except MeupError as error:
                    failed, document["error"] = error, str(error)
                    if len(outcomes) > 1:
                        session.stderr.note(f"{each.item.id}: {error}")
                    continue
                await _tell_result(session, each.item, document.get("result", "voted for"))
            await session.print_json({"proposals": documents})
            if failed is not None:
                count = sum("error" in each for each in documents)
                several = f"{count} of {len(documents)} approvals failed; see above"
                raise Failure(str(failed) if len(outcomes) == 1 else several, code_for(failed))

    open_session(ctx, where).run(act)


async def _tell_result(session: CommandSession, item: InboxItem, result: Any) -> None:
    if not session.as_json:
        shown = result if isinstance(result, str) else json.dumps(result)
        await session.output.write(f"{shown_name(item.id)}: {visible(shown)}\n")


def vote(
    ctx: typer.Context,
    proposal: ProposalId,
    choice: Annotated[
        str,
        argument("VOTE", "`approve` or `reject`."),
    ],
    explain: Explain = None,
    proposer: Proposer = None,
    *,
    where: ActingOptions,
) -> None:
    """Vote about a proposal whose reviewer counts votes; you may change it until it counts.

    Example: `meup inbox vote 4f2a approve`
    """
    if choice not in ("approve", "reject"):
        raise Misuse(f"a vote is approve or reject, not {choice!r}")

    async def act(session: CommandSession) -> None:
        async with open_inbox(session) as box:
            item = await find_item(box, session, proposal, proposer)
            rule = await box.vote(item, approve=choice == "approve", explanation=explain)
            for_it = sum(each == "approve" for each in rule.votes.values())
            session.stderr.note(f"your vote is counted: {for_it} of {rule.of} are for it")
            await session.print_json(
                {"proposal": item.id, "of": rule.of, "votes": dict(rule.votes)}
            )

    open_session(ctx, where).run(act)


def accept_tools_(
    ctx: typer.Context,
    server: Annotated[
        str,
        argument("SERVER", "The server's name in the space."),
    ],
    yes: Yes = False,
    *,
    where: ActingOptions,
) -> None:
    """Accept the tools of a server as they are now, after they have changed.

    It shows how they differ from those that were accepted, and asks once, for all of them. Until
    then no rule lets calls of them pass, and models read the accepted texts.

    Example: `meup inbox accept-tools files`
    """

    async def act(session: CommandSession) -> None:
        difference = await read_difference(session.space, server)
        lines = [each.plain for each in difference_rows(difference)]
        session.stderr.write_lines("\n".join(lines) + "\n")
        if difference.tools:
            if not yes:
                await confirm(session.stderr, "accept these tools?")
            await accept_tools(session.space, server, difference.digest)
            session.stderr.note(f"the tools of {shown_name(server)} are accepted")
        accepted = [each.name for each in difference.tools]
        await session.print_json({"server": server, "accepted": accepted})

    open_session(ctx, where).run(act)


def _document(item: InboxItem) -> dict[str, Any]:
    """A proposal for programs."""
    rule, deadline = item.rule, item.deadline
    return {
        "proposal": item.id,
        "proposer": item.proposer,
        "client": item.client,
        "target": item.target,
        "method": item.method,
        "tool": item.tool,
        "arguments": item.arguments,
        "params": without_meta(item.call.params),
        "deadline": None if deadline is None else deadline.isoformat(),
        "may": sorted(item.may),
        "danger": list(item.danger),
        "rule": None
        if rule is None
        else {"reviewer": rule.reviewer, "name": rule.name, "kind": rule.kind, "of": rule.of},
        "votes": dict(item.votes),
    }


# --- yeses ---
# Approvals in advance, with an end: yes, yeses and revoke-yes.

USES: Final = 20
"""Calls that a yes lets through where its giver names no number."""

MAX_LINE: Final = 160
"""Characters of the arguments of one call in a preview."""

NO_REVIEWER: Final = (
    "no reviewer is here that would use it: run meup reviewer, or meup up --servers, which has one"
)


def say_yes(
    ctx: typer.Context,
    proposal: ProposalId,
    scope: Annotated[
        int | None,
        option(
            "NUMBER", "Which of the offered scopes; else the narrowest that takes another call."
        ),
    ] = None,
    for_: Annotated[
        str, option("TIME", "How long it holds, as 1h, 8h or 7d; 7 days at most.", "--for")
    ] = "1h",
    at_most: Annotated[
        int, option("COUNT", "How many calls it lets through, 1000 at most.")
    ] = USES,
    where_: Annotated[
        str | None,
        option(
            "JSON",
            "In place of an offered scope: a pattern of the arguments, as in a policy, or null"
            " for any.",
            "--where",
        ),
    ] = None,
    free: Annotated[
        str | None,
        option("NAMES", "Beside `--where`: arguments that are free, with commas between; or any."),
    ] = None,
    proposer: Proposer = None,
    yes: Yes = False,
    *,
    where: ActingOptions,
) -> None:
    """Approve a proposal, and say yes in advance to calls like it, with an end and a count.

    It shows the call and the scopes that are offered, the narrowest first, with the calls of before
    that the chosen one takes and some near it that it does not, and asks once. The yes is for this
    tool of this participant and for calls of this proposer. It beats no rule that denies, counts
    votes or limits; when its time is over or it is used up, you are asked again. `meup inbox
    revoke-yes` ends it before.

    Example: `meup inbox yes 4f2a --for 8h --at-most 50`

    Example: `meup inbox yes 4f2a --where '{"path": "docs/**"}' --free content`
    """
    try:
        span = read_span(for_, "--for")
    except ConfigurationError as error:
        raise Misuse(str(error)) from None
    if scope is not None and where_ is not None:
        raise Misuse("give either --scope or --where")
    if free is not None and where_ is None:
        raise Misuse("--free is for a pattern that --where gives")
    written = None if where_ is None else _read_scope(where_, free)

    async def act(session: CommandSession) -> None:
        async with open_inbox(session) as box:
            item = await find_item(box, session, proposal, proposer)
            box.check_yes(item)
            past = await box.read_past(item)
            scopes = box.offered_scopes(item)
            chosen = written
            if chosen is None:
                number = choose_scope(scopes, past, item.arguments) if scope is None else scope - 1
                if not 0 <= number < len(scopes):
                    raise Misuse(f"--scope is one of 1 to {len(scopes)}")
                chosen = scopes[number]
            preview = preview_scope(chosen, item.call, past)
            session.stderr.write_lines(plain_card(item))
            lines = _scope_lines(scopes, chosen)
            session.stderr.write_lines("\n".join([*lines, *_preview_lines(preview)]) + "\n")
            if not chosen.takes(item.arguments):
                raise Failure("the pattern does not take this call; nothing was sent")
            if not box.uses_yeses:
                session.stderr.note(NO_REVIEWER)
            if not yes:
                calls = "1 call" if at_most == 1 else f"{at_most} calls"
                question = f"approve it, and for {duration(span)} at most {calls} like it?"
                await confirm(session.stderr, question)
            given = await box.give_yes(item, chosen, seconds=span, most=at_most)
            session.stderr.note(f"yes {given} is given; meup inbox revoke-yes {given[:8]} ends it")
            fulfillment = await box.approve(item)
            document: dict[str, Any] = {"yes": given, "proposal": item.id}
            if fulfillment is not None:
                document["result"] = value_of(fulfillment)
                await _tell_result(session, item, document["result"])
            await session.print_json(document)

    open_session(ctx, where).run(act)


def _read_scope(where: str, free: str | None) -> YesScope:
    try:
        arguments = read_json(where)
    except ValueError:
        arguments = ""
    if arguments is not None and not isinstance(arguments, dict):
        raise Misuse("--where: expected a JSON object, or null")
    names = tuple(each.strip() for each in (free or "").split(",") if each.strip())
    try:
        return written_scope(
            cast("dict[str, Any] | None", arguments), "any" if free == "any" else names
        )
    except UsageError as error:
        raise Misuse(str(error)) from None


def _scope_lines(scopes: list[YesScope], chosen: YesScope) -> Iterator[str]:
    if chosen not in scopes:
        yield "this yes would be for:"
        yield from (f"    {visible(line, 500)}" for line in chosen.shown.splitlines())
        return
    yield "yes to calls of this tool by this proposer with (--scope chooses):"
    for number, each in enumerate(scopes, 1):
        mark = ">" if each is chosen else " "
        yield f"{mark} {number}  {each.words}"
        if each is chosen:
            yield from (f"       {visible(line, 500)}" for line in each.shown.splitlines())


def _preview_lines(preview: YesPreview) -> Iterator[str]:
    yield f"it {preview.summary}"
    yield from (f"  + {_call(each)}" for each in preview.covered[:MAX_SHOWN])
    if preview.near:
        yield "it does not take, for example"
        yield from (f"  - {_call(each)}" for each in preview.near)
    yield from (f"! {each}" for each in preview.warnings)


def _call(seen: SeenCall) -> str:
    arguments = visible(json.dumps(seen.arguments, ensure_ascii=False), MAX_LINE)
    by = f" by {shown_name(seen.by)}" if seen.by else ""
    return f"{arguments}{f'  ({seen.state}{by})' if seen.state else ''}"


def list_all(
    ctx: typer.Context,
    as_policy: Annotated[
        bool, flag("--as-policy", "Print those that hold as rules of a policy file.")
    ] = False,
    *,
    where: ActingOptions,
) -> None:
    """List the yeses that are kept, each with what it covers, its uses and its end.

    With `--as-policy` it prints those that hold as rules, which have no end and no count: read each
    before you let a reviewer decide by it.

    Example: `meup inbox yeses`

    Example: `meup inbox yeses --as-policy > policy.yaml`
    """

    async def act(session: CommandSession) -> None:
        kept = await list_yeses(session.space)
        if as_policy:
            from meup_agent.approval.inbox.preview import write_policy

            text, left_out = write_policy(each.yes for each in kept if each.is_active)
            for each in left_out:
                session.stderr.note(f"left out: {visible(each, 300)}")
            if not text:
                session.stderr.note("no yes holds that could be a rule")
            await session.output.write(text)
            return
        if session.as_json:
            documents = [{**each.yes.described, "state": each.state} for each in kept]
            await session.print_json({"yeses": documents})
            return
        now = ProposalFeed(session.space).time_of_day.timestamp()
        shown = IdPrefixes().of([each.yes.id for each in kept])
        for one in kept:
            await session.output.write("\n".join(yes_lines(one, now, shown)) + "\n")
        if not kept:
            session.stderr.note("no yes is kept")

    open_session(ctx, where).run(act)


def yes_lines(kept: KeptYes, now: float, shown_ids: Mapping[str, str]) -> Iterator[str]:
    """A yes in words, with its patterns below; ``now`` in seconds since 1970."""
    yes = kept.yes
    end = f"{duration(max(0.0, yes.until / 1e6 - now))} left" if kept.is_active else kept.state
    calls = f"{shown_name(yes.target)}.{shown_name(yes.tool)} by {shown_name(yes.proposer)}"
    used = f"{yes.used} of {yes.most} used"
    yield f"{shown_ids[yes.id]}  {end.replace('_', ' ')}, {used}  {calls}  of {shown_name(yes.by)}"
    scope = YesScope("", yes.arguments, yes.others)
    yield from (f"    {visible(line, 500)}" for line in scope.shown.splitlines())


def revoke(
    ctx: typer.Context,
    yeses: Annotated[
        list[str], argument("YES…", "Ids of yeses, or their beginnings; all: each of them.")
    ],
    *,
    where: ActingOptions,
) -> None:
    """Revoke yeses: what they cover is asked about again. What runs by one goes on.

    Example: `meup inbox revoke-yes 9b1c`
    """

    async def act(session: CommandSession) -> None:
        kept = [each.yes.id for each in await list_yeses(session.space)]
        meant: list[str] = []
        for given in yeses:
            found = kept if given == "all" else [each for each in kept if each.startswith(given)]
            if not given or (not found and given != "all"):
                raise Failure(f"no yes {given!r} is kept; meup inbox yeses lists them")
            if len(found) > 1 and given not in ("all", *found):
                raise Misuse(f"several yeses begin with {given!r}; give more of the id")
            meant += [given] if given in found else found
        for each in dict.fromkeys(meant):
            await revoke_yes(session.space, each)
            session.stderr.note(f"yes {each} is revoked")
        await session.print_json({"revoked": list(dict.fromkeys(meant))})

    open_session(ctx, where).run(act)


# --- history ---
# What was decided and what expired, as a table.

MAX_LISTED: Final = 100_000
"""Decisions that one command lists."""

_PAGE: Final = 500  # decisions that are asked for at a time
_ROUNDS: Final = 10_000  # pages, of which each may be empty


class EndState(StrEnum):
    """The states in which a proposal has ended."""

    PERMITTED = "permitted"
    FULFILLED = "fulfilled"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


class SortKey(StrEnum):
    """The columns of the table, by which it is sorted."""

    WHEN = "when"
    TOOL = "tool"
    PROPOSER = "proposer"
    STATE = "state"
    BY = "by"
    RULE = "rule"
    WAITED = "waited"


def history(
    ctx: typer.Context,
    search: Annotated[
        str | None,
        option(
            "TEXT",
            "Only those with this text in the tool, the proposer, the decider, the rule, the"
            " reason or the id.",
        ),
    ] = None,
    state: Annotated[
        list[EndState] | None,
        option(
            "STATE",
            "Only those that were permitted, fulfilled, rejected, withdrawn or expired; may be"
            " given several times.",
        ),
    ] = None,
    tool: Annotated[str | None, option("NAME", "Only calls of this tool.")] = None,
    proposer: Annotated[
        str | None, option("NAME", "Only what this participant proposed.", "--from")
    ] = None,
    by: Annotated[str | None, option("NAME", "Only what this participant decided.")] = None,
    sort: Annotated[
        SortKey,
        option(
            "COLUMN",
            "Sort by when, tool, proposer, state, by, rule or waited; times begin with the latest"
            " and the longest.",
        ),
    ] = SortKey.WHEN,
    limit: Annotated[int, option("N", "How many to list at most.")] = 50,
    *,
    where: ActingOptions,
) -> None:
    """List what was decided and what expired: who decided it, by which rule, and how long it took.

    What expired since you last looked is marked with `*`; it counts as seen once all of it was
    listed, here or in the console. With `--json` nothing is marked as seen. `meup audit --proposal`
    tells one of them from its beginning.

    Example: `meup inbox history --state expired --state rejected`
    """
    outer: ActingOptions | None = ctx.obj
    chosen = where if outer is None else where.beneath(outer)
    if not 1 <= limit <= MAX_LISTED:
        raise Misuse(f"--limit takes a number from 1 to {MAX_LISTED:,}; {limit:,} is not")
    query: dict[str, Any] = {
        "search": search,
        "state": state,
        "tool": tool,
        "proposer": proposer,
        "by": by,
        "sort": f"-{sort}" if sort in (SortKey.WHEN, SortKey.WAITED) else str(sort),
    }
    given = {name: value for name, value in query.items() if value}
    anyio.run(_list_history, chosen, given, limit)


async def _list_history(where: ActingOptions, query: dict[str, Any], limit: int) -> None:
    output, stderr = Output(colour=not where.no_colour), Stderr(colour=not where.no_colour)
    address = where.address()
    # An address on the command line is not another gateway's that the environment names.
    url = find_http_url(None, at=where.url)
    assert url is not None, "an address leads somewhere"
    async with open_http(HttpAddress(url, address.token, address.space)) as (me, ask):
        path = f"/spaces/{quote(str(me.get('space', '')), safe='')}/history"
        found, last = await _read_pages(ask, path, query, limit)
        unseen = last.get("unseen")
        unseen = unseen if isinstance(unseen, int) else 0
        if where.as_json:
            await output.write(as_json_line({"decisions": found, "unseen": unseen}))
            return
        await _show_history(output, found)
        if not found:
            stderr.note("nothing like that" if len(query) > 1 else "nothing was decided yet")
        elif last.get("next"):
            stderr.note(f"the first {limit:,}; --limit lists more")
        shown = sum(each.get("seen") is False for each in found)
        if shown and shown >= unseen:
            await ask(f"{path}/seen", method="POST", until=str(last.get("now", "")))
        elif unseen:
            more = "more than " if unseen >= 100 else ""
            count = min(unseen, 99)
            stderr.note(
                f"{more}{count} expired that you have not seen;"
                " meup inbox history --state expired lists them"
            )


async def _read_pages(
    ask: AskHttp, path: str, query: dict[str, Any], limit: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The decisions, page by page, and the last page."""
    found, following, first = list[dict[str, Any]](), dict[str, Any](), dict[str, Any]()
    for _ in range(_ROUNDS):
        size = str(min(_PAGE, limit - len(found)))
        page = await ask(path, **{**query, **following, "limit": size})
        first = first or page
        found += objects_in(page.get("decisions"))
        following = as_object(page.get("next"))
        if not following or len(found) >= limit:
            # What was not seen is told as it was at the first page, before later expiries.
            return found[:limit], {**first, "next": following}
    raise Failure("the gateway names ever more pages of its history, and none is the last")


async def _show_history(output: Output, found: Sequence[dict[str, Any]]) -> None:
    if not found:
        return
    heads = ("", "when", "id", "tool", "proposed by", "state", "decided by", "waited", "rule")
    ids = IdPrefixes().of(str(each.get("id", "")) for each in found)
    rows = [list(_history_cells(each, ids)) for each in found]
    if output.width is None:
        widths = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
        for row in (heads, *rows):
            padded = (
                cell + " " * (width - cell_len(cell))
                for cell, width in zip(row, widths, strict=True)
            )
            await output.write("  ".join(padded).rstrip() + "\n")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        # Never cut: what two have in common would be all that is left of a name.
        table.add_column(head, overflow="fold", no_wrap=head in ("id", "state", "waited"))
    for row in rows:
        state = STATE_STYLES.get(row[5], "")
        styles = ("bold yellow", "dim", "cyan", "", "bold", state, "", "", "dim")
        cells = (Text(cell, style=style) for cell, style in zip(row, styles, strict=True))
        table.add_row(*cells)
    await output.show(table)


def _history_cells(each: dict[str, Any], ids: dict[str, str]) -> Iterator[str]:
    def text(name: str) -> str:
        return str(each.get(name, ""))

    failed, ran_anyway = (each.get(name) is True for name in ("failed", "ran_anyway"))
    by, reason, waited = text("by"), text("reason"), each.get("waited")
    yield "*" if each.get("seen") is False else ""
    yield _moment(text("at"))
    yield ids[text("id")]
    yield shown_name(text("tool")) or "-"
    yield shown_name(text("proposer"))
    yield shown_name(state_name(text("state"), failed=failed, ran_anyway=ran_anyway))
    why = f": {shown_name(describe_reason(reason))}" if by and reason else ""
    yield (shown_name(by) or "nobody") + why
    yield duration(waited) if isinstance(waited, int | float) else ""
    yield shown_name(text("rule"))


def _moment(said: str) -> str:
    """A time in the user's zone."""
    try:
        return f"{datetime.fromisoformat(said).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return shown_name(said)


inbox.add("list", list_)
inbox.add("show", show)
inbox.add("approve", approve)
inbox.add("reject", reject)
inbox.add("vote", vote)
inbox.add("yes", say_yes)
inbox.add("yeses", list_all)
inbox.add("revoke-yes", revoke)
inbox.add("accept-tools", accept_tools_)
inbox.add("history", history)
