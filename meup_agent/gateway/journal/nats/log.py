"""The log of one space: a stream that one owner appends to, a message at a time.

The fence: a message is appended with the sequence of the last one that the stream is known to have,
and with none other under way, so that it takes effect only where nobody has written since. What is
not answered is read back from the stream before anything else is done: either the message is there,
or the log ends where it ended and the same message is appended again, or another gateway has
written. Then this one is no owner any more, and nothing that it still had is accepted.

Several messages at a time would be no fence: of a gateway that was stopped with some under way,
a later one may expect just the sequence that another gateway has meanwhile reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.nats.link import (
    INSIST_SECONDS,
    RETRY_SECONDS,
    ApiError,
    Link,
    NoAnswer,
    Published,
    unsubscribe,
)
from meup_agent.gateway.journal.nats.records import (
    FORMAT,
    MAX_BATCH,
    MAX_NUMBER,
    WRONG_LAST_SEQUENCE,
    Batch,
    Checkpoint,
    ForeignMessage,
    Ownership,
    decode_checkpoint,
    decode_message,
    encode_batch,
    encode_checkpoint,
    encode_ownership,
    read_batch,
    token_of,
)
from meup_agent.gateway.journal.waiting import Lost, Replaced
from meup_agent.protocol.space.journal import MAX_PAGE_BYTES, Entry, NumberRange, ignore

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from meup_agent.gateway.config import JournalConfig, NatsConfig
    from meup_agent.gateway.journal.nats.link import Publisher


# --- the end of a log, as NATS hands it over by itself: a consumer of its stream ---
# Each message comes once, in its order, and none is acknowledged. Nothing is mended here: after a
# gap, silence, too much that nobody took, or a connection that was away the tail has ended. Who
# follows the log reads what there is by its sequence, and begins another one.

IDLE_SECONDS: Final = 2.0
"""Interval at which the server says that there is nothing new."""

TAIL_SILENT_SECONDS: Final = 5.0
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
        link, inbox = self._link, self._link.client.new_inbox()
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
            if loop.time() - self._heard > TAIL_SILENT_SECONDS:
                self.end()
            else:
                loop.call_later(IDLE_SECONDS, self._look)

    def _close(self) -> None:
        if self._subscription is not None:
            # Not at once: this may be within what the subscription calls.
            self._closing = asyncio.ensure_future(unsubscribe(self._subscription))
            self._subscription = None


log = logging.getLogger("meup_agent.gateway")

PAGE: Final = 256
"""Messages that are read at a time."""

FETCH_BYTES: Final = MAX_PAGE_BYTES + PAGE * 1024
"""Bytes of those, with their headers: as many as a reader takes at a time."""

CHECKPOINT_ENTRIES: Final = 1_000
"""Entries with facts after which the facts are written down, so that a start reads few of them."""

CHECKPOINT_SECONDS: Final = 60.0
"""Time after which they are at the latest: the stream may forget the entries."""

CHUNK: Final = 512 * 1024
"""Bytes of a checkpoint that are one value of the bucket."""

HEADER_BYTES: Final = 1024
"""Of a message, beside what it holds: above those of its names and numbers."""

WATCH_SECONDS: Final = 1.0
"""Between two looks whether another gateway has written, while this one writes nothing."""

OWN_ATTEMPTS: Final = 20
"""Times that a gateway that starts tries to be the owner, while others write."""

COPYING: Final = "meup.copying"
"""Says in what a stream tells of itself that not all is there yet which is copied into it."""

STREAM_EXISTS: Final = 10058
STREAM_NOT_FOUND: Final = 10059

_UNSURE: Final = frozenset({10008, 10009, 10077, 10164})
"""Answers that pass by themselves: a cluster without a leader, say, or one that is starting."""


class OtherLog(Exception):
    """A log is not the one that was read before, or what was read last is not in it any more."""


class LogPlace(NamedTuple):
    """The place up to which a log was read."""

    base: int
    until: int  # the sequence up to which there is nothing more to read
    sequence: int  # of the last message that was read; 0: there was none
    digest: bytes  # of that message
    epoch: int | None  # under which it was written


Batches = list[tuple[int, Batch]]
"""Batches, and the number of the first entry of each."""


class Waiting(NamedTuple):
    """An entry that is to be appended, encoded."""

    encoded: bytes
    size: int


def message_ends(queue: deque[Waiting], most: int) -> int:
    """The number of entries that the next message takes, so many bytes at most, or one."""
    size = 0
    for count, each in enumerate(queue):
        size += each.size
        if count == MAX_BATCH or (count and size > most):
            return count
    return len(queue)


def _ignore_kept(log: SpaceLog, sequence: int, count: int) -> None:
    """Nothing is appended, so nothing is kept."""


@dataclass(eq=False)
class SpaceLog:
    """The stream of a space.

    What reads it is called in the link's thread, what appends to it on the gateway's loop, and
    numbers are given on both.
    """

    link: Link
    config: NatsConfig
    space: str
    # Who only reads it needs none of these.
    now: Callable[[], int] = int
    # Called with the last sequence, and how many entries it took.
    on_kept: Callable[[SpaceLog, int, int], None] = _ignore_kept
    on_lost: Callable[[str], None] = ignore
    is_copy: bool = False  # another journal is copied into it, and no gateway uses it

    def __post_init__(self) -> None:
        token = token_of(self.space)
        self.stream = f"{self.config.prefix}-{token}"
        """The name of the stream."""
        self.subject = f"{self.config.prefix}.log.{token}"
        """The one subject of its messages."""
        self._bucket = f"{self.config.prefix}-facts"
        self.accepts_damage = False
        self.is_copied_to = False  # that has begun, and is not over
        self.base = 0
        self.first = 1  # the sequence of the oldest message
        self.last = 0  # of the last message that is known to be there
        self.epoch = 0
        self.latest = 0  # the number of the last entry
        self.size = 0  # bytes in the stream
        self.damaged = list[NumberRange]()
        self.waiting = deque[Waiting]()
        self.ended = self.is_replaced = False
        self.format: Callable[[], int] = lambda: FORMAT  # in which batches are written
        self.tail: LogTail | None = None
        self._tasks = list[asyncio.Task[None]]()
        self._turn = asyncio.Lock()  # to look or to write
        self._more = asyncio.Event()
        self._facts_turn = asyncio.Lock()

    # --- numbers ------------------------------------------------------------------------------

    def number(self, sequence: int, place: int = 0) -> int:
        """The number of an entry: of its message in the stream, and its place in that."""
        return self.base + sequence * MAX_BATCH + place

    def sequence(self, number: int) -> int:
        """The sequence of the message that has an entry with a number."""
        return (number - self.base) // MAX_BATCH

    @property
    def floor(self) -> int:
        """The number behind which everything can be read."""
        return self.number(self.first) - 1

    # --- a start ------------------------------------------------------------------------------

    async def open(self, journal: JournalConfig, ownership: Ownership) -> None:
        """Find or make the stream, and become its owner.

        Raises:
            ConfigurationError: It cannot be used.
        """
        self.accepts_damage = journal.accept_damage
        now = asyncio.get_running_loop().time
        deadline = now() + INSIST_SECONDS
        while True:
            try:
                await self._find(journal)
                return await self._own(ownership)
            except ApiError as error:
                if error.code not in _UNSURE or now() > deadline:
                    raise ConfigurationError(
                        f"journal.nats: {self.link.place} refuses the stream {self.stream}: {error}"
                        + _advice(error, self.config)
                    ) from None
            except NoAnswer as error:
                if now() > deadline:
                    raise ConfigurationError(
                        f"journal.nats: {self.link.place} does not answer about the stream"
                        f" {self.stream} ({error}); look at its log, and whether JetStream is"
                        " enabled"
                    ) from None
            await asyncio.sleep(RETRY_SECONDS)

    async def look(self) -> bool:
        """Learn what the stream holds, and change nothing; false if there is none.

        Raises:
            ConfigurationError: It is not the space's log alone.
            ForeignMessage: It has something at its end that no gateway wrote.
        """
        is_there = await self.find()
        if is_there:
            self.latest = await self._find_latest()
        return is_there

    async def find(self) -> bool:
        """Learn where the stream begins and ends; false if there is none.

        Raises:
            ConfigurationError: It is not the space's log alone.
        """
        info = await self._ask_about()
        if info is not None:
            self._read_info(info)
        return info is not None

    async def examine(self, journal: JournalConfig) -> tuple[list[str], list[str]] | None:
        """The keys of its stream that are not as configured, and the servers that lag behind.

        ``None``: there is no stream.

        Raises:
            ConfigurationError: It is not the space's log alone.
        """
        info = await self._ask_about()
        if info is None:
            return None
        found, wanted = self._read_info(info), self._wanted(journal)
        cluster: dict[str, Any] = info.get("cluster", {})
        copies: list[dict[str, Any]] = cluster.get("replicas", [])
        behind = [
            str(each["name"]) for each in copies if not each.get("current") or each.get("offline")
        ]
        return [key for key in wanted if found.get(key) != wanted[key]], behind

    def refuse_copy(self) -> None:
        """Refuse a log that does not have all yet.

        Raises:
            ConfigurationError: More is to be copied into it.
        """
        if self.is_copied_to:
            raise ConfigurationError(
                f"the log of space {self.space!r} is a copy that is not complete; run"
                f" 'meup journal copy' again, or remove the stream {self.stream}"
            )

    async def end_copy(self) -> None:
        """Say that the log holds all that was to be copied into it."""
        found = (await self.ask("INFO"))["config"]
        metadata = {key: value for key, value in found["metadata"].items() if key != COPYING}
        await self.ask("UPDATE", {**found, "metadata": metadata})

    async def ask(self, what: str, question: object = None) -> dict[str, Any]:
        """Ask JetStream about the stream, as :meth:`~.link.Link.ask` does."""
        return await self.link.ask(f"STREAM.{what}.{self.stream}", question)

    async def _find(self, journal: JournalConfig) -> None:
        """Find the stream, or make it, and read what it says of itself."""
        wanted = self._wanted(journal)
        info = await self._ask_about()
        if info is None:
            metadata = {"meup.space": self.space, "meup.base": str(self.now())}
            if self.is_copy:
                metadata[COPYING] = "1"
            made = {**wanted, "metadata": metadata, "deny_delete": True, "deny_purge": True}
            try:
                info = await self.ask("CREATE", made)
            except ApiError as error:
                if error.code != STREAM_EXISTS:
                    raise
                info = await self.ask("INFO")  # another gateway was faster
        found = self._read_info(info)
        if not self.is_copy:
            self.refuse_copy()
        changed = {key: value for key, value in wanted.items() if found.get(key) != value}
        if changed:
            self._read_state(await self.ask("UPDATE", {**found, **changed}))

    async def _ask_about(self) -> dict[str, Any] | None:
        try:
            return await self.ask("INFO")
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            return None

    def _read_info(self, info: dict[str, Any]) -> dict[str, Any]:
        """Take in what the server says of the stream; its configuration."""
        found: dict[str, Any] = info["config"]
        kept: dict[str, str] = found.get("metadata") or {}
        base = kept.get("meup.base", "")
        if (
            found.get("subjects") != [self.subject]
            or found.get("sources")
            or found.get("mirror")
            or kept.get("meup.space") != self.space
            or not base.isascii()
            or not base.isdecimal()
        ):
            raise ConfigurationError(
                f"journal.nats.prefix: the stream {self.stream} is not the log of space"
                f" {self.space!r} alone; remove that stream, or give another prefix"
            )
        self.base = int(base)
        self.is_copied_to = COPYING in kept
        self._read_state(info)
        return found

    def _wanted(self, journal: JournalConfig) -> dict[str, Any]:
        """The stream's configuration, as far as ours says it."""
        age = 0 if journal.max_age is None else round(journal.max_age * 1_000_000_000)
        return {
            "name": self.stream,
            "subjects": [self.subject],
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "num_replicas": self.config.replicas,
            "max_age": age,
            "max_bytes": -1 if journal.max_bytes is None else journal.max_bytes,
            "allow_direct": True,
        }

    def _read_state(self, info: dict[str, Any]) -> None:
        self.last = self._read_begin(info)

    def _read_begin(self, info: dict[str, Any]) -> int:
        """Take in what the stream has forgotten; the sequence of its last message."""
        state = info["state"]
        self.first, self.size = max(1, state["first_seq"]), state["bytes"]
        last: int = state["last_seq"]
        return last

    async def _own(self, ownership: Ownership) -> None:
        """Append that this gateway owns the space from here on."""
        body = encode_ownership(ownership)
        for _ in range(OWN_ATTEMPTS):
            try:
                self.epoch = await self.link.publish(self.stream, self.subject, body, self.last)
            except ApiError as error:
                if error.code != WRONG_LAST_SEQUENCE:
                    raise
            else:
                self.last = self.epoch
                return
            self._read_state(await self.ask("INFO"))
        raise ConfigurationError(
            f"another gateway writes to the stream {self.stream} all the time; stop it"
        )

    async def _find_latest(self) -> int:
        """The number of the last entry, which stands before messages without any."""
        for sequence in range(self.last, self.first - 1, -1):
            found = await self._fetch_one(sequence)
            if found is not None and found.sequence == sequence:
                content = decode_message(*found)
                if isinstance(content, Batch):
                    return self.number(sequence, len(content.entries) - 1)
        return self.floor

    async def _fetch_one(self, sequence: int) -> Published | None:
        """The message with a sequence, or the first behind it; ``None``: neither is there."""
        fetched = self.link.fetch(self.stream, sequence, count=1, max_bytes=MAX_PAGE_BYTES)
        return next(iter([each async for each in fetched]), None)

    # --- appending ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Append what is put from now on; once, when the log is this gateway's own."""
        self._tasks = [
            asyncio.ensure_future(self._until_lost(work)) for work in (self._write, self._watch)
        ]

    def put(self, entries: list[Waiting]) -> None:
        """Append entries behind those that wait."""
        self.waiting.extend(entries)
        self._more.set()

    async def _write(self) -> None:
        publisher = await self.link.publisher()
        while True:
            await self._more.wait()
            self._more.clear()
            while self.waiting:
                async with self._turn:
                    await self._write_next(publisher)

    async def _watch(self) -> None:
        """Find out that another gateway owns the space, also where nothing is said in it."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            async with self._turn:
                await self.link.do(self._read_back(b""))

    async def _until_lost(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:
            sentence = str(error)
            if not isinstance(error, Lost):
                log.exception("the log of space %r cannot be written", self.space)
                sentence = f"the log of space {self.space!r} cannot be written: {error!r}"
            self.is_replaced = isinstance(error, Replaced)
            if not self.ended:
                self.stop()
                self.on_lost(sentence)

    async def _write_next(self, publisher: Publisher | None) -> None:
        count = message_ends(self.waiting, self.link.max_payload // 2)
        encoded = [self.waiting[at].encoded for at in range(count)]
        body = encode_batch(self.epoch, encoded, self.format())
        if len(body) + HEADER_BYTES > self.link.max_payload:
            raise Lost(
                f"a message of space {self.space!r} has {len(body)} bytes, and {self.link.place}"
                f" takes {self.link.max_payload}; raise max_payload there, or lower"
                " gateway.max_message_bytes"
            )
        sequence = await self._append(body, publisher)
        for _ in range(count):
            self.waiting.popleft()
        self.last = sequence
        self.size += len(body)
        if self.number(sequence, MAX_BATCH) > MAX_NUMBER:
            raise Lost(f"the numbers of space {self.space!r} are used up; begin with a new prefix")
        self.on_kept(self, sequence, count)

    async def _append(self, body: bytes, publisher: Publisher | None) -> int:
        """Append a message, however long it takes; its sequence.

        Raises:
            Lost: Another has written, or the stream takes no more.
        """
        failed: ApiError | NoAnswer | None = None
        if publisher is not None and publisher.is_usable:
            try:
                return await publisher.publish(self.stream, self.subject, body, self.last)
            except (ApiError, NoAnswer) as error:
                failed = error
        return await self.link.do(self._insist(body, failed))

    async def _insist(self, body: bytes, failed: ApiError | NoAnswer | None) -> int:
        """Append a message, after an attempt that failed, or without one; as :meth:`_append`."""
        while True:
            if failed is not None:
                if isinstance(failed, NoAnswer) or failed.code in _UNSURE:
                    await asyncio.sleep(RETRY_SECONDS)
                elif failed.code != WRONG_LAST_SEQUENCE:
                    raise Lost(
                        f"the stream {self.stream} takes nothing more: {failed}"
                        f"{_advice(failed, self.config)}"
                    )
                # Whether it is there says the log alone.
                sequence = await self._read_back(body)
                if sequence is not None:
                    return sequence
            try:
                return await self.link.publish(self.stream, self.subject, body, self.last)
            except (ApiError, NoAnswer) as error:
                failed = error

    async def _read_back(self, body: bytes) -> int | None:
        """The sequence of a message that is in the log behind all that is known of it, or ``None``.

        Raises:
            Lost: Something else is there, or what was there is not.
        """
        deadline = asyncio.get_running_loop().time() + INSIST_SECONDS
        while True:
            with suppress(NoAnswer, ApiError):
                info = await self._ask_about()
                end: int = info["state"]["last_seq"] if info else 0
                if end == self.last:
                    return None
                if end < self.last:
                    # A server that leads from now on may not have come to its end yet.
                    if asyncio.get_running_loop().time() > deadline:
                        said = f"ends with message {end}" if info else "is not there any more"
                        raise Lost(
                            f"the stream {self.stream} {said}, and had {self.last}: its server has"
                            " lost what was accepted"
                        )
                elif (found := await self._fetch_one(self.last + 1)) is not None:
                    return self._judge(found, body)
            await asyncio.sleep(RETRY_SECONDS)

    def _judge(self, found: Published, body: bytes) -> int:
        if found.sequence == self.last + 1 and found.body == body:
            return found.sequence
        with suppress(ForeignMessage):
            content = decode_message(found.sequence, found.body)
            if isinstance(content, Ownership):
                raise Replaced(
                    f"the gateway {content.node} has taken over space {self.space!r} (message"
                    f" {found.sequence} of the stream {self.stream})"
                )
        raise Lost(
            f"something else wrote message {found.sequence} of the stream {self.stream}; only the"
            " gateway that owns the space may"
        )

    # --- reading ------------------------------------------------------------------------------

    async def messages(self, first: int, last: int) -> AsyncGenerator[Published]:
        """The messages with such sequences that are kept, each of them."""
        if self.tail is not None and self.tail.has(first, last):
            for message in self.tail.take(first, last):
                yield message
            return
        at = first
        while at <= last:
            begin = at
            count = min(PAGE, last + 1 - at)
            async for message in self.link.fetch(
                self.stream, at, count=count, max_bytes=FETCH_BYTES
            ):
                if message.sequence > at:
                    await self._look_at_gap(at, message.sequence)
                if message.sequence > last:
                    return
                at = message.sequence + 1
                yield message
            if at == begin:
                # A replica may be behind, or what is asked for was forgotten meanwhile.
                if await self.refresh() < at:
                    raise NoAnswer(f"the stream {self.stream} has lost message {at}")
                if at >= self.first:
                    await asyncio.sleep(RETRY_SECONDS)
                at = max(at, self.first)

    async def _look_at_gap(self, expected: int, found: int) -> None:
        """Note messages that are missing, unless they were forgotten as the oldest are."""
        await self.refresh()
        begin = max(expected, self.first)
        missing = NumberRange(self.number(begin), self.number(found) - 1)
        if begin < found and missing not in self.damaged:
            self.damaged = sorted([*self.damaged, missing])
            log.error(
                "the stream %s has lost the messages %d to %d: the numbers %d to %d are missing",
                *(self.stream, begin, found - 1, *missing),
            )

    async def refresh(self) -> int:
        """Learn what the stream has forgotten; the sequence of its last message."""
        return self._read_begin(await self.ask("INFO"))

    async def batches(self, first: int, last: int) -> AsyncGenerator[tuple[int, Batch]]:
        """The batches of messages with such sequences, and the number of the first entry of each.

        Raises:
            ForeignMessage: One of them is none of a gateway that owned the space then.
        """
        epoch: int | None = None
        async with aclosing(self.messages(first, last)) as messages:
            async for message in messages:
                epoch, batch = _read_message(message, epoch)
                if batch is not None:
                    yield self.number(message.sequence), batch

    async def read_on(self, place: LogPlace | None) -> tuple[Batches, LogPlace]:
        """Read what follows a place, or the beginning: a page of it, and the place behind that.

        Raises:
            OtherLog: The message that was read last is not there, or one behind it was forgotten.
            ForeignMessage: As of :meth:`batches`.
        """
        at, epoch, last = self.first, None, self.last
        if place is not None:
            if place.base != self.base or not self.first <= place.sequence <= last:
                raise OtherLog
            at, epoch = place.sequence, place.epoch
        found, count, size = Batches(), 0, 0
        message: Published | None = None
        async with aclosing(self.messages(at, last)) as messages:
            async for each in messages:
                self._check_forgotten(at, each.sequence)
                at = each.sequence + 1
                # Also of the known one, so that one question to the server is enough.
                count, size = count + 1, size + len(each.body)
                if place is not None and message is None:
                    if (each.sequence, _digest(each)) != (place.sequence, place.digest):
                        raise OtherLog
                    message = each
                    continue
                message = each
                epoch, batch = _read_message(each, epoch)
                if batch is not None:
                    found.append((self.number(each.sequence), batch))
                if count >= PAGE or size >= MAX_PAGE_BYTES:
                    break
            else:
                self._check_forgotten(at, last + 1)
        if message is None:
            return found, LogPlace(self.base, last, 0, b"", epoch)
        return found, LogPlace(self.base, at - 1, message.sequence, _digest(message), epoch)

    def _check_forgotten(self, expected: int, found: int) -> None:
        """Raise :exc:`OtherLog` where messages were forgotten before they were read, not lost."""
        if expected < min(found, self.first):
            raise OtherLog

    async def page(self, *, after: int, until: int, limit: int) -> tuple[Entry, ...]:
        """Entries with ``after < seq <= until``: so many, and as many bytes as a page has."""
        found: list[Entry] = []
        size = 0
        first = max(self.sequence(after + 1), self.first)
        last = min(self.sequence(until), self.last)
        async with aclosing(self.batches(first, last)) as batches:
            async for number, batch in batches:
                for entry, _ in read_batch(self.space, number, batch):
                    if after < entry.seq <= until and len(found) < limit and size < MAX_PAGE_BYTES:
                        found.append(entry)
                        size += len(entry.envelope.frame)
                if len(found) == limit or size >= MAX_PAGE_BYTES:
                    break
        # What was forgotten while it was read is a gap, which the reader has to see.
        await self.refresh()
        return tuple(found)

    # --- facts --------------------------------------------------------------------------------

    async def read_checkpoint(self) -> Checkpoint:
        """The facts that were written down last.

        Raises:
            ConfigurationError: They cannot be read.
        """
        token, body = token_of(self.space), b""
        head = await self.link.value(self._bucket, token)
        if head is None:
            return Checkpoint(0, {})
        try:
            count, _, generation = head.decode().partition(" ")
            for place in range(int(count)):
                part = await self.link.value(self._bucket, f"{token}.{generation}.{place}")
                if part is None:
                    raise NoAnswer(f"a part of the facts of space {self.space!r} is missing")
                body += part
            _, digest, _ = generation.split("-")
            if _short_digest(body) != digest:
                raise ValueError("they are not what was written down")
            found = decode_checkpoint(body)
        except ValueError as error:
            raise ConfigurationError(
                f"the facts of space {self.space!r} in the bucket {self._bucket} are damaged"
                f" ({error}); restore that bucket"
            ) from None
        # The owner may have written both since a gateway that follows asked for the end.
        if found.until > self.last and found.until > await self.refresh():
            # What is written there from now on would be taken for what the facts have already.
            if not self.accepts_damage:
                raise ConfigurationError(
                    f"the log of space {self.space!r} ends with message {self.last}, and its facts"
                    f" were written down up to {found.until}: it was removed, or its server lost"
                    " the end; restore the stream, give another journal.nats.prefix, or go on from"
                    " there: accept_damage"
                )
            found.until = self.last
            await self.write_checkpoint(found, begins=True)
        return found

    async def write_checkpoint(self, checkpoint: Checkpoint, *, begins: bool = False) -> None:
        """Write down the facts that hold, in place of those that were before.

        Those of a later owner stay, unless a log ``begins`` anew, and the last of several calls
        counts.
        """
        from nats.js.errors import KeyNotFoundError

        bucket = await self.link.bucket(self._bucket, replicas=self.config.replicas)
        body = encode_checkpoint(checkpoint)
        # With its digest: parts of two of them are never taken for one.
        token = token_of(self.space)
        generation = f"{checkpoint.until}-{_short_digest(body)}-{self.epoch}"
        parts = [body[at : at + CHUNK] for at in range(0, len(body), CHUNK)]
        async with self._facts_turn:
            before, revision = b"", 0
            with suppress(KeyNotFoundError):
                head = await bucket.get(token)
                before, revision = head.value or b"", head.revision
            count, _, older = before.decode().partition(" ")
            if older and not begins and int(older.rpartition("-")[2]) > self.epoch:
                return
            for place, part in enumerate(parts):
                await bucket.put(f"{token}.{generation}.{place}", part)
            # The head last: until then, the facts before it count.
            await bucket.update(token, f"{len(parts)} {generation}".encode(), last=revision)
            if older and older != generation:
                for place in range(int(count)):
                    with suppress(Exception):
                        await bucket.purge(f"{token}.{older}.{place}")

    # --- the end ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Append nothing any more, and have nothing handed over; on the gateway's loop."""
        self.ended = True
        self.waiting.clear()
        self.link.call(self._end_tail)
        for task in self._tasks:
            task.cancel()

    def _end_tail(self) -> None:
        if self.tail is not None:
            self.tail.end()


def _read_message(message: Published, epoch: int | None) -> tuple[int, Batch | None]:
    """The epoch that holds with a message, where one held before, and its batch, if it has one."""
    content = decode_message(message.sequence, message.body)
    if isinstance(content, Ownership):
        return message.sequence, None
    if epoch is not None and content.epoch != epoch:
        raise ForeignMessage(
            message.sequence, "is of a gateway that did not own the space any more"
        )
    return content.epoch, content


def _digest(message: Published) -> bytes:
    return sha256(message.body).digest()


def _short_digest(body: bytes) -> str:
    return sha256(body).hexdigest()[:32]


def _advice(error: ApiError, config: NatsConfig) -> str:
    """The remedy for a refusal of NATS, as the end of a sentence."""
    said = str(error)
    if config.replicas > 1 and ("replicas > 1" in said or "no suitable peers" in said):
        return (
            f"; journal.nats.replicas is {config.replicas}, and it has fewer servers: give it as"
            " many, or set replicas: 1"
        )
    if "resources exceeded" in said or "insufficient" in said:
        return "; give it more room, or set journal.max_bytes"
    return ""
