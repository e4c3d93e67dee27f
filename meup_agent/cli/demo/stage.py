"""The stage of the scenes: the gateway, the four agents in it, and the timeline."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio
from rich.console import RenderableType

from meup_agent import Agent, Backoff, Chat, Envelope, Rejection, Settings, Space, Withdrawal
from meup_agent.cli.demo.participants import (
    EventLog,
    StoppedHandler,
    StoppedHandlers,
    files_agent,
    proposer_agent,
    reviewer_agent,
)
from meup_agent.cli.demo.workspace import Workspace
from meup_agent.cli.render.output import Output
from meup_agent.cli.reporting_connector import ReportingConnector, format_close
from meup_agent.gateway.embedded import Gateway
from meup_agent.protocol import kinds, payloads
from meup_agent.transport.base import CloseInfo
from meup_agent.transport.loops import background_tasks

SPACE: Final = "demo"

MAY: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    # Any participant may answer a request addressed to it, but a gateway that was started
    # again does not remember the requests: so it is said.
    "files": ({"kind": "mcp/response"},),
    "reviewer": ({"kind": "mcp/request"}, {"kind": "mcp/reject"}, {"kind": "chat"}),
    "proposer": ({"kind": "mcp/proposal"},),
    "auditor": (),
}
"""The participants and their capabilities."""

SETTINGS: Final = Settings(backoff=Backoff(first=0.2, longest=1.0))
"""Short waits between attempts to connect, since here the gateway is never away for long."""

READING_SECONDS: Final = 0.5  # a rest between scenes, for a person who reads along


class Stage:
    """The demo, set up and running; made by :func:`set_up`."""

    proposer: Space  # the scenes speak with its voice
    auditor: Space

    def __init__(self, workspace: Workspace, gateway: Gateway, output: Output) -> None:
        self.workspace = workspace
        self.gateway = gateway
        # Every envelope that the auditor has seen, and that the timeline has shown.
        self.seen = EventLog[Envelope]()
        self.stops = StoppedHandlers()
        self.stops_shown = EventLog[StoppedHandler]()  # those that the timeline has shown
        self.rejections = EventLog[Rejection]()
        self.explanations = EventLog[Chat]()
        self.withdrawals = EventLog[Withdrawal]()
        self.losses = EventLog[tuple[str, CloseInfo]]()
        self._output = output
        self._timeline = output.timeline()
        self._printing = anyio.Lock()

    # --- what scenes ask ---

    def exchange(self, proposal_id: str) -> list[Envelope]:
        """The envelopes that the auditor has seen of a proposal, progress left out.

        What was said again after a reconnect, under the same id, counts once.
        """
        found: dict[str, Envelope] = {}
        for envelope in self.seen.all:
            concerned = envelope.id == proposal_id or any(
                name in found or name == proposal_id for name in envelope.correlation
            )
            if concerned and method_of(envelope) != kinds.PROGRESS:
                found.setdefault(envelope.id, envelope)
        return list(found.values())

    async def saw(self, proposal_id: str, wanted: str) -> Envelope | None:
        """The first envelope of a kind or method about a proposal, once it is on the timeline."""
        return await self.seen.first(
            lambda envelope: (
                wanted in (envelope.kind, method_of(envelope))
                and envelope in self.exchange(proposal_id)
            )
        )

    async def stopped(self, agent: str) -> None:
        """Wait until a stop of one of an agent's handlers is on the timeline."""
        await self.stops_shown.first(lambda stop: stop.agent == agent)

    async def lost(self, agent: str) -> None:
        """Wait until an agent has lost its connection."""
        await self.losses.first(lambda loss: loss[0] == agent)

    # --- what is shown ---

    async def show(self, *lines: RenderableType) -> None:
        """Show something; one at a time, in order."""
        async with self._printing:
            await self._output.show(*lines)

    async def note(self, who: str, noun: str, said: str, *, style: str = "italic") -> None:
        """A line about something that has happened and is no envelope."""
        await self.show(self._timeline.note(who, noun, said, style=style))

    async def rest(self) -> None:
        """Let a person catch up with reading."""
        if self._output.is_terminal:
            await anyio.sleep(READING_SECONDS)

    async def _follow(self) -> None:
        """Show every envelope of the space, in the gateway's order, and take it down."""
        with self.auditor.watch() as envelopes:
            async for envelope in envelopes:
                entry = self._timeline.observe(envelope, anyio.current_time())
                await self.show(self._timeline.line(entry))
                self.seen.add(envelope)

    async def _show_stops(self) -> None:
        """Show each stop behind the envelope that brought it about."""
        shown = 0
        while True:
            stop = await self.stops.next(shown)
            shown += 1
            await self.seen.first(partial(_brought_about, stop))
            await self.note(stop.agent, "stopped", str(stop), style="bold yellow")
            self.stops_shown.add(stop)

    async def _connection(self, name: str, closed: CloseInfo | None) -> None:
        """Show what becomes of an agent's connection, from the first loss on."""
        if closed is not None:
            self.losses.add((name, closed))
            await self.note(name, "lost", format_close(closed), style="bold red")
        elif any(name == who for who, _ in self.losses.all):
            await self.note(name, "back", "connected again", style="bold green")

    # --- setting up ---

    @asynccontextmanager
    async def joined(self) -> AsyncGenerator[None]:
        """All four agents in the space, the auditor first and last."""
        files = files_agent(self.workspace, self.stops)
        reviewer = reviewer_agent(self.stops, self.withdrawals)
        proposer = proposer_agent(self.explanations, self.rejections)
        async with self._join("auditor", Agent("auditor")) as self.auditor:
            async with background_tasks() as tasks:
                tasks.start_soon(self._follow)
                tasks.start_soon(self._show_stops)
                async with self._join("files", files), self._join("reviewer", reviewer):
                    async with self._join("proposer", proposer) as self.proposer:
                        await self._everybody_shown()
                        yield

    async def _everybody_shown(self) -> None:
        """Wait until the timeline has shown the last one's coming."""
        await self.seen.first(
            lambda each: each.kind == kinds.SYSTEM_PRESENCE and "proposer" in str(each.payload)
        )

    def _join(self, name: str, agent: Agent) -> AbstractAsyncContextManager[Space]:
        """Join as ``agent.join(gateway.url, space=…, token=…)`` does, and be told of losses."""
        dial = ReportingConnector(self.gateway.url, SPACE, partial(self._connection, name))
        return agent.join(dial, token=self.gateway.token(name), settings=SETTINGS)


@asynccontextmanager
async def set_up(workspace: Workspace, output: Output) -> AsyncGenerator[Stage]:
    """The gateway on a free port and the four agents in it, for the length of a block."""
    async with Gateway(SPACE, MAY) as gateway:
        stage = Stage(workspace, gateway, output)
        async with stage.joined():
            yield stage


def method_of(envelope: Envelope) -> str:
    """The MCP method of a request; empty for anything else."""
    if envelope.kind != kinds.MCP_REQUEST:
        return ""
    return payloads.read_call(envelope.payload).method


def _brought_about(stop: StoppedHandler, envelope: Envelope) -> bool:
    """True if an envelope is the withdraw or cancel that stopped a handler."""
    is_end = envelope.kind == kinds.MCP_WITHDRAW or method_of(envelope) == kinds.CANCELLED
    return is_end and stop.cause.id in envelope.correlation
