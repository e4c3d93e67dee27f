"""The history of a gateway as JSON Lines, in the form that tools of existing spaces read.

``envelope-history.jsonl`` has a line for each envelope that came in or was refused, and for each
member that it was delivered to; ``capability-decisions.jsonl`` one for each decision by
capabilities. Lines are handed to a thread, so a slow disk holds up no space: what it cannot keep up
with is left out, counted, and said in the log. No token is written: joins are not, and the
acknowledgement of an invitation is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from meup_agent.errors import ConfigurationError, InvalidPattern, system_reason
from meup_agent.gateway.line_files import LineFiles, compact_line
from meup_agent.protocol.capability import Capabilities, compile_capabilities
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.kinds import PROPOSALS
from meup_agent.protocol.management_payloads import INVITE_ACK
from meup_agent.protocol.space.decisions import (
    Acceptance,
    Answer,
    Decision,
    Discard,
    Refusal,
    Repetition,
)
from meup_agent.protocol.timestamps import rfc3339

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
        decision: Decision,
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
    try:
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True)
            (folder / ".gitignore").write_text("*\n!.gitignore\n", encoding="utf-8")
        history = HistoryLog(folder, now)
    except OSError as error:
        why = system_reason(error)
        raise ConfigurationError(f"--history: {folder} cannot be used ({why})") from None
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
