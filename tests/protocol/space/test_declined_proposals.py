"""What a participant has rejected, it carries out no more, in no process (PROTOCOL 4.4)."""

from typing import Any

import pytest

from tests.protocol.frames import frame_by
from tests.protocol.space.room import CALL, Room
from tests.spaces import Allowance, Refusal

pytestmark = pytest.mark.rule("4.4.own_rejection_lasts")


def reject(room: Room, sender: str, proposal: str | list[str], reason: str = "unsafe") -> None:
    room.say(sender, "mcp.reject", {"reason": reason}, f"no-{sender}", correlationId=proposal)


def refused(room: Room, sender: str, proposal: str, to: tuple[str, ...] = ("tools",)) -> str:
    """The state for which a request that names a proposal is refused; empty: it passes."""
    header: dict[str, Any] = {"id": room.new_id(), "correlationId": proposal, "to": list(to)}
    frame, decided = frame_by(sender, "mcp.request", {**CALL, "id": 1}, **header), list[Any]()
    room.host.owner.receive_as(sender, frame, "meup/v0.1", decided.append)
    if not isinstance(decided[0], Refusal):
        return ""
    assert decided[0].code == "not_pending"
    return str(decided[0].error.payload_object["state"])


@pytest.mark.parametrize("restarted", [False, True])
def test_who_has_rejected_a_proposal_fulfills_it_no_more(room: Room, restarted: bool) -> None:
    room.propose("ann", "p")
    reject(room, "reviewer", "p")
    if restarted:
        room.restart()
    assert refused(room, "reviewer", "p") == "rejected"
    assert refused(room, "writer", "p") == ""


@pytest.mark.parametrize("reason", ["incapable", "busy"])
def test_no_time_and_no_handler_decide_nothing(room: Room, reason: str) -> None:
    room.propose("ann", "p")
    reject(room, "reviewer", "p", reason)
    assert refused(room, "reviewer", "p") == ""


@pytest.mark.parametrize("to", [("tools",), ("writer", "tools"), ()])
def test_an_executor_that_has_rejected_it_is_not_asked(room: Room, to: tuple[str, ...]) -> None:
    params = {"name": "write", "_meta": {"dev.meup/target": "tools"}}
    room.propose("ann", "p", payload={"method": "tools/call", "params": params})
    reject(room, "tools", "p")
    assert refused(room, "reviewer", "p", to) == "rejected"
    assert refused(room, "reviewer", "p", ("eve",)) == ""


def test_of_one_id_only_the_proposal_that_was_rejected_is_held_back(room: Room) -> None:
    room.propose("ann", "p")
    reject(room, "reviewer", "p")
    room.propose("ann", "p", tool="write", to=["tools"])  # another one, under the same id
    assert refused(room, "reviewer", "p") == ""


@pytest.mark.parametrize("restarted", [False, True])
def test_a_rejection_of_several_is_one_of_the_first_that_is_known(
    room: Room, restarted: bool
) -> None:
    """As agents have it."""
    for proposal in "pq":
        room.propose("ann", proposal)
    reject(room, "reviewer", ["unknown", "p", "q"])
    if restarted:
        room.restart()
    assert refused(room, "reviewer", "p") == "rejected"
    assert refused(room, "reviewer", "q") == ""


def test_what_was_forgotten_as_too_old_stays_rejected(room: Room) -> None:
    room.allowance = Allowance(max_open_proposals=2)
    room.restart()
    room.propose("ann", "p")
    reject(room, "reviewer", "p")
    room.propose("ann", "q")
    room.now += 3_700_000_000
    room.propose("ann", "new")  # which takes the room of those that are too old
    reject(room, "eve", "q")
    assert [item.envelope.id for item in room.host.owner.in_flight] == ["new"]
    assert refused(room, "reviewer", "p") == "rejected"
    assert refused(room, "eve", "q") == "rejected"
    assert refused(room, "reviewer", "q") == ""


@pytest.mark.parametrize("restarted", [False, True])
def test_a_newcomer_is_told_what_it_has_rejected(room: Room, restarted: bool) -> None:
    for proposal in ("p", "q"):
        room.propose("ann", proposal)
    reject(room, "reviewer", "p", "unsafe")
    reject(room, "eve", "q", "odd")
    if restarted:
        room.restart()
    told = {
        name: [listed["rejections"][0]["by"] == name for listed in room.list_for(name)]
        for name in ("reviewer", "eve", "writer")
    }
    assert told == {"reviewer": [True, False], "eve": [False, True], "writer": [False, False]}
