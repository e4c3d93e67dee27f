"""`meup doctor --journal`: the server of a journal, its user, what is there, and gateways."""

import asyncio
import json
import re
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import nats
import psycopg
import pytest

from meup_agent.cli.cluster.examination import PUBLISHED, SUBSCRIBED
from meup_agent.gateway import Gateway
from meup_agent.gateway.config_file import load_config
from meup_agent.gateway.network import fit_open_files
from tests.cli.commands import exit_codes
from tests.cli.conftest import assert_fails
from tests.cli.processes import meup
from tests.gateway.journal.conftest import nats_config, postgres_config
from tests.nats_servers import NatsServer, shared_server
from tests.programs import ROOT

HOW_TO = ROOT / "docs" / "how-to" / "keep-the-journal-on-nats.md"

FILE = """
space: {{id: demo}}
participants:
  alice: {{tokens: [{token}], capabilities: [{{kind: chat}}]}}
journal: {{nats: {{servers: ["{url}"], prefix: {prefix}, replicas: 1, node: here{more}}}}}
"""


def write(folder: Path, url: str = "", more: str = "", token: str = "token-of-alice") -> Path:
    file = folder / f"{token}.yaml"
    place = {"url": url or shared_server().url, "prefix": nats_config(folder).prefix}
    file.write_text(FILE.format(**place, more=more, token=token), "utf-8")
    return file


@contextmanager
def gateway(file: Path) -> Generator[None]:
    # As the command does, whose limits follow from the files that it may open.
    with Gateway(config=fit_open_files(load_config(file))).in_thread():
        yield


def said(file: Path, code: int = exit_codes.OK) -> dict[str, tuple[bool | None, str]]:
    """What is said, by the name of the check."""
    done = meup("doctor", "--json", "--journal", str(file))
    assert done.returncode == code, done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] is (code == exit_codes.OK)
    return {each["name"]: (each["ok"], each["said"]) for each in document["checks"]}


def test_a_journal_before_and_while_a_gateway_runs(tmp_path: Path) -> None:
    file = write(tmp_path)
    before = said(file)
    assert before["permissions"] == (True, "all that a gateway needs")
    assert before["streams"] == (
        True,
        "0 of 1 spaces have one; the others are made when they begin",
    )
    assert before["gateways"] == (None, "none runs")
    with gateway(file):
        now = said(file)
        assert now["streams"] == (True, "1 of 1 spaces have one")
        assert now["gateway"] == (True, "here owns demo")
        assert now["spaces"] == (True, "each has an owner")
        with gateway(file):
            assert said(file)["gateway"][1].endswith("; another one has its name")
        other = said(write(tmp_path, token="token-of-another"), exit_codes.FAILED)
        assert other["gateway"][0] is False
        assert "it has other spaces.demo than this file" in other["gateway"][1]
        file.write_text(file.read_text().replace("space: {id: demo}", "space: {id: lost}"))
        lost = said(file, exit_codes.FAILED)
        assert lost["gateway"] == (True, "here owns demo; it does not have spaces.lost")
        assert lost["spaces"] == (False, "nobody has lost")


def test_what_its_user_may_not_is_named(tmp_path: Path) -> None:
    prefix = nats_config(tmp_path).prefix
    denied = f"publish: {{ deny: ['{prefix}.beat'] }}, subscribe: {{ deny: ['{prefix}.ask.*'] }}"
    user = f"{{ user: gateway, password: secret, permissions: {{ {denied} }} }}"
    with closing(NatsServer(settings=f"authorization {{ users: [ {user} ] }}")) as server:
        file = write(tmp_path, server.url, ", user: gateway, password: secret")
        found = said(file, exit_codes.FAILED)
        refused = f"this user may not publish to {prefix}.beat, subscribe to {prefix}.ask.*"
        assert found["permissions"] == (False, refused)
        file = write(tmp_path, server.url, ", credentials: lost.creds")
        found = said(file, exit_codes.FAILED)
        assert found["servers"][0] is False
        assert "there is no file" in found["servers"][1]
        assert found["permissions"] == (None, "not tried")


@pytest.mark.skipif(not HOW_TO.is_file(), reason="an installed package has no docs")
def test_trying_takes_nothing_away(tmp_path: Path) -> None:
    """A purge that the server does not refuse would sign everybody out."""
    file = write(tmp_path)
    buckets = [f"{nats_config(tmp_path).prefix}-{name}" for name in ("sessions", "links")]

    async def keep_and_look() -> None:
        async with await nats.connect(shared_server().url) as client:
            kept = [await client.jetstream().create_key_value(bucket=each) for each in buckets]
            for each in kept:
                await each.put("someone", b"signed in")
            await asyncio.to_thread(said, file)
            assert [(await each.get("someone")).value for each in kept] == [b"signed in"] * 2
            for name in buckets:
                assert (await client.jetstream().stream_info(f"KV_{name}")).state.messages == 1

    asyncio.run(keep_and_look())


def test_the_how_to_lists_what_is_tried() -> None:
    listed = re.search(r"```text\n(publish: .*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    assert listed
    published, subscribed = listed[1].split("subscribe: ")
    assert re.findall('"(.*?)"', published) == [each.format(prefix="meup") for each in PUBLISHED]
    own = [each.format(prefix="meup") for each in SUBSCRIBED]
    assert re.findall('"(.*?)"', subscribed) == [*own, "_INBOX.>"]


POSTGRES = """
space: {{id: demo}}
participants:
  alice: {{tokens: [{token}], capabilities: [{{kind: chat}}]}}
journal: {{postgres: {{url: "{url}", schema: {schema}, node: {node}}}}}
"""


def in_postgres(folder: Path, node: str, *, token: str = "token-of-alice", url: str = "") -> Path:
    file = folder / f"{node}.yaml"
    config = postgres_config(folder)
    place = {"url": url or config.url, "schema": config.schema, "node": node}
    file.write_text(POSTGRES.format(**place, token=token), "utf-8")
    return file


@pytest.mark.thorough
def test_a_journal_in_postgresql(tmp_path: Path) -> None:
    file = in_postgres(tmp_path, "first")
    failed = exit_codes.FAILED
    before = said(file, failed)
    assert before["durability"] == (False, "fsync is off: a power cut can lose all of it")
    assert before["tables"] == (True, "none yet")
    assert before["permissions"] == (True, "all that a gateway needs")
    assert before["gateways"] == (None, "none runs")
    with gateway(file):
        alone = said(file, failed)
        assert alone["tables"] == (True, "as this version has them")
        assert alone["gateways"] == (True, "first is at work")
        assert alone["standby"] == (None, "no second gateway waits to take over")
        with gateway(in_postgres(tmp_path, "second")):
            assert said(file, failed)["standby"] == (True, "second waits")
        other = said(in_postgres(tmp_path, "third", token="token-of-another"), failed)
        assert other["gateways"] == (
            False,
            "first is at work; it has other spaces.demo than this file",
        )


def test_tables_of_another_version_are_no_lack_of_rights(tmp_path: Path) -> None:
    file = in_postgres(tmp_path, "first")
    with gateway(file):
        pass
    config = postgres_config(tmp_path)
    with psycopg.connect(config.url) as connection:
        connection.execute(f'UPDATE "{config.schema}".owner SET format = 99'.encode())
    found = said(file, exit_codes.FAILED)
    assert "(99, not 1)" in found["tables"][1]
    assert found["permissions"] == (None, "not tried")


def test_a_server_that_is_not_there_or_lets_nobody_in(tmp_path: Path) -> None:
    found = said(in_postgres(tmp_path, "x", url="postgresql://meup@127.0.0.1:1/x"), 1)
    assert found["server"][0] is False
    assert "cannot be reached" in found["server"][1]
    assert found["tables"] == (None, "not tried")


def test_only_a_journal_on_a_server_is_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("space: {id: demo}\nparticipants: {}\n", "utf-8")
    there = ("doctor", "--journal", str(file))
    assert_fails(meup(*there), exit_codes.USAGE, "the journal is on no server")
    assert_fails(meup(*there, "--doors"), exit_codes.USAGE, "leave the rest out")
