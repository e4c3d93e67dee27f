"""Claude, whose own tools wait for a decision of the space.

Whatever its settings neither allow nor deny is proposed: a participant that may
lets it run, perhaps with other arguments, or says no.
"""

import asyncio

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage

from meup_agent.adapters.claude_agent import Door, can_use_tool


async def main() -> None:
    async with Door("claude").join() as space:
        options = ClaudeAgentOptions(can_use_tool=can_use_tool(space))
        async with ClaudeSDKClient(options) as claude:
            await claude.query("Make an empty file called made.txt.")
            async for message in claude.receive_response():
                if isinstance(message, ResultMessage):
                    print(message.result)


if __name__ == "__main__":
    asyncio.run(main())
