"""Files of spaces that exist: what of them is understood, and where their tokens come from."""

import logging
import stat
import sys
from pathlib import Path

import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.gateway import Config, load_config
from meup_agent.gateway.config_file import (
    MakeTokens,
    base_of,
    find_space_file,
    token_file,
    token_variable,
)
from tests.conformance.space_files import LISTED, MEUP_V02, MEW_V04
from tests.gateways import Identity

WITHDRAW = {"kind": "mcp/withdraw"}


def written(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "space.yaml"
    path.write_text(text)
    return path


def held(folder: Path, name: str, content: str, mode: int = 0o600) -> Path:
    """The file of a participant's token, which may be anything."""
    path = token_file(folder, name)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    path.chmod(mode)
    return path


def load(path: Path, make: MakeTokens = "never") -> Config:
    return load_config(path, needs_tokens=False, make_tokens=make)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        line.getMessage().partition(": ")[2]
        for line in caplog.records
        if line.levelno == logging.WARNING
    ]


def capabilities(config: Config, name: str) -> tuple[object, ...]:
    return config.spaces[0].participants[name].capabilities.patterns


@pytest.mark.rule("3.space_yaml")
def test_a_file_of_the_older_generation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load(written(tmp_path, MEUP_V02))
    (space,) = config.spaces
    assert (space.id, space.name, tuple(space.participants)) == (
        "quay",
        "The quay",
        ("crane", "clerk"),
    )
    assert capabilities(config, "crane") == ({"kind": "chat"}, {"kind": "mcp/response"}, WITHDRAW)
    assert capabilities(config, "clerk") == (
        {"kind": "mcp/*"},
        {"kind": "chat"},
        {"kind": ["reasoning/*"]},
    )
    assert config.tokens().identify("clerk-token") == Identity("quay", "clerk")
    clerk = space.participants["clerk"]
    assert (clerk.output_log, clerk.auto_connect) == (tmp_path / "logs" / "clerk.log", True)
    assert warnings(caplog) == [
        "ignored, since this gateway has no use for it: defaults.routing,"
        " participants.*.default_to (clerk), participants.*.fifo (crane, clerk),"
        " participants.*.io (clerk), space.description",
        "system/* comes only from the gateway, and is granted to none of: participants.crane,"
        " participants.clerk",
    ]


@pytest.mark.rule("3.space_yaml")
def test_a_file_of_the_newer_generation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load(written(tmp_path, MEW_V04))
    participants = config.spaces[0].participants
    crane, files = participants["crane"], participants["lift-files"]
    assert crane.args[-2:] == ("--depth", "3")
    assert crane.env == {"MODEL_KEY": "${MODEL_KEY}", "DEBUG": "true", "RETRIES": "3"}
    assert crane.cwd == Path("tools")
    assert files.mcp_server is not None
    assert (files.mcp_server.command, files.mcp_server.env) == ("node", {"VERBOSE": "false"})
    assert capabilities(config, "guest") == ({"kind": "chat"}, WITHDRAW)
    assert participants["human"].capabilities.allow("space/invite", {})
    assert not participants["human"].capabilities.allow("system/presence", {})
    assert warnings(caplog) == [
        "ignored, since this gateway has no use for it: gateway_logging,"
        " participants.*.bridge_config (lift-files), participants.*.restart_policy (lift-files),"
        " participants.*.type (crane, lift-files), space.default_participant, space.description,"
        " space.ui_theme",
        "system/* comes only from the gateway, and is granted to none of: defaults",
    ]


@pytest.mark.rule("3.space_yaml")
def test_a_file_with_its_participants_in_a_list(tmp_path: Path) -> None:
    config = load(written(tmp_path, LISTED))
    (space,) = config.spaces
    assert (space.id, tuple(space.participants)) == ("quay", ("crane", "master"))
    assert space.participants["crane"].auto_start is True
    twice = LISTED.replace("id: master", "id: crane")
    with pytest.raises(ConfigurationError, match="'crane' stands twice"):
        load(written(tmp_path, twice))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    capabilities:\n      - kind: chat\n", "    capabilites:\n", "did you mean capabil"),
        ("defaults:", "default:", "did you mean defaults"),
        ("kind: chat", "{kind: chat, when: noon}", "no field 'when'"),
        ('tokens: ["crane-token"]', 'token: "crane-token"', "did you mean token"),
    ],
)
def test_misspelt_keys_are_errors(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in MEUP_V02
    with pytest.raises(ConfigurationError, match=said):
        load(written(tmp_path, MEUP_V02.replace(old, new)))


def test_a_file_of_our_own_form_stays_strict(tmp_path: Path) -> None:
    ours = "spaces: {quay: {participants: {crane: {capabilities: [{kind: system/*}]}}}}\n"
    with pytest.raises(ConfigurationError, match="comes only from the gateway"):
        load(written(tmp_path, ours))
    with pytest.raises(ConfigurationError, match=r"fifo: unknown key"):
        load(written(tmp_path, ours.replace("capabilities: [{kind: system/*}]", "fifo: true")))


@pytest.mark.rule("3.space_yaml.tokens")
def test_a_space_that_exists_brings_its_tokens_and_its_port(tmp_path: Path) -> None:
    path = written(tmp_path / ".mew", MEW_V04)
    held(tmp_path, "human", "humans-own")
    assert find_space_file(tmp_path) == path
    assert base_of(path) == tmp_path
    config = load(path)
    assert config.port == 8080
    assert config.tokens().identify("humans-own") == Identity("quay", "human")
    crane = config.spaces[0].participants["crane"]
    assert crane.cwd == Path("tools")
    assert not crane.tokens  # none is made unless it is asked for


def test_a_gateway_section_that_is_none_is_refused_in_such_a_space_too(tmp_path: Path) -> None:
    path = written(tmp_path / ".mew", f"{MEW_V04}\ngateway: 8430\n")
    with pytest.raises(ConfigurationError, match="gateway"):
        load(path)
    written(tmp_path / ".mew", f"{MEW_V04}\ngateway:\n")
    assert load(path).port == 8080


@pytest.mark.rule("3.space_yaml.tokens")
def test_missing_tokens_are_made_where_it_is_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, MEW_V04)
    made = load(path, "always")
    for name, entry in made.spaces[0].participants.items():
        file = tmp_path / ".mew" / "tokens" / f"{name}.token"
        assert file.read_text().strip() == entry.tokens[0]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / ".mew" / "tokens").stat().st_mode) == 0o700
    assert (tmp_path / ".mew" / "tokens" / ".gitignore").read_text().startswith("*\n")
    again = load(path, "existing")
    assert again.spaces[0].participants["crane"].tokens == (
        made.spaces[0].participants["crane"].tokens
    )
    # Where there is a token in the file, none is made.
    listed = written(tmp_path / "other", MEUP_V02)
    load(listed, "always")
    assert not (tmp_path / "other" / ".mew").exists()


@pytest.mark.rule("3.space_yaml.tokens")
def test_the_environment_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, MEW_V04)
    held(tmp_path, "lift-files", "of-the-file\n")
    assert token_variable("lift-files") == "MEW_TOKEN_LIFT_FILES"
    monkeypatch.setenv("MEW_TOKEN_LIFT_FILES", "of-the-environment")
    tokens = load(path).tokens()
    assert tokens.identify("of-the-environment") == Identity("quay", "lift-files")
    assert tokens.identify("of-the-file") is None
    (said,) = [line.getMessage() for line in caplog.records if "different" in line.getMessage()]
    assert said.startswith("MEW_TOKEN_LIFT_FILES and ")
    assert "of-the" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such rights")
@pytest.mark.rule("3.space_yaml.tokens")
def test_token_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, MEW_V04)
    file = held(tmp_path, "human", "humans-own", 0o644)
    assert load(path).tokens().identify("humans-own") is not None
    assert f"{file} holds a secret and can be read by other users" in caplog.text
    assert "humans-own" not in caplog.text


@pytest.mark.parametrize("content", ["", "two words", "é", "x" * 5_000])
def test_a_file_that_holds_no_token_is_an_error(tmp_path: Path, content: str) -> None:
    path = written(tmp_path, MEW_V04)
    held(tmp_path, "human", content)
    with pytest.raises(ConfigurationError, match="must hold a token and nothing else"):
        load(path)


def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    text = MEW_V04.replace("  guest:\n", '  "a/../../guest":\n')
    load(written(tmp_path, text), "always")
    assert (tmp_path / ".mew" / "tokens" / "a%2F..%2F..%2Fguest.token").is_file()
    hidden = MEW_V04.replace("  guest:\n", '  ".gitignore":\n')
    with pytest.raises(ConfigurationError, match="no file can have this name"):
        load(written(tmp_path, hidden), "always")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such rights")
def test_no_token_is_made_where_others_can_put_theirs(tmp_path: Path) -> None:
    path = written(tmp_path, MEW_V04)
    folder = tmp_path / ".mew" / "tokens"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(ConfigurationError, match="can be changed by other users"):
        load(path, "always")
