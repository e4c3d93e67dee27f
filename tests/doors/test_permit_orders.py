"""A permit in every order of what can happen to it: never two, and none after a withdrawal."""

from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from meup_agent import Space
from meup_agent.doors.permit import Answer, Denied, Door, HostCall, Permitted
from meup_agent.errors import MeupError
from meup_agent.protocol.wire.outcomes import PermitReport, ReportedOutcome
from meup_agent.testing import MemorySpace
from tests.interaction.people import EVERYTHING, LIMITS, PROPOSALS, QUICK, join

PEOPLE = {"coder": PROPOSALS, "ann": EVERYTHING, "bob": EVERYTHING}
PAUSES = st.sampled_from([0.0, 0.0, 0.001, 1.0, 70.0])
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["fulfill", "edit", "cancel", "reject", "hang_up", "drop", "drop_door", "report"]
        ),
        st.sampled_from(["ann", "bob"]),
        PAUSES,
    ),
    max_size=9,
)
ENDS_WITHOUT = ("withdrawn", "rejected", "expired", "pending", "in_progress")


class Course:
    """What happened to one call."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.ended = False
        self.state = ""


async def run(events: list[tuple[str, str, float]], *, edits: bool) -> Course:
    """Let all that happen to one call, in its order; how it went."""
    course, space = Course(), MemorySpace(participants=PEOPLE, limits=LIMITS)
    door = Door()
    async with AsyncExitStack() as stack:
        people = {
            name: await stack.enter_async_context(join(space, name)) for name in ("ann", "bob")
        }
        token, connector = space.token("coder"), space.connector("coder")
        await stack.enter_async_context(door.join(connector, token=token, settings=QUICK))
        async with anyio.create_task_group() as tasks:
            host = anyio.CancelScope()
            decisions = {name: anyio.CancelScope() for name in people}

            async def ask() -> None:
                call = HostCall("Bash", {"command": "make"}, "claude-code", "s", "1", edits=edits)
                with host:
                    course.answers.append(await door.ask(call, ttl=100.0))
                course.ended = True

            async def fulfill(name: str, arguments: dict[str, Any] | None) -> None:
                with anyio.CancelScope() as decisions[name], suppress(MeupError):
                    await _first(people[name]).fulfill(arguments)

            async def reject(name: str) -> None:
                with suppress(MeupError):
                    await _first(people[name]).reject("unsafe")

            tasks.start_soon(ask)
            while not people["bob"].proposals:  # noqa: ASYNC110 - time is virtual
                await anyio.sleep(0.001)
            for what, who, pause in events:
                match what:
                    case "fulfill":
                        tasks.start_soon(fulfill, who, None)
                    case "edit":
                        tasks.start_soon(fulfill, who, {"command": "make -n"})
                    case "cancel":
                        decisions[who].cancel()
                    case "reject":
                        tasks.start_soon(reject, who)
                    case "hang_up":
                        host.cancel()
                    case "drop":
                        space.drop(who)
                    case "drop_door":
                        space.drop("coder")
                    case _:
                        proposal = people["bob"].proposals[0].id
                        door.report(proposal, PermitReport.of(ReportedOutcome.COMPLETED, ""))
                await anyio.sleep(pause)
            await anyio.sleep(300.0)  # beyond every deadline: an answer for every wait
            assert course.ended
            course.state = str(people["bob"].proposals[0].state)
            assert len(people["bob"].proposals) == 1
            tasks.cancel_scope.cancel()
    return course


def _first(space: Space) -> Any:
    return space.proposals.get(space.proposals[0])


@given(events=EVENTS, edits=st.booleans())
def test_in_any_order_a_call_is_permitted_once_or_not_at_all(
    events: list[tuple[str, str, float]], edits: bool
) -> None:
    async def main() -> Course:
        return await run(events, edits=edits)

    course = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert len(course.answers) <= 1
    answer = course.answers[0] if course.answers else None
    match answer:
        case Permitted():
            assert course.state in ("permitted", "fulfilled")
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
