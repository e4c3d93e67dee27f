"""The way of MCP clients to ``meup up``: an entry in their configuration, and ``MEUP_AUTOSTART``.

By the variable a client's command starts ``meup up`` where it does not run. It has the arguments of
``meup up``, and is off where it is not set. What ``meup up`` prints to paste leaves it out: a
program that an editor starts would otherwise start others by itself. What is started outlives its
starter; the lock of its file keeps a second one from starting.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from meup_agent.cli.up.state import FILE_MODE, list_running, make_folder, up_folder
from meup_agent.errors import ConfigurationError, explain_os_error

AUTOSTART_VARIABLE: Final = "MEUP_AUTOSTART"

LOG_NAME: Final = "autostart.log"
"""Name of the file that has the output of what was started last."""

_SECRET: Final = ("MEUP_TOKEN", "MEUP_URL", "MEUP_SPACE", "MEUP_PARTICIPANT", AUTOSTART_VARIABLE)

log = logging.getLogger("meup_agent.up")


def autostart_words(arguments: Iterable[str], paths: Iterable[Path | None], place: Path) -> str:
    """The value of the variable that starts the same again, from any folder.

    Args:
        arguments: The arguments of ``meup up`` in this process.
        paths: The files and folders among them.
        place: The file that it runs, which need not be among them.
    """
    absolute = {str(each): str(each.absolute()) for each in paths if each is not None}
    words: list[str] = []
    for each in arguments:
        name, is_set, value = each.partition("=")
        if each in absolute:
            words.append(absolute[each])
        elif is_set and name.startswith("--") and value in absolute:
            words.append(f"{name}={absolute[value]}")
        elif each != "--new-tokens":
            words.append(each)
    if str(place) not in absolute:
        words.append(str(place.absolute()))
    return shlex.join(words)


def start_if_absent(url: str) -> None:
    """Start ``meup up`` as the variable says, unless a gateway of this user has the address.

    Raises:
        ConfigurationError: The variable is not a command line, or it cannot be started.
    """
    given = os.environ.get(AUTOSTART_VARIABLE, "").strip()
    if not given:
        return
    try:
        words: Sequence[str] = shlex.split(given)
    except ValueError as error:
        raise ConfigurationError(
            f"{AUTOSTART_VARIABLE} takes the arguments of `meup up`, and cannot be read: {error}"
        ) from None
    if any(url in (each.url, each.socket) for each in list_running(up_folder())):
        return
    try:
        start_up(words)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}, and take {AUTOSTART_VARIABLE} out") from None


def start_up(words: Sequence[str]) -> tuple[subprocess.Popen[bytes], Path]:
    """Start ``meup up`` with some arguments, to outlive this process, and the file of its output.

    Raises:
        ConfigurationError: It cannot be started.
    """
    folder = up_folder()
    make_folder(folder)
    path = folder / LOG_NAME
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_SECRET)}
    with (
        explain_os_error("`meup up` could not be started", "; start it yourself"),
        open(path, "wb", opener=_for_user_alone) as output,
    ):
        process = subprocess.Popen(
            (sys.executable, "-m", "meup_agent.cli", "up", *words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=Path.home(),
            start_new_session=True,  # it outlives this process, and Ctrl-C in its terminal
        )
    log.info("started `meup up %s`; its output is in %s", shlex.join(words), path)
    return process, path


def _for_user_alone(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, FILE_MODE)


# --- the entry of a client ---

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
