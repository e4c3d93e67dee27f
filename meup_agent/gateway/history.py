"""Files of existing spaces: the history of a gateway as JSON Lines, and output logs.

They are not a journal: a gateway writes them for programs beside it, and reads nothing back.

``envelope-history.jsonl`` has a line for each envelope that came in or was refused, and for each
member that it was delivered to; ``capability-decisions.jsonl`` one for each decision by
capabilities. Lines are handed to a thread, so a slow disk holds up no space: what it cannot keep up
with is left out, counted, and said in the log. No token is written: joins are not, and the
acknowledgement of an invitation is left out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meup_agent.errors import ConfigurationError, InvalidPattern, explain_os_error, system_reason
from meup_agent.gateway.logs import log
from meup_agent.protocol.capability import Capabilities, compile_capabilities
from meup_agent.protocol.space.link import FrameFormat, Place, UnqueuedSubscriber
from meup_agent.protocol.space.state.indexes import (
    Acceptance,
    Answer,
    Discard,
    FrameVerdict,
    Refusal,
    Repetition,
)
from meup_agent.protocol.wire.envelope import Envelope, rfc3339
from meup_agent.protocol.wire.kinds import PROPOSALS
from meup_agent.protocol.wire.payloads import INVITE_ACK

if TYPE_CHECKING:
    from meup_agent.gateway.config import Config
    from meup_agent.gateway.runtime import GatewayRuntime
    from meup_agent.protocol.space.owner import SpaceServer


# --- line files ---
# Files to which lines are added by a thread, and which are put aside when they are large.
#
# `QueueHandler` and `RotatingFileHandler` of `logging` bound no bytes that wait for the disk, and
# take 6.9 µs for a line where this takes 4.8.

MAX_LINE_FILE_BYTES: Final = 64 * 1024 * 1024
"""Bytes after which a file is put aside, as ``….1``, and a new one is begun."""

KEPT_LINE_FILES: Final = 5
"""Older files that are kept of each; the oldest one is removed."""

MAX_WAITING_LINE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of lines that wait for the disk; further ones are left out."""

CLOSE_SECONDS: Final = 5.0
"""Seconds that the last lines have when the gateway stops."""


class LineFiles:
    """Adds lines to files; a disk that is slow or full loses lines, and holds up nothing."""

    def __init__(self, *paths: Path) -> None:
        self.left_out = 0
        """Lines that were not written."""
        self._files = {path: RotatingFile(path) for path in paths}
        self._queue = SimpleQueue[tuple[Path, bytes] | None]()
        self._lock = threading.Lock()
        self._waiting = 0
        self._failed = False
        self._thread = threading.Thread(target=self._write, name="meup lines", daemon=True)
        self._thread.start()

    def put(self, path: Path, text: bytes) -> None:
        """Add a line, with its end, to a file."""
        with self._lock:
            takes = not self._failed and self._waiting + len(text) <= MAX_WAITING_LINE_BYTES
            if takes:
                self._waiting += len(text)
        if takes:
            self._queue.put((path, text))
            return
        if not self.left_out:
            log.warning("lines for %s are left out, since the disk does not take them", path)
        self.left_out += 1

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            path, text = line
            try:
                if not self._failed:
                    self._files[path].write(text)
                    if self._queue.empty():
                        for each in self._files.values():
                            each.file.flush()
            except OSError as error:
                self._failed = True
                log.error("%s cannot be written: %s", path, error.strerror)
            with self._lock:
                self._waiting -= len(text)

    def close(self) -> None:
        """Write what waits, and close the files."""
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            for each in self._files.values():
                each.file.close()
        if self.left_out:
            where = ", ".join(map(str, self._files))
            log.warning("%d lines were left out of %s", self.left_out, where)


class RotatingFile:
    """A file for this user alone that is put aside when it is large."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        self.file = os.fdopen(os.open(self._path, flags, 0o600), "ab")
        self._size = self.file.tell()

    def write(self, text: bytes) -> None:
        """Add a line; the file is put aside before it is too large."""
        if self._size and self._size + len(text) > MAX_LINE_FILE_BYTES:
            self.file.close()
            for number in range(KEPT_LINE_FILES, 0, -1):
                older = self._aside(number - 1)
                if older.exists():
                    older.replace(self._aside(number))
            self._open()
        self.file.write(text)
        self._size += len(text)

    def _aside(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def compact_line(frame: bytes) -> bytes | None:
    """A frame in one line without blanks, as tools search in it; ``None`` if it is not JSON."""
    try:
        return msgspec.json.format(frame, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


# --- history ---

ENVELOPES: Final = "envelope-history.jsonl"
DECISIONS: Final = "capability-decisions.jsonl"

CAPABILITY_VIOLATION: Final = "capability_violation"

_BEFORE_CAPABILITIES: Final = frozenset(
    {
        "identity_mismatch",
        "invalid_envelope",
        "invalid_json",
        "invalid_utf8",
        "kicked",
        "reserved_kind",
        "too_deep",
        "too_large",
    }
)
"""Refusals for which no capability was looked at."""


class HistoryLog:
    """Writes what passes through a gateway into a folder."""

    def __init__(self, folder: Path, now: Callable[[], int]) -> None:
        self._now = now
        self._envelopes, self._decisions = folder / ENVELOPES, folder / DECISIONS
        self.lines = LineFiles(self._envelopes, self._decisions)

    # --- what passes ------------------------------------------------------------------------

    def decided(
        self,
        space: str,
        participant: str,
        frame: bytes,
        decision: FrameVerdict,
        capabilities: Capabilities,
        transport: str,
    ) -> None:
        """Write a frame of a member, what was decided about it, and by which capability."""
        if isinstance(decision, Repetition | Discard | Answer):
            return
        envelope = decision.envelope if isinstance(decision, Acceptance) else None
        refused = decision.code if isinstance(decision, Refusal) else None
        compact = compact_line(envelope.frame if envelope is not None and envelope.frame else frame)
        name, kind = _header(compact) if envelope is None else (envelope.id, envelope.kind)
        common = {"participant": participant, "space_id": space}
        record: dict[str, Any] = {
            "event": "received" if refused is None else "rejected",
            "id": name,
            "envelope": None if compact is None else msgspec.Raw(compact),
            **common,
            "direction": "inbound",
            "transport": transport,
            "metadata": refused and {"reason": refused},
        }
        if refused not in _BEFORE_CAPABILITIES:
            matched = _find_matching(capabilities, envelope) if envelope is not None else None
            decided: dict[str, Any] = {
                "event": "capability_check",
                "envelope_id": name,
                **common,
                "result": "denied" if refused == CAPABILITY_VIOLATION else "allowed",
                "required_capability": kind,
                "matched_capability": matched,
                "granted_capabilities": list(capabilities.patterns),
                "metadata": {"source": "http_api" if transport == "http" else transport},
            }
            self._put(self._decisions, decided)
        self._put(self._envelopes, record)

    def delivered(self, space: str, participant: str, envelope: Envelope, frame: bytes) -> None:
        """Write that an envelope went out to a member."""
        compact = compact_line(frame)
        if envelope.kind in (INVITE_ACK, PROPOSALS) or compact is None:
            return
        self._put(
            self._envelopes,
            {
                "event": "delivered",
                "id": envelope.id,
                "envelope": msgspec.Raw(compact),
                "participant": participant,
                "space_id": space,
                "direction": "outbound",
                "transport": "websocket",
                "metadata": {"source_participant": envelope.sender},
            },
        )

    def _put(self, path: Path, record: dict[str, Any]) -> None:
        known = {key: value for key, value in record.items() if value is not None}
        stamped = {"timestamp": rfc3339(self._now()), **known}
        self.lines.put(path, msgspec.json.encode(stamped) + b"\n")


@contextmanager
def open_history(folder: Path, now: Callable[[], int]) -> Generator[HistoryLog]:
    """A history for the length of a block.

    Raises:
        ConfigurationError: The folder, or a file in it, cannot be used.
    """
    with explain_os_error(f"--history: {folder} cannot be used"):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True)
            (folder / ".gitignore").write_text("*\n!.gitignore\n", encoding="utf-8")
        history = HistoryLog(folder, now)
    with closing(history.lines):
        yield history


class _RefusedHeader(msgspec.Struct):
    id: Any = None
    kind: Any = None


_decode_header = msgspec.json.Decoder(_RefusedHeader).decode


def _header(frame: bytes | None) -> tuple[str | None, str]:
    """The id and the kind of a frame that was refused, as far as it has them."""
    try:
        found = _decode_header(frame or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None, "unknown"
    named = found.id if isinstance(found.id, str) else None
    return named, found.kind if isinstance(found.kind, str) else "unknown"


def _find_matching(capabilities: Capabilities, envelope: Envelope) -> Any:
    """The first capability by which an envelope was allowed; its kind, if none was needed."""
    payload = envelope.payload_object
    for pattern in capabilities.patterns:
        try:
            if compile_capabilities([pattern]).allow(envelope.kind, payload, envelope.to):
                return pattern
        except InvalidPattern:
            continue
    return {"kind": envelope.kind}


# --- output log ---
# Output logs of participants without a connection, as files of existing spaces ask for them.
#
# What a member gets stands in its file, a line for each envelope, and it sends over HTTP. With
# `auto_connect` it is present from the beginning, otherwise from its first message over HTTP on. A
# connection with its token takes over, as from any other; after that, too, its next message brings
# it back. A participant that `meup up` starts connects by itself: its log has what its program
# says.


class OutputLog(UnqueuedSubscriber):
    """A member whose envelopes go into a file."""

    place = Place.ANSWERING

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
    at_once: list[tuple[str, OutputLog]] = []

    def enter(host: SpaceServer) -> None:
        for space, output in at_once:
            if space == host.name:
                host.join(output)

    with _open_files(path for _, path, _ in outputs) as lines:
        for identity, path, auto_connect in outputs:
            log = OutputLog(identity.participant, runtime.dialect(identity), path, lines)
            runtime.outputs[identity] = log
            if auto_connect:
                at_once.append((identity.space, log))
        for host in runtime.spaces.values():
            enter(host)
        runtime.on_opened.append(enter)
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
