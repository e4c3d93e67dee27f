"""The tools that a server offers to a space: read anew, compared, held back, announced."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from meup_agent.errors import RequestError
from meup_agent.mcp.tool_list import MAX_PAGES, ToolChanges, compare_tools, merge_pages
from meup_agent.protocol import payloads
from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.mcp.connection import ServerConnection
    from meup_agent.mcp.pin import ToolLock
    from meup_agent.mcp.server_news import ServerNews
    from meup_agent.protocol.payloads import JsonObject

log = logging.getLogger("meup_agent.mcp")

CURRENT_SECONDS: Final = 5.0
"""Wait of a call of a pinned tool for the list of a server that has told of a change."""

TOOLS_CHANGED: Final = "notifications/tools/list_changed"


class OfferedTools:
    """The tools of one server.

    Args:
        name: The server's name.
        connection: The connection to it.
        pin: The tools that were approved; others are held back.
        news: Tells the space what changes.
        warn: Logs a warning, at a bounded pace.
    """

    def __init__(
        self,
        name: str,
        connection: ServerConnection,
        pin: ToolLock | None,
        news: ServerNews,
        warn: Callable[[str], None],
    ) -> None:
        self._name = name
        self._connection = connection
        self._pin = pin
        self._news = news
        self._warn = warn
        self._tools: list[JsonObject] | None = None
        self._listed: frozenset[str] = frozenset()
        self._held_back: frozenset[str] = frozenset()
        self._announced = 0  # changes that the server has told of
        self._begun = 0  # …before the list that was asked for last
        self._read = 0  # …before the list that is known
        self._taken = Condition()

    @property
    def is_pinned(self) -> bool:
        """True if only tools that were approved are called."""
        return self._pin is not None

    @property
    def are_known(self) -> bool:
        """True once the server has listed them."""
        return self._tools is not None

    def offered(self) -> list[JsonObject]:
        """The tools that are not held back."""
        # Known from the start: the space is joined after the first list.
        return [tool for tool in self._tools or [] if tool["name"] not in self._held_back]

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
            raise RequestError(
                payloads.EXCHANGE_ERROR,
                f"the tools of the MCP server {self._name!r} have changed, and it does not list"
                " them; try again later",
                {"reason": "busy"},
            )

    def check_approved(self, tool: object) -> None:
        """Refuse a tool that is held back, or that a server with pinned tools does not list.

        Raises:
            RequestError: It says where it was approved otherwise.
        """
        if self._pin is None:
            return
        name, path = tool if isinstance(tool, str) else "", self._pin.path.name
        if name in self._held_back:
            said = (
                f"the tool {name[:64]!r} is not the one that was approved in {path}; the operator"
                " of the bridge can take it with --confirm"
            )
        elif name not in self._listed:
            # A server may take calls of tools that it does not list, and of one that it lists
            # no longer.
            said = (
                f"the MCP server {self._name!r} does not list a tool {name[:64]!r}, and only those"
                f" that were approved in {path} are called"
            )
        else:
            return
        raise RequestError(payloads.EXCHANGE_ERROR, said, {"reason": "policy"})

    async def fetch(self) -> list[JsonObject]:
        """Every tool that the server lists now, without the unusable ones."""
        self._begun = self._announced
        if self._connection.client.server_capabilities.tools is None:
            return []
        pages: list[JsonObject] = []
        cursor: Any = None
        for _ in range(MAX_PAGES):
            page = await self._connection.request(
                "tools/list", {"cursor": cursor} if cursor else {}
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
        """Note the tools, hold back those that were not approved, and announce what changed."""
        before = self._tools
        changes = ToolChanges() if before is None else compare_tools(before, tools)
        held_before = self._held_back
        if self._pin is not None:
            self._held_back = self._pin.unapproved(self._name, tools)
        self._tools, self._listed = tools, frozenset(str(tool["name"]) for tool in tools)
        self._read = self._begun
        self._taken.notify_all()
        if self._held_back - held_before:
            names = ", ".join(repr(each[:64]) for each in sorted(self._held_back)[:20])
            log.warning(
                "%s: held back, since they are not what was approved in %s: %s",
                self._name,
                self._pin.path if self._pin is not None else "",
                names,
            )
        if not changes:
            return
        held = " (those not approved are held back)" if self._held_back else ""
        log.warning("%s: its tools have changed: %s%s", self._name, changes, held)
        await self._news.notify(TOOLS_CHANGED, {})
        await self._news.send_chat(
            f"the tools of the MCP server {self._name!r} have changed: {changes}{held}"
        )
