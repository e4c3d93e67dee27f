"""Several bridges in one process, each with a connection of its own to the gateway."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import mcp_types as types
import msgspec
from anyio import to_thread

from meup_agent.agent.agent import GRACE, Agent
from meup_agent.agent.context import Context
from meup_agent.client.file_difference import (
    FILE_DIFFERENCE,
    FileDifference,
    FileQuestion,
    read_written_file,
    seal_difference,
)
from meup_agent.client.messages import Request, is_own_request, read_params
from meup_agent.client.offers import CHANGES, LIST_METHODS
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.client.space import Space, send_note
from meup_agent.client.tool_changes import (
    ACCEPT_CALL,
    TOOL_CHANGES,
    AcceptCallParams,
    AcceptToolsParams,
)
from meup_agent.errors import ConfigurationError, MeupError, NotExpressible, RequestError, printable
from meup_agent.mcp.bridge.config import HttpServer, Server, root_of
from meup_agent.mcp.bridge.connection import (
    MAX_URI_CHARS,
    Callbacks,
    ConnectionSettings,
    ServerConnection,
    ServerGone,
    Subscriptions,
    busy,
)
from meup_agent.mcp.bridge.file_reader import difference_of, folder_of
from meup_agent.mcp.bridge.offered_tools import (
    TOOLS_CHANGED,
    OfferedTools,
    ServerNews,
    ToolLock,
    remove_unusable,
)
from meup_agent.mcp.bridge.questions import (
    MAX_PERSON_ASKS,
    MAY_ASK,
    NoCall,
    OnAsk,
    RunningCall,
    UncertainCall,
    answered,
    ask_person,
    call_asked_about,
    naming_call,
    roots_of_last_caller,
    take_form,
)
from meup_agent.mcp.sdk.decisions import words
from meup_agent.mcp.sdk.messages import ELICITATION, ROOTS, as_json
from meup_agent.processes.guarded import FailedRun, LineLimiter, keep_running
from meup_agent.protocol.exchange import Participant
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import MAX_FRAME_BYTES, encode_json
from meup_agent.protocol.wire.kinds import ACCEPT_TOOLS
from meup_agent.protocol.wire.payloads import JsonObject, read_proposal
from meup_agent.protocol.wire.ttl_map import keep_last
from meup_agent.session import Settings

if TYPE_CHECKING:
    from meup_agent.mcp.bridge.transports import ServerStarter
    from meup_agent.session.settings import Token
    from meup_agent.transport.base import Connector


# --- the bridge ---
# An MCP server as a participant of a space.
#
# What comes in: requests of participants, for tools, resources, prompts and completions. What goes
# out: the same to the server, and its answers as they are. The bridge announces what changes in
# the server, and passes on what the server asks during a call. It decides nothing: who may call
# which tool is the gateway's rule, and approving a call is a reviewer's. Where tools are pinned it
# keeps back the calls of one that changed, until a person says that it has seen the change.

log = logging.getLogger("meup_agent.mcp")

MAX_CALLS: Final = 64
"""Requests that a server works on at once; more are told that it is busy."""

MAX_RESULT_BYTES: Final = MAX_FRAME_BYTES - 65_536
"""Bytes of a result as JSON: one message of the space, less room for its envelope."""

MAX_ITEMS: Final = 1_000
"""Resources, templates or prompts of one page."""

MAX_PROGRESS_CHARS: Final = 1_000
"""Characters of a progress message."""

NEWS_SECONDS: Final = 0.5
"""Pause after news of a server were passed on: it may announce changes without an end."""

MAX_CHANGES: Final = 1_000
"""Resources and lists that are noted as changed until the next news."""

MAX_CALLERS: Final = 64
"""Participants that have called, and are told what the server logs outside a call."""

MAX_READERS: Final = 2
"""Files that are read and compared at once, each in a thread."""

NO_ROOTS: Final[JsonObject] = {"roots": []}

LOG_MESSAGE: Final = "notifications/message"

RESOURCE_UPDATED: Final = "notifications/resources/updated"

LISTS: Final = {method: kind for kind, method in LIST_METHODS.items()}
"""Methods that list something, and the member of the result that has it."""

NEEDS: Final = {
    "tools": "tools",
    "resources": "resources",
    "prompts": "prompts",
    "completion": "completions",
}
"""Beginnings of methods, and the capability that a server declares for them."""

OURS: Final = ("server/discover", "subscriptions/listen", "logging/setLevel")
"""Methods that concern the connection between the bridge and its server."""

_OTHER_HOP: Final = (
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/subscriptionId",
    payloads.PROGRESS_TOKEN,
)
"""Keys of ``_meta`` that belong to the way from the requester to the bridge."""


class Bridge:
    """One MCP server as one participant.

    Args:
        name: The server's name, for the log and for what is announced.
        server: How to reach it.
        pin: The tools that were accepted: calls of others are asked about until a person accepts
            them.
        on_ask: Answers what the server asks during a call, in place of the caller.
        roots: Folders, or their ``file://`` URIs, that the server is told as its client's roots
            whenever it asks; none: those of the client that calls. Files below them are read for
            who decides about a call that writes them.
        settings: Limits of the connection to the server.
        starter: Starts the server's program, if it has one, and may have done so before.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        pin: ToolLock | None = None,
        on_ask: OnAsk | None = None,
        roots: Sequence[str | Path] = (),
        settings: ConnectionSettings | None = None,
        starter: ServerStarter | None = None,
    ) -> None:
        self.name = name
        self.agent = Agent(name)
        self.agent.on_request("**")(self._answer)
        self.agent.on_leave(self._forget)
        self._on_ask = on_ask
        self._roots = [root_of(each) for each in roots]
        self._calls: dict[RunningCall, None] = {}  # in the order in which they came
        self._last: Request | None = None  # of the calls during which the server may ask
        self._callers = OrderedDict[str, None]()
        self._forms = 0
        self._news = anyio.Event()
        self._changed: set[str] = set()
        self._limiter = LineLimiter(lambda text, level: log.log(level, "%s: %s", name, text))
        self._news_sender = ServerNews(name)
        self._lost_told = False
        self._connection = ServerConnection(
            name,
            server,
            Callbacks(
                connected=self._connected,
                beside=self._beside,
                lost=self._lost,
                notified=self._notified,
                logged=self._logged,
                asked=self._ask,
                clean=self._clean,
            ),
            settings,
            starter,
        )
        self._subscriptions = Subscriptions(self._connection)
        self._tools = OfferedTools(self._connection, pin, self._news_sender, self._warn)
        if pin is not None:
            self.agent.on_request(TOOL_CHANGES)(self._tell_changes)
            self.agent.on_request(ACCEPT_TOOLS)(self._accept_tools)
            self.agent.on_request(ACCEPT_CALL)(self._accept_call)
        # The files of a server elsewhere are not ours, and Windows opens no file by its folder.
        is_here = not isinstance(server, HttpServer) and os.open in os.supports_dir_fd
        found = (folder_of(each["uri"]) for each in self._roots if is_here)
        self._folders = [*filter(None, found)]
        self._readers = anyio.CapacityLimiter(MAX_READERS)
        if self._folders:
            self.agent.on_request(FILE_DIFFERENCE)(self._tell_file)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Bridge]:
        """The block in which the server runs; entered when it has been spoken with.

        Raises:
            ServerGone: The server could not be started.
        """
        async with self._connection.running():
            yield self

    @asynccontextmanager
    async def join(
        self,
        url: str | Connector | None = None,
        *,
        space: str | None = None,
        token: Token | None = None,
        participant: str | None = None,
        settings: Settings | None = None,
        grace: float = GRACE,
        hurry: anyio.Event | None = None,
    ) -> AsyncGenerator[Space]:
        """Start the server, and be in a space with it for the length of a block.

        The arguments are those of :meth:`meup_agent.Agent.join`.

        Raises:
            ServerGone: The server could not be started.
            MeupError: As :meth:`meup_agent.Agent.join`.
        """
        async with (
            self.running(),
            self.agent.join(
                url,
                space=space,
                token=token,
                participant=participant,
                settings=settings,
                grace=grace,
                hurry=hurry,
            ) as joined,
            self.serving(joined),
        ):
            yield joined

    @asynccontextmanager
    async def serving(self, space: Space) -> AsyncGenerator[None]:
        """The block in which a space that :attr:`agent` has joined is told what changes."""
        self._news_sender.spaces.append(space)
        try:
            yield
        finally:
            self._news_sender.spaces.remove(space)

    # --- requests of participants ---

    async def _answer(self, request: Request, ctx: Context) -> dict[str, Any]:
        match request.method:
            case "initialize":
                return self._describe()
            case payloads.PING:
                return {}
            case payloads.TOOL_LIST:
                return {"tools": self._tools.offered()}
            case "resources/subscribe":
                await self._subscriptions.subscribe(request.sender, _uri(request))
                return {}
            case "resources/unsubscribe":
                await self._subscriptions.unsubscribe(request.sender, _uri(request))
                return {}
            case method if method == ELICITATION and request.proposer == ctx.space.me:
                return take_form(request.params)
            case method if method in OURS:
                raise RequestError(
                    payloads.METHOD_NOT_FOUND,
                    f"{method} is between the bridge and the MCP server {self.name!r}",
                )
            case _:
                return await self._forward(request, ctx)

    def _describe(self) -> JsonObject:
        """The server as it introduced itself."""
        client = self._connection.client
        info, instructions = client.server_info, client.instructions
        described: JsonObject = {
            "protocolVersion": client.protocol_version,
            "capabilities": as_json(client.server_capabilities),
            "serverInfo": {"name": self.name, "version": "unknown"}
            if info is None
            else as_json(info),
        }
        if instructions:
            described["instructions"] = instructions
        return described

    async def _forward(self, request: Request, ctx: Context) -> JsonObject:
        """Send a request on to the server, and wait for its result."""
        await self._connection.wait_ready()
        if request.method == payloads.TOOL_CALL:
            await self._tools.wait_current()
        self._check(request)
        seen = self._tools.take_accepted_form(request)
        call = RunningCall(self.name, request, ctx, self._on_ask)
        on_progress = partial(_report, ctx) if _wants_progress(request) else None
        was_sent = False

        def check() -> None:
            if request.method == payloads.TOOL_CALL:
                self._tools.check_call(request.params.get("name"), seen, was_sent=was_sent)

        async def send(params: JsonObject) -> JsonObject:
            nonlocal was_sent
            check()  # a call that its server asks about is sent more than once
            was_sent = True
            return await self._connection.request(request.method, params, on_progress, check)

        self._calls[call] = None
        if request.method in MAY_ASK:
            self._last = request
            keep_last(self._callers, call.asker, None, MAX_CALLERS)
        try:
            async with call.running():
                result = await answered(call, send, _forwarded(request.params))
        except ServerGone as error:
            return self._gone(request, error)
        except anyio.get_cancelled_exc_class():
            self._log_cancel(request, call)
            raise
        finally:
            del self._calls[call]
        return self._bounded(request, result)

    # --- tools that changed ---

    async def _tell_changes(self, request: Request) -> Any:
        return msgspec.to_builtins(await self._tools.difference())

    async def _accept_tools(self, request: Request, ctx: Context) -> dict[str, Any]:
        self._check_person(request, ctx)
        given = read_params(request, AcceptToolsParams)
        try:
            await self._tools.accept(given.digest, request.sender)
        except ConfigurationError as error:
            raise RequestError(payloads.INTERNAL_ERROR, str(error)) from None
        return {"server": self.name, "digest": given.digest}

    async def _accept_call(self, request: Request, ctx: Context) -> dict[str, Any]:
        self._check_person(request, ctx)
        given = read_params(request, AcceptCallParams)
        await self._tools.wait_current()
        self._tools.accept_call(request.sender, given)
        return {"tool": given.tool, "form": given.form}

    def _check_person(self, request: Request, ctx: Context) -> None:
        """Refuse a request whose sender is not certain, or not the one that decided it.

        The gateway has let it pass, so its sender's capabilities allow it.

        Raises:
            RequestError: It says why.
        """
        if not ctx.space.gateway.guarantees.identity_checked:
            said = "the gateway does not check who speaks, so this is done for nobody"
        elif request.sender == ctx.space.me:
            said = "a server does not decide about itself"
        elif not is_own_request(request.envelope):
            said = "it was proposed by another participant; send a request of your own"
        else:
            return
        raise RequestError(payloads.INVALID_PARAMS, said)

    # --- files that calls write ---

    async def _tell_file(self, request: Request, ctx: Context) -> dict[str, Any]:
        """Tell who decides about a call what it would change in a file.

        Who may neither carry the proposal out nor reject it is told nothing, and nothing is read;
        a refusal says nothing about the file, since everybody hears it.
        """
        self._check_person(request, ctx)
        question = read_params(request, FileQuestion)
        feed, asker = ProposalFeed(ctx.space), request.sender
        listed = ctx.space.proposals.list(id=question.proposal, proposer=question.proposer)
        found = [each async for each in listed if each.id == question.proposal]
        if not found:
            raise RequestError(payloads.INVALID_PARAMS, "no such proposal is open")
        call = read_proposal(found[0].envelope.payload)
        if (
            call.target not in (None, ctx.space.me)
            or asker == question.proposer
            or not (feed.may_carry_out(asker, call) or feed.may_reject(asker, question.proposer))
        ):
            raise RequestError(payloads.INVALID_PARAMS, "you do not decide about this call")
        written = read_written_file(call)
        difference = FileDifference(said="This call names no file that it writes.")
        if written is not None:
            difference = await to_thread.run_sync(
                difference_of,
                written,
                self._folders,
                limiter=self._readers,
                abandon_on_cancel=True,
            )
        return seal_difference(question, difference)

    def _check(self, request: Request) -> None:
        """Refuse what the server cannot or shall not do.

        Raises:
            RequestError: It says why.
        """
        needed = NEEDS.get(request.method.partition("/")[0])
        capabilities = self._connection.client.server_capabilities
        if needed is not None and getattr(capabilities, needed) is None:
            raise RequestError(
                payloads.METHOD_NOT_FOUND, f"the MCP server {self.name!r} has no {needed}"
            )
        if len(self._calls) >= MAX_CALLS:
            raise busy(
                f"the MCP server {self.name!r} works on {MAX_CALLS} requests; try again later"
            )

    def _gone(self, request: Request, error: ServerGone) -> JsonObject:
        """The answer of a server that ended meanwhile."""
        if request.method == payloads.TOOL_CALL:
            # The lines are the server's words, and none of ours to a model.
            return _tool_error(f"It is not known whether the call was carried out: {error}")
        raise RequestError(payloads.INTERNAL_ERROR, str(error), {"stderr": error.stderr}) from None

    def _bounded(self, request: Request, result: JsonObject) -> JsonObject:
        """The result, if it fits a message of the space."""
        key = LISTS.get(request.method)
        if key is not None and isinstance(result.get(key), list) and len(result[key]) > MAX_ITEMS:
            self._limiter.line(f"only {MAX_ITEMS} of its {len(result[key])} {key} are passed on")
            result = {**result, key: result[key][:MAX_ITEMS]}
        try:
            size = len(encode_json(result))
        except NotExpressible as error:
            problem = f"cannot be passed on: {printable(str(error))[:200]}"
        else:
            if size <= MAX_RESULT_BYTES:
                return result
            problem = f"has {size} bytes; a message takes {MAX_RESULT_BYTES}"
        said = f"the result of {request.method} by the MCP server {self.name!r} {problem}"
        if request.method == payloads.TOOL_CALL:
            return _tool_error(f"{said}. Ask for less.")
        raise RequestError(payloads.INTERNAL_ERROR, said)

    def _log_cancel(self, request: Request, call: RunningCall) -> None:
        what = printable(str(request.params.get("name") or request.method)[:64])
        how = "stream closed by the client; " if self._connection.closes_streams else ""
        log.info(
            "%s: %s for %r (%s) is cancelled: %s%s",
            self.name,
            what,
            request.sender,
            request.id,
            how,
            printable(call.reason or "the bridge stops"),
        )

    # --- what the server does ---

    async def _ask(self, method: str, params: JsonObject) -> JsonObject:
        if method == ROOTS and self._roots:
            return {"roots": self._roots}
        try:
            return await call_asked_about(self._calls).ask(method, params)
        except NoCall:
            if method != ROOTS:
                raise
        except UncertainCall:
            if method != ELICITATION or not self._may_ask_person():
                raise
            return await self._ask_person(params)
        spaces = self._news_sender.spaces
        # Servers ask as they start, before there is a space, and a caller.
        return await roots_of_last_caller(spaces[0], self._last, self._warn) if spaces else NO_ROOTS

    def _may_ask_person(self) -> bool:
        form: JsonObject = {"method": ELICITATION, "params": {}}
        return any(each.may(kinds.MCP_PROPOSAL, form) for each in self._news_sender.spaces[:1])

    async def _ask_person(self, params: JsonObject) -> JsonObject:
        if self._forms >= MAX_PERSON_ASKS:
            raise busy(f"{MAX_PERSON_ASKS} forms of {self.name!r} wait for a person already")
        self._forms += 1
        try:
            return await ask_person(self._news_sender.spaces[0], params)
        finally:
            self._forms -= 1

    def _logged(self, params: JsonObject) -> None:
        """Pass a log message on: to the caller whose call it is of, or to all that have called."""
        about: RunningCall | None = None
        try:
            about = call_asked_about(self._calls)
            to: tuple[str, ...] = (about.asker,)
            params = naming_call(about.request, params)
        except UncertainCall:
            return  # it may tell of one caller's call what another is not to read
        except RequestError:
            to, params = tuple(self._callers), payloads.without_our_meta(params)
        note = payloads.notification(LOG_MESSAGE, params)
        for space in self._news_sender.spaces if to else ():
            if not space.may(kinds.MCP_REQUEST, note, to=to):
                continue
            try:
                send_note(space, note, to=to)
            except MeupError as error:
                log.debug("%s: a log message is not passed on: %s", self.name, error)

    async def _clean(self, result: JsonObject) -> None:
        problems: list[str] = []
        # A list can be made to take seconds, in which the space and other servers would wait.
        await to_thread.run_sync(
            remove_unusable,
            result,
            self._connection.client.protocol_version,
            problems.append,
            abandon_on_cancel=True,
        )
        for each in problems:
            self._warn(each)

    def _warn(self, text: str) -> None:
        self._limiter.line(text, logging.WARNING)

    def _notified(self, notification: types.ServerNotification) -> None:
        changed: str = notification.method
        if isinstance(notification, types.ResourceUpdatedNotification):
            changed = notification.params.uri
            known = len(changed) <= MAX_URI_CHARS and bool(self._subscriptions.watchers(changed))
        else:
            known = changed in CHANGES
        if known and changed == TOOLS_CHANGED:
            self._tools.note_changed()
        if known and len(self._changed) < MAX_CHANGES:
            self._changed.add(changed)
            self._news.set()

    async def _connected(self) -> None:
        tools = await self._tools.fetch()
        client = self._connection.client
        info = client.server_info
        log.info(
            "%s: speaks MCP %s with %s, which has %d tool%s",
            self.name,
            client.protocol_version,
            "a server without a name" if info is None else printable(info.name[:64]),
            len(tools),
            "" if len(tools) == 1 else "s",
        )
        again, self._lost_told = self._tools.are_known, False
        await self._tools.update(tools)
        if again:
            await self._subscriptions.renew()
            await self._news_sender.send_chat(f"the MCP server {self.name!r} runs again")

    async def _lost(self, error: ServerGone, delay: float) -> None:
        if self._lost_told:
            return  # it could not be started again, which the log says
        self._lost_told = True
        await self._news_sender.send_chat(
            f"the MCP server {self.name!r} has gone: {words(error.why)}; it is started again in"
            f" {delay:.1f} s"
        )

    async def _forget(self, participant: Participant) -> None:
        self._callers.pop(participant.id, None)
        await self._subscriptions.drop(participant.id)

    async def _beside(self) -> None:
        """Listen to a newer server, and pass on what changes in any, at a bounded pace."""
        async with anyio.create_task_group() as tasks:
            if self._connection.is_modern:
                tasks.start_soon(self._subscriptions.listen, self._connection.client)
            while True:
                await self._news.wait()
                self._news = anyio.Event()
                await self._pass_on()
                await anyio.sleep(NEWS_SECONDS)

    async def _pass_on(self) -> None:
        changed, self._changed = self._changed, set()
        for each in sorted(changed):
            if each == TOOLS_CHANGED:
                try:
                    await self._tools.update(await self._tools.fetch())
                except MeupError as error:
                    log.info("%s: its tools could not be listed: %s", self.name, error)
                    if self._tools.is_pinned:
                        # Until they are known, no call of them is sent.
                        self._changed.add(TOOLS_CHANGED)
                        self._news.set()
            elif each in CHANGES:
                await self._news_sender.notify(each, {})
            else:
                await self._news_sender.notify(
                    RESOURCE_UPDATED, {"uri": each}, to=self._subscriptions.watchers(each)
                )


def _uri(request: Request) -> str:
    return payloads.as_text(request.params.get("uri"))


def _wants_progress(request: Request) -> bool:
    return payloads.PROGRESS_TOKEN in payloads.as_object(request.params.get(payloads.META))


async def _report(ctx: Context, progress: float, total: float | None, message: str | None) -> None:
    if isfinite(progress):
        total = total if total is not None and isfinite(total) else None
        ctx.progress(progress, total, message and message[:MAX_PROGRESS_CHARS])


def _forwarded(params: JsonObject) -> JsonObject:
    """The parameters without what belongs to the way here."""
    return payloads.filter_meta(
        params, lambda name: name not in _OTHER_HOP and not name.startswith(payloads.PREFIX)
    )


def _tool_error(text: str) -> JsonObject:
    return {"content": [{"type": "text", "text": text}], "isError": True}


# --- bridge group ---


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeEntry:
    """A bridge, and how it joins its space.

    Attributes:
        bridge: The bridge.
        connector: The way to the gateway.
        space: The space.
        token: The participant's token, or what reads it.
        participant: The participant's name, for a gateway that does not know it by the token.
    """

    bridge: Bridge
    connector: Connector
    space: str
    token: str | Callable[[], str]
    participant: str | None = None


@asynccontextmanager
async def join_bridges(
    entries: Sequence[BridgeEntry], *, hurry: anyio.Event | None = None
) -> AsyncGenerator[None]:
    """The block in which bridges are in their spaces; entered when each is, or has failed.

    One whose server cannot be started is tried again with backoff, and the others go on; where
    none can be, and where the gateway sends the last one away, the block ends.

    Args:
        entries: The bridges.
        hurry: When it is set, running calls get no more time.

    Raises:
        MeupError: Of the only bridge, or of the last one.
    """
    leave = anyio.Event()
    failures: dict[str, MeupError] = {}

    async def serve(entry: BridgeEntry, begun: anyio.Event) -> None:
        bridge = entry.bridge

        async def serve_once() -> FailedRun | None:
            """Be in the space until the end; the reason if the server could not be started."""
            try:
                async with bridge.join(
                    entry.connector,
                    token=entry.token,
                    participant=entry.participant,
                    # A gateway that is not there yet is waited for.
                    settings=Settings(first_welcome=None),
                    hurry=hurry,
                ) as space:
                    log.info("%s: is %r in the space %r", bridge.name, space.me, entry.space)
                    failures.pop(bridge.name, None)
                    begun.set()
                    await leave.wait()
            except MeupError as error:
                is_again = bridge.name in failures
                failures[bridge.name] = error
                if len(failures) == len(entries):
                    tasks.cancel_scope.cancel()
                elif not is_again or not isinstance(error, ServerGone):
                    log.error("%s: %s", bridge.name, error)
                begun.set()
                if isinstance(error, ServerGone) and len(failures) < len(entries):
                    return FailedRun(error.why, error.stderr)
            return None

        async def failed(failure: FailedRun, delay: float) -> None:
            why = f"{failure.why}{failure.said}"
            log.warning("%s: it is started again in %.1f s; it %s", bridge.name, delay, why)

        await keep_running(serve_once, failed, leave)

    async with anyio.create_task_group() as tasks:
        begun = [anyio.Event() for _ in entries]
        for entry, event in zip(entries, begun, strict=True):
            tasks.start_soon(serve, entry, event)
        for event in begun:
            await event.wait()
        if len(failures) < len(entries):
            try:
                yield
            finally:
                leave.set()
    if len(failures) == len(entries):
        raise list(failures.values())[-1]
