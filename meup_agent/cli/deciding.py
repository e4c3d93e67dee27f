"""Parts of the commands that decide: their options, their question, and what they send.

``meup fulfill``, ``reject``, ``withdraw`` and those of ``meup inbox`` are made of it.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import anyio
import typer

from meup_agent.causes import REASONS_TO_REJECT
from meup_agent.cli.command_session import send_confirmed
from meup_agent.cli.failures import Failure, Misuse

if TYPE_CHECKING:
    from meup_agent.cli.command_session import CommandSession
    from meup_agent.cli.render.console import Stderr

WHY_REJECT: Final = f"Why: {', '.join(REASONS_TO_REJECT)}."

ProposalId = Annotated[
    str,
    typer.Argument(
        metavar="PROPOSAL", help="The proposal's id, or its beginning.", show_default=False
    ),
]
ProposalIds = Annotated[
    list[str],
    typer.Argument(
        metavar="PROPOSAL…", help="Ids of proposals, or their beginnings.", show_default=False
    ),
]
Proposer = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Whose proposal it is, where several have used the id."),
]
Explain = Annotated[
    str | None,
    typer.Option("--explain", metavar="TEXT", help="Longer words that go with it, said as a chat."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where no terminal is.")]


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
