"""Configuration files: what they say, and what is said of wrong ones."""

import logging
from pathlib import Path

import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.config import Config, Limits
from meup_agent.gateway.files import load_config

GOOD = """
space: {id: demo, name: Our demo}
participants:
  alice:
    tokens: [alice-token, alice-other]
    capabilities: [{kind: mcp/proposal}]
  bob: {tokens: [bob-token]}
  carol: {tokens: [carol-token], capabilities: []}
defaults:
  capabilities: [{kind: chat}]
"""


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOST", "PORT", "MAX_CONNECTIONS"):
        monkeypatch.delenv(f"MEUP_GATEWAY_{name}", raising=False)


def load(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "space.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path)


def test_file_in_the_form_of_existing_gateways(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    (space,) = config.spaces
    assert (space.id, space.name) == ("demo", "Our demo")
    listed = {name: entry.capabilities.patterns for name, entry in space.participants.items()}
    withdraw = {"kind": "mcp/withdraw"}
    assert listed == {
        "alice": ({"kind": "mcp/proposal"}, withdraw),
        "bob": ({"kind": "chat"}, withdraw),  # lists none: the defaults
        "carol": (withdraw,),  # lists that there are none
    }
    assert config.tokens().identify("alice-other") == Identity("demo", "alice")
    assert (config.host, config.port, config.limits) == ("127.0.0.1", 8420, Limits())


def test_environment_over_file_over_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEUP_GATEWAY_PORT", "9000")
    monkeypatch.setenv("MEUP_GATEWAY_HOST", "")
    config = load(tmp_path, GOOD + "gateway: {port: 8000, host: 0.0.0.0, max_connections: 7}\n")
    assert (config.host, config.port) == ("0.0.0.0", 9000)
    assert config.limits == Limits(max_connections=7)


def test_what_starts_participants_elsewhere_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = GOOD.replace(
        "  bob: {tokens: [bob-token]}",
        "  bob: {tokens: [bob-token], auto_start: true, command: node, env: {A: b}}",
    ).replace("name: Our demo", "description: x")
    load(tmp_path, text)
    warnings = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert [line.split(": ", 1)[1] for line in warnings] == [
        "space: ignored description, which this gateway has no use for",
        "participants.bob: ignored auto_start, command, env, which this gateway has no use for",
    ]


def test_participant_without_tokens_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, GOOD.replace("[bob-token]", "[]"))
    assert "participants.bob lists no tokens" in caplog.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("space: {id: demo, name: Our demo}", ""), "space: is missing"),
        (("id: demo, ", ""), "space.id: is missing"),
        (("id: demo", "id: [demo]"), "space.id: expected a text"),
        (("id: demo", 'id: ""'), "space.id: expected an id of 1 to 256 printable characters"),
        (("id: demo", 'id: "a\\nb"'), "space.id: expected an id"),
        (("name: Our", "nmae: Our"), "space.nmae: unknown key; remove it, or correct its spelling"),
        (("defaults:", "default:"), "default: unknown key"),
        (("[bob-token]", "bob-token"), "participants.bob.tokens: expected a list"),
        (("[bob-token]", "[17]"), "participants.bob.tokens.0: expected a text"),
        (("[bob-token]", '["bob "]'), "participants.bob.tokens: expected tokens of ASCII"),
        (("[bob-token]", "[alice-token]"), "participants.bob.tokens: a token is also 'alice'"),
        (("{tokens: [bob-token]}", "5"), "participants.bob: expected"),
        (("{tokens: [bob-token]}", "{token: [x]}"), "participants.bob.token: unknown key"),
        (("  bob:", "  gateway:"), "participants.gateway: this name is the gateway's"),
        (("[{kind: chat}]", "[chat]"), "defaults.capabilities.0: expected keys and values"),
        (("[{kind: mcp/proposal}]", "[{payload: {}}]"), "participants.alice.capabilities[0]"),
        (("mcp/proposal", '"/[/"'), "participants.alice.capabilities[0].kind"),
        (("  bob:", "  alice:"), "line 7: expected YAML, but the key 'alice' stands twice"),
        (("defaults:", "gateway: {port: 70000}\ndefaults:"), "gateway.port: expected less than"),
        (("defaults:", "gateway: {prot: 1}\ndefaults:"), "gateway.prot: unknown key"),
        (("defaults:", "gateway: {stop_timeout: 0}\ndefaults:"), "gateway.stop_timeout: expected"),
        (("defaults:", "gateway: {max_message_bytes: 9999999}\ndefaults:"), "at most 4194304"),
        (("{id: demo", "{id: [demo"), "expected YAML, but"),
        (("id: demo", "id: \x07"), "expected YAML in printable characters"),
    ],
)
def test_wrong_file_says_file_key_and_what_was_expected(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    old, new = change
    assert old in GOOD
    with pytest.raises(ConfigurationError) as raised:
        load(tmp_path, GOOD.replace(old, new, 1))
    message = str(raised.value)
    assert message.startswith(str(tmp_path / "space.yaml"))
    assert said in message
    assert "\n" not in message
    assert "token" not in message.replace("tokens", "").replace("a token is", "").replace(
        "participants.bob.token:", ""
    ).replace("each participant", "")


@pytest.mark.parametrize("text", ["", "[]", "- a", "5"])
def test_file_that_holds_something_else(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected the keys 'space' and 'participants'"):
        load(tmp_path, text)


def test_word_that_only_looks_like_a_date(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="looks like a date and is none"):
        load(tmp_path, "space: {id: 2024-13-45}")


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file or directory"):
        load_config(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigurationError, match="is a directory"):
        load_config(tmp_path)


def test_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigurationError, match="expected YAML in UTF-8"):
        load_config(path)


def test_wrong_environment_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEUP_GATEWAY_PORT", "many")
    with pytest.raises(ConfigurationError, match=r"gateway\.port: expected a valid integer.*MEUP_"):
        load(tmp_path, GOOD)


def test_tokens_are_never_shown(tmp_path: Path) -> None:
    assert "bob-token" not in repr(load(tmp_path, GOOD))
