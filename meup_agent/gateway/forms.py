"""The forms of a configuration file: our own, and that of the reference's ``space.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

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


def first_problem(error: ValidationError) -> tuple[str, str]:
    """The first problem: its key and what was expected. The value stays out, it may be secret."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return key, "unknown key; remove it, or correct its spelling"
    if problem["type"] == "missing":
        return key, "is missing"
    expected = _EXPECTED.get(problem["type"])
    if expected is not None:
        return key, f"expected {expected}"
    return key, problem["msg"].replace("Input should be", "expected")


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
