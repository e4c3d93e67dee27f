"""The offers of a space as MCP clients see them: names, lists, and news of changes.

The lists are those that :mod:`meup_agent.client.offers` keeps; here they get the names by
which MCP clients know what is in them.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import x_mcp_header_map
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    LoggingLevel,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
)
from mcp_types.methods import serialize_server_result
from pydantic import ValidationError

from meup_agent.client.offers import LIST_METHODS, PROMPTS, RESOURCES, TEMPLATES, TOOLS, name_field
from meup_agent.client.space import Space, directory_of
from meup_agent.errors import MeupError
from meup_agent.mcp.sdk.messages import first_problem, is_wanted
from meup_agent.mcp.sdk.naming import (
    WRAPPED,
    OwnName,
    Template,
    exposed_name,
    unwrap_uri,
    wrap_template,
    wrap_uri,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from meup_agent.mcp.sdk.tasks import Ctx
    from meup_agent.protocol.wire.payloads import JsonObject


log = logging.getLogger("meup_agent.mcp")

LIST_SECONDS: Final = 3.0
"""Wait for a participant's list; then it is asked for again after a while."""

PROMPT_SECONDS: Final = 1.0
"""Time for which a client that lists waits; a list that comes later is announced to it."""

LISTED: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""A list is good until we say that it changed; and what one participant sees is its own."""

MAX_OFFERS: Final = 2000
"""Of one kind, of one participant; the largest servers have some hundreds."""


@dataclass(frozen=True)
class Offer:
    """A tool, prompt, resource or template of a participant.

    Attributes:
        participant: The participant.
        name: Its name, or URI, there.
        exposed: Its name, or URI, for MCP clients.
        described: Its description for MCP clients, as JSON values; not to be changed.
    """

    participant: str
    name: str
    exposed: str
    described: JsonObject

    @cached_property
    def repeats_arguments(self) -> bool:
        return bool(x_mcp_header_map(self.described.get("inputSchema")))


class _Built(NamedTuple):
    """The offers of a kind, and of which lists they were made."""

    revision: int
    participants: list[str]
    offers: dict[str, Offer]


class Catalog:
    """The offers of the participants of a space that we may ask.

    Args:
        space: The space.
        changed: Called with the kinds of a list that came late; returns at once.
        start_soon: Does some work beside.
        bare: One participant, whose names stay as they are.
    """

    def __init__(
        self,
        space: Space,
        changed: Callable[[tuple[str, ...]], None],
        start_soon: Callable[..., None],
        *,
        bare: str | None = None,
    ) -> None:
        self._space = space
        self._changed = changed
        self._start_soon = start_soon
        self._bare = bare
        self._directory = directory_of(space)
        # A name stays its participant's also while another list is on its way.
        self._built: dict[str, _Built] = {}
        self._shown: dict[tuple[str, str], tuple[dict[str, Offer], list[JsonObject]]] = {}
        self._retried = set[tuple[str, str]]()

    # --- reading it ---

    async def described(self, kind: str, version: str) -> list[JsonObject]:
        """All offers of a kind, as a revision of MCP describes them; invalid ones are left out."""
        offers = await self.offers(kind, PROMPT_SECONDS)
        made_of, shown = self._shown.get((kind, version), ({}, []))
        if made_of is not offers:
            shown = [each.described for each in offers.values() if _is_valid(kind, version, each)]
            self._shown[kind, version] = offers, shown
        return shown

    async def offers(self, kind: str, seconds: float = math.inf) -> dict[str, Offer]:
        """The offers of a kind, by their names or URIs for MCP clients.

        Lists that do not come in so many seconds are left out, and announced when they come.
        """
        unread: list[str] = []
        for participant in self._askable(kind):
            if self._directory.peek(participant, kind) is not None:
                continue
            if self._directory.has_failed(participant, kind):
                # One that did not answer is asked again, and not waited for.
                if (participant, kind) not in self._retried:
                    self._retried.add((participant, kind))
                    self._start_soon(self._retry, participant, kind)
            else:
                unread.append(participant)
        lists = await self._read_beside(unread, kind, seconds) if unread else {}
        participants, revision = self._askable(kind), self._directory.revision
        built = self._built.get(kind)
        if built is None or lists or built[:2] != (revision, participants):
            for participant in participants:
                if (kept := self._directory.peek(participant, kind)) is not None:
                    lists[participant] = kept[:MAX_OFFERS]
            built = _Built(revision, participants, self._build(kind, lists))
            self._built[kind] = built
        return built.offers

    async def find(self, kind: str, exposed: str) -> Offer | None:
        """The tool or prompt with a name for MCP clients."""
        built = self._built.get(kind)
        known = None if built is None else built.offers.get(exposed)
        if (
            known is not None
            and self._may_ask(known.participant, kind)
            and self._directory.peek(known.participant, kind) is not None
        ):
            return known  # whatever became of other participants meanwhile
        return (await self.offers(kind)).get(exposed)

    async def owner_of(self, uri: str) -> OwnName | None:
        """The participant that has a resource, and its URI there.

        Raises:
            MCPError: Several participants have it.
        """
        resources = await self.offers(RESOURCES)
        found = resources.get(uri)
        if found is not None:
            return OwnName(found.participant, found.name)
        templates = [
            Template(each.participant, each.name)
            for each in (await self.offers(TEMPLATES)).values()
        ]
        # The more of a template is fixed, the less it takes what is meant for another.
        templates.sort(key=lambda each: -each.literal_chars)
        if (wrapped := unwrap_uri(uri)) is not None:
            if wrapped.participant not in self._participants():
                return None
            for template in templates:
                if template.participant == wrapped.participant:
                    own = template.unwrap(uri)
                    if own is not None:
                        return OwnName(wrapped.participant, own)
            return wrapped
        owners = {each.participant for each in resources.values() if each.name == uri}
        owners = owners or {each.participant for each in templates if each.matches(uri)}
        if len(owners) > 1:
            those = " or ".join(wrap_uri(each, uri) for each in sorted(owners))
            raise MCPError(INVALID_PARAMS, f"Several participants have {uri}; ask for {those}")
        return OwnName(owners.pop(), uri) if owners else None

    async def template_of(self, exposed: str) -> Offer | None:
        """The template, or resource, with a URI for MCP clients."""
        found = (await self.offers(TEMPLATES)).get(exposed)
        return found or (await self.offers(RESOURCES)).get(exposed)

    # --- asking for it ---

    def _participants(self) -> list[str]:
        me = self._space.me
        return sorted(each.id for each in self._space.participants if each.id != me)

    def _askable(self, kind: str) -> list[str]:
        return [each for each in self._participants() if self._may_ask(each, kind)]

    def _may_ask(self, participant: str, kind: str) -> bool:
        return self._space.may_request(participant, LIST_METHODS[kind], {})

    async def _read(
        self, participant: str, kind: str, lists: dict[str, list[JsonObject]]
    ) -> list[JsonObject] | None:
        """Read a list of a participant; one that has changed on its way is good for this once."""
        try:
            items = await self._directory.read(participant, kind, LIST_SECONDS)
        except MeupError as error:
            log.info("%s of %r could not be had: %s", LIST_METHODS[kind], participant, error)
            return None
        if items is not None:
            if len(items) > MAX_OFFERS:
                log.warning("the %s of %r are too many, and were cut", kind, participant)
            lists[participant] = items[:MAX_OFFERS]
        return items

    async def _read_beside(
        self, participants: list[str], kind: str, seconds: float
    ) -> dict[str, list[JsonObject]]:
        """Read lists, and return those that come in time; later ones are announced."""
        lists: dict[str, list[JsonObject]] = {}
        pending, all_read, is_late = set(participants), anyio.Event(), False

        async def read(participant: str) -> None:
            try:
                if await self._read(participant, kind, lists) and is_late:
                    self._changed((kind,))
            finally:
                pending.discard(participant)
                if not pending:
                    all_read.set()

        for participant in participants:
            self._start_soon(read, participant)
        with anyio.move_on_after(seconds):
            await all_read.wait()
        is_late = True
        return dict(lists)

    async def _retry(self, participant: str, kind: str) -> None:
        try:
            if await self._read(participant, kind, {}):
                self._changed((kind,))
        finally:
            self._retried.discard((participant, kind))

    # --- names ---

    def _build(self, kind: str, lists: dict[str, list[JsonObject]]) -> dict[str, Offer]:
        field = name_field(kind)
        listed: list[tuple[str, str, JsonObject]] = []
        owners: dict[str, set[str]] = {}
        for participant, items in sorted(lists.items()):
            for item in items:
                own = item.get(field)
                if isinstance(own, str) and own:
                    listed.append((participant, own, item))
                    owners.setdefault(own, set()).add(participant)
                else:
                    what = "name" if field == "name" else "URI"
                    log.error("%r lists an offer without a %s in its %s", participant, what, kind)
        offers: dict[str, Offer] = {}
        for participant, own, item in listed:
            exposed = own
            if participant != self._bare:
                exposed = _exposed(kind, participant, own, is_shared=len(owners[own]) > 1)
            if exposed in offers:
                log.error("%r lists %r twice; the first one counts", participant, own)
            else:
                offers[exposed] = Offer(participant, own, exposed, {**item, field: exposed})
        return offers


def _exposed(kind: str, participant: str, own: str, *, is_shared: bool) -> str:
    """The name of an offer for MCP clients, or its URI, which says its participant if it must."""
    if kind in (TOOLS, PROMPTS):
        return exposed_name(participant, own)
    # A space may offer another space's resources, whose URIs would pass for another participant's.
    if not is_shared and not own.startswith(WRAPPED):
        return own
    return (wrap_uri if kind == RESOURCES else wrap_template)(participant, own)


def _is_valid(kind: str, version: str, offer: Offer) -> bool:
    """True if a revision of MCP can express an offer; one that it cannot spoils its list."""
    try:
        serialize_server_result(LIST_METHODS[kind], version, {kind: [offer.described], **LISTED})
    except ValidationError as error:
        why = first_problem(error, skip=2)
    except RecursionError:
        why = f"{kind}: too deep"
    else:
        return True
    log.error(
        "%r of %r is left out, it is not valid in MCP %s: %s",
        *(offer.name, offer.participant, version, why),
    )
    return False


# --- announcements ---
# Changes in a space, told to the MCP clients of a participant.
#
# Clients of older revisions have a session, and are told on its own stream; those of 2026-07-28
# ask for a stream with `subscriptions/listen`. Both hear of it here.

MAX_SUBSCRIPTIONS: Final = 1000
"""Resources that one session is subscribed to."""

NEWS_SECONDS: Final = 0.5
"""Pause after a session was told of changes; those that come meanwhile are told once."""

MAX_SESSION_LOGS: Final = 100
"""Log messages outside a call that wait for a session."""

SESSION_KEY: Final = "meup_agent.session"
"""Key of an ASGI scope at which its session's id is noted, so that it is looked for once."""

_EVENTS: Final[dict[str, ServerEvent]] = {
    TOOLS: ToolsListChanged(),
    PROMPTS: PromptsListChanged(),
    RESOURCES: ResourcesListChanged(),
    TEMPLATES: ResourcesListChanged(),
}


class Announcements:
    """The changes, for who listens: the SDK's seam ``SubscriptionBus``."""

    def __init__(self) -> None:
        self._listeners: set[Callable[[ServerEvent], None]] = set()

    def lists_changed(self, of: Iterable[str] = LIST_METHODS) -> None:
        """Tell that lists of some kinds may have changed; each is told once."""
        for event in dict.fromkeys(_EVENTS[kind] for kind in of):
            self.announce(event)

    def announce(self, event: ServerEvent) -> None:
        """Tell every listener; returns at once."""
        for listener in list(self._listeners):
            listener(event)

    async def publish(self, event: ServerEvent) -> None:
        """As :meth:`announce`; the SDK's seam has it, and nothing here calls it."""
        self.announce(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Tell a listener from here on; returns what ends that."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)


class ClientSession:
    """A client's session, from the end of its handshake to its own end.

    Args:
        ctx: The context of the notification that ended the handshake.

    Attributes:
        subscribed: The resources that it wants to hear of, by their URIs for it.
        log_level: The least level of log messages that it wants.
    """

    def __init__(self, ctx: Ctx) -> None:
        self._session = ctx.session
        self._pending: dict[ServerEvent, None] = {}
        self._logs: deque[LoggingMessageNotificationParams] = deque(maxlen=MAX_SESSION_LOGS)
        self._came = anyio.Event()
        self.subscribed: dict[str, OwnName] = {}
        self.log_level: LoggingLevel = "debug"

    def put(self, event: ServerEvent) -> None:
        """Tell its client, soon; what it was not told yet it is told once."""
        if isinstance(event, ResourceUpdated) and event.uri not in self.subscribed:
            return
        self._pending[event] = None
        self._came.set()

    def put_log(self, said: LoggingMessageNotificationParams) -> None:
        """Tell its client a log message, soon; of very many the oldest are left out."""
        if is_wanted(said, self.log_level):
            self._logs.append(said)
            self._came.set()

    async def run(self) -> None:
        """Tell its client of each change, until cancelled."""
        while True:
            await self._came.wait()
            self._came = anyio.Event()
            pending, self._pending = self._pending, {}
            while self._logs:
                note = LoggingMessageNotification(params=self._logs.popleft())
                await self._session.send_notification(note)
            for event in pending:
                match event:
                    case ToolsListChanged():
                        await self._session.send_tool_list_changed()
                    case PromptsListChanged():
                        await self._session.send_prompt_list_changed()
                    case ResourcesListChanged():
                        await self._session.send_resource_list_changed()
                    case ResourceUpdated(uri=uri):
                        await self._session.send_resource_updated(uri)
            # A participant may announce changes without an end, and each has clients ask for lists.
            await anyio.sleep(NEWS_SECONDS)


class ClientSessions:
    """The sessions of a participant's clients, by their ids."""

    def __init__(self, announcements: Announcements) -> None:
        self._announcements = announcements
        self._sessions: dict[str, ClientSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(self._sessions.values())

    @contextmanager
    def open(self, ctx: Ctx) -> Generator[ClientSession]:
        """A session for the length of a block, told of what changes."""
        session_id, session = id_of(ctx), ClientSession(ctx)
        self._sessions[session_id] = session
        unsubscribe = self._announcements.subscribe(session.put)
        try:
            yield session
        finally:
            unsubscribe()
            if self._sessions.get(session_id) is session:
                del self._sessions[session_id]

    def get(self, ctx: Ctx) -> ClientSession:
        """The session of a request.

        Raises:
            MCPError: Its handshake has not ended.
        """
        session = self.find(ctx)
        if session is None:
            raise MCPError(INVALID_REQUEST, "send notifications/initialized first")
        return session

    def find(self, ctx: Ctx) -> ClientSession | None:
        """The session of a request; ``None`` where its revision has none."""
        return self._sessions.get(id_of(ctx))


def id_of(ctx: Ctx) -> str:
    """The id of the session that a request came in; empty on stdio."""
    if ctx.request is None:
        return ""
    noted: str | None = ctx.request.scope.get(SESSION_KEY)
    return ctx.request.headers.get("mcp-session-id", "") if noted is None else noted
