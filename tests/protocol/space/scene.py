"""Scene for tests of grants, revocations, invitations and removals, without a loop."""

import json
from itertools import count
from typing import Any

from tests.protocol.frames import frame_by
from tests.protocol.space.test_server import Listener
from tests.spaces import Journal, MemoryJournal, space_server

CALL = {"kind": "mcp/request", "payload": {"method": "tools/call"}}
READ = {"kind": "mcp/request", "payload": {"method": "tools/call", "params": {"name": "read"}}}
GRANTING = {"kind": "capability/grant"}
REVOKING = {"kind": "capability/revoke"}
SPACE = {"kind": "space/*"}

TOOL_CALL = {"method": "tools/call", "params": {"name": "x"}}

CAPABILITIES: dict[str, list[dict[str, Any]]] = {
    "admin": [{"kind": "*"}],
    "lead": [CALL, GRANTING, REVOKING, SPACE, {"kind": "chat"}],
    "worker": [{"kind": "mcp/proposal"}],
    "onlooker": [],
}


class CutOff(MemoryJournal):
    """A journal whose gateway is killed after so many envelopes."""

    left: int | None = None

    def append(self, *said: Any) -> None:
        if self.left == 0:
            return
        if self.left is not None:
            self.left -= 1
        super().append(*said)


class Invites:
    def __init__(self) -> None:
        self.admitted: dict[str, str] = {}
        self._tokens = count(1)

    def new_token(self) -> str:
        return f"token-{next(self._tokens)}"

    def admit(self, participant: str, token_sha256: str) -> None:
        self.admitted[participant] = token_sha256

    def address(self) -> str:
        return "ws://somewhere/ws?space=demo"


class Scene:
    def __init__(
        self,
        capabilities: dict[str, list[dict[str, Any]]] | None = None,
        *,
        journal: Journal | None = None,
        present: tuple[str, ...] = ("admin", "lead", "worker", "onlooker"),
        invites: Invites | None = None,
        announce_withdrawals: bool = False,
        at: float = 0.0,
    ) -> None:
        known = CAPABILITIES if capabilities is None else capabilities
        self.at = at
        """The time of the gateway's clock, in seconds."""
        self.ids = count(1)
        self.refused: list[Any] = []
        """Answers to senders that are not in the space."""
        self.journal = journal or MemoryJournal(lambda: 0)
        self.invites = invites or Invites()
        self.host = space_server(
            known,
            lambda: round(self.at * 1e6),
            journal=self.journal,
            invites=self.invites,
            announce_withdrawals=announce_withdrawals,
        )
        self.members = {name: self.join(name) for name in present if name in known}
        self.forget()

    def join(self, name: str) -> Listener:
        member = Listener(name)
        self.host.join(member)
        return member

    def forget(self) -> None:
        for member in self.members.values():
            member.frames.clear()

    def say(
        self, sender: str, kind: str, payload: object = None, *, id: str = "", **header: Any
    ) -> str:
        """Send an envelope; its id."""
        envelope_id = id or f"e{next(self.ids)}"
        frame = frame_by(sender, kind, payload, id=envelope_id, **header)
        member = self.members.get(sender)
        if member is not None:
            self.host.receive(member, frame)
        else:
            self.host.owner.receive_as(sender, frame, "meup/v0.1", self.refused.append)
        return envelope_id

    def propose(self, sender: str = "worker") -> str:
        return self.say(sender, "mcp.proposal", TOOL_CALL)

    def request(self, sender: str = "worker") -> str:
        return self.say(sender, "mcp.request", TOOL_CALL, to=["onlooker"])

    def got(self, name: str) -> list[dict[str, Any]]:
        member = self.members[name]
        frames, member.frames = member.frames, []
        return [json.loads(frame) for frame in frames]

    def error(self, name: str) -> dict[str, Any]:
        """The payload of the one envelope that a participant has got: an error."""
        (only,) = self.got(name)
        assert only["kind"] == "system.error"
        payload: dict[str, Any] = only["payload"]
        assert payload["message"]
        return payload

    def may(self, name: str, capability: dict[str, Any] = CALL) -> bool:
        return self.host.owner.grants[name].allow(capability["kind"], capability.get("payload", {}))

    def grant(self, sender: str, to: str, *capabilities: dict[str, Any], id: str = "") -> str:
        payload = {"recipient": to, "capabilities": list(capabilities), "reason": "trust"}
        return self.say(sender, "capability.grant", payload, id=id)

    def revoke(self, sender: str, payload: dict[str, Any]) -> str:
        return self.say(sender, "capability.revoke", payload)


def kinds_of(said: list[dict[str, Any]]) -> list[str]:
    return [each["kind"] for each in said]


def facts(journal: Journal, prefix: str = "") -> dict[str, dict[str, Any]]:
    found = journal.recover("demo", since=0, limit=0).facts
    return {key: value for key, value in found.items() if key.startswith(prefix)}


def invite(scene: Scene, sender: str, name: str, *capabilities: dict[str, Any], **more: Any) -> str:
    payload = {"participant_id": name, "initial_capabilities": list(capabilities), **more}
    return scene.say(sender, "space.invite", payload)
