"""Policy files: YAML, read whole or refused whole, with the place of what is wrong."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from meup_agent.approval.policy.decider import Policy
from meup_agent.approval.policy.rules import RULES, PolicyRule, plain_value, suggest
from meup_agent.errors import ConfigurationError, explain_os_error, printable
from meup_agent.protocol.wire.payloads import as_list

if TYPE_CHECKING:
    from meup_agent.approval.policy.findings import Finding

# --- policy files ---

MAX_FILE_BYTES: Final = 1 << 20
"""Bytes of a policy file: five hundred rules take a tenth of it."""

_MOST_BYTES: Final = 1 << 14
"""Bytes of nearly every one: it is read for each decision, and a larger buffer costs more."""

END: Final = "end"
"""The last key of a policy file: with a part of its rules missing, another one might allow more."""

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])", re.ASCII)
_SPANS: Final = frozenset({"ttl", "remind", "every"})


def load_policy(path: str | Path) -> Policy:
    """Read a policy file.

    Raises:
        ConfigurationError: It cannot be read, something in it is unknown, or a rule of it can never
            match; the message says where.
    """
    path = Path(path)
    try:
        return parse_policy(read_file(path))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def read_file(path: Path) -> bytes:
    """The bytes of a file of limited size.

    Raises:
        ConfigurationError: It cannot be read, or is too large.
    """
    with explain_os_error("cannot be read"), path.open("rb") as file:
        raw = file.read(_MOST_BYTES)
        if len(raw) == _MOST_BYTES:
            raw += file.read(MAX_FILE_BYTES + 1 - len(raw))
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigurationError(f"it is larger than {MAX_FILE_BYTES} bytes")
    return raw


def parse_policy(raw: bytes) -> Policy:
    """The policy in the bytes of a file.

    Raises:
        ConfigurationError: A part of it may be missing, or something in it is unknown or wrong.
    """
    from meup_agent.strict_yaml import parse_yaml

    document = parse_yaml(raw)
    if not raw.endswith(b"\n"):
        raise ConfigurationError("its last line has no end, so a part of it may be missing")
    return read_policy(document)


def read_policy(document: object) -> Policy:
    """The policy of a document, ``{"rules": [{"allow": {…}}, …], "end": True}``.

    Raises:
        ConfigurationError: Something in it is unknown or wrong.
    """
    if not isinstance(document, dict) or "rules" not in document:
        raise ConfigurationError("expected the key 'rules'")
    keys = read_keys(cast("object", document), "", ("rules", END))
    if keys.get(END) is not True or [*keys][-1] != END:
        raise ConfigurationError(
            f"its last key is not '{END}: true', so a part of it may be missing; write that as its"
            " last line"
        )
    rules = as_list(keys["rules"])
    if not rules:
        raise ConfigurationError("rules: expected a list of rules")
    return Policy([_read_rule(each, f"rules[{index}]") for index, each in enumerate(rules)])


def _read_rule(given: object, place: str) -> PolicyRule:
    if not isinstance(given, dict) or len(cast("dict[object, object]", given)) != 1:
        raise ConfigurationError(
            f"{place}: expected one of {', '.join(RULES)}, with what it matches behind it"
        )
    [(verdict, body)] = cast("dict[object, object]", given).items()
    made = RULES.get(str(verdict))
    if made is None:
        raise ConfigurationError(
            f"{place}.{verdict}: unknown key; {suggest(str(verdict), list(RULES))}"
        )
    place = f"{place}.{verdict}"
    if not isinstance(body, dict):
        raise ConfigurationError(f"{place}: expected keys and values, as {{tool: name}}")
    values = read_keys(cast("object", body), place, [each.name for each in fields(made)])
    for key, value in values.items():
        if value is None:
            raise ConfigurationError(f"{place}.{key}: has no value; write one, or take the key out")
        if key in _SPANS:
            values[key] = read_span(value, f"{place}.{key}")
    try:
        rule = made(**values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}.{error}") from None
    if rule.arguments is not None and (name := _without_value(rule.arguments)):
        raise ConfigurationError(
            f"{place}.arguments.{name}: has no value; write one, or take the key out"
        )
    return rule


def read_keys(given: object, place: str, known: Sequence[str]) -> dict[str, Any]:
    """The values of an object by key.

    Raises:
        ConfigurationError: It is not an object, or has a key that is not known.
    """
    if not isinstance(given, dict):
        raise ConfigurationError(
            f"{place}: expected the keys {', '.join(known)}".removeprefix(": ")
        )
    for key in cast("dict[object, object]", given):
        if key not in known:
            where = f"{place}.{key}" if place else str(key)
            raise ConfigurationError(f"{where}: unknown key; {suggest(str(key), known)}")
    return dict(cast("dict[str, Any]", given))


def _without_value(given: object) -> str:
    """The key of an object that has no value, as where its colon was forgotten."""
    if isinstance(given, list | tuple):
        found = (_without_value(each) for each in cast("Sequence[object]", given))
        return next((each for each in found if each), "")
    if not isinstance(given, Mapping):
        return ""
    for key, value in cast("Mapping[object, object]", given).items():
        if value is None:
            return str(key)
        if inner := _without_value(value):
            return f"{key}.{inner}"
    return ""


def rule_to_file(rule: PolicyRule) -> dict[str, Any]:
    """A rule as a file has it: only what was given, and times with their unit."""
    body: dict[str, Any] = {}
    for each in fields(rule):
        value = getattr(rule, each.name)
        if value == each.default and each.name != "never":
            continue
        body[each.name] = _span(value) if each.name in _SPANS else value
    return {str(rule.verdict): plain_value(body)}


def policy_text(rules: Sequence[PolicyRule], note: str = "") -> str:
    """A policy file of some rules, one a line, below a comment; empty without rules."""
    import yaml

    if not rules:
        return ""
    lines = [f"# {note}", "rules:"] if note else ["rules:"]
    for rule in rules:
        said: str = yaml.safe_dump(  # pyright: ignore[reportUnknownMemberType]  # its stubs' `width`
            rule_to_file(rule), default_flow_style=True, sort_keys=False, width=10**9
        )
        lines.append(f"  - {said.strip()}")
    return "\n".join([*lines, f"{END}: true", ""])


def _span(seconds: float) -> str:
    """A time in its largest unit that it fills."""
    for unit, length in reversed(_UNITS.items()):
        if seconds % length == 0 and seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:f}s"


def read_span(given: object, place: str) -> float:
    """The seconds of a span of time as files have it; ConfigurationError for another text."""
    found = _SPAN.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise ConfigurationError(
            f"{place}: expected a number and its unit: 30s, 10m, 1h or 7d, not {given!r}"
        )
    return float(found[1]) * _UNITS[found[2]]


def findings_of(policy: Policy) -> list[Finding]:
    """Findings about a policy that loads: rules that never match, contradict, or are too wide."""
    from meup_agent.approval.policy.findings import (
        find_contradictions,
        find_lines_compared_as_text,
        find_misread,
        find_unreachable,
        find_wide,
    )

    finders = (
        *(find_unreachable, find_contradictions, find_wide, find_misread),
        find_lines_compared_as_text,
    )
    return [each for find in finders for each in find(policy.rules, policy.names)]


# --- watched policy ---
# A policy file that is read again when it changes.
#
# The file is read when a decision is made, which costs some 20 µs: a watcher as `watchfiles` tells
# of a change later than that, by a thread, and the time of a file may stay as it was. A program
# that writes it may be half-way through, so a change counts once the text has stood still for a
# while, and until then nothing is allowed.

log = logging.getLogger("meup_agent.approval")

STILL_SECONDS: Final = 0.5
"""Time for which a changed policy file stands still before it counts."""


class NoPolicy:
    """A policy without a file and without rules: everything is asked about."""

    doubt: Final = ""

    def __init__(self) -> None:
        self._policy = Policy([])

    def current(self) -> Policy:
        """The policy, which never changes."""
        return self._policy


class WatchedPolicy:
    """A policy file that is read again when it changes, or refused whole while the old one stays.

    Args:
        path: The file.
        clock: Gives the time in seconds, since any moment.

    Raises:
        ConfigurationError: It does not load at the start.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._refused = ""
        self._raw = read_file(path)
        self._decided: bytes | None = self._raw  # the text that is in force, or was refused
        self._changed: tuple[bytes, float] | None = None  # a change, since it stands so
        self._policy = parse_policy(self._raw)

    def current(self) -> Policy:
        """The policy as the file has it now, or had it when it was good."""
        try:
            self._take_in(self._read())
        except ConfigurationError as error:
            self._changed = None
            said = f"{self._path} is refused, and the policy before it stays: {error}"
            if said != self._refused:
                log.error("%s", printable(said))
            self._refused = said
        return self._policy

    @property
    def doubt(self) -> str:
        """The reason for which the policy allows nothing at the moment; empty: there is none."""
        if self._changed is None:
            return ""
        return f"the file of the rules was changed less than {STILL_SECONDS:g} s ago"

    def _read(self) -> bytes:
        try:
            return read_file(self._path)
        except ConfigurationError:
            self._decided = None  # the text of a new file is decided on anew
            raise

    def _take_in(self, raw: bytes) -> None:
        if raw == self._decided:
            self._changed = None
            return
        now = self._clock()
        if self._changed is None or self._changed[0] != raw:
            self._changed = (raw, now)
        if now - self._changed[1] < STILL_SECONDS:
            return
        self._changed, self._decided = None, raw
        if raw != self._raw:
            if self._raw.startswith(raw):
                raise ConfigurationError(
                    "it is the beginning of the file before it, perhaps cut off"
                )
            self._policy, self._raw = parse_policy(raw), raw
            log.info("%s is read again: %r", self._path, self._policy)
        self._refused = ""
