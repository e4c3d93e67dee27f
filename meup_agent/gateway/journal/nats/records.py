"""The messages of a space's stream, the numbers of what is in them, and the names of streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

import msgspec

from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.dialects import DEFAULT_DIALECT, decode, encode
from meup_agent.protocol.space.journal import Entry, Fact, ProposalChange
from meup_agent.protocol.wire.envelope import Envelope, encode_leniently

log = logging.getLogger("meup_agent.gateway")

# --- messages ---

MAX_BATCH: Final = 256
"""Entries of a message; each has a number, also those that a message leaves free."""

WRONG_LAST_SEQUENCE: Final = 10071
"""JetStream's answer to a message that does not follow the last one."""

MAX_NUMBER: Final = 2**53
"""Above all numbers of entries: readers of JSON take no larger ones as they are."""


class KeptEntry(msgspec.Struct, array_like=True, gc=False):
    """An entry in a batch."""

    at: int
    frame: bytes
    correlation: tuple[str, ...] = ()  # as the gateway understood it
    facts: bytes = b""  # as JSON, whose numbers have any size; empty: there are none
    changes: tuple[ProposalChange, ...] = ()


class Batch(msgspec.Struct, array_like=True, tag="meup/batch/1"):
    """Entries that were accepted together."""

    epoch: int  # the sequence of their owner's message
    entries: Sequence[msgspec.Raw]


BATCHES: Final = {1: Batch}
"""The formats of batches that this version reads and writes. A number is for what an older version
cannot leave out: what comes at the end of a message it leaves out."""

FORMAT: Final = max(BATCHES)
"""The newest of them."""


class Ownership(msgspec.Struct, array_like=True, tag="meup/own/1"):
    """The message by which a gateway begins to own a space: its sequence is the epoch."""

    node: str
    nonce: str  # of this start of the node
    version: str
    at: int
    # A digest of each part of the configuration that all nodes must have alike.
    config: dict[str, str] = {}


MAX_TAG: Final = 40
"""Characters of a format's name in a sentence; a stranger may have written it."""

_encode: Final = msgspec.msgpack.Encoder().encode
encode_ownership: Final = _encode
_decode: Final = msgspec.msgpack.Decoder(Batch | Ownership).decode
_decode_entry: Final = msgspec.msgpack.Decoder(KeptEntry).decode
read_facts: Final = msgspec.json.Decoder(tuple[Fact, ...]).decode


def encode_entry(
    at: int, envelope: Envelope, facts: tuple[Fact, ...], changes: tuple[ProposalChange, ...]
) -> bytes:
    """An entry as a batch has it; one of our own is kept in the default dialect."""
    frame = envelope.frame or encode(envelope, DEFAULT_DIALECT)
    said = encode_leniently(facts) if facts else b""
    return _encode(KeptEntry(at, frame, envelope.correlation, said, changes))


def encode_batch(epoch: int, entries: Sequence[bytes], format: int = FORMAT) -> bytes:
    """A batch in a format, or in the newest that there is before that."""
    make = BATCHES[max(each for each in BATCHES if each <= format)]
    return _encode(make(epoch, [msgspec.Raw(each) for each in entries]))


class ForeignMessage(Exception):
    """A message in a space's stream that no gateway wrote, or that one wrote without owning it."""

    def __init__(self, sequence: int, why: str) -> None:
        super().__init__(f"message {sequence} {why}")


def decode_message(sequence: int, body: bytes) -> Batch | Ownership:
    """The content of a message.

    Raises:
        ForeignMessage: It is none of a gateway's, or of a later version's.
    """
    try:
        content: Batch | Ownership = _decode(body)
    except (msgspec.MsgspecError, ValueError):
        raise ForeignMessage(sequence, _foreign(body)) from None
    return content


def _foreign(body: bytes) -> str:
    """The end of a sentence about a message that cannot be read."""
    with suppress(Exception):  # whatever a stranger wrote
        tag = msgspec.msgpack.decode(body)[0]
        if tag.startswith("meup/") and len(tag) <= MAX_TAG:
            return f"has the format {tag!a}, of a later version: upgrade this gateway"
    return "was not written by a gateway; only gateways may write there"


def read_batch(space: str, first: int, batch: Batch) -> Iterator[tuple[Entry, KeptEntry]]:
    """The entries of a batch, of which the first has a number."""
    for place, raw in enumerate(batch.entries):
        seq = first + place
        try:
            kept = _decode_entry(raw)
            envelope = decode(kept.frame)
            facts = read_facts(kept.facts) if kept.facts else ()
        except (InvalidEnvelope, msgspec.MsgspecError) as error:
            # An older version took what this one does not; the others must not miss the rest.
            log.error("journal: number %d is left out, it cannot be read: %s", seq, error)
            continue
        if envelope.correlation != kept.correlation:
            envelope = msgspec.structs.replace(envelope, correlation=kept.correlation)
        yield Entry(seq, space, kept.at, envelope, facts), kept


# --- checkpoints ---


class Checkpoint(msgspec.Struct):
    """The facts that hold in a space, up to a message of its stream."""

    until: int  # the sequence of the message
    facts: dict[str, dict[str, Any]]
    # The times up to which participants have seen what expired.
    seen: dict[str, int] = {}


encode_checkpoint: Final = encode_leniently
decode_checkpoint: Final = msgspec.json.Decoder(Checkpoint).decode

# --- names ---

MAX_TOKEN: Final = 120
"""Characters of a space in a stream's name, which has 255 at most."""

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")


def token_of(space: str) -> str:
    """A space's name as a part of a subject: one for each name, whatever it holds.

    Capitals are written as bytes, too, since servers keep streams in folders of that name, and some
    systems take ``A`` and ``a`` for one.
    """
    name = space.encode(errors="surrogatepass")
    token = "".join(chr(byte) if byte in _PLAIN else f"={byte:02x}" for byte in name)
    return token if len(token) <= MAX_TOKEN else f"=={sha256(name).hexdigest()}"
