"""Which variants of a test a run has."""

import pytest

VALUES = ("a", "b", "c")
MOST = {"quick": 3, "installed": 1}
"""By profile: the variants of a test with two parameters that have these values; 9 in others."""


@pytest.mark.parametrize("_one", VALUES)
@pytest.mark.parametrize("_other", VALUES)
def test_only_a_thorough_run_has_each_combination(
    _one: str, _other: str, request: pytest.FixtureRequest
) -> None:
    profile = request.config.getoption("--hypothesis-profile")
    name = request.node.originalname
    variants = [each for each in request.session.items if each.name.startswith(name)]
    assert len(variants) <= MOST.get(profile, 9)
