"""``meup call`` and ``propose``: call a participant's tool, or propose the call."""

from __future__ import annotations

from typing import Annotated

import typer

from meup_agent.cli.address import BesideOptions
from meup_agent.cli.command_session import CommandSession
from meup_agent.cli.options import ResultOptions, seconds
from meup_agent.cli.tool_call import CallOptions, ToolCall, run_tool_call
from meup_agent.client.proposal_handle import TTL
from meup_agent.protocol.exchange import Wait


def call(
    *,
    options: CallOptions,
    idempotent: Annotated[
        bool,
        typer.Option("--idempotent", help="A request may be sent again after a lost connection."),
    ] = False,
    where: BesideOptions,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="How long to wait for the decision and the result; inf: as long as it takes.",
        ),
    ] = TTL,
    result: ResultOptions,
) -> None:
    """Call a tool and print its result.

    Where you may not call it, the call is proposed, and a participant that may call it decides.
    Ctrl-C cancels the request or withdraws the proposal.

    With `--as` it is said over HTTP, beside the agent that runs under that name: joining with its
    token would take its connection over.

    Example: `MEUP_TOKEN=… meup call tools write_file path=notes.txt text="hello"`
    """
    wanted = ToolCall(
        participant=options.owner,
        tool=options.tool,
        given=options.given(),
        to=tuple(options.to or ()),
        seconds=seconds(timeout, "--timeout"),
        idempotent=idempotent,
        accept_edits=options.accept_edits,
        as_json=result.as_json,
    )
    CommandSession(where.resolve(), colour=result.colour).run(
        lambda session: run_tool_call(session, wanted)
    )


def propose(
    *,
    call: CallOptions,
    wait: Annotated[
        Wait,
        typer.Option(
            help="Which rejection ends the wait: one by a participant of --to (without --to, those"
            " of all that could fulfill it), any, or none before the time is up."
        ),
    ] = Wait.ADDRESSED,
    ttl: Annotated[
        float,
        typer.Option(
            "--ttl",
            "--timeout",
            metavar="SECONDS",
            help="How long to wait for the decision and the result; inf: as long as it takes.",
        ),
    ] = TTL,
    where: BesideOptions,
    result: ResultOptions,
) -> None:
    """Propose the call of a tool, wait, and print its result.

    Its id is on standard error at once; what becomes of it shows in the exit code. Ctrl-C
    withdraws it.

    With `--as` it is said over HTTP, beside the agent that runs under that name: joining with its
    token would take its connection over.

    Example: `MEUP_TOKEN=… meup propose tools delete_file path=notes.txt --to fulfiller --ttl 60`
    """
    limit = seconds(ttl, "--ttl")
    wanted = ToolCall(
        participant=call.owner,
        tool=call.tool,
        given=call.given(),
        to=tuple(call.to or ()),
        seconds=limit,
        wait=wait,
        accept_edits=call.accept_edits,
        as_proposal=True,
        as_json=result.as_json,
    )
    CommandSession(where.resolve(), colour=result.colour).run(
        lambda session: run_tool_call(session, wanted)
    )
