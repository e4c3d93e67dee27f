"""``meup chat``: say something in the space."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from meup_agent.cli import exit_codes
from meup_agent.cli.address import Participant, Space, Token, TokenFile, Url, resolve_address
from meup_agent.cli.arguments import STDIN, read_stdin
from meup_agent.cli.command_session import CommandSession
from meup_agent.cli.failures import Failure
from meup_agent.cli.options import Json, NoColour, Timeout, seconds
from meup_agent.cli.render.results import as_json_line
from meup_agent.cli.send import send_confirmed, unconfirmed


def chat(
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help="What to say; `-` reads it from standard input.",
            show_default=False,
        ),
    ],
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="NAME",
            help="An addressee; may be given several times. Without it, the message is for all.",
        ),
    ] = None,
    about: Annotated[
        str | None,
        typer.Option("--about", metavar="ID", help="The id of the envelope that it refers to."),
    ] = None,
    url: Url = None,
    space: Space = None,
    token: Token = None,
    token_file: TokenFile = None,
    participant: Participant = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
    no_colour: NoColour = False,
) -> None:
    """Say something in the space.

    It ends when the gateway has taken the message, or refused it.

    Example: `MEUP_TOKEN=… meup chat "the tests are green" --to reviewer`
    """
    where = resolve_address(url, space, token, token_file, participant)
    limit = seconds(timeout, "--timeout")
    said = read_stdin().removesuffix("\n") if text == STDIN else text
    if not said.strip():
        raise Failure("there is nothing to say; give a text", exit_codes.USAGE)
    names = to or []

    async def act(session: CommandSession) -> None:
        session.require(*names)
        with anyio.move_on_after(limit) as waiting:
            sent, confirmed = await send_confirmed(
                session.space,
                "the message",
                lambda: session.space.chat(said, to=names, about=about),
            )
            document = {"message": sent, "to": names, "confirmed": confirmed}
            if as_json:
                await session.output.write(as_json_line(document))
        if waiting.cancelled_caught:
            raise unconfirmed("the message", timeout)

    CommandSession(where, colour=not no_colour).run(act)
