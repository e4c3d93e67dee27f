"""MCP: servers into a space, a space out to MCP clients, with the official SDK (extra ``mcp``).

**An MCP server in a space.** :mod:`.bridge` is the participant: it sends the space's requests on,
and announces what changes. :mod:`.connection` has the server: it starts it over one of
:mod:`.transports`, and again when it ends; :mod:`.watched_streams` see what the SDK's session does
not tell, and :mod:`.server_asks` brings what the server asks to the participant that called.
:mod:`.tool_list` leaves out what is unusable and says what changed, :mod:`.pin` holds back what was
not approved, :mod:`.servers` reads the file of servers.

**A space for MCP clients.** :mod:`.http` finds the participant that a client is, by its token
(:mod:`.principal` has each in the space once), and reads a cancel before the SDK does
(:mod:`.cancellation`). :mod:`.space_server` has the handlers of the SDK's server, one for each
method; :mod:`.catalog` knows the offers of the space by their names for clients (:mod:`.naming`).
:mod:`.calls` makes a call a request or a proposal; :mod:`.client_calls` brings its progress, its
log and what is asked during it to the client; :mod:`.decisions` has the words for a model. None of
it decides: what a client may do is what the gateway lets its participant do.

Importing this package needs nothing beyond the standard dependencies; its modules need the SDK.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:  # the names of _PUBLIC, for type checkers
    from meup_agent.mcp.bridge import Bridge as Bridge
    from meup_agent.mcp.http import McpApp as McpApp
    from meup_agent.mcp.http import mcp_app as mcp_app
    from meup_agent.mcp.pin import ToolLock as ToolLock
    from meup_agent.mcp.server_asks import Ask as Ask
    from meup_agent.mcp.servers import HttpServer as HttpServer
    from meup_agent.mcp.servers import StdioServer as StdioServer
    from meup_agent.mcp.servers import read_servers as read_servers
    from meup_agent.mcp.task_client import TasksClientExtension as TasksClientExtension
    from meup_agent.mcp.tasks import TasksExtension as TasksExtension
    from meup_agent.mcp.tasks import TaskSupport as TaskSupport
    from meup_agent.mcp.tasks import install_extension as install_extension
else:  # or every name would pass for one of ours
    _PUBLIC = {
        "http": "McpApp mcp_app",
        "bridge": "Bridge",
        "pin": "ToolLock",
        "server_asks": "Ask",
        "servers": "HttpServer StdioServer read_servers",
        "task_client": "TasksClientExtension",
        "tasks": "TaskSupport TasksExtension install_extension",
    }
    """Module of this package → the public names in it."""

    _MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}

    __all__ = sorted(_MODULES)

    def __getattr__(name: str) -> object:
        """A public name, loaded when it is first used: the package is there without the SDK."""
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
