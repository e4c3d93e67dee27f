"""The scripted gateways answer as the existing ones did, frame by frame (PROTOCOL 2).

A probe of a capture is replayed on sockets: what each client sent, in order, and after each frame
exactly what each of them received. A capture does not record who closed a socket when: that
follows from the leaves it shows and, where it does not, stands here as data.
"""

import json
import re
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.conformance.gateways import MEUP_V02, MEW_V04, ExistingGateway, Version
from tests.conformance.matcher import ProcessingError, may
from tests.patience import PATIENCE

CAPTURES = Path(__file__).parent.parent / "vectors" / "captures"

CAPTURE = {MEUP_V02: "probe-meup02.jsonl", MEW_V04: "probe-mew04.jsonl"}
REPLAYED = [
    "join_shapes",
    "prejoin_send",
    "double_join_same_socket",
    "presence",
    "chat_broadcast_echo",
    "reused_id",
    "errors",
    "system_star_cap",
    "proposal_flow",
    "cap_patterns",
    "grants",
    "invite_kick",
    "duplicate_participant",
    "impersonate",
    "heartbeat",
    "isolation",
]
ONLY_MEW_V04 = ["invite_rejoin", "streams"]
LEFT_OUT = {"http_inject": "PROTOCOL.md has members on sockets only; this injects over HTTP"}
# The gateway was not restarted between probes: the second begins with what the first left behind.
AFTER = {"presence": "double_join_same_socket"}
# Each of its clients was gone before the next one joined.
ONE_AT_A_TIME = "join_shapes"
ONE_MORE_SOCKET = "duplicate_participant"

Row = dict[str, Any]
MADE_ID = re.compile(
    r"^(welcome|welcome-update|presence|presence-invite|error|ack|msg|invite-ack|stream-open|participant)"
    r"-\d{13}(-\w+)?$"
)
MADE_TS = re.compile(r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")


def rows(version: Version, probe: str | None = None) -> list[Row]:
    with (CAPTURES / CAPTURE[version]).open(encoding="utf-8") as file:
        parsed = [json.loads(line) for line in file]
    return [row for row in parsed if probe in (None, row["probe"])]


def configured(version: Version) -> dict[str, list[Row]]:
    """The capabilities of each participant as the first welcome for its own token tells them."""
    found: dict[str, list[Row]] = {}
    token: Any = None
    for row in rows(version):
        env = row["env"]
        if row["dir"] == "send":
            token = env.get("token") if isinstance(env, dict) else None
        elif env.get("kind") == "system/welcome" and "you" in env["payload"]:
            you = env["payload"]["you"]
            if token == f"{you['id']}-token":
                given = [entry for entry in you["capabilities"] if entry.get("id") is None]
                found.setdefault(you["id"], given)
    return found


def comparable(value: Any, key: str = "") -> Any:
    """The value without what each gateway makes anew: its ids, times, tokens and port."""
    if isinstance(value, dict):
        return {name: comparable(entry, name) for name, entry in value.items()}
    if isinstance(value, list):
        return [comparable(entry) for entry in value]
    if not isinstance(value, str):
        return value
    if made := MADE_ID.match(value):
        return f"<{made[1]}>"
    if key == "ts" and MADE_TS.match(value):
        return "<ts>"
    if key == "token":
        return "<token>"
    return re.sub(r"localhost:\d+", "localhost:<port>", value)


@dataclass
class Step:
    """One action of a capture, and the frames that each client received of it.

    Attributes:
        sends: who sent what.
        leaver: the participant whose socket was closed instead.
        received: by client.
    """

    sends: list[tuple[str, Any]] = field(default_factory=list)
    leaver: str | None = None
    received: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))


def steps(probe: list[Row]) -> list[Step]:
    found: list[Step] = []
    for row in probe:
        client, env = row["client"], row["env"]
        if row["dir"] == "send":
            if not found or found[-1].received or found[-1].leaver:
                found.append(Step())
            found[-1].sends.append((client, env))
            continue
        if str(env.get("id")).startswith("presence-") and env["payload"]["event"] == "leave":
            leaver = env["payload"]["participant"]["id"]
            if found[-1].leaver != leaver:
                found.append(Step(leaver=leaver))
        found[-1].received[client].append(env)
    return found


@dataclass
class Client:
    name: str
    socket: ClientConnection
    closing: ExitStack
    participant: str | None = None

    def received(self) -> Iterator[Row]:
        """The frames so far: the pong comes after whatever was written before it."""
        assert self.socket.ping().wait(PATIENCE)
        while True:
            try:
                data = self.socket.recv(timeout=0)
                # A capture writes down what is not JSON as it was shown.
                yield {"_raw": repr(data)} if isinstance(data, bytes) else json.loads(data)
            except TimeoutError:
                return


class Replay:
    """The sockets of one probe, oldest first."""

    def __init__(self, gateway: ExistingGateway) -> None:
        self.gateway = gateway
        self.clients: list[Client] = []
        self.sent = 0
        self.ended = 0
        # The token of a captured invitation to the one that was made here.
        self.tokens: dict[str, str] = {}

    def play(self, version: Version, probe: str) -> None:
        script = steps(rows(version, probe))
        last_send = max(at for at, step in enumerate(script) if step.sends)
        for at, step in enumerate(script):
            for name, frame in step.sends:
                self.send(probe, name, frame)
            if step.leaver is not None:
                self.close(next(c for c in self.clients if c.participant == step.leaver))
            came: dict[str, list[Row]] = defaultdict(list)
            for client in self.clients:
                came[client.name] += client.received()
            self.learn_tokens(step, came)
            expected, actual = comparable(step.received), comparable(came)
            if at > last_send:
                # The probe's clients were closing; a capture shows what each still read.
                actual = {name: frames for name, frames in actual.items() if name in expected}
            assert actual == {name: expected.get(name, []) for name in actual} | expected
        for client in list(self.clients):
            self.close(client)

    def send(self, probe: str, name: str, frame: Any) -> None:
        client = next((client for client in self.clients if client.name == name), None)
        fields = frame if isinstance(frame, dict) else {}
        joins = fields.get("type") == "join" or fields.get("kind") == "system/join"
        if joins and probe == ONE_AT_A_TIME:
            for other in list(self.clients):
                self.close(other)
            client = None
        if client is None or (joins and probe == ONE_MORE_SOCKET):
            closing = ExitStack()
            socket = closing.enter_context(
                connect(self.gateway.url, compression=None, open_timeout=PATIENCE)
            )
            client = Client(name, socket, closing)
            self.clients.append(client)
        if joins:
            fields = fields.get("payload", fields)
            client.participant = fields.get("participantId")
            if fields.get("token") in self.tokens:
                fields["token"] = self.tokens[fields["token"]]
        text = fields["_raw"] if "_raw" in fields else json.dumps(frame)
        client.socket.send(text.encode() if fields.get("id") == "bin" else text)
        self.sent += 1
        self.gateway.wait_frames(lambda heard: True, self.sent)

    def close(self, client: Client) -> None:
        self.clients.remove(client)
        client.closing.close()
        self.ended += 1
        self.gateway.wait_ends(self.ended)

    def learn_tokens(self, step: Step, came: dict[str, list[Row]]) -> None:
        for name, frames in step.received.items():
            for captured, received in zip(frames, came[name], strict=False):
                if captured.get("kind") == "space/invite-ack":
                    self.tokens[captured["payload"]["token"]] = received["payload"]["token"]


@contextmanager
def replay(version: Version) -> Generator[Replay]:
    capabilities = configured(version)
    tokens = {f"{name}-token": name for name in capabilities}
    scripted = ExistingGateway(version, tokens=tokens, capabilities=capabilities, space="interop")
    with scripted.in_thread() as gateway:
        running = Replay(gateway)
        try:
            yield running
        finally:
            for client in running.clients:
                client.closing.close()


CASES = [
    pytest.param(version, probe, id=f"{version.protocol}-{probe}".replace("/", "-"))
    for version, more in ((MEUP_V02, []), (MEW_V04, ONLY_MEW_V04))
    for probe in [*REPLAYED, *more]
]


@pytest.mark.parametrize(("version", "probe"), CASES)
def test_a_probe_is_answered_as_it_was(version: Version, probe: str) -> None:
    with replay(version) as running:
        if probe in AFTER:
            running.play(version, AFTER[probe])
        running.play(version, probe)


@pytest.mark.parametrize("version", [MEUP_V02, MEW_V04], ids=["meup-v0.2", "mew-v0.4"])
def test_every_probe_is_replayed_or_left_out_for_a_reason(version: Version) -> None:
    more = ONLY_MEW_V04 if version is MEW_V04 else []
    there = {row["probe"] for row in rows(version)}
    assert there <= {*REPLAYED, *more, *LEFT_OUT}
    assert {*REPLAYED, *more} <= there


@pytest.mark.parametrize(
    ("version", "decider"),
    [(MEUP_V02, "gateway_meup02"), (MEW_V04, "gateway_mew04")],
    ids=["meup-v0.2", "mew-v0.4"],
)
def test_capabilities_are_decided_as_they_were(version: Version, decider: str) -> None:
    wrong = []
    with (CAPTURES / "capability-matrix.jsonl").open(encoding="utf-8") as file:
        for case in map(json.loads, file):
            try:
                allowed = may([case["capability"]], case["message"], negations=version.is_newer)
            except ProcessingError:
                allowed = False
            if allowed is not (case[decider] == "allow"):
                wrong.append(case)
    assert wrong == []
