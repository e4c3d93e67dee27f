"""Hooks of coding agents, over HTTP and by the program that speaks for them."""

import json
import os
import signal
import socket
import subprocess
import sys
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.abc import ByteStream, SocketAttribute

import meup_agent
from meup_agent import Proposal, Space
from meup_agent.protocol.wire.payloads import EXPLAINED
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.doors.hooked import Decide, Hooked, asked, client, hooked, proposed, settled
from tests.interaction.people import until
from tests.patience import PATIENCE
from tests.strangers import STRANGER, stranger

pytestmark = pytest.mark.anyio


CLAUDE: dict[str, Any] = {
    "session_id": "s1",
    "cwd": "/work",
    "permission_mode": "default",
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {"command": "make"},
    "tool_use_id": "toolu_1",
}
# Documented, not run: Cursor, Copilot and Gemini, as their documentation shows their hooks.
CURSOR: dict[str, Any] = {
    "hook_event_name": "beforeShellExecution",
    "conversation_id": "c1",
    "command": "make",
    "cwd": "/work",
}
COPILOT: dict[str, Any] = {"toolName": "bash", "toolArgs": '{"command": "make"}', "cwd": "/work"}
GEMINI: dict[str, Any] = {
    "hook_event_name": "BeforeTool",
    "session_id": "g1",
    "tool_name": "run_shell_command",
    "tool_input": {"command": "make"},
    "cwd": "/work",
}
ASKS = {
    "claude-code": CLAUDE,
    "codex": {**CLAUDE, "turn_id": "t1", "model": "m"},
    "cursor": CURSOR,
    "copilot": COPILOT,
    "gemini": GEMINI,
}


async def yes(proposal: Proposal) -> None:
    await proposal.fulfill()


async def no(proposal: Proposal) -> None:
    await proposal.reject("unsafe", explain="not on Fridays")


def verdict(agent: str, answer: dict[str, Any]) -> tuple[str, str]:
    """What a host takes from an answer: allow or deny, and the words."""
    if agent in ("claude-code", "codex"):
        said = answer["hookSpecificOutput"]
        assert said["hookEventName"] == "PreToolUse"
        return said["permissionDecision"], said["permissionDecisionReason"]
    if agent == "copilot":
        return answer["permissionDecision"], answer.get("permissionDecisionReason", "")
    if agent == "cursor":
        return answer["permission"], answer.get("agent_message", "")
    return answer["decision"], answer.get("reason", "")


@pytest.mark.parametrize("agent", ASKS)
async def test_each_agent_hears_yes_and_no_in_its_own_words(agent: str) -> None:
    for decide, wanted in ((yes, "allow"), (no, "deny")):
        async with asked(decide) as (at, http):
            answer = await http.post(f"/hooks/{agent}", json=ASKS[agent])
            assert answer.status_code == 200
            said, words = verdict(agent, answer.json())
            assert said == wanted
            assert wanted == "allow" or "not on Fridays" in words
            (record,) = at.space.proposals
            assert record.arguments == {"command": "make"}
            assert record.client == agent


async def test_what_was_edited_is_what_runs_and_its_outcome_is_told() -> None:
    async def edit(proposal: Proposal) -> None:
        await proposal.fulfill({"command": "make -n"})

    async with asked(edit) as (at, http):
        answer = (await http.post("/hooks/claude-code", json=CLAUDE)).json()
        assert answer["hookSpecificOutput"]["updatedInput"] == {"command": "make -n"}
        ran = {"tool_input": {"command": "make -n"}}
        after = {**CLAUDE, **ran, "hook_event_name": "PostToolUse"}
        after["tool_response"] = {"stdout": "done", "stderr": "", "interrupted": False}
        told = await http.post("/hooks/claude-code", json=after)
        assert (told.status_code, told.json()) == (200, {})
        assert await settled(at.space) == "fulfilled"
        (record,) = at.space.proposals
        assert record.report is not None
        assert (record.report.outcome, record.report.output) == ("completed", "done")
        # The same call is not permitted a second time.
        again = (await http.post("/hooks/claude-code", json=CLAUDE)).json()
        assert verdict("claude-code", again)[0] == "deny"


AFTER = {
    **CLAUDE,
    "hook_event_name": "PostToolUse",
    "tool_response": {"stdout": "done", "stderr": "", "interrupted": False},
}


async def test_what_came_of_it_is_reported_to_a_gateway_that_was_started_again(
    tmp_path: Path,
) -> None:
    """By the permit that the space has: once, and only by whose it is."""
    with anyio.fail_after(PATIENCE):
        async with hooked(yes, journal=tmp_path / "journal.db") as at:
            async with client(at) as http:
                answer = (await http.post("/hooks/claude-code", json=CLAUDE)).json()
                assert verdict("claude-code", answer)[0] == "allow"
            await at.restart()
            async with client(at) as http, client(at, "mallory") as other:
                # Not another's report, not one of another session, and no second permit.
                await other.post("/hooks/claude-code", json=AFTER)
                await http.post("/hooks/claude-code", json={**AFTER, "session_id": "s2"})
                again = (await http.post("/hooks/claude-code", json=CLAUDE)).json()
                assert verdict("claude-code", again)[0] == "deny"
                assert "permitted once" in verdict("claude-code", again)[1]
                for _ in range(2):
                    await http.post("/hooks/claude-code", json=AFTER)
                record = None
                while record is None or record.report is None:
                    (record,) = [each async for each in at.space.proposals.list(state="decided")]
                assert (record.state, record.report.output) == ("fulfilled", "done")
                assert len(at.space.proposals) == 0


async def test_a_no_that_is_explained_to_all_is_told_with_its_words() -> None:
    async with hooked() as at, client(at) as http, client(at, "ann") as ann:
        ann.headers["X-Participant"] = "ann"

        async def say(kind: str, about: str, payload: dict[str, Any]) -> str:
            said = {"kind": kind, "correlation_id": [about], "payload": payload}
            answer = await ann.post("/participants/ann/messages", json=said)
            assert answer.status_code < 300, answer.text
            return str(answer.json()["id"])

        async def reject() -> None:
            await proposed(at.space)
            no = {"reason": "unsafe", "_meta": {EXPLAINED: True}}
            about = await say("mcp/reject", at.space.proposals[0].id, no)
            await say("chat", about, {"text": "not on Fridays"})

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reject)
                answer = await http.post("/hooks/claude-code", json=CLAUDE)
                said, words = verdict("claude-code", answer.json())
                assert said == "deny"
                assert "not on Fridays" in str(words)


def connect(at: Hooked) -> socket.socket:
    """A host, which hangs up as its socket is closed."""
    address, port = at.url.removeprefix("http://").split(":")
    return socket.create_connection((address, int(port)))


def ask_by(host: socket.socket, at: Hooked, *heads: str, **call: str) -> None:
    """Have a host ask about a call."""
    body = json.dumps({**CLAUDE, **call}).encode()
    said = (
        "POST /hooks/claude-code HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {at.tokens['coder']}",
        f"Content-Length: {len(body)}",
        *heads,
    )
    host.sendall("\r\n".join((*said, "", "")).encode() + body)


async def test_who_hangs_up_as_it_is_permitted_is_not_told() -> None:
    """Whichever comes first: it is never left as if it might have run."""

    def decide(proposal: Proposal) -> Any:
        hosts.pop().close()
        return proposal.fulfill()

    hosts: list[socket.socket] = []
    with anyio.fail_after(PATIENCE):
        async with hooked(decide) as at:
            for number in range(5):
                hosts.append(connect(at))
                ask_by(hosts[0], at, tool_use_id=f"toolu_{number}")
                await proposed(at.space, number + 1)
                state = await settled(at.space, number)
                report = at.space.proposals[number].report
                assert (state, report and report.outcome) in (
                    ("withdrawn", None),
                    ("fulfilled", "not_run"),
                )


async def test_a_program_whose_host_is_gone_says_that_it_was_not_told() -> None:
    async with asked(yes) as (at, http):
        await http.post("/hooks/claude-code", json=CLAUDE)
        # Another hook of the same call was told.
        await http.post("/hooks/claude-code", json=CLAUDE)
        await http.post("/hooks/claude-code?untold=1", json=CLAUDE)
        assert at.space.proposals[0].state == "permitted"
        await http.post("/hooks/claude-code?untold=1", json=CLAUDE)
        assert await settled(at.space) == "fulfilled"
        report = at.space.proposals[0].report
        assert report is not None
        assert report.outcome == "not_run"
        again = (await http.post("/hooks/claude-code", json=CLAUDE)).json()
        assert verdict("claude-code", again)[0] == "deny"


async def test_what_another_hook_has_changed_after_the_permit_is_told() -> None:
    """Of two hooks that change a call the one that answers last counts."""
    async with asked(yes) as (at, http):
        await http.post("/hooks/claude-code", json=CLAUDE)
        ran = {"tool_input": {"command": "make install"}}
        await http.post("/hooks/claude-code", json={**AFTER, **ran})
        assert await settled(at.space) == "fulfilled"
        report = at.space.proposals[0].report
        assert report is not None
        assert report.output == (
            'RAN WITH OTHER ARGUMENTS THAN PERMITTED: {"command":"make install"}\ndone'
        )


@pytest.mark.parametrize("agent", ASKS)
async def test_each_of_two_windows_is_told_of_its_own_call_alone(agent: str) -> None:
    """One hook, one agent, the same call: also where its ids are the same, or it says none."""
    name = "conversation_id" if agent == "cursor" else "session_id"
    told: dict[str, str] = {}
    events = {each: anyio.Event() for each in "ab"}
    async with asked() as (at, http), anyio.create_task_group() as tasks:

        async def ask(window: str) -> None:
            answer = await http.post(f"/hooks/{agent}", json={**ASKS[agent], name: window})
            told[window] = verdict(agent, answer.json())[0]
            events[window].set()

        for number, window in enumerate("ab", 1):
            tasks.start_soon(ask, window)
            await proposed(at.space, number)
        first, second = at.space.proposals
        await at.space.proposals.get(second).fulfill()
        await events["b"].wait()
        assert (told, first.state) == ({"b": "allow"}, "pending")
        await at.space.proposals.get(first).reject("unsafe")
        await events["a"].wait()
        assert told == {"a": "deny", "b": "allow"}


async def test_who_hangs_up_takes_its_call_back() -> None:
    async with asked() as (at, http):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: http.post("/hooks/claude-code", json=CLAUDE))
            await proposed(at.space)
            tasks.cancel_scope.cancel()
        assert await settled(at.space) == "withdrawn"


def waiting_time(space: Space) -> int:
    """The seconds that the first proposal waits, from when it was sent."""
    first = space.proposals[0]
    assert first.expires_at is not None
    assert first.envelope.ts is not None
    sent = datetime.fromisoformat(first.envelope.ts)
    return round((first.expires_at - sent).total_seconds())


async def test_silence_ends_as_a_no_before_the_host_gives_up() -> None:
    async with asked() as (_, http):
        answer = (await http.post("/hooks/claude-code?timeout=5.05", json=CLAUDE)).json()
        said, words = verdict("claude-code", answer)
        assert said == "deny"
        assert "do not try to do the same by another way" in words


@pytest.mark.parametrize(
    ("said", "waits"),
    [
        ("", 300),  # as the space
        ("?timeout=86460&ttl=86400", 86_400),
        ("?timeout=1209660.0&ttl=1209600.0", 1_209_600),
        ("?timeout=605&ttl=86400", 600),
        ("?timeout=86460&ttl=nan", 300),
    ],
)
async def test_a_call_waits_as_its_hook_says_and_less_than_the_host(said: str, waits: int) -> None:
    async with asked() as (at, http), anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.post(f"/hooks/claude-code{said}", json=CLAUDE))
        await proposed(at.space)
        assert waiting_time(at.space) == waits
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (b"", "not JSON"),
        (b"[]", "not an object"),
        (b'{"a":' * 100_000, "not JSON"),
        (b"x" * (2 * 1024 * 1024 + 1), "more than"),
        (json.dumps({**CLAUDE, "tool_input": "make"}).encode(), "'tool_input'"),
        (json.dumps({**CLAUDE, "tool_use_id": 7}).encode(), "'tool_use_id'"),
        (json.dumps({**CLAUDE, "hook_event_name": None}).encode(), "'hook_event_name'"),
    ],
)
async def test_what_cannot_be_read_is_denied_by_the_name_of_the_field(
    wrong: bytes, why: str
) -> None:
    async with asked(yes) as (at, http):
        answer = await http.post("/hooks/claude-code", content=wrong)
        said, words = verdict("claude-code", answer.json())
        assert said == "deny"
        assert why in words
        assert len(at.space.proposals) == 0


UNKNOWN: dict[str, dict[str, Any]] = {
    "claude-code": {**CLAUDE, "hook_event_name": "PreToolCall"},
    "codex": {**CLAUDE, "hook_event_name": "pre_tool_use"},
    "cursor": {"hook_event_name": "beforeTerminalCommand", "command": "make"},
    "gemini": {"hook_event_name": "BeforeToolCall", "tool_name": "shell", "tool_input": {}},
}


@pytest.mark.parametrize("agent", UNKNOWN)
async def test_an_event_that_is_new_and_may_ask_is_denied_by_its_name(agent: str) -> None:
    async with asked(yes) as (_, http):
        answer = (await http.post(f"/hooks/{agent}", json=UNKNOWN[agent])).json()
        said, words = verdict(agent, answer)
        assert said == "deny"
        assert UNKNOWN[agent]["hook_event_name"] in words
        bare = {"hook_event_name": "beforeSomething", "session_id": "s1"}
        answer = (await http.post(f"/hooks/{agent}", json=bare)).json()
        assert verdict(agent, answer)[0] == "deny"
        known_ones = ("Stop", "stop", "SessionStart", "PostToolBatch", "afterFileEdit")
        for known in (*known_ones, "PreCompact", "beforeTabFileRead", "beforeSubmitPrompt"):
            told = {**UNKNOWN[agent], "hook_event_name": known}
            if known in known_ones and not known.casefold().startswith(("post", "after")):
                told = {"hook_event_name": known, "session_id": "s1"}
            assert (await http.post(f"/hooks/{agent}", json=told)).json() == {}


async def test_strangers_and_pages_are_turned_away() -> None:
    with anyio.fail_after(PATIENCE):
        async with hooked(yes) as at, client(at, "wrong") as stranger, client(at) as http:
            assert (await stranger.post("/hooks/claude-code", json=CLAUDE)).status_code == 401
            page = {"Origin": "http://127.0.0.1"}
            answer = await http.post("/hooks/claude-code", json=CLAUDE, headers=page)
            assert answer.status_code == 403
            assert (await http.get("/hooks/claude-code")).status_code == 403
            assert (await http.post("/hooks/emacs", json=CLAUDE)).status_code == 404
        async with hooked(yes) as at, client(at, "deaf") as http:
            answer = await http.post("/hooks/claude-code", json=CLAUDE)
            assert verdict("claude-code", answer.json())[0] == "deny"


async def test_calls_of_our_own_server_pass_by_its_source_and_not_by_its_name() -> None:
    ours: dict[str, Any] = {**CLAUDE, "tool_name": "mcp__meup__write", "tool_input": {}}
    async with asked() as (_, http):
        path = "/hooks/claude-code?own=meup&timeout=5.05"
        for source, passes in (("user", True), ("project", False), ("plugin", False)):
            server = {"name": "meup", "source": source}
            answer = await http.post(path, json={**ours, "mcp_server": server})
            assert (answer.json() == {}) is passes, source
        server = {"name": "other", "source": "user"}
        assert (await http.post(path, json={**ours, "mcp_server": server})).json() != {}


@pytest.mark.parametrize(("mode", "query"), [("watch", ""), ("enforce", "?mode=watch")])
@pytest.mark.parametrize("decide", [None, yes, no])
async def test_one_that_watches_decides_nothing_and_records_all(
    mode: str, query: str, decide: Decide | None
) -> None:
    async with asked(decide, mode=mode) as (at, http):
        assert (await http.post(f"/hooks/claude-code{query}", json=CLAUDE)).json() == {}
        await proposed(at.space)
        assert at.space.proposals[0].arguments == {"command": "make"}
        assert await settled(at.space) in ("withdrawn", "expired")
        # Nor is what it cannot read, or cannot tell of, kept from running.
        assert (await http.post(f"/hooks/claude-code{query}", content=b"[]")).json() == {}
        deaf = {"Authorization": f"Bearer {at.tokens['deaf']}"}
        answer = await http.post(f"/hooks/claude-code{query}", json=CLAUDE, headers=deaf)
        assert answer.json() == {}


@pytest.mark.parametrize("agent", ASKS)
def test_a_program_that_watches_lets_all_go_on(agent: str) -> None:
    settings = {"MEUP_URL": "http://127.0.0.1:1", "MEUP_TOKEN": "t"}
    assert run_hook(agent, ASKS[agent], "--watch", **settings) == (0, "{}", "")


@pytest.mark.parametrize("event", ["preToolUse", "PreToolUse", "postToolUse", "sessionStart"])
async def test_a_call_of_cursors_is_asked_about_by_its_own_hook_alone(event: str) -> None:
    """It runs the hooks of Claude Code's settings as well."""
    both = {**CLAUDE, "hook_event_name": event, "cursor_version": "3.12.17"}
    own = {**both, "hook_event_name": "preToolUse", "conversation_id": "c1"}
    async with asked(yes) as (at, http):
        assert (await http.post("/hooks/claude-code", json=both)).json() == {}
        answer = (await http.post("/hooks/cursor", json=own)).json()
        assert verdict("cursor", answer)[0] == "allow"
        assert len(at.space.proposals) == 1


TWICE = '{"command": "ls", "command": "rm -rf /"}'


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("claude-code", json.dumps(CLAUDE).replace('{"command": "make"}', TWICE)),
        ("copilot", json.dumps({"toolName": "bash", "toolArgs": TWICE})),
        (
            "cursor",
            json.dumps(
                {"hook_event_name": "preToolUse", "tool_name": "Shell", "tool_input": TWICE}
            ),
        ),
    ],
)
async def test_a_name_that_stands_twice_is_denied(agent: str, said: str) -> None:
    """Its host may run the other one of the two."""
    async with asked(yes) as (_, http):
        answer = (await http.post(f"/hooks/{agent}", content=said)).json()
        assert verdict(agent, answer)[0] == "deny"
        assert "twice" in verdict(agent, answer)[1]


@pytest.mark.parametrize(
    "value", [r'"\ud800"', "1" * 30, "1e400", "NaN", "[" * 900 + "]" * 900, r'"\u202e\u001b[2J"']
)
async def test_a_value_that_is_hard_to_hand_on_is_denied_or_runs_as_it_was(value: str) -> None:
    said = json.dumps(CLAUDE).replace('"make"', value)
    async with asked(yes) as (_, http):
        answer = (await http.post("/hooks/claude-code", content=said)).json()
        if verdict("claude-code", answer)[0] == "allow":
            given = answer["hookSpecificOutput"]["updatedInput"]
            assert json.dumps(given) == json.dumps(json.loads(f'{{"command": {value}}}'))


# --- the program ---


def run_hook(agent: str, said: object, *options: str, **settings: str) -> tuple[int, str, str]:
    """Run meup-hook; its exit code, stdout and stderr."""
    program = [sys.executable, "-c", "from meup_agent.doors.hook_client import main; main()"]
    given = said if isinstance(said, bytes) else json.dumps(said).encode()
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("MEUP_")}, **settings}
    done = subprocess.run(
        [*program, agent, *options], input=given, env=env, capture_output=True, timeout=PATIENCE
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("agent", ASKS)
async def test_the_program_says_what_the_gateway_decides(agent: str) -> None:
    for decide, wanted in ((yes, "allow"), (no, "deny")):
        with anyio.fail_after(PATIENCE):
            async with hooked(decide) as at:
                settings = {"MEUP_URL": at.url, "MEUP_TOKEN": at.tokens["coder"]}
                run = partial(run_hook, agent, ASKS[agent], **settings)
                code, out, err = await to_thread.run_sync(run)
                assert (code, err) == (0, "")
                assert verdict(agent, json.loads(out))[0] == wanted


async def test_the_program_says_how_long_a_call_waits() -> None:
    with anyio.fail_after(PATIENCE):
        async with hooked(yes) as at:
            settings = {"MEUP_URL": at.url, "MEUP_TOKEN": at.tokens["coder"]}
            waits = ("--timeout", "1209660", "--ttl", "1209600")
            run = partial(run_hook, "codex", ASKS["codex"], *waits, **settings)
            assert (await to_thread.run_sync(run))[0] == 0
            assert waiting_time(at.space) == 1_209_600


@pytest.mark.parametrize("agent", ASKS)
@pytest.mark.parametrize("broken", ["refused", "token", "url"])
def test_the_program_fails_closed_as_each_host_reads_it(agent: str, broken: str) -> None:
    settings = {"MEUP_URL": "http://127.0.0.1:1", "MEUP_TOKEN": "t"}
    if broken == "token":
        del settings["MEUP_TOKEN"]
    if broken == "url":
        settings["MEUP_URL"] = "nowhere"
    code, out, err = run_hook(agent, ASKS[agent], **settings)
    assert code == (0 if agent == "copilot" else 2)
    assert "Nobody decided about it" in err
    if agent not in ("claude-code", "codex"):
        assert verdict(agent, json.loads(out))[0] == "deny"


JUNK = [
    b"junk\r\n\r\n",
    b"HTTP/1.1 \xff\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a":NaN}',
    b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a":"\xff"}',
    b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
]


async def answered_by(agent: str, answer: bytes, **settings: str) -> tuple[int, str, str]:
    """Run meup-hook against a gateway that answers with these bytes."""

    async def serve(stream: ByteStream) -> None:
        async with stream:
            said = b""
            while not said.endswith(json.dumps(ASKS[agent]).encode()):
                said += await stream.receive()
            await stream.send(answer)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    given = {"MEUP_URL": f"http://127.0.0.1:{port}", "MEUP_TOKEN": "t", **settings}
    ended = (-1, "", "")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        ended = await to_thread.run_sync(partial(run_hook, agent, ASKS[agent], **given))
        tasks.cancel_scope.cancel()
    return ended


@pytest.mark.parametrize("answer", JUNK)
async def test_the_program_hands_on_no_answer_that_a_host_takes_for_a_failure(
    answer: bytes,
) -> None:
    with anyio.fail_after(PATIENCE):
        code, out, err = await answered_by("claude-code", answer)
    assert (code, out) == (2, "")
    assert "Nobody decided about it" in err


async def test_the_program_hands_on_an_answer_in_the_bytes_of_the_gateway() -> None:
    body = '{"command": "touch é"}'.encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with anyio.fail_after(PATIENCE):
        for encoding in ("latin-1", "ascii"):
            done = await answered_by("codex", answer, PYTHONIOENCODING=encoding)
            assert done == (0, body.decode(), "")


@pytest.mark.parametrize("agent", ASKS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_program_that_is_told_to_end_denies(agent: str, number: signal.Signals) -> None:
    with anyio.fail_after(PATIENCE):
        async with hooked() as at:
            # A signal that is ignored where the tests run stays so in what they start.
            program = (
                f"import signal; signal.signal({int(number)}, signal.default_int_handler);"
                " from meup_agent.doors.hook_client import main; main()"
            )
            env = {**os.environ, "MEUP_URL": at.url, "MEUP_TOKEN": at.tokens["coder"]}
            async with await anyio.open_process(
                [sys.executable, "-c", program, agent], env=env
            ) as process:
                assert process.stdin is not None
                assert process.stderr is not None
                await process.stdin.send(json.dumps(ASKS[agent]).encode())
                await process.stdin.aclose()
                await until(lambda: len(at.space.proposals) == 1)
                process.send_signal(number)
                words = b"".join([each async for each in process.stderr])
                assert await process.wait() == (0 if agent == "copilot" else 2)
                assert b"it was interrupted" in words
            assert await settled(at.space) == "withdrawn"


async def test_a_line_denies_where_a_signal_goes_to_its_shell_as_well() -> None:
    with anyio.fail_after(PATIENCE):
        async with hooked() as at:
            program = f"{sys.executable} -c 'from meup_agent.doors.hook_client import main; main()'"
            denies = "echo meup did not answer >&2; exit 2"
            line = f"trap : HUP INT TERM; {program} codex || {{ {denies}; }}"
            env = {**os.environ, "MEUP_URL": at.url, "MEUP_TOKEN": at.tokens["coder"]}
            async with await anyio.open_process(
                ["sh", "-c", line], env=env, start_new_session=True
            ) as process:
                assert process.stdin is not None
                assert process.stderr is not None
                await process.stdin.send(json.dumps(ASKS["codex"]).encode())
                await process.stdin.aclose()
                await until(lambda: len(at.space.proposals) == 1)
                os.killpg(process.pid, signal.SIGTERM)
                words = b"".join([each async for each in process.stderr])
                assert await process.wait() == 2
                assert b"meup did not answer" in words


@pytest.mark.parametrize("is_there", [True, False])
def test_a_token_file_of_another_user_is_a_no_that_says_so(is_there: bool, tmp_path: Path) -> None:
    """As where all users have the hook of one, by managed settings."""
    file = tmp_path / "coder.token"
    if is_there:
        file.touch(mode=0)
    # Root may read all files, and gives that up.
    gives_up = "os.geteuid() or os.seteuid(65534);" if is_there else ""
    program = f"import os; from meup_agent.doors.hook_client import main; {gives_up} main()"
    options = ["codex", "--url", "http://127.0.0.1:1", "--token-file", str(file)]
    command = [sys.executable, "-c", program, *options]
    done = subprocess.run(command, input=b"{}", capture_output=True, check=False)
    assert done.returncode == 2
    said = "is another user's" if is_there else "run meup guard again"
    assert said in done.stderr.decode()


@pytest.mark.parametrize("agent", ["claude-code", "codex"])
def test_the_program_reads_a_flood_to_its_end_and_sends_none_of_it(agent: str) -> None:
    settings = {"MEUP_URL": "http://127.0.0.1:1", "MEUP_TOKEN": "t"}
    code, out, err = run_hook(agent, b'{"a":"' + b"x" * 50_000_000 + b'"}', **settings)
    assert (code, out) == (2, "")
    assert "more than 2097152 bytes" in err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a socket is")
@pytest.mark.parametrize("way", ["port", "socket"])
def test_the_program_sends_another_user_nothing(way: str) -> None:
    with TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        path = Path(name, "gateway.sock") if way == "socket" else None
        with stranger(path=path) as other:
            url = f"unix://{path}" if path else f"http://127.0.0.1:{other.port}"
            code, out, err = run_hook("claude-code", {}, MEUP_URL=url, MEUP_TOKEN="secret")
            _, heard = other.hear()
    assert (code, out, heard) == (2, "", "b''")
    assert f"the user {STRANGER} listens at {path or f'127.0.0.1:{other.port}'}, and was" in err


def test_the_program_loads_little() -> None:
    script = (
        "import sys, meup_agent.doors.hook_client;"
        "print([m for m in sys.modules if m in ('anyio', 'msgspec', 'asyncio', 'ssl', 'typing')])"
    )
    installed = str(Path(meup_agent.__file__).parents[1])
    out = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {installed!r}); {script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "[]"


async def test_a_program_that_is_killed_takes_its_call_back() -> None:
    with anyio.fail_after(PATIENCE):
        async with hooked() as at:
            program = "from meup_agent.doors.hook_client import main; main()"
            env = {**os.environ, "MEUP_URL": at.url, "MEUP_TOKEN": at.tokens["coder"]}
            process = await anyio.open_process([sys.executable, "-c", program, "codex"], env=env)
            assert process.stdin is not None
            await process.stdin.send(json.dumps(ASKS["codex"]).encode())
            await process.stdin.aclose()
            await until(lambda: len(at.space.proposals) == 1)
            process.kill()
            await process.wait()
            assert await settled(at.space) == "withdrawn"
            await process.aclose()
