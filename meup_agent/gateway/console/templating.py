"""Text for the pages: keys, times, terms and capabilities in words; forms with edits.

It has the environment of the templates, with its filters. An edit is read from a form, checked
against the tool's schema, and compared with what was proposed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, lru_cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import anyio
import anyio.lowlevel
from anyio import to_thread
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from meup_agent.approval import InboxItem
from meup_agent.client.schema_check import ArgumentChecker, SchemaViolation
from meup_agent.errors import printable
from meup_agent.protocol.audit import StepKind
from meup_agent.protocol.wire.payloads import Call, Change, as_list, as_object
from meup_agent.protocol.wire.payloads import changes as changes_between
from meup_agent.protocol.wire.shown_text import Mark, marks_of, printed, segments
from meup_agent.wording import AT_TERMINAL, describe_reason, duration, state_name, time_left

# --- template environment ---
# Templates, and the words and numbers in them.

FOLDER: Final = Path(__file__).parent
STATIC: Final = FOLDER / "static"

MAX_SHOWN: Final = 20_000
"""Characters of one text that a page shows at once; the rest is a link away."""

MAX_PARTS: Final = 20_000
"""Values, names and brackets of JSON that a page lays out: each has a character at least, so that
as many are shown, and a list may have millions."""

MAX_LINES: Final = 2_000
"""Lines of one text that a page shows."""

KEY_CHARS: Final = 24
"""Characters of a proposal's address."""

MAX_KEYS: Final = 20_000
"""Addresses of proposals that are kept: as many as an inbox holds."""

COMPILE_SECONDS: Final = 0.5
"""Pause after which a console compiles the templates of its first screen: its gateway starts."""

_FIRST: Final = (
    "base.html",
    "block.html",
    "time.html",
    "inbox_row.html",
    "inbox_left.html",
    "inbox_card.html",
    "inbox.html",
)


@cache
def make_environment() -> Environment:
    """The templates, in which every text is escaped; to compile one takes 20 ms."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        shown=shown,
        name=name,
        reason=describe_reason,
        left=left,
        ago=ago,
        clock=clock,
        iso=iso,
        json_lines=json_lines,
        lines=lines,
        size=size,
        state_name=state_name,
        waited=waited,
        compact=as_text,
        printed=printed,
    )
    given = cast("dict[str, Any]", environment.globals)
    given.update(asset=asset, at_terminal=AT_TERMINAL)
    return environment


async def compile_templates() -> None:
    """Compile the templates of the inbox, one in a turn, before the first person waits for them."""
    environment = make_environment()
    await anyio.sleep(COMPILE_SECONDS)
    for file in _FIRST:
        environment.get_template(file)
        await anyio.lowlevel.checkpoint()


@cache
def asset(file: str) -> str:
    """The name under which a browser keeps a static file: another file has another name."""
    digest = sha256((STATIC / file).read_bytes()).hexdigest()[:12]
    return f"{file}?v={digest}"


# --- strangers' text ---


def shown(text: object, most: int = MAX_SHOWN, *, is_name: bool = False) -> Markup:
    """A participant's text, with what could deceive the eye marked, and cut."""
    said = str(text)
    parts = [
        escape(each.text)
        if each.mark is None
        else Markup('<span class="mark" title="{}">{}</span>').format(each.why, each.text)
        for each in segments(said[:most], is_name=is_name)
    ]
    if len(said) > most:
        more = f"{len(said) - most:,} more characters"
        parts.append(Markup('<span class="cut">… {}</span>').format(more))
    return Markup("").join(parts)


def lines(text: object, *, is_whole: bool = True) -> Markup:
    """A participant's text of several lines, each as :func:`shown` shows it."""
    said = str(text)
    rows = said[:MAX_SHOWN].split("\n", MAX_LINES)
    parts = [shown(each) for each in rows[:MAX_LINES]]
    cut = len(said) - sum(len(each) + 1 for each in rows[:MAX_LINES]) + 1
    if not is_whole:
        parts.append(Markup('<span class="cut">… and more than a page can show</span>'))
    elif cut > 0:
        parts.append(Markup('<span class="cut">… {}</span>').format(f"{cut:,} more characters"))
    return Markup("\n").join(parts)


def name(text: object) -> Markup:
    """The name of a participant or a tool; it is isolated, so that its direction stays its own."""
    return Markup('<bdi class="name">{}</bdi>').format(shown(text, 120, is_name=True))


def json_lines(value: object) -> Markup:
    """JSON as a page shows it, a line for each value; of very many the first ones."""
    said, is_whole = _lay_out(value)
    return lines(said, is_whole=is_whole)


def is_shown_whole(value: object) -> bool:
    """True for JSON of which a page shows everything."""
    said, is_whole = _lay_out(value)
    return is_whole and len(said) <= MAX_SHOWN and said.count("\n") < MAX_LINES


def _lay_out(value: object) -> tuple[str, bool]:
    """JSON in lines, and whether that is all of it."""
    laid_out = _LAYOUT.iterencode(value)
    return "".join(islice(laid_out, MAX_PARTS)), next(laid_out, None) is None


_LAYOUT: Final = json.JSONEncoder(indent=2, ensure_ascii=False)


def editable(value: object) -> str:
    """JSON to edit: the same values, with what would not be seen in a field as escapes."""
    said = json.dumps(value, indent=2, ensure_ascii=False)
    if said.isascii():
        return said
    pairs = zip(said, marks_of(said), strict=True)
    return "".join(json.dumps(each)[1:-1] if mark in _HIDDEN else each for each, mark in pairs)


def hides_something(text: str) -> bool:
    """True if a text has characters that would not be seen in a field."""
    return "\r" in text or any(each in _HIDDEN for each in marks_of(text))


_HIDDEN: Final = (Mark.DIRECTION, Mark.INVISIBLE)


@lru_cache(maxsize=MAX_KEYS)
def key_of(scope: str, name: str) -> str:
    """The key of a thing in an address or a page: letters and digits, whatever its name has.

    The scope of a proposal is its proposer; that of anything else says what it is.
    """
    said = json.dumps([scope, name]).encode()
    return sha256(said).hexdigest()[:KEY_CHARS]


# --- time ---


def left(until: datetime | None) -> str:
    return time_left(None if until is None else (until - datetime.now(UTC)).total_seconds())


def ago(at: datetime | float) -> str:
    """The time since something was, in words."""
    seconds = (datetime.now(UTC) - _moment(at)).total_seconds()
    return "just now" if seconds < 5 else f"{duration(int(seconds))} ago"


def _moment(at: datetime | float) -> datetime:
    """A moment in UTC, also one that is said in seconds since 1970."""
    return at.astimezone(UTC) if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC)


def clock(at: datetime | float) -> str:
    """A moment, as a clock says it (UTC)."""
    return _moment(at).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(at: datetime | float) -> str:
    """A moment for the attribute ``datetime``."""
    return _moment(at).isoformat(timespec="milliseconds")


def waited(microseconds: int) -> str:
    """The time from a proposal to its end."""
    return duration(microseconds / 1_000_000)


def size(count: float) -> str:
    """Bytes, as a person says them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"


def as_text(value: Any) -> str:
    """A JSON value for one line: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# --- words ---
# Capabilities and steps in words, for people who have never read a pattern.

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
    StepKind.EXPIRED: "let it expire: no participant decided it in time",
    StepKind.RENEWED: "gave it more time",
    StepKind.REPORTED: "reported what came of it",
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


# --- terms ---
# The words of MEUP, each with the one sentence that explains it on a page.
#
# A page explains a word where it first stands on it. Templates name the words wherever they use
# them, by `explain`, and `PageTerms` leaves out what the page has explained before.

TERMS: Final = {
    "capability": "What one may send is its *capabilities*; the gateway refuses the rest.",
    "envelope": "An *envelope* is one message.",
    "expire": "It *expires* when its time is up before it is decided.",
    "frame": "A *frame* is an envelope on its way to one reader.",
    "fulfill": "To *fulfill* it is to approve it: the real *request* is made, and runs.",
    "gateway": "The *gateway* is the server that all are connected to.",
    "grant": "To *grant* is to give a capability, to *revoke* is to take it away.",
    "journal": "The *journal* keeps what was said.",
    "member": "A *member* is a program or a person that is connected.",
    "observer": "An *observer* hears what is said, and says nothing.",
    "participant": "A *participant* is a program or a person that takes part here.",
    "pattern": "A *pattern* is how a capability is written.",
    "permit": "A *permit* lets the agent that asked run the call itself, once.",
    "proposal": "A *proposal* is a call that does not run before it is approved by one who may.",
    "reject": "To *reject* it is to say no to it, with a reason.",
    "rule": "A *rule* says which calls run by themselves, and which ones people are asked about.",
    "space": "A *space* is a room in which all hear what one says.",
    "stream": "A *stream* is data that is sent piece by piece.",
    "vote": "A *vote* is a yes or a no where it takes several to decide.",
    "withdraw": "To *withdraw* it is to take it back, as the one who proposed it can.",
}
"""Word → its sentence, with the words that it explains in stars; "it" is a proposal."""

_FOLD: Final = Markup('<details class="terms"><summary>What these words mean</summary>{}</details>')

_STARRED: Final = re.compile(r"\*(\w+)\*")


class PageTerms:
    """The words that one page has explained so far."""

    def __init__(self) -> None:
        self._explained: set[str] = set()

    def __call__(self, *words: str) -> Markup:
        """A paragraph that explains some words; those that the page has explained are left out."""
        fresh = [each for each in dict.fromkeys(words) if each not in self._explained]
        if not fresh:
            return Markup()
        self._explained.update(fresh)
        said = Markup(" ").join(sentence(each) for each in fresh)
        return Markup('<p class="muted small">{}</p>').format(said)

    def folded(self, *words: str) -> Markup:
        """The same, to be opened where it would take much of a narrow page."""
        said = self(*words)
        return said and _FOLD.format(said)


def sentence(word: str) -> Markup:
    """The sentence that explains a word, with what it explains in ``<em>``."""
    # Nothing of it comes from strangers.
    return Markup(_STARRED.sub(r"<em>\1</em>", TERMS[word]))


# --- schema form ---
# The arguments of a tool as fields of a form, as far as its schema says so simply.

MAX_SCHEMA_FIELDS: Final = 40
"""Fields of a form; a tool with more is edited as JSON."""

MAX_FIELD_CHARS: Final = 20_000
"""Characters of a field; longer ones are edited as JSON."""

PREFIX: Final = "field-"

TYPES: Final = frozenset({"text", "switch", "choice", "json"})
"""Types of fields; beside a field its form says its type, which may depend on the value."""


class SchemaField(NamedTuple):
    """One argument."""

    name: str
    number: int  # its place: in the form its name stands nowhere but as text
    type: str  # text, switch, choice or json
    text: str  # its value as the form shows it
    title: str
    about: str
    required: bool
    given: bool  # True: the call has it, be it empty
    choices: tuple[str, ...] = ()
    default: str = ""  # its schema's, as JSON; empty: none is said

    @property
    def key(self) -> str:
        return f"{PREFIX}{self.number}"


def read_fields(
    fields: list[SchemaField], form: Mapping[str, str], arguments: Mapping[str, Any]
) -> Edit:
    """Read a form: an argument whose field is empty is left out, unless it was an empty text.

    Args:
        fields: The fields that the form was made of, perhaps with other values.
        form: Its values; beside each stands the type by which it is read.
        arguments: The proposed arguments; those without a field stay.
    """
    read, problems = dict(arguments), dict[str, str]()
    typed: list[SchemaField] = []
    for each in fields:
        kind = form.get(f"{each.key}-here")
        if kind not in TYPES:
            typed.append(each)
            continue
        # A browser ends lines of its own accord with both.
        said = form.get(each.key, "").replace("\r\n", "\n")
        typed.append(each._replace(text=said, type=kind))
        if not said and not (kind == "text" and each.given):
            read.pop(each.name, None)
            continue
        try:
            read[each.name] = said if kind == "text" else json.loads(said)
        except (ValueError, RecursionError) as error:
            problems[each.key] = f"it is not JSON yet: {error}"
    return Edit(editable(arguments), typed, read, (), problems)


def fields_of(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[SchemaField]:
    """The fields of a schema, with the proposed values; none where JSON serves better."""
    properties = as_object(schema.get("properties"))
    if not 0 < len(properties) <= MAX_SCHEMA_FIELDS:
        return []
    required = set(map(str, as_list(schema.get("required"))))
    fields: list[SchemaField] = []
    for number, (name, each) in enumerate(properties.items()):
        described = as_object(each)
        given = name in arguments
        value = arguments.get(name)
        kind, choices = _kind(described, value, given)
        text = value if isinstance(value, str) and kind == "text" else editable(value)
        text = text if given else ""
        if len(text) > MAX_FIELD_CHARS:
            return []
        fields.append(
            SchemaField(
                name,
                number,
                kind,
                text,
                _said(described.get("title")),
                _said(described.get("description")),
                name in required,
                given,
                choices,
                editable(described["default"]) if "default" in described else "",
            )
        )
    return fields


def _kind(described: Mapping[str, Any], value: object, given: bool) -> tuple[str, tuple[str, ...]]:
    type_, choices = described.get("type"), as_list(described.get("enum"))
    if 0 < len(choices) <= MAX_SCHEMA_FIELDS:
        texts = tuple(map(editable, choices))
        if not given or editable(value) in texts:
            return "choice", texts
    if type_ == "boolean" and (not given or isinstance(value, bool)):
        return "switch", ()
    if type_ == "string" and (not given or (isinstance(value, str) and not hides_something(value))):
        return "text", ()
    return "json", ()


def _said(value: object) -> str:
    return value if isinstance(value, str) else ""


# --- edits of proposed arguments ---

WHOLE: Final = "arguments"
"""The field of all arguments as JSON."""

MAX_EDITED_BYTES: Final = 128 * 1024
"""Bytes of a call, or characters of arguments, up to which they are edited on a page: laying them
out and comparing them takes some microseconds each, while others wait."""

FIELDS: Final = "fields"
"""Key of the problems of a form with fields that are none field's own."""


@dataclass
class Edit:
    """An edit as it was typed: what it would send, or what keeps it from being sent."""

    text: str
    fields: list[SchemaField]
    arguments: dict[str, Any] | None = None
    changes: tuple[Change, ...] = ()
    problems: dict[str, str] = field(default_factory=dict[str, str])  # by the key of a field

    @property
    def is_ready(self) -> bool:
        """True if it can be sent once its changes were seen."""
        return self.arguments is not None and not self.problems

    @property
    def problem(self) -> str:
        if not self.problems:
            return ""
        return "This edit cannot be sent yet: " + "; ".join(dict.fromkeys(self.problems.values()))


def can_be_edited(item: InboxItem) -> bool:
    """True if its proposer takes edits, and it is small enough to be edited on a page."""
    return item.takes_edits and len(item.envelope.raw_payload) <= MAX_EDITED_BYTES


def schema_of(item: InboxItem) -> Mapping[str, Any]:
    """The schema of a proposed call's tool; empty where none is known."""
    facts = item.tool_facts
    return {} if facts is None else facts.schema


async def read_edit(item: InboxItem, form: Mapping[str, str]) -> Edit:
    """The edit that a form has, of the tool's fields or as JSON."""
    if not can_be_edited(item) or sum(map(len, form.values())) > 2 * MAX_EDITED_BYTES:
        return Edit(form.get(WHOLE, ""), [], problems={WHOLE: _TOO_LARGE})
    fields = fields_of(schema_of(item), item.arguments)
    if WHOLE in form:
        edit = Edit(form[WHOLE], fields)
        try:
            found = json.loads(form[WHOLE])
        except (ValueError, RecursionError) as error:
            edit.problems[WHOLE] = f"it is not JSON yet: {error}"
            return edit
        if not isinstance(found, dict):
            edit.problems[WHOLE] = "it must be a JSON object, in braces"
            return edit
        edit.arguments = cast("dict[str, Any]", found)
        edit.fields = fields_of(schema_of(item), edit.arguments)
    else:
        edit = read_fields(fields, form, item.arguments)
        if edit.arguments is None or edit.problems:
            return edit
    edit.text = editable(edit.arguments)
    call = Call(item.method, {**item.call.params, "arguments": edit.arguments})
    edit.changes = tuple(changes_between(item.call, call, item.target))
    for each in await check_arguments(item, edit.arguments):
        place = WHOLE if WHOLE in form else _place(each, edit.fields)
        said = str(each) if place in (WHOLE, FIELDS) else _below(each)
        before = edit.problems.get(place)
        edit.problems[place] = said if before is None else f"{before}; {said}"
    return edit


async def check_arguments(item: InboxItem, arguments: dict[str, Any]) -> list[SchemaViolation]:
    """Problems of arguments by the tool's schema; none where no schema is known."""
    schema = schema_of(item)
    if not schema:
        return []

    def check() -> list[SchemaViolation]:
        checker = ArgumentChecker(schema, f"{item.tool} of {item.target}", exact=True)
        return checker.problems(arguments) or []

    # In a thread: a stranger's schema may take it a quarter of a second.
    return await to_thread.run_sync(check)


_TOO_LARGE: Final = (
    f"a page takes {MAX_EDITED_BYTES:,} characters of arguments; use meup fulfill or meup inbox"
)


def _place(violation: SchemaViolation, fields: list[SchemaField]) -> str:
    """The key of the field that a problem belongs to."""
    argument = violation.argument
    for each in sorted(fields, key=lambda each: -len(each.name)):
        name = printable(each.name)
        if argument == name or argument.startswith((f"{name}.", f"{name}[")):
            return each.key
    return FIELDS


def _below(violation: SchemaViolation) -> str:
    """A problem beside its field: the name is said there already, unless it lies deeper."""
    deeper = any(each in violation.argument for each in ".[")
    return str(violation) if deeper else f"it {violation.problem}"
