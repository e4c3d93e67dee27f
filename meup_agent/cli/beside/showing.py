"""Shows a person the call that they are about to approve, all of it, and asks."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

import anyio

from meup_agent.cli import exit_codes
from meup_agent.cli.failures import Failure
from meup_agent.cli.render.console import Stderr
from meup_agent.cli.render.escape import compact, visible
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.payloads import Call, Change, as_object, without_meta

WHOLE: Final = sys.maxsize
"""Characters of what is approved that are shown: all of them."""

MAX_NAME: Final = 64


def call_in_lines(proposal: Envelope, executor: str, method: str, params: dict[str, Any]) -> str:
    """A call in as many lines as it has arguments, none of which is cut.

    Args:
        proposal: The proposal that it carries out.
        executor: Who carries it out.
        method: Its method.
        params: Its parameters, with what was edited.
    """
    call = Call(method, params)
    values = call.arguments if call.name else without_meta(as_object(params))
    who, whose = visible(executor, MAX_NAME), visible(proposal.sender, MAX_NAME)
    lines = [
        f"proposal {visible(proposal.id, MAX_NAME)} of {whose}:",
        f"  {who}.{visible(call.name or method, MAX_NAME)}",
        *(f"    {visible(name)} = {compact(value, WHOLE)}" for name, value in values.items()),
    ]
    return "\n".join(lines)


def changes_in_lines(changes: Iterable[Change]) -> list[str]:
    """The differences from the proposal."""
    return [
        f"{visible(change.path)} is {_value(change.fulfilled)} instead of {_value(change.proposed)}"
        for change in changes
    ]


async def confirmed(stderr: Stderr, question: str, *, otherwise: str) -> None:
    """Ask the person at the terminal; return if they say yes.

    Args:
        stderr: Where to ask.
        question: The question.
        otherwise: What to do where nobody can be asked.

    Raises:
        Failure: They do not, or there is no terminal to ask at.
    """
    if not sys.stdin.isatty():
        raise Failure(
            f"standard input is no terminal, so you cannot be asked; {otherwise}", exit_codes.USAGE
        )
    stderr.prompt(f"{question} [y/N] ")
    # The loop goes on meanwhile: a signal ends the wait, which a thread in a read would survive.
    await anyio.wait_readable(sys.stdin)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failure("not confirmed; nothing was sent")


def _value(value: object) -> str:
    return "nothing" if value is None else compact(value, WHOLE)
