"""A log that is followed while much happens to it, in random orders, and one that is read at once.

Whatever happens on the way: who takes the space over decides from what is in the log then.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.aio.msg import Msg

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.config import NatsConfig
from meup_agent.gateway.journal.nats import follower as nats_follower
from meup_agent.gateway.journal.nats.follower import LogFollower
from meup_agent.gateway.journal.nats.link import Link, NoAnswer, Published
from meup_agent.gateway.journal.nats.log import SpaceLog
from meup_agent.gateway.journal.nats.records import (
    MAX_BATCH,
    Checkpoint,
    Ownership,
    encode_batch,
    encode_entry,
    encode_ownership,
)
from meup_agent.protocol.proposals import ProposalState
from tests.effort import scaled
from tests.gateway.journal.conftest import chat
from tests.spaces import Entry, Fact, ProposalChange, ignore

HISTORIES = int(os.environ.get("MEUP_EXAMPLES") or scaled(400))


class Consumer:
    """Messages of a stream that are handed over by themselves, some of them in vain."""

    def __init__(self, log: "Log", inbox: str, first: int) -> None:
        self.log, self.inbox, self.next, self.count = log, inbox, first, 0

    async def hand_over(self) -> None:
        """Hand over one, or say that there is none."""
        log, then = self.log, self.log.inboxes.get(self.inbox)
        self.next = max(self.next, log.first)
        if self.next > log.last:
            headers = {"Status": "100", "Nats-Last-Consumer": f"{self.count}"}
            message = Msg(cast("Any", None), data=b"", headers=headers)
        else:
            self.count += 1
            reply = f"$JS.ACK.s.c.1.{self.next}.{self.count}.0.0"
            message = Msg(cast("Any", None), reply=reply, data=log.bodies[self.next])
            self.next += 1
        if then is not None and log.random.random() < 0.95:
            await then(message)


class Log:
    """A stream, the facts that were written down beside it, and what its messages say."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.inboxes: dict[str, Callable[[Msg], Coroutine[Any, Any, None]]] = {}
        self.consumers: list[Consumer] = []
        self.on_away: set[Callable[[str], None]] = set()
        self.last_error = ""
        self.base = 0
        self.count = 0
        self.fetched = 0
        self.is_calm = False
        self.clear()

    def clear(self) -> None:
        """Make it anew."""
        self.base += 1_000
        self.first, self.last, self.epoch = 1, 0, 0
        self.bodies: dict[int, bytes] = {}
        self.said: dict[int, list[Entry]] = {}
        self.written = Checkpoint(0, {})
        self.consumers.clear()
        self.own()

    def own(self) -> None:
        self.last += 1
        self.epoch = self.last
        self.count += 1
        self.bodies[self.last] = encode_ownership(Ownership("n", f"{self.count}", "1", 0))

    def say(self) -> None:
        """Append a message with some entries."""
        encoded, self.last = list[bytes](), self.last + 1
        said = self.said[self.last] = list[Entry]()
        for place in range(self.random.randrange(1, 4)):
            self.count += 1
            key = f"grant/{self.random.randrange(4)}"
            value = {"n": self.count} if self.random.random() < 0.7 else None
            facts = (Fact(key, value),) if self.random.random() < 0.5 else ()
            change = ProposalChange(
                "alice", f"{self.count}", ProposalState.PENDING, self.count, begins=True
            )
            envelope = chat(self.count)
            encoded.append(encode_entry(self.count, envelope, facts, (change,)))
            number = self.base + self.last * MAX_BATCH + place
            said.append(Entry(number, "demo", self.count, envelope, facts))
        self.bodies[self.last] = encode_batch(self.epoch, encoded)

    def write(self) -> None:
        """Write down what holds, with a mark."""
        self.count += 1
        self.written = Checkpoint(self.last, self.facts, {"alice": self.count})

    def forget(self) -> None:
        """Forget the oldest of what is written down."""
        if self.first <= self.written.until:
            self.first = self.random.randrange(self.first, self.written.until + 2)

    def lose_end(self) -> None:
        """Go on from an earlier end, as another gateway does."""
        self.last = self.random.randrange(max(self.written.until, self.first - 1), self.last + 1)
        self.said = {at: said for at, said in self.said.items() if at <= self.last}
        self.consumers.clear()
        self.own()

    async def hand_over(self) -> None:
        """Hand some of the messages over that somebody wants to have so."""
        for _ in range(self.random.randrange(12)):
            for each in tuple(self.consumers):
                await each.hand_over()

    def cut(self) -> None:
        """Lose the connection, and have it again."""
        for told in tuple(self.on_away):
            told("")

    @property
    def facts(self) -> dict[str, Any]:
        found = dict[str, Any]()
        for _, said in sorted(self.said.items()):
            for key, value in (fact for entry in said for fact in entry.facts):
                found[key] = value
        return {key: value for key, value in found.items() if value is not None}

    @property
    def entries(self) -> list[Entry]:
        """All that was said, also what it has forgotten."""
        return [entry for _, said in sorted(self.said.items()) for entry in said]

    # --- as its link and its bucket -------------------------------------------------------------

    async def insisted(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        while True:
            try:
                return await work()
            except NoAnswer:
                if not self.is_calm:
                    raise

    async def _pass_time(self) -> None:
        for _ in range(self.random.randrange(3)):
            await asyncio.sleep(0)
        if not self.is_calm and self.random.random() < 0.1:
            raise NoAnswer("asked in vain")

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def client(self) -> "Log":
        return self

    def call(self, then: Callable[..., object], *arguments: object) -> None:
        then(*arguments)

    def new_inbox(self) -> str:
        self.count += 1
        return f"inbox {self.count}"

    async def subscribe(
        self, subject: str, then: Callable[[Msg], Coroutine[Any, Any, None]]
    ) -> AsyncMock:
        await self._pass_time()
        self.inboxes[subject] = then
        return AsyncMock()

    async def ask(self, subject: str, question: Any = None) -> dict[str, Any]:
        await self._pass_time()
        if subject.startswith("CONSUMER.CREATE"):
            asked = question["config"]
            made = Consumer(self, asked["deliver_subject"], asked["opt_start_seq"])
            self.consumers.append(made)
            return {}
        metadata = {"meup.space": "demo", "meup.base": str(self.base)}
        return {
            "config": {"subjects": ["p.log.demo"], "metadata": metadata},
            "state": {"first_seq": self.first, "last_seq": self.last, "bytes": 0},
        }

    async def fetch(
        self, stream: str, first: int, *, count: int, max_bytes: int
    ) -> AsyncGenerator[Published]:
        there = range(max(first, self.first), min(first + count, self.last + 1))
        found = [Published(sequence, self.bodies[sequence]) for sequence in there]
        await self._pass_time()
        self.fetched += len(found)
        for each in found:
            yield each

    async def read_checkpoint(self) -> Checkpoint:
        await self._pass_time()
        return Checkpoint(self.written.until, dict(self.written.facts), dict(self.written.seen))


class Taken:
    """The entries that were taken."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def apply(self, entry: Entry) -> None:
        self.entries.append(entry)


def follower_of(log: Log, patch: pytest.MonkeyPatch) -> LogFollower[Taken]:
    link, config = cast("Link", log), NatsConfig(servers=("x",), prefix="p", replicas=1)
    space_log = SpaceLog(link, config, "demo", lambda: 0, lambda *_: None, ignore)
    patch.setattr(space_log, "read_checkpoint", log.read_checkpoint)
    return LogFollower(link, space_log, Taken)


async def take_over(log: Log, follower: LogFollower[Taken]) -> None:
    log.is_calm = True
    async with follower.turn:
        await follower.log.find()
        follower.log.epoch = log.last
        await follower.finish()
    follower.stop()


async def live(random: Random, patch: pytest.MonkeyPatch) -> None:
    log = Log(random)
    followed, looking = follower_of(log, patch), list[asyncio.Task[bool]]()
    acts = [log.say] * 8 + [log.own, log.write, log.forget, log.lose_end, log.cut]
    for _ in range(random.randrange(60)):
        if random.random() < 0.3:
            looking.append(asyncio.ensure_future(followed.look()))
        for task in random.sample(looking, len(looking)):
            if random.random() < 0.1:
                task.cancel()
        if random.random() < 0.01:
            log.clear()
        random.choice(acts)()
        if random.random() < 0.5:
            await log.hand_over()
        for _ in range(random.randrange(30)):
            await asyncio.sleep(0)
    for task in looking:
        # It may be late for a log of which a part is gone meanwhile.
        with suppress(asyncio.CancelledError, NoAnswer, ConfigurationError):
            await task
    log.own()
    await take_over(log, followed)
    read = follower_of(log, patch)
    await take_over(log, read)
    # What a log has forgotten, who followed it may know still, as its owner does.
    known, entries = followed.fold.entries, log.entries
    assert known == entries[len(entries) - len(known) :]
    assert known[len(known) - len(read.fold.entries) :] == read.fold.entries
    assert followed.known.facts == read.known.facts == log.facts
    assert followed.known.seen == read.known.seen
    assert [*followed.known.decisions.rows] == [entry.seq for entry in known]
    assert followed.log.latest >= read.log.latest
    assert followed.known.reported == read.known.reported == log.last


@pytest.mark.timeout(1_800)  # as long as many histories take
@given(seed=st.integers(0, 2**32))
@settings(max_examples=HISTORIES)
def test_who_has_followed_a_log_knows_what_is_in_it(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nats_follower, "A_TURN", 1)
        patch.setattr(nats_follower, "TAIL_SECONDS", 0)
        patch.setattr(nats_follower, "REFUSED_SECONDS", 0)
        patch.setattr("meup_agent.gateway.journal.nats.log.PAGE", 3)
        patch.setattr("meup_agent.gateway.journal.nats.log.RETRY_SECONDS", 0)
        asyncio.run(live(Random(seed), patch))


async def _read_after_a_while(patch: pytest.MonkeyPatch) -> int:
    """The messages that a takeover reads of a log that was followed."""
    log = Log(Random(1))
    log.is_calm = True
    follower = follower_of(log, patch)
    for _ in range(1_000):
        log.say()
    assert await follower.look()
    assert log.fetched < 1_020  # each once, and the last one of each page again
    assert not await follower.look()
    for _ in range(3):
        log.say()
    log.own()
    log.fetched = 0
    await take_over(log, follower)
    assert len(follower.fold.entries) == len(log.entries)
    return log.fetched


def test_a_takeover_reads_what_came_since() -> None:
    with pytest.MonkeyPatch.context() as patch:
        assert asyncio.run(_read_after_a_while(patch)) == 5  # one of them again
