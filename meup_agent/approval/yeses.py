"""Scopes of yeses, as they are offered for a call, narrowest first, and their verbs (PROTOCOL 5).

A scope is a pattern of arguments with words, which its giver sees and may edit. The last takes any
arguments; every other one names something of the call. The gateway keeps the yeses and counts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec
import re2

from meup_agent.client.control import AwaitedAnswer, ask, given
from meup_agent.errors import InvalidPattern, NotOffered, UsageError, printable
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import Envelope, encode_leniently
from meup_agent.protocol.wire.payloads import Call, as_text, is_object, objects_in
from meup_agent.protocol.wire.scoped_yes import (
    MAX_YES_BYTES,
    ArgumentScope,
    KeptYes,
    YesTerms,
    read_described,
)

if TYPE_CHECKING:
    from meup_agent.client.space import Space


MAX_SCOPES: Final = 8
"""Scopes that are offered: a key is a digit."""

MAX_EXACT_CHARS: Final = 400
"""Characters of a text that a scope holds exactly; of a longer one a person reads no end."""

MAX_DEPTH: Final = 4
"""Levels of objects that a scope holds exactly."""

_MEANING: Final = re.compile(r"[*?\[\]{}!\\]")
# A command line is none, though words of it may be: behind a folder's `*` a shell reads more.
_PATH: Final = re.compile(r"(?:/|[A-Za-z0-9_.@+-]+/)[^\s:?#*\[\]{}!\\,;&|<>$`\"'()]*")
_COMMANDS: Final = frozenset(
    {"arg", "args", "argv", "cmd", "code", "command", "script", "shell", "shell_command"}
)
_QUOTED: Final = re.compile(r"/\^\(\?:(.*)\)\\z/", re.DOTALL)
_UNQUOTED: Final = re.compile(r"(?<!\\)(?:\\\\)*(?:[.*+?|()\[\]{}^$]|\\[A-Za-z])")
_ABSENT: Final = object()


@dataclass(frozen=True)
class YesScope:
    """A scope of a yes.

    Attributes:
        words: What it is for, in words; the pattern's own where a person wrote it.
        arguments: A pattern of the arguments; ``None``: any.
        others: Arguments that are free, by name; ``any``: all that the pattern does not name.
    """

    words: str
    arguments: dict[str, Any] | None = None
    others: tuple[str, ...] | Literal["any"] = ()

    def takes(self, arguments: dict[str, Any]) -> bool:
        """True if it takes some arguments."""
        return self._compiled.takes(arguments)

    @cached_property
    def _compiled(self) -> ArgumentScope:
        return ArgumentScope(self.arguments, self.others)

    @property
    def shown(self) -> str:
        """Its patterns, one a line; ``any`` behind a name that is free."""
        if self.arguments is None:
            return "any arguments"
        lines = [f"{printable(key)}: {_shown(value)}" for key, value in self.arguments.items()]
        free = "any others" if self.others == "any" else ""
        lines += [free] if free else [f"{printable(each)}: any" for each in self.others]
        return "\n".join(lines) or "no arguments"


def _shown(value: Any) -> str:
    return printable(value if isinstance(value, str) else encode_leniently(value).decode())


def scopes_of(call: Call) -> list[YesScope]:
    """The scopes for a call, narrowest first; each takes it."""
    found: dict[bytes, YesScope] = {}
    for each in _drafts(call.arguments):
        written = encode_leniently([each.arguments, each.others])
        if written in found or len(written) > MAX_YES_BYTES:
            continue
        try:
            if each.takes(call.arguments):
                found[written] = each
        except InvalidPattern:
            continue
    scopes = list(found.values())
    return [*scopes[:-1][: MAX_SCOPES - 1], *scopes[-1:]]


def _drafts(arguments: dict[str, Any]) -> Iterator[YesScope]:
    exact = {key: _exact(value) for key, value in arguments.items()}
    # A name that as a pattern means others, too, is never part of one: it may only be free.
    known = {key: value for key, value in exact.items() if value is not _ABSENT and is_plain(key)}
    names = tuple(arguments)
    if not names:
        yield YesScope("exactly this call, without arguments", {})
    elif len(known) == len(exact):
        yield YesScope("exactly these arguments", known)
    paths = {
        key: folder
        for key, value in arguments.items()
        if isinstance(value, str)
        and is_plain(key)
        and key.lower() not in _COMMANDS
        and (folder := _folder(value))
    }
    for ending, words in (("*", "in the same folder"), ("**", "in the same folder, or below it")):
        if not paths:
            break
        within = {key: f"{folder}/{ending}" for key, folder in paths.items()}
        where = f"{_listed(paths)} {words}"
        if known.keys() | within.keys() == exact.keys() and len(exact) > len(paths):
            yield YesScope(f"{where}, the rest as it is", {**known, **within})
        rest = tuple(name for name in names if name not in within)
        yield YesScope(f"{where}, {_listed(rest)} free" if rest else where, within, rest)
    if not paths and 1 < len(names) <= 4:
        for name in reversed(names):
            if name.lower() in _COMMANDS:
                continue  # with any command the rest says nothing of the call
            others = {key: value for key, value in known.items() if key != name}
            if len(others) == len(names) - 1:
                yield YesScope(f"{_listed((name,))} free, the rest as it is", others, (name,))
    has_command = any(name.lower() in _COMMANDS for name in names)
    for name in names if not paths and len(names) > 2 else ():
        if name in known and (not has_command or name.lower() in _COMMANDS):
            rest = tuple(each for each in names if each != name)
            yield YesScope(f"{_listed((name,))} as it is, the rest free", {name: known[name]}, rest)
    yield YesScope("any arguments")


def _listed(names: Any) -> str:
    return ", ".join(printable(str(each)[:40]) for each in names)


def _folder(path: str) -> str:
    """The folder of a path, as a pattern that means only itself; empty: it is no path."""
    head, _, tail = path.rpartition("/")
    if not head or not tail or len(path) > MAX_EXACT_CHARS or not _PATH.fullmatch(path):
        return ""
    return (
        "" if any(step in ("", ".", "..") for step in head.removeprefix("/").split("/")) else head
    )


def _exact(value: object, depth: int = 0) -> Any:
    """A pattern that takes one value alone; ``_ABSENT`` where there is none."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _exact_text(value)
    if is_object(value) and value and depth < MAX_DEPTH:
        found = {key: _exact(each, depth + 1) for key, each in value.items()}
        plain = all(is_plain(key) for key in found)
        return found if plain and _ABSENT not in found.values() else _ABSENT
    return _ABSENT  # a list of patterns is a choice, and nothing is no pattern


def _exact_text(text: str) -> Any:
    if len(text) > MAX_EXACT_CHARS:
        return _ABSENT
    if is_plain(text):
        return text
    quoted = cast("str", re2.escape(text))  # pyright: ignore[reportUnknownMemberType] - no types
    return f"/^(?:{quoted})\\z/"


def is_plain(text: str) -> bool:
    """True for a text that as a pattern means itself alone."""
    is_regex = text.startswith("/") and text.endswith("/")
    return bool(text) and not _MEANING.search(text) and not is_regex and text[0] not in "!$"


def written_scope(
    arguments: Mapping[str, Any] | None, others: tuple[str, ...] | Literal["any"]
) -> YesScope:
    """The scope that a person wrote.

    Raises:
        UsageError: A pattern does not compile, or it is too long to have been read.
    """
    size = len(encode_leniently([arguments, others]))
    if size > MAX_YES_BYTES:
        raise UsageError(
            f"the patterns of the yes have {size} bytes; at most {MAX_YES_BYTES} are taken"
        )
    for key, pattern in (arguments or {}).items():
        if key.lower() in _COMMANDS and _has_wildcard(pattern):
            raise UsageError(
                f"the pattern of {printable(key[:40])} would take what a shell reads behind it, as"
                " in `ls; rm x`; write the whole command, or a rule with shell: in a policy"
            )
    scope = YesScope("as written", None if arguments is None else dict(arguments), others)
    try:
        scope.takes({})
    except InvalidPattern as error:
        raise UsageError(f"the patterns of the yes do not compile: {error}") from None
    return scope


def _has_wildcard(pattern: object) -> bool:
    """True for a pattern that takes more than one text; what is offered quotes one (`_exact`)."""
    if isinstance(pattern, list | tuple):
        return any(map(_has_wildcard, cast("list[object]", pattern)))
    if not isinstance(pattern, str) or is_plain(pattern):
        return False
    quoted = _QUOTED.fullmatch(pattern)
    return quoted is None or _UNQUOTED.search(quoted[1]) is not None


class _WrittenScope(msgspec.Struct, forbid_unknown_fields=True):
    arguments: dict[str, Any] | None = None
    others: Literal["any"] | tuple[str, ...] = ()


def read_scope(said: object) -> YesScope:
    """The scope in ``{"arguments": pattern or null, "others": names or "any"}``, as it is written.

    Raises:
        UsageError: It is none, or as :func:`written_scope`.
    """
    try:
        read = msgspec.convert(said, _WrittenScope)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the second: half a character
        raise UsageError(
            'write {"arguments": {…}, "others": […]}, with the names of what is free, or "any"'
        ) from None
    return written_scope(read.arguments, read.others)


YES_SECONDS: Final = 10.0
"""Wait for the gateway to take a yes, or to list them."""


async def _ask(space: Space, kind: str, payload: dict[str, Any], **more: Any) -> Envelope:
    session = space._session  # pyright: ignore[reportPrivateUsage]
    return await ask(session, kind, payload, timeout=YES_SECONDS, **more)


async def give_yes(space: Space, proposal: str, terms: YesTerms) -> str:
    """Give a scoped yes at a pending proposal; its id.

    Raises:
        NotOffered: The gateway keeps none.
        Refused: It does not take this one, and says why.
        MeupError: As :meth:`Members.grant`.
    """
    if not space.gateway.guarantees.keeps_yeses:
        raise NotOffered("this gateway keeps no yeses: approve each call by itself")
    payload: dict[str, Any] = msgspec.to_builtins(terms)
    said = await _ask(space, kinds.YES_GIVE, payload, correlation=(proposal,))
    return said.id


async def revoke_yes(space: Space, yes_id: str, reason: str = "") -> None:
    """Revoke a scoped yes: what it covers is asked about again.

    Raises:
        Refused: It is not kept any more, or we may not revoke it.
        MeupError: As :meth:`Members.grant`.
    """
    payload = {"yes_id": yes_id, **given(reason=reason)}
    await _ask(space, kinds.YES_REVOKE, payload)


async def list_yeses(space: Space, *, proposer: str = "", tool: str = "") -> list[KeptYes]:
    """List the scoped yeses that the gateway keeps, oldest first; none where it keeps none.

    Args:
        space: The space.
        proposer: Only those for calls of this participant.
        tool: Only those for this tool.

    Raises:
        MeupError: The gateway did not answer.
    """
    if not space.gateway.guarantees.keeps_yeses:
        return []
    query = given(proposer=proposer, tool=tool)
    answer = await _ask(space, kinds.YES_LIST, query, answer=AwaitedAnswer(kinds.YES_LISTED))
    found: list[KeptYes] = []
    for each in objects_in(answer.payload_object.get("yeses")):
        state = each.pop("state", "")
        read = read_described(each)
        if read is not None and isinstance(state, str):
            found.append(KeptYes(read, state))
    return found


class YesWatch:
    """Tells of each proposer for whose calls a yes is given, or may have been, as an envelope says.

    Args:
        given: Called with the name of the proposer.
    """

    def __init__(self, given: Callable[[str], None]) -> None:
        self._given = given

    def put(self, envelope: Envelope) -> None:
        """Look at what an envelope says."""
        if envelope.kind == kinds.YES_GIVE:
            self._given(as_text(envelope.payload_object.get("proposer")))
