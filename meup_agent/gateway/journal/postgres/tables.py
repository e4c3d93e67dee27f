"""The tables of a journal in PostgreSQL, and the statements that read and write them.

Texts of members stand in them as bytes: a name or a frame may hold what a text of the server's may
not. Every statement that writes is fenced: it takes effect only while the epoch is the writer's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meup_agent.gateway.journal.rows import read_entry
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.space.journal import MAX_PAGE_BYTES, DecisionRow, Entry
from meup_agent.protocol.wire.envelope import encode_leniently

if TYPE_CHECKING:
    from meup_agent.gateway.journal.waiting import WriteJob

FORMAT: Final = 1
"""The version of the tables; a gateway refuses others."""

ROW_BYTES: Final = 200
"""Bytes of an entry in the tables besides its frame, as a round figure."""

SIZE: Final = f"octet_length(frame) + {ROW_BYTES}"

LOCK_KEY: Final = "hashtextextended('meup journal ' || current_setting('search_path'), 0)"
"""Number of the lock that the gateway at work holds, and every other waits for."""

MAKE: Final = f"""
CREATE TABLE owner (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    format integer NOT NULL,
    epoch bigint NOT NULL,
    last bigint NOT NULL,
    size bigint NOT NULL,
    node bytea NOT NULL,
    parts bytea NOT NULL
);
CREATE TABLE entry (
    seq bigint PRIMARY KEY,
    space bytea NOT NULL,
    at bigint NOT NULL,
    correlation text NOT NULL,
    facts text NOT NULL,
    frame bytea NOT NULL
);
CREATE INDEX entry_of_space ON entry (space, seq);
CREATE TABLE fact (
    said bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    space bytea NOT NULL,
    key bytea NOT NULL,
    value text NOT NULL,
    UNIQUE (space, key)
);
CREATE TABLE proposal (
    seq bigint PRIMARY KEY,
    waits boolean NOT NULL,
    said bytea NOT NULL
);
CREATE INDEX proposal_waits ON proposal (seq) WHERE waits;
CREATE TABLE seen (
    space bytea NOT NULL,
    participant bytea NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (space, participant)
);
CREATE TABLE space (
    name bytea PRIMARY KEY,
    floor bigint NOT NULL,
    is_part boolean NOT NULL DEFAULT false
);
INSERT INTO owner VALUES (true, {FORMAT}, 0, 0, 0, '', '\\x80');
"""
# "at" is in microseconds since 1970 (UTC), "correlation" and "facts" are lists in JSON. "last" is
# the number of the last entry, "size" the bytes of all. "is_part": more of it is being copied here.

NAMES: Final = frozenset({"owner", "entry", "fact", "proposal", "seen", "space"})

COLUMNS: Final = """
SELECT relname, attname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relkind = 'r' AND relnamespace = to_regnamespace(quote_ident(current_schema()))
"""

SCHEMA: Final = "SELECT p, to_regnamespace(p) IS NOT NULL FROM current_setting('search_path') AS p"

OWN: Final = """
UPDATE owner SET epoch = epoch + 1, node = %s, parts = %s RETURNING epoch, last, size
"""

TELL: Final = "UPDATE owner SET parts = %s WHERE epoch = %s"

STATE: Final = "SELECT epoch, last, size, node, parts FROM owner"

# One statement, so one transaction and one way there and back. Where the epoch is another's, or the
# batch is there already, `fence` is empty, and so is all that is made with it.
APPEND: Final = """
WITH fence AS (
    UPDATE owner SET last = %(last)s, size = size + %(size)s
    WHERE epoch = %(epoch)s AND last = %(before)s RETURNING size
), entries AS (
    INSERT INTO entry SELECT e.* FROM unnest(
        %(seq)b::bigint[], %(space)b::bytea[], %(at)b::bigint[], %(correlation)b::text[],
        %(facts)b::text[], %(frame)b::bytea[]
    ) AS e, fence
), floors AS (
    INSERT INTO space SELECT s.*, %(is_part)s
    FROM unnest(%(new)s::bytea[], %(floor)s::bigint[]) AS s, fence ON CONFLICT DO NOTHING
), over AS (
    DELETE FROM fact USING unnest(%(over_space)s::bytea[], %(over_key)s::bytea[]) AS f(s, k), fence
    WHERE space = s AND key = k
), held AS (
    INSERT INTO fact (space, key, value) SELECT f.* FROM unnest(
        %(held_space)s::bytea[], %(held_key)s::bytea[], %(held_value)s::text[]
    ) AS f, fence ON CONFLICT (space, key) DO UPDATE SET value = excluded.value
), proposals AS (
    INSERT INTO proposal SELECT p.* FROM unnest(
        %(proposal)s::bigint[], %(waits)s::boolean[], %(said)s::bytea[]
    ) AS p, fence ON CONFLICT (seq) DO UPDATE
    SET waits = excluded.waits, said = excluded.said
)
SELECT size FROM fence
"""

PART: Final = "INSERT INTO space VALUES (%s, %s, true) ON CONFLICT DO NOTHING"

HOLD: Final = """
INSERT INTO fact (space, key, value) SELECT %s, f.* FROM unnest(%s::bytea[], %s::text[]) AS f
"""

SEEN: Final = """
INSERT INTO seen SELECT %s, %s, %s FROM (SELECT 1 FROM owner WHERE epoch = %s FOR SHARE) AS fence
ON CONFLICT (space, participant) DO UPDATE SET at = greatest(seen.at, excluded.at)
"""

OLDEST: Final = f"""
SELECT max(seq) FROM (
    SELECT seq, at, sum(size) OVER (ORDER BY seq) - size AS before FROM (
        SELECT seq, at, {SIZE} AS size FROM entry ORDER BY seq LIMIT %s
    ) AS oldest
) AS sized WHERE at < %s OR before < %s
"""

FLOORS: Final = "SELECT space, max(seq) FROM entry WHERE seq <= %(until)s GROUP BY space"

# Said twice, it does no more than once.
FORGET: Final = f"""
WITH fence AS (
    UPDATE owner
    SET size = size - (SELECT coalesce(sum({SIZE}), 0) FROM entry WHERE seq <= %(until)s)
    WHERE epoch = %(epoch)s RETURNING size
), floors AS (
    UPDATE space SET floor = f.floor FROM ({FLOORS}) AS f(name, floor), fence
    WHERE space.name = f.name
), gone AS (
    DELETE FROM entry USING fence WHERE seq <= %(until)s
), decided AS (
    DELETE FROM proposal USING fence WHERE seq <= %(until)s
)
SELECT size FROM fence
"""

SPACES: Final = """
SELECT name, floor, is_part, (SELECT max(seq) FROM entry WHERE space = name) FROM space
"""

FACTS: Final = "SELECT key, value FROM fact WHERE space = %s ORDER BY said"

DECISIONS: Final = "SELECT said FROM proposal ORDER BY seq DESC LIMIT %s"

WAITING: Final = "SELECT said FROM proposal WHERE waits ORDER BY seq DESC LIMIT %s"

PAGE: Final = f"""
SELECT seq, at, correlation, facts, frame FROM (
    SELECT *, sum(octet_length(frame)) OVER (ORDER BY seq) - octet_length(frame) AS before FROM (
        SELECT * FROM entry WHERE space = %s AND seq > %s AND seq <= %s ORDER BY seq LIMIT %s
    ) AS page
) AS sized WHERE before < {MAX_PAGE_BYTES} ORDER BY seq
"""

PAGE_BACK: Final = PAGE.replace("(ORDER BY seq)", "(ORDER BY seq DESC)").replace(
    "ORDER BY seq LIMIT", "ORDER BY seq DESC LIMIT"
)
"""The same from the newest on; the rows of a page are the oldest first all the same."""

_WAITING_STATES: Final = frozenset({ProposalState.PENDING, ProposalState.PERMITTED})

_encode_row: Final = msgspec.msgpack.Encoder().encode
_decode_row: Final = msgspec.msgpack.Decoder(DecisionRow).decode


def name_bytes(name: str) -> bytes:
    """A name as the tables have it."""
    return name.encode(errors="surrogatepass")


def name_of(kept: bytes) -> str:
    return kept.decode(errors="surrogatepass")


def facts_of(rows: Iterable[Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """The facts that hold in a space, whose numbers have any size."""
    return {name_of(key): json.loads(value) for key, value in rows}


def entries_of(space: str, rows: Iterable[Sequence[Any]]) -> tuple[Entry, ...]:
    """The entries of the rows of a page."""
    found = (
        read_entry(seq, space, at, correlation, facts or None, frame)
        for seq, at, correlation, facts, frame in rows
    )
    return tuple(each for each in found if each is not None)


def decisions_of(rows: Sequence[Sequence[Any]]) -> list[DecisionRow]:
    """Rows of the table of decisions that came newest first, oldest first."""
    return [_decode_row(said) for (said,) in reversed(rows)]


def batch_values(work: Sequence[WriteJob], epoch: int, before: int) -> dict[str, Any]:
    """The values of :data:`APPEND` that write a batch after the entry with a number."""
    rows = [each.row for each in work]
    floors = {each.row.space: each.floor for each in work if each.floor is not None}
    # Each once, since one statement writes a row once: what holds after the batch.
    facts = {(each.row.space, key): value for each in work for key, value in each.facts}
    over = [each for each, value in facts.items() if value is None]
    held = [(*each, value) for each, value in facts.items() if value is not None]
    proposals = {row.seq: row for each in work for row in each.proposals}
    return {
        "epoch": epoch,
        "before": before,
        "last": rows[-1].seq if rows else before,
        "size": sum(len(row.frame) + ROW_BYTES for row in rows),
        "seq": [row.seq for row in rows],
        "space": [name_bytes(row.space) for row in rows],
        "at": [row.at for row in rows],
        "correlation": [row.correlation for row in rows],
        "facts": [row.facts or "" for row in rows],
        "frame": [row.frame for row in rows],
        "new": [name_bytes(each) for each in floors],
        "floor": list(floors.values()),
        "over_space": [name_bytes(space) for space, _ in over],
        "over_key": [name_bytes(key) for _, key in over],
        "held_space": [name_bytes(space) for space, _, _ in held],
        "held_key": [name_bytes(key) for _, key, _ in held],
        "held_value": [encode_leniently(value).decode() for _, _, value in held],
        "proposal": list(proposals),
        "waits": [row.state in _WAITING_STATES for row in proposals.values()],
        "said": [_encode_row(row) for row in proposals.values()],
    }


def of_no_owner() -> Iterator[tuple[str, Any]]:
    """Each statement that writes, as a gateway says it that never owned the log."""
    yield APPEND, batch_values((), -1, 0) | {"is_part": False}
    yield FORGET, {"until": -1, "epoch": -1}
    yield SEEN, (b"", b"", 0, -1)
    yield TELL, (b"", -1)
