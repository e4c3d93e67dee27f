"""Messages of ACP as a proxy reads them: lines of JSON-RPC, the requests that are decided, answers.

A line is passed on as it came, so it must have one reading: what an editor could read in another
way than we do (a member twice, or in another case) is refused. For the same reason the models of
the ACP SDK are not used here: they leave out what they cannot read, where it should be refused.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from meup_agent.errors import printable
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.envelope import encode_leniently
from meup_agent.protocol.wire.payloads import JsonObject

if TYPE_CHECKING:
    from collections.abc import Iterable

PERMISSION: Final = "session/request_permission"
TERMINAL: Final = "terminal/create"
WRITE: Final = "fs/write_text_file"

DECIDED: Final = frozenset({PERMISSION, TERMINAL, WRITE})
"""Requests of an agent that are decided in the space."""

CANCEL: Final = "$/cancel_request"
REQUEST_CANCELLED: Final = -32800
"""Error of a request that was cancelled, or that nobody decided."""

REJECTED: Final = -32001
"""Error of a request that was rejected; -32000 is taken: it asks the editor to sign in."""

WHY: Final = "dev.meup/why"
"""Member of ``_meta`` in a permission's answer: why it was not allowed, in words for a model."""

SHELLS: Final = frozenset(
    folder + name for folder in ("", "/bin/", "/usr/bin/") for name in ("sh", "bash", "zsh", "dash")
)
"""Commands that are a shell; a program of that name in another folder may be anything."""
_RUNS_A_LINE: Final = frozenset({("-c",), ("-lc",), ("-l", "-c")})

RpcId = int | str

NONE: Final = msgspec.Raw(b"null")
"""The error of an answer that has none."""


class Unreadable(Exception):
    """A message that the other side could read in another way, or not at all: why."""


def rpc_id_of(value: object) -> RpcId | None:
    """The value if it is an id of JSON-RPC as Python tells them apart; ``True`` equals 1 there."""
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


class Message(msgspec.Struct, frozen=True):
    """One message, as far as every line is read.

    Attributes:
        method: The method of a request or notification; ``None``: it is an answer.
        id: The id of a request or answer.
        params: The parameters, unread.
        result: The result of an answer, unread.
        error: The error of an answer, unread.
    """

    method: str | None = None
    id: Any = None
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = msgspec.Raw(b"{}")
    error: msgspec.Raw = NONE

    @property
    def rpc_id(self) -> RpcId | None:
        """The id, if it is one."""
        return rpc_id_of(self.id)

    @property
    def param_object(self) -> JsonObject:
        """The parameters as JSON values; empty where they are no object, or unreadable."""
        return object_of(self.params)

    @property
    def result_object(self) -> JsonObject:
        """The result as JSON values; empty where there is none, or it is unreadable."""
        return object_of(self.result)


_decode = msgspec.json.Decoder(Message).decode

_NAMES: Final = ("method", "params", "id")
"""The members by which a request is known."""


def object_of(raw: msgspec.Raw) -> JsonObject:
    """A part of a message as JSON values; empty where it is no object, or unreadable."""
    try:
        return payloads.as_object(msgspec.json.decode(raw))
    except (msgspec.DecodeError, RecursionError):  # a number that is too large, for one
        return {}


def read_message(line: bytes) -> Message:
    """Read a line of a sender that is not trusted.

    Raises:
        Unreadable: It is no JSON object, or may be read in another way.
    """
    try:
        if b"\r" in line.rstrip():
            raise ValueError("it is several lines to who takes a carriage return for an end")
        lowered = line.decode().lower()
        message = _decode(line)
        counts = [lowered.count(f'"{each}"') for each in _NAMES]
        is_plain = counts == [line.count(b'"%s"' % each.encode()) for each in _NAMES]
        if message.method in DECIDED or max(counts) > 1 or not is_plain or b"\\u" in line:
            read = json.loads(line, object_pairs_hook=_members, parse_constant=_no_constant)
            _check_spelling(read, _NAMES)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Unreadable(printable(str(error))) from None
    return message


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object in which every reader finds the same members; some look for them in any case."""
    if len({name.casefold() for name, _ in pairs}) != len(pairs):
        raise ValueError("an object has two members of one name")
    return dict(pairs)


def _check_spelling(read: JsonObject, names: Iterable[str]) -> None:
    """Check that none of these members stands there in another case, where some would find it."""
    folded = {each.casefold(): each for each in names}
    for name in read:
        if folded.get(name.casefold(), name) != name:
            raise ValueError(f"its member {name!r} is spelled in another case")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# --- the requests that are decided ---


class Option(msgspec.Struct, frozen=True, rename="camel"):
    """An answer that a permission request offers."""

    option_id: str
    kind: str


class ToolCall(msgspec.Struct, frozen=True, rename="camel"):
    """The call that a permission request is about, as its agent describes it."""

    tool_call_id: str
    kind: str | None = None
    title: str | None = None
    content: list[JsonObject] | None = None
    raw_input: Any = None


class PermissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """``session/request_permission``."""

    session_id: str
    tool_call: ToolCall
    options: list[Option]


class Variable(msgspec.Struct, frozen=True):
    """A variable of a terminal's environment."""

    name: str
    value: str


class TerminalRequest(msgspec.Struct, frozen=True, rename="camel"):
    """``terminal/create``."""

    session_id: str
    command: str
    args: list[str] | None = None
    env: list[Variable] | None = None
    cwd: str | None = None

    @property
    def words(self) -> list[str]:
        """The command and its arguments."""
        return [self.command, *(self.args or ())]


class WriteRequest(msgspec.Struct, frozen=True, rename="camel"):
    """``fs/write_text_file``."""

    session_id: str
    path: str
    content: str


HostRequest = PermissionRequest | TerminalRequest | WriteRequest

_FORMS: Final[dict[str, type[HostRequest]]] = {
    PERMISSION: PermissionRequest,
    TERMINAL: TerminalRequest,
    WRITE: WriteRequest,
}


def read_request(message: Message) -> HostRequest:
    """Read a request that is decided.

    Raises:
        Unreadable: A field of it is missing, or of another type.
    """
    assert message.method is not None, "it is a request"
    form = _FORMS[message.method]
    try:
        read = msgspec.json.decode(message.params, type=form)
        _check_spelling(msgspec.json.decode(message.params), form.__struct_encode_fields__)
        return read
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Unreadable(f"{message.method}: {printable(str(error))}") from None


def call_of(message: Message, request: HostRequest) -> tuple[str, JsonObject]:
    """The call that a request proposes: the tool's name, and its arguments.

    It is named after the kind of call (``execute``, ``edit`` …), so that one rule is for a command
    however its agent asks; a title would be the model's words. Where a permission has the call's
    input, that is the arguments, with what the editor would show beside it.
    """
    given = {
        name: value
        for name, value in message.param_object.items()
        if name not in ("sessionId", "options", payloads.META)
    }
    if isinstance(request, TerminalRequest):
        return "execute", {**given, "command": shell_line(request)}
    if isinstance(request, WriteRequest):
        return "edit", given
    call = payloads.as_object(given.get("toolCall"))
    shown = {name: call[name] for name in ("title", "content", "locations") if call.get(name)}
    raw = request.tool_call.raw_input
    if isinstance(raw, dict) and not shown.keys() & raw.keys():
        return request.tool_call.kind or "other", {**cast("JsonObject", raw), **shown}
    return request.tool_call.kind or "other", {**shown, "input": raw}


def call_id_of(update: JsonObject) -> str:
    """The id of the call that an update of a session is about; empty: of none."""
    is_call = update.get("sessionUpdate") in ("tool_call", "tool_call_update")
    return payloads.as_text(update.get("toolCallId")) if is_call else ""


def output_of(update: JsonObject) -> str:
    """The output of a call, as its update tells it: raw, else the texts that it shows."""
    raw = update.get("rawOutput")
    if isinstance(raw, str):
        return raw
    if raw is not None:
        return encode_leniently(raw).decode()
    contents = (
        payloads.as_object(each.get("content"))
        for each in payloads.objects_in(update.get("content"))
    )
    return "\n".join(payloads.as_text(each.get("text")) for each in contents)


def shell_line(request: TerminalRequest) -> str:
    """The command of a terminal as one line.

    Some editors give a command without arguments to a shell, so it stands as it is.
    """
    return f"{request.command} {shlex.join(request.args)}" if request.args else request.command


def is_same_call(granted: PermissionRequest, cwd: str | None, request: HostRequest) -> bool:
    """True if a terminal or a write is what its agent was given permission for.

    A command must be the same to the letter, in the folder that was shown, else the session's, with
    no variables; a file must be the one that was shown, with the text that was shown.
    """
    call = granted.tool_call
    given = payloads.as_object(call.raw_input)
    if isinstance(request, WriteRequest):
        return request.session_id == granted.session_id and any(
            (each.get("type"), each.get("path"), each.get("newText"))
            == ("diff", request.path, request.content)
            for each in call.content or ()
        )
    if not isinstance(request, TerminalRequest) or request.session_id != granted.session_id:
        return False
    if request.env or _folder(request.cwd, cwd) != _folder(given.get("cwd"), cwd):
        return False
    command, words = given.get("command"), request.words
    if isinstance(command, list):
        return words == command
    if not isinstance(command, str):
        return False
    is_line = request.command in SHELLS and tuple(words[1:-1]) in _RUNS_A_LINE
    return words == [command] or (is_line and words[-1] == command)


def _folder(given: object, session: str | None) -> object:
    return session if given is None else given


# --- answers ---


def answer_line(rpc_id: object, **said: Any) -> bytes:
    """The line of an answer: ``result`` or ``error``."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": rpc_id, **said}) + b"\n"


def error_line(rpc_id: object, code: int, text: str) -> bytes:
    """The line of an error."""
    return answer_line(rpc_id, error={"code": code, "message": text})


def _once(request: PermissionRequest, kind: str) -> str | None:
    """The id of the answer of a kind; ``None``: there is none, or its id stands for others, too."""
    ids = [each.option_id for each in request.options]
    chosen = [each.option_id for each in request.options if each.kind == kind]
    return chosen[0] if chosen and ids.count(chosen[0]) == 1 else None


def allows_once(request: PermissionRequest) -> bool:
    """True if a permission request offers an answer that allows this one call."""
    return _once(request, "allow_once") is not None


def permission_answer(request: PermissionRequest | None, kind: str, why: str = "") -> JsonObject:
    """The outcome of a permission request: the option of a kind, once, else ``cancelled``.

    ``allow_always`` and ``reject_always`` are never selected: they would decide later calls.
    """
    chosen = None if request is None else _once(request, kind)
    outcome: JsonObject = {"outcome": "cancelled"}
    if chosen is not None:
        outcome = {"outcome": "selected", "optionId": chosen}
    return {"outcome": outcome, **({payloads.META: {WHY: why}} if why else {})}
