"""A gateway with bad intentions writes what a terminal would obey wherever it can: none obeys."""

import json
import re
from functools import partial
from typing import Any

import pytest
from websockets.sync.server import ServerConnection

from meup_agent.cli.commands import COMMANDS as MODULES
from meup_agent.cli.exit_codes import FAILED
from tests.cli.conftest import Done, Here, assert_fails
from tests.cli.servers import answering, websockets_to
from tests.cli.stage import HOSTILE

SETTINGS = {"MEUP_SPACE": "demo", "MEUP_TOKEN": "a-token-for-nobody"}

COMMANDS = [
    ("who",),
    ("who", "--json"),
    ("tools",),
    ("tools", "--json"),
    ("call", "--timeout", "3", "files", "read"),
    ("call", "--timeout", "3", "files", "read", "--json"),
    ("propose", "--timeout", "3", "files", "read"),
    ("reject", "p1", "--reason", "unsafe"),
    ("chat", "hello"),
    ("grant", "files", "chat"),
    ("revoke", "files", "chat"),
    ("invite", "new", "chat"),
    ("kick", "files"),
    ("tail",),
    ("tail", "--json"),
    ("doctor",),
    ("doctor", "--json"),
]


def envelope(kind: str, payload: object, **header: object) -> str:
    fields = {"protocol": "meup/v0.1", "id": f"1{HOSTILE}", "from": "system:gateway", "kind": kind}
    return json.dumps({**fields, "payload": payload, **header})


CAPABILITY = {"kind": HOSTILE, "payload": {HOSTILE: HOSTILE}}

WELCOME = envelope(
    "system.welcome",
    {
        "you": {"id": f"me{HOSTILE}", "capabilities": [{"kind": "*"}, CAPABILITY]},
        "participants": [
            {"id": "files", "capabilities": [CAPABILITY]},
            {"id": HOSTILE, "capabilities": [CAPABILITY, HOSTILE]},
        ],
        "dev.meup/gateway": {"name": HOSTILE, "version": HOSTILE},
    },
    to=["me"],
)


TOOL = {
    "name": "read",
    "title": HOSTILE,
    "description": HOSTILE,
    "inputSchema": {
        "type": "object",
        "properties": {HOSTILE: {"type": HOSTILE, "description": HOSTILE, "default": HOSTILE}},
    },
}


ANSWERED = ("mcp.request", "mcp.proposal", "mcp.reject", "chat", "space.invite")


def evil(connection: ServerConnection, *, listens: bool = True) -> None:
    """Welcome everybody, answer everything, and then throw them out; all with the same words."""
    connection.send(WELCOME)
    said: dict[str, Any] = {"participant": {"id": HOSTILE}, "event": HOSTILE}
    connection.send(envelope("system.presence", said))
    connection.send(envelope("chat", {"message": HOSTILE}, **{"from": HOSTILE, "to": [HOSTILE]}))
    connection.send(envelope(HOSTILE, {HOSTILE: HOSTILE}, **{"from": HOSTILE}))
    connection.send(envelope("mcp.proposal", {"method": HOSTILE, "params": {"name": HOSTILE}}))
    connection.send(HOSTILE)
    if not listens:
        connection.close(4403, HOSTILE[:30])
        return
    for frame in connection:
        asked = json.loads(frame)
        if asked.get("kind") not in ANSWERED:
            continue
        about = {"to": [asked["from"]], "correlationId": asked["id"]}
        if asked["payload"].get("method") == "tools/list":
            tools = {"jsonrpc": "2.0", "id": asked["payload"]["id"], "result": {"tools": [TOOL]}}
            connection.send(envelope("mcp.response", tools, **about, **{"from": asked["to"][0]}))
            continue
        error = {"code": -32000, "message": HOSTILE, "data": {"reason": HOSTILE}}
        answer = {"jsonrpc": "2.0", "id": asked["payload"].get("id"), "error": error}
        connection.send(envelope("mcp.response", answer, **about, **{"from": "files"}))
        refused = {"error": HOSTILE, "message": HOSTILE, "details": HOSTILE}
        connection.send(envelope("system.error", refused, **about))
        connection.send(envelope("mcp.reject", {"reason": HOSTILE}, **about, **{"from": "files"}))
        connection.close(4403, HOSTILE[:30])
        return


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("coloured", [False, True], ids=["pipe", "terminal"])
def test_no_command_passes_it_on(words: tuple[str, ...], coloured: bool, command: Here) -> None:
    more = {"FORCE_COLOR": "1"} if coloured else {}
    with websockets_to(partial(evil, listens=words[0] != "tail")) as url:
        done = command(*words, MEUP_URL=url, **SETTINGS, **more)
    said = done.out + done.err
    assert said
    # Rich's own colours, which hold nothing of anybody's.
    bare = re.sub(r"\x1b\[[0-9;]*m", "", said) if coloured else said
    assert bare.replace("\n", "").isprintable(), repr(bare)
    assert "a-token-for-nobody" not in said


OVER_HTTP = [
    ("audit",),
    ("audit", "--proposal", "p1"),
    ("audit", "--json"),
    ("withdraw", "p1"),
    ("fulfill", "p1"),
    ("reject", "--as", "me", "p1", "--reason", "unsafe"),
    ("call", "--as", "me", "files", "read"),
]


def test_every_command_of_a_participant_is_tried() -> None:
    tried = {words[0] for words in (*COMMANDS, *OVER_HTTP)} | {"inbox"}  # tests/cli/inbox
    known = {name for name, module in MODULES.items() if module.startswith("participant.")}
    assert known - tried == set()


MESSAGES = [
    {
        "protocol": "meup/v0.1",
        "id": each_id,
        "from": sender,
        "kind": kind,
        "seq": number,
        "payload": {"method": "tools/call", "reason": HOSTILE, "params": {"name": HOSTILE}},
        "to": [HOSTILE],
        "correlationId": "p1",
    }
    for number, (each_id, sender, kind) in enumerate(
        [("p1", "me", "mcp.proposal"), (HOSTILE, HOSTILE, "mcp.reject"), ("x", HOSTILE, HOSTILE)], 1
    )
]

ANSWERS: dict[str, tuple[int, object]] = {
    "error": (400, {"error": HOSTILE, "message": HOSTILE, "details": {HOSTILE: HOSTILE}}),
    "text": (500, HOSTILE),
    "other": (200, {"id": HOSTILE, "space": HOSTILE}),
    "page": (
        200,
        {"id": "me", "space": "demo", "dialect": HOSTILE, "messages": MESSAGES}
        | {"seq": 9, "status": HOSTILE, "next": None, "proposals": [MESSAGES[0]]},
    ),
}


@pytest.mark.parametrize("words", OVER_HTTP, ids=" ".join)
@pytest.mark.parametrize("answer", ANSWERS)
def test_no_command_passes_on_http(words: tuple[str, ...], answer: str, command: Here) -> None:
    _, out, err = run_over_http(command, words, *ANSWERS[answer])
    assert (out + err).replace("\n", "").isprintable(), repr(out + err)
    assert "a-token-for-nobody" not in out + err


@pytest.mark.parametrize("words", [("audit",), ("policy", "suggest")], ids=" ".join)
def test_journal_without_an_end_is_not_read_for_ever(words: tuple[str, ...], command: Here) -> None:
    page = {"id": "me", "space": "demo", "messages": [], "times": [], "next": 7}
    assert_fails(run_over_http(command, words, 200, page), FAILED, "its journal has no end")


def run_over_http(command: Here, words: tuple[str, ...], status: int, said: object) -> Done:
    """Run a command at a gateway that gives the same answer to everything."""
    body = (said if isinstance(said, str) else json.dumps(said)).encode()
    head = f"HTTP/1.1 {status} X\x1b[2J\r\nContent-Type: application/json\r\nConnection: close\r\n"
    reply = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with answering(reply) as url:
        return command(*words, MEUP_HTTP=url.replace("ws://", "http://"), **SETTINGS)
