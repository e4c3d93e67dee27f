"""Files of journals as tests look at them and change them, beside the gateway that writes them."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.gateways import Archive, checked_row, checksum, rows_query


def kept_ids(path: Path, *kinds: str) -> list[str]:
    """The ids of the envelopes that another process finds in a file, of some kinds or of all."""
    with closing(Archive(path)) as archive:
        found = [
            (entry.seq, entry.envelope.id)
            for space in archive.spaces
            for entry in archive.read(space, after=0, until=2**62, limit=100_000, kinds=kinds)
        ]
    return [name for _, name in sorted(found)]


def change_frame(path: Path, named: bytes, old: bytes, new: bytes) -> None:
    """Let the one frame that names something have been another one."""
    with closing(sqlite3.connect(path)) as connection, connection:
        query = rows_query("WHERE instr(frame, ?)")
        (values,) = connection.execute(query, (named,)).fetchall()
        row = checked_row(values)
        assert row is not None
        row = row._replace(frame=row.frame.replace(old, new))
        said = (row.seq, row.space, row.at, row.kind, row.correlation, row.facts)
        connection.execute(
            "UPDATE entry SET frame = ?, checksum = ? WHERE seq = ?",
            (row.frame, checksum(said, row.frame), row.seq),
        )
