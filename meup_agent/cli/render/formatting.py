"""Envelopes, results of tools and capabilities in words that are safe to print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from meup_agent.escape import compact, visible
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.outcomes import Responded, value_of
from meup_agent.protocol.payloads import as_object, objects_in
from meup_agent.wording import MAX_CALL, MAX_NAME, format_call, format_proposed, mark_cut

MAX_SAID: Final = 400  # characters of what an envelope says: some lines of a narrow terminal

MAX_NAMES: Final = 8  # names of those whom an envelope is for; of more, only how many

_NOUNS: Final = {
    kinds.MCP_REQUEST: "request",
    kinds.MCP_RESPONSE: "response",
    kinds.MCP_PROPOSAL: "proposal",
    kinds.MCP_WITHDRAW: "withdraw",
    kinds.MCP_REJECT: "reject",
    kinds.MCP_RENEW: "renew",
    kinds.REASONING_START: "reasons",
    kinds.REASONING_THOUGHT: "thought",
    kinds.REASONING_CONCLUSION: "reasoned",
    kinds.REASONING_CANCEL: "stopped",
    kinds.SYSTEM_WELCOME: "welcome",
    kinds.SYSTEM_ERROR: "refused",
}

_TEXTS: Final = {
    kinds.MCP_WITHDRAW: ("reason",),
    kinds.MCP_REJECT: ("reason",),
    kinds.MCP_RENEW: ("expires_at",),
    kinds.CHAT: ("message", "text"),
    kinds.REASONING_START: ("message", "text"),
    kinds.REASONING_THOUGHT: ("message", "text"),
    kinds.REASONING_CONCLUSION: ("message", "text"),
    kinds.REASONING_CANCEL: ("reason",),
}
"""The field of a payload that is shown alone, where it has it."""

EXPIRY: Final = "expiry"
"""The word for the end of a proposal's time, of which no envelope tells."""

NOUNS: Final = (*_NOUNS.values(), "cancel", "progress", EXPIRY)
"""The words that this file says for kinds of envelopes, or of what they hold."""

MAX_STREAM_FIELD: Final = 100  # characters of a field of a message about a stream
MAX_CAPABILITY: Final = 200  # characters of one capability


class ProgressFigures(NamedTuple):
    """The figures of a progress."""

    done: float
    total: float | None


class FormattedEnvelope(NamedTuple):
    """An envelope in words."""

    noun: str  # its kind
    said: str
    progress: ProgressFigures | None = None
    failed: bool = False
    who: str = ""  # the sender; for presence, the participant that came or went
    whom: str = ""  # empty: all participants


def name_some(names: Sequence[str], limit: int) -> str:
    """The first of some names, safe to print, and how many more there are."""
    shown = ", ".join(visible(name, MAX_NAME) for name in names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def counted(number: int, noun: str) -> str:
    """A number of things, such as ``1 case`` or ``1,200 cases``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def counted_as(number: int, noun: str) -> str:
    """The beginning of a sentence about so many things: ``1 case is``, ``3 cases are``."""
    return f"{counted(number, noun)} {'is' if number == 1 else 'are'}"


def format_envelope(envelope: Envelope) -> FormattedEnvelope:
    """Put an envelope into words."""
    who, whom = envelope.sender, name_some(envelope.to, MAX_NAMES)
    if envelope.kind == kinds.SYSTEM_PRESENCE:
        who, whom = _name(envelope.payload_object.get("participant")), ""
    elif envelope.sender in kinds.GATEWAY_NAMES:
        who = "gateway"
    return _content(envelope)._replace(who=visible(who, MAX_NAME), whom=whom)


def _content(envelope: Envelope) -> FormattedEnvelope:
    payload = envelope.payload_object
    noun = _NOUNS.get(envelope.kind, visible(envelope.kind, MAX_NAME))
    failed = False
    match envelope.kind:
        case kinds.MCP_PROPOSAL | kinds.MCP_REQUEST as kind:
            is_proposal = kind == kinds.MCP_PROPOSAL
            body = payloads.unwrapped(payload) if is_proposal else payload
            if payloads.request_problem(body):
                said = mark_cut(compact(payload, MAX_CALL), more=WHOLE_CALL)
            elif is_proposal:
                said = format_proposed(payloads.read_call(body), more=WHOLE_CALL)
            else:
                return _request(noun, payloads.read_call(body))
        case kinds.MCP_RESPONSE:
            said, failed = format_answer(payload)
        case kinds.SYSTEM_PRESENCE:
            noun, said = compact_text(payload.get("event"), MAX_NAME), ""
        case kinds.SYSTEM_WELCOME:
            said = _welcome(payload)
        case kinds.SYSTEM_ERROR:
            code = compact_text(payload.get("error"), MAX_NAME)
            said, failed = f"{code}: {compact_text(payload.get('message'))}", True
        case kind if kind.startswith("stream/"):
            said = _stream(payload)
        case kind:
            texts = (payload[field] for field in _TEXTS.get(kind, ()) if field in payload)
            said = compact_text(next(texts, payload))
    return FormattedEnvelope(noun, said, failed=failed)


WHOLE_CALL: Final = "meup tail --json"
"""Command that shows all of a call."""

_STREAM_WORDS: Final = (
    ("participant_id", "for "),
    ("new_owner", "to "),
    ("content_type", ""),
    ("format", ""),
    ("description", ""),
    ("frames", "frames: "),
    ("reason", ""),
    ("text", ""),
)
"""Fields of messages about streams that a reader is shown, in this order, and the word before."""


def _stream(payload: dict[str, Any]) -> str:
    """A message about a stream: its id, whom it is for, and the rest that counts."""
    target = payload.get("target")
    listed = payloads.as_list(target)
    said = [compact_text(payload["stream_id"], MAX_NAME)] if "stream_id" in payload else []
    said += [f"to {name_some([str(each) for each in listed], MAX_NAMES)}"] if listed else []
    said += [
        word + compact_text(payload[field], MAX_STREAM_FIELD)
        for field, word in _STREAM_WORDS
        if field in payload
    ]
    return ", ".join(said)


def _request(noun: str, call: payloads.Call) -> FormattedEnvelope:
    if call.method == kinds.CANCELLED:
        return FormattedEnvelope("cancel", _cancel(call))
    if call.method == kinds.PROGRESS:
        done, total = _number(call.params.get("progress")), _number(call.params.get("total"))
        said = compact_text(call.params.get("message") or "")
        return FormattedEnvelope("progress", said, ProgressFigures(done or 0.0, total))
    return FormattedEnvelope(noun, format_call(call, more=WHOLE_CALL))


def _cancel(call: payloads.Call) -> str:
    """A cancel's reason, and who began it, where it came along a chain."""
    said = compact_text(call.params.get("reason", "no reason given"))
    links = objects_in(call.meta.get(payloads.CAUSE))
    if not links:
        return said
    return f"{said}, begun by {compact_text(links[-1].get('by'), MAX_NAME)}"


def format_answer(payload: dict[str, Any]) -> tuple[str, bool]:
    """A response's result or error."""
    if "error" in payload:
        error = as_object(payload["error"])
        code, message = compact(error.get("code"), 32), compact_text(error.get("message"))
        return f"error {code}: {message}", True
    result = payload.get("result")
    body = as_object(result)
    failed = body.get("isError") is True
    structured = body.get("structuredContent")
    if structured is not None and not failed:
        if as_object(body.get("_meta")).get(payloads.WRAPPED) is True:
            structured = as_object(structured).get("result")
        return compact(structured, MAX_SAID), False
    texts = [block["text"] for block in objects_in(body.get("content")) if "text" in block]
    if texts:
        said = " ".join(compact_text(text) for text in texts[:8])
    else:
        said = compact(result, MAX_SAID)
    return (f"failed: {said}" if failed else said), failed


def _welcome(payload: dict[str, Any]) -> str:
    others = [_name(item) for item in objects_in(payload.get("participants"))]
    you = visible(_name(payload.get("you")), MAX_NAME)
    return f"{you} is in; here: {name_some(others, 16) or 'no others'}"


def _name(participant: object) -> str:
    name = as_object(participant).get("id")
    return name if isinstance(name, str) else "?"


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # Beyond this no float is exact, and a stranger's integer may not even fit one.
    return float(value) if abs(value) < 2**53 else None


def compact_text(value: object, limit: int = MAX_SAID) -> str:
    """A text as it is; anything else as JSON."""
    return visible(value, limit) if isinstance(value, str) else compact(value, limit)


# --- results of tools ---


def as_text(result: Any) -> str:
    """A tool's result: text as it is, other content block by block, structure as indented JSON.

    Line ends and tabs stay; any other character that does not print as itself is escaped. Empty,
    if the tool returned nothing.
    """
    value = value_of(Responded("", result))
    if value is None and "structuredContent" not in as_object(result):
        return ""
    if isinstance(value, list) and value is as_object(result).get("content"):
        return "".join(_lines(_block(block)) for block in cast("list[object]", value))
    return _lines(value if isinstance(value, str) else _as_json(value))


def _block(block: object) -> str:
    body = as_object(block)
    match body.get("type"):
        case "text" if isinstance(body.get("text"), str):
            return str(body["text"])
        case ("image" | "audio") as kind if isinstance(body.get("data"), str):
            about = body.get("mimeType", "of an unknown type")
            return f"[{kind} {about}, {len(body['data'])} characters of base64: see --json]"
        case _:
            return _as_json(block)


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _lines(text: str) -> str:
    """The lines of a text, escaped but for line ends and tabs; the last one ends, too."""
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    return "".join("\t".join(map(visible, line.split("\t"))) + "\n" for line in lines)


# --- capabilities ---


def format_capability(capability: Any) -> str:
    """A capability in a few words: ``mcp/request tools/call write_*``."""
    body = as_object(capability)
    kind, payload = body.get("kind"), as_object(body.get("payload"))
    if kind in ("*", "**") and not payload:
        return "anything"
    patterns = cast("list[object]", kind) if isinstance(kind, list) else [kind]
    words = [" | ".join(kinds.canonical(str(each)) for each in patterns)]
    params = payload.get("params")
    is_plain = payload.keys() <= {"method", "params"} and as_object(params).keys() <= {"name"}
    if payload and is_plain:
        words += [_pattern(payload.get("method", "*"))] if "method" in payload else []
        words += [_pattern(as_object(params)["name"])] if as_object(params) else []
        return visible(" ".join(words), MAX_CAPABILITY)
    if payload:
        words.append(compact(payload, MAX_CAPABILITY))
    return visible(" ".join(words), MAX_CAPABILITY)


def _pattern(pattern: object) -> str:
    return pattern if isinstance(pattern, str) else compact(pattern, MAX_CAPABILITY)
