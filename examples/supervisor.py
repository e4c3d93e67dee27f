"""A supervisor: it looks at a worker, pauses it, lets it go on, and ends it.

Start controlled_worker.py first, as tools, and run this as admin.
"""

import sys

import anyio

from meup_agent import Agent
from meup_agent.errors import ParticipantGone, RequestError

WORKER = "tools"  # as whom it runs

agent = Agent("supervisor")


async def main() -> None:
    async with agent.join() as space:
        try:
            await space.present(WORKER, timeout=5)
        except ParticipantGone as gone:
            sys.exit(f"start controlled_worker.py first: {gone}")
        for text in ("one", "two", "three"):
            await space.call(WORKER, "note", {"text": text})
        status = await space.control.request_status(
            WORKER, ["messages_in_context"]
        )
        notes = status.fields["messages_in_context"]
        print(f"{status.status}, with {notes} notes")

        pause = await space.control.pause(
            WORKER, reason="a look at it", timeout=60
        )
        try:
            await space.call(WORKER, "note", {"text": "four"})
        except RequestError as error:
            print(f"while it is paused: {error.message}")
        await space.control.resume(WORKER, pause=pause)

        done = await space.control.compact(WORKER)
        print(f"freed {done.fields['freed_messages']} of them")
        await space.control.shutdown(WORKER, reason="it is late")


if __name__ == "__main__":
    anyio.run(main)
