"""`meup chat`: said, and taken by the gateway."""

import json
import threading

from meup_agent import Envelope, Space
from tests.cli.commands import exit_codes
from tests.cli.conftest import Here, assert_fails
from tests.cli.processes import meup
from tests.cli.servers import listening
from tests.cli.stage import Stage


def test_standard_input_is_said(stage: Stage) -> None:
    heard: list[Envelope] = []

    async def listen(space: Space) -> None:
        with space.watch() as envelopes:
            stage.tell("listening")
            async for envelope in envelopes:
                if envelope.kind == "chat":
                    heard.append(envelope)
                    return

    listener = threading.Thread(target=stage.as_somebody, args=("paula", listen))
    listener.start()
    stage.wait_for("listening")
    words = ("chat", "-", "--to", "reviewer", "--to", "paula", "--about", "x-1", "--json")
    done = meup(*words, given="two\nlines\n", variables=stage.variables())
    listener.join()
    [chat] = heard
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document == {"message": chat.id, "to": ["reviewer", "paula"], "confirmed": True}
    assert (chat.payload_object["message"], chat.sender) == ("two\nlines", "alice")
    assert (chat.to, chat.correlation) == (("reviewer", "paula"), ("x-1",))


def test_it_has_nothing_to_print(here: Here) -> None:
    assert here("chat", "hello") == (0, "", "")


def test_a_refusal_is_told(here: Here) -> None:
    done = here("chat", "hello", participant="nobody")
    assert (done.code, done.out) == (exit_codes.REFUSED, "")
    assert done.err.startswith("meup: the gateway refused the message: capability_violation")


def test_nobody_to_hear_it_is_told(here: Here) -> None:
    done = here("chat", "hello", "--to", "reviewer", "--to", "paul")
    assert_fails(done, exit_codes.ABSENT, "'paul' is not in the space 'demo'")


def test_nothing_to_say_is_wrong(here: Here) -> None:
    assert here("chat", " ").code == exit_codes.USAGE


def test_the_wait_for_a_gateway_that_lets_nobody_in_is_what_was_asked(command: Here) -> None:
    with listening() as server:
        url = f"ws://127.0.0.1:{server.getsockname()[1]}"
        words = ("chat", "hello", "--timeout", "0.5", "--space", "demo")
        done = command(*words, MEUP_URL=url, MEUP_TOKEN="t")
    assert done.code != 0
    assert done.err == f"meup: no welcome came from {url} in 0.5 s\n"
