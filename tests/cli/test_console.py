"""NO_COLOR and --no-color take away every style; a line of the log is printable."""

import logging
import sys

import pytest
from rich.text import Text

from meup_agent.cli.options import wants_colour
from meup_agent.cli.render.logs import FORMAT, SafeFormatter
from meup_agent.cli.render.output import Stderr
from tests.cli.commands import Output
from tests.cli.processes import meup

STYLED = Text("[b]pending[/b]", style="bold dim red", no_wrap=True)


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("how", ["option", "variable", "neither"])
async def test_no_style_is_left(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, how: str, wrapped: bool
) -> None:
    if how == "variable":
        monkeypatch.setenv("NO_COLOR", "1")
    line = STYLED.copy()
    line.no_wrap = not wrapped
    await Output(colour=how != "option").show(line)
    Stderr(colour=how != "option").note("done")
    out, err = capfd.readouterr()
    assert ("\x1b" in out, "\x1b" in err) == ((True, True) if how == "neither" else (False, False))
    if how != "neither":
        assert (out, err) == ("[b]pending[/b]\n", "meup: done\n")


async def test_a_line_is_styled_as_rich_would(capfd: pytest.CaptureFixture[str]) -> None:
    output = Output()
    line = Text.assemble(("a", "bold green"), " ", ("b", "dim"), ("c\nd", "bright_blue"))
    line.no_wrap = True
    await output.show(line)
    with output.console.capture() as capture:
        output.console.print(line, soft_wrap=True)
    assert capfd.readouterr().out.replace("\x1b[0m", "") == capture.get().replace("\x1b[0m", "")


def test_an_empty_variable_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    assert wants_colour()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "variables"),
    [(("tail", "--help"), {"NO_COLOR": "1"}), (("who", "--no-color", "--help"), {})],
)
def test_a_help_has_no_style_either(arguments: tuple[str, ...], variables: dict[str, str]) -> None:
    done = meup(*arguments, variables={"FORCE_COLOR": "1", **variables})
    assert "--space" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_record_is_one_printable_line_and_a_traceback_keeps_its_own() -> None:
    try:
        raise ValueError("bad\x1b[31m")
    except ValueError:
        record = logging.LogRecord(
            "x", logging.ERROR, "f", 1, "from %s", ("a\nb\u202e",), sys.exc_info()
        )
    first, *traceback = SafeFormatter(FORMAT).format(record).splitlines()
    assert first.endswith("ERROR   from a\\nb\\u202e")
    assert traceback[-1] == "ValueError: bad\\e[31m"
    assert all(line.isprintable() for line in traceback)
