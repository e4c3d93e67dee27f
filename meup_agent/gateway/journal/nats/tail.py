"""The end of a space's log, as NATS hands it over by itself: a consumer of its stream.

Each message comes once, in its order, and none is acknowledged. Nothing is mended here: after a
gap, silence, too much that nobody took, or a connection that was away the tail has ended. Who
follows the log reads what there is by its sequence, and begins another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from meup_agent.gateway.journal.nats.link import Link, Published
from meup_agent.protocol.space.journal import MAX_PAGE_BYTES

if TYPE_CHECKING:
    from nats.aio.msg import Msg

IDLE_SECONDS: Final = 2.0
"""Interval at which the server says that there is nothing new."""

SILENT_SECONDS: Final = 5.0
"""Silence after which a tail has ended: more than one of those messages is missing."""

FORGOTTEN_SECONDS: Final = 30.0
"""Time after which the server drops a consumer that nobody listens to."""

MAX_TAIL_BYTES: Final = MAX_PAGE_BYTES
"""Bytes of messages that wait to be taken; with more, they are read as a page of the log is."""

_FLOW_CONTROL: Final = "$JS.FC."
_STALLED: Final = "Nats-Consumer-Stalled"
_LAST: Final = "Nats-Last-Consumer"


class LogTail:
    """The messages of a stream from a sequence on, as they come; all in the link's thread.

    Args:
        link: The connection to NATS.
        stream: The stream's name.
        first: The sequence of the first message.
        on_more: Called when there is more to take, once until it is taken, and at the end.
    """

    def __init__(self, link: Link, stream: str, first: int, on_more: Callable[[], None]) -> None:
        self.last = first - 1
        """The sequence of the last message that came."""
        self.has_ended = False
        self._link = link
        self._stream = stream
        self._first = first
        self._on_more = on_more
        self._messages: deque[Published] = deque()
        self._size = 0
        self._count = 0  # of all that its consumer has handed over
        self._is_told = False
        self._subscription: Any = None
        self._closing: asyncio.Task[None] | None = None
        self._heard = 0.0

    async def begin(self) -> None:
        """Have the messages handed over.

        Raises:
            ApiError: The server refuses it.
            NoAnswer: It does not answer.
        """
        link = self._link
        client: Any = link.client
        inbox = client.new_inbox()
        config = {
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._first,
            "ack_policy": "none",
            "flow_control": True,
            "idle_heartbeat": round(IDLE_SECONDS * 1_000_000_000),
            "inactive_threshold": round(FORGOTTEN_SECONDS * 1_000_000_000),
            "mem_storage": True,
            "num_replicas": 1,
        }
        link.on_away.add(self._on_away)
        try:
            self._subscription = await link.subscribe(inbox, self._hear)
            question = {"stream_name": self._stream, "config": config}
            await link.ask(f"CONSUMER.CREATE.{self._stream}", question)
        except BaseException:
            self.end()
            raise
        if self.has_ended:
            self._close()  # which it could not before
        else:
            self._heard = link.loop.time()
            self._look()

    def has(self, first: int, last: int) -> bool:
        """Tell whether all messages with such sequences are here."""
        here = self._messages
        return bool(here) and here[0].sequence <= first <= last <= self.last

    def take(self, first: int, last: int) -> Iterator[Published]:
        """The messages with such sequences, which are here; all before one are forgotten then.

        The last one stays, so that the next reading can begin with it.
        """
        here = self._messages
        while here[0].sequence < last:
            if here[0].sequence >= first:
                yield here[0]
            self._size -= len(here.popleft().body)
        yield here[0]

    def listen(self) -> int:
        """Call again when something more comes; the sequence of the last message that is here."""
        self._is_told = False
        return self.last

    def end(self) -> None:
        """Forget everything; harmless the second time."""
        if not self.has_ended:
            self.has_ended = True
            self._link.on_away.discard(self._on_away)
            self._messages.clear()
            self._close()
            self._on_more()

    # --- what comes in --------------------------------------------------------------------------

    async def _hear(self, message: Msg) -> None:
        if self.has_ended:
            return
        self._heard = self._link.loop.time()
        headers = message.headers or {}
        if "Status" in headers:
            await self._hear_status(headers, message.reply)
            return
        try:
            sequence = message.metadata.sequence
        except Exception:  # whatever the library makes of a stranger's message
            self.end()
            return
        self._count += 1
        self._size += len(message.data)
        if (sequence.stream, sequence.consumer) != (self.last + 1, self._count):
            self.end()
            return
        self.last = sequence.stream
        self._messages.append(Published(self.last, message.data))
        if self._size > MAX_TAIL_BYTES:
            self.end()
        elif not self._is_told:
            self._is_told = True
            self._on_more()

    async def _hear_status(self, headers: dict[str, str], reply: str) -> None:
        # Anything else than that all is well says that the consumer is gone.
        if headers["Status"] != "100" or headers.get(_LAST, str(self._count)) != str(self._count):
            self.end()
            return
        asked = reply or headers.get(_STALLED, "")
        if asked.startswith(_FLOW_CONTROL):
            await self._link.client.publish(asked, b"")

    def _on_away(self, problem: str) -> None:
        self.end()

    def _look(self) -> None:
        """Find out that the server says nothing any more."""
        if not self.has_ended:
            loop = self._link.loop
            if loop.time() - self._heard > SILENT_SECONDS:
                self.end()
            else:
                loop.call_later(IDLE_SECONDS, self._look)

    def _close(self) -> None:
        if self._subscription is not None:
            # Not at once: this may be within what the subscription calls.
            self._closing = asyncio.ensure_future(_unsubscribe(self._subscription))
            self._subscription = None


async def _unsubscribe(subscription: Any) -> None:
    with suppress(Exception):  # where the connection is away, there is nothing to say
        await subscription.unsubscribe()
