"""Lists of what others offer, tools first, kept until they change; and calls checked by them.

The one place that asks for lists: callers that ask at the same time share a request, a list is kept
until it may have changed, and a participant that did not give one is left alone for a while. The
finder, the catalog of MCP clients and the inbox read here.
"""

from __future__ import annotations

import json
import logging
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from meup_agent.client.requests import request
from meup_agent.client.running_handler import (
    RunningHandler,
    begins_more,
    cause_of_leaving,
    handler_is,
    release_slot,
)
from meup_agent.client.schema_check import ArgumentChecker
from meup_agent.errors import (
    ConnectionFailed,
    InvalidArguments,
    MeupError,
    OutcomeUnknown,
    RequestError,
    RequestTimeout,
    list_names,
    printable,
)
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import encode_json
from meup_agent.protocol.exchange import Key
from meup_agent.protocol.exchange.roster import read_participant
from meup_agent.protocol.outcomes import result_of
from meup_agent.session.deadlines import checked_timeout

if TYPE_CHECKING:
    from collections.abc import Collection

    from meup_agent.causes import Cause
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.payloads import JsonObject
    from meup_agent.session import Session

log = logging.getLogger("meup_agent.client")

MAX_PAGES: Final = 100
"""Pages of a list that are read; a participant that gives more does not end."""

MAX_LIST_CHARS: Final = 4 * 1024 * 1024
"""Of one participant's list as JSON; what is longer is cut, and not kept. The largest in use have
a hundredth of it."""

MAX_KEPT_LISTS: Final = 1_024
"""Lists that are cached."""

MAX_KEPT_CHARS: Final = 16 * 1024 * 1024
"""Of all lists that are kept; the largest go first, so that they displace no others."""

SURE_SECONDS: Final = 60.0
"""Age up to which a list may refuse a call. An older one is asked for again before: not every
participant says when its list changes, and a call that the tool would take is not to be refused."""

ASKING_SECONDS: Final = 5.0
"""Seconds for that; then the call is left to the tool."""

MAX_NAMED_TOOLS: Final = 20
"""Tools that an error names."""
MAX_NAME_CHARS: Final = 64
"""Characters of each tool's name in an error."""

SHARED_PART: Final = 0.9
"""Of a caller's own time: a participant that was silent for so long is not asked once more."""

RETRY_SECONDS: Final = 30.0
"""After which a participant that did not give a list is asked for it again, unless it changes."""

TOOLS: Final = "tools"
PROMPTS: Final = "prompts"
RESOURCES: Final = "resources"
TEMPLATES: Final = "resourceTemplates"

METHODS: Final = {
    TOOLS: payloads.TOOL_LIST,
    PROMPTS: "prompts/list",
    RESOURCES: "resources/list",
    TEMPLATES: "resources/templates/list",
}
"""Each kind of offer, as the result names its list, and the method that asks for it."""

CHANGES: Final = {
    "notifications/tools/list_changed": (TOOLS,),
    "notifications/prompts/list_changed": (PROMPTS,),
    "notifications/resources/list_changed": (RESOURCES, TEMPLATES),
}
"""Notifications of a participant, and its lists that are to be asked for anew."""

_NAME_FIELDS: Final = {RESOURCES: "uri", TEMPLATES: "uriTemplate"}

_NO_EXCHANGE: Final = Key("job", "", "list")


@dataclass(slots=True)
class _Known:
    """A list as it was given on a connection, as JSON: each caller gets values of its own."""

    raw: str
    connection: int
    since: float
    names: dict[str, None]
    is_whole: bool = True  # else no call is refused by it
    shared: list[JsonObject] | None = None
    checkers: dict[str, ArgumentChecker] = field(default_factory=dict[str, "ArgumentChecker"])

    def items(self) -> list[JsonObject]:
        return payloads.objects_in(json.loads(self.raw))


class _Fetch:
    """A list that was asked for, and the callers that wait for it.

    It has no owner: the caller that began it may go, and it ends when the last one has gone.
    """

    def __init__(self, connection: int, since: float, deadline: float) -> None:
        self.since = since
        self.connection = connection
        self.deadline = deadline
        self.waiting = 0
        self.done = anyio.Event()
        self.scope = anyio.CancelScope()
        self.known: _Known | None = None
        self.error: Exception | None = None
        self.abandoned_for: Cause | None = None


class _ListKey(NamedTuple):
    participant: str
    kind: str

    def __str__(self) -> str:
        return f"{METHODS[self.kind]} to {self.participant!r}"


class OfferDirectory:
    """The lists of tools, prompts and resources of the participants of a space.

    A list is good until its participant says that it changed, leaves, or comes anew, and until our
    own connection is lost: we may have missed that it changed.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: OrderedDict[_ListKey, _Known] = OrderedDict()
        self._size = 0
        self._fetches: dict[_ListKey, _Fetch] = {}
        # Those that did not give a list, and until when they are not asked again.
        self._silent: dict[_ListKey, float] = {}
        self._listens = False
        self.revision = 0
        """Counts the lists that were kept or forgotten."""

    async def get(
        self,
        participant: str,
        *,
        kind: str = TOOLS,
        timeout: float | None,
        refresh: bool = False,
    ) -> list[JsonObject]:
        """A participant's list; see :meth:`meup_agent.Space.tools`."""
        timeout, key = checked_timeout(timeout), _ListKey(participant, kind)
        return (await self._get(key, timeout, refresh=refresh)).items()

    async def _get(
        self,
        key: _ListKey,
        timeout: float | None,
        *,
        refresh: bool = False,
        shares_silence: bool = False,
    ) -> _Known:
        known = None if refresh else self._fresh(key)
        if known is not None and known.is_whole:
            await checkpoint()
            return known
        if not self._listens:
            self._listens = True
            self._session.watchers.listen(self)
        began = self._session.now()
        deadline = math.inf if timeout is None else began + timeout
        if not begins_more(self._session):
            # What its handler must not begin is not begun for it by others.
            return await self._read(key, _Fetch(0, began, deadline))
        fetch = None if refresh else self._fetches.get(key)
        if fetch is not None:
            try:
                return await self._wait(key, fetch, deadline)
            except RequestTimeout:
                # It was the deadline of the caller that began it, and ours may be later.
                now = self._session.now()
                shared = shares_silence and now - fetch.since >= SHARED_PART * (deadline - began)
                if shared or now >= deadline:
                    raise
        return await self._wait(key, self._begin(key, deadline), math.inf)

    async def read(
        self, participant: str, kind: str, timeout: float | None
    ) -> list[JsonObject] | None:
        """A participant's list; ``None`` if we may not ask, or it does not give it.

        One that did not give it is not asked again for a while, unless it changes.

        Raises:
            ConnectionFailed: Our own connection has failed.
        """
        known = await self._ask(_ListKey(participant, kind), timeout)
        return None if known is None else known.items()

    async def names(
        self, participant: str, kind: str, timeout: float | None
    ) -> Collection[str] | None:
        """Names in a participant's list, as of :meth:`read`."""
        known = await self._ask(_ListKey(participant, kind), timeout)
        return None if known is None else known.names

    async def _ask(self, key: _ListKey, timeout: float | None) -> _Known | None:
        roster, known = self._session.table.roster, self._fresh(key)
        if known is not None:
            return known
        if self._silent.get(key, -math.inf) > self._session.now():
            return None
        asking = payloads.request(METHODS[key.kind], {}, "")
        if not roster.is_allowed(roster.me, kinds.MCP_REQUEST, asking, (key.participant,)):
            return None
        try:
            return await self._get(key, checked_timeout(timeout), shares_silence=True)
        except ConnectionFailed:
            raise
        except MeupError as error:
            why = printable(str(error))
            log.info("the %s of %r are not known: %s", key.kind, key.participant, why)
            if (known := self._fresh(key)) is not None:
                return known
            if key.participant in roster:
                self._silent[key] = self._session.now() + RETRY_SECONDS
            return None

    def peek(self, participant: str, kind: str) -> list[JsonObject] | None:
        """The list that is kept, also while we are away; not to be changed."""
        known = self._kept.get(_ListKey(participant, kind))
        if known is None or known.connection != self._session.connections:
            return None
        if known.shared is None:
            known.shared = known.items()
        return known.shared

    def has_failed(self, participant: str, kind: str) -> bool:
        """True if a participant did not give its list when it was asked last."""
        return _ListKey(participant, kind) in self._silent

    def described(self, participant: str, kind: str, name: str) -> JsonObject:
        """The first thing of a name in a list that is kept, as it is described there."""
        known, field = self._fresh(_ListKey(participant, kind)), name_field(kind)
        items = known.items() if known is not None else []
        return next((each for each in items if each.get(field) == name), {field: name})

    async def check(
        self, participant: str, tool: str, arguments: JsonObject, timeout: float | None
    ) -> None:
        """Raise :exc:`InvalidArguments` if it is known that a tool will not take some arguments."""
        key = _ListKey(participant, TOOLS)
        known = self._fresh(key)
        if known is None or not known.is_whole:
            return
        try:
            _check(known, participant, tool, arguments)
        except InvalidArguments:
            if self._session.now() - known.since < SURE_SECONDS:
                raise
        else:
            return
        try:
            limit = ASKING_SECONDS if timeout is None else min(timeout, ASKING_SECONDS)
            await self.get(participant, timeout=limit, refresh=True)
        except MeupError as error:
            log.info("the tool list of %r is old, and could not be had: %s", participant, error)
            return
        known = self._fresh(key)
        if known is not None and known.is_whole:
            _check(known, participant, tool, arguments)

    # --- what changes a list ---

    def put(self, envelope: Envelope) -> None:
        """Forget the list that an envelope says has changed."""
        if envelope.kind == kinds.MCP_REQUEST:
            for kind in changed_lists(envelope):
                self._forget(_ListKey(envelope.sender, kind))
        elif envelope.kind == kinds.SYSTEM_PRESENCE and envelope.sender in kinds.GATEWAY_NAMES:
            participant = read_participant(envelope.payload_object.get("participant"))
            if participant is not None:
                for kind in METHODS:
                    self._forget(_ListKey(participant.id, kind))
        elif envelope.kind == kinds.SYSTEM_WELCOME and envelope.sender in kinds.GATEWAY_NAMES:
            roster = self._session.table.roster
            for key in {*self._kept, *self._silent}:
                if key.participant not in roster:
                    self._forget(key)

    def forget_tools(self, participant: str) -> None:
        """Forget the tools of a participant that has refused a call; the list may be old."""
        self._forget(_ListKey(participant, TOOLS))

    def _forget(self, key: _ListKey) -> None:
        known = self._kept.pop(key, None)
        if known is not None:
            self._size -= len(known.raw)
            self.revision += 1
        # Callers that wait for a list get it; a later call asks anew.
        self._fetches.pop(key, None)
        self._silent.pop(key, None)

    def _fresh(self, key: _ListKey) -> _Known | None:
        """The list that we have, if nothing can have changed it unseen."""
        known = self._kept.get(key)
        if known is None or not self._is_current(known.connection):
            return None
        self._kept.move_to_end(key)
        return known

    def _is_current(self, connection: int) -> bool:
        return self._session.table.connected and connection == self._session.connections

    # --- asking ---

    def _begin(self, key: _ListKey, deadline: float) -> _Fetch:
        # Without a connection it leaves on the next one.
        away = 0 if self._session.table.connected else 1
        fetch = _Fetch(self._session.connections + away, self._session.now(), deadline)
        self._session.start_soon(partial(self._fetch, key, fetch), str(key))
        self._fetches[key] = fetch
        return fetch

    async def _wait(self, key: _ListKey, fetch: _Fetch, deadline: float) -> _Known:
        fetch.waiting += 1
        try:
            with anyio.CancelScope(deadline=deadline):
                with release_slot(self._session):
                    await fetch.done.wait()
        finally:
            fetch.waiting -= 1
            if not fetch.waiting and not fetch.done.is_set():
                self._abandon(key, fetch)
        if fetch.error is not None:
            raise fetch.error
        if fetch.known is None:
            raise RequestTimeout(f"{key} got no response before a deadline")
        return fetch.known

    def _abandon(self, key: _ListKey, fetch: _Fetch) -> None:
        """Cancel a fetch that no caller waits for any more, for the last one's reason."""
        fetch.abandoned_for = cause_of_leaving(self._session)
        fetch.scope.cancel()
        if self._fetches.get(key) is fetch:
            del self._fetches[key]

    async def _fetch(self, key: _ListKey, fetch: _Fetch) -> None:
        """Ask for all pages, in a task that is no handler's."""
        fetching = RunningHandler(_NO_EXCHANGE, None, lambda: fetch.abandoned_for)
        try:
            with fetch.scope, handler_is(fetching):
                fetch.known = await self._read(key, fetch)
        except Exception as error:  # every caller that waits raises it
            fetch.error = error
        finally:
            if fetch.known is None and fetch.error is None:
                fetch.error = OutcomeUnknown(f"{key} was given up")
            fetch.done.set()
            if self._fetches.get(key) is fetch:
                del self._fetches[key]

    async def _read(self, key: _ListKey, fetch: _Fetch) -> _Known:
        """The whole list, page by page; kept, if nothing can have changed it on its way."""
        items: list[JsonObject] = []
        params: JsonObject = {}
        size, pages, is_list, more = 0, 0, True, True
        try:
            while more and pages < MAX_PAGES and size <= MAX_LIST_CHARS:
                page = await self._read_page(key, params, fetch.deadline)
                pages, is_list = pages + 1, is_list and isinstance(page.get(key.kind), list)
                for item in payloads.objects_in(page.get(key.kind)):
                    size += len(json.dumps(item))
                    if size <= MAX_LIST_CHARS:
                        items.append(item)
                cursor = page.get("nextCursor")
                params, more = {"cursor": cursor}, bool(cursor)
                if not isinstance(cursor, str):
                    break
        except RequestError as error:
            if error.code == payloads.METHOD_NOT_FOUND:  # it has none, and is not asked again
                self._keep(key, fetch, [], is_whole=False)
            raise
        is_whole = not more and size <= MAX_LIST_CHARS
        # One that gives no list may have some all the same: no call is refused by that.
        known = self._keep(key, fetch, items, is_whole=is_list and is_whole)
        if not is_list:
            what = f"{key} was answered without a list of {key.kind}"
            raise RequestError(payloads.INTERNAL_ERROR, what, by=key.participant)
        if not is_whole:
            log.warning("the answer to %s is too long, and was cut", key)
        return known

    async def _read_page(self, key: _ListKey, params: JsonObject, deadline: float) -> JsonObject:
        left = deadline - self._session.now()
        response = await request(
            self._session,
            key.participant,
            METHODS[key.kind],
            params,
            timeout=None if math.isinf(left) else max(left, 0.0),
            idempotent=True,
        )
        return payloads.as_object(result_of(response))

    def _keep(
        self, key: _ListKey, fetch: _Fetch, items: list[JsonObject], *, is_whole: bool
    ) -> _Known:
        """The list that came; it is kept, if nothing can have changed it on its way."""
        listed = (each.get(name_field(key.kind)) for each in items)
        names = dict.fromkeys(name for name in listed if isinstance(name, str))
        known = _Known(json.dumps(items), fetch.connection, self._session.now(), names, is_whole)
        if self._fetches.get(key) is not fetch or not self._is_current(fetch.connection):
            return known
        self._forget(key)
        self._kept[key] = known
        self._size += len(known.raw)
        self.revision += 1
        if len(self._kept) > MAX_KEPT_LISTS:
            self._forget(next(iter(self._kept)))
        while self._size > MAX_KEPT_CHARS:
            largest = max(self._kept, key=lambda each: len(self._kept[each].raw))
            log.warning("the answer to %s is left out: the lists here are too long", largest)
            self._forget(largest)
            self._silent[largest] = self._session.now() + RETRY_SECONDS
        return known


def changed_lists(envelope: Envelope) -> tuple[str, ...]:
    """The kinds of the sender's lists that an envelope says have changed."""
    # Looked for before the payload is read: mostly it is something else.
    if envelope.kind != kinds.MCP_REQUEST or b"list_changed" not in envelope.raw_payload:
        return ()
    return CHANGES.get(payloads.read_call(envelope.payload).method, ())


def name_field(kind: str) -> str:
    """The key by which a list of a kind names its items."""
    return _NAME_FIELDS.get(kind, "name")


def _check(known: _Known, participant: str, tool: str, arguments: JsonObject) -> None:
    """Raise if a list says that a tool will not take some arguments."""
    if tool not in known.names:
        raise InvalidArguments(
            f"{participant!r} has no tool {tool!r}; it has "
            + (list_names(list(known.names), MAX_NAMED_TOOLS) or "none")
        )
    if tool not in known.checkers:
        described = next(each for each in known.items() if each.get("name") == tool)
        whose = f"{tool[:MAX_NAME_CHARS]!r} of {participant!r}"
        known.checkers[tool] = ArgumentChecker(described.get("inputSchema"), whose)
    problems = known.checkers[tool].problems(json.loads(encode_json(arguments)))
    if problems:
        raise InvalidArguments(
            f"tool {tool!r} of {participant!r} does not take these arguments: "
            + "; ".join(map(str, problems)),
            [{"argument": each.argument, "problem": each.problem} for each in problems],
        )
