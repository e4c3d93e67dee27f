"""A permit in every order of what can happen to it: never two, and none after a withdrawal."""

from contextlib import suppress
from typing import Any

import anyio
import trio
from anyio.abc import TaskStatus
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock

from meup_agent import Backoff, Envelope, Settings, Space
from meup_agent.doors.permit import Answer, Denied, Door, HostCall, Permitted
from meup_agent.errors import MeupError
from meup_agent.protocol.wire.outcomes import PermitReport, ReportedOutcome
from meup_agent.testing import MemorySpace
from tests.interaction.people import EVERYTHING, LIMITS, PROPOSALS, join
from tests.wire import kinds, payloads

PEOPLE = {"coder": PROPOSALS, "ann": EVERYTHING, "bob": EVERYTHING, "watching": [{"kind": "chat"}]}
PAUSES = st.sampled_from([0.0, 0.0, 0.001, 1.0, 70.0])
WHAT = (
    *("fulfill", "edit", "again", "cancel", "reject", "die", "drop"),
    *("hang_up", "take_back", "drop_door", "report", "kill", "restart", "suspend"),
    "turn",
)
EVENTS = st.lists(
    st.tuples(st.sampled_from(WHAT), st.sampled_from(["ann", "bob"]), PAUSES), max_size=9
)
ENDS_WITHOUT = ("withdrawn", "rejected", "expired", "pending", "in_progress")
RECONNECTS = Settings(backoff=Backoff(first=0.005, longest=20.0))
"""A gateway that stays dead is not dialled ten thousand times."""
SUSPENDED = 200.0
"""Seconds that pass at once for everybody: more than a call waits."""


class Course:
    """What happened to one call."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.ended = False
        self.forgotten = False
        self.state = ""
        self.permits: list[str] = []


def is_permit(said: Envelope) -> bool:
    """True for what the space takes for a permit."""
    if said.kind != kinds.MCP_RESPONSE:
        return False
    result = payloads.as_object(said.payload_object.get("result"))
    return payloads.as_object(result.get(payloads.META)).get(payloads.PERMITTED) is True


async def run(events: list[tuple[str, str, float]], clock: MockClock, *, edits: bool) -> Course:
    """Let all that happen to one call, in its order; how it went."""
    course, space = Course(), MemorySpace(participants=PEOPLE, limits=LIMITS)
    door = Door()
    token, connector = space.token("coder"), space.connector("coder")
    people: dict[str, Space] = {}
    lives = {name: anyio.CancelScope() for name in ("ann", "bob")}
    decisions = {name: anyio.CancelScope() for name in lives}
    host = anyio.CancelScope()

    async def hear_permits(space: Space, *, task_status: TaskStatus[None]) -> None:
        with space.watch(is_permit) as permits:
            task_status.started()
            async for said in permits:
                course.permits.append(said.id)

    async def live(name: str, *, task_status: TaskStatus[None]) -> None:
        with lives[name]:
            async with join(space, name, settings=RECONNECTS) as people[name]:
                task_status.started()
                await anyio.sleep_forever()

    call = HostCall("Bash", {"command": "make"}, "claude-code", "s", "1", edits=edits)

    async def ask() -> None:
        with host:
            course.answers.append(await door.ask(call, ttl=100.0))
        course.ended = True

    async def fulfill(name: str, arguments: dict[str, Any] | None) -> None:
        with anyio.CancelScope() as decisions[name], suppress(MeupError, IndexError):
            await _first(people[name]).fulfill(arguments)

    async def reject(name: str) -> None:
        with suppress(MeupError, IndexError):
            await _first(people[name]).reject("unsafe")

    async def fulfill_again(name: str) -> None:
        """By hand, whatever became of it: an SDK sends no such request."""
        meta = {payloads.PROPOSER: "coder"}
        params = {"name": call.tool, "arguments": call.arguments, payloads.META: meta}
        body = {"jsonrpc": "2.0", "id": 1, "method": payloads.TOOL_CALL, "params": params}
        with suppress(MeupError):
            await people[name].send(kinds.MCP_REQUEST, body, to="coder", correlation=proposal)

    async def take_back() -> None:
        with suppress(MeupError):
            await door.take_back(call, "answered at its agent's terminal")

    async with (
        join(space, "watching", settings=RECONNECTS) as watching,
        door.join(connector, token=token, settings=RECONNECTS),
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(hear_permits, watching)
        for name in lives:
            await tasks.start(live, name)
        tasks.start_soon(ask)
        while not people["bob"].proposals:  # noqa: ASYNC110 - time is virtual
            await anyio.sleep(0.001)
        proposal = people["bob"].proposals[0].id
        for what, who, pause in events:
            match what:
                case "fulfill":
                    tasks.start_soon(fulfill, who, None)
                case "edit":
                    tasks.start_soon(fulfill, who, {"command": "make -n"})
                case "again":
                    tasks.start_soon(fulfill_again, who)
                case "cancel":
                    decisions[who].cancel()
                case "reject":
                    tasks.start_soon(reject, who)
                case "die":
                    lives[who].cancel()
                    space.drop(who)
                case "drop":
                    space.drop(who)
                case "hang_up":
                    host.cancel()
                case "take_back":
                    tasks.start_soon(take_back)
                case "drop_door":
                    space.drop("coder")
                case "kill":
                    space.kill()
                    course.forgotten = True
                case "restart":
                    space.restart()
                    course.forgotten = True
                case "turn":
                    pass
                case "suspend":
                    clock.jump(SUSPENDED)
                case _:
                    door.report(proposal, PermitReport.of(ReportedOutcome.COMPLETED, ""))
            await anyio.sleep(pause)
        await anyio.sleep(300.0)  # beyond every deadline: an answer for every wait
        assert course.ended
        if not course.forgotten:
            (seen,) = watching.proposals
            (decided,) = [each async for each in watching.proposals.list(state="decided")]
            course.state = str(decided.state)
            # Who heard of a withdraw late may not know that it came late (PROTOCOL 4.2).
            if not (course.state == "expired" and seen.state == "withdrawn"):
                assert str(seen.state) == course.state
        tasks.cancel_scope.cancel()
    return course


def crossing(turns: int, what: str) -> example:
    """The example of an end that crosses the answer to a fulfillment, some turns of the loop on."""
    events = [("fulfill", "ann", 0.0), *[("turn", "ann", 0.0)] * turns, (what, "ann", 0.0)]
    return example(events=events, edits=True)


def _first(space: Space) -> Any:
    return space.proposals.get(space.proposals[0])


@crossing(2, "take_back")
@crossing(3, "take_back")
@crossing(2, "suspend")
@crossing(2, "kill")
@example(events=[("die", "ann", 0.0), ("suspend", "ann", 0.0)], edits=False)
@given(events=EVENTS, edits=st.booleans())
def test_in_any_order_a_call_is_permitted_once_or_not_at_all(
    events: list[tuple[str, str, float]], edits: bool
) -> None:
    clock = MockClock(autojump_threshold=0)

    async def main() -> Course:
        return await run(events, clock, edits=edits)

    course = trio.run(main, clock=clock)
    assert len(course.answers) <= 1
    assert len(course.permits) <= 1
    answer = course.answers[0] if course.answers else None
    match answer:
        case Permitted():
            assert course.forgotten or course.permits
            assert course.forgotten or course.state in ("permitted", "fulfilled")
            assert edits or answer.arguments == {"command": "make"}
        case Denied():
            assert answer.words
        case None:
            assert any(what == "hang_up" for what, _, _ in events)
    if course.state in ENDS_WITHOUT:
        assert not isinstance(answer, Permitted)
    # What nobody was told that it may run is never left as if it might still run.
    if not isinstance(answer, Permitted):
        assert course.state != "permitted"
