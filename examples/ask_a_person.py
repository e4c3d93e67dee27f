"""A fulfiller that asks a person in the terminal about each proposal.

An answer names the proposal by its number. So one that is typed while its
proposal is withdrawn counts for no other.
"""

import itertools
import json
import os
import sys

import anyio

from meup_agent import Agent, Context, Proposal, Reason
from meup_agent.errors import MeupError

agent = Agent("fulfiller")
numbers = itertools.count(1)
terminal = anyio.Lock()  # one question at a time; the others wait their turn
typed = bytearray()


@agent.on_proposal
async def review(proposal: Proposal, ctx: Context) -> None:
    number = next(numbers)
    # In ASCII: a stranger's text could move the cursor and rewrite the screen.
    call = json.dumps([proposal.proposer, proposal.tool, proposal.arguments])
    try:
        answer = await ask(f"proposal {number}: {call}", number)
        if answer == "yes":
            outcome = await proposal.fulfill()
            how = "it failed" if outcome.is_error else "done"
        else:
            words = answer.removeprefix("no").strip()
            await proposal.reject(Reason.DISAGREE, explain=words or None)
            how = "rejected"
        print(f"proposal {number}: {how}")
    except EOFError:
        await proposal.reject(Reason.BUSY, explain="nobody is at the terminal")
    except MeupError as error:
        print(f"proposal {number}: {error}")
    except anyio.get_cancelled_exc_class():
        why = str(ctx.reason)
        print(f"proposal {number}: needs no answer any more ({why!a})")
        raise


async def ask(question: str, number: int) -> str:
    """Ask until the person answers "yes", or "no" and perhaps why not."""
    async with terminal:
        print(question)
        while True:
            print(f"type: {number} yes, or: {number} no, and why not")
            named, _, answer = (await read_line()).partition(" ")
            is_answer = answer == "yes" or answer.split(" ")[0] == "no"
            if named == str(number) and is_answer:
                return answer


async def read_line() -> str:
    """Read a line that is typed; a cancelled wait takes nothing of it."""
    while b"\n" not in typed:
        await anyio.wait_readable(sys.stdin)
        read = os.read(sys.stdin.fileno(), 4096)
        if not read:
            raise EOFError
        typed.extend(read)
    line, _, typed[:] = typed.partition(b"\n")
    return line.decode(errors="replace").strip()


if __name__ == "__main__":
    agent.run(grace=0.0, log_level="WARNING")
