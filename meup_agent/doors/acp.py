"""A proxy between an editor and an agent that speak ACP, the Agent Client Protocol.

It stands on both sides' standard streams and passes every line on as it came, but for three
requests of the agent: ``session/request_permission``, ``terminal/create`` and
``fs/write_text_file``. These are proposed in a space. A permission is answered here, once
(``allow_once`` or ``reject_once``); of the other two an allowed one is passed on to the editor,
which carries it out, and a denied one is answered with an error. The protocol has no answer that
changes a call, so neither has a permit of this door. Another version of it may have other requests,
so an agent that speaks one is not begun with.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from meup_agent.doors import acp_messages as acp
from meup_agent.doors.acp_outcomes import PermitOutcomes
from meup_agent.doors.permit import Answer, Denied, HostCall, Permitted, Why
from meup_agent.errors import printable
from meup_agent.processes.guarded import LineLimiter
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.outcomes import PermitReport, ReportedOutcome
from meup_agent.protocol.wire.ttl_map import keep_last
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from meup_agent.doors.acp_messages import HostRequest, Message, PermissionRequest, RpcId
    from meup_agent.protocol.wire.payloads import JsonObject

log = logging.getLogger("meup_agent.doors")

MAX_LINE_BYTES: Final = 32 * 1024 * 1024
"""Bytes of one message; the largest has a file in it."""

MAX_ASKS: Final = 64
"""Requests of an agent that wait for a decision at once: each is a proposal for people to see."""

MAX_HELD_BYTES: Final = 2 * MAX_LINE_BYTES
"""Bytes of those requests together; one more is denied."""

MAX_GRANTED: Final = 64
"""Permissions that a later terminal or write may be the use of; the oldest makes room."""

MAX_SESSIONS: Final = 1_024
"""Sessions whose folder is remembered; the oldest makes room."""

MAX_OPEN_REQUESTS: Final = 1_024
"""Requests of the editor whose answers are read; the oldest makes room."""

VERSION: Final = 1
"""The version of the protocol whose requests are known here."""

UNNAMED: Final = "acp"
"""Name of an agent that tells none."""

CANCELLED: Final = "its turn was cancelled as the permit came, so it was not passed on"
"""The report of a permit that came too late, for people."""

TOO_MANY: Final = "as many calls of this agent as can wait for a decision do"

_READ: Final = frozenset(
    {"initialize", "session/new", "session/load", "session/resume", "session/prompt"}
)
"""Requests of the editor that are remembered until they are answered."""


class _EditorRequest(NamedTuple):
    """A request of the editor whose answer tells something: what it was about."""

    method: str
    session: str
    folder: object


class _Ask(NamedTuple):
    """A request that waits for its decision, or for its permit to be written."""

    request: HostRequest
    size: int
    scope: anyio.CancelScope


class AcpProxy:
    """The proxy of one agent.

    Args:
        ask: Asks the space; cancelling it withdraws.
        to_editor: Writes a line to the editor.
        to_agent: Writes a line to the agent.
        report: Tells the space what came of a permit.
    """

    def __init__(
        self,
        ask: Callable[[HostCall], Awaitable[Answer]],
        *,
        to_editor: Callable[[bytes], Awaitable[None]],
        to_agent: Callable[[bytes], Awaitable[None]],
        report: Callable[[str, PermitReport], object] = lambda _proposal, _report: None,
    ) -> None:
        self._ask, self._report = ask, report
        self._to_editor, self._to_agent = _Lines(to_editor), _Lines(to_agent)
        self._open: dict[RpcId, _Ask] = {}
        self._granted: list[PermissionRequest] = []
        self._outcomes = PermitOutcomes(report)
        self._folders: OrderedDict[str, str] = OrderedDict()
        self._editor_asked: OrderedDict[RpcId, _EditorRequest] = OrderedDict()
        self._agent: JsonObject = {}
        self._is_known = True  # the version that the agent speaks
        self._log = LineLimiter(lambda line, _: log.warning("%s", line))

    async def run(self, from_editor: AsyncIterator[bytes], from_agent: AsyncIterator[bytes]) -> str:
        """Pass messages on until one side ends; which of the two. What waits is withdrawn then."""
        ended = ""
        async with background_tasks() as tasks:

            def end(side: str) -> None:
                nonlocal ended
                ended = ended or side
                tasks.cancel_scope.cancel()

            self._to_editor.on_end = partial(end, "editor")
            self._to_agent.on_end = partial(end, "agent")

            async def relay_editor() -> None:
                async for line in from_editor:
                    if self._read_editor(line):
                        await self._to_agent.send(line + b"\n")
                end("editor")

            async def relay_agent() -> None:
                async for line in from_agent:
                    await self._take_agent(line, tasks.start_soon)
                end("agent")

            tasks.start_soon(relay_editor)
            tasks.start_soon(relay_agent)
            await anyio.sleep_forever()
        return ended

    # --- from the editor, which is trusted ---

    def _read_editor(self, line: bytes) -> bool:
        """Note what a line of the editor changes for what waits; true if it is for the agent."""
        try:
            message = acp.read_message(line)
        except acp.Unreadable:
            return True  # the agent's to judge
        if message.method is None and message.rpc_id in self._open:
            self._log.line("left out an answer of the editor to a request that it has not seen")
            return False
        if message.method is None:
            self._outcomes.read_answer(message)
        elif message.method in ("session/cancel", "session/close"):
            self._withdraw(payloads.as_text(message.param_object.get("sessionId")))
        elif message.method == acp.CANCEL:
            asked = self._editor_asked.get(_cancelled(message))
            if asked is not None and asked.method == "session/prompt":
                self._withdraw(asked.session)
        elif message.method in _READ and message.rpc_id is not None:
            params = message.param_object
            session = payloads.as_text(params.get("sessionId"))
            asked = _EditorRequest(message.method, session, params.get("cwd"))
            keep_last(self._editor_asked, message.rpc_id, asked, MAX_OPEN_REQUESTS)
        return True

    def _withdraw(self, session: str) -> None:
        """Withdraw what waits in a session, whose turn was cancelled."""
        for ask in self._open.values():
            if ask.request.session_id == session:
                ask.scope.cancel()
        self._forget_granted(session)

    def _forget_granted(self, session: str) -> None:
        """Let no permission of a turn that has ended cover a later call."""
        self._granted = [each for each in self._granted if each.session_id != session]

    # --- from the agent, which is not ---

    async def _take_agent(self, line: bytes, start_soon: Callable[..., object]) -> None:
        """Pass a line of the agent on, or have it decided."""
        try:
            message = acp.read_message(line)
        except acp.Unreadable as error:
            # The editor could find a request in it that was not decided.
            self._log.line(f"left out a line of the agent that cannot be read: {error}")
            return
        if not self._is_known:
            return
        if message.method in acp.DECIDED:
            await self._begin(message, line, start_soon)
            return
        if message.method == acp.CANCEL:
            ask = self._open.get(_cancelled(message))
            if ask is not None:
                ask.scope.cancel()
                return  # the editor has not seen that request
        elif message.method is None and isinstance(message.id, float):
            self._log.line("left out an answer of the agent whose id some read as another")
            return
        elif message.method is None and message.rpc_id is not None:
            if why := self._read_answer(message):
                log.error("%s", why)
                self._is_known = False
                line = acp.error_line(message.id, acp.REQUEST_CANCELLED, why).rstrip()
        else:
            self._outcomes.read_agent(message, line)
        await self._to_editor.send(line + b"\n")

    def _read_answer(self, message: Message) -> str:
        """Note the agent's name, the folders of its sessions, and the end of a turn.

        Returns:
            Why the agent cannot be begun with; empty: it can.
        """
        assert message.rpc_id is not None
        asked = self._editor_asked.pop(message.rpc_id, None)
        if asked is None:
            return ""
        result = message.result_object
        if asked.method == "initialize":
            self._agent = payloads.as_object(result.get("agentInfo"))
            version = result.get("protocolVersion")
            is_begun = message.error == acp.NONE or result  # with both, some read the result
            if is_begun and not payloads.is_same_json(version, VERSION):
                return (
                    f"the agent speaks version {printable(json.dumps(version)[:40])} of ACP"
                    f" ('protocolVersion'), and meup acp knows {VERSION} alone, so nothing of the"
                    " agent is passed on; update meup-agent, or start the agent without meup acp"
                )
        elif asked.method == "session/prompt":
            self._forget_granted(asked.session)
        else:
            session = asked.session or result.get("sessionId")
            if isinstance(session, str) and isinstance(asked.folder, str):
                keep_last(self._folders, session, asked.folder, MAX_SESSIONS)
        return ""

    async def _begin(
        self, message: Message, line: bytes, start_soon: Callable[..., object]
    ) -> None:
        """Begin to have a request decided, or answer it at once."""
        rpc_id = message.rpc_id
        if rpc_id is None:
            self._log.line(f"left out {message.method} of the agent, which asks for no answer")
            return
        request: HostRequest | None = None
        try:
            request = acp.read_request(message)
            why = ""
        except acp.Unreadable as error:
            why = f"it cannot be read ({error})"
        if isinstance(request, acp.PermissionRequest) and not acp.allows_once(request):
            why = "it has no answer that allows it once"
        if rpc_id in self._open:
            why = "a request with this id waits already"
        elif len(self._open) >= MAX_ASKS or self._held + len(line) > MAX_HELD_BYTES:
            why = TOO_MANY
        if request is None or why:
            self._log.line(f"refused {message.method} of the agent: {why}")
            await self._deny(message, request, Denied(Why.UNREACHABLE, _words(why)))
            return
        if self._use_granted(request):
            await self._to_editor.send(line + b"\n")
            return
        ask = self._open[rpc_id] = _Ask(request, len(line), anyio.CancelScope())
        start_soon(self._decide, message, line, ask)

    @property
    def _held(self) -> int:
        return sum(each.size for each in self._open.values())

    def _use_granted(self, request: HostRequest) -> bool:
        """Take a request for the use of a permission that its agent was given, once."""
        folder = self._folders.get(request.session_id)
        for each in self._granted:
            if acp.is_same_call(each, folder, request):
                self._granted.remove(each)
                return True
        return False

    async def _decide(self, message: Message, line: bytes, ask: _Ask) -> None:
        """Have a request decided, and answer it or pass it on."""
        rpc_id, request = message.rpc_id, ask.request
        assert rpc_id is not None

        def end_wait() -> bool:
            # Up to here a cancel withdraws it, also while others' lines are written.
            if self._open.get(rpc_id) is ask:
                del self._open[rpc_id]
            return not ask.scope.cancel_called

        answer: Answer = Denied(Why.WITHDRAWN, _words("it was cancelled before"))
        try:
            with ask.scope:
                answer = await self._ask(self._host_call(message, request))
            if isinstance(answer, Permitted):
                proposal = answer.proposal
                if await self._pass_permit(request, rpc_id, line, proposal, end_wait):
                    return
                self._report(proposal, PermitReport.of(ReportedOutcome.NOT_RUN, CANCELLED))
                answer = Denied(Why.WITHDRAWN, _words("it was cancelled"))
        finally:
            end_wait()
        await self._deny(message, request, answer)

    async def _pass_permit(
        self,
        request: HostRequest,
        rpc_id: RpcId,
        line: bytes,
        proposal: str,
        begins: Callable[[], bool],
    ) -> bool:
        """Tell the agent, or the editor, that a request is permitted; false: it was cancelled."""

        def begin() -> bool:
            if not begins():
                return False
            self._outcomes.expect(rpc_id, request, proposal)
            if isinstance(request, acp.PermissionRequest):
                self._granted = [*self._granted, request][-MAX_GRANTED:]
            return True

        if not isinstance(request, acp.PermissionRequest):
            return await self._to_editor.send(line + b"\n", begin)
        allowed = acp.permission_answer(request, "allow_once")
        return await self._to_agent.send(acp.answer_line(rpc_id, result=allowed), begin)

    def _host_call(self, message: Message, request: HostRequest) -> HostCall:
        """The call that a request proposes.

        It has no id: one that the agent gives twice would let it run a call again that was
        permitted once.
        """
        tool, arguments = acp.call_of(message, request)
        return HostCall(
            tool,
            arguments,
            agent=payloads.as_text(self._agent.get("name")) or UNNAMED,
            session=request.session_id,
            cwd=self._folders.get(request.session_id, ""),
            edits=False,
        )

    async def _deny(self, message: Message, request: HostRequest | None, answer: Denied) -> None:
        if message.method == acp.PERMISSION:
            asked = request if isinstance(request, acp.PermissionRequest) else None
            kind = "reject_once" if answer.why is Why.REJECTED else ""
            said = acp.permission_answer(asked, kind, answer.words)
            await self._to_agent.send(acp.answer_line(message.id, result=said))
        else:
            code = acp.REJECTED if answer.why is Why.REJECTED else acp.REQUEST_CANCELLED
            await self._to_agent.send(acp.error_line(message.id, code, answer.words))


class _Lines:
    """Writes whole lines, one at a time, in the order in which they were given.

    Attributes:
        on_end: Called where nobody reads them any more.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write
        self._turn = anyio.Lock()
        self.on_end: Callable[[], None] = lambda: None

    async def send(self, line: bytes, begins: Callable[[], bool] = lambda: True) -> bool:
        """Write a line as its turn comes; false: ``begins``, which is called then, said no."""
        async with self._turn:
            if not begins():
                return False
            try:
                await self._write(line)
            except OSError:
                self.on_end()
            return True


def _words(why: str) -> str:
    """The words to the model about a call that nobody has decided."""
    return (
        f"This call was not carried out: {why}. Nobody decided about it: do not try to do the same"
        " by another way; tell the user."
    )


def _cancelled(message: Message) -> RpcId:
    named = acp.rpc_id_of(message.param_object.get("requestId"))
    return "" if named is None else named  # 0 is one, too
