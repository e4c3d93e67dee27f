"""The `mcpServers` file: what clients write is read, and what is not known is refused by name."""

import json
from pathlib import Path

import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.mcp import HttpServer, StdioServer, read_servers
from meup_agent.mcp.bridge.config import parse_servers


def test_a_program_and_an_address_are_read() -> None:
    servers = parse_servers(
        {
            "mcpServers": {
                "git": {
                    "command": "uvx",
                    "args": ["mcp-server-git", "--repository", "${REPOSITORY:-.}"],
                    "env": {"TOKEN": "x-${TOKEN}"},
                    "cwd": "work",
                },
                "far": {
                    "type": "http",
                    "url": "https://example.com/${PLACE}",
                    "headers": {"Authorization": "Bearer ${TOKEN}"},
                },
                "old": {"type": "sse", "url": "http://example.com/sse"},
                "off": {"command": "x", "disabled": True},
            }
        },
        {"TOKEN": "secret", "PLACE": "mcp"},
        base=Path("/srv"),
    )
    assert servers == {
        "git": StdioServer(
            "uvx", ("mcp-server-git", "--repository", "."), {"TOKEN": "x-secret"}, Path("/srv/work")
        ),
        "far": HttpServer("https://example.com/mcp", {"Authorization": "Bearer secret"}),
        "old": HttpServer("http://example.com/sse", sse=True),
    }
    assert "secret" not in repr(servers)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"command": "x", "arg": []}, "has the unknown key 'arg'; did you mean 'args'?"),
        ({"command": "x", "autoApprove": []}, "has the unknown key 'autoApprove'; known: type"),
        ({"url": "http://x", "type": "http", "env": {}}, "has the unknown key 'env'"),
        ({"command": ""}, "mcpServers.a.command is empty"),
        ({}, "mcpServers.a lacks 'command'"),
        ({"type": "pigeon"}, "mcpServers.a.type is 'pigeon'; give one of: stdio, http"),
        ({"command": "x", "args": "y"}, "mcpServers.a.args must be a list of texts"),
        ({"command": "x", "args": [1]}, "mcpServers.a.args.0 must be a text"),
        ({"command": "x", "env": {"A": None}}, "mcpServers.a.env.A must be a text"),
        ({"command": "${NONE}"}, "mcpServers.a.command needs the environment variable NONE"),
        ({"url": "ftp://x"}, "mcpServers.a.url: the address of an MCP server begins with http"),
        ({"command": "x", "disabled": "yes"}, "mcpServers.a.disabled must be true or false"),
        ([], "mcpServers.a must be an object"),
        *(
            ({key: "x"}, f"has the unknown key {key!r}; did you mean {meant!r}?")
            for key, meant in {
                "cmd": "command",
                "arguments": "args",
                "environment": "env",
                "ENV": "env",
                "working_directory": "cwd",
                "URL": "url",
                "serverUrl": "url",
                "transport": "type",
                "http_headers": "headers",
            }.items()
        ),
        ({"command": "x", "disabledTools": []}, "the unknown key 'disabledTools'; known: type"),
        ({"command": "x", "enabled": False}, 'a server that is off has "disabled": true'),
        ({"command": "x", "url": "http://x"}, "for a server with a 'url', and this one is of the"),
        ({"command": "x", "type": "http"}, "'command', and this one is of the type http"),
        ({"command": ["x", "y"]}, "a.command must be a text; arguments are in 'args'"),
        ({"command": "x", "env": {"A": 1}}, 'mcpServers.a.env.A must be a text, in quotes: "1"'),
        (
            {"command": "${workspaceFolder}/x"},
            "'${workspaceFolder}', which only an editor fills in",
        ),
        ({"command": "x", "args": ["${config:x}"]}, "'${config:x}', which only an editor fills in"),
    ],
)
def test_a_wrong_entry_is_named(entry: object, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_servers({"mcpServers": {"a": entry}}, {})
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"server": {}}, "the document has the unknown key 'server'"),
        ({"mcpServers": {}}, "mcpServers names no server"),
        ({"mcpServers": {"a": {"command": "x", "disabled": True}}}, "every server of"),
        ({"mcpServers": {"a\x1bb": {"command": "x"}}}, r"'a\x1bb' cannot be a server's name"),
        ([], "the document must be an object"),
        ({"mcpServers": [{"name": "a"}]}, "mcpServers is a list; each server is below its name"),
        ({"mcpServers": {"command": "x"}}, "mcpServers has 'command' itself; each server is"),
    ],
)
def test_a_wrong_document_is_named(document: object, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_servers(document, {})
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}',
            "key 'a' is there twice",
        ),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (json.dumps("x" * 2_000_000), "is larger than"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(content, "utf-8")
    with pytest.raises(ConfigurationError) as raised:
        read_servers(path, {})
    assert str(raised.value).startswith(str(path))
    assert sentence in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read \(no such file"):
        read_servers(tmp_path / "none.json", {})


def test_keys_for_a_client_alone_are_passed_over_where_that_can_be_said() -> None:
    own = {"autoApprove": ["read"], "timeout": 60, "tools": ["*"], "description": "files"}
    said: list[str] = []
    document = {"mcpServers": {"a": {"command": "x", **own}}}
    assert parse_servers(document, {}, on_problem=said.append) == {"a": StdioServer("x")}
    (sentence,) = said
    for key in own:
        assert repr(key) in sentence
    assert "passed over" in sentence
    # What holds a server back is refused all the same, and it is not started without.
    for key, value in (("excludeTools", ["rm"]), ("tools", ["read"]), ("envFile", ".env")):
        held = {"mcpServers": {"a": {"command": "x", key: value}}}
        with pytest.raises(ConfigurationError, match="no server of"):
            parse_servers(held, {}, on_problem=said.append)
        assert f"unknown key {key!r}" in said[-1]
