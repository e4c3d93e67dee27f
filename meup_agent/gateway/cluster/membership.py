"""The place of a gateway among those of one prefix: which there are, and which space is at which.

Each says four times a second that it is there, and what it has, from the gateway's own loop: one
that does not come round says nothing. Whose message is late is asked. No listener at all: its
process has ended, in order or not, and its spaces are free at once. No answer for a second: it
hangs, or its machine does. A gateway that slept, or heard nothing itself, listens before it
suspects another.

All of that is signed with the cluster's token, and a gateway is there only once it has answered a
question that was not asked before: what it said once is not said again for it. Where there is no
token, whoever may publish under the prefix can name gateways that do not exist, and so keep spaces
without an owner; into a space's log it gets nothing by that.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.auth import digest_of_token
from meup_agent.gateway.cluster.placement import NodeHeartbeat, owner_of
from meup_agent.gateway.cluster.signing import SignedMessage, Signer
from meup_agent.gateway.journal.nats.records import FORMAT
from meup_agent.protocol.wire.ttl_map import TTLMap
from meup_agent.transport.base import Condition

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from meup_agent.gateway.config import Config, SpaceConfig
    from meup_agent.gateway.journal.nats.link import Link

log = logging.getLogger("meup_agent.gateway")

TICK_SECONDS: Final = 0.05
"""Interval of the check for late gateways."""

HEARTBEAT_SECONDS: Final = 0.25
"""Interval of a gateway's message that it is there."""

LATE_SECONDS: Final = 0.3
"""Silence after which a gateway is asked whether it is there."""

SILENT_SECONDS: Final = 1.0
"""Silence, also to that question, after which a gateway is taken to hang."""

SLEPT_SECONDS: Final = 0.5
"""Gap between two checks from which a gateway knows that it was paused itself."""

HELLO_SECONDS: Final = 2.0
"""Wait for the answers of other gateways at the start."""

SETTLE_SECONDS: Final = 0.1
"""Wait for gateways that start at the same time to hear of each other."""

STEADY_SECONDS: Final = 3.0
"""Time until a new gateway gets spaces of others: one that goes at once gets none."""

MAX_NODES: Final = 64
"""Gateways of one prefix."""

QUESTION_BYTES: Final = 16
"""Random bytes of a question, which nobody has an answer to from before."""

MAX_GONE: Final = 1_000
"""Gateways that have gone whose last number is known, so that nobody brings them back by it."""

_encode: Final = msgspec.msgpack.Encoder().encode
_read_heartbeat: Final = msgspec.msgpack.Decoder(NodeHeartbeat).decode
_read_parts: Final = msgspec.msgpack.Decoder(dict[str, str]).decode


# --- the configuration that all must have alike ---


def config_parts(config: Config) -> dict[str, str]:
    """A digest of each part of a configuration that decides what is accepted, by its key."""
    parts = {f"spaces.{space.id}": _digest(_space_values(space)) for space in config.spaces}
    limits = asdict(config.written_limits or config.limits)
    parts |= {f"gateway.{name}": _digest(value) for name, value in limits.items()}
    journal, nats = config.journal, config.journal.nats
    kept: dict[str, object] = {"max_age": journal.max_age, "max_bytes": journal.max_bytes}
    if nats is not None:
        kept["nats.replicas"] = nats.replicas
        kept["nats.cluster_token"] = digest_of_token(nats.known_token).hex()
    return parts | {f"journal.{name}": _digest(value) for name, value in kept.items()}


def _space_values(space: SpaceConfig) -> dict[str, Any]:
    participants = {
        name: [
            entry.capabilities.patterns,
            sorted(
                {*(digest_of_token(each).hex() for each in entry.known_tokens), *entry.token_hashes}
            ),
            entry.dialect,
        ]
        for name, entry in space.participants.items()
    }
    values = {
        "participants": participants,
        "dialect": space.dialect,
        "announce_withdrawals": space.announce_withdrawals,
        "takes_published": space.takes_published,
    }
    # So a later release may know more of them, and is alike where none of those is set.
    return {name: value for name, value in values.items() if value}


def _digest(value: object) -> str:
    # Cut, and of digests of tokens: nobody who reads it could guess one with it.
    return sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


def differing_parts(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The keys of the parts that two configurations both have, and not alike.

    A space that one of them does not have is at the gateways that do, and a limit that it does not
    have is unknown to its release.
    """
    return sorted(key for key in one.keys() & other.keys() if one[key] != other[key])


def refuse_differing(ours: Mapping[str, str], theirs: Mapping[str, str], node: str) -> None:
    """Refuse to be beside a gateway with another configuration.

    Raises:
        ConfigurationError: It has one.
    """
    differing = differing_parts(ours, theirs)
    if differing:
        more = f" (and at {len(differing) - 1} more keys)" if differing[1:] else ""
        raise ConfigurationError(
            f"{differing[0]}: the gateway {node} has another configuration there{more}; give all"
            " the same file: those that run read participants again (meup gateway reload), and all"
            " else at a start, for which stop all of them"
        )


# --- the membership ---


class KnownNode(NamedTuple):
    """Another gateway, as it was heard last."""

    heartbeat: NodeHeartbeat
    number: int  # of its last message
    heard: float
    since: float


@dataclass(eq=False)
class ClusterMembership:
    """A gateway's place among those of its prefix; on the gateway's loop.

    Args:
        link: The connection to NATS.
        prefix: That of all its gateways.
        node: Its name, for people.
        parts: Its configuration, as :func:`config_parts` tells it.
        advertise: Where it takes connections that came in at others; empty: nowhere.
        token: The cluster's token; empty: there is none.
    """

    link: Link
    prefix: str
    node: str
    parts: Mapping[str, str]
    advertise: str = ""
    token: str = ""

    def __post_init__(self) -> None:
        self.changed = Condition()
        """Notified when a gateway comes or goes, or a space gets another owner."""
        self._loop = asyncio.get_running_loop()
        self._own = NodeHeartbeat(
            self.node,
            secrets.token_hex(16),
            _digest(dict(self.parts)),
            self.advertise,
            format=FORMAT,
        )
        self._signer = Signer(self.token)
        self._others: dict[str, KnownNode] = {}
        self._met: dict[str, KnownNode] = {}  # those that have not answered yet
        self._gone: TTLMap[str, int] = TTLMap(count=MAX_GONE, seconds=math.inf)
        self._foreign: NodeHeartbeat | None = None  # the last one that was signed otherwise
        # The parts of other configurations than this one's that gateways have, by their digests.
        self._parts: dict[str, Mapping[str, str]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._subscriptions: list[Any] = []
        self._ticking: asyncio.Task[None] | None = None
        self._has_ended = False
        self._echoed = -math.inf  # when this gateway heard a message of its own

    # --- what the gateway asks and says ---------------------------------------------------------

    @property
    def nonce(self) -> str:
        """The one of this start of the gateway."""
        return self._own.nonce

    @property
    def nodes(self) -> dict[str, NodeHeartbeat]:
        """The gateways that are there, this one included, by their nonces."""
        others = {nonce: known.heartbeat for nonce, known in self._others.items()}
        return {self._own.nonce: self._own, **others}

    def parts_of(self, space: str) -> dict[str, str]:
        """The parts of the configuration by which a space is decided."""
        own = f"spaces.{space}"
        return {
            key: digest
            for key, digest in self.parts.items()
            if key == own or not key.startswith("spaces.")
        }

    def common_format(self) -> int:
        """The newest format of batches that each gateway reads which is there."""
        return min(heartbeat.format for heartbeat in self.nodes.values())

    def nodes_for(self, spaces: Sequence[str]) -> dict[str, NodeHeartbeat]:
        """The gateways, each of which refuses also spaces that its configuration does not have."""
        found = self.nodes
        for nonce, heartbeat in found.items():
            parts = self._parts.get(heartbeat.config)
            if parts is None:
                continue
            lacking = [each for each in spaces if f"spaces.{each}" not in parts]
            if lacking:
                refused = [*heartbeat.refused, *lacking]
                found[nonce] = msgspec.structs.replace(heartbeat, refused=refused)
        return found

    @property
    def hears(self) -> bool:
        """True if what others say comes here: what this gateway says itself does."""
        is_echoed = self._loop.time() - self._echoed <= SLEPT_SECONDS
        return is_echoed and self.link.is_connected

    @property
    def steady(self) -> list[str]:
        """The nonces of those that have been there for a while."""
        since = self._loop.time() - STEADY_SECONDS
        return [nonce for nonce, known in self._others.items() if known.since <= since]

    def owner_of(self, space: str) -> NodeHeartbeat | None:
        """The gateway that has a space; ``None``: none is known to."""
        return owner_of(space, self.nodes.values())

    def claim(self, space: str, epoch: int) -> None:
        """Have a space from here on."""
        self._own.spaces[space] = epoch
        self._tell()

    def disclaim(self, space: str) -> None:
        """Have a space no longer."""
        if self._own.spaces.pop(space, None) is not None:
            self._tell()

    def follow(self, spaces: Iterable[str]) -> None:
        """Have read the logs of these spaces of others, and follow them."""
        self._say("follows", spaces)

    def refuse(self, spaces: Iterable[str]) -> None:
        """Let others begin spaces that could not be begun here a moment ago."""
        self._say("refused", spaces)

    def begin(self, spaces: Iterable[str]) -> None:
        """Be about to have spaces."""
        self._say("begins", spaces)

    def _say(self, what: str, spaces: Iterable[str]) -> None:
        if getattr(self._own, what) != (named := sorted(spaces)):
            setattr(self._own, what, named)
            self._tell()

    def suspect(self, nonce: str) -> None:
        """Find out whether a gateway is still there."""
        if nonce in self._others and nonce not in self._asking:
            self._asking[nonce] = asyncio.ensure_future(self._ask_late(nonce))

    def leave(self) -> None:
        """Take no more spaces: this gateway ends."""
        self._own.leaves = True
        self._tell()

    def reconfigure(self, config: Config) -> None:
        """Go on with another configuration, which was read again."""
        self.parts = config_parts(config)
        self._own.config = _digest(dict(self.parts))

    # --- coming and going -----------------------------------------------------------------------

    async def join(self) -> None:
        """Learn which gateways there are, and be one of them from here on.

        Raises:
            ConfigurationError: One of them has another configuration.
        """
        await self._subscribe("beat", lambda message: self._hear(message.data))
        await self._subscribe(f"ask.{self.nonce}", self._tell_parts)
        said = await self.link.do(self.link.request(self._subject("hello"), b"", HELLO_SECONDS))
        if said is not None:
            self._hear(said)
        self._tell()
        # Those that are there say so at once, and so do those that begin with this one.
        await asyncio.sleep(SETTLE_SECONDS if said is None else HEARTBEAT_SECONDS + SETTLE_SECONDS)
        if self._asking:
            await asyncio.wait(self._asking.values())
        if self._foreign is not None:
            raise ConfigurationError(
                f"journal.nats.cluster_token: the gateway {self._foreign.node!a} has another"
                " one, or none; give all the same (those of another cluster: another prefix)"
            )
        for nonce, known in tuple(self._others.items()):
            if known.heartbeat.config != self._own.config:
                answer = await self._ask(nonce, HELLO_SECONDS)
                theirs = None if answer is None else self._note_parts(answer.body)
                if theirs is not None:  # else it has gone meanwhile
                    refuse_differing(self.parts, theirs, known.heartbeat.node)
        await self._subscribe("hello", lambda message: self._answer(message, self._own))
        if self._others:
            names = ", ".join(sorted(ascii(each.heartbeat.node) for each in self._others.values()))
            log.info("there are other gateways: %s", names)
        self._ticking = asyncio.ensure_future(self._tick())

    def end(self) -> None:
        """Be there no more."""
        from meup_agent.gateway.journal.nats.link import unsubscribe  # which needs NATS's library

        self._has_ended = True
        for task in (self._ticking, *self._asking.values()):
            if task is not None:
                task.cancel()
        subscriptions, self._subscriptions = self._subscriptions, []
        for each in subscriptions:
            self.link.begin(partial(unsubscribe, each))

    def _note_parts(self, body: bytes) -> Mapping[str, str] | None:
        """Take in another gateway's answer; ``None``: it is none."""
        try:
            parts = _read_parts(body)
        except msgspec.MsgspecError:
            return None
        # By a digest of our own making: nobody says what another gateway has.
        digest = _digest(parts)
        if digest not in self._parts:
            needed = {known.heartbeat.config for known in self._others.values()}
            kept = {each: found for each, found in self._parts.items() if each in needed}
            self._parts = {**kept, digest: parts}
            if differing := differing_parts(self.parts, parts):
                log.warning(
                    "another gateway has another configuration at %s: who takes a space over"
                    " decides by its own; give all one file, and run meup gateway reload at each",
                    ascii(differing[0]),
                )
            self.changed.notify_all()
        return parts

    # --- who is there ---------------------------------------------------------------------------

    def _hear(self, message: bytes) -> None:
        is_genuine, number, body = self._signer.read(message)
        try:
            heartbeat = _read_heartbeat(body)
        except msgspec.MsgspecError:
            return  # a stranger's, or one of a gateway that has no answer
        if heartbeat.nonce == self.nonce and is_genuine:
            self._echoed = self._loop.time()
        if heartbeat.nonce == self.nonce or self._has_ended:
            return
        if not is_genuine:
            self._foreign = heartbeat
            return
        known, now = self._others.get(heartbeat.nonce), self._loop.time()
        before = self._gone.get(heartbeat.nonce, now) if known is None else known.number
        if number <= (before or 0):
            return
        if known is None:
            self._meet(KnownNode(heartbeat, number, now, now))
            return
        self._others[heartbeat.nonce] = KnownNode(heartbeat, number, now, known.since)
        if heartbeat.config != self._own.config and heartbeat.config not in self._parts:
            self.suspect(heartbeat.nonce)  # its answer says which spaces it has
        if known.heartbeat != heartbeat:
            self.changed.notify_all()

    def _meet(self, node: KnownNode) -> None:
        """Ask a gateway that is not known yet: another may have kept what it said once."""
        nonce = node.heartbeat.nonce
        before = self._met.get(nonce)
        if before is None:
            if len(self._others) + len(self._met) >= MAX_NODES:
                return
            self._asking[nonce] = asyncio.ensure_future(self._greet(nonce))
        if before is None or node.number > before.number:
            self._met[nonce] = node

    async def _greet(self, nonce: str) -> None:
        answer = await self._ask(nonce, HELLO_SECONDS)
        self._asking.pop(nonce, None)
        node = self._met.pop(nonce)
        if answer is not None and answer.is_genuine:
            self._others[nonce] = node._replace(heard=self._loop.time())
            if node.heartbeat.config != self._own.config:
                self._note_parts(answer.body)
            self._tell()  # it may not know of this one

    async def _ask(self, nonce: str, seconds: float) -> SignedMessage | None:
        """A gateway's answer of now, which says its configuration; ``None``: nobody listens.

        One that is not genuine is another's, or did not come in time.
        """
        question = secrets.token_bytes(QUESTION_BYTES)
        asking = self.link.request(self._subject(f"ask.{nonce}"), question, seconds)
        answer = await self.link.do(asking)
        return None if answer is None else self._signer.read(answer, question)

    async def _tick(self) -> None:
        ticked = published = self._loop.time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._loop.time()
            if now - ticked > SLEPT_SECONDS or not self.hears:
                # This gateway slept, or hears nothing, not even itself: a connection that broke
                # meanwhile looks whole for a while. It listens before it suspects another.
                self._others = {
                    nonce: known._replace(heard=now) for nonce, known in self._others.items()
                }
            ticked = now
            if now - published >= HEARTBEAT_SECONDS - TICK_SECONDS / 2:
                published = now
                self._publish_own()
            for nonce, known in tuple(self._others.items()):
                silent = now - known.heard
                if silent > SILENT_SECONDS:
                    self._lose(nonce, "does not answer")
                elif silent > LATE_SECONDS:
                    self.suspect(nonce)

    async def _ask_late(self, nonce: str) -> None:
        """Find out about a gateway whose message is late: where nobody listens, it has ended."""
        # For a short time, since NATS may not know yet that it has; it is asked again.
        answer = await self._ask(nonce, HEARTBEAT_SECONDS)
        self._asking.pop(nonce, None)
        known = self._others.get(nonce)
        if answer is None and self.link.is_connected:
            self._lose(nonce, "has ended")
        elif answer is not None and known is not None and answer.is_genuine:
            self._others[nonce] = known._replace(heard=self._loop.time())
            self._note_parts(answer.body)

    def _lose(self, nonce: str, why: str) -> None:
        known = self._others.pop(nonce, None)
        if known is not None:
            self._gone.put(nonce, known.number, self._loop.time())
            log.info("the gateway %s %s", ascii(known.heartbeat.node), why)
            self.changed.notify_all()

    # --- what goes out --------------------------------------------------------------------------

    def _tell(self) -> None:
        self._publish_own()
        self.changed.notify_all()

    def _publish_own(self) -> None:
        self._publish(self._subject("beat"), self._own)

    def _tell_parts(self, message: Msg) -> None:
        self._answer(message, dict(self.parts), message.data)

    def _answer(self, message: Msg, content: object, question: bytes = b"") -> None:
        if message.reply:
            self._publish(message.reply, content, question)

    def _publish(self, subject: str, content: object, question: bytes = b"") -> None:
        if not self._has_ended:
            said = self._signer.sign(_encode(content), question)
            self.link.begin(partial(self._send, subject, said))

    async def _send(self, subject: str, said: bytes) -> None:
        with suppress(Exception):  # the next one comes in a moment, and who asked asks again
            await self.link.client.publish(subject, said)

    # --- between the threads --------------------------------------------------------------------

    def _subject(self, what: str) -> str:
        return f"{self.prefix}.{what}"

    async def _subscribe(self, what: str, then: Callable[[Msg], None]) -> None:
        """Have what comes at a subject taken on the gateway's loop.

        So one that does not come round neither hears nor answers.
        """

        async def take(message: Msg) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(then, message)

        subscribing = self.link.subscribe(self._subject(what), take)
        self._subscriptions.append(await self.link.do(subscribing))


async def find_owner(link: Link, prefix: str) -> str | None:
    """The name of a gateway that is there; ``None``: none is; empty: it is silent.

    Called in the link's thread.
    """
    body = await link.request(f"{prefix}.hello", b"", SILENT_SECONDS)
    if body is None:
        return None
    # Whatever signed it: a gateway of another token uses the same streams.
    with suppress(msgspec.MsgspecError):
        return _read_heartbeat(Signer("").read(body).body).node
    return ""
