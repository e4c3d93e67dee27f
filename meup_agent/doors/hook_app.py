"""The hooks of coding agents over HTTP: an ASGI application that answers each call of a hook.

A hook is a request that waits: its answer says whether the call may run, and its connection is the
wait. Where that closes first, the proposal is withdrawn. Each answer to an agent that is known is
one that it takes for a decision, also where something failed here.
"""

from __future__ import annotations

import logging
import math
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self
from urllib.parse import parse_qsl

import anyio
import msgspec
from anyio import lowlevel

from meup_agent.doors.deferred import DeferredCall, DeferredCalls
from meup_agent.doors.hooks import (
    DIALECTS,
    MARGIN_SECONDS,
    NOTHING,
    HookDialect,
    HookInput,
    HookKind,
    UnreadableHook,
    asks_by_dialog,
    deny_dialog,
    permit_dialog,
    read_object,
    unreadable_words,
)
from meup_agent.doors.permit import (
    ANSWERED_SECONDS,
    MAX_ANSWERED,
    MAX_TOLD_CHARS,
    NOT_TOLD,
    Denied,
    Door,
    HostCall,
    Permitted,
    Why,
)
from meup_agent.doors.terminal_race import TerminalRace, is_decision
from meup_agent.errors import MeupError
from meup_agent.mcp.sdk import decisions
from meup_agent.protocol.wire.outcomes import PermitReport, ReportedOutcome
from meup_agent.protocol.wire.ttl_map import TTLMap
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, MutableMapping

    from anyio.abc import TaskGroup

    from meup_agent.agent.agent import Agent
    from meup_agent.client.space import Space

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger("meup_agent.doors")

MAX_INPUT_BYTES: Final = 2 * 1024 * 1024
"""Bytes of a hook's input: a file that is written whole is in it."""

MAX_DOORS: Final = 256
"""Participants whose hooks one process answers; each has a connection to the gateway."""

MAX_WAITING: Final = 256
"""Calls of one participant that wait with their hosts at once; one more is denied."""

MAX_DEFERRED: Final = 256
"""Calls of one participant whose hosts may be away, for a week; one more waits with its host."""

JOIN_SECONDS: Final = 10.0
"""Wait of a call for its participant to have joined the space."""

RECALL_SECONDS: Final = 5.0
"""Of it, wait for the space to tell which permits it was given before."""

GRACE_SECONDS: Final = 2.0
"""Time after the deadline of a wait at which the host is answered in any case."""

WATCH_SECONDS: Final = 20.0
"""Time in which a call that is only watched is told, for its participant to join included."""

UNTOLD: Final = PermitReport.of(ReportedOutcome.NOT_RUN, NOT_TOLD)
"""The report of a permit that its host has not heard of."""

RAN_OTHERWISE: Final = "RAN WITH OTHER ARGUMENTS THAN PERMITTED"
"""Beginning of a report's output: another hook of the same host has changed the call after ours."""

Mode = Literal["enforce", "watch"]
"""``enforce``: nothing runs that was not permitted; ``watch``: decides nothing, records all."""

WATCH: Final = "watch"
"""The mode, as the address of a hook says it, too."""

DEFER: Final = "meup-defer"
"""The header of seconds after which a host is sent away and comes back.

Only ``meup-hook`` sends it, which sees whether its host has a terminal: at one *defer* is no
answer, and the call may run. In the address of a hook, which knows nothing of that, it is refused.
"""

TERMINAL: Final = "terminal"
"""Said as ``prefer``: the agent's terminal is asked as well, and the first answer counts."""


class HookLogin(Protocol):
    """A participant, named among those of all spaces, with its token."""

    @property
    def key(self) -> str:
        """Its name."""
        ...

    @property
    def token(self) -> str:
        """The token."""
        ...


class NotLoggedIn(Exception):
    """A token was refused: a status, and words for people."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class JoinDoor(Protocol):
    """Joins the space of a token."""

    def __call__(self, agent: Agent, token: str, /) -> AbstractAsyncContextManager[Space]:
        """The space, for the length of a block."""
        ...


class _HookMember:
    """A participant as its hooks are it, until its connection ends.

    It may have several tokens: by whichever one a call is asked about, it is one proposal.
    """

    def __init__(self, login: HookLogin) -> None:
        self.door = Door(f"hooks of {login.key}")
        self.login = login
        # Of each token, the requests that wait, and the calls whose hosts may be away: they end
        # with that, but for a call that a host with another token has asked about as well.
        self.asks: dict[str, set[anyio.CancelScope]] = {}
        self.scope = anyio.CancelScope()
        self.ready = anyio.Event()
        self.waiting = 0
        # Hosts that were told of each permit: of two hooks that ask for one call, one may be gone.
        self.told: TTLMap[str, int] = TTLMap(count=MAX_ANSWERED, seconds=ANSWERED_SECONDS)
        self.race = TerminalRace(self.door, lambda proposal: self.tell(proposal, 0))
        self.deferred = DeferredCalls(self.door, lambda proposal: self.tell(proposal, 0))
        # Permits of dialogs, which do not say the id that is reported later.
        self.dialogs: TTLMap[tuple[str, str, str, bytes], str] = TTLMap(
            count=MAX_ANSWERED, seconds=ANSWERED_SECONDS
        )
        self.error: Exception | None = None

    @property
    def held(self) -> int:
        """The calls that wait with their hosts."""
        return self.waiting + len(self.race)

    @contextmanager
    def asking(self, token: str, scope: anyio.CancelScope) -> Generator[None]:
        """The block in which a token asks, in a scope that ends with it."""
        asks = self.asks.get(token)
        if asks is None:
            scope.cancel()
        else:
            asks.add(scope)
        try:
            yield
        finally:
            if asks is not None:
                asks.discard(scope)

    def tell(self, proposal: str, hosts: int) -> None:
        """Note that one host more, or less, was told of a permit; that none was is reported."""
        now = anyio.current_time()
        count = (self.told.get(proposal, now) or 0) + hosts
        self.told.put(proposal, count, now)
        if count <= 0:
            self.door.report(proposal, UNTOLD)


class HookApp:
    """Answers hooks while :meth:`run` runs.

    Args:
        join: Joins the space.
        log_in: The participant of a request, by its token; raises NotLoggedIn.
        mode: Whether it decides. One that does watches where the address of a hook says
            ``mode=watch``.
    """

    def __init__(
        self, join: JoinDoor, log_in: Callable[[Any], HookLogin], mode: Mode = "enforce"
    ) -> None:
        self._join = join
        self._log_in = log_in
        self._mode = mode
        self._members: dict[str, _HookMember] = {}  # by the names of their participants
        self._tasks: TaskGroup | None = None
        self._watched = 0

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[Self]:
        """Answer for the length of a block; then all doors leave their spaces."""
        async with background_tasks() as self._tasks:
            yield self
        self._tasks = None

    def check_found(self, find: Callable[[str], str | None]) -> None:
        """Deny what waits with tokens that are void by now, or another's.

        A door whose participant has asked with no other one ends.
        """
        for key, member in self._members.items():
            void = [token for token in member.asks if find(token) != key]
            ended = set[anyio.CancelScope]().union(*map(member.asks.pop, void))
            for ask in ended.difference(*member.asks.values()):
                ask.cancel()
            if not member.asks:
                member.scope.cancel()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        agent = str(scope.get("path_params", {}).get("agent", ""))
        dialect = DIALECTS.get(agent)
        headers = dict(scope["headers"])
        if dialect is None:
            names = ", ".join(DIALECTS)
            await _answer(send, 404, {"error": f"there is no such hook; there are {names}"})
        elif scope["method"] != "POST" or b"origin" in headers:
            # A page of a browser, which asks by a name that leads here.
            await _answer(send, 403, {"error": "a hook is posted to by an agent, and by no page"})
        else:
            try:
                self._log_in(scope)
                await self._answer_hook(dialect, scope, receive, send)
            except NotLoggedIn as error:
                await _answer(send, error.status, {"error": str(error)})

    async def _answer_hook(
        self, dialect: HookDialect, scope: Message, receive: Receive, send: Send
    ) -> None:
        """Answer the hook of a participant: always with a decision, where one is asked for.

        Raises:
            NotLoggedIn: Its token is void.
        """
        query = _query(scope)
        watches = WATCH in (self._mode, query.get("mode"))
        said: dict[str, Any] = {}
        try:
            said = read_object(await _read_body(receive), "the input")
            hook = dialect.read(said, query.get("own", ""))
        except UnreadableHook as error:
            log.warning("a hook of %s cannot be read: %s", dialect.agent, error)
            words = unreadable_words(dialect.agent, str(error))
            deny = deny_dialog if asks_by_dialog(dialect.agent, said) else dialect.deny
            await _answer(send, 200, NOTHING if watches else deny(words))
            return
        except ConnectionResetError:
            return
        login = self._log_in(scope)  # its token may have become void while it was read
        await self._settle(login, dialect, hook)
        asks = hook.kind is HookKind.ASKS and not hook.is_own
        if asks and "defer" in query and not watches:
            words = (
                f"This call was not carried out: the address of {dialect.agent}'s hook says"
                " `defer`, after which it may run at a terminal. Tell the user to use `meup-hook"
                " --defer-after` instead."
            )
            await _answer(send, 200, dialect.deny(words))
            return
        if asks and "untold" in query:
            await self._report(login, hook)
        elif (asks or hook.kind is HookKind.RACES) and not (watches or hook.is_own):
            await self._decide(dialect, login, hook, query, scope, receive, send)
            return
        elif asks:
            self._watch(login, hook)
        elif hook.kind is HookKind.REPORTS:
            await self._report(login, hook)
        # Our own server's calls are approved on their own way.
        await _answer(send, 200, NOTHING)

    async def _decide(
        self,
        dialect: HookDialect,
        login: HookLogin,
        hook: HookInput,
        query: dict[str, str],
        scope: Message,
        receive: Receive,
        send: Send,
    ) -> None:
        """Have the space decide a call, and tell the host; where that hangs up, withdraw it."""
        wait = _seconds(query, "timeout", dialect.timeout) - MARGIN_SECONDS
        # With an answer that has its terminal ask, the space has a moment alone.
        after = dict(scope["headers"]).get(DEFER.encode())
        defers = after is not None and dialect.defer is not None
        there = dialect.ask if query.get("prefer") == TERMINAL and not defers else None
        call = hook.call
        assert call is not None
        answer: Permitted | Denied | DeferredCall | None = None
        hung_up = False
        member: _HookMember | None = None

        async def wait_for_end(scope: anyio.CancelScope) -> None:
            nonlocal hung_up
            while (await receive())["type"] != "http.disconnect":
                pass
            hung_up = True
            scope.cancel()

        try:
            async with anyio.create_task_group() as tasks:
                with anyio.move_on_after(max(wait, 0.0) + GRACE_SECONDS) as asking:
                    tasks.start_soon(wait_for_end, asking)
                    member = await self._join_member(login)
                    with member.asking(login.token, asking):
                        deferred = await member.deferred.find(call)
                        stays = deferred is None or not deferred.may_leave
                        if stays and member.held >= MAX_WAITING:
                            raise _Full(f"{MAX_WAITING} calls of this participant wait already")
                        ttl = _seconds(query, "ttl", _space_ttl(member))
                        may_leave = defers and len(member.deferred) < MAX_DEFERRED
                        if not may_leave:
                            ttl = max(min(wait, ttl), 0.001)
                        is_alone = there is None and hook.kind is HookKind.ASKS
                        if deferred is None and call.key and is_alone:
                            deferred = self._begin(member, hook, ttl, may_leave=may_leave)
                        if deferred is None:
                            answer = await self._ask(member, hook, ttl, races=there is not None)
                        else:
                            member.asks.get(login.token, set()).add(deferred.scope)
                            told = {DEFER: (after or b"").decode("latin-1")}
                            seconds = math.inf
                            if defers and deferred.may_leave:
                                seconds = min(_seconds(told, DEFER, math.inf), wait)
                            answer = await self._take(member, call, deferred, seconds)
                # A host that has closed its connection by now hears no answer, also where its time
                # ran out or its token became void as the permit was fetched: until the loop has
                # seen, read and told what the kernel knows.
                for _ in range(3):
                    await lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        except* (MeupError, _Full) as group:
            error = group.exceptions[0]
            log.warning("a call of %s was denied: %s", dialect.agent, error)
            answer = Denied(Why.UNREACHABLE, decisions.failed(call.tool, str(error)) + NOBODY)
        if isinstance(answer, Permitted):
            assert member is not None
            answer = member.door.check(call, answer)
            if isinstance(answer, Permitted):
                if hung_up and hook.kind is HookKind.RACES:
                    # Its terminal was answered, perhaps by a yes: what comes later tells.
                    member.race.leave(hook, answer.proposal)
                else:
                    member.tell(answer.proposal, 0 if hung_up else 1)
                if hook.kind is HookKind.RACES:
                    key, at = _dialog_key(call, answer), anyio.current_time()
                    member.dialogs.put(key, answer.proposal, at)
        if hung_up:
            if isinstance(answer, DeferredCall) and not answer.hosts:
                answer.scope.cancel()  # it does not know that it is to come back
            return
        is_dialog = hook.kind is HookKind.RACES
        match answer:
            case Permitted():
                permit = permit_dialog if is_dialog else dialect.permit
                body = permit(answer.arguments)
            case DeferredCall():
                assert dialect.defer is not None
                body = dialect.defer
            case Denied() if is_decision(answer) or not (is_dialog or there):
                body = deny_dialog(answer.words) if is_dialog else dialect.deny(answer.words)
            case _ if is_dialog:
                body = NOTHING  # it stays open at the terminal
            case _ if there:
                body = there
            case _:
                words = f"The call of {decisions.name(call.tool)} was not decided.{NOBODY}"
                body = dialect.deny(words)
        await _answer(send, 200, body)

    async def _ask(
        self, member: _HookMember, hook: HookInput, ttl: float, *, races: bool
    ) -> Permitted | Denied | None:
        """The answer of the space; ``None``: there is none yet, and the terminal decides, too."""
        assert hook.call is not None
        is_dialog = hook.kind is HookKind.RACES
        if not is_dialog and not races:
            member.waiting += 1
            try:
                return await member.door.ask(hook.call, ttl=ttl)
            finally:
                member.waiting -= 1
        raced = member.race.claim(hook) if is_dialog else None
        if raced is None:
            assert self._tasks is not None  # there is a member
            raced = member.race.enter(hook)
            self._tasks.start_soon(member.race.wait, raced, ttl)
        return await raced.wait_for(is_dialog=is_dialog)

    async def _take(
        self, member: _HookMember, call: HostCall, deferred: DeferredCall, seconds: float
    ) -> Permitted | Denied | DeferredCall | None:
        """The answer to a call that waits, for one host; of those that stay each counts."""
        member.waiting += not deferred.may_leave
        try:
            return await member.deferred.take(call, deferred, seconds)
        finally:
            member.waiting -= not deferred.may_leave

    def _begin(
        self, member: _HookMember, hook: HookInput, ttl: float, *, may_leave: bool
    ) -> DeferredCall:
        """A call that begins to wait, and goes on while a host waits, or is to come back."""
        assert self._tasks is not None  # there is a member
        entered = member.deferred.enter(hook, may_leave=may_leave)

        async def wait() -> None:
            try:
                await member.deferred.wait(entered, None if math.isinf(ttl) else ttl)
            finally:
                for asks in member.asks.values():
                    asks.discard(entered.scope)

        self._tasks.start_soon(wait)
        return entered

    def _watch(self, login: HookLogin, hook: HookInput) -> None:
        """Record a call without waiting: it is proposed, and taken back."""
        assert hook.call is not None
        call = replace(hook.call, watched=True)

        async def record() -> None:
            self._watched += 1
            try:
                with anyio.move_on_after(WATCH_SECONDS):
                    member = await self._join_member(login)
                    await member.door.ask(call, ttl=0.001)
            except (MeupError, _Full) as error:
                log.warning("a call of %s is not recorded: %s", call.agent, error)
            finally:
                self._watched -= 1

        if self._tasks is None or self._watched >= MAX_WAITING:
            log.warning("a call of %s is not recorded: %d are already", call.agent, self._watched)
        else:
            self._tasks.start_soon(record)

    async def _report(self, login: HookLogin, hook: HookInput) -> None:
        """Tell the space what came of a permit; of a call that none was given for, nothing."""
        if hook.call is None:
            return
        try:
            member = await self._join_member(login)
        except (MeupError, _Full) as error:
            log.warning("what came of a call of %s is not reported: %s", hook.call.agent, error)
            return
        permit = member.door.permit_of(hook.call)
        if permit is None:
            permit = member.dialogs.get(_dialog_key(hook.call), anyio.current_time())
        if permit is None and hook.report is not None and hook.report.has_run:
            # Its terminal has said yes before, or its program asked nobody.
            permit = member.door.rejected_as(hook.call)
        if permit is not None and hook.report is not None:
            report, ran = hook.report, hook.call.arguments
            if (
                hook.tells_input
                and report.has_run
                and not member.door.ran_as_permitted(permit, ran)
            ):
                log.warning("a call of %s ran with other arguments than permitted", hook.call.agent)
                said = msgspec.json.encode(ran).decode()[:MAX_TOLD_CHARS]
                output = f"{RAN_OTHERWISE}: {said}\n{report.output}"
                report = PermitReport.of(report.outcome, output, report.exit_code)
            member.door.report(permit, report)
        elif permit is not None:
            member.tell(permit, -1)

    async def _settle(self, login: HookLogin, dialect: HookDialect, hook: HookInput) -> None:
        """Take back what was answered at the terminal, or is wanted no more, as a hook shows."""
        member = self._members.get(login.key)
        if member is None and hook.ends_turn:
            # A door before this one may have kept calls of this agent.
            try:
                member = await self._join_member(login)
            except (MeupError, _Full) as error:
                log.info("what an agent has gone on without is not taken back: %s", error)
        if member is None:
            return
        await member.race.settle(dialect.agent, hook)
        member.deferred.settle(dialect.agent, hook)
        if hook.ends_turn:
            await member.door.take_back_left(dialect.agent, hook.session, hook.worker)

    # --- the doors ---

    async def _join_member(self, login: HookLogin) -> _HookMember:
        """The member of a participant, in its space.

        Raises:
            MeupError: It cannot join.
        """
        member = self._members.get(login.key)
        if member is None:
            if self._tasks is None:
                raise _Full("the gateway starts or stops")
            if len(self._members) >= MAX_DOORS:
                raise _Full(f"the hooks of {MAX_DOORS} participants are answered already")
            member = self._members[login.key] = _HookMember(login)
            self._tasks.start_soon(self._keep, member)
        member.asks.setdefault(login.token, set())
        await member.ready.wait()
        if member.error is not None:
            raise member.error
        return member

    async def _keep(self, member: _HookMember) -> None:
        """Keep a door in its space, until the connection or its token ends for good."""
        login = member.login
        try:
            with member.scope, anyio.fail_after(JOIN_SECONDS) as joining:
                async with member.door.join_by(lambda agent: self._join(agent, login.token)):
                    await self._recall(member.door)
                    joining.deadline = math.inf
                    member.ready.set()
                    try:
                        await anyio.sleep_forever()
                    finally:
                        member.deferred.leave()
        except TimeoutError:
            member.error = _Full("the space could not be joined in time")
        except (MeupError, OSError) as error:
            member.error = error
            log.info("hooks of %s: %s", login.key, error)
        finally:
            member.error = member.error or _Full("its connection to the space has ended")
            member.ready.set()
            if self._members.get(login.key) is member:
                del self._members[login.key]

    async def _recall(self, door: Door) -> None:
        try:
            with anyio.move_on_after(RECALL_SECONDS):
                await door.recall()
        except MeupError as error:
            log.warning("of permits that were given before, nothing is reported: %s", error)


NOBODY: Final = (
    " It was not carried out, since nobody decided about it. That is neither a refusal nor a"
    " permission: do not try to do the same by another way. Tell the user."
)


class _Full(Exception):
    """A call is denied for want of room, or of a space."""


def _space_ttl(member: _HookMember) -> float:
    """The seconds that a proposal of a door waits where its hook does not say."""
    space = member.door.space
    default = None if space is None else space.proposals.ttl
    return math.inf if default is None else default


def _dialog_key(call: HostCall, permit: Permitted | None = None) -> tuple[str, str, str, bytes]:
    """The name of a call whose hook does not say its id, as it runs."""
    arguments = call.arguments if permit is None else permit.arguments
    said = msgspec.json.encode(arguments, order="deterministic")
    return (call.agent, call.session, call.tool, said)


def _query(scope: Message) -> dict[str, str]:
    return dict(parse_qsl(bytes(scope.get("query_string", b"")).decode("latin-1")))


def _seconds(query: dict[str, str], name: str, default: float) -> float:
    """Seconds as whoever set the hook up says: the host waits so long, or the proposal."""
    try:
        seconds = float(query.get(name, default))
    except ValueError:
        return default
    return seconds if 0 < seconds < math.inf else default


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        body += message.get("body", b"")
        if len(body) > MAX_INPUT_BYTES:
            raise UnreadableHook(f"the input has more than {MAX_INPUT_BYTES} bytes")
        if not message.get("more_body", False):
            return bytes(body)


async def _answer(send: Send, status: int, body: dict[str, Any]) -> None:
    content = msgspec.json.encode(body)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
