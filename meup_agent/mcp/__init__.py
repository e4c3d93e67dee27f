"""MCP: servers into a space, a space out to MCP clients, with the official SDK (extra ``mcp``).

**An MCP server in a space** (``bridge/``). :mod:`.bridge.bridge` is the participant: it sends the
space's requests on, and announces what changes. :mod:`.bridge.connection` has the server: it starts
it over one of :mod:`.bridge.transports`, and again when it ends; these see what the SDK's session
does not tell, and bring the server's questions to whom they are for. :mod:`.bridge.offered_tools`
leaves out what is unusable, says what changed, and holds back what was not approved;
:mod:`.bridge.config` reads the file of servers.

**A space for MCP clients** (``server/``). :mod:`.server.http` finds the participant that a client
is, by its token; :mod:`.server.client_member` has each of these in the space once, and
:mod:`.server.cancellation` reads a cancel before the SDK does. :mod:`.server.space_server` has the
handlers of the SDK's server, one for each method; :mod:`.server.catalog` knows the offers of the
space by their names for clients. :mod:`.server.tool_calls` makes a call a request or a proposal;
:mod:`.server.client_calls` brings its progress, its log and what is asked during it to the client;
:mod:`.sdk.decisions` has the words for a model. None of it decides: what a client may do is what
the gateway lets its participant do.

Both have their messages, and the streams that stand in the way of the SDK's, from
:mod:`.sdk.messages`.

Importing this package needs nothing beyond the standard dependencies; its modules need the SDK.
"""

from __future__ import annotations

from meup_agent import lazy_names

_NAMES = lazy_names.read_names(__spec__)

__all__ = sorted(_NAMES)  # pyright: ignore[reportUnsupportedDunderAll] - the stub has it


def __getattr__(name: str) -> object:
    """A public name, loaded when it is first used: the package is there without the SDK."""
    return lazy_names.load_name(__name__, _NAMES, name)
