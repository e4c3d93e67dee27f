"""A tool owner that takes so many calls a minute of each participant."""

import time
from collections import OrderedDict
from typing import Any

from meup_agent import Agent, Reason
from meup_agent.errors import RejectMessage
from meup_agent.types import CallNext, InboundMessage

MAX_PARTICIPANTS = 1000  # or strangers could make us remember without end


class RateLimit:
    """Refuses what a participant asks beyond so many calls in some seconds."""

    def __init__(self, calls: int, seconds: float) -> None:
        self.calls = calls
        self.seconds = seconds
        self._free_at: OrderedDict[str, float] = OrderedDict()

    async def __call__(
        self, message: InboundMessage, call_next: CallNext
    ) -> Any:
        if message.tool:  # a call, or its proposal; to list tools is free
            self._check(message.sender, time.monotonic())
        return await call_next(message)

    def _check(self, sender: str, now: float) -> None:
        before = max(self._free_at.pop(sender, 0.0), now)
        after = before + self.seconds / self.calls
        allowed = after <= now + self.seconds
        self._free_at[sender] = after if allowed else before
        if len(self._free_at) > MAX_PARTICIPANTS:
            self._free_at.popitem(last=False)
        if not allowed:
            words = f"at most {self.calls} calls in {self.seconds:g} s"
            raise RejectMessage(Reason.BUSY, words)


agent = Agent("limited", middleware=[RateLimit(calls=3, seconds=60)])


@agent.tool
async def count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


if __name__ == "__main__":
    agent.run()
