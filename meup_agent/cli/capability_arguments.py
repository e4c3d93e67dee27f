"""Capabilities as they are written on a command line."""

from __future__ import annotations

import json
from typing import Annotated, Any, cast

import typer

from meup_agent.cli import exit_codes
from meup_agent.cli.failures import Failure
from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability import compile_capabilities

Capabilities = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CAPABILITY]…",
        help="A kind, such as `mcp/request`, or a whole capability as JSON.",
        show_default=False,
    ),
]

Why = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Why, for those who read it."),
]


def read_capabilities(written: list[str] | None) -> list[dict[str, Any]]:
    """The capabilities that some arguments stand for.

    Raises:
        Failure: One of them is none.
    """
    read = [_capability(each) for each in written or []]
    try:
        compile_capabilities(read)
    except InvalidPattern as error:
        raise Failure(f"this is no capability: {error}", exit_codes.USAGE) from None
    return read


def _capability(written: str) -> dict[str, Any]:
    if not written.lstrip().startswith("{"):
        return {"kind": written}
    try:
        read: object = json.loads(written)
    except ValueError as error:
        raise Failure(f"{written!r} is no JSON: {error}", exit_codes.USAGE) from None
    return cast("dict[str, Any]", read)
