"""Pinned tools: a file of the tools that were approved, so that no other ones are offered.

A description is read by a model before it calls the tool. One that changes after a person approved
it can make the model do something else; so a tool whose description or schema is not the approved
one is held back until it is confirmed.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from meup_agent.errors import ConfigurationError, printable, system_reason
from meup_agent.mcp.tool_list import digest_tool
from meup_agent.protocol import payloads

if TYPE_CHECKING:
    from meup_agent.protocol.payloads import JsonObject

VERSION: Final = 1
"""Of the file's format."""

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the file: 64 servers with 1,000 tools each have ten million."""

_PREFIX: Final = "sha256:"


class ToolLock:
    """The file of approved tools; of a server that is not in it, the first list is approved.

    Args:
        path: The file; it is made when something is approved.
        confirm: Approve what the servers offer now.

    Raises:
        ConfigurationError: The file cannot be read or made, or is none of ours.
    """

    def __init__(self, path: Path, *, confirm: bool = False) -> None:
        self._path = path
        self._confirm = confirm
        self._confirmed: set[str] = set()
        self._servers = _read(path)
        # Now, since later it would be an error of the server whose tools are seen first.
        if (confirm or not path.exists()) and not os.access(path.parent, os.W_OK):
            why = "no permission" if path.parent.is_dir() else f"there is no folder {path.parent}"
            raise ConfigurationError(f"{path} cannot be written: {why}")

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def unapproved(self, server: str, tools: Iterable[JsonObject]) -> frozenset[str]:
        """Names of the tools that differ from the approved ones, or are not among them.

        A server's first list is approved, and with ``confirm`` the first one that is seen here.

        Raises:
            ConfigurationError: The file cannot be written.
        """
        offered = {str(tool["name"]): _PREFIX + digest_tool(tool) for tool in tools}
        approved = self._servers.get(server)
        # Once: what changes while the bridge runs was not seen by the person who confirmed.
        confirmed = self._confirm and server not in self._confirmed
        self._confirmed.add(server)
        if approved is None or confirmed:
            if approved != offered:
                self._servers[server] = offered
                self._write()
            return frozenset()
        return frozenset(name for name, seen in offered.items() if approved.get(name) != seen)

    def _write(self) -> None:
        """Write the file so that a reader finds the old content or the new, never a part."""
        servers = {name: {"tools": tools} for name, tools in self._servers.items()}
        content = json.dumps({"version": VERSION, "servers": servers}, indent=2, sort_keys=True)
        try:
            file, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
            try:
                with os.fdopen(file, "w", encoding="utf-8") as new:
                    new.write(f"{content}\n")
                os.replace(temporary, self._path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            why = system_reason(error)
            raise ConfigurationError(f"{self._path} cannot be written: {why}") from None


def _read(path: Path) -> dict[str, dict[str, str]]:
    """The approved tools' digests, by server and name."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as error:
        why = system_reason(error)
        raise ConfigurationError(f"{path} cannot be read: {why}") from None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is no JSON: {printable(str(error))}") from None
    root = payloads.as_object(document)
    if root.get("version") != VERSION or not isinstance(root.get("servers"), dict):
        raise ConfigurationError(f"{path} is no file of approved tools of version {VERSION}")
    found: dict[str, dict[str, str]] = {}
    for name, entry in payloads.as_object(root["servers"]).items():
        tools = payloads.as_object(payloads.as_object(entry).get("tools"))
        found[name] = {tool: seen for tool, seen in tools.items() if isinstance(seen, str)}
    return found
