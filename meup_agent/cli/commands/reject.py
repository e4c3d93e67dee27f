"""``meup reject``: say no to somebody's proposal."""

from __future__ import annotations

import math
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import anyio
import typer

from meup_agent.cli import exit_codes
from meup_agent.cli.beside.address import As, Http, http_address, http_url
from meup_agent.cli.beside.deciding import pending_proposal
from meup_agent.cli.beside.requesting import new_id
from meup_agent.cli.beside.visit import HttpVisit
from meup_agent.cli.command_session import CommandSession, JoinOptions, send_confirmed, unconfirmed
from meup_agent.cli.failures import Failure
from meup_agent.cli.options import complete_reason
from meup_agent.cli.render.console import Stderr
from meup_agent.cli.render.results import as_json_line
from meup_agent.errors import AlreadyDecided, AlreadyInProgress
from meup_agent.protocol import kinds
from meup_agent.reasons import Reason

if TYPE_CHECKING:
    from meup_agent.client.deciding import ProposalRecord

WHOLE_ID: Final = 32
"""Characters of an id as this package draws them."""

_HEX: Final = frozenset("0123456789abcdef")
_REASONS: Final = ", ".join(Reason)


def reject(
    proposal: Annotated[
        str,
        typer.Argument(
            metavar="PROPOSAL",
            help="The proposal's id, or its beginning where it is known: over HTTP, or at a gateway"
            " that tells newcomers of open proposals.",
            show_default=False,
        ),
    ],
    reason: Annotated[
        str,
        typer.Argument(
            metavar="REASON",
            help=f"Why: {_REASONS}.",
            show_default=False,
            autocompletion=complete_reason,
        ),
    ],
    explain: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Longer words for the proposer, said as a chat."),
    ] = None,
    proposer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Whose proposal it is, where several have used the id; where it is not known, the"
            " only one who is told.",
        ),
    ] = None,
    http: Http = None,
    act_as: As = None,
    *,
    join: JoinOptions,
) -> None:
    """Reject a proposal.

    A rejection is not confirmed, and a late one has no effect. The proposer decides whether it
    counts. `meup tail --json` shows the ids in full.

    With an HTTP address (`--http` or MEUP_HTTP) it is said over HTTP, and an agent that runs with
    this token keeps its connection; without one it joins, and takes that connection over.

    Example: `MEUP_TOKEN=… meup reject 0c9f2c62a4ce4d1d9a0e6a1f6c1b7d55 unsafe --explain "no"`
    """
    limit = join.seconds
    for value, name in ((proposal, "proposal"), (reason, "reason")):
        if not value.strip():
            raise Failure(f"the {name} is empty; see meup reject --help", exit_codes.USAGE)
    # Who names another gateway does not mean the HTTP address in the environment.
    if act_as is not None or http is not None or (join.url is None and http_url(http) is not None):
        beside = http_address(
            http, join.space, join.token, join.token_file, act_as or join.participant
        )
        said = Rejecting(proposal, reason, explain, proposer, limit, join.as_json)
        HttpVisit(beside, colour=not join.no_colour).run(partial(_reject_beside, said))
        return

    async def act(session: CommandSession) -> None:
        record = seen_as(session.space.proposals, proposal, proposer)
        whole = proposal if record is None else record.id
        whose = proposer if record is None else record.proposer
        if record is None:
            _remark_id(session, proposal)
        to = (whose,) if whose else ()
        session.remark_absence(to)
        with anyio.move_on_after(limit) as waiting:
            send = partial(
                session.space.send, kinds.MCP_REJECT, {"reason": reason}, to=to, correlation=whole
            )
            rejection, confirmed = await send_confirmed(session.space, "the rejection", send)
            if explain:
                chat = partial(session.space.chat, explain, to=to, about=rejection)
                await send_confirmed(session.space, "the explanation", chat)
            _remark_reason(session.stderr, reason)
            session.stderr.note(f"rejection of {whole} sent; nobody confirms that it counts")
            document = {"rejection": rejection, "proposal": whole, "confirmed": confirmed}
            await session.print_json(document)
        if waiting.cancelled_caught:
            raise unconfirmed("the rejection", join.timeout)

    join.run(act)


class Rejecting(NamedTuple):
    """What is rejected, and how."""

    proposal: str
    reason: str
    explain: str | None
    proposer: str | None
    seconds: float | None
    as_json: bool


async def _reject_beside(wanted: Rejecting, session: HttpVisit) -> None:
    with anyio.move_on_after(wanted.seconds) as waiting:
        await _say_beside(wanted, session)
    if waiting.cancelled_caught:
        raise unconfirmed("the rejection", wanted.seconds or math.inf)


async def _say_beside(wanted: Rejecting, session: HttpVisit) -> None:
    space = session.space
    record = await pending_proposal(space, wanted.proposal, proposer=wanted.proposer)
    whole, to = str(record["id"]), (str(record["proposer"]),)
    rejection = await space.say(
        kinds.MCP_REJECT, {"reason": wanted.reason}, id=new_id(), to=to, correlation=(whole,)
    )
    if wanted.explain:
        body = {"message": wanted.explain}
        await space.say(kinds.CHAT, body, id=new_id(), to=to, correlation=(rejection.id,))
    _remark_reason(session.stderr, wanted.reason)
    session.stderr.note(f"rejection of {whole} sent; nobody confirms that it counts")
    if wanted.as_json:
        document = {"rejection": rejection.id, "proposal": whole, "confirmed": True}
        await session.output.write(as_json_line(document))


def seen_as(
    proposals: list[ProposalRecord], given: str, proposer: str | None = None
) -> ProposalRecord | None:
    """The proposal that an id, or the beginning of one, means; ``None`` if it was not seen.

    Args:
        proposals: Those that we have seen.
        given: The id.
        proposer: Whose it is; ``None``: anybody's.

    Raises:
        Failure: Several begin like this, or have this id.
        AlreadyDecided: It is not pending any more.
        AlreadyInProgress: Its fulfillment is on its way.
    """
    theirs = [each for each in proposals if proposer in (None, each.proposer)]
    found = [each for each in theirs if each.id.startswith(given)]
    whole = [each for each in found if each.id == given]
    if len(whole) > 1:
        said = ", ".join(f"{each.id} of {each.proposer}" for each in whole[:4])
        raise Failure(
            f"several proposals have the id {given!r}: {said}; say with --proposer whose is meant",
            exit_codes.USAGE,
        )
    if len(found) > 1 and not whole:
        ids = ", ".join(each.id for each in found[:4])
        raise Failure(f"several proposals begin with {given!r}: {ids}", exit_codes.USAGE)
    if not found:
        return None
    record = (whole or found)[0]
    if not record.state.is_pending:
        raise AlreadyDecided(record.id, record.state)
    if record.in_progress_by is not None:
        raise AlreadyInProgress(record.id, record.in_progress_by)
    return record


def _remark_id(session: CommandSession, given: str) -> None:
    """Who has just come has seen no proposal, and cannot tell what a shortened id means."""
    if len(given) < WHOLE_ID and _HEX.issuperset(given):
        session.stderr.note(
            f"{given!r} looks shortened, and nobody may know it by that; meup tail --json shows ids"
            " in full"
        )


def _remark_reason(stderr: Stderr, reason: str) -> None:
    """Say of a reason that was sent that receivers may not know it."""
    known = [str(each) for each in Reason]
    if reason in known:
        return
    close = get_close_matches(reason, known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    stderr.note(f"{reason!r} is none of the protocol's reasons{hint}; it was sent as it is")
