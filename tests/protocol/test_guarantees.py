"""Guarantees of a gateway, by its welcome and its dialect."""

import pytest

from meup_agent.types import Guarantees
from tests.wire import OURS, read_guarantees, said_by


def test_what_a_gateway_says_of_itself_counts() -> None:
    assert read_guarantees(said_by(OURS), "mew/v0.4") == OURS


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        ("meup/v0.2", Guarantees(hidden_targets=True)),
        ("mew/v0.4", Guarantees(echo=True)),
        ("meup/v0.1", Guarantees()),
        ("", Guarantees()),
    ],
)
def test_a_gateway_that_says_nothing_is_judged_by_its_dialect(
    dialect: str, expected: Guarantees
) -> None:
    assert read_guarantees({"you": {}}, dialect) == expected


@pytest.mark.parametrize("said", [None, 5, "yes", [], {}, {"identity_checked": "yes"}, {"echo": 1}])
def test_what_is_not_plainly_true_is_not_given(said: object) -> None:
    assert read_guarantees({"dev.meup/guarantees": said}, "meup/v0.1") == Guarantees()
