"""`meup gateway`: starts, says where, ends when told, and says in a sentence why it cannot."""

import json
import re
import socket
import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import httpx
import pytest

from meup_agent import Agent, Context
from meup_agent.cli.commands.gateway import describe_checked
from meup_agent.cli.session import ReportingConnector
from meup_agent.gateway import HttpConfig, JournalConfig, ThreadedGateway, dev_config, serve
from tests.cli.commands import exit_codes
from tests.cli.conftest import Here, assert_fails
from tests.cli.participants import variables_printed
from tests.cli.processes import INTERRUPT, TERMINATE, Running, meup, running
from tests.conformance.space_files import MEW_V04
from tests.gateway.journal.elsewhere import ELSEWHERE
from tests.gateways import ENGINES, CloseInfo, one_space_config
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE

SPACE_YAML = """
space: {id: harbour}
participants:
  ann: {tokens: [ann-token], capabilities: [{kind: chat}]}
"""


@pytest.mark.parametrize("place", [".mew", "."])
def test_it_serves_the_space_of_its_folder(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "space.yaml").write_text(MEW_V04)
    checked = meup("gateway", "--check", "--make-tokens", cwd=tmp_path)
    assert checked.stdout.startswith("listens at ws://127.0.0.1:8080 and ")
    assert not (tmp_path / ".mew" / "tokens").exists()
    with running("gateway", "--port", "0", "--make-tokens", cwd=tmp_path) as gateway:
        gateway.until("listening at ws://127.0.0.1:", stream="err")
        assert gateway.end(TERMINATE) == exit_codes.OK
    assert (tmp_path / ".mew" / "tokens" / "human.token").is_file()


def test_tokens_are_made_for_a_file_alone(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("spaces: {a: {participants: {}}}")
    done = meup("gateway", "--config", "ours.yaml", "--make-tokens", cwd=tmp_path)
    assert "tokens are made for a file with 'space' alone" in done.stderr


def test_it_answers_the_hooks_of_coding_agents() -> None:
    with running("gateway", "--dev", "--port", "0") as gateway:
        gateway.until("Their tokens are kept in ")
        gateway.until("listening at ws://127.0.0.1:", stream="err")
        proposer = variables_printed("proposer")
        found = re.search(r"listening at ws(://127\.0\.0\.1:\d+)", gateway.err)
        assert found is not None
        url = f"http{found[1]}"
        said = {"hook_event_name": "Stop", "session_id": "s1"}
        for token, status in ((proposer["MEUP_TOKEN"], 200), ("wrong", 401)):
            headers = {"Authorization": f"Bearer {token}"}
            answer = httpx.post(
                f"{url}/hooks/claude-code",
                json=said,
                headers=headers,
                verify=NO_TLS,
                timeout=PATIENCE,
            )
            assert answer.status_code == status
        gateway.process.send_signal(INTERRUPT)
        assert gateway.end() == exit_codes.OK


@pytest.mark.parametrize("number", [INTERRUPT, TERMINATE])
def test_dev_tells_how_to_take_part_and_ends_gracefully(number: int) -> None:
    with running("gateway", "--dev", "--port", "0") as gateway:
        gateway.until("Their tokens are kept in ")
        gateway.until("listening at ws://127.0.0.1:", stream="err")
        observer = variables_printed("observer")
        closes: list[CloseInfo | None] = []

        async def be_told_to_dial_again() -> None:
            ended = anyio.Event()

            async def tell(closed: CloseInfo | None) -> None:
                closes.append(closed)
                if closed is not None:
                    ended.set()

            connector = ReportingConnector(observer["MEUP_URL"], observer["MEUP_SPACE"], tell)
            async with Agent("x").join(connector, token=observer["MEUP_TOKEN"]) as space:
                assert space.me == "observer"
                gateway.process.send_signal(number)
                with anyio.fail_after(PATIENCE):
                    await ended.wait()

        anyio.run(be_told_to_dial_again)
        assert closes[-1] is not None
        assert closes[-1].code == 1012
        assert gateway.end() == exit_codes.OK
    assert observer["MEUP_TOKEN"] not in gateway.out + gateway.err
    assert "Traceback" not in gateway.err


def test_a_file_is_served_and_a_host_without_tls_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE_YAML)
    arguments = ("gateway", "--config", "space.yaml", "--host", "0.0.0.0", "--port", "0")
    with running(*arguments, "--insecure", cwd=tmp_path) as gateway:
        gateway.until("can be read on the way\n", stream="err")
        port = re.search(r"listening at ws://0\.0\.0\.0:(\d+)", gateway.err)
        assert port

        async def join() -> None:
            url = f"ws://127.0.0.1:{port[1]}"
            async with Agent("x").join(url, space="harbour", token="ann-token") as space:
                assert space.me == "ann"

        anyio.run(join)
        assert gateway.end(TERMINATE) == exit_codes.OK
    assert "meup: warning: listening at 0.0.0.0 without TLS" in gateway.err
    assert f"stopped listening at ws://0.0.0.0:{port[1]}" in gateway.err


@pytest.mark.parametrize("shared", [True, False], ids=["one port", "two ports"])
@pytest.mark.parametrize(
    ("host", "shown", "dialled"),
    [
        ("0.0.0.0", "0.0.0.0", "127.0.0.1"),
        ("::", "[::]", "[::1]"),
        ("", "*", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_the_log_says_where_it_listens(
    host: str, shown: str, dialled: str, shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(
        one_space_config("harbour", {}),
        host=host,
        port=0,
        http=HttpConfig() if shared else HttpConfig(host, 0),
        insecure=True,
    )

    async def serve_shortly() -> None:
        async with serve(config) as gateway:
            assert gateway.url == f"ws://{dialled}:{gateway.port}"
            assert gateway.http_url is not None
            address, _, port = gateway.http_url.rpartition(":")
            assert address == f"http://{dialled}"
            assert (int(port) == gateway.port) is shared
            here = f"listening at ws://{shown}:{gateway.port}"
            assert [each.getMessage() for each in caplog.records] == (
                [f"{here} and http://{shown}:{port}"]
                if shared
                else [here, f"listening at http://{shown}:{port} for HTTP"]
            )

    with caplog.at_level("INFO", "meup_agent.gateway"):
        anyio.run(serve_shortly)


def test_members_come_back_by_themselves_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(OURS_YAML.replace("http: {}", ""))
    heard = anyio.Event()
    ben = Agent("ben")

    @ben.on("chat")
    async def listen(_: Context) -> None:
        heard.set()

    async def outlive(first: Running, port: str) -> None:
        nonlocal heard
        url = f"ws://127.0.0.1:{port}"
        async with (
            ben.join(url, space="harbour", token="ben-token"),
            Agent("ann").join(url, space="harbour", token="ann-token") as space,
        ):
            with anyio.fail_after(PATIENCE):
                await space.chat("before")
                await heard.wait()
                assert await anyio.to_thread.run_sync(first.end, TERMINATE) == exit_codes.OK
                heard = anyio.Event()
                with running(*arguments, "--port", port, cwd=tmp_path) as second:
                    await space.chat("after")
                    await heard.wait()
                    assert await anyio.to_thread.run_sync(second.end, TERMINATE) == exit_codes.OK

    arguments = ("gateway", "--config", "space.yaml")
    with running(*arguments, "--port", "0", cwd=tmp_path) as first:
        first.until("listening at ws://127.0.0.1:", stream="err")
        first.until("\n", stream="err")
        port = re.search(r"listening at ws://127.0.0.1:(\d+)", first.err)
        assert port
        anyio.run(outlive, first, port[1])


HANDSHAKE = (
    "GET /ws?space=harbour HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
TOKEN = "Authorization: Bearer ann-token\r\n"
STUCK = [
    ("ws", HANDSHAKE + TOKEN + "\r\n", b"system.presence"),
    ("ws", HANDSHAKE + "\r\n", b" 101 "),
    ("ws", HANDSHAKE, b""),
    ("ws", "", b""),
    ("http", f"GET /spaces/harbour/events HTTP/1.1\r\nHost: x\r\n{TOKEN}\r\n", b"retry"),
    ("http", "POST /participants/ann/messages HTTP/1.1\r\nHost: x\r\n", b""),
    ("http", "", b""),
]
"""At which port, what they have said, and what they have read since, but nothing after that."""


def test_it_ends_in_its_time_whoever_does_not_answer(tmp_path: Path) -> None:
    """Each of its other times is longer than a test's patience."""
    slow = "gateway: {stop_timeout: 0.2, close_timeout: 300, handshake_timeout: 300}\n"
    slow += "http: {port: 0}\njournal: {path: journal.db}\n"
    (tmp_path / "space.yaml").write_text(
        "spaces: {harbour: {participants: {ann: {tokens: [ann-token], capabilities: []}}}}\n" + slow
    )
    arguments = ("gateway", "--config", "space.yaml", "--port", "0")
    with running(*arguments, cwd=tmp_path) as gateway, ExitStack() as stack:
        gateway.until("for HTTP\n", stream="err")
        ports = dict(re.findall(r"listening at (ws|http)://127.0.0.1:(\d+)", gateway.err))
        for scheme, said, heard in STUCK:
            address = ("127.0.0.1", int(ports[scheme]))
            stuck = stack.enter_context(socket.create_connection(address, PATIENCE))
            stuck.sendall(said.encode())
            received = b""
            while heard not in received:
                received += stuck.recv(65536)
        assert gateway.end(TERMINATE) == exit_codes.OK
    assert "Traceback" not in gateway.err
    assert "stopped listening" in gateway.err


@pytest.mark.parametrize("http", [False, True])
def test_without_tls_it_does_not_listen_where_others_could(tmp_path: Path, http: bool) -> None:
    more = 'http: {host: "::"}\n' if http else "gateway: {host: 0.0.0.0}\n"
    (tmp_path / "space.yaml").write_text(SPACE_YAML + more)
    for check in ((), ("--check",)):
        done = meup("gateway", "--config", "space.yaml", "--port", "0", *check, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (exit_codes.USAGE, "")
        said = f"meup: listening at {'::' if http else '0.0.0.0'} without TLS would show tokens"
        assert said in done.stderr
    allowed = {"MEUP_GATEWAY_INSECURE": "true"}
    done = meup("gateway", "--config", "space.yaml", "--check", cwd=tmp_path, variables=allowed)
    assert done.returncode == exit_codes.OK


OURS_YAML = """
spaces:
  harbour:
    participants: {ann: {tokens: [ann-token]}, ben: {tokens: [ben-token]}}
  quay:
    dialect: mew/v0.4
    participants: {cat: {tokens: [cat-token]}}
defaults: {capabilities: [{kind: chat}]}
gateway: {port: 8422}
http: {}
journal: {path: journal.db}
"""


APART = "listens at http://127.0.0.1:8423 for HTTP"


def test_check_tells_what_would_be_served(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(OURS_YAML)
    done = meup("gateway", "--config", "space.yaml", "--check", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")
    assert done.stdout.splitlines() == [
        "listens at ws://127.0.0.1:8422 and http://127.0.0.1:8422",
        "keeps its journal in journal.db",
        "space harbour (meup/v0.1): ann, ben",
        "space quay (mew/v0.4): cat",
    ]
    assert not (tmp_path / "journal.db").exists()


@pytest.mark.parametrize(
    ("http", "more", "lines"),
    [
        ("", (), ["listens at ws://127.0.0.1:8422 and http://127.0.0.1:8422"]),
        ("", ("--host", "0.0.0.0", "--insecure"), ["listens at ws://0.0.0.0:8422"]),
        ("http: {enabled: false}", (), ["listens at ws://127.0.0.1:8422"]),
        ("http: {port: 8423}", (), ["listens at ws://127.0.0.1:8422", APART]),
    ],
)
def test_check_of_http(tmp_path: Path, http: str, more: tuple[str, ...], lines: list[str]) -> None:
    (tmp_path / "space.yaml").write_text(OURS_YAML.replace("http: {}", http))
    done = meup("gateway", "--config", "space.yaml", "--check", *more, cwd=tmp_path)
    assert done.stdout.splitlines()[: len(lines) + 1] == [*lines, "keeps its journal in journal.db"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("[ben-token]", "[ann-token]"),
            r"space\.yaml: participant 'ben' of space 'harbour' has a token of 'ann' of space",
        ),
        (("journal.db", "nowhere/journal.db"), r"journal\.path: there is no folder nowhere"),
        (("journal.db", "."), r"journal\.path: \. is a folder; give a file"),
        (
            ("journal.db", "space.yaml"),
            r"the journal space\.yaml is damaged, or no journal: file is not a",
        ),
        (("http: {}", "http: {port: 8422}"), r"http\.port: 8422 is also the port for WebSocket"),
        (("http: {}", "tls: {certificate: a.pem, key: b.pem}"), r"tls\.certificate: a\.pem cannot"),
    ],
)
def test_check_says_what_is_wrong(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    (tmp_path / "space.yaml").write_text(OURS_YAML.replace(*change))
    done = meup("gateway", "--config", "space.yaml", "--check", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (exit_codes.USAGE, "")
    assert re.search(f"^meup: {said}", done.stderr)
    assert done.stderr.count("\n") == 1


def test_check_warns_of_misspelt_keys_in_capabilities(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(
        OURS_YAML.replace(
            "{kind: chat}",
            "{kind: mcp/request, payload: {methd: x, params: {nam: y}}}, {kind: chat}",
        )
    )
    done = meup("gateway", "--config", "space.yaml", "--check", cwd=tmp_path)
    assert done.returncode == exit_codes.OK
    assert "space harbour (meup/v0.1): ann, ben" in done.stdout
    place = "capabilities[0].payload"
    assert done.stderr.splitlines() == [
        f"meup: warning: space {space}: {place}.{said}"
        for space in ("harbour, ann, ben", "quay, cat")
        for said in (
            "methd: mcp/request has no such key; did you mean method?",
            "params.nam: MCP has no such key; did you mean name?",
        )
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("space: {id: harbour\n", r"space\.yaml, line \d+: expected YAML"),
        ("participants: {}\n", r"space\.yaml: space: is missing"),
        (None, r"space\.yaml: cannot be read"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(
    tmp_path: Path, text: str | None, said: str, command: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "space.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    done = command("gateway", "--config", "space.yaml")
    assert (done.code, done.out) == (exit_codes.USAGE, "")
    assert re.search(f"^meup: {said}", done.err)
    assert done.err.count("\n") == 1


def test_a_port_in_use_is_said(gateway: ThreadedGateway) -> None:
    done = meup("gateway", "--dev", "--port", str(gateway.port))
    assert (done.returncode, done.stdout) == (exit_codes.USAGE, "")
    assert done.stderr == (
        f"meup: cannot listen at 127.0.0.1:{gateway.port}: address already in use;"
        " choose another host or port\n"
    )


def test_the_environment_counts_without_a_file_as_well(gateway: ThreadedGateway) -> None:
    taken = {"MEUP_GATEWAY_PORT": str(gateway.port)}
    done = meup("gateway", "--dev", variables=taken)
    assert_fails(done, exit_codes.USAGE, f"cannot listen at 127.0.0.1:{gateway.port}")
    wrong = meup("gateway", "--dev", variables={"MEUP_GATEWAY_PORT": "abc"})
    assert_fails(wrong, exit_codes.USAGE, "meup: gateway.port: ")
    with running("gateway", "--dev", "--port", "0", variables=taken) as free:
        assert "meup env observer" in free.until("Their tokens are kept in ")
        assert free.end(TERMINATE) == exit_codes.OK


WITHOUT_EXTRA = """
import sys
sys.modules["picows"] = sys.modules["yaml"] = None
from meup_agent.cli import main
main()
"""


@pytest.mark.parametrize("arguments", [("gateway", "--dev"), ("demo",)])
def test_without_the_extra_it_is_said_how_to_get_it(arguments: tuple[str, ...]) -> None:
    done = meup(*arguments, command=(sys.executable, "-c", WITHOUT_EXTRA))
    assert (done.returncode, done.stdout) == (exit_codes.FAILED, "")
    assert done.stderr == (
        "meup: a gateway needs picows, yaml, not installed here;"
        " run: pip install 'meup-agent[gateway]'\n"
    )


def test_check_asks_the_engine_of_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[JournalConfig, int]] = []

    def check(journal: JournalConfig, most: int) -> str:
        asked.append((journal, most))
        return "elsewhere"

    monkeypatch.setitem(ENGINES, "sqlite", ELSEWHERE._replace(check=check))
    settings = dev_config()
    assert "keeps its journal in elsewhere\n" in describe_checked(settings)
    assert asked == [(settings.journal, settings.limits.max_message_bytes)]


def test_a_log_as_json_has_an_object_in_each_line(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE_YAML)
    options = ("--port", "0", "--log-format", "json")
    with running("gateway", *options, cwd=tmp_path) as gateway:
        gateway.until("listening at", stream="err")
        assert gateway.end(TERMINATE) == exit_codes.OK
    lines = [json.loads(line) for line in gateway.err.splitlines()]
    assert gateway.out == ""
    assert {frozenset(each) for each in lines} == {
        frozenset({"time", "level", "logger", "message"})
    }
    assert lines[-1]["message"].startswith("stopped listening at ws://127.0.0.1:")
    assert datetime.fromisoformat(lines[-1]["time"]).utcoffset() == timedelta(0)
    (tmp_path / "space.yaml").write_text("spaces: [")
    failed = meup("gateway", *options, cwd=tmp_path)
    assert json.loads(failed.stderr)["level"] == "error"
