"""A connection that misbehaves as told, the same way each time.

The faults are data (:class:`FaultPlan`); what they do to a row of frames is a function of the plan
(:class:`Lane`); :func:`faulty` and :class:`FaultyConnector` put that around a real transport.
"""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.errors import TransportClosed
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from typing import Self

    from meup_agent.transport.base import CloseInfo, Connector, Transport

SILENCE: Final = 0.02
"""Seconds without a new frame after which frames that are held back go on: an exchange whose next
message answers the one that is held would otherwise stand still for good."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults for the frames of one direction. Frames are counted from 1.

    Attributes:
        drop: The share of frames that get lost, 0 to 1.
        drop_at: The numbers of further frames that get lost.
        duplicate: The share of frames that arrive twice, 0 to 1.
        duplicate_at: The numbers of further frames that arrive twice.
        reorder: How many later frames may overtake a frame; 0 keeps the order. A frame waits for
            them only until a moment of silence (:data:`SILENCE`).
        stall_after: The number of frames after which nothing moves until it is released.
        cut_after: The number of frames after which the connection ends without a close frame, as
            soon as another one would pass; that one and what is held back are lost.
    """

    drop: float = 0.0
    drop_at: frozenset[int] = frozenset()
    duplicate: float = 0.0
    duplicate_at: frozenset[int] = frozenset()
    reorder: int = 0
    stall_after: int | None = None
    cut_after: int | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.drop <= 1 and 0 <= self.duplicate <= 1):
            raise ValueError("drop and duplicate are shares of the frames; give 0 to 1")
        if self.reorder < 0:
            raise ValueError("reorder counts frames; give 0 or more")


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Faults of one connection.

    Attributes:
        seed: Decides which frames the shares hit; the same seed hits the same ones.
        outgoing: Faults of what the wrapped end sends.
        incoming: Faults of what it receives.
    """

    seed: int = 0
    outgoing: Faults = Faults()
    incoming: Faults = Faults()


class Lane:
    """One direction: what comes out for each frame that goes in. No I/O, no clock."""

    def __init__(self, faults: Faults, random: Random) -> None:
        self.count = 0
        """Frames that went in."""
        self._faults = faults
        self._random = random
        self._held: list[tuple[int, int, bytes]] = []

    @property
    def holding(self) -> bool:
        """True if some frames wait for later ones to overtake them."""
        return bool(self._held)

    @property
    def stalls(self) -> bool:
        """True if the next frame must wait for the release."""
        return self._has_passed(self._faults.stall_after)

    @property
    def cuts(self) -> bool:
        """True if the next frame ends the connection."""
        return self._has_passed(self._faults.cut_after)

    def _has_passed(self, number: int | None) -> bool:
        return number is not None and self.count >= number

    def feed(self, frame: bytes) -> list[bytes]:
        """Put one frame in; what comes out now, in this order."""
        self.count += 1
        # Three draws a frame, whatever the plan, so that changing one fault leaves the others be.
        lost = self._random.random() < self._faults.drop
        twice = self._random.random() < self._faults.duplicate
        behind = int(self._random.random() * (self._faults.reorder + 1))
        if not lost and self.count not in self._faults.drop_at:
            copies = 2 if twice or self.count in self._faults.duplicate_at else 1
            self._held += [(self.count + behind, self.count, frame)] * copies
        return self._release(self.count)

    def flush(self) -> list[bytes]:
        """Take out what is held back."""
        return self._release(None)

    def _release(self, up_to: int | None) -> list[bytes]:
        due = [entry for entry in self._held if up_to is None or entry[0] <= up_to]
        self._held = [entry for entry in self._held if entry not in due]
        return [frame for _, _, frame in sorted(due)]


class FaultyTransport:
    """A transport whose frames pass two lanes; made by :func:`faulty`."""

    def __init__(self, inner: Transport, plan: FaultPlan) -> None:
        self.stalled = anyio.Event()
        """Set when the first frame is held up by ``stall_after``."""
        self._inner = inner
        self._released = anyio.Event()
        self._outgoing = Lane(plan.outgoing, Random(f"{plan.seed} outgoing"))
        self._incoming = Lane(plan.incoming, Random(f"{plan.seed} incoming"))
        self._turn = anyio.Lock()
        self._held = anyio.Event()
        # Bounded by the plan: one frame sets free at most what waited for it, and itself.
        self._ready: deque[bytes] = deque()
        self._taken: bytes | None = None

    @property
    def closed(self) -> CloseInfo | None:
        """The connection's ending; ``None`` while it is open or still closing."""
        return self._inner.closed

    @property
    def response_headers(self) -> Mapping[str, str]:
        """The answer of the other end to the handshake, by names in lower case."""
        return self._inner.response_headers

    def release(self) -> None:
        """Let go on what ``stall_after`` holds up, in both directions and for good."""
        self._released.set()

    async def send(self, frame: bytes) -> None:
        """Send one message, or do to it what the plan says.

        Raises:
            TransportClosed: The connection has ended, perhaps by the plan.
        """
        async with self._turn:
            await self._wait_if_stalled(self._outgoing)
            if self._outgoing.cuts:
                await self._inner.abort()
            if self._inner.closed is not None:
                raise self._inner.closed.error()
            for passing in self._outgoing.feed(frame):
                await self._inner.send(passing)
            if self._outgoing.holding:
                self._held.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._ready:
            if self._taken is None and not await self._take():
                self._ready.extend(self._incoming.flush())
                if not self._ready and self._inner.closed is not None:
                    raise StopAsyncIteration
                continue
            await self._wait_if_stalled(self._incoming)
            if self._incoming.cuts:
                await self._inner.abort()
                self._incoming.flush()
                raise StopAsyncIteration
            frame, self._taken = self._taken, None
            if frame is not None:
                self._ready.extend(self._incoming.feed(frame))
        return self._ready.popleft()

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection; what is held back or stalled is lost."""
        await self._inner.aclose(code, reason)
        self._released.set()

    async def abort(self) -> None:
        """End the connection at once, without a close frame."""
        await self._inner.abort()
        self._released.set()

    async def flush_after_silence(self) -> None:
        """Send on what is held back whenever nothing was sent for :data:`SILENCE`; never ends."""
        while True:
            await self._held.wait()
            seen = -1
            while seen != self._outgoing.count:
                seen = self._outgoing.count
                await anyio.sleep(SILENCE)
            async with self._turn:
                self._held = anyio.Event()
                with suppress(TransportClosed):
                    for frame in self._outgoing.flush():
                        await self._inner.send(frame)

    async def _take(self) -> bool:
        """Wait for a frame; none comes at the end, or in a silence while some are held back."""
        with anyio.move_on_after(SILENCE if self._incoming.holding else None):
            with suppress(StopAsyncIteration):
                self._taken = await anext(self._inner)
        return self._taken is not None

    async def _wait_if_stalled(self, lane: Lane) -> None:
        if lane.stalls and not self._released.is_set():
            self.stalled.set()
            await self._released.wait()


@asynccontextmanager
async def faulty(inner: Transport, plan: FaultPlan) -> AsyncGenerator[FaultyTransport]:
    """Put faults around one end of an open connection, which leaving the block does not close."""
    transport = FaultyTransport(inner, plan)
    async with background_tasks() as tasks:
        if plan.outgoing.reorder:
            tasks.start_soon(transport.flush_after_silence)
        yield transport


class FaultyConnector:
    """A connector whose first connections misbehave.

    Attributes:
        dialled: How many connections were opened so far.
        current: The newest of them; ``None`` before the first.
    """

    def __init__(self, connector: Connector, plans: Sequence[FaultPlan]) -> None:
        """Wrap a connector.

        Args:
            connector: The connector that really dials.
            plans: The first connection has the first plan, and so on; those after the last plan
                have no faults, so that what is tested comes to an end.
        """
        self.dialled = 0
        self.current: FaultyTransport | None = None
        self._connector = connector
        self._plans = tuple(plans)

    @asynccontextmanager
    async def __call__(self, headers: Mapping[str, str]) -> AsyncGenerator[FaultyTransport]:
        """Open the next connection; raises what the wrapped connector does."""
        async with self._connector(headers) as inner:
            number = self.dialled
            self.dialled += 1
            plan = self._plans[number] if number < len(self._plans) else FaultPlan()
            async with faulty(inner, plan) as transport:
                self.current = transport
                yield transport
