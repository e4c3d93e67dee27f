"""Owners of one log that lose answers, wake late and replace each other, in random orders.

The log is a list; the fence is the real one. Whatever happens on the way: what an owner is told is
kept is in the log, at that place; nothing is in it twice; nothing of an owner comes after the next
one's beginning; and an owner that nobody replaced loses nothing.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from random import Random
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meup_agent.gateway import JournalConfig
from meup_agent.gateway.config import NatsConfig
from meup_agent.gateway.journal.nats import log as nats_log
from meup_agent.gateway.journal.nats import records
from meup_agent.gateway.journal.nats.link import ApiError, Link, NoAnswer, Published
from meup_agent.gateway.journal.nats.log import SpaceLog, Waiting
from meup_agent.gateway.journal.nats.records import (
    Batch,
    Ownership,
    decode_message,
    encode_entry,
    read_batch,
)
from tests.effort import scaled
from tests.gateway.journal.conftest import chat

OWNERS = 3
MESSAGES = 12
HISTORIES = int(os.environ.get("MEUP_EXAMPLES") or scaled(400))


class Stream:
    """A stream, and what is still on its way to it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.late: list[tuple[bytes, int]] = []

    def append(self, body: bytes, expected: int) -> bool:
        if expected != len(self.bodies):
            return False
        self.bodies.append(body)
        return True


T = TypeVar("T")


class FaultyLink:
    """A way to the stream on which anything may be late or get lost, until it is mended."""

    max_payload = 1_000_000
    place = "the list"

    def __init__(self, stream: Stream, random: Random) -> None:
        self.stream = stream
        self.random = random
        self.is_mended = False

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    @property
    def is_usable(self) -> bool:
        return self.random.random() < 0.5

    async def publisher(self) -> "FaultyLink":
        return self

    def call(self, then: Callable[[], None]) -> None:
        then()

    async def _pass_time(self) -> None:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        late = self.stream.late
        while late and (self.is_mended or self.random.random() < 0.3):
            self.stream.append(*late.pop(self.random.randrange(len(late))))

    async def publish(self, stream: str, subject: str, body: bytes, expected: int) -> int:
        await self._pass_time()
        fate = "kept" if self.is_mended else self.random.choice(["kept", "quiet", "late", "lost"])
        if fate == "late":
            self.stream.late.append((body, expected))
        elif fate != "lost":
            is_kept = self.stream.append(body, expected)
            if fate == "kept":
                if not is_kept:
                    raise ApiError(records.WRONG_LAST_SEQUENCE, "wrong last sequence")
                return len(self.stream.bodies)
        await self._pass_time()
        raise NoAnswer(fate)

    async def ask(self, subject: str, question: object = None) -> dict[str, Any]:
        await self._pass_time()
        if not self.is_mended and self.random.random() < 0.3:
            raise NoAnswer("asked in vain")
        config = {"subjects": ["p.log.demo"], "metadata": {"meup.space": "demo", "meup.base": "0"}}
        return {
            "config": config,
            "state": {"first_seq": 1, "last_seq": len(self.stream.bodies), "bytes": 0},
        }

    async def fetch(
        self, stream: str, first: int, *, count: int, max_bytes: int
    ) -> AsyncGenerator[Published]:
        await self._pass_time()
        for sequence in range(first, min(first + count, len(self.stream.bodies) + 1)):
            yield Published(sequence, self.stream.bodies[sequence - 1])


class Owner:
    """A gateway that owns the log, or believes so."""

    def __init__(self, name: str, stream: Stream, random: Random) -> None:
        self.link = FaultyLink(stream, random)
        self.name = name
        self.said: list[str] = []
        self.kept: list[tuple[int, int]] = []  # the sequence of a message, and its entries
        self.lost = ""
        config = NatsConfig(servers=("x",), prefix="p", replicas=1)
        self.log = SpaceLog(
            cast("Link", self.link),
            config,
            "demo",
            lambda: 0,
            lambda _, sequence, count: self.kept.append((sequence, count)),
            lambda sentence: setattr(self, "lost", sentence),
        )

    async def open(self) -> None:
        await self.log.open(JournalConfig(), Ownership(self.name, self.name, "1", 0))
        self.log.begin()

    def say(self, number: int) -> None:
        name = f"{self.name}-{number}"
        self.said.append(name)
        encoded = encode_entry(0, chat(number, message=name), (), ())
        self.log.put([Waiting(encoded, len(encoded))])


def contents(stream: Stream) -> list[tuple[str, int, list[str]]]:
    """Of each message: who began with it, or its epoch, and what it says."""
    found: list[tuple[str, int, list[str]]] = []
    for sequence, body in enumerate(stream.bodies, 1):
        content = decode_message(sequence, body)
        if isinstance(content, Batch):
            entries = read_batch("demo", 0, content)
            said = [entry.envelope.payload_object["message"] for entry, _ in entries]
            found.append(("", content.epoch, said))
        else:
            found.append((content.node, sequence, []))
    return found


async def live(random: Random) -> None:
    stream = Stream()
    owners: list[Owner] = []
    for index in range(random.randrange(1, OWNERS + 1)):
        owner = Owner(f"owner{index}", stream, random)
        owners.append(owner)
        await owner.open()
        for number in range(random.randrange(MESSAGES)):
            random.choice(owners).say(number)
            for _ in range(random.randrange(12)):
                await asyncio.sleep(0)
    for owner in owners:
        owner.link.is_mended = True
    try:
        while not all(owner.lost or not owner.log.waiting for owner in owners):  # noqa: ASYNC110
            await asyncio.sleep(0)
    finally:
        for owner in owners:
            owner.log.stop()
    check(stream, owners)


def check(stream: Stream, owners: list[Owner]) -> None:
    found = contents(stream)
    # Nobody says anything that is not under its own epoch, and the last one began last.
    node, epoch, by_owner = "", 0, dict[str, list[str]]()
    for sequence, (begins, of_epoch, said) in enumerate(found, 1):
        if begins:
            node, epoch = begins, sequence
        else:
            assert of_epoch == epoch
            assert all(each.startswith(f"{node}-") for each in said)
            by_owner.setdefault(node, []).extend(said)
    for owner in owners:
        there = by_owner.get(owner.name, [])
        assert there == owner.said[: len(there)]  # in order, once, and none left out
        told = [each for sequence, _ in owner.kept for each in found[sequence - 1][2]]
        assert told == there[: len(told)]
        assert all(len(found[sequence - 1][2]) == count for sequence, count in owner.kept)
        if not owner.lost:
            assert told == there == owner.said
    assert not owners[-1].lost


@pytest.mark.timeout(1_800)  # as long as many histories take
@given(seed=st.integers(0, 2**32))
@settings(max_examples=HISTORIES)
def test_what_is_told_as_kept_is_in_the_log_once(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nats_log, "RETRY_SECONDS", 0)
        patch.setattr(nats_log, "WATCH_SECONDS", 0)
        asyncio.run(live(Random(seed)))
