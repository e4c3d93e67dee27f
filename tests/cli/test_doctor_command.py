"""`meup doctor` as a user runs it: its lines, its document, its exit codes and its end."""

import json
import re
from typing import Any

from meup_agent.gateway import ThreadedGateway
from tests.cli.commands import NAMES, exit_codes
from tests.cli.processes import INTERRUPT, meup, running
from tests.cli.servers import listening
from tests.conformance.gateways import MEUP_V02, ExistingGateway

NARROW = {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "60"}
"""As if there was a narrow terminal, without colour."""


def test_a_good_space_in_lines(gateway: ThreadedGateway, tail_settings: dict[str, str]) -> None:
    done = meup("doctor", variables={**tail_settings, **NARROW})
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 60
    assert [line.split("  ")[0][2:] for line in lines[: len(NAMES)] if line[:1] in "✓-"]
    assert "✓ me               tailer" in lines
    assert "✓ may              nothing but look on" in lines
    assert "- tls              none, and none is needed on one machine" in lines
    assert "✓ identity checked yes: an approval comes from whom it names" in lines
    assert lines[-1] == "all is good"


def test_an_existing_gateway_as_a_document() -> None:
    gateway = ExistingGateway(MEUP_V02, tokens={"secret": "ann"})
    with gateway.in_thread() as existing:
        done = meup(
            "doctor", existing.url, "--space", "demo", "--participant", "ann", "--json",
            variables={"MEUP_TOKEN": "secret"},
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")
    document: dict[str, Any] = json.loads(done.stdout)
    assert [check["name"] for check in document["checks"]] == list(NAMES)
    assert (document["ok"], document["connected"], document["me"]) == (True, True, "ann")
    assert document["dialect"] == {"asked": "meup/v0.1", "adopted": "meup/v0.2"}
    assert document["guarantees"]["hidden_targets"] is True
    assert document["guarantees_said_by_gateway"] is False
    assert document["may"]["chat"] == {"allowed": True, "only": []}
    assert document["may"]["call_tools"]["allowed"] is False


def test_the_exit_code_tells_whether_there_is_a_connection(
    gateway: ThreadedGateway, tail_settings: dict[str, str]
) -> None:
    refused = meup("doctor", "--json", variables={**tail_settings, "MEUP_TOKEN": "wrong"})
    assert (refused.returncode, refused.stderr) == (exit_codes.NO_CONNECTION, "")
    document: dict[str, Any] = json.loads(refused.stdout)
    assert (document["ok"], document["connected"], document["me"]) == (False, False, None)
    assert [each["name"] for each in document["checks"] if each["ok"] is False] == ["token"]

    lacking = meup("doctor", gateway.url, "--space", "demo")
    assert (lacking.returncode, lacking.stderr) == (exit_codes.FAILED, "")
    assert "✗ settings         the token is missing\n" in lacking.stdout
    assert "→ set MEUP_TOKEN, or give --token-file or --token\n" in lacking.stdout
    assert "- not tried        handshake, token, space, welcome" in lacking.stdout
    assert lacking.stdout.endswith("\nnot good: settings\n")


def test_what_takes_long_is_said_and_ctrl_c_ends_it() -> None:
    with listening() as server:
        url = f"ws://127.0.0.1:{server.getsockname()[1]}"
        arguments = ("doctor", url, "--space", "demo", "--token", "t", "--timeout", "inf")
        with running(*arguments) as doctor:
            doctor.until("meup: waiting for an answer to the handshake\n", stream="err")
            assert doctor.end(INTERRUPT) == exit_codes.INTERRUPTED
    assert "port             127.0.0.1" in doctor.out
    assert "handshake" not in doctor.out
    assert doctor.err.count("\n") == 1
