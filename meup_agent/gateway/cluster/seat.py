"""The place of a gateway among those of one prefix: it owns the spaces, or waits until it may.

Who waits asks the owner four times a second whether it is there. No listener at all: its process
has ended, in order or not, and the first that waits takes over at once. No answer for a second: it
hangs, or its machine does. The owner answers on the gateway's own loop, so one that does not come
round does not answer either. The others wait a little longer each, so that not all try at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.auth import digest_of_token

if TYPE_CHECKING:
    from meup_agent.gateway.config import Config, SpaceConfig
    from meup_agent.gateway.journal.nats.link import Link

log = logging.getLogger("meup_agent.gateway")

ASK_SECONDS: Final = 0.25
"""Between two questions whether the owner is there, and for its answer."""

SILENT_SECONDS: Final = 1.0
"""Without an answer, after which the owner is taken to hang."""

RANK_SECONDS: Final = 0.2
"""For which each further gateway that waits lets the one before it try."""

MAX_STANDBYS: Final = 64
"""Gateways that an owner knows of; of more, the rest take the last rank."""


class OwnerQuestion(msgspec.Struct, array_like=True, tag="meup/ask/1"):
    """A gateway that waits asks who owns the spaces."""

    node: str
    nonce: str


class OwnerAnswer(msgspec.Struct, array_like=True, tag="meup/owner/1"):
    """The owner's answer."""

    node: str
    nonce: str
    config: dict[str, str]  # digests of the parts of its configuration
    standbys: list[str]  # the nonces of those that asked lately, in their order
    advertise: str = ""  # where it takes connections that came in at others


_encode: Final = msgspec.msgpack.Encoder().encode
_read_question: Final = msgspec.msgpack.Decoder(OwnerQuestion).decode
_read_answer: Final = msgspec.msgpack.Decoder(OwnerAnswer).decode


# --- the configuration that all must have alike ---


def config_parts(config: Config) -> dict[str, str]:
    """A digest of each part of a configuration that decides what is accepted, by its key."""
    parts = {f"spaces.{space.id}": _digest(_space_values(space)) for space in config.spaces}
    limits = asdict(config.limits)
    return parts | {f"gateway.{name}": _digest(value) for name, value in limits.items()}


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
    return {
        "participants": participants,
        "dialect": space.dialect,
        "announce_withdrawals": space.announce_withdrawals,
        "takes_published": space.takes_published,
    }


def _digest(value: object) -> str:
    # Cut, and of digests of tokens: nobody who reads it could guess one with it.
    return sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


def differing_parts(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The keys of the parts that two configurations do not have alike."""
    return sorted(key for key in {*one, *other} if one.get(key) != other.get(key))


# --- the seat ---


@dataclass(eq=False)
class Seat:
    """A gateway's place; made on its loop, and used there but for what is said.

    Args:
        link: The connection to NATS.
        prefix: That of all its gateways.
        node: Its name, for people.
        parts: Its configuration, as :func:`config_parts` tells it.
        advertise: Where it takes connections that came in at others; empty: nowhere.
        on_owner: Told of who owns the spaces, when that changes; ``None``: nobody is known to.
    """

    link: Link
    prefix: str
    node: str
    parts: Mapping[str, str]
    advertise: str = ""
    on_owner: Callable[[OwnerAnswer | None], object] = lambda _: None

    def __post_init__(self) -> None:
        self.nonce = secrets.token_hex(16)
        self._loop = asyncio.get_running_loop()
        self._standbys: dict[str, tuple[float, str]] = {}  # when each asked, and its name
        self._subscription: Any = None
        self._is_starting = True
        self._owner: OwnerAnswer | None = None

    @property
    def _subject(self) -> str:
        return f"{self.prefix}.owner"

    async def wait(self) -> None:
        """Wait until no other gateway owns the spaces, and answer from then on for this one.

        Raises:
            ConfigurationError: The owner has another configuration.
        """
        turn = asyncio.run_coroutine_threadsafe(self._await_turn(), self.link.loop)
        await asyncio.wrap_future(turn)

    def started(self) -> None:
        """Let the gateway's loop answer, and not the connection's: it has read all logs."""
        self._is_starting = False

    def reconfigure(self, config: Config) -> None:
        """Answer with another configuration, which was read again."""
        self.parts = config_parts(config)

    def leave(self) -> None:
        """Answer no more."""
        self.link.call(lambda: asyncio.ensure_future(self._unsubscribe()))

    # --- waiting, in the link's thread ---------------------------------------------------------

    async def _await_turn(self) -> None:
        heard, rank, is_told = time.monotonic(), 0, False
        question = _encode(OwnerQuestion(self.node, self.nonce))
        # Those that start at one time do not know of each other.
        jitter = secrets.randbelow(1_000) / 1_000 * RANK_SECONDS
        while True:
            asked = time.monotonic()
            body = await self.link.request(self._subject, question, ASK_SECONDS)
            now = time.monotonic()
            if now - asked > 2 * ASK_SECONDS:
                heard = now  # this machine slept: it asks again before it suspects another
            elif body is None and self.link.is_connected:
                # Nobody listens there.
                wait = rank * RANK_SECONDS if is_told else jitter
                await asyncio.sleep(wait)
                again = await self.link.request(self._subject, question, ASK_SECONDS)
                if again is None and await self.link.works():
                    break
            elif body:
                answer = self._read(body)
                if answer is not None:
                    heard = now
                    if not is_told:
                        self._check(answer)
                        log.info("standing by: %s owns the spaces", ascii(answer.node))
                        is_told = True
                    rank = _rank(self.nonce, answer.standbys)
                    self._tell(answer)
            elif now - heard > SILENT_SECONDS + rank * RANK_SECONDS and await self.link.works():
                break
            await asyncio.sleep(max(0.0, asked + ASK_SECONDS - time.monotonic()))
        self._subscription = await self.link.subscribe(self._subject, self._on_question)
        self._tell(None)

    def _read(self, body: bytes) -> OwnerAnswer | None:
        try:
            return _read_answer(body)
        except msgspec.MsgspecError:
            return None  # a stranger's, who may make it seem that an owner hangs, and no more

    def _check(self, answer: OwnerAnswer) -> None:
        differing = differing_parts(self.parts, answer.config)
        if differing:
            raise ConfigurationError(
                f"{differing[0]}: the gateway {answer.node}, which owns the spaces, has another"
                f" configuration there{_and_more(differing)}; give both the same file, and let that"
                " one read it again (meup gateway reload)"
            )

    def _tell(self, owner: OwnerAnswer | None) -> None:
        before, self._owner = self._owner, owner
        if (before and (before.nonce, before.advertise)) != (
            owner and (owner.nonce, owner.advertise)
        ):
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.on_owner, owner)

    # --- answering -----------------------------------------------------------------------------

    async def _on_question(self, message: Any) -> None:
        """Note who asks, and have the gateway's loop answer; in the link's thread."""
        try:
            question = _read_question(message.data)
        except msgspec.MsgspecError:
            return
        now = time.monotonic()
        self._standbys = {
            nonce: known
            for nonce, known in self._standbys.items()
            if now - known[0] < SILENT_SECONDS and nonce != question.nonce
        }
        if len(self._standbys) < MAX_STANDBYS:
            self._standbys[question.nonce] = now, question.node
        if self._is_starting:
            await self._send(message.reply, self._answer())
            return
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._answer_to, message.reply)

    def _answer_to(self, reply: str) -> None:
        answer = self._answer()
        self.link.call(lambda: asyncio.ensure_future(self._send(reply, answer)))

    def _answer(self) -> bytes:
        standbys = sorted(self._standbys, key=lambda nonce: (self._standbys[nonce][1], nonce))
        parts = dict(self.parts)
        return _encode(OwnerAnswer(self.node, self.nonce, parts, standbys, self.advertise))

    async def _send(self, reply: str, answer: bytes) -> None:
        if self._subscription is not None and reply:
            with suppress(Exception):  # the next question comes in a moment
                await self.link.client.publish(reply, answer)

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(Exception):
                await subscription.unsubscribe()


async def find_owner(link: Link, prefix: str) -> str | None:
    """The name of the gateway that owns the spaces; ``None``: none runs; empty: it is silent.

    Called in the link's thread.
    """
    question = _encode(OwnerQuestion("", secrets.token_hex(16)))
    body = await link.request(f"{prefix}.owner", question, SILENT_SECONDS)
    if body is None:
        return None
    with suppress(msgspec.MsgspecError):
        return _read_answer(body).node
    return ""


def _rank(nonce: str, standbys: list[str]) -> int:
    return standbys.index(nonce) if nonce in standbys else len(standbys)


def _and_more(keys: Iterable[str]) -> str:
    _, *more = keys
    return f" (and at {len(more)} more keys)" if more else ""
