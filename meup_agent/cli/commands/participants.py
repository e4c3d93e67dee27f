"""Participants of a space: who is present, may send what and has which tools; to manage them.

``meup who``, ``tools``, ``grant``, ``revoke``, ``invite``, ``kick``, and ``chat`` with them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import anyio
from rich.cells import cell_len
from rich.text import Text

from meup_agent.cli import exit_codes
from meup_agent.cli.address import ActingOptions, TimedOptions
from meup_agent.cli.arguments import (
    STDIN,
    InputField,
    read_capabilities,
    read_input_schema,
    read_stdin,
)
from meup_agent.cli.failures import Failure, Misuse
from meup_agent.cli.options import Capabilities, Name, TakeOver, Why, argument, option, seconds
from meup_agent.cli.render.formatting import format_capability, hang
from meup_agent.cli.render.output import Output, progress_line
from meup_agent.cli.session import CommandSession, send_confirmed, unconfirmed
from meup_agent.client.offers import ask_each
from meup_agent.errors import MeupError, Refused
from meup_agent.escape import as_json_line, visible
from meup_agent.protocol.exchange import Mode
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.outcomes import (
    Allowed,
    MissingCaller,
    allowed_arguments,
    find_missing,
)
from meup_agent.wording import MAX_NAME, role_of, shown_name, shown_names

if TYPE_CHECKING:
    from meup_agent.client.space import Space


MAX_SENTENCE: Final = 1_000
NARROWEST: Final = 24  # columns that the capabilities get, however narrow the terminal is


def who(
    *,
    can: Annotated[
        str | None,
        option("TOOL", "Only those that may call this tool: its name, or participant.name."),
    ] = None,
    join: TimedOptions,
    take_over: TakeOver = False,
) -> None:
    """Show who is in the space, and what each of them may send.

    Each is called by what it may: a person or reviewer rejects, an agent proposes or calls, and a
    server answers. Whose capabilities are the same as those of one above is said so.

    What needs no capability is not listed; at this package's gateway: to answer requests, to tell
    their progress, and to cancel one's own.

    With `--can` only those that may call a tool, some of them with certain arguments only. Where
    none may, the exit code is 7, and a sentence says which participant could, and what to grant.

    It only looks on: any participant's token will do, and an agent that runs with it is not
    disturbed.

    Example: `MEUP_TOKEN=… meup who --url ws://localhost:8420 --space demo`
    """
    session = CommandSession(
        join,
        welcome_seconds=join.seconds,
        mode=Mode.OBSERVING,
        take_over=take_over,
    )
    if can is not None and not can.strip():
        raise Misuse("--can names no tool; see meup who --help")
    show = _print_json if join.as_json else _show

    async def act(session: CommandSession) -> None:
        asked = None if can is None else _ToolAccess(session.space, can)
        await show(session, asked)
        if asked is not None and not asked.allowed:
            raise Failure(visible(str(asked.describe_missing()), MAX_SENTENCE), exit_codes.ABSENT)

    session.run(act)


class _ToolAccess:
    """A tool, and who may call it: those present, and the participant that looks on."""

    def __init__(self, space: Space, said: str) -> None:
        self._space = space
        self._listed = {each.id: each.capabilities for each in space.participants}
        owner, _, rest = said.partition(".")
        is_owned = bool(rest) and owner in self._listed
        self.owner: str | None = owner if is_owned else None
        self.tool = rest if is_owned else said
        found = {
            name: allowed_arguments(each, self.tool, self.owner)
            for name, each in {space.me: space.capabilities, **self._listed}.items()
        }
        self.allowed = {name: each for name, each in found.items() if each is not Allowed.NONE}

    def describe_missing(self) -> MissingCaller:
        """Describe what is missing, where none may call it."""
        meta = {} if self.owner is None else {payloads.TARGET: self.owner}
        call = payloads.Call(payloads.TOOL_CALL, {"name": self.tool, payloads.META: meta})
        return find_missing(call, self._listed.items(), me=self._space.me)


async def _print_json(session: CommandSession, asked: _ToolAccess | None) -> None:
    space = session.space
    participants: list[dict[str, Any]] = [
        {
            "id": each.id,
            "me": each.id == space.me,
            "role": role_of(each.capabilities),
            "capabilities": list(each.capabilities),
        }
        for each in space.participants
        if asked is None or each.id in asked.allowed
    ]
    document: dict[str, Any] = {
        "space": session.where.space,
        "me": space.me,
        "capabilities": list(space.capabilities),
        "participants": participants,
    }
    if asked is not None:
        for each in participants:
            each["arguments"] = str(asked.allowed[each["id"]])
        missing = None if asked.allowed else asked.describe_missing()
        document["can"] = {
            "participant": asked.owner,
            "tool": asked.tool,
            "could": missing and list(missing.could),
            "capability": missing and missing.capability,
        }
    await session.output.write(as_json_line(document))


async def _show(session: CommandSession, asked: _ToolAccess | None) -> None:
    space, console = session.space, session.output.console
    capabilities = {each.id: each.capabilities for each in space.participants}
    present = set(capabilities)
    capabilities.setdefault(space.me, space.capabilities)
    if asked is not None:
        capabilities = {name: capabilities[name] for name in asked.allowed}
        if not capabilities:
            return
    names = {name: shown_name(name) for name in capabilities}
    width = max(map(cell_len, names.values()))
    room = console.width - width - 7 if session.output.is_terminal else None
    first: dict[str, str] = {}  # who has these capabilities, of those that are shown
    for each in sorted(capabilities, key=lambda each: (each != space.me, each)):
        line = Text(no_wrap=True)
        name = Text(names[each], style="bold")
        name.align("left", width)
        line.append_text(name)
        line.append("  you  " if each == space.me else " " * 7, style="green")
        said = ", ".join(map(format_capability, capabilities[each])) or "nothing but answers"
        same = first.setdefault(as_json_line(list(capabilities[each])), each)
        if same != each:
            said = f"the same as {names[same]}"
        looks_on = "only looking on; " if each not in present else ""
        said = f"{looks_on}{role_of(capabilities[each])}: {said}"
        lines = [said] if room is None else _wrapped(said, max(room, NARROWEST))
        line.append(("\n" + " " * (width + 7)).join(lines))
        await session.output.show(line)


def _wrapped(capabilities: str, width: int) -> list[str]:
    """Lines that end between capabilities, as long as one fits into a line."""
    kept = capabilities.replace(" ", "\xa0").replace(",\xa0", ", ").replace(":\xa0", ": ")
    return [line.replace("\xa0", " ") for line in textwrap.wrap(kept, width)]


# --- meup tools ---

AT_ONCE: Final = 16  # participants that are asked at the same time
MAX_TYPE: Final = 120
MAX_ABOUT: Final = 1_000
NARROWEST_ABOUT: Final = 40


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

        async def ask(name: str) -> _ToolListing:
            try:
                found = await session.space.offers.tools(name, timeout=limit)
            except MeupError as error:
                return _ToolListing(name, [], error)
            return _ToolListing(name, found, None)

        async with progress_line(session.stderr.console, "waiting for everybody's answer"):
            listed = await ask_each(names, ask, at_a_time=AT_ONCE)
        errors = [each.error for each in listed if each.error is not None]
        if errors and len(errors) == len(listed):
            # What is wrong with the first is most likely wrong with all.
            raise _find_refusal(session.space, errors[0]) or errors[0]
        await session.print_json(_tools_document(listed))
        if not session.as_json:
            await _show_tools(session.output, listed)

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


def _tools_document(listed: list[_ToolListing]) -> dict[str, Any]:
    return {
        "participants": [
            {"participant": each.participant, "tools": each.tools}
            if each.error is None
            else {"participant": each.participant, "error": str(each.error)}
            for each in listed
        ]
    }


async def _show_tools(output: Output, listed: list[_ToolListing]) -> None:
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
    return " " * indent + hang(said, width, indent, NARROWEST_ABOUT)


# --- meup grant, revoke, invite and kick ---


def grant(
    name: Annotated[
        str,
        argument("NAME", "The participant; it may be away."),
    ],
    capabilities: Capabilities = None,
    reason: Why = None,
    *,
    join: TimedOptions,
) -> None:
    """Grant capabilities to a participant, at once; the grant's id is written to standard output.

    You can grant only what you may send yourself. It joins beside the agent that runs with the same
    token, which keeps its connection. On a gateway of other make it takes that over.

    Example: `MEUP_TOKEN=… meup grant proposer mcp/request --reason "knows the way"`
    """
    limit = join.seconds
    given = read_capabilities(capabilities)
    if not given:
        raise Misuse("nothing is granted; name a capability, such as chat")

    async def act(session: CommandSession) -> None:
        made = await session.space.members.grant(name, given, reason=reason or "", timeout=limit)
        document = {"grant": made.id, "participant": name, "capabilities": given}
        await session.output.write(as_json_line(document) if join.as_json else f"{made.id}\n")
        session.stderr.note(f"{shown_name(name)} may do more now")

    CommandSession(join).run(act)


def revoke(
    name: Name,
    capabilities: Capabilities = None,
    grant: Annotated[
        str | None,
        option("ID", "The grant to revoke, in place of capabilities."),
    ] = None,
    reason: Why = None,
    *,
    join: TimedOptions,
) -> None:
    """Revoke a grant, or everything of a participant's that some capabilities cover.

    It takes effect at once: what the participant has in flight and may do no more ends, too.

    Example: `MEUP_TOKEN=… meup revoke proposer mcp/request --reason "that was enough"`
    """
    limit = join.seconds
    revoked = read_capabilities(capabilities)
    if bool(revoked) == (grant is not None):
        raise Misuse("say what is revoked: either capabilities or --grant")

    async def act(session: CommandSession) -> None:
        await session.space.members.revoke(
            name, revoked, grant=grant, reason=reason or "", timeout=limit
        )
        what = {"grant": grant} if grant else {"capabilities": revoked}
        await session.print_json({"participant": name, **what})
        session.stderr.note(f"{shown_name(name)} may do less now")

    CommandSession(join).run(act)


def invite(
    name: Annotated[str, argument("NAME", "Their name in the space.")],
    capabilities: Capabilities = None,
    reason: Why = None,
    *,
    join: TimedOptions,
) -> None:
    """Invite a participant; its token is written to standard output, once and nowhere else.

    A participant that was removed may come back by it. One of the gateway's configuration keeps its
    tokens, and nothing is written.

    Example: `MEUP_TOKEN=… meup invite guest chat mcp/proposal > guest.token`
    """
    limit = join.seconds
    given = read_capabilities(capabilities)

    async def act(session: CommandSession) -> None:
        made = await session.space.members.invite(name, given, reason=reason or "", timeout=limit)
        await session.print_json({"participant": name, "token": made.token, "url": made.url})
        if made.token is not None and not join.as_json:
            await session.output.write(f"{visible(made.token, 512)}\n")
        kept = "" if made.token else " again, with the token they have"
        session.stderr.note(f"{shown_name(name)} may join{kept}")

    CommandSession(join).run(act)


def kick(name: Name, reason: Why = None, *, join: TimedOptions) -> None:
    """Remove a participant, who stays out until they are invited again.

    What they were granted is revoked, and what they have in flight ends.

    Example: `MEUP_TOKEN=… meup kick guest --reason "it is late"`
    """
    limit = join.seconds

    async def act(session: CommandSession) -> None:
        await session.space.members.kick(name, reason=reason or "", timeout=limit)
        await session.print_json({"participant": name})
        session.stderr.note(f"{shown_name(name)} is removed, and stays out until invited again")

    CommandSession(join).run(act)


# --- meup chat ---


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
