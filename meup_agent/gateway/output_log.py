"""Output logs of participants without a connection, as files of existing spaces ask for them.

What a member gets stands in its file, a line for each envelope, and it sends over HTTP. With
``auto_connect`` it is present from the beginning, otherwise from its first message over HTTP on. A
connection with its token takes over, as from any other; after that, too, its next message brings it
back. A participant that ``meup up`` starts connects by itself: its log has what its program says.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.gateway.line_files import LineFiles, compact_line
from meup_agent.protocol.space.subscriber import FrameFormat, Place

if TYPE_CHECKING:
    from meup_agent.gateway.config import Config
    from meup_agent.gateway.runtime import GatewayRuntime


class OutputLog:
    """A member whose envelopes go into a file."""

    place = Place.ANSWERING
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


@contextmanager
def connect_outputs(config: Config, runtime: GatewayRuntime) -> Generator[None]:
    """Let the participants of a configuration that have an output log be present, or come.

    Raises:
        ConfigurationError: A file cannot be written.
    """
    # Of those that speak over HTTP: what `meup up` starts connects by itself.
    outputs = [
        (identity, entry.output_log, entry.auto_connect)
        for identity, entry in config.entries()
        if entry.output_log is not None and (entry.auto_connect or not entry.starts)
    ]
    if not outputs:
        yield
        return
    with _open_files(path for _, path, _ in outputs) as lines:
        for identity, path, at_once in outputs:
            log = OutputLog(identity.participant, runtime.dialect(identity), path, lines)
            runtime.outputs[identity] = log
            if at_once:
                runtime.spaces[identity.space].join(log)
        yield


@contextmanager
def _open_files(wanted: Iterable[Path]) -> Generator[LineFiles]:
    paths = dict.fromkeys(wanted)
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        lines = LineFiles(*paths)
    except OSError as error:
        why = system_reason(error)
        where = error.filename or "a file"
        raise ConfigurationError(f"output_log: {where} cannot be written ({why})") from None
    with closing(lines):
        yield lines


@contextmanager
def log_programs(
    config: Config, show: Callable[[str, str], None]
) -> Generator[Callable[[str, str], None]]:
    """Take each line of a program with its participant's name: shown, and written to its log.

    Raises:
        ConfigurationError: A file cannot be written.
    """
    paths = {
        name: entry.output_log
        for (_, name), entry in config.entries()
        if entry.output_log is not None and entry.starts and not entry.auto_connect
    }
    if not paths:
        yield show
        return
    with _open_files(paths.values()) as lines:

        def write(name: str, line: str) -> None:
            show(name, line)
            if name in paths:
                lines.put(paths[name], f"{line}\n".encode(errors="replace"))

        yield write
