"""The gateway's part in streams, played by hand over a memory connection."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from meup_agent import Agent, Envelope, Settings, Space
from tests.patience import PATIENCE
from tests.session.gate import AT_ONCE, ME, End, Gate
from tests.wire import StreamInfo, build_close, build_open, decode, kinds, write_frame

GATEWAY = kinds.GATEWAY


def stream_of(owner: str, id: str = "s-1", **more: Any) -> StreamInfo:
    """A stream as the gateway has it."""
    target = {"target": list(more["targets"])} if more.get("targets") else {}
    more["fields"] = {"direction": "upload", **target, **more.get("fields", {})}
    return StreamInfo(id=id, owner=owner, writers=(owner,), created="2026-01-01T00:00:00Z", **more)


async def open_stream(end: End, stream: StreamInfo, request: str, id: str = "") -> None:
    """Answer a request: the stream is open."""
    said, to, about = build_open(stream), (stream.owner,), (request,)
    await end.say(kinds.STREAM_OPEN, said, sender=GATEWAY, id=id, to=to, correlation=about)


async def close_stream(end: End, stream: str, reason: str, by: str = GATEWAY, **more: str) -> None:
    """Close a stream, as a participant or the gateway."""
    await end.say(kinds.STREAM_CLOSE, {**build_close(stream, reason), **more}, sender=by)


async def put(end: End, stream: str, *frames: bytes) -> None:
    """Send frames of a stream."""
    for each in frames:
        await end.raw(write_frame(stream, each))


async def requested(end: End) -> Envelope:
    """The next request for a stream."""
    return await heard(end, kinds.STREAM_REQUEST)


async def refuse(end: End, error: dict[str, Any]) -> None:
    """Refuse the next request for a stream."""
    asked = await requested(end)
    about = (asked.id,)
    await end.say(kinds.SYSTEM_ERROR, error, sender=GATEWAY, to=(ME,), correlation=about)


async def heard(end: End, kind: str) -> Envelope:
    """The next envelope of a kind; frames and others before it are left out."""
    async for frame in end.transport:
        if not frame.startswith(b"#") and (envelope := decode(frame)).kind == kind:
            return envelope
    raise AssertionError("the connection has ended")


async def frames(end: End, count: int) -> list[bytes]:
    """So many frames of streams, as they came; envelopes before them are left out."""
    found: list[bytes] = []
    while len(found) < count:
        frame = await anext(end.transport)
        if frame.startswith(b"#"):
            found.append(frame)
    return found


@asynccontextmanager
async def joined(
    gate: Gate,
    agent: Agent | None = None,
    *present: str,
    streams: tuple[StreamInfo, ...] = (),
    settings: Settings = AT_ONCE,
) -> AsyncGenerator[tuple[Space, End]]:
    """An agent in a space whose gateway is played by hand, with some streams open already."""
    agent, ends = agent or Agent(ME), list[End]()

    async def welcome() -> None:
        ends.append(await welcomed(gate, *present, streams=streams))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(welcome)
            async with agent.join(gate.connector(), token="secret", settings=settings) as space:
                yield space, ends[0]


async def welcomed(gate: Gate, *present: str, streams: tuple[StreamInfo, ...] = ()) -> End:
    """The next connection, welcomed, with these streams open."""
    end = await gate.accept()
    end.gives = {**gate.gives, "active_streams": [each.to_wire() for each in streams]}
    await end.welcome(*present)
    return end
