"""``meup tools``: the tools of those who are present, and what arguments they take."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from rich.text import Text

from meup_agent.cli import exit_codes
from meup_agent.cli.address import ActingOptions
from meup_agent.cli.arguments import InputField, read_input_schema
from meup_agent.cli.failures import Failure
from meup_agent.cli.options import argument, option, seconds
from meup_agent.cli.render.formatting import hang
from meup_agent.cli.render.output import Output, progress_line
from meup_agent.cli.session import CommandSession
from meup_agent.client.offers import ask_each
from meup_agent.errors import MeupError, Refused
from meup_agent.escape import visible
from meup_agent.protocol.wire import payloads
from meup_agent.wording import MAX_NAME, shown_name, shown_names

if TYPE_CHECKING:
    from meup_agent.client.space import Space

AT_ONCE: Final = 16  # participants that are asked at the same time
MAX_TYPE: Final = 120
MAX_ABOUT: Final = 1_000
NARROWEST: Final = 40


class _ToolListing(NamedTuple):
    """One participant's answer."""

    participant: str
    tools: list[dict[str, Any]]
    error: MeupError | None


def tools(
    owner: Annotated[
        str | None,
        argument("PARTICIPANT", "Only the tools of this participant."),
    ] = None,
    *,
    where: ActingOptions,
    timeout: Annotated[
        float,
        option(
            "SECONDS", "How long to wait for each answer, in seconds; inf: as long as it takes."
        ),
    ] = 5.0,
) -> None:
    """Show which tools there are, and what arguments they take.

    It joins beside the agent that runs with the same token, which keeps its connection. On a
    gateway of other make it takes that over, unless `--as` says that it must not.

    Example: `MEUP_TOKEN=… meup tools files --url ws://localhost:8420 --space demo`
    """
    limit = seconds(timeout, "--timeout")

    async def act(session: CommandSession) -> None:
        if owner is not None:
            session.require(owner)
        names = [owner] if owner is not None else session.others()
        async with progress_line(session.stderr.console, "waiting for everybody's answer"):
            listed = await _ask(names, partial(session.space.offers.tools, timeout=limit))
        errors = [each.error for each in listed if each.error is not None]
        if errors and len(errors) == len(listed):
            # What is wrong with the first is most likely wrong with all.
            raise _find_refusal(session.space, errors[0]) or errors[0]
        await session.print_json(_document(listed))
        if not session.as_json:
            await _show(session.output, listed)

    # It has no handlers: what is proposed to its participant is not for it to reject.
    CommandSession(where).run(act)


def _find_refusal(space: Space, error: MeupError) -> Failure | None:
    """The failure where our capabilities do not allow the question."""
    if not isinstance(error, Refused) or space.may_request(None, payloads.TOOL_LIST, {}):
        return None
    return Failure(
        f"{shown_name(space.me)!r} may not ask for tools: that takes the capability"
        " mcp/request with the method tools/list; meup who shows what everybody may send",
        exit_codes.REFUSED,
    )


async def _ask(
    names: list[str], tools_of: Callable[[str], Awaitable[list[dict[str, Any]]]]
) -> list[_ToolListing]:
    """Ask each participant, so many at once; the answers in the order of the names."""

    async def ask(name: str) -> _ToolListing:
        try:
            return _ToolListing(name, await tools_of(name), None)
        except MeupError as error:
            return _ToolListing(name, [], error)

    return await ask_each(names, ask, at_a_time=AT_ONCE)


def _document(listed: list[_ToolListing]) -> dict[str, Any]:
    return {
        "participants": [
            {"participant": each.participant, "tools": each.tools}
            if each.error is None
            else {"participant": each.participant, "error": str(each.error)}
            for each in listed
        ]
    }


async def _show(output: Output, listed: list[_ToolListing]) -> None:
    blocks = [list(_block(each, output.width)) for each in listed if each.tools]
    blocks.append(list(_without(listed)))
    for position, lines in enumerate(filter(None, blocks)):
        await output.show(*([""] if position else []), *lines)


def _without(listed: list[_ToolListing]) -> Iterator[Text]:
    """The participants without tools, and those without an answer."""
    none = [each.participant for each in listed if each.error is None and not each.tools]
    if none:
        names = shown_names(none)
        yield Text(f"no tools: {names}", style="dim", no_wrap=True)
    for each in listed:
        if each.error is not None:
            name, why = shown_name(each.participant), visible(str(each.error), MAX_ABOUT)
            yield Text(f"no answer from {name}: {why}", style="yellow", no_wrap=True)
    if not listed:
        yield Text("no other participant is here", style="dim")


def _block(listed: _ToolListing, width: int | None) -> Iterator[Text]:
    """A participant with its tools."""
    yield Text(shown_name(listed.participant), style="bold")
    for tool in listed.tools:
        yield Text(f"  {visible(str(tool.get('name')), MAX_NAME)}", style="cyan", no_wrap=True)
        about = tool.get("description", tool.get("title"))
        if isinstance(about, str) and about.strip():
            yield Text(_about(about, 6, width), no_wrap=True)
        arguments = list(read_input_schema(tool.get("inputSchema")).arguments.values())
        yield from _arguments(arguments, width)


def _arguments(arguments: list[InputField], width: int | None) -> Iterator[Text]:
    names = [shown_name(each.name) for each in arguments]
    types = [visible(_type(each), MAX_TYPE) for each in arguments]
    wide = max(map(len, names), default=0)
    for name, type_, each in zip(names, types, arguments, strict=True):
        line = Text("      ", no_wrap=True)
        line.append(name.ljust(wide), style="green").append("  ").append(type_)
        if each.about.strip():
            line.append("\n" + _about(each.about, wide + 8, width), style="dim")
        yield line


def _type(argument: InputField) -> str:
    if argument.required:
        return f"{argument.words}, required"
    return f"{argument.words}, else {argument.default}" if argument.default else argument.words


def _about(text: str, indent: int, width: int | None) -> str:
    """A description on as many lines as it needs, indented."""
    said = visible(" ".join(text.split()), MAX_ABOUT)
    return " " * indent + hang(said, width, indent, NARROWEST)
