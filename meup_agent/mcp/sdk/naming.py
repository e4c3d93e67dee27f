"""Names and URIs of a space's offers as an MCP client or a model sees them; both directions, pure.

A name must say for good which participant it belongs to: a call meant for one must never reach
another because of who joins or leaves. So a name never depends on the others that are present.
Participant and tool are joined by `_`, and the first `_` separates them; where that would not be
unambiguous, or the strictest clients would refuse the name, a hash of both follows.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b32encode
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

MAX_NAME_CHARS: Final = 64
"""Of a tool's or prompt's name, in the strictest clients."""

SUFFIX_CHARS: Final = 13
"""Of the hash: 65 bits, so that no participant finds a name that passes for another's."""

WRAPPED: Final = "meup://participant/"
"""Beginning of a URI that names the participant along with its own URI."""

RESULT_TOOL: Final = "meup_result"
"""Name of our own tool, which tells what became of a call that still waited; no participant's."""

_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9_-]")
_SUFFIXED: Final = re.compile(rf"-[a-z2-7]{{{SUFFIX_CHARS}}}\Z")
_EXPRESSION: Final = re.compile(r"(\{[^{}]*\})")

_quote: Final = partial(quote, safe="", errors="surrogateescape")


class OwnName(NamedTuple):
    """A participant's own name or URI of something.

    Attributes:
        participant: The participant.
        name: Its name, or URI, there.
    """

    participant: str
    name: str


def exposed_name(participant: str, name: str) -> str:
    """The name of a participant's tool or prompt for MCP clients; stable, and unique."""
    plain = f"{participant}_{name}"
    if (
        len(plain) <= MAX_NAME_CHARS
        and participant
        and name
        and "_" not in participant
        and not _FORBIDDEN.search(plain)
        and not _SUFFIXED.search(plain)
        and plain != RESULT_TOOL
    ):
        return plain
    # The length of the participant's name keeps ("a", "b c") and ("a b", "c") apart.
    told = f"{len(participant)}:{participant}{name}".encode("utf-8", "surrogatepass")
    suffix = b32encode(hashlib.sha256(told).digest()).decode().lower()[:SUFFIX_CHARS]
    kept = _FORBIDDEN.sub("_", plain)[: MAX_NAME_CHARS - SUFFIX_CHARS - 1]
    return f"{kept}-{suffix}"


def wrap_uri(participant: str, uri: str) -> str:
    """A URI that names the participant along with its own URI, which is escaped."""
    return f"{WRAPPED}{quote(participant, safe='')}/{_quote(uri)}"


def unwrap_uri(uri: str) -> OwnName | None:
    """Participant and own URI of a wrapped URI; ``None`` for any other."""
    if not uri.startswith(WRAPPED):
        return None
    participant, slash, own = uri.removeprefix(WRAPPED).partition("/")
    if not slash or not participant or not own:
        return None
    return OwnName(unquote(participant), unquote(own, errors="surrogateescape"))


def wrap_template(participant: str, template: str) -> str:
    """A template whose URIs name the participant; its expressions stay as they are."""
    parts = _EXPRESSION.split(template)
    escaped = "".join(part if index % 2 else _quote(part) for index, part in enumerate(parts))
    return f"{WRAPPED}{quote(participant, safe='')}/{escaped}"


class Template:
    """A participant's URI template, to find which URIs it may have made.

    Args:
        participant: The participant that lists it.
        uri: The template as it lists it.
    """

    def __init__(self, participant: str, uri: str) -> None:
        self.participant = participant
        self.uri = uri
        self._literals = tuple(_EXPRESSION.split(uri)[::2])
        self.literal_chars = sum(map(len, self._literals))

    def matches(self, uri: str) -> bool:
        return _captured(self._literals, uri) is not None

    def unwrap(self, uri: str) -> str | None:
        """The participant's own URI of a wrapped one that a client made from :func:`wrap_template`.

        What the client put into the expressions is escaped as the template says, and stays so.
        """
        start = f"{WRAPPED}{quote(self.participant, safe='')}/"
        if not uri.startswith(start):
            return None
        values = _captured(tuple(map(_quote, self._literals)), uri.removeprefix(start))
        if values is None:
            return None
        pairs = zip(self._literals, (*values, ""), strict=True)
        return "".join(literal + value for literal, value in pairs)


def _captured(literals: tuple[str, ...], text: str) -> list[str] | None:
    """The texts between the literals of a template; ``None`` where a text has other literals.

    Each literal is looked for once, from the left: linear in the text, whatever a stranger's
    template looks like.
    """
    first, *others = literals
    if not text.startswith(first):
        return None
    if not others:
        return [] if text == first else None
    at, values = len(first), list[str]()
    for literal in others[:-1]:
        found = text.find(literal, at)
        if found < 0:
            return None
        values.append(text[at:found])
        at = found + len(literal)
    end = len(text) - len(others[-1])
    if end < at or not text.endswith(others[-1]):
        return None
    return [*values, text[at:end]]
