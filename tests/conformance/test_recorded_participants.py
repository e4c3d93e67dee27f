"""Recorded words of existing TypeScript participants, said to this gateway."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.sync.client import ClientConnection, connect

from meup_agent.gateway import Config, Gateway, SpaceConfig
from tests.conformance.wire import V02, V04, Json, Site
from tests.gateways import participant
from tests.patience import PATIENCE

CAPTURES = Path(__file__).parent.parent / "vectors" / "captures"
RECORDED = {V02: "ts-participants-meup02.jsonl", V04: "ts-participants-mew04.jsonl"}
BY_HAND = {"human", "proposer", "tester"}
UNHEARD = {"system/heartbeat", "system/register"}


def recorded(dialect: str) -> Iterator[Json]:
    for line in (CAPTURES / RECORDED[dialect]).read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def home(dialect: str) -> Config:
    """The space that they joined, and who has which token there."""
    joins = [said for said in map(frame_of, recorded(dialect)) if said.get("type") == "join"]
    (space,) = {said["space"] for said in joins}
    tokens = {said["participantId"]: said["token"] for said in joins}
    people = {name: participant(name, [{"kind": "*"}], (token,)) for name, token in tokens.items()}
    people["onlooker"] = participant("onlooker", [], ("onlooker-token",))
    return Config((SpaceConfig(space, people, dialect=dialect),))


def frame_of(record: Json) -> Json:
    """The envelope that a participant said; nothing, if it is something else."""
    said = record.get("env")
    if record["dir"] != "c2g" or not isinstance(said, dict):
        return {}
    # Whoever drove the recording left that out of what they wrote by hand; no participant does.
    by_hand = record["who"] in BY_HAND and "kind" in said
    return {"from": record["who"], **said} if by_hand else said


WITHOUT_A_TOOL = ("tester", "mcp/request", "invalid_envelope")
"""A call that names no tool, written by hand."""

COUNTED_ID = ("tester", "mcp/request", "id_in_use")
"""The id "slow-1", written by hand, which on our gateway only "slow" may count."""

WITHOUT_A_METHOD = ("proposer", "mcp/proposal", "invalid_envelope")
"""A proposal in words of its own, which rules and people cannot read (PROTOCOL 1)."""

REFUSED = {
    "meup/v0.2": [WITHOUT_A_TOOL, COUNTED_ID, WITHOUT_A_METHOD, WITHOUT_A_METHOD],
    "mew/v0.4": [WITHOUT_A_TOOL, COUNTED_ID],
}


class Replay:
    """The recorded connections, each frame sent when the one before it was answered."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._url = url
        self._stack = stack
        self._open: dict[int, ClientConnection] = {}
        self.accepted: list[Json] = []
        self.refused: list[tuple[str, str, str]] = []

    def play(self, record: Json) -> None:
        number, said = record["conn"], frame_of(record)
        if record["dir"] == "open":
            headers = record.get("headers", {})
            offered = headers.pop("Sec-WebSocket-Extensions", "")
            options: Json = {"open_timeout": PATIENCE, "close_timeout": 0.2}
            options["compression"] = "deflate" if "permessage-deflate" in offered else None
            socket = connect(self._url + record["path"], additional_headers=headers, **options)
            self._open[number] = self._stack.enter_context(socket)
        elif record["dir"] == "close" and number in self._open:
            self._open.pop(number).close()
        elif said:
            self._say(self._open[number], said)

    def _say(self, socket: ClientConnection, said: Json) -> None:
        socket.send(json.dumps(said))
        if said.get("kind") in UNHEARD:
            return
        for heard in map(json.loads, iter(lambda: socket.recv(PATIENCE), "")):
            if said.get("type") == "join" and heard["kind"] == "system/welcome":
                assert heard["payload"]["you"]["id"] == said["participantId"]
                return
            if (heard["from"], heard["id"]) == (said.get("from"), said.get("id")):
                # What they leave out is filled in, and one correlation id leaves as a list.
                about = said.get("correlation_id")
                said |= {"correlation_id": [about]} if isinstance(about, str) else {}
                assert heard == {"ts": heard["ts"], **said}
                self.accepted.append(heard)
                return
            if heard["kind"] == "system/error" and heard.get("correlation_id") == [said["id"]]:
                code = heard["payload"]["error"]
                self.refused.append((said["from"], said["kind"], code))
                return


@pytest.mark.rule("2.existing_clients", "1.captures", "2.heartbeat")
@pytest.mark.parametrize("dialect", RECORDED)
def test_what_they_say_is_taken_and_passed_on_as_it_is(dialect: str) -> None:
    config = home(dialect)
    with Gateway(config=config).in_thread() as gateway, ExitStack() as stack:
        joining = Site(gateway, dialect).join("onlooker", space=config.spaces[0].id)
        (onlooker,) = stack.enter_context(joining)
        replay = Replay(gateway.url, stack)
        for record in recorded(dialect):
            replay.play(record)
        heard: list[Json] = []
        while len(heard) < len(replay.accepted):
            said = onlooker.hear_any()
            if said["from"] != "system:gateway":
                heard.append(said)
        assert heard == replay.accepted
        assert len(heard) > 60
        assert replay.refused == REFUSED[dialect]
