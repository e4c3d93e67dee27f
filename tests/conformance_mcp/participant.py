"""The participant ``test``: what the scenarios of the official suite ask for by name.

Its tools and prompts have their names without ``test_``, which is how the space names them.
"""

import hashlib
import hmac
import secrets
from typing import Any

import anyio

from meup_agent import Agent, Request, Space
from meup_agent.errors import RequestError
from tests.conformance_mcp.media import IMAGE, red_pixel, silence
from tests.conformance_mcp.raw_tools import (
    INVALID_PARAMS,
    ROOTS,
    Call,
    JsonObject,
    RawTools,
    elicitation,
    input_required,
    properties,
    sampling,
    text,
)

agent = Agent("test")
tools = RawTools(agent)

STEP_SECONDS = 0.12
"""Between two notes of progress: those that follow within 0.1 s are left out (PROTOCOL 4.9)."""

NAME = properties("name", name="string")
OK = properties("ok", ok="boolean")


def resource(uri: str, mime_type: str, content: str) -> JsonObject:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": content}}


@tools.add("simple_text")
async def simple_text(call: Call) -> JsonObject:
    """Returns a text."""
    return text("This is a simple text response for testing.")


@tools.add("image_content")
async def image_content(call: Call) -> JsonObject:
    """Returns a picture."""
    return {"content": [IMAGE]}


@tools.add("audio_content")
async def audio_content(call: Call) -> JsonObject:
    """Returns a sound."""
    return {"content": [{"type": "audio", "data": silence(), "mimeType": "audio/wav"}]}


@tools.add("embedded_resource")
async def embedded_resource(call: Call) -> JsonObject:
    """Returns a resource."""
    content = "This is an embedded resource content."
    return {"content": [resource("test://embedded-resource", "text/plain", content)]}


@tools.add("multiple_content_types")
async def multiple_content_types(call: Call) -> JsonObject:
    """Returns several kinds of content."""
    mixed = resource("test://mixed-content-resource", "application/json", '{"test":"data"}')
    return {"content": [*text("Multiple content types test:")["content"], IMAGE, mixed]}


@tools.add("error_handling")
async def error_handling(call: Call) -> JsonObject:
    """Fails."""
    return {**text("This tool intentionally returns an error for testing"), "isError": True}


@tools.add("headers", properties(region={"type": "string", "x-mcp-header": "Region"}))
async def headers(call: Call) -> JsonObject:
    """Takes an argument that its request repeats in a header."""
    return text(str(call.arguments.get("region")))


@tools.add("tool_with_logging")
@tools.add("logging_tool")
async def log_three_times(call: Call) -> JsonObject:
    """Logs three messages, also where the client does not want to read them."""
    for note in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await call.notify("notifications/message", level="info", data=note)
    return text("logged")


@tools.add("tool_with_progress")
async def tool_with_progress(call: Call) -> JsonObject:
    """Reports progress three times."""
    for done in (0, 50, 100):
        await call.context.progress(done, 100)
        await anyio.sleep(STEP_SECONDS)
    return text("done")


@tools.add("trigger_tool_change")
async def trigger_tool_change(call: Call) -> JsonObject:
    """Offers another tool, or no longer."""
    if "came_and_went" in tools:
        tools.remove("came_and_went")
    else:
        tools.add("came_and_went")(simple_text)
    await call.announce("notifications/tools/list_changed")
    return text("changed")


@tools.add("trigger_prompt_change")
async def trigger_prompt_change(call: Call) -> JsonObject:
    """Offers another prompt, or no longer."""
    if PROMPTS.pop("came_and_went", None) is None:
        PROMPTS["came_and_went"] = {"description": "A prompt that comes and goes"}
    await call.announce("notifications/prompts/list_changed")
    return text("changed")


@tools.add("sampling", properties("prompt", prompt="string"))
async def ask_model(call: Call) -> JsonObject:
    """Asks the client's model."""
    answer = await call.ask(sampling(call.arguments["prompt"], 100))
    return text(f"LLM response: {answer['content']['text']}")


@tools.add("missing_capability")
async def missing_capability(call: Call) -> JsonObject:
    """Asks the client's model, which it may not have."""
    return text(str(await call.ask(sampling("Are you there?", 10))))


@tools.add("elicitation", properties("message", message="string"))
async def ask_user(call: Call) -> JsonObject:
    """Asks the client's user."""
    schema = properties(
        "username",
        "email",
        username={"type": "string", "description": "User's response"},
        email={"type": "string", "description": "User's email address"},
    )
    return await ask_user_for(call, call.arguments["message"], schema)


async def ask_user_for(call: Call, message: str, schema: JsonObject) -> JsonObject:
    answer = await call.ask(elicitation(message, schema))
    return text(f"User response: action={answer['action']}, content={answer.get('content')}")


@tools.add("streaming_elicitation")
async def streaming_elicitation(call: Call) -> JsonObject:
    """Asks the client's user while its result is awaited."""
    return await ask_user_for(call, "Are you there?", OK)


@tools.add("elicitation_sep1034_defaults")
async def elicitation_defaults(call: Call) -> JsonObject:
    """Asks for values that have defaults."""
    schema = properties(
        name={"type": "string", "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={"type": "boolean", "default": True},
    )
    return await ask_user_for(call, "Please check the defaults", schema)


def titled(*names: str, prefix: str) -> list[JsonObject]:
    return [
        {"const": f"{prefix}{number}", "title": name} for number, name in enumerate(names, start=1)
    ]


@tools.add("elicitation_sep1330_enums")
async def elicitation_enums(call: Call) -> JsonObject:
    """Asks for choices of each form."""
    options = ["option1", "option2", "option3"]
    titles = titled("First Option", "Second Option", "Third Option", prefix="value")
    schema = properties(
        untitledSingle={"type": "string", "enum": options},
        titledSingle={"type": "string", "oneOf": titles},
        legacyEnum={
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        untitledMulti={"type": "array", "items": {"type": "string", "enum": options}},
        titledMulti={"type": "array", "items": {"anyOf": titles}},
    )
    return await ask_user_for(call, "Please choose", schema)


ASK_NAME = elicitation("What is your name?", NAME)


def state(value: str) -> str:
    """A state that only this process can have made."""
    return f"{value}.{hmac.new(KEY, value.encode(), hashlib.sha256).hexdigest()}"


def check_state(given: str | None) -> str:
    """The value of a state.

    Raises:
        RequestError: It was made, or changed, by another.
    """
    value = (given or "").partition(".")[0]
    if not hmac.compare_digest(state(value), given or ""):
        raise RequestError(INVALID_PARAMS, "requestState is not as it was given")
    return value


KEY = secrets.token_bytes(32)


@tools.add("input_required_result_elicitation")
async def input_elicitation(call: Call) -> JsonObject:
    """Asks the client's user for a name."""
    answer = call.answer("user_name")
    if answer is None:
        return input_required(user_name=ASK_NAME)
    return text(f"Hello, {answer['content']['name']}!")


@tools.add("input_required_result_sampling")
async def input_sampling(call: Call) -> JsonObject:
    """Asks the client's model for a capital."""
    answer = call.answer("capital_question")
    if answer is None:
        return input_required(capital_question=sampling("What is the capital of France?", 100))
    return text(answer["content"]["text"])


@tools.add("input_required_result_list_roots")
async def input_roots(call: Call) -> JsonObject:
    """Asks the client for its roots."""
    answer = call.answer("client_roots")
    if answer is None:
        return input_required(client_roots=ROOTS)
    return text(*(root["uri"] for root in answer["roots"]))


@tools.add("input_required_result_request_state")
@tools.add("input_required_result_tampered_state")
async def input_state(call: Call) -> JsonObject:
    """Gives the client a state to carry, and checks it."""
    if call.answer("confirm") is None:
        return input_required(state("asked"), confirm=elicitation("Please confirm", OK))
    return text(f"state-ok: {check_state(call.state)}")


@tools.add("input_required_result_multiple_inputs")
async def input_several(call: Call) -> JsonObject:
    """Asks for several things at once."""
    keys = ("user_name", "greeting", "client_roots")
    if any(call.answer(key) is None for key in keys):
        greeting = sampling("Generate a greeting", 50)
        return input_required(
            state("asked"), user_name=ASK_NAME, greeting=greeting, client_roots=ROOTS
        )
    check_state(call.state)
    return text(*(str(call.answer(key)) for key in keys))


@tools.add("input_required_result_multi_round")
async def input_rounds(call: Call) -> JsonObject:
    """Asks for one thing after another."""
    step1, step2 = call.answer("step1"), call.answer("step2")
    if step2 is not None:
        return text(f"{check_state(call.state)} likes {step2['content']['color']}")
    if step1 is not None:
        check_state(call.state)
        color = elicitation(
            "Step 2: What is your favorite color?", properties("color", color="string")
        )
        return input_required(state(step1["content"]["name"]), step2=color)
    return input_required(state("asked"), step1=elicitation("Step 1: What is your name?", NAME))


@tools.add("input_required_result_capabilities")
async def input_capabilities(call: Call) -> JsonObject:
    """Asks for more than each client can answer."""
    keys = ("user_name", "greeting")
    if all(call.answer(key) is None for key in keys):
        return input_required(user_name=ASK_NAME, greeting=sampling("Generate a greeting", 50))
    return text(*(str(call.answer(key)) for key in keys))


RESOURCES: dict[str, JsonObject] = {
    "test://static-text": {
        "mimeType": "text/plain",
        "text": "This is the content of the static text resource.",
    },
    "test://static-binary": {"mimeType": "image/png", "blob": red_pixel()},
    "test://watched-resource": {"mimeType": "text/plain", "text": "It may change."},
}
TEMPLATE = "test://template/{id}/data"


@agent.on_request("resources/list")
async def list_resources() -> JsonObject:
    listed = [
        {
            "uri": uri,
            "name": uri.removeprefix("test://"),
            "description": f"The resource {uri}",
            "mimeType": content["mimeType"],
        }
        for uri, content in RESOURCES.items()
    ]
    return {"resources": listed}


@agent.on_request("resources/templates/list")
async def list_templates() -> JsonObject:
    described = "Data for any id"
    template = {"uriTemplate": TEMPLATE, "name": "data", "description": described}
    return {"resourceTemplates": [{**template, "mimeType": "application/json"}]}


@agent.on_request("resources/read")
async def read_resource(request: Request) -> JsonObject:
    uri = request.params["uri"]
    start, _, end = TEMPLATE.partition("{id}")
    if uri in RESOURCES:
        content = RESOURCES[uri]
    elif uri.startswith(start) and uri.endswith(end):
        key = uri.removeprefix(start).removesuffix(end)
        data = f'{{"id":"{key}","templateTest":true,"data":"Data for ID: {key}"}}'
        content = {"mimeType": "application/json", "text": data}
    else:
        raise RequestError(INVALID_PARAMS, "Resource not found", {"uri": uri})
    return {"contents": [{"uri": uri, **content}]}


@agent.on_request("resources/subscribe", "resources/unsubscribe", "logging/setLevel")
async def accept() -> JsonObject:
    return {}


def argument(name: str, description: str) -> JsonObject:
    return {"name": name, "description": description, "required": True}


PROMPTS: dict[str, JsonObject] = {
    "simple_prompt": {"description": "A prompt"},
    "prompt_with_arguments": {
        "description": "A prompt that takes arguments",
        "arguments": [
            argument("arg1", "First test argument"),
            argument("arg2", "Second test argument"),
        ],
    },
    "prompt_with_embedded_resource": {
        "description": "A prompt with a resource in it",
        "arguments": [argument("resourceUri", "URI of the resource to embed")],
    },
    "prompt_with_image": {"description": "A prompt with a picture in it"},
    "input_required_result_prompt": {"description": "A prompt that asks first"},
}


@agent.on_request("prompts/list")
async def list_prompts() -> JsonObject:
    return {"prompts": [{"name": name, **described} for name, described in PROMPTS.items()]}


@agent.on_request("prompts/get")
async def get_prompt(request: Request, space: Space) -> JsonObject:
    name = request.params["name"]
    given: dict[str, str] = request.params.get("arguments") or {}
    match name:
        case "simple_prompt" | "came_and_went":
            return messages(*text("This is a simple prompt for testing.")["content"])
        case "prompt_with_arguments":
            shown = f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"
            return messages(*text(shown)["content"])
        case "prompt_with_embedded_resource":
            content = "Embedded resource content for testing."
            embedded = resource(given["resourceUri"], "text/plain", content)
            return messages(
                embedded, *text("Please process the embedded resource above.")["content"]
            )
        case "prompt_with_image":
            return messages(IMAGE, *text("Please analyze the image above.")["content"])
        case "input_required_result_prompt":
            answers: dict[str, Any] = request.params.get("inputResponses") or {}
            if "user_context" not in answers:
                asked = elicitation(
                    "What context should the prompt use?", properties("context", context="string")
                )
                return input_required(user_context=asked)
            context = answers["user_context"]["content"]["context"]
            return messages(*text(f"Use this context: {context}")["content"])
        case _:
            raise RequestError(INVALID_PARAMS, f"there is no prompt {name!r}")


def messages(*contents: JsonObject) -> JsonObject:
    return {"messages": [{"role": "user", "content": content} for content in contents]}


WORDS = ("paris", "park", "party")


@agent.on_request("completion/complete")
async def complete(request: Request) -> JsonObject:
    begun = request.params["argument"]["value"]
    values = [word for word in WORDS if word.startswith(begun)]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}
