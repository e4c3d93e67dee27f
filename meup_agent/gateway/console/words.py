"""Capabilities and steps in words, for people who have never read a pattern."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from meup_agent.protocol.audit import StepKind

_DEEDS: Final = {
    "*": "send anything",
    "**": "send anything",
    "mcp/*": "send any MCP message: proposals, requests, answers, rejections",
    "mcp/proposal": "propose calls",
    "mcp/request": "make requests: run tools, and carry out what others propose",
    "mcp/response": "answer requests",
    "mcp/reject": "reject proposals",
    "mcp/withdraw": "withdraw its own proposals",
    "chat": "talk",
    "capability/*": "grant and revoke capabilities",
    "capability/grant": "grant capabilities",
    "capability/revoke": "revoke capabilities",
    "space/*": "invite and remove participants",
    "space/invite": "invite participants",
    "space/kick": "remove participants",
    "stream/*": "open and feed streams",
    "stream/request": "open streams",
    "reasoning/*": "think aloud, and stop others' lines of thought",
    "reasoning/cancel": "stop others' lines of thought",
    "participant/*": "pause, watch and stop participants",
    "participant/request-status": "ask participants for their status",
    "participant/status": "tell its status unasked",
    "participant/pause": "pause participants",
    "participant/resume": "let paused participants go on",
    "participant/restart": "restart participants",
    "participant/shutdown": "shut participants down",
    "participant/compact": "have participants shorten their context",
    "participant/forget": "have participants drop a part of their context",
    "participant/clear": "have participants drop their context",
}

STEPS: Final = {
    StepKind.PROPOSED: "proposed the call",
    StepKind.REQUESTED: "approved it: made the real request",
    StepKind.CANCELLED: "cancelled the request",
    StepKind.PROGRESSED: "told its progress",
    StepKind.RESPONDED: "answered",
    StepKind.REJECTED: "rejected it",
    StepKind.WITHDREW: "withdrew it",
    StepKind.SAID: "said",
    StepKind.REFERRED: "asked for something else about it",
}
"""Kind of a step → its words, after the name of its participant."""


def describe_capability(pattern: Mapping[str, Any]) -> str:
    """A capability in a sentence that goes on from "may"."""
    kind = str(pattern.get("kind", "*"))
    denied = kind.startswith("!")
    deed = _DEEDS.get(kind.removeprefix("!"), f"send {kind.removeprefix('!')}")
    conditions = list(_conditions(pattern))
    if conditions:
        deed = deed.partition(":")[0]
    where = f", where {' and '.join(conditions)}" if conditions else ""
    return f"{'not ' if denied else ''}{deed}{where}"


def _conditions(pattern: Mapping[str, Any]) -> Iterator[str]:
    for key, value in pattern.items():
        if key == "to":
            yield f"it is addressed to {_alternatives(value)}"
        elif key != "kind":
            yield from _of_payload(key if key != "payload" else "", value)


def _of_payload(place: str, value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in cast("dict[str, object]", value).items():
            yield from _of_payload(f"{place}.{key}" if place else key, each)
        return
    words = {"method": "the method", "params.name": "the tool"}
    named = words.get(place) or place.replace("params.arguments.", "its argument ")
    yield f"{named} is {_alternatives(value)}"


def _alternatives(value: object) -> str:
    if isinstance(value, list):
        return " or ".join(map(_alternatives, cast("list[object]", value)))
    if isinstance(value, str):
        if value.startswith("!"):
            return f"anything but {value[1:]}"
        return (
            f"like {value}"
            if value.startswith("/") or any(each in value for each in "*?[")
            else value
        )
    return json.dumps(value, ensure_ascii=False)
