"""A group of options is one parameter of a command, and several options on its command line."""

from dataclasses import dataclass

import pytest
import typer
from typer.testing import CliRunner

from meup_agent.cli.options import Json, Name, OptionGroup, expand_groups, seconds
from meup_agent.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(OptionGroup):
    name: Name
    as_json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FarTarget(Target):
    hops: int = 3


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()

    @app.command()
    def unused() -> None: ...

    def send(text: str = "hello", *, target: FarTarget, loud: bool = False) -> None:
        """Send a text."""
        typer.echo(f"{text} {target.name} {target.as_json} {target.hops} {loud}")

    app.command("send")(expand_groups(send))
    done = CliRunner().invoke(app, ["send", *arguments])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["you"], "hello you False 3 False"),
        (["you", "--json", "--hops", "5", "--loud"], "hello you True 5 True"),
        (["--text", "bye", "you"], "bye you False 3 False"),
    ],
)
def test_a_command_gets_its_groups(arguments: list[str], output: str) -> None:
    assert run(*arguments) == (0, f"{output}\n")


def test_an_option_without_a_default_is_required() -> None:
    code, output = run()
    assert code == 2
    assert "Missing argument 'NAME'" in output


def test_the_help_shows_the_options_in_the_place_of_their_group() -> None:
    code, output = run("--help")
    places = [
        output.index(each) for each in ("Send a text", "--text", "--json", "--hops", "--loud")
    ]
    assert code == 0
    assert places == sorted(places)


@pytest.mark.parametrize(("given", "limit"), [(2.5, 2.5), (float("inf"), None)])
def test_a_wait_is_seconds_or_has_no_end(given: float, limit: float | None) -> None:
    assert seconds(given, "--timeout") == limit


@pytest.mark.parametrize("given", [0.0, -1.0, float("nan")])
def test_other_waits_are_refused_by_their_option(given: float) -> None:
    with pytest.raises(ConfigurationError, match="--timeout takes seconds above 0, or inf"):
        seconds(given, "--timeout")
