"""Pinned tools: a file of the tools that were accepted, so that a change of them is noticed.

A description is read by a model before it calls the tool, and a rule lets calls pass by the tool's
name. Tools that change after a person accepted them can make either do something else. So a tool is
kept as it was accepted; the difference is told until a person accepts it.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from meup_agent.client.tool_changes import approved_parts, canonical
from meup_agent.errors import ConfigurationError, explain_os_error, printable, system_reason

if TYPE_CHECKING:
    from meup_agent.protocol.wire.payloads import JsonObject

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
            file, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)
            try:
                with os.fdopen(file, "w", encoding="utf-8") as new:
                    new.write(f"{content}\n")
                os.replace(temporary, self.path)
            except BaseException:
                os.unlink(temporary)
                raise


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
