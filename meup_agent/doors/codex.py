"""A client of a Codex app-server that answers its requests for approval, beside the terminal.

An app-server tells every client which threads are at work, and asks those that have joined a thread
for approval; the first answer counts, and the others are told by ``serverRequest/resolved``. This
client joins each thread that is at work, has what is asked decided in a space, and answers for one
call at a time: ``accept`` or ``decline``, never ``acceptForSession``. The protocol has no answer
that changes a call, so neither has a permit of this door.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import msgspec

from meup_agent.doors.acp_messages import rpc_id_of
from meup_agent.doors.permit import Answer, HostCall, Permitted
from meup_agent.processes.guarded import LineLimiter
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.outcomes import PermitReport, ReportedOutcome
from meup_agent.protocol.wire.ttl_map import keep_last
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from meup_agent.protocol.wire.payloads import JsonObject

log = logging.getLogger("meup_agent.doors")

MAX_ASKS: Final = 64
"""Approvals that wait at once: each is a proposal for people to see. One more is declined."""

MAX_THREADS: Final = 1_024
"""Threads that are remembered as joined; the oldest makes room, and is joined again."""

MAX_ITEMS: Final = 1_024
"""Calls of threads that are remembered, with what they change; the oldest makes room."""

COMMAND: Final = "item/commandExecution/requestApproval"
CHANGE: Final = "item/fileChange/requestApproval"
PERMISSIONS: Final = "item/permissions/requestApproval"

ELICITATION: Final = "mcpServer/elicitation/request"
"""Codex's request for approval of a call of an MCP server, and any form of such a server."""

_MCP_CALL: Final = "mcp_tool_call"
"""The kind of such an approval. A server can say it, too, of a form of its own."""

_TOOLS: Final = {COMMAND: "Bash", CHANGE: "apply_patch", PERMISSIONS: "request_permissions"}
"""Request → the name of its tool, as Codex's hooks name it."""

NETWORK: Final = "network_access"
"""The tool of a request about a command which has begun, and wants to reach a host."""

_OUTCOMES: Final = {
    "completed": ReportedOutcome.COMPLETED,
    "declined": ReportedOutcome.NOT_RUN,  # at the terminal, as our yes was on its way
}

_IDS: Final = frozenset(
    {"threadId", "turnId", "itemId", "approvalId", "startedAtMs", "environmentId", "cwd"}
)
"""Parameters that are no argument of a call."""

_HINTS: Final = frozenset(
    {"commandActions", "availableDecisions", "proposedExecpolicyAmendment"}
    | {"proposedNetworkPolicyAmendments"}
)
"""Parameters that a client shows, or may answer with."""


class _Approval(NamedTuple):
    """An approval that waits."""

    thread: str
    scope: anyio.CancelScope


class CodexClient:
    """The client.

    Args:
        ask: Asks the space; cancelling it withdraws.
        send: Sends a message to the app-server.
        report: Tells the space what came of a permit.
    """

    def __init__(
        self,
        ask: Callable[[HostCall], Awaitable[Answer]],
        send: Callable[[bytes], Awaitable[None]],
        report: Callable[[str, PermitReport], object] = lambda _proposal, _report: None,
    ) -> None:
        self._ask, self._send, self._report = ask, send, report
        self._asks: dict[int | str, _Approval] = {}
        self._joined: OrderedDict[str, None] = OrderedDict()
        self._items: OrderedDict[tuple[str, str], JsonObject] = OrderedDict()
        # Of one call several: its command, and each host that it wants to reach.
        self._permits: OrderedDict[tuple[str, str], tuple[str, ...]] = OrderedDict()
        self._sent = 0
        self._joining: dict[int, str] = {}
        self._log = LineLimiter(lambda line, _: log.warning("%s", line))

    async def run(self, messages: AsyncIterator[bytes | str]) -> None:
        """Answer until the app-server ends; what waits is withdrawn then."""
        about = {"name": "meup", "title": "MEUP", "version": "1"}
        capabilities = {"experimentalApi": True}
        await self._request("initialize", {"clientInfo": about, "capabilities": capabilities})
        await self._write({"method": "initialized"})
        async with background_tasks() as tasks:
            async for line in messages:
                try:
                    message = payloads.as_object(msgspec.json.decode(line))
                except (msgspec.DecodeError, RecursionError) as error:
                    self._log.line(f"the app-server sent what cannot be read: {error}")
                    continue
                await self._take(message, tasks.start_soon)

    async def _request(self, method: str, params: JsonObject) -> int:
        self._sent += 1
        await self._write({"id": self._sent, "method": method, "params": params})
        return self._sent

    async def _write(self, message: JsonObject) -> None:
        await self._send(msgspec.json.encode(message))

    async def _take(self, message: JsonObject, start_soon: Callable[..., object]) -> None:
        method, params = message.get("method"), payloads.as_object(message.get("params"))
        thread, rpc_id = payloads.as_text(params.get("threadId")), message.get("id")
        meta = payloads.as_object(params.get("_meta"))
        is_mcp_call = method == ELICITATION and meta.get("codex_approval_kind") == _MCP_CALL
        if (method in _TOOLS or is_mcp_call) and isinstance(rpc_id, int | str):
            self._begin(rpc_id, str(method), params, start_soon)
        elif method == "serverRequest/resolved":
            named = rpc_id_of(params.get("requestId"))  # Codex's first is 0
            ask = None if named is None else self._asks.get(named)
            if ask is not None and ask.thread == thread:
                ask.scope.cancel()  # it was answered elsewhere, or its turn has ended
        elif method == "thread/status/changed":
            status = payloads.as_object(params.get("status")).get("type")
            if status == "active" and thread not in self._joined:
                keep_last(self._joined, thread, None, MAX_THREADS)
                said: JsonObject = {"threadId": thread, "excludeTurns": True}
                self._joining[await self._request("thread/resume", said)] = thread
        elif method == "thread/closed":
            self._joined.pop(thread, None)
        elif method in ("item/started", "item/completed"):
            self._take_item(thread, payloads.as_object(params.get("item")), str(method))
        elif rpc_id is not None and isinstance(method, str) and method.endswith("Approval"):
            # A yes at the terminal would run what the space has not seen.
            self._log.line(f"refused {method} of Codex, which is not known here")
            error: JsonObject = {"code": -32601, "message": "meup codex does not know this request"}
            await self._write({"id": rpc_id, "error": error})
        elif method is None and isinstance(rpc_id, int):
            joining = self._joining.pop(rpc_id, None)
            if joining is not None and "error" in message:
                self._joined.pop(joining, None)  # its next change of state tries again

    def _take_item(self, thread: str, item: JsonObject, method: str) -> None:
        """Remember what a call does, and report what came of it."""
        key = (thread, payloads.as_text(item.get("id")))
        if method == "item/started":
            before = self._items.get(key)
            # A model may give two calls one id: it is not known which of them is asked about.
            is_one = before is None or payloads.is_same_json(before, item)
            keep_last(self._items, key, item if is_one else {}, MAX_ITEMS)
            return
        self._items.pop(key, None)
        for proposal in self._permits.pop(key, ()):
            code, output = item.get("exitCode"), _output(item)
            outcome = _OUTCOMES.get(payloads.as_text(item.get("status")), ReportedOutcome.FAILED)
            self._report(
                proposal,
                PermitReport.of(outcome, output, code if isinstance(code, int) else None),
            )

    def _begin(
        self, rpc_id: int | str, method: str, params: JsonObject, start_soon: Callable[..., object]
    ) -> None:
        """Begin to have an approval decided; one that cannot be shown in full is declined.

        Left to the terminal, it would run by a yes there, and the space would not know.
        """
        if rpc_id in self._asks:
            return  # it is sent again to a client that joins again
        thread = payloads.as_text(params.get("threadId"))
        if method == ELICITATION:
            item = self._take_mcp_call(thread, params)
            params = {**params, "itemId": item.get("id")}
            tool, shown = _mcp_tool(item), payloads.as_object(item.get("arguments"))
            why = "" if item else "no such call has begun, or it was asked about before"
        else:
            item = self._items.get((thread, payloads.as_text(params.get("itemId"))), {})
            tool, shown, why = _shown(method, params, item)
        if not why and len(self._asks) >= MAX_ASKS:
            why = f"{MAX_ASKS} wait already"
        if why:
            self._log.line(f"declined {method} of Codex: {why}")
            start_soon(
                self._write, {"id": rpc_id, "result": _answer(method, params, allowed=False)}
            )
            return
        ask = self._asks[rpc_id] = _Approval(thread, anyio.CancelScope())
        call = HostCall(
            tool,
            shown,
            agent="codex",
            session=thread,
            cwd=payloads.as_text(params.get("cwd")),
            edits=False,
        )
        start_soon(self._decide, rpc_id, method, params, call, ask)

    def _take_mcp_call(self, thread: str, params: JsonObject) -> JsonObject:
        """The begun call that an approval is about, once; empty: there is none."""
        meta = payloads.as_object(params.get("_meta"))
        nothing: JsonObject = {}
        for key, item in self._items.items():
            said = (key[0], item.get("type"), item.get("server"), item.get("tool"))
            is_it = said == (thread, "mcpToolCall", params.get("serverName"), meta.get("tool_name"))
            asked: tuple[object, object] = (item.get("arguments"), meta.get("tool_params"))
            given, wanted = (nothing if each is None else each for each in asked)
            if is_it and payloads.is_object(given) and payloads.is_same_json(given, wanted):
                del self._items[key]
                return item
        return {}

    async def _decide(
        self, rpc_id: int | str, method: str, params: JsonObject, call: HostCall, ask: _Approval
    ) -> None:
        answer: Answer | None = None
        try:
            with ask.scope:
                answer = await self._ask(call)
        finally:
            del self._asks[rpc_id]
        if answer is None:
            return
        allowed = isinstance(answer, Permitted)
        if isinstance(answer, Permitted):
            key = (ask.thread, payloads.as_text(params.get("itemId")))
            # Of one more than that what came of it is not told: a command may ask without end.
            permits = (*self._permits.get(key, ()), answer.proposal)[-MAX_ASKS:]
            keep_last(self._permits, key, permits, MAX_ITEMS)
        await self._write({"id": rpc_id, "result": _answer(method, params, allowed=allowed)})


def _shown(method: str, params: JsonObject, item: JsonObject) -> tuple[str, JsonObject, str]:
    """The tool of an approval, its arguments, and why they are not all; empty: they are."""
    shown = {
        name: value
        for name, value in params.items()
        if name not in _IDS | _HINTS and value is not None
    }
    tool = _TOOLS[method]
    if method == CHANGE:
        shown["changes"] = item.get("changes")
    wanted = {COMMAND: "command", CHANGE: "changes", PERMISSIONS: "permissions"}[method]
    if method == COMMAND and "command" not in shown and "networkApprovalContext" in shown:
        wanted, tool = "networkApprovalContext", NETWORK
    return tool, shown, "" if shown.get(wanted) else f"it does not say its {wanted}"


def _mcp_tool(item: JsonObject) -> str:
    """The name of an MCP server's tool, as Codex's hooks name it."""
    names = (payloads.as_text(item.get(each)) for each in ("server", "tool"))
    return "__".join(("mcp", *(re.sub(r"\W", "_", name, flags=re.ASCII) for name in names)))


def _output(item: JsonObject) -> str:
    """The output of a command, or the text of an MCP server's result."""
    result, error = (payloads.as_object(item.get(each)) for each in ("result", "error"))
    texts = [
        payloads.as_text(each.get("text")) for each in payloads.objects_in(result.get("content"))
    ]
    said = [item.get("aggregatedOutput"), "\n".join(texts), error.get("message")]
    return next((text for text in (payloads.as_text(each) for each in said) if text), "")


def _answer(method: str, params: JsonObject, *, allowed: bool) -> JsonObject:
    """The answer to an approval: for this call, and no later one."""
    if method == ELICITATION:
        return {"action": "accept", "content": {}} if allowed else {"action": "decline"}
    if method == PERMISSIONS:
        return {"permissions": params["permissions"] if allowed else {}, "scope": "turn"}
    return {"decision": "accept" if allowed else "decline"}
