"""Options that several commands have, in the same words."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Final

import typer

from meup_agent.errors import ConfigurationError

Json = Annotated[
    bool, typer.Option("--json", help="The result as one JSON document on one line, in ASCII.")
]
NoColour = Annotated[
    bool,
    typer.Option(
        "--no-color", help="No colour, bold or dim text, as with NO_COLOR in the environment."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="How long to wait for the gateway, in seconds; inf: as long as it takes.",
    ),
]
Owner = Annotated[
    str,
    typer.Argument(
        metavar="PARTICIPANT", help="The participant that has the tool.", show_default=False
    ),
]
Tool = Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.", show_default=False)]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="The tool's arguments. A value that is JSON is taken as JSON, unless the tool wants"
        " text there. `-` reads a JSON object from standard input.",
        show_default=False,
    ),
]
Args = Annotated[
    str | None,
    typer.Option("--args", metavar="JSON", help="The arguments as a JSON object; KEY=VALUE wins."),
]
ArgsFile = Annotated[
    Path | None,
    typer.Option("--args-file", metavar="PATH", help="A file that holds that object."),
]
AcceptEdits = Annotated[
    bool,
    typer.Option(
        "--accept-edits",
        help="A call that was carried out otherwise than proposed is a success too; the difference"
        " is told.",
    ),
]
To = Annotated[
    list[str] | None,
    typer.Option(
        "--to",
        metavar="NAME",
        help="A participant that should decide the proposal; may be given several times.",
    ),
]

TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Where the gateway knows no observers, join all the same: an agent that runs with this"
        " token loses its connection.",
    ),
]

WELCOME_SECONDS: Final = 10.0
"""How long a command waits for its welcome."""


def seconds(value: float, option: str) -> float | None:
    """The seconds that an option gives; ``None`` for ``inf``: as long as it takes.

    Raises:
        ConfigurationError: It is no time to wait.
    """
    if math.isnan(value) or value <= 0:
        raise ConfigurationError(f"{option} takes seconds above 0, or inf; {value:g} is neither")
    return None if math.isinf(value) else value
