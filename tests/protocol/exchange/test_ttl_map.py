"""Maps that forget by count, age and size."""

from __future__ import annotations

from meup_agent.protocol.exchange.ttl_map import TTLMap


def test_a_map_forgets_the_oldest_by_count_by_age_and_by_size() -> None:
    memory: TTLMap[str, int] = TTLMap(count=3, seconds=10.0, size=100)
    for number, name in enumerate("abcd"):
        memory.put(name, number, float(number), size=10)
    assert [memory.get(name, 3.0) for name in "abcd"] == [None, 1, 2, 3]
    assert memory.get("b", 10.9) == 1
    assert memory.get("b", 11.0) is None
    memory.put("e", 4, 11.5, size=85)
    assert list(memory.values(11.5)) == [3, 4]
    memory.grow("d", 10, 11.5)
    assert list(memory.values(11.5)) == [4]
    memory.grow("gone", 1000, 11.5)
    assert memory.pop("e") == 4
    assert memory.pop("e") is None
    memory.put("f", 5, 11.5, size=101)
    assert len(memory) == 0


def test_a_map_keeps_what_is_needed() -> None:
    needed = {1}
    memory: TTLMap[str, int] = TTLMap(count=1, seconds=10.0, needed=needed.__contains__)
    memory.put("a", 1, 0.0)
    memory.put("b", 2, 1.0)
    assert (memory.get("a", 100.0), memory.get("b", 100.0)) == (1, None)
    needed.clear()
    assert memory.get("a", 200.0) is None
