"""One connection, frame by frame."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
import trio
from trio.testing import MockClock

from meup_agent.errors import TransportClosed
from meup_agent.session import ConnectedSession
from meup_agent.session.connection import ECHO_SECONDS
from tests.gateways import CloseInfo
from tests.patience import PATIENCE
from tests.session.gate import AT_ONCE, Gate, Recorder, present

pytestmark = pytest.mark.anyio

WELCOME = b"""{"kind":"system.welcome","id":"1","from":"system:gateway",
"payload":{"you":{"id":"alice","capabilities":[{"kind":"*"}]},"participants":[]}}"""


class CutOff:
    """A connection that welcomes us, and breaks when the first envelope is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed: CloseInfo | None = None
        self.response_headers = {"meup-protocol": "meup/v0.1"}
        self._welcome = [WELCOME]
        self._broken = anyio.Event()

    async def send(self, frame: bytes) -> None:
        self.sent.append(frame)
        self.closed = CloseInfo(1006)
        self._broken.set()
        raise TransportClosed(1006)

    def __aiter__(self) -> "CutOff":
        return self

    async def __anext__(self) -> bytes:
        if self._welcome:
            return self._welcome.pop()
        await self._broken.wait()
        raise StopAsyncIteration

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        pytest.fail("nobody asked for that")

    async def abort(self) -> None:
        pytest.fail("nobody asked for that")


@pytest.mark.rule("6.ts")
async def test_what_is_sent_twice_is_the_same_twice() -> None:
    """A reader tells a repetition from a new envelope of the same id by what is in it."""
    first, second = ends = CutOff(), CutOff()
    dialled = iter(ends)
    lost = anyio.Event()

    @asynccontextmanager
    async def dial(headers: object) -> AsyncGenerator[CutOff]:
        end = next(dialled, None)
        if end is None:
            lost.set()
            await anyio.sleep_forever()
            return
        yield end

    session = ConnectedSession(dial, token=None, handlers=Recorder(), settings=AT_ONCE)
    with anyio.fail_after(PATIENCE):
        async with session:
            session.send_message("chat", {"message": "hi"})
            await lost.wait()
            assert first.sent == second.sent
            assert not session.table.connected
            assert len(session.outbox) == len(first.sent) == 1


@pytest.mark.rule("3.codes.blamed")
@pytest.mark.parametrize(("came_back", "blamed"), [(None, None), (0, 1), (1, None)])
async def test_of_several_sent_none_is_blamed(
    gate: Gate, came_back: int | None, blamed: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with present(gate, settings=AT_ONCE) as (session, end):
        sent = [session.send_message("chat", {"message": text}) for text in ("one", "two")]
        heard = [await end.hear() for _ in sent]
        if came_back is not None:
            await end.echo(heard[came_back])
        await end.close(1007, "bad bytes")
        await gate.welcomed()
    said = [f"{each.id} of ours could not be sent" in caplog.text for each in sent]
    assert said == [number == blamed for number in range(2)]


async def owed(answers: bool) -> float:
    """Send one more than is kept; for how long that waits, where the gateway answers or not."""
    gate = Gate()
    gate.seq, gate.gives = 6, {**gate.gives, "until": 6}
    async with present(gate) as (session, end):
        for _ in range(3):
            session.send_message("chat", {})
        first = await end.hear()
        await end.hear()
        began = anyio.current_time()
        if answers:
            await end.echo(first)
        await end.hear()
        assert session.outbox.unaccepted == (2 if answers else 1)
        return anyio.current_time() - began


@pytest.mark.rule("6.resume.accepted")
@pytest.mark.parametrize("answers", [True, False])
def test_what_a_gateway_owes_is_waited_for_and_not_for_ever(
    answers: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("meup_agent.session.outbox.MAX_UNACCEPTED", 2)
    waited = trio.run(owed, answers, clock=MockClock(autojump_threshold=0))
    assert waited == pytest.approx(0 if answers else ECHO_SECONDS)
    assert ("nothing of what we say back" in caplog.text) is not answers
