"""The gate of a connection's socket: whether, and from when on, the connection is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class ReadTransport(Protocol):
    """The transport that a gate opens and closes."""

    def pause_reading(self) -> None:
        """Read nothing."""
        ...

    def resume_reading(self) -> None:
        """Read again."""
        ...

    def is_closing(self) -> bool:
        """True if it reads nothing more."""
        ...

    def abort(self) -> None:
        """End it at once."""
        ...


class ReadGate:
    """Keeps a connection from being read until a time, until the next turn, or while it is held.

    The one mechanism for this: what comes too fast stays in the socket, and in the end with its
    sender; nothing of it is lost. ``reopened`` is called before the socket is read again, and may
    close the gate again.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wire: ReadTransport,
        reopened: Callable[[], None],
    ) -> None:
        self.open = True
        self._loop = loop
        self._wire = wire
        self._reopened = reopened
        self._held = False
        self._timer: asyncio.Handle | None = None
        self._until = 0.0
        self._reads = True
        self._read_decrypted: Callable[[], None] | None = getattr(wire, "_do_read", None)

    def pause(self, seconds: float) -> None:
        """Read nothing for a time, and not before the next turn of the loop.

        Of several times the longest counts.
        """
        until = self._loop.time() + seconds
        if self._timer is not None:
            if until <= self._until:
                return
            self._timer.cancel()
        self._until = until
        self._timer = (
            self._loop.call_later(seconds, self._due)
            if seconds > 0.0
            else self._loop.call_soon(self._due)
        )
        self._change()

    def release(self) -> None:
        """Read again in the next turn, whatever the time; what is held stays so."""
        if self._timer is not None:
            self._timer.cancel()
            self._until = 0.0
            self._timer = self._loop.call_soon(self._due)

    def hold(self, held: bool) -> None:
        """Read nothing until told otherwise."""
        self._held = held
        self._change()

    def stop(self) -> None:
        """Forget the time: the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        self._change()

    def _change(self) -> None:
        opens = not self._held and self._timer is None
        if opens and not self.open:
            self.open = True
            # What was read before the gate closed comes first, and may close it again.
            self._reopened()
        else:
            self.open = opens
        if self.open is not self._reads and not self._wire.is_closing():
            self._reads = self.open
            if self._reads:
                self._wire.resume_reading()
                if self._read_decrypted is not None:
                    self._loop.call_soon(self._go_on_decrypting)
            else:
                self._wire.pause_reading()

    def _go_on_decrypting(self) -> None:
        """Read what came with TLS before the gate closed.

        Aiofastnet looks at it only when more comes, which a sender who waits for an answer does not
        send.
        """
        if self._reads and self._read_decrypted is not None and not self._wire.is_closing():
            try:
                self._read_decrypted()
            except Exception:
                # The same records would have broken the connection, had they come a moment later.
                self._wire.abort()
