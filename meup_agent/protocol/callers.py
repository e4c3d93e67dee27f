"""The participants that may call a tool, as announced, and those that could if it were granted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, Final, cast

import msgspec

from meup_agent.errors import printable
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.capability import Capabilities, compile_announced
from meup_agent.protocol.management_payloads import GRANT

MAX_LOOKED_AT: Final = 100
"""Participants that are looked at for those that could call a tool: a person reads few names."""

MAX_SUGGESTED: Final = 4
"""Participants that are named."""

MAX_SHOWN_NAME: Final = 64
"""Characters of a name in the sentence."""

_NOT_PLAIN: Final = re.compile(r"[*?\[\]{}]|^[!/$]")
_DECIDES: Final = {"reason": "other"}


class MissingCaller(msgspec.Struct, frozen=True):
    """The lack of a participant that may make a call.

    Attributes:
        call: The call, as ``participant.tool``.
        capability: The capability that would allow it.
        could: Present participants that decide proposals, and could make it if that were granted.
        may_grant: Present participants that may grant capabilities.
    """

    call: str
    capability: dict[str, Any]
    could: tuple[str, ...] = ()
    may_grant: tuple[str, ...] = ()

    def __str__(self) -> str:
        """A sentence with what to do about it."""
        could = ", ".join(_shown(name) for name in self.could) or "a participant that decides"
        granted = printable(json.dumps(self.capability, ensure_ascii=False))
        by = " or ".join(_shown(name) for name in self.may_grant)
        how = f", which {by} may do" if by else ""
        return f"nobody here may call {self.call}; {could} could, if granted {granted}{how}"


def capability_for(method: str, name: str) -> dict[str, Any]:
    """The capability that allows one call, with whatever arguments."""
    payload: dict[str, Any] = {"method": _exactly(method)}
    if name:
        payload["params"] = {"name": _exactly(name)}
    return {"kind": kinds.MCP_REQUEST, "payload": payload}


def find_missing(
    call: payloads.Call,
    participants: Iterable[tuple[str, Sequence[object]]],
    *,
    me: str,
) -> MissingCaller:
    """Describe who could make a call that no present participant may make.

    A participant that rejects is one that decides; where none does, one that makes other calls.
    """
    capability = capability_for(call.method, call.name)
    grant = {"recipient": me, "capabilities": [capability]}
    rejects: list[str] = []
    calls: list[str] = []
    grants: list[str] = []
    for name, capabilities in islice(participants, MAX_LOOKED_AT):
        may = compile_announced(capabilities)
        if may.allow(GRANT, grant):
            grants.append(name)
        if name in (me, call.target):
            continue
        if may.allow(kinds.MCP_REJECT, _DECIDES, (me,)):
            rejects.append(name)
        elif _makes_calls(may):
            calls.append(name)
    owner = "" if call.target is None else f"{_shown(call.target)}."
    return MissingCaller(
        owner + _shown(call.name or call.method),
        capability,
        tuple((rejects or calls)[:MAX_SUGGESTED]),
        tuple(grants[:MAX_SUGGESTED]),
    )


class Allowed(StrEnum):
    """The arguments with which a participant may call a tool."""

    ANY = "any"
    SOME = "some"
    NONE = "none"


def allowed_arguments(
    capabilities: Sequence[object], tool: str, owner: str | None = None
) -> Allowed:
    """The arguments with which announced capabilities allow the call of a tool.

    Without its owner, a capability that limits addressees allows some.
    """
    to = () if owner is None else (owner,)
    params: dict[str, Any] = {"name": tool, "arguments": {}}
    payload = {"method": payloads.TOOL_CALL, "params": params}
    if compile_announced(capabilities).allow(kinds.MCP_REQUEST, payload, to):
        return Allowed.ANY
    wider = [_without_arguments(each, limits_to=owner is not None) for each in capabilities]
    some = compile_announced(wider).allow(kinds.MCP_REQUEST, payload, to)
    return Allowed.SOME if some else Allowed.NONE


def _without_arguments(pattern: object, *, limits_to: bool) -> object:
    """A capability without what it says of a tool's arguments, and perhaps of addressees."""
    members = dict(payloads.as_object(pattern))
    if not limits_to:
        members.pop("to", None)
    payload = payloads.as_object(members.get("payload"))
    params = payload.get("params")
    if isinstance(params, dict):
        kept = dict(cast("dict[str, object]", params))
        kept.pop("arguments", None)
        members["payload"] = {**payload, "params": kept}
    return members


def _makes_calls(may: Capabilities) -> bool:
    """True if a capability is about calls of tools, whichever."""
    for pattern in may.patterns:
        payload = payloads.as_object(payloads.as_object(pattern).get("payload"))
        about = {name: value for name, value in payload.items() if name == "method"}
        kind = {"kind": payloads.as_object(pattern).get("kind"), "payload": about}
        if compile_announced([kind]).allow(kinds.MCP_REQUEST, {"method": payloads.TOOL_CALL}):
            return True
    return False


def _exactly(name: str) -> str:
    """The pattern that matches a name and nothing else."""
    return f"/^{re.escape(name)}$/" if _NOT_PLAIN.search(name) else name


def _shown(name: str) -> str:
    return printable(name[:MAX_SHOWN_NAME])
