"""Checks the log of each member of a cluster against the stream itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

import anyio
import anyio.to_thread

from meup_agent.cli.cluster.members import REVIEWER, AgentGroup, Calls, ReadEntry, Record
from meup_agent.cli.cluster.programs import PREFIX, SPACE
from meup_agent.gateway.config import NatsConfig
from meup_agent.gateway.journal.nats.link import ApiError, Link, NoAnswer
from meup_agent.gateway.journal.nats.log import SpaceLog
from meup_agent.gateway.journal.nats.records import (
    ForeignMessage,
    Ownership,
    decode_message,
    read_batch,
)
from meup_agent.protocol.wire import kinds

T = TypeVar("T")


class LogOwner(NamedTuple):
    """A gateway that began to own the space."""

    sequence: int
    node: str


class LogReader:
    """Reads the stream of a space, each message of it, and owns nothing.

    Args:
        urls: The addresses of the servers.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        config = NatsConfig(servers=tuple(urls), prefix=PREFIX)
        self._link = Link(config)
        self._log = SpaceLog(self._link, config, SPACE)
        self._at = 0
        self.entries: list[ReadEntry] = []
        self.owners: list[LogOwner] = []
        self.foreign: list[str] = []  # what no owner may have written

    async def open(self) -> None:
        """Connect."""
        await anyio.to_thread.run_sync(self._link.open)

    def close(self) -> None:
        self._link.close()

    async def leader(self) -> str:
        """The name of the server that leads the stream; empty: none does."""
        info = await self._insist(self._info)
        return str(info.get("cluster", {}).get("leader", ""))

    async def owner(self) -> str:
        """The name of the gateway that owns the space, as soon as one does."""
        await self.read()
        while not self.owners:
            await anyio.sleep(0.05)
            await self.read()
        return self.owners[-1].node

    async def read(self) -> None:
        """Read what has come since the last time."""
        await self._insist(self._read)

    async def _insist(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await anyio.to_thread.run_sync(self._link.insist, work)

    async def _info(self) -> dict[str, Any]:
        try:
            return await self._log.ask("INFO")
        except ApiError as error:
            # A cluster that has no leader for the moment says no; that passes.
            raise NoAnswer(str(error)) from None

    async def _read(self) -> None:
        log = self._log
        info = await self._info()
        log.base = int(info["config"]["metadata"]["meup.base"])
        async for message in log.messages(self._at + 1, info["state"]["last_seq"]):
            self._take(message.sequence, message.body)
            self._at = message.sequence

    def _take(self, sequence: int, body: bytes) -> None:
        try:
            content = decode_message(sequence, body)
        except ForeignMessage as error:
            self.foreign.append(str(error))
            return
        if isinstance(content, Ownership):
            self.owners.append(LogOwner(sequence, content.node))
            return
        if not self.owners or content.epoch != self.owners[-1].sequence:
            self.foreign.append(f"message {sequence} is of a gateway that is no owner any more")
        for entry, _ in read_batch(SPACE, self._log.number(sequence), content):
            envelope = entry.envelope
            self.entries.append(
                ReadEntry(
                    entry.seq, envelope.id, envelope.sender, envelope.kind, envelope.correlation
                )
            )


class Stall(NamedTuple):
    """The stall that one fault caused, in seconds."""

    cause: str
    pause: float  # in which nothing of anybody was accepted
    longest: float  # that one chat waited


class NoProgress(Exception):
    """Something does not come; says what, in a sentence."""


class RunChecker:
    """The records of a run of agents, checked against the stream at its end.

    Args:
        reader: Reads the stream.
        agents: The agents.
    """

    def __init__(self, reader: LogReader, agents: AgentGroup) -> None:
        self.reader = reader
        self.agents = agents
        self.others: list[Record] = []  # of agents in processes of their own
        self.stalls: list[Stall] = []

    @property
    def records(self) -> list[Record]:
        return [*self.agents.records.values(), *self.others]

    @property
    def accepted(self) -> int:
        """The number of chats that were accepted."""
        return sum(len(each.said) - len(each.waiting) for each in self.records)

    async def works(self, count: int, seconds: float) -> None:
        """Wait until so many more chats are accepted.

        Raises:
            NoProgress: They are not within so many seconds.
        """
        until = self.accepted + count
        await _until(lambda: self.accepted >= until, "nothing is accepted any more", seconds)

    async def goes_on(self, cause: str, since: float, seconds: float) -> Stall:
        """Wait until all is accepted that waits now, and something more, and note the stall.

        Raises:
            NoProgress: It is not within so many seconds.
        """
        waiting = {each.name: set(each.waiting) for each in self.agents.records.values()}
        until = self.accepted + 1

        def goes_on() -> bool:
            return self.accepted >= until and not any(
                waiting[name] & record.waiting for name, record in self.agents.records.items()
            )

        await _until(goes_on, f"{cause}: what was said before is not accepted", seconds)
        waits = [
            (moment, moment - record.said[id_])
            for record in self.records
            for id_, moment in record.accepted.items()
            if moment >= since and id_ in record.said
        ]
        moments = sorted(moment for moment, _ in waits)
        pauses = (after - before for before, after in pairwise([since, *moments]))
        stall = Stall(cause, max(pauses), max(wait for _, wait in waits))
        self.stalls.append(stall)
        return stall

    async def settle(self, seconds: float) -> CheckResult:
        """Have the agents rest, read the stream when nothing is on its way, and compare.

        Raises:
            NoProgress: Something still is after so many seconds.
        """
        agents = self.agents
        agents.is_working = False
        records = agents.records.values()
        await _until(
            lambda: not agents.calls.open and not any(each.waiting for each in records),
            "some of what was said is not accepted, or some calls are not answered",
            seconds,
        )
        await self.reader.read()
        last = self.reader.entries[-1].seq
        await _until(
            lambda: all(each.heard[-1].seq >= last for each in records),
            "some agents do not read what the stream has",
            seconds,
        )
        await self.reader.read()
        return check_logs(self.reader, self.records, agents.calls)


async def _until(condition: Callable[[], bool], otherwise: str, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        while not condition():  # noqa: ASYNC110 - many tasks bring it about
            await anyio.sleep(0.02)
        return
    raise NoProgress(otherwise)


MISTAKES: Final = (
    "lost",
    "twice",
    "out of order",
    "fulfilled twice",
    "refused and accepted",
    "read, not in the stream",
    "by a former owner",
    "carried out twice",
    "calls without an end",
)
"""Their kinds."""

Mistake = tuple[str, str]
"""A kind, and the sentence."""


class CheckResult(NamedTuple):
    """The result of the check: counts, and the mistakes, by the name of their kind."""

    said: int
    accepted: int
    entries: int
    seen: list[int]  # entries, by each member
    mistakes: dict[str, list[str]]

    @property
    def is_right(self) -> bool:
        return not any(self.mistakes.values())


def check_logs(reader: LogReader, records: Sequence[Record], calls: Calls) -> CheckResult:
    """Compare the stream with what each member said and read.

    Every member has read to the end of the stream, or has ended.
    """
    mistakes = {kind: list[str]() for kind in MISTAKES}
    for kind, sentence in _find_mistakes(reader, records, calls):
        mistakes[kind].append(sentence)
    return CheckResult(
        sum(len(each.said) for each in records),
        sum(len(each.said.keys() & each.accepted) for each in records),
        len(reader.entries),
        [len(each.heard) for each in records],
        mistakes,
    )


def _find_mistakes(reader: LogReader, records: Sequence[Record], calls: Calls) -> Iterator[Mistake]:
    log = reader.entries
    yield from (("by a former owner", each) for each in reader.foreign)
    times = Counter((each.sender, each.id) for each in log)
    place = {each.seq: at for at, each in enumerate(log)}
    if [each.seq for each in log] != sorted(place):
        yield "out of order", "the numbers of the stream do not grow"
    for record in records:
        there = [each.id for each in log if each.sender == record.name]
        yield from _check_said(record, times, there)
        yield from _check_heard(record, log, place)
    yield from _check_calls(log, calls)


def _check_said(
    record: Record, times: Counter[tuple[str, str]], there: list[str]
) -> Iterator[Mistake]:
    for id_ in record.said:
        count = times[record.name, id_]
        if id_ in record.accepted and not count:
            yield "lost", f"{id_} of {record.name}, which was accepted"
        if count > 1:
            yield "twice", f"{id_} of {record.name} is in the stream {count} times"
    if [each for each in there if each in record.said] != [
        each for each in record.said if times[record.name, each]
    ]:
        yield "out of order", f"{record.name} said it in another order"
    for id_ in record.refused:
        if times[record.name, id_]:
            yield "refused and accepted", f"{id_} of {record.name}"


def _check_heard(record: Record, log: list[ReadEntry], place: dict[int, int]) -> Iterator[Mistake]:
    heard = record.heard
    if record.gaps:
        yield "lost", f"{record.name} was told of {record.gaps} gaps"
    if not heard:
        return
    numbers = [each.seq for each in heard]
    for before, after in pairwise(numbers):
        if before == after:
            yield "twice", f"{record.name} read {after} twice"
        elif before > after:
            yield "out of order", f"{record.name} read {after} after {before}"
    different = "read, not in the stream"
    begin = place.get(numbers[0])
    if begin is None:
        yield different, f"{record.name} read {numbers[0]}, which is not in the stream"
        return
    wanted = log[begin : place.get(numbers[-1], len(log) - 1) + 1]
    missing = {each.seq for each in wanted} - set(numbers)
    for number in sorted(missing):
        yield "lost", f"{number}, which {record.name} did not read"
    if not missing and [each[:4] for each in wanted] != [each[:4] for each in heard]:
        yield different, f"what {record.name} read is not what the stream has"


def _check_calls(log: list[ReadEntry], calls: Calls) -> Iterator[Mistake]:
    claims = Counter(
        about
        for each in log
        if each.sender == REVIEWER and each.kind == kinds.MCP_REQUEST
        for about in each.about
    )
    yield from (("fulfilled twice", id_) for id_, count in claims.items() if count > 1)
    for number, count in calls.carried_out.items():
        if count > 1:
            yield "carried out twice", f"call {number} was carried out {count} times"
    for failed in calls.failed:
        yield "calls without an end", failed
    if calls.open:
        yield "calls without an end", f"{calls.open} calls are still waited for"
