"""The outbox: what stops work first, the rest in order, bounded, and nothing said twice."""

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

pytestmark = pytest.mark.anyio


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


def said(id: str, payload: object = None) -> Envelope:
    return draft(kinds.CHAT, payload or {}, id=id, sender="alice")


def taken(outbox: Outbox, now: float = 0.0, *, frames: int = 0) -> list[str]:
    """Everything in the outbox, in the order in which it leaves; of frames only how many."""
    ids: list[str] = []
    while (waiting := outbox.take(now)) is not None:
        if isinstance(waiting, QueuedEnvelope):
            ids.append(waiting.draft.id)
        else:
            frames -= 1
        outbox.gone()
    assert frames == 0
    return ids


def test_what_stops_work_overtakes_everything_and_the_rest_keeps_its_order(outbox: Outbox) -> None:
    for id, priority in [
        ("progress", Priority.TALK),
        ("request", Priority.OPEN),
        ("response", Priority.ANSWER),
        ("withdraw", Priority.END),
        ("chat", Priority.TALK),
        ("reject", Priority.END),
    ]:
        outbox.put(said(id), priority, 0.0)
    expected = ["withdraw", "reject", "progress", "request", "response", "chat"]
    assert taken(outbox) == expected


def test_the_same_envelope_twice_is_once(outbox: Outbox) -> None:
    outbox.put(said("a"), Priority.END, 0.0)
    outbox.put(said("a"), Priority.END, 0.0)
    assert len(outbox) == 1
    waiting = outbox.take(0.0)
    assert isinstance(waiting, QueuedEnvelope)
    # It is on its way: saying it again changes nothing, whether the sending succeeds or not.
    outbox.put(said("a"), Priority.END, 0.0)
    assert len(outbox) == 0
    outbox.put_back(waiting)
    assert taken(outbox) == ["a"]


def test_what_could_not_be_sent_is_the_next_one_again(outbox: Outbox) -> None:
    for id in "abc":
        outbox.put(said(id), Priority.ANSWER, 0.0)
    waiting = outbox.take(0.0)
    assert isinstance(waiting, QueuedEnvelope)
    outbox.put_back(waiting)
    assert taken(outbox) == ["a", "b", "c"]


@pytest.mark.parametrize("priority", [Priority.END, Priority.ANSWER, Priority.TALK])
def test_what_is_too_old_is_left_out_and_counted(outbox: Outbox, priority: Priority) -> None:
    outbox.put(said("old"), priority, 0.0)
    outbox.put(said("new"), priority, 1.0)
    assert taken(outbox, SECONDS_TO_LIVE[priority]) == ["new"]
    assert outbox.dropped == 1


def test_requests_and_proposals_do_not_grow_old_here(outbox: Outbox) -> None:
    outbox.put(said("a"), Priority.OPEN, 0.0)
    assert taken(outbox, 1e9) == ["a"]


def test_when_full_the_oldest_talk_is_left_out(outbox: Outbox) -> None:
    outbox.put(said("answer"), Priority.ANSWER, 0.0)
    for number in range(MAX_ENVELOPES + 9):
        outbox.put(said(f"chat {number}"), Priority.TALK, 0.0)
    assert outbox.dropped == 10
    ids = taken(outbox)
    assert ids[:2] == ["answer", "chat 10"]
    assert len(ids) == MAX_ENVELOPES


def test_when_full_of_answers_talk_is_left_out_and_answers_are_not(outbox: Outbox) -> None:
    for number in range(MAX_ENVELOPES + 1):
        outbox.put(said(f"answer {number}"), Priority.ANSWER, 0.0)
    outbox.put(said("chat"), Priority.TALK, 0.0)
    outbox.put(said("withdraw"), Priority.END, 0.0)
    assert outbox.dropped == 1
    ids = taken(outbox)
    assert ids[0] == "withdraw"
    assert len(ids) == MAX_ENVELOPES + 2


def test_bytes_count_as_envelopes_do(outbox: Outbox) -> None:
    half = {"message": "x" * (MAX_BYTES // 2)}
    full = [outbox.is_full]
    for id in "aba":
        outbox.put(said(id, half), Priority.ANSWER, 0.0)
        full.append(outbox.is_full)
    waiting = outbox.take(0.0)
    assert isinstance(waiting, QueuedEnvelope)
    outbox.put_back(waiting)
    full.append(outbox.is_full)
    for id in "ab":
        outbox.remove(id)
        full.append(outbox.is_full)
    assert full == [False, False, True, True, True, False, False]
    assert taken(outbox) == []


async def test_a_new_exchange_waits_for_room(outbox: Outbox) -> None:
    for number in range(MAX_ENVELOPES):
        outbox.put(said(str(number)), Priority.ANSWER, 0.0)
    entered: list[str] = []

    async def enter() -> None:
        await outbox.room()
        entered.append("in")

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(enter)
            await anyio.wait_all_tasks_blocked()
            assert entered == []
            outbox.remove("7")
    assert entered == ["in"]


async def test_it_is_emptied_when_everything_has_been_sent_and_not_before(outbox: Outbox) -> None:
    emptied: list[str] = []

    async def wait() -> None:
        await outbox.wait_emptied()
        emptied.append("yes")

    outbox.put(said("a"), Priority.END, 0.0)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            waiting = outbox.take(0.0)
            await anyio.wait_all_tasks_blocked()
            assert isinstance(waiting, QueuedEnvelope)
            assert emptied == [], "what is taken is on its way, and may be put back"
            outbox.put_back(waiting)
            assert outbox.take(0.0) is not None
            outbox.gone()
    assert emptied == ["yes"]


async def test_a_writer_wakes_for_what_is_put_back(outbox: Outbox) -> None:
    outbox.put(said("a"), Priority.END, 0.0)
    waiting = outbox.take(0.0)
    assert isinstance(waiting, QueuedEnvelope)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outbox.wait_filled)
            await anyio.wait_all_tasks_blocked()
            outbox.put_back(waiting)


async def test_everybody_who_waits_for_room_gets_it(outbox: Outbox) -> None:
    for number in range(MAX_ENVELOPES):
        outbox.put(said(str(number)), Priority.OPEN, 0.0)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(outbox.room)
            await anyio.wait_all_tasks_blocked()
            assert len(taken(outbox)) == MAX_ENVELOPES


def sent(outbox: Outbox, *ids: str, priority: Priority = Priority.OPEN) -> None:
    """Say something and send it to a gateway that numbers it."""
    for id in ids:
        outbox.put(said(id), priority, 0.0)
        waiting = outbox.take(0.0)
        assert isinstance(waiting, QueuedEnvelope)
        outbox.keep(waiting)
        outbox.gone()


@pytest.mark.rule("6.resume.sent_again")
def test_what_has_not_come_back_is_the_next_to_be_sent_in_its_order(outbox: Outbox) -> None:
    sent(outbox, "a", "b", "c")
    sent(outbox, "withdraw", priority=Priority.END)
    outbox.put(said("new"), Priority.OPEN, 0.0)
    outbox.send_again()
    assert outbox.unaccepted == 0
    assert taken(outbox) == ["withdraw", "a", "b", "c", "new"]


@pytest.mark.rule("6.resume.accepted")
@pytest.mark.parametrize(
    ("replayed", "again"), [(False, ["c"]), (True, ["a", "c"])], ids=["live", "replayed"]
)
def test_what_has_come_back_is_never_sent_again(
    outbox: Outbox, replayed: bool, again: list[str]
) -> None:
    """A refused envelope is no part of a replay: it is sent again, to be refused again."""
    sent(outbox, "a", "b", "c")
    outbox.accepted("b", replayed=replayed)
    outbox.accepted("another's", replayed=replayed)
    outbox.send_again()
    assert taken(outbox) == again


@pytest.mark.rule("6.resume.sent_again")
def test_what_nobody_waits_for_or_waits_already_is_not_sent_again(outbox: Outbox) -> None:
    sent(outbox, "a", "b")
    outbox.remove("a")
    outbox.put(said("b"), Priority.OPEN, 0.0)
    outbox.send_again()
    assert taken(outbox) == ["b"]


@pytest.mark.rule("6.resume.gap")
def test_after_a_gap_nothing_is_sent_again_but_what_never_left(outbox: Outbox) -> None:
    sent(outbox, "a")
    outbox.put(said("cut off"), Priority.TALK, 0.0)
    waiting = outbox.take(0.0)
    assert isinstance(waiting, QueuedEnvelope)
    outbox.keep(waiting)
    outbox.put_back(waiting)
    outbox.keep_nothing()
    outbox.send_again()
    assert taken(outbox) == ["cut off"]


@pytest.mark.rule("6.resume.sent_again")
@pytest.mark.parametrize("by", ["count", "bytes"])
async def test_more_than_is_kept_waits_for_what_comes_back(outbox: Outbox, by: str) -> None:
    payload, count = ({}, MAX_UNACCEPTED) if by == "count" else ("x" * 2**20, 64)
    for number in range(count):
        assert not outbox.is_owed_too_much
        outbox.put(said(str(number), payload), Priority.OPEN, 0.0)
        waiting = outbox.take(0.0)
        assert isinstance(waiting, QueuedEnvelope)
        outbox.keep(waiting)
        outbox.gone()
    assert outbox.is_owed_too_much
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outbox.wait_accepted)
            await anyio.wait_all_tasks_blocked()
            outbox.accepted("0")
    assert outbox.unaccepted == count - 1
    assert MAX_UNACCEPTED_BYTES == 64 * 2**20


async def test_more_is_sent_when_what_was_owed_is_not_waited_for_any_more() -> None:
    outbox, sent = Outbox(), anyio.Event()
    for number in range(MAX_UNACCEPTED):
        outbox.keep(QueuedEnvelope(said(str(number)), Priority.OPEN, 0.0))

    async def send() -> None:
        await outbox.wait_accepted()
        sent.set()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            assert not sent.is_set()
            outbox.remove("7")
            await sent.wait()


def test_frames_of_streams_leave_in_order_and_never_twice(outbox: Outbox) -> None:
    outbox.put(said("before"), Priority.TALK, 0.0)
    outbox.put_frame("s-1", b"one")
    outbox.put_frame("s-2", b"two")
    outbox.put(said("after"), Priority.ANSWER, 0.0)
    outbox.put(said("end"), Priority.END, 0.0)
    left: list[object] = []
    while (waiting := outbox.take(1.0)) is not None:
        left.append(waiting.frame if isinstance(waiting, QueuedFrame) else waiting.draft.id)
        outbox.gone()
    assert left == ["end", "before", b"one", b"two", "after"]
    outbox.send_again()
    assert len(outbox) == 0


def test_frames_have_a_bound_of_their_own_and_push_out_no_talk(outbox: Outbox) -> None:
    outbox.put(said("chat"), Priority.TALK, 0.0)
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
    assert taken(outbox, frames=1) == ["chat"]


def test_a_frame_that_could_not_be_sent_is_the_next_one_again(outbox: Outbox) -> None:
    outbox.put_frame("s-1", b"one")
    outbox.put_frame("s-1", b"two")
    waiting = outbox.take(0.0)
    assert isinstance(waiting, QueuedFrame)
    outbox.put_frame_back(waiting)
    assert outbox.take(0.0) == waiting


def test_talk_that_is_dropped_for_room_is_no_frame(outbox: Outbox) -> None:
    outbox.put_frame("s-1", b"x")
    for number in range(MAX_ENVELOPES):
        outbox.put(said(str(number)), Priority.TALK, 0.0)
    assert outbox.dropped == 1
    assert isinstance(outbox.take(0.0), QueuedFrame)
