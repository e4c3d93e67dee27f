"""Inputs that fuzzers began with or found, replayed; and proof that they can find."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from meup_agent.protocol.space.delivery import Fanout
from meup_agent.protocol.space.journal import Entry
from tests.fuzz import connection, port, space
from tests.fuzz.frames import EXAMPLES, stream_examples
from tests.fuzz.mutator import Mutator
from tests.fuzz.targets import MAX_BYTES, NAMES, cases, target

INPUTS = [
    *(
        pytest.param(name, seed, id=f"{name}-seed-{number}")
        for name in NAMES
        for number, seed in enumerate(target(name).SEEDS)
    ),
    *(pytest.param(name, path, id=f"{name}-{path.name}") for name in NAMES for path in cases(name)),
]


@pytest.fixture(scope="module", autouse=True)
def closed_port() -> Iterator[None]:
    yield
    port.close()


@pytest.mark.parametrize(("name", "data"), INPUTS)
def test_input_does_no_harm(name: str, data: bytes | Path) -> None:
    target(name).run(data if isinstance(data, bytes) else data.read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_some_by_chance_do_no_harm(name: str) -> None:
    found, random = target(name), Random(name)
    mutate = Mutator(found.SEEDS)
    for _ in range(20):
        found.run(mutate(random.choice(found.SEEDS), MAX_BYTES, random.getrandbits(32)))


def test_mutator_keeps_its_word() -> None:
    mutate = Mutator(space.SEEDS)
    made = {mutate(space.SEEDS[0], 1_000, seed) for seed in range(200)}
    assert len(made) > 100
    assert max(map(len, made)) <= 1_000
    assert mutate(b"", 10, 7) == mutate(b"", 10, 7)


# --- a target that cannot fail finds nothing ------------------------------------------------


def test_forged_sender_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in ("check_sender", "check_capability"):
        monkeypatch.setattr(f"meup_agent.protocol.space.state.rules.Rules.{rule}", lambda *_: None)
    frame = EXAMPLES["meup/v0.1"][0]
    for forged in (b'"mew"', b'"system:gateway"'):
        with pytest.raises(AssertionError):
            space.run(b"D\nM\nd " + frame.replace(b'"dots"', forged))


def test_frame_without_the_right_to_write_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "meup_agent.protocol.space.state.streams.StreamStore.route",
        lambda self, *_: self.active[-1],
    )
    opened = stream_examples("mew", "mew/v0.4")[0]
    with pytest.raises((AssertionError, KeyError)):
        space.run(b"D\nW\nw " + opened + b"\nd #@@#mine")


def test_lost_envelope_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = Fanout.deliver

    def forgetful(self: Fanout, entry: Entry) -> None:
        if entry.envelope.id != "j1":
            deliver(self, entry)

    monkeypatch.setattr(Fanout, "deliver", forgetful)
    seed = b"\n".join(b"d " + each for each in EXAMPLES["meup/v0.1"][:4])
    with pytest.raises(AssertionError):
        space.run(b"D\nM\n-d\nd\n" + b"M\nD\n" + seed + b"\nD 1000000")


def test_exception_at_the_port_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def clumsy(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(
        "meup_agent.gateway.edge.connection.MemberConnection._handle_message", clumsy
    )
    with pytest.raises(ValueError, match=r"^$"):
        connection.run(connection.SEEDS[0])


def test_logged_token_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "meup_agent.gateway.edge.connection.MemberConnection._name", lambda _: connection.SECRETS[0]
    )
    with pytest.raises(AssertionError, match="a token is logged"):
        connection.run(connection.SEEDS[0])


def test_unescaped_text_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.wording.visible", lambda text, *_: text)
    frame = b'{"protocol":"meup/v0.1","id":"1","from":"\\u001b[2J","kind":"chat","payload":{}}'
    with pytest.raises(AssertionError):
        target("terminal").run(b"100\n" + frame)
