"""A space as an MCP server: the handlers of MCP requests, answered by the space's participants."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import anyio
import mcp_types as types
from anyio.lowlevel import checkpoint_if_cancelled
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import validate_mcp_param_headers
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from meup_agent.client.offers import PROMPTS, RESOURCES, TEMPLATES, TOOLS
from meup_agent.errors import ConfigurationError, MeupError, RequestError
from meup_agent.mcp.sdk.decisions import CANCELLED, INSTRUCTIONS
from meup_agent.mcp.sdk.messages import ForwardingReader, Item, mcp_error
from meup_agent.mcp.sdk.naming import RESULT_TOOL, OwnName
from meup_agent.mcp.sdk.tasks import Ctx, TasksExtension, TaskSupport, install_extension
from meup_agent.mcp.server.cancellation import SDK_SECONDS, CancellingStream, OpenStreams
from meup_agent.mcp.server.catalog import LISTED, MAX_SUBSCRIPTIONS, Offer
from meup_agent.mcp.server.client_calls import declared_only
from meup_agent.mcp.server.tool_calls import (
    COMPLETE,
    RESULT_TOOL_OFFER,
    CallSettings,
    call_tool,
    forwarded,
    is_withdrawn,
    propose_read,
    result_of_held,
    tool_error,
)
from meup_agent.processes.guarded import OwnPipes, read_lines
from meup_agent.protocol.wire import payloads
from meup_agent.session.settings import ttl_from_environment
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence

    from mcp.server.models import InitializationOptions

    from meup_agent.mcp.server.client_member import ClientMember, ClientMembers
    from meup_agent.protocol.wire.payloads import JsonObject


_RESOURCE_NOT_FOUND: Final = -32002

UNDECIDED_SECONDS: Final = 86_400.0
"""For the task of a call that may wait for a decision for ever."""

RESULT_SECONDS: Final = 3600.0
"""A task is kept so much longer than its call may wait for a decision."""


class _AnnouncingServer(Server[Any]):
    """The SDK's server, which says at the handshake that its lists may change."""

    def create_initialization_options(self, *_: Any, **__: Any) -> InitializationOptions:
        """As the SDK's, with every list said to change."""
        return super().create_initialization_options(
            NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        )


class NotJoined(MCPError):
    """The participant of a client is not in the space yet."""


class OwnTool(Protocol):
    """A tool of this server's process, for the program that is its client."""

    @property
    def offer(self) -> JsonObject:
        """The tool, as it is listed."""
        ...

    async def call(self, arguments: JsonObject, /) -> JsonObject:
        """Answer a call; cancelled where its client cancels it."""
        ...


class SpaceHandlers:
    """The handlers of what MCP clients ask.

    Args:
        member_of: The participant that a request's client is.
        streams: The calls that run.
        settings: Settings of the calls.
        joined: Waits until the participant is in the space, where that may be later than its
            client; true if it was.
        own_tools: Tools of this process, of which there are some also while there is no space.

    Attributes:
        tasks: The calls that became tasks, for as long as it is entered.
    """

    def __init__(
        self,
        member_of: Callable[[Ctx], ClientMember],
        streams: OpenStreams,
        settings: CallSettings,
        *,
        joined: Callable[[], Awaitable[bool]] | None = None,
        own_tools: Sequence[OwnTool] = (),
    ) -> None:
        self._joined = joined
        self._own_tools = {str(each.offer["name"]): each for each in own_tools}
        self._member_of = member_of
        self._streams = streams
        self._settings = settings
        ttl = ttl_from_environment() if settings.ttl == "space" else settings.ttl
        waiting = UNDECIDED_SECONDS if ttl is None else ttl
        self.tasks = TasksExtension(
            support=self._task_support,
            owner=lambda ctx: member_of(ctx).key,
            is_withdrawn=is_withdrawn,
            ttl=waiting + RESULT_SECONDS,
        )

    @property
    def instructions(self) -> str | None:
        """Instructions for a model, where its calls may wait for a person."""
        return INSTRUCTIONS if self._settings.proposes else None

    # --- lists ---

    async def list_offers(self, kind: str, ctx: Ctx, _: Any) -> JsonObject:
        """The lists: of tools, prompts, resources and templates."""
        own = [each.offer for each in self._own_tools.values()] if kind == TOOLS else []
        try:
            catalog = self._member_of(ctx).catalog
        except NotJoined:
            return {kind: own, **LISTED}  # its client is told when there are some
        listed = await catalog.described(kind, ctx.protocol_version)
        if kind == TOOLS and self._settings.answer_seconds(ctx) is not None:
            listed = [RESULT_TOOL_OFFER, *listed]
        return {kind: [*own, *listed], **LISTED}

    # --- calls ---

    async def call_tool(self, ctx: Ctx, _: Any) -> JsonObject:
        """``tools/call``."""
        params = dict(ctx.params or {})
        result = tool_error(CANCELLED)
        own = self._own_tools.get(str(params.get("name")))
        if own is not None:
            with self._streams.track("", ctx) as stream:
                given = payloads.as_object(params.get("arguments"))
                result = {**COMPLETE, **await own.call(given)}
        else:
            member = self._member_of(ctx)
            with member.answering(), self._streams.track(member.key, ctx) as stream:
                await checkpoint_if_cancelled()  # of what was cancelled already, nothing is sent
                if params.get("name") == RESULT_TOOL and self._settings.proposes:
                    result = await result_of_held(member, params, ctx, self._settings)
                else:
                    offer = await _find(member, TOOLS, params.get("name"))
                    result = await call_tool(member, offer, params, ctx, self._settings)
        if stream.reason is not None and ctx.request is None:
            await anyio.sleep(SDK_SECONDS)
        return result

    async def _task_support(self, ctx: Ctx, name: str) -> TaskSupport:
        if name in self._own_tools:
            return "forbidden"
        offer = await self._member_of(ctx).catalog.find(TOOLS, name)
        if offer is None:
            return "forbidden"
        # The headers which repeat arguments, for proxies on the way, must agree with them. Checked
        # here, where each call of the newest revision comes by before it can become a task.
        if offer.repeats_arguments and ctx.request is not None:
            arguments = payloads.as_object((ctx.params or {}).get("arguments"))
            wrong = validate_mcp_param_headers(
                offer.described.get("inputSchema"), arguments, ctx.request.headers
            )
            if wrong is not None:
                raise MCPError(wrong.code, wrong.message, wrong.data)
        said: Any = payloads.as_object(offer.described.get("execution")).get("taskSupport")
        return said if said in ("required", "forbidden") else "optional"

    # --- resources and prompts ---

    async def read_resource(self, ctx: Ctx, _: Any) -> JsonObject:
        """``resources/read``."""
        member, params = self._member_of(ctx), dict(ctx.params or {})
        uri = str(params.get("uri"))
        owned = await _owner(member, uri, ctx)
        sent = forwarded(params, uri=owned.name)
        result = await self._read(member, owned.participant, "resources/read", sent, ctx)
        for content in payloads.objects_in(result.get("contents")):
            if content.get("uri") == owned.name:
                content["uri"] = uri
        return {**LISTED, **result}

    async def get_prompt(self, ctx: Ctx, _: Any) -> JsonObject:
        """``prompts/get``."""
        member, params = self._member_of(ctx), dict(ctx.params or {})
        offer = await _find(member, PROMPTS, params.get("name"))
        sent = forwarded(params, name=offer.name)
        return await self._read(member, offer.participant, "prompts/get", sent, ctx)

    async def complete(self, ctx: Ctx, _: Any) -> JsonObject:
        """``completion/complete``."""
        member, params = self._member_of(ctx), dict(ctx.params or {})
        ref = payloads.as_object(params.get("ref"))
        if ref.get("type") == "ref/prompt":
            offer = await _find(member, PROMPTS, ref.get("name"))
            own = {**ref, "name": offer.name}
        else:
            found = await member.catalog.template_of(str(ref.get("uri")))
            if found is None:
                raise MCPError(INVALID_PARAMS, f"Unknown resource template: {ref.get('uri')}")
            offer, own = found, {**ref, "uri": found.name}
        sent = {**forwarded(params), "ref": own}
        with _answered_errors(), member.answering():
            # Never proposed: a person would be asked at each key.
            answer = await member.space.request(offer.participant, "completion/complete", sent)
        return {**COMPLETE, **payloads.as_object(answer)}

    async def _read(
        self, member: ClientMember, participant: str, method: str, params: JsonObject, ctx: Ctx
    ) -> JsonObject:
        """Ask a participant, or propose that, and give its answer, or its error, as it came."""
        with _answered_errors():
            with member.answering():
                if member.space.may_request(participant, method, params):
                    answered = await member.space.request(participant, method, params)
                else:
                    answered = await propose_read(
                        member.space, participant, method, params, self._settings
                    )
            answer = payloads.as_object(answered)
            if answer.get("resultType") == "input_required":
                if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                    version = ctx.protocol_version
                    why = f"it asks for something first, which MCP {version} cannot do here"
                    raise RequestError(INVALID_REQUEST, f"{method} of {participant!r}: {why}")
                answer = declared_only(ctx, answer)
        return {**COMPLETE, **answer}

    # --- sessions, subscriptions, logging ---

    async def initialized(self, ctx: Ctx, _: Any) -> None:
        """``notifications/initialized``: from here to the session's end its client is told."""
        is_late = self._joined is not None and await self._joined()
        member = self._member_of(ctx)
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS or member.sessions.find(ctx):
            return  # no session, or one that is told already: each would be a task
        with member.sessions.open(ctx) as session:
            if is_late:
                member.announcements.lists_changed()
            try:
                await session.run()
            finally:
                for owned in session.subscribed.values():
                    member.subscribed.discard(owned)

    async def subscribe(self, ctx: Ctx, params: types.SubscribeRequestParams) -> JsonObject:
        """``resources/subscribe``."""
        member = self._member_of(ctx)
        session = member.sessions.get(ctx)
        uri = str(params.uri)
        if uri not in session.subscribed:
            if len(session.subscribed) >= MAX_SUBSCRIPTIONS:
                raise MCPError(INVALID_REQUEST, f"{MAX_SUBSCRIPTIONS} subscriptions are the most")
            owned = await _subscribe(member, uri, ctx)
            if uri in session.subscribed or member.sessions.find(ctx) is not session:
                member.subscribed.discard(owned)  # another request was faster, or its end
            else:
                session.subscribed[uri] = owned
        return {}

    async def unsubscribe(self, ctx: Ctx, params: types.UnsubscribeRequestParams) -> JsonObject:
        """``resources/unsubscribe``."""
        member = self._member_of(ctx)
        owned = member.sessions.get(ctx).subscribed.pop(str(params.uri), None)
        if owned is not None:
            member.subscribed.discard(owned)
        return {}

    async def listen(
        self, ctx: Ctx, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """``subscriptions/listen``."""
        member = self._member_of(ctx)
        subscribed: list[OwnName] = []
        try:
            for uri in (params.notifications.resource_subscriptions or ())[:MAX_SUBSCRIPTIONS]:
                with suppress(MCPError):  # as a URI that never changes
                    subscribed.append(await _subscribe(member, str(uri), ctx))
            return await member.listen(ctx, params)
        finally:
            for owned in subscribed:
                member.subscribed.discard(owned)

    async def set_level(self, ctx: Ctx, params: types.SetLevelRequestParams) -> JsonObject:
        """``logging/setLevel``."""
        self._member_of(ctx).sessions.get(ctx).log_level = params.level
        return {}


async def _owner(member: ClientMember, uri: str, ctx: Ctx) -> OwnName:
    owned = await member.catalog.owner_of(uri)
    if owned is None:
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        code = INVALID_PARAMS if modern else _RESOURCE_NOT_FOUND
        raise MCPError(code, f"Resource not found: {uri}", {"uri": uri})
    return owned


async def _find(member: ClientMember, kind: str, name: object) -> Offer:
    offer = await member.catalog.find(kind, str(name))
    if offer is None:
        raise MCPError(
            INVALID_PARAMS, f"Unknown {kind.removesuffix('s')}: {name}; ask for {kind}/list again"
        )
    return offer


async def _subscribe(member: ClientMember, uri: str, ctx: Ctx) -> OwnName:
    owned = await _owner(member, uri, ctx)
    if member.subscribed.is_full:
        raise MCPError(INVALID_REQUEST, "too many resources are subscribed to already")
    with _answered_errors():
        await member.subscribed.add(owned)
    return owned


@contextmanager
def _answered_errors() -> Generator[None]:
    """The block whose errors are those of the client's request."""
    try:
        yield
    except RequestError as error:
        raise mcp_error(error) from error
    except MeupError as error:
        raise MCPError(INTERNAL_ERROR, str(error)) from error


def make_server(handlers: SpaceHandlers) -> Server[Any]:
    """The SDK's server with our handlers."""
    ours: Any = handlers  # whose results are JSON, and none of the SDK's models
    server = _AnnouncingServer(
        "meup",
        version=version("meup-agent"),
        instructions=handlers.instructions,
        # Else it would ask for tools/list before each call; see _task_support.
        get_tool_input_schema=lambda _: None,
        on_list_tools=partial(ours.list_offers, TOOLS),
        on_call_tool=ours.call_tool,
        on_list_prompts=partial(ours.list_offers, PROMPTS),
        on_get_prompt=ours.get_prompt,
        on_list_resources=partial(ours.list_offers, RESOURCES),
        on_list_resource_templates=partial(ours.list_offers, TEMPLATES),
        on_read_resource=ours.read_resource,
        on_completion=ours.complete,
        on_subscribe_resource=ours.subscribe,
        on_unsubscribe_resource=ours.unsubscribe,
        on_subscriptions_listen=ours.listen,
    )
    # Deprecated in the newest revision, and asked for in older ones.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, ours.set_level)
    server.add_notification_handler(
        "notifications/initialized", types.NotificationParams, handlers.initialized
    )
    install_extension(handlers.tasks, server)
    return server


# --- over standard input and output ---

log = logging.getLogger("meup_agent.mcp")

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""Of one message; the largest that a client sends has a file in it."""

UNHEARD_SECONDS: Final = 5.0
"""Until it is logged that no gateway has answered."""

JOIN_SECONDS: Final = 20.0
"""Wait of a client's first request for the space; clients give up after a minute or half of one."""

END_SECONDS: Final = 2.0
"""Wait for the space at the end of a client that needed nothing of it."""

_WITHOUT_SPACE: Final = frozenset({"initialize", "server/discover", "ping"})
"""Methods that the SDK answers by itself."""


@contextmanager
def _standard_streams() -> Generator[tuple[Any, Any]]:
    """Standard input and output for the SDK; ``None`` for both: as a file, they are its own to use.

    The SDK reads in a thread, which ends only with the next line: a process that was told to stop
    would wait for its client. It writes and flushes each message in a thread, too.
    """
    with ExitStack() as stack:
        pipes = None
        with suppress(ConfigurationError):
            pipes = stack.enter_context(OwnPipes())
        yield (None, None) if pipes is None else (_read_messages(pipes), _Output(pipes))


async def _read_messages(pipes: OwnPipes) -> AsyncGenerator[str]:
    async for line in read_lines(pipes.read, MAX_LINE_BYTES):
        yield line.decode("utf-8", "replace")


class _Output:
    """Standard output, as the SDK uses a file."""

    def __init__(self, pipes: OwnPipes) -> None:
        self._pipes = pipes

    async def write(self, text: str) -> None:
        await self._pipes.write(text.encode())

    async def flush(self) -> None:
        """Nothing is kept back."""


async def serve_stdio(
    pool: ClientMembers, settings: CallSettings, own_tools: Sequence[OwnTool] = ()
) -> None:
    """Serve one client over standard input and output, as the participant of this process.

    Args:
        pool: The participants.
        settings: Settings of the calls.
        own_tools: Tools of this process beside those of the space.

    Raises:
        MeupError: The participant is not in the space, or no longer.
    """
    async with pool.run():
        joining = _Joining(pool)
        streams = OpenStreams()
        handlers = SpaceHandlers(
            joining.member_of, streams, settings, joined=joining.wait, own_tools=own_tools
        )
        server = make_server(handlers)
        try:
            with _standard_streams() as (stdin, stdout):
                async with (
                    background_tasks() as tasks,
                    handlers.tasks,
                    stdio_server(stdin=stdin, stdout=stdout) as (read, write),
                ):
                    tasks.start_soon(joining.run)
                    messages = _PatientStream(CancellingStream(read, streams, ""), joining)
                    await server.run(
                        cast("Any", messages), write, server.create_initialization_options()
                    )
                    with anyio.move_on_after(END_SECONDS):
                        await joining.wait()  # else a token that is refused would not be told
        except* BrokenPipeError:
            log.info("the client reads no more")


class _Joining:
    """The participant of this process, which may join after its client has begun.

    A client that starts before the gateway is greeted at once; else it would take its server for
    dead.
    """

    def __init__(self, pool: ClientMembers) -> None:
        self._pool = pool
        self._member: ClientMember | None = None
        self._joined = anyio.Event()

    async def run(self) -> None:
        """Join, and wait until it is not in the space any more; raises why."""
        login = None
        with anyio.move_on_after(UNHEARD_SECONDS):
            login = await self._pool.get(None)
        if login is None:
            log.warning("no gateway has answered yet; waiting for it")
            login = await self._pool.get(None)
        assert login is not None  # else it has raised
        self._member = login.member
        self._joined.set()
        await login.member.raise_at_end()

    async def wait(self) -> bool:
        """Wait until it has joined; true if it had not before."""
        was_late = not self._joined.is_set()
        await self._joined.wait()
        return was_late

    def member_of(self, _: object) -> ClientMember:
        """The participant.

        Raises:
            NotJoined: It is not in the space yet.
        """
        if self._member is None:
            raise NotJoined(
                INTERNAL_ERROR,
                "the gateway of these tools is not there yet; start it (meup up), and try again",
            )
        return self._member


class _PatientStream(ForwardingReader):
    """A client's messages; what needs the space is handed on once that is joined, or is late."""

    def __init__(self, stream: CancellingStream, joining: _Joining) -> None:
        super().__init__(stream)
        self._joining = joining
        self._waits = True

    async def receive(self) -> Item:
        """The next message."""
        item = await super().receive()
        method = getattr(getattr(item, "message", None), "method", "")
        if self._waits and method not in _WITHOUT_SPACE:
            self._waits = False
            with anyio.move_on_after(JOIN_SECONDS):
                await self._joining.wait()
        return item
