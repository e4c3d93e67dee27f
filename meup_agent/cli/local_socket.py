"""The Unix socket of a gateway, in its user's own folder: where no other user can listen."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.transport.unix_socket import short_path

SOCKET_SUFFIX: Final = ".sock"
SOCKET_MODE: Final = 0o600


@contextmanager
def bind_socket(path: Path) -> Generator[socket.socket]:
    """Listen at a path for the length of a block, in place of what a killed gateway left there.

    The caller holds the lock that goes with the path, and has checked that its folder is the user's
    alone.

    Raises:
        ConfigurationError: There can be no socket.
    """
    with short_path(str(path)) as short, socket.socket(socket.AF_UNIX) as listening:
        try:
            path.unlink(missing_ok=True)
            listening.bind(short)
            os.chmod(short, SOCKET_MODE)
            listening.listen()
        except OSError as error:
            raise ConfigurationError(
                f"the socket {path} cannot be made ({system_reason(error)}); set MEUP_STATE_DIR to"
                " a folder of your own on a local disk"
            ) from None
        try:
            yield listening
        finally:
            with suppress(OSError):
                path.unlink()
