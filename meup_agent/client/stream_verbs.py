"""Verbs for streams: open one, see those that are open, read them, write in those of others."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from meup_agent.client.outbound import names, pass_whole, shown
from meup_agent.client.streams import OPEN_SECONDS, reading, writing, writing_in
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.streams import build_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from meup_agent.client.outbound import Outbound
    from meup_agent.client.streams import StreamReader, StreamWriter
    from meup_agent.protocol.payloads import JsonObject
    from meup_agent.protocol.streams import StreamInfo
    from meup_agent.session import Session


class StreamVerbs:
    """Streams of a space; :class:`meup_agent.Space` has them."""

    _session: Session
    _outbound: Outbound | None

    @property
    def streams(self) -> tuple[StreamInfo, ...]:
        """The streams that are open, ours included, oldest first."""
        return self._session.table.streams.streams

    def stream(
        self,
        *,
        to: str | Iterable[str] = (),
        about: str | Iterable[str] = (),
        format: str | None = None,
        content_type: str | None = None,
        description: str | None = None,
        metadata: dict[str, Any] | None = None,
        timeout: float | None = OPEN_SECONDS,
    ) -> AbstractAsyncContextManager[StreamWriter]:
        """Open a stream to other participants, for the length of a block.

        It ends with the block: ``complete``; where the block is cancelled, ``cancelled`` with the
        reason; where it raises, ``error``.

        Args:
            to: The participants that get its frames; empty: every member.
            about: The ids of the messages that it is about, such as a request.
            format: The form of its frames, for example ``jsonl``.
            content_type: Their media type, for example ``text/plain``.
            description: Its purpose, for people.
            metadata: More about it, as JSON values.
            timeout: Seconds to wait for the gateway; ``None``: as long as it takes.

        Returns:
            An async context manager that gives a :class:`StreamWriter`.

        Raises:
            Refused: The gateway did not open it, for example ``target_not_found``.
            RequestTimeout: The gateway did not answer in time.
            NotSent: It was not requested: the gateway's dialect has no streams, or the connection
                has ended for good.
        """
        payload = build_request(
            targets=names(to),
            description=description,
            format=format,
            content_type=content_type,
            metadata=metadata,
        )
        return self._stream(payload, names(about), timeout)

    @asynccontextmanager
    async def _stream(
        self,
        payload: JsonObject,
        about: tuple[str, ...],
        timeout: float | None,
        *,
        beside: bool = False,
    ) -> AsyncGenerator[StreamWriter]:
        if self._outbound is not None:

            async def send(message: Any) -> JsonObject:
                return payloads.as_object(message.payload)

            fields = shown(kind=kinds.STREAM_REQUEST, payload=payload, correlation=about)
            payload = await pass_whole(self._outbound, "send", fields, send)
        async with writing(self._session, payload, about, timeout=timeout, beside=beside) as out:
            yield out

    def read_stream(self, stream: str | StreamInfo) -> AbstractContextManager[StreamReader]:
        """Read an open stream from here on, for the length of a block.

        Args:
            stream: One of :attr:`streams`, or its id.

        Raises:
            UsageError: It is not open.
        """
        return reading(self._session, stream if isinstance(stream, str) else stream.id)

    def write_stream(self, stream: str | StreamInfo) -> AbstractContextManager[StreamWriter]:
        """Write in an open stream of another participant, for the length of a block.

        Its owner must have let us (:meth:`StreamWriter.grant_write`). It goes on after the block.

        Args:
            stream: One of :attr:`streams`, or its id.

        Raises:
            UsageError: It is not open, or its owner has not let us.
        """
        return writing_in(self._session, stream if isinstance(stream, str) else stream.id)


def streaming_beside(
    space: StreamVerbs, payload: JsonObject, about: tuple[str, ...]
) -> AbstractAsyncContextManager[StreamWriter]:
    """Open a stream beside an answer, which does not depend on it; for a handler's context."""
    stream = space._stream  # pyright: ignore[reportPrivateUsage]
    return stream(payload, about, OPEN_SECONDS, beside=True)
