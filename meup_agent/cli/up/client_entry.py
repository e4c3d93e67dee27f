"""The entry of a client's configuration by which it is a participant, through ``meup mcp``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

SPACE: Final = "mcp"
"""The space of ``meup up --servers``."""


def client_entry(
    program: str, token_file: Path, *, url: str, space: str, participant: str
) -> dict[str, Any]:
    """The entry of an MCP server that is a space.

    Args:
        program: The program ``meup``.
        token_file: The file of the participant's token.
        url: The gateway.
        space: The space.
        participant: The participant that the client is.
    """
    return {
        "command": program,
        "args": ["mcp", "--token-file", str(token_file)],
        # Named: the client may run in a terminal that is another participant.
        "env": {"MEUP_URL": url, "MEUP_SPACE": space, "MEUP_PARTICIPANT": participant},
    }
