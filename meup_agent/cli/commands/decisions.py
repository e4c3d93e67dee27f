"""Decisions on the command line, and ``meup fulfill``: carry a proposal out.

The proposal that is meant, options, question and envelope: ``meup reject``, ``withdraw`` and those
of ``meup inbox`` are made of it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import typer

from meup_agent.cli.address import ActingOptions
from meup_agent.cli.arguments import GivenArguments, convert_arguments, read_arguments
from meup_agent.cli.failures import Failure, Misuse, code_for
from meup_agent.cli.options import Args, ArgsFile, argument, flag, option, seconds
from meup_agent.cli.render.output import progress_line
from meup_agent.cli.session import CommandSession, send_confirmed
from meup_agent.client.messages import TIMEOUT
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.errors import (
    AlreadyDecided,
    AlreadyInProgress,
    OutcomeUnknown,
    OwnerUnknown,
    RequestError,
    ToolError,
)
from meup_agent.escape import compact, visible
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.wire.membership import ProposalQuery
from meup_agent.protocol.wire.outcomes import value_of
from meup_agent.protocol.wire.payloads import (
    TOOL_CALL,
    Call,
    Change,
    as_object,
    build_fulfillment,
    read_proposal,
    without_meta,
)
from meup_agent.protocol.wire.payloads import digest as digest_of_call
from meup_agent.wording import WHOLE, describe_changes, format_proposed, shown_name

if TYPE_CHECKING:
    from meup_agent.approval import Inbox, InboxItem
    from meup_agent.cli.render.output import Stderr
    from meup_agent.client.proposal import ProposalRecord
    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.envelope import Envelope


# --- proposal lookup ---
# Look-up of the proposal that a command means, by its id or the beginning of one.

ID_CHARS: Final = 32
"""Characters of an id as this package draws them: one with as many is the beginning of no other."""

MAX_NAMED: Final = 4  # proposals that an error names


async def list_known(space: Space, given: str, proposer: str | None = None) -> list[ProposalRecord]:
    """The proposals with an id, or the beginning of it, that are open or were decided lately.

    A whole id is the beginning of none: another's would be taken for one that is forgotten. So it
    is where the gateway cannot tell of one, which may be the one that is meant.
    """
    found: dict[tuple[str, str, int | None], ProposalRecord] = {}
    is_whole, feed = len(given) >= ID_CHARS, ProposalFeed(space)
    # Decided ones last: what is decided in between is in both.
    for query in (
        ProposalQuery(id=given, proposer=proposer or ""),
        ProposalQuery("decided", id=given, proposer=proposer or ""),
    ):
        async with aclosing(feed.list_pages(query)) as pages:
            async for page in pages:
                is_whole |= page.omitted > 0
                found |= {(each.proposer, each.id, each.seq): each for each in page.records}
    meant = [each for each in found.values() if each.id == given or not is_whole]
    return sorted(meant, key=lambda each: each.seq or 0)


async def find_pending(
    space: Space,
    given: str,
    *,
    proposer: str | None = None,
    digest: str | None = None,
    in_progress: bool = False,
    whichever_call: bool = True,
) -> ProposalRecord:
    """The pending proposal that an id, or the beginning of one, means.

    Where its proposer has used the id before for another call, the pending one is meant; without
    ``whichever_call``, as where something is approved, it is not. With ``in_progress`` its
    fulfillment may be on its way.
    """
    if not given.strip():
        raise Misuse("the proposal is empty; give its id")
    known = await list_known(space, given, proposer)
    found = [each for each in known if digest in (None, digest_of(each))]
    if not found:
        whose = "proposal" if proposer is None else f"proposal of {shown_name(proposer)}"
        raise Failure(f"the gateway knows no {whose} {given!r}; meup audit lists those it knows")
    return choose_pending(found, given, in_progress=in_progress, whichever_call=whichever_call)


def choose_pending(
    found: list[ProposalRecord],
    given: str,
    *,
    in_progress: bool = False,
    whichever_call: bool = True,
) -> ProposalRecord:
    """The pending one of the proposals that an id, or the beginning of one, may mean.

    Raises:
        Misuse: Several are meant.
        AlreadyDecided: It is decided.
        AlreadyInProgress: It is in progress, without ``in_progress``.
    """
    exact = [each for each in found if each.id == given] or found
    if len(exact) > 1:
        exact = _same(exact, whichever_call=whichever_call) or exact
    if len(exact) > 1:
        raise _several(given, exact)
    record = exact[0]
    if not record.state.is_pending:
        raise AlreadyDecided(record.id, record.state)
    if record.in_progress_by is not None and not in_progress:
        raise AlreadyInProgress(record.id, record.in_progress_by)
    return record


def digest_of(record: ProposalRecord) -> str | None:
    """The digest of a proposed call (PROTOCOL 6); ``None`` where it has none."""
    call = read_proposal(record.envelope.payload)
    return digest_of_call(call.method, call.params, call.target)


def _same(found: list[ProposalRecord], *, whichever_call: bool) -> list[ProposalRecord]:
    """The one that is meant of those that one proposer made under one id; none if that is open."""
    keys = {(each.proposer, each.id) for each in found}
    pending = [each for each in found if each.state.is_pending]
    calls = {digest_of(each) for each in found}
    same_call = len(calls) == 1 and None not in calls
    return pending if len(keys) == len(pending) == 1 and (whichever_call or same_call) else []


def _several(given: str, found: list[ProposalRecord]) -> Failure:
    """The error for an ambiguous id; it names each proposal that has it."""
    if len({each.id for each in found}) > 1:
        advice = "give more of the id"
    elif len({each.proposer for each in found}) > 1:
        advice = "say with --proposer whose is meant"
    else:
        advice = "say with --digest which is meant; meup audit --json and meup tail --json tell"
    said = "; ".join(map(_in_words, found[:MAX_NAMED]))
    more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return Misuse(f"several proposals are meant by {given!r}: {said}{more}; {advice}")


def _in_words(record: ProposalRecord) -> str:
    call = format_proposed(read_proposal(record.envelope.payload), more="meup audit --proposal")
    state = str(record.state).replace("_", " ")
    return f"{shown_name(record.id)} of {shown_name(record.proposer)}, {call}, {state}"


# --- decision ---

ProposalId = Annotated[
    str,
    argument("PROPOSAL", "The proposal's id, or its beginning."),
]
ProposalIds = Annotated[
    list[str],
    argument("PROPOSAL…", "Ids of proposals, or their beginnings."),
]
Proposer = Annotated[
    str | None,
    option("NAME", "Whose proposal it is, where several have used the id."),
]
Explain = Annotated[
    str | None,
    option("TEXT", "Longer words that go with it, said as a chat."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where no terminal is.")]


def open_session(ctx: typer.Context, where: ActingOptions) -> CommandSession:
    """Session of a command; in ``meup inbox`` it disturbs no agent of the same name."""
    outer = ctx.find_object(ActingOptions)
    if outer is None:
        return CommandSession(where)
    where = where.beneath(outer)
    return CommandSession(where, where.beside())


async def confirm(stderr: Stderr, question: str, *, word: str = "") -> None:
    """Ask the person at the terminal; return if they say yes, or type a word where one is asked."""
    if not sys.stdin.isatty():
        raise Misuse(
            f"a rule asks for the word {word!r}, and standard input is not a terminal; approve it"
            " in a terminal or a browser"
            if word
            else "standard input is not a terminal, so you cannot be asked; read what is above, and"
            " give --yes to do it"
        )
    stderr.prompt(f"{question} Type {word}: " if word else f"{question} [y/N] ")
    # The loop goes on meanwhile: a signal ends the wait, which a thread in a read would survive.
    await anyio.wait_readable(sys.stdin)
    if sys.stdin.readline().strip().lower() not in ((word,) if word else ("y", "yes")):
        raise Failure("not confirmed; nothing was sent")


async def send_explained(
    session: CommandSession,
    what: str,
    send: Callable[[], Awaitable[str]],
    explain: str | None,
    to: tuple[str, ...],
) -> tuple[str, bool]:
    """Send an envelope and the words that explain it; its id, and whether it was confirmed."""
    sent, confirmed = await send_confirmed(session.space, f"the {what}", send)
    if explain:
        chat = partial(session.space.chat, explain, to=to, about=sent)
        await send_confirmed(session.space, "the explanation", chat)
    return sent, confirmed


# --- inbox ---
# Of a command that looks and decides once.

SETTLE_SECONDS: Final = 3.0
"""Wait of a command for the rules of reviewers and the tools of executors."""


@asynccontextmanager
async def open_inbox(session: CommandSession) -> AsyncGenerator[Inbox]:
    """The inbox, once it knows what it can know."""
    # Loaded here: reject, withdraw and fulfill need no inbox.
    from meup_agent.approval import Inbox
    from meup_agent.cli.render.card import ONLY_HEARD

    async with Inbox(session.space) as box:
        if not box.knows_before:
            session.stderr.note(ONLY_HEARD)
        await box.settle(SETTLE_SECONDS)
        yield box


async def find_item(
    box: Inbox, session: CommandSession, given: str, proposer: str | None
) -> InboxItem:
    """The item that an id, or its beginning, means."""
    # Among all proposals that are known: the beginning may be the whole id of a decided one.
    record = await find_pending(session.space, given, proposer=proposer, in_progress=True)
    item = box.find(record.proposer, record.id)
    if item is None:
        raise Failure(
            f"proposal {record.id} does not wait for you; meup inbox list shows those that do"
        )
    return item


# --- meup fulfill ---


def fulfill(
    proposal: ProposalId,
    edit: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "Another value for one of its arguments; may be given several times. The proposer"
            " is told the difference.",
        ),
    ] = None,
    args: Args = None,
    args_file: ArgsFile = None,
    executor: Annotated[
        str | None,
        option(
            "NAME",
            "The participant that carries it out, if not the one that the proposal names, or"
            " the only one that has its tool.",
        ),
    ] = None,
    proposer: Proposer = None,
    digest: Annotated[
        str | None,
        option(
            "HEX",
            "The digest of the call that is meant (`dev.meup/digest`): any other is not"
            " carried out.",
        ),
    ] = None,
    even_if_gone: Annotated[
        bool,
        flag("--even-if-gone", "Carry it out though its proposer has left the space."),
    ] = False,
    yes: Yes = False,
    *,
    where: ActingOptions,
    timeout: Annotated[
        float,
        option(
            "SECONDS",
            "How long to wait for the result, in seconds; then the request is cancelled. inf:"
            " as long as it takes.",
        ),
    ] = TIMEOUT,
) -> None:
    """Carry out a proposal, and print the result.

    It shows the call, all of it, and asks. What is then requested is the call that was shown, and
    it says whose proposal it carries out. An edited call is judged by the reviewers that are here.

    The real request is made as the participant whose token you have, beside its agent, which keeps
    its connection. Ctrl-C cancels the request.

    Example: `MEUP_TOKEN=… meup fulfill 0c9f2c62a4ce --url ws://localhost:8420 --space demo`
    """
    address = where.beside()
    limit = seconds(timeout, "--timeout")
    given = read_arguments(edit or [], args, args_file)

    async def act(session: CommandSession) -> None:
        find = partial(find_pending, session.space, whichever_call=False)
        record = await find(proposal, proposer=proposer, digest=digest)
        envelope = record.envelope
        if envelope.sender == session.space.me:
            raise Misuse(
                f"proposal {envelope.id} is {session.space.me!r}'s own, and no participant approves"
                " its own; use the token of a participant that decides it"
            )
        call = read_proposal(envelope.payload)
        to = executor or call.target
        if to is None:
            to = await _find_executor(session, envelope, call)
        arguments = _edited(call.arguments, given)
        params, changes = build_fulfillment(call, arguments, to, proposer=envelope.sender)
        said = f"{shown_name(to)}.{shown_name(call.name or call.method)}"
        for line in _shown(envelope, to, Call(call.method, params), changes):
            session.stderr.write_lines(line)
        if not yes:
            await confirm(session.stderr, "carry it out?")
            # It may have been withdrawn, or its id used again, while it was being read.
            record = await find(envelope.id, proposer=envelope.sender, digest=digest_of(record))
        if changes:
            from meup_agent.approval.reviewer.methods import check_edit

            given_now = as_object(params.get("arguments"))
            elsewhere = to if to != call.target else None
            await check_edit(session.space, envelope, given_now, target=elsewhere)
        session.given_up = f"{shown_name(to)} was asked to stop"
        try:
            async with progress_line(session.stderr.console, f"waiting for {to}") as waiting:
                answer = await session.space.proposals.get(record).fulfill(
                    arguments,
                    executor=to,
                    timeout=limit,
                    on_progress=waiting.update,
                    even_if_gone=even_if_gone,
                )
        except OutcomeUnknown as error:
            raise await _ended_meanwhile(session.space, record) or error from None
        session.given_up = ""
        try:
            value = value_of(answer)
        except (ToolError, RequestError) as error:
            raise Failure(f"{said} failed: {error}", code_for(error)) from error
        document = {
            "proposal": envelope.id,
            "proposer": envelope.sender,
            "executor": to,
            "result": value,
            "edited": bool(changes),
        }
        await session.print_result(said, answer.response, document)

    CommandSession(where, address).run(act)


async def _find_executor(session: CommandSession, proposal: Envelope, call: Call) -> str:
    """The only participant that can carry out a proposal that names none."""
    if call.method != TOOL_CALL:
        raise Misuse(
            f"proposal {proposal.id} does not say who should carry it out; give --executor"
        )
    async with progress_line(session.stderr.console, f"looking for who has {call.name}"):
        try:
            return await session.space.proposals.get(proposal).find_executor()
        except OwnerUnknown as error:
            raise Misuse(f"{error}; give --executor") from error


def _edited(proposed: dict[str, Any], given: GivenArguments) -> dict[str, Any] | None:
    """The proposed arguments with what was given over them; ``None`` if nothing was given."""
    if not (given.whole or given.pairs):
        return None
    # What was proposed as text stays text: --edit path=5.
    texts = {
        name: text for name, text in given.pairs.items() if isinstance(proposed.get(name), str)
    }
    others = {name: text for name, text in given.pairs.items() if name not in texts}
    return {**proposed, **convert_arguments(given._replace(pairs=others)), **texts}


async def _ended_meanwhile(space: Space, record: ProposalRecord) -> Failure | None:
    """The failure of a fulfillment whose proposal ended meanwhile; ``None`` if it did not."""
    for each in await list_known(space, record.id, record.proposer):
        if each.seq != record.seq:
            continue
        if each.state is ProposalState.WITHDRAWN:
            return Failure(
                f"{record.proposer!r} withdrew proposal {record.id} while it was carried out:"
                f" {shown_name(each.reason or '')}"
            )
        if each.state is ProposalState.EXPIRED:
            return Failure(f"proposal {record.id} expired while it was carried out")
    return None


def _shown(
    proposal: Envelope, executor: str, call: Call, changes: Iterable[Change]
) -> Iterator[str]:
    """A call in as many lines as it has arguments, and its differences; none of it is cut."""
    is_tool = call.method == TOOL_CALL
    values = call.arguments if is_tool else without_meta(call.params)
    whose = shown_name(proposal.sender)
    yield f"proposal {shown_name(proposal.id)} of {whose}:"
    yield f"  {visible(executor)}.{visible(call.name or call.method)}"
    for name, value in values.items():
        yield f"    {visible(name)} = {compact(value, WHOLE)}"
    for name, value in call.beside.items() if is_tool else ():
        yield f"    beside its arguments: {visible(name)} = {compact(value, WHOLE)}"
    for each in changes:
        yield f"  {describe_changes([each], visible, partial(compact, limit=WHOLE))}"
