"""Output logs of participants without a connection, as files of existing spaces ask for them.

A participant with ``output_log`` and ``auto_connect`` is present from the beginning: what a member
gets stands in its file, a line for each envelope. It sends over HTTP. A connection with its token
takes over, as from any other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.line_files import LineFiles, compact_line
from meup_agent.protocol.space.fanout import FrameFormat

if TYPE_CHECKING:
    from meup_agent.gateway.config import Config
    from meup_agent.gateway.runtime import GatewayRuntime


class OutputLog:
    """A member whose envelopes go into a file."""

    observes = False
    last_seen = None

    def __init__(self, participant: str, dialect: str, path: Path, lines: LineFiles) -> None:
        self.participant = participant
        self.form = FrameFormat(dialect)
        self._path = path
        self._lines = lines

    def deliver(self, packed: bytes) -> None:
        """Write an envelope."""
        line = compact_line(packed)
        if line is not None:
            self._lines.put(self._path, line + b"\n")

    def close(self, code: int, reason: str) -> None:
        """Nothing: the file stays."""

    def ready(self, then: Callable[[], None]) -> None:
        """Go on at once; it never resumes."""
        then()


def output_paths(config: Config) -> dict[Identity, Path]:
    """The files of participants that are present without a connection."""
    return {
        Identity(space.id, name): entry.output_log
        for space in config.spaces
        for name, entry in space.participants.items()
        if entry.output_log is not None and entry.auto_connect
    }


@contextmanager
def connect_outputs(config: Config, runtime: GatewayRuntime) -> Generator[None]:
    """Let the participants of a configuration be present that have an output log.

    Raises:
        ConfigurationError: A file cannot be written.
    """
    paths = output_paths(config)
    if not paths:
        yield
        return
    try:
        for path in paths.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        lines = LineFiles(*dict.fromkeys(paths.values()))
    except OSError as error:
        why = (error.strerror or "unknown reason").lower()
        where = error.filename or "a file"
        raise ConfigurationError(f"output_log: {where} cannot be written ({why})") from None
    try:
        for identity, path in paths.items():
            log = OutputLog(identity.participant, runtime.dialect(identity), path, lines)
            runtime.spaces[identity.space].join(log)
        yield
    finally:
        lines.close()
