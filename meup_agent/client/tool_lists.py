"""The tools that others have: their lists, kept until they change, and calls checked by them."""

from __future__ import annotations

import json
import logging
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from anyio.lowlevel import checkpoint

from meup_agent.client.requests import read_pages, request
from meup_agent.client.running_handler import (
    RunningHandler,
    begins_more,
    cause_of_leaving,
    handler_is,
    parent_in,
)
from meup_agent.client.schema_check import checker_for
from meup_agent.errors import InvalidArguments, MeupError, OutcomeUnknown, RequestTimeout, printable
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import encode_json
from meup_agent.protocol.exchange import Key
from meup_agent.protocol.exchange.roster import read_participant
from meup_agent.protocol.outcomes import result_of
from meup_agent.session.deadlines import checked_timeout

if TYPE_CHECKING:
    from meup_agent.client.schema_check import Checker
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.payloads import JsonObject
    from meup_agent.reasons import Cause
    from meup_agent.session import Session

log = logging.getLogger("meup_agent.client")

MAX_KEPT_LISTS: Final = 256
MAX_KEPT_CHARS: Final = 16 * 1024 * 1024
"""Of all lists that are kept; those not asked for the longest go first."""

SURE_SECONDS: Final = 60.0
"""Age up to which a list may refuse a call. An older one is asked for again before: not everybody
says when theirs changes, and a call that the tool would take is not to be refused."""

ASKING_SECONDS: Final = 5.0
"""Seconds for that; then the call is left to the tool."""

MAX_NAMED_TOOLS: Final = 20
"""Tools that an error names; and characters of each name."""
MAX_NAME_CHARS: Final = 64

LIST_CHANGED: Final = "notifications/tools/list_changed"

_NO_EXCHANGE: Final = Key("job", "", "tools/list")


@dataclass(slots=True)
class _Known:
    """A list as it was given on a connection, as JSON: each caller gets values of its own."""

    raw: str
    connection: int
    since: float
    names: tuple[str, ...]
    checkers: dict[str, Checker | None] = field(default_factory=dict[str, "Checker | None"])

    def tools(self) -> list[JsonObject]:
        return payloads.objects_in(json.loads(self.raw))


class _Fetch:
    """A list that was asked for, and the callers that wait for it.

    It has no owner: the caller that began it may go, and it ends when the last one has gone.
    """

    def __init__(self, connection: int, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline
        self.waiting = 0
        self.done = anyio.Event()
        self.scope = anyio.CancelScope()
        self.known: _Known | None = None
        self.error: Exception | None = None
        self.abandoned_for: Cause | None = None


class ToolLists:
    """The tool lists of the participants of a space.

    A list is good until its participant says that it changed, leaves, or comes anew, and until our
    own connection is lost: we may have missed that it changed.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: OrderedDict[str, _Known] = OrderedDict()
        self._size = 0
        self._fetches: dict[str, _Fetch] = {}
        self._listens = False

    async def get(
        self, participant: str, *, timeout: float | None, refresh: bool = False
    ) -> list[JsonObject]:
        """A participant's tools; see :meth:`meup_agent.Space.tools`."""
        timeout = checked_timeout(timeout)
        known = None if refresh else self._fresh(participant)
        if known is not None:
            await checkpoint()
            return known.tools()
        if not self._listens:
            self._listens = True
            self._session.watchers.listen(self)
        deadline = math.inf if timeout is None else self._session.now() + timeout
        if not begins_more(self._session):
            # What its handler must not begin is not begun for it by others.
            return (await self._read(participant, _Fetch(0, deadline))).tools()
        fetch = None if refresh else self._fetches.get(participant)
        if fetch is not None:
            try:
                return await self._wait(participant, fetch, deadline)
            except RequestTimeout:
                # It was the deadline of the caller that began it, and ours may be later.
                if self._session.now() >= deadline:
                    raise
        return await self._wait(participant, self._begin(participant, deadline), math.inf)

    async def check(
        self, participant: str, tool: str, arguments: JsonObject, timeout: float | None
    ) -> None:
        """Raise :exc:`InvalidArguments` if it is known that a tool will not take some arguments."""
        known = self._fresh(participant)
        if known is None:
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
        known = self._fresh(participant)
        if known is not None:
            _check(known, participant, tool, arguments)

    # --- what changes a list ---

    def put(self, envelope: Envelope) -> None:
        """Forget the list that an envelope says has changed."""
        if envelope.kind == kinds.MCP_REQUEST:
            known = envelope.sender in self._kept or envelope.sender in self._fetches
            # Looked for before the payload is read: mostly it is something else.
            if (
                known
                and b"list_changed" in envelope.raw_payload
                and payloads.read_call(envelope.payload).method == LIST_CHANGED
            ):
                self._forget(envelope.sender)
        elif envelope.kind == kinds.SYSTEM_PRESENCE and envelope.sender in kinds.GATEWAY_NAMES:
            participant = read_participant(envelope.payload_object.get("participant"))
            if participant is not None:
                self._forget(participant.id)
        elif envelope.kind == kinds.SYSTEM_WELCOME and envelope.sender in kinds.GATEWAY_NAMES:
            roster = self._session.table.roster
            for name in [name for name in self._kept if name not in roster]:
                self._forget(name)

    def _forget(self, participant: str) -> None:
        known = self._kept.pop(participant, None)
        if known is not None:
            self._size -= len(known.raw)
        # Callers that wait for a list get it; a later call asks anew.
        self._fetches.pop(participant, None)

    def _fresh(self, participant: str) -> _Known | None:
        """The list that we have, if nothing can have changed it unseen."""
        known = self._kept.get(participant)
        if known is None or not self._is_current(known.connection):
            return None
        self._kept.move_to_end(participant)
        return known

    def _is_current(self, connection: int) -> bool:
        return self._session.table.connected and connection == self._session.connections

    # --- asking ---

    def _begin(self, participant: str, deadline: float) -> _Fetch:
        # Without a connection it leaves on the next one.
        away = 0 if self._session.table.connected else 1
        fetch = _Fetch(self._session.connections + away, deadline)
        self._session.start_soon(
            partial(self._fetch, participant, fetch), f"tools/list to {participant!r}"
        )
        self._fetches[participant] = fetch
        return fetch

    async def _wait(self, participant: str, fetch: _Fetch, deadline: float) -> list[JsonObject]:
        fetch.waiting += 1
        try:
            with anyio.CancelScope(deadline=deadline):
                with self._session.pending_calls.release_slot(parent_in(self._session)):
                    await fetch.done.wait()
        finally:
            fetch.waiting -= 1
            if not fetch.waiting and not fetch.done.is_set():
                self._abandon(participant, fetch)
        if fetch.error is not None:
            raise fetch.error
        if fetch.known is None:
            raise RequestTimeout(f"tools/list to {participant!r} got no response before a deadline")
        return fetch.known.tools()

    def _abandon(self, participant: str, fetch: _Fetch) -> None:
        """Cancel a fetch that no caller waits for any more, for the last one's reason."""
        fetch.abandoned_for = cause_of_leaving(self._session)
        fetch.scope.cancel()
        if self._fetches.get(participant) is fetch:
            del self._fetches[participant]

    async def _fetch(self, participant: str, fetch: _Fetch) -> None:
        """Ask for all pages, in a task that is no handler's."""
        fetching = RunningHandler(_NO_EXCHANGE, None, lambda: fetch.abandoned_for)
        try:
            with fetch.scope, handler_is(fetching):
                fetch.known = await self._read(participant, fetch)
        except Exception as error:  # every caller that waits raises it
            fetch.error = error
        finally:
            if fetch.known is None and fetch.error is None:
                fetch.error = OutcomeUnknown(f"tools/list to {participant!r} was given up")
            fetch.done.set()
            if self._fetches.get(participant) is fetch:
                del self._fetches[participant]

    async def _read(self, participant: str, fetch: _Fetch) -> _Known:
        """The whole list; kept, if nothing can have changed it on its way."""

        async def ask(params: JsonObject) -> object:
            left = fetch.deadline - self._session.now()
            response = await request(
                self._session,
                participant,
                "tools/list",
                params,
                timeout=None if math.isinf(left) else max(left, 0.0),
                idempotent=True,
            )
            return result_of(response)

        tools, is_list, is_whole = await read_pages(ask, "tools")
        names = tuple(str(each["name"]) for each in tools if isinstance(each.get("name"), str))
        known = _Known(json.dumps(tools), fetch.connection, self._session.now(), names)
        if not is_whole:
            log.warning("the tool list of %r is too long, and was cut", participant)
        elif not is_list:
            # It may have tools all the same, and calls of them are not to be refused by this.
            log.info("%r answers tools/list with no list of tools", participant)
        elif self._fetches.get(participant) is fetch and self._is_current(fetch.connection):
            self._keep(participant, known)
        return known

    def _keep(self, participant: str, known: _Known) -> None:
        old = self._kept.pop(participant, None)
        self._size += len(known.raw) - (0 if old is None else len(old.raw))
        self._kept[participant] = known
        while len(self._kept) > MAX_KEPT_LISTS or self._size > MAX_KEPT_CHARS:
            _, oldest = self._kept.popitem(last=False)
            self._size -= len(oldest.raw)


def _check(known: _Known, participant: str, tool: str, arguments: JsonObject) -> None:
    """Raise if a list says that a tool will not take some arguments; as :meth:`ToolLists.check`."""
    if tool not in known.names:
        raise InvalidArguments(
            f"{participant!r} has no tool {tool!r}; it has {_listed(known.names)}"
        )
    if tool not in known.checkers:
        described = next(each for each in known.tools() if each.get("name") == tool)
        whose = f"{tool[:MAX_NAME_CHARS]!r} of {participant!r}"
        known.checkers[tool] = checker_for(described.get("inputSchema"), whose)
    checker = known.checkers[tool]
    problems = [] if checker is None else checker.problems(json.loads(encode_json(arguments)))
    if problems:
        raise InvalidArguments(
            f"tool {tool!r} of {participant!r} does not take these arguments: "
            + "; ".join(map(str, problems)),
            [{"argument": each.argument, "problem": each.problem} for each in problems],
        )


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(repr(printable(name[:MAX_NAME_CHARS])) for name in names[:MAX_NAMED_TOOLS])
    more = f" and {len(names) - MAX_NAMED_TOOLS} more" if len(names) > MAX_NAMED_TOOLS else ""
    return f"{shown}{more}" if names else "none"
