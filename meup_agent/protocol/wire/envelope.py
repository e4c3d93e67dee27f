"""The envelope: a header, a payload that stays raw, and the limits of a frame.

Most envelopes that a participant sees are not for it, and a gateway forwards without change, so
decoding the payload is left to its reader.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, dataclass_transform

import msgspec
import re2 as _re2

from meup_agent.errors import InvalidEnvelope, NotExpressible

if TYPE_CHECKING:
    from typing_extensions import TypeIs

re2: Any = _re2  # the library ships no types

MAX_PROGRAM_BYTES: Final = 1 << 20
"""Memory that one compiled pattern may take; a stranger may have written it."""

MAX_PROGRAM_STEPS: Final = 1000
"""Instructions of one compiled pattern. In the worst case each is tried at every byte of a text, in
5 to 15 ns: callers that match long texts count what it costs."""

MAX_UNICODE_CLASSES: Final = 8
r"""Classes such as ``\pL`` in one pattern: each is read as hundreds of ranges, and a pattern of
nothing else took 22 ms before it was found too large."""

_UNICODE_CLASS: Final = re.compile(r"\\[pP]")


class Program(NamedTuple):
    """A compiled pattern."""

    matches: Callable[[bytes], bool]  # tells whether a text, as UTF-8, matches
    steps: int  # the instructions that each byte of it may take


def compile_bytes(pattern: str, *, max_bytes: int) -> Callable[[bytes], bool]:
    """A pattern for a whole text, byte by byte, for patterns of our own."""
    options = _options(max_bytes)
    options.encoding = re2.Options.Encoding.LATIN1
    match: Callable[[bytes], object] = re2.compile(pattern.encode("latin-1"), options).fullmatch
    return lambda text: match(text) is not None


def compile_program(pattern: str, *, anywhere: bool = False) -> Program:
    """A pattern for a whole text, or anywhere in one; ValueError if RE2 does not take it."""
    if len(_UNICODE_CLASS.findall(pattern)) > MAX_UNICODE_CLASSES:
        raise ValueError(f"it has more than {MAX_UNICODE_CLASSES} classes such as \\pL")
    try:
        compiled = re2.compile(pattern, _options(MAX_PROGRAM_BYTES))
    except re2.error as error:
        said = error.args[0] if error.args else "not a regular expression"
        raise ValueError(said.decode() if isinstance(said, bytes) else str(said)) from None
    if compiled.programsize > MAX_PROGRAM_STEPS:
        raise ValueError(
            f"it takes {compiled.programsize} steps where {MAX_PROGRAM_STEPS} are allowed; "
            "make it shorter, or its repetitions"
        )
    match: Callable[[bytes], object] = compiled.search if anywhere else compiled.fullmatch

    def matches(text: bytes) -> bool:
        return match(text) is not None

    return Program(matches, compiled.programsize)


def _options(max_bytes: int) -> Any:
    options = re2.Options()
    options.never_capture = True
    options.dot_nl = True
    options.log_errors = False
    options.max_mem = max_bytes
    return options


# --- records and JSON values ---


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class FrozenStruct(msgspec.Struct, frozen=True):
    """A value that does not change."""


def is_object(value: object) -> TypeIs[dict[str, Any]]:
    """True for a JSON object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeIs[list[object]]:
    """True for a JSON list."""
    return isinstance(value, list)


# --- limits ---
# Limits of a frame from the network, checked before it is decoded.

MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one message: room for a file in a tool's result, small enough to hold many of."""

MAX_DEPTH: Final = 100
"""Levels of arrays and objects in one frame: decoders recurse, and a stack is finite."""

_ENOUGH: Final = MAX_DEPTH + 1


def _nesting_pattern(depth: int) -> str:
    """A regular expression for JSON nested at most so deep: RE2 takes linear time for any frame."""
    plain = r'[^\[\]{}"]|"(?:[^"\\]|\\.)*"'
    pattern = f"(?:{plain})*"
    for _ in range(depth):
        pattern = rf"(?:{plain}|[\[{{]{pattern}[\]}}])*"
    return pattern


@functools.cache
def _shallow_enough(max_depth: int = MAX_DEPTH) -> Callable[[bytes], bool]:
    return compile_bytes(_nesting_pattern(max_depth), max_bytes=64 << 20)


def check_frame(frame: bytes, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
    """Raise InvalidEnvelope for a frame that is too large, not UTF-8, or nested too deep."""
    size = len(frame)
    if size > max_bytes:
        raise InvalidEnvelope(
            "too_large", f"the frame has {size} bytes; at most {max_bytes} are taken"
        )
    try:
        if not frame.isascii():
            frame.decode()
    except UnicodeDecodeError as error:
        raise InvalidEnvelope(
            "invalid_utf8", f"the frame is not valid UTF-8 at byte {error.start}"
        ) from None
    # Opening brackets bound the depth, so a frame with few of them needs no closer look.
    # Taking them out counts them, up to the limit, in half the time of `count`.
    left = len(frame.replace(b"{", b"", _ENOUGH)) + len(frame.replace(b"[", b"", _ENOUGH))
    if 2 * size - left > MAX_DEPTH and not _shallow_enough()(frame):
        raise InvalidEnvelope(
            "too_deep", f"the frame nests deeper than {MAX_DEPTH} levels, or is not balanced"
        )


def check_depth(frame: bytes, max_depth: int, *, envelope_id: str | None = None) -> None:
    """Raise InvalidEnvelope for a frame of JSON that nests deeper than this."""
    if not _shallow_enough(max_depth)(frame):
        raise InvalidEnvelope(
            "too_deep", f"the frame nests deeper than {max_depth} levels", envelope_id=envelope_id
        )


# --- numbers ---
# Numbers that JSON has no form for, or that readers hold differently (PROTOCOL 1, Numbers).
#
# Encoders write NaN and the infinities as `null`, and read integers of any length; a tool must not
# run with the one, and a reader that has doubles only turns the other into an infinity.

DOUBLE_DIGITS: Final = 309
"""Digits of the integers from which on a double may be too small."""

MAX_SAFE_INTEGER: Final = 2**53 - 1
"""The largest integer that a reader whose numbers are doubles, as JavaScript's, holds exactly."""

_SAFE_DIGITS: Final = len(str(MAX_SAFE_INTEGER))
_DIGITS: Final = b"0123456789"


def is_finite(value: object) -> bool:
    """True if JSON values, structs or dataclasses hold neither NaN nor an infinity."""
    try:
        _STRICT.encode(value)
    except (ValueError, RecursionError):
        return False
    return True


def _inside(value: object) -> object:
    """The plain values in one that the standard library has no JSON form for."""
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    if isinstance(value, set | frozenset):
        return list(cast("set[Any]", value))
    return None


_STRICT: Final = json.JSONEncoder(
    allow_nan=False, skipkeys=True, check_circular=False, default=_inside
)


def fits_double(raw: bytes, value: object) -> bool:
    """True if every integer in decoded JSON is within the range of a double."""
    return not _has_run(raw, DOUBLE_DIGITS) or all(map(_is_double, _integers(value)))


def find_unsafe_integer(raw: bytes, value: object) -> int | None:
    """The first integer in decoded JSON that a reader with doubles would round; ``None``: none."""
    if not _has_run(raw, _SAFE_DIGITS):
        return None
    return next((each for each in _integers(value) if abs(each) > MAX_SAFE_INTEGER), None)


def _has_run(raw: bytes, digits: int) -> bool:
    """True if JSON has so many digits in a row: only then is an integer of it so large."""
    # A run of so many digits has one at each place that is a multiple of their number.
    sampled = raw[digits - 1 :: digits]
    return len(sampled.translate(None, _DIGITS)) < len(sampled) and _long_run(digits)(raw)


def _integers(value: object) -> Iterator[int]:
    pending = [value]
    while pending:
        each = pending.pop()
        if is_object(each):
            pending += each.values()
        elif isinstance(each, list | tuple):
            pending += cast("list[object]", each)
        elif isinstance(each, int):
            yield each


def _is_double(number: int) -> bool:
    try:
        float(number)
    except OverflowError:
        return False
    return True


@cache
def _long_run(digits: int) -> Callable[[bytes], bool]:
    return compile_bytes(f".*[0-9]{{{digits}}}.*", max_bytes=8 << 20)


# --- timestamps ---
# A moment, as it is written down and compared.
#
# By itself, since messages, rules and views all read moments, and it needs none of these.

CLOCK_DIFFERENCE: Final = timedelta(seconds=60)
"""Difference of two clocks up to which neither is taken to be wrong (PROTOCOL 6)."""

TRANSIT_SECONDS: Final = 5.0
"""Time that the gateway's word may take to us: what it took before a deadline comes after it."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def rfc3339(microseconds: int) -> str:
    """A time in microseconds since 1970 as it stands in ``ts``: UTC, in milliseconds."""
    moment = datetime.fromtimestamp(microseconds / 1_000_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def microseconds(moment: datetime) -> int:
    """A moment with a time zone in microseconds since 1970 (UTC)."""
    return (moment - _EPOCH) // MICROSECOND


def moment_of(microseconds: int) -> datetime:
    """A time in microseconds since 1970 as a moment in UTC, exact to the microsecond."""
    return _EPOCH + microseconds * MICROSECOND


def read_moment(said: object) -> int | None:
    """An RFC 3339 time in microseconds since 1970; ``None`` if it is none, or has no time zone."""
    try:
        moment = datetime.fromisoformat(said) if isinstance(said, str) else None
    except ValueError:
        return None
    return None if moment is None or moment.tzinfo is None else microseconds(moment)


# --- the envelope ---

_decode_json = msgspec.json.Decoder().decode
decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""Decodes an object, whose members stay raw."""

_encode_json = msgspec.json.Encoder().encode

EMPTY_PAYLOAD = b"{}"

HEADER_FIELDS = frozenset(
    {
        "protocol",
        "id",
        "ts",
        "from",
        "to",
        "kind",
        "correlationId",
        "correlation_id",
        "context",
        "payload",
    }
)
"""The header fields that some dialect knows."""


def encode_json(value: object) -> bytes:
    """JSON bytes of plain values (dict, list, str, numbers, bool, None) and msgspec structs.

    Raises:
        NotExpressible: Something has no JSON form that every reader takes: a lone surrogate, NaN,
            an infinity, an integer beyond the range of a double.
    """
    raw = encode_leniently(value)
    # NaN and the infinities come out as null, so where there is none, there were none of them.
    if b"null" in raw and not is_finite(value):
        raise NotExpressible(
            "a value cannot be written as JSON: it holds a number that is not finite (NaN or an "
            "infinity); put null or a text in its place"
        )
    if not fits_double(raw, value):
        raise NotExpressible(
            "a value cannot be written as JSON: it holds an integer beyond the range of a double "
            "(±1.797e308); send its digits as a text"
        )
    return raw


def encode_leniently(value: object) -> bytes:
    """As :func:`encode_json` of what others said: NaN becomes ``null``, and any integer passes."""
    try:
        return _encode_json(value)
    except TypeError as error:
        raise NotExpressible(
            f"a value cannot be written as JSON: {error}{_place_of_unwritable(value)}; put an "
            "object, a list, a text, a number, a boolean or null in its place"
        ) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise NotExpressible(f"a value cannot be written as JSON: {error}") from None


MAX_PLACE_CHARS: Final = 40
"""Characters of each name on the path to what cannot be written, as an error tells it."""

MAX_PLACE_NAMES: Final = 16
"""Names on that path: each step writes what is below once more, and an error is one sentence."""


def _place_of_unwritable(value: object) -> str:
    """The path to the member of a value that cannot be written, or empty."""
    path = list[str]()
    while (found := next(filter(_is_unwritable, _members_of(value)), None)) is not None:
        name, value = found
        if not isinstance(name, str | int):
            break
        if len(path) == MAX_PLACE_NAMES:
            path.append("…")
            break
        path.append(str(name)[:MAX_PLACE_CHARS])
    return f" (at {'.'.join(path)})" if path else ""


def _members_of(value: object) -> Iterable[tuple[object, object]]:
    if isinstance(value, dict):
        return cast("dict[object, object]", value).items()
    if isinstance(value, list | tuple):
        return enumerate(cast("Sequence[object]", value))
    return ()


def _is_unwritable(member: tuple[object, object]) -> bool:
    try:
        _encode_json(member[1])
    except TypeError:
        return True
    except (ValueError, OverflowError, RecursionError):
        return False
    return False


class Envelope(FrozenStruct, kw_only=True, gc=False):
    """One message of a space.

    Attributes:
        id: The sender's id for it, unique for that sender. Empty where a gateway left it out.
        sender: Its sender (``from`` on the wire).
        kind: The kind with slashes, for example ``mcp/request``.
        to: The addressees; empty: all.
        correlation: Ids of the envelopes that it refers to.
        raw_payload: The payload as JSON bytes, exactly as it came.
        ts: The time of sending (RFC 3339), where the sender gave it.
        context: The id of the context it belongs to, where it has one.
        protocol: The dialect it came in; empty for one that has not been encoded yet.
        frame: The whole frame that it was decoded from; empty for one of our own making.
        added: Header fields that no dialect knows, of an envelope without a frame; read
            :attr:`extra` instead.
    """

    id: str
    sender: str
    kind: str
    to: tuple[str, ...] = ()
    correlation: tuple[str, ...] = ()
    raw_payload: bytes = EMPTY_PAYLOAD
    ts: str | None = None
    context: str | None = None
    protocol: str = ""
    frame: bytes = b""
    added: tuple[tuple[str, bytes], ...] = ()

    @property
    def payload(self) -> Any:
        """The payload as plain JSON values, decoded anew at each reading."""
        try:
            return _decode_json(self.raw_payload)
        except msgspec.ValidationError:
            # JSON has numbers that are too large for a float. Most readers take them for infinite;
            # refusing them only here would let a stranger's number stop the readers of a payload.
            return json.loads(self.raw_payload, parse_int=_int)

    @property
    def payload_object(self) -> dict[str, Any]:
        """The payload where it is a JSON object, otherwise an empty one."""
        payload = self.payload
        return payload if is_object(payload) else {}

    @property
    def extra(self) -> tuple[tuple[str, bytes], ...]:
        """Header fields that no dialect knows, as pairs of name and raw JSON; they are kept."""
        if not self.frame:
            return self.added
        fields = decode_members(self.frame)
        if fields.keys() <= HEADER_FIELDS:  # as most are
            return ()
        return tuple(
            (name, bytes(raw)) for name, raw in fields.items() if name not in HEADER_FIELDS
        )

    def concerns(self, participant: str) -> bool:
        """True if it is addressed to the participant, or to all."""
        return not self.to or participant in self.to

    def replace(self, **changes: Any) -> Envelope:
        """A copy of our own making, with some fields changed; unknown fields are kept."""
        changes.setdefault("added", self.extra)
        return msgspec.structs.replace(self, frame=b"", **changes)


def _int(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:  # more digits than Python converts
        return float(digits)


def draft(
    kind: str,
    payload: object,
    *,
    id: str,
    sender: str,
    to: tuple[str, ...] = (),
    correlation: tuple[str, ...] = (),
    context: str | None = None,
    ts: str | None = None,
) -> Envelope:
    """An envelope of our own, not yet in any dialect; bytes as its payload are JSON already."""
    return Envelope(
        id=id,
        sender=sender,
        kind=kind,
        to=to,
        correlation=correlation,
        raw_payload=payload if isinstance(payload, bytes) else encode_json(payload),
        context=context,
        ts=ts,
    )
