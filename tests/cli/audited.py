"""A space with a past, at a gateway that keeps its journal in a file and runs on."""

import json
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal
from websockets.sync.client import ClientConnection, connect

from meup_agent.gateway import Config, HttpConfig, JournalConfig, serve
from tests.cli.stage import HOSTILE
from tests.gateways import first_token, one_space_config
from tests.journal_files import change_frame
from tests.patience import PATIENCE

PARTICIPANTS: dict[str, list[dict[str, Any]]] = {
    "alice": [{"kind": "mcp.proposal"}, {"kind": "chat"}],
    "carol": [{"kind": "mcp.proposal"}],
    "bob": [{"kind": "*"}],
    "files": [{"kind": "mcp.response"}],
    "auditor": [],
}


class Member:
    """A participant that sends what the story wants, and waits until the gateway has ordered it."""

    def __init__(self, name: str, socket: ClientConnection) -> None:
        self.name = name
        self._socket = socket

    def say(self, id: str, kind: str, payload: Any, **header: Any) -> None:
        envelope = {
            "protocol": "meup/v0.1",
            "id": id,
            "from": self.name,
            "kind": kind,
            **header,
            "payload": payload,
        }
        self._socket.send(json.dumps(envelope))
        while True:
            heard = json.loads(self._socket.recv(PATIENCE))
            if heard["kind"] == "system.error":
                raise AssertionError(heard["payload"])
            if heard["id"] == id and heard["from"] == self.name:
                return

    def propose(self, id: str, path: str, **header: Any) -> None:
        params = {"name": "write_file", "arguments": {"path": path, "text": "hi"}}
        if "target" in header:
            params["_meta"] = {"dev.meup/target": header.pop("target")}
        self.say(id, "mcp.proposal", {"method": "tools/call", "params": params}, **header)

    def request(self, id: str, proposal: str, path: str) -> None:
        params = {"name": "write_file", "arguments": {"path": path, "text": "hi"}}
        call = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        self.say(id, "mcp.request", call, to=["files"], correlationId=proposal)

    def answer(self, id: str, request: str, **outcome: Any) -> None:
        payload = {"jsonrpc": "2.0", "id": request, **outcome}
        self.say(id, "mcp.response", payload, to=["bob"], correlationId=request)


class Past:
    """The space as tests see it.

    Attributes:
        journal: The journal's file.
        http: The gateway's HTTP address.
        config: The gateway's.
    """

    def __init__(self, journal: Path, http: str, config: Config) -> None:
        self.journal = journal
        self.http = http
        self.config = config

    def variables(self, participant: str = "auditor", **more: str) -> dict[str, str]:
        """The environment of a participant that asks over HTTP."""
        token = first_token(self.config, participant)
        return {"MEUP_HTTP": self.http, "MEUP_TOKEN": token, "MEUP_SPACE": "demo", **more}


@contextmanager
def past(folder: Path) -> Generator[Past]:
    """Let the story happen, and keep the gateway for the length of a block."""
    journal = folder / "journal.db"
    config = replace(
        one_space_config("demo", PARTICIPANTS),
        journal=JournalConfig(path=journal),
        http=HttpConfig(port=0),
    )
    with start_blocking_portal() as portal:
        serving = portal.wrap_async_context_manager(serve(config, "127.0.0.1", 0))
        with serving as gateway, ExitStack() as sockets:
            members = [
                Member(name, sockets.enter_context(_joined(gateway.url, config, name)))
                for name in ("alice", "bob", "files", "carol")
            ]
            _story(*members)
        _copy_an_id(journal)
        serving = portal.wrap_async_context_manager(serve(config, "127.0.0.1", 0))
        with serving as gateway:
            assert gateway.http_url is not None
            yield Past(journal, gateway.http_url, config)


def _copy_an_id(journal: Path) -> None:
    """Let two have used one id, as gateways let them before ids were claimed."""
    change_frame(journal, b"p-own", b"p-own", b"p-twice")


def _joined(url: str, config: Config, name: str) -> ClientConnection:
    header = {"Authorization": f"Bearer {first_token(config, name)}"}
    return connect(f"{url}/ws?space=demo", additional_headers=header, open_timeout=PATIENCE)


def _story(alice: Member, bob: Member, files: Member, carol: Member) -> None:
    alice.propose("p-fulfilled", "a.txt", to=["bob"], target="files")
    bob.request("r-1", "p-fulfilled", "b.txt")
    progress = {"progressToken": "r-1", "progress": 1}
    for number in range(3):
        note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
        files.say(f"n-{number}", "mcp.request", note, to=["bob"], correlationId="r-1")
    files.answer("a-1", "r-1", result={"content": [{"type": "text", "text": "done"}]})
    alice.say("w-1", "mcp.withdraw", {"reason": "policy"}, correlationId="p-fulfilled")

    alice.propose("p-rejected", "../secret", to=["bob"])
    bob.say("j-1", "mcp.reject", {"reason": "unsafe"}, correlationId="p-rejected")
    why = f"it leaves the workspace {HOSTILE}"
    bob.say("c-1", "chat", {"message": why}, correlationId="j-1")
    alice.say("w-2", "mcp.withdraw", {"reason": "no_longer_needed"}, correlationId="p-rejected")

    alice.propose("p-withdrawn", "c.txt")
    alice.say("w-3", "mcp.withdraw", {"reason": "timeout"}, correlationId="p-withdrawn")

    carol.propose("p-twice", "e.txt", to=["bob"])
    alice.propose("p-own", f"d.txt{HOSTILE}")
    bob.request("r-2", "p-twice", "e.txt")
    cancelled = {"requestId": "r-2", "reason": "no_longer_needed"}
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}
    bob.say("k-1", "mcp.request", cancel, to=["files"], correlationId="r-2")
    bob.request("r-3", "p-twice", "e.txt")

    grant = {"recipient": "carol", "capabilities": [{"kind": "chat"}], "reason": "trusted"}
    bob.say("g-1", "capability.grant", grant)
