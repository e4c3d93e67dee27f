"""One gateway at work, under whichever edges it has: spaces, members, tokens, limits and journal.

An edge admits a connection with :mod:`~meup_agent.gateway.edge.handshake`, hands it to
:meth:`GatewayRuntime.opened`, and moves its bytes. The rest is decided here and in the spaces: who
may enter, what is counted and logged, when everything is held back since the journal's disk is
behind, and how all connections end.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote

import anyio

from meup_agent.gateway.auth import (
    RETRY_AFTER,
    TOO_MANY,
    UNAVAILABLE,
    AuthThrottle,
    Identity,
    JoinThrottle,
    NotAdmitted,
    Tokens,
    TokenUse,
    new_token,
)
from meup_agent.gateway.config import Config, ConfigChange, compare_configs
from meup_agent.gateway.frame_queue import Backlogs, WriteBatcher
from meup_agent.gateway.logs import RefusalLog, log
from meup_agent.gateway.logs import quote as quote_for_log
from meup_agent.protocol.dialects import DEFAULT_DIALECT, spoken
from meup_agent.protocol.space.allowance import SpaceCounters
from meup_agent.protocol.space.delivery import Member
from meup_agent.protocol.space.journal import Journal
from meup_agent.protocol.space.link import Place
from meup_agent.protocol.space.owner import SpaceFold, SpaceParameters, SpaceServer
from meup_agent.protocol.space.state.grants import NO_TOKEN_CODE, UNCONFIGURED
from meup_agent.protocol.space.state.indexes import Recorder, Refusal
from meup_agent.protocol.wire.membership import is_guessable

if TYPE_CHECKING:
    import asyncio

    from meup_agent.gateway.cluster.shared import OpenValues
    from meup_agent.gateway.reach.services import PushSubscriptions
    from meup_agent.gateway.tracing import GatewayTracer

MAX_NAMED: Final = 10
"""Participants with short tokens that the log names."""

RESTARTING: Final = 1012
"""Close code of a gateway that stops: its members dial again (PROTOCOL 3)."""

STOPS: Final = "the gateway stops; connect again"

TOLD_NANOSECONDS: Final = 1_000_000_000
"""By which the machine's clock is put back before the log says so."""

TOLD_FORWARD_NANOSECONDS: Final = 60 * TOLD_NANOSECONDS
"""By which it is put forward before that: a deadline has no more grace (PROTOCOL 4.2)."""


class ForwardClock:
    """The time in microseconds since 1970 (UTC), which never goes back (PROTOCOL 4.2).

    Where the machine's clock is put back, time goes on as measured until that has come so far. It
    does not stand still: rates and pauses go on.
    """

    def __init__(
        self,
        wall: Callable[[], int] = time.time_ns,
        steady: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._latest = (wall(), steady())
        self._is_told = False

    def __call__(self) -> int:
        """The time at this moment."""
        latest, measured = self._latest
        wall, steady = self._wall(), self._steady()
        expected = latest + steady - measured
        at = max(wall, expected)
        self._latest = (at, steady)
        if at - expected >= TOLD_FORWARD_NANOSECONDS:
            log.warning(
                "the clock of this machine was put forward by %.0f s, or the machine slept: what"
                " has a deadline that is over by it expires",
                (at - expected) / 1e9,
            )
        behind = at - wall
        if not behind:
            self._is_told = False
        elif behind >= TOLD_NANOSECONDS and not self._is_told:
            self._is_told = True
            log.warning(
                "the clock of this machine was put back by %.0f s: the gateway counts on as before",
                behind / 1e9,
            )
        return at // 1_000


wall_clock: Final = ForwardClock()
"""The clock of every gateway of this process."""


def _warn_of_short_tokens(config: Config) -> None:
    """Warn of participants whose tokens could be guessed, and so are slowed by wrong ones."""
    named = [
        f"{name!r} of {space!r}"
        for (space, name), entry in config.entries()
        if any(map(is_guessable, entry.known_tokens))
    ]
    if not named:
        return
    if len(named) > MAX_NAMED:
        named[MAX_NAMED:] = [f"{len(named) - MAX_NAMED} more"]
    log.warning(
        "short tokens could be guessed, so many wrong ones keep them out for a while, of %s; make"
        " longer ones with 'meup token new'",
        ", ".join(named),
    )


def _tracer_by(config: Config) -> GatewayTracer | None:
    if not config.tracing:
        return None
    from meup_agent.gateway.tracing import GatewayTracer  # which not everybody has installed

    return GatewayTracer(trust_proposers=config.tracing == "trust")


class TokenHolder(Protocol):
    """A connection or an event stream, as far as it ends with the token that opened it."""

    @property
    def token_use(self) -> TokenUse | None:
        """The token by which it was admitted; ``None``: by none yet."""
        ...

    def shut(self, code: int, reason: str) -> None:
        """Close it, joined or not."""
        ...


class OpenConnection(TokenHolder, Protocol):
    """A connection of an edge, as far as all of them are held back or ended at once."""

    @property
    def participant(self) -> str | None:
        """The participant that has joined by it."""
        ...

    def hold(self, held: bool) -> None:
        """Read nothing of it, or read again."""
        ...

    def abort(self) -> None:
        """Drop it, as a killed process does."""
        ...


class GatewayRuntime:
    """Everything that the edges of a gateway share.

    Its ``counters`` and ``backlogs`` go over all spaces. It has a ``loop`` where connections are
    opened, and a ``url`` for invitations once a port listens. When nothing can be kept any more,
    ``on_failure`` is called, and ``failed`` is set with the reason in ``failure``; then it has
    stopped by itself.

    Spaces that share a ``journal``, one in memory by default, are open from the beginning. If they
    do not share one, each is opened and closed by itself: ``spaces`` has those that are open.
    """

    def __init__(
        self,
        config: Config,
        *,
        journal: Journal | None = None,
        shares_journal: bool = True,
        loop: asyncio.AbstractEventLoop | None = None,
        url: str = "",
        on_failure: Callable[[], object] | None = None,
        new_id: Callable[[], str] | None = None,
        now: Callable[[], int] = wall_clock,
        recorder: Recorder | None = None,
    ) -> None:
        self.config = config  # as it was taken over last
        self._new_id = new_id or partial(secrets.token_hex, 16)
        self._now = now
        self._recorder = recorder
        self._loop = loop
        self._on_failure = on_failure
        self.limits = limits = config.limits
        self.counters = SpaceCounters()
        self.tokens = config.tokens()
        self.url = url
        self.pending_requests: dict[anyio.CancelScope, Callable[[], str | None]] = {}
        """Of requests over HTTP, and the space that each turned out to be about."""
        self.outputs: dict[Identity, Member] = {}  # of those that speak over HTTP alone
        self.backlogs = Backlogs(limits, self.counters)
        self.join_throttle = JoinThrottle(limits, now)
        self.refusals = RefusalLog(now)
        self.accepting = True
        self.began = time.monotonic()
        # Only this machine reaches the HTTP API, as far as its address says.
        self.local_http = False
        self.failed = anyio.Event()
        self.failure = ""
        self.push: PushSubscriptions | None = None  # the browsers that are told, where they are
        self._auth_throttle = AuthThrottle(self.tokens, limits, now)
        _warn_of_short_tokens(config)
        self._connections: set[OpenConnection] = set()
        self.event_streams = set[TokenHolder]()
        self.on_reload: list[Callable[[], object]] = []  # of whoever looks tokens up by itself
        self.node = ""  # its name among others with the same spaces; empty: there are none
        self.open_values: OpenValues | None = None  # that other gateways have, too, if any may
        self.on_opened: list[Callable[[SpaceServer], object]] = []  # of whoever follows all spaces
        self.on_abort: list[Callable[[], object]] = []
        self.forwards = False
        """True while connections to spaces that are elsewhere are passed on to them."""
        self.stopped: dict[str, str] = {}
        """The spaces that cannot be kept, with the reason, while the others go on."""
        self._invites: dict[str, _SpaceInvites] = {}
        self._empty = anyio.Event()
        self._held = False
        if loop is not None:
            self.batcher = WriteBatcher(loop)
        self._tracer = _tracer_by(config)
        self.spaces: dict[str, SpaceServer] = {}
        if shares_journal:
            journal = journal or config.journal.open_memory(now)
            journal.on_failed = self.fail
            for space in config.spaces:
                self.open_space(space.id, journal)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the connections."""
        assert self._loop is not None, "connections need a loop"
        return self._loop

    # --- spaces -----------------------------------------------------------------------------

    def begin_fold(self, name: str, journal: Journal) -> SpaceFold:
        """Begin the state of a space that may be opened here later."""
        return SpaceFold(self._parameters(name, journal))

    def open_space(self, name: str, journal: Journal, fold: SpaceFold | None = None) -> None:
        """Begin a space, or go on with it where its journal ends.

        ``fold`` has what the journal does not recover.

        Raises:
            ConfigurationError: The journal has entries that nobody can go on from.
        """
        journal.on_full = self.hold
        host = self.spaces[name] = SpaceServer(self._parameters(name, journal)._replace(fold=fold))
        self.stopped.pop(name, None)
        for told in self.on_opened:
            told(host)

    def _parameters(self, name: str, journal: Journal) -> SpaceParameters:
        space = self.config.space(name)
        assert space is not None, "the configuration has it"
        return SpaceParameters(
            name=name,
            participants={
                participant_id: participant.capabilities
                for participant_id, participant in space.participants.items()
            },
            journal=journal,
            new_id=self._new_id,
            now=self._now,
            counters=self.counters,
            allowance=self.limits,
            invites=self._invites.setdefault(name, _SpaceInvites(self, name)),
            announce_withdrawals=space.announce_withdrawals,
            backpressure=self.backlogs.in_space(name),
            recorder=self._recorder,
            tracer=self._tracer,
            call_later=None if self._loop is None else self._loop.call_later,
            takes_published=space.takes_published,
        )

    def fail_space(self, name: str, sentence: str) -> None:
        """Stop one space: what cannot be kept there is not accepted either; the others go on."""
        log.error("space %s stops: %s", quote_for_log(name), sentence)
        self.stopped[name] = sentence
        self.close_space(name, "the space cannot keep what is said; connect again later")

    def close_space(self, name: str, reason: str) -> None:
        """End a space here, and close its members with 1012; nothing more is decided in it."""
        host = self.spaces.pop(name, None)
        if host is None:
            return
        self._invites[name].forget()
        host.close(RESTARTING, reason)
        self.cancel_requests(name)

    @property
    def journals(self) -> tuple[Journal, ...]:
        """The journals of the spaces that are open, each once."""
        return tuple({id(each.journal): each.journal for each in self.spaces.values()}.values())

    def check_open(self, space: str) -> None:
        """Raise :exc:`NotAdmitted` for a space of the configuration that is not open here."""
        if space not in self.spaces and self.config.space(space) is not None:
            if space in self.stopped:
                said = "the space cannot be kept at the moment; connect again"
                raise NotAdmitted(UNAVAILABLE, said)
            # Another gateway has it in a moment: who is told to wait would be away for longer.
            raise NotAdmitted(UNAVAILABLE, "the space is not here now; connect again", 0)

    # --- admission --------------------------------------------------------------------------

    def identify(self, token: str, address: str, named: str | None = None) -> Identity:
        """The identity of a token that came from an address (PROTOCOL 3), or :exc:`NotAdmitted`.

        Its space is open here, unless another one was named with it, which is never its own.
        """
        identity = self._auth_throttle.identify(token, address)
        if named in (None, identity.space):
            self.check_open(identity.space)
        return identity

    def check_connections(self) -> None:
        """Raise :exc:`NotAdmitted` unless the gateway takes one more connection."""
        most = self.limits.max_connections
        if not self.accepting:
            wait = 0 if self.node else RETRY_AFTER  # others have its spaces in a moment
            raise NotAdmitted(UNAVAILABLE, STOPS, wait)
        if len(self._connections) >= most:
            said = f"the gateway has {most} connections, as many as it takes (max_connections)"
            raise NotAdmitted(UNAVAILABLE, said)

    def check_members(self, identity: Identity, place: Place = Place.ANSWERING) -> None:
        """Raise :exc:`NotAdmitted` unless a space has room for one more connection in a place."""
        host, participant = self.spaces[identity.space], identity.participant
        most = self.limits.max_members
        if crowding := host.delivery.crowding(participant, place):
            raise NotAdmitted(TOO_MANY, crowding, RETRY_AFTER)
        if place is Place.OBSERVING:
            return
        if len(host.owner) >= most and participant not in host.owner:  # which is counted already
            said = f"the space is full: it takes {most} members (max_members)"
            raise NotAdmitted(UNAVAILABLE, said)

    def enter_output(self, identity: Identity) -> None:
        """Let a participant with an output log be present, that says something while it is away."""
        output, host = self.outputs.get(identity), self.spaces[identity.space]
        if output is not None and host.delivery.member(identity.participant) is None:
            host.join(output)

    def tell_output(self, identity: Identity, refused: Refusal) -> None:
        """Tell a refusal over HTTP to the output log of its sender: it sends nowhere else."""
        output, host = self.outputs.get(identity), self.spaces[identity.space]
        if output is not None and host.delivery.member(identity.participant) is output:
            host.owner.notify(identity.participant, refused.error)

    def dialect(self, identity: Identity) -> str:
        """The dialect of a participant that does not say which it speaks (PROTOCOL 1)."""
        space = self.config.space(identity.space)
        participant = space.participants.get(identity.participant) if space else None
        configured = (participant and participant.dialect) or (space and space.dialect)
        return spoken(configured or DEFAULT_DIALECT) or DEFAULT_DIALECT

    # --- a configuration that was read again ------------------------------------------------

    def reload(self, read: Config) -> ConfigChange:
        """Take over the participants of a configuration, with their tokens and capabilities.

        Connections whose token is not known any more are closed with 4401, and no others. Of what
        takes effect at the next start only, the answer tells the keys.

        Raises:
            ConfigurationError: Two participants have the same token; nothing has changed.
        """
        change = compare_configs(self.config, read)
        tokens = change.config.tokens()
        for invites in self._invites.values():
            invites.add_to(tokens)
        self.tokens.replace(tokens)
        self.config = change.config
        _warn_of_short_tokens(change.config)
        for holder in (*self._connections, *self.event_streams):
            use = holder.token_use
            if use is not None and not tokens.still_hold(use):
                holder.shut(NO_TOKEN_CODE, UNCONFIGURED)
        for space in change.config.spaces:
            if space.id in self.spaces:
                self.spaces[space.id].owner.reconfigure(
                    {name: entry.capabilities for name, entry in space.participants.items()}
                )
        for told in self.on_reload:
            told()
        return change

    # --- connections ------------------------------------------------------------------------

    @property
    def open_connections(self) -> int:
        """Connections at this moment, those that have not joined yet included."""
        return len(self._connections)

    def opened(self, connection: OpenConnection) -> None:
        """Count a connection in."""
        self._connections.add(connection)
        if self._held:
            connection.hold(True)

    def lost(self, connection: OpenConnection) -> None:
        """Count a connection out."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def drop(self, participant: str) -> None:
        """Drop the connections of a participant, in each space, without a close frame."""
        for connection in tuple(self._connections):
            if connection.participant == participant:
                connection.abort()

    def hold(self, held: bool) -> None:
        """Read nothing of any connection while too much waits for the disk, and then go on."""
        self._held = held
        for connection in tuple(self._connections):
            connection.hold(held)

    # --- the end ----------------------------------------------------------------------------

    def close(self, code: int, reason: str) -> None:
        """Close every member of every space."""
        self.refusals.tell_left_out()
        if self._tracer is not None:
            self._tracer.close()
        for space in self.spaces.values():
            space.close(code, reason)

    def shut(self, reason: str) -> None:
        """Admit no connection any more, and close those that are open with 1012."""
        self.accepting = False
        self.close(RESTARTING, reason)
        for connection in tuple(self._connections):
            connection.shut(RESTARTING, reason)

    async def drain(self) -> None:
        """Keep what was accepted, tell its senders, and then close every connection with 1012."""
        self.accepting = False
        # Shielded: a program that is cancelled stops its gateway in the same order.
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as flushing:
                for journal in self.journals:
                    flushing.start_soon(journal.flush, self.limits.stop_timeout)
        self.shut(STOPS)

    def fail(self, sentence: str) -> None:
        """Stop: what cannot be kept is not accepted either."""
        log.error("%s", sentence)
        self.failure = sentence
        if self._on_failure is not None:
            self._on_failure()
        self.shut("the gateway cannot keep what is said; connect again later")
        # After the closing, so that nothing more is taken: the answers to it have to be read.
        self.hold(False)
        self.cancel_requests()
        self.failed.set()

    def cancel_requests(self, space: str | None = None) -> None:
        """Answer the requests over HTTP, of all spaces or of one, that get no other answer now."""
        for scope, about in tuple(self.pending_requests.items()):
            if space is None or about() == space:
                scope.cancel()

    def abort(self) -> None:
        """Drop every connection, as a killed process does, and what has not been kept."""
        self.accepting = False
        for told in self.on_abort:
            told()
        self.abandon_spaces()
        self.cancel_requests()
        for connection in tuple(self._connections):
            connection.abort()

    def abandon_spaces(self) -> None:
        """Keep nothing more, in any space."""
        for journal in self.journals:
            journal.abandon()

    async def wait_empty(self, timeout: float) -> None:
        """Wait until every connection has ended, and so many seconds at most."""
        # Shielded: a program that is cancelled stops its gateway in the same order.
        with anyio.move_on_after(timeout, shield=True):
            if self._connections:
                self._empty = anyio.Event()
                await self._empty.wait()


class _SpaceInvites:
    """Admits the participants that are invited into one space."""

    def __init__(self, runtime: GatewayRuntime, space: str) -> None:
        self._runtime = runtime
        self._space = space
        self._admitted: dict[str, bytes] = {}

    def new_token(self) -> str:
        return new_token()

    def admit(self, participant: str, token_sha256: str) -> None:
        tokens, digest = self._runtime.tokens, bytes.fromhex(token_sha256)
        before = self._admitted.pop(participant, None)
        if before is not None:
            tokens.forget(before)
        self._admitted[participant] = digest
        tokens.add(digest, Identity(self._space, participant))

    def add_to(self, tokens: Tokens) -> None:
        """Add the tokens of those who were invited to the ones of a configuration."""
        for participant, digest in self._admitted.items():
            tokens.add(digest, Identity(self._space, participant))

    def forget(self) -> None:
        """Admit nobody any more: the space has gone from here."""
        for digest in self._admitted.values():
            self._runtime.tokens.forget(digest)
        self._admitted.clear()

    def address(self) -> str:
        url = self._runtime.url
        return f"{url}/ws?space={quote(self._space, safe='')}" if url else ""
