"""The agent: its handlers, its middleware, and its way into a space, in a block or as a script."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Protocol, TypeVar

import anyio
import anyio.lowlevel

from meup_agent.agent.context import abandoned
from meup_agent.agent.decorators import Decorators, Registry
from meup_agent.agent.middleware import (
    InboundMessage,
    Layer,
    M,
    Middleware,
    OutboundMessage,
    messages_of,
    outbound_through,
)
from meup_agent.agent.runner import Runner, handler_tasks
from meup_agent.client.offers import OfferFinder
from meup_agent.client.proposal import Proposal
from meup_agent.client.space import Space
from meup_agent.errors import (
    ConfigurationError,
    ConnectionFailed,
    MeupError,
    RemoteShutdown,
    UsageError,
)
from meup_agent.events import Observer
from meup_agent.protocol.exchange import Mode
from meup_agent.protocol.wire.payloads import Call
from meup_agent.session import ConnectedSession, Session, SessionMaker, Settings
from meup_agent.session.event_emitter import check_observer, observed
from meup_agent.transport.base import Connector, background_tasks, loop_options
from meup_agent.transport.websocket import websocket_connector
from meup_agent.uncaught import report_briefly, wants_tracebacks

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from meup_agent.session.settings import Token
    from meup_agent.tracing import Tracer


log = logging.getLogger("meup_agent.agent")

Backend = Literal["asyncio", "trio"]

Join = Callable[[anyio.Event], AbstractAsyncContextManager[object]]
"""Joins a space for the length of a block; the event cuts the grace at its end short."""

INTERRUPTED: Final = 130
"""The exit code of a program that SIGINT has ended, as shells have it."""

TASK_PREFIX: Final = "meup script:"
"""Prefix of the names of this module's own tasks."""

NO_HANDLER_PREFIXES: Final = ("meup", "end of ", "<")
"""Prefixes of the names of tasks that are not handlers: ours, their watchers', the loop's."""

LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(message)s"


def run_script(
    join: Join,
    *,
    grace: float,
    patience: float,
    backend: Backend = "asyncio",
    log_level: str | None = "INFO",
) -> None:
    """Be in a space until SIGINT or SIGTERM.

    After the first signal nothing new is begun and what runs gets its grace; the second cancels at
    once; the third, or so much patience, leaves without those that do not end although they were
    cancelled. Errors leave as a :exc:`SystemExit` with one sentence.
    """
    if log_level is not None:
        logging.basicConfig(level=log_level, format=LOG_FORMAT)
    try:
        anyio.run(
            _until_stopped,
            join,
            grace,
            patience,
            backend=backend,
            backend_options=loop_options() if backend == "asyncio" else {},
        )
    except RemoteShutdown as end:
        log.info("%s", end)
    except MeupError as error:
        sentence = f"meup: {error}"
        _leave_if_held(1, sentence)
        raise SystemExit(sentence) from None
    except KeyboardInterrupt:
        # It came before we listened for it.
        raise SystemExit(INTERRUPTED) from None
    _leave_if_held(0)


def _leave_if_held(code: int, sentence: str = "") -> None:
    """End the process here and now if threads that were abandoned would keep it."""
    held_by = [thread for thread in abandoned if thread.is_alive() and not thread.daemon]
    if not held_by:
        return
    log.warning("leaving although %d of its worker threads still run", len(held_by))
    if sentence:
        sys.stderr.write(f"{sentence}\n")
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process here and now."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _until_stopped(join: Join, grace: float, patience: float) -> None:
    """Join until a signal asks to stop: a grace first, then at once, then without waiting."""
    asked, hurry, ending = anyio.Event(), anyio.Event(), anyio.Event()
    connecting = anyio.CancelScope()
    joined = False
    main = anyio.get_current_task().id

    async def listen(*, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if hurry.is_set():
                    leave_others()
                if asked.is_set():
                    log.info("stopping at once")
                    hurry.set()
                    continue
                asked.set()
                if joined:
                    log.info("stopping: running handlers may finish; Ctrl-C again cancels them")
                else:
                    connecting.cancel()

    async def leave_in_the_end() -> None:
        """Wait no longer for handlers that shield themselves, or swallow their cancellation."""
        await ending.wait()
        with anyio.move_on_after(grace):
            await hurry.wait()
        await anyio.sleep(patience)
        leave_others()

    def leave_others() -> NoReturn:
        others = [
            task.name or "a task"
            for task in anyio.get_running_tasks()
            if task.id != main and not (task.name or "").startswith(NO_HANDLER_PREFIXES)
        ]
        log.warning("leaving although these do not end: %s", "; ".join(others))
        _leave(0 if asked.is_set() else 1)

    async with background_tasks() as tasks:
        await tasks.start(listen, name=f"{TASK_PREFIX} signals")
        tasks.start_soon(leave_in_the_end, name=f"{TASK_PREFIX} last resort")
        with connecting:
            async with join(hurry):
                joined = True
                try:
                    await asked.wait()
                finally:
                    ending.set()


_importing: ContextVar[bool] = ContextVar("meup_agent.importing", default=False)


@contextmanager
def no_run_on_import() -> Generator[None]:
    """Import a module in this block without running its agent."""
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def check_may_run() -> None:
    """Raise :exc:`UsageError` in a module that is only being looked into, and where a loop runs."""
    if _importing.get():
        raise UsageError(
            "the module runs its agent when it is imported; put agent.run() under "
            "if __name__ == '__main__'"
        )
    try:
        anyio.lowlevel.current_token()
    except RuntimeError:
        return
    raise UsageError(
        "agent.run() begins an event loop of its own, and one runs here already; write: "
        "async with agent.join() as space"
    )


AnyObserver = TypeVar("AnyObserver", bound=Observer)

GRACE: Final = 5.0
"""Seconds that handlers get to finish when an agent stops, and again to end when cancelled."""


EditJudge = Callable[
    [Space, Proposal, Call, dict[str, Any] | None], Awaitable[dict[str, Any] | None]
]
"""See :meth:`Agent.judge_edits`."""


class Extension(Protocol):
    """An object that registers its handlers at an agent."""

    def install(self, agent: Agent, /) -> None:
        """Register them."""
        ...


class Agent(Decorators):
    """A participant written in Python.

    Register handlers with its decorators (``@agent.tool``, ``@agent.on_proposal`` …), then
    :meth:`run` it as a script or :meth:`join` a space inside a program. One agent can join several
    spaces at once; each has its own connection and its own handlers' tasks.

    Args:
        name: The agent's name, told to others in MCP's ``initialize``, and for the log. Its name
            in a space is the gateway's word, by the token; gateways without tokens are told this
            one.
        middleware: Functions around what is handled and what is sent; see :meth:`middleware`.
    """

    def __init__(self, name: str, *, middleware: Iterable[Middleware] = ()) -> None:
        self.name = name
        self._registry = Registry()
        # By direction, outermost first.
        self._layers: dict[type, list[Layer]] = {InboundMessage: [], OutboundMessage: []}
        for each in middleware:
            self.middleware(each)
        self._observers: list[Observer] = []
        self._edit_judge: EditJudge | None = None
        self._tracer: Tracer | None = None
        super().__init__(self._registry.add)

    def include(self, source: object) -> None:
        """Register what free-standing decorators have marked in a module or an object.

        Raises:
            HandlerDefinitionError: Something in it cannot work as a handler.
            UsageError: Nothing in it is marked, or the agent has started.
        """
        self._registry.include(source)

    def middleware(self, middleware: M) -> M:
        """Put an async function around the messages that the agent handles or sends.

        It takes a message and ``call_next``, which passes the message on and gives what became of
        it. The annotation of the first parameter tells which messages pass:
        :class:`InboundMessage`, :class:`OutboundMessage`, or both. The first function that is
        added is the outermost; also a decorator.

        Args:
            middleware: The function, or another callable that is ``async``.

        Returns:
            The function, unchanged.

        Raises:
            HandlerDefinitionError: It cannot work as a middleware.
            UsageError: The agent has started.
        """
        name = getattr(middleware, "__qualname__", middleware)
        self._check_not_started(f"the middleware {name}")
        for passing in messages_of(middleware):
            self._layers[passing].append(middleware)
        return middleware

    def use(self, extension: Extension) -> None:
        """Add handlers that belong together, as those of a policy.

        Args:
            extension: A :class:`~meup_agent.approval.Policy`, or another object that can be
                installed.

        Raises:
            UsageError: The agent has started.
            ConfigurationError: The extension needs more than an agent has.
        """
        extension.install(self)

    def judge_edits(self, judge: EditJudge) -> None:
        """Ask an async function before a fulfillment is sent that is not what was proposed.

        It is asked after the middleware, in every space of the agent, whether a layer or a handler
        made the edit.

        Args:
            judge: Takes the space, the proposal, the call as it would be made, and the rule that
                let the proposal pass, where one did. It returns the rule that lets the call pass,
                or raises.

        Raises:
            UsageError: The agent has started.
        """
        self._check_not_started("the judge of edits")
        self._edit_judge = judge

    def trace(self, tracer: Tracer) -> None:
        """Make spans of the agent's calls, proposals and decisions, in all its spaces.

        Args:
            tracer: What :func:`meup_agent.tracing.tracing` gave; ``agent.use`` takes it, too.

        Raises:
            UsageError: The agent has started.
        """
        self._check_not_started("the tracer")
        self._tracer = tracer

    def _check_not_started(self, what: str) -> None:
        if self._registry.frozen:
            raise UsageError(f"{what} comes too late: the agent has started; add it before")

    def observe(self, observer: AnyObserver) -> AnyObserver:
        """Tell a function what happens to the agent in all its spaces; also a decorator.

        It is called with each :class:`~meup_agent.events.Event`, in the order of happening, on the
        space's event loop: it must return at once. What it raises is logged and disturbs nothing.
        Without observers, nothing is spent on it. Observers may come at any time.

        Args:
            observer: The function, or any other callable that is not ``async``.

        Returns:
            The observer, unchanged.

        Raises:
            UsageError: It cannot be called, or is ``async``.
        """
        check_observer(observer)
        self._observers.append(observer)
        return observer

    def __repr__(self) -> str:
        """The agent's name."""
        return f"<Agent {self.name!r}>"

    @asynccontextmanager
    async def join(
        self,
        url: str | Connector | SessionMaker | None = None,
        *,
        space: str | None = None,
        token: Token | None = None,
        participant: str | None = None,
        settings: Settings | None = None,
        grace: float = GRACE,
        hurry: anyio.Event | None = None,
        beside: bool = False,
        observe: bool = False,
        take_over: bool = False,
    ) -> AsyncGenerator[Space]:
        """Be in a space for the length of a block; asyncio or trio.

        At the block's end nothing new is begun, handlers that run get ``grace`` seconds, then
        they are cancelled; what is left of our own proposals is withdrawn. A block that is left
        by an exception or a cancellation gives no grace.

        Args:
            url: The gateway, for example ``ws://localhost:8420`` or ``unix:///run/meup.sock``; else
                ``MEUP_URL``. A connector of another transport is taken as well.
            space: The space's name; else ``MEUP_SPACE``.
            token: The participant's token, or a callable that gives it, asked once for each
                attempt to connect; else ``MEUP_TOKEN``.
            participant: Who we are in the space; else ``MEUP_PARTICIPANT``. Where it is given, a
                gateway that takes us for another is left. Where it is not, we are whom the
                token stands for; gateways that cannot tell are told the agent's name.
            settings: Backoff, limits, dialect, and how long to wait for the first welcome.
            grace: Seconds that running handlers get at the end.
            hurry: When it is set, the grace is over at once.
            beside: Take part beside the agent that runs with the same token, which stays connected:
                send and hear as the participant, and start handlers for nothing but what others ask
                about our own requests and proposals.
            observe: Only look on: hear what every participant hears, start no handler, send
                nothing, and not be present. An agent that runs with the same token stays connected.
            take_over: With ``beside`` or ``observe``, join also a gateway that knows no such
                connections, as a member who does no more than that; there it takes over the
                connection of an agent that runs with the same token.

        Raises:
            ConfigurationError: Address, space or token is missing or malformed.
            UsageError: ``beside`` and ``observe`` were given, or ``take_over`` without either.
            CannotJoinBeside: The gateway knows no connection beside, and ``take_over`` was not
                given.
            CannotObserve: The gateway knows no observers, and ``take_over`` was not given.
            CannotConnect: No gateway welcomed us in time.
            SessionEnded: The gateway refused us, or will not have us back. It also ends the block.
        """
        settings = settings or Settings()
        if observe or beside:
            if observe and beside:
                raise UsageError("beside and observe exclude each other; pass one of them")
            settings = replace(settings, mode=Mode.OBSERVING if observe else Mode.BESIDE)
        if take_over and settings.mode not in (Mode.BESIDE, Mode.OBSERVING):
            raise UsageError("take_over goes with beside=True or observe=True; pass one of them")
        try:
            connector, where, space, token, participant = _where_to(url, space, token, participant)
        except ConfigurationError:
            report_briefly()
            raise
        self._registry.frozen = True
        async with (
            _brief_errors() as theirs,
            observed(self._observers, space) as events,
            handler_tasks() as (start_task, group),
        ):
            runner = Runner(
                self._registry, self.name, start_task, group, events, self._layers[InboundMessage]
            )
            given: dict[str, Any] = {
                "handlers": runner,
                "settings": settings,
                "where": where,
                "participant": participant,
                "events": events,
            }
            session = (
                connector.make_session(**given)
                if isinstance(connector, SessionMaker)
                else ConnectedSession(
                    connector,
                    token=token,
                    space=space,
                    name=self.name,
                    take_over=take_over,
                    **given,
                )
            )
            tracer = self._tracer
            if tracer is None and settings.tracing:
                from meup_agent.tracing import tracing  # which not everybody has installed

                tracer = tracing(trust_proposers=settings.tracing == "trust")
            # Asked once: a look at each message costs as much as a span that goes nowhere.
            session.tracer = tracer if tracer is not None and tracer.has_sdk else None
            finder = OfferFinder(session)
            bare = Space(session, finder=finder)
            if self._edit_judge is not None:
                session.edit_judge = partial(self._edit_judge, bare)
            layers = self._layers[OutboundMessage]
            outbound = outbound_through(layers, bare) if layers else None
            joined = Space(session, finder=finder, outbound=outbound) if layers else bare
            runner.attach(session, joined, bare)
            try:
                async with session:
                    try:
                        yield joined
                    except BaseException as error:
                        theirs.append(error)
                        _report_if_ended(error)  # which is about to leave the block
                        await _stop(session, runner, 0.0, hurry)
                        raise
                    else:
                        await _stop(session, runner, grace, hurry)
            finally:
                runner.end()

    def run(
        self,
        url: str | None = None,
        *,
        space: str | None = None,
        token: Token | None = None,
        participant: str | None = None,
        settings: Settings | None = None,
        grace: float = GRACE,
        backend: Backend = "asyncio",
        log_level: str | None = "INFO",
    ) -> None:
        """Be in a space until SIGINT or SIGTERM: the whole of a script.

        A gateway that is not there yet is waited for. The first signal begins nothing new and
        gives what runs its grace; the second cancels at once. Handlers that do not end even then
        are left behind, after a while or at the third signal.

        Args:
            url: The gateway, for example ``ws://localhost:8420`` or ``unix:///run/meup.sock``; else
                ``MEUP_URL``.
            space: The space's name; else ``MEUP_SPACE``.
            token: The participant's token, or a callable that gives it; else ``MEUP_TOKEN``.
            participant: Who we are in the space; else ``MEUP_PARTICIPANT``. See :meth:`join`.
            settings: Backoff, limits and dialect.
            grace: Seconds that running handlers get at the end.
            backend: ``asyncio`` (with uvloop where it is installed) or ``trio``.
            log_level: Least level of the log on standard error, where the program has not set up
                logging itself; ``None``: leave logging alone.

        Raises:
            SystemExit: With one sentence, if the agent cannot start or go on.
        """
        check_may_run()
        patient = replace(settings or Settings(), first_welcome=None)

        def join(hurry: anyio.Event) -> AbstractAsyncContextManager[Space]:
            return self.join(
                url,
                space=space,
                token=token,
                participant=participant,
                settings=patient,
                grace=grace,
                hurry=hurry,
            )

        # A good end takes less: GRACE for the cancelled ones, and a moment for our last words.
        run_script(join, grace=grace, patience=3 * GRACE, backend=backend, log_level=log_level)


async def _stop(session: Session, runner: Runner, grace: float, hurry: anyio.Event | None) -> None:
    """Begin nothing new; give a grace to what runs; then cancel it, and wait no longer."""
    with anyio.move_on_after(grace + 2 * GRACE, shield=True):
        session.apply(session.table.shutdown(session.now()))
        with anyio.move_on_after(grace):
            async with anyio.create_task_group() as tasks:

                async def cut_short() -> None:
                    if hurry is not None:
                        await hurry.wait()
                        tasks.cancel_scope.cancel()

                tasks.start_soon(cut_short)
                await runner.wait_idle()
                tasks.cancel_scope.cancel()
        session.apply(session.table.shutdown_over(session.now()))
        with anyio.move_on_after(GRACE):
            await runner.wait_idle()
        runner.abandon_threads()


def _where_to(
    url: str | Connector | SessionMaker | None,
    space: str | None,
    token: Token | None,
    participant: str | None,
) -> tuple[Connector | SessionMaker, str, str | None, Token | None, str | None]:
    """Connector, its address for people, space, token, participant: arguments or environment."""
    if participant is not None and not participant.strip():
        raise ConfigurationError("the participant is empty; give its name, or leave it out")
    if url is not None and not isinstance(url, str):
        return url, getattr(url, "where", "the gateway"), space, token, participant
    # What is passed counts, also an empty text: it is a variable that was not set, not a
    # request for another value.
    url = os.environ.get("MEUP_URL") if url is None else url
    space = os.environ.get("MEUP_SPACE") if space is None else space
    token = os.environ.get("MEUP_TOKEN") if token is None else token
    participant = participant or os.environ.get("MEUP_PARTICIPANT", "").strip() or None
    for value, argument in ((url, "url"), (space, "space"), (token, "token")):
        if not value or (isinstance(value, str) and not value.strip()):
            raise ConfigurationError(
                f"the {argument} is missing; pass {argument}=… or set MEUP_{argument.upper()}"
            )
    assert url is not None
    assert space is not None
    return websocket_connector(url, space=space), url, space, token, participant


@asynccontextmanager
async def _brief_errors() -> AsyncGenerator[list[BaseException]]:
    """Let Ctrl-C and the end of the connection leave the block with few words.

    The user's own error goes into the list: its traceback says where.
    """
    theirs: list[BaseException] = []
    try:
        yield theirs
    except BaseException as error:
        _report_if_ended(error)
        if isinstance(error, ConnectionFailed) and error not in theirs and not wants_tracebacks():
            # No mistake is to be found in our tasks, and their tracebacks fill a screen.
            each: BaseException | None = error
            while each is not None:
                each.__traceback__ = each.__context__ = None
                each = each.__cause__
        raise


def _report_if_ended(error: BaseException) -> None:
    """Prepare for the end of the program, if it is what an exception may lead to."""
    endings = (KeyboardInterrupt, ConnectionFailed, anyio.get_cancelled_exc_class())
    if isinstance(error, endings):
        report_briefly()
