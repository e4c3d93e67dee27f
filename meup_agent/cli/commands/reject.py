"""``meup reject`` and ``withdraw``: end a proposal, as a decider or as its proposer."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import anyio
import typer

from meup_agent.causes import Reason
from meup_agent.cli.address import ActingOptions, As
from meup_agent.cli.arguments import did_you_mean
from meup_agent.cli.command_session import CommandSession, JoinOptions, unconfirmed
from meup_agent.cli.deciding import (
    WHY_REJECT,
    Explain,
    ProposalId,
    send_explained,
)
from meup_agent.cli.failures import Misuse
from meup_agent.cli.options import ResultOptions, complete_reason, complete_reason_to_reject
from meup_agent.cli.proposal_lookup import ID_CHARS, choose_pending, find_pending, list_known
from meup_agent.cli.render.console import Stderr
from meup_agent.escape import visible
from meup_agent.protocol import kinds, payloads

_HEX: Final = frozenset("0123456789abcdef")
_REASONS: Final = ", ".join(Reason)


def reject(
    proposal: Annotated[
        str,
        typer.Argument(
            metavar="PROPOSAL",
            help="The proposal's id; or its beginning, where the gateway lists proposals.",
            show_default=False,
        ),
    ],
    reason: Annotated[
        str,
        typer.Argument(
            metavar="REASON",
            help=WHY_REJECT,
            show_default=False,
            autocompletion=complete_reason_to_reject,
        ),
    ],
    explain: Explain = None,
    proposer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Whose proposal it is, where several have used the id; where it is not known, the"
            " only one who is told.",
        ),
    ] = None,
    act_as: As = None,
    *,
    join: JoinOptions,
) -> None:
    """Reject a proposal.

    A rejection is not confirmed, and a late one has no effect. The proposer decides whether it
    counts. `meup tail --json` shows the ids in full.

    It joins beside the agent that runs with the same token, which keeps its connection. On a
    gateway of other make it takes that over, unless `--as` says that it must not.

    Example: `MEUP_TOKEN=… meup reject 0c9f2c62a4ce4d1d9a0e6a1f6c1b7d55 unsafe --explain "no"`
    """
    limit = join.seconds
    for value, name in ((proposal, "proposal"), (reason, "reason")):
        if not value.strip():
            raise Misuse(f"the {name} is empty; see meup reject --help")

    async def act(session: CommandSession) -> None:
        whole, whose = proposal, proposer
        if known := await list_known(session.space, proposal, proposer):
            # An id that was used before means the proposal that is open now.
            exact = [each for each in known if each.id == proposal] or known
            pending = [each for each in exact if each.state.is_pending]
            meant = choose_pending(pending or exact, proposal)
            whole, whose = meant.id, meant.proposer
        else:
            _remark_id(session, proposal)
        to = (whose,) if whose else ()
        session.remark_absence(to)
        with anyio.move_on_after(limit) as waiting:
            send = partial(
                session.space.send, kinds.MCP_REJECT, {"reason": reason}, to=to, correlation=whole
            )
            rejection, confirmed = await send_explained(session, "rejection", send, explain, to)
            _remark_reason(session.stderr, reason)
            session.stderr.note(f"rejection of {whole} sent; no reply will confirm it")
            document = {"rejection": rejection, "proposal": whole, "confirmed": confirmed}
            await session.print_json(document)
        if waiting.cancelled_caught:
            raise unconfirmed("the rejection", join.timeout)

    where = join.address()
    if act_as is not None:
        where = where._replace(participant=act_as, only_beside=True)
    CommandSession(where, join.result).run(act)


def _remark_id(session: CommandSession, given: str) -> None:
    """Note an id that looks shortened: a newcomer has seen no proposal that it could begin."""
    if len(given) < ID_CHARS and _HEX.issuperset(given):
        session.stderr.note(
            f"{given!r} looks shortened, and may match no proposal; meup tail --json shows ids"
            " in full"
        )


def _remark_reason(stderr: Stderr, reason: str) -> None:
    """Say of a reason that was sent that receivers may not know it."""
    if reason not in list(Reason):
        hint = did_you_mean(reason, Reason)
        stderr.note(f"{reason!r} is none of the protocol's reasons{hint}; it was sent as it is")


def withdraw(
    proposal: ProposalId,
    reason: Annotated[
        str,
        typer.Argument(
            metavar="[REASON]", help=f"Why: {_REASONS}.", autocompletion=complete_reason
        ),
    ] = Reason.NO_LONGER_NEEDED,
    explain: Explain = None,
    *,
    where: ActingOptions,
    result: ResultOptions,
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
        meta = {payloads.REJECTED_BY: None} if record.rejections else None
        said = payloads.build_withdrawal(reason, meta)
        send = partial(session.space.send, kinds.MCP_WITHDRAW, said, to=to, correlation=whole)
        withdrawal, _ = await send_explained(session, "withdrawal", send, explain, to)
        for each in await list_known(session.space, whole, me):
            if each.seq == record.seq:
                record = each
        state = str(record.state)
        session.stderr.note(
            f"proposal {whole} is withdrawn"
            if state == "withdrawn"
            else f"the withdrawal of {whole} came too late: it is {visible(state, 64)},"
            f" by {visible(record.decided_by or '', 64)}"
        )
        await session.print_json({"withdrawal": withdrawal, "proposal": whole, "state": state})

    CommandSession(where.beside(), result).run(act)
