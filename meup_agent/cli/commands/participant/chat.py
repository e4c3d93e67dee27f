"""``meup chat``: send a chat message to the space."""

from __future__ import annotations

from typing import Annotated

import anyio

from meup_agent.cli.address import TimedOptions
from meup_agent.cli.arguments import STDIN, read_stdin
from meup_agent.cli.failures import Misuse
from meup_agent.cli.options import argument, option
from meup_agent.cli.session import CommandSession, send_confirmed, unconfirmed


def chat(
    text: Annotated[
        str,
        argument("TEXT", "What to say; `-` reads it from standard input."),
    ],
    to: Annotated[
        list[str] | None,
        option(
            "NAME", "An addressee; may be given several times. Without it, the message is for all."
        ),
    ] = None,
    about: Annotated[
        str | None,
        option("ID", "The id of the envelope that it refers to."),
    ] = None,
    *,
    join: TimedOptions,
) -> None:
    """Say something in the space.

    It ends when the gateway has taken the message, or refused it.

    Example: `MEUP_TOKEN=… meup chat "the tests are green" --to reviewer`
    """
    limit = join.seconds
    said = read_stdin().removesuffix("\n") if text == STDIN else text
    if not said.strip():
        raise Misuse("there is nothing to say; give a text")
    names = to or []

    async def act(session: CommandSession) -> None:
        session.require(*names)
        with anyio.move_on_after(limit) as waiting:
            sent, confirmed = await send_confirmed(
                session.space,
                "the message",
                lambda: session.space.chat(said, to=names, about=about),
            )
            await session.print_json({"message": sent, "to": names, "confirmed": confirmed})
        if waiting.cancelled_caught:
            raise unconfirmed("the message", join.timeout)

    CommandSession(join).run(act)
