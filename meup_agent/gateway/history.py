"""The history of a gateway as JSON Lines, in the form that tools of existing spaces read.

``envelope-history.jsonl`` has a line for each envelope that came in or was refused, and for each
member that it was delivered to; ``capability-decisions.jsonl`` one for each decision by
capabilities. Lines are handed to a thread, so a slow disk holds up no space: what it cannot keep up
with is left out, counted, and said in the log. No token is written: joins are not, and the
acknowledgement of an invitation is left out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

import msgspec

from meup_agent.errors import ConfigurationError, InvalidPattern
from meup_agent.gateway.logs import log
from meup_agent.protocol.capability import Capabilities, compile_capabilities
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.management_payloads import INVITE_ACK
from meup_agent.protocol.space.decisions import Acceptance, Decision, Discard, Refusal, Repetition
from meup_agent.protocol.timestamps import rfc3339

ENVELOPES: Final = "envelope-history.jsonl"
DECISIONS: Final = "capability-decisions.jsonl"

MAX_HISTORY_FILE_BYTES: Final = 64 * 1024 * 1024
"""Bytes after which a file of the history is put aside, as ``….1``, and a new one is begun."""

KEPT_HISTORY_FILES: Final = 5
"""Older files that are kept of each; the oldest one is removed."""

MAX_HISTORY_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Bytes of lines that wait for the disk; further ones are left out."""

CLOSE_SECONDS: Final = 5.0
"""Seconds that the last lines have when the gateway stops."""

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


class _HistoryLine(NamedTuple):
    name: str
    text: bytes


class HistoryLog:
    """Writes what passes through a gateway into a folder."""

    def __init__(self, folder: Path, now: Callable[[], int]) -> None:
        self.left_out = 0
        """Lines that were not written, since the disk was behind or failed."""
        self._now = now
        self._folder = folder
        self._files = {name: _RotatingFile(folder / name) for name in (ENVELOPES, DECISIONS)}
        self._queue = SimpleQueue[_HistoryLine | None]()
        self._lock = threading.Lock()
        self._waiting = 0
        self._failed = False
        self._thread = threading.Thread(target=self._write, name="meup history", daemon=True)
        self._thread.start()

    # --- what passes ------------------------------------------------------------------------

    def decided(
        self,
        space: str,
        participant: str,
        frame: bytes,
        decision: Decision,
        capabilities: Capabilities,
        transport: str,
    ) -> None:
        """Write a frame of a member, what was decided about it, and by which capability."""
        if isinstance(decision, Repetition | Discard):
            return
        refused = decision if isinstance(decision, Refusal) else None
        envelope = decision.envelope if isinstance(decision, Acceptance) else None
        compact = _compact(envelope.frame if envelope is not None and envelope.frame else frame)
        named = _header(compact) if envelope is None else (envelope.id, envelope.kind)
        common = {"participant": participant, "space_id": space}
        metadata = {} if refused is None else {"reason": refused.code}
        record: dict[str, Any] = {
            "event": "received" if refused is None else "rejected",
            "id": named[0],
            "envelope": None if compact is None else msgspec.Raw(compact),
            **common,
            "direction": "inbound",
            "transport": transport,
            "metadata": metadata or None,
        }
        if refused is None or refused.code not in _BEFORE_CAPABILITIES:
            allowed = refused is None or refused.code != CAPABILITY_VIOLATION
            matched = _matching(capabilities, envelope) if envelope is not None else None
            decided: dict[str, Any] = {
                "event": "capability_check",
                "envelope_id": named[0],
                **common,
                "result": "allowed" if allowed else "denied",
                "required_capability": named[1],
                "matched_capability": matched,
                "granted_capabilities": list(capabilities.patterns),
                "metadata": {"source": "http_api" if transport == "http" else transport},
            }
            self._put(DECISIONS, decided)
        self._put(ENVELOPES, record)

    def delivered(self, space: str, participant: str, envelope: Envelope, frame: bytes) -> None:
        """Write that an envelope went out to a member."""
        compact = _compact(frame)
        if envelope.kind == INVITE_ACK or compact is None:
            return
        self._put(
            ENVELOPES,
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

    # --- the files --------------------------------------------------------------------------

    def _put(self, name: str, record: dict[str, Any]) -> None:
        known = {key: value for key, value in record.items() if value is not None}
        text = msgspec.json.encode({"timestamp": rfc3339(self._now()), **known}) + b"\n"
        with self._lock:
            behind = self._waiting + len(text) > MAX_HISTORY_WAITING_BYTES
            if not behind and not self._failed:
                self._waiting += len(text)
        if behind or self._failed:
            self.left_out += 1
            if behind and self.left_out == 1:
                log.warning("the history in %s is behind, and leaves lines out", self._folder)
            return
        self._queue.put(_HistoryLine(name, text))

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                self._files[line.name].write(line.text)
                if self._queue.empty():
                    for file in self._files.values():
                        file.flush()
            except OSError as error:
                if not self._failed:
                    log.error("the history in %s ends: %s", self._folder, error.strerror)
                self._failed = True
                self.left_out += 1
            with self._lock:
                self._waiting -= len(line.text)

    def close(self) -> None:
        """Write what waits, and close the files."""
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            for file in self._files.values():
                file.close()
        if self.left_out:
            log.warning("the history in %s lacks %d lines", self._folder, self.left_out)


@contextmanager
def open_history(folder: Path, now: Callable[[], int]) -> Generator[HistoryLog]:
    """A history for the length of a block.

    Raises:
        ConfigurationError: The folder, or a file in it, cannot be used.
    """
    try:
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True)
            (folder / ".gitignore").write_text("*\n!.gitignore\n", encoding="utf-8")
        history = HistoryLog(folder, now)
    except OSError as error:
        why = (error.strerror or "unknown reason").lower()
        raise ConfigurationError(f"--history: {folder} cannot be used ({why})") from None
    try:
        yield history
    finally:
        history.close()


class _RotatingFile:
    """A file for this user alone that is put aside when it is large."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        self._file = os.fdopen(os.open(self._path, flags, 0o600), "ab")
        self._size = self._file.tell()

    def write(self, text: bytes) -> None:
        if self._size and self._size + len(text) > MAX_HISTORY_FILE_BYTES:
            self._file.close()
            for number in range(KEPT_HISTORY_FILES, 0, -1):
                older = self._aside(number - 1)
                if older.exists():
                    older.replace(self._aside(number))
            self._open()
        self._file.write(text)
        self._size += len(text)

    def _aside(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _compact(frame: bytes) -> bytes | None:
    """A frame in one line without blanks, as tools search in it; ``None`` if it is no JSON."""
    try:
        return msgspec.json.format(frame, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


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


def _matching(capabilities: Capabilities, envelope: Envelope) -> Any:
    """The first capability by which an envelope was allowed; its kind, if none was needed."""
    payload = envelope.payload_object
    for pattern in capabilities.patterns:
        try:
            if compile_capabilities([pattern]).allow(envelope.kind, payload, envelope.to):
                return pattern
        except InvalidPattern:
            continue
    return {"kind": envelope.kind}
