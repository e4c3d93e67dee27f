"""Outcomes of the permits of an ACP proxy: what came of them, as agent and editor tell."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from meup_agent.doors import acp_messages as acp
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.outcomes import PermitReport, ReportedOutcome
from meup_agent.protocol.wire.ttl_map import keep_last

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.doors.acp_messages import HostRequest, Message, RpcId

MAX_REPORTED: Final = 1_024
"""Permits whose outcome may still be told; the oldest makes room, and stays unreported."""

_OUTCOMES: Final = {
    "completed": ReportedOutcome.COMPLETED,
    "failed": ReportedOutcome.FAILED,
}


class PermitOutcomes:
    """Reports what came of permits, as the agent and the editor tell.

    A call that its agent runs itself ends with an update of that call, in the agent's words. A
    file's writing and a command's start are answered by the editor, and a command's end is, where
    the agent asks for it.

    Args:
        report: Tells the space.
    """

    def __init__(self, report: Callable[[str, PermitReport], object]) -> None:
        self._report = report
        self._calls: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._requests: OrderedDict[RpcId, tuple[str, str]] = OrderedDict()
        self._terminals: OrderedDict[tuple[str, str], str] = OrderedDict()

    def expect(self, rpc_id: RpcId, request: HostRequest, proposal: str) -> None:
        """Wait for the outcome of a permit."""
        if isinstance(request, acp.PermissionRequest):
            key = (request.session_id, request.tool_call.tool_call_id)
            keep_last(self._calls, key, proposal, MAX_REPORTED)
        else:
            session = request.session_id if isinstance(request, acp.TerminalRequest) else ""
            keep_last(self._requests, rpc_id, (session, proposal), MAX_REPORTED)

    def read_agent(self, message: Message, line: bytes) -> None:
        """Look at what the agent says of a call, or asks about a terminal."""
        if message.method == "session/update" and self._calls and b"toolCallId" in line:
            params = message.param_object
            update = payloads.as_object(params.get("update"))
            key = (payloads.as_text(params.get("sessionId")), acp.call_id_of(update))
            status = update.get("status")
            outcome = _OUTCOMES.get(status) if isinstance(status, str) else None
            if outcome is not None and (proposal := self._calls.pop(key, "")):
                self._report(proposal, PermitReport.of(outcome, acp.output_of(update)))
        elif message.method == "terminal/wait_for_exit" and message.rpc_id is not None:
            params = message.param_object
            terminal = payloads.as_text(params.get("terminalId"))
            key = (payloads.as_text(params.get("sessionId")), terminal)
            if proposal := self._terminals.pop(key, ""):
                keep_last(self._requests, message.rpc_id, ("", proposal), MAX_REPORTED)

    def read_answer(self, message: Message) -> None:
        """Look at the editor's answer to a request that was permitted, or about one."""
        session, proposal = self._requests.pop(message.rpc_id or "", ("", ""))
        if not proposal:
            return
        result = message.result_object
        if message.error != acp.NONE:
            error = payloads.as_text(acp.object_of(message.error).get("message"))
            self._report(proposal, PermitReport.of(ReportedOutcome.FAILED, error))
        elif session:
            terminal = payloads.as_text(result.get("terminalId"))
            keep_last(self._terminals, (session, terminal), proposal, MAX_REPORTED)
        else:
            code = result.get("exitCode")
            code = code if isinstance(code, int) and not isinstance(code, bool) else None
            failed = code or result.get("signal")
            outcome = ReportedOutcome.FAILED if failed else ReportedOutcome.COMPLETED
            self._report(proposal, PermitReport.of(outcome, "", code))
