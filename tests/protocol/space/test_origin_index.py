from meup_agent.protocol.space.indexes import OriginIndex
from tests.spaces import MAX_ORIGINS


def test_oldest_of_an_issuer_is_forgotten_first() -> None:
    issued: OriginIndex[int] = OriginIndex(limit=2)
    for number in range(3):
        issued.remember(f"e{number}", "alice", number)
    assert not issued.of("e0")
    assert (issued.of("e1"), issued.of("e2")) == ({"alice": 1}, {"alice": 2})


def test_id_used_again_counts_as_new() -> None:
    issued: OriginIndex[int] = OriginIndex(limit=2)
    for at, number in enumerate((0, 1, 0, 2)):
        issued.remember(f"e{number}", "alice", at)
    assert issued.of("e0") == {"alice": 2}
    assert "e1" not in issued


def test_nobody_pushes_out_anothers() -> None:
    issued: OriginIndex[str] = OriginIndex()
    issued.remember("mine", "alice", "kept")
    for number in range(2 * MAX_ORIGINS):
        issued.remember(f"e{number}", "mallory", "")
    assert issued.of("mine") == {"alice": "kept"}
    assert len(issued) == MAX_ORIGINS + 1


def test_forgetting_one_of_two_with_the_same_id_leaves_the_other() -> None:
    issued: OriginIndex[str] = OriginIndex(limit=1)
    issued.remember("same", "alice", "hers")
    issued.remember("same", "carol", "others")
    issued.remember("next", "alice", "hers")
    assert issued.of("same") == {"carol": "others"}
