"""``meup reject`` and ``withdraw``: end a proposal, as a decider or as its proposer."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import anyio
import typer

from meup_agent.causes import REASONS_TO_REJECT, Reason, declines
from meup_agent.cli.address import ActingOptions
from meup_agent.cli.arguments import did_you_mean
from meup_agent.cli.command_session import CommandSession, unconfirmed
from meup_agent.cli.decision import (
    Explain,
    ProposalId,
    ProposalIds,
    Proposer,
    open_session,
    send_explained,
)
from meup_agent.cli.failures import Misuse
from meup_agent.cli.options import (
    Timeout,
    reason_option,
    seconds,
)
from meup_agent.cli.proposal_lookup import ID_CHARS, find_pending, list_known
from meup_agent.errors import AlreadyDecided
from meup_agent.escape import visible
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.proposals.lifecycle import ProposalState

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
        meant = [await _find(session, each, proposer) for each in proposals]
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


async def _find(
    session: CommandSession, given: str, proposer: str | None
) -> tuple[str, str | None]:
    """The id and the proposer of the pending proposal that is meant."""
    space = session.space
    known = space.guarantees.lists_proposals or await list_known(space, given, proposer)
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

    CommandSession(where, where.beside()).run(act)
