"""Payloads: the MCP messages that travel in envelopes, read leniently and written strictly.

MCP's own types are not needed here: an exchange reads a handful of fields. Code that hands MCP
content to users takes ``mcp_types``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeGuard, cast

import msgspec
import rfc8785

from meup_agent.causes import Cause
from meup_agent.errors import InvalidEnvelope, NotExpressible
from meup_agent.protocol.capability.patterns import stripped
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import (
    MAX_SAFE_INTEGER,
    Envelope,
    FrozenStruct,
    encode_leniently,
    find_unsafe_integer,
    moment_of,
    read_moment,
    rfc3339,
)

# Below, since patterns ask it too; readers of payloads find it here.
from meup_agent.protocol.wire.envelope import is_list as is_list
from meup_agent.protocol.wire.envelope import is_object as is_object

# --- payloads ---

META: Final = "_meta"
PREFIX: Final = "dev.meup/"
"""Of our own keys in ``_meta`` (PROTOCOL 6), and of our own methods (PROTOCOL 5)."""
TARGET: Final = "dev.meup/target"
DIGEST: Final = "dev.meup/digest"
EDITED: Final = "dev.meup/edited"
PROPOSER: Final = "dev.meup/proposer"
"""In a fulfilling request: whose proposal it carries out. It means nothing in a proposal."""
ASKED_IN_REQUEST: Final = "dev.meup/request"
"""In a question to the participant that made a call: the id of the request that carries it out."""
ASKED_IN_PROPOSAL: Final = "dev.meup/proposal"
"""Beside it: the id of the proposal that this request carries out."""
HANDLER_FAILED: Final = "dev.meup/failed"
"""In the progress of a proposal: the handler of who tells it failed, so it will not decide."""
LEFT_TO_OTHERS: Final = "dev.meup/left"
"""There: who tells it leaves the decision to others, or, with ``False``, does so no longer."""
CLIENT: Final = "dev.meup/client"
"""In a proposal: the program that its proposer serves, as that names itself."""
MAX_LABEL_CHARS: Final = 64
"""Characters of that program's name, and of its version: of more only so many are shown."""
DOOR: Final = "dev.meup/door"
"""In a proposal to its proposer itself, an object: what the program that asks tells of itself. The
fulfilling request is its permit (PROTOCOL 4.20)."""
PERMITTED: Final = "dev.meup/permitted"
"""In the result of a permit, ``true``: its executor runs the call itself from now on."""
KEPT: Final = "dev.meup/kept"
"""Beside it, ``true``: the program that asked is away, and comes back for the permit."""
OUTLIVES: Final = "dev.meup/outlives"
"""In a proposal, ``true``: it is wanted also where its proposer's process is gone."""
TOLD_BY: Final = "dev.meup/told_by"
"""In a proposal that outlives its proposer's process: the time by which that has answered the
program that it serves, at the latest that the proposal still waits."""
EXPIRES_AT: Final = "dev.meup/expires_at"
TTL: Final = "ttl"
"""Beside a foreign proposal's method: the milliseconds after which its proposer gives it up."""
RULE: Final = "dev.meup/rule"
"""In what a policy decided: the rule that decided, and the policy that it is of."""
YES: Final = "dev.meup/yes"
"""In a fulfilling request: the scoped yes that it is a use of. It means nothing in a proposal."""
EXPLAINED: Final = "dev.meup/explained"
"""In a rejection: the chat that explains it follows at once."""
CAUSE: Final = "dev.meup/cause"
BEGUN_BY: Final = "dev.meup/begun_by"
"""In an end that the gateway sends for a participant: the participant, whose ids are its own."""
REJECTED_BY: Final = "dev.meup/rejected_by"
"""In a withdraw: the participant whose rejection ended the wait, or null: none did."""
WRAPPED: Final = "dev.meup/wrapped"
"""In a result: its structured content is ``{"result": value}`` for a value that is not one."""
PROGRESS_TOKEN: Final = "progressToken"
TRACEPARENT: Final = "traceparent"
MAX_TRACEPARENT: Final = 128
"""Characters of a W3C ``traceparent`` that is repeated: it has 55."""
WRAPPER: Final = "proposal"
"""The only member of an object that some put around a proposal's payload."""

NOTIFICATION: Final = "notifications/"
"""Prefix of the methods that want no answer."""

TOOL_CALL: Final = "tools/call"
TOOL_LIST: Final = "tools/list"
PING: Final = "ping"
_PROTOTYPE: Final = b"__proto__"
_OF_A_TOOL: Final = frozenset({"name", "arguments", META})

MAX_SHOWN_DIGITS: Final = 40
"""Digits of an integer that a refusal repeats."""

INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
UNKNOWN_METHOD: Final = frozenset({METHOD_NOT_FOUND, "NOT_IMPLEMENTED"})
"""The codes by which a peer says that it has no such method; the text is that of ``mew/v0.4``."""
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
EXCHANGE_ERROR: Final = -32000
"""``busy``, ``cancelled`` and ``refused``: the reason stands in ``data`` (PROTOCOL 5)."""

REFUSED: Final = "refused"
"""The reason of an executor that does not carry out what was withdrawn, or done before."""

MAX_RPC_ID_CHARS: Final = 256
"""Characters of a JSON-RPC id, as of an envelope's: it is remembered, for cancels."""

MAX_KEPT_NAME_CHARS: Final = 256
"""Characters of a method's, tool's or participant's name that is kept as it is; those in use have
less than 100."""

MAX_TTL: Final = 366 * 24 * 3600.0
"""Seconds that a proposal of ours waits at most; a foreign ``ttl`` above is cut to it."""

JsonObject = dict[str, Any]


class Call(FrozenStruct):
    """The MCP message in a request's or proposal's payload."""

    method: str  # the MCP method, for example ``tools/call``; empty where there was none
    params: JsonObject
    # The JSON-RPC id as it was written; ``None`` where there was none.
    rpc_id: int | str | None = None
    rpc_name: str | None = None  # its :func:`rpc_name`
    ttl: float | None = None  # the seconds of a foreign ``ttl``, which is written in milliseconds

    @property
    def name(self) -> str:
        """The tool's (or prompt's) name, where the method has one."""
        name = self.params.get("name")
        return name if isinstance(name, str) else ""

    @property
    def called(self) -> tuple[str, str]:
        """Its method and its tool (or prompt), as they are kept: see :func:`called`."""
        return kept_name(self.method), kept_name(self.name)

    @property
    def arguments(self) -> JsonObject:
        """The arguments of a tool call; empty where there are none."""
        return as_object(self.params.get("arguments"))

    @property
    def beside(self) -> JsonObject:
        """The parameters of a tool call beside its name, arguments and ``_meta``."""
        return {name: value for name, value in self.params.items() if name not in _OF_A_TOOL}

    @property
    def meta(self) -> JsonObject:
        """The object in ``_meta``."""
        return as_object(self.params.get(META))

    @property
    def target(self) -> str | None:
        """The participant that should execute a proposal (PROTOCOL 4.4)."""
        target = self.meta.get(TARGET)
        return target if isinstance(target, str) and target else None

    @property
    def client(self) -> str:
        """The program that its proposer serves, as that names itself; empty where none is told."""
        told = as_object(self.meta.get(CLIENT))
        words = (told.get("name"), told.get("version"))
        return " ".join(each[:MAX_LABEL_CHARS] for each in words if isinstance(each, str) and each)

    @property
    def door(self) -> JsonObject | None:
        """The words of the program that asks for a permit; ``None``: it is no proposal of a door.

        Labels: no capability and no rule that lets pass rests on them.
        """
        told = self.meta.get(DOOR)
        return told if is_object(told) else None

    @property
    def folder(self) -> str:
        """The folder in which the program of a door works, as that says; empty: none is told."""
        return as_text((self.door or {}).get("cwd"), MAX_KEPT_NAME_CHARS)

    @property
    def door_session(self) -> str:
        """The session of the program of a door, by its own id; empty: none is told."""
        return as_text((self.door or {}).get("session"), MAX_KEPT_NAME_CHARS)

    @property
    def is_at_terminal(self) -> bool:
        """True if its agent's terminal asks a person as well, who may have answered there."""
        return self.door is not None and self.door.get("terminal") is True

    def asks_permit(self, proposer: str) -> bool:
        """True for a proposal whose proposer runs the call itself once it may (PROTOCOL 4.20)."""
        return self.door is not None and self.target == proposer

    def is_watched(self, proposer: str) -> bool:
        """True for such a proposal whose call runs whatever is said of it (PROTOCOL 4.20)."""
        return self.asks_permit(proposer) and (self.door or {}).get("watched") is True

    def permit_form(self, proposer: str) -> str:
        """The form of a tool that its proposer runs itself: its program and folder, as a digest.

        No list has such a tool. What a command or a path means depends on these two, so a yes in
        advance is for no other. Empty: it asks for no permit, or names no program.
        """
        agent = as_text((self.door or {}).get("agent"))
        if not agent or not self.asks_permit(proposer):
            return ""
        said = rfc8785.dumps([DOOR, agent, as_text((self.door or {}).get("cwd"))])
        return hashlib.sha256(said).hexdigest()

    @property
    def outlives(self) -> bool:
        """True for a proposal that is wanted also where its proposer's process is gone."""
        return self.meta.get(OUTLIVES) is True

    @property
    def expires_at(self) -> datetime | None:
        """The time at which the proposer gives up, by its own clock: a hint (PROTOCOL 6)."""
        said = read_moment(self.meta.get(EXPIRES_AT))
        return None if said is None else moment_of(said)

    def expiry(self, accepted: int | None) -> int | None:
        """The time at which its proposer gives it up; ``None``: it does not say, or not from when.

        Both are in microseconds since 1970 (UTC). A foreign ``ttl`` counts from its acceptance.
        """
        said = read_moment(self.meta.get(EXPIRES_AT))
        if said is not None or self.ttl is None or accepted is None:
            return said
        return accepted + round(min(self.ttl, MAX_TTL) * 1_000_000)

    @property
    def is_notification(self) -> bool:
        """True if the method begins with ``notifications/``; a missing id alone means nothing."""
        return self.method.startswith(NOTIFICATION)


def rpc_name(rpc_id: object) -> str | None:
    """A JSON-RPC id as a cancel names it; ``None`` if it is none, or too long."""
    if not isinstance(rpc_id, int | str) or isinstance(rpc_id, bool):
        return None
    name = str(rpc_id)
    return None if len(name) > MAX_RPC_ID_CHARS else name


# Asked for each message: of what is something else, these two call nothing.


def as_object(value: object) -> JsonObject:
    """The value if it is a JSON object, otherwise an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """The value if it is a JSON list, otherwise an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []


def as_text(value: object, most: int | None = None) -> str:
    """The value if it is a text, of which at most so many characters; otherwise an empty one."""
    return value[:most] if isinstance(value, str) else ""


def one_or_more(value: object) -> list[object]:
    """The values of a list, or the only value, where one stands in its place."""
    return value if is_list(value) else [value]


def objects_in(value: object) -> list[JsonObject]:
    """The values of a list, each as :func:`as_object` sees it; none if it is not a list."""
    return [as_object(item) for item in as_list(value)]


def is_wrapper(names: Collection[str]) -> bool:
    """True if an object with these members is ``{"proposal": {…}}`` (PROTOCOL 1)."""
    return len(names) == 1 and WRAPPER in names


def unwrapped(payload: JsonObject) -> JsonObject:
    """A proposal's payload as every reader sees it, without the wrapper where it has one.

    A wrapper in a wrapper stays as it is: otherwise who reads the payload after it went through
    another dialect would see another proposal than the gateway has allowed.
    """
    inner = payload.get(WRAPPER)
    if is_wrapper(payload) and is_object(inner) and not is_wrapper(inner):
        return inner
    return payload


def read_proposal(payload: object) -> Call:
    """Read a proposal, also in the form ``{"proposal": {…}}`` (PROTOCOL 1)."""
    return read_call(unwrapped(as_object(payload)))


def read_call(payload: object) -> Call:
    """Read a request."""
    body = as_object(payload)
    method = body.get("method")
    rpc_id = body.get("id")
    return Call(
        method=method if isinstance(method, str) else "",
        params=as_object(body.get("params")),
        rpc_id=rpc_id if isinstance(rpc_id, int | str) and not isinstance(rpc_id, bool) else None,
        rpc_name=None if rpc_id is None else rpc_name(rpc_id),
        ttl=_read_ttl(body[TTL]) if TTL in body else None,
    )


def _read_ttl(said: object) -> float | None:
    """The seconds of a ``ttl`` in milliseconds (PROTOCOL 6); ``None`` if it is not such a time."""
    milliseconds = number(said)
    return None if milliseconds is None or milliseconds <= 0 else milliseconds / 1000


def called(body: JsonObject) -> tuple[str, str]:
    """The method and tool (or prompt) of a call, as they are kept: all a gateway needs of most."""
    method, params = body.get("method"), body.get("params")
    name = params.get("name") if is_object(params) else None
    return kept_name(method), kept_name(name)


def kept_name(name: object) -> str:
    """A name as it is kept by the thousand: of a long one its beginning and its hash.

    Two are kept alike only if they are the same name; what is not text is kept as an empty one.
    """
    if not isinstance(name, str):
        return ""
    if len(name) <= MAX_KEPT_NAME_CHARS:
        return name
    return name[:MAX_KEPT_NAME_CHARS] + hashlib.sha256(name.encode()).hexdigest()


def meta_of(body: JsonObject) -> JsonObject:
    """The object in the ``_meta`` of a call; an empty one where there is none."""
    params = body.get("params")
    return as_object(params.get(META)) if is_object(params) else {}


def exchanges_of(correlation: tuple[str, ...], meta: JsonObject) -> tuple[str, ...]:
    """The ids of the exchanges that a request belongs to, by correlation or ``_meta``."""
    if not meta:
        return correlation
    named = (meta.get(ASKED_IN_REQUEST), meta.get(ASKED_IN_PROPOSAL))
    return (*correlation, *(each for each in named if isinstance(each, str)))


def request(method: str, params: JsonObject, rpc_id: str) -> JsonObject:
    """A JSON-RPC request."""
    return {"jsonrpc": "2.0", "id": rpc_id, "method": method, "params": params}


def fulfilling_request(call: Call) -> tuple[JsonObject, tuple[str, ...]]:
    """The request that carries a call out, and its addressees, as capabilities are asked of it."""
    to = () if call.target is None else (call.target,)
    return request(call.method, call.params, ""), to


def notification(method: str, params: JsonObject) -> JsonObject:
    """A JSON-RPC notification."""
    return {"jsonrpc": "2.0", "method": method, "params": params}


def proposal(method: str, params: JsonObject) -> JsonObject:
    """A proposal's payload: the call without an envelope of its own."""
    return {"method": method, "params": params}


def result(rpc_id: int | str, value: Any) -> JsonObject:
    """A JSON-RPC response with a result."""
    return {"jsonrpc": "2.0", "id": rpc_id, "result": value}


def error(rpc_id: int | str, code: int, message: str, data: Any = None) -> JsonObject:
    """A JSON-RPC response with an error."""
    body: JsonObject = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    return {"jsonrpc": "2.0", "id": rpc_id, "error": body}


def cancelled(request_id: str, cause: Cause) -> JsonObject:
    """``notifications/cancelled`` with the chain that led to it, where it is not too long."""
    if not cause.chain:  # which would tell the code of a text
        return notification(kinds.CANCELLED, {"requestId": request_id, "reason": str(cause)})
    chain = {CAUSE: [step.to_wire() for step in cause.chain]}
    params = {"requestId": request_id, "reason": cause.words, META: chain}
    return notification(kinds.CANCELLED, params)


def cancelled_by_gateway(request_id: str, reason: str, requester: str) -> JsonObject:
    """``notifications/cancelled`` for a request that its requester may make no longer."""
    params = {"requestId": request_id, "reason": reason, META: {BEGUN_BY: requester}}
    return notification(kinds.CANCELLED, params)


def on_behalf_of(sender: str, said: JsonObject) -> str:
    """The participant that an end is for: its sender, or the one that a gateway names in it."""
    if sender not in kinds.GATEWAY_NAMES:
        return sender
    name = as_object(said.get(META)).get(BEGUN_BY)
    return name if isinstance(name, str) and name else sender


def progress(token: int | str, done: float, total: float | None, message: str | None) -> JsonObject:
    """``notifications/progress``."""
    params: JsonObject = {PROGRESS_TOKEN: token, "progress": done}
    if total is not None:
        params["total"] = total
    if message is not None:
        params["message"] = message
    return notification(kinds.PROGRESS, params)


def tell_proposer(
    proposal: Envelope, mark: str, message: str | None = None, *, holds: bool = True
) -> JsonObject:
    """Progress of a proposal by which who may decide it says, by a mark, that it will not.

    ``holds=False`` takes that back.
    """
    # Without a token of its proposer's the id stands for it: the words are for people.
    token = read_proposal(proposal.payload).meta.get(PROGRESS_TOKEN)
    if not isinstance(token, int | str) or rpc_name(token) is None:
        token = proposal.id
    said = progress(token, 0, None, message)
    said["params"][META] = {mark: holds}
    return said


def number(value: object) -> float | None:
    """The value if it is a number that a float can hold, and not infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def is_refusal(response: object) -> bool:
    """True if a response says that the request was refused: nothing was carried out for it."""
    error = as_object(response).get("error")
    return error is not None and as_object(as_object(error).get("data")).get("reason") == REFUSED


def is_failure(response: object) -> bool:
    """True if a response is an error, or a result that says that it failed."""
    result, error = read_response(response)
    return error is not None or as_object(result).get("isError") is True


def is_permit(response: object) -> bool:
    """True if a response says that its sender runs the call itself (PROTOCOL 4.20)."""
    result, error = read_response(response)
    body = as_object(result)
    permitted = as_object(body.get(META)).get(PERMITTED) is True
    return error is None and permitted and body.get("isError") is not True


def is_kept(result: object) -> bool:
    """True if the result of a permit says that it waits for the program that asked."""
    return as_object(as_object(result).get(META)).get(KEPT) is True


def without_meta(params: JsonObject) -> JsonObject:
    """The parameters without ``_meta``."""
    return {name: value for name, value in params.items() if name != META}


def without_our_meta(params: JsonObject) -> JsonObject:
    """The parameters without what their ``_meta`` has under our prefix."""
    return filter_meta(params, lambda name: not name.startswith(PREFIX))


def filter_meta(params: JsonObject, keeps: Callable[[str], bool]) -> JsonObject:
    """The parameters with those keys of their ``_meta`` alone that are kept."""
    given = as_object(params.get(META))
    meta = {name: value for name, value in given.items() if keeps(name)}
    return {**without_meta(params), **({META: meta} if meta else {})}


def canonical(method: str, params: JsonObject, target: str | None) -> bytes | None:
    """A call in RFC 8785 form, which its digest covers (PROTOCOL 6); ``None`` where it has none."""
    call: JsonObject = {"method": method, "params": without_meta(params)}
    if target is not None:
        call["target"] = target
    try:
        # Before it is looked at, since it fails for what contains itself.
        encoded = msgspec.json.encode(call, order="sorted")
        if _is_canonical_sorted(call):
            return encoded
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        pass  # the other way says so
    try:
        return rfc8785.dumps(call)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError):
        return None


def _is_canonical_sorted(value: object) -> bool:
    """True if the plain JSON of a value, its members sorted, is its RFC 8785 form.

    Both write texts and small integers alike; the plain one takes a fiftieth of the time. Other
    numbers differ, and so does the order of names beyond ASCII.
    """
    pending = [value]
    while pending:
        each = pending.pop()
        kind = type(each)
        if kind is dict:
            members = cast("dict[object, object]", each)
            if not all(type(name) is str and name.isascii() for name in members):
                return False
            pending += members.values()
        elif kind is list:
            pending += cast("list[object]", each)
        elif kind is int:
            if abs(cast("int", each)) > MAX_SAFE_INTEGER:
                return False
        elif kind is not str and kind is not bool and each is not None:
            return False
    return True


def digest(method: str, params: JsonObject, target: str | None) -> str | None:
    """SHA-256, hex, of a call's :func:`canonical` form (PROTOCOL 6)."""
    covered = canonical(method, params, target)
    return None if covered is None else hashlib.sha256(covered).hexdigest()


def proposal_problem(payload: object, raw: bytes) -> str:
    """The reason for which readers would read a proposal differently; empty: they do not.

    People, rules, the digest and the executor read the same members of a call (PROTOCOL 1), so a
    call is refused that has something else in their place, or a number that one of them rounds.

    Args:
        payload: The payload, decoded.
        raw: The same as it was written.
    """
    body = unwrapped(as_object(payload))
    method, params = body.get("method"), body.get("params")
    if not isinstance(method, str) or not method:
        return "the proposal has no 'method'"
    if params is not None and not isinstance(params, dict):
        return "the call's 'params' are not an object"
    return request_problem(body) or value_problem(as_object(body.get("params")), raw)


def request_problem(payload: object) -> str:
    """The reason for which readers would read a request differently; empty: they do not."""
    body = as_object(payload)
    if body.get("method") != TOOL_CALL:
        return ""
    params = as_object(body.get("params"))
    name, arguments = params.get("name"), params.get("arguments")
    if not isinstance(name, str) or not name:
        return "the call names no tool"
    if arguments is not None and not isinstance(arguments, dict):
        return "the call's 'arguments' are not an object"
    return ""


def check_call(method: str, params: JsonObject) -> None:
    """Check a call of our own as its readers will.

    Raises:
        NotExpressible: They would read it differently.
    """
    body: JsonObject = {"method": method, "params": params}
    if problem := proposal_problem(body, encode_leniently(body)):
        raise NotExpressible(problem)


def value_problem(params: object, raw: bytes) -> str:
    """The value in parameters that some readers would read otherwise, in words; empty: none.

    JavaScript rounds integers beyond its doubles, and its SDK of MCP drops arguments called
    ``__proto__`` (measured with 1.32).
    """
    number = find_unsafe_integer(raw, params)
    if number is not None:
        return (
            f"the integer {str(number)[:MAX_SHOWN_DIGITS]} is beyond ±(2^53 - 1), where readers"
            " round differently; pass it as a text"
        )
    if (_PROTOTYPE in raw or b"\\u" in raw) and _has_name(params, _PROTOTYPE.decode()):
        return "a member is called '__proto__', which readers in JavaScript drop; name it otherwise"
    return ""


def _has_name(value: object, name: str) -> bool:
    """True if an object in a JSON value has a member with a name."""
    pending = [value]
    while pending:
        each = pending.pop()
        if is_object(each):
            if name in each:
                return True
            pending += each.values()
        elif is_list(each):
            pending += each
    return False


class Change(FrozenStruct):
    """One value that a fulfillment has and its proposal had otherwise.

    Attributes:
        path: Where, for example ``arguments.path``; ``target`` is who executed it.
        proposed: The proposal's value; ``None`` where it had none.
        fulfilled: The fulfillment's value; ``None`` where it was taken out.
    """

    path: str
    proposed: Any
    fulfilled: Any


def changes(proposed: Call, fulfilled: Call, executor: str | None) -> tuple[Change, ...]:
    """The values that a fulfilling request has otherwise than its proposal, without ``_meta``."""
    found: list[Change] = []
    if proposed.method != fulfilled.method:
        found.append(Change("method", proposed.method, fulfilled.method))
    if proposed.target is not None and executor != proposed.target:
        found.append(Change("target", proposed.target, executor))
    _compare("", without_meta(proposed.params), without_meta(fulfilled.params), found)
    return tuple(found)


def _compare(path: str, before: object, after: object, found: list[Change]) -> None:
    # By recursion: it goes as deep as both do, and a proposal is no deeper than a frame may be.
    if is_object(before) and is_object(after):
        for name in before | after:
            inner = f"{path}.{name}" if path else name
            if name in before and name in after:
                _compare(inner, before[name], after[name], found)
            else:
                found.append(Change(inner, before.get(name), after.get(name)))
    elif not is_same_json(before, after):
        found.append(Change(path, before, after))


def is_same_json(before: object, after: object) -> bool:
    """True if two JSON values are one: ``1`` and ``1.0`` are, ``1`` and ``true`` are not."""
    # Not by recursion: a stranger's value may be deeper than that may go.
    pairs = [(before, after)]
    while pairs:
        old, new = pairs.pop()
        if is_object(old) and is_object(new):
            if old.keys() != new.keys():
                return False
            pairs += [(old[name], new[name]) for name in old]
        elif is_list(old) and is_list(new):
            if len(old) != len(new):
                return False
            pairs += zip(old, new, strict=True)
        elif isinstance(old, bool) != isinstance(new, bool) or old != new:
            return False
    return True


def build_proposal(
    method: str,
    params: JsonObject,
    *,
    target: str | None,
    expires: datetime | None,
    progress_token: str | None = None,
) -> JsonObject:
    """The payload of a proposal, with its digest (PROTOCOL 6).

    Raises:
        NotExpressible: Readers would read the call differently (PROTOCOL 1).
    """
    check_call(method, params)
    meta = dict(as_object(params.get(META)))
    if target is not None:
        meta[TARGET] = target
    own_digest = digest(method, params, target)
    if own_digest is not None:
        meta[DIGEST] = own_digest
    if expires is not None:
        meta[EXPIRES_AT] = expires.isoformat(timespec="milliseconds")
    if progress_token is not None:
        meta[PROGRESS_TOKEN] = progress_token
    return proposal(method, {**params, META: meta} if meta else params)


def with_expiry(payload: JsonObject, expires: datetime) -> JsonObject:
    """A proposal's payload that says when it expires; its digest is of other members."""
    params = as_object(payload.get("params"))
    meta = {
        **as_object(params.get(META)),
        EXPIRES_AT: expires.isoformat(timespec="milliseconds"),
    }
    return {**payload, "params": {**params, META: meta}}


def edit_call(call: Call, arguments: JsonObject, target: str | None) -> Call:
    """A proposed call with other arguments, and at another target if one is given."""
    params = {**call.params, "arguments": arguments}
    if target is not None:
        params[META] = {**call.meta, TARGET: target}
    return msgspec.structs.replace(call, params=params)


def build_fulfillment(
    call: Call,
    arguments: JsonObject | None,
    executor: str,
    *,
    proposer: str,
    rule: JsonObject | None = None,
    yes: str = "",
) -> tuple[JsonObject, tuple[Change, ...]]:
    """The parameters of a fulfilling request, with its proposer, and its edits (4.4, 6).

    Raises:
        NotExpressible: Readers would read the edited call differently (PROTOCOL 1).
    """
    params = without_meta(call.params)
    if arguments is not None:
        params["arguments"] = arguments
    check_call(call.method, params)
    edits = changes(call, Call(call.method, params), executor)
    meta: JsonObject = {}
    trace = call.meta.get(TRACEPARENT)
    if isinstance(trace, str) and len(trace) <= MAX_TRACEPARENT:
        # All else is shown neither to rules nor to people, and its target might act on it.
        meta[TRACEPARENT] = trace
    own_digest = digest(call.method, params, executor if call.target is not None else None)
    if own_digest is not None:
        meta[DIGEST] = own_digest
    if edits:
        meta[EDITED] = True
    meta[PROPOSER] = proposer
    if rule is not None:
        meta[RULE] = rule
    if yes:
        meta[YES] = yes
    params[META] = meta
    return params, edits


def build_renewal(expires_at: int) -> JsonObject:
    """The payload of a renewal: the later deadline, and nothing that the digest covers."""
    return {"expires_at": rfc3339(expires_at)}


def read_renewal(payload: JsonObject) -> int | None:
    """The deadline of a renewal in microseconds since 1970; ``None`` if it has none."""
    return read_moment(payload.get("expires_at"))


def build_end(reason: str, meta: JsonObject | None = None) -> JsonObject:
    """The payload of a rejection or a withdraw."""
    return {"reason": reason, META: meta} if meta else {"reason": reason}


def rejection_meta(rule: JsonObject | None, *, explained: bool) -> JsonObject:
    """The ``_meta`` of a rejection: the rule that decided it, and if its words follow (6)."""
    meta: JsonObject = {} if rule is None else {RULE: rule}
    return {**meta, EXPLAINED: True} if explained else meta


def chat_text(payload: JsonObject) -> str:
    """The words of a chat, in the form of any dialect; empty where there are none."""
    return as_text(payload.get("message", payload.get("text")))


def announces_explanation(payload: object) -> bool:
    """True if the payload of a rejection says that its words follow at once."""
    return as_object(as_object(payload).get(META)).get(EXPLAINED) is True


def read_response(payload: object) -> tuple[Any, JsonObject | None]:
    """Result and error of a response, also of bare results and string codes (PROTOCOL 1)."""
    body = as_object(payload)
    error = body.get("error")
    if error is None:
        return body.get("result", payload), None
    if is_object(error):
        return None, error
    return None, {"code": "error", "message": str(error)}


# --- payload reader ---
# Reads the fields of one payload that must have their form, and names the wrong one.

MAX_REASON_CHARS: Final = 1_000
"""Characters of a reason or an address: they are kept as long as what they are about."""

MAX_NAME_CHARS: Final = 256
"""Characters of a participant's name, as of an id."""


class PayloadReader:
    """Reads the fields of one payload, and names the wrong one."""

    def __init__(self, envelope: Envelope, payload: JsonObject) -> None:
        self.envelope = envelope
        self.payload = payload
        self.by = envelope.sender

    def problem(self, what: str) -> InvalidEnvelope:
        """The error for a payload with which its kind cannot be carried out."""
        return InvalidEnvelope(
            "invalid_envelope",
            f"the {self.envelope.kind!r} cannot be carried out: {what}",
            envelope_id=self.envelope.id,
        )

    def name(self, field: str) -> str:
        """The name in a field."""
        value = self.payload.get(field)
        if is_name(value):
            return value
        raise self.problem(f"its {field!r} must be a name of 1 to {MAX_NAME_CHARS} characters")

    def text(self, field: str) -> str:
        """The text in a field; empty where there is none."""
        value = self.payload.get(field)
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > MAX_REASON_CHARS:
            raise self.problem(
                f"its {field!r} must be a text of up to {MAX_REASON_CHARS} characters"
            )
        return value

    def count(self, field: str, *, required: bool = False) -> int | None:
        """The number in a field; ``None`` where there is none."""
        value = self.payload.get(field)
        if value is None and not required:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.problem(f"its {field!r} must be a whole number that is not negative")
        return value


def is_name(value: object) -> TypeGuard[str]:
    """True for a text that can be a name: not empty, not too long, all printable."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARS and value.isprintable()


# --- told rules ---
# The rule of a policy that a decision names, as its sender says (PROTOCOL 6).

MAX_TOLD_CHARS: Final = 200
"""Characters of a rule's name, verdict or digest, or of a voter's name, that are kept."""

MAX_TOLD_VOTES: Final = 100
"""Votes that are kept of one decision: as many as a rule has voters."""


class ToldRule(FrozenStruct):
    """A rule, as a fulfilling request or a rejection tells it.

    Attributes:
        name: The rule's name.
        verdict: Its verdict: ``allow``, ``ask``, ``deny`` or ``quorum``.
        policy: The policy's digest.
        of: Votes that it takes; 0 where it takes none.
        votes: The votes that its sender has counted.
    """

    name: str
    verdict: str = ""
    policy: str = ""
    of: int = 0
    votes: Mapping[str, str] = {}

    @property
    def document(self) -> JsonObject:
        """The rule as JSON has it."""
        said: JsonObject = {
            "rule": self.name,
            "verdict": self.verdict or None,
            "policy": self.policy or None,
        }
        return said | {"of": self.of, "votes": dict(self.votes)} if self.of else said


def read_told_rule(holder: object) -> ToldRule | None:
    """The rule in the ``_meta`` of parameters or of a payload; ``None`` where there is none.

    Of a use of a scoped yes that tells none, the yes.
    """
    meta = as_object(as_object(holder).get(META))
    said = as_object(meta.get(RULE))
    name = as_text(said.get("rule"), MAX_TOLD_CHARS)
    if not name and (yes := as_text(meta.get(YES), MAX_TOLD_CHARS)):
        return ToldRule(f"yes {yes}")
    if not name:
        return None
    of = said.get("of")
    votes = {
        voter[:MAX_TOLD_CHARS]: vote[:MAX_TOLD_CHARS]
        for voter, vote in list(as_object(said.get("votes")).items())[:MAX_TOLD_VOTES]
        if isinstance(vote, str)
    }
    return ToldRule(
        name,
        as_text(said.get("verdict"), MAX_TOLD_CHARS),
        as_text(said.get("policy"), MAX_TOLD_CHARS),
        of if isinstance(of, int) and not isinstance(of, bool) and of > 0 else 0,
        votes,
    )


PAUSE: Final = "participant/pause"
RESUME: Final = "participant/resume"
REQUEST_STATUS: Final = "participant/request-status"
STATUS: Final = "participant/status"
FORGET: Final = "participant/forget"
COMPACT: Final = "participant/compact"
COMPACT_DONE: Final = "participant/compact-done"
CLEAR: Final = "participant/clear"
RESTART: Final = "participant/restart"
SHUTDOWN: Final = "participant/shutdown"

HELD_KINDS: Final = frozenset(
    {
        kinds.MCP_REQUEST,
        kinds.MCP_PROPOSAL,
        kinds.CHAT,
        kinds.STREAM_REQUEST,
        kinds.REASONING_START,
        kinds.YES_GIVE,
    }
)
"""The kinds that begin something, which a participant that is paused may not send. A notification
begins nothing."""

PAUSED_KEY: Final = "dev.meup/paused"
"""In ``you`` of a welcome: the pause that holds for its reader, with the seconds that are left."""

MAX_PAUSE_SECONDS: Final = 30 * 24 * 3600.0
"""Longest time of a pause; one without a time lasts until it is lifted."""

MAX_FIELDS: Final = 64
"""Fields that a request of the status may name."""

Direction = Literal["oldest", "newest"]


class Pause(FrozenStruct):
    """A participant is to begin nothing new until it is resumed, or a time is over.

    Attributes:
        id: The id of the envelope that pauses; a resume refers to it.
        by: The participant that pauses.
        reason: Its reason.
        seconds: Seconds until the pause ends by itself; ``None``: it lasts until a resume.
    """

    id: str
    by: str
    reason: str = ""
    seconds: float | None = None


class Resumption(FrozenStruct):
    """The end of a pause.

    Attributes:
        by: The participant that lifted it; our own name where its time was over.
        reason: The reason.
        pauses: Ids of the pauses that it lifts; empty: any.
    """

    by: str
    reason: str = ""
    pauses: tuple[str, ...] = ()


class StatusRequest(FrozenStruct):
    """A participant asks for our status.

    Attributes:
        by: The participant that asks.
        fields: The fields that it wants; empty: all.
    """

    by: str
    fields: tuple[str, ...] = ()


class Forget(FrozenStruct):
    """We are to drop a part of our context.

    Attributes:
        by: The participant that asks for it.
        direction: ``oldest`` or ``newest``.
        entries: Entries to drop; ``None``: it leaves that to us.
        reason: Its reason.
    """

    by: str
    direction: Direction = "oldest"
    entries: int | None = None
    reason: str = ""


class Compact(FrozenStruct):
    """We are to shorten our context.

    Attributes:
        by: The participant that asks for it.
        target_tokens: Tokens that may remain; ``None``: it leaves that to us.
        reason: Its reason.
    """

    by: str
    target_tokens: int | None = None
    reason: str = ""


class _Order(FrozenStruct):
    by: str
    reason: str = ""


class Clear(_Order):
    """We are to drop all of our context. ``by`` asks for it, with a ``reason``."""


class Restart(_Order):
    """We are to begin anew; what ran has ended. ``by`` asks for it, with a ``reason``."""


class Shutdown(_Order):
    """We are to finish what runs, and to leave. ``by`` asks for it, with a ``reason``."""


class ParticipantStatus(FrozenStruct):
    """The status of a participant, by its own word.

    Attributes:
        participant: The participant.
        status: Its state in a word: ``active``, ``paused`` …; empty where it says none.
        fields: All that it says, the same included.
        about: The id of the envelope that it answers.
    """

    participant: str
    status: str
    fields: JsonObject
    about: str | None = None


class CompactDone(FrozenStruct):
    """The end of a compaction.

    Attributes:
        participant: The participant that has compacted its context.
        skipped: There was nothing to compact.
        fields: All that it says.
        about: The id of the request for it.
    """

    participant: str
    skipped: bool
    fields: JsonObject
    about: str | None = None


class Acknowledgement(FrozenStruct):
    """The word of a participant that it has got a chat message.

    Attributes:
        chat_id: The message.
        by: The participant.
        status: What it makes of it: ``received``, ``read``, ``processing`` …
    """

    chat_id: str
    by: str
    status: str = ""


def read_acknowledgement(envelope: Envelope) -> Acknowledgement:
    """Read a ``chat/acknowledge``, whatever stands in it."""
    said = as_text(envelope.payload_object.get("status"))
    return Acknowledgement(_first(envelope.correlation) or "", envelope.sender, said)


Control = (
    Pause
    | Resumption
    | StatusRequest
    | Forget
    | Compact
    | Clear
    | Restart
    | Shutdown
    | ParticipantStatus
    | CompactDone
)


def read_control(envelope: Envelope, payload: JsonObject) -> Control:
    """Read an envelope of participant control; InvalidEnvelope where its payload cannot be meant.

    Existing terminals leave the payload out, or send more than the specification has.
    """
    return _CONTROL_READERS[envelope.kind](PayloadReader(envelope, payload))


def _pause(read: PayloadReader) -> Pause:
    said = read.payload.get("timeout_seconds")
    seconds = number(said)
    if said is not None and (seconds is None or not 0 < seconds <= MAX_PAUSE_SECONDS):
        raise read.problem(
            f"its 'timeout_seconds' must be a number above 0, and at most {MAX_PAUSE_SECONDS:g}"
        )
    reason = read.text("reason")
    return Pause(read.envelope.id, read.by, reason, seconds)


def _status_request(read: PayloadReader) -> StatusRequest:
    said: object = read.payload.get("fields", [])
    listed = as_list(said)
    fields = [each for each in listed if isinstance(each, str)]
    if not isinstance(said, list) or len(fields) != len(listed) or len(fields) > MAX_FIELDS:
        raise read.problem(f"its 'fields' must be a list of at most {MAX_FIELDS} names")
    return StatusRequest(read.by, tuple(fields))


def _forget(read: PayloadReader) -> Forget:
    direction = read.payload.get("direction", "oldest")
    if direction not in ("oldest", "newest"):
        raise read.problem("its 'direction' must be 'oldest' or 'newest'")
    return Forget(read.by, direction, read.count("entries"), read.text("reason"))


_CONTROL_READERS: Final[dict[str, Callable[[PayloadReader], Control]]] = {
    PAUSE: _pause,
    RESUME: lambda read: Resumption(read.by, read.text("reason"), read.envelope.correlation),
    REQUEST_STATUS: _status_request,
    STATUS: lambda read: ParticipantStatus(
        read.by,
        as_text(read.payload.get("status")),
        read.payload,
        _first(read.envelope.correlation),
    ),
    FORGET: _forget,
    COMPACT: lambda read: Compact(read.by, read.count("target_tokens"), read.text("reason")),
    COMPACT_DONE: lambda read: CompactDone(
        read.by,
        read.payload.get("skipped") is True,
        read.payload,
        _first(read.envelope.correlation),
    ),
    CLEAR: lambda read: Clear(read.by, read.text("reason")),
    RESTART: lambda read: Restart(read.by, read.text("reason")),
    SHUTDOWN: lambda read: Shutdown(read.by, read.text("reason")),
}
CONTROL_KINDS: Final = frozenset(_CONTROL_READERS)
"""The kinds of participant control."""

ANSWERS: Final = frozenset({STATUS, COMPACT_DONE, RESUME})
"""The kinds by which a participant answers what it was asked."""

ASKED: Final = CONTROL_KINDS - ANSWERS
"""The kinds that ask a participant for something, which it answers."""


def build_pause(pause: Pause, seconds_left: float | None) -> JsonObject:
    """The value of :data:`PAUSED_KEY`."""
    left = {} if seconds_left is None else {"seconds_left": seconds_left}
    return {"id": pause.id, "by": pause.by, "reason": pause.reason, **left}


def read_pause(you: JsonObject) -> Pause | None:
    """The pause that a welcome tells; ``None``: none holds."""
    said = as_object(you.get(PAUSED_KEY))
    name, by, reason = said.get("id"), said.get("by"), said.get("reason", "")
    if not (isinstance(name, str) and isinstance(by, str) and isinstance(reason, str)):
        return None
    return Pause(name, by, reason, number(said.get("seconds_left")))


def outlasts(held: tuple[str, float | None], new: tuple[str, float | None]) -> bool:
    """True if a pause in force (by whom, until when) goes on when another one comes.

    A participant changes its own; of two participants' pauses the one that ends later counts.
    """
    (by, until), (newer, new_until) = held, new
    if by == newer:
        return False
    return until is None or (new_until is not None and until > new_until)


def _first(correlation: tuple[str, ...]) -> str | None:
    return correlation[0] if correlation else None


GRANT: Final = "capability/grant"
REVOKE: Final = "capability/revoke"
GRANT_ACK: Final = "capability/grant-ack"
INVITE: Final = "space/invite"
INVITE_ACK: Final = "space/invite-ack"
KICK: Final = "space/kick"

MAX_GRANTED: Final = 64
"""Capabilities in one grant, revocation or invitation: each is held against all that its granter
has."""

_NO_NAME: Final = ("/", "\\", "..")

UNKNOWN_PARTICIPANT: Final = "unknown_participant"
"""The error for a name that no participant of the space has (PROTOCOL 3)."""

ALREADY_EXISTS: Final = "already_exists"
"""The status of an invitation of a participant that the space has, in the published dialects."""


class Grant(FrozenStruct):
    """Capabilities that one participant gave to another.

    Attributes:
        id: Names it where it is revoked: the id of the envelope that gave them.
        by: The granter.
        participant: The participant that got them.
        capabilities: The capabilities, as JSON values.
        reason: The granter's reason.
    """

    id: str
    by: str
    participant: str
    capabilities: tuple[JsonObject, ...]
    reason: str = ""


class Revocation(FrozenStruct):
    """Capabilities that were taken away: those of a grant, or all that some patterns cover.

    Attributes:
        by: The participant that revoked them.
        participant: The participant that had them; empty where only the grant is named.
        grant_id: The grant that is revoked; empty where patterns say what is.
        capabilities: The patterns; none where a grant is named.
        reason: The reason of the one that revoked.
    """

    by: str
    participant: str
    grant_id: str = ""
    capabilities: tuple[JsonObject, ...] = ()
    reason: str = ""


class Invite(FrozenStruct):
    """An invitation into the space; this gateway sends none to its address."""

    by: str
    participant: str
    capabilities: tuple[JsonObject, ...] = ()  # its capabilities when it comes
    email: str = ""  # an address for the invitation; this gateway sends none
    reason: str = ""


class Kick(FrozenStruct):
    """A removal from the space, until the participant is invited again."""

    by: str
    participant: str
    reason: str = ""


Management = Grant | Revocation | Invite | Kick


def read_management(envelope: Envelope, payload: JsonObject) -> Management:
    """Read an envelope of one of :data:`MANAGEMENT_KINDS`.

    Raises:
        InvalidEnvelope: It lacks something, or has something else.
    """
    return _MANAGEMENT_READERS[envelope.kind](_ManagementReader(envelope, payload))


def _grant(read: _ManagementReader) -> Grant:
    capabilities = read.capabilities("capabilities")
    if not capabilities:
        raise read.problem("its 'capabilities' are none; list what is granted")
    recipient, reason = read.name("recipient"), read.text("reason")
    return Grant(read.envelope.id, read.by, recipient, capabilities, reason)


def _revocation(read: _ManagementReader) -> Revocation:
    by_id = "grant_id" in read.payload
    if by_id == ("capabilities" in read.payload):
        raise read.problem("it needs either a 'grant_id' or 'capabilities'")
    capabilities = () if by_id else read.capabilities("capabilities")
    if not by_id and not capabilities:
        raise read.problem("its 'capabilities' are none; list what is revoked")
    return Revocation(
        read.by,
        "" if by_id and "recipient" not in read.payload else read.name("recipient"),
        read.name("grant_id") if by_id else "",
        capabilities,
        read.text("reason"),
    )


_MANAGEMENT_READERS: Final[dict[str, Callable[[_ManagementReader], Management]]] = {
    GRANT: _grant,
    REVOKE: _revocation,
    INVITE: lambda read: Invite(
        read.by,
        read.new_name("participant_id"),
        read.capabilities("initial_capabilities"),
        read.text("email"),
        read.text("reason"),
    ),
    KICK: lambda read: Kick(read.by, read.name("participant_id"), read.text("reason")),
}

MANAGEMENT_KINDS: Final = frozenset(_MANAGEMENT_READERS)
"""The kinds that manage a space."""


class _ManagementReader(PayloadReader):
    """Reads what payloads of the management alone have."""

    def new_name(self, field: str) -> str:
        """A name that others may make files and addresses of."""
        value = self.payload.get(field)
        if isinstance(value, str) and (
            not value.isprintable() or any(part in value for part in _NO_NAME)
        ):
            raise self.problem(
                f"its {field!r} has invalid characters: a name has no '/', no backslash, no '..'"
                " and no control characters"
            )
        return self.name(field)

    def capabilities(self, field: str) -> tuple[JsonObject, ...]:
        value: object = self.payload.get(field, [])
        if not is_list(value):
            raise self.problem(f"its {field!r} must be a list of capabilities")
        if len(value) > MAX_GRANTED:
            raise self.problem(f"its {field!r} lists {len(value)}; at most {MAX_GRANTED} are taken")
        if not all(map(is_object, value)):
            raise self.problem(f"its {field!r} must hold objects such as {{'kind': 'chat'}}")
        return tuple(stripped(value))
