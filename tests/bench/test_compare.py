"""A comparison pairs the rounds of two trees, and tells steps."""

import pytest

from tests.bench import compare
from tests.bench.compare import Measured, read_figures, report

TABLE = """\
## Title

| what         | goal      | median           | lowest to highest |
|---|---|---|---|
| one request  | ≤ 60 µs   | 1,072 µs (missed) | 900 to 1,100     |
| accepted     | ≥ 200 /s  | 300 /s           |                   |
| share of all |           | 20.0 %           |                   |
| times that   | ≤ 1.05×   | 1.08× (missed)   |                   |
"""


def test_figures_are_read_without_shares_and_ratios() -> None:
    assert read_figures(TABLE) == {"one request": (1072.0, "µs"), "accepted": (300.0, "/s")}


def test_a_step_is_the_median_of_pairs_and_has_a_direction() -> None:
    def pair(before: float, after: float, machine: float) -> tuple[Measured, Measured]:
        return (
            {"slow": (before * machine, "µs"), "rate": (100 / machine, "/s"), "gone": (1, "s")},
            {"slow": (after * machine, "µs"), "rate": (125 / machine, "/s"), "new": (1, "s")},
        )

    # A machine that is thrice as slow in one minute as in another changes nothing.
    found = compare.compare([pair(10, 12, 1), pair(10, 12, 3), pair(10, 11, 2)])
    assert [(each.name, round(each.median, 2), each.is_step) for each in found] == [
        ("slow", 1.2, True),
        ("rate", 0.8, True),
    ]
    *_, last = report("0123456789abcdef", found)
    assert last == "steps of 10% or more since 0123456789ab: slow ×1.20; rate ×0.80"
    # Pairs that say the opposite are noise.
    noise = compare.compare([pair(10, 12, 1), pair(10, 12, 1), pair(10, 9, 1)])[:1]
    assert list(report("0123456789abcdef", noise))[-1].endswith(": none")
    same = compare.compare([pair(10, 10.5, 1)])[:1]
    assert list(report("0123456789abcdef", same))[-1].endswith(": none")


def test_a_commit_is_measured_beside_this_tree(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "MIN_PAIRS", 1)
    compare.main(["HEAD", "policy", "--seconds=0", "--scale=0.002"])
    assert "200 rules, a decision, p50" in capsys.readouterr().out


def test_a_commit_that_is_not_here_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    compare.main(["0" * 40])
    assert "this clone has no commit" in capsys.readouterr().err
