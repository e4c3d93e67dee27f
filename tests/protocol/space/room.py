"""A room: a space's host, and participants who say things."""

from collections.abc import Callable
from itertools import count
from typing import Any

from tests.protocol.frames import frame_by
from tests.protocol.space.test_server import Listener
from tests.spaces import Allowance, FrameFormat, MemoryJournal, space_server

NOW = 1_735_689_600_000_000
CALL = {"method": "tools/call", "params": {"name": "write"}}

Said = dict[str, Any]

MAY: dict[str, list[Said]] = {
    "ann": [{"kind": "*"}],
    "eve": [{"kind": "*"}],
    "tools": [{"kind": "*"}],
    "reviewer": [{"kind": "mcp/*"}],
    "writer": [{"kind": "mcp/request", "payload": {"params": {"name": "write"}}}],
    "censor": [{"kind": "mcp/reject"}],
    "guest": [{"kind": "chat"}, {"kind": "mcp/proposal"}],
}


class Member(Listener):
    def __init__(
        self,
        participant: str,
        *,
        seen: int | None = None,
        dialect: str = "meup/v0.1",
        resumes: bool = True,
    ) -> None:
        super().__init__(participant)
        self.last_seen = seen
        self.form = FrameFormat(dialect, resumes)


class Room:
    def __init__(self, *, entries: int = 100_000) -> None:
        ids = count(1)
        self.now = NOW
        self.allowance = Allowance()
        self.journal = MemoryJournal(lambda: self.now, max_entries=entries)
        self.new_id: Callable[[], str] = lambda: f"g{next(ids)}"
        self.restart()

    def restart(self) -> None:
        self.host = space_server(
            MAY,
            lambda: self.now,
            journal=self.journal,
            new_id=self.new_id,
            allowance=self.allowance,
        )

    def say(self, sender: str, kind: str, payload: Said, id: str, **header: Any) -> None:
        frame, refused = frame_by(sender, kind, payload, id=id, **header), list[Any]()
        self.host.owner.receive_as(sender, frame, "meup/v0.1", refused.append)
        assert hasattr(refused[0], "seq"), refused

    def propose(self, sender: str, id: str, *, tool: str = "write", **header: Any) -> None:
        call = {"method": "tools/call", "params": {"name": tool}}
        self.say(sender, "mcp.proposal", header.pop("payload", call), id, **header)

    def request(self, sender: str, id: str, proposal: str) -> None:
        self.say(
            sender, "mcp.request", {**CALL, "id": id}, id, correlationId=proposal, to=["tools"]
        )

    def cancel(self, sender: str, request: str) -> None:
        cancel = {"method": "notifications/cancelled", "params": {"requestId": request}}
        self.say(sender, "mcp.request", cancel, f"c{request}", to=["tools"])

    def respond(self, request: str) -> None:
        self.say("tools", "mcp.response", {"result": {}}, f"re-{request}", correlationId=request)

    def withdraw(self, sender: str, proposal: str) -> None:
        self.say(
            sender, "mcp.withdraw", {"reason": "other"}, f"w{proposal}", correlationId=proposal
        )

    def list_for(self, name: str, **query: Any) -> list[Said]:
        """The proposals that a newcomer is told of, which it asks for."""
        asker = self.joins(name)
        question = {"to_decide": True, **query}
        self.host.receive(asker, frame_by(name, "space.list-proposals", question, id="ask"))
        kind, page = asker.heard()[-1]
        assert kind == "space.proposals"
        listed: list[Said] = page.get("proposals", [])
        return listed

    def joins(self, name: str, **how: Any) -> Member:
        member = Member(name, **how)
        self.host.join(member)
        return member
