"""The gateway's answers to withdraws and rejects that a caller waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.errors import MeupError, Refused
from meup_agent.protocol import kinds
from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meup_agent.protocol.envelope import Envelope

RECEIPT_SECONDS: Final = 30.0
"""Wait of a caller for that answer; a gateway reads later what comes too fast, and after a thousand
withdrawals at once that takes its time. The envelope stays sent when its caller waits no longer."""


class Receipts:
    """Envelopes of ours whose callers wait until the gateway has accepted or refused them."""

    def __init__(self) -> None:
        self._waiting: dict[str, MeupError | None] = {}
        self._changed = Condition()

    def __bool__(self) -> bool:
        """True if a caller waits."""
        return bool(self._waiting)

    async def wait(self, envelope_ids: Iterable[str]) -> None:
        """Wait until the gateway has accepted what was said just now; raise if it refused any.

        Returns all the same when the connection is lost, after which it is said again, and when the
        gateway says nothing for :data:`RECEIPT_SECONDS`.
        """
        ids = list(envelope_ids)
        self._waiting.update(dict.fromkeys(ids))
        try:
            with anyio.move_on_after(RECEIPT_SECONDS):
                for each in ids:
                    while each in self._waiting:
                        problem = self._waiting[each]
                        if problem is not None:
                            raise problem
                        await self._changed.wait()
        finally:
            for each in ids:
                self._waiting.pop(each, None)

    def heard(self, envelope: Envelope, me: str) -> None:
        """End the wait that an envelope answers, if it answers one."""
        if envelope.sender == me:
            if envelope.id in self._waiting:
                del self._waiting[envelope.id]
                self._changed.notify_all()
        elif envelope.kind == kinds.SYSTEM_ERROR and envelope.sender in kinds.GATEWAY_NAMES:
            for name in envelope.correlation:
                self.failed(name, read_refusal(envelope, name))

    def failed(self, envelope_id: str, problem: MeupError) -> None:
        """Note that an envelope was not taken and will not be, if a caller waits for it."""
        if envelope_id in self._waiting:
            self._waiting[envelope_id] = problem
            self._changed.notify_all()

    def lost(self) -> None:
        """End every wait: after a lost connection no answer comes."""
        if self._waiting:
            self._waiting.clear()
            self._changed.notify_all()


def read_refusal(error: Envelope, what: str) -> Refused:
    """The exception for a gateway's ``system/error`` about something that we sent."""
    payload = error.payload_object
    code, said = payload.get("error"), payload.get("message")
    code = code if isinstance(code, str) and code else "error"
    message = f"the gateway refused {what}: {code}"
    if isinstance(said, str) and said:
        message = f"{message} ({said})"
    return Refused(code, message, payload)
