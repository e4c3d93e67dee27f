"""`meup who`: who is there, and what they may do."""

import json
from typing import Any

import anyio
import pytest

from meup_agent import Space
from meup_agent.cli.render.formatting import format_capability
from meup_agent.gateway import Gateway
from tests.cli.commands import exit_codes
from tests.cli.conftest import Here, assert_fails
from tests.cli.participants import act_as, variables_of
from tests.cli.processes import meup
from tests.cli.stage import ESCAPED, HOSTILE, Stage


def test_everybody_is_listed_and_we_come_first(stage: Stage) -> None:
    done = meup("who", variables=stage.variables("paula"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "paula     you  only looking on; agent: mcp/proposal, chat, mcp/request tools/list,"
        " mcp/request tools/call read_*, mcp/withdraw",
        "files          server: mcp/withdraw",
        "mute           server: the same as files",
        "reviewer       person or reviewer: anything",
    ]


@pytest.mark.rule("3.observe.takes_no_part")
def test_a_running_agent_is_listed_and_not_disturbed(stage: Stage) -> None:
    done = meup("who", variables=stage.variables("reviewer"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "reviewer  you  person or reviewer: anything",
        "files          server: mcp/withdraw",
        "mute           server: the same as files",
    ]

    async def is_decided(space: Space) -> str:
        return str(await space.call("files", "write_file", {"path": "ok", "text": "t"}))

    assert "'ok' has 't'" in stage.as_somebody("paula", is_decided)


def test_a_narrow_terminal_is_kept(here: Here) -> None:
    done = here("who", "--no-color", participant="paula", FORCE_COLOR="1", COLUMNS="50")
    lines = done.out.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert lines[:3] == [
        "paula     you  only looking on; agent:",
        "               mcp/proposal, chat,",
        "               mcp/request tools/list,",
    ]
    assert all(len(line) <= 50 for line in lines)


def test_json_has_the_capabilities_as_they_were_announced(here: Here) -> None:
    done = here("who", "--json")
    document = json.loads(done.out)
    assert (document["space"], document["me"]) == ("demo", "alice")
    people = {each["id"]: each for each in document["participants"]}
    assert people["reviewer"] == {
        "id": "reviewer",
        "me": False,
        "role": "person or reviewer",
        "capabilities": [{"kind": "*"}],
    }
    assert "alice" not in people
    assert document["capabilities"] == [{"kind": "*"}]


def test_a_token_may_come_out_of_a_pipe(stage: Stage) -> None:
    settings = stage.variables()
    token = settings.pop("MEUP_TOKEN")
    done = meup("who", "--token-file", "/dev/stdin", given=f"{token}\n", variables=settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("alice ")


def test_a_wrong_token_is_no_way_in(here: Here) -> None:
    assert_fails(here("who", "--token", "wrong"), exit_codes.NO_CONNECTION)


@pytest.mark.parametrize(
    ("capability", "words"),
    [
        ({"kind": "*"}, "anything"),
        ({"kind": ["chat", "mcp/*"]}, "chat | mcp/*"),
        ({"kind": "mcp.request", "payload": {"method": ["a", "b"]}}, 'mcp/request ["a", "b"]'),
        ({"kind": "x", "payload": {"a": 1}}, "x {a: 1}"),
        (
            {"kind": "x", "payload": {"method": "m", "params": {"name": "n", "b": 2}}},
            'x {method: "m", params: {name: "n", b: 2}}',
        ),
        ({"kind": HOSTILE}, ESCAPED),
        ("chat", "None"),
    ],
)
def test_a_capability_is_a_few_words(capability: Any, words: str) -> None:
    assert format_capability(capability) == words


def test_those_that_may_call_a_tool_are_asked_for(here: Here) -> None:
    done = here("who", "--can", "files.read_file", participant="paula")
    assert (done.code, done.err) == (0, "")
    assert [line.split()[0] for line in done.out.splitlines()] == ["paula", "reviewer"]
    document = json.loads(here("who", "--can", "read_file", "--json").out)
    people = {each["id"]: each["arguments"] for each in document["participants"]}
    assert people["reviewer"] == "any"
    assert document["can"] == {
        "participant": None,
        "tool": "read_file",
        "could": None,
        "capability": None,
    }


def test_what_is_to_be_granted_is_said_where_none_may_call_it() -> None:
    people: dict[str, list[dict[str, Any]]] = {
        "paula": [{"kind": "mcp/proposal"}],
        "reviewer": [{"kind": "mcp/reject"}],
    }
    with Gateway("demo", people).in_thread() as gateway:
        variables = variables_of(gateway, "paula")

        async def look(space: Space) -> None:
            done = await anyio.to_thread.run_sync(
                lambda: meup("who", "--can", "files.write", "--json", variables=variables)
            )
            document = json.loads(done.stdout)
            assert (done.returncode, document["participants"]) == (exit_codes.ABSENT, [])
            assert document["can"]["tool"] == "files.write"
            assert document["can"]["could"] == ["reviewer"]
            assert "nobody here may call files.write; reviewer could, if granted {" in done.stderr

        act_as(gateway, "reviewer", look)
