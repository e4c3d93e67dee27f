"""Values by key that the gateways of a prefix share, each for some time: a bucket of NATS."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from meup_agent.gateway.journal.nats.records import WRONG_LAST_SEQUENCE

if TYPE_CHECKING:
    from meup_agent.gateway.config import NatsConfig
    from meup_agent.gateway.journal.nats.link import Link

log = logging.getLogger("meup_agent.gateway")

ANSWER_SECONDS: Final = 2.0
"""For the store to answer."""

MAX_BUCKET_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a bucket; when it is full, nothing more is put there."""

T = TypeVar("T")


class ValuesAway(Exception):
    """The store does not answer, or refuses."""


@dataclass(eq=False)
class SharedValues:
    """Values that several gateways have in common, in a bucket; used on the gateway's loop.

    Each method raises :exc:`ValuesAway` where what it asked for is not known to be done; those that
    end in ``_later`` go on while their caller does, and raise nothing.

    Args:
        link: The connection to NATS.
        config: That of the journal.
        name: The end of the bucket's name.
        seconds: Time after which it forgets a value; 0: never.
    """

    link: Link
    config: NatsConfig
    name: str
    seconds: float
    _writing: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return f"{self.config.prefix}-{self.name}"

    async def get(self, key: str) -> bytes | None:
        """The value of a key; ``None``: there is none."""
        return await self._ask(lambda: self.link.value(self.bucket, key))

    async def put(self, key: str, value: bytes) -> None:
        """Let a key have a value, for some time from now on."""
        await self._ask(lambda: self._put(key, value))

    async def add(self, key: str, value: bytes) -> bytes:
        """Let a key that has no value have this one; the value that it has then."""
        from nats.js.errors import KeyWrongLastSequenceError

        async def add() -> bytes:
            bucket = await self._open()
            with suppress(KeyWrongLastSequenceError):
                await bucket.create(key, value)
                return value
            return (await bucket.get(key)).value or b""

        return await self._ask(add)

    async def take(self, key: str) -> bool:
        """Remove a value: true for one of all that try, false where there is none."""
        from nats.js.errors import BadRequestError, KeyNotFoundError

        async def take() -> bool:
            bucket = await self.link.bucket(self.bucket)
            if bucket is None:
                return False
            try:
                await bucket.delete(key, last=(await bucket.get(key)).revision)
            except KeyNotFoundError:
                return False
            except BadRequestError as error:
                if error.err_code != WRONG_LAST_SEQUENCE:
                    raise
                return False  # another was first
            return True

        await self.settle()  # it may be among what is written
        return await self._ask(take)

    def put_later(self, key: str, value: bytes) -> None:
        """Let a key have a value, for some time from then on."""
        self._later(lambda: self._put(key, value))

    def replace_later(self, key: str, value: bytes) -> None:
        """Let a key that has a value have another, for some time from then on.

        One that was removed stays so, even if that was asked for a moment ago.
        """
        self._later(lambda: self._replace(key, value))

    def remove_later(self, key: str) -> None:
        """Remove a value, and every trace of it."""
        self._later(lambda: self._purge(key))

    async def settle(self) -> None:
        """Wait until all that goes on is written, or has failed."""
        if self._writing:
            await asyncio.wait(self._writing)

    # --- on the gateway's loop ------------------------------------------------------------------

    async def _ask(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self.link.loop.is_closed():
            raise ValuesAway("the gateway ends")
        future = asyncio.run_coroutine_threadsafe(work(), self.link.loop)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise ValuesAway("no answer") from None
        except Exception as error:  # whatever the library makes of an answer
            raise ValuesAway(str(error) or type(error).__name__) from None

    def _later(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        async def run() -> None:
            try:
                await self._ask(work)
            except ValuesAway as error:
                log.warning("the bucket %s cannot be written: %s", self.bucket, error)

        # Held, since a loop holds its tasks weakly; each ends by its deadline.
        task = asyncio.ensure_future(run())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    # --- in the link's thread -------------------------------------------------------------------

    async def _open(self) -> Any:
        return await self.link.bucket(
            self.bucket,
            ttl=self.seconds or None,
            max_bytes=MAX_BUCKET_BYTES if self.seconds else None,
            replicas=self.config.replicas,
        )

    async def _put(self, key: str, value: bytes) -> None:
        await (await self._open()).put(key, value)

    async def _replace(self, key: str, value: bytes) -> None:
        from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

        bucket = await self._open()
        # What is written or removed between the two stays.
        with suppress(KeyNotFoundError, KeyWrongLastSequenceError):
            await bucket.update(key, value, last=(await bucket.get(key)).revision)

    async def _purge(self, key: str) -> None:
        # A value that is deleted leaves a message that says so; of these there would be many.
        subject = f"$KV.{self.bucket}.{key}"
        await self.link.ask(f"STREAM.PURGE.KV_{self.bucket}", {"filter": subject})


OpenValues = Callable[[str, float], SharedValues]
"""Opens values by a name and the seconds after which they are forgotten; 0: never."""
