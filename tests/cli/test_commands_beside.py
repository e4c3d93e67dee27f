"""`meup withdraw`, `fulfill`, `reject` and `call --as`: beside a running agent, not in its place.

An agent that runs with the same token keeps its connection.
"""

import json
import os
import pty
import signal
import threading
from dataclasses import replace

import pytest

from meup_agent import Fulfillment, Outcome, Space, Withdrawal
from meup_agent.gateway import Gateway, HttpConfig, TlsConfig
from tests.cli.commands import exit_codes
from tests.cli.conftest import Here, assert_fails
from tests.cli.participants import post
from tests.cli.processes import COMMAND, Running, environment, meup, running
from tests.cli.stage import ESCAPED, HOSTILE, PARTICIPANTS, Stage
from tests.forkserver import start
from tests.gateways import one_space_config
from tests.spaces import AbsenceTracker
from tests.transport.peers import CERTIFICATE
from tests.wire import build_proposal, payloads

LOST = exit_codes.NO_CONNECTION


class Proposed:
    """A proposal of an agent that runs in a thread, and goes on running."""

    def __init__(self, stage: Stage, tool: str, arguments: dict[str, str], to: str) -> None:
        self.outcomes: list[Outcome] = []
        self.connected: list[bool] = []

        async def propose(space: Space) -> None:
            with space.watch(lambda each: each.sender == space.me) as taken:
                async with space.propose("files", tool, arguments, to=to, ttl=20) as proposal:
                    await anext(taken)  # a command beside may be faster than what is on its way
                    stage.tell("proposed", proposal.id)
                    self.outcomes.append(await proposal.outcome())
            self.connected.append(space.connected)

        self._thread = threading.Thread(target=stage.as_somebody, args=("paula", propose))
        self._thread.start()
        self.id = stage.wait_for("proposed")

    def withdraw(self, here: Here) -> None:
        assert here("withdraw", self.id, participant="paula").code == 0
        self.outcome()

    def outcome(self) -> Outcome:
        """The outcome; the participant's agent has kept its connection."""
        self._thread.join()
        assert self.connected == [True]
        [outcome] = self.outcomes
        return outcome


def test_withdraw_ends_the_wait_of_the_agent_beside(stage: Stage, here: Here) -> None:
    proposed = Proposed(stage, "nothing", {}, to="alice")
    done = here(
        "withdraw", proposed.id, "--reason", "policy", "--explain", "why", participant="paula"
    )
    assert done == (0, "", f"meup: proposal {proposed.id} is withdrawn\n")
    outcome = proposed.outcome()
    assert isinstance(outcome, Withdrawal)
    assert outcome.reason == "policy"


def test_fulfill_carries_out_what_is_proposed(stage: Stage, here: Here) -> None:
    proposed = Proposed(stage, "write_file", {"path": "a", "text": "b"}, to="alice")
    done = here("fulfill", proposed.id[:12], "--yes")
    assert (done.code, done.out) == (0, "'a' has 'b'\n")
    assert done.err == (
        f'proposal {proposed.id} of paula:\n  files.write_file\n    path = "a"\n    text = "b"\n'
    )
    outcome = proposed.outcome()
    assert isinstance(outcome, Fulfillment)
    assert (outcome.by, outcome.executor, outcome.as_proposed) == ("alice", "files", True)
    assert [call["path"] for call in stage.calls] == ["a"]
    again = here("fulfill", proposed.id)
    assert_fails(again, exit_codes.USAGE, f"proposal {proposed.id} is fulfilled")


def test_nobody_is_asked_where_no_terminal_is(stage: Stage, here: Here) -> None:
    text = "x" * 3_000 + "\x1b[2J"
    proposed = Proposed(stage, "write_file", {"path": "a", "text": text}, to="alice")
    done = here("fulfill", proposed.id)
    assert (done.code, done.out) == (exit_codes.USAGE, ""), done.err
    shown, said = done.err.rsplit("\n", 2)[:2]
    assert shown.endswith("x" * 100 + '\\u001b[2J"'), "the call is shown whole, and escaped"
    assert "x" * 3_000 in shown
    assert said == (
        "meup: standard input is not a terminal, so you cannot be asked; read what is above,"
        " and give --yes to do it"
    )
    assert stage.calls == []
    proposed.withdraw(here)


class Asked:
    """`meup fulfill` at a terminal, and what is to be answered."""

    def __init__(self, stage: Stage, proposal: str) -> None:
        self.master, terminal = pty.openpty()
        arguments = [*COMMAND[1:], "fulfill", proposal]
        self.process = start(arguments, environment(stage.variables("alice")), stdin=terminal)
        os.close(terminal)
        self._said = Running(self.process)
        self.err = self._said.until("carry it out? [y/N] ", stream="err")

    def answer(self, text: str) -> tuple[int, str, str]:
        os.write(self.master, text.encode())
        return self.end()

    def end(self) -> tuple[int, str, str]:
        """The exit code, and what was said after the question."""
        code = self._said.end()
        os.close(self.master)
        return code, self._said.out, self._said.err.removeprefix(self.err)


def test_what_is_shown_is_carried_out_when_a_person_says_yes(stage: Stage) -> None:
    proposed = Proposed(stage, "write_file", {"path": "a", "text": "b"}, to="alice")
    asked = Asked(stage, proposed.id)
    assert 'files.write_file\n    path = "a"\n    text = "b"\n' in asked.err
    assert stage.calls == []
    assert asked.answer("y\n") == (0, "'a' has 'b'\n", "")
    assert isinstance(proposed.outcome(), Fulfillment)


@pytest.mark.parametrize("answer", ["n\n", "\n", "what?\n", "\x04"])
def test_nothing_is_sent_unless_a_person_says_yes(stage: Stage, here: Here, answer: str) -> None:
    proposed = Proposed(stage, "write_file", {"path": "a", "text": "b"}, to="alice")
    said = Asked(stage, proposed.id).answer(answer)
    assert said == (exit_codes.FAILED, "", "meup: not confirmed; nothing was sent\n")
    proposed.withdraw(here)
    assert stage.calls == []


def test_a_signal_ends_the_question(stage: Stage, here: Here) -> None:
    proposed = Proposed(stage, "nothing", {}, to="alice")
    asked = Asked(stage, proposed.id)
    asked.process.send_signal(signal.SIGINT)
    assert asked.end() == (exit_codes.INTERRUPTED, "", "meup: interrupted\n")
    proposed.withdraw(here)


def test_what_was_withdrawn_while_it_was_read_is_not_carried_out(stage: Stage, here: Here) -> None:
    proposed = Proposed(stage, "write_file", {"path": "a", "text": "b"}, to="alice")
    asked = Asked(stage, proposed.id)
    proposed.withdraw(here)
    code, _, err = asked.answer("y\n")
    assert code == exit_codes.USAGE
    assert f"proposal {proposed.id} is withdrawn" in err
    assert stage.calls == []


def say(stage: Stage, sender: str, kind: str, id: str, payload: object, about: str = "") -> None:
    """Say something over HTTP, under an id of one's own choice."""
    more = {"correlation_id": [about]} if about else {}
    post(stage.gateway, sender, "mew/v0.4", id=id, kind=kind, to=["alice"], payload=payload, **more)


def swap(stage: Stage, number: int) -> str:
    """One id, used for another call after its proposal was taken back."""
    id = f"swap{number}"
    for path in ("harmless", "harmful"):
        arguments = {"path": path, "text": "b"}
        params = {"name": "write_file", "arguments": arguments}
        body = build_proposal("tools/call", params, target="files", expires=None)
        say(stage, "paula", "mcp/proposal", id, body)
        if path == "harmless":
            say(stage, "paula", "mcp/withdraw", f"{id}-w", {"reason": "other"}, about=id)
    return id


def test_an_id_that_was_used_twice_is_not_approved(stage: Stage, here: Here) -> None:
    id = swap(stage, 1)
    done = here("fulfill", id, "--yes")
    assert (done.code, done.out) == (exit_codes.USAGE, "")
    assert f'{id} of paula, files.write_file(path="harmless", text="b"), withdrawn' in done.err
    assert f'{id} of paula, files.write_file(path="harmful", text="b"), pending' in done.err
    assert "say with --digest" in done.err
    assert stage.calls == []


def test_a_digest_says_which_call_is_approved(stage: Stage, here: Here) -> None:
    id = swap(stage, 2)

    def digest(path: str) -> str:
        arguments = {"path": path, "text": "b"}
        found = payloads.digest(
            "tools/call", {"name": "write_file", "arguments": arguments}, "files"
        )
        assert found is not None
        return found

    read = here("fulfill", id, "--yes", "--digest", digest("harmless"))
    assert_fails(read, exit_codes.USAGE, "is withdrawn")
    other = here("fulfill", id, "--yes", "--digest", digest("another"))
    assert (other.code, stage.calls) == (exit_codes.FAILED, [])
    done = here("fulfill", id, "--yes", "--digest", digest("harmful"))
    assert (done.code, [call["path"] for call in stage.calls]) == (0, ["harmful"])


@pytest.mark.parametrize(("tool", "code"), [("write_file", 0), ("missing", exit_codes.USAGE)])
def test_a_plain_proposal_has_one_executor(stage: Stage, here: Here, tool: str, code: int) -> None:
    params = {"name": tool, "arguments": {"path": "a", "text": "b"}}
    say(stage, "paula", "mcp/proposal", tool, {"method": "tools/call", "params": params})
    done = here("fulfill", tool, "--yes")
    assert done.code == code
    if code:
        assert "no participant that can be asked has the tool 'missing'" in done.err
        assert "give --executor" in done.err
    else:
        assert f"files.{tool}" in done.err
    assert len(stage.calls) == (not code)


def test_an_edit_is_told(stage: Stage, here: Here) -> None:
    proposed = Proposed(stage, "write_file", {"path": "a", "text": "b"}, to="alice")
    done = here("fulfill", proposed.id, "--yes", "--edit", "path=5", "--json")
    document = json.loads(done.out)
    assert (document["result"], document["edited"]) == ("'5' has 'b'", True)
    assert 'path is "5" instead of "a"' in done.err
    outcome = proposed.outcome()
    assert isinstance(outcome, Fulfillment)
    assert [(each.path, each.fulfilled) for each in outcome.changes] == [("arguments.path", "5")]


def test_what_a_tool_says_is_escaped(stage: Stage, here: Here) -> None:
    proposed = Proposed(stage, "fail", {}, to="alice")
    done = here("fulfill", proposed.id, "-y")
    assert (done.code, done.out) == (exit_codes.TOOL_FAILED, "")
    assert "meup: files.fail failed" in done.err
    assert HOSTILE not in done.err
    proposed.outcome()
    called = here("call", "files", "read_hostile", "--as", "alice")
    assert called.code == 0
    assert ESCAPED.split("\\r")[0] in called.out


def test_a_withdrawal_ends_a_fulfillment_that_runs(stage: Stage, here: Here) -> None:
    proposed = Proposed(stage, "read_long", {}, to="alice")
    words = ("fulfill", proposed.id, "--yes")
    with running(*words, variables=stage.variables()) as fulfilling:
        stage.wait_for("started")
        done = here("withdraw", proposed.id, "--reason", "policy", participant="paula")
        assert done.code == 0
        assert stage.wait_for("stopped") == "policy"
        assert fulfilling.end() == exit_codes.FAILED
    assert f"'paula' withdrew proposal {proposed.id} while it was carried out" in fulfilling.err
    assert isinstance(proposed.outcome(), Withdrawal)


def test_call_beside_the_running_agent(stage: Stage, here: Here) -> None:
    done = here("call", "files", "read_report", "lines=3", "--as", "alice")
    assert (done.code, json.loads(done.out)) == (0, {"lines": 3, "ok": True})
    assert done.err == ""


def test_propose_beside_the_running_agent(stage: Stage, here: Here) -> None:
    words = ("propose", "files", "write_file", "path=a", "text=b", "--as", "alice")
    taken_over = stage.gateway.counters.taken_over
    done = here(*words, "--to", "reviewer")
    assert (done.code, done.out) == (0, "'a' has 'b'\n")
    assert stage.gateway.counters.taken_over == taken_over


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("withdraw", "nothing-like-it"), exit_codes.FAILED, "knows no proposal of alice"),
        (("fulfill", "nothing-like-it"), exit_codes.FAILED, "knows no proposal"),
        (("fulfill", " "), exit_codes.USAGE, "the proposal is empty"),
        (("call", "files", "no_tool", "--as", "alice"), exit_codes.USAGE, "has no tool"),
        (("call", "nobody", "x", "--as", "alice"), exit_codes.ABSENT, "is not in the space"),
        (("call", "files", "nothing", "--as", "bob"), LOST, "takes us for 'alice'"),
        (("call", "files", "write_file", "--as", "alice"), exit_codes.USAGE, "do not fit it"),
        (("withdraw", "x", "--url", "http://x"), exit_codes.USAGE, "does not begin with ws://"),
        (("withdraw", "x", "--space", "other"), LOST, "has no such space"),
        (("withdraw", "x", "--token", "no"), LOST, "refused the token"),
        (("withdraw", "x", "--url", "ws://127.0.0.1:9"), LOST, "cannot connect to 127.0.0.1:9"),
    ],
)
def test_what_fails_is_said(here: Here, words: tuple[str, ...], code: int, said: str) -> None:
    assert_fails(here(*words), code, said)


def test_without_an_address_it_says_what_to_give(here: Here) -> None:
    assert_fails(here("withdraw", "x", MEUP_URL=""), exit_codes.USAGE, "give --url or set MEUP_URL")
    assert_fails(here("audit", MEUP_URL=""), exit_codes.USAGE, "--http (or MEUP_HTTP, or MEUP_URL)")


@pytest.mark.parametrize("path", ["", "/", "/ws", "/ws?space=demo"])
def test_http_is_found_where_the_url_leads(stage: Stage, here: Here, path: str) -> None:
    url = stage.gateway.url + path
    assert here("audit", MEUP_URL=url).code == exit_codes.OK


def test_nobody_approves_their_own(stage: Stage, here: Here) -> None:
    proposed = Proposed(stage, "nothing", {}, to="alice")
    done = here("fulfill", proposed.id, participant="paula")
    assert_fails(done, exit_codes.USAGE, "no participant approves its own")
    proposed.withdraw(here)


def test_https_trusts_what_the_machine_trusts() -> None:
    tls = TlsConfig(CERTIFICATE, CERTIFICATE)
    config = replace(one_space_config("demo", PARTICIPANTS), http=HttpConfig(port=0), tls=tls)
    with Gateway(config=config).in_thread() as gateway:
        where = {"MEUP_HTTP": gateway.http_url, "MEUP_TOKEN": gateway.token("alice")}
        stranger = meup("audit", variables=where)
        assert stranger.returncode == exit_codes.NO_CONNECTION
        trust = (
            "the certificate is not to be trusted: self-signed certificate; add it to what this"
            " machine trusts: SSL_CERT_FILE=its-certificate.pem\n"
        )
        assert stranger.stderr.endswith(trust)
        url = {"MEUP_URL": gateway.url, "MEUP_SPACE": "demo"}
        joining = meup("who", variables={**where, **url})
        assert (joining.returncode, joining.stdout) == (exit_codes.NO_CONNECTION, "")
        assert joining.stderr.endswith(trust)
        url["MEUP_URL"] = gateway.url.replace("wss", "ws")
        joining = meup("who", variables={**where, **url})
        assert joining.returncode == exit_codes.NO_CONNECTION
        assert joining.stderr.endswith(
            "check host, port and path; if it speaks TLS, write wss://\n"
        )
        known = meup("audit", variables={**where, "SSL_CERT_FILE": str(CERTIFICATE)})
        assert (known.returncode, known.stderr) == (exit_codes.OK, "meup: 0 proposals\n")
        plain = {**where, "MEUP_HTTP": gateway.http_url.replace("https", "http")}
        lost = meup("audit", variables=plain)
        assert lost.returncode == exit_codes.NO_CONNECTION
        assert lost.stderr.endswith("if it speaks TLS, write https://\n")


@pytest.mark.rule("4.6.proposer_left", "4.4.before_it_is_sent")
def test_its_proposer_has_left(stage: Stage, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a minute ago, says the gateway; its proposer may have died."""
    monkeypatch.setattr(
        AbsenceTracker, "left_after", lambda _, who, accepted: accepted - 31_000_000
    )
    call = {"name": "write_file", "arguments": {"path": "a", "text": "b"}}
    body = build_proposal("tools/call", call, target="files", expires=None)
    say(stage, "paula", "mcp/proposal", "left", body)
    done = here("fulfill", "left", "--yes")
    assert (done.code, stage.calls) == (exit_codes.ABSENT, [])
    assert "'paula', whose it is, has left the space" in done.err
    assert here("fulfill", "left", "--yes", "--even-if-gone").code == exit_codes.OK
    assert [call["path"] for call in stage.calls] == ["a"]
