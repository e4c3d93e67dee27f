"""Envelopes, results and capabilities in safe words, and the columns they stand in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise, starmap
from typing import Any, Final, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from meup_agent.escape import compact, visible
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.outcomes import Responded, read_report, value_of
from meup_agent.protocol.wire.payloads import as_object, is_list, objects_in, one_or_more
from meup_agent.wording import (
    MAX_CALL,
    MAX_NAME,
    format_call,
    format_proposed,
    mark_cut,
    shown_name,
)

# --- ids ---

MAX_FOLLOWED: Final = 10_000
"""Ids that are remembered to be shown again alike: more than a person follows."""

SHORT_ID: Final = 8  # characters of an id that are shown, more where another one begins alike

WHOLE_ID: Final = 12
"""Ids up to this long are shown whole: people, or programs that count, made them."""


class IdPrefixes:
    """Short forms of ids, which tell each from its neighbours and from the latest before.

    They have ``least`` characters or more; an id of up to ``whole`` is shown whole.
    """

    def __init__(self, least: int = SHORT_ID, whole: int = WHOLE_ID) -> None:
        self._least = least
        self._whole = whole
        self._taken: dict[str, str] = {}

    def of(self, ids: Iterable[str]) -> dict[str, str]:
        """The short forms of the next ids."""
        texts = {each: visible(each) for each in ids}
        ordered = sorted(set(texts.values()))
        beside = [0, *starmap(_alike, pairwise(ordered)), 0]
        shorts = {
            each: self._short(each, max(*alike, self._least - 1) + 1)
            for each, alike in zip(ordered, pairwise(beside), strict=False)
        }
        for text, short in shorts.items():
            # All of its beginnings: each of them would mean this one, too.
            for length in range(min(self._least, len(short)), len(short) + 1):
                self._taken.setdefault(short[:length], text)
        for oldest in list(islice(self._taken, max(len(self._taken) - MAX_FOLLOWED, 0))):
            del self._taken[oldest]
        return {each: shorts[text] for each, text in texts.items()}

    def _short(self, text: str, length: int) -> str:
        if len(text) <= self._whole:
            return text
        while length < len(text) and self._taken.get(text[:length], text) != text:
            length += 1
        return text[:length]


def _alike(text: str, other: str) -> int:
    """Count the characters with which two texts begin alike."""
    pairs = zip(text, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(text), len(other)))


# --- rows of columns for a terminal of any width ---
# What does not fit goes on below, and is never cut.
#
# What goes on below begins under its own column, so that no text of a stranger's can look like the
# beginning of another row.

NARROW: Final = 76  # columns below which what is said gets a line of its own

NARROWEST: Final = 12
"""Columns that names and what is said get at least; a narrower terminal wraps the line."""

STATE_STYLES: Final = {
    "pending": "dim",
    "in progress": "bright_blue",
    "permitted": "bold green",
    "fulfilled": "bold green",
    "failed": "bold red",
    "refused": "bold red",
    "rejected": "bold red",
    "withdrawn": "bold yellow",
    "expired": "bold yellow",
    "cancelled": "yellow",
}
"""Readable on dark and light backgrounds; the words tell it without them."""


class Glyphs:
    """The few characters that not every output has."""

    def __init__(self, encoding: str) -> None:
        fancy = ("→", "━", "╌", "✓", "✗")
        try:
            "".join(fancy).encode(encoding)
        except (UnicodeEncodeError, LookupError):
            fancy = ("->", "#", "-", "yes", "NO")
        self.arrow, self.done, self.left, self.yes, self.no = fancy


class RowBuilder:
    """One row, which is filled from the left to the right; without a width it is a single line."""

    def __init__(self, width: int | None) -> None:
        self._width = width
        self._done = Text(no_wrap=True)
        self._line = Text()

    @property
    def used(self) -> int:
        return self._line.cell_len

    def put(self, text: Text, column: int) -> None:
        """Put a text at a column: on the next line where that is taken, and on more if need be."""
        if not text.plain.strip():
            return
        if self._width is None:
            self._pad(column)
            self._line.append_text(text)
            return
        has_room = self._width - column >= min(text.cell_len, NARROWEST)
        if self.used > column or (self.used and not has_room):
            self.end_line()
        self._pad(column)
        room = max(self._width - column, NARROWEST)
        for number, part in enumerate(folded(text, room)):
            if number:
                self.end_line()
                self._pad(column)
            self._line.append_text(part)

    def put_right(self, text: Text) -> None:
        """Put a text at the right edge, on the next line where there is no room for it."""
        if not text:
            return
        if self._width is None:
            self._line.append("  ").append_text(text)
            return
        gap = self._width - self.used - text.cell_len
        if gap < min(self.used, 1):
            self.end_line()
            gap = max(self._width - text.cell_len, 0)
        self._pad(self.used + gap)
        self._line.append_text(text)

    def end_line(self) -> None:
        """Go on below."""
        self._line.rstrip()
        self._done.append_text(self._line).append("\n")
        self._line = Text()

    def text(self) -> Text:
        self._line.rstrip()
        return self._done.append_text(self._line)

    def _pad(self, column: int) -> None:
        self._line.append(" " * (column - self.used))


def folded(text: Text, room: int, first: int | None = None) -> Iterator[Text]:
    """A text in lines, with every character of it; they end at spaces where that wastes little.

    ``first`` is the room on the first line, where that is another.
    """
    offsets = list(_breaks(text.plain, room, room if first is None else first))
    yield from text.divide(offsets) if offsets else (text,)


def fold(text: str, room: int) -> list[str]:
    """A plain text in lines, likewise; without the spaces that a line ends with."""
    offsets = [0, *_breaks(text, room, room), len(text)]
    return [text[begin:end].rstrip() for begin, end in pairwise(offsets)]


def hang(text: str, width: int | None, indent: int, narrowest: int = NARROWEST) -> str:
    """A text behind an indent, below which it goes on; on one line where there is no terminal."""
    lines = [text] if width is None else fold(text, max(width - indent, narrowest))
    return ("\n" + " " * indent).join(lines)


def _breaks(text: str, room: int, first: int) -> Iterator[int]:
    begin, space, room_now = 0, 0, first
    at = 0
    while at < len(text):
        if cell_len(text[begin : at + 1]) > room_now and at > begin:
            begin = space if space > begin + room_now // 2 else at
            yield begin
            room_now, space, at = room, begin, begin
        elif text[at] == " ":
            space = at + 1
        at += 1


# --- formatting ---

MAX_SAID: Final = 400  # characters of what an envelope says: some lines of a narrow terminal

MAX_NAMES: Final = 8  # names of those whom an envelope is for; of more, only how many

_NOUNS: Final = {
    kinds.MCP_REQUEST: "request",
    kinds.MCP_RESPONSE: "response",
    kinds.MCP_PROPOSAL: "proposal",
    kinds.MCP_WITHDRAW: "withdraw",
    kinds.MCP_REJECT: "reject",
    kinds.MCP_RENEW: "renew",
    kinds.MCP_REPORT: "report",
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
    kinds.REASONING_CANCEL: ("reason",),
    **dict.fromkeys(
        (
            kinds.CHAT,
            kinds.REASONING_START,
            kinds.REASONING_THOUGHT,
            kinds.REASONING_CONCLUSION,
        ),
        ("message", "text"),
    ),
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
    shown = ", ".join(shown_name(name) for name in names[:limit])
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
    return _content(envelope)._replace(who=shown_name(who), whom=whom)


def _content(envelope: Envelope) -> FormattedEnvelope:
    payload = envelope.payload_object
    noun = _NOUNS.get(envelope.kind, shown_name(envelope.kind))
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
        case kinds.MCP_REPORT if (report := read_report(payload)) is not None:
            said, failed = compact_text(str(report)), report.has_failed
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
    left = call.meta.get(payloads.LEFT_TO_OTHERS)
    if call.method == kinds.PROGRESS and isinstance(left, bool):
        said = "leaves it to others" if left else "leaves it to others no longer"
        return FormattedEnvelope("progress", said)
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
    if value is as_object(result).get("content") and is_list(value):
        return "".join(_lines(_block(block)) for block in value)
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
    words = [" | ".join(kinds.canonical(str(each)) for each in one_or_more(kind))]
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
