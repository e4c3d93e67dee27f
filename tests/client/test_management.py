"""Management of a space, whatever a gateway answers."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from meup_agent import Space
from meup_agent.errors import OutcomeUnknown, Refused
from meup_agent.types import Grant, Invitation
from tests.session.gate import End, Gate, present
from tests.wire import kinds

CHAT = [{"kind": "chat"}]


@pytest.fixture
def gate(anyio_backend: object) -> Gate:
    return Gate()


async def managed(gate: Gate, do: Callable[[Space], Awaitable[Any]], *, answer: Any) -> Any:
    """The result or error of a verb when a gateway answers in some way."""
    found: list[Any] = []
    async with present(gate, None, "bob") as (session, end), anyio.create_task_group() as tasks:

        async def act() -> None:
            try:
                found.append(await do(Space(session)))
            except (Refused, OutcomeUnknown) as error:
                found.append(error)

        tasks.start_soon(act)
        await answer(end)
    return found[0]


async def echoed(end: End) -> None:
    await end.echo(await end.hear())


async def test_grant_is_taken_when_it_comes_back(gate: Gate) -> None:
    grant = await managed(
        gate, lambda space: space.members.grant("bob", CHAT, reason="trust"), answer=echoed
    )
    assert isinstance(grant, Grant)
    assert (grant.by, grant.participant, grant.reason) == ("alice", "bob", "trust")
    assert grant.capabilities == tuple(CHAT)


async def test_where_nothing_comes_back_it_is_not_waited_for(gate: Gate) -> None:
    gate.gives = {}
    gate.dialect = "meup/v0.2"

    async def silent(end: End) -> None:
        said = await end.hear()
        assert (said.kind, said.payload["participant_id"]) == (kinds.canonical("space.kick"), "bob")

    assert await managed(gate, lambda space: space.members.kick("bob"), answer=silent) is None


@pytest.mark.parametrize(
    ("payload", "code", "words"),
    [
        ({"error": "capability_lacking", "message": "you lack"}, "capability_lacking", "lack"),
        ({"error": "odd"}, "odd", "odd"),
        ({"error": 5, "message": 6}, "error", "refused"),
        ({}, "error", "refused"),
    ],
)
async def test_refusal_is_raised_as_it_is(gate: Gate, payload: Any, code: str, words: str) -> None:
    async def refuse(end: End) -> None:
        await end.refuse(await end.hear(), payload)

    error = await managed(gate, lambda space: space.members.grant("bob", CHAT), answer=refuse)
    assert isinstance(error, Refused)
    assert error.error == code
    assert words in str(error)


async def test_acknowledgement_is_believed_from_the_gateway_alone(gate: Gate) -> None:
    async def answer(end: End) -> None:
        said = await end.hear()
        await end.echo(said)
        for sender, token in (("mallory", "forged"), (kinds.GATEWAY, "real")):
            ack = {"status": "created", "participant_id": "guest", "token": token}
            await end.say("space/invite-ack", ack, sender=sender, correlation=(said.id,))

    invitation = await managed(gate, lambda space: space.members.invite("guest"), answer=answer)
    assert isinstance(invitation, Invitation)
    assert (invitation.token, invitation.url) == ("real", None)


async def test_acknowledgement_of_something_else_is_none(gate: Gate) -> None:
    async def answer(end: End) -> None:
        said = await end.hear()
        for about, token in (("another", "wrong"), (said.id, 5)):
            ack: dict[str, Any] = {"token": token, "connection_url": []}
            await end.say("space/invite-ack", ack, sender=kinds.GATEWAY, correlation=(about,))

    invitation = await managed(gate, lambda space: space.members.invite("guest"), answer=answer)
    assert (invitation.token, invitation.url) == (None, None)


@pytest.mark.parametrize("anyio_backend", [pytest.param("trio", id="trio")])
async def test_what_became_of_it_is_not_known_where_nobody_says_so(gate: Gate) -> None:
    async def nothing(end: End) -> None:
        await end.hear()

    error = await managed(
        gate, lambda space: space.members.kick("bob", timeout=0.01), answer=nothing
    )
    assert isinstance(error, OutcomeUnknown)
