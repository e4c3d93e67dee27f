"""Options, question and envelope of a decision, common to the commands that make one.

``meup fulfill``, ``reject``, ``withdraw`` and those of ``meup inbox`` are made of it.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from meup_agent.cli.address import ActingOptions
from meup_agent.cli.command_session import CommandSession, send_confirmed
from meup_agent.cli.failures import Failure, Misuse
from meup_agent.cli.options import argument, option

if TYPE_CHECKING:
    from meup_agent.cli.render.console import Stderr

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


async def confirm(stderr: Stderr, question: str) -> None:
    """Ask the person at the terminal; return if they say yes."""
    if not sys.stdin.isatty():
        raise Misuse(
            "standard input is no terminal, so you cannot be asked; read what is above, and give"
            " --yes to do it"
        )
    stderr.prompt(f"{question} [y/N] ")
    # The loop goes on meanwhile: a signal ends the wait, which a thread in a read would survive.
    await anyio.wait_readable(sys.stdin)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
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
