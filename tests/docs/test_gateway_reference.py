"""The page about the gateway names every key of its file, and every variable of its environment."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from meup_agent.gateway import ParticipantConfig, load_config
from meup_agent.gateway.config import SECTIONS, Defaults, NotifyTarget, OurFile, SpaceForm
from meup_agent.gateway.config_file import SETTINGS
from meup_agent.gateway.edge.http.context import refused
from meup_agent.protocol.space.state import rules
from meup_agent.protocol.space.state.grants import KICKED
from meup_agent.protocol.space.state.indexes import ID_IN_USE, LIMIT_EXCEEDED, draft_refusal
from meup_agent.protocol.wire.membership import OBSERVING
from tests.gateways import LIMIT_ROWS, hash_token, variable_of
from tests.programs import ROOT

PAGE = (ROOT / "docs" / "reference" / "gateway.md").read_text(encoding="utf-8")
HOW_TO = (ROOT / "docs" / "how-to" / "run-a-gateway.md").read_text(encoding="utf-8")

LIMITS = {row.name for row in LIMIT_ROWS}


def rows() -> list[list[str]]:
    """The cells of every row of a table, without their backticks at both ends."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_setting_has_a_row_with_its_variable() -> None:
    shown = {row[0].strip("`"): row[1].strip("`") for row in rows() if "MEUP_GATEWAY_" in row[1]}
    assert shown.pop("gateway.<limit>") == "MEUP_GATEWAY_<LIMIT>"
    settings = {name: place for name, place in SETTINGS.items() if name not in LIMITS}
    assert shown == {".".join(place): variable_of(name) for name, place in settings.items()}


def keys(form: type[Any], place: str = "") -> set[str]:
    return {f"{place}{each.name}" for each in fields(form)}


def test_every_key_of_spaces_and_participants_has_a_row() -> None:
    space, participant = "spaces.<space>", "spaces.<space>.participants.<id>"
    expected = {space, participant, "defaults.capabilities", f"{space}.defaults.capabilities"}
    expected |= keys(SpaceForm, f"{space}.") - {f"{space}.participants", f"{space}.defaults"}
    expected |= keys(ParticipantConfig, f"{participant}.")
    assert keys(Defaults) == {"capabilities"}
    shown = {row[0].strip("`") for row in rows()}
    assert {key for key in shown if key.startswith(("spaces.", "defaults."))} == expected
    assert keys(OurFile) == {"spaces", "defaults", "notify", *SECTIONS}
    assert keys(NotifyTarget, "notify[].") == {key for key in shown if key.startswith("notify")}


@pytest.mark.parametrize(
    "block", re.findall(r"```yaml\n(gateway:.*?)```", HOW_TO, re.DOTALL), ids=["tls"]
)
def test_settings_of_the_how_to_are_understood(block: str, tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("spaces: {demo: {participants: {}}}\n" + block)
    assert load_config(file).tls is not None


def test_token_and_hash_of_the_how_to_belong_together() -> None:
    token = re.search(r"^token: (\S+)$", HOW_TO, re.MULTILINE)
    assert token
    assert re.findall(r"sha256:\w+", HOW_TO) == [hash_token(token[1])] * 2


def test_every_refusal_has_its_status() -> None:
    """Of the errors that are listed; managing a space has more, which are all 403."""
    section = PAGE.partition("## What is refused")[2].partition("## ")[0]
    found = re.findall(r"^\| (`[a-z_`, ]+`) \| (\d{3}) \|", section, re.MULTILINE)
    listed = {code: int(status) for codes, status in found for code in re.findall("[a-z_]+", codes)}
    for code, status in listed.items():
        assert refused(draft_refusal("alice", code, "no")).status == status, code
    known = {rules.NOT_PENDING, rules.RESERVED_KEY, rules.SEVERAL_PROPOSALS, ID_IN_USE}
    known |= {rules.CAPABILITY_VIOLATION, rules.IDENTITY_MISMATCH, rules.NOT_PROPOSER}
    known |= {rules.RESERVED_KIND, KICKED, LIMIT_EXCEEDED, OBSERVING}
    assert known <= listed.keys()
