"""The forms of a configuration file: our own, and that of the reference's ``space.yaml``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

IGNORED_OF_A_SPACE: Final = frozenset({"description", "default_participant", "ui_theme"})
IGNORED_OF_A_PARTICIPANT: Final = frozenset(
    {
        "args",
        "auto_connect",
        "auto_start",
        "bridge_config",
        "command",
        "cwd",
        "env",
        "fifo",
        "mcp_server",
        "output_log",
        "type",
    }
)
"""What the reference's file says of starting participants: this gateway starts nobody. These keys
are taken with a warning; any other unknown key is an error, since it may be a typing mistake."""


class Form(BaseModel):
    """A mapping of a configuration file; a key that it does not have is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ParticipantForm(Form):
    """``participants.<id>``."""

    tokens: tuple[SecretStr, ...] = ()
    token_hashes: tuple[str, ...] = ()
    token_files: tuple[Path, ...] = ()
    capabilities: tuple[dict[str, Any], ...] | None = None
    dialect: str | None = None


class DefaultsForm(Form):
    """``defaults``."""

    capabilities: tuple[dict[str, Any], ...] = ()


class SpaceForm(Form):
    """``spaces.<id>``."""

    name: str = ""
    dialect: str | None = None
    announce_withdrawals: bool = False
    participants: dict[str, ParticipantForm]
    defaults: DefaultsForm | None = None


class SettingsForm(Form):
    """What either file can say besides its spaces."""

    defaults: DefaultsForm = DefaultsForm()
    gateway: dict[str, Any] = Field(default_factory=dict[str, Any])
    journal: dict[str, Any] = Field(default_factory=dict[str, Any])
    http: dict[str, Any] | None = None
    tls: dict[str, Any] = Field(default_factory=dict[str, Any])


class OurFile(SettingsForm):
    """A file with a key ``spaces``."""

    spaces: dict[str, SpaceForm]


class OneSpaceForm(Form):
    """``space`` of the reference's file."""

    id: str
    name: str = ""
    dialect: str | None = None
    announce_withdrawals: bool = False


class ReferenceFile(SettingsForm):
    """A file with the keys ``space`` and ``participants``, as the reference's ``space.yaml``."""

    space: OneSpaceForm
    participants: dict[str, ParticipantForm]


def first_problem(error: ValidationError, form: type[BaseModel] | None = None) -> tuple[str, str]:
    """The first problem: its key and what was expected. The value stays out, it may be secret.

    Args:
        error: What pydantic found. Of several problems an unknown key is told first, since it may
            be what is missing elsewhere, misspelt.
        form: What the file has; with it, an unknown key is told what was perhaps meant.
    """
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    problem = next((each for each in problems if each["type"] == "extra_forbidden"), problems[0])
    key = _key(problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = () if form is None else _keys_at(form, problem["loc"])
        return key, f"unknown key; {instead(str(problem['loc'][-1]), known)}"
    if problem["type"] == "missing":
        return key, "is missing"
    expected = _EXPECTED.get(problem["type"])
    if expected is not None:
        return key, f"expected {expected}"
    return key, problem["msg"].replace("Input should be", "expected")


def instead(name: str, known: Iterable[str], written: Callable[[str], str] = str) -> str:
    """What to do about a name that means nothing.

    Args:
        name: The name.
        known: What it could have been.
        written: How one of these is written.
    """
    near = get_close_matches(name, tuple(known), 1)
    return f"did you mean {written(near[0])}?" if near else "remove it, or correct its spelling"


def _key(location: tuple[int | str, ...]) -> str:
    """A place in a file: ``participants.alice.tokens[0]``."""
    # Pydantic says so where the key itself is wrong, which may be a number.
    parts = (*location[:-2], str(location[-2])) if location[-1:] == ("[key]",) else location
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts
    ).removeprefix(".")


def _keys_at(form: type[BaseModel], location: tuple[int | str, ...]) -> Iterable[str]:
    """The keys that the mapping at a place can have."""
    parts = iter(location[:-1])
    for part in parts:
        annotation = form.model_fields[str(part)].annotation
        if get_origin(annotation) is dict:
            next(parts)
        form = next(_forms_in(annotation))
    return form.model_fields


def _forms_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _forms_in(argument)


_EXPECTED: Final = {
    "dataclass_type": "keys and values",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "a text; put it in quotes",
    "path_type": "a path",
}
"""What was expected, in the words of a file, not of the types behind it."""
