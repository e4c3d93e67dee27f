"""``meup propose``: propose a call, and wait for what becomes of it."""

from __future__ import annotations

from typing import Annotated

import typer

from meup_agent.cli.address import Participant, Space, Token, TokenFile, Url, resolve_address
from meup_agent.cli.arguments import read_arguments
from meup_agent.cli.command_session import CommandSession
from meup_agent.cli.options import (
    AcceptEdits,
    Args,
    ArgsFile,
    Json,
    NoColour,
    Owner,
    To,
    Tool,
    Words,
    seconds,
)
from meup_agent.cli.tool_call import ToolCall, run_tool_call
from meup_agent.client.proposing import TTL
from meup_agent.protocol.exchange import Wait


def propose(
    owner: Owner,
    tool: Tool,
    words: Words = None,
    args: Args = None,
    args_file: ArgsFile = None,
    to: To = None,
    accept_edits: AcceptEdits = False,
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
    url: Url = None,
    space: Space = None,
    token: Token = None,
    token_file: TokenFile = None,
    participant: Participant = None,
    as_json: Json = False,
    no_colour: NoColour = False,
) -> None:
    """Propose the call of a tool, wait, and print its result.

    Its id is on standard error at once; what becomes of it shows in the exit code. Ctrl-C
    withdraws it.

    Example: `MEUP_TOKEN=… meup propose tools delete_file path=notes.txt --to fulfiller --ttl 60`
    """
    where = resolve_address(url, space, token, token_file, participant)
    limit = seconds(ttl, "--ttl")
    wanted = ToolCall(
        participant=owner,
        tool=tool,
        given=read_arguments(words or [], args, args_file),
        to=tuple(to or ()),
        proposal_seconds=limit,
        wait=wait,
        accept_edits=accept_edits,
        as_proposal=True,
        as_json=as_json,
    )
    CommandSession(where, colour=not no_colour).run(lambda session: run_tool_call(session, wanted))
