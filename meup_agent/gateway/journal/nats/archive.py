"""The streams of a journal as other programs read them: nothing in them changes by it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.archive import ServerArchive
from meup_agent.gateway.journal.nats.client import ApiError
from meup_agent.gateway.journal.nats.link import Link
from meup_agent.gateway.journal.nats.log import PAGE, SpaceLog
from meup_agent.gateway.journal.nats.records import (
    Batch,
    Checkpoint,
    ForeignMessage,
    Ownership,
    decode_message,
    read_batch,
)
from meup_agent.protocol.space.journal import Entry, NumberRange, ignore, without_marks

if TYPE_CHECKING:
    from meup_agent.gateway.config import NatsConfig

T = TypeVar("T")


class NatsArchive(ServerArchive):
    """The logs of some spaces, as far as they go when it is opened; close it in the end."""

    def __init__(self, config: NatsConfig, spaces: Iterable[str]) -> None:
        self._logs: dict[str, SpaceLog] = {}
        self._prefix = config.prefix
        self._link = Link(config)
        self._link.open()
        try:
            self._wait(self._link.find_jetstream)
            for space in spaces:
                log = SpaceLog(self._link, config, space, int, _ignore_kept, ignore)
                if self._wait(log.look):
                    self._logs[space] = log
        except BaseException:
            self.close()
            raise

    @property
    def spaces(self) -> list[str]:
        return list(self._logs)

    @property
    def damaged(self) -> list[NumberRange]:
        return sorted(each for log in self._logs.values() for each in log.damaged)

    @property
    def link(self) -> Link:
        """The connection."""
        return self._link

    def log_of(self, space: str) -> SpaceLog:
        """The stream of a space."""
        return self._logs[space]

    def latest(self, space: str) -> int:
        log = self._logs[space]
        return log.latest if log.latest > log.floor else 0

    def before(self, space: str, at: int) -> int:
        log = self._logs[space]
        low, high = log.first, log.last + 1
        while low < high:
            # Of the messages below `low` all entries are older, of those from `high` on none.
            middle = (low + high) // 2
            times = self._wait(partial(_times, log, middle))
            if times is not None and times[1] < at:
                low = times[0] + 1
            else:
                high = middle
        until = min(log.number(low + 1), log.latest)
        entries = self.read(space, after=log.number(low) - 1, until=until, limit=PAGE)
        older = [entry.seq for entry in entries if entry.at < at]
        return older[-1] if older else log.number(low) - 1

    def page(self, space: str, after: int, until: int, limit: int) -> tuple[Entry, ...]:
        page = partial(self._logs[space].page, after=after, until=until, limit=limit)
        return self._wait(page)

    def facts(self, space: str) -> dict[str, dict[str, Any]]:
        log, checkpoint = self._logs[space], self._checkpoint(space)
        found = dict(checkpoint.facts)
        for first in range(max(checkpoint.until + 1, log.first), log.last + 1, PAGE):
            for entry in self._wait(partial(_entries, log, first)):
                for key, value in without_marks(entry.facts):
                    if value is None:
                        found.pop(key, None)
                    else:
                        found[key] = value
        return found

    def seen(self, space: str) -> dict[str, int]:
        return self._checkpoint(space).seen

    def find_owner(self) -> str | None:
        from meup_agent.gateway.cluster.membership import find_owner

        return self._link.wait(find_owner(self._link, self._prefix))

    def has_grown(self, space: str) -> bool:
        log = self._logs[space]
        info = self._wait(partial(self._link.ask, f"STREAM.INFO.{log.stream}"))
        return bool(info["state"]["last_seq"] != log.last)

    def is_part(self, space: str) -> bool:
        return self._logs[space].is_copied_to

    def end_copy(self, space: str) -> None:
        self._wait(self._logs[space].end_copy)

    def close(self) -> None:
        self._link.close()

    def _checkpoint(self, space: str) -> Checkpoint:
        return self._wait(self._logs[space].read_checkpoint)

    def _wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return self._link.insist(work)
        except ForeignMessage as error:
            raise ConfigurationError(f"a stream of {self._link.place}: {error}") from None
        except ApiError as error:
            raise ConfigurationError(f"{self._link.place} cannot be read: {error}") from None


def _ignore_kept(log: SpaceLog, sequence: int, count: int) -> None:
    """Nothing is appended, so nothing is kept."""


async def _times(log: SpaceLog, sequence: int) -> tuple[int, int] | None:
    """The sequence and the time of a message, or of the first one after it that is there."""
    async for message in log.messages(sequence, log.last):
        content = decode_message(message.sequence, message.body)
        if isinstance(content, Ownership):
            return message.sequence, content.at
        entries = [entry for entry, _ in _read(log, message.sequence, content)]
        return message.sequence, entries[-1].at if entries else 0
    return None


async def _entries(log: SpaceLog, first: int) -> list[Entry]:
    """The entries of a page of messages."""
    return [
        entry
        async for number, batch in log.batches(first, min(first + PAGE - 1, log.last))
        for entry, _ in read_batch(log.space, number, batch)
    ]


def _read(log: SpaceLog, sequence: int, batch: Batch) -> Iterator[tuple[Entry, object]]:
    return read_batch(log.space, log.number(sequence), batch)
