"""Connects again and again: dial, join, use the connection until its end, back off.

This is the only place that retries (PROTOCOL 3, close codes).
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from meup_agent.errors import (
    CannotConnect,
    CannotJoinBeside,
    CannotObserve,
    HandshakeRefused,
    Kicked,
    NoSuchSpace,
    SessionEnded,
    TakenOver,
    TokenRefused,
    TransportClosed,
    TransportError,
    printable,
)
from meup_agent.protocol.exchange import Mode
from meup_agent.session.connection import JoinPlan
from meup_agent.transport.base import (
    ABNORMAL,
    BESIDE_HEADER,
    DIALECT_HEADER,
    OBSERVE_HEADER,
    CloseInfo,
)

if TYPE_CHECKING:
    from meup_agent.session.connection import SessionConnection
    from meup_agent.session.event_emitter import EventEmitter
    from meup_agent.session.settings import Backoff, Token
    from meup_agent.transport.base import Connector


# --- connects again and again ---

log = logging.getLogger("meup_agent.session")

LONGEST_RETRY_AFTER: Final = 3600.0
"""Seconds that a gateway can make us wait: a slip in a header must not keep us out for good."""

_FORBIDDEN: Final = 403

RESTORE_TOKEN_ONCE: Final = frozenset({401, _FORBIDDEN, 4401})
"""The token was refused: one that is asked for may be better the next time."""


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
