"""An entry as a row of the file, and back.

The frame is kept as it came. What a space found out about it, that is to which request a response
belongs where the dialect does not say, stands beside it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.dialects import DEFAULT_DIALECT, decode, encode
from meup_agent.protocol.space.journal import MAX_PAGE_BYTES, Entry

if TYPE_CHECKING:
    from meup_agent.protocol.envelope import Envelope

log = logging.getLogger("meup_agent.gateway")

_names = msgspec.json.Decoder(tuple[str, ...]).decode
_encode = msgspec.json.Encoder().encode


class Row(NamedTuple):
    """The columns of the table ``envelope``, in its order."""

    seq: int
    space: str
    at: int
    sender: str
    id: str
    kind: str
    to: str
    correlation: str
    context: str | None
    dialect: str
    frame: bytes


class _StoredColumns(msgspec.Struct, array_like=True, gc=False):
    """The columns that are read again; the frame has the rest."""

    seq: int
    at: int
    correlation: str
    frame: str


_read_all = msgspec.json.Decoder(list[_StoredColumns]).decode

# One row with everything, since Python takes its lock again for each row that SQLite hands over:
# beside a busy loop that takes milliseconds for each.
READ: Final = f"""
SELECT json_group_array(json_array(seq, at, correlation, CAST(frame AS TEXT))) FROM envelope
WHERE seq IN (
    SELECT seq FROM (
        SELECT seq, sum(size) OVER (ORDER BY seq) - size AS before FROM (
            SELECT seq, length(frame) AS size FROM envelope
            WHERE space = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?
        )
    ) WHERE before < {MAX_PAGE_BYTES}
)
"""
"""Takes space, after, until and limit."""

READ_BACK: Final = READ.replace("ORDER BY seq", "ORDER BY seq DESC")
"""The same from the newest on."""


READ_ROWS: Final = """
SELECT seq, at, correlation, frame FROM envelope
WHERE space = ? AND seq > ? AND seq <= ? {of_kinds} ORDER BY seq LIMIT ?
"""
"""The same row by row, of some kinds or all, for where nothing else runs in Python: making one text
of them takes longer than all the rest of reading."""


def row_of(entry: Entry) -> Row:
    """An entry as it is kept; one of our own is kept in the default dialect."""
    envelope = entry.envelope
    dialect, frame = envelope.protocol, envelope.frame
    if not frame:
        dialect, frame = DEFAULT_DIALECT, encode(envelope, DEFAULT_DIALECT)
    return Row(
        entry.seq,
        entry.space,
        entry.at,
        envelope.sender,
        envelope.id,
        envelope.kind,
        _listed(envelope.to),
        _listed(envelope.correlation),
        envelope.context,
        dialect,
        frame,
    )


def entries_of(space: str, read: str) -> list[Entry]:
    """The entries that :data:`READ` found, oldest first."""
    rows = _read_all(read)
    rows.sort(key=lambda row: row.seq)
    return [
        Entry(row.seq, space, row.at, envelope)
        for row in rows
        if (envelope := envelope_of(row.seq, row.correlation, row.frame.encode())) is not None
    ]


def envelope_of(seq: int, correlation: str, frame: bytes) -> Envelope | None:
    """The envelope of a row; ``None`` where it cannot be read, which is logged."""
    try:
        envelope = decode(frame)
    except InvalidEnvelope as error:
        # An older version took what this one does not; the others must not miss the rest.
        log.error("journal: number %d is left out, it cannot be read: %s", seq, error)
        return None
    if _listed(envelope.correlation) == correlation:
        return envelope
    return msgspec.structs.replace(envelope, correlation=_names(correlation))


def _listed(names: tuple[str, ...]) -> str:
    return _encode(names).decode() if names else "[]"
