"""The offers of others: lists kept until they change, their owners, and their verbs.

The one place that asks for lists: callers that ask at the same time share a request, a list is kept
until it may have changed, and a participant that did not give one is left alone for a while. The
finder, the catalog of MCP clients and the inbox read here.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from meup_agent.client.messages import (
    TIMEOUT,
    RunningHandler,
    awaited,
    begins_more,
    cause_of_leaving,
    handler_is,
    release_slot,
    request,
)
from meup_agent.client.schema_check import ArgumentChecker
from meup_agent.errors import (
    ConnectionFailed,
    InvalidArguments,
    MeupError,
    OutcomeUnknown,
    OwnerChanged,
    OwnerUnknown,
    Refused,
    RequestError,
    RequestTimeout,
    UsageError,
    list_names,
    printable,
)
from meup_agent.protocol.exchange import Key
from meup_agent.protocol.roster import read_participant
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, compile_program, encode_json
from meup_agent.protocol.wire.outcomes import result_of
from meup_agent.session.outbox import checked_timeout

if TYPE_CHECKING:
    from meup_agent.causes import Cause
    from meup_agent.protocol.wire.payloads import JsonObject
    from meup_agent.session import Session


# --- ask each ---
# Ask several participants the same, a bounded number of them at a time.

T = TypeVar("T")
R = TypeVar("R")


async def ask_each(
    asked: Iterable[T], ask: Callable[[T], Awaitable[R]], *, at_a_time: int
) -> list[R]:
    """The answers of all, in the order in which they are given here.

    Raises:
        Exception: The first that ``ask`` raised, as it is and in no group; what else was asked is
            cancelled.
    """
    items = list(asked)
    answers: dict[int, R] = {}
    failures: list[Exception] = []
    limiter = anyio.CapacityLimiter(at_a_time)

    async def ask_one(position: int) -> None:
        try:
            async with limiter:
                answers[position] = await ask(items[position])
        except Exception as failure:
            failures.append(failure)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for position in range(len(items)):
            tasks.start_soon(ask_one, position)
    if failures:
        raise failures[0]
    return [answers[position] for position in range(len(items))]


# --- offer directory ---

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

LIST_METHODS: Final = {
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


class _Known(msgspec.Struct):
    """A list as it was given on a connection, as JSON: each caller gets values of its own."""

    raw: str
    connection: int
    since: float
    names: dict[str, None]
    is_whole: bool = True  # else no call is refused by it
    shared: list[JsonObject] | None = None
    checkers: dict[str, ArgumentChecker] = msgspec.field(
        default_factory=dict[str, "ArgumentChecker"]
    )

    def items(self) -> list[JsonObject]:
        return payloads.objects_in(json.loads(self.raw))


class _Fetch(msgspec.Struct, eq=False):
    """A list that was asked for, and the callers that wait for it.

    It has no owner: the caller that began it may go, and it ends when the last one has gone.
    """

    connection: int
    since: float
    deadline: float
    waiting: int = 0
    done: anyio.Event = msgspec.field(default_factory=anyio.Event)
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)
    known: _Known | None = None
    error: Exception | None = None
    abandoned_for: Cause | None = None


class _ListKey(NamedTuple):
    participant: str
    kind: str

    def __str__(self) -> str:
        return f"{LIST_METHODS[self.kind]} to {self.participant!r}"


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
        """A participant's list; see ``space.offers.tools``."""
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
        # Without a connection it leaves on the next one.
        away = 0 if self._session.table.connected else 1
        fetch = _Fetch(self._session.connections + away, self._session.now(), deadline)
        self._session.start_soon(partial(self._fetch, key, fetch), str(key))
        self._fetches[key] = fetch
        return await self._wait(key, fetch, math.inf)

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
        asking = payloads.request(LIST_METHODS[key.kind], {}, "")
        if not roster.is_allowed(roster.me, kinds.MCP_REQUEST, asking, (key.participant,)):
            return None
        try:
            return await self._get(key, checked_timeout(timeout), shares_silence=True)
        except ConnectionFailed:
            raise
        except MeupError as error:
            why = printable(str(error))
            # Most agents have no such lists, and a person at a browser answers no requests
            # (PROTOCOL 3, beside): that is no news of a failure.
            has_none = (
                error.code in payloads.UNKNOWN_METHOD
                if isinstance(error, RequestError)
                else isinstance(error, Refused) and error.error == "not_answering"
            )
            level = logging.DEBUG if has_none else logging.INFO
            log.log(level, "the %s of %r are not known: %s", key.kind, key.participant, why)
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
                for kind in LIST_METHODS:
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

    async def _wait(self, key: _ListKey, fetch: _Fetch, deadline: float) -> _Known:
        fetch.waiting += 1
        try:
            with anyio.CancelScope(deadline=deadline):
                with release_slot(self._session):
                    await fetch.done.wait()
        finally:
            fetch.waiting -= 1
            if not fetch.waiting and not fetch.done.is_set():
                # No caller waits for it any more; it is cancelled for the last one's reason.
                fetch.abandoned_for = cause_of_leaving(self._session)
                fetch.scope.cancel()
                if self._fetches.get(key) is fetch:
                    del self._fetches[key]
        if fetch.error is not None:
            raise fetch.error
        if fetch.known is None:
            raise RequestTimeout(f"{key} got no response before a deadline")
        return fetch.known

    async def _fetch(self, key: _ListKey, fetch: _Fetch) -> None:
        """Ask for all pages, in a task that is not a handler's."""
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
                left = fetch.deadline - self._session.now()
                response = await request(
                    self._session,
                    key.participant,
                    LIST_METHODS[key.kind],
                    params,
                    timeout=None if math.isinf(left) else max(left, 0.0),
                    idempotent=True,
                )
                page = payloads.as_object(result_of(response))
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
            if error.code in payloads.UNKNOWN_METHOD:  # it has none, and is not asked again
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


# --- uri templates ---
# URI templates of others (RFC 6570), read backwards: may a template have made a URI?
#
# A template is a stranger's, so it becomes an RE2 expression; a malformed one matches nothing.
#
# `mcp.shared.uri_template` (2.3.0), which also matches, refuses templates that RFC 6570 allows:
# `{?q*}`, `{v:3}`, `{a}{b}`. It comes with the extra `mcp`.

MAX_TEMPLATE_CHARS: Final = 1_024
"""Characters of a template that is tried."""

MAX_TRIED_TEMPLATES: Final = 64
"""Templates of a participant that are compiled for one URI: each takes up to 100 µs."""

_COMPILED: Final = 1_024

_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)([^{}]*)\}")
_VARIABLE: Final = re.compile(r"[\w.%]+(?:\*|:\d{1,4})?", re.ASCII)

_VALUES: Final = {
    "": r"[^/?#]+",
    "+": r".+",
    "#": r"(?:#.*)?",
    ".": r"(?:\.[^/?#]+)?",
    "/": r"(?:/[^?#]+)?",
    ";": r"(?:;[^/?#]*)?",
    "?": r"(?:\?[^#]*)?",
    "&": r"(?:&[^#]*)?",
}
"""Texts that an expression may stand for, by its operator (RFC 6570 3.2): with the separators that
its values bring along, and for most also nothing, which variables without a value expand to."""


def matches_any(templates: Iterable[str], uri: str) -> bool:
    """Tell whether one of a participant's templates may have made a URI."""
    tried = 0
    for template in templates:
        literal = template.partition("{")[0]
        if not uri.startswith(literal) or len(template) > MAX_TEMPLATE_CHARS:
            continue
        tried += 1
        if tried > MAX_TRIED_TEMPLATES:
            return False
        if _compiled(template)(uri.encode(errors="replace")):
            return True
    return False


@lru_cache(maxsize=_COMPILED)
def _compiled(template: str) -> Callable[[bytes], bool]:
    if set("{}") & set("".join(_EXPRESSION.split(template)[::3])):
        return _nothing
    pattern, end = list[str](), 0
    for found in _EXPRESSION.finditer(template):
        operator, variables = found.groups()
        if not all(_VARIABLE.fullmatch(each) for each in variables.split(",")):
            return _nothing
        pattern += [re.escape(template[end : found.start()]), _VALUES[operator]]
        end = found.end()
    pattern.append(re.escape(template[end:]))
    try:
        return compile_program("".join(pattern)).matches
    except ValueError:  # too large
        return _nothing


def _nothing(_: bytes) -> bool:
    return False


# --- offer finder ---
# The owner of a tool, prompt or resource, found by its name alone and pinned.
#
# Names are claimed by whichever participant likes, so a name that once had a single owner stays
# this owner's: what others claim later takes nothing over, and where the owner itself has it no
# more, the caller is told instead of served by another.

FIND_SECONDS: Final = 5.0
"""Wait for a participant's list; then it is left out, and asked again after a while."""

MAX_ASKED: Final = 256
"""Participants that are asked, those that came first: as many lists as are kept."""

MAX_AT_A_TIME: Final = 16
"""Of these, asked at the same time."""

MAX_PINNED: Final = 10_000
"""Names that have an owner in a space. None is forgotten, since a forgotten one could be taken."""

_WORDS: Final = {
    TOOLS: "tool",
    PROMPTS: "prompt",
    RESOURCES: "resource",
    TEMPLATES: "resource template",
}

_ROUTES: Final = {
    payloads.TOOL_CALL: TOOLS,
    "prompts/get": PROMPTS,
    "resources/read": RESOURCES,
    "resources/subscribe": RESOURCES,
    "resources/unsubscribe": RESOURCES,
}
"""Methods that name what they are for in their parameters, and the list that has it."""

_REFERENCES: Final = {"ref/prompt": (PROMPTS, "name"), "ref/resource": (TEMPLATES, "uri")}
"""References of a completion, and the key of what they name: a template, or the URI itself."""


class FoundTool(msgspec.Struct, frozen=True):
    """A tool of a participant, found by its name.

    Attributes:
        participant: The participant that has it.
        name: Its name.
        described: Its description as MCP has it (``name``, ``inputSchema`` …): a stranger's words.
    """

    participant: str
    name: str
    described: dict[str, Any] = {}


class _FoundOffer(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{_WORDS[self.kind]} {printable(self.name[:64])!r}"


class OfferFinder:
    """Finds the owners of what is named, by the lists of all participants."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.lists: Final = OfferDirectory(session)
        """The lists of the participants."""
        self._owners: dict[_FoundOffer, str] = {}

    async def find(self, tool: str, timeout: float, *, renew: bool) -> list[FoundTool]:
        """The tools of a name; see ``space.offers.find``."""
        offer = _FoundOffer(TOOLS, tool)
        owners = await self._owners_of(offer, timeout)
        if renew:
            self._owners.pop(offer, None)
        if len(owners) == 1:
            self._pin(offer, owners[0])
        return [
            FoundTool(owner, tool, self.lists.described(owner, TOOLS, tool)) for owner in owners
        ]

    async def owner(
        self, kind: str, name: str, timeout: float | None, *, proposer: str = ""
    ) -> str:
        """The one participant, besides a proposer, that has what is named, the same as before."""
        offer = _FoundOffer(kind, name)
        limit = FIND_SECONDS if timeout is None else min(timeout, FIND_SECONDS)
        pinned = self._owners.get(offer)
        pinned = None if pinned == proposer else pinned
        present = pinned is not None and pinned in self._session.table.roster
        if pinned is not None and present and await self._has(pinned, offer, limit) is not False:
            return pinned
        owners = await self._owners_of(offer, limit)
        if pinned is not None:
            if pinned in owners or not (present or owners):
                return pinned  # away, it may come back: the call waits for it as any other does
            raise OwnerChanged(str(offer), pinned, owners)
        owners = [each for each in owners if each != proposer]
        if len(owners) != 1:
            raise OwnerUnknown(str(offer), owners)
        self._pin(offer, owners[0])
        return owners[0]

    async def route(self, method: str, params: JsonObject, timeout: float | None) -> str:
        """The one participant that has what a request is for."""
        kind, name = _ROUTES.get(method), None
        if kind is not None:
            name = params.get(name_field(kind))
        elif method == "completion/complete":
            ref = payloads.as_object(params.get("ref"))
            kind, field = _REFERENCES.get(str(ref.get("type")), (None, ""))
            name = ref.get(field)
            if kind == TEMPLATES and "{" not in str(name):
                kind = RESOURCES
        if kind is None or not isinstance(name, str):
            raise UsageError(
                f"{method} with these parameters names nothing that one participant has; "
                "say which participant it is for"
            )
        return await self.owner(kind, name, timeout)

    def _pin(self, offer: _FoundOffer, owner: str) -> None:
        if offer not in self._owners and len(self._owners) >= MAX_PINNED:
            raise UsageError(
                f"the owners of {MAX_PINNED} names are known here, and no more are kept; "
                "say which participant it is for"
            )
        self._owners.setdefault(offer, owner)

    async def _owners_of(self, offer: _FoundOffer, timeout: float) -> list[str]:
        """All who list what is named, those that came first first."""
        roster = self._session.table.roster
        asking = payloads.request(LIST_METHODS[offer.kind], {}, "")
        asked = [
            each.id
            for each in roster.participants()
            if each.id != roster.me
            and roster.is_allowed(roster.me, kinds.MCP_REQUEST, asking, (each.id,))
        ]
        if len(asked) > MAX_ASKED:
            log.warning("%s: %d participants are not asked", offer, len(asked) - MAX_ASKED)
        asked = asked[:MAX_ASKED]

        async def ask(participant: str) -> bool | None:
            return await self._has(participant, offer, timeout)

        has = await ask_each(asked, ask, at_a_time=MAX_AT_A_TIME)
        return [each for each, it_has in zip(asked, has, strict=True) if it_has]

    async def _has(self, participant: str, offer: _FoundOffer, timeout: float) -> bool | None:
        """True if a participant offers what is named; ``None`` if it does not say.

        A resource is offered by its URI and by a template of it alike: were a listed URI preferred,
        any participant could list one and be read in place of the template's owner.
        """
        deadline = self._session.now() + timeout
        names = await self.lists.names(participant, offer.kind, timeout)
        if names is not None and offer.name in names:
            return True
        if offer.kind == RESOURCES:
            left = max(deadline - self._session.now(), 0.0)
            templates = await self.lists.names(participant, TEMPLATES, left)
            if templates is not None and matches_any(templates, offer.name):
                return True
            names = None if templates is None else names
        return None if names is None else False


# --- resources ---
# Verbs for the tools, resources and prompts that others offer (MCP 2025-11-25).


class SendRequest(Protocol):
    """Sends an MCP request, as :meth:`meup_agent.Space.request`."""

    def __call__(
        self,
        to: str | None,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        timeout: float | None = TIMEOUT,
    ) -> Coroutine[Any, Any, Any]:
        """Send it."""
        ...


class Offers:
    """MCP tools, resources and prompts of participants, as ``space.offers``."""

    def __init__(self, finder: OfferFinder, request: SendRequest) -> None:
        self._finder = finder
        self._directory = finder.lists
        self._request = request

    @awaited
    async def tools(
        self, participant: str, *, refresh: bool = False, timeout: float | None = TIMEOUT
    ) -> list[dict[str, Any]]:
        """The tools that a participant has, as MCP describes them (``name``, ``inputSchema`` …).

        A list is kept, and given again without asking, until its participant says that it changed,
        leaves, or joins anew, or our own connection is lost. While it is kept, calls and proposals
        are checked by it before they are sent. Callers that ask at the same time share one request.

        Args:
            participant: The participant that has them.
            refresh: Ask in any case.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            RequestError: It was answered with an error.
            MeupError: As :meth:`Space.request`.
        """
        return await self._directory.get(participant, timeout=timeout, refresh=refresh)

    @awaited
    async def find(
        self, tool: str, *, renew: bool = False, timeout: float = FIND_SECONDS
    ) -> list[FoundTool]:
        """The participants that have a tool of a name, those that came first first.

        Every present participant that we may ask is asked for its list, which is kept until it
        changes; one that does not answer is left out, and asked again half a minute later.

        Names are claimed by whichever participant likes. So the participant that alone has a name
        when it is first looked for, here or by ``space.call`` and ``space.request`` without a
        participant, is its owner from then on: they go to no other, and raise
        :exc:`OwnerChanged` once others have the tool and the owner has not.

        Args:
            tool: The tool's name.
            renew: Forget the owner; the participant that alone has it now becomes its owner.
            timeout: Seconds to wait for each participant's list.

        Raises:
            ConnectionFailed: Our own connection has failed.
        """
        return await self._finder.find(tool, timeout, renew=renew)

    @awaited
    async def resources(
        self, participant: str, *, timeout: float | None = TIMEOUT
    ) -> list[dict[str, Any]]:
        """The resources that a participant has, as MCP describes them (``uri``, ``name`` …).

        Args:
            participant: The participant that has them.
            timeout: Seconds to wait for all of the list; ``None``: as long as it takes.

        Raises:
            MeupError: As :meth:`Space.request`.
        """
        return await self._directory.get(participant, kind=RESOURCES, timeout=timeout, refresh=True)

    @awaited
    async def resource_templates(
        self, participant: str, *, timeout: float | None = TIMEOUT
    ) -> list[dict[str, Any]]:
        """The templates of resources that a participant has (``uriTemplate``, ``name`` …).

        Args:
            participant: The participant that has them.
            timeout: Seconds to wait for all of the list; ``None``: as long as it takes.

        Raises:
            MeupError: As :meth:`Space.request`.
        """
        return await self._directory.get(participant, kind=TEMPLATES, timeout=timeout, refresh=True)

    @awaited
    async def read_resource(
        self, participant: str | None, uri: str, *, timeout: float | None = TIMEOUT
    ) -> list[dict[str, Any]]:
        """The contents of a resource: objects with ``uri`` and ``text`` or ``blob`` (base64).

        Args:
            participant: The participant that has it; ``None``: the only one (:meth:`find`).
            uri: Its URI.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            MeupError: As :meth:`Space.request`.
        """
        result = await self._request(participant, "resources/read", {"uri": uri}, timeout=timeout)
        return _contents(uri, payloads.as_object(result))

    @awaited
    async def prompts(
        self, participant: str, *, timeout: float | None = TIMEOUT
    ) -> list[dict[str, Any]]:
        """The prompts that a participant has, as MCP describes them (``name``, ``arguments`` …).

        Args:
            participant: The participant that has them.
            timeout: Seconds to wait for all of the list; ``None``: as long as it takes.

        Raises:
            MeupError: As :meth:`Space.request`.
        """
        return await self._directory.get(participant, kind=PROMPTS, timeout=timeout, refresh=True)

    @awaited
    async def prompt(
        self,
        participant: str | None,
        name: str,
        arguments: dict[str, str] | None = None,
        *,
        timeout: float | None = TIMEOUT,
    ) -> dict[str, Any]:
        """A prompt with its arguments filled in: an object with ``messages``.

        Args:
            participant: The participant that has it; ``None``: the only one (:meth:`find`).
            name: Its name.
            arguments: Its arguments.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            MeupError: As :meth:`Space.request`.
        """
        params = {"name": name, "arguments": arguments or {}}
        result = await self._request(participant, "prompts/get", params, timeout=timeout)
        return payloads.as_object(result)

    @awaited
    async def complete(
        self,
        participant: str | None,
        ref: dict[str, str],
        argument: str,
        value: str,
        *,
        known: dict[str, str] | None = None,
        timeout: float | None = TIMEOUT,
    ) -> list[str]:
        """Values that would complete an argument of a prompt, or of a template of resources.

        Args:
            participant: The participant that has it; ``None``: the only one (:meth:`find`).
            ref: ``{"type": "ref/prompt", "name": …}`` or ``{"type": "ref/resource", "uri": …}``.
            argument: The argument's name.
            value: Its beginning.
            known: The other arguments, as far as they are known.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            MeupError: As :meth:`Space.request`.
        """
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if known:
            params["context"] = {"arguments": known}
        result = await self._request(participant, "completion/complete", params, timeout=timeout)
        values = payloads.as_object(payloads.as_object(result).get("completion")).get("values")
        given = payloads.as_list(values)
        return [each for each in given if isinstance(each, str)]


def _contents(uri: str, result: JsonObject) -> list[JsonObject]:
    """The contents of a resource; what existing participants give without a list is one text."""
    contents = result.get("contents")
    if contents is None or isinstance(contents, list):
        return payloads.objects_in(result.get("contents"))
    one: JsonObject = {"uri": uri}
    if isinstance(result.get("mimeType"), str):
        one["mimeType"] = result["mimeType"]
    if payloads.is_object(contents) and ("text" in contents or "blob" in contents):
        return [{**one, **contents}]
    one["text"] = contents if isinstance(contents, str) else json.dumps(result["contents"])
    return [one]
