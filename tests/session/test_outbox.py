"""The outbox: what stops work first, the rest in order, bounded, and nothing said twice."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from meup_agent import Envelope
from meup_agent.session.outbox import (
    MAX_BYTES,
    MAX_ENVELOPES,
    MAX_STREAM_BYTES,
    MAX_STREAM_FRAMES,
    MAX_UNACCEPTED,
    MAX_UNACCEPTED_BYTES,
    SECONDS_TO_LIVE,
    Outbox,
    QueuedEnvelope,
    QueuedFrame,
)
from tests.patience import PATIENCE
from tests.tables import Priority
from tests.wire import draft, kinds


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


def said(id: object, payload: object = None) -> Envelope:
    return draft(kinds.CHAT, payload or {}, id=str(id), sender="alice")


def put(outbox: Outbox, priority: Priority, *ids: object, at: float = 0.0) -> None:
    for id in ids:
        outbox.put(said(id), priority, at)


def taken(outbox: Outbox) -> QueuedEnvelope:
    waiting = outbox.take(0.0)
    assert isinstance(waiting, QueuedEnvelope)
    return waiting


def left(outbox: Outbox, now: float = 0.0) -> list[str | bytes]:
    """Everything in the outbox, in the order in which it leaves."""
    found: list[str | bytes] = []
    while (waiting := outbox.take(now)) is not None:
        found.append(waiting.draft.id if isinstance(waiting, QueuedEnvelope) else waiting.frame)
        outbox.gone()
    return found


@asynccontextmanager
async def waiting(wait: Callable[[], Awaitable[object]], times: int = 1) -> AsyncGenerator[None]:
    """Tasks that wait for something, which the block must bring about."""

    async def run() -> None:
        await wait()
        assert ended

    ended = False
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for _ in range(times):
                tasks.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            ended = True
            yield


def test_what_stops_work_overtakes_everything_and_the_rest_keeps_its_order(outbox: Outbox) -> None:
    for id, priority in [
        ("progress", Priority.TALK),
        ("request", Priority.OPEN),
        ("response", Priority.ANSWER),
        ("withdraw", Priority.END),
        ("chat", Priority.TALK),
        ("reject", Priority.END),
    ]:
        put(outbox, priority, id)
    assert left(outbox) == ["withdraw", "reject", "progress", "request", "response", "chat"]


def test_the_same_envelope_twice_is_once_and_what_could_not_be_sent_is_next(outbox: Outbox) -> None:
    put(outbox, Priority.END, "a", "a")
    assert len(outbox) == 1
    on_its_way = taken(outbox)
    # Saying it again changes nothing, whether the sending succeeds or not.
    put(outbox, Priority.END, "a")
    assert len(outbox) == 0
    put(outbox, Priority.END, "b", "c")
    outbox.put_back(on_its_way)
    assert left(outbox) == ["a", "b", "c"]


@pytest.mark.parametrize("priority", Priority)
def test_what_is_too_old_is_left_out_but_what_opens(outbox: Outbox, priority: Priority) -> None:
    put(outbox, priority, "old")
    put(outbox, priority, "new", at=1.0)
    grows_old = priority is not Priority.OPEN
    kept = left(outbox, SECONDS_TO_LIVE[priority] if grows_old else 1e9)
    assert kept == (["new"] if grows_old else ["old", "new"])
    assert outbox.dropped == grows_old


def test_when_full_the_oldest_talk_is_left_out_and_no_frame(outbox: Outbox) -> None:
    put(outbox, Priority.ANSWER, "answer")
    outbox.put_frame("s-1", b"x")
    put(outbox, Priority.TALK, *range(MAX_ENVELOPES + 9))
    assert outbox.dropped == 11
    ids = left(outbox)
    assert ids[:3] == ["answer", b"x", "11"]
    assert len(ids) == MAX_ENVELOPES


def test_when_full_of_answers_talk_is_left_out_and_answers_are_not(outbox: Outbox) -> None:
    put(outbox, Priority.ANSWER, *range(MAX_ENVELOPES + 1))
    put(outbox, Priority.TALK, "chat")
    put(outbox, Priority.END, "withdraw")
    assert outbox.dropped == 1
    ids = left(outbox)
    assert ids[0] == "withdraw"
    assert len(ids) == MAX_ENVELOPES + 2


def test_bytes_count_as_envelopes_do(outbox: Outbox) -> None:
    half = {"message": "x" * (MAX_BYTES // 2)}
    full = [outbox.is_full]
    for id in "aba":
        outbox.put(said(id, half), Priority.ANSWER, 0.0)
        full.append(outbox.is_full)
    outbox.put_back(taken(outbox))
    full.append(outbox.is_full)
    for id in "ab":
        outbox.remove(id)
        full.append(outbox.is_full)
    assert full == [False, False, True, True, True, False, False]
    assert left(outbox) == []


async def test_new_exchanges_wait_for_room(outbox: Outbox) -> None:
    put(outbox, Priority.ANSWER, *range(MAX_ENVELOPES))
    async with waiting(outbox.room):
        outbox.remove("7")
    put(outbox, Priority.OPEN, "7")
    async with waiting(outbox.room, times=3):
        assert len(left(outbox)) == MAX_ENVELOPES


async def test_it_is_emptied_when_everything_has_been_sent_and_not_before(outbox: Outbox) -> None:
    put(outbox, Priority.END, "a")
    on_its_way = taken(outbox)
    # It may be put back, and wakes a writer then.
    async with waiting(outbox.wait_emptied):
        async with waiting(outbox.wait_filled):
            outbox.put_back(on_its_way)
        taken(outbox)
        outbox.gone()


def sent(outbox: Outbox, *ids: str, priority: Priority = Priority.OPEN) -> None:
    for id in ids:
        put(outbox, priority, id)
        outbox.keep(taken(outbox))
        outbox.gone()


@pytest.mark.rule("6.resume.sent_again")
def test_what_has_not_come_back_is_the_next_to_be_sent_in_its_order(outbox: Outbox) -> None:
    sent(outbox, "a", "b", "c")
    sent(outbox, "withdraw", priority=Priority.END)
    put(outbox, Priority.OPEN, "new")
    outbox.send_again()
    assert outbox.unaccepted == 0
    assert left(outbox) == ["withdraw", "a", "b", "c", "new"]


@pytest.mark.rule("6.resume.accepted")
@pytest.mark.parametrize(
    ("replayed", "again"), [(False, ["c"]), (True, ["a", "c"])], ids=["live", "replayed"]
)
def test_what_came_back_is_not_sent_again(outbox: Outbox, replayed: bool, again: list[str]) -> None:
    """A refused envelope is not part of a replay: it is sent again, to be refused again."""
    sent(outbox, "a", "b", "c")
    outbox.accepted("b", replayed=replayed)
    outbox.accepted("another's", replayed=replayed)
    outbox.send_again()
    assert left(outbox) == again


@pytest.mark.rule("6.resume.sent_again")
def test_what_nobody_waits_for_or_waits_already_is_not_sent_again(outbox: Outbox) -> None:
    sent(outbox, "a", "b")
    outbox.remove("a")
    put(outbox, Priority.OPEN, "b")
    outbox.send_again()
    assert left(outbox) == ["b"]


@pytest.mark.rule("6.resume.gap")
def test_after_a_gap_nothing_is_sent_again_but_what_never_left(outbox: Outbox) -> None:
    sent(outbox, "a")
    put(outbox, Priority.TALK, "cut off")
    on_its_way = taken(outbox)
    outbox.keep(on_its_way)
    outbox.put_back(on_its_way)
    outbox.keep_nothing()
    outbox.send_again()
    assert left(outbox) == ["cut off"]


@pytest.mark.rule("6.resume.sent_again")
@pytest.mark.parametrize("by", ["count", "bytes"])
async def test_more_than_is_kept_waits_until_less_is_owed(outbox: Outbox, by: str) -> None:
    payload, count = ({}, MAX_UNACCEPTED) if by == "count" else ("x" * 2**20, 64)
    for number in range(count):
        assert not outbox.is_owed_too_much
        outbox.keep(QueuedEnvelope(said(number, payload), Priority.OPEN, 0.0))
    assert outbox.is_owed_too_much
    async with waiting(outbox.wait_accepted):
        outbox.accepted("0")
    assert outbox.unaccepted == count - 1
    outbox.keep(QueuedEnvelope(said("last", payload), Priority.OPEN, 0.0))
    async with waiting(outbox.wait_accepted):
        outbox.remove("7")
    assert MAX_UNACCEPTED_BYTES == 64 * 2**20


@pytest.mark.rule("6.ack.agent")
@pytest.mark.parametrize("by", ["count", "bytes"])
def test_what_ended_is_known_until_it_is_accepted_as_far_as_there_is_room(
    outbox: Outbox, by: str
) -> None:
    payload, count = ({}, MAX_UNACCEPTED) if by == "count" else ("x" * (2**20 - 2), 64)

    def end(number: int) -> None:
        outbox.keep(QueuedEnvelope(said(number, payload), Priority.OPEN, 0.0))
        outbox.remove(str(number))

    def known(*numbers: int) -> list[bool]:
        return [outbox.sent(str(number)) is not None for number in numbers]

    for number in range(count - 1):
        end(number)
    end(count - 2)
    assert known(0, 1) == [True, True]
    for number in range(count, count + 2):
        end(number)
    assert known(0, 1, count, count + 1) == [False, True, True, True]
    assert outbox.unaccepted == 0
    outbox.accepted("1")
    assert known(1) == [False]
    sent(outbox, "x")
    outbox.keep_nothing()
    assert outbox.sent("x") is not None
    outbox.forget_ended()
    assert known(2, count) == [False, False]


def test_frames_of_streams_leave_in_order_and_never_twice(outbox: Outbox) -> None:
    put(outbox, Priority.TALK, "before")
    outbox.put_frame("s-1", b"one")
    outbox.put_frame("s-2", b"two")
    put(outbox, Priority.ANSWER, "after")
    put(outbox, Priority.END, "end")
    assert left(outbox, 1.0) == ["end", "before", b"one", b"two", "after"]
    outbox.send_again()
    assert len(outbox) == 0


def test_frames_have_a_bound_of_their_own_and_push_out_no_talk(outbox: Outbox) -> None:
    put(outbox, Priority.TALK, "chat")
    room: list[bool] = []
    for _ in range(MAX_STREAM_FRAMES):
        room.append(outbox.has_frame_room)
        outbox.put_frame("s-1", b"x")
    room.append(outbox.has_frame_room)
    outbox.drop_frames("another")
    room.append(outbox.has_frame_room)
    assert room == [True] * MAX_STREAM_FRAMES + [False, False]
    outbox.drop_frames("s-1")
    room = [outbox.has_frame_room]
    outbox.put_frame("s-1", b"x" * MAX_STREAM_BYTES)
    assert [*room, outbox.has_frame_room] == [True, False]
    assert left(outbox) == ["chat", b"x" * MAX_STREAM_BYTES]


def test_a_frame_that_could_not_be_sent_is_the_next_one_again(outbox: Outbox) -> None:
    outbox.put_frame("s-1", b"one")
    outbox.put_frame("s-1", b"two")
    on_its_way = outbox.take(0.0)
    assert isinstance(on_its_way, QueuedFrame)
    outbox.put_back(on_its_way)
    assert outbox.take(0.0) == on_its_way
