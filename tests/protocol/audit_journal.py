"""A journal to audit, made entry by entry."""

from itertools import count
from typing import Any

from tests.spaces import Audit, AuditRecord, Entry
from tests.wire import decode, draft, encode, kinds, payloads

SECOND = 1_000_000
BEGIN = 1_700_000_000 * SECOND


class Journal:
    """Entries as a gateway makes them, one second after the other."""

    def __init__(self, *, limit: int | None = None, dialect: str = "") -> None:
        self.audit = Audit(limit=limit)
        self._seq = count(1)
        self._dialect = dialect
        self._at = BEGIN

    def pass_time(self, seconds: int) -> None:
        self._at += seconds * SECOND

    def say(self, sender: str, kind: str, payload: Any, *, id: str = "", **header: Any) -> str:
        seq = next(self._seq)
        envelope = draft(kind, payload, id=id or f"e{seq}", sender=sender, **header)
        if self._dialect and sender != kinds.GATEWAY:
            envelope = decode(encode(envelope, self._dialect), self._dialect)
        self._at += SECOND
        self.audit.add(Entry(seq, "demo", self._at, envelope))
        return envelope.id

    def propose(self, sender: str = "alice", *, id: str = "", **header: Any) -> str:
        call = {"name": "write_file", "arguments": {"path": "a.txt", "text": "hi"}}
        payload = payloads.proposal("tools/call", call)
        return self.say(sender, kinds.MCP_PROPOSAL, payload, id=id, **header)

    def request(
        self,
        proposal: str,
        *,
        by: str = "bob",
        to: str | tuple[str, ...] | None = "files",
        path: str = "a.txt",
        id: str = "r1",
        name: str = "write_file",
        meta: dict[str, Any] | None = None,
    ) -> str:
        params: dict[str, Any] = {"name": name, "arguments": {"path": path, "text": "hi"}}
        if meta is not None:
            params["_meta"] = meta
        payload = payloads.request("tools/call", params, id)
        asked = () if to is None else (to,) if isinstance(to, str) else to
        return self.say(by, kinds.MCP_REQUEST, payload, id=id, to=asked, correlation=(proposal,))

    def cancel(self, request: str, *, by: str = "bob") -> str:
        params = {"requestId": request, "reason": "no_longer_needed: changed my mind"}
        payload = payloads.notification(kinds.CANCELLED, params)
        return self.say(by, kinds.MCP_REQUEST, payload, to=("files",), correlation=(request,))

    def respond(
        self, request: str = "r1", *, by: str = "files", to: str = "bob", error: Any = None
    ) -> str:
        result = {"content": [{"type": "text", "text": "done"}]}
        payload = payloads.result(request, result)
        if error is not None:
            payload = {"jsonrpc": "2.0", "id": request, "error": error}
        return self.say(by, kinds.MCP_RESPONSE, payload, to=(to,), correlation=(request,))

    def reject(self, proposal: str, *, by: str = "bob", reason: str = "unsafe") -> str:
        return self.say(by, kinds.MCP_REJECT, {"reason": reason}, correlation=(proposal,))

    def withdraw(
        self, proposal: str, *, by: str = "alice", reason: str = "no_longer_needed"
    ) -> str:
        return self.say(by, kinds.MCP_WITHDRAW, {"reason": reason}, correlation=(proposal,))

    def chat(self, sender: str, text: str, about: str) -> str:
        return self.say(sender, kinds.CHAT, {"message": text}, correlation=(about,))

    @property
    def only(self) -> AuditRecord:
        (proposal,) = self.audit.proposals
        return proposal

    @property
    def outcome(self) -> tuple[Any, ...]:
        """The state of the only proposal, and by whom and why it was decided."""
        decision = self.only.decision
        return (self.only.state, decision and decision.by, decision and decision.reason)
