"""`meup call`: a result on standard output, or a sentence that says why there is none."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from meup_agent import Space
from tests.cli.commands import exit_codes
from tests.cli.conftest import Here, assert_fails
from tests.cli.processes import INTERRUPT, TERMINATE, meup, running
from tests.cli.stage import ESCAPED, HOSTILE, ON_ONE_LINE, Stage


def test_a_result_is_printed_and_nothing_else(stage: Stage) -> None:
    done = meup("call", "files", "write_file", "path=5", "text=x y", variables=stage.variables())
    assert (done.returncode, done.stdout, done.stderr) == (0, "'5' has 'x y'\n", "")
    assert stage.calls == [{"path": "5", "text": "x y", "mode": "new"}]


def test_a_result_does_not_write_to_the_terminal(stage: Stage, here: Here) -> None:
    for more in ({}, {"FORCE_COLOR": "1"}):
        done = here("call", "files", "read_hostile", **more)
        assert done == (0, f"{ESCAPED}\nsecond line\tends\n", "")
    exact = here("call", "files", "read_hostile", "--json")
    assert exact.out.isascii()
    assert json.loads(exact.out)["result"] == f"{HOSTILE}\nsecond line\tends"
    failed = here("call", "files", "fail")
    assert failed.code == exit_codes.TOOL_FAILED
    assert failed.err == f"meup: files.fail failed: ValueError: no such file {ON_ONE_LINE}\n"


def test_structure_is_json(here: Here) -> None:
    plain = here("call", "files", "read_report", "lines=3")
    assert plain == (0, '{\n  "lines": 3,\n  "ok": true\n}\n', "")
    exact = here("call", "files", "read_report", "--json")
    responded = {"outcome": "responded", "result": {"lines": 2, "ok": True}, "executor": "files"}
    unknown = dict.fromkeys(("proposal", "fulfilled_by", "as_proposed"))
    assert json.loads(exact.out) == {**responded, **unknown, "changes": []}
    nothing = here("call", "files", "nothing")
    assert nothing == (0, "", "meup: files.nothing is done; it returned nothing\n")


def test_arguments_from_option_file_and_stdin(stage: Stage, here: Here, tmp_path: Path) -> None:
    path = tmp_path / "arguments.json"
    path.write_text('{"path": "from-file", "text": "t"}', encoding="utf-8")
    assert here("call", "files", "write_file", "--args-file", str(path)).code == 0
    given = '{"path": "a", "text": "t", "tags": ["x"]}'
    assert here("call", "files", "write_file", "--args", given, "path=b").code == 0
    piped = meup(
        "call", "files", "write_file", "-", "mode=append", given=given, variables=stage.variables()
    )
    assert (piped.returncode, piped.stdout) == (0, "'a' has 't'\n")
    assert [call["path"] for call in stage.calls] == ["from-file", "b", "a"]
    assert stage.calls[-1]["mode"] == "append"


def test_what_a_tool_does_not_take_is_not_sent(stage: Stage, here: Here) -> None:
    done = here("call", "files", "write_file", "path=x", "size=abc", "mode=old", "txt=y")
    assert (done.code, done.out) == (exit_codes.USAGE, "")
    for problem in (
        "'text' is required",
        "'size' should be integer, not string",
        "'mode' is 'old', which is not one of ['new', 'append']",
        "'txt' is not known; there is 'path', ",
        "(did you mean text?)",
    ):
        assert problem in done.err
    assert done.err.count("\n") == 1
    assert stage.calls == []


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("fils", "x"), exit_codes.ABSENT, "'fils' is not in the space 'demo'; here: files, mute,"),
        (("fils", "x"), exit_codes.ABSENT, "did you mean files?"),
        (("files", "wrte_file"), exit_codes.USAGE, "(did you mean write_file?); its tools: "),
        (("files", "nothing", "x"), exit_codes.USAGE, "'x' is not an argument for a tool"),
        (("files", "nothing", "--args", "[]"), exit_codes.USAGE, "--args are not a JSON object"),
        (("files", "nothing", "--args", "{"), exit_codes.USAGE, "--args are not JSON: "),
        (("files", "nothing", "a=1", "a=2"), exit_codes.USAGE, "'a' is given twice"),
        (("files", "nothing", "-", "--args", "{}"), exit_codes.USAGE, "given twice; give one of"),
        (("files", "nothing", "--args-file", "/nonexistent"), exit_codes.USAGE, "no such file"),
        (("files", "nothing", "--timeout", "0"), exit_codes.USAGE, "--timeout takes seconds above"),
        (("files", "nothing", "--timeout", "nan"), exit_codes.USAGE, "--timeout takes seconds"),
        (("files", "nothing", "--token", "wrong"), exit_codes.NO_CONNECTION, "refused the token"),
        (("files", "nothing", "--url", "ws://127.0.0.1:1"), exit_codes.NO_CONNECTION, "meup: "),
        (
            ("files", "nothing", "--participant", "reviewer"),
            exit_codes.NO_CONNECTION,
            "takes us for 'alice', not for 'reviewer'",
        ),
    ],
)
def test_a_wrong_call_is_said(here: Here, words: tuple[str, ...], code: int, sentence: str) -> None:
    assert_fails(here("call", *words), code, sentence)


def test_nobody_who_answers_is_waited_for_only_so_long(stage: Stage, here: Here) -> None:
    done = here("call", "files", "read_long", "--timeout", "1", "--as", "alice")
    assert (done.code, done.out) == (exit_codes.TIMED_OUT, "")
    stage.wait_for("started")
    assert stage.wait_for("stopped") == "timeout"
    assert "got no response before its deadline, and was cancelled" in done.err


def test_without_the_capability_it_becomes_a_proposal(stage: Stage, here: Here) -> None:
    done = here("call", "files", "write_file", "path=p", "text=t", participant="paula")
    proposed, fulfilled = done.err.splitlines()
    assert (done.code, done.out) == (0, "'p' has 't'\n")
    assert proposed.startswith('meup: proposed files.write_file(path="p", text="t") as ')
    assert (
        "since you may not call it yourself; waiting for a decision, which reviewer may take"
        in proposed
    )
    assert fulfilled == "meup: fulfilled by reviewer"
    may = here("call", "files", "read_report", participant="paula")
    assert (may.code, may.err) == (0, "")


def test_without_any_capability_it_says_so(here: Here) -> None:
    done = here("call", "files", "nothing", participant="nobody")
    assert (done.code, done.out) == (exit_codes.REFUSED, "")
    assert "the gateway refused mcp/proposal" in done.err


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (INTERRUPT, exit_codes.INTERRUPTED, "interrupted"),
        (TERMINATE, exit_codes.TERMINATED, "terminated"),
        (signal.SIGHUP, exit_codes.TERMINATED, "terminated"),
    ],
)
def test_a_signal_stops_the_tool(stage: Stage, number: int, code: int, said: str) -> None:
    with running("call", "files", "read_long", variables=stage.variables()) as call:
        stage.wait_for("started")
        assert call.end(number) == code
    assert stage.wait_for("stopped") == "no_longer_needed"
    assert (call.out, call.err) == ("", f"meup: {said}; files was asked to stop read_long\n")


def test_progress_shows_on_a_terminal(stage: Stage) -> None:
    variables = stage.variables(FORCE_COLOR="1", NO_COLOR="1", COLUMNS="100")
    with running("call", "files", "read_long", variables=variables) as call:
        shown = call.until("1/3", stream="err")
        assert "first of three" in shown
        assert call.end(INTERRUPT) == exit_codes.INTERRUPTED
    assert call.out == ""


@pytest.mark.parametrize(
    ("given", "option", "value"),
    [
        ((), "idempotent", False),
        (("--idempotent",), "idempotent", True),
        # Whatever progress comes meanwhile, the time that was given holds.
        (("--timeout", "7"), "total_timeout", 7.0),
    ],
)
def test_options_reach_the_call(
    here: Here, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], option: str, value: object
) -> None:
    asked: list[object] = []
    invoke = Space.invoke

    async def note(self: Space, *call: Any, **options: Any) -> Any:
        asked.append(options[option])
        return await invoke(self, *call, **options)

    monkeypatch.setattr(Space, "invoke", note)
    assert here("call", "files", "write_file", "path=a", "text=b", *given).code == 0
    assert asked == [value]
