"""The official SDK's client, talking to a participant: JSON-RPC in and out of envelopes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count

import anyio
from mcp import ClientSession
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from tests.interaction.people import Meeting, Raw, raw
from tests.wire import decode, kinds


@asynccontextmanager
async def mcp_client(meeting: Meeting, name: str, to: str) -> AsyncGenerator[ClientSession]:
    """An MCP client that a participant runs, connected to another participant as its server."""
    to_client, client_reads = anyio.create_memory_object_stream[SessionMessage | Exception](64)
    client_writes, from_client = anyio.create_memory_object_stream[SessionMessage](64)

    async def send(me: Raw) -> None:
        numbers = count(1)
        async for item in from_client:
            payload = item.message.model_dump(mode="json", by_alias=True, exclude_none=True)
            await me.say(kinds.MCP_REQUEST, payload, id=f"mcp-{next(numbers)}", to=(to,))

    async def receive(me: Raw) -> None:
        async for frame in me.transport:
            envelope = decode(frame)
            if envelope.sender == to and envelope.to == (name,):
                message = jsonrpc_message_adapter.validate_python(envelope.payload)
                await to_client.send(SessionMessage(message))

    async with (
        to_client,
        client_reads,
        client_writes,
        from_client,
        raw(meeting, name) as me,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(send, me)
        tasks.start_soon(receive, me)
        async with ClientSession(client_reads, client_writes) as session:
            yield session
        tasks.cancel_scope.cancel()
