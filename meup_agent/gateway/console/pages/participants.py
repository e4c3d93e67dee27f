"""The participants of a space: who is here, what each may, its management, and its tools."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, cast

from starlette.responses import Response

from meup_agent.client.control import Members
from meup_agent.client.space import Space
from meup_agent.client.tool_changes import ToolDifference, accept_tools, read_difference
from meup_agent.errors import InvalidPattern, MeupError, OutcomeUnknown
from meup_agent.gateway.auth import BAD_REQUEST
from meup_agent.gateway.console.context import CONSOLE_HOME, PageContext
from meup_agent.gateway.console.pages.health import queued_bytes
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.console.templating import describe_capability, key_of
from meup_agent.gateway.console.timeline import OwnStatus
from meup_agent.gateway.edge.http.context import CONFLICT
from meup_agent.protocol.capability import Capabilities, compile_capabilities
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.payloads import (
    GRANT,
    INVITE,
    KICK,
    PAUSE,
    REQUEST_STATUS,
    RESUME,
    REVOKE,
    as_object,
)
from meup_agent.wording import role_of

TRIED = {
    "propose": (kinds.MCP_PROPOSAL, "propose a call of"),
    "call": (kinds.MCP_REQUEST, "call, or approve a call of,"),
    "reject": (kinds.MCP_REJECT, "reject a proposal"),
    "chat": (kinds.CHAT, "talk"),
    "grant": (GRANT, "grant capabilities"),
    "revoke": (REVOKE, "revoke capabilities"),
    "invite": (INVITE, "invite participants"),
    "kick": (KICK, "remove participants"),
}
"""Name of a deed that can be tried → kind of its envelope, and its words."""

CONTROLLED: Final = {"status": REQUEST_STATUS, "pause": PAUSE, "resume": RESUME}
"""Verb by which a participant is controlled → kind of its envelope."""

MAX_MINUTES: Final = 7 * 24 * 60
"""Minutes for which a participant can be paused from the page."""

STATUS_SECONDS: Final = 3.0
"""Seconds for which the page waits for the status that was asked for."""

WHOM: Final = {GRANT: "recipient", REVOKE: "recipient", INVITE: "participant_id",
               KICK: "participant_id"}  # fmt: skip
"""Kind by which a participant is managed → the field of its payload that says whom it is about."""

ADDRESSED: Final = frozenset({GRANT, REVOKE})
"""Those of them that are addressed to whom they are about."""


class ParticipantView(NamedTuple):
    """A participant as the page shows it."""

    name: str
    key: str
    role: str
    same_as: str  # the participant, shown before it, with the same list; empty: there is none
    here: bool
    dialect: str
    queued: int  # bytes that wait for it
    carries_out: int  # requests that it has not answered
    waits_for: int  # proposals of its own that have not ended
    last_heard: float | None
    status: OwnStatus | None  # as it said of itself
    paused_by: str
    verbs: frozenset[str]  # what the person that looks may do to it, but revoke
    may: list[tuple[str, str, bool]]  # in words, as the pattern, and if that may be revoked


async def show_participants(context: PageContext) -> Response:
    return await _page(context, {})


async def try_capability(context: PageContext) -> Response:
    """The page, with an answer to "may X do Y?"."""
    query = context.request.query_params
    who, deed, tool = query.get("who", ""), query.get("deed", ""), query.get("tool", "").strip()
    given, to = query.get("arguments", "").strip(), query.get("to", "").strip()
    host = context.space_server
    if who not in host.owner.grants or deed not in TRIED:
        raise RequestDenied(
            BAD_REQUEST, "Choose a participant of this space, and what it would do."
        )
    kind, words = TRIED[deed]
    payload: dict[str, Any] = {}
    if deed in ("propose", "call"):
        call = {"name": tool, "arguments": _object(given or "{}", "The arguments must be")}
        payload = payloads.request(payloads.TOOL_CALL, call, "")
    elif deed == "reject":
        payload = {"reason": "unsafe"}
    elif deed == "chat":
        payload = {"message": ""}
    capabilities, addressees = host.owner.grants[who], (to,) if to else ()
    if kind in WHOM:
        allowing = [each for each in capabilities.patterns if _manages(each, kind, to)]
        allowed = bool(allowing)
    else:
        allowed = capabilities.allow(kind, payload, addressees)
        allowing = [
            each
            for each in capabilities.patterns
            if allowed and compile_capabilities([each]).allow(kind, payload, addressees)
        ]
    about = tool if deed in ("propose", "call") else ""
    tried = {"who": who, "deed": deed, "tool": tool, "arguments": given, "to": to,
             "words": words, "about": about, "allowed": allowed,
             "by": describe_capability(allowing[0]) if allowing else ""}  # fmt: skip
    return await _page(context, tried)


async def _page(context: PageContext, tried: dict[str, Any]) -> Response:
    host = context.space_server
    own = host.owner.grants[context.identity.participant]
    feed = context.feed
    await feed.note_heard()
    flying = host.owner.in_flight
    asked = Counter(to for each in flying if not each.is_proposal for to in each.envelope.to)
    proposed = Counter(each.envelope.sender for each in flying if each.is_proposal)
    shown: list[ParticipantView] = []
    for name in host.owner.grants:
        if host.owner.is_kicked(name):
            continue
        member = host.delivery.member(name)
        shown.append(
            ParticipantView(
                name=name,
                key=key_of("participant", name),
                role=role_of(host.owner.grants[name].patterns),
                same_as="",
                here=member is not None,
                dialect="" if member is None else member.form.dialect,
                queued=queued_bytes(member),
                carries_out=asked[name],
                waits_for=proposed[name],
                last_heard=feed.last_heard.get(name),
                status=feed.statuses.get(name),
                paused_by=host.owner.paused_by(name),
                verbs=_verbs(own, name, here=member is not None, me=context.identity.participant),
                may=[
                    (
                        describe_capability(each),
                        json.dumps(each, ensure_ascii=False),
                        _may_revoke(own, name, each, me=context.identity.participant),
                    )
                    for each in host.owner.grants[name].patterns
                ],
            )
        )
    shown.sort(key=lambda each: (not each.here, each.name))
    first: dict[str, str] = {}
    for at, each in enumerate(shown):
        same = first.setdefault(json.dumps(each.may), each.name)
        shown[at] = each._replace(same_as="" if same == each.name or not each.may else same)
    return context.page(
        "participants.html",
        participants=shown,
        tried=tried,
        deeds={each: words for each, (_, words) in TRIED.items()},
        may_invite=any(_manages(each, INVITE, "") for each in own.patterns),
        topics="space",
    )


def _verbs(own: Capabilities, name: str, *, here: bool, me: str) -> frozenset[str]:
    """The verbs by which a participant may be controlled and managed; none of them by itself."""
    if name == me:
        return frozenset()
    may = {verb for verb, kind in CONTROLLED.items() if own.allow(kind, {}, (name,))}
    managed = {
        verb
        for verb, kind in (("grant", GRANT), ("kick", KICK))
        if any(_manages(each, kind, name) for each in own.patterns)
    }
    return frozenset(managed | (may if here else may - {"status"}))


def _may_revoke(own: Capabilities, name: str, capability: Mapping[str, Any], *, me: str) -> bool:
    payload = {WHOM[REVOKE]: name, "capabilities": [capability]}
    return name != me and own.allow(REVOKE, payload, (name,))


def _manages(capability: Mapping[str, Any], kind: str, whom: str) -> bool:
    """True if a capability lets a participant be managed, whatever else it asks for.

    What may be granted, and why, is not known before it is typed; the gateway refuses the rest.

    Args:
        capability: The capability.
        kind: A kind of :data:`WHOM`.
        whom: The participant that it would be about; empty: any.
    """
    field, asked = WHOM[kind], capability.get("payload")
    rest = {name: each for name, each in capability.items() if name != "payload"}
    if not whom:
        rest.pop("to", None)
    if isinstance(asked, list):
        alternatives = cast("list[object]", asked)
        return any(_manages({**rest, "payload": each}, kind, whom) for each in alternatives)
    about = as_object(asked).get(field) if whom else None
    pattern: dict[str, Any] = rest if about is None else {**rest, "payload": {field: about}}
    to = (whom,) if whom and kind in ADDRESSED else ()
    return compile_capabilities([pattern]).allow(kind, {field: whom}, to)


# --- management, by the verbs of the participant that is signed in ---


async def grant(context: PageContext) -> Response:
    return await _change(context, Members.grant, "may now")


async def revoke(context: PageContext) -> Response:
    return await _change(context, Members.revoke, "may no longer")


async def _change(
    context: PageContext, verb: Callable[..., Awaitable[Any]], words: str
) -> Response:
    who, pattern = _named(context), _pattern(context)
    await _manage(
        context, lambda space: verb(space.members, who, [pattern], reason=context.typed("reason"))
    )
    return context.go_on("/participants", f"{who} {words} {describe_capability(pattern)}.")


async def invite(context: PageContext) -> Response:
    """Invite a participant; its token is shown once."""
    who = context.typed("who")
    given = [_pattern(context)] if context.typed("pattern") else []
    invitation = await _manage(
        context, lambda space: space.members.invite(who, given, reason=context.typed("reason"))
    )
    return context.page("invited.html", invitation=invitation)


async def kick(context: PageContext) -> Response:
    """Remove a participant."""
    who = _named(context)
    if context.form.get("sure") != who:
        raise RequestDenied(
            BAD_REQUEST, "Type the participant's name to remove it; nothing was done."
        )
    await _manage(context, lambda space: space.members.kick(who, reason=context.typed("reason")))
    return context.go_on("/participants", f"{who} was removed from the space.")


async def ask_status(context: PageContext) -> Response:
    """Ask a participant for its status, which the page then shows."""
    who = _named(context)

    async def ask(space: Space) -> str:
        try:
            status = await space.control.request_status(who, timeout=STATUS_SECONDS)
        except OutcomeUnknown:
            return "was asked, and has not answered yet"
        return f"says of itself: {status.status}"

    return context.go_on("/participants", f"{who} {await _manage(context, ask)}.")


async def pause(context: PageContext) -> Response:
    """Pause a participant, for some minutes or until it is resumed."""
    who = _named(context)
    said = context.typed("minutes")
    if said and not (said.isascii() and said.isdigit() and 0 < int(said[:9]) <= MAX_MINUTES):
        raise RequestDenied(
            BAD_REQUEST, f"Minutes are a whole number from 1 to {MAX_MINUTES}, or none."
        )
    timeout = 60.0 * int(said) if said else None
    await _manage(
        context,
        lambda space: space.control.pause(who, reason=context.typed("reason"), timeout=timeout),
    )
    return context.go_on(
        "/participants", f"{who} is paused{f' for {int(said)} min' if said else ''}."
    )


async def resume(context: PageContext) -> Response:
    who = _named(context)
    await _manage(context, lambda space: space.control.resume(who, reason=context.typed("reason")))
    return context.go_on("/participants", f"{who} may go on.")


async def _manage(context: PageContext, verb: Callable[[Space], Awaitable[Any]]) -> Any:
    async with context.presence.deciding() as session:
        try:
            return await verb(session.space)
        except MeupError as error:
            raise RequestDenied(BAD_REQUEST, f"That was not done: {error}") from None


def _named(context: PageContext) -> str:
    who = context.form.get("who", "")
    if who not in context.space_server.owner.grants:
        raise RequestDenied(BAD_REQUEST, "This space has no such participant; nothing was done.")
    return who


def _pattern(context: PageContext) -> Mapping[str, Any]:
    pattern = _object(context.form.get("pattern", ""), "A capability is")
    try:
        compile_capabilities([pattern])
    except InvalidPattern as error:
        raise RequestDenied(BAD_REQUEST, f"That is not a capability: {error}") from None
    return pattern


def _object(said: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        example = '{"kind": "chat"}'
        raise RequestDenied(BAD_REQUEST, f"{what} a JSON object, for example {example}.")
    return cast("dict[str, Any]", found)


# --- tools ---
# The tools of a server that changed: how they differ from the accepted ones, and a button.


async def show_tools(context: PageContext) -> Response:
    """The difference of a participant's tools from those that were accepted."""
    who = _server(context, context.request.query_params.get("who", ""))
    try:
        difference = await _read_tools(context, who)
    except MeupError as error:
        raise RequestDenied(BAD_REQUEST, f"{who} does not tell of its tools: {error}") from None
    return context.page("tools.html", who=who, difference=difference, problem="")


async def accept_shown_tools(context: PageContext) -> Response:
    """Accept the tools as they were shown."""
    who = _server(context, context.form.get("who", ""))
    try:
        async with context.presence.deciding() as session:
            await accept_tools(session.space, who, context.form.get("digest", ""))
    except MeupError as error:
        try:
            difference = await _read_tools(context, who)
        except MeupError:
            raise RequestDenied(BAD_REQUEST, f"Nothing was accepted: {error}") from None
        said = f"Nothing was accepted: {error}"
        return context.page("tools.html", CONFLICT, who=who, difference=difference, problem=said)
    return context.go_on(CONSOLE_HOME, f"The tools of {who} are accepted as they are now.")


async def _read_tools(context: PageContext, who: str) -> ToolDifference:
    async with context.presence.deciding() as session:
        return await read_difference(session.space, who)


def _server(context: PageContext, who: str) -> str:
    if who not in context.space_server.owner.grants:
        raise RequestDenied(BAD_REQUEST, "Choose a participant of this space.")
    return who
