"""MCP: servers into a space, a space out to MCP clients, with the official SDK (extra ``mcp``).

**An MCP server in a space.** :mod:`.bridge` is the participant: it sends the space's requests on,
and announces what changes. :mod:`.connection` has the server: it starts it over one of
:mod:`.sdk_transports`, as a :mod:`.server_process`, and again when it ends;
:mod:`.watched_streams` see what the SDK's session does not tell, and :mod:`.server_asks` brings
what the server asks to the participant that called.
:mod:`.tool_list` leaves out what is unusable, :mod:`.offered_tools` says what changed, :mod:`.pin`
holds back what was not approved, :mod:`.server_config` reads the file of servers.

**A space for MCP clients.** :mod:`.http` finds the participant that a client is, by its token
(:mod:`.http_auth`; :mod:`.principal_pool` has each :mod:`.principal` in the space once), and reads
a cancel before the SDK does (:mod:`.cancellation`). :mod:`.space_server` has the handlers of the
SDK's server, one for each method; :mod:`.catalog` knows the offers of the space by their names for
clients (:mod:`.naming`). :mod:`.tool_calls` makes a call a request or a proposal;
:mod:`.client_calls` brings its progress, its log and what is asked during it to the client;
:mod:`.decisions` has the words for a model. None of it decides: what a client may do is what the
gateway lets its participant do.

Importing this package needs nothing beyond the standard dependencies; its modules need the SDK.
"""

from __future__ import annotations

from meup_agent import lazy_names

_NAMES = lazy_names.read_names(__spec__)

__all__ = sorted(_NAMES)  # pyright: ignore[reportUnsupportedDunderAll] - the stub has it


def __getattr__(name: str) -> object:
    """A public name, loaded when it is first used: the package is there without the SDK."""
    return lazy_names.load_name(__name__, _NAMES, name)
