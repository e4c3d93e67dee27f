"""`meup journal copy`: a gateway goes on from a copy as if it were the journal itself."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from meup_agent.gateway import JournalConfig, serve
from tests.cli.audited import Past, past
from tests.cli.commands import exit_codes
from tests.cli.conftest import Done, assert_fails
from tests.cli.processes import meup
from tests.gateway.journal.conftest import nats_config
from tests.gateways import first_token
from tests.nats_servers import shared_server
from tests.patience import PATIENCE

AT_NATS = """
spaces: {{demo: {{participants: {{}}}}}}
journal:
  nats: {{servers: ["{url}"], prefix: {prefix}, replicas: 1}}
"""


@pytest.fixture
def lived(tmp_path: Path) -> Past:
    """A space with a past, whose gateway has ended, and a file that has its journal on NATS."""
    with past(tmp_path) as there:
        pass
    text = AT_NATS.format(url=shared_server().url, prefix=nats_config(tmp_path).prefix)
    (tmp_path / "nats.yaml").write_text(text)
    return there


def run(folder: Path, *arguments: str) -> Done:
    done = meup(*arguments, cwd=folder)
    return Done(done.returncode, done.stdout, done.stderr)


def asked(config: Any, path: str) -> Any:
    """What a gateway answers to somebody who may know everything."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serve(config, "127.0.0.1", 0)) as gateway,
    ):
        headers = {"Authorization": f"Bearer {first_token(config, 'auditor')}"}
        url = f"{gateway.http_url}{path}"
        return httpx.get(url, headers=headers, timeout=PATIENCE).raise_for_status().json()


def without_numbers(text: str) -> list[Any]:
    """Lines of JSON, whatever the numbers of entries in them are."""
    return [json.loads(line, object_hook=_without_number) for line in text.splitlines()]


def _without_number(value: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if key != "seq"}


@pytest.mark.thorough
def test_a_gateway_goes_on_from_a_copy(tmp_path: Path, lived: Past) -> None:
    there = run(tmp_path, "journal", "copy", "--from", "journal.db", "--to", "nats.yaml")
    assert (there.code, there.err) == (exit_codes.OK, "")
    assert there.out.startswith("NATS at ")
    back = run(tmp_path, "journal", "copy", "--from", "nats.yaml", "--to", "back.db")
    assert (back.code, back.err) == (exit_codes.OK, "")
    assert back.out.splitlines()[1] == there.out.splitlines()[1]

    for arguments in ((), ("--state", "pending"), ("--grants",)):
        told = [
            run(tmp_path, "audit", "--json", "--journal", journal, *arguments)
            for journal in ("journal.db", "nats.yaml", "back.db")
        ]
        assert {each.err for each in told} == {""}
        first, *others = (without_numbers(each.out) for each in told)
        assert others == [first, first]

    places = [
        JournalConfig(lived.journal),
        JournalConfig(nats=nats_config(tmp_path)),
        JournalConfig(tmp_path / "back.db"),
    ]
    found = [
        asked(replace(lived.config, journal=each), "/spaces/demo/proposals") for each in places
    ]
    assert found[0]["proposals"]
    assert [_states(each) for each in found] == [_states(found[0])] * 3


def _states(answer: Any) -> list[Any]:
    return [(each["id"], each["proposer"], each["state"]) for each in answer["proposals"]]


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("nothing.db", "nats.yaml", "meup: there is no journal "),
        ("journal.db", "journal.db", "meup: --from and --to are both "),
        ("journal.db", "nowhere/copy.db", "meup: there is no folder "),
        ("memory.yaml", "copy.db", "meup: memory.yaml: its journal is in memory; set journal.path"),
        ("nats://127.0.0.1", "copy.db", "this is an address; give the space's file"),
    ],
)
def test_what_cannot_be_copied_is_said(
    tmp_path: Path, lived: Past, source: str, target: str, said: str
) -> None:
    (tmp_path / "memory.yaml").write_text("space: {id: demo}\nparticipants: {}\n")
    done = run(tmp_path, "journal", "copy", "--from", source, "--to", target)
    assert_fails(done, exit_codes.USAGE, said)
