"""The commands that decide: their options, the proposal that is meant, and what is sent.

``meup fulfill``, ``reject``, ``withdraw`` and those of ``meup inbox`` are made of it.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Protocol, TypeVar

import anyio
import typer

from meup_agent.causes import REASONS_TO_REJECT
from meup_agent.cli.command_session import send_confirmed
from meup_agent.cli.failures import Failure, Misuse

if TYPE_CHECKING:
    from meup_agent.cli.command_session import CommandSession
    from meup_agent.cli.render.console import Stderr

MAX_LISTED: Final = 4  # proposals that an error names

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


WHOLE_ID: Final = 32
"""Characters of an id as this package draws them: what has as many is no beginning of another."""


class Identified(Protocol):
    """A proposal, known by its proposer and its id."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def proposer(self) -> str:
        """Its proposer."""
        ...


T = TypeVar("T", bound=Identified)


def find_meant(proposals: Sequence[T], given: str, proposer: str | None) -> T | None:
    """The proposal that an id, or its beginning, means; ``None`` if there is none.

    A whole id is the beginning of no other.

    Raises:
        Misuse: Several are meant, or the id is empty.
    """
    if not given.strip():
        raise Misuse("the proposal is empty; give its id")
    theirs = [each for each in proposals if proposer in (None, each.proposer)]
    found = [each for each in theirs if each.id.startswith(given)]
    exact = [each for each in found if each.id == given]
    found = exact if exact or len(given) >= WHOLE_ID else found
    if len(found) > 1:
        listed = ", ".join(f"{each.id} of {each.proposer}" for each in found[:MAX_LISTED])
        raise Misuse(
            f"several proposals are meant by {given!r}: {listed}; give more of the id, or say with"
            " --proposer whose is meant"
        )
    return found[0] if found else None


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
