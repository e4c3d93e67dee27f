"""The examples of MCP servers in a space, run as programs."""

from tests.programs import ROOT, program


def test_a_server_is_called_and_asks() -> None:
    assert (ROOT / "examples" / "mcp_tides.py").exists()  # it starts this server
    with program([ROOT / "examples" / "mcp_bridge.py"]) as running:
        running.wait_for("Whitby: at noon")
        assert running.wait() == 0
    assert running.stdout == [
        "['high_water', 'my_high_water']",
        "Leith: at noon",
        "tides asks for skipper: Which harbour?",
        "Whitby: at noon",
    ]


def test_a_slow_call_is_polled() -> None:
    with program([ROOT / "examples" / "mcp_tasks.py"]) as running:
        running.wait_for("{'result': 1500}")
        assert running.wait() == 0
