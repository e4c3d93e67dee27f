"""A supervisor: it looks at a worker, pauses it, lets it go on, and ends it."""

import anyio

from meup_agent import Agent
from meup_agent.errors import RequestError

agent = Agent("supervisor")


async def main() -> None:
    async with agent.join() as space:
        await space.present("worker")
        for text in ("one", "two", "three"):
            await space.call("worker", "note", {"text": text})
        status = await space.control.request_status(
            "worker", ["messages_in_context"]
        )
        notes = status.fields["messages_in_context"]
        print(f"{status.status}, with {notes} notes")

        pause = await space.control.pause(
            "worker", reason="a look at it", timeout=60
        )
        try:
            await space.call("worker", "note", {"text": "four"})
        except RequestError as error:
            print(f"while it is paused: {error.message}")
        await space.control.resume("worker", pause=pause)

        done = await space.control.compact("worker")
        print(f"freed {done.fields['freed_messages']} of them")
        await space.control.shutdown("worker", reason="it is late")


if __name__ == "__main__":
    anyio.run(main)
