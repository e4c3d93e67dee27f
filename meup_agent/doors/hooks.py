"""The hooks of coding agents: what each says before and after a call, and takes for an answer.

Plain functions, without I/O. A host's input that cannot be read is a :exc:`UnreadableHook`, which
names the field; its caller denies. No answer of ours is one that some host takes for a failure, and
so for a yes: it always decides, unless the host is to go on by its own rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import Any, Final

import msgspec

from meup_agent.doors.permit import HostCall
from meup_agent.errors import printable
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.outcomes import PermitReport, ReportedOutcome

JsonObject = dict[str, Any]

OWN_SOURCES: Final = frozenset({"user", "local", "enterprise", "managed"})
"""Sources of an MCP server that the user of Claude Code, and no project, has set up."""

MARGIN_SECONDS: Final = 5.0
"""Seconds before a host's own time-out at which our wait ends: most hosts run the call then."""


class UnreadableHook(ValueError):
    """A host said what it is not known to say; the words name the field."""


class HookKind(Enum):
    """The purpose for which a host calls a hook."""

    ASKS = auto()  # may this call run?
    RACES = auto()  # may it, as its dialog asks at the terminal?
    REPORTS = auto()  # it ran, or failed
    TELLS = auto()  # something else, which needs no answer


@dataclass(frozen=True)
class HookInput:
    """The message of a host to its hook.

    Attributes:
        kind: What it wants.
        call: The call that it is about; ``None``: about none.
        report: What came of it, where it reports.
        tells_input: The call that it reports has the arguments with which it ran.
        is_own: The call is of our own MCP server, and decided there.
        session: The agent's session.
        worker: Its worker in that, an agent below; empty: the agent itself.
        prompt: What a person has asked it for last, by its id; empty: it does not say.
        ends_turn: It has ended its turn.
        ends_session: It has ended its session.
    """

    kind: HookKind
    call: HostCall | None = None
    report: PermitReport | None = None
    tells_input: bool = False
    is_own: bool = False
    session: str = ""
    worker: str = ""
    prompt: str = ""
    ends_turn: bool = False
    ends_session: bool = False


@dataclass(frozen=True)
class HookDialect:
    """The hooks of one coding agent.

    Attributes:
        agent: Its name, as in the path of the hook.
        read: Reads an input, with the name of our own MCP server there; may raise UnreadableHook.
        permit: The answer that lets a call run, with the arguments to run.
        deny: The answer that keeps it from running, with words for the model.
        timeout: Seconds that it waits for a hook where it is not told otherwise.
        ask: The answer that has its terminal ask; ``None``: it has none that holds.
        defer: The answer by which it ends, to ask again once it is resumed; ``None``: it has none.
    """

    agent: str
    read: Callable[[JsonObject, str], HookInput]
    permit: Callable[[JsonObject], JsonObject]
    deny: Callable[[str], JsonObject]
    timeout: float
    ask: JsonObject | None = None
    defer: JsonObject | None = None


NOTHING: Final[JsonObject] = {}
"""The answer to what needs none: the host goes on by its own rules."""


def _text(said: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = said.get(name, default)
    if not isinstance(value, str) or (default is None and not value):
        raise UnreadableHook(f"{name!r} of the hook's input is not a text")
    return value


def _object(said: Mapping[str, Any], name: str) -> JsonObject:
    value = said.get(name)
    if not payloads.is_object(value):
        raise UnreadableHook(f"{name!r} of the hook's input is not an object")
    return value


def _object_or_text(said: Mapping[str, Any], name: str) -> JsonObject:
    """An object, or the one that a text has as JSON."""
    value = said.get(name)
    if isinstance(value, str):
        return read_object(value, f"{name!r} of the hook's input")
    return _object(said, name)


_COMES_LATER: Final = ("post", "after", "permission")
"""Beginnings of events about a call that runs already, or that a person is asked about."""

_COMES_BEFORE: Final = ("pre", "before")

_ASKS_NOTHING: Final = frozenset(
    {
        "beforesubmitprompt",
        # Cursor's completion reads the file that is open; no model calls a tool.
        "beforetabfileread",
        "precompact",
        # Gemini's, of which each tool that follows is asked about by itself.
        "beforeagent",
        "beforemodel",
        "beforetoolselection",
        "precompress",
    }
)
"""Events before something that is no call of a tool, without regard to case."""


def _check_asks_nothing(event: str, said: JsonObject) -> None:
    """Refuse an event that is not known, and may ask whether a call may run.

    Left without an answer, its host would run the call.
    """
    name = event.casefold()
    if name in _ASKS_NOTHING or name.startswith(_COMES_LATER):
        return
    if name.startswith(_COMES_BEFORE) or said.keys() & {"tool_name", "tool_input", "command"}:
        raise UnreadableHook(
            f"'hook_event_name' of the hook's input is {printable(event[:64])!r}, which is not"
            " known"
        )


def read_object(given: bytes | str, what: str) -> JsonObject:
    """An object of JSON that reads alike for everybody who reads it.

    Raises:
        UnreadableHook: It is none, or says one name twice: its host may run the other value.
    """
    try:
        value: object = msgspec.json.decode(given)
        json.loads(given, object_pairs_hook=_pairs_of)
    except UnreadableHook:
        raise UnreadableHook(f"{what} says one name twice") from None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise UnreadableHook(f"{what} is not JSON") from None
    if not payloads.is_object(value):
        raise UnreadableHook(f"{what} is not an object")
    return value


def _pairs_of(pairs: list[tuple[str, object]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise UnreadableHook


def _output(value: object) -> str:
    """The words of a result: what a shell wrote, else its JSON."""
    if isinstance(value, str):
        return value
    said = payloads.as_object(value)
    written = [said[each] for each in ("stdout", "stderr", "output") if said.get(each)]
    if written and all(isinstance(each, str) for each in written):
        return "\n".join(written)
    return msgspec.json.encode(value, enc_hook=str).decode()


def _exit_code(value: object) -> int | None:
    said = payloads.as_object(value)
    names = ("exit_code", "exitCode", "returnCode")
    found = (said[each] for each in names if isinstance(said.get(each), int))
    return next(found, None)


def _report(
    output: object, *, failed: object, denied: bool = False, code: int | None = None
) -> PermitReport:
    outcome = ReportedOutcome.FAILED if failed else ReportedOutcome.COMPLETED
    return PermitReport.of(ReportedOutcome.NOT_RUN if denied else outcome, _output(output), code)


# --- Claude Code, and those that speak as it does ---


def _read_claude(agent: str, said: JsonObject, own_server: str) -> HookInput:
    event = _text(said, "hook_event_name")
    if agent == "claude-code" and "cursor_version" in said:
        # Cursor runs Claude Code's hooks beside its own, which ask about the same call.
        return HookInput(HookKind.TELLS)
    # Of these, none is worth to keep a call from running.
    session, worker, prompt = (
        payloads.as_text(said.get(each)) for each in ("session_id", "agent_id", "prompt_id")
    )
    hook = HookInput(
        HookKind.TELLS,
        session=session,
        worker=worker,
        prompt=prompt,
        # Of a worker that does not say which it is, nothing ends.
        ends_turn=event == "Stop" or (event == "SubagentStop" and bool(worker)),
        ends_session=event == "SessionEnd",
    )
    is_dialog = asks_by_dialog(agent, said)
    if not is_dialog and event not in ("PreToolUse", "PostToolUse", "PostToolUseFailure"):
        _check_asks_nothing(event, said)
        return hook
    call = HostCall(
        _text(said, "tool_name"),
        _object(said, "tool_input"),
        agent,
        session=_text(said, "session_id"),
        call_id="" if is_dialog else _text(said, "tool_use_id"),
        cwd=_text(said, "cwd", ""),
        mode=_text(said, "permission_mode", ""),
        worker=worker,
    )
    if event == "PreToolUse" or is_dialog:
        kind = HookKind.RACES if is_dialog else HookKind.ASKS
        return replace(hook, kind=kind, call=call, is_own=_is_own(said, own_server))
    if event == "PostToolUseFailure":
        report = _report(said.get("error", ""), failed=True)
    else:
        response = said.get("tool_response", said.get("tool_output", ""))
        code = _exit_code(response)
        report = _report(response, failed=code, code=code)
    # Of the others it is not known.
    tells_input = agent in ("claude-code", "codex")
    return replace(hook, kind=HookKind.REPORTS, call=call, report=report, tells_input=tells_input)


def _is_own(said: JsonObject, own_server: str) -> bool:
    """True for a call of the MCP server that the user has set up for us under a name.

    Never by the name alone, which a project's file can give to a server of its own.
    """
    server = payloads.as_object(said.get("mcp_server"))
    is_named = bool(own_server) and server.get("name") == own_server
    return is_named and server.get("source") in OWN_SOURCES


def _answer_claude(decision: str, why: str, **more: object) -> JsonObject:
    said = {"permissionDecision": decision, "permissionDecisionReason": why, **more}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **said}}


def _permit_claude(arguments: JsonObject) -> JsonObject:
    # Also where nothing was edited: what was permitted runs, and nothing else.
    return _answer_claude("allow", "permitted in the space", updatedInput=arguments)


def _deny_claude(words: str) -> JsonObject:
    return _answer_claude("deny", words)


ASK_WORDS: Final = (
    "This call waits for a decision in the space as well. Where no person is at this terminal,"
    " it was not carried out, since nobody decided about it; do not try to do the same by another"
    " way."
)

_ASK_CLAUDE: Final = _answer_claude("ask", ASK_WORDS)

# At a terminal it is no answer: the call goes by its own rules. So only a program that knows that
# there is none asks for it.
_DEFER_CLAUDE: Final = _answer_claude("defer", "it waits for a decision in the space")


def asks_by_dialog(agent: str, said: Mapping[str, Any]) -> bool:
    """True for the hook of a dialog, which takes answers of its own."""
    return said.get("hook_event_name") == "PermissionRequest" and agent == "claude-code"


def permit_dialog(arguments: JsonObject) -> JsonObject:
    """The answer that lets the call of a dialog run, with the arguments to run."""
    return _answer_dialog({"behavior": "allow", "updatedInput": arguments})


def deny_dialog(words: str) -> JsonObject:
    """The answer that keeps the call of a dialog from running, with words for the model."""
    return _answer_dialog({"behavior": "deny", "message": words})


def _answer_dialog(decision: JsonObject) -> JsonObject:
    return {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}}


# --- Cursor ---


def _read_cursor(said: JsonObject, own_server: str) -> HookInput:
    event = _text(said, "hook_event_name")
    session, call_id = _text(said, "conversation_id", ""), _text(said, "tool_use_id", "")
    cwd = _text(said, "cwd", "")

    def call_of(tool: str, arguments: JsonObject) -> HostCall:
        return HostCall(tool, arguments, "cursor", session, call_id, cwd, edits=False)

    match event:
        case "beforeShellExecution" | "afterShellExecution":
            call = call_of("Shell", {"command": _text(said, "command")})
        case "beforeReadFile":
            call = call_of("Read", {"file_path": _text(said, "file_path")})
        case "preToolUse" | "postToolUse" | "postToolUseFailure" | "beforeMCPExecution":
            # A text, as of calls of MCP servers.
            call = call_of(_text(said, "tool_name"), _object_or_text(said, "tool_input"))
        case _:
            _check_asks_nothing(event, said)
            return HookInput(HookKind.TELLS)
    if event.startswith(("before", "pre")):
        return HookInput(HookKind.ASKS, call)
    # A call that was denied is told as one that failed.
    denied = said.get("failure_type") == "permission_denied"
    output = said.get("output", said.get("tool_output", said.get("error_message", "")))
    report = _report(output, failed=event == "postToolUseFailure", denied=denied)
    return HookInput(HookKind.REPORTS, call, report)


def _deny_cursor(words: str) -> JsonObject:
    return {"permission": "deny", "user_message": words, "agent_message": words}


# --- Copilot CLI ---


def _read_copilot(said: JsonObject, own_server: str) -> HookInput:
    if "hook_event_name" in said:  # VS Code speaks as Claude Code does
        return _read_claude("copilot", said, own_server)
    arguments = _object_or_text(said, "toolArgs")
    session = _text(said, "sessionId", "")
    call_id, cwd = _text(said, "toolCallId", ""), _text(said, "cwd", "")
    call = HostCall(_text(said, "toolName"), arguments, "copilot", session, call_id, cwd)
    result = said.get("toolResult")
    if result is None:
        return HookInput(HookKind.ASKS, call)
    of = payloads.as_object(result)
    kind = of.get("resultType", "success")
    output = of.get("textResultForLlm") or of
    report = _report(output, failed=kind != "success", denied=kind == "denied")
    return HookInput(HookKind.REPORTS, call, report)


def _permit_copilot(arguments: JsonObject) -> JsonObject:
    said = {"permissionDecision": "allow", "modifiedArgs": arguments}
    return {**said, **_permit_claude(arguments)}


def _deny_copilot(words: str) -> JsonObject:
    said = {"permissionDecision": "deny", "permissionDecisionReason": words}
    return {**said, **_deny_claude(words)}


# --- Claude Code's permission tool, which is asked as a hook is ---


def read_permission_call(said: JsonObject, session: str, cwd: str) -> HostCall:
    """The call about which Claude Code asks its permission tool.

    Raises:
        UnreadableHook: A field is missing, or of another type.
    """
    tool, given = _text(said, "tool_name"), _object(said, "input")
    return HostCall(tool, given, "claude-code", session, _text(said, "tool_use_id", ""), cwd)


# --- Gemini CLI ---


def _read_gemini(said: JsonObject, own_server: str) -> HookInput:
    event = _text(said, "hook_event_name")
    if event not in ("BeforeTool", "AfterTool"):
        _check_asks_nothing(event, said)
        return HookInput(HookKind.TELLS)
    session, cwd = _text(said, "session_id", ""), _text(said, "cwd", "")
    name, given = _text(said, "tool_name"), _object(said, "tool_input")
    # It merges what a hook gives into its own arguments, so one that was taken out would run.
    call = HostCall(name, given, "gemini", session, cwd=cwd, edits=False)
    if event == "BeforeTool":
        return HookInput(HookKind.ASKS, call)
    response = said.get("tool_response", "")
    said = response if payloads.is_object(response) else {"": response}
    report = _report(said.get("", said), failed=said.get("error"))
    return HookInput(HookKind.REPORTS, call, report)


def _deny_gemini(words: str) -> JsonObject:
    return {"decision": "deny", "reason": words}


DIALECTS: Final[Mapping[str, HookDialect]] = {
    each.agent: each
    for each in (
        HookDialect(
            "claude-code",
            partial(_read_claude, "claude-code"),
            _permit_claude,
            _deny_claude,
            600.0,
            _ASK_CLAUDE,
            _DEFER_CLAUDE,
        ),
        HookDialect("codex", partial(_read_claude, "codex"), _permit_claude, _deny_claude, 600.0),
        HookDialect("cursor", _read_cursor, lambda _: {"permission": "allow"}, _deny_cursor, 60.0),
        HookDialect("copilot", _read_copilot, _permit_copilot, _deny_copilot, 30.0),
        HookDialect("gemini", _read_gemini, lambda _: {"decision": "allow"}, _deny_gemini, 60.0),
    )
}
"""The coding agents whose hooks are known, by name."""


def unreadable_words(agent: str, problem: str) -> str:
    """The words to the model about a message of its program that cannot be read."""
    return (
        f"This call was not carried out: its approval needs what {agent} did not say as expected"
        f" ({problem}). Nobody decided about it. Do not try to do the same by another way; tell the"
        " user to update meup-agent."
    )
