"""Participants that behave as the existing TypeScript ones do, where it matters to their peers.

Each is a plain WebSocket client with a reader in a thread of its own, so that tests on any loop can
use it. What they do was observed: tests/vectors/captures/ts-participants-*.jsonl has it. They begin
all of their ids anew whenever they connect, check no sender, and never withdraw a request.
"""

import itertools
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar, Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.conformance.matcher import Json
from tests.conformance.spaces import given, now
from tests.conformance.versions import MEW_V04, Version
from tests.patience import PATIENCE

# Short, since a stalled gateway never answers; one that does answers faster.
CLOSE_TIMEOUT = 0.2


def first_of(correlation: Any) -> str:
    return str(correlation[0] if isinstance(correlation, list) and correlation else correlation)


class ReferencePeer:
    """Joins, sends a heartbeat, acknowledges grants and otherwise only listens.

    Args:
        url: of the gateway.
        name: the participant's id, and the beginning of each of its ids: `name-1`, `name-2`, …
        version: which of the two protocols it speaks.
        space: where it joins.
        token: what it shows; `name-token` if not given.
    """

    registers: ClassVar[bool] = False

    def __init__(
        self,
        url: str,
        name: str,
        *,
        version: Version = MEW_V04,
        space: str = "default",
        token: str | None = None,
    ) -> None:
        self.url = url
        self.name = name
        self.version = version
        self.space = space
        self.token = f"{name}-token" if token is None else token
        # Any welcome says who one is, whomever it is addressed to.
        self.you: Json = {}
        self._news = threading.Condition()
        self._heard: list[Json] = []
        self._numbers = itertools.count(1)
        self._stack = ExitStack()
        self._socket: ClientConnection | None = None

    def __enter__(self) -> Self:
        self._connect()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def restart(self) -> None:
        """Ends, and joins again as a new process that counts its ids from 1."""
        self._stack.close()
        self._connect()

    @property
    def heard(self) -> list[Json]:
        """Every envelope received so far, noted when it has been reacted to."""
        with self._news:
            return list(self._heard)

    def wait_heard(self, wanted: Callable[[Json], bool], times: int = 1) -> list[Json]:
        """Waits until so many envelopes that are wanted have come, and returns all that are."""

        def found() -> list[Json]:
            return [envelope for envelope in self._heard if wanted(envelope)]

        with self._news:
            arrived = self._news.wait_for(lambda: len(found()) >= times, PATIENCE)
            assert arrived, f"{self.name!r} never heard {times} such envelopes"
            return found()

    def send(self, kind: str, payload: Any, **header: Any) -> str:
        """Sends an envelope with the next of the ids, and returns that id."""
        id = f"{self.name}-{next(self._numbers)}"
        made = {"protocol": self.version.protocol, "id": id, "ts": now(), "from": self.name}
        self.send_raw({**made, "kind": kind, **header, "payload": payload})
        return id

    def send_raw(self, frame: Json) -> None:
        assert self._socket is not None, f"{self.name!r} has not joined"
        self._socket.send(json.dumps(frame))

    def react(self, envelope: Json) -> None:
        """Called in the reader's thread with everything but what it sent itself."""

    def _connect(self) -> None:
        self._numbers = itertools.count(1)
        stack = self._stack = ExitStack()
        join: Json = {"type": "join", "participantId": self.name}
        join |= {"space": self.space, "token": self.token}
        path, headers = "/", {}
        if self.version.to_routes:
            join |= {"protocol": self.version.protocol, "id": "join", "from": self.name}
            path = f"/spaces/{self.space}"
            headers = {"Authorization": f"Bearer {self.token}", "X-Participant-ID": self.name}
        else:
            join["capabilities"] = []
        options: Json = {"close_timeout": CLOSE_TIMEOUT, "open_timeout": PATIENCE}
        options |= {"additional_headers": headers, "compression": None}
        socket = stack.enter_context(connect(self.url + path, **options))
        self._socket = socket
        self.send_raw(join)
        self._note(json.loads(socket.recv(PATIENCE)))
        reader = threading.Thread(target=self._read, args=[socket], name=f"peer {self.name}")
        reader.start()
        # The last to be entered is the first to end: the socket, and then its reader.
        stack.callback(reader.join, PATIENCE)
        stack.callback(socket.close)
        self.send("system/heartbeat", {})
        if self.registers:
            self.send("system/register", {"capabilities": []})

    def _read(self, socket: ClientConnection) -> None:
        try:
            for data in socket:
                try:
                    envelope = json.loads(data)
                except ValueError:
                    continue  # A frame of a stream.
                if given(envelope, "from") != self.name:
                    self._react(envelope)
                self._note(envelope)
        except ConnectionClosed:
            pass

    def _react(self, envelope: Json) -> None:
        kind = envelope.get("kind")
        if kind == "capability/grant" and given(envelope, "payload", "recipient") == self.name:
            status = {"status": "accepted"}
            self.send("capability/grant-ack", status, correlation_id=[envelope.get("id")])
        self.react(envelope)

    def _note(self, envelope: Json) -> None:
        with self._news:
            if envelope.get("kind") == "system/welcome":
                self.you = given(envelope, "payload", "you") or self.you
            self._heard.append(envelope)
            self._news.notify_all()

    def _is_for_me(self, envelope: Json) -> bool:
        to = envelope.get("to")
        return not to or self.name in to


class Bridge(ReferencePeer):
    """Tells the gateway what it can do, by `system/register`, whenever it has joined."""

    registers = True


Answer = Json | Callable[[Json], Json]


class ToolOwner(ReferencePeer):
    """Answers every request at once, and notifications too.

    A `meup/v0.2` one refuses them with -32601, correlates with a string and repeats a JSON-RPC id.
    A `mew/v0.4` one has string codes and neither `jsonrpc` nor an id; it answers requests that are
    for others too, and its responses are addressed to nobody.

    Args:
        answers: by tool, the payload of the response or what makes it of the arguments: say
            `{"result": 5}`, `{"result": "text"}`, `{}` or `{"error": {"code": "NOT_FOUND", …}}`.
    """

    def __init__(self, url: str, name: str, answers: Mapping[str, Answer], **more: Any) -> None:
        super().__init__(url, name, **more)
        self.answers = answers

    def react(self, envelope: Json) -> None:
        if envelope.get("kind") != "mcp/request":
            return
        if self.version.to_routes and not self._is_for_me(envelope):
            return
        payload = self._answer(envelope)
        header: Json = {"correlation_id": envelope.get("id")}
        if self.version.to_routes:
            header["to"] = [envelope.get("from")]
            request_id = given(envelope, "payload", "id")
            payload |= {"jsonrpc": "2.0"} | ({} if request_id is None else {"id": request_id})
        self.send("mcp/response", payload, **header)

    def _answer(self, envelope: Json) -> Json:
        method = given(envelope, "payload", "method")
        if method == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in self.answers]
            return {"result": {"tools": tools}}
        if method != "tools/call":
            return self._error("NOT_IMPLEMENTED", f"Unsupported method: {method}")
        tool = given(envelope, "payload", "params", "name")
        if tool not in self.answers:
            return self._error("NOT_FOUND", f"Tool not found: {tool}")
        answer = self.answers[tool]
        arguments = given(envelope, "payload", "params", "arguments") or {}
        return dict(answer) if isinstance(answer, Mapping) else answer(arguments)

    def _error(self, code: str, message: str) -> Json:
        return {"error": {"code": -32601 if self.version.to_routes else code, "message": message}}


class Fulfiller(ReferencePeer):
    """Approves every proposal, with a request that does not say which proposal it is for.

    Withdrawals are not looked at, and neither is who answers. When the response is there, it tells
    the proposer: by a chat (`meup/v0.2`) or by an `mcp/response` to the proposal (`mew/v0.4`).

    Args:
        executor: who is asked to do it where the proposal names nobody.
    """

    def __init__(self, url: str, name: str, *, executor: str, **more: Any) -> None:
        super().__init__(url, name, **more)
        self.executor = executor
        # By the request's id: the proposal's, and who made it.
        self._open: dict[str, tuple[Any, Any]] = {}

    def react(self, envelope: Json) -> None:
        kind, payload = envelope.get("kind"), envelope.get("payload")
        if kind == "mcp/proposal":
            call = given(payload, "proposal") or payload
            request: Json = {key: given(call, key) for key in ("method", "params")}
            others = [name for name in envelope.get("to") or [] if name != self.name]
            to = others or [self.executor]
            request_id = self.send("mcp/request", request, to=to)
            self._open[request_id] = envelope.get("id"), envelope.get("from")
        elif kind == "mcp/response":
            first = first_of(envelope.get("correlation_id"))
            proposal, proposer = self._open.pop(first, (None, None))
            if proposer is not None and self.version.to_routes:
                text = json.dumps(given(payload, "result"))
                self.send("chat", {"text": text, "format": "plain"}, to=[proposer])
            elif proposer is not None:
                self.send("mcp/response", payload, to=[proposer], correlation_id=[proposal])


class Proposer(ReferencePeer):
    """Proposes, and takes whatever comes first from whomever for the outcome.

    Attributes:
        outcomes: by the proposal's id, what ended the wait: the first response to the proposal or
            to any request that names it first, or the first reject, whoever sent it.
    """

    def __init__(self, url: str, name: str, **more: Any) -> None:
        super().__init__(url, name, **more)
        self.outcomes: dict[str, Json] = {}
        self._proposal_of: dict[str, str] = {}

    def propose(self, method: str, params: Json, *, to: list[str] | None = None) -> str:
        call: Json = {"method": method, "params": params}
        payload = {"proposal": call} if self.version.to_routes else call
        return self.send("mcp/proposal", payload, **({} if to is None else {"to": to}))

    def give_up(self, proposal: str) -> None:
        """Let its deadline pass, at the test's word: it withdraws (`mew/v0.4`) or says nothing."""
        if not self.version.to_routes:
            self.send("mcp/withdraw", {"reason": "timeout"}, correlation_id=[proposal])

    def react(self, envelope: Json) -> None:
        first = first_of(envelope.get("correlation_id"))
        if envelope.get("kind") == "mcp/request":
            self._proposal_of[str(envelope.get("id"))] = first
        elif envelope.get("kind") == "mcp/response":
            self.outcomes.setdefault(self._proposal_of.get(first, first), envelope)
        elif envelope.get("kind") == "mcp/reject" and not self.version.to_routes:
            # An older one does not act on rejects, and waits for its deadline.
            self.outcomes.setdefault(first, envelope)
