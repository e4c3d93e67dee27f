"""Dialling again, and stopping: an hour of it, on a clock that jumps (PROTOCOL 3)."""

import random
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager

import anyio
import pytest

from meup_agent import Backoff, Settings
from meup_agent.errors import (
    CannotConnect,
    HandshakeRefused,
    Kicked,
    NoSuchSpace,
    SessionEnded,
    TakenOver,
    TokenRefused,
    TransportClosed,
)
from meup_agent.session import ConnectedSession, Session
from meup_agent.session.connection import LONGEST_RETRY_AFTER, OWN_LATE_SECONDS, WELCOME_SECONDS
from meup_agent.session.settings import Token
from tests.session import gate as gates
from tests.session.gate import End, Gate, Recorder
from tests.virtual_time import anyio_backend as anyio_backend

PATIENT = Settings(first_welcome=None)
DAY = 86_400.0
"""Seconds of the clock that jumps; none of the hours here is as long."""
DOWN = CannotConnect("nobody is there")


@pytest.fixture(autouse=True)
def same_jitter() -> Generator[None]:
    state = random.getstate()
    random.seed(7)
    yield
    random.setstate(state)


def session_at(gate: Gate, token: Token = "secret", settings: Settings = PATIENT) -> Session:
    return ConnectedSession(
        gate.connector(), token=token, handlers=Recorder(), settings=settings, where="ws://gate"
    )


def present(gate: Gate) -> AbstractAsyncContextManager[tuple[Session, End]]:
    """A welcomed session and the gateway's end, for as many hours as the test lets pass."""
    return gates.present(gate, settings=PATIENT, patience=DAY)


async def dial(gate: Gate, token: Token = "secret", settings: Settings = PATIENT) -> None:
    """Dial a gateway that never welcomes."""
    with anyio.fail_after(DAY):
        async with session_at(gate, token, settings):
            pytest.fail("nobody has welcomed us")


async def dial_for(gate: Gate, seconds: float, settings: Settings = PATIENT) -> list[float]:
    """The pauses before each attempt but the first, at an address where nobody is."""
    gate.always = DOWN
    with anyio.move_on_after(seconds):
        await dial(gate, settings=settings)
    return pauses(gate)


def pauses(gate: Gate) -> list[float]:
    return [after - before for before, after in zip(gate.times, gate.times[1:], strict=False)]


def limit(attempt: int, backoff: Backoff = Backoff()) -> float:  # noqa: B008 - frozen
    return min(backoff.longest, backoff.first * 2.0 ** (attempt - 1))


async def test_pauses_grow_to_a_limit_with_full_jitter_from_the_first_on(gate: Gate) -> None:
    waits = await dial_for(gate, 3600)
    assert len(waits) > 200
    assert all(0 <= wait <= limit(attempt) for attempt, wait in enumerate(waits, 1))
    late = waits[8:]
    assert min(late) < 3, "full jitter: any pause down to none"
    assert max(late) > 27, "and up to the limit"


async def test_first_pause_is_jittered_as_well(gate: Gate) -> None:
    firsts = []
    for _ in range(40):
        gate.attempts.clear()
        firsts.append((await dial_for(gate, 5))[0])
    assert max(firsts) <= 0.25
    assert max(firsts) - min(firsts) > 0.2


async def test_backoff_is_what_the_settings_say(gate: Gate) -> None:
    backoff = Backoff(first=2.0, longest=5.0)
    waits = await dial_for(gate, 600, Settings(backoff=backoff, first_welcome=None))
    assert all(wait <= limit(attempt, backoff) for attempt, wait in enumerate(waits, 1))
    assert max(waits) > 4


@pytest.mark.parametrize(("stable", "resets"), [(29.0, False), (31.0, True)])
async def test_a_stable_welcome_begins_pauses_anew(gate: Gate, stable: float, resets: bool) -> None:
    gate.refusals.extend([DOWN] * 12)
    waits = []
    async with present(gate) as (_, end):
        for _ in range(25):
            await anyio.sleep(stable)
            end.drop()
            lost_at = anyio.current_time()
            end = await gate.welcomed()
            waits.append(anyio.current_time() - lost_at)
    assert (max(waits) <= 0.25) is resets


async def test_a_gateway_that_closes_at_once_is_not_dialled_ever_faster(gate: Gate) -> None:
    async with present(gate) as (_, end):
        started = anyio.current_time()
        for _ in range(60):
            await end.close(1012)
            end = await gate.welcomed()
        assert anyio.current_time() - started > 300


async def test_a_long_outage_after_a_stable_connection_is_backed_off_from(gate: Gate) -> None:
    async with present(gate) as (_, end):
        await anyio.sleep(3600)
        gate.always = DOWN
        gate.attempts.clear()
        end.drop()
        await anyio.sleep(3600)
    assert len(gate.attempts) < 400, "the old connection does not count as stable again and again"
    assert max(pauses(gate)) > 25


@pytest.mark.rule("3.codes.retry_after")
async def test_retry_after_is_waited_for_up_to_a_limit(gate: Gate) -> None:
    for status, seconds in ((503, 120.0), (429, 7.0), (503, 1e9)):
        gate.refuse(status, retry_after=seconds)
    async with present(gate):
        first, second, third = pauses(gate)
    assert 120 <= first < 121
    assert 7 <= second < 8
    assert LONGEST_RETRY_AFTER <= third < LONGEST_RETRY_AFTER + 1


@pytest.mark.rule("3.codes.reconnect")
@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_statuses_of_a_moment_are_tried_again(gate: Gate, status: int) -> None:
    gate.refuse(status, status)
    async with present(gate):
        assert len(gate.attempts) == 3


@pytest.mark.rule("3.codes.reconnect")
@pytest.mark.parametrize("code", [1000, 1001, 1007, 1009, 1011, 1012, 1013, 4000])
async def test_close_codes_of_a_moment_are_dialled_again(gate: Gate, code: int) -> None:
    async with present(gate) as (session, end):
        await end.close(code)
        await gate.welcomed()
        await anyio.wait_all_tasks_blocked()
        assert session.table.connected


async def end(gate: Gate, error: type[SessionEnded], code: int) -> None:
    """Close a connection, after which the session must end by an error."""
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with present(gate) as (_, end):
            await end.close(code, "because")
            await anyio.sleep_forever()
    assert caught.group_contains(error, match="because", depth=1)


@pytest.mark.rule("3.codes.stop")
@pytest.mark.parametrize(
    ("status", "error"),
    [(400, SessionEnded), (404, NoSuchSpace), (401, TokenRefused), (403, TokenRefused)],
)
async def test_statuses_that_end_it(gate: Gate, status: int, error: type[SessionEnded]) -> None:
    refusal = HandshakeRefused(status, None, "because")
    gate.refusals.extend([None, refusal])
    await end(gate, error, 1012)
    assert len(gate.attempts) == 2
    gate.always = refusal
    with pytest.raises(error, match=r"ws://gate.*because"):
        await dial(gate)
    assert len(gate.attempts) == 3


@pytest.mark.rule("3.codes.stop")
@pytest.mark.parametrize(
    ("code", "error"),
    [(4400, SessionEnded), (4401, TokenRefused), (4403, Kicked), (4404, NoSuchSpace),
     (4409, TakenOver)],
)  # fmt: skip
async def test_close_codes_that_end_it(gate: Gate, code: int, error: type[SessionEnded]) -> None:
    await end(gate, error, code)
    assert len(gate.attempts) == 1


@pytest.mark.rule("3.codes.own_late")
async def test_a_late_dial_of_its_own_does_not_end_it(gate: Gate) -> None:
    unanswered = CannotConnect("no answer")
    unanswered.__cause__ = TimeoutError()
    gate.refusals.extend([unanswered, DOWN])
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with present(gate) as (_, end):
            await end.close(4409)
            end = await gate.welcomed()
            await end.close(4409, "because")
            await anyio.sleep_forever()
    assert caught.group_contains(TakenOver, match="because", depth=1)
    assert len(gate.attempts) == 4


@pytest.mark.rule("3.codes.own_late")
async def test_a_dial_that_was_given_up_long_ago_is_forgotten(gate: Gate) -> None:
    unanswered = CannotConnect("no answer")
    unanswered.__cause__ = TimeoutError()
    gate.refusals.append(unanswered)
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with present(gate) as (_, end):
            await anyio.sleep(2 * OWN_LATE_SECONDS)
            await end.close(4409, "because")
            await anyio.sleep_forever()
    assert caught.group_contains(TakenOver, match="because", depth=1)


async def test_403_without_a_reason_is_no_refused_token(gate: Gate) -> None:
    """An ASGI server says so of a path at which there is no gateway."""
    gate.always = HandshakeRefused(403)
    with pytest.raises(SessionEnded, match=r"no gateway is at this path, or.*MEUP_URL") as ended:
        await dial(gate)
    assert type(ended.value) is SessionEnded


class Vault:
    """Gives a token of another number each time that it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        return f"token {self.asked}"

    async def later(self) -> str:
        await anyio.sleep(1)
        return self()


@pytest.mark.parametrize("as_async", [False, True])
async def test_a_token_callable_is_asked_once_for_each_attempt(gate: Gate, as_async: bool) -> None:
    vault = Vault()
    gate.refuse(503, 503)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gate.welcomed)
        async with session_at(gate, vault.later if as_async else vault):
            pass
    sent = [headers["Authorization"] for _, headers in gate.attempts]
    assert sent == ["Bearer token 1", "Bearer token 2", "Bearer token 3"]
    assert vault.asked == 3


@pytest.mark.rule("3.codes.token_again")
@pytest.mark.parametrize(
    ("status", "words", "error"),
    [(401, "", TokenRefused), (403, "the gateway's words", TokenRefused), (403, "", SessionEnded)],
)
async def test_token_refused_twice_ends(
    gate: Gate, status: int, words: str, error: type[SessionEnded]
) -> None:
    vault = Vault()
    gate.always = HandshakeRefused(status, None, words)
    with pytest.raises(error):
        await dial(gate, vault)
    assert vault.asked == 2


@pytest.mark.rule("3.codes.token_again")
async def test_a_token_that_is_refused_twice_ends_it_after_a_welcome_too(gate: Gate) -> None:
    """A welcome of before says nothing about the token that is refused now."""
    vault = Vault()
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with anyio.create_task_group() as tasks:

            async def welcome_and_drop() -> None:
                end = await gate.welcomed()
                await anyio.sleep(100)
                gate.always = HandshakeRefused(401)
                end.drop()

            tasks.start_soon(welcome_and_drop)
            async with session_at(gate, vault):
                await anyio.sleep_forever()
    assert caught.group_contains(TokenRefused, depth=1)
    assert vault.asked == 3


async def test_the_second_question_is_open_again_after_a_welcome(gate: Gate) -> None:
    vault, done = Vault(), anyio.Event()
    gate.refuse(401)
    async with anyio.create_task_group() as tasks:

        async def welcome_twice() -> None:
            end = await gate.welcomed()
            await anyio.sleep(1)
            gate.refuse(401)
            end.drop()
            await gate.welcomed()
            done.set()

        tasks.start_soon(welcome_twice)
        async with session_at(gate, vault):
            await done.wait()
    assert vault.asked == 4


async def test_what_a_token_callable_raises_comes_out_as_itself(gate: Gate) -> None:
    def lost() -> str:
        raise LookupError("no token in the vault")

    with pytest.raises(LookupError, match="vault"):
        await dial(gate, lost)


async def test_a_token_that_cannot_be_had_after_a_welcome_is_asked_for_again(gate: Gate) -> None:
    asked: list[float] = []

    def out_of_reach() -> str:
        asked.append(anyio.current_time())
        if len(asked) in (2, 3):
            raise ConnectionRefusedError("the vault is down")
        return "secret"

    first: list[End] = []

    async def welcome() -> None:
        first.append(await gate.welcomed())

    with anyio.fail_after(3600):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(welcome)
            async with session_at(gate, out_of_reach):
                first[0].drop()
                await gate.welcomed()
    assert len(asked) == 4
    assert len(gate.attempts) == 2


async def test_a_gateway_that_accepts_and_says_nothing_is_dialled_again(gate: Gate) -> None:
    async def ignore_then_welcome() -> None:
        end = await gate.accept()
        assert await end.rest() == []
        assert end.transport.closed is not None
        assert "no welcome" in end.transport.closed.reason
        await gate.welcomed()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ignore_then_welcome)
        async with session_at(gate):
            assert anyio.current_time() - gate.times[0] >= WELCOME_SECONDS
    assert len(gate.attempts) == 2


@pytest.mark.parametrize(
    "failure",
    [DOWN, HandshakeRefused(503, None, "starting up"), TransportClosed(1011, "no database")],
)
async def test_the_first_welcome_is_waited_for_so_long(gate: Gate, failure: CannotConnect) -> None:
    gate.always = failure
    began = anyio.current_time()
    with pytest.raises(CannotConnect, match=r"no welcome came from ws://gate in 10 s: ") as caught:
        await dial(gate, settings=Settings())
    assert anyio.current_time() - began == pytest.approx(10.0)
    assert str(failure) in str(caught.value)
    assert caught.value.__cause__ is failure
