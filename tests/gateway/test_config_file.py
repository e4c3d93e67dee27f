"""Configuration files: what they say, and what is said of wrong ones."""

from pathlib import Path

import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.gateway import (
    Config,
    GatewayLimits,
    HttpConfig,
    JournalConfig,
    TlsConfig,
    load_config,
)
from meup_agent.gateway.auth import MAX_TOKEN_FILE_BYTES
from tests.gateways import Identity, hash_token

OURS = """
spaces:
  demo:
    name: Our demo
    announce_withdrawals: true
    participants:
      alice: {tokens: [alice-token], dialect: mcpx/v0.1, capabilities: []}
      bob: {token_hashes: ["sha256:HASH"], token_files: [bob.token]}
  quay:
    dialect: mew/v0.3
    participants:
      carol: {tokens: [carol-token]}
    defaults: {capabilities: [{kind: mcp/proposal}]}
defaults: {capabilities: [{kind: chat}]}
gateway: {port: 8000, insecure: true, max_members: 7}
journal: {path: kept/journal.db, synchronous: full, max_age: 60, max_bytes: 1000000}
http: {port: 8001}
tls: {certificate: /etc/gateway.pem, key: gateway.key}
""".replace("HASH", hash_token("bob-secret").removeprefix("sha256:"))

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


def load(tmp_path: Path, text: str | bytes) -> Config:
    path = tmp_path / "space.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_config(path)


def load_ours(tmp_path: Path, text: str = OURS) -> Config:
    (tmp_path / "bob.token").write_text("bob-token\n")
    return load(tmp_path, text)


def test_file_of_several_spaces(tmp_path: Path) -> None:
    config = load_ours(tmp_path)
    demo, quay = config.spaces
    assert (demo.id, demo.name, demo.dialect, demo.announce_withdrawals) == (
        *("demo", "Our demo", None, True),
    )
    assert (quay.id, quay.dialect, quay.announce_withdrawals) == ("quay", "mew/v0.4", False)
    assert demo.participants["alice"].dialect == "mcpx/v0.1"
    withdraw = {"kind": "mcp/withdraw"}
    assert demo.participants["bob"].capabilities.patterns == ({"kind": "chat"}, withdraw)
    assert quay.participants["carol"].capabilities.patterns == ({"kind": "mcp/proposal"}, withdraw)
    tokens = config.tokens()
    assert tokens.identify("bob-secret") == tokens.identify("bob-token") == Identity("demo", "bob")
    assert tokens.identify("carol-token") == Identity("quay", "carol")
    digest = hash_token("bob-secret")
    assert tokens.identify(digest) is tokens.identify(digest.removeprefix("sha256:")) is None
    assert (config.host, config.port, config.insecure) == ("127.0.0.1", 8000, True)
    assert config.limits == GatewayLimits(max_members=7)
    assert config.journal == JournalConfig(
        tmp_path / "kept/journal.db", "full", max_age=60, max_bytes=1_000_000
    )
    assert config.http == HttpConfig(port=8001)
    assert config.tls == TlsConfig(Path("/etc/gateway.pem"), tmp_path / "gateway.key")


def test_capabilities_without_a_value_are_the_defaults(tmp_path: Path) -> None:
    config = load_ours(tmp_path, OURS.replace("capabilities: []}", "capabilities: }"))
    (first, _) = config.spaces[0].participants["alice"].capabilities.patterns
    assert first == {"kind": "chat"}


def test_http_alone_is_served_at_its_usual_address(tmp_path: Path) -> None:
    for said in ("http:", "http: {}"):
        config = load(tmp_path, f"spaces: {{demo: {{participants: {{}}}}}}\n{said}")
        assert config.http == HttpConfig()


def test_environment_over_every_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "JOURNAL_PATH": "other.db",
        "HTTP_HOST": "::1",
        "TLS_KEY": "other.key",
        "INSECURE": "false",
        "MAX_MEMBERS": "8",
    }.items():
        monkeypatch.setenv(f"MEUP_GATEWAY_{name}", value)
    config = load_ours(tmp_path)
    assert config.journal.path == Path("other.db")  # where the program runs
    assert config.journal.synchronous == "full"
    assert config.http == HttpConfig("::1", 8001)
    assert config.tls == TlsConfig(Path("/etc/gateway.pem"), Path("other.key"))
    assert (config.insecure, config.limits.max_members) == (False, 8)
    monkeypatch.delenv("MEUP_GATEWAY_TLS_KEY")
    assert load(tmp_path, GOOD).http == HttpConfig("::1")


def test_misspelt_environment_is_warned_of_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MEUP_GATEWAY_PROT", "9000")
    monkeypatch.setenv("MEUP_GATEWAY_XYZZY", "1")
    load(tmp_path, GOOD)
    assert sorted(record.getMessage() for record in caplog.records) == [
        "MEUP_GATEWAY_PROT means nothing to a gateway; did you mean MEUP_GATEWAY_PORT?",
        "MEUP_GATEWAY_XYZZY means nothing to a gateway; remove it, or correct its spelling",
    ]


def test_a_large_file_is_not_read_for_a_token(tmp_path: Path) -> None:
    (tmp_path / "bob.token").write_text("x" * (MAX_TOKEN_FILE_BYTES + 1))
    with pytest.raises(ConfigurationError, match="must hold a token and nothing else"):
        load(tmp_path, OURS)


def test_file_in_the_form_of_existing_gateways(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    (space,) = config.spaces
    assert (space.id, space.name, space.dialect) == ("demo", "Our demo", "mew/v0.4")
    listed = {name: entry.capabilities.patterns for name, entry in space.participants.items()}
    withdraw = {"kind": "mcp/withdraw"}
    assert listed == {
        "alice": ({"kind": "mcp/proposal"}, withdraw),
        "bob": ({"kind": "chat"}, withdraw),  # lists none: the defaults
        "carol": (withdraw,),  # lists that there are none
    }
    assert config.tokens().identify("alice-other") == Identity("demo", "alice")
    assert "bob-token" not in repr(config)
    assert (config.host, config.port, config.limits) == ("127.0.0.1", 8080, GatewayLimits())


def test_environment_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEUP_GATEWAY_PORT", "9000")
    monkeypatch.setenv("MEUP_GATEWAY_HOST", "")
    config = load(tmp_path, GOOD + "gateway: {port: 8000, host: 0.0.0.0, max_connections: 7}\n")
    assert (config.host, config.port) == ("0.0.0.0", 9000)
    assert config.limits == GatewayLimits(max_connections=7)


def test_no_token_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(tmp_path, GOOD.replace("[bob-token]", "[]"))
    assert "bob in space demo has no token" in caplog.text


WRONG_OURS = [
    (("spaces:", "space: {id: x}\nspaces:"), "expected one of the keys 'space' and 'spaces'"),
    (("  demo:", '  "a\\nb":'), "expected an id of 1 to 256 printable characters"),
    (("mcpx/v0.1", "mcpx/v9"), "alice.dialect: expected one of mcpx/v0.1, meup/v0.1,"),
    (("mew/v0.3", "mew"), "spaces.quay.dialect: expected one of"),
    (
        ("carol-token", "alice-token"),
        "'carol' of space 'quay' has a token of 'alice' of space 'demo'; give each",
    ),
    (("carol-token", "bob-secret"), "has a token of 'bob'"),
    (("sha256:", "sha512:"), "demo.participants.bob.token_hashes[0]: expected sha256: and"),
    (("bob.token", "no.token"), "bob.token_files[0]: "),
    (("bob.token", "space.yaml"), "must hold a token and nothing else"),
    (("synchronous: full", "synchronous: maybe"), "journal.synchronous: expected 'normal' or"),
    (("max_age: 60", "max_age: 0"), "journal.max_age: "),
    (("key: gateway.key", ""), "tls.key: is missing"),
    (("port: 8001", "prot: 8001"), "http.prot: unknown key; did you mean port?"),
    (
        ("carol: {tokens: [carol-token]}", "carol: {token: carol-token}"),
        "spaces.quay.participants.carol.token: unknown key; did you mean tokens?",
    ),
    (("defaults: {cap", "default: {cap"), "quay.default: unknown key; did you mean defaults?"),
    (("gateway: {", "gatway: {"), "space.yaml: gatway: unknown key; did you mean gateway?"),
    (("  quay:", "  1:"), "spaces.1: expected a text; put it in quotes"),
    (("max_members: 7", "1: 7"), "gateway.1: expected a text; put it in quotes"),
    (("certificate: /etc/gateway.pem, key: gateway.key", ""), "tls.certificate: is missing"),
    (("max_members: 7", "max_members: 0"), "gateway.max_members: expected a number above zero"),
    (("max_members: 7", "max_spaces: 1"), "spaces: 2 are more than max_spaces, which is 1"),
    (("max_members: 7", "max_depth: 101"), "gateway.max_depth: expected at most 100"),
    (("max_members: 7", "max_menbers: 7"), "unknown key; did you mean max_members?"),
]
WRONG = [
    (("space: {id: demo, name: Our demo}", ""), "space: is missing"),
    (("id: demo, ", ""), "space.id: is missing"),
    (("id: demo", "id: [demo]"), "space.id: expected a text"),
    (("id: demo", 'id: ""'), "space.id: expected an id of 1 to 256 printable characters"),
    (("id: demo", 'id: "a\\nb"'), "space.id: expected an id"),
    (("name: Our", "nmae: Our"), "space.nmae: unknown key; did you mean name?"),
    (("defaults:", "default:"), "default: unknown key"),
    (("[bob-token]", "bob-token"), "participants.bob.tokens: expected a list"),
    (("[bob-token]", "[17]"), "participants.bob.tokens[0]: expected a text"),
    (("[bob-token]", '["bob "]'), "participants.bob.tokens[0]: expected ASCII characters"),
    (("[bob-token]", "[alice-token]"), "'bob' of space 'demo' has a token of 'alice'"),
    (("{tokens: [bob-token]}", "5"), "participants.bob: expected"),
    (("  bob:", "  gateway:"), "participants.gateway: this name is the gateway's"),
    (("[{kind: chat}]", "[chat]"), "defaults.capabilities[0]: expected keys and values"),
    (("[{kind: mcp/proposal}]", "[{payload: {}}]"), "participants.alice.capabilities[0]"),
    (("mcp/proposal", '"/[/"'), "participants.alice.capabilities[0].kind"),
    (("  bob:", "  alice:"), "line 7: expected YAML, but the key 'alice' stands twice"),
    (("defaults:", "gateway: {port: 70000}\ndefaults:"), "gateway.port: expected less than"),
    (("defaults:", "gateway: {stop_timeout: 0}\ndefaults:"), "gateway.stop_timeout: expected"),
    (("defaults:", "gateway: {max_message_bytes: 9999999}\ndefaults:"), "at most 4194304"),
    (("{id: demo", "{id: [demo"), "expected YAML, but"),
    (("id: demo", "id: \x07"), "expected YAML in printable characters"),
]


@pytest.mark.limit("max_spaces")
@pytest.mark.parametrize(
    ("text", "change", "said"),
    [*((OURS, *each) for each in WRONG_OURS), *((GOOD, *each) for each in WRONG)],
)
def test_wrong_file_says_file_key_and_what_was_expected(
    tmp_path: Path, text: str, change: tuple[str, str], said: str
) -> None:
    assert change[0] in text
    with pytest.raises(ConfigurationError) as raised:
        load_ours(tmp_path, text.replace(*change, 1))
    message = str(raised.value)
    assert message.startswith(str(tmp_path / "space.yaml"))
    assert said in message
    assert text is OURS or "\n" not in message
    for token in ("alice-token", "alice-other", "bob-token", "bob-secret", "carol-token"):
        assert token not in message


@pytest.mark.rule("3.names.look_alike")
@pytest.mark.parametrize(
    "names",
    [
        ("reviewer", "rev\u0456ewer"),
        ("tools", "Tools"),
        ("tools", "too1s"),
        ("alice", "syst\u0435m:gateway"),
        ("alice", "rev\u0454ewer"),
    ],
)
def test_participants_whose_names_look_alike(tmp_path: Path, names: tuple[str, str]) -> None:
    one, two = (f"{name}: {{tokens: [{number}-token]}}" for number, name in enumerate(names))
    told = "participants of space demo: .* (looks like|letters of several scripts)"
    for text in (
        f"spaces: {{demo: {{participants: {{{one}, {two}}}}}}}",
        f"space: {{id: demo}}\nparticipants: {{{one}, {two}}}",
    ):
        with pytest.raises(ConfigurationError, match=told):
            load(tmp_path, text)
    load(tmp_path, f"spaces: {{demo: {{participants: {{{one}}}}}}}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "expected the key 'spaces'") for text in ("", "[]", "- a", "5")),
        (b"\xff\xfe\xff", "expected YAML in UTF-8"),
        ("space: {id: 2024-13-45}", "looks like a date and is none"),
        ("spaces: " + "[" * 1_000, "expected YAML that nests less deeply"),
        ("space: {id: demo}\nparticipants: {1: {fifo: true}}", r"participants\.1: expected a text"),
    ],
    ids=lambda text: str(text)[:30],
)
def test_file_that_holds_something_else(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load(tmp_path, text)


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file or directory"):
        load_config(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigurationError, match="is a directory"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    "nats", ["nats://a:1,nats://b:1", "{servers: ['nats://a:1', 'nats://b:1']}"]
)
def test_what_differs_between_machines_is_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nats: str
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"spaces: {{demo: {{participants: {{}}}}}}\njournal:\n  nats: {nats}\n")
    monkeypatch.setenv("MEUP_GATEWAY_JOURNAL_NATS_NODE", "first")
    found = load_config(file).journal.nats
    assert found is not None
    assert (found.servers, found.node) == (("nats://a:1", "nats://b:1"), "first")
    monkeypatch.setenv("MEUP_GATEWAY_JOURNAL_NATS_ADVERTISE", "nowhere")
    with pytest.raises(
        ConfigurationError,
        match=r"journal.nats.advertise: .*or MEUP_GATEWAY_JOURNAL_NATS_ADVERTISE in the env",
    ):
        load_config(file)


def test_wrong_environment_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEUP_GATEWAY_PORT", "many")
    with pytest.raises(ConfigurationError, match=r"gateway\.port: expected a valid integer.*MEUP_"):
        load(tmp_path, GOOD)
