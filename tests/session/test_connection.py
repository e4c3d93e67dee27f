"""One connection, frame by frame."""

import anyio
import pytest
import trio
from trio.testing import MockClock

from meup_agent import Envelope
from meup_agent.errors import InvalidEnvelope, TransportClosed
from meup_agent.session.connection import ECHO_SECONDS, SessionConnection, Welcomed
from meup_agent.session.outbox import Outbox
from meup_agent.session.session import new_id
from tests.gateways import CloseInfo, memory_pair
from tests.patience import PATIENCE
from tests.session.gate import ME
from tests.tables import Priority
from tests.wire import draft

pytestmark = pytest.mark.anyio

WELCOME = b'{"kind":"system.welcome","id":"1","from":"system:gateway","payload":{}}'


class Owner:
    """A session that every envelope may leave, and that keeps what it is told."""

    has_caught_up = True

    def __init__(self, *, numbered: bool = False) -> None:
        self.lost = 0
        self.blamed: list[str] = []
        self._numbered = numbered

    def receive(self, envelope: Envelope, seq: int | None) -> Welcomed | None:
        if envelope.kind != "system/welcome":
            return None
        return Welcomed(ME, "meup/v0.1", may_evict=False, capable=True, numbered=self._numbered)

    def receive_frame(self, frame: bytes) -> None: ...

    def drop_invalid(self, error: InvalidEnvelope) -> None: ...

    def note_leaving(self, envelope_id: str) -> bool:
        return True

    def fail_unsayable(self, envelope_id: str, words: str) -> None:
        self.blamed.append(envelope_id)

    def end_refused_stream(self, stream: str, words: str) -> None: ...

    def note_lost(self) -> None:
        self.lost += 1


class CutOff:
    """A connection that welcomes us, and breaks when the first envelope is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed: CloseInfo | None = None
        self.response_headers: dict[str, str] = {}
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
    outbox, owner = Outbox(), Owner()
    connection = SessionConnection(outbox, owner, dialect="meup/v0.1", new_id=new_id)
    said = draft("chat", {"message": "hi"}, id="1", sender=ME)
    outbox.put(said, Priority.TALK, anyio.current_time())
    first, second = CutOff(), CutOff()
    with anyio.fail_after(PATIENCE):
        assert await connection.use(first) is not None
        assert await connection.use(second) is not None
    assert first.sent == second.sent
    assert owner.lost == 2
    assert len(outbox) == 1


@pytest.mark.rule("3.codes.blamed")
@pytest.mark.parametrize(
    ("came_back", "blamed"), [(None, []), ("first", ["second"]), ("second", [])]
)
async def test_of_several_sent_none_is_blamed(came_back: str | None, blamed: list[str]) -> None:
    outbox, owner = Outbox(), Owner()
    connection = SessionConnection(outbox, owner, dialect="meup/v0.1", new_id=new_id)
    ours, gateways = memory_pair()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.use, ours)
            await gateways.send(WELCOME)
            frames: dict[str, bytes] = {}
            for id in ("first", "second"):
                said = draft("mcp/request", {"method": "ping"}, id=id, sender=ME)
                outbox.put(said, Priority.OPEN, anyio.current_time())
                frames[id] = await anext(gateways)
            if came_back is not None:
                await gateways.send(frames[came_back])
            await gateways.aclose(1007, "bad bytes")
    assert owner.blamed == blamed


async def owed(answers: bool) -> float:
    """Send one more than is kept; for how long that waits, where the gateway answers or not."""
    outbox, owner = Outbox(), Owner(numbered=True)
    connection = SessionConnection(outbox, owner, dialect="meup/v0.1", new_id=new_id)
    ours, gateways = memory_pair()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.use, ours)
        await gateways.send(WELCOME)
        for id in ("first", "second", "third"):
            outbox.put(draft("chat", {}, id=id, sender=ME), Priority.TALK, anyio.current_time())
        first = await anext(gateways)
        await anext(gateways)
        began = anyio.current_time()
        if answers:
            await gateways.send(first[:-1] + b',"seq":7}')
        assert b'"third"' in await anext(gateways)
        waited = anyio.current_time() - began
        assert outbox.unaccepted == (2 if answers else 1)
        await gateways.aclose()
    return waited


@pytest.mark.rule("6.resume.accepted")
@pytest.mark.parametrize("answers", [True, False])
def test_what_a_gateway_owes_is_waited_for_and_not_for_ever(
    answers: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("meup_agent.session.outbox.MAX_UNACCEPTED", 2)
    waited = trio.run(owed, answers, clock=MockClock(autojump_threshold=0))
    assert waited == pytest.approx(0 if answers else ECHO_SECONDS)
    assert ("nothing of what we say back" in caplog.text) is not answers
