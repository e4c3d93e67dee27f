"""Runs of each framework with a scripted model: it calls some tools, and ends with what it saw."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agents.models.interface import Model

    from meup_agent import Space

Calls = Sequence[tuple[str, dict[str, Any]]]
"""Names of tools as the model sees them, and arguments; all are called at the same time."""

Run = Callable[..., Coroutine[Any, Any, list[str]]]
"""``await run(space, calls, **options)``: the texts that the model gets for the calls."""


async def run_pydantic_ai(space: Space, calls: Calls, **options: Any) -> list[str]:
    from pydantic_ai import Agent
    from pydantic_ai.messages import (
        ModelMessage,
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
    )
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from meup_agent.adapters.pydantic_ai import SpaceToolset

    seen: dict[str, str] = {}

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        returned = [p for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        if not returned:
            assert {name for name, _ in calls} <= {each.name for each in info.function_tools}
            return ModelResponse(
                parts=[
                    ToolCallPart(name, arguments, tool_call_id=str(at))
                    for at, (name, arguments) in enumerate(calls)
                ]
            )
        for part in returned:
            seen[part.tool_call_id] = part.model_response_str()
        return ModelResponse(parts=[TextPart("done")])

    toolset: SpaceToolset[None] = SpaceToolset(space, **options)
    result = await Agent(FunctionModel(respond), toolsets=[toolset]).run("go")
    assert result.output == "done"
    return [seen[str(at)] for at in range(len(calls))]


def scripted_openai_model(calls: Calls, seen: dict[str, str]) -> Model:
    """A model that calls some tools, notes what it gets for them, and ends."""
    from agents.items import ModelResponse
    from agents.models.interface import Model
    from agents.usage import Usage
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    class Scripted(Model):
        async def get_response(
            self, system_instructions: Any, input: Any, *_: Any, **__: Any
        ) -> ModelResponse:
            output: list[Any]
            returned = [
                each
                for each in ([] if isinstance(input, str) else input)
                if each.get("type") == "function_call_output"
            ]
            for each in returned:
                seen[each["call_id"]] = each["output"]
            if returned:
                text = ResponseOutputText(annotations=[], text="done", type="output_text")
                output = [
                    ResponseOutputMessage(
                        id="m", content=[text], role="assistant", status="completed", type="message"
                    )
                ]
            else:
                output = [
                    ResponseFunctionToolCall(
                        arguments=json.dumps(arguments),
                        call_id=str(at),
                        name=name,
                        type="function_call",
                    )
                    for at, (name, arguments) in enumerate(calls)
                ]
            return ModelResponse(output=output, usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            raise AssertionError("nothing streams here")

    return Scripted()


async def run_openai_agents(space: Space, calls: Calls, **options: Any) -> list[str]:
    from agents import Agent, RunConfig, Runner

    from meup_agent.adapters.openai_agents import space_tools

    seen: dict[str, str] = {}
    model = scripted_openai_model(calls, seen)
    agent = Agent(name="scripted", model=model, tools=[*await space_tools(space, **options)])
    result = await Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True))
    assert result.final_output == "done"
    return [seen[str(at)] for at in range(len(calls))]


async def run_langchain(space: Space, calls: Calls, **options: Any) -> list[str]:
    import anyio
    from langchain_core.language_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, ToolMessage

    from meup_agent.adapters.langchain import space_tools

    tools = {each.name: each for each in await space_tools(space, **options)}
    called = [
        {"name": name, "args": arguments, "id": str(at), "type": "tool_call"}
        for at, (name, arguments) in enumerate(calls)
    ]
    script = iter([AIMessage(content="", tool_calls=called), AIMessage(content="done")])
    model = GenericFakeChatModel(messages=script)
    message = await model.ainvoke("go")
    seen: dict[str, str] = {}

    async def call(call: Any) -> None:
        answer = await tools[call["name"]].ainvoke(call)
        assert isinstance(answer, ToolMessage)
        seen[call["id"]] = str(answer.content)

    async with anyio.create_task_group() as tasks:
        for each in message.tool_calls:
            tasks.start_soon(call, each)
    assert (await model.ainvoke("go on")).content == "done"
    return [seen[str(at)] for at in range(len(calls))]


FRAMEWORKS: dict[str, Run] = {
    "pydantic_ai": run_pydantic_ai,
    "openai_agents": run_openai_agents,
    "langchain": run_langchain,
}
