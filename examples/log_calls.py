"""A tool owner that logs its calls: what came, what became of it, how long."""

import logging
import sys
import time
from typing import Any

from meup_agent import Agent
from meup_agent.types import CallNext, InboundMessage, OutboundMessage

log = logging.getLogger("calls")
log.addHandler(logging.StreamHandler(sys.stdout))
log.setLevel(logging.INFO)


async def log_message(
    message: InboundMessage | OutboundMessage, call_next: CallNext
) -> Any:
    if isinstance(message, InboundMessage):
        what = f"{message.role} {message.handler!r} from {message.sender}"
    else:
        what = f"{message.verb} {message.tool or message.kind!r} of our own"
    began, became = time.monotonic(), "cancelled"
    try:
        result = await call_next(message)
        became = "done"
        return result
    except Exception as error:
        became = f"failed: {type(error).__name__}"
        raise
    finally:  # also when it is withdrawn or cancelled
        seconds = time.monotonic() - began
        log.info("%s %s", what, became, extra={"seconds": seconds})


agent = Agent("logged", middleware=[log_message])


@agent.tool
async def divide(dividend: float, divisor: float) -> float:
    """Divide a number by another."""
    return dividend / divisor


if __name__ == "__main__":
    agent.run()
