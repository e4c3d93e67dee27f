"""A space as an MCP server: the handlers of MCP requests, answered by the space's participants."""

from __future__ import annotations

import warnings
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import INVALID_PARAMS

from meup_agent.errors import MeupError, RequestError
from meup_agent.mcp.calls import (
    COMPLETE,
    CallSettings,
    answered_with,
    call_tool,
    forwarded,
    is_withdrawn,
    tool_error,
)
from meup_agent.mcp.cancellation import OpenStreams
from meup_agent.mcp.catalog import PROMPTS, RESOURCES, TEMPLATES, TOOLS, Ambiguous
from meup_agent.mcp.decisions import CANCELLED
from meup_agent.mcp.naming import wrap_uri
from meup_agent.mcp.tasks import TasksExtension, TaskSupport, install_extension
from meup_agent.protocol import payloads

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.context import ServerRequestContext
    from mcp.server.models import InitializationOptions

    from meup_agent.mcp.principal import Principal
    from meup_agent.protocol.payloads import JsonObject

    Ctx = ServerRequestContext[Any, Any]

RESOURCE_NOT_FOUND: Final = -32002

LISTED: Final = {**COMPLETE, "ttlMs": 0, "cacheScope": "private"}
"""A list is good until we say that it changed; and what one participant sees is its own."""


UNDECIDED_SECONDS: Final = 86_400.0
"""For the task of a call that may wait for a decision for ever."""

RESULT_SECONDS: Final = 3600.0
"""A task is kept so much longer than its call may wait for a decision."""


class _Server(Server[Any]):
    """The SDK's server, which says at the handshake that its lists may change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """As the SDK's, with every list said to change."""
        changing = NotificationOptions(
            prompts_changed=True, resources_changed=True, tools_changed=True
        )
        return super().create_initialization_options(
            notification_options or changing, experimental_capabilities, extensions
        )


class SpaceHandlers:
    """The handlers of what MCP clients ask.

    Attributes:
        tasks: The calls that became tasks, for as long as it is entered.

    Args:
        principal_of: The participant that a request's client is.
        streams: The calls that run.
        settings: Settings of the calls.
    """

    def __init__(
        self,
        principal_of: Callable[[Ctx], Principal],
        streams: OpenStreams,
        settings: CallSettings,
    ) -> None:
        self._principal_of = principal_of
        self._streams = streams
        self._settings = settings
        waiting = UNDECIDED_SECONDS if settings.ttl is None else settings.ttl
        self.tasks = TasksExtension(
            support=self._task_support,
            owner=lambda ctx: principal_of(ctx).key,
            is_withdrawn=is_withdrawn,
            ttl=waiting + RESULT_SECONDS,
        )

    # --- lists ---

    async def list_tools(self, ctx: Ctx, _: Any) -> JsonObject:
        """``tools/list``."""
        return await self._list(ctx, TOOLS)

    async def list_prompts(self, ctx: Ctx, _: Any) -> JsonObject:
        """``prompts/list``."""
        return await self._list(ctx, PROMPTS)

    async def list_resources(self, ctx: Ctx, _: Any) -> JsonObject:
        """``resources/list``."""
        return await self._list(ctx, RESOURCES)

    async def list_templates(self, ctx: Ctx, _: Any) -> JsonObject:
        """``resources/templates/list``."""
        return await self._list(ctx, TEMPLATES)

    async def _list(self, ctx: Ctx, kind: str) -> JsonObject:
        catalog = self._principal_of(ctx).catalog
        return {kind: await catalog.list(kind, ctx.protocol_version), **LISTED}

    # --- calls ---

    async def call_tool(self, ctx: Ctx, _: Any) -> JsonObject:
        """``tools/call``."""
        principal, params = self._principal_of(ctx), dict(ctx.params or {})
        with principal.answering(), self._streams.track(principal.key, ctx):
            offer = await principal.catalog.find(TOOLS, str(params.get("name")))
            if offer is None:
                raise MCPError(
                    INVALID_PARAMS,
                    f"Unknown tool: {params.get('name')}; ask for tools/list again",
                )
            return await call_tool(principal.space, offer, params, ctx, self._settings)
        return tool_error(CANCELLED)

    async def _task_support(self, ctx: Ctx, name: str) -> TaskSupport:
        offer = await self._principal_of(ctx).catalog.find(TOOLS, name)
        execution = {} if offer is None else payloads.as_object(offer.described.get("execution"))
        match execution.get("taskSupport"):
            case "required":
                return "required"
            case "forbidden":
                return "forbidden"
            case _:
                return "optional"

    # --- resources and prompts ---

    async def read_resource(self, ctx: Ctx, _: Any) -> JsonObject:
        """``resources/read``."""
        principal, params = self._principal_of(ctx), dict(ctx.params or {})
        uri = str(params.get("uri"))
        try:
            owned = await principal.catalog.owner_of(uri)
        except Ambiguous as error:
            those = " or ".join(wrap_uri(each, uri) for each in error.owners)
            raise MCPError(
                INVALID_PARAMS, f"Several participants have {uri}; ask for {those}"
            ) from None
        if owned is None:
            code = INVALID_PARAMS if ctx.protocol_version >= "2026" else RESOURCE_NOT_FOUND
            raise MCPError(code, f"Resource not found: {uri}", {"uri": uri})
        sent = forwarded(params, uri=owned.name)
        result = await _ask(principal, owned.participant, "resources/read", sent)
        for content in result.get("contents", ()):
            if isinstance(content, dict) and content.get("uri") == owned.name:
                content["uri"] = uri
        return {**LISTED, **result}

    async def get_prompt(self, ctx: Ctx, _: Any) -> JsonObject:
        """``prompts/get``."""
        principal, params = self._principal_of(ctx), dict(ctx.params or {})
        offer = await principal.catalog.find(PROMPTS, str(params.get("name")))
        if offer is None:
            raise MCPError(INVALID_PARAMS, f"Unknown prompt: {params.get('name')}")
        sent = forwarded(params, name=offer.name)
        return await _ask(principal, offer.participant, "prompts/get", sent)


async def _ask(
    principal: Principal, participant: str, method: str, params: JsonObject
) -> JsonObject:
    """Ask a participant, and give its answer, or its error, as it came."""
    try:
        result = await principal.space.request(participant, method, params)
    except RequestError as error:
        raise answered_with(error) from error
    except MeupError as error:
        raise MCPError(-32000, str(error)) from error
    return {**COMPLETE, **payloads.as_object(result)}


def make_server(handlers: SpaceHandlers) -> Server[Any]:
    """The SDK's server with our handlers."""
    with warnings.catch_warnings():
        # Clients of older revisions set a log level; the SDK warns of each server that lets them.
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        server = _Server(
            "meup",
            version=version("meup-agent"),
            on_list_tools=handlers.list_tools,
            on_call_tool=handlers.call_tool,
            on_list_prompts=handlers.list_prompts,
            on_get_prompt=handlers.get_prompt,
            on_list_resources=handlers.list_resources,
            on_list_resource_templates=handlers.list_templates,
            on_read_resource=handlers.read_resource,
        )
    install_extension(handlers.tasks, server)
    return server
