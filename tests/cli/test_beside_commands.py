"""`meup withdraw`, `fulfill`, `reject` and `call --as`: beside a running agent, not in its place.

An agent that runs with the same token keeps its connection.
"""

import json
import signal
import threading
from collections.abc import Callable, Generator
from dataclasses import replace

import pytest

from meup_agent import Fulfilled, Outcome, Rejected, Space, Withdrawn
from meup_agent.cli import exit_codes
from meup_agent.cli.program import run
from meup_agent.gateway.config import HttpConfig, TlsConfig
from meup_agent.gateway.embedded import Gateway
from meup_agent.gateway.embedded_config import embedded_config
from tests.cli.conftest import Done
from tests.cli.processes import meup, running
from tests.cli.stage import ESCAPED, HOSTILE, PARTICIPANTS, Stage, on_stage
from tests.programs import ROOT

CERTIFICATE = ROOT / "tests" / "transport" / "localhost.pem"

Beside = Callable[..., Done]


@pytest.fixture(scope="module")
def set_beside() -> Generator[Stage]:
    config = replace(embedded_config("demo", PARTICIPANTS), http=HttpConfig(port=0))
    with Gateway(config=config).in_thread() as gateway, on_stage(gateway) as stage:
        yield stage


@pytest.fixture
def stage(set_beside: Stage) -> Stage:
    set_beside.forget()
    return set_beside


def variables(stage: Stage, participant: str) -> dict[str, str]:
    """The environment of somebody who knows where HTTP is, and not where to join."""
    token = stage.gateway.token(participant)
    return {"MEUP_HTTP": stage.gateway.http_url, "MEUP_SPACE": "demo", "MEUP_TOKEN": token}


@pytest.fixture
def beside(
    stage: Stage, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Beside:
    def command(*arguments: str, participant: str = "alice", **more: str) -> Done:
        monkeypatch.delenv("MEUP_URL", raising=False)
        for name, value in {**variables(stage, participant), **more}.items():
            monkeypatch.setenv(name, value)
        code = run(arguments)
        done = capfd.readouterr()
        return Done(code, done.out, done.err)

    return command


class Proposed:
    """A proposal of an agent that runs in a thread, and goes on running."""

    def __init__(self, stage: Stage, tool: str, arguments: dict[str, str], to: str) -> None:
        self.outcomes: list[Outcome] = []
        self.connected: list[bool] = []

        async def propose(space: Space) -> None:
            async with space.propose("files", tool, arguments, to=to, ttl=20) as proposal:
                stage.tell("proposed", proposal.id)
                self.outcomes.append(await proposal.outcome())
            self.connected.append(space.connected)

        self._thread = threading.Thread(target=stage.as_somebody, args=("paula", propose))
        self._thread.start()
        self.id = stage.wait_for("proposed")

    def outcome(self) -> Outcome:
        """What became of it; its agent has kept its connection."""
        self._thread.join()
        assert self.connected == [True]
        [outcome] = self.outcomes
        return outcome


def test_withdraw_ends_the_wait_of_the_agent_beside(stage: Stage, beside: Beside) -> None:
    proposed = Proposed(stage, "nothing", {}, to="alice")
    done = beside("withdraw", proposed.id, "policy", participant="paula")
    assert done == (0, "", f"meup: proposal {proposed.id} is withdrawn\n")
    outcome = proposed.outcome()
    assert isinstance(outcome, Withdrawn)
    assert outcome.reason == "policy"


def test_fulfill_carries_out_what_is_proposed(stage: Stage, beside: Beside) -> None:
    proposed = Proposed(stage, "write_file", {"path": "a", "text": "b"}, to="alice")
    done = beside("fulfill", proposed.id[:12])
    assert (done.code, done.out) == (0, "'a' has 'b'\n")
    assert 'files.write_file(path="a", text="b")' in done.err
    outcome = proposed.outcome()
    assert isinstance(outcome, Fulfilled)
    assert (outcome.by, outcome.executor, outcome.as_proposed) == ("alice", "files", True)
    assert [call["path"] for call in stage.calls] == ["a"]
    again = beside("fulfill", proposed.id)
    assert (again.code, again.out) == (exit_codes.USAGE, "")
    assert f"proposal {proposed.id} is fulfilled" in again.err


def test_an_edit_is_told(stage: Stage, beside: Beside) -> None:
    proposed = Proposed(stage, "write_file", {"path": "a", "text": "b"}, to="alice")
    done = beside("fulfill", proposed.id, "--edit", "path=5", "--json")
    document = json.loads(done.out)
    assert (document["result"], document["edited"]) == ("'5' has 'b'", True)
    assert 'arguments.path is "5" instead of "a"' in done.err
    outcome = proposed.outcome()
    assert isinstance(outcome, Fulfilled)
    assert [(each.path, each.fulfilled) for each in outcome.changes] == [("arguments.path", "5")]


def test_what_a_tool_says_is_escaped(stage: Stage, beside: Beside) -> None:
    proposed = Proposed(stage, "fail", {}, to="alice")
    done = beside("fulfill", proposed.id)
    assert (done.code, done.out) == (exit_codes.TOOL_FAILED, "")
    assert "meup: files.fail failed" in done.err
    assert HOSTILE not in done.err
    proposed.outcome()
    called = beside("call", "files", "read_hostile", "--as", "alice")
    assert called.code == 0
    assert ESCAPED.split("\\r")[0] in called.out


def test_a_withdrawal_ends_a_fulfillment_that_runs(stage: Stage, beside: Beside) -> None:
    proposed = Proposed(stage, "read_long", {}, to="alice")
    with running("fulfill", proposed.id, variables=variables(stage, "alice")) as fulfilling:
        stage.wait_for("started")
        done = beside("withdraw", proposed.id, "policy", participant="paula")
        assert done.code == 0
        assert stage.wait_for("stopped") == "policy"
        assert fulfilling.end() == exit_codes.FAILED
    assert f"'paula' withdrew proposal {proposed.id} while it was carried out" in fulfilling.err
    assert isinstance(proposed.outcome(), Withdrawn)


def test_an_interrupt_cancels_the_request(stage: Stage) -> None:
    words = ("call", "files", "read_long", "--as", "alice")
    with running(*words, variables=variables(stage, "alice")) as calling:
        stage.wait_for("started")
        assert calling.end(signal.SIGINT) == exit_codes.INTERRUPTED
        assert stage.wait_for("stopped") == "no_longer_needed"
    assert "meup: interrupted; files was asked to stop" in calling.err


def test_a_request_that_takes_too_long_is_cancelled(stage: Stage, beside: Beside) -> None:
    done = beside("call", "files", "read_long", "--as", "alice", "--timeout", "1")
    assert done.code == exit_codes.TIMED_OUT
    stage.wait_for("started")
    assert stage.wait_for("stopped") == "timeout"


def test_reject_over_http(stage: Stage, beside: Beside) -> None:
    proposed = Proposed(stage, "nothing", {}, to="alice")
    done = beside("reject", proposed.id, "unsafe", "--explain", "no", "--json")
    assert done.code == 0
    document = json.loads(done.out)
    assert (document["proposal"], document["confirmed"]) == (proposed.id, True)
    outcome = proposed.outcome()
    assert isinstance(outcome, Rejected)
    assert (outcome.reason, outcome.by) == ("unsafe", "alice")


def test_call_beside_the_running_agent(stage: Stage, beside: Beside) -> None:
    done = beside("call", "files", "read_report", "lines=3", "--as", "alice")
    assert (done.code, json.loads(done.out)) == (0, {"lines": 3, "ok": True})
    assert done.err == ""


def test_who_may_not_call_proposes(stage: Stage, beside: Beside) -> None:
    words = ("call", "files", "write_file", "path=a", "text=b", "--as", "paula")
    done = beside(*words, "--to", "reviewer", participant="paula")
    assert (done.code, done.out) == (0, "'a' has 'b'\n")
    bad = ("call", "files", "write_file", "path=bad", "text=b", "--as", "paula")
    done = beside(*bad, "--to", "reviewer", participant="paula")
    assert done.code == exit_codes.REJECTED
    assert "was rejected by 'reviewer': unsafe" in done.err
    edited = ("call", "files", "write_file", "path=edited", "text=b", "--as", "paula")
    done = beside(*edited, "--to", "reviewer", participant="paula")
    assert (done.code, done.out) == (exit_codes.EDITED, "'elsewhere' has 'b'\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("withdraw", "nothing-like-it"), exit_codes.FAILED, "knows no proposal of alice"),
        (("fulfill", "nothing-like-it"), exit_codes.FAILED, "knows no proposal"),
        (("fulfill", " "), exit_codes.USAGE, "the proposal is empty"),
        (("call", "files", "no_tool", "--as", "alice"), exit_codes.USAGE, "has no tool"),
        (("call", "nobody", "x", "--as", "alice"), exit_codes.ABSENT, "is not in the space"),
        (("call", "files", "nothing", "--as", "bob"), exit_codes.USAGE, "the token is alice's"),
        (("call", "files", "write_file", "--as", "alice"), exit_codes.USAGE, "do not fit it"),
        (("withdraw", "x", "--http", "ws://x"), exit_codes.USAGE, "is none"),
        (("withdraw", "x", "--space", "other"), exit_codes.USAGE, "the token is for the space"),
        (("withdraw", "x", "--token", "no"), exit_codes.NO_CONNECTION, "refuses the token"),
        (
            ("withdraw", "x", "--http", "http://127.0.0.1:9"),
            exit_codes.NO_CONNECTION,
            "no gateway answers",
        ),
    ],
)
def test_what_cannot_be_done_is_said(
    beside: Beside, words: tuple[str, ...], code: int, said: str
) -> None:
    done = beside(*words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_without_an_address_it_says_what_to_give(beside: Beside) -> None:
    done = beside("withdraw", "x", MEUP_HTTP="")
    assert done.code == exit_codes.USAGE
    assert "give --http or set MEUP_HTTP" in done.err


def test_nobody_approves_their_own(stage: Stage, beside: Beside) -> None:
    proposed = Proposed(stage, "nothing", {}, to="alice")
    done = beside("fulfill", proposed.id, participant="paula")
    assert done.code == exit_codes.USAGE
    assert "nobody approves their own" in done.err
    assert beside("withdraw", proposed.id, participant="paula").code == 0
    proposed.outcome()


def test_https_trusts_what_the_machine_trusts() -> None:
    tls = TlsConfig(CERTIFICATE, CERTIFICATE)
    config = replace(embedded_config("demo", PARTICIPANTS), http=HttpConfig(port=0), tls=tls)
    with Gateway(config=config).in_thread() as gateway:
        where = {
            "MEUP_HTTP": gateway.http_url,
            "MEUP_TOKEN": gateway.token(next(iter(PARTICIPANTS))),
        }
        stranger = meup("audit", variables=where)
        assert stranger.returncode == exit_codes.NO_CONNECTION
        assert "CERTIFICATE_VERIFY_FAILED" in stranger.stderr
        known = meup("audit", variables={**where, "SSL_CERT_FILE": str(CERTIFICATE)})
        assert (known.returncode, known.stderr) == (exit_codes.OK, "meup: 0 proposals\n")
        plain = {**where, "MEUP_HTTP": gateway.http_url.replace("https", "http")}
        lost = meup("audit", variables=plain)
        assert lost.returncode == exit_codes.NO_CONNECTION
        assert lost.stderr.endswith("; check --http or MEUP_HTTP, and its http or https\n")
