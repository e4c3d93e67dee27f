"""``meup inbox yes``, ``yeses`` and ``revoke-yes``: approvals in advance, with an end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from meup_agent.approval.policy.file import read_span
from meup_agent.approval.yeses.preview import MAX_SHOWN, choose_scope, preview_scope
from meup_agent.approval.yeses.scopes import YesScope, written_scope
from meup_agent.approval.yeses.verbs import list_yeses, revoke_yes
from meup_agent.cli.address import ActingOptions
from meup_agent.cli.arguments import read_json
from meup_agent.cli.decision import (
    ProposalId,
    Proposer,
    Yes,
    confirm,
    find_item,
    open_inbox,
    open_session,
)
from meup_agent.cli.failures import Failure, Misuse
from meup_agent.cli.inbox.card import plain_card
from meup_agent.cli.options import argument, flag, option
from meup_agent.cli.render.formatting import IdPrefixes
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.errors import ConfigurationError, UsageError
from meup_agent.escape import visible
from meup_agent.protocol.wire.outcomes import value_of
from meup_agent.wording import duration, shown_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meup_agent.approval.yeses.preview import SeenCall, YesPreview
    from meup_agent.cli.session import CommandSession
    from meup_agent.protocol.wire.scoped_yes import KeptYes

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
            if not session.as_json and "result" in document:
                said = document["result"]
                shown = said if isinstance(said, str) else json.dumps(said)
                await session.output.write(f"{shown_name(item.id)}: {visible(shown)}\n")
            await session.print_json(document)

    open_session(ctx, where).run(act)


def _read_scope(where: str, free: str | None) -> YesScope:
    try:
        arguments = read_json(where)
    except ValueError:
        raise Misuse("--where: expected a JSON object, or null") from None
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
            from meup_agent.approval.yeses.rules import write_policy

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
