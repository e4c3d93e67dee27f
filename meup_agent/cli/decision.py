"""Decisions on the command line: the proposal that is meant, options, question, envelope.

``meup fulfill``, ``reject``, ``withdraw`` and those of ``meup inbox`` are made of it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import anyio
import typer

from meup_agent.cli.address import ActingOptions
from meup_agent.cli.failures import Failure, Misuse
from meup_agent.cli.options import argument, option
from meup_agent.cli.session import CommandSession, send_confirmed
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.errors import AlreadyDecided, AlreadyInProgress
from meup_agent.protocol.wire.membership import ProposalQuery
from meup_agent.protocol.wire.payloads import digest as digest_of_call
from meup_agent.protocol.wire.payloads import read_proposal
from meup_agent.wording import format_proposed, shown_name

if TYPE_CHECKING:
    from meup_agent.approval import Inbox, InboxItem
    from meup_agent.cli.render.output import Stderr
    from meup_agent.client.proposal import ProposalRecord
    from meup_agent.client.space import Space


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
    found = await list_known(space, given, proposer)
    found = [each for each in found if digest in (None, digest_of(each))]
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
    if word and not sys.stdin.isatty():
        raise Misuse(
            f"a rule asks for the word {word!r}, and standard input is not a terminal; approve it"
            " in a terminal or a browser"
        )
    if not sys.stdin.isatty():
        raise Misuse(
            "standard input is not a terminal, so you cannot be asked; read what is above, and give"
            " --yes to do it"
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
    from meup_agent.cli.inbox.card import ONLY_HEARD

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
