"""The tools that a server offers to a space: read anew, compared, marked, announced.

Of pinned tools the space reads the texts that were accepted. One whose form is not the accepted one
carries a mark, by which rules ask (PROTOCOL 5); its calls run only for who has said that it has
seen this form, until a person accepts it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import anyio
import msgspec
from anyio import to_thread
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from meup_agent.agent.middleware import RequestRefused
from meup_agent.atomic_file import replace_file
from meup_agent.causes import Reason
from meup_agent.client.schema_check import MAX_SCHEMA_OBJECTS, check_schema, objects_of
from meup_agent.client.tool_changes import (
    CHANGED,
    MAX_LINE_CHARS,
    MAX_MARKED_LINES,
    AcceptCallParams,
    ChangedTool,
    ToolDifference,
    ToolMark,
    approved_parts,
    canonical,
    digest_of_form,
    form_differences,
    text_differences,
    with_accepted_texts,
)
from meup_agent.errors import (
    ConfigurationError,
    MeupError,
    NotExpressible,
    RejectMessage,
    RequestError,
    explain_os_error,
    printable,
    system_reason,
)
from meup_agent.mcp.bridge.connection import ServerConnection, busy
from meup_agent.mcp.sdk.messages import first_problem
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import encode_json
from meup_agent.protocol.wire.ttl_map import TTLMap
from meup_agent.transport.base import Condition

if TYPE_CHECKING:
    from meup_agent.client.messages import Request
    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.payloads import JsonObject

# --- server news ---
# News of a server, which the spaces of its bridge are told.

log = logging.getLogger("meup_agent.mcp")


class ServerNews:
    """Words and notifications for the spaces; what a gateway does not allow is left out.

    Args:
        name: The server's name, for the log.

    Attributes:
        spaces: The spaces that are told.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.spaces: list[Space] = []

    async def notify(self, method: str, params: JsonObject, to: tuple[str, ...] = ()) -> None:
        await self._send(kinds.MCP_REQUEST, payloads.notification(method, params), to)

    async def send_chat(self, text: str) -> None:
        """Say something to everyone."""
        await self._send(kinds.CHAT, {"message": text})

    async def _send(self, kind: str, payload: JsonObject, to: tuple[str, ...] = ()) -> None:
        for space in self.spaces:
            if not space.may(kind, payload):
                log.debug("%s: the gateway does not allow %s", self._name, kind)
                continue
            try:
                await space.send(kind, payload, to=to)
            except MeupError as error:
                log.info("%s: not told: %s", self._name, error)


# --- the tools that a server offers ---
# What is unusable is left out, and what changed is named.

MAX_TOOLS: Final = 1_000
"""Tools of one server; a model reads them all, and the largest servers have a tenth of it."""

MAX_PAGES: Final = 100
"""Pages of a list that are read; a server that gives more does not end."""

MAX_LIST_BYTES: Final = 3 * 1024 * 1024
"""Of a list of tools as JSON: it has to fit one message of the space."""

MAX_TOOL_NAME_CHARS: Final = 128
"""Characters of a tool's name: MCP allows no more."""

MAX_SCHEMA_DEPTH: Final = 64
"""Levels of a schema; checking it recurses."""

MAX_TOOL_DEPTH: Final = 80
"""Levels of a tool: a message of the space has a hundred."""

MAX_CHECKED_OBJECTS: Final = 4_096
"""Objects in the schemas of one list that are checked, of which each takes a millisecond; what is
beyond is passed on as it is."""

MAX_NAMED: Final = 20
"""Tools that an announcement names."""


def compare_tools(before: Iterable[JsonObject], after: Iterable[JsonObject]) -> str:
    """The difference between two lists of tools in words, safe to print; empty: there is none."""
    old, new = ({str(tool["name"]): tool for tool in tools} for tools in (before, after))
    changed = [
        f"{_shown(name)} ({', '.join(what)})"
        for name in old
        if name in new and (what := _find_differences(old[name], new[name]))
    ]
    parts = (
        _named("changed", changed),
        _named("added", [_shown(name) for name in new if name not in old]),
        _named("removed", [_shown(name) for name in old if name not in new]),
    )
    return "; ".join(filter(None, parts))


def digest_of_tools(tools: Iterable[JsonObject]) -> str:
    """SHA-256, hex, of the parts of several tools that are approved with them."""
    parts = {str(tool["name"]): approved_parts(tool) for tool in tools}
    return hashlib.sha256(canonical(parts)).hexdigest()


def remove_unusable(result: JsonObject, version: str, warn: Callable[[str], None]) -> None:
    """Take the tools that no participant could use out of the result of a ``tools/list``.

    It takes seconds for a list that is made for that: call it in a thread.

    Args:
        result: The result; its list is replaced.
        version: The revision that the server speaks.
        warn: Told of each that is taken out.
    """
    tools = result.get("tools")
    if not payloads.is_list(tools):
        return
    kept: list[object] = []
    budget = _Budget()
    for tool in tools[:MAX_TOOLS]:
        problem = _problem(tool, result, version, budget)
        if problem is None:
            kept.append(tool)
        else:
            name = payloads.as_object(tool).get("name")
            shown = _shown(name) if isinstance(name, str) else "without a name"
            warn(f"the tool {shown} is left out: {problem}")
    if len(tools) > MAX_TOOLS:
        warn(f"{len(tools) - MAX_TOOLS} tools are left out: {MAX_TOOLS} are taken at most")
    result["tools"] = kept


def merge_pages(pages: Iterable[JsonObject], warn: Callable[[str], None]) -> list[JsonObject]:
    """The tools of several pages, none of them twice, as many as fit one message."""
    merged: dict[str, JsonObject] = {}
    size = 0
    for tool in (each for page in pages for each in payloads.objects_in(page.get("tools"))):
        name = str(tool["name"])
        if name in merged:
            warn(f"the tool {_shown(name)} is listed twice, and the second one is left out")
            continue
        size += len(json.dumps(tool))
        if size > MAX_LIST_BYTES or len(merged) >= MAX_TOOLS:
            warn(f"the tools from {_shown(name)} on are left out: there are too many")
            break
        merged[name] = tool
    return [*merged.values()]


class _Budget:
    """The schemas of one list that are still checked, counted by their objects."""

    def __init__(self) -> None:
        self._left = MAX_CHECKED_OBJECTS

    def takes(self, schema: Any) -> bool:
        """True if a schema is to be checked: its cost is then taken."""
        cost = sum(1 for _ in islice(objects_of(schema), MAX_SCHEMA_OBJECTS + 1))
        if cost > min(self._left, MAX_SCHEMA_OBJECTS):
            return False
        self._left -= cost
        return True


def _problem(tool: object, result: JsonObject, version: str, budget: _Budget) -> str | None:
    """The reason for which a tool cannot be used; ``None`` if it can."""
    if not payloads.is_object(tool):
        return "it is not an object"
    if _depth(tool, MAX_TOOL_DEPTH) > MAX_TOOL_DEPTH:
        return f"it nests deeper than {MAX_TOOL_DEPTH} levels"
    try:
        encode_json(tool)
    except NotExpressible as error:
        return printable(str(error))[:200]
    try:
        validate_server_result(payloads.TOOL_LIST, version, {**result, "tools": [tool]})
    except ValidationError as error:
        return first_problem(error, skip=-3)[:200]
    except (KeyError, ValueError):
        pass  # a revision without such a check
    name = tool.get("name")
    if not isinstance(name, str) or not name or len(name) > MAX_TOOL_NAME_CHARS:
        return f"a name has 1 to {MAX_TOOL_NAME_CHARS} characters"
    for part in ("inputSchema", "outputSchema"):
        schema = tool.get(part)
        if schema is not None and (why := _schema_problem(schema, budget)) is not None:
            return f"its {part} is not JSON Schema: {why}"
    return None


def _schema_problem(schema: Any, budget: _Budget) -> str | None:
    if _depth(schema, MAX_SCHEMA_DEPTH) > MAX_SCHEMA_DEPTH:
        return f"it nests deeper than {MAX_SCHEMA_DEPTH} levels"
    if _is_endless(schema):
        return "it refers to itself and to nothing else"
    if not budget.takes(schema):
        return None
    # It carries no types.
    jsonschema: Any = import_module("jsonschema")
    validator_for = jsonschema.validators.validator_for
    try:
        check_schema(validator_for(schema, default=jsonschema.Draft202012Validator), schema)
    except jsonschema.SchemaError as error:
        return printable(str(error.message))[:200]
    except Exception as error:  # of a schema that breaks the check itself
        return type(error).__name__
    return None


def _depth(value: Any, limit: int) -> int:
    """Levels of objects and lists, counted up to one more than a limit."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    deep = 0
    while level and deep <= limit:
        inner: list[Any] = []
        for each in level:
            inner += each.values() if isinstance(each, dict) else each
        level = [each for each in inner if isinstance(each, dict | list)]
        deep += 1
    return deep


def _is_endless(schema: Any) -> bool:
    """True if following the schema's ``$ref`` leads back to where it began, without a step inside.

    A schema that refers to itself from inside a property is a tree, and fine.
    """
    seen: set[str] = set()
    at = payloads.as_object(schema)
    while isinstance(ref := at.get("$ref"), str) and ref.startswith("#"):
        if ref in seen:
            return True
        seen.add(ref)
        target: Any = schema
        for part in ref.lstrip("#").strip("/").split("/") if ref.strip("#/") else ():
            target = payloads.as_object(target).get(part.replace("~1", "/").replace("~0", "~"))
        at = payloads.as_object(target)
    return False


def _find_differences(old: JsonObject, new: JsonObject) -> list[str]:
    before, after = approved_parts(old), approved_parts(new)
    parts = dict.fromkeys((*after, *before))
    return [part for part in parts if canonical(before.get(part)) != canonical(after.get(part))]


def _named(verb: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{verb} {', '.join(names[:MAX_NAMED])}{more}"


def _shown(name: str) -> str:
    return repr(name[:64])


# --- the tools that a server offers to a space ---

CURRENT_SECONDS: Final = 5.0
"""Wait of a call of a pinned tool for the list of a server that has told of a change."""

MAX_ACCEPTED_CALLS: Final = 1_000
"""Calls that were accepted and have not come yet; of more, the oldest are accepted no longer."""

MAX_DIFFERENCE_CHARS: Final = 256 * 1024
"""Characters of a difference that a person reads; what follows is only counted."""

TOOLS_CHANGED: Final = "notifications/tools/list_changed"


class _Offered(NamedTuple):
    """A tool as the space reads it, with its mark."""

    tool: JsonObject
    mark: ToolMark | None = None

    @property
    def form(self) -> str:
        """Its form, where that is not the accepted one; else empty."""
        return "" if self.mark is None else self.mark.form


class OfferedTools:
    """The tools of one server.

    Args:
        connection: The connection to it.
        pin: The tools that were accepted; ``None``: all of them are offered as they are.
        news: Tells the space what changes.
        warn: Logs a warning, at a bounded pace.
    """

    def __init__(
        self,
        connection: ServerConnection,
        pin: ToolLock | None,
        news: ServerNews,
        warn: Callable[[str], None],
    ) -> None:
        self._name = connection.name
        self._connection = connection
        self._pin = pin
        self._news = news
        self._warn = warn
        self._tools: list[JsonObject] | None = None
        self._offered: dict[str, _Offered] = {}
        # By sender, proposer and proposal: the tool, and the form of it that the sender has seen.
        self._accepted_calls = TTLMap[tuple[str, str, str], tuple[str, str]](
            count=MAX_ACCEPTED_CALLS, seconds=inf
        )
        self._announced = 0  # changes that the server has told of
        self._begun = 0  # …before the list that was asked for last
        self._read = 0  # …before the list that is known
        self._taken = Condition()
        self._lock = anyio.Lock()  # of the list that is known, and of what is accepted

    @property
    def is_pinned(self) -> bool:
        """True if its tools are compared with those that were accepted."""
        return self._pin is not None

    @property
    def are_known(self) -> bool:
        """True once the server has listed them."""
        return self._tools is not None

    def offered(self) -> list[JsonObject]:
        """The tools as the space reads them."""
        # Known from the start: the space is joined after the first list.
        return [each.tool for each in self._offered.values()]

    def note_changed(self) -> None:
        """Note that the server has told of a change, before which no pinned tool is called."""
        self._announced += 1

    async def wait_current(self) -> None:
        """Wait until all that the server has told of pinned tools is read.

        Raises:
            RequestError: It took too long.
        """
        announced = self._announced
        if self._pin is None or self._read >= announced:
            return
        with anyio.move_on_after(CURRENT_SECONDS):
            while self._read < announced:
                await self._taken.wait()
        if self._read < announced:
            raise busy(
                f"the tools of the MCP server {self._name!r} have changed, and it does not list"
                " them; try again later"
            )

    # --- calls of tools that changed ---

    def accept_call(self, sender: str, accepted: AcceptCallParams) -> None:
        """Let a sender carry out one proposal with a tool of the form that it has seen.

        Raises:
            RequestError: The tool has another form now, or one that needs no such word.
        """
        found = self._offered.get(accepted.tool)
        if found is None or not found.form or found.form != accepted.form:
            raise _refused(
                f"the tool {accepted.tool[:64]!r} of the MCP server {self._name!r} has changed"
                " since you looked at it; look again"
            )
        key = (sender, accepted.proposer, accepted.proposal)
        self._accepted_calls.put(key, (accepted.tool, accepted.form), 0.0)

    def take_accepted_form(self, request: Request) -> str:
        """The form of its tool that the sender of a call has seen, for this call alone."""
        if request.proposal is None or request.proposer is None:
            return ""
        key = (request.sender, request.proposer, request.proposal)
        tool, form = self._accepted_calls.pop(key) or ("", "")
        return form if tool == request.params.get("name") else ""

    def check_call(self, tool: object, seen: str, *, was_sent: bool = False) -> None:
        """Refuse the call of a tool in a form that nobody accepted, or that is not listed.

        Args:
            tool: The tool's name.
            seen: The form that the sender has seen.
            was_sent: The server may have had the call before.

        Raises:
            RequestError: It says where the tool is accepted.
        """
        if self._pin is None:
            return
        name = tool if isinstance(tool, str) else ""
        found = self._offered.get(name)
        if found is None:
            # A server may take calls of tools that it does not list, and of one that it lists
            # no longer.
            said = f"the MCP server {self._name!r} does not list a tool {name[:64]!r}"
        elif found.mark is not None and found.form not in ("", seen):
            said = (
                f"the tool {name[:64]!r} of the MCP server {self._name!r} is not as it was"
                f" accepted: {found.mark.difference[0]}; a person sees the difference, and accepts"
                " it, with `meup inbox accept-tools` or beside a proposal that waits"
            )
        else:
            return
        if not was_sent:
            raise RequestRefused(RejectMessage(Reason.POLICY, said))  # its proposal waits on
        raise _refused(said)

    # --- the difference, and its acceptance ---

    async def difference(self) -> ToolDifference:
        """The difference of the tools from the accepted ones, as far as a person reads.

        Raises:
            RequestError: The server has announced a change, and does not list its tools.
        """
        await self.wait_current()
        async with self._lock:
            tools = self._tools or []
            pinned: Mapping[str, JsonObject] = {}
            if self._pin is not None:
                pinned = self._pin.recall(self._name, tools).tools
            changed = [tool for tool in tools if self._offered[str(tool["name"])].mark is not None]
            found, omitted = await to_thread.run_sync(_describe, changed, pinned)
            return ToolDifference(self._name, digest_of_tools(tools), tuple(found), omitted)

    async def accept(self, digest: str, by: str) -> None:
        """Accept the tools as they are, if they are those of a digest.

        Raises:
            RequestError: They have changed since.
            ConfigurationError: It cannot be written down.
        """
        await self.wait_current()
        async with self._lock:
            tools = self._tools or []
            if self._pin is None or digest_of_tools(tools) != digest:
                raise _refused(
                    f"the tools of the MCP server {self._name!r} have changed since you looked at"
                    " them; look again"
                )
            self._pin.accept(self._name, tools)
            await self._offer(tools)
        said = f"{by!r} has accepted the tools of the MCP server {self._name!r} as they are now"
        log.warning("%s: %s", self._name, said)
        await self._news.notify(TOOLS_CHANGED, {})
        await self._news.send_chat(said)

    async def _offer(self, tools: list[JsonObject]) -> None:
        """Note tools, each as the space is to read it; under the lock."""
        pinned = None if self._pin is None else self._pin.recall(self._name, tools)
        if pinned is not None and pinned.is_new:
            assert self._pin is not None
            log.info(
                "%s: its tools are accepted as they are at this first sight (%d, kept in %s); a"
                " later change of them is asked about",
                *(self._name, len(tools), self._pin.path),
            )
        accepted = None if pinned is None else pinned.tools

        def mark_all() -> dict[str, _Offered]:
            return {str(tool["name"]): _marked(tool, accepted) for tool in tools}

        # A list that is made for it takes a second.
        self._offered = await to_thread.run_sync(mark_all)
        self._tools = tools

    async def fetch(self) -> list[JsonObject]:
        """Every tool that the server lists now, without the unusable ones."""
        self._begun = self._announced
        if self._connection.client.server_capabilities.tools is None:
            return []
        pages: list[JsonObject] = []
        cursor: Any = None
        for _ in range(MAX_PAGES):
            page = await self._connection.request(
                payloads.TOOL_LIST, {"cursor": cursor} if cursor else {}
            )
            pages.append(page)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                break
        else:
            self._warn(f"only {MAX_PAGES} pages of its tools are read")
        tools = merge_pages(pages, self._warn)
        if self._connection.is_modern and '"x-mcp-header"' in msgspec.json.encode(tools).decode():
            # The SDK notes which arguments go into headers, and drops tools that name them wrong.
            kept = await self._connection.client.session.list_tools()
            names = {tool.name for tool in kept.tools}
            tools = [tool for tool in tools if tool["name"] in names]
        return tools

    async def update(self, tools: list[JsonObject]) -> None:
        """Note the tools, mark those that were not accepted, and announce what changed."""
        begun = self._begun  # before anything waits: another list may be asked for then
        async with self._lock:
            before = self._tools
            changes = "" if before is None else compare_tools(before, tools)
            asked_before = self._asked_about()
            await self._offer(tools)
            self._read = begun
            self._taken.notify_all()
        about = self._asked_about()
        until = "calls are asked about until a person accepts the change:"
        asked = _named(until, [_shown(name) for name in sorted(about)])
        if about - asked_before:
            log.warning("%s: %s", self._name, asked)
        asked = f" ({asked})" if asked else ""
        if not changes:
            return
        log.warning("%s: its tools have changed: %s%s", self._name, changes, asked)
        await self._news.notify(TOOLS_CHANGED, {})
        await self._news.send_chat(
            f"the tools of the MCP server {self._name!r} have changed: {changes}{asked}"
        )

    def _asked_about(self) -> frozenset[str]:
        return frozenset(name for name, each in self._offered.items() if each.form)


def _refused(said: str) -> RequestError:
    return RequestError(payloads.EXCHANGE_ERROR, said, {"reason": str(Reason.POLICY)})


def _describe(
    changed: list[JsonObject], accepted: Mapping[str, JsonObject]
) -> tuple[list[ChangedTool], int]:
    """The differences of tools for a person, as many as have room, and the number of the others."""
    found: list[ChangedTool] = []
    room, omitted = MAX_DIFFERENCE_CHARS, 0
    for tool in changed:
        name = str(tool["name"])
        shown: list[tuple[str, ...]] = []
        for differences in (form_differences, text_differences):
            lines: list[str] = []
            for each in differences(tool, accepted.get(name)):
                if room > 0:
                    lines.append(str(each))
                    room -= len(lines[-1])
                else:
                    omitted += 1
            shown.append(tuple(lines))
        found.append(ChangedTool(name, *shown))
    return found, omitted


def _marked(tool: JsonObject, pinned: Mapping[str, JsonObject] | None) -> _Offered:
    """A tool as the space reads it, with the difference from the pinned one of its name."""
    plain = payloads.without_our_meta(tool)
    if pinned is None:
        return _Offered(plain)
    accepted = pinned.get(str(tool["name"]))
    if accepted is not None and canonical(approved_parts(tool)) == canonical(accepted):
        return _Offered(plain)
    shown = with_accepted_texts(plain, accepted)
    mark = ToolMark(texts=canonical(approved_parts(shown)) != canonical(approved_parts(tool)))
    form = digest_of_form(tool)
    if accepted is None or form != digest_of_form(accepted):
        lines = form_differences(tool, accepted)
        said = [str(line)[:MAX_LINE_CHARS] for line in islice(lines, MAX_MARKED_LINES)]
        more = sum(1 for _ in lines)
        said += [f"and {more} more"] if more else []
        mark = ToolMark(form, tuple(said), mark.texts)
    meta = {**payloads.as_object(shown.get(payloads.META)), CHANGED: msgspec.to_builtins(mark)}
    return _Offered({**shown, payloads.META: meta}, mark)


# --- pinned tools ---
# A file of the tools that were accepted, so that a change of them is noticed. A description is read
# by a model before it calls the tool, and a rule lets calls pass by the tool's name: tools that
# change after a person accepted them can make either do something else. So a tool is kept as it was
# accepted; the difference is told until a person accepts it.

VERSION: Final = 2
"""Of the file's format."""

MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""Bytes of the file: 64 servers with the longest lists of tools that are read."""


class _PinnedServer(msgspec.Struct):
    """A server in the file."""

    tools: dict[str, dict[str, Any]]


class _PinFile(msgspec.Struct):
    """The file."""

    version: Literal[2]
    servers: dict[str, _PinnedServer]


class PinnedTools(NamedTuple):
    """The accepted tools of a server.

    Attributes:
        tools: Name → the parts of the tool that were accepted.
        is_new: They were accepted just now, since none of the server were known.
    """

    tools: Mapping[str, JsonObject]
    is_new: bool = False


class ToolLock:
    """The file of accepted tools; of a server that is not in it, the first list is accepted.

    Args:
        path: The file; it is made, for its owner alone, when something is accepted.
        confirm: Accept what the servers offer now.

    Attributes:
        path: The file.

    Raises:
        ConfigurationError: The file cannot be read or made, or is none of ours.
    """

    def __init__(self, path: Path, *, confirm: bool = False) -> None:
        self.path = path
        self._confirm = confirm
        self._confirmed: set[str] = set()
        self._servers = _read(path)
        # Now, since later it would be an error of the server whose tools are seen first.
        if (confirm or not path.exists()) and not os.access(path.parent, os.W_OK):
            why = "no permission" if path.parent.is_dir() else f"there is no folder {path.parent}"
            raise ConfigurationError(f"{path} cannot be written: {why}")

    def recall(self, server: str, tools: Collection[JsonObject]) -> PinnedTools:
        """The accepted tools of a server that offers some tools.

        A server's first list is accepted, and with ``confirm`` the first one that is seen here.

        Raises:
            ConfigurationError: The file cannot be written.
        """
        known = self._servers.get(server)
        # Once: what changes while the bridge runs was not seen by the person who confirmed.
        confirmed = self._confirm and server not in self._confirmed
        self._confirmed.add(server)
        if known is not None and not confirmed:
            return PinnedTools(known)
        self.accept(server, tools)
        return PinnedTools(self._servers[server], is_new=known is None)

    def accept(self, server: str, tools: Collection[JsonObject]) -> None:
        """Accept the tools of a server as they are, and no others.

        Raises:
            ConfigurationError: The file cannot be written; then nothing is accepted.
        """
        accepted = {str(tool["name"]): approved_parts(tool) for tool in tools}
        # Python takes 1, 1.0 and true for equal.
        if server not in self._servers or canonical(self._servers[server]) != canonical(accepted):
            servers = {**self._servers, server: accepted}
            self._write(servers)
            self._servers = servers

    def _write(self, servers: Mapping[str, Mapping[str, JsonObject]]) -> None:
        """Write the file so that a reader finds the old content or the new, never a part."""
        written = {name: {"tools": tools} for name, tools in servers.items()}
        content = json.dumps({"version": VERSION, "servers": written}, indent=2, sort_keys=True)
        if len(content) >= MAX_FILE_BYTES:
            raise ConfigurationError(f"{self.path} has no room for more tools; remove servers")
        with explain_os_error(f"{self.path} cannot be written"):
            replace_file(self.path, f"{content}\n".encode())


def _read(path: Path) -> dict[str, dict[str, JsonObject]]:
    """The accepted tools, by server and name."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
            if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
                raise ConfigurationError(
                    f"{path} can be written by every user, and says which tools are accepted; run:"
                    f" chmod o-w {path}"
                )
    except FileNotFoundError:
        return {}
    except OSError as error:
        why = system_reason(error)
        raise ConfigurationError(f"{path} cannot be read: {why}") from None
    try:
        servers = msgspec.json.decode(content, type=_PinFile).servers
    except msgspec.ValidationError:
        raise ConfigurationError(
            f"{path} is not a file of approved tools of version {VERSION}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not JSON: {printable(str(error))}") from None
    return {name: server.tools for name, server in servers.items()}
