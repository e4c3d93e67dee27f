"""The table of limits: each row is configured, documented, bounded and enforced."""

import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.gateway import GatewayLimits, dev_config
from meup_agent.gateway.config_file import environment_over
from meup_agent.protocol.space.allowance import LimitRow
from tests.gateways import LIMIT_ROWS, variable_of
from tests.marks import all_marks

ROWS = pytest.mark.parametrize("row", LIMIT_ROWS, ids=[row.name for row in LIMIT_ROWS])


@ROWS
def test_limit_is_configured_by_its_name(row: LimitRow, monkeypatch: pytest.MonkeyPatch) -> None:
    # Half, but never less than the deadline that has to fit into it.
    less = row.default // 2 if isinstance(row.default, int) else row.default / 2
    other = row.default * 2 if row.name == "ping_interval" else less
    monkeypatch.setenv(variable_of(row.name), str(other))
    assert getattr(environment_over(dev_config()).limits, row.name) == other


def test_each_limit_is_bounded() -> None:
    for row in LIMIT_ROWS:
        for wrong in (0, -1, *(() if row.at_most is None else (row.at_most + 1,))):
            with pytest.raises(ConfigurationError, match=f"^{row.name}: expected "):
                GatewayLimits(**{row.name: wrong})


def test_each_limit_is_exceeded_by_a_test() -> None:
    """By one that fails where the limit is not enforced, and says so in a marker."""
    assert all_marks("limit").keys() == {row.name for row in LIMIT_ROWS}


def test_each_limit_says_what_it_limits() -> None:
    for row in LIMIT_ROWS:
        assert row.about
        assert not row.about.endswith(".")
        assert row.shown[0].isdigit()


def test_ping_that_is_due_before_the_last_one_is_overdue() -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        GatewayLimits(ping_interval=1.0, ping_deadline=2.0)
