"""``meup who``: the participants that are present, and what each may do."""

from __future__ import annotations

import textwrap
from typing import Any, Final, cast

from rich.cells import cell_len
from rich.text import Text

from meup_agent.cli.connection import Participant, Space, Token, TokenFile, Url, address
from meup_agent.cli.escape import compact, visible
from meup_agent.cli.options import Json, NoColour, Timeout, seconds
from meup_agent.cli.results import as_json_line
from meup_agent.cli.visit import Visit
from meup_agent.protocol import kinds
from meup_agent.protocol.payloads import as_object

MAX_NAME: Final = 64
MAX_CAPABILITY: Final = 200
NARROWEST: Final = 24
"""Columns that the capabilities get, however narrow the terminal is."""


def who(
    url: Url = None,
    space: Space = None,
    token: Token = None,
    token_file: TokenFile = None,
    participant: Participant = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
    no_colour: NoColour = False,
) -> None:
    """Show who is in the space, and what each of them may send.

    What everybody may do without a capability is not listed; at this package's gateway: to answer
    what one is asked, to tell its progress, and to cancel what one has asked for.

    Example: `MEUP_TOKEN=… meup who --url ws://localhost:8420 --space demo`
    """
    where = address(url, space, token, token_file, participant)
    visit = Visit(where, colour=not no_colour, seconds=seconds(timeout, "--timeout"))
    visit.run(_say_as_json if as_json else _show)


async def _say_as_json(visit: Visit) -> None:
    space = visit.space
    participants = [
        {"id": each.id, "me": each.id == space.me, "capabilities": list(each.capabilities)}
        for each in space.participants
    ]
    document = {"space": visit.where.space, "me": space.me, "participants": participants}
    await visit.output.write(as_json_line(document))


async def _show(visit: Visit) -> None:
    space, console = visit.space, visit.output.console
    present = sorted(space.participants, key=lambda each: (each.id != space.me, each.id))
    names = {each.id: visible(each.id, MAX_NAME) for each in present}
    width = max(map(cell_len, names.values()))
    room = console.width - width - 7 if visit.output.is_terminal else None
    for each in present:
        line = Text(no_wrap=True)
        name = Text(names[each.id], style="bold")
        name.align("left", width)
        line.append_text(name)
        line.append("  you  " if each.id == space.me else " " * 7, style="green")
        said = ", ".join(map(in_short, each.capabilities)) or "nothing but answers"
        lines = [said] if room is None else _wrapped(said, max(room, NARROWEST))
        line.append(("\n" + " " * (width + 7)).join(lines))
        await visit.output.show(line)


def _wrapped(capabilities: str, width: int) -> list[str]:
    """Lines that end between capabilities, as long as one fits into a line."""
    kept = capabilities.replace(" ", "\xa0").replace(",\xa0", ", ")
    return [line.replace("\xa0", " ") for line in textwrap.wrap(kept, width)]


def in_short(capability: Any) -> str:
    """A capability in a few words: ``mcp/request tools/call write_*``."""
    body = as_object(capability)
    kind, payload = body.get("kind"), as_object(body.get("payload"))
    if kind in ("*", "**") and not payload:
        return "anything"
    patterns = cast("list[object]", kind) if isinstance(kind, list) else [kind]
    words = [" | ".join(kinds.canonical(str(each)) for each in patterns)]
    params = payload.get("params")
    is_plain = payload.keys() <= {"method", "params"} and as_object(params).keys() <= {"name"}
    if payload and is_plain:
        words += [_pattern(payload.get("method", "*"))] if "method" in payload else []
        words += [_pattern(as_object(params)["name"])] if as_object(params) else []
        return visible(" ".join(words), MAX_CAPABILITY)
    if payload:
        words.append(compact(payload, MAX_CAPABILITY))
    return visible(" ".join(words), MAX_CAPABILITY)


def _pattern(pattern: object) -> str:
    return pattern if isinstance(pattern, str) else compact(pattern, MAX_CAPABILITY)
