"""``meup call``: call somebody's tool, or propose the call where we may not."""

from __future__ import annotations

from typing import Annotated

import typer

from meup_agent.cli.address import Participant, Space, Token, TokenFile, Url, resolve_address
from meup_agent.cli.arguments import read_arguments
from meup_agent.cli.beside.address import As, Http, http_address
from meup_agent.cli.beside.calling import run_tool_call as carry_out_beside
from meup_agent.cli.beside.visit import HttpVisit
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
from meup_agent.client.requests import TIMEOUT


def call(
    owner: Owner,
    tool: Tool,
    words: Words = None,
    args: Args = None,
    args_file: ArgsFile = None,
    to: To = None,
    accept_edits: AcceptEdits = False,
    idempotent: Annotated[
        bool,
        typer.Option("--idempotent", help="A request may be sent again after a lost connection."),
    ] = False,
    act_as: As = None,
    http: Http = None,
    url: Url = None,
    space: Space = None,
    token: Token = None,
    token_file: TokenFile = None,
    participant: Participant = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help=f"How long to wait: {TIMEOUT:g} s, or {TTL:g} s for a proposal; inf: as long as it"
            " takes.",
        ),
    ] = None,
    as_json: Json = False,
    no_colour: NoColour = False,
) -> None:
    """Call a tool and print its result.

    Where you may not call it, the call is proposed, and a participant that may call it decides.
    Ctrl-C cancels the request or withdraws the proposal.

    With `--as` it is said over HTTP, beside the agent that runs under that name: joining with its
    token would take its connection over.

    Example: `MEUP_TOKEN=… meup call tools write_file path=notes.txt text="hello"`
    """
    limit = None if timeout is None else seconds(timeout, "--timeout")
    wanted = ToolCall(
        participant=owner,
        tool=tool,
        given=read_arguments(words or [], args, args_file),
        to=tuple(to or ()),
        request_seconds=TIMEOUT if timeout is None else limit,
        proposal_seconds=TTL if timeout is None else limit,
        idempotent=idempotent,
        accept_edits=accept_edits,
        as_json=as_json,
    )
    if act_as is not None:
        beside = http_address(http, space, token, token_file, act_as)
        HttpVisit(beside, colour=not no_colour).run(
            lambda session: carry_out_beside(session, wanted)
        )
        return
    where = resolve_address(url, space, token, token_file, participant)
    CommandSession(where, colour=not no_colour).run(lambda session: run_tool_call(session, wanted))
