"""What a service is told, and when: a clock that is a number, and proposals without a space."""

from itertools import count

import pytest

from tests.gateways import BurstTracker, InboxNotice, plain_name
from tests.spaces import OpenItem, ProposalKey, ProposalState
from tests.wire import Envelope

_numbers = count()


def proposal(tool: str = "write_file", proposer: str = "agent") -> OpenItem:
    said = Envelope(id=f"p{next(_numbers)}", sender=proposer, kind="mcp/proposal")
    return OpenItem(envelope=said, at=0, called=("tools/call", tool))


def fulfilled(key: ProposalKey) -> ProposalState:
    return ProposalState.FULFILLED


class Service:
    """A tracker, and what it would have sent."""

    def __init__(self) -> None:
        self.tracker = BurstTracker("demo", 3.0)
        self.takes = True

    def look(self, now: float, *waiting: OpenItem) -> InboxNotice | None:
        notice = self.tracker.look(waiting, now, fulfilled)
        if notice is not None:
            if self.takes:
                self.tracker.sent(notice, now)
            else:
                self.tracker.failed(now)
        return notice


def test_a_burst_is_one_notice_and_one_end() -> None:
    service, first, second = Service(), proposal(), proposal("delete")
    assert service.look(0, first) is None
    assert service.tracker.due == 3
    assert service.look(1, first, second) is None
    told = service.look(4, first, second)
    assert told is not None
    assert (told.total, told.title) == (2, "2 calls wait for a decision")
    assert told.text == "agent: write_file\nagent: delete"
    assert service.look(5, second) is None
    end = service.look(6)
    assert end is not None
    assert (end.settled, end.burst, end.title, end.text) == (
        True,
        told.burst,
        "Settled: 2 calls",
        "2 fulfilled",
    )
    assert service.look(100) is None


def test_what_a_rule_decides_at_once_is_not_told() -> None:
    service, quick = Service(), proposal()
    assert service.look(0, quick) is None
    assert service.look(2) is None
    assert service.look(100) is None


def test_one_that_a_rule_may_still_decide_is_not_counted() -> None:
    service, old, young = Service(), proposal(), proposal()
    service.look(0, old)
    told = service.look(3, old, young)
    assert told is not None
    assert told.total == 1


def test_what_comes_later_is_told_after_a_pause_under_the_same_burst() -> None:
    service, first, second = Service(), proposal(), proposal()
    service.look(0, first)
    told = service.look(3, first)
    service.look(4, first, second)
    assert service.look(10, first, second) is None
    assert service.tracker.due <= 33
    again = service.look(33, first, second)
    assert told is not None
    assert again is not None
    assert (again.burst, again.total) == (told.burst, 2)
    assert again.id != told.id


@pytest.mark.thorough
def test_a_flood_is_one_notice_in_a_pause() -> None:
    service = Service()
    waiting = [proposal(proposer=f"p{number % 7}") for number in range(1_000)]
    told = [service.look(at / 10, *waiting[: at + 1]) for at in range(900)]
    notices = [each for each in told if each is not None]
    assert len(notices) == 3
    assert all(len(each.calls) <= 20 for each in notices)
    assert notices[-1].text.endswith("more")


def test_one_that_was_not_taken_is_sent_again_under_its_id_with_longer_pauses() -> None:
    service, waiting = Service(), proposal()
    service.takes = False
    service.look(0, waiting)
    sent = [(at, it.id) for at in range(1, 2_000) if (it := service.look(at, waiting))]
    assert [at for at, _ in sent] == [3, 33, 93, 213, 453, 933, 1533]
    assert len({id for _, id in sent}) == 1


def test_an_end_that_fails_is_told_later_and_nothing_new_is_lost() -> None:
    service, first, second = Service(), proposal(), proposal()
    service.look(0, first)
    service.look(3, first)
    service.takes = False
    assert service.look(4) is not None
    service.takes = True
    assert service.look(20, second) is None
    end = service.look(34, second)
    assert end is not None
    assert end.settled
    begin = service.look(35, second)
    assert begin is not None
    assert begin.burst != end.burst


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("write_file", "write_file"),
        ("lies.example/login", "lies·example·login"),
        ("[here](https://lies.example)", "·here··https···lies·example·"),
        ("@everyone <@1>", "·everyone···1·"),
        ("a\nb\u202ec", "a·b·c"),
        ("読む", "読む"),
        ("x" * 500, "x" * 39 + "…"),
    ],
)
def test_a_name_is_no_link_mention_or_markup(name: str, shown: str) -> None:
    assert plain_name(name) == shown


def test_ends_are_counted_by_what_became_of_each() -> None:
    states = (ProposalState.EXPIRED, ProposalState.IN_PROGRESS, ProposalState.PENDING, None)
    told = [proposal() for _ in states]
    service = Service()
    service.look(0, *told)
    service.look(3, *told)
    ends = dict(zip([each.key for each in told], states, strict=True))
    end = service.tracker.look((), 5, lambda key: ends[key])
    assert end is not None
    assert end.text == "1 expired, 1 approved, 1 left to others, 1 forgotten"
