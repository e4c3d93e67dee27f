"""Options that several commands share, each declared once; and groups of them.

A command takes a group as one parameter::

    def kick(name: Name, reason: Why = None, *, join: TimedOptions) -> None: ...

:func:`expand_groups` puts the group's options in its place when typer asks for the parameters. This
module loads no agent, so that commands that need none start fast.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import msgspec
import typer

from meup_agent.errors import ConfigurationError

if TYPE_CHECKING:
    from meup_agent.gateway.config import TlsConfig


def option(metavar: str, about: str, *names: str) -> Any:
    """An option with a value, named after its parameter unless it has other names."""
    return typer.Option(*names, metavar=metavar, help=about)


def flag(name: str, about: str) -> Any:
    """An option without a value; its name keeps typer from adding ``--no-…``."""
    return typer.Option(name, help=about)


def argument(metavar: str, about: str) -> Any:
    return typer.Argument(metavar=metavar, help=about, show_default=False)


AnswerWithin = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="Answer a call that waits after so long with the id under which its outcome can be"
        " asked for; 0: never. By default shortly before the client gives up, as its name tells.",
        show_default=False,
    ),
]

# --- what is shown ---

Json = Annotated[bool, flag("--json", "The result as one JSON document on one line, in ASCII.")]
NoColour = Annotated[
    bool,
    flag("--no-color", "No colour, bold or dim text, as with NO_COLOR in the environment."),
]


def wants_colour(*, colour: bool = True) -> bool:
    """True if output may be styled: neither ``--no-color`` nor ``NO_COLOR`` forbids it."""
    return colour and not os.environ.get("NO_COLOR")


# --- how long, and how ---

DEFAULT_TTL: Final = "By default MEUP_TTL, else 300."


def ttl_option(*names: str) -> Any:
    """An option that takes the seconds of a call, decision and result, or leaves the default."""
    return option(
        "SECONDS",
        "How long to wait for the decision and the result; inf: as long as it takes."
        f" {DEFAULT_TTL}",
        *names,
    )


Timeout = Annotated[
    float,
    option("SECONDS", "How long to wait for the gateway, in seconds; inf: as long as it takes."),
]
TakeOver = Annotated[
    bool,
    flag(
        "--take-over",
        "Where the gateway knows no observers, join all the same: an agent that runs with this"
        " token loses its connection.",
    ),
]

# --- a port ---

RunningPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, metavar="PORT", help="Of the gateway's port, where several run."
    ),
]
TlsCertificate = Annotated[
    Path | None, option("FILE", "Speak TLS with this certificate and its chain, in PEM.")
]
TlsKey = Annotated[Path | None, option("FILE", "The certificate's key, in PEM.")]
Insecure = Annotated[
    bool,
    flag(
        "--insecure",
        "Listen without TLS where others than this machine can reach it and read along.",
    ),
]

Roots = Annotated[
    list[str] | None,
    option(
        "FOLDER",
        "A folder, or its file:// URI, that the MCP servers are told as their client's root; may be"
        " given several times. Without it they are told the roots of the client that calls. Who"
        " decides about a call that writes a file below it is shown what would change.",
    ),
]

# --- a call ---

Args = Annotated[
    str | None,
    option("JSON", "The arguments as a JSON object; KEY=VALUE wins."),
]
ArgsFile = Annotated[Path | None, option("PATH", "A file that holds that object.")]
To = Annotated[
    list[str] | None,
    option("NAME", "A participant that should decide the proposal; may be given several times."),
]

# --- managing a space ---

Name = Annotated[str, argument("NAME", "The participant.")]
Capabilities = Annotated[
    list[str] | None,
    argument("[CAPABILITY]…", "A kind, such as `mcp/request`, or a whole capability as JSON."),
]
Why = Annotated[str | None, option("TEXT", "Why, for those who read it.")]


class LogFormat(StrEnum):
    """The form of the log's lines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def seconds(value: float, option: str) -> float | None:
    """The seconds that an option gives; ``None`` for ``inf``: as long as it takes."""
    if math.isnan(value) or value <= 0:
        raise ConfigurationError(f"{option} takes seconds above 0, or inf; {value:g} is neither")
    return None if math.isinf(value) else value


def answer_seconds(value: float | None) -> float | None:
    """The seconds of ``--answer-within``; 0: never; ``None``: it was not given."""
    if value is None:
        return None
    return 0.0 if value == 0 else seconds(value, "--answer-within") or 0.0


# --- groups ---


class OptionGroup(msgspec.Struct, frozen=True):
    """Options that belong together; each field is one, declared as a parameter would be."""


def expand_groups(command: Callable[..., object]) -> Callable[..., object]:
    """The command with the options of its groups as parameters of its own, as typer reads them."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[OptionGroup]] = {}
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        hint = hints[parameter.name]
        if isinstance(hint, type) and issubclass(hint, OptionGroup):
            groups[parameter.name] = hint
            for each in msgspec.structs.fields(hint):
                default = Parameter.empty if each.required else each.default
                kind = Parameter.KEYWORD_ONLY
                parameters.append(Parameter(each.name, kind, default=default, annotation=each.type))
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hint))

    def expanded(**given: Any) -> object:
        for name, group in groups.items():
            given[name] = group(**{each: given.pop(each) for each in group.__struct_fields__})
        return command(**given)

    expanded.__name__, expanded.__doc__ = command.__name__, command.__doc__
    expanded.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(expanded)["__signature__"] = Signature(parameters)
    return expanded


# --- completion, which asks nothing over the network ---


def complete_kind(incomplete: str) -> list[str]:
    """Kinds, with dots or with slashes, as the beginning has them, and words of the timeline."""
    # Loaded when a shell completes; the same below.
    from meup_agent.cli.render.formatting import NOUNS
    from meup_agent.protocol.wire.kinds import KINDS, dotted

    names = KINDS if "/" in incomplete else map(dotted, KINDS)
    return _starting_with(incomplete, [*NOUNS, *names])


def reason_option(codes: Collection[str]) -> Any:
    """An option that takes a reason code (PROTOCOL 4.3), or a word of the user's own."""

    def complete(incomplete: str) -> list[str]:
        return _starting_with(incomplete, codes)

    return typer.Option(metavar="REASON", help=f"Why: {', '.join(codes)}.", autocompletion=complete)


def _starting_with(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def tls_config(
    certificate: Path | None, key: Path | None, configured: TlsConfig | None = None
) -> TlsConfig | None:
    """The TLS settings of a command line, over those of a file.

    Raises:
        ConfigurationError: One of the two is missing.
    """
    from meup_agent.gateway.config import TlsConfig

    if configured is not None:
        return TlsConfig(certificate or configured.certificate, key or configured.key)
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigurationError("TLS needs both --tls-certificate and --tls-key")
    return TlsConfig(certificate, key)
