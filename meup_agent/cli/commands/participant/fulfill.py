"""``meup fulfill``: carry a proposal out, beside the agent that may decide it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from meup_agent.cli.address import ActingOptions
from meup_agent.cli.arguments import GivenArguments, convert_arguments, read_arguments
from meup_agent.cli.decision import (
    ProposalId,
    Proposer,
    Yes,
    confirm,
    digest_of,
    find_pending,
    list_known,
)
from meup_agent.cli.failures import Failure, Misuse, code_for
from meup_agent.cli.options import Args, ArgsFile, flag, option, seconds
from meup_agent.cli.render.output import progress_line
from meup_agent.cli.session import CommandSession
from meup_agent.client.messages import TIMEOUT
from meup_agent.errors import OutcomeUnknown, OwnerUnknown, RequestError, ToolError
from meup_agent.escape import compact, visible
from meup_agent.protocol.proposals.lifecycle import ProposalState
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
from meup_agent.wording import WHOLE, describe_changes, shown_name

if TYPE_CHECKING:
    from meup_agent.client.proposal import ProposalRecord
    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.envelope import Envelope


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
