"""``meup tools``: the tools of those who are present, and what arguments they take."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import anyio
import typer
from rich.text import Text

from meup_agent.cli import exit_codes
from meup_agent.cli.connection import Participant, Space, Token, TokenFile, Url, address
from meup_agent.cli.escape import visible
from meup_agent.cli.failures import Failure
from meup_agent.cli.options import Json, NoColour, Timeout, seconds
from meup_agent.cli.results import as_json_line
from meup_agent.cli.schema import Argument, read_inputs
from meup_agent.cli.visit import Visit
from meup_agent.cli.waiting import waiting_for
from meup_agent.errors import MeupError, Refused
from meup_agent.protocol import kinds, payloads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meup_agent.client import space as client

AT_ONCE: Final = 16
"""Participants that are asked at the same time."""

MAX_NAME: Final = 64
MAX_TYPE: Final = 120
MAX_ABOUT: Final = 1_000
NARROWEST: Final = 40


class _Listed(NamedTuple):
    """What one participant said."""

    participant: str
    tools: list[dict[str, Any]]
    error: MeupError | None


def tools(
    owner: Annotated[
        str | None,
        typer.Argument(
            metavar="PARTICIPANT", help="Whose tools; else everybody's.", show_default=False
        ),
    ] = None,
    url: Url = None,
    space: Space = None,
    token: Token = None,
    token_file: TokenFile = None,
    participant: Participant = None,
    timeout: Timeout = 5.0,
    as_json: Json = False,
    no_colour: NoColour = False,
) -> None:
    """Show which tools there are, and what arguments they take.

    Example: `MEUP_TOKEN=… meup tools files --url ws://localhost:8420 --space demo`
    """
    where = address(url, space, token, token_file, participant)
    limit = seconds(timeout, "--timeout")

    async def act(visit: Visit) -> None:
        if owner is not None:
            visit.require(owner)
        names = [owner] if owner is not None else visit.others()
        async with waiting_for(visit.notes.console, "waiting for everybody's answer"):
            listed = await _ask(visit, names, limit)
        errors = [each.error for each in listed if each.error is not None]
        if errors and len(errors) == len(listed):
            # Nobody answered: what is wrong with the first is most likely wrong with all.
            raise _not_allowed(visit.space, errors[0]) or errors[0]
        if as_json:
            await visit.output.write(as_json_line(_document(listed)))
        else:
            await _show(visit, listed)

    # It has no handlers: what is proposed to its participant is not for it to reject.
    Visit(where, colour=not no_colour).run(act)


def _not_allowed(space: client.Space, error: MeupError) -> Failure | None:
    """What to say where it is our capabilities that do not allow the question."""
    asked = payloads.request("tools/list", {}, "")
    if not isinstance(error, Refused) or space.may(kinds.MCP_REQUEST, asked):
        return None
    return Failure(
        f"{visible(space.me, MAX_NAME)!r} may not ask for tools: that takes the capability"
        " mcp/request with the method tools/list; meup who shows what everybody may send",
        exit_codes.REFUSED,
    )


async def _ask(visit: Visit, names: list[str], limit: float | None) -> list[_Listed]:
    """Ask everybody at once; the answers in the order of the names."""
    answers: dict[str, _Listed] = {}
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def ask(name: str) -> None:
        async with limiter:
            try:
                answers[name] = _Listed(name, await visit.space.tools(name, timeout=limit), None)
            except MeupError as error:
                answers[name] = _Listed(name, [], error)

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(ask, name)
    return [answers[name] for name in names]


def _document(listed: list[_Listed]) -> dict[str, Any]:
    return {
        "participants": [
            {"participant": each.participant, "tools": each.tools}
            if each.error is None
            else {"participant": each.participant, "error": str(each.error)}
            for each in listed
        ]
    }


async def _show(visit: Visit, listed: list[_Listed]) -> None:
    width = visit.output.console.width if visit.output.is_terminal else None
    with_tools = [each for each in listed if each.tools]
    for position, each in enumerate(with_tools):
        await visit.output.show(*([""] if position else []), *_block(each, width))
    last = list(_without(listed))
    if last:
        await visit.output.show(*([""] if with_tools else []), *last)


def _without(listed: list[_Listed]) -> Iterator[Text]:
    """Those of whom there is nothing to show."""
    none = [each.participant for each in listed if each.error is None and not each.tools]
    if none:
        names = ", ".join(visible(name, MAX_NAME) for name in none)
        yield Text(f"no tools: {names}", style="dim", no_wrap=True)
    for each in listed:
        if each.error is not None:
            name, why = visible(each.participant, MAX_NAME), visible(str(each.error), MAX_ABOUT)
            yield Text(f"no answer from {name}: {why}", style="yellow", no_wrap=True)
    if not listed:
        yield Text("nobody else is here", style="dim")


def _block(listed: _Listed, width: int | None) -> Iterator[Text]:
    """A participant with its tools."""
    yield Text(visible(listed.participant, MAX_NAME), style="bold")
    for tool in listed.tools:
        yield Text(f"  {visible(str(tool.get('name')), MAX_NAME)}", style="cyan", no_wrap=True)
        about = tool.get("description", tool.get("title"))
        if isinstance(about, str) and about.strip():
            yield Text(_wrapped(about, 6, width), no_wrap=True)
        arguments = list(read_inputs(tool.get("inputSchema")).arguments.values())
        yield from _arguments(arguments, width)


def _arguments(arguments: list[Argument], width: int | None) -> Iterator[Text]:
    names = [visible(each.name, MAX_NAME) for each in arguments]
    types = [visible(_type(each), MAX_TYPE) for each in arguments]
    wide = max(map(len, names), default=0)
    for name, type_, argument in zip(names, types, arguments, strict=True):
        line = Text("      ", no_wrap=True)
        line.append(name.ljust(wide), style="green").append("  ").append(type_)
        if argument.about.strip():
            line.append("\n" + _wrapped(argument.about, wide + 8, width), style="dim")
        yield line


def _type(argument: Argument) -> str:
    if argument.required:
        return f"{argument.words}, required"
    return f"{argument.words}, else {argument.default}" if argument.default else argument.words


def _wrapped(text: str, indent: int, width: int | None) -> str:
    """A text on as many lines as it needs, indented; on one where there is no terminal."""
    said = visible(" ".join(text.split()), MAX_ABOUT)
    lines = [said] if width is None else textwrap.wrap(said, max(width - indent, NARROWEST))
    return "\n".join(" " * indent + line for line in lines)
