"""The example of a server whose slow calls are tasks, run as a program."""

from tests.programs import ROOT, program


def test_a_slow_call_is_polled() -> None:
    with program([ROOT / "examples" / "mcp_tasks.py"]) as running:
        running.wait_for("{'result': 1500}")
        assert running.wait() == 0
