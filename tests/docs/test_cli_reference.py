"""The page about the command line says of each command what its `--help` says."""

import re
from enum import Enum
from typing import Any

import pytest
from typer.main import get_command

from meup_agent.cli.commands import COMMANDS as NAMES
from meup_agent.cli.commands import load_command
from tests.cli.commands import app, exit_codes
from tests.programs import ROOT

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")

# Typer has a copy of click inside, whose names are not public.
MEUP: Any = get_command(app)
COMMANDS: dict[str, Any] = {
    name: command
    for first, outer in ((each, load_command(each)) for each in NAMES)
    for name, command in (
        ({first: outer} if outer.invoke_without_command else {})
        | {f"{first} {inner}": each for inner, each in outer.commands.items()}
        if hasattr(outer, "commands")
        else {first: outer}
    ).items()
}


def markdown(text: str) -> str:
    """A help text, with its bold parts as code, and each paragraph on one line."""
    text = re.sub(r"\[b\](.*?)\[/b\]", r"`\1`", text)
    paragraphs = [" ".join(each.split()) for each in text.strip().split("\n\n")]
    return "\n\n".join(paragraphs)


def row(parameter: Any) -> str:
    """A line of the table of a command's options and arguments."""
    default: object = parameter.default
    values = parameter.metavar or ""
    if isinstance(default, Enum):
        values = values or r"\|".join(str(choice.value) for choice in type(default))
        default = default.value
    elif isinstance(default, float):
        default = f"{default:g}"
    names = [] if parameter.param_type_name == "argument" else [", ".join(parameter.opts)]
    name = " ".join([*names, values]).strip()
    said = f" Default: `{default}`." if isinstance(default, str) else ""
    return f"| `{name}` | {markdown(parameter.help)}{said} |"


def block(name: str) -> str:
    """The lines that the page must have about a command."""
    command: Any = COMMANDS[name]
    table = [row(each) for each in command.params]
    head = [f"## meup {name}", "", markdown(command.help), ""]
    return "\n".join([*head, "| option | what it does |", "|---|---|", *table])


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_described(name: str) -> None:
    expected = block(name)
    assert expected in PAGE, f"docs/reference/cli.md must contain:\n\n{expected}\n"


def test_program_itself_is_described() -> None:
    expected = "\n".join(row(each) for each in MEUP.params)
    assert expected in PAGE, f"docs/reference/cli.md must contain:\n\n{expected}\n"


def test_no_other_command_is_described() -> None:
    described = re.findall(r"^## meup (\w+(?: [\w-]+)?)$", PAGE, re.MULTILINE)
    assert described == list(COMMANDS)


def test_exit_codes_are_described() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.isupper()}
    described = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert {int(code) for code in described} == codes
