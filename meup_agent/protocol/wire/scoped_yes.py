"""Scoped yeses: approvals in advance, with a scope, an end and a count (PROTOCOL 5).

A participant gives one at a proposal that it may carry out. It is for calls of that proposal's
tool at its target by its proposer, whose arguments its patterns take in the narrow reading. One
reader serves the gateway, which keeps and counts them, and the participants that use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, Literal

import msgspec

from meup_agent.errors import InvalidEnvelope, InvalidPattern, printable
from meup_agent.protocol.capability.patterns import (
    ArgumentCompiler,
    Exhausted,
    Match,
    Reading,
    WorkBudget,
)
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import (
    Envelope,
    FrozenStruct,
    encode_leniently,
    read_moment,
    rfc3339,
)
from meup_agent.protocol.wire.payloads import (
    TOOL_CALL,
    YES,
    Call,
    JsonObject,
    PayloadReader,
    as_object,
    meta_of,
)

YES_KINDS: Final = frozenset({kinds.YES_GIVE, kinds.YES_REVOKE})
"""The kinds that change which scoped yeses hold."""

MAX_YES_SECONDS: Final = 7 * 24 * 3600.0
"""Longest time of a scoped yes: what is to hold for longer is a policy's rule."""

MAX_YES_USES: Final = 1_000
"""Uses of one scoped yes, at the most."""

MAX_YES_BYTES: Final = 4_096
"""Bytes of the patterns of one scoped yes: a person has read all of them."""

MAX_YES_OTHERS: Final = 64
"""Arguments that a scoped yes leaves free by name."""

MAX_COVERED_BYTES: Final = 256 * 1024
"""Bytes of a call that a scoped yes covers; a larger one is asked about."""


class ArgumentScope:
    """The arguments that a scoped yes is for.

    Args:
        arguments: A pattern of the arguments; ``None``: any. ``{}`` takes no arguments.
        others: Names of arguments that are free, ``any`` for all that the pattern does not name.

    Raises:
        InvalidPattern: A pattern does not compile.
    """

    def __init__(
        self, arguments: Mapping[str, Any] | None, others: tuple[str, ...] | Literal["any"] = ()
    ) -> None:
        free = None if others == "any" else others
        self._match: Match | None = None
        # A pattern without names takes every object, whatever it leaves free.
        self._only = free if arguments is not None and not arguments else None
        if arguments:
            compiler = ArgumentCompiler(Reading.NARROW, free)
            self._match = compiler.compile(dict(arguments), "arguments")

    def takes(self, arguments: JsonObject) -> bool:
        """True if it takes some arguments; ``False`` also where that takes too much work."""
        if self._only is not None:
            return arguments.keys() <= set(self._only)
        try:
            return self._match is None or self._match(arguments, WorkBudget(arguments))
        except Exhausted:
            return False


class YesTerms(FrozenStruct, omit_defaults=True, forbid_unknown_fields=True):
    """The payload that gives a scoped yes; its correlation names the proposal.

    Attributes:
        proposer: The proposer of that proposal, and of the calls that are covered.
        seconds: Seconds for which it holds, counted by the gateway's clock.
        most: Calls that it lets through.
        form: Digest of the form of the tool that its giver has seen (PROTOCOL 5, pinned tools).
        digest: Digest of the call that its giver has seen (PROTOCOL 6).
        arguments: A pattern of the arguments; absent: any.
        others: Arguments that are free, by name; ``any``: all that the pattern does not name.
    """

    proposer: str
    seconds: float
    most: int
    form: str
    digest: str
    arguments: JsonObject | None = None
    others: tuple[str, ...] | Literal["any"] = ()

    @property
    def problem(self) -> str:
        """The reason why it cannot be given, in words; empty: there is none."""
        if not 0 < self.seconds <= MAX_YES_SECONDS:
            return f"it holds for more than nothing, and at most {MAX_YES_SECONDS:.0f} seconds"
        if not 1 <= self.most <= MAX_YES_USES:
            return f"it lets 1 to {MAX_YES_USES} calls through, not {self.most}"
        if not 0 < len(self.form) <= 64:
            return "its 'form' must be the digest of its tool's form"
        size = len(encode_leniently([self.arguments, self.others]))
        if size > MAX_YES_BYTES:
            return f"its patterns have {size} bytes; at most {MAX_YES_BYTES} are taken"
        if self.others != "any" and len(self.others) > MAX_YES_OTHERS:
            return f"it leaves {len(self.others)} arguments free; at most {MAX_YES_OTHERS} by name"
        try:
            self.compile()
        except InvalidPattern as error:
            return str(error)
        return ""

    def compile(self) -> ArgumentScope:
        """The arguments that it is for; InvalidPattern where a pattern does not compile."""
        return ArgumentScope(self.arguments, self.others)


class ScopedYes(FrozenStruct, kw_only=True, dict=True, omit_defaults=True):
    """A scoped yes, as the gateway keeps it.

    Attributes:
        id: Names it in a use: the id of the envelope that gave it.
        by: The participant that gave it.
        proposal: The proposal at which it was given; it is not for that one.
        proposer: The proposer of the calls that it covers.
        target: The participant that carries them out.
        tool: Their tool.
        form: Digest of the form of that tool, as its giver has seen it.
        given: The time at which it was given, in microseconds since 1970 (UTC).
        until: The time from which on it holds no more, likewise.
        most: Calls that it lets through.
        used: Calls that it has let through.
        arguments: A pattern of their arguments; ``None``: any.
        others: Arguments that are free, by name; ``any``: all that the pattern does not name.
    """

    id: str
    by: str
    proposal: str
    proposer: str
    target: str
    tool: str
    form: str
    given: int
    until: int
    most: int
    used: int = 0
    arguments: JsonObject | None = None
    others: tuple[str, ...] | Literal["any"] = ()

    @property
    def left(self) -> int:
        """Calls that it still lets through."""
        return max(0, self.most - self.used)

    def state_at(self, at: int) -> str:
        """``active``, ``used_up`` or ``expired`` at a time in microseconds since 1970."""
        if at >= self.until:
            return "expired"
        return "active" if self.left else "used_up"

    @property
    def until_time(self) -> datetime:
        """The time from which on it holds no more."""
        return datetime.fromtimestamp(self.until / 1e6, UTC)

    @property
    def name(self) -> str:
        """Its name as the rule that decided, in cards and in the audit."""
        return f"yes {self.id[:8]} of {self.by}"

    @cached_property
    def scope(self) -> ArgumentScope:
        """The arguments that it is for."""
        return ArgumentScope(self.arguments, self.others)

    def covers(self, call: Call, proposer: str) -> bool:
        """True if a call is one of those that it is for, whether it still lets one through."""
        return (
            call.method == TOOL_CALL
            and call.name == self.tool
            and call.target == self.target
            and proposer == self.proposer
            and not call.beside
            and not call.is_watched(proposer)
            and self.scope.takes(call.arguments)
        )

    @property
    def described(self) -> JsonObject:
        """It as the gateway's list has it."""
        said: JsonObject = msgspec.to_builtins(self)
        times = {"given": rfc3339(self.given), "until": rfc3339(self.until)}
        return {**said, "used": self.used, **times}


class KeptYes(FrozenStruct):
    """A scoped yes of the gateway's list.

    Attributes:
        yes: The yes.
        state: ``active``, ``used_up`` or ``expired``, by the gateway's clock.
    """

    yes: ScopedYes
    state: str

    @property
    def is_active(self) -> bool:
        """True if it lets a call through, as far as the gateway told."""
        return self.state == "active"


def read_described(said: object) -> ScopedYes | None:
    """A scoped yes of the gateway's list; ``None`` if it cannot be read."""
    body = dict(as_object(said))
    for field in ("given", "until"):
        body[field] = read_moment(body.get(field))
    try:
        read = msgspec.convert(body, ScopedYes)
        ArgumentScope(read.arguments, read.others)
    except (msgspec.ValidationError, InvalidPattern):
        return None
    return read


class YesQuery(FrozenStruct, forbid_unknown_fields=True):
    """The scoped yeses that are asked for.

    Attributes:
        proposer: Only those for calls of this participant; empty: all.
        tool: Only those for this tool; empty: all.
    """

    proposer: str = ""
    tool: str = ""

    def takes(self, held: ScopedYes) -> bool:
        """True for one that is asked for."""
        return self.proposer in ("", held.proposer) and self.tool in ("", held.tool)


def read_terms(envelope: Envelope, payload: JsonObject) -> YesTerms:
    """The terms of a scoped yes that is given.

    Raises:
        InvalidEnvelope: They cannot be read, or be meant.
    """
    terms = None
    try:
        terms = msgspec.convert(payload, YesTerms)
        problem = terms.problem
    except msgspec.ValidationError as error:
        problem = printable(str(error))
    if len(envelope.correlation) != 1:
        problem = "it names one proposal in its correlation"
    if terms is None or problem:
        said = f"the {envelope.kind!r} gives no scoped yes: {problem}"
        raise InvalidEnvelope("invalid_envelope", said, envelope_id=envelope.id)
    return terms


def read_revoked(envelope: Envelope, payload: JsonObject) -> str:
    """The id of the scoped yes that is revoked.

    Raises:
        InvalidEnvelope: It names none.
    """
    read = PayloadReader(envelope, payload)
    read.text("reason")
    return read.name("yes_id")


def named_yes(payload: JsonObject) -> object:
    """The id of the scoped yes that a request names; ``None``: none."""
    return meta_of(payload).get(YES)
