"""Hostile peers that copy ids: whatever they say in whatever order, what was decided is decided.

The model remembers everything and knows nothing of how the space remembers. A second space is
started anew from the journal at any time and must decide the same.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent import Envelope
from tests.protocol.frames import frame_by
from tests.spaces import Acceptance, Entry, FrameVerdict, Refusal, SpaceState, member_capabilities

DIALECT = "meup/v0.1"
NAMES = ("a", "a-b", "tools")
IDS = ("x", "y", "z", "a-1", "a-b-1")
ACTS = (
    *("propose", "propose", "request", "request", "request", "respond", "respond"),
    *("withdraw", "refuse", "cancel", "restart"),
)

Act = tuple[str, str, str, str, str]

acts = st.tuples(
    st.sampled_from(ACTS),
    st.sampled_from(NAMES),
    st.sampled_from(IDS),
    st.sampled_from(IDS),  # what it names
    st.sampled_from(("", *NAMES)),  # whom it is for, or whose proposal it means
)


ProposalId = tuple[str, str]


@dataclass
class Model:
    """Everything that was accepted.

    Attributes:
        states: Of each proposal, by proposer and id: ``pending``, ``fulfilled`` or ``withdrawn``.
        begun: Who began something under an id.
        fulfills: Of each request, by sender and id, the proposal that it fulfills.
    """

    states: dict[ProposalId, str] = field(default_factory=dict[ProposalId, str])
    begun: dict[str, str] = field(default_factory=dict[str, str])
    fulfills: dict[tuple[str, str], ProposalId | None] = field(
        default_factory=dict[tuple[str, str], ProposalId | None]
    )

    def begin(self, sender: str, id: str) -> None:
        """Check that no participant begins anything under another's id."""
        assert self.begun.setdefault(id, sender) == sender, "a copied id was let through"
        name = id.rpartition("-")[0]
        assert not name or name == sender, "an id that another counts was let through"

    def propose(self, key: ProposalId) -> None:
        """Note a proposal; what is out for an older one under its id fulfills that, not this."""
        self.begin(*key)
        self.states[key] = "pending"
        for request, proposal in self.fulfills.items():
            if proposal == key:
                self.fulfills[request] = None

    def request(self, key: tuple[str, str], named: str) -> None:
        """Check that nothing is carried out for what is decided, and note what a request does."""
        self.begin(*key)
        proposal = (self.begun.get(named, ""), named)
        state = self.states.get(proposal)
        if state in (None, "pending"):
            is_own = proposal[0] == key[0]  # nobody fulfills their own
            self.fulfills[key] = proposal if state and not is_own else None
        else:
            raise AssertionError(f"a proposal that is {state} was let through")

    def respond(self, id: str) -> None:
        """Note that a request was carried out, and with it what it fulfills."""
        proposal = self.fulfills.get((self.begun.get(id, ""), id))
        if proposal is not None and self.states[proposal] == "pending":
            self.states[proposal] = "fulfilled"

    def withdraw(self, proposal: ProposalId) -> None:
        """Note that a proposal was taken back."""
        if self.states.get(proposal) == "pending":
            self.states[proposal] = "withdrawn"


def frame_of(act: Act, number: int) -> bytes:
    what, sender, id, named, other = act
    header: dict[str, Any] = {"id": f"n{number}", "correlationId": id}
    match what:
        case "propose":
            call: dict[str, Any] = {"method": "tools/call", "params": {"name": "write"}}
            return frame_by(sender, "mcp.proposal", call, id=id)
        case "request":
            params: dict[str, Any] = {"name": "write"}
            if other:
                params["_meta"] = {"dev.meup/proposer": other}
            call = {"method": "tools/call", "params": params, "id": id}
            return frame_by(sender, "mcp.request", call, id=id, correlationId=named, to=["tools"])
        case "respond":
            return frame_by("tools", "mcp.response", {"result": {}}, **header)
        case "refuse":
            error = {"code": -32000, "message": "no", "data": {"reason": "refused"}}
            return frame_by("tools", "mcp.response", {"error": error}, **header)
        case "withdraw":
            return frame_by(sender, "mcp.withdraw", {"reason": "other"}, **header)
        case _:
            cancel = {"method": "notifications/cancelled", "params": {"requestId": id}}
            return frame_by(sender, "mcp.request", cancel, id=f"n{number}", to=["tools"])


def space() -> SpaceState:
    made = SpaceState()
    for name in NAMES:
        made.grants.configure(name, member_capabilities([{"kind": "mcp/*"}]))
    return made


def told(decision: FrameVerdict) -> str:
    return decision.code if isinstance(decision, Refusal) else type(decision).__name__


def follow(model: Model, act: Act) -> None:
    """Let what was accepted take effect in the model, and check that it might be accepted."""
    what, sender, id, named, _ = act
    match what:
        case "propose":
            model.propose((sender, id))
        case "request":
            model.request((sender, id), named)
        case "respond":
            model.respond(id)
        case "withdraw":
            model.withdraw((sender, id))
        case _:
            pass


@pytest.mark.rule("3.ids.claimed", "3.ids.by_name", "3.ids.not_pending")
@given(st.lists(acts, min_size=30, max_size=60))
def test_copied_ids_never_pass_and_what_is_decided_stays_so(done: list[Act]) -> None:
    model, steady, restarted = Model(), space(), space()
    journal: list[Envelope] = []
    for number, act in enumerate(done):
        if act[0] == "restart":
            restarted = space()
            for envelope in journal:
                restarted.apply(Entry(0, "demo", 0, envelope))
            continue
        frame = frame_of(act, number)
        sender = json.loads(frame)["from"]
        decision = steady.decide(sender, frame, DIALECT)
        assert told(restarted.decide(sender, frame, DIALECT)) == told(decision), act
        if isinstance(decision, Acceptance):
            journal.append(decision.envelope)
            follow(model, act)
