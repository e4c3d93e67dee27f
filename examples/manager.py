"""A manager: it lets others do more or less, and a guest in and out.

It needs a gateway alone; of `meup gateway --dev` run it as admin.
"""

import sys
from typing import Any

import anyio

from meup_agent import Agent
from meup_agent.errors import Refused

agent = Agent("manager")

ADD: dict[str, Any] = {
    "kind": "mcp/request",
    "payload": {"method": "tools/call", "params": {"name": "add"}},
}


async def main() -> None:
    async with agent.join() as space:
        try:
            grant = await space.members.grant(
                "proposer", [ADD], reason="it adds well"
            )
        except Refused as refused:
            sys.exit(f"run this as one that may grant, as admin: {refused}")
        print(f"{grant.participant} may call add")
        try:
            wide = await space.members.grant("proposer", [{"kind": "mcp/*"}])
        except Refused as refused:
            print(f"not more than we may ourselves: {refused.error}")
        else:  # we may do everything
            await space.members.revoke("proposer", grant=wide)
            print("we may grant everything of MCP; it was taken back")
        await space.members.revoke(
            "proposer", grant=grant, reason="that was enough"
        )
        print(f"{grant.participant} may not call add any more")

        guest = await space.members.invite("guest", [{"kind": "chat"}])
        assert guest.token, "hand it on safely: it is told here, and only once"
        print(f"{guest.participant} may join")
        await space.members.kick("guest", reason="it is late")
        print(f"{guest.participant} may not join any more")


if __name__ == "__main__":
    anyio.run(main)
