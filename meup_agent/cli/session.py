"""A command's session: it joins a space, does one thing, and leaves.

What a command does there is an :data:`Act`. Before it, the session reads the options and joins;
meanwhile it tells of lost connections on standard error; at a signal it cancels the act, which
withdraws or cancels what is open, and says so. A command answers nothing: what is asked of its
participant is for the agent that runs under that name.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from meup_agent.agent.agent import Agent
from meup_agent.cli import exit_codes
from meup_agent.cli.address import Address, JoinOptions, TimedOptions
from meup_agent.cli.failures import Failure
from meup_agent.cli.render.formatting import as_text, name_some
from meup_agent.cli.render.logs import log_nothing
from meup_agent.cli.render.output import Output, Stderr
from meup_agent.cli.signals import ENDING, ended_by, exit_code, watch_signals
from meup_agent.errors import CannotConnect
from meup_agent.escape import as_json_line, visible
from meup_agent.protocol.exchange import Mode
from meup_agent.protocol.wire import kinds
from meup_agent.session import Settings
from meup_agent.session.session import refusal_in
from meup_agent.transport.base import ABNORMAL, CloseInfo, Transport, background_tasks
from meup_agent.transport.websocket import websocket_connector
from meup_agent.wording import shown_name

if TYPE_CHECKING:
    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.envelope import Envelope


# --- a connector that reports ---
# A connection made, one that ended, and none that can be made.

FINAL: Final = frozenset({4400, 4403, 4404, 4409})
"""Close codes after which a session does not dial again (PROTOCOL 3); its error says why."""

MAX_WORDS: Final = 200  # characters that are said of an end: more than a close frame has room for

OnConnection = Callable[[CloseInfo | None], Awaitable[None]]
"""Told ``None`` when a connection is made, whose welcome is still to come, and the end of each that
we did not leave; the connection waits until it returns."""


class ReportingConnector:
    """A connector that tells what becomes of its connections.

    One that is not patient gives up where it finds no gateway at first.
    """

    def __init__(
        self,
        url: str,
        space: str,
        tell: OnConnection,
        *,
        patient: bool = True,
    ) -> None:
        self.where = url
        self._connector = websocket_connector(url, space=space)
        self._tell = tell
        self._patient = patient

    @asynccontextmanager
    async def __call__(self, headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
        """Open a connection; leaving the block closes it."""
        connected = False
        try:
            async with self._connector(headers) as transport:
                connected = self._patient = True
                await self._tell(None)
                yield transport
                info = transport.closed
        except CannotConnect as error:
            if connected or self._patient:
                raise
            raise Failure(str(error), exit_codes.NO_CONNECTION) from error
        if info is not None and not info.local:
            await self._tell(info)


def format_close(info: CloseInfo) -> str:
    """The end of a connection, in words; the reason is a stranger's text."""
    if info.code == ABNORMAL:
        return "dropped without a close frame"
    return f"closed with code {info.code}" + (f": {info.reason}" if info.reason else "")


def format_loss(info: CloseInfo) -> str:
    """The end of a connection and what comes next, on a line that is safe to print."""
    if info.code in FINAL:
        return f"connection ended, closed with code {info.code}"
    return f"connection lost, {visible(format_close(info), MAX_WORDS)}; dialling again"


# --- a command's session ---

WELCOME_SECONDS: Final = 10.0  # wait of a command for its welcome

REFUSAL_SECONDS: Final = 1.0
"""Wait for a refusal at a gateway that confirms nothing: it answers at once."""

MAX_NAMED: Final = 12  # participants that an error names
Act = Callable[["CommandSession"], Awaitable[None]]


class CommandSession:
    """One run of a command in a space.

    ``given_up`` is what a signal does to what is open: ``proposal 3f… was withdrawn``.
    """

    space: Space

    def __init__(
        self,
        options: JoinOptions,
        where: Address | None = None,
        *,
        welcome_seconds: float | None = WELCOME_SECONDS,
        mode: Mode = Mode.BESIDE,
        take_over: bool = False,
    ) -> None:
        self.where = where or options.address()
        self.output = Output(colour=not options.no_colour)
        self.stderr = Stderr(colour=not options.no_colour)
        self.as_json = options.as_json
        self.given_up = ""
        # Told of lost connections in place of standard error, where a screen is drawn.
        self.on_report: Callable[[str], None] = self.stderr.note
        if isinstance(options, TimedOptions) and welcome_seconds is not None:
            welcome_seconds = min(welcome_seconds, options.seconds or welcome_seconds)
        self._welcome_seconds = welcome_seconds
        self._mode = mode
        self._take_over = take_over
        self._acting: anyio.CancelScope | None = None
        self._signal: int | None = None
        self._done = False
        self._connected_at_end = True

    def run(self, act: Act) -> None:
        """Join, act, leave; a signal ends it early, and the others are told."""
        log_nothing()
        anyio.run(self._run, act)
        if self._signal is not None:
            raise self._interrupted(self._signal)

    async def _run(self, act: Act) -> None:
        async with background_tasks() as tasks:
            await tasks.start(watch_signals, ENDING, partial(self._end, tasks.cancel_scope))
            await self._stay(act)

    async def _stay(self, act: Act) -> None:
        where = self.where
        dial = ReportingConnector(where.url, where.space, self._report, patient=False)
        settings = Settings(first_welcome=self._welcome_seconds, mode=self._mode)
        may_take_over = self._mode is Mode.BESIDE and not where.only_beside
        async with Agent("meup").join(
            dial,
            **where.identity,
            settings=settings,
            grace=0.0,
            take_over=self._take_over or may_take_over,
        ) as self.space:
            with anyio.CancelScope() as self._acting:
                await act(self)
                self._done, self._signal = True, None
            self._connected_at_end = self.space.connected

    async def _report(self, closed: CloseInfo | None) -> None:
        if closed is not None and self._acting is not None:
            self.on_report(format_loss(closed))

    # --- signals ---

    def _end(self, scope: anyio.CancelScope, number: int) -> None:
        if self._done:
            return  # only our last envelopes are still on their way, for a moment
        if self._signal is not None or self._acting is None:
            scope.cancel()
        else:
            # Only the act: leaving the space still sends the withdrawals and cancels.
            self._acting.cancel()
        self._signal = self._signal or number

    def _interrupted(self, number: int) -> Failure:
        said = ended_by(number)
        if self.given_up and self._connected_at_end:
            said = f"{said}; {self.given_up}"
        elif self.given_up:
            said = f"{said} without a connection, so no participant was told: it may still happen"
        return Failure(said, exit_code(number))

    # --- results ---

    async def print_json(self, document: dict[str, Any]) -> None:
        """Print the result for programs, if it is wanted as JSON."""
        if self.as_json:
            await self.output.write(as_json_line(document))

    async def print_result(self, name: str, result: Any, document: dict[str, Any]) -> None:
        """Print the result of a tool: for programs the document, for people what it returned."""
        if self.as_json:
            await self.print_json(document)
        elif text := as_text(result):
            await self.output.write(text)
        else:
            self.stderr.note(f"{name} is done; it returned nothing")

    # --- participants ---

    def others(self) -> list[str]:
        """The names of the other participants that are present, in order."""
        return sorted(each.id for each in self.space.participants if each.id != self.space.me)

    def require(self, *names: str) -> None:
        """Check that these participants are present; ``me`` is, and so are those aside."""
        for name in names:
            if said := self._absence([name]):
                raise Failure(said, exit_codes.ABSENT)

    def remark_absence(self, names: Iterable[str]) -> None:
        """Note which of those that should decide are not present: they may still come."""
        if said := self._absence(names):
            self.stderr.note(said)

    def _absence(self, wanted: Iterable[str]) -> str:
        """Those of some participants that are not present; empty if all are."""
        others = self.others()
        names = [name for name in wanted if name not in (self.space.me, *others)]
        if not names:
            return ""
        here = name_some(others, MAX_NAMED) or "no others"
        close = get_close_matches(names[0], others, n=1)
        hint = f"; did you mean {shown_name(close[0])}?" if close else ""
        who = ", ".join(map(repr, names))
        verb = "is" if len(names) == 1 else "are"
        return f"{who} {verb} not in the space {self.where.space!r}; here: {here}{hint}"


# --- envelopes without an answer ---


async def send_confirmed(
    space: Space, what: str, send: Callable[[], Awaitable[str]]
) -> tuple[str, bool]:
    """Send an envelope, and wait until it comes back or is refused.

    Its id, and whether the gateway confirmed it: some never do. ``what`` names it in errors.
    """
    with space.watch() as envelopes:
        sent = await send()
        with anyio.move_on_after(None if space.gateway.guarantees.echo else REFUSAL_SECONDS):
            async for envelope in envelopes:
                if envelope.id == sent and envelope.sender == space.me:
                    return sent, True
                if _is_refusal(envelope, sent):
                    raise refusal_in(envelope.payload_object, what)
    return sent, False


def unconfirmed(what: str, seconds: float) -> Failure:
    """The failure of an envelope that was neither confirmed nor refused in its time."""
    return Failure(
        f"the gateway did not confirm {what} in {seconds:g} s, so it may not have arrived",
        exit_codes.UNKNOWN,
    )


def _is_refusal(envelope: Envelope, sent: str) -> bool:
    return (
        envelope.kind == kinds.SYSTEM_ERROR
        and envelope.sender in kinds.GATEWAY_NAMES
        and sent in envelope.correlation
    )
