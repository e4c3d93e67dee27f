"""Templates, and the words and numbers in them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache, lru_cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from meup_agent.protocol.shown_text import Mark, marks_of, printed, segments
from meup_agent.wording import describe_reason, duration, time_left

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
        compact=as_text,
        printed=printed,
    )
    environment.globals.update(asset=asset)
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
def key_of(proposer: str, proposal: str) -> str:
    """The address of a proposal: of letters and digits alone, whatever stands in its id."""
    said = json.dumps([proposer, proposal]).encode()
    return sha256(said).hexdigest()[:KEY_CHARS]


# --- time ---


def left(until: datetime | None, now: datetime | None = None) -> str:
    """The time that is left, in words."""
    if until is None:
        return time_left(None)
    return time_left((until - (now or datetime.now(UTC))).total_seconds())


def ago(at: datetime | float, now: datetime | None = None) -> str:
    """The time since something was, in words."""
    seconds = ((now or datetime.now(UTC)) - _moment(at)).total_seconds()
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
