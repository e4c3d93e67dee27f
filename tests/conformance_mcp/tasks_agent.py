"""Tools that scenarios ask for by names without ``test_``, of an agent that keeps its own names."""

from typing import Any

import anyio

from meup_agent import Agent
from meup_agent.errors import RequestError
from tests.conformance_mcp.raw_tools import (
    Call,
    JsonObject,
    RawTools,
    elicitation,
    input_required,
    properties,
    text,
)

agent = Agent("tasks")
tools = RawTools(agent)

INTERNAL_ERROR = -32603

REQUIRED: dict[str, Any] = {"execution": {"taskSupport": "required"}}
FORBIDDEN: dict[str, Any] = {"execution": {"taskSupport": "forbidden"}}

JOB_SECONDS = 0.3


@tools.add("greet", properties("name", name="string"), **FORBIDDEN)
async def greet(call: Call) -> JsonObject:
    """Greets, at once."""
    return text(f"Hello, {call.arguments['name']}!")


@tools.add("slow_compute", properties("seconds", seconds="number", label="string"))
async def slow_compute(call: Call) -> JsonObject:
    """Takes some seconds."""
    await anyio.sleep(call.arguments["seconds"])
    return text(f"{call.arguments.get('label')} took {call.arguments['seconds']} s")


@tools.add("failing_job", **REQUIRED)
async def failing_job(call: Call) -> JsonObject:
    """Fails, after a while."""
    await anyio.sleep(JOB_SECONDS)
    return {**text("The job failed"), "isError": True}


@tools.add("protocol_error_job", **REQUIRED)
async def protocol_error_job(call: Call) -> JsonObject:
    """Answers with an error of the protocol."""
    raise RequestError(INTERNAL_ERROR, "The job could not be run")


@tools.add("confirm_delete", properties("filename", filename="string"))
async def confirm_delete(call: Call) -> JsonObject:
    """Asks before it deletes."""
    confirm = properties("confirm", confirm="boolean")
    answer = await call.ask(elicitation(f"Delete {call.arguments['filename']}?", confirm))
    return text(f"{answer['action']}: {answer.get('content')}")


@tools.add("multi_input")
async def multi_input(call: Call) -> JsonObject:
    """Asks for two things at a time."""
    answers: list[JsonObject] = []

    async def ask(message: str, schema: JsonObject) -> None:
        answers.append(await call.ask(elicitation(message, schema)))

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "What is your name?", properties("name", name="string"))
        group.start_soon(ask, "Are you sure?", properties("confirm", confirm="boolean"))
    return text(*map(str, answers))


SCHEMA: JsonObject = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", **properties(street="string", city="string")}},
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@tools.add("json_schema_2020_12_tool", SCHEMA)
async def json_schema(call: Call) -> JsonObject:
    """Has a schema with every kind of keyword."""
    return text("valid")


@tools.add("test_tool_with_task", **REQUIRED)
async def tool_with_task(call: Call) -> JsonObject:
    """Asks for a name, and then takes a while."""
    answer = call.answer("user_name")
    if answer is None:
        asked = elicitation("What is your name?", properties("name", name="string"))
        return input_required(user_name=asked)
    await anyio.sleep(JOB_SECONDS)
    return text(f"Hello, {answer['content']['name']}!")
