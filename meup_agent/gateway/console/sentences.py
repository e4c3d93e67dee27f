"""Envelopes in words: a verb, the rest of its sentence, and the class of its colour."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.payloads import as_list, as_object
from meup_agent.wording import describe_reason, format_call, format_proposed

if TYPE_CHECKING:
    from meup_agent.protocol.envelope import Envelope

MAX_WORDS: Final = 240
"""Characters of an envelope's words; all of them are a link away."""

REASONING: Final = "reasoning/"
STREAM: Final = "stream/"

_WORDS: Final = {
    kinds.MCP_PROPOSAL: "proposes",
    kinds.MCP_REQUEST: "asks",
    kinds.MCP_RESPONSE: "answers",
    kinds.MCP_REJECT: "rejects",
    kinds.MCP_WITHDRAW: "withdraws",
    kinds.CHAT: "says",
    "reasoning/start": "begins to think",
    "reasoning/thought": "thinks",
    "reasoning/conclusion": "concludes",
    "reasoning/cancel": "stops the thinking",
    "stream/request": "asks for a stream",
    "stream/open": "opens a stream",
    "stream/close": "closes a stream",
}

_TOLD: Final = (
    "message",
    "text",
    "thought",
    "content",
    "conclusion",
    "input",
    "description",
    "reason",
)
"""Members of a payload that may have words, in the order in which they are looked for."""


def describe(envelope: Envelope) -> tuple[str, str, str]:
    """An envelope's verb, the rest of its sentence, and the class of its colour."""
    try:
        verb, words, tone = _describe(envelope)
    except (ValueError, RecursionError):
        verb, words, tone = "sends", f"{envelope.kind}, which cannot be read", "other"
    if len(words) > MAX_WORDS:
        words = words[:MAX_WORDS] + " …"
    return verb, words, tone


def _describe(envelope: Envelope) -> tuple[str, str, str]:
    kind = envelope.kind
    verb = _WORDS.get(kind, "sends")
    payload = envelope.payload_object
    if kind == kinds.MCP_PROPOSAL:
        call = payloads.read_proposal(envelope.payload)
        return verb, format_proposed(call, MAX_WORDS), "proposal"
    if kind == kinds.MCP_REQUEST:
        call = payloads.read_call(envelope.payload)
        if call.method == kinds.CANCELLED:
            return "cancels", str(call.params.get("reason", "")), "cancel"
        if call.method == kinds.PROGRESS:
            done, total = call.params.get("progress"), call.params.get("total")
            of = "" if total is None else f" of {total}"
            return "progress", f"{done}{of} {call.params.get('message') or ''}".strip(), "progress"
        return verb, format_call(call, MAX_WORDS), "request"
    if kind == kinds.MCP_RESPONSE:
        failed = "error" in payload or as_object(payload.get("result")).get("isError") is True
        body = payload.get("error") if "error" in payload else payload.get("result")
        return (
            ("fails" if failed else verb),
            words_of_answer(body),
            "error" if failed else "response",
        )
    if kind == kinds.MCP_REJECT:
        return verb, describe_reason(str(payload.get("reason") or "")), "reject"
    if kind == kinds.MCP_WITHDRAW:
        return verb, describe_reason(str(payload.get("reason") or "")), "withdraw"
    if kind == kinds.CHAT:
        text = payload.get("message", payload.get("text"))
        return verb, text if isinstance(text, str) else "", "chat"
    if kind == kinds.SYSTEM_PRESENCE:
        name = as_object(payload.get("participant")).get("id", "")
        event = {"join": "came", "leave": "left"}.get(str(payload.get("event")), "changed")
        return "tells", f"{name} {event}", "system"
    if kind.startswith((REASONING, STREAM)):
        told = (payload.get(each) for each in _TOLD)
        words = next((each for each in told if isinstance(each, str)), "")
        if kind not in _WORDS:
            words = f"{kind} {words or _compact(payload)}"
        return verb, words, "reasoning" if kind.startswith(REASONING) else "stream"
    return verb, f"{kind} {_compact(payload)}", "system" if kind.startswith("system") else "other"


def words_of_answer(body: object) -> str:
    """An answer's own words, where it has nothing but words; the names of tools; else its JSON."""
    said = as_object(body)
    content, tools = as_list(said.get("content")), as_list(said.get("tools"))
    message = said.get("message")
    if content:
        texts = [as_object(each).get("text") for each in content[:MAX_WORDS]]
        if all(isinstance(each, str) for each in texts):
            return " ".join(str(each)[: 2 * MAX_WORDS] for each in texts)
    if tools:
        names = (str(as_object(each).get("name"))[:MAX_WORDS] for each in tools[:MAX_WORDS])
        return f"{len(tools)} tool{'s' * (len(tools) != 1)}: {', '.join(names)}"
    return message if isinstance(message, str) else _compact(body)


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))[: 2 * MAX_WORDS]
