"""The difference that a proposed call would make to a file: who asks, who answers, and how.

The bridge that offers a tool answers who decides about a call of it (PROTOCOL 5). All members hear
an answer, and a journal keeps it, while a proposer may not be allowed to read the file. So the
answer is sealed to a key of one use that comes with the question (RFC 9180).
"""

from __future__ import annotations

import base64
import binascii
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec

from meup_agent.client.messages import write_params
from meup_agent.errors import ConfigurationError, RequestError
from meup_agent.protocol.wire.envelope import read_moment
from meup_agent.protocol.wire.payloads import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MAX_NAME_CHARS,
    METHOD_NOT_FOUND,
    PREFIX,
    TOOL_CALL,
    Call,
    as_object,
    is_list,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.hpke import Suite

    from meup_agent.client.space import Space

FILE_DIFFERENCE: Final = f"{PREFIX}file_difference"
"""Tells the difference that a proposed call would make to a file."""

ANSWER_SECONDS: Final = 15.0
"""Wait for a bridge to read a file, which may be on a disk that is far away."""

MAX_LINES: Final = 400
"""Lines of a difference; a person reads no more."""

MAX_LINE_CHARS: Final = 300
"""Characters of a line of it."""

MAX_PATH_CHARS: Final = 4_096
"""Characters of a path, as many as Linux takes bytes."""

MAX_SAID_CHARS: Final = 1_000
"""Characters of the sentence about a file."""

MAX_NAMED: Final = 8
"""Arguments that are named for a doubt."""

MAX_SEALED_BYTES: Final = 1_048_576
"""Bytes of an answer that are opened."""

_BLOCK: Final = 4_096
"""Answers have a multiple of these bytes, so that their lengths tell little."""

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]


# --- the file that a call names ---

_PATHS: Final = ("path", "file_path", "filePath")
_TEXTS: Final = ("content", "contents", "text", "file_text")
_EDITS: Final = (
    *(("oldText", "newText"), ("old_text", "new_text")),
    *(("old_string", "new_string"), ("old_str", "new_str")),
)
_ALL: Final = ("replace_all", "replaceAll")
_DRY: Final = ("dryRun", "dry_run")


class TextEdit(NamedTuple):
    """A text of a file, and what takes its place."""

    old: str
    new: str
    everywhere: bool = False


class WrittenFile(NamedTuple):
    """A file that a call writes, as far as its arguments say by their names.

    Attributes:
        path: The file, as the call names it.
        text: The text that it gets; ``None``: it is edited.
        edits: The edits, in their order.
        doubt: Why it is not known what is written; empty: it is.
    """

    path: str
    text: str | None = None
    edits: tuple[TextEdit, ...] = ()
    doubt: str = ""


def read_written_file(call: Call) -> WrittenFile | None:
    """The file that a call writes; ``None``: it names none, or no text for it."""
    if call.method != TOOL_CALL:
        return None
    left = dict(call.arguments)
    paths = [left.pop(key) for key in _PATHS if key in left]
    text, edits = _one_text(left), _read_edits(left)
    if len(paths) != 1 or not isinstance(paths[0], str) or (text is None) == (edits is None):
        return None
    is_dry = any(left.pop(key, None) is True for key in _DRY)
    doubt = "it says itself that nothing is to be written" if is_dry else ""
    if others := [*islice(chain(left, call.beside), MAX_NAMED)]:
        names = ", ".join(each[:MAX_NAME_CHARS] for each in others)
        doubt = f"it has arguments that may change what it writes: {names}"
    elif text is not None and _keeps_text(call.name):
        doubt = "by its name it may not replace the text of the file"
    return WrittenFile(paths[0], text, edits or (), doubt)


def _one_text(left: dict[str, Any]) -> str | None:
    found = [left.pop(key) for key in _TEXTS if isinstance(left.get(key), str)]
    return found[0] if len(found) == 1 else None


def _read_edits(left: dict[str, Any]) -> tuple[TextEdit, ...] | None:
    """The edits of a call, whose arguments are taken out; ``None``: it has none that are known."""
    listed = left.get("edits")
    if listed is None:
        edit = _read_edit(left)
        return None if edit is None else (edit,)
    if not is_list(listed):
        return None
    found: list[TextEdit] = []
    for each in listed:
        fields = dict(as_object(each))
        edit = _read_edit(fields)
        if edit is None or fields:
            return None
        found.append(edit)
    del left["edits"]
    return tuple(found) or None


def _read_edit(fields: dict[str, Any]) -> TextEdit | None:
    for old, new in _EDITS:
        if isinstance(fields.get(old), str) and isinstance(fields.get(new), str):
            everywhere = any(fields.pop(key, None) is True for key in _ALL)
            return TextEdit(fields.pop(old), fields.pop(new), everywhere)
    return None


_WRITES: Final = ("write", "create", "save", "overwrite", "put")
_ADDS: Final = ("append", "insert", "prepend", "add")


def _keeps_text(tool: str) -> bool:
    """True for a tool that may not replace a file's text, as its name has it."""
    name = tool.lower()
    return any(each in name for each in _ADDS) or not any(each in name for each in _WRITES)


# --- the question and its answer ---


class FileQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The question about the file that a proposed call writes.

    Attributes:
        proposal: The proposal's id.
        proposer: Its proposer.
        key: A public key of one use (X25519, base64), to which the answer is sealed.
    """

    proposal: _Name
    proposer: _Name
    key: Annotated[str, msgspec.Meta(max_length=64)]


class FileDifference(msgspec.Struct, frozen=True, omit_defaults=True):
    """The difference that a call would make to a file as it is now.

    Attributes:
        path: The file, its links resolved; empty: none that may be read.
        said: What a reader has to know, in a sentence; empty: nothing.
        lines: Lines with ``-`` and ``+``, with a blank those beside them, and with ``@`` places.
        omitted: The number of lines that had no room.
        read_at: The moment at which the file was read (RFC 3339).
    """

    path: str = ""
    said: str = ""
    lines: tuple[str, ...] = ()
    omitted: int = 0
    read_at: str = ""


async def read_file_difference(
    space: Space, participant: str, *, proposer: str, proposal: str
) -> FileDifference:
    """The difference that a proposed call would make to the file that it writes.

    Args:
        space: The space of who asks.
        participant: The bridge that offers the tool.
        proposer: The proposal's proposer.
        proposal: Its id.

    Raises:
        ConfigurationError: The package ``cryptography`` is missing.
        MeupError: As :meth:`Space.request`; it says also that the bridge has no root.
    """
    suite = _suite()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = X25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    question = FileQuestion(proposal, proposer, public)
    try:
        said = await space.request(
            participant, FILE_DIFFERENCE, write_params(question), timeout=ANSWER_SECONDS
        )
    except RequestError as error:
        if error.code != METHOD_NOT_FOUND:
            raise
        raise RequestError(
            error.code,
            f"{participant!r} reads no files: start it with --root FOLDER, of a server that is a"
            " program",
        ) from None
    try:
        sealed = base64.b64decode(said["sealed"][: 2 * MAX_SEALED_BYTES], validate=True)
        opened = suite.decrypt(sealed, key, info=_about(question))
        found = msgspec.json.decode(opened, type=FileDifference)
    except Exception:  # of cryptography: one tells what cannot be read as little as another
        raise RequestError(
            INTERNAL_ERROR, f"the answer of {participant!r} about the file cannot be read"
        ) from None
    return msgspec.structs.replace(
        found,
        path=found.path[:MAX_PATH_CHARS],
        said=found.said[:MAX_SAID_CHARS],
        lines=tuple(each[: 2 * MAX_LINE_CHARS] for each in found.lines[:MAX_LINES]),
        omitted=max(found.omitted, 0),
        read_at="" if read_moment(found.read_at) is None else found.read_at,
    )


def seal_difference(question: FileQuestion, difference: FileDifference) -> dict[str, Any]:
    """The answer, which the asker alone can read.

    Raises:
        RequestError: The question has no key.
    """
    suite = _suite()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        key = X25519PublicKey.from_public_bytes(base64.b64decode(question.key, validate=True))
        said = msgspec.json.encode(difference)
        said = said.ljust(-(-len(said) // _BLOCK) * _BLOCK)
        sealed = suite.encrypt(said, key, info=_about(question))
    except (binascii.Error, ValueError):
        raise RequestError(INVALID_PARAMS, "its key is no X25519 public key in base64") from None
    return {"sealed": base64.b64encode(sealed).decode()}


def _about(question: FileQuestion) -> bytes:
    """The bytes that tie an answer to its question."""
    return b"\0".join(
        each.encode() for each in (FILE_DIFFERENCE, question.proposer, question.proposal)
    )


def _suite() -> Suite:
    try:
        from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
    except ImportError:
        raise ConfigurationError(
            "the package cryptography, 47 or newer, is missing; install meup-agent[mcp], [gateway]"
            " or [tui]"
        ) from None
    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
