"""Commands that say one thing: ``meup chat``, ``grant``, ``revoke``, ``invite`` and ``kick``."""

from __future__ import annotations

from typing import Annotated

import anyio

from meup_agent.cli.address import TimedOptions
from meup_agent.cli.arguments import STDIN, read_capabilities, read_stdin
from meup_agent.cli.failures import Misuse
from meup_agent.cli.options import Capabilities, Name, Why, argument, option
from meup_agent.cli.session import CommandSession, send_confirmed, unconfirmed
from meup_agent.escape import as_json_line, visible
from meup_agent.wording import shown_name


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
