"""``.mew/pids.json``: by it the reference's terminal finds the gateway that runs a space's file.

``mew space connect`` reads it for the port, and takes the space for running as long as the process
that it names does. It holds no secret; the tokens are in files of their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from meup_agent.cli.render.output import warn
from meup_agent.errors import system_reason
from meup_agent.gateway.auth import write_new_file
from meup_agent.gateway.config import Config

PIDS_NAME: Final = "pids.json"

MAX_PIDS_BYTES: Final = 1024 * 1024
"""Bytes of the file that are read: it names a process for each participant."""


@contextmanager
def announce_to_terminals(settings: Config, port: int) -> Generator[None]:
    """Let terminals of the reference find a gateway for the length of a block.

    Nothing is written for a file in a form of ours, and nothing over another gateway that runs.
    """
    state = settings.spaces[0].state
    if state is None:
        yield
        return
    path, own = state / PIDS_NAME, os.getpid()
    other = _gateway_in(path)
    if other not in (None, own) and _is_running(other):
        warn(
            f"{path} says that another gateway runs this space (process {other}), so terminals of"
            " the reference dial that; stop it, and start this one again"
        )
        yield
        return
    space = settings.spaces[0]
    found: dict[str, object] = {
        "spaceId": space.id,
        "spaceName": space.name or space.id,
        "spaceDir": str(state.absolute().parent),
        "port": port,
        "gateway": own,
        "agents": {},
        "clients": {},
    }
    fresh = path.with_name(f".{PIDS_NAME}.{own}")
    try:
        state.mkdir(exist_ok=True)
        fresh.unlink(missing_ok=True)
        write_new_file(fresh, json.dumps(found, indent=2).encode(), 0o644)
        fresh.replace(path)
    except OSError as error:
        why = system_reason(error)
        warn(f"{path} cannot be written ({why}), so terminals of the reference find no gateway")
    try:
        yield
    finally:
        if _gateway_in(path) == own:
            with suppress(OSError):
                path.unlink()


def _gateway_in(path: Path) -> int | None:
    """The process that the file names as the gateway; ``None``: it names none."""
    try:
        with path.open("rb") as file:
            read: Any = json.loads(file.read(MAX_PIDS_BYTES))
        found = read["gateway"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if type(found) is int and found > 0 else None


def _is_running(process: int | None) -> bool:
    assert process is not None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
