"""Programs that Ctrl-C or the connection ends show one line at most, and no traceback."""

import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from meup_agent.gateway import ThreadedGateway
from tests.interaction.people import gateway_for_everybody
from tests.programs import program

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals"),
    pytest.mark.parametrize("backend", ["asyncio", "trio"]),
]

SCRIPT = Path(__file__).with_name("uncaught.py")


@pytest.fixture(scope="module")
def gateway() -> Generator[ThreadedGateway]:
    with gateway_for_everybody().in_thread() as running:
        yield running


def told(gateway: ThreadedGateway, *, token: str = "") -> dict[str, str]:
    return {
        "MEUP_URL": gateway.url,
        "MEUP_SPACE": "demo",
        "MEUP_TOKEN": token or gateway.token("tools"),
    }


@pytest.mark.parametrize("how", ["plain", "grouped"])
def test_ctrl_c_in_the_block_says_nothing(gateway: ThreadedGateway, backend: str, how: str) -> None:
    with program([SCRIPT, backend, how], told(gateway)) as script:
        script.wait_for("in")
        # As shells have it that is 130; trio puts it into the group, and Python exits with 1.
        assert script.stop() == -signal.SIGINT or how == "grouped"
    assert script.stderr == []


@pytest.mark.parametrize("how", ["loading", "loading a class", "connecting"])
def test_ctrl_c_before_it_says_nothing(gateway: ThreadedGateway, backend: str, how: str) -> None:
    loads = how != "connecting"
    with program([SCRIPT, backend, how], told(gateway), fork=not loads) as script:
        if not loads:
            script.wait()
        else:
            assert script.wait() == (1 if how == "loading a class" else -signal.SIGINT)
    assert script.stderr == []


def test_program_may_catch_ctrl_c_itself(gateway: ThreadedGateway, backend: str) -> None:
    with program([SCRIPT, backend, "catching"], told(gateway)) as script:
        script.wait_for("in")
        assert script.stop() == 0
    assert (script.stdout, script.stderr) == (["in", "bye"], [])


@pytest.mark.parametrize("how", ["plain", "grouped"])
def test_refused_token_is_one_sentence(gateway: ThreadedGateway, backend: str, how: str) -> None:
    environment = told(gateway, token="wrong")
    with program([SCRIPT, backend, how], environment) as script:
        assert script.wait() == 1
    (line,) = script.stderr
    assert line.startswith(f"meup: the gateway {environment['MEUP_URL']} refused the token")


def test_missing_address_is_one_sentence(backend: str) -> None:
    with program([SCRIPT, backend, "plain"], {"MEUP_URL": ""}) as script:
        assert script.wait() == 1
    assert script.stderr == ["meup: the url is missing; pass url=… or set MEUP_URL"]


def test_lost_connection_is_one_sentence(gateway: ThreadedGateway, backend: str) -> None:
    with program([SCRIPT, backend, "plain"], told(gateway)) as first:
        first.wait_for("in")
        with program([SCRIPT, backend, "plain"], told(gateway)) as second:
            second.wait_for("in")
            assert first.wait() == 1
            second.stop()
    (line,) = first.stderr
    assert line.startswith("meup: a newer connection of the same participant took over")


@pytest.mark.parametrize(
    ("how", "last"),
    [("failing", "LookupError: in the block"), ("failing later", "LookupError: after the block")],
)
def test_programs_own_failure_keeps_its_traceback(
    gateway: ThreadedGateway, backend: str, how: str, last: str
) -> None:
    wrong = "wrong" if how == "failing later" else ""
    with program([SCRIPT, backend, how], told(gateway, token=wrong)) as script:
        assert script.wait() == 1
    assert script.stderr[-1] == last
    assert "Traceback (most recent call last):" in script.stderr


def test_tracebacks_can_be_asked_for(gateway: ThreadedGateway, backend: str) -> None:
    asked = {**told(gateway, token="wrong"), "MEUP_DEBUG": "1"}
    with program([SCRIPT, backend, "plain"], asked) as script:
        assert script.wait() == 1
    assert "Traceback (most recent call last):" in script.stderr
    assert script.stderr[-1].startswith("meup_agent.errors.TokenRefused: ")
