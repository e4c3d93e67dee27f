"""A connection to NATS on the gateway's own loop, which appends messages to streams.

A message and its answer are all that an envelope waits for, and neither changes threads here. What
is not answered is settled over the :class:`~meup_agent.gateway.journal.nats.link.Link`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from nats import errors as nats_errors

from meup_agent.gateway.journal.nats.client import (
    ANSWER_SECONDS,
    NatsClient,
    NoAnswer,
    answer_in,
)

if TYPE_CHECKING:
    from nats.aio.msg import Msg


SILENT_SECONDS: Final = 15.0
"""Time for which nothing is sent after a message without an answer: where this connection alone is
silent, each would wait for it, until pings have found that out."""


class _Answers(asyncio.Future["Msg"]):
    """Hands each answer over as it comes: the library has callbacks run by a task, later."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: dict[str, asyncio.Future[Msg]] = {}

    def set_result(self, message: Msg) -> None:
        """Hand an answer to who waits for it; one that comes too late is left out."""
        answer = self.wanted.get(message.subject)
        if answer is not None and not answer.done():
            answer.set_result(message)


class Publisher:
    """Appends messages to streams; used on one loop, that on which its client connects."""

    def __init__(self, client: NatsClient) -> None:
        self._client = client
        self._inbox = ""
        self._answers = _Answers()
        self._published = 0
        self._silent_until = 0.0

    async def begin(self) -> None:
        """Have answers sent here; to be called once, when the client is connected."""
        self._inbox = self._client.new_inbox()
        client: Any = self._client
        await client.subscribe(f"{self._inbox}.*", future=self._answers)

    @property
    def is_usable(self) -> bool:
        """False: it connects again by itself, was silent a moment ago, or is closed."""
        is_silent = asyncio.get_running_loop().time() < self._silent_until
        return bool(self._client.is_connected) and not is_silent

    async def publish(self, stream: str, subject: str, body: bytes, expected: int) -> int:
        """Append a message to a stream whose last one has a sequence; that of the message.

        Raises:
            ApiError: The stream refused it.
            NoAnswer: Whether it was appended is not known.
        """
        if len(body) > self._client.max_payload:
            raise NoAnswer("it takes no such message")
        headers = (
            f"NATS/1.0\r\nNats-Expected-Stream: {stream}\r\n"
            f"Nats-Expected-Last-Sequence: {expected}\r\n\r\n"
        ).encode()
        self._published += 1
        inbox = f"{self._inbox}.{self._published}"
        head = f"HPUB {subject} {inbox} {len(headers)} {len(headers) + len(body)}\r\n".encode()
        answered = asyncio.get_running_loop().create_future()
        self._answers.wanted[inbox] = answered
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._client.send(b"%b%b%b\r\n" % (head, headers, body))
                message: Msg = await answered
        except (nats_errors.Error, TimeoutError, OSError) as error:
            self._silent_until = asyncio.get_running_loop().time() + SILENT_SECONDS
            raise NoAnswer(str(error) or type(error).__name__) from None
        finally:
            del self._answers.wanted[inbox]
        if not message.data:
            raise NoAnswer("no server has the stream")
        sequence: int = answer_in(message)["seq"]
        return sequence

    async def close(self) -> None:
        """Say goodbye; harmless the second time."""
        with suppress(Exception):  # where the connection is away, there is nothing to say
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._client.close()
