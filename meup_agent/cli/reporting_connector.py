"""A connector that reports: a connection made, one that ended, and none that can be made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from meup_agent.cli import exit_codes
from meup_agent.cli.failures import Failure
from meup_agent.errors import CannotConnect
from meup_agent.escape import visible
from meup_agent.transport.base import ABNORMAL, CloseInfo, Transport
from meup_agent.transport.websocket import websocket_connector

FINAL: Final = frozenset({4400, 4403, 4404, 4409})
"""Close codes after which a session does not dial again (PROTOCOL 3); its error says why."""

MAX_WORDS: Final = 200  # characters that are said of an end: more than a close frame has room for

OnConnection = Callable[[CloseInfo | None], Awaitable[None]]
"""Told ``None`` when a connection is made, whose welcome is still to come, and the end of each that
we did not leave; the connection waits until it returns."""


class ReportingConnector:
    """A connector that tells what becomes of its connections.

    One that is not patient gives up where it finds no gateway at first.
    """

    def __init__(
        self,
        url: str,
        space: str,
        tell: OnConnection,
        *,
        patient: bool = True,
    ) -> None:
        self.where = url
        self._connector = websocket_connector(url, space=space)
        self._tell = tell
        self._patient = patient

    @asynccontextmanager
    async def __call__(self, headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
        """Open a connection; leaving the block closes it."""
        connected = False
        try:
            async with self._connector(headers) as transport:
                connected = self._patient = True
                await self._tell(None)
                yield transport
                info = transport.closed
        except CannotConnect as error:
            if connected or self._patient:
                raise
            raise Failure(str(error), exit_codes.NO_CONNECTION) from error
        if info is not None and not info.local:
            await self._tell(info)


def format_close(info: CloseInfo) -> str:
    """The end of a connection, in words; the reason is a stranger's text."""
    if info.code == ABNORMAL:
        return "dropped without a close frame"
    return f"closed with code {info.code}" + (f": {info.reason}" if info.reason else "")


def format_loss(info: CloseInfo) -> str:
    """The end of a connection and what comes next, on a line that is safe to print."""
    if info.code in FINAL:
        return f"connection ended, closed with code {info.code}"
    return f"connection lost, {visible(format_close(info), MAX_WORDS)}; dialling again"
