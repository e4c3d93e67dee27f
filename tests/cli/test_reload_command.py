"""`meup gateway reload` and SIGHUP: a running gateway reads its files again."""

import signal
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent.cli.commands import gateway
from meup_agent.cli.commands.gateway import ConfigReloader
from tests.cli.commands import exit_codes
from tests.cli.processes import DETACHED, IN_TERMINAL, TERMINATE, Running, meup, running, up

ANN = "  ann: {{tokens: [{0}-ann-token], capabilities: [{{kind: chat}}]}}\n"
SPACE = "space: {id: harbour}\nparticipants:\n"


def reload(state: dict[str, str], *options: str) -> tuple[int, str]:
    done = meup("gateway", "reload", *options, variables=state)
    return done.returncode, done.stdout + done.stderr


def port_of(gateway: Running) -> str:
    # It takes no command, and ends at SIGHUP, before it says so.
    said = gateway.until("by `meup gateway reload`", stream="err")
    return said.partition("listening at ws://127.0.0.1:")[2].split()[0]


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return {"MEUP_STATE_DIR": str(folder)}


def test_a_gateway_reads_its_file_again_or_says_what_is_wrong(
    tmp_path: Path, state: dict[str, str]
) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(SPACE + ANN.format("first"))
    with running(
        "gateway", "--config", "space.yaml", "--port", "0", cwd=tmp_path, variables=state
    ) as gateway:
        port = port_of(gateway)
        file.write_text(SPACE + ANN.format("second") + "  bob: {}\n")
        assert reload(state) == (0, f"ws://127.0.0.1:{port}: added bob; changed ann\n")
        file.write_text(SPACE + "  ann: [\n")
        code, said = reload(state, "--port", port)
        assert code == exit_codes.FAILED
        assert "nothing is changed" in said
        assert str(file) in said
        file.unlink()
        assert "nothing is changed" in reload(state)[1]
        code, said = reload(state, "--port", "1")
        assert (code, port in said) == (exit_codes.NO_CONNECTION, True)
        assert gateway.end(TERMINATE) == exit_codes.OK
    code, said = reload(state)
    assert (code, "meup gateway --config" in said) == (exit_codes.NO_CONNECTION, True)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_without_a_terminal_hangup_reads_again_and_says_the_rest(
    tmp_path: Path, state: dict[str, str]
) -> None:
    (tmp_path / "token").write_text("first-ann-token")
    (tmp_path / "space.yaml").write_text(SPACE + "  ann: {token_files: [token]}\n")
    with running("gateway", "--port", "0", command=DETACHED, cwd=tmp_path, variables=state) as it:
        port_of(it)
        (tmp_path / "token").write_text("second-ann-token")
        it.process.send_signal(signal.SIGHUP)
        it.until("changed ann", stream="err")
        (tmp_path / "token").unlink()
        it.process.send_signal(signal.SIGHUP)
        it.until("nothing is changed", stream="err")
        assert it.end(TERMINATE) == exit_codes.OK


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_a_closed_terminal_ends_a_gateway_in_order(tmp_path: Path, state: dict[str, str]) -> None:
    (tmp_path / "space.yaml").write_text(SPACE + ANN.format("first"))
    arguments = ("gateway", "--port", "0")
    with running(*arguments, command=IN_TERMINAL, cwd=tmp_path, variables=state) as gateway:
        port_of(gateway)
        assert gateway.end(signal.SIGHUP) == exit_codes.OK
        assert "stopped listening at" in gateway.err


def test_without_a_folder_for_its_state_a_gateway_runs_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE + ANN.format("first"))
    (tmp_path / "state").write_text("")
    state = {"MEUP_STATE_DIR": str(tmp_path / "state")}
    with running("gateway", "--port", "0", cwd=tmp_path, variables=state) as gateway:
        gateway.until("does not reach this gateway", stream="err")
        assert gateway.end(TERMINATE) == exit_codes.OK


def test_up_keeps_its_programs_and_takes_participants(
    tmp_path: Path, state: dict[str, str]
) -> None:
    program = f"[{sys.executable}, -c, 'import time; print(\"here\", flush=True); time.sleep(999)']"
    runs = f"  worker: {{command: {program}}}\n"
    (tmp_path / "space.yaml").write_text(SPACE + ANN.format("first") + runs)
    with up(tmp_path, state) as it:
        it.until("here")
        it.until("up and running", stream="err")
        more = f"  other: {{command: {program}}}\n"
        (tmp_path / "space.yaml").write_text(SPACE + "  bob: {tokens: [bobs-token]}\n" + more)
        code, said = reload(state)
        assert (code, said.partition(": ")[2]) == (0, "added bob; removed ann\n")
        waits = "at the next start of `meup up` only: worker, other"
        it.until(waits, stream="err")
        may = runs.replace("}\n", ", capabilities: [{kind: chat}]}\n")
        (tmp_path / "space.yaml").write_text(SPACE + may)
        assert reload(state)[1].endswith(": removed bob; changed worker\n")


def test_a_file_that_gives_no_answer_holds_up_no_later_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()

    class Running:
        def reload(self, read: object) -> str:
            return "added bob"

    def read() -> Any:
        answers.wait()

    async def work() -> None:
        running: Any = Running()
        reloader = ConfigReloader(running, read)
        with monkeypatch.context() as patch:
            patch.setattr(gateway, "READ_SECONDS", 0.05)
            answer = await reloader.reload()
        answers.set()
        assert (answer.done, "gives no answer" in answer.said) == (False, True)
        assert (await reloader.reload()).said == "added bob"

    anyio.run(work)
