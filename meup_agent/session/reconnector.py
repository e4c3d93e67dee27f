"""Connects again and again: dial, join, use the connection until its end, back off.

This is the only place that retries (PROTOCOL 3, close codes).
"""

from __future__ import annotations

import inspect
import logging
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from meup_agent.errors import (
    CannotConnect,
    CannotJoinBeside,
    CannotObserve,
    ConfigurationError,
    HandshakeRefused,
    Kicked,
    NoSuchSpace,
    SessionEnded,
    TakenOver,
    TokenRefused,
    TransportClosed,
    TransportError,
    UsageError,
    printable,
)
from meup_agent.protocol.dialects import DEFAULT_DIALECT
from meup_agent.protocol.exchange import Limits, Mode
from meup_agent.session.connection import JoinPlan
from meup_agent.session.pending_calls import checked_ttl
from meup_agent.transport.base import (
    ABNORMAL,
    BESIDE_HEADER,
    DIALECT_HEADER,
    OBSERVE_HEADER,
    CloseInfo,
)

if TYPE_CHECKING:
    from meup_agent.causes import Cause
    from meup_agent.protocol.exchange import Key, Role, Work
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.payloads import Call
    from meup_agent.session.connection import SessionConnection
    from meup_agent.session.event_emitter import EventEmitter
    from meup_agent.transport.base import Connector


# --- connects again and again ---

log = logging.getLogger("meup_agent.session")

Token = str | Callable[[], str] | Callable[[], Awaitable[str]]
"""A token, or what gives one; it is asked once for each attempt to connect."""

LONGEST_RETRY_AFTER: Final = 3600.0
"""Seconds that a gateway can make us wait: a slip in a header must not keep us out for good."""

_FORBIDDEN: Final = 403

RESTORE_TOKEN_ONCE: Final = frozenset({401, _FORBIDDEN, 4401})
"""The token was refused: one that is asked for may be better the next time."""


MAX_DOUBLED: Final = 32
"""Failures after which a pause grows no more: a float ends at 2**1024."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts: with full jitter, so that not all agents come back at once.

    Attributes:
        first: Seconds at the most before the first attempt after a loss.
        longest: Seconds at the most before any attempt.
        stable: Seconds of welcome after which the next loss counts as a first one.
    """

    first: float = 0.25
    longest: float = 30.0
    stable: float = 30.0

    def pause(self, failures: int) -> float:
        """Seconds before the next attempt, after so many failures in a row before the last one."""
        return random.uniform(0, min(self.longest, self.first * 2 ** min(failures, MAX_DOUBLED)))


class RequiredEcho(NamedTuple):
    """A header that a gateway says back which knows what it asks for, and the error of others."""

    header: str
    error: type[SessionEnded]
    sentence: str


class ReconnectorOwner(Protocol):
    """The session that is kept connected."""

    def resume_headers(self) -> dict[str, str]:
        """The headers with which we ask for what we missed."""
        ...

    def join_frame(self, token: str | None, knows_us: bool) -> bytes:
        """The join frame, for a gateway that has answered with our dialect, or has not."""
        ...

    def note_failure(self, error: TransportError) -> None:
        """Note why an attempt, or a connection, has failed."""
        ...


@dataclass(kw_only=True)
class Reconnector:
    """Keeps one participant connected.

    With ``insist`` the join frame goes also to a gateway that has taken the token from the
    handshake. A gateway is left whose handshake lacks a ``required`` echo.
    """

    owner: ReconnectorOwner
    events: EventEmitter
    connector: Connector
    token: Token | None
    headers: dict[str, str]
    insist: bool
    required: RequiredEcho | None
    connection: SessionConnection
    backoff: Backoff
    where: str
    _token_refused: bool = field(default=False, init=False)
    _welcomed_for: float | None = field(default=None, init=False)
    _was_welcomed: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Connect again and again, until the gateway does not want this participant any more."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(TransportError),
            wait=self._delay,
            sleep=anyio.sleep,
            before_sleep=self._announce,
        ):
            with attempt:
                await self._connect_once()

    async def _connect_once(self) -> None:
        """One connection, from the handshake to its end; always ends with an exception."""
        self._welcomed_for = None
        headers = {**self.headers, **self.owner.resume_headers()}
        try:
            token = await self._ask_token()
        except OSError as error:
            if not self._was_welcomed:
                raise
            # Where the token comes from is out of reach for a while, as the gateway may be.
            failure = CannotConnect(f"no token could be had: {printable(str(error))}")
            self.owner.note_failure(failure)
            raise failure from error
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        try:
            async with self.connector(headers) as transport:
                answered, required = transport.response_headers, self.required
                if required is not None and required.header.lower() not in answered:
                    # On such a gateway a join frame would throw the participant's agent out.
                    raise required.error(required.sentence.format(where=self.where))
                knows_us = DIALECT_HEADER.lower() in answered
                joining = JoinPlan(
                    self.owner.join_frame(token, knows_us),
                    at_once=self.insist or not knows_us,
                    again=self._was_welcomed,
                )
                try:
                    self._welcomed_for = await self.connection.use(transport, joining)
                finally:
                    self.events.disconnected(transport.closed)
                self._was_welcomed |= self._welcomed_for is not None
                closed = transport.closed
            raise (closed or CloseInfo(ABNORMAL)).error()
        except TransportError as error:
            self._judge(error)
            self.owner.note_failure(error)
            raise

    async def _ask_token(self) -> str | None:
        if self.token is None or isinstance(self.token, str):
            return self.token
        token = self.token()
        return await token if inspect.isawaitable(token) else token

    def _judge(self, error: TransportError) -> None:
        """Raise if there is no use in trying again."""
        if self._welcomed_for is not None:
            self._token_refused = False
        match error:
            case HandshakeRefused():
                code, said = error.status, error.body
            case TransportClosed():
                code, said = error.code, error.reason
            case _:
                return
        because = f": {said}" if said else ""
        if code in RESTORE_TOKEN_ONCE:
            if callable(self.token) and not self._token_refused:
                self._token_refused = True
                return
            if code == _FORBIDDEN and not said:
                # An ASGI server answers so where its application has nothing at the path; gateways
                # that refuse a token give a reason.
                raise SessionEnded(
                    f"the server at {self.where} refused the connection with status 403 and no"
                    " reason: no gateway is at this path, or something in front of it refuses the"
                    " token; check the path in MEUP_URL, then MEUP_TOKEN"
                ) from error
            # A gateway of ours says it of a participant that was removed, whose token is right.
            advice = "" if code == _FORBIDDEN else "; check MEUP_TOKEN"
            raise TokenRefused(
                f"the gateway {self.where} refused the token{because}{advice}"
            ) from error
        ends = _ENDS.get(code)
        if ends is not None:
            kind, sentence = ends
            # A gateway of ours gives as its reason what the sentence says already.
            more = "" if said in sentence else because
            raise kind(sentence.format(where=self.where) + more) from error

    def _delay(self, state: RetryCallState) -> float:
        if self._welcomed_for is not None and self._welcomed_for >= self.backoff.stable:
            state.attempt_number = 1
        delay = self.backoff.pause(state.attempt_number - 1)
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after if isinstance(error, HandshakeRefused) else None
        return max(delay, min(asked or 0.0, LONGEST_RETRY_AFTER))

    def _announce(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        delay = state.next_action.sleep if state.next_action else 0.0
        log.info("%s; trying again in %.2f s", error, delay)
        self.events.will_retry(error, delay)


_ECHOES: Final = {
    Mode.OBSERVING: RequiredEcho(
        OBSERVE_HEADER,
        CannotObserve,
        "the gateway {where} knows no observers, and joining it would throw out the agent that runs"
        " with this token: use the token of a participant without an agent, and --take-over"
        " (in a program, take_over=True)",
    ),
    Mode.BESIDE: RequiredEcho(
        BESIDE_HEADER,
        CannotJoinBeside,
        "the gateway {where} knows no connection beside, and joining it would throw out the agent"
        " that runs with this token: use the token of a participant without an agent, and leave"
        " --as out (in a program, take_over=True)",
    ),
}


def required_echo(mode: Mode) -> RequiredEcho | None:
    """The header that a gateway's handshake must say back to a session in a mode, if any."""
    return _ECHOES.get(mode)


_ENDS: Final[dict[int, tuple[type[SessionEnded], str]]] = {
    400: (SessionEnded, "the gateway {where} cannot speak with us"),
    4400: (SessionEnded, "the gateway {where} cannot speak with us"),
    # A web server says it of a path that it does not know.
    404: (NoSuchSpace, "the gateway {where} has no such space, or no gateway is at this path"),
    4404: (NoSuchSpace, "the gateway {where} has no such space"),
    4403: (Kicked, "we were removed from the space at {where}"),
    4409: (
        TakenOver,
        "a newer connection of the same participant took over at {where}; "
        "give each program a token of its own",
    ),
}
"""Close codes and statuses after which there is no use in dialling (PROTOCOL 3)."""


# --- settings ---
# The settings of a session, and the interfaces that it calls.

TTL: Final = 300.0
"""Seconds that a proposal waits for a decision, if nothing else is said: a person may decide it."""


def ttl_from_environment() -> float | None:
    """Seconds of ``MEUP_TTL``, which may also be ``none``; without it :data:`TTL`."""
    said = os.environ.get("MEUP_TTL", "").strip()
    if not said or said.lower() == "none":
        return None if said else TTL
    try:
        return checked_ttl(float(said))
    except (ValueError, UsageError):
        raise ConfigurationError(
            f"MEUP_TTL is {said!r}; give seconds that a proposal waits, or none for as long as it"
            " takes"
        ) from None


Tracing = bool | Literal["trust"]
"""Make spans, or none; ``trust``: also within the traces that proposers name."""

_TRACING: Final[dict[str, Tracing]] = {
    **dict.fromkeys(("", "0", "false", "off"), False),
    **dict.fromkeys(("1", "true", "on"), True),
    "trust": "trust",
}


def tracing_from_environment() -> Tracing:
    """The value of ``MEUP_TRACING``; without it no spans are made."""
    said = os.environ.get("MEUP_TRACING", "").strip()
    try:
        return _TRACING[said.lower()]
    except KeyError:
        raise ConfigurationError(
            f"MEUP_TRACING is {said!r}; give 1 to make traces, trust to make them within those that"
            " proposers name, or 0"
        ) from None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a session.

    Attributes:
        dialect: The dialect that we begin with; the gateway's welcome may name another.
        backoff: The pauses between attempts to connect.
        limits: The handlers that run and wait at once.
        first_welcome: Seconds to wait for the first welcome; ``None``: as long as it takes.
        mode: Take part, only ask, or only look on.
        ttl: Seconds that a proposal waits for its decision and result where it does not say, else
            ``MEUP_TTL``, else 300; ``None``: as long as it takes.
        tracing: Make OpenTelemetry spans, as ``agent.use(tracing())`` does; ``trust``: with
            ``trust_proposers``. By default as ``MEUP_TRACING`` says, else not.
    """

    dialect: str = DEFAULT_DIALECT
    backoff: Backoff = field(default_factory=Backoff)
    limits: Limits = field(default_factory=Limits)
    first_welcome: float | None = 10.0
    mode: Mode = Mode.PARTICIPATING
    ttl: float | None = field(default_factory=ttl_from_environment)
    tracing: Tracing = field(default_factory=tracing_from_environment)

    def __post_init__(self) -> None:
        """Check the ttl, which each proposal would raise for."""
        checked_ttl(self.ttl)


class Handlers(Protocol):
    """The handlers of an agent; each call returns at once."""

    def find(self, role: Role, envelope: Envelope, call: Call | None, /) -> object:
        """Find the handler for an envelope in a role; something false where there is none.

        What is found comes back to :meth:`start` as ``work.handler``.
        """
        ...

    def start(self, key: Key, work: Work) -> None:
        """Start it; the session is told of its end by :meth:`Session.returned` or `raised`."""
        ...

    def cancel(self, key: Key, cause: Cause) -> None:
        """End its scope."""
        ...


class EnvelopeListener(Protocol):
    """A callee for every envelope."""

    def put(self, envelope: Envelope) -> None:
        """Take one; returns at once."""
        ...
