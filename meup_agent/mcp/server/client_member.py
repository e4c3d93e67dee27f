"""Participants that MCP clients are: one of each in a space, whatever clients it has."""

from __future__ import annotations

import hashlib
import hmac
import logging
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import anyio
from mcp.server.subscriptions import ListenHandler, ResourceUpdated

from meup_agent.agent.agent import Agent
from meup_agent.client.offers import CHANGES
from meup_agent.errors import CannotObserve, MeupError, SessionEnded, TokenRefused, UsageError
from meup_agent.mcp.sdk.messages import CAPABILITIES, read_log_message
from meup_agent.mcp.sdk.naming import OwnName, wrap_uri
from meup_agent.mcp.server.catalog import Announcements, Catalog, ClientSessions
from meup_agent.mcp.server.client_calls import MAX_REQUESTS, ClientCalls, too_many_requests
from meup_agent.protocol.space.allowance import NoticeThrottle
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.ttl_map import TTLMap
from meup_agent.session.settings import Token, read_token
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator

    from anyio.abc import TaskGroup

    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.payloads import JsonObject


# --- subscribed resources ---
# The resources that clients are subscribed to, at the participants that have them.

log = logging.getLogger("meup_agent.mcp")

SUBSCRIBE_SECONDS: Final = 10.0
"""Wait for a participant that is asked to say when a resource changes."""

MAX_RESOURCES: Final = 10_000
"""Resources that one participant's clients are subscribed to."""


class SubscribedResources:
    """Subscribes once for however many clients, and until the last of them is gone.

    Args:
        space: The space.
        start_soon: Does some work beside.
    """

    def __init__(self, space: Space, start_soon: Callable[..., object]) -> None:
        self._space = space
        self._start_soon = start_soon
        self._clients: dict[OwnName, int] = {}
        self._asking: dict[OwnName, anyio.Lock] = {}

    @property
    def is_full(self) -> bool:
        return len(self._clients) + len(self._asking) >= MAX_RESOURCES

    async def add(self, resource: OwnName) -> None:
        """Count a client.

        Raises:
            MeupError: Its participant was asked, and does not say when it changes.
        """
        lock = self._asking.setdefault(resource, anyio.Lock())
        try:
            async with lock:  # those that come meanwhile share its answer, and not its hope
                if resource not in self._clients:
                    await self._ask("resources/subscribe", resource)
                self._clients[resource] = self._clients.get(resource, 0) + 1
        finally:
            if not lock.locked() and self._asking.get(resource) is lock:
                del self._asking[resource]

    def discard(self, resource: OwnName) -> None:
        """Count a client no longer."""
        count = self._clients.get(resource, 0) - 1
        if count > 0:
            self._clients[resource] = count
        elif self._clients.pop(resource, None) is not None:
            self._start_soon(self._try, "resources/unsubscribe", resource)

    def renew(self, participant: str) -> None:
        """Subscribe again at a participant that has come anew, and knows nothing of us."""
        for resource in self._clients:
            if resource.participant == participant:
                self._start_soon(self._try, "resources/subscribe", resource)

    async def _try(self, method: str, resource: OwnName) -> None:
        try:
            await self._ask(method, resource)
        except MeupError as error:
            log.info("%s of %r at %r: %s", method, resource.name, resource.participant, error)

    async def _ask(self, method: str, resource: OwnName) -> None:
        await self._space.request(
            resource.participant, method, {"uri": resource.name}, timeout=SUBSCRIBE_SECONDS
        )


# --- a participant that MCP clients are ---


class ClientMember:
    """A participant that MCP clients are, in the space.

    Attributes:
        key: Its name in the space; empty where one process serves no other.
        own: It is the participant of this process.
        space: The space, as it sees it.
        catalog: The offers that it sees there.
        subscribed: The resources there that its clients are subscribed to.
        announcements: What changes there.
        sessions: The sessions of its clients.
        calls: The calls that run for its clients.
        listen: Answers ``subscriptions/listen``.
        error: Why it is not in the space any more.
        left: It left by itself.
        running: Its requests that are being answered.
        used_at: The time of its last request.
        on_welcome: Called when it has joined anew, or may send other things than before.
    """

    space: Space
    catalog: Catalog
    subscribed: SubscribedResources

    def __init__(
        self,
        key: str,
        *,
        own: bool,
        bare: str | None,
        on_welcome: Callable[[ClientMember], None],
    ) -> None:
        self.key = key
        self.own = own
        self.on_welcome = on_welcome
        self.announcements = Announcements()
        self.sessions = ClientSessions(self.announcements)
        self.listen = ListenHandler(self.announcements)
        self.calls = ClientCalls()
        self.error: Exception | None = None
        self.used_at = 0.0
        self.running = 0
        self.ready = anyio.Event()
        self.ended = anyio.Event()
        self.left = False
        self.agent = Agent("meup-mcp")
        self.agent.on_request(*CAPABILITIES)(self.calls.answer)
        self._bare = bare
        self._scope = anyio.CancelScope()
        self._tasks: TaskGroup | None = None

    @property
    def id(self) -> str:
        """The participant."""
        return self.space.me

    @property
    def joined(self) -> bool:
        return self.ready.is_set() and self.error is None

    async def run(self, join: Callable[[Agent], AbstractAsyncContextManager[Space]]) -> None:
        """Be in the space until :meth:`leave`, or the gateway ends it."""
        try:
            with self._scope:
                async with join(self.agent) as self.space, background_tasks() as self._tasks:
                    self.catalog = Catalog(
                        self.space,
                        self.announcements.lists_changed,
                        self.start_soon,
                        bare=self._bare,
                    )
                    self.subscribed = SubscribedResources(self.space, self.start_soon)
                    self.used_at = anyio.current_time()
                    with self.space.watch(self._changes) as envelopes:
                        self.ready.set()
                        missed = 0
                        async for envelope in envelopes:
                            self._read(envelope)
                            if envelopes.missed > missed:
                                missed = envelopes.missed
                                self.announcements.lists_changed()
        except (MeupError, OSError) as error:
            self.error = error
        except anyio.get_cancelled_exc_class():
            self.left = True
            raise
        finally:
            self.error = self.error or SessionEnded("this participant has left the space")
            self.ready.set()
            self.ended.set()
            self.listen.close()

    def leave(self) -> None:
        self.left = True
        self._scope.cancel()

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
        """Do some work beside the requests of its clients, until it leaves."""
        assert self._tasks is not None, "it is in the space"
        self._tasks.start_soon(work, *args)

    @contextmanager
    def answering(self) -> Generator[None]:
        """The block in which a request is answered: until its end the participant is not idle."""
        if self.running >= MAX_REQUESTS:
            raise too_many_requests()
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self.used_at = anyio.current_time()

    async def raise_at_end(self) -> None:
        """Wait until it is not in the space any more, and raise why, if it has not left itself."""
        await self.ended.wait()
        assert self.error is not None
        if not self.left:
            raise self.error

    def _changes(self, envelope: Envelope) -> bool:
        if envelope.kind == kinds.MCP_REQUEST:
            return b"notifications/" in envelope.raw_payload and envelope.concerns(self.id)
        return envelope.sender in kinds.GATEWAY_NAMES

    def _read(self, envelope: Envelope) -> None:
        """Note what an envelope changes for MCP clients."""
        if envelope.kind == kinds.MCP_REQUEST:
            self._read_notification(envelope)
        elif envelope.kind == kinds.SYSTEM_PRESENCE:
            payload = envelope.payload_object
            participant = payloads.as_object(payload.get("participant")).get("id")
            if isinstance(participant, str) and participant != self.id:
                self.announcements.lists_changed()
                if payload.get("event") == "join":
                    self.subscribed.renew(participant)
        elif envelope.kind == kinds.SYSTEM_WELCOME:
            self.announcements.lists_changed()
            self.on_welcome(self)

    def _tell_log(self, participant: str, params: JsonObject) -> None:
        """Tell the clients that have a session what a server logs outside their calls."""
        said = read_log_message(participant, payloads.without_our_meta(params))
        if said is not None:
            said.logger = f"{participant}/{said.logger}" if said.logger else participant
            for session in self.sessions:
                session.put_log(said)

    def _read_notification(self, envelope: Envelope) -> None:
        call = payloads.read_call(envelope.payload)
        if call.method in CHANGES:
            self.announcements.lists_changed(CHANGES[call.method])
        elif call.method == "notifications/message":
            running = self.calls.find(envelope.sender, call.params)
            if running is not None:
                running.put_log(call.params)
            elif self.calls.has_called(envelope.sender) and not _names_call(call.params):
                self._tell_log(envelope.sender, call.params)
        elif call.method == "notifications/resources/updated":
            uri = call.params.get("uri")
            if isinstance(uri, str):
                # By either its clients may have subscribed.
                for exposed in (uri, wrap_uri(envelope.sender, uri)):
                    self.announcements.announce(ResourceUpdated(exposed))


def _names_call(params: JsonObject) -> bool:
    return bool(payloads.exchanges_of((), payloads.as_object(params.get(payloads.META))))


# --- member pool ---
# The participants that one process serves MCP clients as, by the tokens that the clients send.
#
# Two tokens may be one participant's, which is served once: so the gateway is asked whose a new
# token is, by a connection that observes, before anything joins with it.

MAX_CLIENT_MEMBERS: Final = 256
"""Participants that one process is in the space as; each has a connection to the gateway."""

MAX_LOGINS: Final = 16
"""Tokens of one participant; one more takes the place of the one that was sent first."""

IDLE_SECONDS: Final = 600.0
"""A participant without a session and without a request for so long leaves the space."""

REFUSED_SECONDS: Final = 10.0
"""A token that was refused is not tried again for so long: the gateway counts failed logins."""

MAX_REFUSED: Final = 4096
"""Refused tokens that are remembered."""

CHECK_SECONDS: Final = 5.0
"""Until a token beside the one that joined is asked for again, when the gateway did not answer."""

MAX_JOINING: Final = 16
"""Tokens that are tried at the same time."""


class TooManyMembers(UsageError):
    """No other participant can be served by this process now."""


MAX_ATTEMPTS: Final = 256
"""Tokens that are tried, or wait for their turn; strangers choose them, so one more is refused."""


class JoinSpace(Protocol):
    """Joins the space with a token; without one as the participant of this process."""

    def __call__(
        self, agent: Agent, token: str | None, /, *, observe: bool = False
    ) -> AbstractAsyncContextManager[Space]: ...


@dataclass(frozen=True, eq=False)
class Login:
    """A token that the gateway knows.

    Attributes:
        key: A digest of the token; empty: the one of this process.
        token: The token; ``None``: the one of this process.
        member: The participant that it is.
    """

    key: str
    token: str | None
    member: ClientMember

    def __repr__(self) -> str:
        return f"<Login of {self.member.key!r}>"


class _Attempt:
    """One attempt to join the space with a token, and its outcome."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.login: Login | None = None  # `None`: the gateway refuses the token
        self.error: Exception | None = SessionEnded("the space is not served any more")


class ClientMembers:
    """The participants that one process serves MCP clients as.

    Args:
        join: Joins the space.
        own: The token of this process, where it is known: a client may send it, too.
        bare: One participant, whose names stay as they are.
        many: Clients send tokens of their own.
        find: The name of a token's participant, ``None`` where there is none, for a process that
            knows each token; else the gateway is asked.

    Attributes:
        on_end: Called with a participant that has left, or whose token with a digest is refused.
    """

    def __init__(
        self,
        join: JoinSpace,
        *,
        own: Token | None = None,
        bare: str | None = None,
        many: bool = True,
        find: Callable[[str], str | None] | None = None,
    ) -> None:
        self._join = join
        self._find = find
        self._own = own
        self._bare = bare
        self._many = many
        self._members: dict[str, ClientMember] = {}
        self._logins: dict[str, Login] = {}
        self._attempts: dict[str, _Attempt] = {}
        self._checking: set[str] = set()
        self._refused = TTLMap[str, bool](count=MAX_REFUSED, seconds=REFUSED_SECONDS)
        self._joining = anyio.Semaphore(MAX_JOINING)
        self._told = NoticeThrottle()  # strangers send as many tokens as they like
        self._tasks: TaskGroup | None = None
        self.on_end: list[Callable[[ClientMember, str | None], None]] = []

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[Self]:
        """Serve for the length of a block; then all leave the space."""
        async with background_tasks() as self._tasks:
            self._tasks.start_soon(self._leave_idle)
            yield self
        self._tasks = None

    async def get(self, token: str | None) -> Login | None:
        """The participant of a token, in the space; ``None``: the gateway does not know the token.

        Raises:
            TooManyMembers: There is no room for another one.
            ConnectionFailed: The gateway cannot be reached.
        """
        if token is not None and await self._is_own(token):
            token = None
        key = "" if token is None else _digest(token)
        login = self._logins.get(key)
        if self._find is not None and token is not None:
            # The gateway may have read its tokens again: this one may be void, or another's.
            name = self._find(token)
            if login is not None and login.member.key != name:
                self._forget(login)
                login = None
            if name is None:
                return None
        if login is None or not login.member.joined:
            login = await self._log_in(key, token)
        if login is not None:
            login.member.used_at = anyio.current_time()
        return login

    def check_found(self) -> None:
        """Forget the tokens that are void by now, or another's: what is open by them ends."""
        find = self._find
        for login in list(self._logins.values()):
            if find and login.token is not None and find(login.token) != login.member.key:
                self._forget(login)

    async def knows(self, token: str) -> bool:
        login = self._logins.get("" if await self._is_own(token) else _digest(token))
        return login is not None and login.member.joined

    async def _is_own(self, token: str) -> bool:
        own = await read_token(self._own)
        return own is not None and hmac.compare_digest(own.strip().encode(), token.encode())

    async def _log_in(self, key: str, token: str | None) -> Login | None:
        """Join the space with a token, once for all requests that bring it meanwhile.

        They all end with the attempt that they found. In line behind a lock, each would wait for a
        turn of the loop, and where the gateway is away for an attempt of its own.
        """
        attempt = self._attempts.get(key)
        if attempt is None:
            if self._refused.get(key, anyio.current_time()):
                return None
            if self._tasks is None:
                raise UsageError("the pool does not run")
            if len(self._attempts) >= MAX_ATTEMPTS:
                raise TooManyMembers(f"{MAX_ATTEMPTS} tokens are tried already")
            attempt = self._attempts[key] = _Attempt()
            self._tasks.start_soon(self._try, key, token, attempt)
        await attempt.ended.wait()
        if attempt.error is not None:
            raise attempt.error
        return attempt.login

    async def _try(self, key: str, token: str | None, attempt: _Attempt) -> None:
        try:
            async with self._joining:
                attempt.login = Login(key, token, await self._joined(key, token))
            self._note(attempt.login)
            attempt.error = None
        except SessionEnded as error:
            attempt.error = error
            if key:
                if self._told.due("", "refused", int(anyio.current_time() * 1_000_000)):
                    log.info("a token was refused: %s", error)
                self._refuse(key)
                attempt.error = None
        except Exception as error:  # each request that waits raises it
            attempt.error = error
        finally:
            del self._attempts[key]
            attempt.ended.set()

    async def _joined(self, key: str, token: str | None) -> ClientMember:
        """The participant of a token, once it is in the space.

        Raises:
            MeupError: The token is refused, or the gateway cannot be reached.
        """
        name = await self._identify(key, token)
        while True:
            member, ours = self._members.get(name), False
            if member is None or member.ended.is_set():
                member, ours = self._begin(name, token), True
            await member.ready.wait()
            if member.error is None:
                return member
            if ours:  # else it failed with another token, or has just left
                raise member.error
            await member.ended.wait()

    async def _identify(self, key: str, token: str | None) -> str:
        if not self._many:
            return key
        if self._find is not None and token is not None:
            name = self._find(token)
            if name is None:
                raise TokenRefused("no participant has this token")
            return name
        try:
            async with self._join(Agent("meup-mcp"), token, observe=True) as space:
                return space.me
        except CannotObserve:
            return key  # an older gateway, where each token is taken for another participant

    def _note(self, login: Login) -> None:
        of = self._logins_of(login.member)
        if len(of) >= MAX_LOGINS:
            self._forget(of[0])
        self._logins[login.key] = login

    def _forget(self, login: Login) -> None:
        self._logins.pop(login.key, None)
        for told in self.on_end:
            told(login.member, login.key)

    def _begin(self, name: str, token: str | None) -> ClientMember:
        if len(self._members) >= MAX_CLIENT_MEMBERS:
            raise TooManyMembers(f"{MAX_CLIENT_MEMBERS} participants are served already")
        if self._tasks is None:
            raise UsageError("the pool does not run")
        member = self._members[name] = ClientMember(
            name, own=token is None, bare=self._bare, on_welcome=self._check_soon
        )
        self._tasks.start_soon(self._run, member, token)
        return member

    async def _run(self, member: ClientMember, token: str | None) -> None:
        try:
            await member.run(lambda agent: self._join(agent, token))
        finally:
            if self._members.get(member.key) is member:
                del self._members[member.key]
            for login in self._logins_of(member):
                del self._logins[login.key]
            for told in self.on_end:
                told(member, None)

    # --- tokens beside the one that a participant has joined with ---

    def _check_soon(self, member: ClientMember) -> None:
        """Ask the gateway anew for the tokens of a participant: it may have been started anew."""
        others = self._logins_of(member)
        if len(others) > 1 and member.key not in self._checking and self._tasks is not None:
            self._checking.add(member.key)
            self._tasks.start_soon(self._check, member, others)

    async def _check(self, member: ClientMember, logins: list[Login]) -> None:
        try:
            while logins and not member.ended.is_set():
                logins = [each for each in logins if not await self._is_checked(each)]
                if logins:
                    await anyio.sleep(CHECK_SECONDS)
        finally:
            self._checking.discard(member.key)

    async def _is_checked(self, login: Login) -> bool:
        """Forget a token that is refused now; ``False``: the gateway could not be asked."""
        name = login.member.key
        try:
            refused = await self._identify(login.key, login.token) != name
        except SessionEnded:
            refused = True
        except (MeupError, OSError) as error:
            log.info("a token of %r could not be checked: %s", name, error)
            return False
        if refused and self._logins.get(login.key) is login:
            log.info("a token of %r is refused now", name)
            self._refuse(login.key)
            self._forget(login)
        return True

    def _logins_of(self, member: ClientMember) -> list[Login]:
        return [each for each in self._logins.values() if each.member is member]

    def _refuse(self, key: str) -> None:
        self._refused.put(key, True, anyio.current_time())

    async def _leave_idle(self) -> None:
        while True:
            await anyio.sleep(IDLE_SECONDS / 10)
            before = anyio.current_time() - IDLE_SECONDS
            for member in list(self._members.values()):
                idle = not (member.running or len(member.sessions) or member.calls.holds)
                if not member.own and member.joined and idle and member.used_at < before:
                    member.leave()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()
