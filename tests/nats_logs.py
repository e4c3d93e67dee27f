"""A space's log on NATS that is long at once, as if much had been said there."""

import time

import nats

from meup_agent.gateway import JournalConfig
from meup_agent.gateway.config import NatsConfig
from meup_agent.gateway.journal.nats.journal import NatsJournal
from meup_agent.gateway.journal.nats.records import encode_batch, encode_entry, token_of
from meup_agent.protocol.dialects import decode

UNDER_WAY = 1_000
"""Messages that are on their way at the same time: nobody else writes."""


def _now() -> int:
    return time.time_ns() // 1_000


async def write_log(
    config: NatsConfig, space: str, count: int, *, sender: str = "alice", together: int = 1
) -> None:
    """Let a space's log hold so many more chats.

    Args:
        config: Where; no gateway has the space.
        space: Its name.
        count: So many.
        sender: Who said them.
        together: Those that are in one message of the stream.
    """
    journal = NatsJournal(JournalConfig(nats=config), _now)
    try:
        epoch = (journal.latest(space), journal.epoch(space))[1]
    finally:
        await journal.aclose()
    client = await nats.connect(list(config.servers))
    try:
        stream = client.jetstream(publish_async_max_pending=UNDER_WAY, timeout=60.0)
        for first in range(0, count, together):
            entries = [
                encode_entry(_now(), decode(_chat(epoch, number, sender)), (), ())
                for number in range(first, min(first + together, count))
            ]
            subject = f"{config.prefix}.log.{token_of(space)}"
            await stream.publish_async(subject, encode_batch(epoch, entries))
        await stream.publish_async_completed()
        info = await stream.stream_info(f"{config.prefix}-{token_of(space)}")
        assert info.state.last_seq == epoch + -(-count // together), "all of it was written"
    finally:
        await client.close()


def _chat(epoch: int, number: int, sender: str) -> bytes:
    return (
        b'{"protocol":"meup/v0.1","id":"of-before-%d-%d","from":"%s","kind":"chat",'
        b'"payload":{"message":"%d"}}' % (epoch, number, sender.encode(), number)
    )
