"""The members of a cluster's space: agents that work, and what each read on its connections."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
from anyio.abc import TaskGroup

from meup_agent import Agent, Backoff, Fulfillment, Proposal, Rejection, Settings, Space
from meup_agent.cli.cluster.programs import MAX_PAYLOAD, SPACE, Cluster, ClusterProgram
from meup_agent.errors import InvalidEnvelope, MeupError
from meup_agent.processes.guarded import read_from, read_lines
from meup_agent.protocol.dialects import decode
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.membership import read_seq
from meup_agent.transport.base import CloseInfo, Connector, Transport
from meup_agent.transport.websocket import websocket_connector

REVIEWER: Final = "reviewer"
"""Fulfills what the others propose."""

COUNTER: Final = "counter"
"""Has the tool that they propose to call."""

SETTINGS: Final = Settings(
    backoff=Backoff(first=0.1, longest=0.5, stable=30.0), first_welcome=30.0, ttl=300.0
)
"""Short pauses: another gateway is there at once."""

PING_SECONDS: Final = 1.0
"""Between two pings, and for an answer: a gateway that hangs is left soon."""

INTERNAL_ERROR: Final = 1011
"""Close code of an end whose pings are not answered."""

CHATS_PER_CALL: Final = 5
"""Chats that an agent says between two of its proposals."""


ANSWERS: Final = frozenset({kinds.SYSTEM_WELCOME, kinds.PROPOSALS})
"""Kinds that a gateway sends to one member; they carry the number of its last entry for all."""


class ReadEntry(NamedTuple):
    """A numbered envelope, as a member read it, or as the log has it."""

    seq: int
    id: str
    sender: str
    kind: str
    about: tuple[str, ...] = ()  # the ids of what it refers to; of the log alone


class Record:
    """The envelopes that one member sent, and those that it read.

    Attributes:
        name: Its participant's name.
        said: When it said what, by the envelope's id.
        accepted: When it read that each was accepted.
        heard: The numbered envelopes, in the order in which it read them.
        refused: The ids of what a gateway refused.
        waiting: The ids of what was said, and not accepted yet.
        gaps: Times that a gateway said that it cannot hand over all that was missed.
        connections: Connections that it has had.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.said = dict[str, float]()
        self.accepted = dict[str, float]()
        self.heard = list[ReadEntry]()
        self.refused = list[str]()
        self.waiting = set[str]()
        self.gaps = self.connections = 0

    def say(self, envelope_id: str, at: float) -> None:
        """Take down something that was said."""
        self.said[envelope_id] = at
        if envelope_id not in self.accepted:
            self.waiting.add(envelope_id)

    def accept(self, envelope_id: str) -> None:
        """Take down that something of its own was accepted."""
        self.accepted.setdefault(envelope_id, anyio.current_time())
        self.waiting.discard(envelope_id)

    def read(self, frame: bytes) -> None:
        """Take down a frame that came."""
        try:
            envelope = decode(frame)
        except InvalidEnvelope:
            return  # of a stream, or what no gateway should send: the agent counts that
        if envelope.kind == kinds.SYSTEM_WELCOME:
            self.gaps += envelope.payload_object.get("gap") is True
        elif envelope.kind == kinds.SYSTEM_ERROR:
            self.refused.extend(envelope.correlation)
        seq = read_seq(frame)
        if seq is None or envelope.kind in ANSWERS:
            return
        self.heard.append(ReadEntry(seq, envelope.id, envelope.sender, envelope.kind))
        if envelope.sender == self.name:
            self.accept(envelope.id)


class RecordedTransport:
    """A connection, with a record of what came."""

    def __init__(self, transport: Transport, record: Record) -> None:
        self._transport = transport
        self._record = record
        self.response_headers = transport.response_headers
        self.send, self.aclose, self.abort = transport.send, transport.aclose, transport.abort

    def __aiter__(self) -> AsyncIterator[bytes]:
        """See :meth:`~meup_agent.transport.base.Transport.__aiter__`."""
        return self

    async def __anext__(self) -> bytes:
        """See :meth:`~meup_agent.transport.base.Transport.__anext__`."""
        frame = await self._transport.__anext__()
        self._record.read(frame)
        return frame

    @property
    def closed(self) -> CloseInfo | None:
        """See :attr:`~meup_agent.transport.base.Transport.closed`."""
        return self._transport.closed


class ClusterConnector:
    """Dials a gateway of a cluster, and the next one where it is not there or says nothing.

    A connection that another gateway's end has ended is dialled again at the same.

    Args:
        urls: Their addresses.
        first: The place of the one that is dialled first.
        record: Where what comes is taken down.
        space: The space.
    """

    def __init__(self, urls: Sequence[str], first: int, record: Record, space: str = SPACE) -> None:
        self.where = ", ".join(urls)
        self._connectors: list[Connector] = [
            websocket_connector(
                url,
                space=space,
                handshake_timeout=3.0,
                close_timeout=0.5,
                ping_interval=PING_SECONDS,
                ping_deadline=2 * PING_SECONDS,
            )
            for url in urls
        ]
        self._at = first
        self._record = record

    @asynccontextmanager
    async def __call__(self, headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
        """Open a connection; leaving the block closes it."""
        connector = self._connectors[self._at % len(self._connectors)]
        reached: Transport | None = None
        try:
            async with connector(headers) as reached:
                self._record.connections += 1
                yield RecordedTransport(reached, self._record)
        finally:
            ended = None if reached is None else reached.closed
            is_silent = ended is not None and ended.local and ended.code == INTERNAL_ERROR
            if reached is None or is_silent:
                self._at += 1


class Calls:
    """Calls that are proposed, approved and carried out, and how often each was."""

    def __init__(self) -> None:
        self.proposed = 0
        self.answered: list[int] = []
        self.rejected = 0
        self.failed: list[str] = []
        self.carried_out: dict[int, int] = {}

    @property
    def open(self) -> int:
        """Those whose proposers wait."""
        return self.proposed - len(self.answered) - self.rejected - len(self.failed)

    def counter(self) -> Agent:
        """The agent with the tool."""
        agent = Agent(COUNTER)

        @agent.tool
        async def count(number: int) -> int:
            """Count a number."""
            self.carried_out[number] = self.carried_out.get(number, 0) + 1
            return number

        return agent

    def reviewer(self) -> Agent:
        """The agent that fulfills each proposal."""
        agent = Agent(REVIEWER)

        @agent.on_proposal(tool="count")
        async def fulfill(proposal: Proposal) -> None:
            await proposal.fulfill()

        return agent

    async def propose(self, space: Space) -> None:
        """Propose a call, and wait for what comes of it."""
        self.proposed += 1
        number = self.proposed
        try:
            async with space.propose(COUNTER, "count", {"number": number}, to=REVIEWER) as proposal:
                outcome = await proposal.outcome()
        except MeupError as error:
            self.failed.append(f"{number}: {error}")
            return
        if isinstance(outcome, Fulfillment):
            self.answered.append(number)
        elif isinstance(outcome, Rejection):
            self.rejected += 1  # it has more to do than it takes: all come back at once
        else:
            self.failed.append(f"{number}: {outcome}")


class AgentGroup:
    """The agents of a space: one that decides, one with a tool, and some that talk and propose.

    Args:
        cluster: Where they are.
        pace: Seconds between two things that each of them says.
    """

    def __init__(self, cluster: Cluster, pace: float) -> None:
        self.calls = Calls()
        self.records: dict[str, Record] = {}
        self.pace = pace
        self.is_working = True
        self._cluster = cluster
        self._joined = 0

    async def join(self, tasks: TaskGroup, names: Sequence[str]) -> None:
        """Have participants join, and work from then on, as tasks of a group."""
        for name in names:
            self.records[name] = Record(name)
            await tasks.start(self._take_part, name)

    async def _take_part(self, name: str, *, task_status: Any) -> None:
        agent = Agent(name)
        if name == REVIEWER:
            agent = self.calls.reviewer()
        elif name == COUNTER:
            agent = self.calls.counter()
        record = self.records[name]
        connector = ClusterConnector(self._cluster.urls, self._joined, record)
        self._joined += 1
        async with agent.join(
            connector,
            space=SPACE,
            token=self._cluster.tokens[name],
            participant=name,
            settings=SETTINGS,
            grace=0.0,
        ) as space:
            task_status.started()
            if name not in (REVIEWER, COUNTER):
                await self._talk(space, record)
            await anyio.sleep_forever()

    async def _talk(self, space: Space, record: Record) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(sys.maxsize):
                if not self.is_working:
                    break
                await say(space, record, f"{record.name} says {number}")
                if number % CHATS_PER_CALL == 1:
                    tasks.start_soon(self.calls.propose, space)
                await anyio.sleep(self.pace)


async def say(space: Space, record: Record, text: str) -> None:
    """Say something, and take down when."""
    said = anyio.current_time()
    record.say(await space.chat(text), said)


# --- an agent in a process of its own, to be killed ---

SAID: Final = b"said "
"""Begins a line with the id of what the agent has said; any other line is a frame that it read."""


class AgentProcess:
    """An agent in a process of its own; what it said and read comes over its standard output.

    Args:
        cluster: Where it is.
        name: Its participant's name.
        record: Where that is taken down.
    """

    def __init__(self, cluster: Cluster, name: str, record: Record, pace: float) -> None:
        command = (sys.executable, "-m", __name__)
        variables = {
            "MEUP_URL": " ".join(cluster.urls),
            "MEUP_TOKEN": cluster.tokens[name],
            "MEUP_PARTICIPANT": name,
            "MEUP_SPACE": SPACE,
            "MEUP_PACE": str(pace),
        }
        self.record = record
        self.program = ClusterProgram(
            name, command, cluster.folder, variables=variables, output=True
        )

    async def run(self, *, task_status: Any) -> None:
        """Start it, and read what it writes until its end; then nothing of it is left."""
        try:
            await self.program.start()
            stream = self.program.process.guard.stdout
            assert stream is not None, "it has a pipe"
            is_told = False
            async for line in read_lines(partial(read_from, stream.fileno()), MAX_PAYLOAD):
                if line.startswith(SAID):
                    self.record.say(line.removeprefix(SAID).decode(), anyio.current_time())
                else:
                    self.record.read(line)
                if not is_told and self.record.accepted:
                    is_told = True
                    task_status.started()
            if not is_told:
                raise self.program.failure()
        finally:
            self.program.close()


class _PrintedRecord(Record):
    """A record that is written to standard output: each frame, which has no line breaks."""

    def read(self, frame: bytes) -> None:
        _print(frame)


def _print(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.flush()


async def _run_agent() -> None:
    name = os.environ["MEUP_PARTICIPANT"]
    record = _PrintedRecord(name)
    connector = ClusterConnector(os.environ["MEUP_URL"].split(), 0, record)
    async with Agent(name).join(
        connector,
        space=SPACE,
        token=os.environ["MEUP_TOKEN"],
        participant=name,
        settings=SETTINGS,
        grace=0.0,
    ) as space:
        for number in range(sys.maxsize):
            _print(SAID + (await space.chat(f"{name} says {number}")).encode())
            await anyio.sleep(float(os.environ["MEUP_PACE"]))


if __name__ == "__main__":
    anyio.run(_run_agent)
