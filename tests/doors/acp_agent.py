"""An agent on the ACP SDK: it asks its editor for what a prompt lists, and tells the answers.

The steps of a prompt are JSON, each a method and its parameters; they are asked at once, those of
`["then", steps]` one after another.
"""

import asyncio
import json
import os
import sys
from typing import Any
from uuid import uuid4

from acp import RequestError, run_agent, text_block, update_agent_message
from acp.schema import Implementation, InitializeResponse, NewSessionResponse, PromptResponse


class ScriptedAgent:
    """Asks what it is told to."""

    def __init__(self) -> None:
        self.cancelled: dict[str, asyncio.Event] = {}

    def on_connect(self, conn: Any) -> None:
        self.editor = conn

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        info = Implementation(name="scripted", version="1")
        return InitializeResponse(protocol_version=protocol_version, agent_info=info)

    async def new_session(self, cwd: str, **_: Any) -> NewSessionResponse:
        return NewSessionResponse(session_id=uuid4().hex)

    async def cancel(self, session_id: str, **_: Any) -> None:
        self.cancelled.setdefault(session_id, asyncio.Event()).set()

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> PromptResponse:
        steps = json.loads(prompt[0].text)
        if steps == "die":
            os._exit(3)
        if steps == "secret":
            await self.tell(session_id, sorted(os.environ))
        else:
            answers = [asyncio.create_task(self.ask(session_id, *each)) for each in steps]
            await self.tell(session_id, await asyncio.gather(*answers))
        was_cancelled = self.cancelled.pop(session_id, None) is not None
        return PromptResponse(stop_reason="cancelled" if was_cancelled else "end_turn")

    async def tell(self, session_id: str, said: Any) -> None:
        told = update_agent_message(text_block(json.dumps(said)))
        await self.editor.session_update(session_id, told)

    async def ask(self, session_id: str, method: str, params: Any) -> Any:
        if method == "then":
            return [await self.ask(session_id, *each) for each in params]
        connection = self.editor._conn
        try:
            return await connection.send_request(method, {"sessionId": session_id, **params})
        except RequestError as error:
            return {"error": error.code, "text": str(error)}


if __name__ == "__main__":
    sys.stderr.write("the agent starts\n")
    agent: Any = ScriptedAgent()  # of the protocol's methods those that are used here
    asyncio.run(run_agent(agent))
