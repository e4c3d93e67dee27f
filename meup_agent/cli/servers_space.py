"""The space that ``meup up --servers`` makes of an MCP client's configuration.

Each server is a participant; ``agent`` may list tools and propose their calls; ``you`` may decide.
With a policy, ``reviewer`` decides by it, and leaves to ``you`` what it asks.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from meup_agent.cli.console_link import link_lines
from meup_agent.cli.up_state import digest_of, keep_token, make_folder, token_path, up_folder
from meup_agent.errors import ConfigurationError
from meup_agent.escape import visible
from meup_agent.gateway.auth import new_token
from meup_agent.gateway.config import DEFAULT_PORT, ParticipantConfig, participant
from meup_agent.gateway.presets import ROLES

if TYPE_CHECKING:
    from meup_agent.mcp.server_config import Server

SPACE: Final = "mcp"
"""The id of the space."""

AGENT: Final = "agent"
YOU: Final = "you"
REVIEWER: Final = "reviewer"

SERVER: Final[tuple[dict[str, Any], ...]] = (
    *ROLES["tools"],
    {"kind": "mcp/request", "payload": {"method": "notifications/**"}},
    {"kind": "mcp/request", "payload": {"method": "elicitation/create"}},
    {"kind": "mcp/request", "payload": {"method": "sampling/createMessage"}},
    {"kind": "mcp/request", "payload": {"method": "roots/list"}},
)
"""Capabilities of a server: it answers, tells what changed, and asks during a call."""

CAPABILITIES: Final = {AGENT: ROLES["proposer"], YOU: ROLES["fulfiller"]}
"""Capabilities of the two who are not servers."""

DECIDER: Final[tuple[dict[str, Any], ...]] = (
    {"kind": "mcp/request"},
    {"kind": "mcp/reject"},
    {"kind": "chat"},
)
"""Capabilities of ``reviewer``: it fulfills, rejects and reminds."""

MAX_NAMED: Final = 8
"""Servers that are named in a line."""


def people(folder: Path, *, renew: bool = False) -> dict[str, ParticipantConfig]:
    """``agent`` and ``you``, whose tokens are kept in a folder."""
    return {
        name: participant(name, capabilities, (keep_token(token_path(folder, name), renew=renew),))
        for name, capabilities in CAPABILITIES.items()
    }


def policy_reviewer(policy: Path) -> ParticipantConfig:
    """A program that decides by a policy; it gets a new token at each start."""
    command = (sys.executable, "-m", "meup_agent.cli", "reviewer", "--policy", str(policy))
    return replace(participant(REVIEWER, DECIDER, (new_token(),)), command=command)


def token_folder(servers: Path) -> Path:
    """The folder of the tokens for a client's configuration, for this user alone."""
    folder = up_folder() / digest_of(servers)
    make_folder(folder.parent)
    make_folder(folder)
    return folder


def server_participants(
    servers: Mapping[str, Server],
    on_problem: Callable[[str], None],
    taken: Collection[str] = CAPABILITIES,
) -> dict[str, ParticipantConfig]:
    """A participant for each server that can be one; it gets a new token at each start."""
    found: dict[str, ParticipantConfig] = {}
    for name, server in servers.items():
        try:
            if name in taken:
                raise ConfigurationError("this name is another participant's; rename the server")
            check_command(server)
            found[name] = participant(name, SERVER, (new_token(),))
        except ConfigurationError as error:
            on_problem(f"the server {name} is left out: {error}")
    return found


def check_command(server: Server) -> None:
    """Check that a server's program is there.

    Raises:
        ConfigurationError: It is not.
    """
    from meup_agent.mcp.server_config import StdioServer

    if isinstance(server, StdioServer) and os.sep not in server.command:
        path = server.env.get("PATH", os.environ.get("PATH"))
        if shutil.which(server.command, path=path) is None:
            raise ConfigurationError(f"there is no command {server.command!r}")


def banner(
    url: str,
    port: int,
    space: str,
    names: list[str],
    folder: Path,
    link: str | None = None,
    policy: Path | None = None,
) -> str:
    """The lines to paste into an MCP client, and the ways to decide; without a token.

    By the ``link`` a browser signs in as ``you``, once.
    """
    shown = [visible(name, 40) for name in names[:MAX_NAMED]]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    waiting = "Calls of these MCP servers now wait for you:"
    if policy is not None:
        waiting = (
            f"{visible(policy.name, 100)} decides calls of these MCP servers, and what it asks"
            " waits for you:"
        )
    client = {
        "command": own_program(),
        "args": ["mcp", "--token-file", str(token_path(folder, AGENT).absolute())],
        # Named: the client may run in a terminal that is `you`.
        "env": {"MEUP_URL": url, "MEUP_SPACE": space, "MEUP_PARTICIPANT": AGENT},
    }
    pasted = json.dumps({"mcpServers": {"meup": client}}, indent=2)
    named = "" if port == DEFAULT_PORT else f" --port {port}"
    return "\n".join(
        [
            f"{waiting} {', '.join(shown)}{more}"
            if names
            else "Calls that agent proposes now wait for you.",
            "",
            "Give your MCP client this in their place:"
            if names
            else "An MCP client can be the agent:",
            "",
            pasted,
            "",
            *link_lines(link, YOU),
            "Decide in another terminal:",
            "",
            f'  eval "$(meup env {YOU}{named})"',
            "  meup inbox                    # shows what waits, and a key decides it",
            "  meup inbox list               # without a screen; meup inbox --help has the rest",
            "",
            "",
        ]
    )


def has_people(participants: Iterable[str], folder: Path) -> bool:
    """True if ``agent`` and ``you`` are participants whose tokens are kept in a folder."""
    names = set(participants)
    return all(each in names and token_path(folder, each).is_file() for each in CAPABILITIES)


def own_program() -> str:
    """This program, for who has another PATH."""
    beside = Path(sys.executable).with_name("meup")
    return str(beside) if beside.is_file() else "meup"
